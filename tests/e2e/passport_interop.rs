//! Passports in ordinary clients: PyJWT, joserfc, jwcrypto, authlib, npm jose and fast-jwt verify
//! them through discovery and key set, for all classical algorithms, while the issuer has an
//! ML-DSA key (kty AKP) too, and across a rotation of all; nginx protects a page with the issuer's
//! introspection; the issuer alone, without its KMS, still verifies.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
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
const ALGS: [&str; 5] = ["EdDSA", "ES256", "RS256", "ML-DSA-65", HYBRID];

/// A fleet whose issuer has an ES256 key, an RS256 and an ML-DSA one too, and offers all for the wallet;
/// returns all its keys.
fn with_every_alg() -> (Fleet, [String; 4]) {
    let mut fleet = Fleet::start();
    let algs = ["ecdsa-p256", "rsa-2048", "ml-dsa-65"];
    let [es256, rs256, pq] = fleet.offer_issuer_keys(algs, &ALGS[1..]);
    let config = fleet.dir().join("svc-passport/config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let keys = format!(
        "[pq]\nmode = \"mirror\"\nkey = \"{pq}\"\n\n[kms]\nkey_es256 = \"{es256}\"\nkey_rs256 = \"{rs256}\"\n"
    );
    std::fs::write(&config, text.replace("[kms]\n", &keys)).unwrap();
    let own = fleet.bootstrap()["issuer_key"].as_str().unwrap().to_owned();
    (Fleet::start_in(fleet.keep_dir()), [own, es256, rs256, pq])
}

/// A token of each algorithm, all signed by keys whose ids are not among `old`.
fn tokens(fleet: &Fleet, old: &[String]) -> [String; 5] {
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
    assert_eq!(kinds(&fleet, "jwks_uri"), ["EC", "OKP", "RSA"]);
    assert_eq!(kinds(&fleet, "pq_jwks_uri"), ["AKP"]);
    let [eddsa, es256, rs256, pq, hybrid] = &before;
    // A client without ML-DSA refuses its tokens, and its keys do not disturb that client.
    clients_verify(&fleet, &[eddsa, es256, rs256], &[pq, hybrid]);
    jwcrypto_verifies_pq(&fleet, &[pq, hybrid], &[eddsa, es256, rs256]);

    for key in &keys {
        fleet.kms(&format!("keys/{key}/rotate"), &json!({}), 200);
    }
    let old: Vec<String> = before.iter().flat_map(|token| kids(token)).collect();
    let after = tokens(&fleet, &old);
    assert_eq!(
        kinds(&fleet, "jwks_uri"),
        ["EC", "EC", "OKP", "OKP", "RSA", "RSA"]
    );
    assert_eq!(kinds(&fleet, "pq_jwks_uri"), ["AKP", "AKP"]);
    let other = fleet.token("ron-kms", None);
    let (first, signature) = after[0].rsplit_once('.').unwrap();
    let begins = if signature.starts_with('A') { "B" } else { "A" };
    let flipped = format!("{first}.{begins}{}", &signature[1..]);
    let payload = first.split('.').nth(1).unwrap();
    let none = b64::url(br#"{"alg":"none","typ":"at+jwt"}"#);
    let none = format!("{none}.{payload}.");
    let good = [eddsa, es256, rs256, &after[0], &after[1], &after[2]];
    let bad = [&other, &flipped, &none, pq, &after[3], hybrid, &after[4]];
    clients_verify(&fleet, &good, &bad);
    jwcrypto_verifies_pq(&fleet, &[pq, hybrid, &after[3], &after[4]], &good);
}

/// The blocks of `docs/nginx.md`: the client's credential, the server that introspects, the one with
/// the forward endpoint.
pub fn nginx_blocks() -> [String; 3] {
    let page = std::fs::read_to_string(workspace().join("docs/nginx.md")).unwrap();
    let mut blocks = page.split("```nginx\n").skip(1);
    [(); 3].map(|()| {
        blocks
            .next()
            .unwrap()
            .split("```")
            .next()
            .unwrap()
            .to_owned()
    })
}

pub fn replaced(text: &str, from: &str, into: &str) -> String {
    assert!(text.contains(from), "{from} is in docs/nginx.md");
    text.replace(from, into)
}

/// The server that introspects, for this issuer, this port and this client.
fn nginx_config(dir: &Path, port: u16, passport: &str, basic: &str) -> String {
    let [credential, server, _] = nginx_blocks();
    let shown = "Basic Z2F0ZXdheTpyb25fY3NfZ2F0ZXdheV8uLi4=";
    let file = dir.join("ron-client.conf");
    std::fs::write(&file, replaced(&credential, shown, basic)).unwrap();
    let mut server = server;
    for (from, into) in [
        ("/etc/nginx/ron-client.conf", &*file.display().to_string()),
        ("127.0.0.1:8080", &format!("127.0.0.1:{port}")),
        ("/srv/www", &format!("{}/www", dir.display())),
        ("/run/ron-public/svc-passport.sock", passport),
    ] {
        server = replaced(&server, from, into);
    }
    nginx_http(dir, &server)
}

/// A configuration of nginx with these servers, which keeps to a directory.
pub fn nginx_http(dir: &Path, servers: &str) -> String {
    let dir = dir.display();
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
{servers}
}}
"
    )
}

/// A fleet whose issuer has a socket for local programs, the path of that socket, and a directory with
/// a page to protect.
pub fn with_public_socket() -> (Fleet, String, tempfile::TempDir) {
    let mut fleet = Fleet::start();
    let socket = fleet.dir().join("public/svc-passport.sock");
    let path = fleet.dir().join("svc-passport/config.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let key = format!(
        "client_uds_path = \"{}\"\ntrusted_proxies = [\"127.0.0.1\"]\n",
        socket.display()
    );
    // nginx runs as this user here, and over TCP calls from an address of its own.
    let uid = std::fs::metadata("/proc/self").unwrap().uid();
    let listed = format!("\n[forward]\nproxies = [\"127.0.0.2\"]\nproxy_uids = [\"{uid}\"]\n");
    std::fs::write(&path, key + &text + &listed).unwrap();
    assert_eq!(fleet.stop(), Some(0));
    let fleet = Fleet::start_in(fleet.keep_dir());
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("www")).unwrap();
    std::fs::write(dir.path().join("www/page.txt"), "the page").unwrap();
    (fleet, socket.to_str().unwrap().to_owned(), dir)
}

/// nginx with this configuration, once it listens at the port.
pub fn nginx(dir: &Path, text: &str, port: u16) -> Process {
    let config = dir.join("nginx.conf");
    std::fs::write(&config, text).unwrap();
    let nginx = Process(
        Command::new("/usr/sbin/nginx")
            .arg("-c")
            .arg(&config)
            .stderr(Stdio::null())
            .spawn()
            .expect("installed by scripts/setup.sh"),
    );
    let since = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            since.elapsed() < Duration::from_secs(10),
            "nginx does not listen"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    nginx
}

pub fn nginx_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

#[test]
fn nginx_protects_a_page_with_our_introspection() {
    let (fleet, socket, dir) = with_public_socket();
    let client = read_json(&fleet.dir().join("clients/operator.json"));
    let pair = format!("operator:{}", client["client_secret"].as_str().unwrap());
    let basic = format!("Basic {}", b64::std(pair.as_bytes()));
    let port = nginx_port();
    let text = nginx_config(dir.path(), port, &socket, &basic);
    let _nginx = nginx(dir.path(), &text, port);
    let url = format!("http://127.0.0.1:{port}/page.txt");
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
fn nginx_protects_a_page_with_the_forward_endpoint() {
    let (fleet, socket, dir) = with_public_socket();
    let orders = "https://orders.example.org/";
    ok(&fleet.ron(&[
        "audience",
        "add",
        orders,
        "--scope",
        "orders:read orders:write",
    ]));
    let scope = ["--scope", "orders:read orders:write", "--secret"];
    ok(&fleet.ron(&[&["client", "add", "shop", "--audience", orders], &scope[..]].concat()));
    let token = |more: &[&str]| {
        let ask = ["token", "--client", "shop", "--audience", orders];
        ok(&fleet.ron(&[&ask[..], more].concat())).trim().to_owned()
    };
    let port = nginx_port();
    let [_, _, server] = nginx_blocks();
    let www = format!("{}/www", dir.path().display());
    let server = replaced(&server, "127.0.0.1:8081", &format!("127.0.0.1:{port}"));
    let server = replaced(&server, "/srv/www", &www);
    let unix = "unix:/run/ron-public/svc-passport.sock:";
    let tcp_port = nginx_port();
    let api = fleet.api("svc-passport");
    let over_tcp = [
        (unix, api.strip_prefix("http://").unwrap()),
        ("internal;", "internal;\n    proxy_bind 127.0.0.2;"),
        (&format!(":{port};"), &format!(":{tcp_port};")),
    ];
    let fold = |text: String, (from, into): &(&str, &str)| replaced(&text, from, into);
    let over_tcp = over_tcp.iter().fold(server.clone(), fold);
    let server = replaced(&server, unix, &format!("unix:{socket}:"));
    let servers = nginx_http(dir.path(), &(server + &over_tcp));
    let _nginx = nginx(dir.path(), &servers, port);
    let url = format!("http://127.0.0.1:{port}/page.txt?a=b");
    let seen = |token: Option<&str>| {
        let reply = fleet.get(&url, token);
        let challenge = reply.header("www-authenticate").unwrap_or_default();
        (reply.status, challenge.to_owned())
    };
    let none = String::new();
    let read = token(&["--scope", "orders:read"]);
    let got = fleet.get(&url, Some(&read));
    assert_eq!((got.status, &got.body[..]), (200, &b"the page"[..]));
    assert_eq!(got.header("x-served-to"), Some("shop"));
    assert_eq!(
        seen(Some(&token(&["--caveat", "tenant=default"]))),
        (200, none)
    );
    assert_eq!(seen(None), (401, "Bearer".to_owned()));
    let invalid = (401, "Bearer error=\"invalid_token\"".to_owned());
    let wallet = fleet.token("svc-wallet", None);
    for bad in ["not.a.token", &*wallet, &read[..read.len() - 2]] {
        assert_eq!(seen(Some(bad)), invalid, "{bad}");
    }
    assert_eq!(seen(Some(&token(&["--scope", "orders:write"]))).0, 403);
    for (caveat, status) in [
        ("method=GET", 200),
        ("method=POST", 403),
        ("route=/page.txt", 200),
        ("route=/page", 403),
        ("ip_cidr=127.0.0.0/8", 200),
        ("ip_cidr=192.0.2.0/24", 403),
        ("budget.reqs=3", 403),
    ] {
        assert_eq!(
            seen(Some(&token(&["--caveat", caveat]))).0,
            status,
            "{caveat}"
        );
    }
    // nginx replaces what the caller says of itself, and passes no path on that could be another one.
    let posting = token(&["--caveat", "method=POST"]);
    let routed = token(&["--caveat", "route=/page.txt"]);
    let said = [
        ("X-Forwarded-Method", "POST"),
        ("X-Forwarded-For", "192.0.2.7"),
    ];
    let reply = fleet.send(Method::GET, &url, Some(&posting), None, &said);
    assert_eq!(reply.status, 403);
    let over_tcp = format!("http://127.0.0.1:{tcp_port}/page.txt");
    assert_eq!(fleet.get(&over_tcp, Some(&routed)).status, 200);
    assert_eq!(fleet.get(&over_tcp, Some(&posting)).status, 403);
    let twice = url.replace("page.txt", "page.txt/..//page.txt");
    assert_eq!(fleet.get(&twice, Some(&routed)).status, 403);
    let key = dir.path().join("holder.key").display().to_string();
    ron_tests::issuer::bare(&["token", "key", &key]);
    assert_eq!(
        seen(Some(&token(&["--key", &key]))).0,
        401,
        "without its proof"
    );
    let basic = [("Authorization", "Basic b3BlcmF0b3I6cHc=")];
    let other = fleet.send(Method::GET, &url, None, None, &basic);
    assert_eq!(other.status, 401, "another scheme");
    ok(&fleet.ron(&["token", "revoke", "--token", &read, "--reason", "test"]));
    assert_eq!(seen(Some(&read)), invalid, "at once after its revocation");

    // As a gateway sees it that asks for more, or wrongly; and one that is not listed.
    let forward = format!("{}/v1/passport/forward", fleet.api("svc-passport"));
    let sole = format!("{forward}?audience={orders}");
    let reply = fleet.send(Method::GET, &sole, Some(&posting), None, &said);
    assert_eq!(reply.status, 403, "anybody can say so");
    let led = [("X-Forwarded-Uri", "/page.txt")];
    let reply = fleet.send(Method::GET, &sole, Some(&routed), None, &led);
    assert_eq!(reply.status, 403, "a proxy that names peers is no gateway");
    let write = token(&["--scope", "orders:write"]);
    let both = format!("{forward}?audience={orders}&scope=orders:read+orders:write");
    let refused = fleet.get(&both, Some(&write));
    assert_eq!(refused.status, 403);
    let want = "Bearer error=\"insufficient_scope\", scope=\"orders:read orders:write\"";
    assert_eq!(refused.header("www-authenticate"), Some(want));
    let all = token(&[]);
    let passed = fleet.send(Method::HEAD, &both, Some(&all), None, &[]);
    assert_eq!(passed.status, 200);
    assert_eq!(passed.header("x-scope"), Some("orders:read orders:write"));
    assert_eq!(
        (passed.header("x-subject"), passed.header("x-client")),
        (Some("shop"), Some("shop"))
    );
    assert_eq!(fleet.get(&forward, Some(&all)).status, 400, "no audience");
    let unknown = format!("{forward}?audience={orders}&colour=red");
    assert_eq!(fleet.get(&unknown, Some(&all)).status, 400);
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
