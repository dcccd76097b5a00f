//! Backup and restore of one key with its history, sealed under the store's seal key.

use ron_custody::rights::may_use;
use ron_custody::store::{Backup, BackupError, PlanError};
use ron_custody::{Cause, Refusal};
use ron_http::Response;
use ron_proto::kms::{BackupAnswer, BackupKey, GatedOp, KeyOp, KeyState, RestoreKey, RotateEvery};
use ron_proto::values::{Alg, Kid, OpId};
use serde::{Deserialize, Serialize};

use super::plan::{By, Plan, approved};
use super::{Change, Lifecycle, draft_of, store_down};
use crate::audit::leaf::{Draft, Op};
use crate::work::key_request::body_hash;
use crate::work::{CallContext, Purposes};

/// A backup, without the receipt of its leaf.
#[derive(Serialize, Deserialize)]
struct BackupOutput {
    key: Kid,
    head: u32,
    backup: String,
}

impl Lifecycle {
    /// The store is not changed; the answer leaves once its leaf is durable.
    pub(super) fn backup(&mut self, call: CallContext, kid: &Kid, ask: &BackupKey) {
        let change = Change {
            op: Op::Backup,
            op_id: ask.op_id.unwrap_or_else(|| OpId(self.new_uuid())),
            body: body_hash(Op::Backup, &kid.to_string(), ask),
        };
        let mut draft = draft_of(change, &call).about(kid);
        draft.counted = self.store.key(kid).is_some();
        let credits = match self.kms.admit(&call, 1) {
            Ok(credits) => credits,
            Err(refusal) => return self.kms.refuse_unlogged(call, &refusal),
        };
        let outcome = self.backed_up(&call, kid, change, &mut draft);
        if let Ok(made) = &outcome {
            draft.version = Some(made.head);
            let hash = ron_crypto::hash::sha256(made.backup.as_bytes());
            draft.output_sha256 = Some(hex::encode(hash));
        }
        let basis = outcome.is_ok().then(|| self.kms.basis(kid)).flatten();
        self.kms
            .log_answer(call, (outcome, basis), draft, credits, |answer| {
                let (made, receipt) = answer?.into_parts();
                let answer = BackupAnswer {
                    key: made.key,
                    head: made.head,
                    backup: made.backup,
                    receipt,
                };
                Ok(Response::json(200, &answer))
            });
    }

    /// A backup holds the secrets of the key, as an export does, and needs what an export needs.
    fn backed_up(
        &mut self,
        call: &CallContext,
        kid: &Kid,
        change: Change,
        draft: &mut Draft,
    ) -> Result<BackupOutput, Refusal> {
        self.authorise(call, kid, Some(KeyOp::Export))?;
        let meta = self.store.known(kid)?;
        let (by, now) = (By::of(call, change.op_id), self.planner().now);
        draft.context = approved(&meta.access, (GatedOp::Backup, by, now), &change.body)?;
        let head = meta.head;
        let random = self.kms.random.clone();
        let backup = self.store.backup(kid, random.as_ref());
        let backup = backup.map_err(|error| match error {
            BackupError::Refusal(refusal) => refusal,
            BackupError::Store(error) => {
                tracing::error!(event = "backup_failed", %error);
                store_down()
            }
        })?;
        Ok(BackupOutput {
            key: kid.clone(),
            head,
            backup,
        })
    }

    pub(super) fn restore(&mut self, call: CallContext, ask: &RestoreKey, purposes: Purposes) {
        let change = Change {
            op: Op::Restore,
            op_id: ask.op_id,
            body: body_hash(Op::Restore, "", ask),
        };
        let backup = match self.store.open_backup(&ask.backup) {
            Ok(backup) => backup,
            Err(refusal) => {
                // A caller that may make no such key learns nothing of the text.
                let refusal = self.may_restore(&call, ask).err().unwrap_or(refusal);
                let draft = draft_of(change, &call);
                return match self.kms.admit(&call, 1) {
                    Ok(credits) => self.refuse(call, draft, refusal, credits),
                    Err(refusal) => self.kms.refuse_unlogged(call, &refusal),
                };
            }
        };
        let kid = self.restored_name(ask, &backup.facts.key);
        let ordered = self.perform(call, change, &kid, |this, call| {
            if purposes == Purposes::Single {
                this.is_free(&kid)?;
            }
            this.plan_restore(call, &backup, &kid)
                .map_err(PlanError::from)
        });
        debug_assert!(
            ordered.is_none(),
            "restored keys are never made by a device"
        );
    }

    /// As far as the request alone shows it: its tenant, and its purpose if it names one.
    fn may_restore(&self, call: &CallContext, ask: &RestoreKey) -> Result<(), Refusal> {
        let purpose = ask.purpose.clone();
        let purpose = purpose.or_else(|| "restored".parse().ok());
        let Some(purpose) = purpose else {
            return Ok(());
        };
        let kid = Kid {
            tenant: ask.tenant.clone(),
            purpose,
            alg: Alg::ALL[0],
            id: self.new_uuid(),
        };
        may_use(&call.caller, &kid, None)
    }

    /// The name that the key had, if the store has no such key: references to it hold then, and so do ciphertexts of HPKE, which
    /// name it. Otherwise a new one.
    fn restored_name(&self, ask: &RestoreKey, of: &Kid) -> Kid {
        let named = Kid {
            tenant: ask.tenant.clone(),
            purpose: ask.purpose.clone().unwrap_or_else(|| of.purpose.clone()),
            ..of.clone()
        };
        let is_free =
            matches!(self.store.known(&named), Err(refusal) if refusal.cause == Cause::NotFound);
        if is_free && named == *of {
            return named;
        }
        Kid {
            id: self.new_uuid(),
            ..named
        }
    }

    /// Refuses a key whose purpose another one has, or had and is not destroyed yet.
    pub(super) fn is_free(&self, wanted: &Kid) -> Result<(), Refusal> {
        let index = self.kms.index.load();
        let mut named = index.of_purpose(&wanted.tenant, wanted.purpose.clone());
        if named.any(|key| key.state != KeyState::Destroyed) {
            let taken = "a key of this name exists, or is not destroyed yet, and is not overwritten: take another name";
            return Err(Refusal::new(Cause::BadRequest, taken));
        }
        Ok(())
    }

    fn plan_restore(
        &self,
        call: &CallContext,
        backup: &Backup,
        kid: &Kid,
    ) -> Result<Plan, Refusal> {
        let facts = &backup.facts;
        self.check_new_key(call, kid, &facts.payload)?;
        // A backup of a key that the caller may not use must not become a key that it may.
        let original = self.store.meta(&facts.key).filter(|meta| !meta.destroyed);
        let labels = original.map(|meta| &meta.labels);
        if may_use(&call.caller, &facts.key, labels).is_err() {
            return Err(Refusal::new(
                Cause::Forbidden,
                "the backup is of a key that you may not use",
            ));
        }
        let planner = self.planner();
        let change = self.store.restored_key(kid, backup, planner.now)?;
        let mut plan = Plan::of(change);
        if let Some(original) = original {
            // What is in force for the same secrets, not what was when they were backed up.
            let policy = &mut plan.change.meta.access.policy;
            policy.clone_from(&original.access.policy);
        }
        if let Some(every) = facts.rotate_every {
            planner.set_rotation(&mut plan.change.meta, RotateEvery::Every(every))?;
        }
        plan.context = Some(format!("backup of {}", facts.key));
        Ok(plan)
    }
}
