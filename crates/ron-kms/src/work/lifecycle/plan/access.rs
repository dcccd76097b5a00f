//! What policies and grants allow, and their changes as plans.

use std::net::IpAddr;

use ron_crypto::hash::sha256;
use ron_custody::access::{Access, Facts, Grant, Maker, refusal, scope_of};
use ron_custody::rights::may_use;
use ron_custody::store::{Change, Meta};
use ron_custody::{Cause, Refusal};
use ron_proto::jcs;
use ron_proto::kms::{GRANT_S_MAX, GRANTS_MAX, KeyOp, KeyPolicy, MakeGrant, PutKeyPolicy};
use ron_proto::scope;
use ron_proto::values::{Kid, OpId, Timestamp};

use super::{By, Plan, Planner};

impl Planner<'_> {
    /// What a key's policy may ask of a change.
    fn facts(&self, peer: Option<IpAddr>, meta: &Meta) -> Facts<'static> {
        let backends = self.store.backends();
        Facts {
            now: self.now,
            context: None,
            peer,
            attestation: backends
                .attestation(&meta.backend(backends.local()))
                .as_str(),
        }
    }

    /// Whether the credential, policy and grants allow an operation on a key that exists.
    pub fn allows(&self, by: By<'_>, kid: &Kid, op: KeyOp) -> Result<(), Refusal> {
        let meta = self.store.known(kid)?;
        may_use(by.caller, kid, Some(&meta.labels))?;
        let facts = self.facts(by.peer, meta);
        match meta
            .access
            .decide((kid, &meta.labels), by.caller, op, &facts)
        {
            verdict if verdict.is_allowed() => Ok(()),
            verdict => Err(refusal(verdict, op)),
        }
    }

    pub(super) fn plan_policy(
        &self,
        by: By<'_>,
        kid: &Kid,
        mut meta: Meta,
        ask: &PutKeyPolicy,
    ) -> Result<Plan, Refusal> {
        let faults = ask.policy.as_ref().map(KeyPolicy::faults);
        if let Some(fault) = faults.unwrap_or_default().first() {
            return Err(Refusal::new(
                Cause::BadRequest,
                format!("`policy`: {fault}"),
            ));
        }
        let new = Access {
            policy: ask.policy.clone(),
            ..Access::default()
        };
        // Of a policy that nobody can change again, a mistake would stay for good.
        let facts = self.facts(by.peer, &meta);
        if !new.by_policy(by.caller, KeyOp::Policy, &facts).is_allowed() {
            let detail = "nothing was done: the new policy would not allow you to change it again; add a rule that allows you `policy`";
            return Err(Refusal::new(Cause::KeyPolicyDenied, detail));
        }
        let context = match &ask.policy {
            Some(policy) => {
                let bytes = jcs::to_vec(policy).expect("a policy holds strings and integers");
                format!("sha256={}", hex::encode(sha256(&bytes)))
            }
            None => "removed".to_owned(),
        };
        meta.access.policy.clone_from(&ask.policy);
        // What waits was asked under the rule before.
        meta.access.requests.clear();
        if meta.access.policy.is_none() {
            // They would come back to life with a later policy, which may not mean them.
            meta.access.grants.clear();
        }
        Ok(Plan {
            change: Change::of(kid, meta),
            context: Some(context),
        })
    }

    pub(super) fn plan_grant(
        &self,
        by: By<'_>,
        kid: &Kid,
        mut meta: Meta,
        ask: &MakeGrant,
    ) -> Result<Plan, Refusal> {
        let (id, now) = (by.op_id, self.now);
        let bad = |detail: String| Err(Refusal::new(Cause::BadRequest, detail));
        if meta.access.policy.is_none() {
            return bad(
                "the key has no policy, so its scopes alone decide and a grant would give nothing"
                    .into(),
            );
        }
        if let Some(op) = ask.ops.iter().find(|op| !op.is_grantable()) {
            return bad(format!(
                "`{op}` is never granted; grants are for uses of a key"
            ));
        }
        if ask.ops.is_empty() || ask.grantee.is_empty() || ask.grantee.len() > 256 {
            return bad("name a `grantee` and the `ops` that it may do".into());
        }
        if let Some(fault) = ask.when.faults().first() {
            return bad(format!("`when`: {fault}"));
        }
        if ask.lifetime.as_s() > GRANT_S_MAX {
            return bad("`lifetime` is at most 90d".into());
        }
        for op in &ask.ops {
            if !by.caller.has_scope(scope_of(*op)) {
                let detail = format!(
                    "you cannot grant `{op}` without its scope, {}",
                    scope_of(*op)
                );
                return Err(Refusal::new(Cause::Forbidden, detail));
            }
        }
        let maker = Maker::of(by.caller).ok_or_else(|| {
            let detail = "your token has caveats that cannot be checked when the grant is used; use one without caveats, or with `key` and `op` alone";
            Refusal::new(Cause::Forbidden, detail)
        })?;
        meta.access.drop_ended(now);
        if meta.access.grants.len() >= GRANTS_MAX {
            return bad(format!(
                "a key has at most {GRANTS_MAX} live grants; retire one first"
            ));
        }
        let expires = Timestamp(now.0 + ask.lifetime.as_ms());
        meta.access.grants.push(Grant {
            id,
            grantee: ask.grantee.clone(),
            client: ask.client.clone(),
            ops: ask.ops.clone(),
            when: ask.when.clone(),
            maker,
            created: now,
            expires,
        });
        let names: Vec<_> = ask.ops.iter().map(|op| op.as_str()).collect();
        let context = format!(
            "grant={id} grantee={} ops={} expires={expires}",
            ask.grantee,
            names.join(",")
        );
        Ok(Plan {
            change: Change::of(kid, meta),
            context: Some(context),
        })
    }

    pub(super) fn plan_retire_grant(
        &self,
        by: By<'_>,
        kid: &Kid,
        mut meta: Meta,
        id: OpId,
    ) -> Result<Plan, Refusal> {
        let now = self.now;
        let mut live = meta.access.grants.iter().filter(|grant| grant.is_live(now));
        let Some(grant) = live.find(|grant| grant.id == id) else {
            let detail = "the key has no such grant, or it has ended";
            return Err(Refusal::new(Cause::NotFound, detail));
        };
        let caller = by.caller;
        let is_party = |name: &str, client: Option<&str>| {
            caller.name == name
                && client.is_none_or(|client| caller.client.as_deref() == Some(client))
        };
        let maker = &grant.maker;
        if !is_party(&grant.grantee, grant.client.as_deref())
            && !is_party(&maker.name, maker.client.as_deref())
            && !caller.has_scope(scope::KMS_ADMIN)
        {
            let detail = "a grant is retired by its grantee, its maker, or with kms:admin";
            return Err(Refusal::new(Cause::Forbidden, detail));
        }
        meta.access
            .grants
            .retain(|grant| grant.id != id && grant.is_live(now));
        Ok(Plan {
            change: Change::of(kid, meta),
            context: Some(format!("grant={id}")),
        })
    }
}
