//! Rotation of the audit log's own key: first the store and the statement, then the signers and readers of the log, then the
//! leaf.
//!
//! A crash may come after any step. Once committed, the key is in force: the next start finds its leaf or writes it
//! (`engine::log`), and a verifier that sees the new key's line on a checkpoint before that finds its statement beside the log.

use ron_crypto::hash::sha256;
use ron_custody::rights::may_run_system;
use ron_custody::store::OpRow;
use ron_custody::store::StoreError;
use ron_custody::store::{LOG_KEY_NAME, NewLogKey};
use ron_custody::{Cause, Refusal};
use ron_kernel::Credit;
use ron_proto::kms::RotateLogKey;
use ron_proto::values::{OpId, Timestamp};

use super::CallContext;
use super::key_request::body_hash;
use super::lifecycle::complete::{Answer, complete_log_key};
use super::lifecycle::recover::Committed;
use super::lifecycle::{Change, Lifecycle, draft_of};
use crate::audit::entry::Items;
use crate::audit::leaf::{Draft, Op};
use crate::audit::ring::{SIGNING_MAX, keep_chain};

/// Name of the algorithm in leaf and metrics.
const ALG: &str = "ed25519";

impl Lifecycle {
    pub(super) fn rotate_log_key(&mut self, call: CallContext, request: &RotateLogKey) {
        let change = Change {
            op: Op::RotateLogKey,
            op_id: request.op_id.unwrap_or_else(|| OpId(self.new_uuid())),
            body: body_hash(Op::RotateLogKey, LOG_KEY_NAME, request),
        };
        let draft = Draft {
            alg: Some(ALG.to_owned()),
            key: Some(LOG_KEY_NAME.to_owned()),
            ..draft_of(change, &call)
        };
        let allowed = may_run_system(&call.caller);
        // As with keys: a caller without the right learns nothing from an operation id, and the refusal is a leaf.
        let seen = match &allowed {
            Ok(()) => self.admit_change(&call, change),
            Err(_) => Ok(None),
        };
        let begun = match seen {
            Ok(Some(answer)) => return answer.send(call),
            Ok(None) => self.kms.admit(&call, 1),
            Err(refusal) => Err(refusal),
        };
        let credits = match begun {
            Ok(credits) => credits,
            Err(refusal) => return self.kms.refuse_unlogged(call, &refusal),
        };
        match allowed.and_then(|()| self.next_log_key(request)) {
            Err(refusal) => self.refuse(call, draft, refusal, credits),
            Ok(new) => {
                let outcome = self.change_log_key(&call, change, new, draft, credits);
                self.finish(call, Op::RotateLogKey, ALG, outcome);
            }
        }
    }

    fn next_log_key(&mut self, request: &RotateLogKey) -> Result<NewLogKey, Refusal> {
        let number = self.store.log().newest().number;
        if request.expected_number.is_some_and(|n| n != number) {
            let why = format!("the log signs with key {number}");
            return Err(Refusal::new(Cause::StaleHead, why).with_head(number));
        }
        if self.kms.ring.signing().len() >= SIGNING_MAX {
            let why = format!(
                "{SIGNING_MAX} keys of the log sign at this time; wait until the overlap of one has ended"
            );
            return Err(Refusal::new(Cause::StaleHead, why).with_head(number));
        }
        let now = Timestamp(self.kms.clock.unix_ms());
        let made = self.store.next_log_key(self.kms.log_size(), now);
        made.map_err(|e| self.store_failed(&e))
    }

    fn change_log_key(
        &mut self,
        call: &CallContext,
        change: Change,
        new: NewLogKey,
        mut draft: Draft,
        credits: Items<Credit>,
    ) -> Result<Answer, Refusal> {
        let (number, log_size) = (new.number(), self.kms.log_size());
        draft.version = Some(number);
        draft.output_sha256 = Some(hex::encode(sha256(new.public())));
        draft.context = Some(new.statement.to_string());
        let op = OpRow {
            tenant: call.caller.tenant.clone(),
            op_id: change.op_id,
            body: change.body,
            now: Timestamp(self.kms.clock.unix_ms()),
        };
        self.store
            .commit_log_key(new, &op, &draft.to_json(), log_size)
            .map_err(|e| self.store_failed(&e))?;
        // Before the leaf is queued: a checkpoint over that leaf must carry the new key's line.
        self.show_log_keys()?;
        draft.store_version_after = Some(self.store.version());
        let committed = || Committed::LogKey(number, Box::new(draft.clone()));
        let receipt = self.log_change(draft.clone(), credits, committed)?;
        let json = complete_log_key(&mut self.store, number, receipt.clone(), &draft);
        let json = self.completed(json, committed, &receipt)?;
        self.show_log_keys()?;
        Ok(Answer {
            status: 200,
            json,
            location: None,
        })
    }

    /// Publishes the keys: to the file beside the log, to the HTTP routes and to the thread that signs checkpoints.
    pub(super) fn show_log_keys(&mut self) -> Result<(), Refusal> {
        let chain = self.store.log().chain();
        let kept = chain.map_err(StoreError::Tampered).and_then(|chain| {
            if let Some(dir) = &self.log_dir
                && let Err(error) = keep_chain(dir, &chain)
            {
                // Not fatal: the file is a copy of what the store holds, and the next start writes it.
                tracing::error!(event = "log_keys_not_kept", %error);
                let why = format!("the keys of the audit log cannot be kept beside it: {error}");
                self.ready.degrade("log_keys", why);
            }
            let shown = self.kms.ring.replace(self.store.log());
            shown.map_err(StoreError::Tampered)
        });
        kept.map_err(|e| self.store_failed(&e))
    }
}
