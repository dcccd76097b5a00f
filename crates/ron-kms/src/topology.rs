//! Threads, queues and locks of the service. The running service is built from these rows, and the docs page
//! is generated from them.
//!
//! ```text
//!  API workers ──sign(512)──> kms-signer ─┬─────────────audit(2048)──> kms-audit ──> answers
//!       │                                 └─(checkpoints)─┐                 ^
//!       └────────────store(64)──> kms-store <─────────────┘─────────────────┘
//! ```

use ron_custody::topology::{
    PKCS11, PKCS11_KEEPER, PKCS11_QUEUE, REMOTE, REMOTE_KEEPER, REMOTE_QUEUE, TPM, TPM_KEEPER,
    TPM_QUEUE,
};
use ron_kernel::{Count, LockSpec, Overflow, QueueSpec, Stage, ThreadSpec, Topology};

pub const SIGNERS: ThreadSpec = ThreadSpec {
    name: "kms-signer-",
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
    job: "make and change keys, remember checkpoints: the only writer of the key store",
};
pub const SCHEDULER: ThreadSpec = ThreadSpec {
    name: "kms-sched",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "find keys whose rotation or destruction is due, once a second",
};
/// The only writer of the audit log.
pub const AUDIT: ThreadSpec = ThreadSpec {
    name: "kms-audit",
    count: Count::One,
    stage: Stage::Write,
    critical: true,
    job: "append leaves, sync, then answer",
};
/// Checkpoints of the audit log.
pub const CHECKPOINT: ThreadSpec = ThreadSpec {
    name: "kms-ckpt",
    count: Count::One,
    stage: Stage::Write,
    critical: false,
    job: "sign and store checkpoints: 1 s after a leaf, after 5,000 leaves, at shutdown",
};
/// Background verification of the audit log.
pub const SCRUB: ThreadSpec = ThreadSpec {
    name: "kms-scrub",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "verify the whole audit log at start and every audit.scrub_interval",
};
/// Tables of the audit log in an engine.
pub const UPKEEP: ThreadSpec = ThreadSpec {
    name: "kms-upkeep",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "with log.url: make room ahead in the tables of the audit log, forget ids that are a day old",
};
pub const WITNESS: ThreadSpec = ThreadSpec {
    name: "kms-witness",
    count: Count::One,
    stage: Stage::Write,
    critical: false,
    job: "have checkpoints cosigned by the witnesses of witness.policy_file",
};
/// Answers that wait for their proof.
pub const PROOFS: ThreadSpec = ThreadSpec {
    name: "kms-proof",
    count: Count::One,
    stage: Stage::Write,
    critical: false,
    job: "answer sign requests that wait for their proof",
};
pub const ATTEST: ThreadSpec = ThreadSpec {
    name: "kms-attest",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "have devices attest their keys every attest.refresh_every",
};
/// Makes local keys that take long.
pub const KEY_MAKER: ThreadSpec = ThreadSpec {
    name: "kms-maker",
    count: Count::One,
    stage: Stage::Work,
    critical: false,
    job: "make RSA keys, which takes up to several seconds each",
};
/// Local keys to be made.
pub const MAKER_JOBS: QueueSpec = QueueSpec {
    name: "maker_jobs",
    capacity: 512,
    overflow: Overflow::RejectNew,
    from: "kms-store",
    to: "kms-maker",
    when_full: "429 busy; a tenant has at most four keys made at a time",
};
/// Threads that wait for the PKCS#11 tokens.
pub const PKCS11_CALLERS: ThreadSpec = ThreadSpec {
    name: "kms-hp11-",
    count: Count::Pool("pkcs11.sessions + 4 for each token"),
    stage: Stage::Work,
    critical: false,
    job: "jobs of keys in one PKCS#11 token: reserve, check, wait for a session",
};
/// Threads that wait for the TPM.
pub const TPM_CALLERS: ThreadSpec = ThreadSpec {
    name: "kms-htpm-",
    count: Count::Pool("5"),
    stage: Stage::Work,
    critical: false,
    job: "jobs of keys in the TPM: reserve, check, wait for its owner",
};
/// Threads that wait for the other key service.
pub const REMOTE_CALLERS: ThreadSpec = ThreadSpec {
    name: "kms-hrem-",
    count: Count::Pool("remote.sessions + 4"),
    stage: Stage::Work,
    critical: false,
    job: "jobs of keys in another key service: reserve, check, wait for its answer",
};
/// Jobs of keys in another key service.
pub const REMOTE_JOBS: QueueSpec = QueueSpec {
    name: "remote_jobs",
    capacity: 512,
    overflow: Overflow::RejectNew,
    from: "kms-http-, kms-store",
    to: "kms-hrem-*",
    when_full: "429 busy",
};
/// Jobs of keys in a token; a queue for each token.
pub const PKCS11_JOBS: QueueSpec = QueueSpec {
    name: "pkcs11_jobs",
    capacity: 512,
    overflow: Overflow::RejectNew,
    from: "kms-http-, kms-store",
    to: "kms-hp11-*",
    when_full: "429 busy",
};
/// Jobs of keys in the TPM.
pub const TPM_JOBS: QueueSpec = QueueSpec {
    name: "tpm_jobs",
    capacity: 512,
    overflow: Overflow::RejectNew,
    from: "kms-http-, kms-store",
    to: "kms-htpm-*",
    when_full: "429 busy",
};
pub const SIGN_QUEUE: QueueSpec = QueueSpec {
    name: "sign",
    capacity: 512,
    overflow: Overflow::RejectNew,
    from: "kms-http-",
    to: "kms-signer-*",
    when_full: "429 busy; one tenant gets at most eight times the room that is left",
};
/// Changes of the store.
pub const STORE_QUEUE: QueueSpec = QueueSpec {
    name: "store",
    capacity: 64,
    overflow: Overflow::RejectNew,
    from: "kms-http-, kms-signer, kms-sched, kms-maker, kms-hp11-, kms-htpm-, kms-hrem-",
    to: "kms-store",
    when_full: "429 busy",
};
/// Results that wait for their leaf. A credit for each leaf is reserved before the work is done, and there are as
/// many credits as places, so a send never finds the queue full.
pub const AUDIT_QUEUE: QueueSpec = QueueSpec {
    name: "audit",
    capacity: 2048,
    overflow: Overflow::RejectNew,
    from: "kms-signer, kms-store, kms-hp11-, kms-htpm-, kms-hrem-",
    to: "kms-audit",
    when_full: "429 busy, after waiting 200 ms for room before signing",
};

/// Wake-ups of the checkpoint thread: at most one of each kind is queued at a time.
pub const CHECKPOINT_QUEUE: QueueSpec = QueueSpec {
    name: "checkpoint",
    capacity: 8,
    overflow: Overflow::RejectNew,
    from: "kms-audit, kms-witness",
    to: "kms-ckpt",
    when_full: "nothing: a wake is already waiting",
};

/// Wake-ups of the thread that requests cosignatures.
pub const WITNESS_QUEUE: QueueSpec = QueueSpec {
    name: "witness",
    capacity: 2,
    overflow: Overflow::RejectNew,
    from: "kms-ckpt",
    to: "kms-witness",
    when_full: "nothing: a wake is already waiting",
};
/// Answers that wait for their proof.
pub const PROOF_QUEUE: QueueSpec = QueueSpec {
    name: "proof",
    capacity: 1024,
    overflow: Overflow::RejectNew,
    from: "kms-audit, kms-signer, kms-store, kms-hp11-, kms-htpm-, kms-hrem-, kms-ckpt, kms-witness",
    to: "kms-proof",
    when_full: "the answer leaves without its proof",
};

/// Guards [`crate::replay::Replay`].
pub const REPLAY_LOCK: LockSpec = LockSpec {
    name: "replay",
    rank: 10,
    guards: "operation ids of signatures and envelope operations",
};
/// Guards [`crate::work::fair::FairQueue`].
pub const FAIR_LOCK: LockSpec = LockSpec {
    name: "fair",
    rank: 12,
    guards: "the tenants' queues in front of the signers",
};
/// Guards [`crate::api::verify`].
pub const VERIFY_LOCK: LockSpec = LockSpec {
    name: "verify_batches",
    rank: 14,
    guards: "how many batches each tenant verifies now",
};
/// Guards [`crate::work::notes::SignedNotes`].
pub const NOTES_LOCK: LockSpec = LockSpec {
    name: "notes",
    rank: 16,
    guards: "what the last policy note of each key stated",
};

/// The whole table, with the rows of the chassis.
pub static TOPOLOGY: Topology = ron_service::topology! {
    service: "ron-kms",
    prefix: "kms",
    threads: [
        SCRUB, SIGNERS, STORE, SCHEDULER, AUDIT, CHECKPOINT, WITNESS, PROOFS, UPKEEP, KEY_MAKER, PKCS11_CALLERS, TPM_CALLERS,
        REMOTE_CALLERS, PKCS11, PKCS11_KEEPER, TPM, TPM_KEEPER, REMOTE, REMOTE_KEEPER, ATTEST,
    ],
    queues: [
        SIGN_QUEUE, STORE_QUEUE, AUDIT_QUEUE, CHECKPOINT_QUEUE, WITNESS_QUEUE, PROOF_QUEUE,
        MAKER_JOBS, PKCS11_JOBS, TPM_JOBS, REMOTE_JOBS, PKCS11_QUEUE, TPM_QUEUE, REMOTE_QUEUE,
    ],
    locks: [REPLAY_LOCK, FAIR_LOCK, VERIFY_LOCK, NOTES_LOCK],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        assert_eq!(
            ron_service::topology_faults(&TOPOLOGY),
            Vec::<String>::new()
        );
    }
}
