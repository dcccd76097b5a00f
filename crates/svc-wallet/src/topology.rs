//! Threads, queues and locks of svc-wallet. The supervisor refuses anything that is not in these
//! tables.

use ron_kernel::{Count, LockSpec, Overflow, QueueSpec, Stage, ThreadSpec, Topology};

pub static COMMITTER: ThreadSpec = ThreadSpec {
    name: "wal-commit-",
    count: Count::Pool("wallet.committers"),
    stage: Stage::Work,
    critical: false,
    job: "gathers the queued writes of its accounts into one ledger call and answers them",
};
pub static PROBE: ThreadSpec = ThreadSpec {
    name: "wal-probe",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "polls the head of the ledger, so that a hang is noticed without writes",
};
pub static FEED: ThreadSpec = ThreadSpec {
    name: "wal-feed",
    count: Count::One,
    stage: Stage::Intake,
    critical: false,
    job: "follows the ledger's events: marks changed balances, keeps a copy of answers",
};
pub static WATCH: ThreadSpec = ThreadSpec {
    name: "wal-watch",
    count: Count::One,
    stage: Stage::Write,
    critical: false,
    job: "turns readiness off while a ledger call hangs, answers writes whose deadline is reached",
};
pub static UNRESOLVED_RECORDER: ThreadSpec = ThreadSpec {
    name: "wal-unresolved",
    count: Count::One,
    stage: Stage::Write,
    critical: false,
    job: "records keys whose outcome is unknown, then refers their callers to /v1/ops; asks for keys of other wallets",
};
pub static AUDIT: ThreadSpec = ThreadSpec {
    name: "wal-audit",
    count: Count::One,
    stage: Stage::Write,
    critical: false,
    job: "writes the audit stream of accepted and refused operations",
};

pub static RECEIPTS: ThreadSpec = ThreadSpec {
    name: "wal-receipts",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "answers the receipts that wait for the ledger's next checkpoint",
};

pub static EVENTS: ThreadSpec = ThreadSpec {
    name: "wal-events",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "answers long polls for the events of an account",
};
pub static WEBHOOKS: ThreadSpec = ThreadSpec {
    name: "wal-hook-",
    count: Count::Pool("[[webhooks]]"),
    stage: Stage::Background,
    critical: false,
    job: "follows the ledger for one webhook endpoint and sends its messages",
};

/// Long polls for the events of an account. The thread holds as many again.
pub static EVENTS_QUEUE: QueueSpec = QueueSpec {
    name: "event_polls",
    capacity: 256,
    overflow: Overflow::RejectNew,
    from: "API workers",
    to: "wal-events",
    when_full: "429 busy",
};
/// "An account that a poll waits for has changed."
pub static EVENTS_NOTIFY: QueueSpec = QueueSpec {
    name: "notify_polls",
    capacity: 1,
    overflow: Overflow::DropOldest,
    from: "wal-feed",
    to: "wal-events",
    when_full: "one pending notification is enough",
};
/// Requests to resume a webhook endpoint.
pub static RESUME_QUEUE: QueueSpec = QueueSpec {
    name: "resume_webhook",
    capacity: 4,
    overflow: Overflow::RejectNew,
    from: "API workers",
    to: "wal-hook-* (one queue each)",
    when_full: "429 busy",
};
/// Receipts that wait for a checkpoint. The thread holds as many again.
pub static RECEIPTS_QUEUE: QueueSpec = QueueSpec {
    name: "receipts",
    capacity: 256,
    overflow: Overflow::RejectNew,
    from: "API workers",
    to: "wal-receipts",
    when_full: "429 busy",
};
/// Writes that wait for a committer; the capacity is split evenly over the committers.
pub static WORK_QUEUE: QueueSpec = QueueSpec {
    name: "work",
    capacity: 512,
    overflow: Overflow::RejectNew,
    from: "API workers",
    to: "wal-commit-* (one queue each, by account)",
    when_full: "429 busy",
};
/// Keys with an unknown outcome, to be recorded; with an engine also questions about those of other wallets.
pub static UNRESOLVED_QUEUE: QueueSpec = QueueSpec {
    name: "unresolved",
    capacity: 1024,
    overflow: Overflow::WaitDeadline,
    from: "wal-commit-*, wal-watch, wal-feed, API workers",
    to: "wal-unresolved",
    when_full: "504 without the durable record, the key is recorded in memory; 503 for a question",
};
/// The wallet's own entries, which its feed then need not read from the ledger.
pub static OWN_QUEUE: QueueSpec = QueueSpec {
    name: "own_entries",
    capacity: 64,
    overflow: Overflow::RejectNew,
    from: "wal-commit-*",
    to: "wal-feed",
    when_full: "nothing; the feed reads them from the ledger",
};
pub static AUDIT_QUEUE: QueueSpec = QueueSpec {
    name: "audit",
    capacity: 4096,
    overflow: Overflow::DropOldest,
    from: "API workers, wal-commit-*",
    to: "wal-audit",
    when_full: "nothing; the oldest line is lost and counted",
};

pub static IN_FLIGHT: LockSpec = LockSpec {
    name: "in_flight",
    rank: 10,
    guards: "in-flight writes by key, with all waiters for their answers",
};
pub static UNRESOLVED: LockSpec = LockSpec {
    name: "unresolved",
    rank: 20,
    guards: "idempotency keys whose outcome is not known yet",
};
pub static BALANCES: LockSpec = LockSpec {
    name: "balances",
    rank: 30,
    guards: "account documents as last read from the ledger",
};
pub static HOLDS: LockSpec = LockSpec {
    name: "holds",
    rank: 40,
    guards: "account, asset and amount of recently used holds; they never change",
};

pub static WATCHED: LockSpec = LockSpec {
    name: "watched",
    rank: 50,
    guards: "accounts for which a poll waits, and the newest entry of each",
};
pub static PROGRESS: LockSpec = LockSpec {
    name: "webhook",
    rank: 60,
    guards: "how far a webhook endpoint is; its thread writes it, /v1/webhooks reads it",
};
/// The cursor of an endpoint in amnesia mode.
pub static KEPT_PROGRESS: LockSpec = LockSpec {
    name: "webhook_cursor",
    rank: 70,
    guards: "the cursor of a webhook endpoint of a service without a data directory",
};

pub static TOPOLOGY: Topology = ron_service::topology! {
    service: "svc-wallet",
    prefix: "wal",
    threads: [COMMITTER, PROBE, FEED, WATCH, UNRESOLVED_RECORDER, AUDIT, RECEIPTS, EVENTS, WEBHOOKS],
    queues: [WORK_QUEUE, UNRESOLVED_QUEUE, AUDIT_QUEUE, OWN_QUEUE, RECEIPTS_QUEUE, EVENTS_QUEUE, EVENTS_NOTIFY, RESUME_QUEUE],
    locks: [IN_FLIGHT, UNRESOLVED, BALANCES, HOLDS, WATCHED, PROGRESS, KEPT_PROGRESS],
};
