//! The one table of this service's own metrics (prefix `svc_wallet_`).

use ron_kernel::{
    ClosedCounter, ClosedGauge, Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramVec,
    KernelMetrics, LATENCY_BUCKETS, Registry, SharedClock,
};
use ron_proto::ledger::{LEDGER_CLOSED, RefusalCode};
use ron_proto::problem::COMMON;
use std::time::Instant;

/// The ledger, as a label.
pub const LEDGER: &str = "ron-ledger";
/// Calls to it, as `op` in `io_timeouts_total`.
const CALLS: [&str; 3] = ["commit", "probe", "read"];
/// Codes of refusals that neither every service nor the ledger has.
const OWN_REFUSALS: [&str; 2] = ["retry_later", LEDGER_CLOSED];

/// Handles on the metrics.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// The kernel's, for what is counted of calls to the ledger.
    pub km: KernelMetrics,
    /// Requests by operation.
    pub requests: CounterVec,
    /// Refused requests by reason.
    pub rejects: ClosedCounter,
    /// Answers that were given before.
    pub replays: Counter,
    /// Debits with another nonce than the next.
    pub nonce_conflicts: Counter,
    /// Time from acceptance to answer, by operation.
    pub op_seconds: HistogramVec,
    /// Writes accepted and not answered yet.
    pub inflight: GaugeVec,
    /// Entries of one ledger call.
    pub batch_size: Histogram,
    /// Ledger calls by operation and outcome.
    pub upstream: CounterVec,
    /// 0 closed, 1 half open, 2 open.
    pub breaker: ClosedGauge,
    /// Age of the balances that were answered.
    pub staleness: Histogram,
    /// Entries of the ledger that the feed has not seen yet.
    pub feed_lag: Gauge,
    /// Last entry taken from the feed.
    pub feed_seq: Gauge,
    /// Times that events were missed.
    pub feed_gaps: Counter,
}

impl Metrics {
    /// Makes (or finds) the metrics in a registry.
    pub fn new(r: &Registry) -> Self {
        let km = KernelMetrics::new(r);
        km.upstream_fail.declare([LEDGER]);
        km.io_timeouts.declare(CALLS);
        km.backoff_retries.declare(["commit", "feed"]);
        let common = COMMON.iter().map(|kind| kind.code);
        let refused = RefusalCode::ALL.iter().map(|code| code.as_str());
        let refusals: Vec<&str> = common.chain(refused).chain(OWN_REFUSALS).collect();
        let sizes = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
        Self {
            km,
            requests: r.counter_vec("requests_total", "Requests by operation.", &["op"]),
            rejects: r.counter_closed(
                "rejects_total",
                "Refused requests by reason.",
                &[("reason", &refusals)],
            ),
            replays: r.counter("idem_replays_total", "Answers that had been given before."),
            nonce_conflicts: r.counter(
                "nonce_conflicts_total",
                "Debits with another nonce than the next.",
            ),
            op_seconds: r.histogram_vec(
                "op_duration_seconds",
                "Time from acceptance to answer.",
                &["op"],
                LATENCY_BUCKETS,
            ),
            inflight: r.gauge_vec("inflight", "Writes accepted and not answered yet.", &["op"]),
            batch_size: r.histogram("batch_size", "Entries of one ledger call.", sizes),
            upstream: r.counter_vec(
                "upstream_calls_total",
                "Calls to another service.",
                &["svc", "op", "outcome"],
            ),
            breaker: r.gauge_closed(
                "breaker_state",
                "0 closed, 1 half open, 2 open.",
                &[("svc", &[LEDGER])],
            ),
            staleness: r.histogram(
                "balance_staleness_seconds",
                "Age of the balances that were answered.",
                &[0.001, 0.05, 0.25, 1.0, 5.0, 30.0],
            ),
            feed_lag: r.gauge(
                "feed_lag_entries",
                "Entries of the ledger that the feed has not seen yet.",
            ),
            feed_seq: r.gauge(
                "feed_seq",
                "Last entry of the ledger that was taken from its event feed.",
            ),
            feed_gaps: r.counter(
                "feed_gaps_total",
                "Times that events of the ledger were missed.",
            ),
        }
    }

    /// A call to the ledger that brought no usable answer, `late` when its time ran out. `op` is one of [`CALLS`].
    pub fn ledger_failed(&self, op: &'static str, late: bool) {
        self.km.upstream_fail.with_label_values(&[LEDGER]).inc();
        if late {
            self.km.io_timeouts.with_label_values(&[op]).inc();
        }
    }

    /// The event feed broke off; it is taken up again after a pause.
    pub fn feed_failed(&self) {
        self.km.upstream_fail.with_label_values(&[LEDGER]).inc();
        self.retried("feed");
    }

    /// A call to the ledger is made again after a pause.
    pub fn retried(&self, op: &'static str) {
        self.km.backoff_retries.with_label_values(&[op]).inc();
    }

    /// One accepted write is answered.
    pub fn landed(&self, op: &'static str, since: Instant, clock: &SharedClock) {
        let took = clock.now().saturating_duration_since(since);
        self.op_seconds
            .with_label_values(&[op])
            .observe(took.as_secs_f64());
        self.inflight.with_label_values(&[op]).dec();
    }
}
