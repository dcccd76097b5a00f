//! An issuer from the view of its clients: a fleet with a second client that signs assertions, and
//! the ways to call it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::{Fleet, json, ok, ron_on, until};
use ron_client::encode;
use ron_crypto::sign::Ed25519Key;
use ron_http::{Method, Reply};
use ron_proto::b64;
use serde_json::Value;

pub const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
pub const ACCESS: &str = "urn:ietf:params:oauth:token-type:access_token";
pub const ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// A revocation or a policy that has no effect within this time is lost.
/// tests/e2e/passport_spread.rs measures how fast they are on a quiet machine.
pub const SPREAD: Duration = Duration::from_secs(30);

pub fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs()
}

pub fn part(value: &Value) -> String {
    b64::url(value.to_string().as_bytes())
}

pub fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&b64::from_url(payload).unwrap()).unwrap()
}

pub fn robot() -> Ed25519Key {
    Ed25519Key::from_seed(&[42; 32])
}

/// The version of the policy that the issuer decides by.
pub fn version_in_force(fleet: &Fleet) -> f64 {
    fleet.metric(
        "svc-passport",
        "svc_passport_policy_version{kind=\"issuer\"} ",
    )
}

/// A fleet with a second client that signs assertions, whose policy is read five times a second.
pub struct Rig {
    pub fleet: Fleet,
}

impl Rig {
    pub fn start() -> Self {
        Self::start_with(|_| ())
    }

    /// The same, with more configuration.
    pub fn start_with(configure: impl FnOnce(&Path)) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        ok(&ron_on(dir.path(), &["init"]));
        configure(dir.path());
        let path = dir.path().join("svc-passport/config.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let x = b64::url(&robot().public());
        let text = text.replace("[policy]\n", "[policy]\npoll_interval = \"200ms\"\n");
        let client = format!(
            "\n[[clients]]\nid = \"robot\"\njwks = '{{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"{x}\"}}'\n"
        );
        // Longer than the default: on a busy machine a verifier may be slow to fetch a new key.
        let hold = "\n[rotation]\nhold = \"2s\"\n";
        assert!(!text.contains("[rotation]"), "{text}");
        std::fs::write(&path, text + &client + hold).unwrap();
        let rig = Self {
            fleet: Fleet::start_in(dir),
        };
        let mut policy = rig.policy();
        policy["version"] = 2.into();
        let mut rule = policy["clients"][0].clone();
        rule["client_id"] = "robot".into();
        rule["exchange"] = true.into();
        rule["audiences"] = json!([{"audience": "svc-wallet", "scopes": ["wallet:read"]}]);
        policy["clients"].as_array_mut().unwrap().push(rule);
        rig.publish(&policy, true);
        let waited = Instant::now();
        while rig.robot_token().status != 200 {
            assert!(waited.elapsed() < SPREAD, "the new policy was not taken up");
            std::thread::sleep(Duration::from_millis(50));
        }
        rig
    }

    pub fn policy(&self) -> Value {
        let text = std::fs::read(self.fleet.dir().join("policy/issuer.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    /// Puts a policy where the issuer reads it, signed or with the previous signature.
    pub fn publish(&self, policy: &Value, signed: bool) {
        let draft = self.fleet.dir().join("draft.json");
        std::fs::write(&draft, policy.to_string()).unwrap();
        if signed {
            let draft = draft.to_str().unwrap();
            ok(&self
                .fleet
                .ron(&["policy", "sign", "--kind", "issuer", draft]));
        }
        let into = self.fleet.dir().join("policy");
        if signed {
            let sig = self.fleet.dir().join("draft.json.sig");
            std::fs::rename(sig, into.join("issuer.json.sig")).unwrap();
        }
        std::fs::rename(draft, into.join("issuer.json")).unwrap();
    }

    /// Publishes a signed policy and waits until it is in force.
    #[allow(clippy::float_cmp)] // both are whole numbers
    pub fn put_in_force(&self, policy: &Value) {
        self.publish(policy, true);
        until("the policy is in force", || {
            version_in_force(&self.fleet) == policy["version"].as_f64().unwrap()
        });
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.fleet.api("svc-passport"))
    }

    pub fn form(&self, path: &str, fields: &[(&str, &str)], headers: &[(&str, &str)]) -> Reply {
        let body: Vec<String> = fields
            .iter()
            .map(|(n, v)| format!("{n}={}", encode(v)))
            .collect();
        let mut all = vec![("Content-Type", "application/x-www-form-urlencoded")];
        all.extend_from_slice(headers);
        self.fleet.send(
            Method::POST,
            &self.url(path),
            None,
            Some(&body.join("&")),
            &all,
        )
    }

    /// The operator's HTTP Basic credential.
    pub fn basic(&self) -> String {
        let text = std::fs::read(self.fleet.dir().join("clients/operator.json")).unwrap();
        let file: Value = serde_json::from_slice(&text).unwrap();
        let pair = format!("operator:{}", file["client_secret"].as_str().unwrap());
        format!("Basic {}", b64::std(pair.as_bytes()))
    }

    pub fn operator(&self, path: &str, fields: &[(&str, &str)]) -> Reply {
        self.form(path, fields, &[("Authorization", &self.basic())])
    }

    pub fn assertion(&self, change: impl Fn(&mut Value)) -> String {
        let jti = b64::url(&ron_kernel::OsRandom.bytes::<12>());
        let mut said = json!({"iss": "robot", "sub": "robot", "aud": self.url("/oauth2/token"), "exp": now_s() + 60, "jti": jti});
        change(&mut said);
        let signed = format!("{}.{}", part(&json!({"alg": "EdDSA"})), part(&said));
        format!("{signed}.{}", b64::url(&robot().sign(signed.as_bytes())))
    }

    pub fn robot_with(&self, assertion: &str, more: &[(&str, &str)]) -> Reply {
        let mut fields = vec![
            ("client_assertion_type", ASSERTION),
            ("client_assertion", assertion),
        ];
        fields.extend_from_slice(more);
        self.form("/oauth2/token", &fields, &[])
    }

    pub fn robot_token(&self) -> Reply {
        let ask = [
            ("grant_type", "client_credentials"),
            ("audience", "svc-wallet"),
        ];
        self.robot_with(&self.assertion(|_| {}), &ask)
    }

    /// A token signed by the issuer's own key, as a thief of the operator's KMS token could make
    /// it: the KMS signs everything that the issuer policy allows.
    pub fn stolen(&self, typ: &str, change: impl Fn(&mut Value)) -> String {
        let (signed, answer) = self.ask_to_sign(typ, change);
        let answer = json(&answer, 200);
        format!(
            "{signed}.{}",
            answer["signatures"][0]["signature"].as_str().unwrap()
        )
    }

    /// Asks the KMS for the signature of a changed token; the signing input and the answer.
    pub fn ask_to_sign(&self, typ: &str, change: impl Fn(&mut Value)) -> (String, Reply) {
        let good = self.fleet.token("svc-wallet", None);
        let mut said = claims(&good);
        change(&mut said);
        let header: Value =
            serde_json::from_slice(&b64::from_url(good.split('.').next().unwrap()).unwrap())
                .unwrap();
        let header = json!({"alg": "EdDSA", "kid": header["kid"], "typ": typ});
        let signed = format!("{}.{}", part(&header), part(&said));
        let key = &self.fleet.bootstrap()["issuer_key"];
        let body = json!({"key": key, "message": b64::url(signed.as_bytes())}).to_string();
        let url = format!("{}/v1/kms/sign", self.fleet.api_socket("ron-kms"));
        let token = self.fleet.operator_token();
        let answer = self.fleet.post(&url, Some(&token), &body, &[]);
        (signed, answer)
    }

    pub fn balance(&self, token: &str) -> Reply {
        self.fleet.get(&self.balance_url(), Some(token))
    }

    pub fn balance_url(&self) -> String {
        format!(
            "{}/v1/balance?account=a&asset=ron",
            self.fleet.api("svc-wallet")
        )
    }

    pub fn verdict(&self, token: &str) -> Value {
        let body = json!({"token": token}).to_string();
        json(
            &self
                .fleet
                .post(&self.url("/v1/passport/verify"), None, &body, &[]),
            200,
        )
    }

    /// Must be refused by a service within the time allowed for revocations.
    pub fn refused_soon(ask: impl Fn() -> Reply, what: &str) {
        let since = Instant::now();
        loop {
            let reply = ask();
            if reply.status == 401 {
                return;
            }
            assert_eq!(reply.status, 200, "{what}");
            assert!(
                since.elapsed() < SPREAD,
                "{what}: still accepted after {SPREAD:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// `ron <args>` without a data directory.
pub fn bare(args: &[&str]) -> String {
    let out = std::process::Command::new(crate::ron_binary())
        .args(args)
        .output()
        .unwrap();
    ok(&out)
}

pub fn text(reply: &Reply, field: &str) -> String {
    json(reply, 200)[field].as_str().unwrap().to_owned()
}

/// A passport with these claims changed, signed with the issuer's key under an issuer policy that
/// allows it.
pub fn minted(fleet: &Fleet, audience: &str, changes: &Value) -> String {
    let good = fleet.token(audience, None);
    let header = good.split('.').next().unwrap();
    let mut claims = claims(&good);
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
    }
    fleet.change_issuer_policy(|policy| {
        let clients = policy["clients"].as_array_mut().unwrap();
        let client = format!("minted-{}", clients.len());
        claims["client_id"] = client.as_str().into();
        let scopes: Vec<&str> = claims["scope"].as_str().unwrap().split(' ').collect();
        clients.push(json!({
            "client_id": client, "tenant": claims["tenant"], "subjects": [claims["sub"]], "max_ttl_s": 3600,
            "audiences": [{"audience": audience, "scopes": scopes}]
        }));
    });
    let signed = format!("{header}.{}", part(&claims));
    let body =
        json!({"key": fleet.bootstrap()["issuer_key"], "message": b64::url(signed.as_bytes())});
    let answer = fleet.kms("sign", &body, 200);
    let signature = answer["signatures"][0]["signature"].as_str().unwrap();
    format!("{signed}.{signature}")
}
