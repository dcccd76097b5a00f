//! Caveats at the services they are for: each kind accepts and refuses at wallet, KMS, rewarder and
//! console; caveats about money are enforced by the wallet, and refused by services that cannot
//! enforce them.

use std::sync::Arc;

use ron_http::Reply;
use ron_tests::consumers::{CONSUMERS, Source, configure, read, reason};
use ron_tests::{Fleet, json, ok, ron_on};
use serde_json::{Value, json};

/// A fleet whose services run in the region `eu` and require passports, including the console.
fn in_europe() -> (Fleet, Source) {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    ok(&ron_on(dir.path(), &["init"]));
    configure(dir.path(), "eu");
    let fleet = Fleet::start_in(dir);
    let source = Source::of(&fleet);
    (fleet, source)
}

/// Caveats about a request's head: every service enforces them before a handler runs.
#[test]
fn caveats_of_the_head_hold_at_every_service() {
    let (fleet, source) = in_europe();
    for (service, url) in CONSUMERS {
        let reads = |caveats: &[&str]| {
            let token = source.token(&fleet, service, caveats);
            reason(&read(&fleet, service, &token))
        };
        let path = url.split('?').next().unwrap();
        let (mine, whole, part) = (
            format!("svc={service}"),
            format!("route={path}"),
            format!("route={}", &path[..path.len() - 1]),
        );
        let other = match service {
            "ron-kms" => "svc=svc-wallet",
            _ => "svc=ron-kms",
        };
        for (held, broken) in [
            (mine.as_str(), other),
            (whole.as_str(), part.as_str()),
            ("method=GET", "method=POST"),
            ("region=eu", "region=us"),
            ("ip_cidr=127.0.0.0/8", "ip_cidr=10.0.0.0/8"),
            ("tenant=default", "tenant=other"),
        ] {
            let refused = (403, "caveat".to_owned());
            assert_eq!(reads(&[held]).0, 200, "{held} at {service}");
            assert_eq!(reads(&[broken]), refused, "{broken} at {service}");
            assert_eq!(reads(&[held, broken]), refused, "both at {service}");
        }
        let free = source.token(&fleet, service, &[]);
        assert_eq!(read(&fleet, service, &free).status, 200, "{service}");
    }
}

/// Caveats that are counted over a token's life.
#[test]
fn budgets_and_rates_hold_at_every_service() {
    let (fleet, source) = in_europe();
    for (service, _) in CONSUMERS {
        let token = |caveats: &[&str]| source.token(&fleet, service, caveats);
        let got = |token: &str| reason(&read(&fleet, service, token));
        let used_up = (403, "budget".to_owned());
        assert_eq!(got(&token(&["budget.reqs=0"])), used_up, "{service}");
        let twice = token(&["budget.reqs=7", "budget.reqs=2"]);
        let statuses: Vec<u16> = (0..3).map(|_| got(&twice).0).collect();
        assert_eq!(statuses, [200, 200, 403], "{service}");
        assert_eq!(got(&twice), used_up, "{service}");
        // A window of one second: on a slow machine it takes a few windows before one sees two
        // requests.
        let slow = token(&["rate.rps=1"]);
        assert_eq!(got(&slow).0, 200, "{service}");
        let limited = (0..100)
            .map(|_| got(&slow))
            .find(|(status, _)| *status != 200);
        assert_eq!(limited, Some((429, "rate".to_owned())), "{service}");
        // Bytes of bodies. The budget of a request is checked before anything else that may be
        // wrong with it.
        let small = token(&["budget.bytes=5"]);
        let url = format!("{}{}", fleet.api(service), posts(service));
        let send = |body: &str| reason(&fleet.post(&url, Some(&small), body, &[]));
        assert_ne!(send("{} "), used_up, "{service}: 3 of 5");
        assert_eq!(send("{} "), used_up, "{service}: 6 of 5");
        assert_ne!(
            send("{}"),
            used_up,
            "{service}: the refused one cost nothing"
        );
    }
}

/// A route of the service that reads a body.
fn posts(service: &str) -> &'static str {
    match service {
        "svc-wallet" => "/v1/transfer",
        "ron-kms" => "/v1/kms/verify",
        "svc-rewarder" => "/rewarder/epochs/e:1/compute",
        _ => "/api/nodes/x/refresh",
    }
}

/// Caveats about a body or a record are enforced by the wallet.
#[test]
fn caveats_about_money_hold_at_the_wallet() {
    let (fleet, source) = in_europe();
    let wallet = fleet.api("svc-wallet");
    let token = |caveats: &[&str]| source.token(&fleet, "svc-wallet", caveats);
    let reads = |caveats: &[&str]| reason(&read(&fleet, "svc-wallet", &token(caveats)));
    let refused = (403, "caveat".to_owned());
    for (held, broken) in [("account=a", "account=b"), ("asset=ron", "asset=rpl")] {
        assert_eq!(reads(&[held]).0, 200, "{held}");
        assert_eq!(reads(&[broken]), refused, "{broken}");
        assert_eq!(reads(&[held, broken]), refused, "both");
    }
    let mut n = 0;
    let mut issue = |token: &str, amount: u32| -> Reply {
        n += 1;
        let body = format!(r#"{{"to":"a","asset":"ron","amount_minor":"{amount}"}}"#);
        let key = format!("caveat-{n}");
        let headers = [("Idempotency-Key", key.as_str())];
        fleet.post(&format!("{wallet}/v1/issue"), Some(token), &body, &headers)
    };
    for broken in ["account=b", "asset=rpl", "ceiling.per_op=5"] {
        let token = token(&[broken]);
        assert_eq!(reason(&issue(&token, 6)), refused, "{broken}");
    }
    let held = token(&["account=a", "asset=ron", "ceiling.per_op=5"]);
    assert_eq!(issue(&held, 5).status, 200);
    // What the token moved today counts, and no other.
    let daily = token(&["ceiling.daily=12"]);
    assert_eq!(issue(&daily, 5).status, 200);
    assert_eq!(issue(&daily, 5).status, 200);
    assert_eq!(issue(&daily, 3).status, 403);
    assert_eq!(issue(&daily, 2).status, 200, "up to the ceiling itself");
    let bytes = token(&["budget.bytes=60"]);
    assert_eq!(issue(&bytes, 1).status, 200);
    let over = reason(&issue(&bytes, 1));
    assert_eq!(
        over,
        (403, "budget".to_owned()),
        "the second body is too much"
    );
    // A token's ceiling binds captures, with whichever token the hold was made.
    let post = |key: &str, caveats: &[&str], path: &str, body: &Value| {
        let (url, token) = (format!("{wallet}/v1/{path}"), token(caveats));
        let headers = [("Idempotency-Key", key)];
        fleet.post(&url, Some(&token), &body.to_string(), &headers)
    };
    let hold = json!({"from": "a", "asset": "ron", "amount_minor": "9", "nonce": 1,
        "expires_at": "2200-01-01T00:00:00.000Z"});
    let id = json(&post("hold", &[], "hold", &hold), 200)["receipt"]["txid"].clone();
    let capture = format!("hold/{}/capture", id.as_str().unwrap());
    let all = json!({"to": "b", "amount_minor": "9"});
    let narrow = post("c1", &["ceiling.daily=5"], &capture, &all);
    assert_eq!(json(&narrow, 403)["code"], "limits_exceeded");
    json(&post("c2", &["ceiling.daily=9"], &capture, &all), 200);
    a_budget(&fleet, &token(&["ceiling.total=6", "account=a"]));
}

/// A token spends what its `ceiling.total` allows, a hold included, and can ask what is left.
fn a_budget(fleet: &Fleet, token: &str) {
    let wallet = fleet.api("svc-wallet");
    let post = |key: &str, path: &str, body: Value| {
        let (url, headers) = (format!("{wallet}/v1/{path}"), [("Idempotency-Key", key)]);
        fleet.post(&url, Some(token), &body.to_string(), &headers)
    };
    let left = || {
        let doc = json(&fleet.get(&format!("{wallet}/v1/budget"), Some(token)), 200);
        assert_eq!(doc["total"]["limit_minor"], "6");
        doc["total"]["left_minor"].as_str().unwrap().to_owned()
    };
    let pay = |key: &str, n: u32| {
        let body = json!({"from": "a", "to": "b", "asset": "ron", "amount_minor": n.to_string()});
        post(key, "transfer", body)
    };
    assert_eq!(left(), "6");
    assert_eq!(pay("b1", 2).status, 200);
    let hold = json!({"from": "a", "asset": "ron", "amount_minor": "3", "expires_at": "2200-01-01T00:00:00Z"});
    let id = json(&post("b2", "hold", hold), 200)["receipt"]["txid"].clone();
    assert_eq!(left(), "1");
    assert_eq!(json(&pay("b3", 2), 403)["code"], "limits_exceeded");
    let release = format!("hold/{}/release", id.as_str().unwrap());
    json(&post("b4", &release, json!({})), 200);
    assert_eq!(pay("b5", 4).status, 200);
    assert_eq!(left(), "0");
    assert_eq!(json(&pay("b6", 1), 403)["code"], "limits_exceeded");
    json(&pay("b5", 4), 200);
}

/// A token that is limited to an account or an asset reads nothing about others, by whichever route.
#[test]
fn a_narrowed_token_reads_only_what_it_is_for() {
    let (fleet, source) = in_europe();
    let wallet = fleet.api("svc-wallet");
    let all = source.token(&fleet, "svc-wallet", &[]);
    let issue = |key: &str, to: &str, asset: &str| {
        let body = json!({"to": to, "asset": asset, "amount_minor": "5", "reference": "order-1"});
        let (url, headers) = (format!("{wallet}/v1/issue"), [("Idempotency-Key", key)]);
        let made = json(
            &fleet.post(&url, Some(&all), &body.to_string(), &headers),
            200,
        );
        let text = |member: &str| made["receipt"][member].to_string();
        (text("txid").trim_matches('"').to_owned(), text("seq"))
    };
    let (mine, _) = issue("narrow-1", "a", "ron");
    let (other, _) = issue("narrow-2", "b", "ron");
    let (foreign, seq) = issue("narrow-3", "a", "rpl");
    // Each caveat hides one of the three transactions, which was made with `hidden_key`.
    for (caveat, hidden, hidden_key, foreign_status, assets) in [
        (
            "account=a",
            &other,
            "narrow-2",
            200,
            ["ron", "rpl"].as_slice(),
        ),
        ("asset=ron", &foreign, "narrow-3", 404, &["ron"]),
    ] {
        let token = source.token(&fleet, "svc-wallet", &[caveat]);
        let get = |path: &str| fleet.get(&format!("{wallet}/v1/{path}"), Some(&token));
        assert_eq!(get(&format!("tx/{mine}")).status, 200, "{caveat}");
        assert_eq!(get(&format!("tx/{foreign}")).status, foreign_status);
        assert_eq!(get(&format!("tx/{hidden}")).status, 404, "{caveat}");
        assert_eq!(get(&format!("tx/{hidden}/receipt")).status, 404, "{caveat}");
        let listed = json(&get(&format!("accounts?min_seq={seq}")), 200);
        for account in listed["accounts"].as_array().unwrap() {
            assert!(
                caveat != "account=a" || account["account"] == "a",
                "{account}"
            );
            for balance in account["balances"].as_array().unwrap() {
                assert!(
                    assets.contains(&balance["asset"].as_str().unwrap()),
                    "{balance}"
                );
            }
        }
        assert!(!listed["accounts"].as_array().unwrap().is_empty());
        let entries = json(&get(&format!("tx?reference=order-1&min_seq={seq}")), 200);
        assert_eq!(entries["entries"].as_array().unwrap().len(), 2, "{entries}");
        assert_eq!(get("ops/narrow-1").status, 200, "{caveat}");
        let refused = (403, "caveat".to_owned());
        let looked_up = reason(&get(&format!("ops/{hidden_key}")));
        assert_eq!(looked_up, refused, "{caveat}");
        let give_up = |key: &str| {
            let url = format!("{wallet}/v1/ops/{key}/abandon");
            reason(&fleet.post(&url, Some(&token), "{}", &[]))
        };
        assert_eq!(give_up("narrow-1").0, 200, "it is shown");
        assert_eq!(give_up(hidden_key), refused);
        assert_eq!(
            give_up("narrow-never"),
            refused,
            "what it would give up is not known"
        );
    }
    let ron = source.token(&fleet, "svc-wallet", &["asset=ron"]);
    let asset = |name: &str| reason(&fleet.get(&format!("{wallet}/v1/assets/{name}"), Some(&ron)));
    assert_eq!((asset("ron").0, asset("rpl").0), (200, 403));
}

/// A service that moves no money cannot tell whether a caveat about it is met: it refuses the
/// token.
#[test]
fn caveats_that_a_service_cannot_enforce_are_refused() {
    let (fleet, source) = in_europe();
    for (service, _) in CONSUMERS
        .into_iter()
        .filter(|(name, _)| *name != "svc-wallet")
    {
        for caveat in [
            "account=a",
            "asset=ron",
            "ceiling.per_op=1",
            "ceiling.daily=1",
            "ceiling.total=1",
        ] {
            let token = source.token(&fleet, service, &[caveat]);
            let got = reason(&read(&fleet, service, &token));
            // The rewarder knows accounts, and lists no epochs for a token that is limited to one.
            let known = (service, caveat) == ("svc-rewarder", "account=a");
            let word = if known {
                "caveat"
            } else {
                "caveat_unsupported"
            };
            let wanted = (403, word.to_owned());
            assert_eq!(got, wanted, "{caveat} at {service}");
        }
    }
    let many = ["method=GET"; 33];
    for (caveats, code) in [
        (&["colour=red"][..], "unknown_caveat"),
        (&["budget.reqs=101"], "caveat_over_max"),
        (&["budget.bytes=1048577"], "caveat_over_max"),
        (&["rate.rps=6"], "caveat_over_max"),
        (&["pq.fallback=true"], "bad_caveat"),
        (&["ip_cidr=10.0.0.0/33"], "bad_caveat"),
        (&many, "bad_caveat"),
    ] {
        let refused = source.ask(&fleet, "svc-wallet", caveats);
        assert_eq!(json(&refused, 400)["code"], code, "{caveats:?}");
    }
}
