//! The ledger's metrics, all in one table.

use ron_kernel::{ClosedCounter, Counter, CounterVec, Gauge, Histogram, LATENCY_BUCKETS, Registry};

/// Entries per flush.
const BATCH_BUCKETS: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0, 4_096.0,
];

/// Handles on everything the ledger counts.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Entries by kind and outcome (done, refused, replayed).
    pub entries: CounterVec,
    /// Flushes.
    pub flushes: Counter,
    /// Entries per flush.
    pub batch_size: Histogram,
    /// Time to decide a batch and make it durable.
    pub commit_seconds: Histogram,
    /// Jobs dropped because their deadline had passed before work began.
    pub expired: Counter,
    /// The last durable sequence.
    pub head: Gauge,
    /// Accounts ever used.
    pub accounts: Gauge,
    /// Open holds.
    pub holds: Gauge,
    /// Keys in memory.
    pub keys_memory: Gauge,
    /// Keys in files.
    pub keys_files: Gauge,
    /// Bytes of memory the key files take.
    pub keys_bytes: Gauge,
    /// Snapshots by result.
    pub snapshots: ClosedCounter,
    /// Time to write one.
    pub snapshot_seconds: Histogram,
    /// Entries the projection is behind.
    pub projection_lag: Gauge,
    /// Parked long polls.
    pub polls: Gauge,
}

impl Metrics {
    /// Registers everything.
    pub fn new(r: &Registry) -> Self {
        Self {
            entries: r.counter_vec(
                "entries_total",
                "Entries by kind and outcome.",
                &["kind", "outcome"],
            ),
            flushes: r.counter("flushes_total", "Batches made durable."),
            batch_size: r.histogram(
                "batch_size",
                "Entries made durable together.",
                BATCH_BUCKETS,
            ),
            commit_seconds: r.histogram(
                "commit_seconds",
                "Time to decide a batch and make it durable.",
                LATENCY_BUCKETS,
            ),
            expired: r.counter(
                "expired_jobs_total",
                "Commits dropped because their deadline had passed.",
            ),
            head: r.gauge("head_seq", "The last durable sequence."),
            accounts: r.gauge("accounts", "Accounts ever used."),
            holds: r.gauge("holds_open", "Open holds."),
            keys_memory: r.gauge("keys_in_memory", "Idempotency keys in memory."),
            keys_files: r.gauge("keys_in_files", "Idempotency keys in key files."),
            keys_bytes: r.gauge(
                "key_files_memory_bytes",
                "Memory that the filters of the key files take.",
            ),
            snapshots: r.counter_closed(
                "snapshots_total",
                "Snapshots of the state.",
                &[("result", &["done", "failed"])],
            ),
            snapshot_seconds: r.histogram(
                "snapshot_seconds",
                "Time to write a snapshot.",
                LATENCY_BUCKETS,
            ),
            projection_lag: r.gauge(
                "projection_lag_entries",
                "Entries not yet in the projection.",
            ),
            polls: r.gauge("event_polls", "Long polls of the event feed that wait."),
        }
    }
}
