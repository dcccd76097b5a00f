//! Families whose label values are declared, so that every series exists before its first event.
//!
//! `increase()` over a series that appears at 1 is 0: an alert on it would miss the first event.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto;

use super::{Counter, CounterVec, Gauge, GaugeVec};

/// Maximum number of series of a family with declared label values; larger sets appear on use.
pub const DECLARED_MAX: usize = 64;

/// Separator between the values of one combination; no label value contains it.
const JOIN: &str = "\u{1f}";

/// A counter by declared label values; made by [`super::Registry::counter_closed`].
pub type ClosedCounter = Closed<CounterVec>;
/// A gauge by declared label values; made by [`super::Registry::gauge_closed`].
pub type ClosedGauge = Closed<GaugeVec>;

/// The combinations of label values that were declared.
pub(super) type Declared = Arc<Mutex<BTreeSet<String>>>;

/// Metrics by label values.
pub trait ByLabels: Collector + Clone + Send + Sync + 'static {
    type Metric;
    /// The metric of these label values, made if it is new.
    fn of(&self, values: &[&str]) -> Self::Metric;
}

impl ByLabels for CounterVec {
    type Metric = Counter;
    fn of(&self, values: &[&str]) -> Counter {
        self.with_label_values(values)
    }
}

impl ByLabels for GaugeVec {
    type Metric = Gauge;
    fn of(&self, values: &[&str]) -> Gauge {
        self.with_label_values(values)
    }
}

/// A family of one or more labels with declared values; clones share it.
#[derive(Clone, Debug)]
pub struct Closed<V> {
    pub(super) series: V,
    pub(super) declared: Declared,
    pub(super) undeclared: Counter,
}

impl<V: ByLabels> Closed<V> {
    /// Declares values of the only label: their series exist from here on.
    ///
    /// # Panics
    /// When the family gets more than [`DECLARED_MAX`] series, or has several labels.
    pub fn declare<'v>(&self, values: impl IntoIterator<Item = &'v str>) {
        let values: Vec<&str> = values.into_iter().collect();
        self.declare_all(&[&values]);
    }

    /// Declares every combination of these values, given by label.
    pub(super) fn declare_all(&self, labels: &[&[&str]]) {
        let mut rows: Vec<Vec<&str>> = vec![Vec::new()];
        for values in labels {
            let mut longer = Vec::new();
            for row in &rows {
                longer.extend(
                    values
                        .iter()
                        .map(|value| [row.as_slice(), &[*value]].concat()),
                );
            }
            rows = longer;
        }
        let mut declared = self.declared.lock();
        for row in rows {
            self.series.of(&row);
            declared.insert(row.join(JOIN));
        }
        assert!(
            declared.len() <= DECLARED_MAX,
            "{} label combinations of `{}` are declared; more than {DECLARED_MAX} must appear on use",
            declared.len(),
            self.series.desc().first().map_or("", |desc| &desc.fq_name),
        );
    }

    /// The series of these values. Undeclared values are counted as well, and additionally in
    /// `metrics_undeclared_total`, which tests hold at 0.
    pub fn with_label_values(&self, values: &[&str]) -> V::Metric {
        let declared = match values {
            [only] => self.declared.lock().contains(*only),
            several => self.declared.lock().contains(&several.join(JOIN)),
        };
        if !declared {
            self.undeclared.inc();
            tracing::error!(event = "metric_undeclared", values = values.join(" "));
            // Release builds continue: a wrong label must not stop a service.
            debug_assert!(declared, "undeclared label values {values:?}");
        }
        self.series.of(values)
    }
}

impl<V: ByLabels> Collector for Closed<V> {
    fn desc(&self) -> Vec<&Desc> {
        self.series.desc()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        self.series.collect()
    }
}
