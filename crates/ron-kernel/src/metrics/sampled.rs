//! Families whose values are read by a callback at each scrape.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto;

type SampledRow = (Vec<(String, String)>, Box<dyn Fn() -> f64 + Send + Sync>);

struct SampledInner {
    desc: Desc,
    name: String,
    help: String,
    kind: proto::MetricType,
    rows: Mutex<Vec<SampledRow>>,
}

/// A family of gauges, or a counter, whose values callbacks read at each scrape. Callbacks run
/// under the lock on the rows and must not make metrics of this family.
#[derive(Clone)]
pub(super) struct Sampled(Arc<SampledInner>);

impl Sampled {
    pub fn new(
        name: &str,
        help: &str,
        labels: &[&str],
        kind: proto::MetricType,
    ) -> prometheus::Result<Self> {
        let labels = labels.iter().map(|l| (*l).to_owned()).collect();
        let consts = std::collections::HashMap::new();
        Ok(Self(Arc::new(SampledInner {
            desc: Desc::new(name.to_owned(), help.to_owned(), labels, consts)?,
            name: name.to_owned(),
            help: help.to_owned(),
            kind,
            rows: Mutex::new(Vec::new()),
        })))
    }

    pub fn row(&self, labels: &[(&str, &str)], value: impl Fn() -> f64 + Send + Sync + 'static) {
        let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        let labels = labels.iter().map(owned).collect();
        self.0.rows.lock().push((labels, Box::new(value)));
    }
}

impl Collector for Sampled {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.desc]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let mut family = proto::MetricFamily::default();
        family.set_name(self.0.name.clone());
        family.set_help(self.0.help.clone());
        family.set_field_type(self.0.kind);
        let rows = self.0.rows.lock();
        // Rows with the same labels, as of several queues with one name, are one series: their sum.
        let mut sums: Vec<(&[(String, String)], f64)> = Vec::new();
        for (labels, value) in rows.iter() {
            match sums.iter_mut().find(|(known, _)| known == labels) {
                Some((_, sum)) => *sum += value(),
                None => sums.push((labels, value())),
            }
        }
        let metrics = sums.into_iter().map(|(labels, value)| {
            let mut metric = proto::Metric::default();
            if self.0.kind == proto::MetricType::COUNTER {
                let mut counter = proto::Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            } else {
                let mut gauge = proto::Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
            let pairs = labels.iter().map(|(k, v)| {
                let mut pair = proto::LabelPair::default();
                pair.set_name(k.clone());
                pair.set_value(v.clone());
                pair
            });
            metric.set_label(pairs.collect());
            metric
        });
        family.set_metric(metrics.collect());
        vec![family]
    }
}
