//! Attestation of where a key is held: a statement signed with the key of the audit log, and a TPM's evidence for a key that
//! it holds.

use ron_crypto::hash::sha256;
use ron_custody::backend::{Attestation, Custody, TpmEvidence};
use ron_custody::index::{Key, Version};
use ron_custody::keys::SecretKey;
use ron_custody::{Cause, Refusal};
use ron_http::Principal;
use ron_kernel::Deadline;
use ron_proto::jcs;
use ron_proto::kms::{
    ATTEST_VERSION, AttestAnswer, AttestRequest, Bytes, NONCE_BYTES_MAX, Statement, TpmEvidenceDoc,
};
use ron_proto::values::{OpId, Timestamp};
use ron_tlog::note::VerifierKey;
use serde::{Deserialize, Serialize};

use super::Kms;
use super::operation::{Operation, Run, Stop};
use super::refresh::ATTEST_WAIT;
use super::task_key::TaskKey;
use crate::attest::{statement_bytes, tpm_nonce};
use crate::audit::entry::Logged;
use crate::audit::leaf::{Draft, OK, Op};

pub struct AttestTask {
    pub key: TaskKey,
    pub request: AttestRequest,
}

/// An attestation, without the receipt of its leaf.
#[derive(Serialize, Deserialize)]
pub struct AttestOutput {
    class: String,
    statement: Statement,
    signature: Bytes,
    vkey: String,
    tpm: Option<TpmEvidenceDoc>,
    birth_leaf: Bytes,
}

impl From<Logged<AttestOutput>> for AttestAnswer {
    fn from(logged: Logged<AttestOutput>) -> Self {
        let (made, receipt) = logged.into_parts();
        Self {
            class: made.class,
            statement: made.statement,
            signature: made.signature,
            vkey: made.vkey,
            tpm: made.tpm,
            birth_leaf: made.birth_leaf,
            receipt,
        }
    }
}

impl Operation for AttestTask {
    type Output = AttestOutput;

    fn op(&self) -> Op {
        Op::Attest
    }

    fn task_key(&self) -> Option<&TaskKey> {
        Some(&self.key)
    }

    fn task_key_mut(&mut self) -> Option<&mut TaskKey> {
        Some(&mut self.key)
    }

    fn op_id(&self) -> Option<(OpId, [u8; 32])> {
        None
    }

    fn draft(&self, caller: &Principal) -> Draft {
        let body = jcs::to_vec(&self.request).expect("a request holds strings and integers");
        Draft {
            input_sha256: Some(hex::encode(sha256(&body))),
            ..Draft::of(Op::Attest, caller, self.key.kid())
        }
    }

    fn run(&self, at: &mut Run<'_>, draft: &mut Draft) -> Result<AttestOutput, Stop> {
        let made = at.kms.attest(at, self);
        let outcome = made.as_ref().map_or("refused", |_| OK);
        at.kms.metrics.attest.with_label_values(&[outcome]).inc();
        let made = made?;
        draft.version = Some(made.statement.version);
        draft.output_sha256 = Some(hex::encode(sha256(made.signature.as_slice())));
        Ok(made)
    }
}

impl Kms {
    fn attest(&self, at: &Run<'_>, task: &AttestTask) -> Result<AttestOutput, Refusal> {
        let key = at.key(&task.key)?;
        let nonce = &task.request.nonce;
        if nonce.0.len() > NONCE_BYTES_MAX {
            return Err(Refusal::new(
                Cause::BadRequest,
                format!("`nonce` may have at most {NONCE_BYTES_MAX} bytes"),
            ));
        }
        let version = match task.request.version {
            None => key.head(),
            Some(number) => key.version(number).ok_or_else(|| {
                Refusal::new(Cause::NotFound, "the key has no such version")
                    .with_head(key.head().number)
            })?,
        };
        if version.damaged {
            return Err(Refusal::quarantined(&key.kid, version.number));
        }
        let statement = self.statement(key, version, nonce);
        let tpm = device_evidence(key, version, &statement, at.deadline)?;
        let keys = self.ring.signing();
        let newest = keys.first().ok_or_else(Refusal::audit_down)?;
        let SecretKey::Ed25519(log_key) = &*newest.secret else {
            return Err(Refusal::new(
                Cause::Internal,
                "the log's key is of another kind",
            ));
        };
        let vkey = VerifierKey::ed25519(&self.origin, &newest.public)
            .map_err(|e| Refusal::new(Cause::Internal, e.to_string()))?;
        let signature = log_key.sign(&statement_bytes(&statement));
        Ok(AttestOutput {
            class: key.attestation.as_str().to_owned(),
            signature: Bytes(signature.to_vec()),
            vkey: vkey.to_string(),
            tpm: tpm.map(TpmEvidenceDoc::from),
            birth_leaf: Bytes(self.birth_leaf(version)?),
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
            backend: key.backend.kind,
            adopted: key.attestation == Attestation::Adopted,
            exportable: key.exportable,
            payload: key.payload.clone(),
            created: version.created,
            birth: version.birth,
            nonce: nonce.clone(),
            said: Timestamp(self.clock.unix_ms()),
        }
    }

    fn birth_leaf(&self, version: &Version) -> Result<Vec<u8>, Refusal> {
        let index = version.birth;
        let log = self.log.as_ref().ok_or_else(Refusal::audit_down)?;
        if *version.log != *self.origin {
            let detail = format!(
                "the version was made by the node with the log {}; ask that one",
                version.log
            );
            return Err(Refusal::new(Cause::Unsupported, detail));
        }
        let mut found = None;
        let read = log.entries(index..index + 1, |_, bytes: &[u8]| {
            found = Some(bytes.to_vec());
            Ok::<(), ron_tlog::append::ReadError>(())
        });
        read.ok().and(found).ok_or_else(|| {
            Refusal::new(
                Cause::Internal,
                "the leaf of the key's making cannot be read",
            )
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
    let secret = key.secret.as_ref();
    let Some(secret) = secret.filter(|secret| secret.device().is_some()) else {
        return Ok(None);
    };
    if version.number != key.head().number {
        return Err(Refusal::new(
            Cause::VersionNotHead,
            "only the head version can be certified by its device",
        )
        .with_head(key.head().number));
    }
    let Custody::Device(held) = secret.open()? else {
        return Ok(None);
    };
    // A TPM attests slowly; the cap keeps its one thread from being occupied for a whole request deadline.
    let until = deadline.capped(ATTEST_WAIT);
    let nonce = tpm_nonce(statement);
    Ok(held.device.attest(&held.handle, nonce, until)?)
}
