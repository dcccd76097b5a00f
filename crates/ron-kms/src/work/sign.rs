//! One signature: from the request to the signature or the refusal, and the leaf of either. Works on one
//! snapshot of the keys and blocks only on a device that holds the key.

use ron_crypto::hash::sha256;
use ron_custody::index::{Key, KeyIndex};
use ron_custody::keys::Head;
use ron_custody::keys::note;
use ron_custody::keys::payload::{self, Allowed, Payload};
use ron_custody::{Cause, Refusal};
use ron_http::Principal;
use ron_proto::jcs;
use ron_proto::kms::{
    Bytes, Digest, PayloadPolicy, SignAnswer, SignAttestation, SignRequest, Signature,
};
use ron_proto::values::{Kid, OpId};
use serde::{Deserialize, Serialize};

use super::fair::cost_of;
use super::operation::{Operation, Run, Stop};
use super::verify::signs_not;
use crate::audit::entry::Logged;
use crate::audit::leaf::{Draft, Op};

/// A sign request or one item of a batch.
#[derive(Clone)]
pub struct SignTask {
    pub key: Kid,
    /// The version the caller requires as the head; `None` accepts any head.
    pub version: Option<u32>,
    /// What to sign, or the refusal of a malformed payload.
    pub payload: Result<Payload, Refusal>,
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
            op_id: _,
            context,
        } = request;
        Self::build(key, version, message, digest.as_ref(), op, context)
    }

    fn build(
        key: Kid,
        version: Option<u32>,
        message: Option<Bytes>,
        digest: Option<&Digest>,
        op: Option<(OpId, [u8; 32])>,
        context: Option<String>,
    ) -> Self {
        let payload = Payload::parse(message, digest)
            .and_then(|payload| payload::check_context(context.as_deref()).map(|()| payload));
        // A refused remark must not reach the leaf: it may exceed the length limit or hold control characters.
        let context = context.filter(|text| payload::check_context(Some(text)).is_ok());
        Self {
            key,
            version,
            payload,
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

    fn key(&self) -> Option<&Kid> {
        Some(&self.key)
    }

    fn op_id(&self) -> Option<(OpId, [u8; 32])> {
        self.op
    }

    fn cost(&self) -> u64 {
        cost_of(self.key.alg)
    }

    fn draft(&self, caller: &Principal) -> Draft {
        let input = self.payload.as_ref().map(Payload::signed_bytes);
        Draft {
            context: self.context.clone(),
            input_sha256: input.as_ref().ok().map(|bytes| hex::encode(sha256(bytes))),
            op_id: self.op.map(|(id, _)| id.to_string()),
            ..Draft::new(Op::Sign, &caller.name, caller.tenant.as_str()).about(&self.key)
        }
    }

    fn run(&self, at: &mut Run<'_>, draft: &mut Draft) -> Result<SignOutput, Stop> {
        let key = at.index.find(at.caller, &self.key)?;
        key.kid.alg.signs().then_some(()).ok_or_else(signs_not)?;
        let payload = self.payload.as_ref().map_err(Clone::clone)?;
        // Number, public key and private key of the head all come from this one snapshot.
        let (head, secret) = key.signing(self.version)?;
        at.index.gate.check(key.backend, key.attestation)?;
        draft.version = Some(head.number);
        let about = Head {
            alg: key.kid.alg,
            thumbprint: head.thumbprint(),
        };
        vouched(at.index, key, payload)?;
        let rules = at.index.policy.as_ref().map(|p| &p.signed.policy);
        let now_s = at.kms.clock.unix_ms() / 1000;
        // The gate comes last before the signature: it changes the store, so everything that can refuse has run.
        let allowed = payload::check(&key.payload, rules, about, payload, now_s)?;
        if let Allowed::Checkpoint(to) = allowed {
            draft.store_version_after = at.gate.pass(at.kms, key, &to, at.deadline)?;
        }
        let signatures = secret.sign(&payload.signed_bytes(), at.deadline)?;
        at.kms.metrics.evidence.signatures_made.inc();
        draft.output_sha256 = Some(output_hash(&signatures));
        Ok(SignOutput {
            key: key.kid.clone(),
            version: head.number,
            signatures,
            attestation: at.index.gate.confirmed(key.backend, key.attestation),
        })
    }
}

/// Services trust the keys that a policy note lists, so a note may list only keys of this store that sign the tokens of
/// the note's issuer that the issuer policy allows, and must name the policy in force here.
fn vouched(index: &KeyIndex, key: &Key, payload: &Payload) -> Result<(), Refusal> {
    let (PayloadPolicy::Note(policy), Payload::Message(text)) = (&key.payload, payload) else {
        return Ok(());
    };
    let Some(issuer) = note::issuer_of(policy) else {
        return Ok(());
    };
    let refuse = |why: &str| Err(Refusal::new(Cause::PayloadRefused, why));
    let ours = |kid: &str| index.issues(&key.kid.tenant, issuer, kid);
    if !note::listed_keys(text).all(ours) {
        return refuse(
            "the note lists a key that signs no tokens of this issuer here: each must be a version of a key of the same \
             tenant whose payload policy is jwt with that iss and issuer_policy",
        );
    }
    let in_force = |(version, hash): (u64, &str)| {
        let policy = index.policy.as_ref().map(|policy| &policy.signed);
        policy.is_some_and(|p| p.policy.version == version && p.hash.to_string() == hash)
    };
    if !note::named_policy(text).is_some_and(in_force) {
        return refuse(
            "the note names another issuer policy than the one in force here, whose signature was checked; its line must be \
             `policy <version> <hash>` (`GET /v1/kms/issuer_policy`)",
        );
    }
    Ok(())
}

/// Hex SHA-256 of the signatures, one after the other.
fn output_hash(signatures: &[Signature]) -> String {
    let all: Vec<&[u8]> = signatures.iter().map(|s| s.signature.as_slice()).collect();
    hex::encode(sha256(&all.concat()))
}
