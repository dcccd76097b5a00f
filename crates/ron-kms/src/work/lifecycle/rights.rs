//! Who may change a key: what the store thread checks before it decides anything else.

use ron_custody::rights::may_use;
use ron_custody::{Cause, Refusal};
use ron_proto::kms::KeyOp;
use ron_proto::values::{Kid, OpId};
use uuid::Uuid;

use super::Lifecycle;
use super::plan::By;
use crate::work::CallContext;
use crate::work::task_key::still_names;

impl Lifecycle {
    /// Whether the caller may use this key, and the alias of the request still names it.
    pub(super) fn may_use(&self, call: &CallContext, kid: &Kid) -> Result<(), Refusal> {
        let labels = self.store.meta(kid).map(|meta| &meta.labels);
        may_use(&call.caller, kid, labels)?;
        let Some(alias) = &call.alias else {
            return Ok(());
        };
        match self.store.named(&kid.tenant, alias) {
            Some(now) => still_names(now, Some(kid)),
            None => Err(Refusal::new(Cause::NotFound, "the alias was deleted")),
        }
    }

    /// As [`Lifecycle::may_use`], and whether policy and grants allow the operation.
    pub(super) fn authorise(
        &self,
        call: &CallContext,
        kid: &Kid,
        op: Option<KeyOp>,
    ) -> Result<(), Refusal> {
        self.may_use(call, kid)?;
        let by = By::of(call, OpId(Uuid::nil()));
        match op {
            // A key that does not exist has no policy.
            Some(op) if self.store.meta(kid).is_some() => self.planner().allows(by, kid, op),
            _ => Ok(()),
        }
    }
}
