//! `POST /wrap`, `/unwrap`, `/rewrap`, `/datakey`, `/hmac`, `/hmac/verify`, `/derive`, `/random`, and the batches of the first two.

use std::sync::Arc;

use ron_crypto::hash::sha256;
use ron_custody::keys::envelope::CIPHERTEXT_BYTES_MAX;
use ron_custody::keys::payload::check_context;
use ron_custody::{Cause, Refusal};
use ron_http::{Method, Response, Route};
use ron_proto::jcs;
use ron_proto::kms::{
    Bytes, DATAKEY_BYTES, DatakeyAnswer, DatakeyRequest, DeriveAnswer, DeriveOutput, DeriveRequest,
    HmacAnswer, HmacRequest, HmacVerifyAnswer, HmacVerifyRequest, MESSAGE_BYTES_MAX,
    RANDOM_BYTES_MAX, RandomAnswer, RandomRequest, RewrapAnswer, RewrapRequest, UnwrapAnswer,
    UnwrapBatch, UnwrapItem, UnwrapRequest, WrapAnswer, WrapBatch, WrapItem, WrapRequest,
};
use ron_proto::receipt::LogReceipt;
use ron_proto::scope;
use ron_proto::values::{Kid, OpId};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use super::batch::{batch_route, item_key};
use super::{Action, ERRORS, look_up, route};
use crate::work::Kms;
use crate::work::answering::Answer;
use crate::work::derive::{Derivation, Derived};
use crate::work::envelope::{EnvelopeOp, EnvelopeOutput, EnvelopeTask};
use crate::work::operation::{Operation, one};
use crate::work::task_key::TaskKey;

/// A request type of this API: its route, its operation and its answer.
trait EnvelopeRequest: DeserializeOwned + JsonSchema + Serialize + Send + 'static {
    type Answer: Serialize + JsonSchema + 'static;
    const PATH: &'static str;
    const SCOPE: &'static str;
    const SUMMARY: &'static str;

    fn op_id(&self) -> Option<OpId> {
        None
    }
    /// The operation. A broken limit becomes the task's `flaw`, so that its refusal is a leaf.
    fn task(self) -> EnvelopeTask;
    /// The answer; `None` when `made` lacks a field of it.
    fn answer(key: Option<Kid>, made: EnvelopeOutput, receipt: LogReceipt) -> Option<Self::Answer>;
}

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 10] {
    [
        single::<WrapRequest>(kms),
        single::<UnwrapRequest>(kms),
        single::<RewrapRequest>(kms),
        single::<DatakeyRequest>(kms),
        single::<HmacRequest>(kms),
        single::<HmacVerifyRequest>(kms),
        single::<DeriveRequest>(kms),
        single::<RandomRequest>(kms),
        batch_route(
            kms,
            "/v1/kms/wrap_batch",
            scope::KMS_WRAP,
            split_wraps,
            answer_of::<WrapRequest>,
        )
        .summary("Encrypt up to 1,000 items: one leaf each, one durable append, errors per item"),
        batch_route(
            kms,
            "/v1/kms/unwrap_batch",
            scope::KMS_UNWRAP,
            split_unwraps,
            answer_of::<UnwrapRequest>,
        )
        .summary("Decrypt up to 1,000 items: one leaf each, one durable append, errors per item"),
    ]
}

fn single<E: EnvelopeRequest>(kms: &Arc<Kms>) -> Route {
    route(kms, (Method::POST, E::PATH), E::SCOPE, |kms, request| {
        let mut task = task_of(request.json::<E>()?);
        look_up(kms, &request.principal, &mut task);
        let key = task.key().cloned();
        Ok(Action::Work(one(task, move |answer| {
            Ok(Response::json(200, &answer_of::<E>(key, answer)?))
        })))
    })
    .summary(E::SUMMARY)
    .body::<E>()
    .returns::<E::Answer>(200)
    .errors(ERRORS)
}

fn split_wraps(batch: WrapBatch) -> Vec<Result<EnvelopeTask, Refusal>> {
    let one = |item: WrapItem| {
        let key = item_key(item.key.as_ref(), batch.key.as_ref())?;
        Ok(task_of(item.with_key(key)))
    };
    batch.items.into_iter().map(one).collect()
}

fn split_unwraps(batch: UnwrapBatch) -> Vec<Result<EnvelopeTask, Refusal>> {
    let one = |item: UnwrapItem| {
        let key = item_key(item.key.as_ref(), batch.key.as_ref())?;
        Ok(task_of(item.with_key(key)))
    };
    batch.items.into_iter().map(one).collect()
}

fn answer_of<E: EnvelopeRequest>(
    key: Option<Kid>,
    answer: Answer<EnvelopeOutput>,
) -> Result<E::Answer, Refusal> {
    let (mut made, receipt) = answer?.into_parts();
    // An answer that is repeated names the key of its time, whatever the alias names now.
    E::answer(made.key.take().or(key), made, receipt)
        .ok_or_else(|| Refusal::new(Cause::Internal, "the answer is incomplete"))
}

/// The operation of a request, with its operation id.
fn task_of<E: EnvelopeRequest>(body: E) -> EnvelopeTask {
    let op = body.op_id().map(|id| (id, body_hash(E::PATH, &body)));
    EnvelopeTask { op, ..body.task() }
}

/// SHA-256 over the route and the canonical body.
fn body_hash(path: &str, body: &impl Serialize) -> [u8; 32] {
    let canonical = jcs::to_vec(body).expect("a request holds strings and integers");
    // The body may hold a plaintext.
    let canonical = Zeroizing::new(canonical);
    sha256(&Zeroizing::new(
        [path.as_bytes(), b"\0", &canonical].concat(),
    ))
}

/// A task without an operation id. A refused remark becomes the task's `flaw` and is left out of the leaf.
pub(super) fn task(
    key: Option<impl Into<TaskKey>>,
    version: Option<u32>,
    aad: Option<Bytes>,
    context: Option<String>,
    what: EnvelopeOp,
) -> EnvelopeTask {
    let remark = check_context(context.as_deref());
    let flaw = remark
        .as_ref()
        .err()
        .cloned()
        .or_else(|| limits(&what).err());
    EnvelopeTask {
        key: key.map(Into::into),
        version,
        older: false,
        aad,
        key_context: None,
        flaw,
        what,
        op: None,
        context: context.filter(|_| remark.is_ok()),
    }
}

fn limits(what: &EnvelopeOp) -> Result<(), Refusal> {
    let at_most = |name: &str, length: usize, max: usize| {
        if length <= max {
            return Ok(());
        }
        let detail = format!("`{name}` has {length} bytes; at most {max} are accepted");
        Err(Refusal::new(Cause::TooLarge, detail))
    };
    match what {
        // The limit depends on the key's algorithm and is checked with the key.
        EnvelopeOp::Wrap(_) => Ok(()),
        EnvelopeOp::Unwrap(text) | EnvelopeOp::Rewrap(text) => {
            at_most("ciphertext", text.0.len(), CIPHERTEXT_BYTES_MAX)
        }
        EnvelopeOp::Hmac(message) | EnvelopeOp::HmacVerify(message, _) => {
            at_most("message", message.0.len(), MESSAGE_BYTES_MAX)
        }
        EnvelopeOp::Derive(what) => {
            if let Derived::Hmac(message) = &what.output {
                at_most("message", message.0.len(), MESSAGE_BYTES_MAX)?;
            }
            what.inputs().check()
        }
        EnvelopeOp::Datakey(length, _) if !DATAKEY_BYTES.contains(&(*length as u32)) => {
            let detail = "`bytes` must be 16, 32 or 64";
            Err(Refusal::new(Cause::BadRequest, detail))
        }
        EnvelopeOp::Random(length) if !(1..=RANDOM_BYTES_MAX).contains(length) => {
            let detail = format!("`bytes` must be 1..={RANDOM_BYTES_MAX}");
            Err(Refusal::new(Cause::BadRequest, detail))
        }
        EnvelopeOp::Datakey(..) | EnvelopeOp::Random(_) => Ok(()),
    }
}

impl EnvelopeRequest for WrapRequest {
    type Answer = WrapAnswer;
    const PATH: &'static str = "/v1/kms/wrap";
    const SCOPE: &'static str = scope::KMS_WRAP;
    const SUMMARY: &'static str = "Encrypt under the head version; the ciphertext names it. The answer leaves once its audit leaf is durable";

    fn op_id(&self) -> Option<OpId> {
        self.op_id
    }

    fn task(self) -> EnvelopeTask {
        let what = EnvelopeOp::Wrap(self.plaintext);
        task(Some(self.key), self.version, self.aad, self.context, what)
    }

    fn answer(key: Option<Kid>, made: EnvelopeOutput, receipt: LogReceipt) -> Option<WrapAnswer> {
        Some(WrapAnswer {
            key: key?,
            version: made.version?,
            ciphertext: made.ciphertext?,
            receipt,
        })
    }
}

impl EnvelopeRequest for UnwrapRequest {
    type Answer = UnwrapAnswer;
    const PATH: &'static str = "/v1/kms/unwrap";
    const SCOPE: &'static str = scope::KMS_UNWRAP;
    const SUMMARY: &'static str =
        "Decrypt with the version the ciphertext names, from min_verify_version on";

    fn op_id(&self) -> Option<OpId> {
        self.op_id
    }

    fn task(self) -> EnvelopeTask {
        let what = EnvelopeOp::Unwrap(self.ciphertext);
        task(Some(self.key), None, self.aad, self.context, what)
    }

    fn answer(key: Option<Kid>, made: EnvelopeOutput, receipt: LogReceipt) -> Option<UnwrapAnswer> {
        Some(UnwrapAnswer {
            key: key?,
            version: made.version?,
            plaintext: made.plaintext?,
            receipt,
        })
    }
}

impl EnvelopeRequest for RewrapRequest {
    type Answer = RewrapAnswer;
    const PATH: &'static str = "/v1/kms/rewrap";
    const SCOPE: &'static str = scope::KMS_WRAP;
    const SUMMARY: &'static str =
        "Encrypt a ciphertext again under the head version without revealing the plaintext";

    fn op_id(&self) -> Option<OpId> {
        self.op_id
    }

    fn task(self) -> EnvelopeTask {
        let what = EnvelopeOp::Rewrap(self.ciphertext);
        task(Some(self.key), None, self.aad, self.context, what)
    }

    fn answer(key: Option<Kid>, made: EnvelopeOutput, receipt: LogReceipt) -> Option<RewrapAnswer> {
        Some(RewrapAnswer {
            key: key?,
            from_version: made.from_version?,
            version: made.version?,
            ciphertext: made.ciphertext?,
            receipt,
        })
    }
}

impl EnvelopeRequest for DatakeyRequest {
    type Answer = DatakeyAnswer;
    const PATH: &'static str = "/v1/kms/datakey";
    const SCOPE: &'static str = scope::KMS_WRAP;
    const SUMMARY: &'static str =
        "Make a random data key; returns it wrapped and, unless plaintext is false, in plaintext";

    fn op_id(&self) -> Option<OpId> {
        self.op_id
    }

    fn task(self) -> EnvelopeTask {
        let length = self.bytes.unwrap_or(32) as usize;
        let what = EnvelopeOp::Datakey(length, self.plaintext.unwrap_or(true));
        task(Some(self.key), None, self.aad, self.context, what)
    }

    fn answer(
        key: Option<Kid>,
        made: EnvelopeOutput,
        receipt: LogReceipt,
    ) -> Option<DatakeyAnswer> {
        Some(DatakeyAnswer {
            key: key?,
            version: made.version?,
            ciphertext: made.ciphertext?,
            plaintext: made.plaintext,
            receipt,
        })
    }
}

impl EnvelopeRequest for HmacRequest {
    type Answer = HmacAnswer;
    const PATH: &'static str = "/v1/kms/hmac";
    const SCOPE: &'static str = scope::KMS_SIGN;
    const SUMMARY: &'static str = "HMAC-SHA-256 of a message under the head version";

    fn op_id(&self) -> Option<OpId> {
        self.op_id
    }

    fn task(self) -> EnvelopeTask {
        let what = EnvelopeOp::Hmac(self.message);
        task(Some(self.key), self.version, None, self.context, what)
    }

    fn answer(key: Option<Kid>, made: EnvelopeOutput, receipt: LogReceipt) -> Option<HmacAnswer> {
        Some(HmacAnswer {
            key: key?,
            version: made.version?,
            mac: made.mac?,
            receipt,
        })
    }
}

impl EnvelopeRequest for HmacVerifyRequest {
    type Answer = HmacVerifyAnswer;
    const PATH: &'static str = "/v1/kms/hmac/verify";
    const SCOPE: &'static str = scope::KMS_VERIFY;
    const SUMMARY: &'static str =
        "Check a MAC in constant time; a wrong one is ok: false, not an error";

    fn task(self) -> EnvelopeTask {
        let what = EnvelopeOp::HmacVerify(self.message, self.mac);
        task(Some(self.key), self.version, None, self.context, what)
    }

    fn answer(
        _: Option<Kid>,
        made: EnvelopeOutput,
        receipt: LogReceipt,
    ) -> Option<HmacVerifyAnswer> {
        Some(HmacVerifyAnswer {
            ok: made.ok?,
            version: made.version,
            receipt,
        })
    }
}

impl EnvelopeRequest for DeriveRequest {
    type Answer = DeriveAnswer;
    const PATH: &'static str = "/v1/kms/derive";
    const SCOPE: &'static str = scope::KMS_WRAP;
    const SUMMARY: &'static str = "Derive a secret by key agreement or HKDF; returns it wrapped, or a MAC under it, never the secret";

    fn op_id(&self) -> Option<OpId> {
        self.op_id
    }

    fn task(self) -> EnvelopeTask {
        let (output, aad) = match self.output {
            DeriveOutput::Wrap(by) => (Derived::Wrap(by.key.into()), by.aad),
            DeriveOutput::Hmac(of) => (Derived::Hmac(of.message), None),
        };
        let what = Derivation {
            peer_public: self.peer_public,
            salt: self.salt,
            info: self.info,
            bytes: self.bytes.unwrap_or(32) as usize,
            output,
        };
        let what = EnvelopeOp::Derive(Box::new(what));
        task(Some(self.key), self.version, aad, self.context, what)
    }

    fn answer(key: Option<Kid>, made: EnvelopeOutput, receipt: LogReceipt) -> Option<DeriveAnswer> {
        Some(DeriveAnswer {
            key: key?,
            version: made.version?,
            wrapped_by: made.wrapped_by,
            ciphertext: made.ciphertext,
            mac: made.mac,
            receipt,
        })
    }
}

impl EnvelopeRequest for RandomRequest {
    type Answer = RandomAnswer;
    const PATH: &'static str = "/v1/kms/random";
    const SCOPE: &'static str = scope::KMS_WRAP;
    const SUMMARY: &'static str =
        "Random bytes; the audit log records the result of the request, not the bytes";

    fn task(self) -> EnvelopeTask {
        let what = EnvelopeOp::Random(self.bytes.unwrap_or(32) as usize);
        task(None::<Kid>, None, None, self.context, what)
    }

    fn answer(_: Option<Kid>, made: EnvelopeOutput, receipt: LogReceipt) -> Option<RandomAnswer> {
        Some(RandomAnswer {
            bytes: made.plaintext?,
            receipt,
        })
    }
}
