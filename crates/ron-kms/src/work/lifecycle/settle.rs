//! The end of a change: its leaf is durable, so it is shown, answered, and its answer remembered.

use ron_http::Response;
use ron_proto::kms::KeyChanged;
use ron_proto::receipt::LogReceipt;
use serde::Serialize;

use crate::audit::leaf::Op;
use crate::store::write::Pending;
use crate::store::{KeyStore, StoreError};
use crate::work::Asked;

/// A finished change: status and body of its answer.
pub struct Answer {
    /// Status.
    pub status: u16,
    /// Body.
    pub json: String,
    /// Where the new key is.
    pub location: Option<String>,
}

impl Answer {
    /// Sends it to who asked.
    pub fn send(self, asked: Asked) {
        let response = Response::bytes(self.status, "application/json", self.json.into_bytes());
        asked.responder.send(match self.location {
            Some(location) => response.header("location", location),
            None => response,
        });
    }
}

/// Whether the operation makes a key, so that its answer is 201 and the key itself.
pub const fn makes_key(op: Op) -> bool {
    matches!(op, Op::Create | Op::Import)
}

/// The status of its answer.
pub const fn status_of(op: Op) -> u16 {
    if makes_key(op) { 201 } else { 200 }
}

/// Marks a change as durable at `birth` and remembers its answer, which is returned. Also used at
/// start for a change that a crash interrupted.
pub fn settle(
    store: &mut KeyStore,
    pending: &Pending,
    op: Op,
    birth: u64,
    origin: &str,
) -> Result<String, StoreError> {
    store.mark_born(pending, birth);
    let key = store
        .key(&pending.kid)
        .ok_or_else(|| StoreError::Tampered("the outbox names a key that is not there".into()))?;
    let mut document = key.to_doc(origin);
    let receipt = LogReceipt {
        log: origin.to_owned(),
        index: birth,
    };
    let json = if makes_key(op) {
        document.receipt = Some(receipt);
        to_json(&document)
    } else {
        to_json(&KeyChanged {
            op_id: pending.op_id,
            document,
            receipt,
        })
    };
    store.settle(pending, birth, &json)?;
    Ok(json)
}

/// An answer as text.
pub fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("documents hold strings and integers only")
}
