//! Bad input gets a clear response and changes nothing.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use ron_http::Method;
use ron_tests::{Fleet, SERVICES, json, ok, ron_on};

/// Status of a raw request.
fn raw(base: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(base.trim_start_matches("http://")).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn the_wallet_refuses_what_is_wrong_and_says_why() {
    let fleet = Fleet::start();
    let base = fleet.api("svc-wallet");
    let token = fleet.token("svc-wallet", None);
    let reads_only = fleet.token("svc-wallet", Some("wallet:read"));
    let for_kms = fleet.token("ron-kms", None);
    let mut n = 0;
    let mut check = |token: &str, path: &str, body: &str, status: u16, code: &str| {
        n += 1;
        let key = format!("bad-{n}");
        let reply = fleet.post(
            &format!("{base}/v1/{path}"),
            Some(token),
            body,
            &[("Idempotency-Key", &key)],
        );
        let problem = json(&reply, status);
        assert_eq!(problem["code"], code, "{body}: {problem}");
        assert!(
            problem["detail"].as_str().is_some_and(|d| !d.is_empty()),
            "{problem}"
        );
        assert_eq!(
            reply.header("content-type"),
            Some("application/problem+json")
        );
    };
    let issue = |amount: &str| format!(r#"{{"to":"a","asset":"ron","amount_minor":{amount}}}"#);
    check(
        &token,
        "issue",
        r#"{"to":"a","asset":"ron","amount_minor":"1","colour":"red"}"#,
        400,
        "bad_request",
    );
    check(
        &token,
        "issue",
        r#"{"to":"a","to":"b","asset":"ron","amount_minor":"1"}"#,
        400,
        "bad_request",
    );
    check(
        &token,
        "issue",
        r#"{"to":7,"asset":"ron","amount_minor":"1"}"#,
        400,
        "bad_request",
    );
    check(&token, "issue", "{", 400, "bad_request");
    for amount in [
        "\"0\"",
        "\"-1\"",
        "\"1.5\"",
        "\"01\"",
        "1",
        "\"9999999999999999999999999999999999999999\"",
    ] {
        check(&token, "issue", &issue(amount), 400, "bad_request");
    }
    check(
        &token,
        "issue",
        &issue("\"100000000000000000001\""),
        403,
        "limits_exceeded",
    );
    let transfer = |nonce: u64| {
        format!(r#"{{"from":"a","to":"b","asset":"ron","amount_minor":"5","nonce":{nonce}}}"#)
    };
    check(&token, "transfer", &transfer(1), 409, "insufficient_funds");
    check(&token, "transfer", &transfer(7), 409, "nonce_conflict");
    check(&reads_only, "issue", &issue("\"1\""), 403, "forbidden");
    check(&for_kms, "issue", &issue("\"1\""), 401, "unauthorized");
    let mut tampered = token.clone();
    tampered.replace_range(30..31, if &token[30..31] == "A" { "B" } else { "A" });
    check(&tampered, "issue", &issue("\"1\""), 401, "unauthorized");
    check("not-a-token", "issue", &issue("\"1\""), 401, "unauthorized");

    let url = format!("{base}/v1/issue");
    let no_key = fleet.post(&url, Some(&token), &issue("\"1\""), &[]);
    assert_eq!(json(&no_key, 400)["code"], "bad_request");
    let no_token = fleet.post(&url, None, &issue("\"1\""), &[("Idempotency-Key", "x")]);
    assert_eq!(json(&no_token, 401)["code"], "unauthorized");
    let big = issue(&format!("\"{}\"", "1".repeat(1 << 20)));
    let too_large = fleet.post(&url, Some(&token), &big, &[("Idempotency-Key", "x")]);
    assert_eq!(json(&too_large, 413)["code"], "too_large");
    let balance = fleet.get(
        &format!("{base}/v1/balance?account=a&asset=ron"),
        Some(&token),
    );
    assert_eq!(json(&balance, 200)["amount_minor"], "0", "nothing changed");
}

#[test]
fn smuggling_attempts_are_refused_on_every_port() {
    let fleet = Fleet::start();
    let host = "Host: localhost\r\n";
    let cases = [
        format!(
            "POST /v1/issue HTTP/1.1\r\n{host}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
        ),
        format!("POST /v1/issue HTTP/1.1\r\n{host}Content-Length: 3\r\nContent-Length: 4\r\n\r\n"),
        format!("POST /v1/issue HTTP/1.1\r\n{host}Content-Length: +3\r\n\r\n"),
        format!("POST /v1/issue HTTP/1.1\r\n{host}Content-Length: x\r\n\r\n"),
        format!("GET / HTTP/1.1\r\n{host}{host}\r\n"),
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
    ];
    for service in SERVICES {
        for base in [fleet.api(service), fleet.health(service)] {
            for case in &cases {
                let answer = raw(&base, case);
                assert!(
                    answer.starts_with("HTTP/1.1 400 "),
                    "{service} {case:?}: {answer}"
                );
                assert_eq!(
                    answer.matches("HTTP/1.1 ").count(),
                    1,
                    "{service}: one answer, then closed"
                );
            }
        }
    }
}

#[test]
fn tokens_that_are_expired_foreign_or_of_another_tenant_are_refused() {
    let fleet = Fleet::start();
    let other_fleet = Fleet::start();
    let url = format!("{}/v1/balance?account=a&asset=ron", fleet.api("svc-wallet"));
    let foreign = other_fleet.token("svc-wallet", None);
    let got = json(&fleet.get(&url, Some(&foreign)), 401);
    assert_eq!(got["code"], "unauthorized", "{got}");

    let short = ok(&fleet.ron(&["token", "--audience", "svc-wallet", "--ttl", "1s"]));
    let short = short.trim();
    assert_eq!(fleet.get(&url, Some(short)).status, 200);
    // Its validity of a second, and the minute of tolerated clock difference.
    let refused = (0..75).find_map(|_| {
        std::thread::sleep(Duration::from_secs(1));
        let reply = fleet.get(&url, Some(short));
        (reply.status != 200).then_some(reply)
    });
    let got = json(&refused.expect("a token ends when it says"), 401);
    assert_eq!(got["code"], "unauthorized", "{got}");

    // The keys of the system belong to tenant `ron`, the operator's tokens to `default`.
    let kms = fleet.api("ron-kms");
    let token = fleet.token("ron-kms", None);
    let bootstrap = std::fs::read(fleet.dir().join("bootstrap.json")).unwrap();
    let bootstrap: serde_json::Value = serde_json::from_slice(&bootstrap).unwrap();
    let key = bootstrap["issuer_key"].as_str().unwrap();
    let body = format!(r#"{{"key":"{key}","message":"aGk"}}"#);
    let reply = fleet.post(&format!("{kms}/v1/kms/sign"), Some(&token), &body, &[]);
    assert_eq!(json(&reply, 403)["code"], "forbidden");
}

#[test]
fn heads_that_are_too_large_get_431() {
    let fleet = Fleet::start();
    let long = "x".repeat(64 * 1024);
    let many = "X-Many: y\r\n".repeat(300);
    for service in ["ron-kms", "svc-wallet", "svc-admin"] {
        for head in [
            format!("GET /version HTTP/1.1\r\nHost: t\r\nX-Long: {long}\r\n\r\n"),
            format!("GET /version HTTP/1.1\r\nHost: t\r\n{many}\r\n"),
        ] {
            let answer = raw(&fleet.api(service), &head);
            assert!(answer.starts_with("HTTP/1.1 431 "), "{service}: {answer}");
        }
    }
}

#[test]
fn overdraft_nonces_keys_and_closed_epochs() {
    let fleet = Fleet::start();
    ok(&fleet.ron(&["demo", "--json"]));
    let base = fleet.api("svc-wallet");
    let token = fleet.token("svc-wallet", None);
    let check = |key: &str, path: &str, body: &str, status: u16, code: &str| {
        let headers = [("Idempotency-Key", key)];
        let reply = fleet.post(&format!("{base}/v1/{path}"), Some(&token), body, &headers);
        let problem = json(&reply, status);
        assert_eq!(problem["code"], code, "{path} {body}: {problem}");
    };
    let transfer = |amount: &str, nonce: u64| {
        format!(
            r#"{{"from":"acct:demo-alice","to":"acct:demo-bob","asset":"ron","amount_minor":"{amount}","nonce":{nonce}}}"#
        )
    };
    // The demo left 750 behind and used nonce 1 under the key demo-transfer-1.
    check(
        "o-1",
        "transfer",
        &transfer("751", 2),
        409,
        "insufficient_funds",
    );
    check("o-2", "transfer", &transfer("1", 1), 409, "nonce_conflict");
    check("o-3", "transfer", &transfer("1", 3), 409, "nonce_conflict");
    let other = transfer("251", 1);
    check(
        "demo-transfer-1",
        "transfer",
        &other,
        422,
        "idempotency_mismatch",
    );
    let burn = r#"{"from":"acct:demo-alice","asset":"ron","amount_minor":"751","nonce":2}"#;
    check("o-4", "burn", burn, 409, "insufficient_funds");

    let rewarder = fleet.api("svc-rewarder");
    let token = fleet.token("svc-rewarder", None);
    let csv = |text: &str| {
        fleet.send(
            Method::POST,
            &format!("{rewarder}/rewarder/snapshots"),
            Some(&token),
            Some(text),
            &[("Content-Type", "text/csv")],
        )
    };
    let bad = json(&csv("account,metric,amount\nacc:a,m,1\nacc:b,m,x\n"), 400);
    assert!(bad["detail"].as_str().unwrap().contains("line 3"), "{bad}");
    let twice = json(&csv("account,metric,amount\nacc:a,m,1\nacc:a,m,2\n"), 400);
    assert!(
        twice["detail"].as_str().unwrap().contains("line 3"),
        "{twice}"
    );
    let sealed = json(&csv("account,metric,amount\nacc:a,collateral,1\n"), 201);
    let runs = json(
        &fleet.get(
            &format!("{rewarder}/rewarder/epochs/rocketpool:03"),
            Some(&token),
        ),
        200,
    );
    let compute = serde_json::json!({
        "snapshot": sealed["cid"],
        "policy_id": runs["policy_id"],
        "policy_hash": runs["policy_hash"],
    });
    let again = fleet.post(
        &format!("{rewarder}/rewarder/epochs/rocketpool:03/compute"),
        Some(&token),
        &compute.to_string(),
        &[],
    );
    assert_eq!(json(&again, 409)["code"], "epoch_conflict");
}

#[test]
fn the_command_line_refuses_clearly() {
    let mut fleet = Fleet::start();
    let port = fleet.api("ron-kms").rsplit(':').next().unwrap().to_owned();
    let elsewhere = tempfile::tempdir().unwrap();
    let check = |dir: &std::path::Path, args: &[&str], says: &[&str]| {
        let out = ron_on(dir, args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        for word in says {
            assert!(said.contains(word), "{args:?}: {word} is not in: {said}");
        }
    };
    check(
        elsewhere.path(),
        &["up", "--base-port", &port],
        &["cannot listen", &port, "--base-port"],
    );
    let file = elsewhere.path().join("file");
    std::fs::write(&file, b"not a directory").unwrap();
    check(&file, &["up", "--base-port", "0"], &["file"]);
    check(
        std::path::Path::new("/proc/ron"),
        &["up", "--base-port", "0"],
        &["/proc/ron"],
    );
    assert_eq!(fleet.stop(), Some(0));
    let config = fleet.dir().join("svc-wallet/config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("bind_adr = \"127.0.0.1:1\"\n{text}")).unwrap();
    check(
        fleet.dir(),
        &["up", "--base-port", "0"],
        &["config.toml:1", "bind_adr", "did you mean bind_addr"],
    );
}
