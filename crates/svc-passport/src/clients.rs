//! OAuth clients and their authentication: a secret that the issuer's tool has made, an assertion signed by the client's
//! own key (RFC 7523), or a certificate.

use std::collections::BTreeMap;
use std::sync::Arc;

use ron_auth::{AuthReject, client_secret, service_token};
use ron_auth::{Jws, JwsAlg, ProofCache, VerifyKey};
use ron_http::ClientCert;
use ron_proto::passport::SKEW_S;
use ron_proto::{Problem, Timestamp};
use serde_json::{Map, Value};

/// Maximum secrets of a client: the one in use, and the next.
pub const SECRETS_MAX: usize = 2;
/// Maximum bytes of an assertion.
const ASSERTION_BYTES_MAX: usize = 4096;
/// Maximum seconds until an assertion expires; its id is remembered that long.
const ASSERTION_S_MAX: u64 = 600;

/// The stored hash of a client's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretHash {
    /// SHA-256 of the whole secret.
    pub sha256: [u8; 32],
    /// Unix seconds from which the secret is refused.
    pub until_s: Option<u64>,
}

impl std::str::FromStr for SecretHash {
    type Err = String;

    /// `HEX` or `HEX@TIME`, the time in RFC 3339 (UTC).
    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, end) = match text.split_once('@') {
            Some((digits, end)) => (digits, Some(end)),
            None => (text, None),
        };
        let sha256 = hex::decode(digits).ok().and_then(|b| b.try_into().ok());
        let until = end.map(client_secret::parse_end).transpose();
        Ok(Self {
            sha256: sha256
                .ok_or("it begins with 64 hex digits: `ron client secret` prints them")?,
            until_s: until
                .map_err(|e| {
                    format!("the text after @ must be the end of the secret's validity: {e}")
                })?
                .map(Timestamp::unix_s),
        })
    }
}

/// A configured client and its credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Client {
    /// `client_id`.
    pub id: String,
    /// Its secrets; any one of them authenticates.
    pub secrets: Vec<SecretHash>,
    /// Public keys of its assertions, with their `kid` where they have one.
    pub keys: Vec<(Option<String>, VerifyKey)>,
    /// SHA-256 of its certificates, 64 lower-case hex digits each.
    pub certs: Vec<String>,
    /// DNS names; its certificate carries one of them.
    pub dns_names: Vec<String>,
}

/// Why client authentication failed: a closed list, for metrics and the log. The caller learns the cause only when
/// that gives away nothing, or it has shown that it holds the client's secret or key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientReject {
    /// The request has no client authentication.
    Missing,
    /// An `Authorization` that is not HTTP Basic.
    Basic,
    /// No such client is configured.
    Unknown,
    /// Not in the format of the issuer's secrets.
    SecretForm,
    /// Not the client's secret.
    Secret,
    /// The client's secret, but expired.
    SecretExpired,
    /// Not the client's certificate.
    Certificate,
    /// Not an assertion of RFC 7523.
    AssertionForm,
    /// Not signed by a key of the client.
    AssertionSignature,
    /// For another party: `sub`, `aud` or the form's `client_id` does not match.
    AssertionTarget,
    /// Expired, from the future, or valid for too long.
    AssertionTime,
    /// The assertion was used before.
    AssertionReplay,
    /// The client has more unexpired assertions than are remembered for one client.
    AssertionsFull,
}

impl ClientReject {
    pub const ALL: [Self; 13] = [
        Self::Missing,
        Self::Basic,
        Self::Unknown,
        Self::SecretForm,
        Self::Secret,
        Self::SecretExpired,
        Self::Certificate,
        Self::AssertionForm,
        Self::AssertionSignature,
        Self::AssertionTarget,
        Self::AssertionTime,
        Self::AssertionReplay,
        Self::AssertionsFull,
    ];

    /// The name in metrics and the log.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Missing => "client_missing",
            Self::Basic => "client_basic",
            Self::Unknown => "client_unknown",
            Self::SecretForm => "client_secret_form",
            Self::Secret => "client_secret",
            Self::SecretExpired => "client_secret_expired",
            Self::Certificate => "client_certificate",
            Self::AssertionForm => "assertion_form",
            Self::AssertionSignature => "assertion_signature",
            Self::AssertionTarget => "assertion_target",
            Self::AssertionTime => "assertion_time",
            Self::AssertionReplay => "assertion_replay",
            Self::AssertionsFull => "assertions_full",
        }
    }

    pub fn problem(self) -> Problem {
        let detail = match self {
            Self::Missing => {
                "client authentication is missing: use HTTP Basic, client_id and client_secret in the form, \
                 a signed client_assertion, or client_id and a client certificate"
            }
            Self::Basic => {
                "the Authorization header is not HTTP Basic with client id and secret, each encoded as in a form (a % is %25)"
            }
            Self::SecretForm => {
                "the client secret does not have the issuer's format: ron_cs_<client_id>_<43 characters>"
            }
            Self::SecretExpired => {
                "the client secret has expired: ask the operator for the next one"
            }
            Self::AssertionTarget => {
                "sub and client_id must be the client in iss, and aud the issuer or its token endpoint"
            }
            Self::AssertionTime => {
                "exp must lie at most ten minutes ahead, nbf and iat must not lie ahead, and the assertion needs a jti"
            }
            Self::AssertionReplay => "the assertion was used before: make one for each request",
            Self::AssertionsFull => {
                let mut busy = Problem::rate_limited(1).with_oauth("temporarily_unavailable");
                "this client has more unexpired assertions than are remembered for one client; send fewer"
                    .clone_into(&mut busy.detail);
                return busy;
            }
            Self::Unknown
            | Self::Secret
            | Self::Certificate
            | Self::AssertionForm
            | Self::AssertionSignature => "the client is unknown or its authentication failed",
        };
        Problem::unauthorized(detail).with_oauth("invalid_client")
    }
}

impl Client {
    /// Whether the client can authenticate with a certificate.
    pub fn has_certs(&self) -> bool {
        !self.certs.is_empty() || !self.dns_names.is_empty()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// The public keys of a client: a JWK set in JSON, or one JWK.
pub fn client_keys(text: &str) -> Result<Vec<(Option<String>, VerifyKey)>, String> {
    let tree: Value =
        ron_proto::strict::from_slice(text.as_bytes()).map_err(|e| format!("not JSON: {e}"))?;
    let list = match tree.get("keys") {
        Some(Value::Array(keys)) => keys.clone(),
        Some(_) => return Err("`keys` must be a list".to_owned()),
        None => vec![tree],
    };
    if list.is_empty() || list.len() > 8 {
        return Err("hold 1 to 8 keys".to_owned());
    }
    let read = |jwk: &Value| {
        let kid = jwk.get("kid").and_then(Value::as_str).map(str::to_owned);
        let key = VerifyKey::from_jwk(jwk).map_err(|e| e.to_string())?;
        Ok((kid, key))
    };
    list.iter().map(read).collect()
}

/// A client assertion that was used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedAssertion {
    pub client: String,
    pub jti: String,
    /// When it expires, in Unix seconds.
    pub until_s: u64,
}

#[derive(Debug)]
pub struct Clients {
    clients: BTreeMap<String, Client>,
    /// Ids of the assertions that were used.
    assertions: Arc<ProofCache>,
}

impl Clients {
    /// From the configuration. `assertions` outlives a reload, so that no used assertion becomes valid again.
    pub fn new(clients: Vec<Client>, assertions: Arc<ProofCache>) -> Self {
        Self {
            clients: clients.into_iter().map(|c| (c.id.clone(), c)).collect(),
            assertions,
        }
    }

    /// Counts assertions of an earlier process as used.
    pub fn restore(&self, used: &[UsedAssertion], now_s: u64) {
        for one in used {
            let id = (one.client.as_str(), one.jti.as_str());
            self.assertions.restore(&one.client, id, one.until_s, now_s);
        }
    }

    /// Ids of the assertions that were used.
    pub const fn assertions(&self) -> &Arc<ProofCache> {
        &self.assertions
    }

    /// The client's name in the configuration.
    pub fn known(&self, id: &str) -> Option<&str> {
        self.clients.get(id).map(|client| client.id.as_str())
    }

    /// Succeeds when `secret` is the client's and has not expired.
    pub fn check(&self, id: &str, secret: &str, now_s: u64) -> Result<(), ClientReject> {
        if client_secret::parse(secret) != Some(id) {
            return Err(ClientReject::SecretForm);
        }
        let client = self.clients.get(id).ok_or(ClientReject::Unknown)?;
        // An expired secret is reported as such only if no live one matches.
        let mut verdict = Err(ClientReject::Secret);
        for kept in &client.secrets {
            if !service_token::matches(secret, &kept.sha256) {
                continue;
            }
            if kept.until_s.is_none_or(|until| now_s < until) {
                return Ok(());
            }
            verdict = Err(ClientReject::SecretExpired);
        }
        verdict
    }

    /// Succeeds when the certificate of the connection is the client's (RFC 8705 section 2): pinned by its hash, or
    /// by a DNS name. The TLS handshake has checked that the configured authority issued it.
    pub fn check_cert(&self, id: &str, cert: &ClientCert) -> Result<(), ClientReject> {
        let client = self.clients.get(id).ok_or(ClientReject::Unknown)?;
        let named = |name: &String| {
            let same = |dns: &String| dns.eq_ignore_ascii_case(name);
            cert.dns_names.iter().any(same)
        };
        if client.certs.contains(&cert.sha256) || client.dns_names.iter().any(named) {
            Ok(())
        } else {
            Err(ClientReject::Certificate)
        }
    }

    /// Verifies an assertion (RFC 7523 section 3) and returns its client: signed by one of the client's keys, `iss` and
    /// `sub` its id, `aud` one of `audiences`, not expired, and not used before. `named` is the form's `client_id`, which
    /// must match if given. The use counts until the end of the process; the caller makes it durable.
    pub fn check_assertion(
        &self,
        assertion: &str,
        named: Option<&str>,
        audiences: &[String],
        now_s: u64,
    ) -> Result<UsedAssertion, ClientReject> {
        let form = ClientReject::AssertionForm;
        let jws = Jws::split(assertion, ASSERTION_BYTES_MAX).map_err(|_| form)?;
        let header = jws.header(&["alg", "kid", "typ"]).map_err(|_| form)?;
        let alg = text(&header, "alg")
            .and_then(JwsAlg::of_client)
            .ok_or(form)?;
        let typ = text(&header, "typ")
            .unwrap_or_default()
            .to_ascii_lowercase();
        if !["", "jwt", "client-authentication+jwt"].contains(&typ.as_str()) {
            return Err(form);
        }
        // Parsed unverified to find the client's key; trusted only after that key has verified the signature.
        let claims = jws.claims().map_err(|_| form)?;
        let id = text(&claims, "iss").ok_or(form)?;
        let kid = text(&header, "kid");
        let client = self.clients.get(id).ok_or(ClientReject::Unknown)?;
        let fits = |of: &Option<String>| kid.is_none() || of.is_none() || of.as_deref() == kid;
        let mut keys = client.keys.iter().filter(|(of, _)| fits(of));
        if !keys.any(|(_, key)| jws.verified_by(key, alg).is_ok()) {
            return Err(ClientReject::AssertionSignature);
        }
        let same = |given: Option<&str>| given.is_none_or(|given| given == id);
        if text(&claims, "sub") != Some(id) || !same(named) || !is_for(&claims, audiences) {
            return Err(ClientReject::AssertionTarget);
        }
        let (jti, exp) = once(&claims, now_s).ok_or(ClientReject::AssertionTime)?;
        // Last, so that only a valid assertion uses up a place in the cache.
        match self.assertions.take(id, (id, jti), exp, now_s) {
            Ok(()) => Ok(UsedAssertion {
                client: id.to_owned(),
                jti: jti.to_owned(),
                until_s: exp,
            }),
            Err(AuthReject::ProofsFull) => Err(ClientReject::AssertionsFull),
            Err(_) => Err(ClientReject::AssertionReplay),
        }
    }
}

/// The client that an assertion names, which is not verified.
pub fn named_in(assertion: &str) -> Option<String> {
    let jws = Jws::split(assertion, ASSERTION_BYTES_MAX).ok()?;
    let claims = jws.claims().ok()?;
    text(&claims, "iss").map(str::to_owned)
}

pub(crate) fn text<'m>(map: &'m Map<String, Value>, name: &str) -> Option<&'m str> {
    map.get(name).and_then(Value::as_str)
}

/// Whether `aud` names one of `audiences`.
pub(crate) fn is_for(claims: &Map<String, Value>, audiences: &[String]) -> bool {
    let ours = |aud: &Value| {
        aud.as_str()
            .is_some_and(|aud| audiences.iter().any(|a| a == aud))
    };
    match claims.get("aud") {
        Some(Value::Array(list)) => list.iter().any(ours),
        Some(one) => ours(one),
        None => false,
    }
}

/// `jti` and `exp` of an assertion that is valid now and expires while its id is still remembered.
fn once(claims: &Map<String, Value>, now_s: u64) -> Option<(&str, u64)> {
    let number = |name: &str| claims.get(name).map(Value::as_u64);
    let exp = number("exp")??;
    let mut starts = number("nbf").into_iter().chain(number("iat"));
    let early = starts.any(|at| at.is_none_or(|at| at > now_s + SKEW_S));
    let jti = text(claims, "jti").filter(|jti| !jti.is_empty() && jti.len() <= 256)?;
    (!early && exp > now_s && exp <= now_s + ASSERTION_S_MAX).then_some((jti, exp))
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
        guards: "ids of assertions",
    };

    fn secret(client: &str, byte: u8) -> String {
        client_secret::generate(client, &[byte; 32])
    }

    fn clients() -> Clients {
        let kept = |byte: u8, end: &str| {
            let hash = service_token::hash(&secret("operator", byte));
            format!("{hash}{end}").parse().unwrap()
        };
        let key = VerifyKey::Ed25519(Ed25519Key::from_seed(&[5; 32]).public());
        let memory = Arc::new(ProofCache::new(&USED));
        let list = vec![
            Client {
                id: "operator".to_owned(),
                secrets: vec![kept(1, ""), kept(2, "@2027-01-15T08:00:01Z")],
                keys: Vec::new(),
                certs: vec!["ab".repeat(32)],
                dns_names: Vec::new(),
            },
            Client {
                id: "robot".to_owned(),
                secrets: Vec::new(),
                keys: vec![(Some("r1".to_owned()), key)],
                certs: Vec::new(),
                dns_names: vec!["robot.example".to_owned()],
            },
        ];
        Clients::new(list, memory)
    }

    #[test]
    fn only_a_live_secret_of_ours_for_its_own_client_passes() {
        let mut clients = clients();
        let check = |clients: &Clients, id: &str, secret: &str, at| {
            clients.check(id, secret, at).map_err(ClientReject::reason)
        };
        let (first, second) = (secret("operator", 1), secret("operator", 2));
        assert_eq!(check(&clients, "operator", &first, NOW), Ok(()));
        assert_eq!(check(&clients, "operator", &second, NOW), Ok(()));
        let expired = check(&clients, "operator", &second, NOW + 1);
        assert_eq!(expired, Err("client_secret_expired"));
        assert_eq!(check(&clients, "operator", &first, NOW + 1), Ok(()));
        for (id, given, reason) in [
            ("operator", secret("operator", 3), "client_secret"),
            ("operator", String::new(), "client_secret_form"),
            ("operator", secret("robot", 1), "client_secret_form"),
            ("nobody", secret("nobody", 1), "client_unknown"),
            ("robot", secret("robot", 1), "client_secret"),
        ] {
            assert_eq!(check(&clients, id, &given, NOW), Err(reason), "{id}");
        }
        // One that somebody chose does not count, also where its hash is configured.
        let chosen = SecretHash {
            sha256: ron_crypto::hash::sha256(b"correct horse"),
            until_s: None,
        };
        let operator = clients.clients.get_mut("operator").unwrap();
        operator.secrets = vec![chosen];
        let refused = check(&clients, "operator", "correct horse", NOW);
        assert_eq!(refused, Err("client_secret_form"));
    }

    #[test]
    fn a_secret_is_kept_as_a_hash_and_perhaps_an_end() {
        let hash = "ab".repeat(32);
        let kept: SecretHash = format!("{hash}@2027-01-15T08:00:00Z").parse().unwrap();
        assert_eq!((kept.sha256, kept.until_s), ([0xab; 32], Some(NOW)));
        for bad in [
            "",
            "ab",
            &format!("{hash}@"),
            &format!("{hash}@soon"),
            &hash[1..],
        ] {
            assert!(bad.parse::<SecretHash>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_used_assertion_stays_used_over_a_reload_and_a_restart() {
        let before = clients();
        let after = Clients {
            clients: before.clients.clone(),
            assertions: before.assertions.clone(),
        };
        let restarted = clients();
        let key = Ed25519Key::from_seed(&[5; 32]);
        let claims = json!({"iss": "robot", "sub": "robot", "aud": "http://i", "exp": NOW + 60, "jti": "a1"});
        let part = |v: &Value| b64::url(v.to_string().as_bytes());
        let signed = format!("{}.{}", part(&json!({"alg": "EdDSA"})), part(&claims));
        let text = format!("{signed}.{}", b64::url(&key.sign(signed.as_bytes())));
        let ask =
            |clients: &Clients| clients.check_assertion(&text, None, &["http://i".to_owned()], NOW);
        let used = ask(&before).unwrap();
        assert_eq!(ask(&after), Err(ClientReject::AssertionReplay));
        restarted.restore(&[used], NOW);
        assert_eq!(ask(&restarted), Err(ClientReject::AssertionReplay));
    }

    #[test]
    fn a_certificate_is_its_clients_by_hash_or_name() {
        let clients = clients();
        let cert = |byte: &str, names: &[&str]| ClientCert {
            sha256: byte.repeat(32),
            dns_names: names.iter().map(|n| (*n).to_owned()).collect(),
        };
        let ask = |id: &str, cert: &ClientCert| clients.check_cert(id, cert).is_ok();
        assert!(ask("operator", &cert("ab", &[])));
        assert!(!ask("operator", &cert("cd", &["operator"])));
        assert!(ask("robot", &cert("cd", &["x", "Robot.Example"])));
        assert!(!ask("robot", &cert("ab", &["robot.example.org"])));
        assert!(!ask("nobody", &cert("ab", &["robot.example"])));
    }

    #[test]
    fn an_assertion_counts_once_for_its_client_and_for_us() {
        let clients = clients();
        let key = Ed25519Key::from_seed(&[5; 32]);
        let make = |header: Value, change: &dyn Fn(&mut Value)| {
            let mut claims = json!({"iss": "robot", "sub": "robot", "aud": "http://i/oauth2/token", "exp": NOW + 60, "iat": NOW, "jti": "a1"});
            change(&mut claims);
            let part = |v: &Value| b64::url(v.to_string().as_bytes());
            let signed = format!("{}.{}", part(&header), part(&claims));
            format!("{signed}.{}", b64::url(&key.sign(signed.as_bytes())))
        };
        let aud = ["http://i".to_owned(), "http://i/oauth2/token".to_owned()];
        let ask = |text: &str, named| clients.check_assertion(text, named, &aud, NOW).is_ok();
        let head = || json!({"alg": "EdDSA", "kid": "r1"});
        let bad = |header: Value, change: &dyn Fn(&mut Value)| {
            let text = make(header, change);
            assert!(!ask(&text, None), "{text}");
        };
        bad(json!({"alg": "none"}), &|_| {});
        bad(json!({"alg": "ES256"}), &|_| {});
        bad(json!({"alg": "EdDSA", "crit": ["x"]}), &|_| {});
        bad(json!({"alg": "EdDSA", "kid": "r2"}), &|_| {});
        bad(json!({"alg": "EdDSA", "typ": "at+jwt"}), &|_| {});
        bad(head(), &|c| c["sub"] = "operator".into());
        bad(head(), &|c| c["iss"] = "operator".into());
        bad(head(), &|c| c["aud"] = "http://elsewhere".into());
        bad(head(), &|c| c["exp"] = NOW.into());
        bad(head(), &|c| c["exp"] = (NOW + 3600).into());
        bad(head(), &|c| c["iat"] = (NOW + 61).into());
        bad(head(), &|c| c["jti"] = Value::Null);
        let good = make(head(), &|_| {});
        assert!(!ask(&good, Some("operator")), "the form names another");
        let second = make(head(), &|c| c["jti"] = "a2".into());
        assert!(ask(&second, Some("robot")));
        assert!(!ask(&second, Some("robot")), "used");
        assert!(ask(
            &make(head(), &|c| {
                c["jti"] = "a3".into();
                c["aud"] = json!(["x", "http://i"]);
            }),
            None
        ));
    }

    #[test]
    fn keys_are_public_and_of_our_kinds() {
        let x = b64::url(&[7; 32]);
        let jwk = format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}"#);
        assert_eq!(client_keys(&jwk).unwrap().len(), 1);
        assert_eq!(
            client_keys(&format!(r#"{{"keys":[{jwk},{jwk}]}}"#))
                .unwrap()
                .len(),
            2
        );
        for bad in [
            "",
            "{}",
            r#"{"keys":[]}"#,
            r#"{"keys":7}"#,
            r#"{"kty":"oct","k":"AA"}"#,
        ] {
            assert!(client_keys(bad).is_err(), "{bad}");
        }
        let private = jwk.replace('}', r#","d":"AA"}"#);
        assert!(client_keys(&private).is_err());
    }
}
