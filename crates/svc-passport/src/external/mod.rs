//! Tokens of other issuers as credentials (RFC 7523, RFC 8693): which client a token stands for, decided from the signed
//! policy and the issuer's keys. Pure, but for the memory of used tokens.

pub mod keys;

use ron_auth::{AuthReject, ForeignKeys, Jws, JwsAlg, KeyUse, ProofCache};
use ron_proto::Problem;
use ron_proto::passport::{ClientRule, ExternalIssuer, IssuerPolicy, SKEW_S};
use serde_json::{Map, Value};

use crate::clients::{UsedAssertion, is_for, text};
use crate::external::keys::FetchedKeys;

/// Maximum bytes of a token; those of an OpenID provider have a list of groups.
const TOKEN_BYTES_MAX: usize = 8192;
/// Maximum seconds until a token expires; its id is remembered that long.
const LIVES_S_MAX: u64 = 24 * 3600;
/// Keys of one algorithm that are tried for a token, which may name none; more would only be a way to cost time.
const KEYS_TRIED_MAX: usize = 16;
/// Maximum bytes of a `jti`.
const JTI_BYTES_MAX: usize = 256;

/// Why a token of another issuer was refused: a closed list, for metrics and the log. The caller learns the cause only
/// once an issuer that the policy trusts has signed the token, or when that issuer's keys were not read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternalReject {
    /// Not a signed JWT, or one of another kind.
    Form,
    /// The policy does not trust its issuer.
    Issuer,
    /// The issuer's keys were not read yet.
    Keys,
    /// Not signed by a key of its issuer.
    Signature,
    /// Its `aud` is another party.
    Target,
    /// Expired, from the future, or valid for too long.
    Time,
    /// The policy maps it to no client, or not to the one that the request names.
    Client,
    /// The policy maps it to several clients, and the request names none.
    Clients,
    /// It was used before.
    Replay,
    /// The issuer has more unexpired tokens than are remembered for one issuer.
    Full,
}

impl ExternalReject {
    pub const ALL: [Self; 10] = [
        Self::Form,
        Self::Issuer,
        Self::Keys,
        Self::Signature,
        Self::Target,
        Self::Time,
        Self::Client,
        Self::Clients,
        Self::Replay,
        Self::Full,
    ];

    /// The name in metrics and the log.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Form => "external_form",
            Self::Issuer => "external_issuer",
            Self::Keys => "external_keys",
            Self::Signature => "external_signature",
            Self::Target => "external_target",
            Self::Time => "external_time",
            Self::Client => "external_client",
            Self::Clients => "external_clients",
            Self::Replay => "external_replay",
            Self::Full => "external_full",
        }
    }

    pub fn problem(self) -> Problem {
        let detail = match self {
            Self::Form | Self::Issuer | Self::Signature => {
                "the token is not one that an issuer trusted here has signed"
            }
            Self::Keys => {
                let why = "the keys of the token's issuer were not read yet";
                return Problem::unavailable(why, 2);
            }
            Self::Target => {
                "aud is not this issuer, or not what the policy names for the token's issuer"
            }
            Self::Time => "exp must lie at most a day ahead, and nbf and iat must not lie ahead",
            Self::Client => "the issuer policy maps the token to no client, or not to this one",
            Self::Clients => {
                "the issuer policy maps the token to several clients: name one as client_id"
            }
            Self::Replay => "the token was used before",
            Self::Full => {
                let mut busy = Problem::rate_limited(1).with_oauth("temporarily_unavailable");
                "the issuer has more unexpired tokens than are remembered for one issuer"
                    .clone_into(&mut busy.detail);
                return busy;
            }
        };
        Problem::bad_request(detail).with_oauth("invalid_grant")
    }
}

/// A token that counts.
#[derive(Debug)]
pub struct Accepted<'p> {
    /// The rule of the client that it stands for.
    pub rule: &'p ClientRule,
    /// To be made durable before the token has an effect; `None` for one that may be used again.
    pub used: Option<UsedAssertion>,
}

/// What a token is judged by.
pub struct Judge<'a> {
    pub policy: &'a IssuerPolicy,
    pub keys: &'a FetchedKeys,
    /// What `aud` may be, where the policy names nothing.
    pub ours: &'a [String],
    /// Ids of the tokens that were used.
    pub seen: &'a ProofCache,
    pub now_s: u64,
}

impl<'a> Judge<'a> {
    /// The client that a token stands for; `named` is the `client_id` of the request.
    ///
    /// # Errors
    /// The cause, and the issuer that the token names, if the policy trusts it.
    pub fn client(
        &self,
        token: &str,
        named: Option<&str>,
    ) -> Result<Accepted<'a>, (ExternalReject, Option<&'a ExternalIssuer>)> {
        let form = |_| (ExternalReject::Form, None);
        let jws = Jws::split(token, TOKEN_BYTES_MAX).map_err(form)?;
        // Parsed unverified to find the issuer's keys; trusted only after a key has verified the signature.
        let claims = jws.claims().map_err(form)?;
        let issuer = self.policy.issuer_of(&claims);
        let issuer = issuer.ok_or((ExternalReject::Issuer, None))?;
        let refuse = |why| (why, Some(issuer));
        self.signed(&jws, issuer).map_err(refuse)?;
        self.claims(&claims, issuer, named).map_err(refuse)
    }

    fn signed(&self, jws: &Jws<'_>, issuer: &ExternalIssuer) -> Result<(), ExternalReject> {
        let header = jws.foreign_header().map_err(|_| ExternalReject::Form)?;
        // Tokens of another kind that the same keys sign, such as access tokens, must not count as credentials.
        if ["typ", "kid"]
            .iter()
            .any(|name| header.get(*name).is_some_and(|value| !value.is_string()))
        {
            return Err(ExternalReject::Form);
        }
        let typ = text(&header, "typ").unwrap_or_default();
        let plain = ["", "jwt", "jose"].contains(&&*typ.to_ascii_lowercase());
        let alg = text(&header, "alg").and_then(JwsAlg::of_client);
        let alg = alg.filter(|_| plain).ok_or(ExternalReject::Form)?;
        let pinned = issuer.jwks.as_ref().map(|jwks| {
            let usage = use_of(issuer);
            ForeignKeys::of_value(jwks, usage).map_err(|_| ExternalReject::Signature)
        });
        let pinned = pinned.transpose()?;
        let keys = pinned.as_ref().or_else(|| self.keys.of(issuer));
        let keys = keys.ok_or(ExternalReject::Keys)?;
        let named = keys.named(text(&header, "kid"));
        let mut named = named.filter(|key| key.takes(alg)).take(KEYS_TRIED_MAX);
        if named.any(|key| jws.verified_by(key, alg).is_ok()) {
            Ok(())
        } else {
            Err(ExternalReject::Signature)
        }
    }

    fn claims(
        &self,
        claims: &Map<String, Value>,
        issuer: &ExternalIssuer,
        named: Option<&str>,
    ) -> Result<Accepted<'a>, ExternalReject> {
        let ours = issuer
            .audience
            .as_ref()
            .map_or(self.ours, std::slice::from_ref);
        if !is_for(claims, ours) {
            return Err(ExternalReject::Target);
        }
        let exp = live(claims, self.now_s).ok_or(ExternalReject::Time)?;
        // RFC 7523 wants it, also of tokens that are mapped by other claims.
        if text(claims, "sub").is_none_or(str::is_empty) {
            return Err(ExternalReject::Form);
        }
        let mapped = self.policy.mapped(issuer, claims);
        let rule = match (named, mapped.as_slice()) {
            (Some(named), rules) => rules.iter().find(|rule| rule.client_id == named),
            (None, [_, _, ..]) => return Err(ExternalReject::Clients),
            (None, rules) => rules.first(),
        };
        let rule = *rule.ok_or(ExternalReject::Client)?;
        Ok(Accepted {
            rule,
            used: self.once(claims, issuer, exp)?,
        })
    }

    /// Uses the token up, if it has an id and may be used once. Last, so that only a token that counts takes a place.
    fn once(
        &self,
        claims: &Map<String, Value>,
        issuer: &ExternalIssuer,
        exp: u64,
    ) -> Result<Option<UsedAssertion>, ExternalReject> {
        let jti = match claims.get("jti") {
            None => return Ok(None),
            Some(_) if issuer.reusable => return Ok(None),
            Some(Value::String(jti)) if jti.len() <= JTI_BYTES_MAX => jti,
            Some(_) => return Err(ExternalReject::Form),
        };
        let name = &issuer.issuer;
        match self.seen.take(name, (name, jti), exp, self.now_s) {
            Ok(()) => Ok(Some(UsedAssertion {
                client: name.clone(),
                jti: jti.clone(),
                until_s: exp,
            })),
            Err(AuthReject::ProofsFull) => Err(ExternalReject::Full),
            Err(_) => Err(ExternalReject::Replay),
        }
    }
}

/// What the keys of an issuer are for.
fn use_of(issuer: &ExternalIssuer) -> KeyUse {
    if issuer.is_spiffe() {
        KeyUse::JwtSvid
    } else {
        KeyUse::Signatures
    }
}

/// `exp` of a token that is valid now.
fn live(claims: &Map<String, Value>, now_s: u64) -> Option<u64> {
    // A date may have a fraction (RFC 7519 section 2).
    let seconds = |value: &Value| {
        let whole = value.as_f64().filter(|at| (0.0..1e12).contains(at));
        value
            .as_u64()
            .or(whole.map(|at| (at as i64).cast_unsigned()))
    };
    let exp = claims.get("exp").and_then(seconds)?;
    let mut starts = ["nbf", "iat"]
        .into_iter()
        .filter_map(|name| claims.get(name));
    let begun = |at: &Value| seconds(at).is_some_and(|at| at <= now_s + SKEW_S);
    (starts.all(begun) && exp > now_s && exp <= now_s + LIVES_S_MAX).then_some(exp)
}

#[cfg(test)]
mod tests {
    use ron_crypto::sign::Ed25519Key;
    use ron_proto::b64;
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_800_000_000;

    static USED: ron_kernel::LockSpec = ron_kernel::LockSpec {
        name: "used",
        rank: 1,
        guards: "ids of tokens",
    };

    fn key(seed: u8) -> Ed25519Key {
        Ed25519Key::from_seed(&[seed; 32])
    }

    fn policy() -> IssuerPolicy {
        let jwk = |seed: u8, usage: &str| {
            let x = b64::url(&key(seed).public());
            json!({"kty": "OKP", "crv": "Ed25519", "kid": "k", "use": usage, "x": x})
        };
        let client = |id: &str, external: Value| {
            json!({"client_id": id, "tenant": "default", "max_ttl_s": 600, "external": external,
                "audiences": [{"audience": "svc-wallet", "scopes": ["wallet:read"]}]})
        };
        let policy = json!({"version": 1, "issuers": [
            {"issuer": "https://ci.example", "jwks": {"keys": [jwk(1, "sig")]}},
            {"issuer": "https://k8s.example", "jwks": {"keys": [jwk(1, "sig")]}, "audience": "ron", "reusable": true},
            {"issuer": "https://away.example", "jwks_url": "https://away.example/jwks"},
            {"issuer": "spiffe://prod", "jwks": {"keys": [jwk(2, "sig"), jwk(3, "jwt-svid")]}}],
          "clients": [
            client("deploy", json!([{"issuer": "https://ci.example", "subject": "repo:acme/*"}])),
            client("audit", json!([{"issuer": "https://ci.example", "subject": "repo:acme/shop"}])),
            client("web", json!([{"issuer": "spiffe://prod", "subject": "spiffe://prod/sa/web"},
                {"issuer": "https://k8s.example", "subject": "system:serviceaccount:prod:*"}]))]});
        serde_json::from_value(policy).unwrap()
    }

    fn token(seed: u8, header: &Value, claims: &Value) -> String {
        let part = |v: &Value| b64::url(v.to_string().as_bytes());
        let signed = format!("{}.{}", part(header), part(claims));
        format!("{signed}.{}", b64::url(&key(seed).sign(signed.as_bytes())))
    }

    fn head() -> Value {
        json!({"alg": "EdDSA", "kid": "k", "typ": "JWT", "x5t": "ignored"})
    }

    #[test]
    fn a_token_counts_for_the_client_that_the_policy_maps_it_to() {
        let (policy, memory) = (policy(), ProofCache::new(&USED));
        let judge = Judge {
            policy: &policy,
            keys: &FetchedKeys::default(),
            ours: &["http://i".to_owned(), "http://i/oauth2/token".to_owned()],
            seen: &memory,
            now_s: NOW,
        };
        let ask = |text: &str, named: Option<&str>| {
            let judged = judge.client(text, named);
            judged
                .map(|good| good.rule.client_id.clone())
                .map_err(|(why, _)| why.reason())
        };
        let claims = |change: &dyn Fn(&mut Value)| {
            let mut claims = json!({"iss": "https://ci.example", "sub": "repo:acme/site", "aud": "http://i",
                "exp": NOW + 300, "iat": NOW});
            change(&mut claims);
            claims
        };
        let check = |change: &dyn Fn(&mut Value), want: Result<&str, &'static str>| {
            let claims = claims(change);
            let got = ask(&token(1, &head(), &claims), None);
            assert_eq!(got, want.map(str::to_owned), "{claims}");
        };
        check(&|_| {}, Ok("deploy"));
        check(
            &|c| c["aud"] = json!(["x", "http://i/oauth2/token"]),
            Ok("deploy"),
        );
        check(&|c| c["exp"] = json!(NOW as f64 + 1.5), Ok("deploy"));
        check(
            &|c| c["sub"] = "repo:acme/shop".into(),
            Err("external_clients"),
        );
        check(
            &|c| c["sub"] = "repo:acme/a/b".into(),
            Err("external_client"),
        );
        check(
            &|c| c["sub"] = "repo:other/site".into(),
            Err("external_client"),
        );
        check(
            &|c| c["iss"] = "https://ci.example/".into(),
            Err("external_issuer"),
        );
        check(
            &|c| c["iss"] = "https://away.example".into(),
            Err("external_keys"),
        );
        check(
            &|c| c["aud"] = "http://elsewhere".into(),
            Err("external_target"),
        );
        check(&|c| c["aud"] = Value::Null, Err("external_target"));
        check(&|c| c["exp"] = NOW.into(), Err("external_time"));
        check(
            &|c| c["exp"] = (NOW + LIVES_S_MAX + 1).into(),
            Err("external_time"),
        );
        check(&|c| c["exp"] = Value::Null, Err("external_time"));
        check(&|c| c["iat"] = (NOW + 61).into(), Err("external_time"));
        check(&|c| c["nbf"] = "soon".into(), Err("external_time"));
        let shop = claims(&|c| c["sub"] = "repo:acme/shop".into());
        let shop = token(1, &head(), &shop);
        assert_eq!(ask(&shop, Some("audit")), Ok("audit".to_owned()));
        assert_eq!(ask(&shop, Some("web")), Err("external_client"));

        for header in [
            json!({"alg": "none"}),
            json!({"alg": "HS256", "kid": "k"}),
            json!({"alg": "ML-DSA-44", "kid": "k"}),
            json!({"alg": "EdDSA", "typ": "at+jwt"}),
            json!({"alg": "EdDSA", "typ": "dpop+jwt"}),
            json!({"alg": "EdDSA", "crit": ["x"], "x": 1}),
        ] {
            let got = ask(&token(1, &header, &claims(&|_| {})), None);
            assert_eq!(got, Err("external_form"), "{header}");
        }
        for (seed, header) in [
            (9, head()),
            (1, json!({"alg": "EdDSA", "kid": "other"})),
            (1, json!({"alg": "ES256", "kid": "k"})),
        ] {
            let got = ask(&token(seed, &header, &claims(&|_| {})), None);
            assert_eq!(got, Err("external_signature"), "{header}");
        }
    }

    #[test]
    fn an_id_is_used_once_unless_the_policy_says_otherwise() {
        let (policy, memory) = (policy(), ProofCache::new(&USED));
        let judge = Judge {
            policy: &policy,
            keys: &FetchedKeys::default(),
            ours: &["http://i".to_owned()],
            seen: &memory,
            now_s: NOW,
        };
        let ask = |seed: u8, claims: &Value| {
            let judged = judge.client(&token(seed, &head(), claims), None);
            judged
                .map(|good| good.used)
                .map_err(|(why, _)| why.reason())
        };
        let mut ci = json!({"iss": "https://ci.example", "sub": "repo:acme/site", "aud": "http://i",
            "exp": NOW + 300, "jti": "1"});
        let used = ask(1, &ci).unwrap().unwrap();
        assert_eq!(
            (&*used.client, &*used.jti, used.until_s),
            ("https://ci.example", "1", NOW + 300)
        );
        assert_eq!(ask(1, &ci), Err("external_replay"));
        ci["jti"] = json!(7);
        assert_eq!(ask(1, &ci), Err("external_form"));
        let k8s = json!({"iss": "https://k8s.example", "sub": "system:serviceaccount:prod:web", "aud": ["ron"],
            "exp": NOW + 3600, "jti": "1"});
        assert_eq!([ask(1, &k8s), ask(1, &k8s)], [Ok(None), Ok(None)]);
        // A trust domain's keys are those of use jwt-svid, and its tokens need no iss.
        let svid = json!({"sub": "spiffe://prod/sa/web", "aud": ["http://i"], "exp": NOW + 60});
        assert_eq!(ask(3, &svid), Ok(None));
        assert_eq!(ask(2, &svid), Err("external_signature"));
        let other =
            json!({"sub": "spiffe://prod.evil/sa/web", "aud": ["http://i"], "exp": NOW + 60});
        assert_eq!(ask(3, &other), Err("external_issuer"));
    }
}
