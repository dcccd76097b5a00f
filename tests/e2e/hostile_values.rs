//! Values that no caller should send, and routes that a caller may not use, over HTTP against a real fleet: each is refused
//! with its status, changes nothing, and does not come back in the answer.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ron_http::Method;
use ron_tests::issuer::{Rig, minted};
use ron_tests::tools::signal;
use ron_tests::{Draws, Fleet, SERVICES, json, ok, read_json, until};
use serde_json::{Value, json};

/// Statuses of requests that were understood and refused.
const REFUSED: [u16; 1] = [400];

struct Wallet {
    fleet: Fleet,
    url: String,
    token: String,
}

impl Wallet {
    fn start() -> Self {
        let fleet = Fleet::start();
        let (url, token) = (fleet.api("svc-wallet"), fleet.token("svc-wallet", None));
        Self { fleet, url, token }
    }

    /// The whole answer to a POST whose headers and body are sent as they are.
    fn raw(&self, path: &str, headers: &[u8], body: &[u8]) -> (u16, String, Duration) {
        let mut stream = TcpStream::connect(self.url.trim_start_matches("http://")).unwrap();
        let wait = Some(Duration::from_secs(20));
        stream.set_read_timeout(wait).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n",
            self.token,
            body.len()
        );
        let began = Instant::now();
        let whole = [head.as_bytes(), headers, b"\r\n", body].concat();
        // A refused head may end the connection before the body is sent.
        let _ = stream.write_all(&whole);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok());
        (status.unwrap_or(0), answer, began.elapsed())
    }

    fn json(&self, path: &str, key: &str, body: &[u8]) -> (u16, String, Duration) {
        let headers = format!("Content-Type: application/json\r\nIdempotency-Key: {key}\r\n");
        self.raw(path, headers.as_bytes(), body)
    }

    /// Nothing was issued, and the account has used no nonce.
    fn is_untouched(&self) {
        let url = format!("{}/v1/balance?account=a&asset=ron", self.url);
        let balance = json(&self.fleet.get(&url, Some(&self.token)), 200);
        assert_eq!(
            (&balance["amount_minor"], &balance["nonce"]),
            (&json!("0"), &json!(0))
        );
    }
}

/// Amounts as JSON, none of which is one or more.
fn amounts() -> Vec<String> {
    let mut all: Vec<String> = [
        r#""0""#,
        r#""00""#,
        r#""01""#,
        r#""007""#,
        r#""-1""#,
        r#""-0""#,
        r#""+1""#,
        r#""1.5""#,
        r#""1.0""#,
        r#"".5""#,
        r#""1.""#,
        r#""1e9""#,
        r#""1E9""#,
        r#""1e-9""#,
        r#""0x10""#,
        r#""0b1""#,
        r#""0o7""#,
        r#""1_000""#,
        r#""1,000""#,
        r#""1 000""#,
        r#"" 1""#,
        r#""1 ""#,
        r#""1\n""#,
        r#""1\u0000""#,
        r#""""#,
        r#""١""#,
        r#""۱""#,
        r#""１""#,
        r#""²""#,
        r#""½""#,
        r#""NaN""#,
        r#""Infinity""#,
        r#""true""#,
        "1",
        "1.5",
        "1e2",
        "-1",
        "null",
        "true",
        "[]",
        r#"["1"]"#,
        "{}",
        r#""340282366920938463463374607431768211456""#,
        r#""-340282366920938463463374607431768211455""#,
        r#""\u0031\u200b""#,
    ]
    .map(str::to_owned)
    .to_vec();
    all.push(format!("\"{}\"", "9".repeat(40)));
    all.push(format!("\"{}\"", "1".repeat(100_000)));
    all.push("1".repeat(100_000));
    all
}

/// Nonces as JSON, none of which is a number that a nonce can be.
const NONCES: [&str; 11] = [
    "-1",
    "1.5",
    "1.0",
    "1e1",
    r#""1""#,
    "01",
    "+1",
    "9007199254740993",
    "18446744073709551616",
    "true",
    "[1]",
];

/// Idempotency keys, as bytes of a header.
fn keys() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = [
        "",
        " ",
        "a b",
        "a\tb",
        "\"a",
        "a\"",
        "\"\"",
        "\"a\\b\"",
        "'a'",
        "a;p=1",
        "a,b",
        "a/b",
        "a\\b",
        "a%20b",
        "a#b",
        "<a>",
        "{a}",
        "a|b",
        "a\u{e9}",
        "\u{202e}a",
        "a\u{ff11}",
    ]
    .map(|key| key.as_bytes().to_vec())
    .to_vec();
    all.push("k".repeat(65).into_bytes());
    all.push(vec![b'a', 0xff]);
    all
}

/// Request ids, as text of a header.
const IDS: [&str; 11] = [
    "",
    "two words",
    "quote\"d",
    "semi;colon",
    "comma,ted",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "${jndi:ldap://x}",
    "caf\u{e9}-caf\u{e9}",
    "%0d%0aSet-Cookie:x",
    "tab\there",
];

#[test]
fn values_that_are_not_what_they_should_be_are_refused_and_not_repeated() {
    let w = Wallet::start();
    let mut n = 0;
    let mut refused = |path: &str, body: String, shown: &str| {
        n += 1;
        let (status, answer, took) = w.json(path, &format!("hostile-{n}"), body.as_bytes());
        assert!(
            REFUSED.contains(&status),
            "{path} {shown:.80}: {answer:.500}"
        );
        assert!(
            answer.contains("\"code\":\"bad_request\""),
            "{shown:.80}: {answer:.500}"
        );
        let long = shown.trim_matches('"');
        assert!(
            long.len() < 8 || !answer.contains(long),
            "repeated: {answer:.500}"
        );
        assert!(took < Duration::from_secs(2), "{shown:.80} took {took:?}");
    };
    let amounts = amounts();
    assert!(amounts.len() >= 42, "{}", amounts.len());
    for amount in &amounts {
        let body = format!(r#"{{"to":"a","asset":"ron","amount_minor":{amount}}}"#);
        refused("/v1/issue", body, amount);
    }
    for nonce in NONCES {
        let body =
            format!(r#"{{"from":"a","to":"b","asset":"ron","amount_minor":"1","nonce":{nonce}}}"#);
        refused("/v1/transfer", body, nonce);
    }
    let good = r#"{"to":"a","asset":"ron","amount_minor":"1"}"#;
    let keys = keys();
    assert!(keys.len() >= 18, "{}", keys.len());
    for key in &keys {
        let shown = String::from_utf8_lossy(key);
        let header = [
            b"Content-Type: application/json\r\nIdempotency-Key: ",
            &key[..],
            b"\r\n",
        ]
        .concat();
        let (status, answer, _) = w.raw("/v1/issue", &header, good.as_bytes());
        assert!(REFUSED.contains(&status), "key {shown:?}: {answer}");
    }
    for id in IDS.map(str::to_owned).into_iter().chain(["i".repeat(65)]) {
        let header = format!("Content-Type: application/json\r\nX-Request-Id: {id}\r\n");
        // Refused for its missing key; the answer has an id of the server's own.
        let (status, answer, _) = w.raw("/v1/issue", header.as_bytes(), good.as_bytes());
        assert_eq!(status, 400, "id {id:?}: {answer}");
        let own = answer
            .lines()
            .find_map(|l| l.strip_prefix("x-request-id: "));
        let own = own
            .expect("an id")
            .trim()
            .parse::<uuid::Uuid>()
            .expect("a UUID");
        assert_eq!(own.get_version_num(), 7);
        assert!(id.is_empty() || !answer.contains(&id), "repeated: {answer}");
    }
    w.is_untouched();
}

/// Bodies of an issue that are not what the route reads.
fn bodies() -> Vec<Vec<u8>> {
    let good = r#"{"to":"a","asset":"ron","amount_minor":"1"}"#;
    let mut all: Vec<Vec<u8>> = [
        "",
        " ",
        "{",
        "}",
        "null",
        "true",
        "1",
        "\"text\"",
        "[]",
        r#"["a","ron","1",null,null]"#,
        "{}",
        r#"{"to":"a","asset":"ron"}"#,
        r#"{"to":"a","asset":"ron","amount_minor":"1",}"#,
        r#"{"to":"a","asset":"ron","amount_minor":"1","colour":"red"}"#,
        r#"{"to":"a","to":"b","asset":"ron","amount_minor":"1"}"#,
        r#"{"to":"a","t\u006f":"b","asset":"ron","amount_minor":"1"}"#,
        r#"{"to":"a","asset":"ron","amount_minor":"1","memo":"\ud800"}"#,
        r#"{"to":"a","asset":"ron","amount_minor":"1","memo":"\u202eevil"}"#,
        r"{'to':'a','asset':'ron','amount_minor':'1'}",
        r#"{to:"a",asset:"ron",amount_minor:"1"}"#,
        r#"{"to":"a","asset":"ron","amount_minor":NaN}"#,
        r#"{"to":{"a":1},"asset":"ron","amount_minor":"1"}"#,
        r#"{"to":"a b","asset":"ron","amount_minor":"1"}"#,
        r#"{"to":"a","asset":"r on","amount_minor":"1"}"#,
        "{\"to\":\"a\",\"asset\":\"ron\",\"amount_minor\":\"1\",\"memo\":\"a\nb\"}",
    ]
    .map(|body| body.as_bytes().to_vec())
    .to_vec();
    for (before, after) in [
        ("\u{feff}", ""),
        ("", "{}"),
        ("", "x"),
        ("// why\n", ""),
        ("/* why */", ""),
        ("", "\0"),
    ] {
        all.push(format!("{before}{good}{after}").into_bytes());
    }
    for (open, close) in [("[", "]"), ("{\"to\":", "}")] {
        for levels in [33, 100_000] {
            all.push(format!("{}1{}", open.repeat(levels), close.repeat(levels)).into_bytes());
        }
    }
    all.push(b"[".repeat(1_000_000));
    all.push(good.encode_utf16().flat_map(u16::to_le_bytes).collect());
    all.push(
        [
            &b"{\"to\":\"a\",\"asset\":\"ron\",\"amount_minor\":\"1\",\"memo\":\""[..],
            b"\xff\xfe\"}",
        ]
        .concat(),
    );
    all
}

#[test]
fn bodies_that_are_no_such_object_are_refused_at_once() {
    let w = Wallet::start();
    let bodies = bodies();
    assert!(bodies.len() >= 29, "{}", bodies.len());
    for (n, body) in bodies.iter().enumerate() {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]);
        let (status, answer, took) = w.json("/v1/issue", &format!("body-{n}"), body);
        assert_eq!(status, 400, "{shown}: {answer:.500}");
        assert!(took < Duration::from_secs(2), "{shown} took {took:?}");
    }
    w.is_untouched();
}

#[test]
fn a_holder_neither_sees_nor_moves_what_belongs_to_another() {
    let rig = Rig::start();
    let wallet = rig.fleet.api("svc-wallet");
    let holder = |name: &str| minted(&rig.fleet, "svc-wallet", &json!({"sub": name}));
    let (alice, bob) = (holder("alice"), holder("bob"));
    let path = rig.fleet.dir().join("policy/wallet.json");
    let mut policy = read_json(&path);
    policy["version"] = 2.into();
    for name in ["alice", "bob"] {
        policy["rules"].as_array_mut().unwrap().push(json!({
            "principal": name, "actions": ["read", "transfer", "burn", "hold"],
            "accounts": [format!("acct:{name}")], "assets": ["ron"]
        }));
    }
    std::fs::write(&path, policy.to_string()).unwrap();
    let file = path.to_str().unwrap();
    ok(&rig.fleet.ron(&["policy", "sign", "--kind", "wallet", file]));
    signal(rig.fleet.pid(), "-HUP");
    let version = "svc_wallet_policy_version{kind=\"wallet\"}";
    until("the new policy", || {
        rig.fleet.metric("svc-wallet", version) == 2.0
    });

    let send = |token: &str, path: &str, key: &str, body: &Value| {
        let url = format!("{wallet}/v1/{path}");
        let reply = rig.fleet.post(
            &url,
            Some(token),
            &body.to_string(),
            &[("Idempotency-Key", key)],
        );
        (reply.status, String::from_utf8(reply.body).unwrap())
    };
    let get = |token: &str, path: &str| {
        rig.fleet
            .get(&format!("{wallet}/v1/{path}"), Some(token))
            .status
    };
    let done = |(status, text): (u16, String)| -> Value {
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    };
    let operator = rig.fleet.token("svc-wallet", None);
    done(send(
        &operator,
        "issue",
        "i",
        &json!({"to": "acct:alice", "asset": "ron", "amount_minor": "1000"}),
    ));
    let hold = json!({"from": "acct:alice", "asset": "ron", "amount_minor": "10", "nonce": 1, "expires_at": "2200-01-01T00:00:00.000Z"});
    let hold = done(send(&alice, "hold", "h", &hold))["receipt"]["txid"]
        .as_str()
        .unwrap()
        .to_owned();
    let moved = json!({"from": "acct:alice", "to": "acct:bob", "asset": "ron", "amount_minor": "1", "nonce": 2});
    done(send(&alice, "transfer", "t", &moved));
    let burnt = json!({"from": "acct:alice", "asset": "ron", "amount_minor": "1", "nonce": 3});
    let burn = done(send(&alice, "burn", "b", &burnt))["receipt"]["txid"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(get(&alice, &format!("tx/{burn}")), 200);

    let from = json!({"from": "acct:alice", "to": "acct:bob", "asset": "ron", "amount_minor": "1", "nonce": 4});
    let mut item = from.clone();
    item["op"] = "transfer".into();
    let mut kept = from.clone();
    kept.as_object_mut().unwrap().remove("to");
    let mut held = kept.clone();
    held["expires_at"] = "2200-01-01T00:00:00.000Z".into();
    let (capture, release) = (
        format!("hold/{hold}/capture"),
        format!("hold/{hold}/release"),
    );
    for (n, (path, body)) in [
        (
            "issue",
            json!({"to": "acct:bob", "asset": "ron", "amount_minor": "1"}),
        ),
        ("transfer", from),
        ("burn", kept),
        ("batch", json!({"items": [item], "linked": true})),
        ("hold", held),
        (
            capture.as_str(),
            json!({"to": "acct:bob", "amount_minor": "5"}),
        ),
        (release.as_str(), json!({})),
        ("account/acct%3Aalice/freeze", json!({})),
        ("account/acct%3Aalice/unfreeze", json!({})),
        ("account/acct%3Abob/freeze", json!({})),
    ]
    .into_iter()
    .enumerate()
    {
        let (status, text) = send(&bob, path, &format!("bob-{n}"), &body);
        assert!([403, 404].contains(&status), "{path}: {status} {text}");
    }
    for path in [
        "balance?account=acct%3Aalice&asset=ron".to_owned(),
        "account/acct%3Aalice/history?limit=10".to_owned(),
        format!("tx/{burn}"),
        format!("tx/{burn}/receipt"),
        format!("hold/{hold}"),
        // The key is alice's.
        "ops/b".to_owned(),
    ] {
        let status = get(&bob, &path);
        assert!([403, 404].contains(&status), "{path}: {status}");
    }
    let url = format!("{wallet}/v1/balance?account=acct%3Aalice&asset=ron");
    let balance = json(&rig.fleet.get(&url, Some(&alice)), 200);
    let left = (&balance["amount_minor"], &balance["nonce"]);
    assert_eq!(left, (&json!("998"), &json!(3)), "nothing of it happened");
}

/// A route of each service that needs a token.
const ROUTES: [(Method, &str); 6] = [
    (Method::GET, "/v1/kms/keys"),
    (Method::POST, "/v1/passport/issue"),
    (Method::GET, "/v1/ledger/accounts/a"),
    (Method::GET, "/v1/balance?account=a&asset=ron"),
    (Method::GET, "/rewarder/epochs"),
    (Method::GET, "/api/me"),
];

#[test]
fn a_token_is_for_one_service_and_has_one_form() {
    let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
    ok(&ron_tests::ron_on(dir.path(), &["init"]));
    ron_tests::consumers::configure(dir.path(), "eu");
    let fleet = Fleet::start_in(dir);
    let mut pairs = 0;
    for audience in SERVICES {
        let token = fleet.token(audience, None);
        for (service, (method, path)) in SERVICES.iter().zip(ROUTES) {
            let url = format!("{}{path}", fleet.api(service));
            let body = (method == Method::POST).then_some("{}");
            let status = fleet.send(method, &url, Some(&token), body, &[]).status;
            pairs += 1;
            if audience == *service {
                assert_ne!(status, 401, "{audience} at its own service");
            } else {
                assert_eq!(status, 401, "{audience} at {service}");
            }
        }
    }
    assert_eq!(pairs, 36);
    let token = fleet.token("svc-wallet", None);
    let url = format!("{}{}", fleet.api("svc-wallet"), ROUTES[3].1);
    let with = |headers: &[(&str, &str)]| fleet.send(Method::GET, &url, None, None, headers).status;
    assert_eq!(with(&[("Authorization", &format!("Bearer {token}"))]), 200);
    for form in [
        token.clone(),
        format!("Bearer{token}"),
        format!("Basic {token}"),
        format!("Token {token}"),
        format!("Bearer {token}, Bearer {token}"),
        format!("Bearer \"{token}\""),
        format!("Bearer {token} x"),
        format!("DPoP {token}"),
        format!("Bearer {token}="),
        "Bearer".to_owned(),
    ] {
        assert_eq!(with(&[("Authorization", &form)]), 401, "{form:.20}");
    }
    let good = format!("Bearer {token}");
    let twice = [
        ("Authorization", good.as_str()),
        ("Authorization", good.as_str()),
    ];
    assert_eq!(with(&twice), 401, "two credentials");
    assert_eq!(with(&[("X-Authorization", &good)]), 401);
    assert_eq!(
        fleet
            .get(&format!("{url}&access_token={token}"), None)
            .status,
        401,
        "in the URL"
    );
}

/// Requests with random paths and headers; a service of the fleet gets a sixth of them.
const RANDOM: usize = 4_800;
/// New series over all services: routes, methods and statuses that nobody had used.
const SERIES_MAX: usize = 60;
const GROWTH_KIB: u64 = 24 << 10;

#[test]
fn random_requests_make_no_series_and_take_no_memory() {
    let fleet = Fleet::start();
    let pages = || -> Vec<String> {
        let page = |service: &&str| {
            let url = format!("{}/metrics", fleet.health(service));
            String::from_utf8(fleet.get(&url, None).body).unwrap()
        };
        SERVICES.iter().map(page).collect()
    };
    let series = |pages: &[String]| -> usize {
        let lines = pages.iter().flat_map(|page| page.lines());
        lines.filter(|line| !line.starts_with('#')).count()
    };
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", fleet.pid())).unwrap();
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("VmRSS:"))
            .unwrap()
            .to_owned();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let mut draws = Draws::seeded();
    let mut send = |n: usize| {
        let mark = format!("mark{:016x}", draws.below(u64::MAX));
        let service = SERVICES[n % SERVICES.len()];
        let base = if n % 4 == 3 {
            fleet.health(service)
        } else {
            fleet.api(service)
        };
        let mut path = String::new();
        for _ in 0..=(n % 3) {
            let _ = write!(path, "/{mark}");
        }
        let method = [Method::GET, Method::POST, Method::PUT, Method::DELETE][n % 4];
        let from = format!("10.{}.{}.{}", n % 251, n % 241, n % 239);
        let headers = [
            ("X-Request-Id", mark.as_str()),
            ("User-Agent", mark.as_str()),
            ("X-Forwarded-For", from.as_str()),
        ];
        let body = (method != Method::GET).then_some("{}");
        let reply = fleet.send(
            method,
            &format!("{base}{path}?{mark}={mark}"),
            None,
            body,
            &headers,
        );
        assert!(
            (400..500).contains(&reply.status),
            "{method} {path}: {}",
            reply.status
        );
    };
    (0..240).for_each(&mut send);
    let (first, kib) = (pages(), resident());
    let before = series(&first);
    (0..RANDOM).for_each(&mut send);
    let (after, grown) = (pages(), resident().saturating_sub(kib));
    let names = |pages: &[String]| -> std::collections::BTreeSet<String> {
        let lines = pages.iter().flat_map(|page| page.lines());
        let name = |line: &str| line.rsplit_once(' ').map(|(name, _)| name.to_owned());
        // A route's own series begin with its first request, also with one by the console.
        lines
            .filter(|line| !line.starts_with('#') && !line.contains("route=\"/"))
            .filter_map(name)
            .collect()
    };
    let new: Vec<String> = names(&after).difference(&names(&first)).cloned().collect();
    println!(
        "{RANDOM} requests: {} more series, {grown} KiB",
        series(&after) - before
    );
    assert!(
        after.iter().all(|page| !page.contains("mark")),
        "an input is a label"
    );
    assert!(new.len() <= SERIES_MAX, "{new:#?}");
    assert!(grown < GROWTH_KIB, "{grown} KiB");
}
