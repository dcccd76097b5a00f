//! The ledger's metrics.

use ron_kernel::{ClosedCounter, Counter, CounterVec, Gauge, Histogram, LATENCY_BUCKETS, Registry};

/// Bucket bounds of entries per flush.
const BATCH_BUCKETS: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0, 4_096.0,
];

#[derive(Clone, Debug)]
pub struct Metrics {
    /// Entries by kind and outcome (done, refused, replayed).
    pub entries: CounterVec,
    /// Batches made durable, each with one flush.
    pub flushes: Counter,
    pub batch_size: Histogram,
    pub commit_seconds: Histogram,
    /// Commits dropped because their deadline had passed before work began.
    pub expired: Counter,
    pub head: Gauge,
    pub accounts: Gauge,
    pub holds: Gauge,
    pub keys_memory: Gauge,
    pub keys_files: Gauge,
    pub keys_bytes: Gauge,
    pub snapshots: ClosedCounter,
    pub snapshot_seconds: Histogram,
    pub polls: Gauge,
}

impl Metrics {
    pub fn new(r: &Registry) -> Self {
        Self {
            entries: r.counter_vec(
                "entries_total",
                "Entries by kind and outcome.",
                &["kind", "outcome"],
            ),
            flushes: r.counter(
                "flushes_total",
                "Batches made durable, each with one flush.",
            ),
            batch_size: r.histogram(
                "batch_size",
                "Number of entries made durable with one flush.",
                BATCH_BUCKETS,
            ),
            commit_seconds: r.histogram(
                "commit_seconds",
                "Time to decide a batch and make it durable, in seconds.",
                LATENCY_BUCKETS,
            ),
            expired: r.counter(
                "expired_jobs_total",
                "Commits dropped because their deadline had passed before work began.",
            ),
            head: r.gauge("head_seq", "Sequence of the last durable entry."),
            accounts: r.gauge("accounts", "Number of accounts ever used."),
            holds: r.gauge("holds_open", "Number of open holds."),
            keys_memory: r.gauge("keys_in_memory", "Number of idempotency keys in memory."),
            keys_files: r.gauge("keys_in_files", "Number of idempotency keys in key files."),
            keys_bytes: r.gauge(
                "key_files_memory_bytes",
                "Memory used by the filters of the key files, in bytes.",
            ),
            snapshots: r.counter_closed(
                "snapshots_total",
                "Snapshots of the state, by result.",
                &[("result", &["done", "failed"])],
            ),
            snapshot_seconds: r.histogram(
                "snapshot_seconds",
                "Time to write a snapshot, in seconds.",
                LATENCY_BUCKETS,
            ),
            polls: r.gauge(
                "event_polls",
                "Number of parked long polls of the event feed.",
            ),
        }
    }
}
