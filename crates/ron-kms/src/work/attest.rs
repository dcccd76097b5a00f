//! Attestation of where a key is held: a statement signed with the key of the audit log, and a TPM's evidence for a key that
//! it holds.

use ron_crypto::hash::sha256;
use ron_kernel::Deadline;
use ron_proto::jcs;
use ron_proto::kms::{
    ATTEST_VERSION, AttestAnswer, AttestRequest, Bytes, KeyBackend, NONCE_BYTES_MAX, Statement,
    TpmEvidenceDoc,
};
use ron_proto::receipt::LogReceipt;
use ron_proto::values::{Kid, Timestamp};
use ron_tlog::note::VerifierKey;

use super::answer::Done;
use super::refresh::ATTEST_WAIT;
use super::{CallContext, Kms};
use crate::attest::{statement_bytes, tpm_nonce};
use crate::audit::appender::Entry;
use crate::audit::leaf::{LEAF_VERSION, Leaf, OK, Op};
use crate::audit::writer::Draft;
use crate::backend::{BackendKind, Custody, TpmEvidence};
use crate::error::{Refusal, Why};
use crate::index::{Key, Version};
use crate::keys::SecretKey;

pub struct AttestTask {
    pub key: Kid,
    pub request: AttestRequest,
}

fn wire(backend: BackendKind) -> KeyBackend {
    match backend {
        BackendKind::File => KeyBackend::File,
        BackendKind::Memory => KeyBackend::Memory,
        BackendKind::Pkcs11 => KeyBackend::Pkcs11,
        BackendKind::Tpm => KeyBackend::Tpm,
        BackendKind::Remote => KeyBackend::Remote,
    }
}

impl From<TpmEvidence> for TpmEvidenceDoc {
    fn from(evidence: TpmEvidence) -> Self {
        Self {
            attestation_key: Bytes(evidence.attestation_key),
            key_public: Bytes(evidence.key_public),
            certify: Bytes(evidence.certify),
            certify_signature: Bytes(evidence.certify_signature),
            quote: Bytes(evidence.quote),
            quote_signature: Bytes(evidence.quote_signature),
        }
    }
}

impl Kms {
    /// Attests a key; the answer leaves once its leaf is durable.
    pub fn attest_job(&self, call: CallContext, task: &AttestTask) {
        let credits = match self.admit(&call, 1) {
            Ok(credits) => credits,
            Err(refusal) => return self.refuse_unlogged(call, &refusal),
        };
        let made = self.attest(&call, task);
        let outcome = made.as_ref().map_or("refused", |_| OK);
        self.metrics.attest.with_label_values(&[outcome]).inc();
        let mut leaf = leaf_of(&call, task);
        let counted = self.index.load().keys.contains_key(&task.key);
        let alg = task.key.alg.as_str();
        let timing = self.timing(&call);
        let responder = call.responder;
        let done = match made {
            Ok(answer) => {
                leaf.version = Some(answer.statement.version);
                leaf.output_sha256 = Some(hex::encode(sha256(answer.signature.as_slice())));
                Done::Attest {
                    responder,
                    answer: Box::new(answer),
                    timing,
                }
            }
            Err(refusal) => {
                refusal.why.code().clone_into(&mut leaf.result);
                Done::Refused {
                    responder,
                    refusal,
                    label: ("attest", alg),
                    timing,
                }
            }
        };
        self.enter(Entry {
            drafts: vec![Draft::new(leaf, counted)],
            done: Box::new(done),
            credits,
        });
    }

    fn attest(&self, call: &CallContext, task: &AttestTask) -> Result<AttestAnswer, Refusal> {
        let index = self.index.load();
        let key = index.find(&call.caller, &task.key)?;
        let nonce = &task.request.nonce;
        if nonce.0.len() > NONCE_BYTES_MAX {
            return Err(Refusal::new(
                Why::BadRequest,
                format!("`nonce` may have at most {NONCE_BYTES_MAX} bytes"),
            ));
        }
        let version = match task.request.version {
            None => key.head(),
            Some(number) => key.version(number).ok_or_else(|| {
                Refusal::new(Why::NotFound, "the key has no such version")
                    .with_head(key.head().number)
            })?,
        };
        let statement = self.statement(key, version, nonce);
        let tpm = device_evidence(key, version, &statement, call.deadline)?;
        let keys = self.ring.signing();
        let newest = keys.first().ok_or_else(Refusal::audit_down)?;
        let SecretKey::Ed25519(log_key) = &*newest.secret else {
            return Err(Refusal::new(
                Why::Internal,
                "the log's key is of another kind",
            ));
        };
        let vkey = VerifierKey::ed25519(&self.origin, &newest.public)
            .map_err(|e| Refusal::new(Why::Internal, e.to_string()))?;
        let signature = log_key.sign(&statement_bytes(&statement));
        Ok(AttestAnswer {
            class: key.attestation.as_str().to_owned(),
            signature: Bytes(signature.to_vec()),
            vkey: vkey.to_string(),
            tpm: tpm.map(TpmEvidenceDoc::from),
            birth_leaf: Bytes(self.birth_leaf(version.birth)?),
            receipt: LogReceipt {
                log: String::new(),
                index: 0,
            },
            statement,
        })
    }

    fn statement(&self, key: &Key, version: &Version, nonce: &Bytes) -> Statement {
        Statement {
            v: ATTEST_VERSION,
            log: self.origin.clone(),
            key: key.kid.clone(),
            version: version.number,
            public_key: Bytes(version.public.raw().to_vec()),
            backend: wire(key.backend),
            exportable: false,
            payload: key.payload.clone(),
            created: version.created,
            birth: version.birth,
            nonce: nonce.clone(),
            said: Timestamp(self.clock.unix_ms()),
        }
    }

    fn birth_leaf(&self, index: u64) -> Result<Vec<u8>, Refusal> {
        let log = self.log.as_ref().ok_or_else(Refusal::audit_down)?;
        let mut found = None;
        let read = log.entries(index..index + 1, |_, bytes: &[u8]| {
            found = Some(bytes.to_vec());
            Ok::<(), ron_tlog::append::ReadError>(())
        });
        read.ok().and(found).ok_or_else(|| {
            Refusal::new(Why::Internal, "the leaf of the key's making cannot be read")
        })
    }
}

/// The device's evidence for the head. Older versions are refused: their handles are not kept in memory.
fn device_evidence(
    key: &Key,
    version: &Version,
    statement: &Statement,
    deadline: Deadline,
) -> Result<Option<TpmEvidence>, Refusal> {
    let Some(Custody::Held(held)) = key.secret.as_deref() else {
        return Ok(None);
    };
    if version.number != key.head().number {
        return Err(Refusal::new(
            Why::VersionNotHead,
            "only the head version can be certified by its device",
        )
        .with_head(key.head().number));
    }
    // A TPM attests slowly; the cap keeps its one thread from being occupied for a whole request deadline.
    let until = deadline.capped(ATTEST_WAIT);
    let nonce = tpm_nonce(statement);
    Ok(held.device.attest(&held.handle, nonce, until)?)
}

fn leaf_of(call: &CallContext, task: &AttestTask) -> Leaf {
    let body = jcs::to_vec(&task.request).expect("a request holds strings and integers");
    Leaf {
        actor: call.caller.name.clone(),
        alg: Some(task.key.alg.as_str().to_owned()),
        input_sha256: Some(hex::encode(sha256(&body))),
        key: Some(task.key.to_string()),
        op: Op::Attest,
        purpose: Some(task.key.purpose.to_string()),
        tenant: call.caller.tenant.to_string(),
        v: LEAF_VERSION,
        context: None,
        ..Leaf::service(Op::Attest, "", 0)
    }
}
