//! Completion of a change: its leaf is durable, so the version becomes visible and its answer is stored.

use ron_custody::Refusal;
use ron_custody::index::Key;
use ron_custody::labels::Labels;
use ron_custody::store::Pending;
use ron_custody::store::{KeyStore, StoreError};
use ron_http::Response;
use ron_proto::kms::{
    KeyChanged, KeyDoc, KeyState, RotateLogKeyAnswer, RotationDoc, TrimDoc, WaitingDoc,
};
use ron_proto::receipt::LogReceipt;
use ron_proto::strict;
use ron_proto::values::{Kid, OpId, Tenant, Timestamp};
use serde::{Deserialize, Serialize};

use crate::audit::leaf::{Draft, Op};
use crate::replay::unreadable_answer;
use crate::work::CallContext;

/// The answer of a finished change.
pub struct Answer {
    pub status: u16,
    pub json: String,
    /// Path of the new key.
    pub location: Option<String>,
}

impl Answer {
    /// Sends the answer to the caller.
    pub fn send(self, call: CallContext) {
        let response = Response::bytes(self.status, "application/json", self.json.into_bytes());
        call.responder.send(match self.location {
            Some(location) => response.header("location", location),
            None => response,
        });
    }
}

/// Whether the operation makes a key: it is answered with 201 and the key's document.
pub const fn makes_key(op: Op) -> bool {
    matches!(op, Op::Create | Op::Adopt | Op::Import | Op::Restore)
}

/// What the store keeps of an answer: the fields of the key's document that later changes can change. The others are
/// read from the key when the answer is repeated.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptAnswer {
    key: Kid,
    head: u32,
    min_verify_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_wrap_version: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_available_version: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trim: Option<TrimDoc>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    deletion_allowed: bool,
    state: KeyState,
    exportable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rotation: Option<RotationDoc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waiting: Option<WaitingDoc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    destroy_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    labels: Labels,
    /// Index of the leaf.
    leaf: u64,
    /// Name of the audit log that it is in, where nodes have one each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log: Option<String>,
}

impl KeptAnswer {
    fn of(key: &Key, leaf: u64, log: Option<&str>) -> Self {
        let document = key.summary();
        Self {
            key: document.key,
            head: document.head,
            min_verify_version: document.min_verify_version,
            min_wrap_version: Some(document.min_wrap_version).filter(|version| *version != 0),
            min_available_version: Some(document.min_available_version)
                .filter(|version| *version != 0),
            trim: document.trim,
            deletion_allowed: document.deletion_allowed,
            state: document.state,
            exportable: document.exportable,
            rotation: document.rotation,
            waiting: document.waiting,
            destroy_at: document.destroy_at,
            labels: (*key.labels).clone(),
            leaf,
            log: log.map(str::to_owned),
        }
    }

    /// The whole answer. `key` is the key at any later time, and `log` the origin of this node's audit log.
    fn answer(self, (op, op_id): (Op, OpId), key: &Key, log: &str) -> Answer {
        let shown = KeyDoc {
            head: self.head,
            min_verify_version: self.min_verify_version,
            min_wrap_version: self.min_wrap_version.unwrap_or(0),
            min_available_version: self.min_available_version.unwrap_or(0),
            trim: self.trim,
            deletion_allowed: self.deletion_allowed,
            state: self.state,
            exportable: self.exportable,
            rotation: self.rotation,
            waiting: self.waiting,
            destroy_at: self.destroy_at,
            description: self.labels.description,
            aliases: self.labels.aliases,
            tags: self.labels.tags,
            ..key.summary()
        };
        let versions = (shown.newest() - shown.head + 1) as usize;
        let mut document = KeyDoc {
            versions: key.version_docs(shown.head - 1, versions),
            ..shown
        };
        let receipt = LogReceipt {
            log: self.log.unwrap_or_else(|| log.to_owned()),
            index: self.leaf,
        };
        if makes_key(op) {
            document.receipt = Some(receipt);
            return Answer {
                status: 201,
                json: to_json(&document),
                location: Some(format!("/v1/kms/keys/{}", document.key)),
            };
        }
        let changed = KeyChanged {
            op_id,
            document,
            receipt,
        };
        Answer {
            status: 200,
            json: to_json(&changed),
            location: None,
        }
    }
}

/// Completes a change whose leaf is durable: makes it visible, stores its answer and
/// returns it. Also used at start for a change that a crash interrupted.
pub fn complete_change(
    store: &mut KeyStore,
    pending: &Pending,
    op: Op,
    receipt: &LogReceipt,
) -> Result<Answer, StoreError> {
    // In memory first: the answer shows the version, and both are then written in one transaction.
    let birth = receipt.index;
    store.mark_born(pending, birth);
    let key = store
        .key(&pending.kid)
        .ok_or_else(|| StoreError::Tampered("the outbox names a key that is not there".into()))?;
    let log = store.is_shared().then_some(receipt.log.as_str());
    let kept = KeptAnswer::of(&key, birth, log);
    store.complete(pending, birth, &to_json(&kept))?;
    Ok(kept.answer((op, pending.op_id), &key, &receipt.log))
}

/// Records that the leaf of `receipt` holds the log key `number`, stores the answer and returns it. Also used at start for a
/// rotation that a crash interrupted.
pub fn complete_log_key(
    store: &mut KeyStore,
    number: u32,
    receipt: LogReceipt,
    draft: &Draft,
) -> Result<String, StoreError> {
    let bad = || StoreError::Tampered("the leaf of a log key".into());
    let tenant: Tenant = draft.tenant.parse().map_err(|_| bad())?;
    let op_id: OpId = draft
        .op_id
        .as_deref()
        .and_then(|id| id.parse().ok())
        .ok_or_else(bad)?;
    let birth = receipt.index;
    let vkey = store
        .log()
        .chain()
        .map_err(StoreError::Tampered)?
        .newest()
        .to_string();
    let answer = RotateLogKeyAnswer {
        op_id,
        number,
        vkey,
        statement: draft.context.clone().unwrap_or_default(),
        receipt,
    };
    let json = to_json(&answer);
    store.complete_log_key(number, birth, (&tenant, op_id), &json)?;
    Ok(json)
}

/// The answer of an operation that was done before, from what [`complete_change`] or
/// [`complete_log_key`] has kept.
pub fn repeated_answer(
    store: &KeyStore,
    (op, op_id): (Op, OpId),
    kept: String,
) -> Result<Answer, Refusal> {
    if op == Op::RotateLogKey {
        return Ok(Answer {
            status: 200,
            json: kept,
            location: None,
        });
    }
    let kept: KeptAnswer = strict::from_slice(kept.as_bytes()).map_err(|_| unreadable_answer())?;
    let key = store.key(&kept.key).ok_or_else(unreadable_answer)?;
    Ok(kept.answer((op, op_id), &key, &store.log().origin))
}

/// An answer as JSON.
pub fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("documents hold strings and integers only")
}
