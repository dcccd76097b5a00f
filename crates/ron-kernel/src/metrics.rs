//! One registry per service, and the concurrency metrics that every service has.

mod closed;
mod sampled;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::Collector;
pub use prometheus::{
    GaugeVec as FloatGaugeVec, Histogram, HistogramVec, IntCounter as Counter,
    IntCounterVec as CounterVec, IntGauge as Gauge, IntGaugeVec as GaugeVec,
};
use prometheus::{HistogramOpts, Opts, TextEncoder, proto};

use self::closed::Declared;
pub use self::closed::{ByLabels, Closed, ClosedCounter, ClosedGauge, DECLARED_MAX};
use self::sampled::Sampled;
use crate::topology::{Overflow, QueueSpec, ThreadSpec, Topology};

/// Upper bounds in seconds for latencies from 100 us to 10 s. Few, because a service has many
/// histograms.
pub const LATENCY_BUCKETS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0,
];

/// Metrics of one service; every name gets the service's prefix. A second request for a name
/// returns the same metric.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    prefix: String,
    prometheus: prometheus::Registry,
    /// Metrics of the whole process, under the names that every exporter uses: without the prefix.
    process: prometheus::Registry,
    made: Mutex<BTreeMap<String, Box<dyn Any + Send>>>,
    families: Mutex<BTreeMap<String, Family>>,
    /// Declared label values, by the name of their family.
    closed: Mutex<BTreeMap<String, Declared>>,
    /// Label values counted without a declaration; exported, and 0 unless the code is wrong.
    undeclared: Counter,
    built: Mutex<Built>,
}

/// Queues built so far, and the tables in which each must have a row.
#[derive(Default)]
struct Built {
    tables: Vec<&'static Topology>,
    queues: Vec<BuiltQueue>,
}

impl Built {
    fn check(&self, queue: &QueueSpec) {
        let same = |row: &&QueueSpec| row.name == queue.name && row.overflow == queue.overflow;
        let known = |table: &&Topology| table.queues.iter().find(same).is_some();
        assert!(
            self.tables.is_empty() || self.tables.iter().any(known),
            "queue `{}` ({}) is not in the topology of {}: add its row",
            queue.name,
            queue.overflow.as_str(),
            self.tables[0].service
        );
    }
}

/// A metric without its values, for the generated documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Name with the service's prefix.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Names of its labels.
    pub labels: Vec<String>,
    pub help: String,
}

/// A queue that was built.
#[derive(Debug, Clone, Copy)]
pub struct BuiltQueue {
    pub spec: &'static QueueSpec,
    /// Items it holds, as configured.
    pub capacity: usize,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({})", self.0.prefix)
    }
}

impl Registry {
    /// The registry of a service. Its name, with underscores for hyphens, begins each metric's name:
    /// `ron_kms_` for `ron-kms`.
    ///
    /// # Panics
    /// When the name is empty.
    pub fn new(service: &str) -> Self {
        let prefix = service.replace('-', "_");
        let prometheus = prometheus::Registry::new_custom(Some(prefix.clone()), None)
            .expect("the name of a service is not empty");
        let undeclared = Counter::new(
            "metrics_undeclared_total",
            "Label values counted without having been declared; must stay 0.",
        );
        let undeclared = undeclared.expect("the name is a valid constant");
        let new = Self(Arc::new(Inner {
            prefix,
            prometheus,
            process: prometheus::Registry::new(),
            made: Mutex::new(BTreeMap::new()),
            families: Mutex::new(BTreeMap::new()),
            closed: Mutex::new(BTreeMap::new()),
            undeclared: undeclared.clone(),
            built: Mutex::new(Built::default()),
        }));
        // Registered like any other metric, so that it is exported from the start.
        new.made("metrics_undeclared_total", || Ok(undeclared));
        new
    }

    /// The prefix without the underscore.
    pub fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// A counter; its name ends in `_total`.
    pub fn counter(&self, name: &str, help: &str) -> Counter {
        self.made(name, || Counter::new(name, help))
    }

    /// A counter by labels; its name ends in `_total`.
    pub fn counter_vec(&self, name: &str, help: &str, labels: &[&str]) -> CounterVec {
        self.made(name, || CounterVec::new(Opts::new(name, help), labels))
    }

    /// A counter by labels whose values are all known: every combination exists at 0 from here on,
    /// so that `increase()` sees the first event. A later call may add values to the same name.
    ///
    /// # Panics
    /// When there are more than [`DECLARED_MAX`] combinations.
    pub fn counter_closed(
        &self,
        name: &str,
        help: &str,
        labels: &[(&str, &[&str])],
    ) -> ClosedCounter {
        let names: Vec<&str> = labels.iter().map(|(label, _)| *label).collect();
        let make = || CounterVec::new(Opts::new(name, help), &names);
        self.closed(name, labels, make)
    }

    /// A gauge by labels whose values are all known, as [`Registry::counter_closed`].
    pub fn gauge_closed(&self, name: &str, help: &str, labels: &[(&str, &[&str])]) -> ClosedGauge {
        let names: Vec<&str> = labels.iter().map(|(label, _)| *label).collect();
        let make = || GaugeVec::new(Opts::new(name, help), &names);
        self.closed(name, labels, make)
    }

    fn closed<V: ByLabels>(
        &self,
        name: &str,
        labels: &[(&str, &[&str])],
        make: impl FnOnce() -> prometheus::Result<V>,
    ) -> Closed<V> {
        let closed = self.made(name, || {
            Ok(Closed {
                series: make()?,
                declared: Arc::default(),
                undeclared: self.0.undeclared.clone(),
            })
        });
        let values: Vec<&[&str]> = labels.iter().map(|(_, values)| *values).collect();
        closed.declare_all(&values);
        let declared = closed.declared.clone();
        self.0.closed.lock().insert(name.to_owned(), declared);
        closed
    }

    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.made(name, || Gauge::new(name, help))
    }

    /// A gauge by labels for amounts that may be beyond 64 bits: exact up to 2^53, and within 2^-53 of themselves above.
    pub fn gauge_of_amount(&self, name: &str, help: &str, labels: &[&str]) -> FloatGaugeVec {
        self.made(name, || FloatGaugeVec::new(Opts::new(name, help), labels))
    }

    /// A gauge by labels.
    pub fn gauge_vec(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.made(name, || GaugeVec::new(Opts::new(name, help), labels))
    }

    /// A histogram with upper bounds `buckets` (seconds for times; the name ends in `_seconds`).
    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.made(name, || Histogram::with_opts(opts))
    }

    /// A histogram by labels.
    pub fn histogram_vec(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> HistogramVec {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.made(name, || HistogramVec::new(opts, labels))
    }

    /// A gauge whose value is read at each scrape, by the thread that serves it. A later call may
    /// add label values to the same name; the label names must stay the same.
    pub fn gauge_fn(
        &self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        value: impl Fn() -> i64 + Send + Sync + 'static,
    ) {
        let names: Vec<&str> = labels.iter().map(|(k, _)| *k).collect();
        let kind = proto::MetricType::GAUGE;
        let sampled: Sampled = self.made(name, || Sampled::new(name, help, &names, kind));
        sampled.row(labels, move || value() as f64);
    }

    /// A metric of the whole process, read at each scrape. Its name has no prefix and begins with
    /// `process_`; one that ends in `_total` is a counter, any other a gauge.
    pub fn process_fn(
        &self,
        name: &str,
        help: &str,
        value: impl Fn() -> f64 + Send + Sync + 'static,
    ) {
        #[cfg(sim)]
        let value = crate::sync::of_machine(value);
        let kind = if name.ends_with("_total") {
            proto::MetricType::COUNTER
        } else {
            proto::MetricType::GAUGE
        };
        let sampled = self.made_in(&self.0.process, name, || {
            Sampled::new(name, help, &[], kind)
        });
        sampled.row(&[], value);
    }

    /// All families made so far, by name, including those that have no value yet and are not
    /// rendered. A family of declared label values is listed once a value is declared.
    pub fn families(&self) -> Vec<Family> {
        let closed = self.0.closed.lock();
        let unused = |name: &str| closed.get(name).is_some_and(|d| d.lock().is_empty());
        let families = self.0.families.lock();
        let used = families.iter().filter(|(name, _)| !unused(name));
        used.map(|(_, family)| family.clone()).collect()
    }

    /// All metrics in the Prometheus text format.
    pub fn render(&self) -> String {
        // The library holds its locks over our callbacks; on those another thread would wait in the machine.
        crate::sync::undivided(|| {
            let mut out = String::new();
            // Writing to a String cannot fail, and families come from this registry alone.
            for registry in [&self.0.prometheus, &self.0.process] {
                let _ = TextEncoder::new().encode_utf8(&registry.gather(), &mut out);
            }
            out
        })
    }

    fn made<M>(&self, name: &str, make: impl FnOnce() -> prometheus::Result<M>) -> M
    where
        M: Collector + Clone + Send + 'static,
    {
        self.made_in(&self.0.prometheus, name, make)
    }

    fn made_in<M>(
        &self,
        registry: &prometheus::Registry,
        name: &str,
        make: impl FnOnce() -> prometheus::Result<M>,
    ) -> M
    where
        M: Collector + Clone + Send + 'static,
    {
        // Held over the whole registration: two threads that make the same name get one metric.
        let mut made = self.0.made.lock();
        if let Some(known) = made.get(name) {
            let known = known.downcast_ref::<M>();
            return known
                .expect("one metric name has one type and one label set")
                .clone();
        }
        let metric = make().expect("metric names and labels are valid constants");
        registry
            .register(Box::new(metric.clone()))
            .expect("a name is registered once");
        if let Some(mut family) = family(&metric) {
            // The registry adds the prefix only when it gathers; the description lacks it.
            if std::ptr::eq(registry, &raw const self.0.prometheus) {
                family.name = format!("{}_{}", self.0.prefix, family.name);
            }
            self.0.families.lock().insert(name.to_owned(), family);
        }
        made.insert(name.to_owned(), Box::new(metric.clone()));
        metric
    }
}

fn family(metric: &impl Collector) -> Option<Family> {
    let kind = match metric.collect().first()?.get_field_type() {
        proto::MetricType::COUNTER => "counter",
        proto::MetricType::HISTOGRAM => "histogram",
        _ => "gauge",
    };
    let descs = metric.desc();
    let desc = descs.first()?;
    Some(Family {
        name: desc.fq_name.clone(),
        kind,
        labels: desc.variable_labels.clone(),
        help: desc.help.clone(),
    })
}

/// The concurrency metrics that every service exports under the same names. A thread's label values
/// are declared when it is started, a queue's when it is built; other users declare their label
/// values themselves.
#[derive(Clone, Debug)]
pub struct KernelMetrics {
    registry: Registry,
    /// Items dropped from a drop-oldest queue.
    pub queue_dropped: ClosedCounter,
    /// Items refused because a queue was full.
    pub busy_rejections: ClosedCounter,
    /// Threads started, by kind.
    pub tasks_spawned: ClosedCounter,
    /// Threads still running when the drain deadline passed.
    pub tasks_aborted: ClosedCounter,
    /// Threads that ended in time when the drain stopped them.
    pub tasks_canceled: ClosedCounter,
    /// Restarts after a panic or an early return.
    pub restarts: ClosedCounter,
    /// Operations that missed their deadline.
    pub io_timeouts: ClosedCounter,
    /// I/O errors, by kind.
    pub io_errors: ClosedCounter,
    /// Retries after a backoff.
    pub backoff_retries: ClosedCounter,
    /// Items that slow subscribers lost.
    pub bus_lagged: ClosedCounter,
    /// Failed calls to another service.
    pub upstream_fail: ClosedCounter,
    /// Jobs being worked on now.
    pub worker_inflight: ClosedGauge,
    /// Inputs that could not be parsed.
    pub parse_errors: ClosedCounter,
    pub drains: ClosedCounter,
}

/// Values of `shutdown_drains_total{result}`: every thread ended in time, or some did not.
pub(crate) const DRAINED: [&str; 2] = ["clean", "stragglers"];

impl KernelMetrics {
    /// The set of a registry, made on the first call.
    pub fn new(r: &Registry) -> Self {
        let by = |name, help, label| r.counter_closed(name, help, &[(label, &[])]);
        Self {
            registry: r.clone(),
            queue_dropped: by(
                "queue_dropped_total",
                "Items dropped from a queue.",
                "queue",
            ),
            busy_rejections: by(
                "busy_rejections_total",
                "Items refused by a full queue.",
                "queue",
            ),
            tasks_spawned: by("tasks_spawned_total", "Threads started.", "kind"),
            tasks_aborted: by(
                "tasks_aborted_total",
                "Threads left behind at the drain deadline.",
                "kind",
            ),
            tasks_canceled: by(
                "tasks_canceled_total",
                "Threads that ended in time when the drain told them to.",
                "kind",
            ),
            restarts: by(
                "service_restarts_total",
                "Thread restarts after a panic.",
                "kind",
            ),
            io_timeouts: by(
                "io_timeouts_total",
                "Operations that missed their deadline.",
                "op",
            ),
            io_errors: by("io_errors_total", "Input and output errors.", "kind"),
            backoff_retries: by("backoff_retries_total", "Retries after a backoff.", "op"),
            bus_lagged: by("bus_lagged_total", "Items lost by slow subscribers.", "bus"),
            upstream_fail: by(
                "upstream_fail_total",
                "Failed calls to another service.",
                "svc",
            ),
            worker_inflight: r.gauge_closed(
                "worker_inflight",
                "Jobs being worked on now.",
                &[("kind", &[])],
            ),
            parse_errors: by(
                "parse_errors_total",
                "Inputs that could not be parsed.",
                "kind",
            ),
            drains: r.counter_closed(
                "shutdown_drains_total",
                "Drains by result.",
                &[("result", &DRAINED)],
            ),
        }
    }

    /// Exports `queue_depth{queue}`.
    pub fn queue_depth(&self, queue: &str, depth: impl Fn() -> i64 + Send + Sync + 'static) {
        self.registry.gauge_fn(
            "queue_depth",
            "Items waiting in a queue.",
            &[("queue", queue)],
            depth,
        );
    }

    /// Registers a queue that is being built.
    ///
    /// # Panics
    /// When the service's table has no such row.
    pub(crate) fn built_queue(&self, spec: &'static QueueSpec, capacity: usize) {
        self.declare_queue(spec);
        let mut built = self.registry.0.built.lock();
        built.check(spec);
        let capacity = capacity.max(1);
        built.queues.push(BuiltQueue { spec, capacity });
    }

    fn declare_queue(&self, spec: &QueueSpec) {
        self.lost(spec).declare([spec.name]);
        self.io_timeouts.declare([spec.name]);
    }

    /// The counter of items that the queue did not take or keep because it was full.
    pub(crate) fn lost(&self, spec: &QueueSpec) -> &ClosedCounter {
        match spec.overflow {
            Overflow::RejectNew | Overflow::WaitDeadline => &self.busy_rejections,
            Overflow::DropOldest => &self.queue_dropped,
        }
    }

    /// Declares one row of the thread table, of which a thread starts.
    pub(crate) fn declare_threads(&self, spec: &ThreadSpec) {
        for counter in [
            &self.tasks_spawned,
            &self.tasks_aborted,
            &self.tasks_canceled,
            &self.restarts,
        ] {
            counter.declare([spec.name]);
        }
    }

    /// Allows only queues of this table from now on.
    ///
    /// # Panics
    /// When a queue that is not in it was built before.
    pub(crate) fn bind(&self, table: &'static Topology) {
        let mut built = self.registry.0.built.lock();
        if !built.tables.iter().any(|t| std::ptr::eq(*t, table)) {
            built.tables.push(table);
        }
        // Queues may be built before the supervisor; they are checked now.
        for queue in &built.queues {
            built.check(queue.spec);
        }
    }

    /// The queues built so far, in the order they were built.
    pub fn built_queues(&self) -> Vec<BuiltQueue> {
        self.registry.0.built.lock().queues.clone()
    }

    /// The registry this set lives in.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_the_prefix_and_are_made_once() {
        let r = Registry::new("svc_x");
        r.counter("a_total", "A.").inc();
        r.counter("a_total", "A.").inc();
        r.gauge_fn("depth", "D.", &[("queue", "q")], || 7);
        r.gauge_fn("depth", "D.", &[("queue", "p")], || 8);
        r.gauge_fn("depth", "D.", &[("queue", "p")], || 2);
        let text = r.render();
        for line in [
            "svc_x_a_total 2",
            "svc_x_depth{queue=\"q\"} 7",
            "svc_x_depth{queue=\"p\"} 10",
            "# TYPE svc_x_depth gauge",
        ] {
            assert!(text.contains(line), "{line} missing in\n{text}");
        }
    }
    #[test]
    fn declared_label_values_exist_at_zero_and_others_are_detected() {
        let r = Registry::new("t");
        let shapes = |more: &[&str]| {
            r.counter_closed(
                "ends_total",
                "E.",
                &[("kind", more), ("how", &["ok", "bad"])],
            )
        };
        let one = shapes(&["a"]);
        let both = shapes(&["b"]);
        both.with_label_values(&["b", "bad"]).inc();
        one.with_label_values(&["b", "bad"]).inc();
        let late = r.gauge_closed("late", "L.", &[("cause", &[])]);
        assert!(!r.render().contains("t_late"), "nothing is declared");
        assert!(r.families().iter().all(|family| family.name != "t_late"));
        late.declare(["x"]);
        let text = r.render();
        for line in [
            "t_ends_total{how=\"ok\",kind=\"a\"} 0",
            "t_ends_total{how=\"bad\",kind=\"a\"} 0",
            "t_ends_total{how=\"ok\",kind=\"b\"} 0",
            "t_ends_total{how=\"bad\",kind=\"b\"} 2",
            "t_late{cause=\"x\"} 0",
            "t_metrics_undeclared_total 0",
        ] {
            assert!(text.contains(line), "{line} missing in\n{text}");
        }
        let wrong = std::panic::AssertUnwindSafe(|| one.with_label_values(&["c", "ok"]).inc());
        let outcome = std::panic::catch_unwind(wrong);
        assert_eq!(outcome.is_err(), cfg!(debug_assertions));
        assert!(r.render().contains("t_metrics_undeclared_total 1"));
    }

    #[test]
    fn metrics_of_the_process_have_their_usual_names() {
        let r = Registry::new("t");
        r.process_fn("process_cpu_seconds_total", "C.", || 1.5);
        r.process_fn("process_open_fds", "O.", || 3.0);
        let text = r.render();
        for line in [
            "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 1.5",
            "# TYPE process_open_fds gauge\nprocess_open_fds 3",
        ] {
            assert!(text.contains(line), "{line} missing in\n{text}");
        }
        assert!(r.families().iter().any(|f| f.name == "process_open_fds"));
    }

    #[test]
    fn families_are_listed_before_they_have_a_value() {
        let r = Registry::new("svc_x");
        r.histogram_vec("b_seconds", "B.", &["op", "how"], LATENCY_BUCKETS);
        r.gauge_fn("depth", "D.", &[("queue", "q")], || 7);
        r.counter("a_total", "A.").inc();
        assert!(!r.render().contains("b_seconds"));
        let families = r.families();
        let listed: Vec<_> = families
            .iter()
            .map(|f| (f.name.as_str(), f.kind, f.labels.join(",")))
            .collect();
        let wanted = [
            ("svc_x_a_total", "counter", String::new()),
            ("svc_x_b_seconds", "histogram", "op,how".to_owned()),
            ("svc_x_depth", "gauge", "queue".to_owned()),
            ("svc_x_metrics_undeclared_total", "counter", String::new()),
        ];
        assert_eq!(listed, wanted);
    }
}
