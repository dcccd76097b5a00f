//! Approvals of operations on a key: asking, approving, and the check before the operation.

use ron_custody::access::Access;
use ron_custody::approvals::{ApprovalRequest, Gated};
use ron_custody::rights::may_do;
use ron_custody::store::{Change, Meta};
use ron_custody::{Cause, Refusal};
use ron_proto::jcs;
use ron_proto::kms::{Approve, AskApproval, GatedOp};
use ron_proto::values::{Kid, OpId, Timestamp};
use serde::Serialize;

use super::{By, Plan, Planner};
use crate::audit::leaf::Op;
use crate::work::key_request::body_hash;

/// Maximum bytes of a request that waits; a policy is the largest.
const BODY_BYTES_MAX: usize = 32 * 1024;

/// The request that is asked for.
struct Asked {
    op: GatedOp,
    id: Option<OpId>,
    sha256: [u8; 32],
    body: String,
}

impl Asked {
    fn new(op: Op, kid: &Kid, id: Option<OpId>, body: &impl Serialize) -> Option<Self> {
        let canonical = jcs::to_vec(body).expect("a request holds strings and integers");
        Some(Self {
            op: op.gated()?,
            id,
            sha256: body_hash(op, &kid.to_string(), body),
            body: String::from_utf8(canonical).ok()?,
        })
    }

    /// `None` unless exactly one request is given.
    fn of(kid: &Kid, ask: &AskApproval) -> Option<Self> {
        match (&ask.destroy, &ask.export, &ask.backup, &ask.policy) {
            (Some(body), None, None, None) => Self::new(Op::Destroy, kid, body.op_id, body),
            (None, Some(body), None, None) => Self::new(Op::Export, kid, body.op_id, body),
            (None, None, Some(body), None) => Self::new(Op::Backup, kid, body.op_id, body),
            (None, None, None, Some(body)) => Self::new(Op::KeyPolicy, kid, body.op_id, body),
            _ => None,
        }
    }
}

/// The approvers of an operation, for its leaf; `None` where it needs none.
pub fn approved(
    access: &Access,
    (op, by, now): (GatedOp, By<'_>, Timestamp),
    body: &[u8; 32],
) -> Result<Option<String>, Refusal> {
    let operation_sha256 = hex::encode(body);
    let what = Gated {
        op,
        id: by.op_id,
        operation_sha256: &operation_sha256,
        caller: &by.caller.name,
        now,
    };
    let names = access.requests.approved(access.approval_rule(), &what)?;
    Ok((!names.is_empty()).then(|| format!("approved_by={}", names.join(","))))
}

impl Planner<'_> {
    /// Adds a request that waits for approvals. The caller must be allowed what it asks for.
    pub(super) fn plan_ask(
        &self,
        by: By<'_>,
        kid: &Kid,
        mut meta: Meta,
        ask: &AskApproval,
    ) -> Result<Plan, Refusal> {
        let bad = |detail: &str| Err(Refusal::new(Cause::BadRequest, detail));
        let Some(asked) = Asked::of(kid, ask) else {
            return bad("give exactly one of `destroy`, `export`, `backup` and `policy`");
        };
        let Some(id) = asked.id else {
            return bad("the request needs an `op_id`: it is approved and used under that id");
        };
        let Some(rule) = meta
            .access
            .approval_rule()
            .filter(|rule| rule.gates(asked.op.key_op()))
        else {
            return bad("this operation of the key needs no approvals; send the request itself");
        };
        if asked.body.len() > BODY_BYTES_MAX {
            return Err(Refusal::new(
                Cause::TooLarge,
                "the request is larger than 32 KiB",
            ));
        }
        let policy = ask.policy.as_ref().and_then(|ask| ask.policy.as_ref());
        if let Some(fault) = policy.and_then(|policy| policy.faults().into_iter().next()) {
            return bad(&format!("`policy`: {fault}"));
        }
        let wanted = asked.op.key_op();
        may_do(by.caller, wanted)?;
        self.allows(by, kid, wanted)?;
        let operation_sha256 = hex::encode(asked.sha256);
        let context = format!(
            "request={id} op={} operation_sha256={operation_sha256}",
            asked.op
        );
        let expires = Timestamp(self.now.0 + rule.within.as_ms());
        meta.access.requests.ask(ApprovalRequest {
            id,
            op: asked.op,
            body: asked.body,
            operation_sha256,
            requester: by.caller.name.clone(),
            created: self.now,
            expires,
            approvals: Vec::new(),
        })?;
        Ok(Plan {
            change: Change::of(kid, meta),
            context: Some(context),
        })
    }

    /// Records an approval, which its signature proves.
    pub(super) fn plan_approve(
        &self,
        kid: &Kid,
        mut meta: Meta,
        (id, ask): (OpId, &Approve),
    ) -> Result<Plan, Refusal> {
        let rule = meta.access.approval_rule().cloned();
        let requests = &mut meta.access.requests;
        requests.approve(rule.as_ref(), (id, ask), self.now)?;
        Ok(Plan {
            change: Change::of(kid, meta),
            context: Some(format!("request={id} approver={}", ask.approver)),
        })
    }
}
