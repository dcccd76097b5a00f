//! Issuers of others whose tokens the policy takes for a client's credential, and how it maps them to clients.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ClientRule, IssuerPolicy, is_subject};

/// The scheme of SPIFFE ids: such an `issuer` is a trust domain.
pub const SPIFFE: &str = "spiffe://";
/// Maximum issuers of others in a policy.
const ISSUERS_MAX: usize = 64;
/// Maximum keys that a policy pins for one issuer.
const PINNED_MAX: usize = 64;
/// Maximum claims that a client's mapping compares.
const CLAIMS_MAX: usize = 16;
/// Claims that the issuer checks itself, or that a mapping compares by another member.
const CHECKED: [&str; 7] = ["iss", "sub", "aud", "exp", "nbf", "iat", "jti"];
/// Members of a JWK that are secret.
const SECRET: [&str; 4] = ["d", "k", "p", "priv"];

/// Another issuer, such as a Kubernetes cluster, a CI system, a SPIFFE trust domain or a company's OpenID provider.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalIssuer {
    /// The `iss` of its tokens, compared byte for byte; or a SPIFFE trust domain, as `spiffe://example.org`, which is
    /// compared with that of `sub`.
    pub issuer: String,
    /// Its keys, pinned: a JWK set. Either this or `jwks_url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks: Option<Value>,
    /// Where its keys are: `https`, or `http` on this host. Either this or `jwks`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// The `aud` of its tokens for this issuer; this issuer's own URL or that of its token endpoint when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
    /// Whether a token with a `jti` may be presented more than once, as a workload does whose platform gives it a file
    /// with a token for an hour; `false` when absent.
    #[serde(default, skip_serializing_if = "super::issuer_policy::is_false")]
    pub reusable: bool,
}

/// Tokens of another issuer that count as a client's credential.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalSubject {
    /// One of the policy's `issuers`.
    pub issuer: String,
    /// Pattern of `sub`, anchored at both ends; `*` stands for one or more characters other than `/` and `:`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Patterns of other claims, all of which must fit; a name that begins with `/` is a JSON pointer. Of a list, one
    /// element must fit, as a group of a person.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: BTreeMap<String, String>,
}

impl IssuerPolicy {
    /// The entry of the issuer of a token with these claims, which are not verified yet.
    pub fn issuer_of(&self, claims: &Map<String, Value>) -> Option<&ExternalIssuer> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let (iss, sub) = (text("iss"), text("sub").unwrap_or_default());
        let by_name = |one: &&ExternalIssuer| !one.is_spiffe() && Some(&*one.issuer) == iss;
        let by_domain = |one: &&ExternalIssuer| {
            let path = sub.strip_prefix(&*one.issuer);
            one.is_spiffe() && path.is_some_and(|path| path.starts_with('/'))
        };
        let all = || self.issuers.iter();
        all().find(by_name).or_else(|| all().find(by_domain))
    }

    /// The clients to which the policy maps a token of this issuer.
    pub fn mapped<'p>(
        &'p self,
        issuer: &ExternalIssuer,
        claims: &Map<String, Value>,
    ) -> Vec<&'p ClientRule> {
        let fits = |one: &ExternalSubject| one.issuer == issuer.issuer && one.fits(claims);
        let rules = self.clients.iter();
        rules
            .filter(|rule| rule.external.iter().any(fits))
            .collect()
    }

    pub(super) fn external_faults(&self, faults: &mut Vec<String>) {
        if self.issuers.len() > ISSUERS_MAX {
            faults.push(format!("issuers: more than {ISSUERS_MAX}"));
        }
        for twice in super::policy_faults::repeated(self.issuers.iter().map(|one| &one.issuer)) {
            faults.push(format!("issuer {twice} has two entries"));
        }
        for issuer in &self.issuers {
            issuer.faults(faults);
        }
        for client in &self.clients {
            for one in &client.external {
                one.faults(&client.client_id, self, faults);
            }
        }
    }
}

impl ExternalIssuer {
    /// Whether it is a SPIFFE trust domain.
    pub fn is_spiffe(&self) -> bool {
        self.issuer.starts_with(SPIFFE)
    }

    fn faults(&self, faults: &mut Vec<String>) {
        let whose = format!("issuer {}", self.issuer);
        if !is_subject(&self.issuer) {
            faults.push(format!(
                "issuer {:?}: a name is 1 to 256 printable ASCII characters without spaces",
                self.issuer
            ));
        }
        if let Some(domain) = self.issuer.strip_prefix(SPIFFE) {
            let letter =
                |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
            if domain.is_empty() || !domain.bytes().all(letter) {
                faults.push(format!(
                    "{whose}: a trust domain is {SPIFFE} and a name in lower case, without a path"
                ));
            }
        }
        match (&self.jwks, &self.jwks_url) {
            (Some(jwks), None) => {
                if let Err(why) = pinned(jwks, self.is_spiffe()) {
                    faults.push(format!("{whose}: jwks {why}"));
                }
            }
            (None, Some(url)) if is_protected_url(url) => {}
            (None, Some(url)) => faults.push(format!(
                "{whose}: jwks_url {url:?} is neither https nor http on this host: anyone on the way could replace the keys"
            )),
            _ => faults.push(format!("{whose} needs either jwks or jwks_url")),
        }
        if self.audience.as_ref().is_some_and(|aud| !is_subject(aud)) {
            faults.push(format!(
                "{whose}: audience is 1 to 256 printable ASCII characters without spaces"
            ));
        }
    }
}

/// Whether a text is a set of public keys, as far as can be said without computing.
fn pinned(jwks: &Value, is_spiffe: bool) -> Result<(), String> {
    let keys = jwks.get("keys").and_then(Value::as_array);
    let keys = keys.ok_or("is no JWK set: {\"keys\": [...]}")?;
    if !(1..=PINNED_MAX).contains(&keys.len()) {
        return Err(format!("must have 1 to {PINNED_MAX} keys"));
    }
    for key in keys {
        if SECRET.iter().any(|name| key.get(name).is_some()) {
            return Err("has a key that is secret".to_owned());
        }
        let kty = key.get("kty").and_then(Value::as_str);
        if !["OKP", "EC", "RSA"].map(Some).contains(&kty) {
            return Err("has a key that is not of kty OKP, EC or RSA".to_owned());
        }
    }
    let counts = |key: &Value| match key.get("use").and_then(Value::as_str) {
        Some("jwt-svid") => is_spiffe,
        Some("sig") | None => !is_spiffe,
        Some(_) => false,
    };
    if keys.iter().any(counts) {
        return Ok(());
    }
    Err(if is_spiffe {
        "has no key of use jwt-svid".to_owned()
    } else {
        "has no key for signatures".to_owned()
    })
}

/// Whether nobody on the way can read or replace what is at a URL: `https`, or `http` on this host.
pub fn is_protected_url(url: &str) -> bool {
    if !is_subject(url) {
        return false;
    }
    if let Some(rest) = url.strip_prefix("https://") {
        return !rest.is_empty() && !rest.starts_with('/');
    }
    let Some(rest) = url.strip_prefix("http://") else {
        return false;
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let ends = |name: &str| {
        let port = host.strip_prefix(name);
        port.is_some_and(|port| port.is_empty() || port.starts_with(':'))
    };
    !host.contains('@') && ["127.0.0.1", "localhost", "[::1]"].into_iter().any(ends)
}

impl ExternalSubject {
    /// Whether a token with these claims is meant.
    pub fn fits(&self, claims: &Map<String, Value>) -> bool {
        let of = |name: &str| match name.strip_prefix('/') {
            None => claims.get(name),
            Some(path) => {
                // The first step is taken by hand, because the claims are a map.
                let (first, rest) = path.find('/').map_or((path, ""), |at| path.split_at(at));
                let first = first.replace("~1", "/").replace("~0", "~");
                claims.get(&first)?.pointer(rest)
            }
        };
        let has = |pattern: &str, value: Option<&Value>| match value {
            Some(Value::String(text)) => fits(pattern, text),
            Some(Value::Array(list)) => list
                .iter()
                .filter_map(Value::as_str)
                .any(|text| fits(pattern, text)),
            Some(Value::Bool(flag)) => pattern == flag.to_string(),
            Some(Value::Number(number)) => pattern == number.to_string(),
            _ => false,
        };
        let subject = self.subject.as_deref();
        // `sub` is one text: a list of them is nobody.
        let sub = claims.get("sub").filter(|sub| sub.is_string());
        subject.is_none_or(|pattern| has(pattern, sub))
            && self
                .claims
                .iter()
                .all(|(name, pattern)| has(pattern, of(name)))
    }

    fn faults(&self, client: &str, policy: &IssuerPolicy, faults: &mut Vec<String>) {
        let whose = format!("client {client}, issuer {}", self.issuer);
        let issuer = policy.issuers.iter().find(|one| one.issuer == self.issuer);
        if issuer.is_none() {
            faults.push(format!(
                "{whose}: the policy has no such issuer; add it to `issuers`"
            ));
        }
        if self.subject.is_none() && self.claims.is_empty() {
            faults.push(format!(
                "{whose}: without subject and claims every token of the issuer would be this client's"
            ));
        }
        if let Some(subject) = &self.subject {
            let inside = subject.strip_prefix(&*self.issuer);
            if issuer.is_some_and(ExternalIssuer::is_spiffe)
                && !inside.is_some_and(|path| path.starts_with('/'))
            {
                faults.push(format!(
                    "{whose}: subject {subject:?} is not below its trust domain"
                ));
            }
        }
        if self.claims.len() > CLAIMS_MAX {
            faults.push(format!("{whose} compares more than {CLAIMS_MAX} claims"));
        }
        for name in self.claims.keys() {
            if name.is_empty() || CHECKED.contains(&name.trim_start_matches('/')) {
                faults.push(format!("{whose}: {name:?} is no claim to compare"));
            }
        }
        for pattern in self.subject.iter().chain(self.claims.values()) {
            if !(1..=256).contains(&pattern.len()) || pattern.chars().any(char::is_control) {
                faults.push(format!(
                    "{whose}: pattern {pattern:?} must have 1 to 256 characters"
                ));
            }
        }
    }
}

/// Whether a pattern, anchored at both ends, fits a text: `*` stands for one or more characters other than `/` and `:`,
/// every other character for itself.
fn fits(pattern: &str, text: &str) -> bool {
    let separators =
        |text: &str| -> Vec<char> { text.chars().filter(|c| matches!(c, '/' | ':')).collect() };
    // Neither stars nor texts cross a separator, so the parts between them are compared pair by pair.
    separators(pattern) == separators(text)
        && pattern
            .split(['/', ':'])
            .zip(text.split(['/', ':']))
            .all(|(pattern, text)| part_fits(pattern, text))
}

fn part_fits(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut left) = text.strip_prefix(first) else {
        return false;
    };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    // The leftmost place of each piece leaves the most for the next ones. A star takes at least one character.
    for piece in pieces {
        let Some(after) = after_one(left) else {
            return false;
        };
        let Some(at) = after.find(piece) else {
            return false;
        };
        left = &after[at + piece.len()..];
    }
    after_one(left).is_some_and(|after| after.ends_with(last))
}

/// The text without its first character.
fn after_one(text: &str) -> Option<&str> {
    let mut chars = text.chars();
    chars.next()?;
    Some(chars.as_str())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn patterns_are_anchored_and_a_star_stays_between_separators() {
        for (pattern, text, want) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a", "ba", false),
            ("*", "abc", true),
            ("*", "", false),
            ("*", "a/b", false),
            ("*", "a:b", false),
            (
                "repo:acme/*:ref:refs/heads/main",
                "repo:acme/shop:ref:refs/heads/main",
                true,
            ),
            (
                "repo:acme/*:ref:refs/heads/main",
                "repo:acme/shop:ref:refs/heads/main2",
                false,
            ),
            ("repo:acme/*", "repo:acme/shop:ref:refs/heads/main", false),
            ("repo:acme/*:*", "repo:acme/x/y:z", false),
            ("repo:*/shop:x", "repo:evil/acme/shop:x", false),
            ("repo:acme*/shop", "repo:acme/shop", false),
            ("repo:acme*/shop", "repo:acme-corp/shop", true),
            (
                "spiffe://e.org/ns/*/sa/web",
                "spiffe://e.org/ns/prod/sa/web",
                true,
            ),
            (
                "spiffe://e.org/ns/*/sa/web",
                "spiffe://e.org/ns/a/b/sa/web",
                false,
            ),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "abc", false),
            ("a*b*c", "axbxbxc", true),
            ("a*bc", "axbcbc", true),
            ("a**", "axy", true),
            ("a**", "ax", false),
            ("*.example", "é.example", true),
            ("A", "a", false),
            ("a.c", "abc", false),
        ] {
            assert_eq!(fits(pattern, text), want, "{pattern} {text}");
        }
    }

    proptest! {
        /// As the definition says, by trying every length of every star.
        #[test]
        fn fits_is_the_definition(pattern in "[ab*/:]{0,8}", text in "[ab/:]{0,8}") {
            fn slow(pattern: &[u8], text: &[u8]) -> bool {
                match (pattern.split_first(), text.split_first()) {
                    (None, None) => true,
                    (Some((b'*', rest)), Some((byte, left))) if !b"/:".contains(byte) => {
                        slow(rest, left) || slow(pattern, left)
                    }
                    (Some((wanted, rest)), Some((byte, left))) => wanted == byte && slow(rest, left),
                    _ => false,
                }
            }
            prop_assert_eq!(fits(&pattern, &text), slow(pattern.as_bytes(), text.as_bytes()));
        }
    }

    fn policy() -> Value {
        let keys = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "x", "use": "jwt-svid"}]});
        json!({"version": 1,
          "issuers": [
            {"issuer": "https://ci.example", "jwks_url": "https://ci.example/jwks", "audience": "https://id.example"},
            {"issuer": "spiffe://prod.example", "jwks": keys, "reusable": true}],
          "clients": [
            {"client_id": "deploy", "tenant": "t1", "max_ttl_s": 600,
             "audiences": [{"audience": "svc-wallet", "scopes": ["wallet:read"]}],
             "external": [{"issuer": "https://ci.example", "subject": "repo:acme/*:ref:refs/heads/main",
                           "claims": {"groups": "ops-*", "/kubernetes.io/namespace": "prod"}}]},
            {"client_id": "web", "tenant": "t1", "max_ttl_s": 600,
             "audiences": [{"audience": "svc-wallet", "scopes": ["wallet:read"]}],
             "external": [{"issuer": "spiffe://prod.example", "subject": "spiffe://prod.example/sa/*"}]}]})
    }

    #[test]
    fn a_token_is_mapped_by_its_issuer_its_subject_and_all_claims() {
        let policy: IssuerPolicy = serde_json::from_value(policy()).unwrap();
        assert_eq!(policy.faults(), [] as [String; 0]);
        let mapped = |claims: Value| -> Option<Vec<String>> {
            let Value::Object(claims) = claims else {
                panic!()
            };
            let issuer = policy.issuer_of(&claims)?;
            let rules = policy.mapped(issuer, &claims).into_iter();
            Some(rules.map(|rule| rule.client_id.clone()).collect())
        };
        let good = json!({"iss": "https://ci.example", "sub": "repo:acme/shop:ref:refs/heads/main",
            "groups": ["dev", "ops-night"], "kubernetes.io": {"namespace": "prod"}});
        let with = |name: &str, value: Value| {
            let mut claims = good.clone();
            claims[name] = value;
            mapped(claims)
        };
        let none = Some(Vec::new());
        assert_eq!(mapped(good.clone()), Some(vec!["deploy".to_owned()]));
        assert_eq!(with("groups", json!("ops-day")), mapped(good.clone()));
        assert_eq!(with("groups", json!(["ops-"])), none);
        assert_eq!(with("groups", json!({"ops-x": 1})), none);
        assert_eq!(with("kubernetes.io", json!({"namespace": "dev"})), none);
        assert_eq!(
            with("sub", json!("repo:acme/a/b:ref:refs/heads/main")),
            none
        );
        assert_eq!(with("sub", json!([good["sub"]])), none);
        assert_eq!(with("iss", json!("https://ci.example/")), None);
        // A trust domain is that of the subject, whatever the token says of its issuer.
        let web = Some(vec!["web".to_owned()]);
        let spiffe = |iss: Value, sub: &str| mapped(json!({"iss": iss, "sub": sub}));
        let id = "spiffe://prod.example/sa/web";
        assert_eq!(spiffe(Value::Null, id), web);
        assert_eq!(spiffe(json!("https://spire.example"), id), web);
        assert_eq!(spiffe(json!("spiffe://prod.example"), "repo:x"), None);
        assert_eq!(
            spiffe(Value::Null, "spiffe://prod.example.evil/sa/web"),
            None
        );
        // A listed issuer does not speak for a trust domain.
        assert_eq!(spiffe(json!("https://ci.example"), id), none);
    }

    /// The policy with this value has a fault with these words, or none if there are no words.
    fn check(pointer: &str, value: Value, fault: &str) {
        let mut policy = policy();
        let (object, name) = pointer.rsplit_once('/').unwrap();
        let object = policy.pointer_mut(object).unwrap();
        match (value.is_null(), object.as_object_mut()) {
            (true, Some(map)) => drop(map.remove(name)),
            (_, Some(map)) => drop(map.insert(name.to_owned(), value)),
            (_, None) => object[name.parse::<usize>().unwrap()] = value,
        }
        let policy: IssuerPolicy = serde_json::from_value(policy).unwrap();
        let faults = policy.faults();
        if fault.is_empty() {
            assert_eq!(faults, [] as [String; 0], "{pointer}");
        } else {
            let found = faults.iter().any(|one| one.contains(fault));
            assert!(found, "{pointer} {fault}: {faults:?}");
        }
    }

    #[test]
    fn faults_of_issuers_and_mappings_are_found_and_named() {
        let ci = "/issuers/0";
        for (member, value, fault) in [
            ("issuer", json!("a b"), "printable ASCII"),
            ("issuer", json!("spiffe://prod.example"), "two entries"),
            ("issuer", json!("spiffe://prod.example/x"), "trust domain"),
            ("jwks_url", json!("http://ci.example/jwks"), "neither https"),
            (
                "jwks_url",
                json!("http://localhost.evil/jwks"),
                "neither https",
            ),
            (
                "jwks_url",
                json!("http://localhost@evil/jwks"),
                "neither https",
            ),
            ("jwks_url", json!("http://127.0.0.1:8080/jwks"), ""),
            ("jwks_url", Value::Null, "either jwks or jwks_url"),
            ("jwks", json!({"keys": []}), "either jwks or jwks_url"),
            ("audience", json!(""), "audience is"),
        ] {
            check(&format!("{ci}/{member}"), value, fault);
        }
        for (jwks, fault) in [
            (json!({"keys": []}), "1 to 64 keys"),
            (json!({"keys": [{"kty": "oct", "k": "AA"}]}), "secret"),
            (json!({"keys": [{"kty": "EC", "d": "AA"}]}), "secret"),
            (json!({"keys": [{"kty": "AKP"}]}), "not of kty"),
            (json!({"keys": [{"kty": "RSA"}]}), "use jwt-svid"),
            (
                json!({"keys": [{"kty": "RSA", "use": "sig"}]}),
                "use jwt-svid",
            ),
            (json!("text"), "no JWK set"),
        ] {
            check("/issuers/1/jwks", jwks, fault);
        }
        let external = "/clients/0/external/0";
        for (member, value, fault) in [
            ("issuer", json!("https://nobody"), "no such issuer"),
            ("subject", json!(""), "1 to 256 characters"),
            ("subject", Value::Null, ""),
            ("claims", Value::Null, ""),
            ("claims", json!({"aud": "x"}), "no claim to compare"),
            ("claims", json!({"/sub": "x"}), "no claim to compare"),
            ("claims", json!({"x": ""}), "1 to 256 characters"),
        ] {
            check(&format!("{external}/{member}"), value, fault);
        }
        check(
            "/clients/1/external/0/subject",
            json!("spiffe://prod.example*/sa/web"),
            "not below its trust domain",
        );
        let bare = json!([{"issuer": "https://ci.example"}]);
        check("/clients/0/external", bare, "every token of the issuer");
    }
}
