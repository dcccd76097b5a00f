//! The issuer policy, and its decision about one token. The issuer grants by it and the KMS signs by
//! it, so both use what stands here.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::iter::successors;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::places::Places;
use super::{Actor, ExternalIssuer, ExternalSubject, SUBJECT_BYTES_MAX, TTL_S_MAX, TokenClaims};
use crate::caveat::{Caveat, from_detail};
use crate::scope;
use crate::values::Tenant;

/// The issuer policy: which client may obtain which tokens. Signed, kind `issuer`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssuerPolicy {
    /// Increases with every change; an older version is rejected.
    pub version: u64,
    /// The services that are not of this installation. Its own need no entry: their scopes are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audiences: Vec<Audience>,
    /// Issuers of others whose tokens are credentials of clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub issuers: Vec<ExternalIssuer>,
    /// One rule per client.
    pub clients: Vec<ClientRule>,
    /// Makes the look-ups of clients and audiences fast; no part of the document.
    #[serde(skip)]
    #[schemars(skip)]
    pub places: PolicyPlaces,
}

/// Where a policy has its clients and audiences.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyPlaces {
    clients: Places,
    audiences: Places,
}

/// The services of an installation, by the `aud` of their tokens: the names of their binaries.
pub const OWN_AUDIENCES: [&str; 6] = [
    "ron-kms",
    "svc-passport",
    "ron-ledger",
    "svc-wallet",
    "svc-rewarder",
    "svc-admin",
];

/// A service for which the issuer makes tokens, and what holds for the tokens of every client there.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Audience {
    /// The `aud` of its tokens: a name or a URL, 1 to 256 printable ASCII characters without spaces.
    pub audience: String,
    /// The scopes that the service knows; the rules of clients name some of them.
    pub scopes: Vec<String>,
    /// Algorithm of its tokens where a client's rule names none; `EdDSA` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alg: Option<String>,
    /// Maximum lifetime of its tokens in seconds, beside that of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ttl_s: Option<u64>,
    /// Caveats of all its tokens, beside those of the client's rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caveats: Vec<String>,
}

/// What a client gets at an audience: its own rule, within what the policy says of the audience.
#[derive(Clone, Debug)]
pub struct Terms<'a> {
    /// The client's rule, with the algorithm and the caveats of the audience.
    pub rule: Cow<'a, AudienceRule>,
    /// Maximum lifetime in seconds.
    pub ttl_s_max: u64,
}

/// The tokens one client may obtain.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientRule {
    /// `client_id` of the OAuth client, or the name of a principal with `passport:issue`.
    pub client_id: String,
    /// Tenant of the client's tokens.
    pub tenant: Tenant,
    /// Subjects the client may name: exact, or a prefix ending in `*`. Its own `client_id` is
    /// always allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<String>,
    /// Allowed audiences and their scopes.
    pub audiences: Vec<AudienceRule>,
    /// Maximum lifetime in seconds, at most one hour.
    pub max_ttl_s: u64,
    /// Whether the client may exchange tokens issued to other clients (delegation, RFC 8693); its
    /// own it may always exchange.
    #[serde(default, skip_serializing_if = "is_false")]
    pub exchange: bool,
    /// Tokens of other issuers with which the client proves itself (RFC 7523, RFC 8693).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub external: Vec<ExternalSubject>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
pub(super) const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Scopes of one audience.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AudienceRule {
    /// A service of this installation by its name, or one of the policy's `audiences`.
    pub audience: String,
    /// Scopes that may be granted, each a scope of that service.
    pub scopes: Vec<String>,
    /// Default algorithm: that of the audience or `EdDSA` (when absent), `ES256`, or with a post-quantum key `ML-DSA-65`
    /// (-44, -87) or `EdDSA+ML-DSA-65`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alg: Option<String>,
    /// Further algorithms that callers may request with `accept_algs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub algs: Vec<String>,
    /// Caveats added to every token of this audience.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caveats: Vec<String>,
    /// Other audiences whose tokens the client may exchange for one of this audience: its own tokens, and with `exchange`
    /// those of others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<String>,
}

/// The part of a token that the issuer policy in force does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPermitted {
    #[error("it has no rule for this `client_id`")]
    Client,
    #[error("the client's tokens are of another `tenant`")]
    Tenant,
    #[error("the client may not name this `sub`")]
    Subject,
    #[error("the client gets no tokens for this `aud`")]
    Audience,
    #[error("the client does not get every `scope` of the token at this audience")]
    Scope,
    #[error("the client's tokens may not live that long")]
    Lifetime,
    #[error("a caveat that the audience's rule prescribes is missing in the token")]
    CaveatMissing,
    #[error("`authorization_details` must be one object of type ron, or absent")]
    Details,
    #[error("`act` names no client that may exchange the tokens of others and got this one")]
    Actor,
    #[error("no client may have the token that this one was exchanged from")]
    Holder,
}

impl IssuerPolicy {
    /// The rule of a client.
    pub fn rule(&self, client_id: &str) -> Option<&ClientRule> {
        let clients = &self.places.clients;
        clients.find(&self.clients, client_id, |rule| &rule.client_id)
    }

    /// The entry of a service that is not of this installation.
    pub fn declared(&self, audience: &str) -> Option<&Audience> {
        let audiences = &self.places.audiences;
        audiences.find(&self.audiences, audience, |one| &one.audience)
    }

    /// The scopes that a service knows: those of its entry, or of this installation's services.
    pub fn scopes_of(&self, audience: &str) -> Vec<&str> {
        match self.declared(audience) {
            Some(declared) => declared.scopes.iter().map(String::as_str).collect(),
            None => scope::ALL.to_vec(),
        }
    }

    /// What the client of a rule gets at an audience; `None` when it gets no tokens for it.
    pub fn terms<'a>(&'a self, client: &'a ClientRule, audience: &str) -> Option<Terms<'a>> {
        let rule = client.audience(audience)?;
        let ttl_s_max = client.ttl_s_max();
        let Some(declared) = self.declared(audience) else {
            return Some(Terms {
                rule: Cow::Borrowed(rule),
                ttl_s_max,
            });
        };
        let mut merged = rule.clone();
        merged.alg = merged.alg.or_else(|| declared.alg.clone());
        merged.caveats.clone_from(&declared.caveats);
        let of_rule = rule.caveats.iter();
        merged
            .caveats
            .extend(of_rule.filter(|c| !declared.caveats.contains(c)).cloned());
        Some(Terms {
            rule: Cow::Owned(merged),
            ttl_s_max: ttl_s_max.min(declared.max_ttl_s.unwrap_or(TTL_S_MAX)),
        })
    }

    /// Whether the policy allows a token with these claims. Issuer, key, algorithm, time of issue and
    /// revocation are not its business.
    ///
    /// # Errors
    /// The first thing that it does not allow.
    pub fn permits(&self, token: &TokenClaims) -> Result<(), NotPermitted> {
        let caveats = match token.authorization_details.as_slice() {
            [] => Vec::new(),
            [detail] => from_detail(detail).map_err(|_| NotPermitted::Details)?,
            _ => return Err(NotPermitted::Details),
        };
        let rule = self.rule(&token.client_id).ok_or(NotPermitted::Client)?;
        self.permits_rights(rule, token, &caveats)?;
        let Some(actor) = &token.act else {
            return rule.permits_holder(token);
        };
        // The client acts for the holder of the token that it has exchanged. That token is not known here, but
        // some client must be allowed to have it.
        if !rule.exchange || actor.sub != token.client_id {
            return Err(NotPermitted::Actor);
        }
        let of_holder = |rule: &ClientRule| {
            rule.permits_holder(token).is_ok() && self.permits_rights(rule, token, &caveats).is_ok()
        };
        if self.clients.iter().any(of_holder) || self.delegates(actor, token, &caveats) {
            Ok(())
        } else {
            Err(NotPermitted::Holder)
        }
    }

    /// Whether the actors, the earliest first, may have exchanged some client's token for this holder, of another audience,
    /// for one of this audience, and one of them is allowed the token's rights there.
    fn delegates(&self, last: &Actor, token: &TokenClaims, caveats: &[Caveat]) -> bool {
        let holders = self.clients.iter();
        let holders = holders.filter(|rule| rule.permits_holder(token).is_ok());
        let mut reached: BTreeSet<&str> = holders.flat_map(ClientRule::names).collect();
        let mut actors: Vec<&Actor> = successors(Some(last), |one| one.act.as_deref()).collect();
        actors.reverse();
        let mut allowed = false;
        for actor in actors {
            let rule = self.rule(&actor.sub).filter(|rule| rule.exchange);
            let Some(rule) = rule else {
                return false;
            };
            // A client may exchange its own token again, so one audience of its rule can lead to the next.
            while let Some(next) = rule
                .audiences
                .iter()
                .find(|next| !reached.contains(next.audience.as_str()) && next.takes_any(&reached))
            {
                reached.insert(&next.audience);
            }
            let here = rule.audience(&token.aud);
            allowed |= here.is_some_and(|here| here.takes_any(&reached))
                && self.permits_rights(rule, token, caveats).is_ok();
        }
        allowed
    }

    /// Audience, scopes, lifetime and prescribed caveats.
    fn permits_rights(
        &self,
        client: &ClientRule,
        token: &TokenClaims,
        caveats: &[Caveat],
    ) -> Result<(), NotPermitted> {
        let terms = self.terms(client, &token.aud);
        let Terms { rule, ttl_s_max } = terms.ok_or(NotPermitted::Audience)?;
        let mut scopes = token.scope.split(' ').filter(|scope| !scope.is_empty());
        if !scopes.all(|scope| rule.allows(scope)) {
            return Err(NotPermitted::Scope);
        }
        let lives = token.exp.checked_sub(token.iat);
        if lives.is_none_or(|s| s > ttl_s_max) {
            return Err(NotPermitted::Lifetime);
        }
        let bound_to = token.cnf.as_ref().and_then(|cnf| cnf.jkt.as_ref());
        let has = |text: &String| match text.parse() {
            Ok(Caveat::ProofBind(key)) => bound_to == Some(&key),
            Ok(caveat) => caveats.contains(&caveat),
            Err(_) => false,
        };
        if rule.caveats.iter().all(has) {
            Ok(())
        } else {
            Err(NotPermitted::CaveatMissing)
        }
    }
}

impl ClientRule {
    /// The audience of a request: the one that it names, or the only one that the client has.
    pub fn asked<'a>(&'a self, named: Option<&'a str>) -> Option<&'a str> {
        match (named, self.audiences.as_slice()) {
            (Some(name), _) => Some(name),
            (None, [only]) => Some(&only.audience),
            (None, _) => None,
        }
    }

    /// The rule for an audience.
    pub fn audience(&self, name: &str) -> Option<&AudienceRule> {
        self.audiences.iter().find(|rule| rule.audience == name)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.audiences.iter().map(|rule| rule.audience.as_str())
    }

    /// Whether the client may have tokens about this subject.
    pub fn may_name(&self, subject: &str) -> bool {
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => subject.starts_with(prefix),
            None => pattern == subject,
        };
        subject == self.client_id || self.subjects.iter().any(matches)
    }

    /// Maximum lifetime of the client's tokens, in seconds.
    pub fn ttl_s_max(&self) -> u64 {
        self.max_ttl_s.min(TTL_S_MAX)
    }

    /// Tenant and subject.
    fn permits_holder(&self, token: &TokenClaims) -> Result<(), NotPermitted> {
        if token.tenant != self.tenant {
            return Err(NotPermitted::Tenant);
        }
        if is_subject(&token.sub) && self.may_name(&token.sub) {
            Ok(())
        } else {
            Err(NotPermitted::Subject)
        }
    }
}

impl AudienceRule {
    /// Whether the client may exchange tokens of another audience for tokens of this one.
    pub fn takes(&self, other: &str) -> bool {
        self.from.iter().any(|from| from == other)
    }

    fn takes_any(&self, others: &BTreeSet<&str>) -> bool {
        self.from.iter().any(|from| others.contains(from.as_str()))
    }

    /// Whether tokens for this audience may have the scope.
    pub fn allows(&self, scope: &str) -> bool {
        self.scopes.iter().any(|allowed| allowed == scope)
    }
}

/// Whether a text may be the subject of a token: 1 to 256 printable ASCII characters without spaces.
pub fn is_subject(text: &str) -> bool {
    (1..=SUBJECT_BYTES_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::caveat::to_detail;
    use crate::passport::{Actor, Confirmation};

    fn policy() -> IssuerPolicy {
        let policy = json!({"version": 1, "clients": [
            {"client_id": "shop", "tenant": "t1", "subjects": ["user:*", "till"], "max_ttl_s": 600, "audiences": [
                {"audience": "svc-wallet", "scopes": ["wallet:read", "wallet:transfer"], "caveats": ["asset=rpl"]},
                {"audience": "api", "scopes": ["read"]},
                {"audience": "bound", "scopes": [], "caveats": ["proof.bind=0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"]}]},
            {"client_id": "gateway", "tenant": "t2", "max_ttl_s": 900, "exchange": true, "audiences": [
                {"audience": "svc-wallet", "scopes": ["wallet:read", "wallet:issue"]},
                {"audience": "own", "scopes": ["x"]}]},
            {"client_id": "plain", "tenant": "t1", "max_ttl_s": 600, "audiences": [
                {"audience": "svc-wallet", "scopes": ["wallet:read"]}]}
        ]});
        serde_json::from_value(policy).expect("a policy")
    }

    fn token() -> TokenClaims {
        let caveats = ["asset=rpl".parse().expect("a caveat")];
        TokenClaims {
            iss: "i".into(),
            sub: "user:7".into(),
            aud: "svc-wallet".into(),
            iat: 1_000,
            nbf: 1_000,
            exp: 1_600,
            jti: "j".into(),
            client_id: "shop".into(),
            tenant: "t1".parse().expect("a tenant"),
            scope: "wallet:read".into(),
            ron_epoch: 1,
            authorization_details: vec![to_detail(&caveats)],
            cnf: None,
            act: None,
            ron_from: Vec::new(),
            status: None,
        }
    }

    fn check(want: Result<(), NotPermitted>, change: impl Fn(&mut TokenClaims)) {
        let mut token = token();
        change(&mut token);
        assert_eq!(policy().permits(&token), want, "{token:?}");
    }

    #[test]
    fn a_token_is_within_one_rule_in_everything() {
        use NotPermitted as No;
        check(Ok(()), |_| ());
        check(Ok(()), |t| t.scope = "wallet:transfer wallet:read".into());
        check(Ok(()), |t| t.scope.clear());
        check(Ok(()), |t| t.sub = "shop".into());
        check(Ok(()), |t| t.sub = "till".into());
        check(Err(No::Client), |t| t.client_id = "nobody".into());
        check(Err(No::Tenant), |t| t.client_id = "gateway".into());
        check(Err(No::Audience), |t| t.aud = "svc-admin".into());
        check(Err(No::Scope), |t| {
            t.scope = "wallet:read wallet:issue".into();
        });
        check(Err(No::Scope), |t| {
            t.scope = "wallet:read\twallet:issue".into();
        });
        check(Err(No::Scope), |t| t.aud = "api".into());
        check(Err(No::Tenant), |t| {
            t.tenant = "t2".parse().expect("a tenant");
        });
        for sub in ["user", "gateway", "", "user:\n", "user: 7"] {
            check(Err(No::Subject), |t| t.sub = sub.into());
        }
        check(Err(No::Lifetime), |t| t.exp = 1_601);
        check(Err(No::Lifetime), |t| t.exp = 999);
        check(Err(No::CaveatMissing), |t| t.authorization_details.clear());
        check(Err(No::CaveatMissing), |t| {
            t.authorization_details = vec![json!({"type": "ron", "asset": "eth"})];
        });
        let foreign = json!({"type": "payment", "amount": "1"});
        check(Err(No::Details), |t| {
            t.authorization_details = vec![foreign.clone()];
        });
        check(Err(No::Details), |t| {
            t.authorization_details.push(foreign.clone());
        });
    }

    #[test]
    fn a_prescribed_binding_is_the_claim_cnf() {
        let bound = |jkt: Option<&str>| {
            let jkt = jkt.map(str::to_owned);
            move |t: &mut TokenClaims| {
                (t.aud, t.scope) = ("bound".into(), String::new());
                t.cnf = Confirmation::of(jkt.clone(), None);
            }
        };
        let key = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I";
        check(Ok(()), bound(Some(key)));
        check(Err(NotPermitted::CaveatMissing), bound(Some("other")));
        check(Err(NotPermitted::CaveatMissing), bound(None));
    }

    #[test]
    fn an_exchanged_token_is_within_the_rules_of_its_actor_and_of_a_holder() {
        use NotPermitted as No;
        let acts = |client: &'static str, actor: &'static str| {
            move |t: &mut TokenClaims| {
                t.client_id = client.into();
                let sub = actor.to_owned();
                t.act = Some(Actor { sub, act: None });
            }
        };
        let gateway = acts("gateway", "gateway");
        check(Ok(()), gateway);
        check(Err(No::Actor), acts("plain", "plain"));
        check(Err(No::Actor), acts("gateway", "shop"));
        check(Err(No::Scope), |t| {
            gateway(t);
            t.scope = "wallet:transfer".into();
        });
        // In the actor's rule, but in no rule of a holder.
        check(Err(No::Holder), |t| {
            gateway(t);
            t.scope = "wallet:issue".into();
        });
        check(Err(No::Holder), |t| {
            gateway(t);
            t.sub = "other".into();
        });
        check(Err(No::Holder), |t| {
            gateway(t);
            t.tenant = "t3".parse().expect("a tenant");
        });
        check(Err(No::Holder), |t| {
            gateway(t);
            t.exp = 1_601;
        });
        check(Err(No::Holder), |t| {
            gateway(t);
            t.authorization_details.clear();
        });
    }

    #[test]
    fn a_token_for_another_audience_is_within_the_rules_of_its_actors() {
        use NotPermitted as No;
        let mut policy = policy();
        let gateway = &mut policy.clients[1];
        gateway.audiences[1].from = vec!["api".to_owned()];
        let clerk = json!({"client_id": "clerk", "tenant": "t9", "max_ttl_s": 600, "exchange": true, "audiences": [
            {"audience": "books", "scopes": ["post", "read"], "from": ["own"]}, {"audience": "own", "scopes": ["x", "y"]}]});
        let reader = json!({"client_id": "reader", "tenant": "t9", "max_ttl_s": 600, "exchange": true, "audiences": [
            {"audience": "books", "scopes": ["read", "audit"]}]});
        for one in [clerk, reader] {
            let one = serde_json::from_value(one).expect("a rule");
            policy.clients.push(one);
        }
        let ask = |aud: &str, scope: &str, actors: &[&str]| {
            let line = |act: Option<Actor>, sub: &&str| {
                let (sub, act) = ((*sub).to_owned(), act.map(Box::new));
                Some(Actor { sub, act })
            };
            let mut token = token();
            token.aud = aud.into();
            token.scope = scope.into();
            token.client_id = actors.last().copied().unwrap_or("shop").into();
            token.act = actors.iter().fold(None, line);
            policy.permits(&token)
        };
        assert_eq!(ask("own", "x", &["gateway"]), Ok(()));
        assert_eq!(ask("own", "x y", &["gateway"]), Err(No::Scope));
        assert_eq!(ask("own", "x", &[]), Err(No::Audience));
        assert_eq!(ask("own", "x", &["clerk"]), Err(No::Holder), "no `from`");
        let both = ["gateway", "clerk"];
        assert_eq!(ask("books", "post", &both), Ok(()));
        assert_eq!(ask("books", "post", &["clerk"]), Err(No::Holder));
        let reversed = ["clerk", "gateway"];
        assert_eq!(ask("books", "post", &reversed), Err(No::Audience));
        let three = ["gateway", "clerk", "reader"];
        assert_eq!(ask("books", "read", &three), Ok(()));
        assert_eq!(ask("books", "audit", &three), Err(No::Holder));
        assert_eq!(
            ask("own", "y", &["gateway", "clerk"]),
            Err(No::Holder),
            "more than the gateway had"
        );
        let unknown = ["nobody", "gateway"];
        assert_eq!(ask("own", "x", &unknown), Err(No::Holder));
    }
}
