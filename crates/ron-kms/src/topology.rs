//! Threads, queues and locks of the service. What runs is built from these rows, and the docs page
//! is generated from them.
//!
//! ```text
//!  API workers ──sign(512)──> kms-signer ─┬─────────────audit(2048)──> kms-audit ──> answers
//!       │                                 └─(checkpoints)─┐                 ^
//!       └────────────store(64)──> kms-store <─────────────┘─────────────────┘
//! ```

use ron_kernel::{Count, LockSpec, Overflow, QueueSpec, Stage, ThreadSpec, Topology};

/// HTTP threads of the API port.
pub const API_POLL: ThreadSpec = ThreadSpec {
    name: "kms-api-poll",
    count: Count::One,
    stage: Stage::Front,
    critical: true,
    job: "accepts and parks API connections",
};
/// Workers of the API port.
pub const API_WORKERS: ThreadSpec = ThreadSpec {
    name: "kms-api-",
    count: Count::Pool("http.workers"),
    stage: Stage::Front,
    critical: false,
    job: "reads requests, authorises, verifies, hands work on",
};
/// HTTP threads of the health port.
pub const HEALTH_POLL: ThreadSpec = ThreadSpec {
    name: "kms-hlt-poll",
    count: Count::One,
    stage: Stage::Front,
    critical: true,
    job: "accepts and parks health connections",
};
/// The worker of the health port.
pub const HEALTH_WORKERS: ThreadSpec = ThreadSpec {
    name: "kms-hlt-",
    count: Count::Pool("1"),
    stage: Stage::Front,
    critical: false,
    job: "health, metrics, status, topology",
};
/// Signers.
pub const SIGNERS: ThreadSpec = ThreadSpec {
    name: "kms-signer",
    count: Count::Pool("signers"),
    stage: Stage::Work,
    critical: false,
    job: "reserve audit room, check policy, sign",
};
/// The only writer of the key store.
pub const STORE: ThreadSpec = ThreadSpec {
    name: "kms-store",
    count: Count::One,
    stage: Stage::Work,
    critical: false,
    job: "create, rotate, remember checkpoints: the only writer of the key store",
};
/// The only writer of the audit log.
pub const AUDIT: ThreadSpec = ThreadSpec {
    name: "kms-audit",
    count: Count::One,
    stage: Stage::Write,
    critical: true,
    job: "append leaves, sync, then answer; sign checkpoints",
};
/// Background verification of the audit log.
pub const SCRUB: ThreadSpec = ThreadSpec {
    name: "kms-scrub",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "verify the whole audit log at start and every audit.scrub_interval",
};
/// Background refresh of the passport keys.
pub const JWKS: ThreadSpec = ThreadSpec {
    name: "kms-jwks",
    count: Count::One,
    stage: Stage::Intake,
    critical: false,
    job: "refresh the issuer's public keys and revocations",
};

/// Requests read by the API port.
pub const API_QUEUE: QueueSpec = QueueSpec {
    name: "api",
    capacity: 1024,
    overflow: Overflow::RejectNew,
    from: "kms-api-poll",
    to: "kms-api-",
    when_full: "429 busy",
};
/// Requests read by the health port.
pub const HEALTH_QUEUE: QueueSpec = QueueSpec {
    name: "health",
    capacity: 64,
    overflow: Overflow::RejectNew,
    from: "kms-hlt-poll",
    to: "kms-hlt-",
    when_full: "429 busy",
};
/// Sign requests.
pub const SIGN_QUEUE: QueueSpec = QueueSpec {
    name: "sign",
    capacity: 512,
    overflow: Overflow::RejectNew,
    from: "kms-api-",
    to: "kms-signer",
    when_full: "429 busy",
};
/// Changes of the store.
pub const STORE_QUEUE: QueueSpec = QueueSpec {
    name: "store",
    capacity: 64,
    overflow: Overflow::RejectNew,
    from: "kms-api-, kms-signer",
    to: "kms-store",
    when_full: "429 busy",
};
/// Results that wait for their leaf. Room is reserved (credits of the same number) before the work
/// is done, so a send never finds it full.
pub const AUDIT_QUEUE: QueueSpec = QueueSpec {
    name: "audit",
    capacity: 2048,
    overflow: Overflow::RejectNew,
    from: "kms-signer, kms-store",
    to: "kms-audit",
    when_full: "429 busy, after waiting 200 ms for room before signing",
};

/// Guards [`crate::replay::Replay`].
pub const REPLAY_LOCK: LockSpec =
    LockSpec { name: "replay", rank: 10, guards: "operation ids of sign requests" };
/// Guards the hand-over of a single writer's state to its thread.
pub const WRITER_SLOT: LockSpec =
    LockSpec { name: "writer_slot", rank: 20, guards: "a writer's state while its thread is not running" };

/// The whole table.
pub static TOPOLOGY: Topology = Topology {
    service: "ron-kms",
    threads: &[
        API_POLL,
        API_WORKERS,
        HEALTH_POLL,
        HEALTH_WORKERS,
        JWKS,
        SCRUB,
        SIGNERS,
        STORE,
        AUDIT,
    ],
    queues: &[API_QUEUE, HEALTH_QUEUE, SIGN_QUEUE, STORE_QUEUE, AUDIT_QUEUE],
    locks: &[REPLAY_LOCK, WRITER_SLOT],
};
