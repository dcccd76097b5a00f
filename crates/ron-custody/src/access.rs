//! Who may do what with a key: its policy and its grants. Pure: a decision depends on the key, the caller and the facts of the request.
//!
//! ```text
//!  scope, tenant, caveats ──> deny rule matches? ──> refused
//!   (crate::rights)               │ no
//!                                 ├──> no policy, or an allow rule matches ──> allowed
//!                                 └──> a live grant covers it, and its maker may do it ──> allowed, else refused
//! ```
//!
//! **Invariant.** A grant never allows what its maker may not do at the time of use, and no other grant counts for that.

use std::net::IpAddr;

use ron_http::{Principal, PrincipalKind};
use ron_proto::Caveat;
use ron_proto::kms::{ApprovalRule, Callers, GrantDoc, KeyOp, KeyPolicy, PolicyRule, When};
use ron_proto::scope;
use ron_proto::values::{Kid, OpId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::approvals::ApprovalRequests;
use crate::labels::Labels;
use crate::rights::{may_do, may_use};
use crate::{Cause, Refusal};

/// Policy and grants of a key, and what waits for approvals. Stored with its metadata, so that the MAC of the key covers them.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// In the order in which they were made; some may have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<KeyPolicy>,
    /// What waits for approvals, or has them and was not used yet; oldest first.
    #[serde(default, skip_serializing_if = "ApprovalRequests::is_empty")]
    pub requests: ApprovalRequests,
}

/// A grant with the rights that its maker had by its credential.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    pub id: OpId,
    pub grantee: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    pub ops: Vec<KeyOp>,
    #[serde(default, skip_serializing_if = "When::is_always")]
    pub when: When,
    pub maker: Maker,
    pub created: Timestamp,
    /// It allows nothing from this time on.
    pub expires: Timestamp,
}

/// The caller that made a grant, as its credential described it then.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Maker {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    pub passport: bool,
    pub scopes: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caveats: Vec<Caveat>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_prefixes: Option<Vec<String>>,
}

impl Maker {
    /// `None` for a credential whose limits cannot be checked when the grant is used.
    pub fn of(caller: &Principal) -> Option<Self> {
        let lasts = |caveat: &Caveat| {
            matches!(
                caveat,
                Caveat::Key(_)
                    | Caveat::Op(_)
                    | Caveat::Svc(_)
                    | Caveat::Tenant(_)
                    | Caveat::ProofBind(_)
            )
        };
        caller.caveats.iter().all(lasts).then(|| Self {
            name: caller.name.clone(),
            client: caller.client.clone(),
            passport: caller.kind == PrincipalKind::Passport,
            scopes: caller.scopes.to_vec(),
            caveats: caller.caveats.to_vec(),
            key_prefixes: caller.key_prefixes.clone(),
        })
    }

    fn principal(&self, kid: &Kid) -> Principal {
        Principal {
            name: self.name.clone(),
            client: self.client.clone(),
            tenant: kid.tenant.clone(),
            scopes: self.scopes.clone().into(),
            caveats: self.caveats.clone().into(),
            budgets: [].into(),
            kind: if self.passport {
                PrincipalKind::Passport
            } else {
                PrincipalKind::Service
            },
            key_prefixes: self.key_prefixes.clone(),
            jti: None,
        }
    }
}

/// What a rule may ask of a request, beside its caller.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub now: Timestamp,
    pub context: Option<&'a str>,
    /// `None` over a Unix socket.
    pub peer: Option<IpAddr>,
    /// Attestation class of the key.
    pub attestation: &'a str,
}

/// Why a request is allowed or refused; rules by their places in the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    NoPolicy,
    Allow(usize),
    Grant(OpId),
    Deny(usize),
    /// No rule and no grant allows it.
    Nothing,
}

impl Verdict {
    pub const fn is_allowed(self) -> bool {
        matches!(self, Self::NoPolicy | Self::Allow(_) | Self::Grant(_))
    }

    /// The rule or grant.
    pub fn by(self) -> String {
        match self {
            Self::NoPolicy => "no_policy".to_owned(),
            Self::Allow(at) => format!("allow[{at}]"),
            Self::Grant(id) => format!("grant:{id}"),
            Self::Deny(at) => format!("deny[{at}]"),
            Self::Nothing => "nothing".to_owned(),
        }
    }

    /// The same in a sentence.
    pub fn why(self) -> String {
        match self {
            Self::NoPolicy => "the key has no policy: scopes and caveats decide".to_owned(),
            Self::Allow(at) => format!("rule {at} of `allow` matches"),
            Self::Grant(id) => format!("grant {id} covers it, and its maker may do it"),
            Self::Deny(at) => format!("rule {at} of `deny` matches"),
            Self::Nothing => {
                "the key has a policy, and neither a rule of `allow` nor a live grant matches"
                    .to_owned()
            }
        }
    }
}

/// The scope that an operation needs, as its routes do.
pub const fn scope_of(op: KeyOp) -> &'static str {
    match op {
        KeyOp::Read | KeyOp::Attest => scope::KMS_READ,
        KeyOp::Sign | KeyOp::Hmac => scope::KMS_SIGN,
        KeyOp::Verify | KeyOp::HmacVerify => scope::KMS_VERIFY,
        KeyOp::Wrap | KeyOp::Rewrap | KeyOp::Datakey | KeyOp::Derive => scope::KMS_WRAP,
        KeyOp::Unwrap => scope::KMS_UNWRAP,
        KeyOp::Create => scope::KMS_CREATE,
        KeyOp::Rotate => scope::KMS_ROTATE,
        KeyOp::Update
        | KeyOp::Alias
        | KeyOp::Retire
        | KeyOp::Destroy
        | KeyOp::DestroyCancel
        | KeyOp::Import
        | KeyOp::Export
        | KeyOp::Policy
        | KeyOp::Grant => scope::KMS_ADMIN,
    }
}

impl Access {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Which operations need approvals, and whose.
    pub fn approval_rule(&self) -> Option<&ApprovalRule> {
        self.policy.as_ref()?.approvals.as_ref()
    }

    /// What policy and grants say about an operation of the caller, whose credential allows it.
    pub fn decide(
        &self,
        (kid, labels): (&Kid, &Labels),
        caller: &Principal,
        op: KeyOp,
        facts: &Facts<'_>,
    ) -> Verdict {
        let verdict = self.by_policy(caller, op, facts);
        if verdict != Verdict::Nothing || !op.is_grantable() {
            return verdict;
        }
        let covers = |grant: &&Grant| {
            grant.covers(caller, op, facts) && self.maker_may((kid, labels), grant, op, facts)
        };
        match self.grants.iter().find(covers) {
            Some(grant) => Verdict::Grant(grant.id),
            None => Verdict::Nothing,
        }
    }

    /// What the policy alone says.
    pub fn by_policy(&self, caller: &Principal, op: KeyOp, facts: &Facts<'_>) -> Verdict {
        let Some(policy) = self.policy.as_ref().filter(|_| op.is_governed()) else {
            return Verdict::NoPolicy;
        };
        let matching = |rules: &[PolicyRule]| {
            let mut rules = rules.iter();
            rules.position(|rule| matches(rule, caller, op, facts))
        };
        match (matching(&policy.deny), matching(&policy.allow)) {
            (Some(at), _) => Verdict::Deny(at),
            (None, Some(at)) => Verdict::Allow(at),
            (None, None) => Verdict::Nothing,
        }
    }

    fn maker_may(
        &self,
        (kid, labels): (&Kid, &Labels),
        grant: &Grant,
        op: KeyOp,
        facts: &Facts<'_>,
    ) -> bool {
        let maker = grant.maker.principal(kid);
        may_use(&maker, kid, Some(labels)).is_ok()
            && may_do(&maker, op).is_ok()
            && maker.has_scope(scope_of(op))
            && self.by_policy(&maker, op, facts).is_allowed()
    }

    /// Removes the grants that have ended.
    pub fn drop_ended(&mut self, now: Timestamp) {
        self.grants.retain(|grant| grant.is_live(now));
    }
}

impl Grant {
    pub fn is_live(&self, now: Timestamp) -> bool {
        now < self.expires
    }

    fn covers(&self, caller: &Principal, op: KeyOp, facts: &Facts<'_>) -> bool {
        let client = self.client.as_deref();
        self.is_live(facts.now)
            && self.grantee == caller.name
            && client.is_none_or(|client| caller.client.as_deref() == Some(client))
            && self.ops.contains(&op)
            && holds(&self.when, facts)
    }

    pub fn to_doc(&self) -> GrantDoc {
        GrantDoc {
            id: self.id,
            grantee: self.grantee.clone(),
            client: self.client.clone(),
            ops: self.ops.clone(),
            when: self.when.clone(),
            maker: self.maker.name.clone(),
            created: self.created,
            expires: self.expires,
        }
    }
}

/// The refusal of a verdict that allows nothing.
pub fn refusal(verdict: Verdict, op: KeyOp) -> Refusal {
    let detail = format!(
        "the key's policy does not allow `{op}`: {}; ask whoever may change the policy, or for a grant (`ron kms policy explain`)",
        verdict.why()
    );
    Refusal::new(Cause::KeyPolicyDenied, detail)
}

fn matches(rule: &PolicyRule, caller: &Principal, op: KeyOp, facts: &Facts<'_>) -> bool {
    rule.ops.contains(&op) && is_one_of(&rule.who, caller) && holds(&rule.when, facts)
}

fn is_one_of(who: &Callers, caller: &Principal) -> bool {
    let Callers {
        principals,
        clients,
        scopes,
    } = who;
    let client = caller.client.as_deref();
    (principals.is_empty() || is_listed(principals, &caller.name))
        && (clients.is_empty() || client.is_some_and(|client| is_listed(clients, client)))
        && scopes.iter().all(|scope| caller.has_scope(scope))
}

/// Whether a text is in a list of texts and prefixes that end in `*`.
fn is_listed(list: &[String], text: &str) -> bool {
    list.iter().any(|entry| match entry.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix),
        None => entry == text,
    })
}

/// Whether all conditions hold. One about a fact that is not known does not hold.
fn holds(when: &When, facts: &Facts<'_>) -> bool {
    let When {
        context,
        not_before,
        not_after,
        daily,
        peers,
        attestation,
    } = when;
    let minute = (facts.now.0 / 60_000 % (24 * 60)) as u16;
    let of_day = daily.is_none_or(|daily| {
        let (from, until) = (daily.from.minutes(), daily.until.minutes());
        if from <= until {
            (from..until).contains(&minute)
        } else {
            minute >= from || minute < until
        }
    });
    let in_peers = |peer: IpAddr| peers.iter().any(|block| block.contains(peer));
    (context.is_empty() || facts.context.is_some_and(|text| is_listed(context, text)))
        && not_before.is_none_or(|from| facts.now >= from)
        && not_after.is_none_or(|until| facts.now < until)
        && of_day
        && (peers.is_empty() || facts.peer.is_some_and(in_peers))
        && (attestation.is_empty() || is_listed(attestation, facts.attestation))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(name: &str, client: Option<&str>, scopes: &[&str]) -> Principal {
        Principal {
            name: name.to_owned(),
            client: client.map(str::to_owned),
            tenant: "acme".parse().unwrap(),
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
            kind: PrincipalKind::Service,
            ..Principal::public()
        }
    }

    fn kid() -> Kid {
        let name = "acme/app/ed25519/00000000-0000-0000-0000-000000000001";
        name.parse().unwrap()
    }

    fn facts(now: &str) -> Facts<'static> {
        Facts {
            now: now.parse().unwrap(),
            context: Some("invoice-7"),
            peer: Some([10, 0, 0, 9].into()),
            attestation: "none",
        }
    }

    const NOON: &str = "2026-11-28T12:00:00Z";

    fn with_policy(json: &str) -> Access {
        Access {
            policy: Some(serde_json::from_str(json).unwrap_or_else(|e| panic!("{json}: {e}"))),
            ..Access::default()
        }
    }

    #[test]
    fn rules_match_callers_operations_and_conditions() {
        let web = caller("web", Some("cli-1"), &["kms:sign"]);
        let check = |rule: &str, ok: bool| {
            let access = with_policy(&format!(r#"{{"allow": [{rule}]}}"#));
            let verdict = access.by_policy(&web, KeyOp::Sign, &facts(NOON));
            assert_eq!(verdict == Verdict::Allow(0), ok, "{rule}");
            // The same condition in a rule of `deny` refuses what it matches.
            let access = with_policy(&format!(
                r#"{{"allow": [{{"ops": ["sign"]}}], "deny": [{rule}]}}"#
            ));
            let verdict = access.by_policy(&web, KeyOp::Sign, &facts(NOON));
            assert_eq!(verdict == Verdict::Deny(0), ok, "{rule}");
        };
        let when =
            |when: &str, ok| check(&format!(r#"{{"ops": ["sign"], "when": {{{when}}}}}"#), ok);
        let who = |who: &str, ok| check(&format!(r#"{{"ops": ["sign"], "who": {{{who}}}}}"#), ok);
        check(r#"{"ops": ["sign"]}"#, true);
        check(r#"{"ops": ["wrap"]}"#, false);
        who(r#""principals": ["web"]"#, true);
        who(r#""principals": ["we*"]"#, true);
        who(r#""principals": ["we"]"#, false);
        who(r#""clients": ["cli-1"]"#, true);
        who(r#""clients": ["cli-2"]"#, false);
        who(r#""scopes": ["kms:sign"]"#, true);
        who(r#""scopes": ["kms:sign", "kms:wrap"]"#, false);
        who(r#""principals": ["web"], "clients": ["cli-2"]"#, false);
        when(r#""context": ["invoice-*"]"#, true);
        when(r#""context": ["invoice-8"]"#, false);
        when(r#""not_before": "2026-11-28T12:00:00Z""#, true);
        when(r#""not_before": "2026-11-28T12:00:01Z""#, false);
        when(r#""not_after": "2026-11-28T12:00:00Z""#, false);
        when(r#""not_after": "2026-11-28T12:00:01Z""#, true);
        when(r#""daily": {"from": "08:00", "until": "12:01"}"#, true);
        when(r#""daily": {"from": "08:00", "until": "12:00"}"#, false);
        when(r#""daily": {"from": "22:00", "until": "12:01"}"#, true);
        when(r#""daily": {"from": "22:00", "until": "06:00"}"#, false);
        when(r#""peers": ["10.0.0.0/8"]"#, true);
        when(r#""peers": ["192.0.2.0/24"]"#, false);
        when(r#""attestation": ["none"]"#, true);
        when(r#""attestation": ["tpm2-certify"]"#, false);
    }

    #[test]
    fn what_is_not_known_matches_no_condition() {
        let web = caller("web", None, &[]);
        let unknown = Facts {
            context: None,
            peer: None,
            ..facts(NOON)
        };
        for when in [r#""context": ["*"]"#, r#""peers": ["0.0.0.0/0"]"#] {
            let access = with_policy(&format!(
                r#"{{"allow": [{{"ops": ["sign"], "when": {{{when}}}}}]}}"#
            ));
            let verdict = access.by_policy(&web, KeyOp::Sign, &unknown);
            assert_eq!(verdict, Verdict::Nothing, "{when}");
        }
    }

    #[test]
    fn reading_and_verifying_are_not_governed() {
        let access = with_policy(r#"{"allow": []}"#);
        let web = caller("web", None, &[]);
        for op in KeyOp::ALL {
            let verdict = access.by_policy(&web, *op, &facts(NOON));
            assert_eq!(verdict.is_allowed(), !op.is_governed(), "{op}");
        }
    }

    fn grant(maker: &Principal, ops: &[KeyOp]) -> Grant {
        Grant {
            id: OpId(uuid::Uuid::from_u128(5)),
            grantee: "job".to_owned(),
            client: None,
            ops: ops.to_vec(),
            when: When::default(),
            maker: Maker::of(maker).expect("no caveats"),
            created: Timestamp(0),
            expires: "2026-11-28T13:00:00Z".parse().unwrap(),
        }
    }

    #[test]
    fn a_grant_gives_what_its_maker_may_do_at_the_time_of_use() {
        let job = caller("job", None, &["kms:sign"]);
        let decide = |access: &Access, by: &Principal, op, now: &str| {
            access.decide((&kid(), &Labels::default()), by, op, &facts(now))
        };
        let check = |policy: &str, maker: &Principal, ok: bool| {
            let mut access = with_policy(policy);
            access.grants = vec![grant(maker, &[KeyOp::Sign])];
            let verdict = decide(&access, &job, KeyOp::Sign, NOON);
            assert_eq!(verdict.is_allowed(), ok, "{policy}");
            assert!(!decide(&access, &job, KeyOp::Wrap, NOON).is_allowed());
            let late = decide(&access, &job, KeyOp::Sign, "2026-11-28T13:00:00Z");
            assert!(!late.is_allowed(), "it has ended");
            let other = caller("other", None, &["kms:sign"]);
            assert!(!decide(&access, &other, KeyOp::Sign, NOON).is_allowed());
        };
        let web = caller("web", None, &["kms:sign"]);
        let of_web = r#"{"allow": [{"who": {"principals": ["web"]}, "ops": ["sign"]}]}"#;
        check(of_web, &web, true);
        check(of_web, &caller("web", None, &["kms:wrap"]), false);
        check(of_web, &caller("ops", None, &["kms:sign"]), false);
        check(r#"{"allow": []}"#, &web, false);
        let denied = r#"{"allow": [{"who": {"principals": ["web"]}, "ops": ["sign"]}], "deny": [{"who": {"principals": ["job"]}, "ops": ["sign"]}]}"#;
        check(denied, &web, false);
        let maker_denied = denied.replace("\"job\"", "\"web\"");
        check(&maker_denied, &web, false);
        // The maker's own limits count too: its token names another alias.
        let limited = Principal {
            caveats: ["key=alias/other".parse().unwrap()].into(),
            ..web.clone()
        };
        check(of_web, &limited, false);
        let other_ops = Principal {
            caveats: ["op=wrap".parse().unwrap()].into(),
            ..web.clone()
        };
        check(of_web, &other_ops, false);
        let unchecked = Principal {
            caveats: ["ip_cidr=10.0.0.0/8".parse().unwrap()].into(),
            ..web
        };
        assert_eq!(Maker::of(&unchecked), None);
    }

    #[test]
    fn a_grant_is_not_granted_on() {
        // The first grant lets `web` sign; a grant that `web` makes rests on nothing but that.
        let ops = caller("ops", None, &["kms:sign"]);
        let mut first = grant(&ops, &[KeyOp::Sign]);
        first.grantee = "web".to_owned();
        let second = grant(&caller("web", None, &["kms:sign"]), &[KeyOp::Sign]);
        let mut access =
            with_policy(r#"{"allow": [{"who": {"principals": ["ops"]}, "ops": ["sign"]}]}"#);
        access.grants = vec![first, second];
        let decide = |name: &str| {
            let by = caller(name, None, &["kms:sign"]);
            let of = (&kid(), &Labels::default());
            access
                .decide(of, &by, KeyOp::Sign, &facts(NOON))
                .is_allowed()
        };
        assert!(decide("web"));
        assert!(!decide("job"));
    }
}
