//! The one table of metric names that are the rewarder's own.

use ron_kernel::{ClosedCounter, ClosedGauge, Counter, Gauge, Histogram, KernelMetrics, Registry};
use ron_proto::rewarder::{RunState, RunTotals};

/// Handles on the rewarder's metrics; clones share them.
#[derive(Clone)]
pub struct Metrics {
    /// Failures of the disk, by what could not be written.
    pub io_errors: ClosedCounter,
    /// Calls to ledger and KMS that failed, by service.
    pub upstream_fail: ClosedCounter,
    /// Calls made again after a pause.
    pub retries: ClosedCounter,
    /// Runs by how they ended.
    pub runs: ClosedCounter,
    /// Time from start to result of a computation.
    pub compute_seconds: Histogram,
    /// Accounts weighed.
    pub rows: Counter,
    /// The last computed pool, in minor units (as far as a gauge can hold it).
    pub pool: Gauge,
    /// The last computed sum of payouts.
    pub payout: Gauge,
    /// The last computed residual.
    pub residual: Gauge,
    /// Settlement entries by what the ledger said.
    pub intents: ClosedCounter,
    /// Results given up because of shutdown; their runs are computed again at the next start.
    pub dropped_results: Counter,
    /// Time of one ledger call with settlement entries.
    pub emit_seconds: Histogram,
    /// Broken invariants.
    pub invariant_failures: ClosedCounter,
    /// What was removed past its retention.
    pub swept: ClosedCounter,
    /// Runs by state.
    pub by_state: ClosedGauge,
}

/// From half a millisecond to a minute.
const COMPUTE_BUCKETS: &[f64] = &[
    0.0005, 0.002, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0,
];

impl Metrics {
    /// Makes (or finds) them in a registry.
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
                "Runs by how they ended.",
                &[("status", &states)],
            ),
            compute_seconds: registry.histogram(
                "compute_duration_seconds",
                "Time to compute one epoch.",
                COMPUTE_BUCKETS,
            ),
            rows: registry.counter("rows_total", "Accounts weighed."),
            pool: registry.gauge(
                "pool_minor",
                "Pool of the last computed epoch, in minor units, at most 2^63-1.",
            ),
            payout: registry.gauge(
                "payout_minor",
                "Payouts of the last computed epoch, in minor units, at most 2^63-1.",
            ),
            residual: registry.gauge(
                "residual_minor",
                "Residual of the last computed epoch, in minor units, at most 2^63-1.",
            ),
            intents: registry.counter_closed(
                "intents_total",
                "Settlement entries by the ledger's answer.",
                &[("result", &["accepted", "dup", "refused"])],
            ),
            dropped_results: registry.counter(
                "dropped_results_total",
                "Results given up because of shutdown; computed again at start.",
            ),
            emit_seconds: registry.histogram(
                "ledger_emit_duration_seconds",
                "Time of one ledger call with settlement entries.",
                ron_kernel::LATENCY_BUCKETS,
            ),
            invariant_failures: registry.counter_closed(
                "invariant_failures_total",
                "Broken invariants by kind; each quarantines a run.",
                &[("kind", &["overflow", "conservation"])],
            ),
            swept: registry.counter_closed(
                "swept_total",
                "Artifacts and snapshots removed past their retention.",
                &[("kind", &["artifacts", "snapshot"])],
            ),
            by_state: registry.gauge_closed("runs", "Runs by state.", &[("state", &states)]),
        }
    }

    /// Shows a computed epoch's sums. Gauges hold 63 bits; what is larger shows as the largest.
    pub fn totals(&self, totals: &RunTotals) {
        let fit = |amount: u128| i64::try_from(amount).unwrap_or(i64::MAX);
        self.pool.set(fit(totals.pool_minor.0));
        self.payout.set(fit(totals.payout_minor.0));
        self.residual.set(fit(totals.residual_minor.0));
    }
}
