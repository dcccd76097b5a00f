//! OAuth clients and how they prove who they are: a secret (slow hash, checked by two threads at most, remembered
//! fast) or an assertion signed by their own key (RFC 7523).

use std::collections::BTreeMap;

use ron_auth::dpop::ProofCache;
use ron_auth::jwks::{JwsAlg, VerifyKey};
use ron_auth::jws::Jws;
use ron_crypto::{ct, hash, password, rand};
use ron_http::ClientCert;
use ron_kernel::{Credits, RankedMutex};
use ron_proto::Problem;
use serde_json::Value;

use crate::topology::{ASSERTIONS, CLIENT_CACHE};

/// Secrets checked at once; each takes about 20 ms and 19 MiB.
const CHECKS_MAX: usize = 2;
/// Longest secret, in bytes.
const SECRET_BYTES_MAX: usize = 256;
/// Longest assertion, in bytes.
const ASSERTION_BYTES_MAX: usize = 4096;
/// How far ahead an assertion may expire, in seconds; its id is remembered that long.
const ASSERTION_S_MAX: u64 = 600;
/// Clock difference that is forgiven, in seconds.
const SKEW_S: u64 = 60;

/// Who a client is.
#[derive(Clone, PartialEq, Eq)]
pub struct Client {
    /// `client_id`.
    pub id: String,
    /// Argon2id hash of its secret (PHC text, `$argon2id$...`), if it has one.
    pub secret_hash: Option<String>,
    /// Public keys of its assertions, with their `kid` where they have one.
    pub keys: Vec<(Option<String>, VerifyKey)>,
    /// SHA-256 of its certificates, 64 lower-case hex digits each.
    pub certs: Vec<String>,
    /// DNS names, one of which its certificate carries.
    pub dns_names: Vec<String>,
}

impl Client {
    /// Whether it can prove itself by a certificate.
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

/// Checks clients.
#[derive(Debug)]
pub struct Clients {
    clients: BTreeMap<String, Client>,
    checks: Credits,
    /// Key of the remembered hashes: made at start, never stored.
    memory_key: [u8; 32],
    /// Client -> keyed hash of the secret that was verified last.
    remembered: RankedMutex<BTreeMap<String, [u8; 32]>>,
    /// Ids of the assertions that were used.
    assertions: ProofCache,
}

impl Clients {
    /// From the configuration.
    pub fn new(clients: Vec<Client>) -> Self {
        Self {
            clients: clients.into_iter().map(|c| (c.id.clone(), c)).collect(),
            checks: Credits::new(CHECKS_MAX),
            memory_key: rand::bytes(),
            remembered: RankedMutex::new(&CLIENT_CACHE, BTreeMap::new()),
            assertions: ProofCache::new(&ASSERTIONS),
        }
    }

    /// Succeeds when `secret` is the client's. An unknown client costs as much as a wrong secret.
    pub fn check(&self, id: &str, secret: &str) -> Result<(), Problem> {
        if secret.is_empty() || secret.len() > SECRET_BYTES_MAX {
            return Err(invalid_client());
        }
        let mut keyed = Vec::with_capacity(id.len() + secret.len() + 1);
        keyed.extend_from_slice(id.as_bytes());
        keyed.push(0);
        keyed.extend_from_slice(secret.as_bytes());
        let tag = hash::hmac_sha256(&self.memory_key, &keyed);
        if self
            .remembered
            .lock()
            .get(id)
            .is_some_and(|known| ct::eq(known, &tag))
        {
            return Ok(());
        }
        let _check = self.checks.try_acquire().ok_or_else(|| Problem::busy(1))?;
        let stored = self.clients.get(id).and_then(|c| c.secret_hash.as_deref());
        let right = password::verify_secret(secret.as_bytes(), stored.unwrap_or(DUMMY));
        if stored.is_none() || !right {
            return Err(invalid_client());
        }
        self.remembered.lock().insert(id.to_owned(), tag);
        Ok(())
    }

    /// Succeeds when the certificate of the connection is the client's (RFC 8705 section 2): pinned by its hash, or
    /// by a DNS name. That it comes from the configured authority, the TLS handshake has checked.
    pub fn check_cert(&self, id: &str, cert: &ClientCert) -> Result<(), Problem> {
        let client = self.clients.get(id).ok_or_else(invalid_client)?;
        let named = |name: &String| {
            let same = |dns: &String| dns.eq_ignore_ascii_case(name);
            cert.dns_names.iter().any(same)
        };
        if client.certs.contains(&cert.sha256) || client.dns_names.iter().any(named) {
            Ok(())
        } else {
            Err(invalid_client())
        }
    }

    /// The client of an assertion (RFC 7523 section 3): signed by one of its keys, `iss` and `sub` its id, `aud` one
    /// of ours, alive, and never seen before. `named` is the form's `client_id`, which must agree where it is given.
    pub fn check_assertion(
        &self,
        assertion: &str,
        named: Option<&str>,
        audiences: &[String],
        now_s: u64,
    ) -> Result<String, Problem> {
        let claimed = self
            .assertion(assertion, audiences, now_s)
            .ok_or_else(invalid_client)?;
        if named.is_some_and(|named| named != claimed) {
            return Err(invalid_client());
        }
        Ok(claimed)
    }

    fn assertion(&self, assertion: &str, audiences: &[String], now_s: u64) -> Option<String> {
        let jws = Jws::split(assertion, ASSERTION_BYTES_MAX).ok()?;
        let header = jws.header(&["alg", "kid", "typ"]).ok()?;
        let text = |map: &serde_json::Map<String, Value>, name: &str| {
            map.get(name).and_then(Value::as_str).map(str::to_owned)
        };
        let alg = JwsAlg::parse(&text(&header, "alg")?)?;
        let typ = text(&header, "typ")
            .unwrap_or_default()
            .to_ascii_lowercase();
        if !["", "jwt", "client-authentication+jwt"].contains(&typ.as_str()) {
            return None;
        }
        // Read without trust to learn whose key to use; believed once that key has signed it.
        let claims = jws.claims().ok()?;
        let id = text(&claims, "iss")?;
        let kid = text(&header, "kid");
        let client = self.clients.get(&id)?;
        let fits = |of: &Option<String>| kid.is_none() || of.is_none() || *of == kid;
        let mut keys = client.keys.iter().filter(|(of, _)| fits(of));
        if !keys.any(|(_, key)| jws.verified_by(key, alg).is_ok()) || text(&claims, "sub")? != id {
            return None;
        }
        let ours = |aud: &Value| {
            aud.as_str()
                .is_some_and(|aud| audiences.iter().any(|a| a == aud))
        };
        let aud = match claims.get("aud")? {
            Value::Array(list) => list.iter().any(ours),
            one => ours(one),
        };
        let number = |name: &str| claims.get(name).map(Value::as_u64);
        let exp = number("exp")??;
        let early = number("nbf")
            .into_iter()
            .chain(number("iat"))
            .any(|at| at.is_none_or(|at| at > now_s + SKEW_S));
        if !aud || early || exp <= now_s || exp > now_s + ASSERTION_S_MAX {
            return None;
        }
        let jti = text(&claims, "jti").filter(|jti| !jti.is_empty() && jti.len() <= 256)?;
        self.assertions.take(&id, &jti, exp, now_s).ok()?;
        Some(id)
    }
}

/// The hash of a secret that nobody has: what an unknown client's secret is compared with.
const DUMMY: &str = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn invalid_client() -> Problem {
    Problem::unauthorized("the client is unknown or did not prove who it is")
        .with_oauth("invalid_client")
}

#[cfg(test)]
mod tests {
    use ron_crypto::sign::Ed25519Key;
    use ron_proto::b64;
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn clients() -> Clients {
        let key = VerifyKey::Ed25519(Ed25519Key::from_seed(&[5; 32]).public());
        Clients::new(vec![
            Client {
                id: "operator".to_owned(),
                secret_hash: Some(password::hash_secret(b"correct horse")),
                keys: Vec::new(),
                certs: vec!["ab".repeat(32)],
                dns_names: Vec::new(),
            },
            Client {
                id: "robot".to_owned(),
                secret_hash: None,
                keys: vec![(Some("r1".to_owned()), key)],
                certs: Vec::new(),
                dns_names: vec!["robot.example".to_owned()],
            },
        ])
    }

    #[test]
    fn only_the_right_secret_of_a_known_client_passes_and_is_remembered() {
        let clients = clients();
        assert!(clients.check("operator", "correct horse").is_ok());
        let remembered = clients.remembered.lock().len();
        assert_eq!(remembered, 1);
        assert!(clients.check("operator", "correct horse").is_ok());
        for (id, secret) in [
            ("operator", "wrong"),
            ("operator", ""),
            ("nobody", "correct horse"),
            ("robot", "correct horse"),
        ] {
            let got = clients.check(id, secret).unwrap_err();
            assert_eq!(
                (got.status, got.oauth),
                (401, Some("invalid_client")),
                "{id}"
            );
        }
        let busy: Vec<_> = (0..CHECKS_MAX)
            .map(|_| clients.checks.try_acquire().unwrap())
            .collect();
        assert_eq!(clients.check("operator", "other").unwrap_err().status, 429);
        assert!(
            clients.check("operator", "correct horse").is_ok(),
            "remembered needs no check"
        );
        drop(busy);
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
