//! The one table of the service's own metrics (the chassis adds the common ones).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ron_custody::backend::DeviceMetrics;
use ron_custody::index::KeyIndex;
use ron_custody::{Cause, NO_MATCH, OK};
use ron_kernel::{
    ClosedCounter, Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramVec, KernelMetrics,
    Registry,
};

use ron_proto::kms::KeyState;
use ron_service::log_host::asker::WitnessMetrics;

/// Seconds. The lowest bound is 10 us: an Ed25519 signature takes about that, a durable answer some milliseconds.
const OP_BUCKETS: &[f64] = &[
    0.000_01, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5,
    2.5,
];
/// Seconds. From a flush of a drive with a protected cache to one that is about to count as hanging.
const FLUSH_BUCKETS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5,
];
const BATCH_BUCKETS: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0,
];

const NONCE_BLOCKS: &str = "Blocks of AES-GCM nonces reserved in the store.";
const REMEMBERED: &str = "Signatures and envelope operations remembered by op_id.";
const FORGOTTEN: &str =
    "Operations forgotten by op_id before 24 hours: raise replay.capacity or replay.bytes_max.";

/// Handles of all metrics.
pub struct Metrics {
    /// Operations by `op`, `alg`, `result`.
    pub ops: CounterVec,
    /// Time from the parsed request to its answer, by `op`, `alg`.
    pub op_seconds: HistogramVec,
    /// Refusals by `reason`.
    pub rejects: ClosedCounter,
    /// Keys by `alg`, `state`.
    pub keys: GaugeVec,
    /// Sessions of the devices.
    pub devices: DeviceMetrics,
    /// Attestations by `result`.
    pub attest: ClosedCounter,
    /// Failures of audit log and key store.
    pub io_errors: ClosedCounter,
    pub leaves: Counter,
    /// Leaves per durable append.
    pub batch_size: Histogram,
    /// Time of one durable append.
    pub fsync_seconds: Histogram,
    /// Seconds since the newest leaf that no checkpoint covers was appended.
    pub checkpoint_age: Gauge,
    /// Checkpoints later than their deadline.
    pub checkpoint_late: Counter,
    /// Findings of tampering; must stay 0.
    pub integrity_failed: Counter,
    /// Age of the public keys that verification uses.
    pub verify_cache_age: Gauge,
    /// Verifications with public keys past `verify_cache.soft_ttl`.
    pub verify_cache_expired: Counter,
    /// Leaves in the log.
    pub log_size: Gauge,
    /// Metrics from which an auditor sees that leaves and signatures match.
    pub evidence: Evidence,
    /// Blocks of nonces reserved.
    pub nonce_blocks: Counter,
    /// Operations remembered by `op_id`.
    pub replay_remembered: Gauge,
    /// Operations forgotten before their 24 hours ended.
    pub replay_forgotten: Counter,
}

/// Metrics from which an auditor sees that leaves and signatures match.
pub struct Evidence {
    /// Signatures made by a backend; each has its leaf.
    pub signatures_made: Counter,
    pub witness: WitnessMetrics,
    /// Answers that waited for their proof, by `result`.
    pub proof_waits: ClosedCounter,
}

impl Evidence {
    fn new(r: &Registry) -> Self {
        Self {
            signatures_made: r.counter(
                "signatures_made_total",
                "Signatures made by a backend; a signature without its leaf was never sent.",
            ),
            witness: WitnessMetrics::new(r),
            proof_waits: r.counter_closed(
                "proof_waits_total",
                "Answers that waited for an inclusion proof.",
                &[("result", &["proved", "failed", "unwitnessed", "late"])],
            ),
        }
    }
}

fn rejects(r: &Registry) -> ClosedCounter {
    let causes = Cause::ALL.iter().map(|cause| cause.code());
    let reasons: Vec<_> = causes.chain(["tenant_share", "audit_queue_full"]).collect();
    r.counter_closed(
        "rejects_total",
        "Refused operations.",
        &[("reason", &reasons)],
    )
}

fn attest(r: &Registry) -> ClosedCounter {
    let results = [OK, "refused", "failed", "no_key"];
    r.counter_closed(
        "attest_total",
        "Attestations made.",
        &[("result", &results)],
    )
}

impl Metrics {
    /// Registers everything with `r`.
    pub fn new(r: &Registry, backend: &str) -> Arc<Self> {
        let io_errors = KernelMetrics::new(r).io_errors;
        io_errors.declare(["audit", "store"]);
        let metrics = Self {
            ops: r.counter_vec(
                "ops_total",
                "Operations done or refused.",
                &["op", "alg", "result"],
            ),
            op_seconds: r.histogram_vec(
                "op_duration_seconds",
                "Time from the parsed request to its answer.",
                &["op", "alg"],
                OP_BUCKETS,
            ),
            rejects: rejects(r),
            keys: r.gauge_vec("keys", "Keys held.", &["alg", "state"]),
            devices: DeviceMetrics::new(r),
            attest: attest(r),
            io_errors,
            leaves: r.counter("audit_leaves_total", "Leaves appended to the audit log."),
            batch_size: r.histogram(
                "audit_batch_size",
                "Leaves per durable append.",
                BATCH_BUCKETS,
            ),
            fsync_seconds: r.histogram(
                "audit_fsync_seconds",
                "Time of one durable append.",
                FLUSH_BUCKETS,
            ),
            checkpoint_age: r.gauge(
                "audit_checkpoint_age_seconds",
                "Age of the oldest leaf without a checkpoint; 0 when all are covered.",
            ),
            checkpoint_late: r.counter(
                "checkpoint_late_total",
                "Checkpoints that missed their deadline.",
            ),
            integrity_failed: r.counter(
                "audit_integrity_failed_total",
                "Findings of tampering with the audit log; must stay 0.",
            ),
            verify_cache_age: r.gauge(
                "verify_cache_age_seconds",
                "Age of the public keys used to verify; 0 while the backend is up.",
            ),
            verify_cache_expired: r.counter(
                "verify_cache_expired_total",
                "Verifications with public keys past their soft age limit.",
            ),
            log_size: r.gauge("log_size", "Leaves in the audit log."),
            evidence: Evidence::new(r),
            nonce_blocks: r.counter("nonce_blocks_total", NONCE_BLOCKS),
            replay_remembered: r.gauge("replay_remembered", REMEMBERED),
            replay_forgotten: r.counter("replay_forgotten_total", FORGOTTEN),
        };
        metrics
            .devices
            .sessions
            .with_label_values(&[backend, "open"])
            .set(1);
        Arc::new(metrics)
    }

    /// Counts one operation. `result` is `ok` or a code of [`ron_custody::Why`].
    pub fn op(&self, op: &'static str, alg: &'static str, result: &'static str, took: Duration) {
        self.verified(op, alg, result, took);
        // A check that does not match was done: it is no refusal, and has no reason among theirs.
        if result != OK && result != NO_MATCH {
            self.rejects.with_label_values(&[result]).inc();
        }
    }

    /// Counts one verification on an HTTP worker's thread, whose refusal has no leaf and is no reject.
    pub fn verified(
        &self,
        op: &'static str,
        alg: &'static str,
        result: &'static str,
        took: Duration,
    ) {
        self.ops.with_label_values(&[op, alg, result]).inc();
        self.op_seconds
            .with_label_values(&[op, alg])
            .observe(took.as_secs_f64());
    }

    /// Sets the `keys` gauge from a new snapshot, for each algorithm of which there is a key; a key
    /// never leaves the index.
    pub fn show_keys(&self, index: &KeyIndex) {
        let mut counts = BTreeMap::new();
        for key in index.keys.values() {
            let states: &mut BTreeMap<_, _> = counts.entry(key.kid.alg).or_default();
            *states.entry(key.state).or_insert(0) += 1;
        }
        for (alg, states) in counts {
            for state in KeyState::ALL {
                let count = states.get(&state).copied().unwrap_or(0);
                self.keys
                    .with_label_values(&[alg.as_str(), state.as_str()])
                    .set(count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_does_not_match_counts_as_an_operation_and_not_as_a_refusal() {
        let registry = Registry::new("ron-kms");
        let metrics = Metrics::new(&registry, "sealed");
        let took = Duration::from_millis(1);
        metrics.op("hmac_verify", "hmac-sha256", NO_MATCH, took);
        metrics.op("hmac_verify", "hmac-sha256", Cause::NotFound.code(), took);
        let text = registry.render();
        let refused: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("ron_kms_rejects_total{") && !line.ends_with(" 0"))
            .collect();
        assert_eq!(refused, ["ron_kms_rejects_total{reason=\"not_found\"} 1"]);
        let undeclared = text
            .lines()
            .find(|line| line.starts_with("ron_kms_metrics_undeclared_total "));
        assert!(
            undeclared.is_some_and(|line| line.ends_with(" 0")),
            "{undeclared:?}"
        );
    }
}
