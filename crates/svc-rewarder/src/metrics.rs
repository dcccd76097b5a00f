//! The rewarder's own metrics.

use ron_kernel::{
    ClosedCounter, ClosedGauge, Counter, FloatGauge, Histogram, KernelMetrics, Registry,
};
use ron_proto::rewarder::{RunState, RunTotals};

/// Handles of the rewarder's metrics; clones share them.
#[derive(Clone)]
pub struct Metrics {
    /// Disk errors, by what could not be written.
    pub io_errors: ClosedCounter,
    /// Failed calls to ledger and KMS, by service.
    pub upstream_fail: ClosedCounter,
    /// Repeated calls after a pause.
    pub retries: ClosedCounter,
    /// Finished runs by final state.
    pub runs: ClosedCounter,
    /// Time from start to result of a computation.
    pub compute_seconds: Histogram,
    pub rows: Counter,
    /// Pool of the last computed epoch, in minor units (limited to 63 bits).
    pub pool: FloatGauge,
    /// Sum of payouts of the last computed epoch, likewise.
    pub payout: FloatGauge,
    /// Residual of the last computed epoch, likewise.
    pub residual: FloatGauge,
    /// Settlement entries by the ledger's answer.
    pub intents: ClosedCounter,
    /// Results dropped at shutdown; their runs are computed again at the next start.
    pub dropped_results: Counter,
    /// Time of one ledger call with settlement entries.
    pub emit_seconds: Histogram,
    pub invariant_failures: ClosedCounter,
    /// Artifacts and snapshots removed after their retention.
    pub swept: ClosedCounter,
    pub by_state: ClosedGauge,
}

/// From half a millisecond to a minute, in seconds.
const COMPUTE_BUCKETS: &[f64] = &[
    0.0005, 0.002, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0,
];

impl Metrics {
    /// Registers the metrics, or finds those registered before.
    pub fn new(registry: &Registry) -> Self {
        let states = RunState::ALL.map(RunState::as_str);
        let km = KernelMetrics::new(registry);
        km.io_errors.declare(["store", "artifacts"]);
        km.upstream_fail.declare(["ron-ledger", "ron-kms"]);
        km.backoff_retries.declare(["settle"]);
        Self {
            io_errors: km.io_errors,
            upstream_fail: km.upstream_fail,
            retries: km.backoff_retries,
            runs: registry.counter_closed(
                "runs_total",
                "Finished runs by final state.",
                &[("status", &states)],
            ),
            compute_seconds: registry.histogram(
                "compute_duration_seconds",
                "Time to compute one epoch.",
                COMPUTE_BUCKETS,
            ),
            rows: registry.counter("rows_total", "Accounts in computed epochs."),
            pool: registry.gauge_of_amount(
                "pool_minor",
                "Pool of the last computed epoch, in minor units.",
            ),
            payout: registry.gauge_of_amount(
                "payout_minor",
                "Payouts of the last computed epoch, in minor units.",
            ),
            residual: registry.gauge_of_amount(
                "residual_minor",
                "Residual of the last computed epoch, in minor units.",
            ),
            intents: registry.counter_closed(
                "intents_total",
                "Settlement entries by the ledger's answer.",
                &[("result", &["accepted", "dup", "refused"])],
            ),
            dropped_results: registry.counter(
                "dropped_results_total",
                "Results dropped because of shutdown; computed again at the next start.",
            ),
            emit_seconds: registry.histogram(
                "ledger_emit_duration_seconds",
                "Time of one ledger call with settlement entries.",
                ron_kernel::LATENCY_BUCKETS,
            ),
            invariant_failures: registry.counter_closed(
                "invariant_failures_total",
                "Broken invariants by kind; each one quarantines its run.",
                &[("kind", &["overflow", "conservation"])],
            ),
            swept: registry.counter_closed(
                "swept_total",
                "Artifacts and snapshots removed after their retention.",
                &[("kind", &["artifacts", "snapshot"])],
            ),
            by_state: registry.gauge_closed("runs", "Runs by state.", &[("state", &states)]),
        }
    }

    /// Shows a computed epoch's sums.
    pub fn totals(&self, totals: &RunTotals) {
        self.pool.set(totals.pool_minor.0 as f64);
        self.payout.set(totals.payout_minor.0 as f64);
        self.residual.set(totals.residual_minor.0 as f64);
    }
}
