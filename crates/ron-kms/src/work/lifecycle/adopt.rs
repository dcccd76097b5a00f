//! Objects of a device that become keys.

use ron_custody::store::PlanError;
use ron_custody::{Cause, Refusal};
use ron_proto::kms::{AdoptKey, KeyBackend, TokenObject};
use ron_proto::values::Kid;

use super::plan::Plan;
use super::{Change, Lifecycle};
use crate::audit::leaf::Op;
use crate::work::CallContext;
use crate::work::jobs::DeferredKind;
use crate::work::key_request::body_hash;

impl Lifecycle {
    pub(super) fn adopt(&mut self, call: CallContext, ask: Box<AdoptKey>) {
        // Chosen once: when the device has answered, the resumed change makes the same key.
        let kid = Kid {
            tenant: ask.tenant.clone(),
            purpose: ask.purpose.clone(),
            alg: ask.alg,
            id: self.new_uuid(),
        };
        self.adopt_as(call, ask, kid);
    }

    pub(super) fn adopt_as(&mut self, call: CallContext, ask: Box<AdoptKey>, kid: Kid) {
        let change = Change {
            op: Op::Adopt,
            op_id: ask.op_id,
            body: body_hash(Op::Adopt, "", &ask),
        };
        let ordered = self.perform(call, change, &kid, |this, call| {
            this.plan_adopt(call, &ask, &kid)
        });
        if let Some((order, call)) = ordered {
            self.order(order, call, DeferredKind::Adopt(ask));
        }
    }

    fn plan_adopt(&self, call: &CallContext, ask: &AdoptKey, kid: &Kid) -> Result<Plan, PlanError> {
        self.check_new_key(call, kid, &ask.payload)?;
        named(ask)?;
        let backends = self.store.backends();
        let token = backends.named(KeyBackend::Pkcs11, ask.token.as_ref())?;
        let now = self.planner().now;
        let change = self
            .store
            .adopted_key(kid, (token, &ask.object), ask.payload.clone(), now)?;
        let context = Some(ask.object.to_string());
        Ok(Plan { change, context })
    }
}

/// Refuses names that no object has, and that a leaf has no room for.
fn named(ask: &AdoptKey) -> Result<(), Refusal> {
    let fits = match &ask.object {
        TokenObject::Label(label) => {
            (1..=128).contains(&label.len()) && !label.chars().any(char::is_control)
        }
        TokenObject::Id(id) => (2..=128).contains(&id.len()) && hex::decode(id).is_ok(),
    };
    if fits {
        return Ok(());
    }
    Err(Refusal::new(
        Cause::BadRequest,
        "`object` is a label of 1 to 128 bytes, or an id of 1 to 64 bytes in hex",
    ))
}
