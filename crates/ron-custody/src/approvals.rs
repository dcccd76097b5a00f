//! Operations that several people have to agree to. Pure: who has approved what is in the metadata of the key, and each approval is
//! a signature with a key that this service does not have.
//!
//! **Invariant.** No operation with an approval rule is allowed unless as many approvers as the rule in force asks for have signed the
//! id of this request and the hash of this operation. Every signature is verified again when the request is used, so that neither a
//! caller nor a stored record counts for one.

use std::collections::BTreeSet;

use ron_proto::kms::{
    APPROVAL_REQUESTS_MAX, ApprovalDoc, ApprovalRule, Approve, Approver, Bytes, GatedOp,
    approval_text,
};
use ron_proto::values::{Kid, OpId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::keys::{Input, PublicKey};
use crate::{Cause, Refusal};

/// A request that waits for approvals.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRequest {
    pub id: OpId,
    pub op: GatedOp,
    /// The body as canonical JSON.
    pub body: String,
    /// Hex SHA-256 over the operation, the key's name and the body.
    pub operation_sha256: String,
    pub requester: String,
    pub created: Timestamp,
    /// It can be neither approved nor used from this time on.
    pub expires: Timestamp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
}

/// One approver's signature.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    pub public_key: Bytes,
    pub signature: Bytes,
}

impl ApprovalRequest {
    /// Whether the approver has signed this request, and may.
    fn is_approved_by(&self, approver: &Approver) -> bool {
        // Who asks does not count.
        approver.name != self.requester
            && self.approvals.iter().any(|approval| {
                approval.public_key == approver.public_key
                    && self.is_signed(approver, &approval.signature)
            })
    }

    fn is_signed(&self, approver: &Approver, signature: &Bytes) -> bool {
        let text = approval_text(self.id, &self.operation_sha256);
        let key = PublicKey::from_raw(approver.alg, &approver.public_key.0);
        key.is_some_and(|key| {
            key.fits(&signature.0)
                && key.verify(Input::Message(text.as_bytes()), None, &signature.0)
        })
    }

    /// The approvers of the rule that have approved; each key counts once.
    fn approved_by<'a>(&self, rule: &'a ApprovalRule) -> Vec<&'a str> {
        let mut keys = BTreeSet::new();
        let approvers = rule.approvers.iter();
        let valid = approvers.filter(|approver| self.is_approved_by(approver));
        valid
            .filter(|approver| keys.insert(&approver.public_key.0))
            .map(|approver| approver.name.as_str())
            .collect()
    }

    pub fn to_doc(&self, kid: &Kid, rule: &ApprovalRule) -> ApprovalDoc {
        let approved = self.approved_by(rule);
        ApprovalDoc {
            id: self.id,
            key: kid.clone(),
            op: self.op,
            body: self.body.clone(),
            operation_sha256: self.operation_sha256.clone(),
            requester: self.requester.clone(),
            needed: rule.needed,
            approved_by: approved.into_iter().map(str::to_owned).collect(),
            created: self.created,
            expires: self.expires,
        }
    }
}

/// An operation that is about to be done.
#[derive(Clone, Copy, Debug)]
pub struct Gated<'a> {
    pub op: GatedOp,
    pub id: OpId,
    /// Hex, as in [`ApprovalRequest`].
    pub operation_sha256: &'a str,
    /// Name of the caller.
    pub caller: &'a str,
    pub now: Timestamp,
}

/// The requests of a key, oldest first.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(transparent)]
pub struct ApprovalRequests(Vec<ApprovalRequest>);

impl ApprovalRequests {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The requests that have not lapsed.
    pub fn live(&self, now: Timestamp) -> impl Iterator<Item = &ApprovalRequest> {
        self.0.iter().filter(move |one| now < one.expires)
    }

    pub fn forget(&mut self, id: OpId) {
        self.0.retain(|one| one.id != id);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn drop_lapsed(&mut self, now: Timestamp) {
        self.0.retain(|one| now < one.expires);
    }

    /// The names of the approvers of an operation, empty where it needs none; a refusal while approvals are missing.
    pub fn approved<'a>(
        &self,
        rule: Option<&'a ApprovalRule>,
        what: &Gated<'_>,
    ) -> Result<Vec<&'a str>, Refusal> {
        let Some(rule) = rule.filter(|rule| rule.gates(what.op.key_op())) else {
            return Ok(Vec::new());
        };
        let missing = |detail: String| Err(Refusal::new(Cause::ApprovalMissing, detail));
        let mut live = self.live(what.now);
        let Some(request) = live.find(|one| one.id == what.id) else {
            return missing(format!(
                "`{}` of this key needs {} approvals: ask for them (POST .../approvals, or --ask-approval on the command line), then send the same request with its op_id",
                what.op, rule.needed
            ));
        };
        let is_same = request.op == what.op
            && request.operation_sha256 == what.operation_sha256
            && request.requester == what.caller;
        if !is_same {
            return missing(
                "the approvals of this id are for another request, or for another caller".into(),
            );
        }
        let by = request.approved_by(rule);
        if by.len() < rule.needed as usize {
            let (have, needed) = (by.len(), rule.needed);
            return missing(format!("the request has {have} of {needed} approvals"));
        }
        Ok(by)
    }

    /// Adds a request that waits.
    pub fn ask(&mut self, request: ApprovalRequest) -> Result<(), Refusal> {
        let now = request.created;
        self.drop_lapsed(now);
        if self.0.iter().any(|one| one.id == request.id) {
            let detail = "a request with this op_id waits already; use a new op_id";
            return Err(Refusal::new(Cause::OpIdMismatch, detail));
        }
        if self.0.len() >= APPROVAL_REQUESTS_MAX {
            let detail =
                format!("{APPROVAL_REQUESTS_MAX} requests of this key wait already; let one lapse");
            return Err(Refusal::new(Cause::BadRequest, detail));
        }
        self.0.push(request);
        Ok(())
    }

    /// Records an approval. Refused unless an approver of the rule in force, who did not ask, has signed.
    pub fn approve(
        &mut self,
        rule: Option<&ApprovalRule>,
        (id, ask): (OpId, &Approve),
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let none = || Refusal::new(Cause::NotFound, "no such request waits; it may have lapsed");
        let bad = |detail: &str| Err(Refusal::new(Cause::ApprovalRefused, detail));
        let rule = rule.ok_or_else(none)?;
        let mut approvers = rule.approvers.iter();
        let approver = approvers.find(|one| one.name == ask.approver);
        self.drop_lapsed(now);
        let request = self.0.iter_mut().find(|one| one.id == id);
        let request = request.ok_or_else(none)?;
        let Some(approver) = approver else {
            return bad("the key's policy names no such approver");
        };
        if approver.name == request.requester {
            return bad("who asks does not approve");
        }
        if !request.is_signed(approver, &ask.signature) {
            return bad("the signature is not that of the approver's key over this request");
        }
        let keys = request.approvals.iter().map(|one| &one.public_key);
        if keys.into_iter().any(|key| *key == approver.public_key) {
            return bad("this approver has approved already");
        }
        request.approvals.push(Approval {
            public_key: approver.public_key.clone(),
            signature: ask.signature.clone(),
        });
        Ok(())
    }
}
