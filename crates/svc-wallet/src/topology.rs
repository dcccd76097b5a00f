//! Threads, queues and locks of svc-wallet: what runs is built from these rows.

use ron_kernel::{Count, LockSpec, Overflow, QueueSpec, Stage, ThreadSpec, Topology};

/// Committers.
pub static COMMITTER: ThreadSpec = ThreadSpec {
    name: "wal-commit-",
    count: Count::Pool("wallet.committers"),
    stage: Stage::Work,
    critical: false,
    job: "gathers the queued writes of its accounts into one ledger call and answers them",
};
/// Watches the ledger.
pub static PROBE: ThreadSpec = ThreadSpec {
    name: "wal-probe",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "asks the ledger for its head and sets readiness",
};

/// Writes waiting for a committer; the capacity is split evenly over the committers.
pub static WORK_QUEUE: QueueSpec = QueueSpec {
    name: "work",
    capacity: 512,
    overflow: Overflow::RejectNew,
    from: "API workers",
    to: "wal-commit-* (one queue each, by account)",
    when_full: "429 busy",
};

/// Keys whose outcome is unknown.
pub static PINNED: LockSpec = LockSpec {
    name: "pinned",
    rank: 10,
    guards: "idempotency keys whose outcome the ledger has not told yet",
};

/// The table.
pub static TOPOLOGY: Topology = ron_service::topology! {
    service: "svc-wallet",
    prefix: "wal",
    threads: [COMMITTER, PROBE],
    queues: [WORK_QUEUE],
    locks: [PINNED],
};
