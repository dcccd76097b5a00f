//! Caveats at the services they are for, and how fast revocations reach a wallet, also after its feed was cut.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types
)]

#[path = "support/line.rs"]
mod line;

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use line::{Ended, Line, Way};

use ron_tests::{Fleet, ok, ron_binary, ron_on};
use serde_json::Value;

/// A fleet whose wallet runs in the region `eu`.
fn in_europe() -> Fleet {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    ok(&ron_on(dir.path(), &["init"]));
    let path = dir.path().join("svc-wallet/config.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("[auth]\n", "[auth]\nregion = \"eu\"\n")).unwrap();
    Fleet::start_in(dir)
}

fn token(fleet: &Fleet, audience: &str, caveats: &[&str]) -> String {
    let mut args = vec!["token", "--audience", audience];
    for caveat in caveats {
        args.extend(["--caveat", caveat]);
    }
    ok(&fleet.ron(&args)).trim().to_owned()
}

#[test]
fn each_caveat_is_enforced_where_it_applies() {
    let fleet = in_europe();
    let wallet = fleet.api("svc-wallet");
    let balance = format!("{wallet}/v1/balance?account=a&asset=ron");
    let reads = |caveats: &[&str], status: u16| {
        let got = fleet.get(&balance, Some(&token(&fleet, "svc-wallet", caveats)));
        let said = String::from_utf8_lossy(&got.body).into_owned();
        assert_eq!(got.status, status, "{caveats:?}: {said}");
    };
    for (held, broken) in [
        ("svc=svc-wallet", "svc=ron-kms"),
        ("route=/v1/balance", "route=/v1/bal"),
        ("method=GET", "method=POST"),
        ("region=eu", "region=us"),
        ("ip_cidr=127.0.0.0/8", "ip_cidr=10.0.0.0/8"),
        ("tenant=default", "tenant=other"),
        ("account=a", "account=b"),
        ("asset=ron", "asset=rpl"),
        ("budget.reqs=1", "budget.reqs=0"),
    ] {
        reads(&[held], 200);
        reads(&[broken], 403);
        reads(&[held, broken], 403);
    }
    let twice = token(&fleet, "svc-wallet", &["budget.reqs=2"]);
    let got: Vec<u16> = (0..3)
        .map(|_| fleet.get(&balance, Some(&twice)).status)
        .collect();
    assert_eq!(got, [200, 200, 403]);
    let slow = token(&fleet, "svc-wallet", &["rate.rps=1"]);
    let got: Vec<u16> = (0..4)
        .map(|_| fleet.get(&balance, Some(&slow)).status)
        .collect();
    assert!(got.contains(&200) && got.contains(&429), "{got:?}");

    let mut n = 0;
    let mut issue = |token: &str, amount: u32| {
        n += 1;
        let body = format!(r#"{{"to":"a","asset":"ron","amount_minor":"{amount}"}}"#);
        let key = format!("caveat-{n}");
        let headers = [("Idempotency-Key", key.as_str())];
        fleet
            .post(&format!("{wallet}/v1/issue"), Some(token), &body, &headers)
            .status
    };
    let capped = token(&fleet, "svc-wallet", &["ceiling.per_op=5"]);
    assert_eq!(issue(&capped, 6), 403);
    assert!([200, 201].contains(&issue(&capped, 5)));
    // What the holder moved today counts, with whichever token: 5 until here.
    let daily = token(&fleet, "svc-wallet", &["ceiling.daily=12"]);
    assert!([200, 201].contains(&issue(&daily, 5)));
    assert_eq!(issue(&daily, 5), 403);
    let bytes = token(&fleet, "svc-wallet", &["budget.bytes=60"]);
    assert!([200, 201].contains(&issue(&bytes, 1)));
    assert_eq!(issue(&bytes, 1), 403, "the second body is too much");

    let kms = format!("{}/v1/kms/keys", fleet.api("ron-kms"));
    let rewarder = format!("{}/rewarder/epochs/e:1", fleet.api("svc-rewarder"));
    for (audience, url) in [("ron-kms", &kms), ("svc-rewarder", &rewarder)] {
        let status = |caveats: &[&str]| {
            fleet
                .get(url, Some(&token(&fleet, audience, caveats)))
                .status
        };
        let svc = format!("svc={audience}");
        assert_ne!(
            status(&[&svc, "method=GET", "tenant=default"]),
            403,
            "{audience}"
        );
        for broken in [
            "method=POST",
            "route=/other",
            "region=eu",
            "account=a",
            "asset=ron",
            "ceiling.per_op=1",
            "ceiling.daily=1",
        ] {
            assert_eq!(status(&[broken]), 403, "{broken} at {audience}");
        }
    }
    for (caveat, code) in [
        ("colour=red", "unknown_caveat"),
        ("budget.reqs=101", "caveat_over_max"),
        ("pq.fallback=true", "bad_caveat"),
    ] {
        let out = fleet.ron(&["token", "--caveat", caveat]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            !out.status.success() && !said.is_empty(),
            "{caveat} ({code}): {said}"
        );
    }
}

#[test]
fn two_hundred_revocations_reach_a_wallet_in_time_also_after_its_feed_was_cut() {
    let fleet = Fleet::start();
    let issuer = fleet.api("svc-passport");
    let line = Line::to(&issuer);
    let data = tempfile::tempdir().unwrap();
    let ports: Vec<TcpListener> = (0..2)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let addrs: Vec<String> = ports
        .iter()
        .map(|p| p.local_addr().unwrap().to_string())
        .collect();
    drop(ports);
    let set = |text: String| ["--set".to_owned(), text];
    let _wallet = Ended(
        Command::new(ron_binary().with_file_name("svc-wallet"))
            .arg("--config")
            .arg(fleet.dir().join("svc-wallet/config.toml"))
            .args(set("log.level=error".into()))
            .args(set(format!("data_dir={}", data.path().display())))
            .args(set(format!("bind_addr={}", addrs[0])))
            .args(set(format!("health_addr={}", addrs[1])))
            .args(set(format!("ledger.url={}", fleet.api("ron-ledger"))))
            .args(set(format!(
                "auth.jwks_url=http://127.0.0.1:{}/.well-known/jwks.json",
                line.port
            )))
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let url = format!("http://{}/v1/balance?account=a&asset=ron", addrs[0]);
    let since = Instant::now();
    while TcpStream::connect(&addrs[0]).is_err() {
        assert!(
            since.elapsed() < Duration::from_secs(20),
            "the wallet does not listen"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let revoker = fleet.token("svc-passport", Some("passport:revoke"));
    let good = fleet.token("svc-wallet", None);
    while fleet.get(&url, Some(&good)).status != 200 {
        assert!(
            since.elapsed() < Duration::from_secs(20),
            "the wallet does not judge passports"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let issuing = fleet.token("svc-passport", Some("passport:issue"));
    let fresh = || {
        let body = r#"{"subject_ref":"operator","audience":"svc-wallet"}"#;
        let reply = fleet.post(
            &format!("{issuer}/v1/passport/issue"),
            Some(&issuing),
            body,
            &[],
        );
        ron_tests::json(&reply, 200)["token"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let revoke = |token: &str| {
        let payload = ron_proto::b64::from_url(token.split('.').nth(1).unwrap()).unwrap();
        let claims: Value = serde_json::from_slice(&payload).unwrap();
        let body = serde_json::json!({"jti": claims["jti"], "reason": "test"}).to_string();
        let reply = fleet.post(
            &format!("{issuer}/v1/passport/revoke"),
            Some(&revoker),
            &body,
            &[],
        );
        assert_eq!(reply.status, 200);
    };
    let mut took: Vec<Duration> = (0..200)
        .map(|n| {
            let token = fresh();
            assert_eq!(fleet.get(&url, Some(&token)).status, 200, "{n}");
            revoke(&token);
            let at = Instant::now();
            while fleet.get(&url, Some(&token)).status == 200 {
                assert!(
                    at.elapsed() < Duration::from_secs(10),
                    "{n}: still accepted"
                );
                std::thread::sleep(Duration::from_millis(2));
            }
            at.elapsed()
        })
        .collect();
    took.sort_unstable();
    println!(
        "revocation to refusal: p50 {:?}, p99 {:?}, max {:?}",
        took[100], took[198], took[199]
    );
    assert!(took[198] < Duration::from_secs(5), "p99 {:?}", took[198]);

    line.set(Way::Cut);
    let missed = fresh();
    assert_eq!(fleet.get(&url, Some(&missed)).status, 200);
    revoke(&missed);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(
        fleet.get(&url, Some(&missed)).status,
        200,
        "the line is cut"
    );
    line.set(Way::Open);
    let at = Instant::now();
    while fleet.get(&url, Some(&missed)).status == 200 {
        assert!(
            at.elapsed() < Duration::from_secs(5),
            "not heard of after the line was mended"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(fleet.get(&url, Some(&good)).status, 200);
}
