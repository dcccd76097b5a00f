//! Bad input is answered clearly, and changes nothing.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::float_cmp)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use ron_tests::{Fleet, json};

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
    for service in [
        "ron-kms",
        "svc-passport",
        "ron-ledger",
        "svc-wallet",
        "svc-rewarder",
        "svc-admin",
    ] {
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
