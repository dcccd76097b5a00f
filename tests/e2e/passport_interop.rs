//! Passports in ordinary clients: PyJWT, joserfc, jwcrypto, authlib, npm jose and fast-jwt verify
//! them through discovery and key set, for both classical algorithms, while the issuer has an
//! ML-DSA key (kty AKP) too, and across a rotation of all; nginx protects a page with the issuer's
//! introspection; the issuer alone, without its KMS, still verifies.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_http::{Call, Method};
use ron_kernel::Deadline;
use ron_proto::b64;
use ron_tests::tools::{Process, fed, service};
use ron_tests::{
    CALL, Fleet, free_port, http_client, json, ok, own_sockets, python, read_json, workspace,
};
use serde_json::{Value, json};

const HYBRID: &str = "EdDSA+ML-DSA-65";
/// The algorithms the issuer signs with here, in the order of the tokens that [`tokens`] returns.
const ALGS: [&str; 4] = ["EdDSA", "ES256", "ML-DSA-65", HYBRID];

/// A fleet whose issuer has an ES256 key and an ML-DSA one too, and offers both for the wallet;
/// returns all its keys.
fn with_every_alg() -> (Fleet, [String; 3]) {
    let mut fleet = Fleet::start();
    let [es256, pq] = fleet.offer_issuer_keys(["ecdsa-p256", "ml-dsa-65"], &ALGS[1..]);
    let config = fleet.dir().join("svc-passport/config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let keys =
        format!("[pq]\nmode = \"mirror\"\nkey = \"{pq}\"\n\n[kms]\nkey_es256 = \"{es256}\"\n");
    std::fs::write(&config, text.replace("[kms]\n", &keys)).unwrap();
    let own = fleet.bootstrap()["issuer_key"].as_str().unwrap().to_owned();
    (Fleet::start_in(fleet.keep_dir()), [own, es256, pq])
}

/// A token of each algorithm, all signed by keys whose ids are not among `old`.
fn tokens(fleet: &Fleet, old: &[String]) -> [String; 4] {
    let credential = fleet.token("svc-passport", Some("passport:issue"));
    let url = format!("{}/v1/passport/issue", fleet.api("svc-passport"));
    ALGS.map(|alg| {
        let body = json!({"subject_ref": "operator", "audience": "svc-wallet", "accept_algs": [alg],
            "caveats": ["asset=ron", {"key": "method", "value": "GET"}]});
        let since = Instant::now();
        loop {
            let reply = fleet.post(&url, Some(&credential), &body.to_string(), &[]);
            let answer: Value = serde_json::from_slice(&reply.body).unwrap();
            let token = answer["token"].as_str().unwrap_or_default();
            if reply.status == 200 && kids(token).iter().all(|kid| !old.contains(kid)) {
                assert_eq!(answer["alg"], alg);
                return token.to_owned();
            }
            let said = format!("{alg}: {} {answer}", reply.status);
            assert!(since.elapsed() < Duration::from_secs(30), "{said}");
            std::thread::sleep(Duration::from_millis(100));
        }
    })
}

/// The keys that signed a token.
fn kids(token: &str) -> Vec<String> {
    let headers = ron_auth::hybrid::headers(token).unwrap();
    let read = |raw: &Vec<u8>| serde_json::from_slice::<Value>(raw).unwrap();
    let kid = |raw| read(raw)["kid"].as_str().unwrap().to_owned();
    headers.iter().map(kid).collect()
}

fn verified_by(mut command: Command, asked: &Value) -> Vec<String> {
    ok(&fed(&mut command, asked.to_string()))
        .lines()
        .map(str::to_owned)
        .collect()
}

/// The kinds of the keys in a set that the metadata name.
fn kinds(fleet: &Fleet, name: &str) -> Vec<String> {
    let base = fleet.api("svc-passport");
    let get = |url: &str| json(&fleet.get(url, None), 200);
    let meta = get(&format!("{base}/.well-known/oauth-authorization-server"));
    let set = get(meta[name].as_str().unwrap());
    let kind = |jwk: &Value| jwk["kty"].as_str().unwrap().to_owned();
    let mut kinds: Vec<String> = set["keys"].as_array().unwrap().iter().map(kind).collect();
    kinds.sort_unstable();
    kinds
}

/// Every client accepts the good tokens and refuses the bad ones.
fn clients_verify(fleet: &Fleet, good: &[&String], bad: &[&String]) {
    let asked = json!({"base": fleet.api("svc-passport"), "audience": "svc-wallet", "good": good, "bad": bad});
    let interop = workspace().join("tests/interop");
    let mut py = Command::new(python());
    py.arg(interop.join("clients.py"));
    let names = ["pyjwt", "joserfc", "jwcrypto", "authlib"];
    assert_eq!(verified_by(py, &asked), names);
    let installed = interop.join("node_modules").exists();
    assert!(installed, "run scripts/setup.sh");
    let mut node = Command::new("node");
    node.arg(interop.join("clients.mjs"));
    assert_eq!(verified_by(node, &asked), ["jose", "fast-jwt"]);
}

/// jwcrypto does the same for tokens with ML-DSA.
fn jwcrypto_verifies_pq(fleet: &Fleet, good: &[&String], bad: &[&String]) {
    let asked = json!({"base": fleet.api("svc-passport"), "audience": "svc-wallet", "good": good, "bad": bad});
    let mut py = Command::new(python());
    py.arg(workspace().join("tests/interop/pq.py"));
    let (taken, refused) = (good.len(), bad.len());
    let said = format!("jwcrypto verified {taken} and refused {refused}");
    assert_eq!(verified_by(py, &asked), [said]);
}

#[test]
fn ordinary_clients_verify_beside_an_akp_key_and_across_a_rotation() {
    let (fleet, keys) = with_every_alg();
    let before = tokens(&fleet, &[]);
    assert_eq!(kinds(&fleet, "jwks_uri"), ["EC", "OKP"]);
    assert_eq!(kinds(&fleet, "pq_jwks_uri"), ["AKP"]);
    let [eddsa, es256, pq, hybrid] = &before;
    // A client without ML-DSA refuses its tokens, and its keys do not disturb that client.
    clients_verify(&fleet, &[eddsa, es256], &[pq, hybrid]);
    jwcrypto_verifies_pq(&fleet, &[pq, hybrid], &[eddsa, es256]);

    for key in &keys {
        fleet.kms(&format!("keys/{key}/rotate"), &json!({}), 200);
    }
    let old: Vec<String> = before.iter().flat_map(|token| kids(token)).collect();
    let after = tokens(&fleet, &old);
    assert_eq!(kinds(&fleet, "jwks_uri"), ["EC", "EC", "OKP", "OKP"]);
    assert_eq!(kinds(&fleet, "pq_jwks_uri"), ["AKP", "AKP"]);
    let other = fleet.token("ron-kms", None);
    let (first, signature) = after[0].rsplit_once('.').unwrap();
    let begins = if signature.starts_with('A') { "B" } else { "A" };
    let flipped = format!("{first}.{begins}{}", &signature[1..]);
    let payload = first.split('.').nth(1).unwrap();
    let none = b64::url(br#"{"alg":"none","typ":"at+jwt"}"#);
    let none = format!("{none}.{payload}.");
    let good = [eddsa, es256, &after[0], &after[1]];
    let bad = [&other, &flipped, &none, pq, &after[2], hybrid, &after[3]];
    clients_verify(&fleet, &good, &bad);
    jwcrypto_verifies_pq(&fleet, &[pq, hybrid, &after[2], &after[3]], &good);
}

/// The blocks of `docs/nginx.md`, for this issuer, this port and this client.
fn nginx_config(dir: &Path, port: u16, passport: &str, basic: &str) -> String {
    let page = std::fs::read_to_string(workspace().join("docs/nginx.md")).unwrap();
    let mut blocks = page.split("```nginx\n").skip(1);
    let mut next = || blocks.next().unwrap().split("```").next().unwrap();
    let (credential, server) = (next(), next());
    let replaced = |text: &str, from: &str, into: &str| {
        assert!(text.contains(from), "{from} is in docs/nginx.md");
        text.replace(from, into)
    };
    let shown = "Basic Z2F0ZXdheTpyb25fY3NfZ2F0ZXdheV8uLi4=";
    let file = dir.join("ron-client.conf");
    std::fs::write(&file, replaced(credential, shown, basic)).unwrap();
    let dir = dir.display();
    let mut server = server.to_owned();
    for (from, into) in [
        ("/etc/nginx/ron-client.conf", &*file.display().to_string()),
        ("127.0.0.1:8080", &format!("127.0.0.1:{port}")),
        ("/srv/www", &format!("{dir}/www")),
        ("/run/ron-public/svc-passport.sock", passport),
    ] {
        server = replaced(&server, from, into);
    }
    format!(
        r"daemon off;
master_process off;
pid {dir}/nginx.pid;
error_log {dir}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {dir}/body;
  proxy_temp_path {dir}/proxy;
  fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi;
  scgi_temp_path {dir}/scgi;
{server}
}}
"
    )
}

#[test]
fn nginx_protects_a_page_with_our_introspection() {
    let mut fleet = Fleet::start();
    let socket = fleet.dir().join("public/svc-passport.sock");
    let path = fleet.dir().join("svc-passport/config.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let key = format!("client_uds_path = \"{}\"\n", socket.display());
    std::fs::write(&path, key + &text).unwrap();
    assert_eq!(fleet.stop(), Some(0));
    let fleet = Fleet::start_in(fleet.keep_dir());
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("www")).unwrap();
    std::fs::write(dir.path().join("www/page.txt"), "the page").unwrap();
    let client = read_json(&fleet.dir().join("clients/operator.json"));
    let pair = format!("operator:{}", client["client_secret"].as_str().unwrap());
    let basic = format!("Basic {}", b64::std(pair.as_bytes()));
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let config = dir.path().join("nginx.conf");
    let text = nginx_config(dir.path(), port, socket.to_str().unwrap(), &basic);
    std::fs::write(&config, text).unwrap();
    let _nginx = Process(
        Command::new("/usr/sbin/nginx")
            .arg("-c")
            .arg(&config)
            .stderr(Stdio::null())
            .spawn()
            .expect("installed by scripts/setup.sh"),
    );
    let url = format!("http://127.0.0.1:{port}/page.txt");
    let since = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            since.elapsed() < Duration::from_secs(10),
            "nginx does not listen"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let token = fleet.token("svc-wallet", None);
    let got = fleet.get(&url, Some(&token));
    assert_eq!((got.status, &got.body[..]), (200, &b"the page"[..]));
    assert_eq!(fleet.get(&url, None).status, 401);
    let other = [("Authorization", "Basic b3BlcmF0b3I6cHc=")];
    let other = fleet.send(Method::GET, &url, None, None, &other);
    assert_eq!(other.status, 401, "another scheme");
    assert_eq!(fleet.get(&url, Some("not.a.token")).status, 401);
    let tampered = format!("{}A", &token[..token.len() - 2]);
    assert_eq!(fleet.get(&url, Some(&tampered)).status, 401);
    ok(&fleet.ron(&["token", "revoke", "--token", &token, "--reason", "test"]));
    assert_eq!(
        fleet.get(&url, Some(&token)).status,
        401,
        "at once after its revocation"
    );
}

#[test]
fn without_its_kms_the_issuer_verifies_and_revokes_and_reports_what_fails() {
    let mut fleet = Fleet::start();
    let token = fleet.token("svc-wallet", None);
    let revoker = fleet.token("svc-passport", Some("passport:admin"));
    assert_eq!(fleet.stop(), Some(0));
    let addrs = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let [api_socket, health_socket] = own_sockets(&fleet.dir().join("run"), "svc-passport");
    let sets = [
        "log.level=error".to_owned(),
        "kms.url=unix:/nowhere/api.sock".to_owned(),
        format!("bind_addr={}", addrs[0]),
        format!("health_addr={}", addrs[1]),
        format!(
            "auth.jwks_url=unix:{}/run/sockets/svc-passport-api.sock:/.well-known/jwks.json",
            fleet.dir().display()
        ),
        api_socket,
        health_socket,
    ];
    let config = fleet.dir().join("svc-passport/config.toml");
    let _alone = Process::start(&mut service("svc-passport", &config, &sets));
    let http = Arc::new(http_client());
    let (api, health) = (
        format!("http://{}", addrs[0]),
        format!("http://{}", addrs[1]),
    );
    let get = |url: &str| http.call(Call::get(url, Deadline::within(CALL)));
    let since = Instant::now();
    let ready = loop {
        if let Ok(reply) = get(&format!("{health}/readyz"))
            && reply.body.windows(7).any(|w| w == b"\"issue\"")
            && !reply.body.windows(11).any(|w| w == b"\"passports\"")
        {
            break reply;
        }
        assert!(
            since.elapsed() < Duration::from_secs(20),
            "svc-passport does not come up"
        );
        std::thread::sleep(Duration::from_millis(50));
    };
    let said: Value = serde_json::from_slice(&ready.body).unwrap();
    assert_eq!(ready.status, 503, "issuing is impossible");
    assert!(
        !said.to_string().contains("verify"),
        "verifying is not: {said}"
    );
    assert_eq!(
        get(&format!("{api}/.well-known/jwks.json")).unwrap().status,
        200
    );
    let post = |path: &str, bearer: Option<&str>, body: &Value| {
        fleet.post(&format!("{api}{path}"), bearer, &body.to_string(), &[])
    };
    let verdict = json(
        &post("/v1/passport/verify", None, &json!({"token": token})),
        200,
    );
    assert_eq!(verdict["ok"], true, "{verdict}");
    let client = read_json(&fleet.dir().join("clients/operator.json"));
    let form = format!(
        "grant_type=client_credentials&audience=svc-wallet&client_id=operator&client_secret={}",
        client["client_secret"].as_str().unwrap()
    );
    let kind = [("Content-Type", "application/x-www-form-urlencoded")];
    let began = Instant::now();
    let refused = fleet.post(&format!("{api}/oauth2/token"), None, &form, &kind);
    assert_eq!(json(&refused, 503)["error"], "temporarily_unavailable");
    assert!(refused.retry_after_s().is_some() && began.elapsed() < Duration::from_secs(4));
    let jti: Value =
        serde_json::from_slice(&b64::from_url(token.split('.').nth(1).unwrap()).unwrap()).unwrap();
    let body = json!({"jti": jti["jti"], "reason": "test"});
    assert_eq!(
        post("/v1/passport/revoke", Some(&revoker), &body).status,
        200
    );
    let verdict = json(
        &post("/v1/passport/verify", None, &json!({"token": token})),
        200,
    );
    assert_eq!(verdict["reason"], "revoked");
}
