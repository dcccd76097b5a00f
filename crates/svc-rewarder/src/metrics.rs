//! The rewarder's own metrics.

use ron_kernel::{
    ClosedCounter, ClosedGauge, Counter, FloatGaugeVec, Histogram, KernelMetrics, Registry,
};
use ron_proto::rewarder::RunState;

use crate::manifest::Computed;

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
    /// Pool of the last computed epoch by asset, in minor units.
    pub pool: FloatGaugeVec,
    /// Sum of payouts of the last computed epoch, likewise.
    pub payout: FloatGaugeVec,
    /// Residual of the last computed epoch, likewise.
    pub residual: FloatGaugeVec,
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
                "Pool of the last computed epoch by asset, in minor units.",
                &["asset"],
            ),
            payout: registry.gauge_of_amount(
                "payout_minor",
                "Payouts of the last computed epoch by asset, in minor units.",
                &["asset"],
            ),
            residual: registry.gauge_of_amount(
                "residual_minor",
                "Residual of the last computed epoch by asset, in minor units.",
                &["asset"],
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

    /// Shows a computed epoch's sums, in place of those of the one before, which may have had other assets.
    pub fn totals(&self, computed: &Computed) {
        let sums = [&self.pool, &self.payout, &self.residual];
        for sum in sums {
            sum.reset();
        }
        for asset in computed.each() {
            let totals = asset.manifest.totals;
            let values = [
                totals.pool_minor,
                totals.payout_minor,
                totals.residual_minor,
            ];
            for (sum, value) in sums.iter().zip(values) {
                let of_asset = sum.with_label_values(&[asset.manifest.asset.as_str()]);
                of_asset.set(value.0 as f64);
            }
        }
    }
}
