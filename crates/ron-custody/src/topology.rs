//! The threads and queues of devices, rows of the table of the service that starts them.

use ron_kernel::{Count, Overflow, QueueSpec, Stage, ThreadSpec};

/// Sessions of the PKCS#11 tokens.
pub const PKCS11: ThreadSpec = ThreadSpec {
    name: "kms-p11-",
    count: Count::Pool("pkcs11.sessions for each token"),
    stage: Stage::Write,
    critical: false,
    job: "own a session of a token each and call it; one that hangs is set aside",
};
/// The owner of the TPM.
pub const TPM: ThreadSpec = ThreadSpec {
    name: "kms-tpm-",
    count: Count::Pool("one, and those set aside"),
    stage: Stage::Write,
    critical: false,
    job: "own the TPM and call it; one that hangs is set aside",
};
/// Probe the tokens and reconnect.
pub const PKCS11_KEEPER: ThreadSpec = ThreadSpec {
    name: "kms-keep-p11-",
    count: Count::Pool("one for each token"),
    stage: Stage::Background,
    critical: false,
    job: "probe a PKCS#11 token, reconnect with backoff",
};
/// Probes the TPM and reconnects.
pub const TPM_KEEPER: ThreadSpec = ThreadSpec {
    name: "kms-keep-tpm",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "probe the TPM, reconnect with backoff",
};
/// Sessions with another key service.
pub const REMOTE: ThreadSpec = ThreadSpec {
    name: "kms-rem-",
    count: Count::Pool("remote.sessions"),
    stage: Stage::Write,
    critical: false,
    job: "call the other key service",
};
/// Probes the other key service and reconnects.
pub const REMOTE_KEEPER: ThreadSpec = ThreadSpec {
    name: "kms-keep-rem",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "probe the other key service, reconnect with backoff",
};
/// Calls that wait for a session with the other key service.
pub const REMOTE_QUEUE: QueueSpec = QueueSpec {
    name: "remote",
    capacity: 64,
    overflow: Overflow::RejectNew,
    from: "kms-hrem-*, kms-keep-rem",
    to: "kms-rem-*",
    when_full: "429 busy",
};
/// Calls that wait for a session of a token; a queue for each token.
pub const PKCS11_QUEUE: QueueSpec = QueueSpec {
    name: "pkcs11",
    capacity: 64,
    overflow: Overflow::RejectNew,
    from: "kms-hp11-*, kms-keep-p11-*",
    to: "kms-p11-*",
    when_full: "429 busy",
};
/// Calls that wait for the TPM.
pub const TPM_QUEUE: QueueSpec = QueueSpec {
    name: "tpm",
    capacity: 64,
    overflow: Overflow::RejectNew,
    from: "kms-htpm-*, kms-keep-tpm, kms-store",
    to: "kms-tpm-*",
    when_full: "429 busy",
};
