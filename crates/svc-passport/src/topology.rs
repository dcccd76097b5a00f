//! Threads, queues and locks of svc-passport: what runs is built from these rows.

use ron_kernel::{Count, LockSpec, Overflow, QueueSpec, Stage, ThreadSpec, Topology};

/// Issuers.
pub static ISSUER: ThreadSpec = ThreadSpec {
    name: "pass-issue-",
    count: Count::Pool("issue.workers"),
    stage: Stage::Work,
    critical: false,
    job: "gathers queued grants into one signing call and answers them",
};
/// The one writer of revocations and the feed.
pub static REVOKER: ThreadSpec = ThreadSpec {
    name: "pass-revoker",
    count: Count::One,
    stage: Stage::Write,
    critical: true,
    job: "makes revocations durable, publishes them, answers feed readers",
};
/// Reads the issuer keys from the KMS.
pub static KEYS: ThreadSpec = ThreadSpec {
    name: "pass-keys",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "reads the signing keys from the KMS and publishes the key set",
};

/// Grants waiting for a signature.
pub static ISSUE_QUEUE: QueueSpec = QueueSpec {
    name: "issue",
    capacity: 512,
    overflow: Overflow::RejectNew,
    from: "API workers",
    to: "pass-issue-*",
    when_full: "429 busy",
};
/// Revocations and feed readers.
pub static REVOKE_QUEUE: QueueSpec = QueueSpec {
    name: "revoke",
    capacity: 256,
    overflow: Overflow::RejectNew,
    from: "API workers, pass-keys",
    to: "pass-revoker",
    when_full: "429 busy",
};

/// Clients whose secret was verified lately.
pub static CLIENT_CACHE: LockSpec = LockSpec {
    name: "client_cache",
    rank: 10,
    guards: "keyed hashes of client secrets that were verified lately",
};

/// The store, so that the writer can be restarted in place after a panic; never contended.
pub static STORE: LockSpec = LockSpec {
    name: "revocation_store",
    rank: 20,
    guards: "the revocation store; only the revoker thread takes it",
};

/// The table.
pub static TOPOLOGY: Topology = ron_service::topology! {
    service: "svc-passport",
    prefix: "pass",
    threads: [ISSUER, REVOKER, KEYS],
    queues: [ISSUE_QUEUE, REVOKE_QUEUE],
    locks: [CLIENT_CACHE, STORE],
};
