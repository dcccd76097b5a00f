//! One signature: from the request to the signature or the refusal, and the leaf of either. Works on one
//! snapshot of the keys and blocks only on a device that holds the key.

use ron_crypto::hash::sha256;
use ron_custody::Refusal;
use ron_custody::keys::Head;
use ron_custody::keys::payload::{self, Allowed, Payload};
use ron_http::Principal;
use ron_proto::jcs;
use ron_proto::kms::{Scheme, SignAnswer, SignAttestation, SignRequest, Signature};
use ron_proto::values::{Kid, OpId};
use serde::{Deserialize, Serialize};

use super::fair::cost_of;
use super::notes;
use super::operation::{Operation, Run, Stop};
use super::task_key::TaskKey;
use super::verify::signs_not;
use crate::audit::entry::Logged;
use crate::audit::leaf::{Draft, Op};

/// A sign request or one item of a batch.
#[derive(Clone)]
pub struct SignTask {
    pub key: TaskKey,
    /// The version the caller requires as the head; `None` accepts any head.
    pub version: Option<u32>,
    /// What to sign, or the refusal of a malformed request.
    pub payload: Result<Payload, Refusal>,
    /// How to sign it; `None` signs as usual for the key.
    pub scheme: Option<Scheme>,
    /// Operation id and SHA-256 of the whole request.
    pub op: Option<(OpId, [u8; 32])>,
    /// The caller's remark, for the leaf.
    pub context: Option<String>,
}

impl SignTask {
    /// From `POST /sign`.
    pub fn from_request(request: SignRequest) -> Self {
        let op = request.op_id.map(|id| {
            let canonical = jcs::to_vec(&request).expect("a request holds strings and integers");
            (id, sha256(&canonical))
        });
        let SignRequest {
            key,
            version,
            message,
            digest,
            prehash,
            scheme,
            op_id: _,
            context,
        } = request;
        let payload = Payload::parse(message, digest.as_ref(), prehash.as_ref())
            .and_then(|checked| payload::check_context(context.as_deref()).map(|()| checked));
        // A refused remark must not reach the leaf: it may exceed the length limit or hold control characters.
        let context = context.filter(|text| payload::check_context(Some(text)).is_ok());
        Self {
            key: key.into(),
            version,
            payload,
            scheme,
            op,
            context,
        }
    }
}

/// A signature, without the receipt of its leaf.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct SignOutput {
    key: Kid,
    version: u32,
    signatures: Vec<Signature>,
    attestation: Option<SignAttestation>,
}

impl From<Logged<SignOutput>> for SignAnswer {
    fn from(logged: Logged<SignOutput>) -> Self {
        let (made, receipt) = logged.into_parts();
        Self {
            key: made.key,
            version: made.version,
            signatures: made.signatures,
            receipt,
            proof: None,
            attestation: made.attestation,
        }
    }
}

impl Operation for SignTask {
    type Output = SignOutput;

    fn op(&self) -> Op {
        Op::Sign
    }

    fn task_key(&self) -> Option<&TaskKey> {
        Some(&self.key)
    }

    fn task_key_mut(&mut self) -> Option<&mut TaskKey> {
        Some(&mut self.key)
    }

    fn context(&self) -> Option<&str> {
        self.context.as_deref()
    }

    fn op_id(&self) -> Option<(OpId, [u8; 32])> {
        self.op
    }

    fn cost(&self) -> u64 {
        self.key.kid().map_or(1, |kid| cost_of(kid.alg))
    }

    fn draft(&self, caller: &Principal) -> Draft {
        let payload = self.payload.as_ref().ok();
        Draft {
            context: self.context.clone(),
            input_sha256: payload.map(|payload| hex::encode(sha256(&payload.signed_bytes()))),
            op_id: self.op.map(|(id, _)| id.to_string()),
            ..Draft::of(Op::Sign, caller, self.key.kid())
        }
    }

    fn run(&self, at: &mut Run<'_>, draft: &mut Draft) -> Result<SignOutput, Stop> {
        let key = at.key(&self.key)?;
        key.kid.alg.signs().then_some(()).ok_or_else(signs_not)?;
        let payload = self.payload.as_ref().map_err(Clone::clone)?;
        let scheme = payload.scheme(key.kid.alg, self.scheme)?;
        // Number, public key and private key of the head all come from this one snapshot.
        let (head, secret) = key.signing(self.version)?;
        at.index.gate.check(&key.backend, key.attestation)?;
        draft.version = Some(head.number);
        let about = Head {
            alg: key.kid.alg,
            scheme,
            thumbprint: head.thumbprint(),
        };
        notes::vouched(at.index, key, payload)?;
        let rules = at.index.policy.as_ref().map(|p| &p.signed.policy);
        let now_s = at.kms.clock.unix_ms() / 1000;
        // The gate comes last before the signature: it changes the store, so everything that can refuse has run.
        let allowed = payload::check(&key.payload, rules, about, payload, now_s)?;
        at.kms.notes.pass(key, payload)?;
        if let Allowed::Checkpoint(to) = allowed {
            draft.store_version_after = at.gate.pass(at.kms, key, &to, at.deadline)?;
        }
        let bytes = payload.signed_bytes();
        let signatures = secret.sign(payload.input(&bytes), scheme, at.deadline)?;
        at.kms.metrics.evidence.signatures_made.inc();
        draft.output_sha256 = Some(output_hash(&signatures));
        Ok(SignOutput {
            key: key.kid.clone(),
            version: head.number,
            signatures,
            attestation: at.index.gate.confirmed(&key.backend, key.attestation),
        })
    }
}

/// Hex SHA-256 of the signatures, one after the other.
fn output_hash(signatures: &[Signature]) -> String {
    let all: Vec<&[u8]> = signatures.iter().map(|s| s.signature.as_slice()).collect();
    hex::encode(sha256(&all.concat()))
}
