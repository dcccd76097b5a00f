//! Import and export of keys, always wrapped.

use ron_http::Response;
use ron_kernel::Credit;
use ron_proto::kms::{CreateKey, ExportAnswer, ExportKey, ImportKey, KeyState, WRAPPED_BYTES_MAX};
use ron_proto::receipt::LogReceipt;
use ron_proto::values::{Kid, OpId};

use super::plan::{Plan, body_hash};
use super::{Lifecycle, Making, leaf_about, store_down};
use crate::audit::appender::Entry;
use crate::audit::leaf::{Leaf, Op};
use crate::audit::writer::Draft;
use crate::error::{Refusal, Why};
use crate::index::{may_use, not_active};
use crate::keys::{SecretKey, wrapping};
use crate::store::change::Unplanned;
use crate::work::CallContext;
use crate::work::answer::Done;

impl Lifecycle {
    pub(super) fn import(&mut self, call: CallContext, ask: &ImportKey) {
        let making = Making {
            op: Op::Import,
            op_id: ask.op_id,
            body: body_hash(Op::Import, "", ask),
            kid: Kid {
                tenant: ask.tenant.clone(),
                purpose: ask.purpose.clone(),
                alg: ask.alg,
                id: self.new_uuid(),
            },
        };
        let ordered = self.make(call, making, |this, call, kid| {
            this.plan_import(call, ask, kid).map_err(Unplanned::from)
        });
        debug_assert!(
            ordered.is_none(),
            "imported keys are never made by a device"
        );
    }

    fn plan_import(&self, call: &CallContext, ask: &ImportKey, kid: &Kid) -> Result<Plan, Refusal> {
        self.check_making(
            call,
            kid,
            &CreateKey {
                tenant: ask.tenant.clone(),
                purpose: ask.purpose.clone(),
                alg: ask.alg,
                payload: ask.payload.clone(),
                exportable: ask.exportable,
                rotate_every: ask.rotate_every,
                backend: None,
                op_id: ask.op_id,
            },
        )?;
        if ask.wrapped.0.len() > WRAPPED_BYTES_MAX {
            let detail = format!("`wrapped` may have at most {WRAPPED_BYTES_MAX} bytes");
            return Err(Refusal::new(Why::TooLarge, detail));
        }
        let info = wrapping::import_info(&ask.tenant, &ask.purpose, ask.alg);
        let keys = &self.kms.wrapping;
        let raw = keys.open(&ask.wrapping_key, &info, &ask.wrapped.0)?;
        let secret = SecretKey::from_secret(ask.alg, &raw).ok_or_else(|| {
            let detail = "the wrapped bytes are not a key of this algorithm; docs/formats/kms.md says what it must be";
            Refusal::new(Why::WrappedRefused, detail)
        })?;
        let planner = self.planner();
        let payload = ask.payload.clone();
        let made = self
            .store
            .imported_key(kid, payload, planner.now, (secret, &raw));
        let mut plan = Plan::of(made);
        plan.change.meta.exportable = ask.exportable;
        if let Some(every) = ask.rotate_every {
            planner.set_rotation(&mut plan.change.meta, every)?;
        }
        plan.context = Some(format!("wrapped to {}", ask.wrapping_key));
        Ok(plan)
    }

    /// Exports one version. The store is not changed; the answer leaves once its leaf is durable.
    pub(super) fn export(&mut self, call: CallContext, kid: &Kid, ask: &ExportKey) {
        let op_id = ask.op_id.unwrap_or_else(|| OpId(self.new_uuid()));
        let body = body_hash(Op::Export, &kid.to_string(), ask);
        let mut leaf = leaf_about(Op::Export, &call, op_id, &body, kid);
        let credits = match self.kms.admit(&call, 1) {
            Ok(credits) => credits,
            Err(refusal) => return self.kms.refuse_unlogged(call, &refusal),
        };
        match self.wrapped_version(&call, kid, ask, &mut leaf) {
            Err(refusal) => {
                let counted = self.store.key(kid).is_some();
                self.refuse(call, leaf, counted, refusal, credits);
            }
            Ok(answer) => self.send_export(call, answer, leaf, credits),
        }
    }

    fn wrapped_version(
        &self,
        call: &CallContext,
        kid: &Kid,
        ask: &ExportKey,
        leaf: &mut Leaf,
    ) -> Result<ExportAnswer, Refusal> {
        let forbidden = |detail| Err(Refusal::new(Why::ExportForbidden, detail));
        may_use(&call.caller, kid)?;
        let meta = self.store.known(kid)?;
        let version = ask.version.unwrap_or(meta.head);
        leaf.version = Some(version);
        let Some(recipient) = &ask.recipient else {
            return forbidden("keys are exported only wrapped; name a `recipient`");
        };
        if !meta.exportable {
            return forbidden("this key is not exportable");
        }
        if !meta.backend(self.store.backends().local()).is_local() {
            return forbidden("the device that holds this key does not export it");
        }
        if meta.state() == KeyState::Destroyed {
            return Err(not_active(KeyState::Destroyed));
        }
        if !(1..=meta.head).contains(&version) {
            let none = Refusal::new(Why::NotFound, "the key has no such version");
            return Err(none.with_head(meta.head));
        }
        let secret = self.store.reopen(kid, version).map_err(|_| store_down())?;
        let secret =
            secret.ok_or_else(|| Refusal::new(Why::NotFound, "the key has no such version"))?;
        let info = wrapping::export_info(kid, version);
        let wrapped = wrapping::wrap_for(recipient, &info, &secret, self.kms.random.as_ref())?;
        leaf.output_sha256 = Some(hex::encode(ron_crypto::hash::sha256(&wrapped.0)));
        Ok(ExportAnswer {
            key: kid.clone(),
            version,
            wrapped,
            receipt: LogReceipt {
                log: self.kms.origin.clone(),
                index: 0,
            },
        })
    }

    fn send_export(
        &self,
        call: CallContext,
        mut answer: ExportAnswer,
        leaf: Leaf,
        credits: Vec<Credit>,
    ) {
        let timing = self.kms.timing(&call);
        let label = (Op::Export.as_str(), answer.key.alg.as_str());
        let make = move |index: u64| {
            answer.receipt.index = index;
            Response::json(200, &answer)
        };
        let done = Done::Other {
            responder: call.responder,
            make: Box::new(make),
            label,
            timing,
        };
        self.kms.enter(Entry {
            drafts: vec![Draft::new(leaf, true)],
            done: Box::new(done),
            credits,
        });
    }
}
