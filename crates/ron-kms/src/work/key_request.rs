//! Requests to change a key, and the hash that ties an operation id to its request.

use ron_crypto::hash::sha256;
use ron_proto::jcs;
use ron_proto::kms::{
    Approve, AskApproval, DestroyKey, MakeGrant, PutKeyPolicy, RetireGrant, RetireKey,
    RotateRequest, SetAlias, UpdateKey, operation_bytes,
};
use ron_proto::values::{Alias, Kid, OpId};
use serde::Serialize;

use crate::audit::leaf::Op;

/// A request to change an existing key.
#[derive(Debug)]
pub enum KeyRequest {
    /// `POST .../rotate`.
    Rotate(RotateRequest),
    /// `PATCH ...`.
    Update(UpdateKey),
    /// `POST .../retire`.
    Retire(RetireKey),
    /// `POST .../destroy`.
    Destroy(DestroyKey),
    /// `POST .../destroy/cancel`.
    CancelDestroy(RetireKey),
    /// `PUT /aliases/{alias}`.
    SetAlias(Alias, SetAlias),
    /// `POST /aliases/{alias}/delete`.
    DeleteAlias(Alias),
    /// `PUT .../policy`.
    PutPolicy(Box<PutKeyPolicy>),
    /// `POST .../grants`.
    MakeGrant(Box<MakeGrant>),
    /// `POST .../grants/{grant}/retire`.
    RetireGrant(OpId, RetireGrant),
    /// `POST .../approvals`.
    AskApproval(Box<AskApproval>),
    /// `POST .../approvals/{request}/approve`.
    Approve(OpId, Approve),
}

impl KeyRequest {
    /// The operation in leaves and metrics.
    pub const fn op(&self) -> Op {
        match self {
            Self::Rotate(request) if request.publish_first => Op::Publish,
            Self::Rotate(_) => Op::Rotate,
            Self::Update(_) => Op::Update,
            Self::Retire(_) => Op::Retire,
            Self::Destroy(_) => Op::Destroy,
            Self::CancelDestroy(_) => Op::DestroyCancel,
            Self::SetAlias(..) | Self::DeleteAlias(_) => Op::Alias,
            Self::PutPolicy(_) => Op::KeyPolicy,
            Self::MakeGrant(_) => Op::Grant,
            Self::RetireGrant(..) => Op::GrantRetire,
            Self::AskApproval(_) => Op::ApprovalAsk,
            Self::Approve(..) => Op::Approve,
        }
    }

    /// The operation id, if the request has one.
    pub const fn op_id(&self) -> Option<OpId> {
        match self {
            Self::Rotate(request) => request.op_id,
            Self::Update(request) => request.op_id,
            Self::Retire(request) | Self::CancelDestroy(request) => request.op_id,
            Self::Destroy(request) => request.op_id,
            Self::SetAlias(_, request) => request.op_id,
            Self::PutPolicy(request) => request.op_id,
            Self::MakeGrant(request) => request.op_id,
            Self::RetireGrant(_, request) => request.op_id,
            // Once it is deleted, the alias names no key under which a repetition would come.
            Self::DeleteAlias(_) => None,
            // The id inside is that of the request that is asked for.
            Self::AskApproval(_) | Self::Approve(..) => None,
        }
    }

    /// The head that the caller expects.
    pub const fn expected_head(&self) -> Option<u32> {
        match self {
            Self::Rotate(request) => request.expected_head,
            Self::Update(request) => request.expected_head,
            Self::Retire(request) | Self::CancelDestroy(request) => request.expected_head,
            Self::Destroy(request) => request.expected_head,
            Self::SetAlias(..)
            | Self::DeleteAlias(_)
            | Self::PutPolicy(_)
            | Self::MakeGrant(_)
            | Self::RetireGrant(..)
            | Self::AskApproval(_)
            | Self::Approve(..) => None,
        }
    }

    /// The hash that an operation id is bound to: operation, key and canonical body.
    pub fn body_hash(&self, kid: &Kid) -> [u8; 32] {
        let (op, kid) = (self.op(), kid.to_string());
        match self {
            Self::Rotate(request) => body_hash(op, &kid, request),
            Self::Update(request) => body_hash(op, &kid, request),
            Self::Retire(request) | Self::CancelDestroy(request) => body_hash(op, &kid, request),
            Self::Destroy(request) => body_hash(op, &kid, request),
            Self::SetAlias(alias, request) => body_hash(op, &kid, &(alias, request)),
            Self::DeleteAlias(alias) => body_hash(op, &kid, alias),
            Self::PutPolicy(request) => body_hash(op, &kid, request),
            Self::MakeGrant(request) => body_hash(op, &kid, request),
            Self::RetireGrant(grant, request) => body_hash(op, &kid, &(grant, request)),
            Self::AskApproval(request) => body_hash(op, &kid, request),
            Self::Approve(id, request) => body_hash(op, &kid, &(id, request)),
        }
    }
}

/// SHA-256 over the operation's name, the key's name and the canonical body, separated by zero bytes.
pub fn body_hash(op: Op, key: &str, body: &impl Serialize) -> [u8; 32] {
    let body = jcs::to_vec(body).expect("a request holds strings and integers");
    sha256(&operation_bytes(op.as_str(), key, &body))
}
