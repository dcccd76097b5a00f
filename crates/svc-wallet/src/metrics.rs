//! The metrics of this service (prefix `svc_wallet_`).

use ron_kernel::{
    ClosedCounter, ClosedGauge, Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramVec,
    KernelMetrics, LATENCY_BUCKETS, Registry, SharedClock,
};
use ron_proto::ledger::{LEDGER_CLOSED, RefusalCode};
use ron_proto::problem::COMMON;
use std::time::Instant;

/// The ledger, as a label value.
pub const LEDGER: &str = "ron-ledger";
/// Calls to the ledger, as `op` in `io_timeouts_total`.
const CALLS: [&str; 3] = ["commit", "probe", "read"];
/// Refusal codes that are neither common to all services nor the ledger's.
const OWN_REFUSALS: [&str; 2] = ["retry_later", LEDGER_CLOSED];

#[derive(Debug, Clone)]
pub struct Metrics {
    /// Kernel metrics, for failed and late calls to the ledger.
    pub km: KernelMetrics,
    pub requests: CounterVec,
    pub rejects: ClosedCounter,
    pub replays: Counter,
    /// Debits refused because their nonce was not the next one of the account.
    pub nonce_conflicts: Counter,
    /// Time from acceptance to answer, by operation.
    pub op_seconds: HistogramVec,
    /// Writes accepted and not yet answered.
    pub inflight: GaugeVec,
    pub batch_size: Histogram,
    pub upstream: CounterVec,
    pub breaker: ClosedGauge,
    /// Age of the balances in answers.
    pub staleness: Histogram,
    /// Sequence of the last entry received from the feed.
    pub feed_seq: Gauge,
    /// Keys whose outcome is unknown.
    pub unresolved: Gauge,
    /// Number of times that events were missed.
    pub feed_gaps: Counter,
}

impl Metrics {
    /// Registers the metrics, or finds them in the registry.
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
            replays: r.counter(
                "idem_replays_total",
                "Answers that repeat an earlier answer to the same idempotency key.",
            ),
            nonce_conflicts: r.counter(
                "nonce_conflicts_total",
                "Debits refused because their nonce was not the account's next.",
            ),
            op_seconds: r.histogram_vec(
                "op_duration_seconds",
                "Time from the acceptance of a write to its answer, in seconds.",
                &["op"],
                LATENCY_BUCKETS,
            ),
            inflight: r.gauge_vec("inflight", "Writes accepted and not yet answered.", &["op"]),
            batch_size: r.histogram("batch_size", "Number of entries in one ledger call.", sizes),
            upstream: r.counter_vec(
                "upstream_calls_total",
                "Calls to another service, by operation and outcome.",
                &["svc", "op", "outcome"],
            ),
            breaker: r.gauge_closed(
                "breaker_state",
                "State of the circuit breaker: 0 closed, 1 half open, 2 open.",
                &[("svc", &[LEDGER])],
            ),
            staleness: r.histogram(
                "balance_staleness_seconds",
                "Age of the balances in answers, in seconds.",
                &[0.001, 0.05, 0.25, 1.0, 5.0, 30.0],
            ),
            feed_seq: r.gauge(
                "feed_seq",
                "Sequence of the last ledger entry received from the event feed.",
            ),
            unresolved: r.gauge(
                "unresolved_keys",
                "Idempotency keys whose outcome is unknown until the ledger answers.",
            ),
            feed_gaps: r.counter(
                "feed_gaps_total",
                "Number of times that events of the ledger were missed.",
            ),
        }
    }

    /// Counts a call to the ledger without a usable answer; `late` when its deadline passed. `op`
    /// is one of [`CALLS`].
    pub fn ledger_failed(&self, op: &'static str, late: bool) {
        self.km.upstream_fail.with_label_values(&[LEDGER]).inc();
        if late {
            self.km.io_timeouts.with_label_values(&[op]).inc();
        }
    }

    /// Counts an interruption of the event feed, which restarts after a pause.
    pub fn feed_failed(&self) {
        self.km.upstream_fail.with_label_values(&[LEDGER]).inc();
        self.retried("feed");
    }

    /// Counts a retried call to the ledger.
    pub fn retried(&self, op: &'static str) {
        self.km.backoff_retries.with_label_values(&[op]).inc();
    }

    /// Records that an accepted write was answered.
    pub fn observe_answer(&self, op: &'static str, since: Instant, clock: &SharedClock) {
        let took = clock.now().saturating_duration_since(since);
        self.op_seconds
            .with_label_values(&[op])
            .observe(took.as_secs_f64());
        self.inflight.with_label_values(&[op]).dec();
    }
}
