//! Completion of a change: its leaf is durable, so the version becomes visible and its answer is stored.

use ron_custody::store::Pending;
use ron_custody::store::{KeyStore, StoreError};
use ron_http::Response;
use ron_proto::kms::KeyChanged;
use ron_proto::receipt::LogReceipt;
use serde::Serialize;

use crate::audit::leaf::Op;
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
    matches!(op, Op::Create | Op::Import)
}

/// The HTTP status of the operation's answer.
pub const fn status_of(op: Op) -> u16 {
    if makes_key(op) { 201 } else { 200 }
}

/// Completes a change whose leaf is durable: makes it visible, stores its answer and
/// returns it. Also used at start for a change that a crash interrupted.
pub fn complete_change(
    store: &mut KeyStore,
    pending: &Pending,
    op: Op,
    receipt: LogReceipt,
) -> Result<String, StoreError> {
    // In memory first: the answer shows the version, and both are then written in one transaction.
    let birth = receipt.index;
    store.mark_born(pending, birth);
    let key = store
        .key(&pending.kid)
        .ok_or_else(|| StoreError::Tampered("the outbox names a key that is not there".into()))?;
    let mut document = key.to_doc(&receipt.log);
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
    store.complete(pending, birth, &json)?;
    Ok(json)
}

/// An answer as JSON.
pub fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("documents hold strings and integers only")
}
