//! One signature: from the request to the signature or the refusal, and the leaf of either. Works on one
//! snapshot of the keys and blocks only on a device that holds the key.

use ron_crypto::hash::sha256;
use ron_http::Principal;
use ron_kernel::Deadline;
use ron_proto::jcs;
use ron_proto::kms::{Bytes, Digest, PayloadPolicy, SignAnswer, SignBatch, SignRequest, Signature};
use ron_proto::receipt::LogReceipt;
use ron_proto::values::{Kid, OpId};

use crate::audit::leaf::{LEAF_VERSION, Leaf, OK, Op};
use crate::audit::writer::Draft;
use crate::error::{Refusal, Why};
use crate::index::{Key, KeyIndex};
use crate::keys::jwt::Head;
use crate::keys::note;
use crate::keys::payload::{self, Allowed, Payload};
use crate::work::verify::signs_not;

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

    /// From `POST /sign_batch`: one result per item.
    pub fn from_batch(batch: SignBatch) -> Vec<Result<Self, Refusal>> {
        let SignBatch {
            key: default_key,
            version: default_version,
            items,
        } = batch;
        let one = |item: ron_proto::kms::SignItem| {
            let version = match item.key {
                Some(_) => item.version,
                None => item.version.or(default_version),
            };
            let key = item.key.or_else(|| default_key.clone()).ok_or_else(|| {
                Refusal::new(
                    Why::BadRequest,
                    "the item names no key and the batch has none",
                )
            })?;
            let (message, digest, op_id, context) =
                (item.message, item.digest, item.op_id, item.context);
            Ok(Self::from_request(SignRequest {
                key,
                version,
                message,
                digest,
                op_id,
                context,
            }))
        };
        items.into_iter().map(one).collect()
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

/// The outcome of a task: its leaf, and the answer or refusal.
pub struct Outcome {
    pub draft: Draft,
    /// The answer without its leaf index, or the refusal.
    pub result: Result<SignAnswer, Refusal>,
}

/// The store must remember a checkpoint before a `note` key signs it. Each calling thread has its own way to get
/// there, and implements it here.
pub trait CheckpointGate {
    /// Allows the checkpoint after remembering it, or refuses it.
    fn pass(&mut self, key: &Key, to: &crate::keys::note::Checkpoint) -> Result<Gate, Refusal>;
}

/// The decision of a [`CheckpointGate`].
pub enum Gate {
    /// Sign; the store is now at this version.
    Sign {
        /// Whole-store version after remembering; `None` when the leaf must not state it.
        store_version_after: Option<u64>,
    },
    /// Hand the task to the store thread.
    Forward,
}

/// Signs or refuses. `None`: the gate wants the task forwarded to the store thread.
pub fn sign(
    index: &KeyIndex,
    caller: &Principal,
    task: &SignTask,
    now_ms: u64,
    deadline: Deadline,
    gate: &mut dyn CheckpointGate,
) -> Option<Outcome> {
    let input = task.payload.as_ref().map(Payload::signed_bytes);
    let mut leaf = leaf_of(caller, task);
    leaf.input_sha256 = input.as_ref().ok().map(|bytes| hex::encode(sha256(bytes)));
    // Counted for existing keys only: counters of invented names would grow without bound.
    let counted = index.keys.contains_key(&task.key);
    let mut draft = Draft::new(leaf, counted);
    let times = (now_ms, deadline);
    // `draft` is filled as far as the checks get, so that the leaf of a refusal names what is known.
    let result = try_sign(index, caller, task, times, gate, &mut draft);
    let result = match result {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => return None,
        Err(refusal) => {
            refusal.why.code().clone_into(&mut draft.leaf.result);
            Err(refusal)
        }
    };
    Some(Outcome { draft, result })
}

fn try_sign(
    index: &KeyIndex,
    caller: &Principal,
    task: &SignTask,
    (now_ms, deadline): (u64, Deadline),
    gate: &mut dyn CheckpointGate,
    draft: &mut Draft,
) -> Result<Option<SignAnswer>, Refusal> {
    let key = index.find(caller, &task.key)?;
    key.kid.alg.signs().then_some(()).ok_or_else(signs_not)?;
    let payload = task.payload.as_ref().map_err(Clone::clone)?;
    // Number, public key and private key of the head all come from this one snapshot.
    let (head, secret) = key.signing(task.version)?;
    index.gate.check(key.backend, key.attestation)?;
    draft.leaf.version = Some(head.number);
    let about = Head {
        alg: key.kid.alg,
        thumbprint: &head.thumbprint,
    };
    vouched(index, key, payload)?;
    // The gate comes last before the signature: it changes the store, so everything that can refuse has run.
    if let Allowed::Checkpoint(to) = payload::check(&key.payload, about, payload, now_ms / 1000)? {
        match gate.pass(key, &to)? {
            Gate::Sign {
                store_version_after,
            } => {
                draft.store_version_after = store_version_after;
            }
            Gate::Forward => return Ok(None),
        }
    }
    let signatures = secret.sign(&payload.signed_bytes(), deadline)?;
    draft.leaf.output_sha256 = Some(output_hash(&signatures));
    Ok(Some(SignAnswer {
        key: key.kid.clone(),
        version: head.number,
        signatures,
        receipt: LogReceipt {
            log: String::new(),
            index: 0,
        },
        proof: None,
        attestation: index.gate.confirmed(key.backend, key.attestation),
    }))
}

/// Services trust the keys that a policy note lists, so a note may list only keys of this store that sign tokens of
/// the note's issuer.
fn vouched(index: &KeyIndex, key: &Key, payload: &Payload) -> Result<(), Refusal> {
    let (PayloadPolicy::Note(policy), Payload::Message(text)) = (&key.payload, payload) else {
        return Ok(());
    };
    let Some(issuer) = note::issuer_of(policy) else {
        return Ok(());
    };
    let ours = |kid: &str| index.issues(&key.kid.tenant, issuer, kid);
    if note::listed_keys(text).all(ours) {
        return Ok(());
    }
    Err(Refusal::new(
        Why::PayloadRefused,
        "the note lists a key that signs no tokens of this issuer here: each must be a version of a key of the same tenant \
         whose payload policy is jwt with that iss",
    ))
}

/// Hex SHA-256 of the signatures, one after the other.
fn output_hash(signatures: &[Signature]) -> String {
    let all: Vec<&[u8]> = signatures.iter().map(|s| s.signature.as_slice()).collect();
    hex::encode(sha256(&all.concat()))
}

fn leaf_of(caller: &Principal, task: &SignTask) -> Leaf {
    Leaf {
        actor: caller.name.clone(),
        alg: Some(task.key.alg.as_str().to_owned()),
        context: task.context.clone(),
        input_sha256: None,
        key: Some(task.key.to_string()),
        key_op_counter: None,
        op: Op::Sign,
        op_id: task.op.map(|(id, _)| id.to_string()),
        output_sha256: None,
        prev_store_version: 0,
        purpose: Some(task.key.purpose.to_string()),
        result: OK.to_owned(),
        tenant: caller.tenant.to_string(),
        ts: 0,
        v: LEAF_VERSION,
        version: None,
    }
}
