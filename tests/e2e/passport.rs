//! The issuer as clients, resource servers and attackers meet it: OAuth endpoints, exchange, DPoP, narrowing,
//! revocation of all kinds, policy versions, the attack table. Against a real fleet.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ron_crypto::hash::hmac_sha256;
use ron_crypto::sign::Ed25519Key;
use ron_http::{Method, Reply};
use ron_proto::b64;
use ron_tests::{Fleet, json, ok, ron_on};
use serde_json::{Value, json};

const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS: &str = "urn:ietf:params:oauth:token-type:access_token";
const ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// Revocations reach every service within this time.
const SPREAD: Duration = Duration::from_secs(5);

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs()
}

fn part(value: &Value) -> String {
    b64::url(value.to_string().as_bytes())
}

fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&b64::from_url(payload).unwrap()).unwrap()
}

fn robot() -> Ed25519Key {
    Ed25519Key::from_seed(&[42; 32])
}

/// A fleet with a second client that signs assertions, whose policy is looked at five times a second.
struct Rig {
    fleet: Fleet,
}

impl Rig {
    fn start() -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        ok(&ron_on(dir.path(), &["init"]));
        let path = dir.path().join("svc-passport/config.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let x = b64::url(&robot().public());
        let text = text.replace("[policy]\n", "[policy]\npoll_interval = \"200ms\"\n");
        let client = format!(
            "\n[[clients]]\nid = \"robot\"\njwks = '{{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"{x}\"}}'\n"
        );
        std::fs::write(&path, text + &client).unwrap();
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

    fn policy(&self) -> Value {
        let text = std::fs::read(self.fleet.dir().join("policy/issuer.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    /// Puts a policy where the issuer looks, signed or with the signature of before.
    fn publish(&self, policy: &Value, signed: bool) {
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

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.fleet.api("svc-passport"))
    }

    fn form(&self, path: &str, fields: &[(&str, &str)], headers: &[(&str, &str)]) -> Reply {
        let encode = |text: &str| {
            let safe = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
            text.bytes()
                .map(|b| {
                    if safe(b) {
                        char::from(b).to_string()
                    } else {
                        format!("%{b:02X}")
                    }
                })
                .collect::<String>()
        };
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

    /// HTTP Basic of the operator.
    fn basic(&self) -> String {
        let text = std::fs::read(self.fleet.dir().join("clients/operator.json")).unwrap();
        let file: Value = serde_json::from_slice(&text).unwrap();
        let pair = format!("operator:{}", file["client_secret"].as_str().unwrap());
        format!("Basic {}", b64::std(pair.as_bytes()))
    }

    fn operator(&self, path: &str, fields: &[(&str, &str)]) -> Reply {
        self.form(path, fields, &[("Authorization", &self.basic())])
    }

    fn assertion(&self, change: impl Fn(&mut Value)) -> String {
        let jti = b64::url(&ron_crypto::rand::bytes::<12>());
        let mut said = json!({"iss": "robot", "sub": "robot", "aud": self.url("/oauth2/token"), "exp": now_s() + 60, "jti": jti});
        change(&mut said);
        let signed = format!("{}.{}", part(&json!({"alg": "EdDSA"})), part(&said));
        format!("{signed}.{}", b64::url(&robot().sign(signed.as_bytes())))
    }

    fn robot_with(&self, assertion: &str, more: &[(&str, &str)]) -> Reply {
        let mut fields = vec![
            ("client_assertion_type", ASSERTION),
            ("client_assertion", assertion),
        ];
        fields.extend_from_slice(more);
        self.form("/oauth2/token", &fields, &[])
    }

    fn robot_token(&self) -> Reply {
        let ask = [
            ("grant_type", "client_credentials"),
            ("audience", "svc-wallet"),
        ];
        self.robot_with(&self.assertion(|_| {}), &ask)
    }

    /// Signed by the issuer's own key, as somebody could who has stolen the operator's KMS token: the KMS allows
    /// what is inside its limits.
    fn stolen(&self, typ: &str, change: impl Fn(&mut Value)) -> String {
        let good = self.fleet.token("svc-wallet", None);
        let mut said = claims(&good);
        change(&mut said);
        let header: Value =
            serde_json::from_slice(&b64::from_url(good.split('.').next().unwrap()).unwrap())
                .unwrap();
        let header = json!({"alg": "EdDSA", "kid": header["kid"], "typ": typ});
        let signed = format!("{}.{}", part(&header), part(&said));
        let bootstrap: Value = serde_json::from_slice(
            &std::fs::read(self.fleet.dir().join("bootstrap.json")).unwrap(),
        )
        .unwrap();
        let token =
            std::fs::read_to_string(self.fleet.dir().join("clients/operator.kms.token")).unwrap();
        let body = json!({"key": bootstrap["issuer_key"], "message": b64::url(signed.as_bytes())});
        let url = format!("{}/v1/kms/sign", self.fleet.api("ron-kms"));
        let answer = json(
            &self
                .fleet
                .post(&url, Some(token.trim()), &body.to_string(), &[]),
            200,
        );
        format!(
            "{signed}.{}",
            answer["signatures"][0]["signature"].as_str().unwrap()
        )
    }

    fn balance(&self, token: &str) -> Reply {
        self.fleet.get(&self.balance_url(), Some(token))
    }

    fn balance_url(&self) -> String {
        format!(
            "{}/v1/balance?account=a&asset=ron",
            self.fleet.api("svc-wallet")
        )
    }

    fn verdict(&self, token: &str) -> Value {
        let body = json!({"token": token}).to_string();
        json(
            &self
                .fleet
                .post(&self.url("/v1/passport/verify"), None, &body, &[]),
            200,
        )
    }

    /// Refused by a service within the time that revocations may take.
    fn refused_soon(ask: impl Fn() -> Reply, what: &str) {
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
fn bare(args: &[&str]) -> String {
    let out = std::process::Command::new(ron_tests::ron_binary())
        .args(args)
        .output()
        .unwrap();
    ok(&out)
}

fn text(reply: &Reply, field: &str) -> String {
    json(reply, 200)[field].as_str().unwrap().to_owned()
}

#[test]
fn clients_prove_themselves_three_ways_and_errors_are_those_of_oauth() {
    let rig = Rig::start();
    let ask = [
        ("grant_type", "client_credentials"),
        ("audience", "svc-wallet"),
    ];
    let got = json(&rig.operator("/oauth2/token", &ask), 200);
    assert_eq!(
        (got["token_type"].as_str(), got["expires_in"].as_u64()),
        (Some("Bearer"), Some(900))
    );
    let file: Value = serde_json::from_slice(
        &std::fs::read(rig.fleet.dir().join("clients/operator.json")).unwrap(),
    )
    .unwrap();
    let secret = file["client_secret"].as_str().unwrap();
    let posted = [
        ask[0],
        ask[1],
        ("client_id", "operator"),
        ("client_secret", secret),
    ];
    assert_eq!(rig.form("/oauth2/token", &posted, &[]).status, 200);
    let robot = rig.robot_token();
    assert_eq!(claims(&text(&robot, "access_token"))["client_id"], "robot");

    let check = |reply: Reply, status: u16, error: &str| {
        assert_eq!(json(&reply, status)["error"], error);
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        assert_eq!(reply.header("www-authenticate").is_some(), status == 401);
    };
    let bad_client = "invalid_client";
    check(rig.form("/oauth2/token", &ask, &[]), 401, bad_client);
    let wrong = [
        ask[0],
        ask[1],
        ("client_id", "operator"),
        ("client_secret", "wrong"),
    ];
    check(rig.form("/oauth2/token", &wrong, &[]), 401, bad_client);
    let both = [ask[0], ask[1], ("client_secret", secret)];
    check(rig.operator("/oauth2/token", &both), 400, "invalid_request");
    let used = rig.assertion(|_| {});
    assert_eq!(rig.robot_with(&used, &ask).status, 200);
    check(rig.robot_with(&used, &ask), 401, bad_client);
    check(
        rig.robot_with(
            &rig.assertion(|c| c["aud"] = "http://elsewhere".into()),
            &ask,
        ),
        401,
        bad_client,
    );
    check(
        rig.robot_with(&rig.assertion(|c| c["exp"] = (now_s() - 1).into()), &ask),
        401,
        bad_client,
    );
    check(
        rig.robot_with(&rig.assertion(|c| c["sub"] = "operator".into()), &ask),
        401,
        bad_client,
    );
    let with = |name: &'static str, value: &'static str| [ask[0], ask[1], (name, value)];
    check(
        rig.operator("/oauth2/token", &[("grant_type", "password")]),
        400,
        "unsupported_grant_type",
    );
    check(
        rig.operator("/oauth2/token", &with("scope", "wallet:sing")),
        400,
        "invalid_scope",
    );
    check(
        rig.operator("/oauth2/token", &with("scope", "kms:sign")),
        400,
        "invalid_scope",
    );
    check(
        rig.operator("/oauth2/token", &with("ttl_s", "3601")),
        400,
        "invalid_request",
    );
    check(
        rig.operator("/oauth2/token", &with("caveat", "colour=red")),
        400,
        "invalid_request",
    );
    check(
        rig.operator("/oauth2/token", &with("colour", "red")),
        400,
        "invalid_request",
    );
    check(
        rig.operator("/oauth2/token", &with("grant_type", "client_credentials")),
        400,
        "invalid_request",
    );
    let stranger = [ask[0], ("audience", "svc-other")];
    check(
        rig.operator("/oauth2/token", &stranger),
        400,
        "unauthorized_client",
    );
    let typed = r#"[{"type":"ron","asset":"ron","method":"GET"}]"#;
    let got = rig.operator("/oauth2/token", &with("authorization_details", typed));
    assert_eq!(
        claims(&text(&got, "access_token"))["authorization_details"],
        json!([{"type": "ron", "asset": "ron", "method": "GET"}])
    );
    let odd = r#"[{"type":"ron","colour":"red"}]"#;
    check(
        rig.operator("/oauth2/token", &with("authorization_details", odd)),
        400,
        "invalid_authorization_details",
    );
}

#[test]
fn introspection_and_giving_back_follow_their_rfcs() {
    let rig = Rig::start();
    let token = rig.fleet.token("svc-wallet", Some("wallet:read"));
    let seen = json(
        &rig.operator("/oauth2/introspect", &[("token", &token)]),
        200,
    );
    assert_eq!(seen["active"], true, "{seen}");
    for name in [
        "iss",
        "sub",
        "aud",
        "exp",
        "iat",
        "jti",
        "scope",
        "client_id",
    ] {
        assert_eq!(seen[name], claims(&token)[name], "{name}");
    }
    let inactive = json!({"active": false});
    for bad in ["x", "a.b.c", &token[1..]] {
        assert_eq!(
            json(&rig.operator("/oauth2/introspect", &[("token", bad)]), 200),
            inactive
        );
    }
    let strict = [
        ("Authorization", &*rig.basic()),
        ("Prefer", "handling=strict"),
    ];
    assert_eq!(
        rig.form("/oauth2/introspect", &[("token", "x")], &strict)
            .status,
        401
    );
    assert_eq!(
        rig.form("/oauth2/introspect", &[("token", &token)], &strict)
            .status,
        200
    );
    assert_eq!(
        rig.form("/oauth2/introspect", &[("token", &token)], &[])
            .status,
        401
    );
    let assertion = rig.assertion(|_| {});
    let robot = [
        ("client_assertion_type", ASSERTION),
        ("client_assertion", &*assertion),
        ("token", &*token),
    ];
    assert_eq!(
        rig.form("/oauth2/introspect", &robot, &[]).status,
        400,
        "its policy does not say so"
    );
    let bearer = format!(
        "Bearer {}",
        rig.fleet.token("svc-passport", Some("passport:introspect"))
    );
    let seen = rig.form(
        "/oauth2/introspect",
        &[("token", &token)],
        &[("Authorization", &bearer)],
    );
    assert_eq!(json(&seen, 200)["active"], true);
    let weak = format!(
        "Bearer {}",
        rig.fleet.token("svc-passport", Some("passport:issue"))
    );
    let seen = rig.form(
        "/oauth2/introspect",
        &[("token", &token)],
        &[("Authorization", &weak)],
    );
    assert_eq!(json(&seen, 400)["error"], "insufficient_scope");

    // The robot may not give back the operator's token; its owner may, and twice is the same as once.
    let assertion = rig.assertion(|_| {});
    let robot = [
        ("client_assertion_type", ASSERTION),
        ("client_assertion", &*assertion),
        ("token", &*token),
    ];
    assert_eq!(
        json(&rig.form("/oauth2/revoke", &robot, &[]), 400)["error"],
        "unauthorized_client"
    );
    assert_eq!(rig.balance(&token).status, 200);
    for _ in 0..2 {
        assert_eq!(
            rig.operator("/oauth2/revoke", &[("token", &token)]).status,
            200
        );
    }
    assert_eq!(
        json(
            &rig.operator("/oauth2/introspect", &[("token", &token)]),
            200
        ),
        inactive
    );
    Rig::refused_soon(|| rig.balance(&token), "given back");
    assert_eq!(
        rig.operator("/oauth2/revoke", &[("token", "never was one")])
            .status,
        200
    );
}

#[test]
fn exchange_and_binding_only_narrow() {
    let rig = Rig::start();
    let token = rig.fleet.token("svc-wallet", None);
    let exchange = |token: &str, more: &[(&str, &str)]| {
        let mut fields = vec![
            ("grant_type", EXCHANGE),
            ("subject_token", token),
            ("subject_token_type", ACCESS),
        ];
        fields.extend_from_slice(more);
        rig.operator("/oauth2/token", &fields)
    };
    let got = json(
        &exchange(
            &token,
            &[
                ("scope", "wallet:read"),
                ("ttl_s", "60"),
                ("caveat", "asset=ron"),
            ],
        ),
        200,
    );
    assert_eq!(
        (got["scope"].as_str(), got["issued_token_type"].as_str()),
        (Some("wallet:read"), Some(ACCESS))
    );
    let narrow = got["access_token"].as_str().unwrap();
    assert_eq!(
        claims(narrow)["exp"].as_u64().unwrap() - claims(narrow)["iat"].as_u64().unwrap(),
        60
    );
    assert_eq!(rig.balance(narrow).status, 200);
    let check = |reply: Reply, error: &str| assert_eq!(json(&reply, 400)["error"], error);
    check(
        exchange(narrow, &[("scope", "wallet:transfer")]),
        "invalid_scope",
    );
    check(
        exchange(narrow, &[("audience", "ron-kms")]),
        "invalid_target",
    );
    check(exchange(narrow, &[("ttl_s", "900")]), "invalid_request");
    check(exchange("x.y.z", &[]), "invalid_grant");
    let asset =
        claims(&text(&exchange(narrow, &[]), "access_token"))["authorization_details"][0]["asset"]
            .clone();
    assert_eq!(asset, "ron", "caveats stay");
    let assertion = rig.assertion(|_| {});
    let acted = rig.robot_with(
        &assertion,
        &[
            ("grant_type", EXCHANGE),
            ("subject_token", &token),
            ("subject_token_type", ACCESS),
        ],
    );
    let acted = claims(&text(&acted, "access_token"));
    assert_eq!(
        (&acted["act"], &acted["sub"], &acted["scope"]),
        (
            &json!({"sub": "robot"}),
            &json!("operator"),
            &json!("wallet:read")
        )
    );

    // Bound to a key from the start, used with proofs, narrowed offline and handed on.
    let keys = tempfile::tempdir().unwrap();
    let key = |name: &str| keys.path().join(name).to_str().unwrap().to_owned();
    let (mine, theirs) = (key("mine"), key("theirs"));
    bare(&["token", "key", &mine]);
    let their_print = bare(&["token", "key", &theirs]);
    let bound = ok(&rig
        .fleet
        .ron(&["token", "--audience", "svc-wallet", "--key", &mine]));
    let bound = bound.trim();
    let url = rig.balance_url();
    let ask = |token: &str, key: Option<&str>| {
        let dpop = key.map(|key| bare(&["token", "proof", token, "--key", key, "--url", &url]));
        (token.to_owned(), dpop)
    };
    let send = |(token, proof): &(String, Option<String>), scheme: &str| {
        let credential = format!("{scheme} {token}");
        let mut headers = vec![("Authorization", credential.as_str())];
        headers.extend(proof.as_deref().map(|p| ("DPoP", p.trim())));
        rig.fleet
            .send(Method::GET, &url, None, None, &headers)
            .status
    };
    let first = ask(bound, Some(&mine));
    assert_eq!(send(&first, "DPoP"), 200);
    assert_eq!(send(&first, "DPoP"), 401, "a proof counts once");
    assert_eq!(send(&ask(bound, None), "Bearer"), 401);
    assert_eq!(send(&ask(bound, Some(&theirs)), "DPoP"), 401);
    let given = ok(&rig.fleet.ron(&[
        "token",
        "attenuate",
        bound,
        "--key",
        &mine,
        "--to",
        their_print.trim(),
        "--scope",
        "wallet:read",
        "--caveat",
        "asset=rpl",
        "--ttl",
        "1m",
    ]));
    let given = given.trim();
    assert_eq!(rig.verdict(given)["ok"], true);
    assert_eq!(
        send(&ask(given, Some(&theirs)), "DPoP"),
        403,
        "the caveat that was added holds"
    );
    assert_eq!(
        send(&ask(given, Some(&mine)), "DPoP"),
        401,
        "it was handed on"
    );
    check(exchange(bound, &[]), "invalid_dpop_proof");
    ok(&rig
        .fleet
        .ron(&["token", "revoke", "--token", bound, "--reason", "test"]));
    assert_eq!(
        rig.verdict(given)["reason"],
        "revoked",
        "the chain falls with its root"
    );
}

#[test]
fn every_kind_of_revocation_reaches_wallet_and_kms_and_survives_a_kill() {
    let mut rig = Rig::start();
    let kms = |rig: &Rig, token: &str| {
        rig.fleet.get(
            &format!("{}/v1/kms/keys", rig.fleet.api("ron-kms")),
            Some(token),
        )
    };
    let revoke = |rig: &Rig, args: &[&str]| {
        let mut all = vec!["token", "revoke", "--reason", "test"];
        all.extend_from_slice(args);
        rig.fleet.ron(&all)
    };
    let wallet_token = rig.fleet.token("svc-wallet", None);
    let kms_token = rig.fleet.token("ron-kms", None);
    assert_eq!(
        (
            rig.balance(&wallet_token).status,
            kms(&rig, &kms_token).status
        ),
        (200, 200)
    );

    let jti = |token: &str| claims(token)["jti"].as_str().unwrap().to_owned();
    ok(&revoke(&rig, &["--jti", &jti(&wallet_token)]));
    assert_eq!(
        rig.verdict(&wallet_token)["reason"],
        "revoked",
        "at once at the issuer"
    );
    Rig::refused_soon(|| rig.balance(&wallet_token), "jti at the wallet");
    assert_eq!(kms(&rig, &kms_token).status, 200, "another token");
    ok(&revoke(&rig, &["--jti", &jti(&kms_token)]));
    Rig::refused_soon(|| kms(&rig, &kms_token), "jti at the kms");

    let (one, two) = (
        rig.fleet.token("svc-wallet", None),
        rig.fleet.token("ron-kms", None),
    );
    ok(&revoke(&rig, &["--subject", "operator"]));
    Rig::refused_soon(|| rig.balance(&one), "subject at the wallet");
    Rig::refused_soon(|| kms(&rig, &two), "subject at the kms");
    std::thread::sleep(Duration::from_millis(1100)); // tokens of later seconds are good again
    let after = rig.fleet.token("svc-wallet", None);
    assert_eq!(rig.balance(&after).status, 200);

    let epoch = claims(&after)["ron_epoch"].as_u64().unwrap() + 4;
    ok(&revoke(&rig, &["--epoch", &epoch.to_string()]));
    Rig::refused_soon(|| rig.balance(&after), "epoch at the wallet");
    let stale = revoke(&rig, &["--epoch", &epoch.to_string()]);
    assert!(
        String::from_utf8_lossy(&stale.stderr).contains("stale_epoch"),
        "epochs only grow"
    );
    let of_epoch = rig.fleet.token("svc-wallet", None);
    assert_eq!(claims(&of_epoch)["ron_epoch"], epoch);

    // Killed, started again: nothing is forgotten.
    rig.fleet.kill();
    rig.fleet = Fleet::start_in(rig.fleet.keep_dir());
    assert_eq!(rig.verdict(&wallet_token)["ok"], false);
    assert_eq!(rig.verdict(&after)["reason"], "epoch");
    assert_eq!(rig.balance(&of_epoch).status, 200);
    assert_eq!(rig.balance(&after).status, 401);

    // A revoked key leaves the key set, its tokens die, issuing stops until the key is rotated.
    let header = of_epoch.split('.').next().unwrap();
    let header: Value = serde_json::from_slice(&b64::from_url(header).unwrap()).unwrap();
    let kid = header["kid"].as_str().unwrap();
    ok(&revoke(&rig, &["--kid", kid]));
    assert_eq!(rig.verdict(&of_epoch)["ok"], false);
    Rig::refused_soon(|| rig.balance(&of_epoch), "kid at the wallet");
    let ask = [
        ("grant_type", "client_credentials"),
        ("audience", "svc-wallet"),
    ];
    assert_eq!(rig.operator("/oauth2/token", &ask).status, 503);
    rotate(&rig.fleet);
    let since = Instant::now();
    let fresh = loop {
        let reply = rig.operator("/oauth2/token", &ask);
        if reply.status == 200 {
            break text(&reply, "access_token");
        }
        assert!(
            since.elapsed() < Duration::from_secs(15),
            "not issuing after a rotation"
        );
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(rig.balance(&fresh).status, 200);
    let jwks = json(
        &rig.fleet.get(&rig.url("/.well-known/jwks.json"), None),
        200,
    );
    assert!(!jwks.to_string().contains(kid), "{jwks}");
}

/// Makes a new version of the issuer's key in the KMS.
fn rotate(fleet: &Fleet) {
    let bootstrap: Value =
        serde_json::from_slice(&std::fs::read(fleet.dir().join("bootstrap.json")).unwrap())
            .unwrap();
    let key = bootstrap["issuer_key"].as_str().unwrap();
    let token = std::fs::read_to_string(fleet.dir().join("clients/operator.kms.token")).unwrap();
    let url = format!("{}/v1/kms/keys/{key}/rotate", fleet.api("ron-kms"));
    let answer = fleet.post(&url, Some(token.trim()), "{}", &[]);
    assert_eq!(
        answer.status,
        200,
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
}

#[test]
fn keys_rotate_while_tokens_are_issued_and_used_without_one_failure() {
    let rig = Rig::start();
    let basic = rig.basic();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let ask = [
        ("grant_type", "client_credentials"),
        ("audience", "svc-wallet"),
    ];
    let kids = std::thread::scope(|scope| {
        let worker = || {
            let mut kids = std::collections::BTreeSet::new();
            let mut count = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let reply = rig.form("/oauth2/token", &ask, &[("Authorization", &basic)]);
                let token = text(&reply, "access_token");
                let used = rig.balance(&token);
                assert_eq!(
                    used.status,
                    200,
                    "token {count}: {}",
                    String::from_utf8_lossy(&used.body)
                );
                kids.insert(token.split('.').next().unwrap().to_owned());
                count += 1;
            }
            (count, kids)
        };
        let workers = [scope.spawn(worker), scope.spawn(worker)];
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(1500));
            rotate(&rig.fleet);
        }
        std::thread::sleep(Duration::from_millis(2500));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let done: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
        assert!(done.iter().all(|(count, _)| *count > 10));
        done.into_iter()
            .flat_map(|(_, kids)| kids)
            .collect::<std::collections::BTreeSet<_>>()
    });
    assert_eq!(kids.len(), 4, "each version has signed");
}

#[test]
fn policies_are_taken_up_newer_and_signed_only() {
    let mut rig = Rig::start();
    let in_force = |rig: &Rig| {
        let note = rig.fleet.get(&rig.url("/v1/passport/policy"), None);
        let text = String::from_utf8(note.body).unwrap();
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix("policy "))
            .map(str::to_owned);
        (line.unwrap(), text)
    };
    assert_eq!(in_force(&rig).0, "2");
    let good = rig.policy();
    let refused = |rig: &Rig| {
        let since = Instant::now();
        loop {
            let ready = json(
                &rig.fleet.get(
                    &format!("{}/readyz", rig.fleet.health("svc-passport")),
                    None,
                ),
                200,
            );
            if ready["degraded"].to_string().contains("policy") {
                break;
            }
            assert!(since.elapsed() < SPREAD, "{ready}");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(in_force(rig).0, "2");
        assert_eq!(
            rig.robot_token().status,
            200,
            "the last good one stays in force"
        );
    };
    let mut unsigned = good.clone();
    unsigned["version"] = 9.into();
    rig.publish(&unsigned, false);
    refused(&rig);
    let mut older = good.clone();
    older["version"] = 1.into();
    rig.publish(&older, true);
    refused(&rig);
    let mut other = good.clone();
    other["clients"][0]["max_ttl_s"] = 60.into();
    rig.publish(&other, true);
    refused(&rig);
    // Older ones are refused after a restart as well, clearly.
    rig.publish(&older, true);
    assert_eq!(rig.fleet.stop(), Some(0));
    let out = ron_on(rig.fleet.dir(), &["up", "--base-port", "0"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("older than 2"), "{said}");
}

#[test]
fn what_is_published_verifies_and_shows_revocations() {
    let rig = Rig::start();
    let token = rig.fleet.token("svc-wallet", None);
    let status = claims(&token)["status"]["status_list"].clone();
    let (idx, uri) = (
        status["idx"].as_u64().unwrap() as usize,
        status["uri"].as_str().unwrap(),
    );
    let bit = || {
        let reply = rig.fleet.get(uri, None);
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (200, Some("application/statuslist+jwt"))
        );
        let jwt = String::from_utf8(reply.body).unwrap();
        let said = claims(&jwt);
        assert_eq!(
            (said["sub"].as_str(), said["status_list"]["bits"].as_u64()),
            (Some(uri), Some(1))
        );
        let script = "import sys,base64,zlib;l=sys.stdin.read();b=zlib.decompress(base64.urlsafe_b64decode(l+'='*(-len(l)%4)));i=int(sys.argv[1]);print(len(b),b[i//8]>>(i%8)&1)";
        let out = python(
            script,
            &[&idx.to_string()],
            said["status_list"]["lst"].as_str().unwrap(),
        );
        out.trim().to_owned()
    };
    assert_eq!(bit(), "32768 0");
    ok(&rig
        .fleet
        .ron(&["token", "revoke", "--token", &token, "--reason", "test"]));
    assert_eq!(bit(), "32768 1");
    assert_eq!(
        rig.fleet
            .get(&rig.url("/v1/passport/status/7"), None)
            .status,
        404
    );

    let note =
        String::from_utf8(rig.fleet.get(&rig.url("/v1/passport/policy"), None).body).unwrap();
    let vkey = String::from_utf8(
        rig.fleet
            .get(&rig.url("/v1/passport/policy/vkey"), None)
            .body,
    )
    .unwrap();
    let key: ron_tlog::note::VerifierKey = vkey.trim().parse().unwrap();
    let parsed = ron_tlog::note::Note::parse(&note).unwrap();
    assert_eq!(parsed.verify(std::slice::from_ref(&key)).unwrap(), [0]);
    assert!(
        parsed.text.contains("\nepoch 1\n") && parsed.text.contains(" good\n"),
        "{note}"
    );
    let version = |text: &str| -> u64 {
        text.lines()
            .find_map(|l| l.strip_prefix("version "))
            .unwrap()
            .parse()
            .unwrap()
    };
    let before = version(&parsed.text);
    ok(&rig
        .fleet
        .ron(&["token", "revoke", "--epoch", "5", "--reason", "test"]));
    let note =
        String::from_utf8(rig.fleet.get(&rig.url("/v1/passport/policy"), None).body).unwrap();
    assert!(
        version(&note) > before && note.contains("\nepoch 5\n"),
        "{note}"
    );
    assert_eq!(bit(), "32768 1", "every bit of an older epoch is set");
    let pq = json(
        &rig.fleet.get(&rig.url("/.well-known/jwks-pq.json"), None),
        200,
    );
    assert_eq!(pq, json!({"keys": []}));
}

fn python(script: &str, args: &[&str], input: &str) -> String {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let mut child = Command::new("python3")
        .arg("-c")
        .arg(script)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    ok(&child.wait_with_output().unwrap())
}

#[test]
fn the_attack_table_is_refused_by_issuer_and_wallet() {
    let rig = Rig::start();
    let good = rig.fleet.token("svc-wallet", None);
    let (header, rest) = good.split_once('.').unwrap();
    let payload = rest.split('.').next().unwrap();
    let said: Value = serde_json::from_slice(&b64::from_url(header).unwrap()).unwrap();
    let jwks = json(
        &rig.fleet.get(&rig.url("/.well-known/jwks.json"), None),
        200,
    );
    let jwk = jwks["keys"][0].clone();
    let public = b64::from_url(jwk["x"].as_str().unwrap()).unwrap();
    let mine = Ed25519Key::from_seed(&[66; 32]);
    let my_jwk = json!({"kty": "OKP", "crv": "Ed25519", "x": b64::url(&mine.public())});
    let head = |more: &[(&str, Value)]| {
        let mut header = said.clone();
        for (name, value) in more {
            header[*name] = value.clone();
        }
        part(&header)
    };
    let forged = |header: &str, payload: &str| {
        let signed = format!("{header}.{payload}");
        format!("{signed}.{}", b64::url(&mine.sign(signed.as_bytes())))
    };
    let hmac = |key: &[u8]| {
        let signed = format!("{}.{payload}", head(&[("alg", json!("HS256"))]));
        format!(
            "{signed}.{}",
            b64::url(&hmac_sha256(key, signed.as_bytes()))
        )
    };
    let doubled = b64::url(
        &[
            &b64::from_url(payload).unwrap()[..b64::from_url(payload).unwrap().len() - 1],
            br#","aud":"svc-wallet"}"#,
        ]
        .concat(),
    );
    let table: Vec<(&str, String)> = vec![
        (
            "alg none",
            format!("{}.{payload}.", head(&[("alg", json!("none"))])),
        ),
        (
            "alg none with the old signature",
            format!("{}.{rest}", head(&[("alg", json!("nOnE"))])),
        ),
        ("HS256 with the raw public key", hmac(&public)),
        (
            "HS256 with the public key as JWK",
            hmac(jwk.to_string().as_bytes()),
        ),
        (
            "HS256 with the public key in base64url",
            hmac(jwk["x"].as_str().unwrap().as_bytes()),
        ),
        (
            "kid that walks the file system",
            forged(&head(&[("kid", json!("../../../../dev/null"))]), payload),
        ),
        (
            "kid that talks SQL",
            forged(&head(&[("kid", json!("' UNION SELECT 'x' --"))]), payload),
        ),
        ("kid of another key", forged(header, payload)),
        (
            "crit",
            format!(
                "{}.{rest}",
                head(&[("crit", json!(["exp"])), ("exp", json!(1))])
            ),
        ),
        (
            "b64 false",
            format!(
                "{}.{rest}",
                head(&[("b64", json!(false)), ("crit", json!(["b64"]))])
            ),
        ),
        (
            "JWK in the header",
            forged(&head(&[("jwk", my_jwk.clone())]), payload),
        ),
        (
            "jku",
            forged(
                &head(&[("jku", json!("http://127.0.0.1:1/jwks.json"))]),
                payload,
            ),
        ),
        (
            "duplicated claims",
            format!("{header}.{doubled}.{}", good.rsplit('.').next().unwrap()),
        ),
        ("oversized", forged(header, &"A".repeat(9_000))),
        ("another typ", rig.stolen("statuslist+jwt", |_| {})),
        (
            "another audience",
            rig.stolen("at+jwt", |c| c["aud"] = "ron-kms".into()),
        ),
        (
            "nbf in the future",
            rig.stolen("at+jwt", |c| c["nbf"] = (now_s() + 600).into()),
        ),
        (
            "an older epoch",
            rig.stolen("at+jwt", |c| c["ron_epoch"] = 0.into()),
        ),
        (
            "an unknown caveat",
            rig.stolen("at+jwt", |c| {
                c["authorization_details"] = json!([{"type": "ron", "colour": "red"}]);
            }),
        ),
        (
            "a binding of an unknown kind",
            rig.stolen("at+jwt", |c| c["cnf"] = json!({"kid": "x"})),
        ),
        (
            "no jti",
            rig.stolen("at+jwt", |c| {
                c.as_object_mut().unwrap().remove("jti");
            }),
        ),
        (
            "a stray narrowing statement",
            format!("{good}~{}", forged(header, payload)),
        ),
    ];
    assert_eq!(rig.balance(&good).status, 200);
    assert_eq!(
        rig.balance(&rig.stolen("at+jwt", |_| {})).status,
        200,
        "the way of forging works"
    );
    for (attack, token) in &table {
        let verdict = rig.verdict(token);
        // The issuer judges for the audience that a token names.
        if *attack != "another audience" {
            assert_eq!(verdict["ok"], false, "{attack}: {verdict}");
            let seen = json(
                &rig.operator("/oauth2/introspect", &[("token", token)]),
                200,
            );
            assert_eq!(seen, json!({"active": false}), "{attack}");
        }
        let status = rig.balance(token).status;
        assert!(
            [401, 403].contains(&status),
            "{attack}: {status} at the wallet"
        );
    }
    let batch = json!({"tokens": table.iter().map(|(_, t)| t.clone()).chain([good.clone()]).collect::<Vec<_>>()});
    let answer = json(
        &rig.fleet.post(
            &rig.url("/v1/passport/verify_batch"),
            None,
            &batch.to_string(),
            &[],
        ),
        200,
    );
    assert_eq!(
        answer["results"][table.len()]["ok"],
        true,
        "each item is judged on its own"
    );
}
