//! Clients without a secret: tokens of other issuers, made by other libraries, stand for the clients that the signed
//! policy maps them to; and clients sign with the algorithms of their own libraries.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ron_http::Reply;
use ron_tests::foreign::Foreign;
use ron_tests::issuer::{ASSERTION, EXCHANGE, Rig, claims, now_s, text};
use ron_tests::{json, until};
use serde_json::{Value, json};

const BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const GITHUB: &str = "https://token.actions.example";
const K8S: &str = "https://kubernetes.default.svc.cluster.local";
const CORP: &str = "https://login.corp.example";
const SPIFFE: &str = "spiffe://prod.example";

/// A server of key sets on loopback, stopped when it is dropped.
struct KeyServer {
    url: String,
    /// What it answers; nothing is a failure.
    body: Arc<Mutex<Option<String>>>,
    at: std::net::SocketAddr,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl KeyServer {
    fn start(keys: &Value) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let body = Arc::new(Mutex::new(Some(keys.to_string())));
        let shown = body.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut asked = [0; 4096];
                let read = stream.read(&mut asked).unwrap_or(0);
                if asked[..read].starts_with(b"stop") {
                    return;
                }
                let body = shown.lock().unwrap().clone();
                let (status, body) = body.map_or((500, String::new()), |body| (200, body));
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                );
                let _ = stream.write_all((head + &body).as_bytes());
            }
        });
        let (url, thread) = (format!("http://{at}/jwks"), Some(thread));
        Self {
            url,
            body,
            at,
            thread,
        }
    }

    fn answer(&self, keys: Option<&Value>) {
        *self.body.lock().unwrap() = keys.map(ToString::to_string);
    }
}

impl Drop for KeyServer {
    fn drop(&mut self) {
        let told = TcpStream::connect(self.at).and_then(|mut stream| stream.write_all(b"stop"));
        if let (Ok(()), Some(thread)) = (told, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn policy(rig: &Rig, foreign: &Foreign, server: &KeyServer) -> Value {
    let mut policy = rig.policy();
    policy["version"] = 3.into();
    policy["issuers"] = json!([
        {"issuer": GITHUB, "jwks_url": server.url},
        {"issuer": K8S, "jwks": foreign.set("rsa-next", "sig"), "audience": "ron", "reusable": true},
        {"issuer": CORP, "jwks": foreign.set("p384", "sig"), "audience": "ron-login"},
        {"issuer": SPIFFE, "jwks": foreign.set("p256", "jwt-svid")}]);
    let client = |id: &str, external: Value| {
        json!({"client_id": id, "tenant": "default", "max_ttl_s": 600, "external": [external],
            "audiences": [{"audience": "svc-wallet", "scopes": ["wallet:read"]}]})
    };
    let clients = policy["clients"].as_array_mut().unwrap();
    clients.extend([
        client(
            "deploy",
            json!({"issuer": GITHUB, "subject": "repo:acme/*:ref:refs/heads/main",
            "claims": {"repository_owner": "acme"}}),
        ),
        client(
            "worker",
            json!({"issuer": K8S, "subject": "system:serviceaccount:prod:*",
            "claims": {"/kubernetes.io/namespace": "prod"}}),
        ),
        client(
            "web",
            json!({"issuer": SPIFFE, "subject": "spiffe://prod.example/ns/*/sa/web"}),
        ),
        client(
            "treasurer",
            json!({"issuer": CORP, "claims": {"groups": "payments-admins"}}),
        ),
    ]);
    policy
}

fn bearer(rig: &Rig, assertion: &str, more: &[(&str, &str)]) -> Reply {
    let fields = [&[("grant_type", BEARER), ("assertion", assertion)], more].concat();
    rig.form("/oauth2/token", &fields, &[])
}

fn holder(reply: &Reply) -> String {
    let token = text(reply, "access_token");
    claims(&token)["sub"].as_str().unwrap().to_owned()
}

fn refused(reply: &Reply) {
    assert_eq!(json(reply, 400)["error"], "invalid_grant");
}

fn counted(rig: &Rig, reason: &str) -> f64 {
    let line = format!("svc_passport_auth_failures_total{{reason=\"{reason}\"}} ");
    rig.fleet.metric("svc-passport", &line)
}

/// The token endpoint, as an audience.
fn us(rig: &Rig) -> String {
    rig.url("/oauth2/token")
}

/// Claims as a CI system gives a job; each has another id.
fn job(rig: &Rig, id: &str) -> Value {
    json!({"iss": GITHUB, "sub": "repo:acme/shop:ref:refs/heads/main", "aud": us(rig), "jti": id,
        "iat": now_s(), "nbf": now_s(), "exp": now_s() + 300, "repository_owner": "acme", "run_id": "7"})
}

fn pod() -> Value {
    json!({"iss": K8S, "sub": "system:serviceaccount:prod:worker", "aud": ["ron"], "jti": "pod-1",
        "iat": now_s(), "nbf": now_s(), "exp": now_s() + 3600,
        "kubernetes.io": {"namespace": "prod", "serviceaccount": {"name": "worker"}}})
}

fn start() -> (Rig, Foreign, KeyServer) {
    let (rig, foreign) = (Rig::start(), Foreign::new());
    let server = KeyServer::start(&foreign.set("rsa", "sig"));
    rig.put_in_force(&policy(&rig, &foreign, &server));
    let first = |n: u32| {
        let claims = job(&rig, &format!("first-{n}"));
        foreign.one("pyjwt", "rsa", "RS256", json!({"kid": "rsa"}), claims)
    };
    let mut tries = 0;
    until("the keys were read from their URL", || {
        tries += 1;
        bearer(&rig, &first(tries), &[]).status == 200
    });
    (rig, foreign, server)
}

#[test]
fn tokens_of_other_issuers_stand_for_the_clients_that_the_policy_maps_them_to() {
    let (rig, foreign, server) = start();
    let plain = |kid: &str| json!({"kid": kid, "typ": "JWT"});

    // A CI job: keys by URL, an id that counts once.
    let job_1 = foreign.one("pyjwt", "rsa", "RS256", plain("rsa"), job(&rig, "1"));
    let answer = bearer(&rig, &job_1, &[("audience", "svc-wallet")]);
    assert_eq!(holder(&answer), "deploy");
    let token = text(&answer, "access_token");
    assert_eq!(claims(&token)["client_id"], "deploy");
    assert_ne!(rig.balance(&token).status, 401);
    let before = counted(&rig, "external_replay");
    refused(&bearer(&rig, &job_1, &[]));
    assert_eq!(counted(&rig, "external_replay"), before + 1.0);

    // A workload: pinned keys, presented again and again, also by token exchange.
    let pod_token = foreign.one("joserfc", "rsa-next", "RS256", plain("rsa-next"), pod());
    assert_eq!(holder(&bearer(&rig, &pod_token, &[])), "worker");
    let jwt = "urn:ietf:params:oauth:token-type:jwt";
    let exchange = |token: &str, kind: &str| {
        let fields = [
            ("grant_type", EXCHANGE),
            ("subject_token", token),
            ("subject_token_type", kind),
        ];
        rig.form("/oauth2/token", &fields, &[])
    };
    let exchanged = exchange(&pod_token, jwt);
    assert_eq!(holder(&exchanged), "worker");
    assert_eq!(
        text(&exchanged, "issued_token_type"),
        ron_tests::issuer::ACCESS
    );
    assert_eq!(
        json(&exchange(&token, ron_tests::issuer::ACCESS), 401)["error"],
        "invalid_client",
        "a token of this issuer is no credential"
    );
    refused(&bearer(&rig, &token, &[]));
    refused(&exchange(&token, jwt));

    // A SPIFFE workload, without iss and jti.
    let svid = |sub: &str| json!({"sub": sub, "aud": [us(&rig)], "exp": now_s() + 60});
    let jose = json!({"kid": "p256", "typ": "JOSE"});
    let web = foreign.one(
        "pyjwt",
        "p256",
        "ES256",
        jose.clone(),
        svid("spiffe://prod.example/ns/a/sa/web"),
    );
    assert_eq!(holder(&bearer(&rig, &web, &[])), "web");

    // A person, by a group.
    let person = |groups: Value| json!({"iss": CORP, "sub": "u-1", "aud": "ron-login", "exp": now_s() + 60, "groups": groups});
    let in_group = person(json!(["staff", "payments-admins"]));
    let in_group = foreign.one("joserfc", "p384", "ES384", plain("p384"), in_group);
    let id_token = "urn:ietf:params:oauth:token-type:id_token";
    assert_eq!(holder(&exchange(&in_group, id_token)), "treasurer");

    // The policy bounds them as any client.
    let asks = |more: &[(&str, &str)]| json(&bearer(&rig, &pod_token, more), 400)["error"].clone();
    assert_eq!(asks(&[("scope", "wallet:issue")]), "invalid_scope");
    assert_eq!(asks(&[("audience", "ron-kms")]), "invalid_target");
    assert_eq!(asks(&[("client_id", "web")]), "invalid_grant");
    assert_eq!(
        holder(&bearer(&rig, &pod_token, &[("client_id", "worker")])),
        "worker"
    );
    // A credential beside the token must be the same client's.
    let both = [
        ("client_assertion_type", ASSERTION),
        ("client_assertion", &*rig.assertion(|_| {})),
    ];
    refused(&bearer(&rig, &pod_token, &both));
    let metadata = json(
        &rig.fleet
            .get(&rig.url("/.well-known/oauth-authorization-server"), None),
        200,
    );
    assert!(
        metadata["grant_types_supported"]
            .as_array()
            .unwrap()
            .contains(&json!(BEARER))
    );

    // The issuer's new key is read when a token names it; the last good keys outlive a failing URL.
    let next = foreign.one(
        "pyjwt",
        "ed25519",
        "EdDSA",
        plain("ed25519"),
        job(&rig, "next"),
    );
    refused(&bearer(&rig, &next, &[]));
    server.answer(Some(&foreign.set("ed25519", "sig")));
    until("the new key is read", || {
        bearer(&rig, &next, &[]).status == 200
    });
    server.answer(None);
    until("the failing URL is told", || {
        refused_by_keys(&rig, &foreign);
        let url = format!("{}/readyz", rig.fleet.health("svc-passport"));
        String::from_utf8_lossy(&rig.fleet.get(&url, None).body).contains("issuers")
    });
    let again = foreign.one(
        "pyjwt",
        "ed25519",
        "EdDSA",
        plain("ed25519"),
        job(&rig, "again"),
    );
    assert_eq!(bearer(&rig, &again, &[]).status, 200);
}

/// A token by a key that is not published, which has the keys read.
fn refused_by_keys(rig: &Rig, foreign: &Foreign) {
    let token = foreign.one(
        "pyjwt",
        "rsa",
        "RS256",
        json!({"kid": "rsa"}),
        job(rig, "unknown"),
    );
    refused(&bearer(rig, &token, &[]));
}

#[test]
fn a_token_that_is_not_of_a_trusted_issuer_or_not_for_us_is_no_credential() {
    let (rig, foreign, _server) = start();
    let kid = |name: &str| json!({ "kid": name });
    let changed = |id: &str, change: &dyn Fn(&mut Value)| {
        let mut claims = job(&rig, id);
        change(&mut claims);
        claims
    };
    let plain =
        |change: &dyn Fn(&mut Value)| ("pyjwt", "rsa", "RS256", kid("rsa"), changed("x", change));
    let of_pod = |change: &dyn Fn(&mut Value)| {
        let mut claims = pod();
        change(&mut claims);
        ("pyjwt", "rsa-next", "RS256", kid("rsa-next"), claims)
    };
    let svid = |key: &'static str, alg: &'static str, sub: &str| {
        let claims = json!({"sub": sub, "aud": [us(&rig)], "exp": now_s() + 60});
        ("pyjwt", key, alg, kid(key), claims)
    };
    let cases = [
        (
            "external_target",
            plain(&|c| c["aud"] = "https://elsewhere.example".into()),
        ),
        ("external_target", plain(&|c| c["aud"] = json!([]))),
        ("external_target", of_pod(&|c| c["aud"] = json!([us(&rig)]))),
        (
            "external_issuer",
            plain(&|c| c["iss"] = "https://token.actions.example.evil".into()),
        ),
        ("external_signature", plain(&|c| c["iss"] = K8S.into())),
        ("external_time", plain(&|c| c["exp"] = (now_s() - 1).into())),
        (
            "external_time",
            plain(&|c| c["exp"] = (now_s() + 90_000).into()),
        ),
        (
            "external_time",
            plain(&|c| c["nbf"] = (now_s() + 120).into()),
        ),
        (
            "external_client",
            plain(&|c| c["sub"] = "repo:acme/shop:ref:refs/heads/main/evil".into()),
        ),
        (
            "external_client",
            plain(&|c| c["sub"] = "repo:acme/a/b:ref:refs/heads/main".into()),
        ),
        (
            "external_client",
            plain(&|c| c["sub"] = "repo:acme/a:ref:b:ref:refs/heads/main".into()),
        ),
        (
            "external_client",
            plain(&|c| c["sub"] = "xrepo:acme/shop:ref:refs/heads/main".into()),
        ),
        (
            "external_client",
            plain(&|c| c["repository_owner"] = "acme-evil".into()),
        ),
        (
            "external_client",
            of_pod(&|c| c["kubernetes.io"]["namespace"] = "dev".into()),
        ),
        (
            "external_client",
            of_pod(&|c| c["sub"] = "system:serviceaccount:prod:a:b".into()),
        ),
        (
            "external_form",
            ("hand", "rsa", "none", kid("rsa"), changed("x", &|_| ())),
        ),
        (
            "external_form",
            ("hand", "rsa", "HS256", kid("rsa"), changed("x", &|_| ())),
        ),
        (
            "external_form",
            ("pyjwt", "rsa", "RS512", kid("rsa"), changed("x", &|_| ())),
        ),
        (
            "external_form",
            (
                "pyjwt",
                "rsa",
                "RS256",
                json!({"kid": "rsa", "typ": "at+jwt"}),
                changed("x", &|_| ()),
            ),
        ),
        (
            "external_signature",
            (
                "joserfc",
                "rsa-next",
                "RS256",
                kid("rsa"),
                changed("x", &|_| ()),
            ),
        ),
        // The key says that it is for RS256.
        (
            "external_signature",
            ("pyjwt", "p256", "ES256", kid("rsa"), changed("x", &|_| ())),
        ),
        (
            "external_client",
            svid("p256", "ES256", "spiffe://prod.example/ns/a/b/sa/web"),
        ),
        (
            "external_issuer",
            svid("p256", "ES256", "spiffe://prod.example.evil/ns/a/sa/web"),
        ),
        (
            "external_signature",
            svid("rsa", "RS256", "spiffe://prod.example/ns/a/sa/web"),
        ),
    ];
    let (reasons, specs): (Vec<&str>, Vec<_>) = cases.into_iter().unzip();
    for ((reason, spec), token) in reasons.iter().zip(&specs).zip(foreign.sign(&specs)) {
        let before = counted(&rig, reason);
        let reply = bearer(&rig, &token, &[]);
        assert_eq!(
            json(&reply, 400)["error"],
            "invalid_grant",
            "{reason} {spec:?}"
        );
        assert_eq!(counted(&rig, reason), before + 1.0, "{spec:?}");
    }
    // None of them has used the id up.
    let good = foreign.one("pyjwt", "rsa", "RS256", kid("rsa"), job(&rig, "x"));
    assert_eq!(holder(&bearer(&rig, &good, &[])), "deploy");
    let missing = rig.form("/oauth2/token", &[("grant_type", BEARER)], &[]);
    assert_eq!(json(&missing, 400)["error"], "invalid_request");
}

fn write(path: PathBuf, value: &Value) -> String {
    std::fs::write(&path, value.to_string()).unwrap();
    path.display().to_string()
}

#[test]
fn a_client_by_tokens_of_another_issuer_is_one_command() {
    let (rig, foreign) = (Rig::start(), Foreign::new());
    let jwks = write(rig.fleet.dir().join("k8s.jwks"), &foreign.set("rsa", "sig"));
    let run = |line: &str, code: i32, word: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let out = rig.fleet.ron(&words);
        let said = [out.stdout, out.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert!(
            out.status.code() == Some(code) && said.contains(word),
            "ron {line}: {said}"
        );
    };
    let add = "client add worker --audience svc-wallet --scope wallet:read --issuer";
    let subject = "--subject system:serviceaccount:prod:*";
    run(
        &format!("{add} {K8S} {subject}"),
        1,
        "either jwks or jwks_url",
    );
    run(
        &format!("{add} {K8S} --jwks {jwks}"),
        1,
        "every token of the issuer",
    );
    run(
        &format!("{add} {K8S} --jwks-url http://k8s.example/jwks {subject}"),
        1,
        "neither https",
    );
    let keys = format!("--jwks {jwks} --issuer-audience ron --reusable");
    run(&format!("{add} {K8S} {keys} {subject}"), 0, "is in force");
    run(
        "client list",
        0,
        &format!("worker  by tokens of {K8S}  svc-wallet"),
    );
    run("client show worker", 0, &format!("tokens of {K8S}"));
    run(
        "policy explain --client worker",
        0,
        &format!("client     worker by tokens of {K8S} with sub system:serviceaccount:prod:*"),
    );
    let token = foreign.one("pyjwt", "rsa", "RS256", json!({"kid": "rsa"}), pod());
    assert_eq!(holder(&bearer(&rig, &token, &[])), "worker");
    run(&format!("{add} {K8S} {subject}"), 1, "is a client already");
    run("client remove worker", 0, "is removed");
    assert_eq!(
        rig.policy()["issuers"],
        Value::Null,
        "no client needs the issuer"
    );
    until("the client is gone", || {
        bearer(&rig, &token, &[]).status == 400
    });
}

#[test]
fn clients_sign_assertions_and_proofs_with_the_algorithms_of_their_libraries() {
    let foreign = Foreign::new();
    let names = ["rsa", "p384", "ed25519"];
    let set: Vec<&Value> = names.iter().map(|name| &foreign.keys[*name]).collect();
    let block = format!(
        "\n[[clients]]\nid = \"library\"\njwks = '{}'\n",
        json!({ "keys": set })
    );
    let rig = Rig::start_with(|dir: &Path| {
        let path = dir.join("svc-passport/config.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text + &block).unwrap();
    });
    let mut policy = rig.policy();
    policy["version"] = 3.into();
    let mut rule = policy["clients"][1].clone();
    rule["client_id"] = "library".into();
    policy["clients"].as_array_mut().unwrap().push(rule);
    rig.publish(&policy, true);
    let ask = |assertion: &str, headers: &[(&str, &str)]| {
        let fields = [
            ("grant_type", "client_credentials"),
            ("audience", "svc-wallet"),
            ("client_assertion_type", ASSERTION),
            ("client_assertion", assertion),
        ];
        rig.form("/oauth2/token", &fields, headers)
    };
    let said = |id: &str| json!({"iss": "library", "sub": "library", "aud": us(&rig), "exp": now_s() + 60, "jti": id});
    let signed = |with: &str, key: &str, alg: &str, id: &str| {
        foreign.one(with, key, alg, json!({ "kid": key }), said(id))
    };
    let mut tries = 0;
    until("the policy is in force", || {
        tries += 1;
        let first = signed("pyjwt", "rsa", "RS256", &format!("first-{tries}"));
        ask(&first, &[]).status == 200
    });
    let all = [
        ("pyjwt", "rsa", "RS256"),
        ("joserfc", "rsa", "PS256"),
        ("joserfc", "p384", "ES384"),
        ("pyjwt", "ed25519", "EdDSA"),
        ("joserfc", "ed25519", "Ed25519"),
    ];
    for (n, (with, key, alg)) in all.into_iter().enumerate() {
        // The same key proves that it holds the token.
        let claims =
            json!({"jti": format!("p-{n}"), "htm": "POST", "htu": us(&rig), "iat": now_s()});
        let header = json!({"typ": "dpop+jwt", "jwk": "own"});
        let made = foreign.sign(&[
            (
                with,
                key,
                alg,
                json!({ "kid": key }),
                said(&format!("a-{n}")),
            ),
            ("joserfc", key, alg, header.clone(), claims),
        ]);
        let (assertion, proof) = (&made[0], &made[1]);
        let answer = ask(assertion, &[("DPoP", proof)]);
        assert_eq!(text(&answer, "token_type"), "DPoP", "{alg}");
        let token = text(&answer, "access_token");
        let url = rig.balance_url();
        let place = url.split('?').next().unwrap();
        let hash = ron_auth::dpop::token_hash(&token);
        let use_it = json!({"jti": format!("u-{n}"), "htm": "GET", "htu": place, "iat": now_s(), "ath": hash});
        let proof = foreign.one("joserfc", key, alg, header, use_it);
        let scheme = format!("DPoP {token}");
        let headers = [("Authorization", &*scheme), ("DPoP", &proof)];
        let reply = rig
            .fleet
            .send(ron_http::Method::GET, &url, None, None, &headers);
        assert_ne!(
            reply.status,
            401,
            "{alg}: {}",
            String::from_utf8_lossy(&reply.body)
        );
    }
    let bad = [
        ("hand", "rsa", "HS256"),
        ("hand", "rsa", "none"),
        ("pyjwt", "rsa", "RS512"),
        ("pyjwt", "rsa-next", "RS256"),
    ];
    let bad = bad.map(|(with, key, alg)| (with, key, alg, json!({ "kid": key }), said("bad")));
    for (assertion, spec) in foreign.sign(&bad).iter().zip(&bad) {
        let refused = json(&ask(assertion, &[]), 401);
        assert_eq!(refused["error"], "invalid_client", "{spec:?}");
    }
}
