//! Import and export of keys, always wrapped.

use ron_crypto::SecretBytes;
use ron_custody::index::not_active;
use ron_custody::keys::{SecretKey, wrapping};
use ron_custody::store::{PlanError, StoreError};
use ron_custody::{Cause, Refusal};
use ron_http::Response;
use ron_proto::kms::{
    Bytes, ExportAnswer, ExportKey, GatedOp, ImportKey, KeyOp, KeyState, WRAPPED_BYTES_MAX,
};
use ron_proto::values::{Kid, OpId, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::plan::{By, Plan, approved};
use super::{Change, Lifecycle, draft_of, store_down};
use crate::audit::entry::Logged;
use crate::audit::leaf::{Draft, Op};
use crate::work::key_request::body_hash;
use crate::work::{CallContext, Purposes};

impl Lifecycle {
    /// The secret bytes of a version, from its sealed record.
    pub(super) fn reopen(
        &mut self,
        kid: &Kid,
        number: u32,
    ) -> Result<Option<SecretBytes>, Refusal> {
        self.store.reopen(kid, number).map_err(|e| match e {
            StoreError::Sealed(_) => Refusal::quarantined(kid, number),
            _ => store_down(),
        })
    }

    pub(super) fn import(&mut self, call: CallContext, ask: &ImportKey, purposes: Purposes) {
        let change = Change {
            op: Op::Import,
            op_id: ask.op_id,
            body: body_hash(Op::Import, "", ask),
        };
        let kid = ask.into.clone().unwrap_or_else(|| Kid {
            tenant: ask.tenant.clone(),
            purpose: ask.purpose.clone(),
            alg: ask.alg,
            id: self.new_uuid(),
        });
        let ordered = self.perform(call, change, &kid, |this, call| {
            if purposes == Purposes::Single {
                this.is_free(&kid)?;
            }
            this.plan_import(call, ask, &kid).map_err(PlanError::from)
        });
        debug_assert!(
            ordered.is_none(),
            "imported keys are never made by a device"
        );
    }

    fn plan_import(&self, call: &CallContext, ask: &ImportKey, kid: &Kid) -> Result<Plan, Refusal> {
        self.check_new_key(call, kid, &ask.payload)?;
        if ask.into.is_some() {
            self.authorise(call, kid, Some(KeyOp::Import))?;
        }
        if ask.wrapped.0.len() > WRAPPED_BYTES_MAX {
            let detail = format!("`wrapped` may have at most {WRAPPED_BYTES_MAX} bytes");
            return Err(Refusal::new(Cause::TooLarge, detail));
        }
        let raw = if let Ok(by) = ask.wrapping_key.parse::<Kid>() {
            self.unwrapped(call, &by, ask)?
        } else {
            let info = wrapping::import_info(&ask.tenant, &ask.purpose, ask.alg);
            let keys = &self.kms.wrapping;
            keys.open(&ask.wrapping_key, &info, &ask.wrapped.0)?
        };
        let secret = SecretKey::from_secret(ask.alg, &raw).ok_or_else(|| {
            let detail = "the wrapped bytes are not a key of this algorithm; docs/formats/kms.md says what it must be";
            Refusal::new(Cause::WrappedRefused, detail)
        })?;
        let planner = self.planner();
        if ask.into.is_some() {
            let version = (secret, &raw);
            return planner.imported_version(kid, version, &ask.wrapping_key);
        }
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

    /// A key that is wrapped to a key of this service, in the form of Vault and AWS.
    fn unwrapped(
        &self,
        call: &CallContext,
        by: &Kid,
        ask: &ImportKey,
    ) -> Result<SecretBytes, Refusal> {
        let refuse = |detail| Refusal::new(Cause::WrappedRefused, detail);
        let index = self.kms.index.load();
        let key = index.find(&call.caller, by)?;
        // Not `authorise`: an alias of the request names the key to import into.
        let asked = By::of(call, OpId(Uuid::nil()));
        self.planner().allows(asked, by, KeyOp::Import)?;
        if !by.alg.is_oaep() {
            return Err(refuse(
                "a wrapping key of the service is of an rsa-oaep algorithm",
            ));
        }
        let versions = key.secrets.range(key.min_verify..=key.head).rev();
        for (_, secret) in versions {
            if let SecretKey::Oaep(key) = secret.open()?.local()?
                && let Some(raw) = wrapping::open_oaep_kwp(key, &ask.wrapped.0)
            {
                return wrapping::plain_form(ask.alg, raw).ok_or_else(|| {
                    refuse(
                        "an Ed25519 key must be PKCS#8 with its seed alone, as OpenSSL writes it",
                    )
                });
            }
        }
        Err(refuse(
            "it was wrapped to another key or in another form, or was changed in transit",
        ))
    }

    /// Exports one version. The store is not changed; the answer leaves once its leaf is durable.
    pub(super) fn export(&mut self, call: CallContext, kid: &Kid, ask: &ExportKey) {
        let change = Change {
            op: Op::Export,
            op_id: ask.op_id.unwrap_or_else(|| OpId(self.new_uuid())),
            body: body_hash(Op::Export, &kid.to_string(), ask),
        };
        let mut draft = draft_of(change, &call).about(kid);
        draft.counted = self.store.key(kid).is_some();
        let credits = match self.kms.admit(&call, 1) {
            Ok(credits) => credits,
            Err(refusal) => return self.kms.refuse_unlogged(call, &refusal),
        };
        let outcome = self.wrapped_version(&call, kid, (ask, change), &mut draft);
        let basis = outcome.is_ok().then(|| self.kms.basis(kid)).flatten();
        self.kms
            .log_answer(call, (outcome, basis), draft, credits, |answer| {
                Ok(Response::json(200, &ExportAnswer::from(answer?)))
            });
    }

    fn wrapped_version(
        &mut self,
        call: &CallContext,
        kid: &Kid,
        (ask, change): (&ExportKey, Change),
        draft: &mut Draft,
    ) -> Result<ExportOutput, Refusal> {
        let forbidden = |detail| Err(Refusal::new(Cause::ExportForbidden, detail));
        self.authorise(call, kid, Some(KeyOp::Export))?;
        let meta = self.store.known(kid)?;
        let by = By::of(call, change.op_id);
        let now = Timestamp(self.kms.clock.unix_ms());
        draft.context = approved(&meta.access, (GatedOp::Export, by, now), &change.body)?;
        let version = ask.version.unwrap_or(meta.head);
        draft.version = Some(version);
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
            let none = Refusal::new(Cause::NotFound, "the key has no such version");
            return Err(none.with_head(meta.head));
        }
        if version < meta.min_available {
            let gone = "the secret of this version is destroyed";
            return Err(Refusal::new(Cause::KeyNotActive, gone).with_head(meta.head));
        }
        let secret = self.reopen(kid, version)?;
        let secret =
            secret.ok_or_else(|| Refusal::new(Cause::NotFound, "the key has no such version"))?;
        let info = wrapping::export_info(kid, version);
        let wrapped = wrapping::wrap_for(recipient, &info, &secret, self.kms.random.as_ref())?;
        draft.output_sha256 = Some(hex::encode(ron_crypto::hash::sha256(&wrapped.0)));
        Ok(ExportOutput {
            key: kid.clone(),
            version,
            wrapped,
        })
    }
}

/// An export, without the receipt of its leaf.
#[derive(Serialize, Deserialize)]
struct ExportOutput {
    key: Kid,
    version: u32,
    wrapped: Bytes,
}

impl From<Logged<ExportOutput>> for ExportAnswer {
    fn from(logged: Logged<ExportOutput>) -> Self {
        let (made, receipt) = logged.into_parts();
        Self {
            key: made.key,
            version: made.version,
            wrapped: made.wrapped,
            receipt,
        }
    }
}
