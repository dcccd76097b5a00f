//! Threads, queues and locks of svc-wallet: what runs is built from these rows.

#[cfg(not(any(loom, shuttle)))]
use ron_kernel::Topology;
use ron_kernel::{Count, LockSpec, Overflow, QueueSpec, Stage, ThreadSpec};

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
    job: "asks the ledger for its head, so that a ledger that hangs is noticed without writes",
};
/// Follows the ledger's events.
pub static FEED: ThreadSpec = ThreadSpec {
    name: "wal-feed",
    count: Count::One,
    stage: Stage::Intake,
    critical: false,
    job: "follows the ledger's events: forgets balances that changed, keeps a copy of answers",
};
/// Watches calls and deadlines.
pub static WATCH: ThreadSpec = ThreadSpec {
    name: "wal-watch",
    count: Count::One,
    stage: Stage::Write,
    critical: false,
    job: "turns readiness off while a ledger call hangs, answers writes whose time is over",
};
/// Makes unknown outcomes durable.
pub static PINS: ThreadSpec = ThreadSpec {
    name: "wal-pins",
    count: Count::One,
    stage: Stage::Write,
    critical: false,
    job: "writes down keys whose outcome is unknown, then tells their callers where to ask",
};
/// Writes the audit stream.
pub static AUDIT: ThreadSpec = ThreadSpec {
    name: "wal-audit",
    count: Count::One,
    stage: Stage::Write,
    critical: false,
    job: "writes the audit stream of accepted and refused operations",
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
/// Unknown outcomes on their way to the disk.
pub static PIN_QUEUE: QueueSpec = QueueSpec {
    name: "pins",
    capacity: 1024,
    overflow: Overflow::WaitDeadline,
    from: "wal-commit-*, wal-watch",
    to: "wal-pins",
    when_full: "504 without the durable note; the key is pinned in memory",
};
/// Lines of the audit stream.
pub static AUDIT_QUEUE: QueueSpec = QueueSpec {
    name: "audit",
    capacity: 4096,
    overflow: Overflow::DropOldest,
    from: "API workers, wal-commit-*",
    to: "wal-audit",
    when_full: "nothing; the oldest line is lost and counted",
};

/// Writes under way.
pub static FLIGHTS: LockSpec = LockSpec {
    name: "flights",
    rank: 10,
    guards: "writes under way by key, with everybody who waits for their answers",
};
/// Keys whose outcome is unknown.
pub static PINNED: LockSpec = LockSpec {
    name: "pinned",
    rank: 20,
    guards: "idempotency keys whose outcome the ledger has not told yet",
};
/// The balance cache.
pub static BALANCES: LockSpec = LockSpec {
    name: "balances",
    rank: 30,
    guards: "account documents as the ledger last told them",
};
/// What holds are on.
pub static HOLDS: LockSpec = LockSpec {
    name: "holds",
    rank: 40,
    guards: "account, asset and amount of holds asked about lately; they never change",
};

/// Carries the file of pins to its thread.
pub static PINS_SLOT: LockSpec = LockSpec {
    name: "pins_slot",
    rank: 50,
    guards: "the open file of pins, until its thread takes it",
};

/// The table. (Models have a smaller one, without a service around them.)
#[cfg(not(any(loom, shuttle)))]
pub static TOPOLOGY: Topology = ron_service::topology! {
    service: "svc-wallet",
    prefix: "wal",
    threads: [COMMITTER, PROBE, FEED, WATCH, PINS, AUDIT],
    queues: [WORK_QUEUE, PIN_QUEUE, AUDIT_QUEUE],
    locks: [FLIGHTS, PINNED, BALANCES, HOLDS, PINS_SLOT],
};
