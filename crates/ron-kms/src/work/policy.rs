//! A signed issuer policy comes into force: store, leaf, snapshot, in this order. Its signature decides, not the caller.
//!
//! A crash may come after any step. Once committed, an older version is refused for good; the next start finds the leaf or
//! writes it (`engine::log`).

use ron_crypto::hash::sha256;
use ron_custody::index::PolicyInForce;
use ron_custody::rights::may_bring_policy;
use ron_custody::{Cause, Refusal};
use ron_http::Response;
use ron_kernel::Credit;
use ron_proto::jcs;
use ron_proto::kms::{IssuerPolicyInForce, PutIssuerPolicy};
use ron_proto::passport::IssuerPolicy;
use ron_proto::receipt::LogReceipt;
use ron_proto::values::OpId;
use ron_service::events::{Event, EventKind};
use ron_service::kept_policy::{Versioned as _, replaces};
use ron_service::pinned::KeyRing;
use ron_service::signed_policy::{SignedPolicy, check};

use super::lifecycle::complete::{Answer, to_json};
use super::lifecycle::recover::{Committed, POLICY};
use super::lifecycle::{Change, Lifecycle, draft_of};
use super::{CallContext, Kms};
use crate::audit::entry::Items;
use crate::audit::leaf::{Draft, Op};

/// A policy that a caller has brought.
pub struct BroughtPolicy {
    /// SHA-256 of its canonical JSON.
    sha256: [u8; 32],
    /// The policy, if its signature verifies and it has no fault.
    checked: Result<SignedPolicy<IssuerPolicy>, Refusal>,
}

impl BroughtPolicy {
    /// Checks the signature against the pinned keys, then the policy; a fault is kept for the leaf of the
    /// refusal.
    pub fn new(request: &PutIssuerPolicy, pinned: &KeyRing) -> Self {
        let bytes = jcs::canonicalize(&request.policy);
        let checked = if pinned.is_empty() {
            let why = "policy.public_keys is empty here: no issuer policy is accepted";
            Err(Refusal::new(Cause::PolicyRefused, why))
        } else {
            check(IssuerPolicy::KIND, &bytes, &request.signature, pinned)
                .map_err(|why| refused(&format!("the issuer policy {why}")))
                .and_then(sound)
        };
        Self {
            sha256: sha256(&bytes),
            checked,
        }
    }
}

/// Only a policy without a fault comes into force: every check of a token relies on it.
fn sound(new: SignedPolicy<IssuerPolicy>) -> Result<SignedPolicy<IssuerPolicy>, Refusal> {
    match new.policy.check() {
        Ok(()) => Ok(new),
        Err(fault) => Err(refused(&format!("the issuer policy has a fault: {fault}"))),
    }
}

fn refused(why: &str) -> Refusal {
    Refusal::new(Cause::PolicyRefused, why)
}

impl Kms {
    /// The policy in force, as the API shows it.
    pub fn issuer_policy(&self) -> Result<IssuerPolicyInForce, Refusal> {
        let index = self.index.load();
        let policy = index.policy.as_ref().ok_or_else(|| {
            Refusal::new(Cause::NotFound, "no issuer policy is in force here yet")
        })?;
        Ok(Self::shown(policy))
    }

    fn shown(policy: &PolicyInForce) -> IssuerPolicyInForce {
        IssuerPolicyInForce {
            version: policy.signed.policy.version,
            hash: policy.signed.hash,
            receipt: LogReceipt {
                log: (*policy.log).to_owned(),
                index: policy.birth,
            },
        }
    }
}

impl Lifecycle {
    pub(super) fn put_policy(&mut self, call: CallContext, brought: BroughtPolicy) {
        let change = Change {
            op: Op::IssuerPolicy,
            op_id: OpId(self.new_uuid()),
            body: brought.sha256,
        };
        let mut draft = draft_of(change, &call);
        let judged = may_bring_policy(&call.caller)
            .and(brought.checked)
            .and_then(|new| self.newer(new, &mut draft));
        if let Ok(None) = judged {
            let shown = self.kms.issuer_policy();
            let answer = shown.map(|shown| Response::json(200, &shown));
            return call.responder.send(answer.map_err(crate::errors::problem));
        }
        let credits = match self.kms.admit(&call, 1) {
            Ok(credits) => credits,
            Err(refusal) => return self.kms.refuse_unlogged(call, &refusal),
        };
        match judged {
            Err(refusal) => self.refuse(call, draft, refusal, credits),
            Ok(None) => {} // answered above
            Ok(Some(new)) => {
                let outcome = self.change_policy(&new, draft, credits);
                self.finish(call, Op::IssuerPolicy, "none", outcome);
            }
        }
    }

    /// The policy, if it must replace the one in force; `None` if it is that one.
    fn newer(
        &self,
        new: SignedPolicy<IssuerPolicy>,
        draft: &mut Draft,
    ) -> Result<Option<SignedPolicy<IssuerPolicy>>, Refusal> {
        if self.stopped {
            return Err(super::lifecycle::store_down());
        }
        draft.context = Some(format!("version {} {}", new.policy.version, new.hash));
        let index = self.kms.index.load();
        let old = index.policy.as_ref().map(|policy| &policy.signed);
        let must = replaces(&new, old, self.store.policy_version());
        let must = must.map_err(|e| refused(&format!("the issuer policy {}", e.why)))?;
        Ok(must.then_some(new))
    }

    fn change_policy(
        &mut self,
        new: &SignedPolicy<IssuerPolicy>,
        mut draft: Draft,
        credits: Items<Credit>,
    ) -> Result<Answer, Refusal> {
        self.store
            .commit_policy(new, &draft.to_json(), self.kms.log_size())
            .map_err(|e| self.store_failed(&e))?;
        draft.store_version_after = Some(self.store.version());
        let receipt = self.log_change(draft, credits, || Committed::Policy)?;
        let done = self.store.complete_policy(receipt.index);
        self.completed(done, || Committed::Policy, &receipt)?;
        let store = &self.store;
        let policy = self
            .kms
            .settings
            .with(|settings| store.policy_in_force(&settings.keys.policy_keys));
        if self.kms.is_shared {
            self.publish_all();
        } else {
            let mut index = self.kms.index.load().as_ref().clone();
            index.policy = policy;
            index.store_version = self.store.version();
            self.kms.index.store(index);
        }
        self.ready.clear(POLICY);
        let shown = self.kms.issuer_policy()?;
        let adopted = Event::info(EventKind::PolicyAdopted).reason(IssuerPolicy::KIND);
        self.ready.events().publish(adopted.number(shown.version));
        Ok(Answer {
            status: 200,
            json: to_json(&shown),
            location: None,
        })
    }
}
