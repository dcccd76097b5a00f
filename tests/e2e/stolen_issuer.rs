//! The holder of svc-passport's credential at the KMS, who speaks to the KMS's socket directly: nothing
//! is signed beyond the signed issuer policy, and the policy cannot be changed, taken back or replaced.

use ron_crypto::sign::Ed25519Key;
use ron_http::{Method, Reply};
use ron_kms::Leaf;
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::{ContentId, b64};
use ron_tests::issuer::{Rig, now_s, part};
use ron_tests::{json, ok, read_json, until};
use serde_json::{Value, json};

use crate::transit::leaves;

/// A caller at the KMS with the service token of svc-passport and nothing else.
struct Thief<'a> {
    rig: &'a Rig,
    token: String,
    made: Value,
    /// Thumbprint of the issuer's key.
    kid: String,
}

impl<'a> Thief<'a> {
    fn of(rig: &'a Rig) -> Self {
        let file = rig.fleet.dir().join("svc-passport/ron-kms.token");
        let keys = rig.fleet.get(&rig.url("/.well-known/jwks.json"), None);
        Self {
            rig,
            token: std::fs::read_to_string(file).unwrap().trim().to_owned(),
            made: rig.fleet.bootstrap(),
            kid: json(&keys, 200)["keys"][0]["kid"]
                .as_str()
                .unwrap()
                .to_owned(),
        }
    }

    fn name(&self, which: &str) -> String {
        self.made[which].as_str().unwrap().to_owned()
    }

    fn call(&self, method: Method, path: &str, body: &Value) -> Reply {
        let url = format!("{}/v1/kms/{path}", self.rig.fleet.api_socket("ron-kms"));
        let body = (!body.is_null()).then(|| body.to_string());
        let token = Some(self.token.as_str());
        self.rig
            .fleet
            .send(method, &url, token, body.as_deref(), &[])
    }

    fn sign(&self, key: &str, message: &str) -> Reply {
        let body = json!({"key": key, "message": b64::url(message.as_bytes())});
        self.call(Method::POST, "sign", &body)
    }

    /// A token of the client robot, as its rule allows; `change` replaces claims.
    fn jwt(&self, typ: &str, change: &Value) -> Reply {
        self.sign(&self.name("issuer_key"), &self.token(typ, change))
    }

    /// The signing input of that token.
    fn token(&self, typ: &str, change: &Value) -> String {
        let now = now_s();
        let mut claims = json!({"iss": self.made["issuer"], "sub": "robot", "aud": "svc-wallet", "iat": now, "nbf": now,
            "exp": now + 900, "jti": "stolen", "client_id": "robot", "tenant": "default", "scope": "wallet:read", "ron_epoch": 1});
        for (name, value) in change.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let header = json!({"alg": "EdDSA", "kid": self.kid, "typ": typ});
        format!("{}.{}", part(&header), part(&claims))
    }

    /// The code of each item of a batch of messages.
    fn batch(&self, key: &str, messages: &[String]) -> Vec<String> {
        let items: Vec<Value> = messages
            .iter()
            .map(|message| json!({"message": b64::url(message.as_bytes())}))
            .collect();
        let body = json!({"key": key, "items": items});
        let reply = json(&self.call(Method::POST, "sign_batch", &body), 200);
        let results = reply["results"].as_array().unwrap().iter();
        results
            .map(|one| one["error"]["code"].as_str().unwrap_or("signed").to_owned())
            .collect()
    }

    fn put(&self, policy: &Value, signature: &Value) -> Reply {
        let body = json!({"policy": policy, "signature": signature});
        self.call(Method::PUT, "issuer_policy", &body)
    }

    fn in_force(&self) -> Value {
        json(&self.call(Method::GET, "issuer_policy", &Value::Null), 200)
    }

    /// A policy note that lists the issuer's key and names this policy.
    fn note(&self, policy: &str) -> Reply {
        let issuer = self.name("issuer");
        let kid = &self.kid;
        let text = format!(
            "{issuer}/policy\nversion 99\nissuer {issuer}\n{policy}key {kid} EdDSA 1 - good\n"
        );
        self.sign(&self.name("note_key"), &text)
    }

    fn leaves(&self) -> Vec<Leaf> {
        let fleet = &self.rig.fleet;
        leaves(fleet, &fleet.operator_token())
    }
}

fn code(reply: &Reply) -> String {
    let body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    format!(
        "{} {}",
        reply.status,
        body["code"].as_str().unwrap_or_default()
    )
}

#[test]
fn nothing_is_signed_beyond_the_policy_and_the_policy_is_not_changed() {
    let rig = Rig::start();
    let dir = rig.fleet.dir().join("policy");
    let first = (
        read_json(&dir.join("issuer.json")),
        read_json(&dir.join("issuer.json.sig")),
    );
    let mut third = rig.policy();
    third["version"] = 3.into();
    rig.publish(&third, true);
    let thief = Thief::of(&rig);
    until("the third policy is in force", || {
        thief.in_force()["version"] == 3
    });
    let before = thief.in_force();
    // What the policy allows is signed.
    assert_eq!(code(&thief.jwt("at+jwt", &json!({}))), "200 ");

    let refused = "403 payload_refused";
    let seen = thief.leaves().len();
    let tokens = [
        (
            "another audience",
            json!({"aud": "ron-kms", "scope": "kms:read"}),
        ),
        (
            "several audiences",
            json!({"aud": ["svc-wallet", "svc-admin"]}),
        ),
        (
            "another scope",
            json!({"scope": "wallet:read wallet:issue"}),
        ),
        ("another tenant", json!({"tenant": "other"})),
        ("the installation's tenant", json!({"tenant": "ron"})),
        ("another client", json!({"client_id": "nobody"})),
        ("another subject", json!({"sub": "operator"})),
        ("a lifetime beyond an hour", json!({"exp": now_s() + 3700})),
        ("another issuer", json!({"iss": "http://127.0.0.1:1"})),
        (
            "from the future",
            json!({"iat": now_s() + 600, "exp": now_s() + 900}),
        ),
        ("an unknown claim", json!({"groups": ["admin"]})),
        (
            "rights of another kind",
            json!({"authorization_details": [{"type": "payment"}]}),
        ),
        (
            "acting for nobody",
            json!({"act": {"sub": "operator"}, "client_id": "operator"}),
        ),
        (
            "acting beyond the holder",
            json!({"act": {"sub": "robot"}, "sub": "user:7"}),
        ),
    ];
    for (what, change) in &tokens {
        assert_eq!(code(&thief.jwt("at+jwt", change)), refused, "{what}");
    }
    assert_eq!(code(&thief.jwt("statuslist+jwt", &json!({}))), refused);
    assert_eq!(code(&thief.jwt("JWT", &json!({}))), refused);
    let in_force =
        |version: &Value, hash: &Value| format!("policy {version} {}\n", hash.as_str().unwrap());
    let old_hash = ContentId::of(&ron_proto::jcs::canonicalize(&first.0)).to_string();
    let notes = [
        String::new(),
        "policy 3\n".to_owned(),
        in_force(&json!(2), &json!(old_hash)),
        in_force(&json!(4), &before["hash"]),
        in_force(&json!(3), &json!(old_hash)),
    ];
    for note in &notes {
        assert_eq!(code(&thief.note(note)), refused, "{note}");
    }
    let true_line = in_force(&before["version"], &before["hash"]);
    let outsider = format!("{true_line}key AAAA EdDSA 1 - good\n");
    assert_eq!(code(&thief.note(&outsider)), refused, "an unknown key");
    // Other keys, whatever they would sign.
    for key in ["policy_key", "manifest_key"] {
        let name = thief.name(key);
        assert_eq!(code(&thief.sign(&name, "x")), "403 forbidden", "{key}");
        let body = json!({"key": name, "digest": {"alg": "blake3", "value": "07".repeat(32)}});
        assert_eq!(
            code(&thief.call(Method::POST, "sign", &body)),
            "403 forbidden",
            "{key}"
        );
    }
    let digest = json!({"key": thief.name("issuer_key"), "digest": {"alg": "blake3", "value": "07".repeat(32)}});
    assert_eq!(code(&thief.call(Method::POST, "sign", &digest)), refused);
    // Policies: an earlier one, one with an earlier signature, and ones that others have signed.
    let mut wide = third.clone();
    wide["version"] = 4.into();
    wide["clients"][1]["audiences"][0]["scopes"] = json!(["wallet:read", "wallet:issue"]);
    let bytes = ron_proto::jcs::canonicalize(&wide);
    let mine = Ed25519Key::from_seed(&[66; 32]);
    let by_me = |name: &Value| {
        let value = b64::url(&mine.sign(&policy_message("issuer", &bytes)));
        json!(PolicySig {
            alg: "ed25519".to_owned(),
            key: name.as_str().unwrap().to_owned(),
            value,
        })
    };
    for (what, policy, sig) in [
        ("an earlier one", &first.0, first.1.clone()),
        (
            "with the signature of an earlier one",
            &wide,
            first.1.clone(),
        ),
        ("signed by the thief", &wide, by_me(&json!("mine"))),
        (
            "signed by the thief under the pinned name",
            &wide,
            by_me(&first.1["key"]),
        ),
    ] {
        assert_eq!(
            code(&thief.put(policy, &sig)),
            "409 policy_refused",
            "{what}"
        );
    }
    // Each of these refusals has its leaf.
    let refusals = tokens.len() + 2 + notes.len() + 1 + 4 + 1 + 4;
    until("the leaves are under a checkpoint", || {
        thief.leaves().len() >= seen + refusals
    });
    let all = thief.leaves();
    let ours: Vec<&Leaf> = all[seen..]
        .iter()
        .filter(|leaf| leaf.result != "ok")
        .collect();
    assert_eq!(ours.len(), refusals);
    assert!(ours.iter().all(|leaf| leaf.actor == "svc-passport"));
    let of_policies = ours.iter().filter(|leaf| leaf.result == "policy_refused");
    assert_eq!(of_policies.count(), 4);

    // Rights that the credential does not have: refused before the body is read, counted and logged.
    let issuer = thief.name("issuer_key");
    let create = json!({"tenant": "ron", "purpose": "issuer", "alg": "ed25519", "payload": "any",
        "op_id": "01890a5d-ac96-774b-bcce-b302099a8057"});
    let failures = "ron_kms_auth_failures_total{reason=\"scope\"}";
    let counted = rig.fleet.metric("ron-kms", failures);
    let calls = [
        (Method::POST, "keys".to_owned(), create),
        (Method::POST, "keys/import".to_owned(), json!({})),
        (Method::POST, format!("keys/{issuer}/rotate"), json!({})),
        (
            Method::PATCH,
            format!("keys/{issuer}"),
            json!({"min_verify_version": 1}),
        ),
        (Method::POST, format!("keys/{issuer}/retire"), json!({})),
        (Method::POST, format!("keys/{issuer}/destroy"), json!({})),
        (Method::POST, format!("keys/{issuer}/export"), json!({})),
        (Method::POST, "log_key/rotate".to_owned(), json!({})),
    ];
    for (method, path, body) in &calls {
        assert_eq!(
            thief.call(*method, path, body).status,
            403,
            "{method} {path}"
        );
    }
    assert_eq!(
        rig.fleet.metric("ron-kms", failures) - counted,
        calls.len() as f64
    );

    // Nothing has changed, and the issuer works.
    assert_eq!(thief.in_force(), before);
    assert_eq!(rig.robot_token().status, 200);
    let operator = rig.fleet.token("svc-wallet", None);
    assert_eq!(rig.balance(&operator).status, 200);
    ok(&rig.fleet.ron(&["audit", "verify"]));
}

/// A service that is not of this installation is a matter of the policy that the KMS has verified, as ours are.
#[test]
fn another_audience_is_signed_for_its_client_while_the_policy_names_it() {
    let rig = Rig::start();
    let thief = Thief::of(&rig);
    let orders = "https://orders.example.org/";
    let first = rig.policy();
    let publish = |version: u64, audiences: Value, rules: Value| {
        let mut policy = first.clone();
        policy["version"] = version.into();
        policy["audiences"] = audiences;
        policy["clients"][1]["audiences"] = rules;
        rig.publish(&policy, true);
        until("the policy is in force", || {
            thief.in_force()["version"] == version
        });
    };
    let asked = |change: &Value| {
        let mut claims = json!({"aud": orders, "scope": "read", "exp": now_s() + 60});
        let to = claims.as_object_mut().unwrap();
        to.extend(change.as_object().unwrap().clone());
        code(&thief.jwt("at+jwt", &claims))
    };
    let (signed, refused) = ("200 ", "403 payload_refused");
    assert_eq!(asked(&json!({})), refused);
    let named = json!([{"audience": orders, "scopes": ["read", "write"], "max_ttl_s": 60, "caveats": ["region=eu"]}]);
    let eu = json!([{"type": "ron", "region": "eu"}]);
    publish(
        3,
        named.clone(),
        json!([{"audience": "svc-wallet", "scopes": ["wallet:read"]}]),
    );
    assert_eq!(
        asked(&json!({"authorization_details": eu})),
        refused,
        "for no client"
    );
    publish(4, named, json!([{"audience": orders, "scopes": ["read"]}]));
    for (what, want, change) in [
        ("what its rule says", signed, json!({})),
        (
            "a scope of another client",
            refused,
            json!({"scope": "read write"}),
        ),
        ("a scope of ours", refused, json!({"scope": "wallet:read"})),
        (
            "longer than the audience's maximum",
            refused,
            json!({"exp": now_s() + 120}),
        ),
        (
            "without the audience's caveat",
            refused,
            json!({"authorization_details": []}),
        ),
        (
            "another client",
            refused,
            json!({"client_id": "operator", "sub": "operator"}),
        ),
        (
            "one of ours too",
            refused,
            json!({"aud": [orders, "svc-wallet"]}),
        ),
    ] {
        let mut change = change;
        if change["authorization_details"].is_null() {
            change["authorization_details"] = eu.clone();
        }
        assert_eq!(asked(&change), want, "{what}");
    }
    publish(
        5,
        json!([]),
        json!([{"audience": "svc-wallet", "scopes": ["wallet:read"]}]),
    );
    assert_eq!(asked(&json!({"authorization_details": eu})), refused);
}

/// The other routes of the KMS that sign decide as `/sign` does, and those of Vault's API show no key of the installation.
#[test]
fn batches_and_the_routes_of_vault_sign_nothing_more() {
    let rig = Rig::start();
    let thief = Thief::of(&rig);
    let issuer = thief.name("issuer_key");
    let seen = thief.leaves().len();
    let batch = [
        thief.token("at+jwt", &json!({})),
        thief.token("at+jwt", &json!({"aud": "ron-kms"})),
        thief.token("at+jwt", &json!({"scope": "wallet:read wallet:issue"})),
        thief.token("at+jwt", &json!({"sub": "operator"})),
        thief.token("JWT", &json!({})),
        "x".to_owned(),
    ];
    let refused = "payload_refused";
    let want = ["signed", refused, refused, refused, refused, refused];
    assert_eq!(thief.batch(&issuer, &batch), want);
    for key in ["policy_key", "manifest_key"] {
        assert_eq!(
            thief.batch(&thief.name(key), &batch[..1]),
            ["forbidden"],
            "{key}"
        );
    }
    until("each item has its leaf", || {
        let leaves = thief.leaves();
        let ours = leaves[seen..]
            .iter()
            .filter(|leaf| leaf.actor == "svc-passport");
        let refused = ours.filter(|leaf| leaf.result != "ok").count();
        refused == want.len() - 1 + 2
    });

    // By the names that keys have in Vault's API, and by their own.
    let input = b64::std(b"x");
    let base = rig.fleet.api_socket("ron-kms");
    let vault = |method, path: &str, body: &Value| {
        let headers = [("X-Vault-Token", thief.token.as_str())];
        let body = (!body.is_null()).then(|| body.to_string());
        let url = format!("{base}/v1/transit/{path}");
        let reply = rig
            .fleet
            .send(method, &url, None, body.as_deref(), &headers);
        (reply.status, String::from_utf8(reply.body).unwrap())
    };
    for name in ["issuer", "note", "policy", "manifest"] {
        let (status, said) = vault(Method::GET, &format!("keys/{name}"), &Value::Null);
        assert_eq!(status, 404, "{name}: {said}");
        for (path, body) in [
            ("sign", json!({"input": input})),
            ("hmac", json!({"input": input})),
            ("encrypt", json!({"plaintext": input})),
            ("decrypt", json!({"ciphertext": "vault:v1:AAAA"})),
            ("rewrap", json!({"ciphertext": "vault:v1:AAAA"})),
            ("datakey/plaintext", json!({})),
            ("keys", json!({"type": "ed25519"})),
        ] {
            let (status, said) = vault(Method::POST, &format!("{path}/{name}"), &body);
            assert!(
                matches!(status, 400 | 403 | 404),
                "{path}/{name}: {status} {said}"
            );
            assert!(!said.contains("vault:v"), "{path}/{name}: {said}");
        }
    }
    let (status, said) = vault(Method::POST, "random", &json!({}));
    assert_eq!(status, 403, "{said}");
    for path in [
        "wrap", "unwrap", "rewrap", "datakey", "hmac", "derive", "random",
    ] {
        let reply = thief.call(Method::POST, path, &json!({"key": issuer}));
        assert!(
            matches!(reply.status, 400 | 403 | 404),
            "{path}: {}",
            reply.status
        );
    }
    assert_eq!(rig.robot_token().status, 200);
}

/// A thief that also answers at the issuer's address could otherwise make services believe another revocation log.
#[test]
fn the_note_keeps_its_revocation_log_and_does_not_go_back() {
    let rig = Rig::start();
    let thief = Thief::of(&rig);
    ok(&rig
        .fleet
        .ron(&["token", "revoke", "--epoch", "2", "--reason", "a test"]));
    let served = || {
        let reply = rig.fleet.get(&rig.url("/v1/passport/policy"), None);
        String::from_utf8(reply.body).unwrap()
    };
    let mut note = String::new();
    until("the note states the epoch", || {
        note = served();
        note.contains("\nepoch 2\n")
    });
    let (text, _) = note.split_once("\n\n").unwrap();
    let text = format!("{text}\n");
    let key = thief.name("note_key");
    assert_eq!(code(&thief.sign(&key, &text)), "200 ", "the true one");
    let line = |word: &str| text.lines().find(|line| line.starts_with(word)).unwrap();
    let log = line("revocations ");
    let version = line("version ");
    let number: u64 = version["version ".len()..].parse().unwrap();
    let issuer = thief.name("issuer");
    let mine = Ed25519Key::from_seed(&[66; 32]).public();
    let mine = ron_tlog::note::VerifierKey::ed25519(&format!("{issuer}/revocations"), &mine);
    let others = [
        text.replace(log, &format!("revocations {}", mine.unwrap())),
        text.replace(&format!("{log}\n"), ""),
        text.replace(version, &format!("version {}", number - 1)),
        text.replace(&format!("{version}\n"), ""),
        text.replace(version, &format!("{version}\n{version}")),
        text.replace("\nepoch 2\n", "\nepoch 1\n"),
        text.replace("\nepoch 2\n", "\n"),
    ];
    for other in &others {
        assert_ne!(*other, text);
        assert_eq!(
            code(&thief.sign(&key, other)),
            "403 payload_refused",
            "{other}"
        );
    }
    let refused = vec!["payload_refused"; others.len()];
    assert_eq!(thief.batch(&key, &others), refused);
    // The issuer's next note is signed.
    ok(&rig
        .fleet
        .ron(&["token", "revoke", "--epoch", "3", "--reason", "a test"]));
    until("the note states it", || served().contains("\nepoch 3\n"));
}

/// A policy signed by a key that is kept outside of the KMS, and pinned in both configurations.
#[test]
fn a_policy_is_signed_offline_and_one_that_the_kms_refuses_does_not_come_into_force() {
    let offline = Ed25519Key::from_seed(&[77; 32]);
    let pin = format!("offline={}", b64::url(&offline.public()));
    let only_here = Ed25519Key::from_seed(&[78; 32]);
    let here = format!("here={}", b64::url(&only_here.public()));
    let rig = Rig::start_with(|dir| {
        for (service, pins) in [
            ("ron-kms", format!("\"{pin}\", ")),
            ("svc-passport", format!("\"{pin}\", \"{here}\", ")),
        ] {
            let path = dir.join(service).join("config.toml");
            let text = std::fs::read_to_string(&path).unwrap();
            let pinned = text.replace("public_keys = [", &format!("public_keys = [{pins}"));
            assert_ne!(pinned, text);
            let actions = "\n[actions]\nenable_reload = true\n";
            std::fs::write(&path, pinned + actions).unwrap();
        }
    });
    let publish = |version: u64, scope: &str, (name, key): (&str, &Ed25519Key)| {
        let mut policy = rig.policy();
        policy["version"] = version.into();
        policy["clients"][1]["audiences"][0]["scopes"] = json!([scope]);
        let bytes = ron_proto::jcs::canonicalize(&policy);
        let sig = PolicySig {
            alg: "ed25519".to_owned(),
            key: name.to_owned(),
            value: b64::url(&key.sign(&policy_message("issuer", &bytes))),
        };
        let sig = ron_proto::jcs::to_vec(&sig).unwrap();
        let dir = rig.fleet.dir().join("policy");
        std::fs::write(dir.join("issuer.json.sig"), [&sig[..], b"\n"].concat()).unwrap();
        std::fs::write(dir.join("issuer.json"), bytes).unwrap();
    };
    let scope = || {
        let reply = rig.robot_token();
        let body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        body["scope"].as_str().unwrap_or_default().to_owned()
    };
    publish(3, "wallet:transfer", ("offline", &offline));
    until("the policy of the offline key is in force", || {
        scope() == "wallet:transfer"
    });
    // The issuer would accept this one, the KMS does not: the last one stays, and the reason shows.
    publish(4, "wallet:issue", ("here", &only_here));
    let reload = format!("{}/api/v1/reload", rig.fleet.health_socket("svc-passport"));
    let status = format!("{}/api/v1/status", rig.fleet.health("svc-passport"));
    let why = || {
        let status = json(&rig.fleet.get(&status, None), 200);
        let planes = status["planes"].as_array().unwrap();
        let plane = planes.iter().find(|plane| plane["name"] == "policy");
        let why = plane.and_then(|plane| plane["reason"].as_str());
        why.unwrap_or_default().to_owned()
    };
    until("it says that the KMS refuses", || {
        why().contains("the KMS refuses it")
    });
    assert!(
        why().contains("the last good policy is in force"),
        "{}",
        why()
    );
    assert_eq!(scope(), "wallet:transfer");
    let token = std::fs::read_to_string(rig.fleet.dir().join("svc-admin/svc-passport.token"));
    let refused = rig
        .fleet
        .post(&reload, Some(token.unwrap().trim()), "", &[]);
    let said = String::from_utf8(refused.body).unwrap();
    assert!(
        refused.status >= 400 && said.contains("the KMS refuses it"),
        "{said}"
    );
    let thief = Thief::of(&rig);
    assert_eq!(thief.in_force()["version"], 3);
    publish(5, "wallet:hold", ("offline", &offline));
    until("the next one is in force", || scope() == "wallet:hold");
    until("nothing is degraded", || why().is_empty());
}
