//! Envelope operations on the signer pool: wrap, unwrap, rewrap, data keys, MACs, random bytes.
//!
//! The steps are those of a signature: operation id, room for the leaf, work on one snapshot, leaf
//! durable, answer. Leaves and remembered answers never hold a plaintext or its hash: a reader of
//! the log could guess short plaintexts from a hash. A repeated unwrap or data key is decrypted again.

use ron_crypto::ct;
use ron_crypto::hash::{hmac_sha256, sha256};
use ron_http::{Principal, Response};
use ron_kernel::Deadline;
use ron_proto::kms::{Bytes, PrivateBytes};
use ron_proto::receipt::LogReceipt;
use ron_proto::values::{Alg, Kid, OpId};
use serde::{Deserialize, Serialize};

use super::signer::recalled;
use super::{CallContext, Kms};
use crate::audit::appender::Entry;
use crate::audit::leaf::{LEAF_VERSION, Leaf, NO_MATCH, OK, Op};
use crate::audit::writer::Draft;
use crate::backend::Custody;
use crate::error::{Refusal, Why};
use crate::index::may_use;
use crate::index::{Key, KeyIndex};
use crate::keys::{SecretKey, envelope};
use crate::replay::{Lookup, Ticket};
use crate::work::answer::{Done, EnvelopeDone, EnvelopeItem};

#[derive(Clone)]
pub enum EnvelopeOp {
    Wrap(PrivateBytes),
    Unwrap(Bytes),
    /// Decrypt, then encrypt under the head version.
    Rewrap(Bytes),
    /// Make a key of this many bytes and wrap it; the flag says whether to show it.
    Datakey(usize, bool),
    Hmac(Bytes),
    HmacVerify(Bytes, Bytes),
    /// Draw this many bytes.
    Random(usize),
}

impl EnvelopeOp {
    /// The operation's name in leaves and metrics.
    pub const fn op(&self) -> Op {
        match self {
            Self::Wrap(_) => Op::Wrap,
            Self::Unwrap(_) => Op::Unwrap,
            Self::Rewrap(_) => Op::Rewrap,
            Self::Datakey(..) => Op::Datakey,
            Self::Hmac(_) => Op::Hmac,
            Self::HmacVerify(..) => Op::HmacVerify,
            Self::Random(_) => Op::Random,
        }
    }

    /// The input whose hash may stand in the leaf; `None` for plaintexts.
    fn public_input(&self) -> Option<&Bytes> {
        match self {
            Self::Unwrap(text) | Self::Rewrap(text) | Self::HmacVerify(_, text) => Some(text),
            Self::Wrap(_) | Self::Datakey(..) | Self::Hmac(_) | Self::Random(_) => None,
        }
    }
}

#[derive(Clone)]
pub struct EnvelopeTask {
    /// `None` for random bytes.
    pub key: Option<Kid>,
    pub version: Option<u32>,
    pub aad: Option<Bytes>,
    pub what: EnvelopeOp,
    /// A refusal that does not depend on the key: a limit, or a malformed field.
    pub flaw: Option<Refusal>,
    /// Operation id and SHA-256 of the whole request.
    pub op: Option<(OpId, [u8; 32])>,
    /// The caller's remark, for the leaf.
    pub context: Option<String>,
}

/// The result of an operation; which fields are set depends on the operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EnvelopeOutput {
    /// The key version that was used.
    pub version: Option<u32>,
    /// The version that decrypted a rewrapped text.
    pub from_version: Option<u32>,
    /// Header and body, see `docs/formats/envelope.md`.
    pub ciphertext: Option<Bytes>,
    /// A plaintext, data key or random bytes. Never in the journal.
    pub plaintext: Option<PrivateBytes>,
    pub mac: Option<Bytes>,
    /// Whether a MAC matched.
    pub ok: bool,
    pub receipt: LogReceipt,
}

/// What the journal holds of an operation: everything but the plaintext.
#[derive(Serialize, Deserialize)]
struct Remembered {
    version: Option<u32>,
    from_version: Option<u32>,
    ciphertext: Option<Bytes>,
    mac: Option<Bytes>,
    ok: bool,
    receipt: LogReceipt,
}

impl EnvelopeOutput {
    /// The journal's record of this result.
    pub(super) fn remembered(&self) -> Vec<u8> {
        let remembered = Remembered {
            version: self.version,
            from_version: self.from_version,
            ciphertext: self.ciphertext.clone(),
            mac: self.mac.clone(),
            ok: self.ok,
            receipt: self.receipt.clone(),
        };
        serde_json::to_vec(&remembered).expect("strings and integers only")
    }

    fn recalled(json: &[u8]) -> Result<Self, Refusal> {
        let kept: Remembered = recalled(json)?;
        Ok(Self {
            version: kept.version,
            from_version: kept.from_version,
            ciphertext: kept.ciphertext,
            plaintext: None,
            mac: kept.mac,
            ok: kept.ok,
            receipt: kept.receipt,
        })
    }
}

/// Builds the response from one result per task.
pub type RespondWith = Box<dyn FnOnce(Vec<Result<EnvelopeOutput, Refusal>>) -> Response + Send>;

/// Envelope operations of one request.
pub struct EnvelopeJob {
    /// The operations; an `Err` could not be parsed and is refused without a leaf.
    pub tasks: Vec<Result<EnvelopeTask, Refusal>>,
    /// Builds the response; gets one result per task, in order.
    pub shape: RespondWith,
}

/// A task after its operation id was looked up.
enum Start {
    New(Box<EnvelopeTask>, Option<Ticket>),
    Known(Box<Result<EnvelopeOutput, Refusal>>),
}

impl Kms {
    /// Performs the operations of one request and hands them to the appender.
    pub(super) fn envelope(&self, call: CallContext, job: EnvelopeJob) {
        let index = self.index.load();
        let starts: Vec<Start> = job
            .tasks
            .into_iter()
            .map(|task| self.look_up(&index, &call, task))
            .collect();
        let new = starts
            .iter()
            .filter(|s| matches!(s, Start::New(..)))
            .count();
        // Reserved before any key is used: a result without room for its leaf could never be answered.
        let credits = match new {
            0 => Vec::new(),
            _ => match self.admit(&call, new) {
                Ok(credits) => credits,
                Err(refusal) => return self.refuse_unlogged(call, &refusal),
            },
        };
        let mut drafts = Vec::with_capacity(new);
        let mut items = Vec::with_capacity(starts.len());
        for start in starts {
            items.push(match start {
                Start::Known(result) => EnvelopeItem::Known(*result),
                Start::New(task, ticket) => {
                    let (item, draft) = self.envelope_item(&index, &call, &task, ticket);
                    drafts.push(draft);
                    item
                }
            });
        }
        let done = EnvelopeDone {
            timing: self.timing(&call),
            responder: call.responder,
            items,
            shape: job.shape,
        };
        if drafts.is_empty() {
            // Nothing to log: all items are repetitions or unreadable.
            return done.complete(&self.origin, 0);
        }
        let done = Done::Envelope(Box::new(done));
        self.enter(Entry {
            drafts,
            done: Box::new(done),
            credits,
        });
    }

    /// Looks the operation id up: a repeated operation gets its answer again, every other task is new.
    fn look_up(
        &self,
        index: &KeyIndex,
        call: &CallContext,
        task: Result<EnvelopeTask, Refusal>,
    ) -> Start {
        let caller = &call.caller;
        let known = |result| Start::Known(Box::new(result));
        let task = match task {
            Ok(task) => Box::new(task),
            Err(refusal) => return known(Err(refusal)),
        };
        let Some((op_id, body)) = task.op else {
            return Start::New(task, None);
        };
        // A caller without access to the key must not learn from an operation id; the task goes on to its refusal.
        if task
            .key
            .as_ref()
            .is_some_and(|k| may_use(caller, k).is_err())
        {
            return Start::New(task, None);
        }
        let seen = self
            .replay
            .begin(&caller.tenant, op_id, body, self.clock.unix_ms());
        match seen {
            Ok(Lookup::New(ticket)) => Start::New(task, Some(ticket)),
            Ok(Lookup::Repeated(made)) => known(
                EnvelopeOutput::recalled(&made).and_then(|made| again(index, call, &task, &made)),
            ),
            Err(refusal) => known(Err(refusal)),
        }
    }

    fn envelope_item(
        &self,
        index: &KeyIndex,
        call: &CallContext,
        task: &EnvelopeTask,
        ticket: Option<Ticket>,
    ) -> (EnvelopeItem, Draft) {
        let op = task.what.op().as_str();
        let alg = task.key.as_ref().map_or("none", |kid| kid.alg.as_str());
        let counted = task
            .key
            .as_ref()
            .is_some_and(|kid| index.keys.contains_key(kid));
        let mut draft = Draft::new(leaf_of(&call.caller, task), counted);
        match self.try_envelope(index, &call.caller, task, call.deadline) {
            Ok(made) => {
                let output = made.ciphertext.as_ref().or(made.mac.as_ref());
                draft.leaf.output_sha256 = output.map(|o| hex::encode(sha256(&o.0)));
                draft.leaf.version = made.version;
                let held = made.ok || task.what.op() != Op::HmacVerify;
                let result = if held { OK } else { NO_MATCH };
                result.clone_into(&mut draft.leaf.result);
                let item = EnvelopeItem::Done(made, (op, alg, result), ticket);
                (item, draft)
            }
            Err(refusal) => {
                refusal.why.code().clone_into(&mut draft.leaf.result);
                (EnvelopeItem::Refused(refusal, (op, alg)), draft)
            }
        }
    }

    fn try_envelope(
        &self,
        index: &KeyIndex,
        caller: &Principal,
        task: &EnvelopeTask,
        deadline: Deadline,
    ) -> Result<EnvelopeOutput, Refusal> {
        if let Some(flaw) = &task.flaw {
            return Err(flaw.clone());
        }
        let Some(kid) = &task.key else {
            let EnvelopeOp::Random(length) = task.what else {
                return Err(Refusal::new(Why::Internal, "an operation without a key"));
            };
            return Ok(EnvelopeOutput {
                plaintext: Some(self.draw(length)),
                ..EnvelopeOutput::default()
            });
        };
        let key = index.find(caller, kid)?;
        suits(kid.alg, task.what.op())?;
        let aad = task.aad.as_ref().map(Bytes::as_slice);
        match &task.what {
            EnvelopeOp::Wrap(plaintext) => {
                self.wrap(key, task.version, aad, plaintext.expose(), deadline)
            }
            EnvelopeOp::Unwrap(text) => {
                let (version, plaintext) = unwrap(key, aad, &text.0, deadline)?;
                Ok(EnvelopeOutput {
                    version: Some(version),
                    plaintext: Some(plaintext),
                    ..EnvelopeOutput::default()
                })
            }
            EnvelopeOp::Rewrap(text) => {
                let (from, plaintext) = unwrap(key, aad, &text.0, deadline)?;
                let made = self.wrap(key, task.version, aad, plaintext.expose(), deadline)?;
                Ok(EnvelopeOutput {
                    from_version: Some(from),
                    ..made
                })
            }
            EnvelopeOp::Datakey(length, show) => {
                let fresh = self.draw(*length);
                let made = self.wrap(key, task.version, aad, fresh.expose(), deadline)?;
                Ok(EnvelopeOutput {
                    plaintext: show.then_some(fresh),
                    ..made
                })
            }
            EnvelopeOp::Hmac(message) => {
                let head = key.head_for(task.version)?;
                Ok(EnvelopeOutput {
                    version: Some(head.number),
                    mac: Some(Bytes(
                        mac(key.active_secret()?.local()?, &message.0)?.to_vec(),
                    )),
                    ..EnvelopeOutput::default()
                })
            }
            EnvelopeOp::HmacVerify(message, given) => {
                check_mac(key, task.version, &message.0, &given.0)
            }
            EnvelopeOp::Random(_) => Err(Refusal::new(Why::Internal, "random bytes need no key")),
        }
    }

    /// Encrypts under the head version.
    fn wrap(
        &self,
        key: &Key,
        pinned: Option<u32>,
        aad: Option<&[u8]>,
        plaintext: &[u8],
        deadline: Deadline,
    ) -> Result<EnvelopeOutput, Refusal> {
        let head = key.head_for(pinned)?;
        envelope::check(key.kid.alg, aad, plaintext.len())?;
        let secret = match key.active_secret()? {
            Custody::Local(secret) => secret,
            Custody::Held(held) => {
                let wrapped = held.wrap(aad.unwrap_or_default(), plaintext, deadline)?;
                let header = envelope::header(key.kid.alg, head.number);
                return Ok(EnvelopeOutput {
                    version: Some(head.number),
                    ciphertext: Some(Bytes([&header[..], &wrapped].concat())),
                    ..EnvelopeOutput::default()
                });
            }
        };
        let nonce = match secret {
            SecretKey::Symmetric(Alg::Aes256Gcm, secret) => {
                // A number is used up once it is taken, even if the steps after it fail.
                let number = self.use_number((&key.kid, head.number), secret, deadline)?;
                Some(envelope::nonce(number, self.random.as_ref()))
            }
            _ => None,
        };
        let ciphertext = envelope::seal(
            (&key.kid, head.number),
            (secret, &head.public),
            nonce,
            aad.unwrap_or_default(),
            plaintext,
            self.random.as_ref(),
        );
        let ciphertext =
            ciphertext.ok_or_else(|| Refusal::new(Why::Internal, "the key does not wrap"))?;
        Ok(EnvelopeOutput {
            version: Some(head.number),
            ciphertext: Some(Bytes(ciphertext)),
            ..EnvelopeOutput::default()
        })
    }

    fn draw(&self, length: usize) -> PrivateBytes {
        let mut bytes = vec![0; length];
        self.random.fill(&mut bytes);
        PrivateBytes::new(bytes)
    }
}

/// Refuses operations that keys of this algorithm do not support.
fn suits(alg: Alg, op: Op) -> Result<(), Refusal> {
    let fits = match op {
        Op::Hmac | Op::HmacVerify => alg == Alg::HmacSha256,
        _ => alg.wraps(),
    };
    if fits {
        return Ok(());
    }
    let detail = format!("{} is not an operation of {alg} keys", op.as_str());
    Err(Refusal::new(Why::Unsupported, detail))
}

/// Decrypts with the version that the ciphertext's header names.
fn unwrap(
    key: &Key,
    aad: Option<&[u8]>,
    text: &[u8],
    deadline: Deadline,
) -> Result<(u32, PrivateBytes), Refusal> {
    envelope::check_aad(key.kid.alg, aad)?;
    let (version, body) = envelope::parse(key.kid.alg, text)?;
    let secret = match custody_of(key, version)? {
        Custody::Local(secret) => secret,
        Custody::Held(held) => {
            let plaintext = held.unwrap(aad.unwrap_or_default(), body, deadline)?;
            return Ok((version, plaintext.expose().into()));
        }
    };
    let plaintext = envelope::open((&key.kid, version), secret, aad.unwrap_or_default(), body);
    let plaintext = plaintext.ok_or_else(envelope::refused)?;
    Ok((version, plaintext.expose().into()))
}

/// The local secret of a version that may still verify.
fn secret_of(key: &Key, version: u32) -> Result<&SecretKey, Refusal> {
    custody_of(key, version)?.local()
}

/// The secret of a version that may still unwrap and verify. A version that does not exist is refused with the same
/// error as a ciphertext that does not decrypt.
fn custody_of(key: &Key, version: u32) -> Result<&Custody, Refusal> {
    if version > 0 && version < key.min_verify {
        return Err(Refusal::new(
            Why::BadRequest,
            format!(
                "version {version} no longer unwraps; the minimum is {}",
                key.min_verify
            ),
        ));
    }
    let secret = key.secrets.get(&version);
    let secret = secret.filter(|_| version <= key.head().number);
    Ok(&**secret.ok_or_else(envelope::refused)?)
}

fn mac(secret: &SecretKey, message: &[u8]) -> Result<[u8; 32], Refusal> {
    let key = secret
        .symmetric()
        .ok_or_else(|| Refusal::new(Why::Internal, "the key makes no MACs"))?;
    Ok(hmac_sha256(key.key.expose(), message))
}

/// Tries the given version, or all versions from `min_verify` on, newest first, in constant time per version.
fn check_mac(
    key: &Key,
    wanted: Option<u32>,
    message: &[u8],
    given: &[u8],
) -> Result<EnvelopeOutput, Refusal> {
    let no_version =
        || Refusal::new(Why::NotFound, "the key has no such version").with_head(key.head().number);
    let versions = match wanted {
        Some(number) => {
            key.version(number).ok_or_else(no_version)?;
            number..=number
        }
        None => key.min_verify..=key.head().number,
    };
    let mut made = EnvelopeOutput::default();
    for version in versions.rev() {
        if ct::eq(&mac(secret_of(key, version)?, message)?, given) {
            made.ok = true;
            made.version = Some(version);
            break;
        }
    }
    Ok(made)
}

/// The answer of a finished operation. Plaintexts are not remembered, so an unwrap or a shown data key is decrypted
/// again, with the caller's present access.
fn again(
    index: &KeyIndex,
    call: &CallContext,
    task: &EnvelopeTask,
    made: &EnvelopeOutput,
) -> Result<EnvelopeOutput, Refusal> {
    let mut made = made.clone();
    let text = match (&task.what, &made.ciphertext) {
        (EnvelopeOp::Unwrap(text), _) => text,
        (EnvelopeOp::Datakey(_, true), Some(text)) => text,
        _ => return Ok(made),
    };
    let Some(kid) = &task.key else {
        return Ok(made);
    };
    let key = index.find(&call.caller, kid)?;
    let aad = task.aad.as_ref().map(Bytes::as_slice);
    let (_, plaintext) = unwrap(key, aad, &text.0, call.deadline)?;
    made.plaintext = Some(plaintext);
    Ok(made)
}

fn leaf_of(caller: &Principal, task: &EnvelopeTask) -> Leaf {
    let key = task.key.as_ref();
    let input = task.what.public_input();
    Leaf {
        actor: caller.name.clone(),
        alg: key.map(|kid| kid.alg.as_str().to_owned()),
        context: task.context.clone(),
        input_sha256: input.map(|bytes| hex::encode(sha256(&bytes.0))),
        key: key.map(ToString::to_string),
        key_op_counter: None,
        op: task.what.op(),
        op_id: task.op.map(|(id, _)| id.to_string()),
        output_sha256: None,
        prev_store_version: 0,
        purpose: key.map(|kid| kid.purpose.to_string()),
        result: OK.to_owned(),
        tenant: caller.tenant.to_string(),
        ts: 0,
        v: LEAF_VERSION,
        version: None,
    }
}
