//! Threads, queues and locks of svc-passport: the running service is built from these rows.

use ron_kernel::{Count, LockSpec, Overflow, QueueSpec, Stage, ThreadSpec, Topology};

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
    job: "makes revocations durable in database and log, publishes them, answers feed readers",
};
/// Reads the issuer keys from the KMS.
pub static KEYS: ThreadSpec = ThreadSpec {
    name: "pass-keys",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "reads the signing keys from the KMS and publishes the key set",
};

/// Signs status lists and the policy note, reads the trail, and deletes what need not be kept of issued tokens.
pub static PUBLISHER: ThreadSpec = ThreadSpec {
    name: "pass-publish",
    count: Count::One,
    stage: Stage::Work,
    critical: false,
    job: "signs status lists and the policy note when they are asked for and have changed; reads which tokens were issued, and deletes the records of those that are too old",
};
/// Follows the issuer policy.
pub static POLICY: ThreadSpec = ThreadSpec {
    name: "pass-policy",
    count: Count::One,
    stage: Stage::Intake,
    critical: false,
    job: "reads the signed issuer policy from its files or URL and puts newer ones in force",
};

/// Keeps the tables of a log in an engine.
pub static UPKEEP: ThreadSpec = ThreadSpec {
    name: "pass-upkeep",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "makes and tends the tables of a log of revocations in a database",
};

/// Records ids of proofs and assertions that were used.
pub static ONCE: ThreadSpec = ThreadSpec {
    name: "pass-once",
    count: Count::One,
    stage: Stage::Write,
    critical: false,
    job: "takes ids of proofs and client assertions in a database, once for all issuers",
};

/// Ids that are to be used.
pub static ONCE_QUEUE: QueueSpec = QueueSpec {
    name: "once",
    capacity: 512,
    overflow: Overflow::RejectNew,
    from: "API workers",
    to: "pass-once",
    when_full: "429 busy",
};

/// Reads the keys of other issuers.
pub static ISSUERS: ThreadSpec = ThreadSpec {
    name: "pass-issuers",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "reads the keys of other issuers that the policy names by URL",
};

/// Has checkpoints of the log of revocations cosigned.
pub static WITNESS: ThreadSpec = ThreadSpec {
    name: "pass-witness",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "has checkpoints of the revocations cosigned by the witnesses of witness.policy_file",
};

/// "There is a new checkpoint", for the witness thread.
pub static WITNESS_WAKES: QueueSpec = QueueSpec {
    name: "witness",
    capacity: 2,
    overflow: Overflow::RejectNew,
    from: "pass-revoker",
    to: "pass-witness",
    when_full: "nothing: a wake is already waiting",
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
    from: "API workers, pass-keys, pass-issue-*, pass-policy, pass-witness",
    to: "pass-revoker",
    when_full: "429 busy",
};

/// Readers of signed documents and of the trail.
pub static PUBLISH_QUEUE: QueueSpec = QueueSpec {
    name: "publish",
    capacity: 256,
    overflow: Overflow::RejectNew,
    from: "API workers",
    to: "pass-publish",
    when_full: "429 busy",
};

/// Issuers whose keys are to be read now.
pub static ISSUERS_QUEUE: QueueSpec = QueueSpec {
    name: "issuers",
    capacity: 16,
    overflow: Overflow::RejectNew,
    from: "API workers",
    to: "pass-issuers",
    when_full: "dropped: reads are pending, and the next such token asks again",
};

pub static ASSERTIONS: LockSpec = LockSpec {
    name: "client_assertions",
    rank: 12,
    guards: "ids of client assertions and of other issuers' tokens that were used, until they expire",
};

pub static REFUSED: LockSpec = LockSpec {
    name: "refused_clients",
    rank: 13,
    guards: "numbers of refused authentications, by client and reason",
};

pub static PROOFS: LockSpec = LockSpec {
    name: "dpop_proofs",
    rank: 14,
    guards: "ids of DPoP proofs that were used at the token endpoint, for a minute",
};

/// The list that is being filled.
pub static LISTS: LockSpec = LockSpec {
    name: "status_list",
    rank: 16,
    guards: "number and next position of the status lists that are being filled, one for each key",
};

/// Signed documents; only the publishing thread takes it.
pub static PUBLISHED: LockSpec = LockSpec {
    name: "published",
    rank: 18,
    guards: "signed status lists and the policy note; only the publishing thread takes it",
};

pub static ISSUE_HEALTH: LockSpec = LockSpec {
    name: "issue_health",
    rank: 19,
    guards: "whether the KMS signs, and when a token is tried next",
};

/// The register of revocations, so that the writer can be restarted in place after a panic; never contended.
pub static STORE: LockSpec = LockSpec {
    name: "revocation_store",
    rank: 20,
    guards: "database and log of revocations while no operation uses them; only the revoker thread takes it",
};

pub static TOPOLOGY: Topology = ron_service::topology! {
    service: "svc-passport",
    prefix: "pass",
    threads: [ISSUER, REVOKER, KEYS, PUBLISHER, POLICY, ISSUERS, UPKEEP, ONCE, WITNESS],
    queues: [ISSUE_QUEUE, REVOKE_QUEUE, PUBLISH_QUEUE, ISSUERS_QUEUE, ONCE_QUEUE, WITNESS_WAKES],
    locks: [ASSERTIONS, REFUSED, PROOFS, LISTS, PUBLISHED, ISSUE_HEALTH, STORE],
};
