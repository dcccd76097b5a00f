//! Revocations and changes at the issuer: revocation of all kinds across a kill, rotation, policy
//! versions, and what is published of it. Against a real fleet.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ron_http::{Method, Reply};
use ron_proto::b64;
use ron_tests::consumers::{CONSUMERS, configure, read, reason};
use ron_tests::issuer::*;
use ron_tests::tools::fed;
use ron_tests::{Fleet, json, ok, ron_on, until};
use serde_json::{Value, json};

/// One token for each service.
fn one_each(rig: &Rig) -> Vec<(&'static str, String)> {
    let token = |(service, _): (&'static str, _)| (service, rig.fleet.token(service, None));
    CONSUMERS.into_iter().map(token).collect()
}

/// All are accepted now.
fn all_good(rig: &Rig, tokens: &[(&'static str, String)], when: &str) {
    for (service, token) in tokens {
        let got = read(&rig.fleet, service, token);
        assert_eq!(got.status, 200, "{when} at {service}: {}", reason(&got).1);
    }
}

/// Refused at once by the issuer, and by their services within the time allowed for revocations.
fn all_refused(rig: &Rig, tokens: &[(&'static str, String)], word: &str) {
    for (_, token) in tokens {
        assert_eq!(rig.verdict(token)["reason"], word, "at once at the issuer");
    }
    for (service, token) in tokens {
        Rig::refused_soon(|| read(&rig.fleet, service, token), service);
        let refused = reason(&read(&rig.fleet, service, token));
        assert_eq!(refused, (401, word.to_owned()), "{service}");
    }
}

#[test]
fn every_kind_of_revocation_acts_at_every_service_and_survives_a_kill() {
    let mut rig = Rig::start_with(|dir| configure(dir, "eu"));
    let revoke = |rig: &Rig, args: &[&str]| {
        let mut all = vec!["token", "revoke", "--reason", "test"];
        all.extend_from_slice(args);
        rig.fleet.ron(&all)
    };
    let jti = |token: &str| claims(token)["jti"].as_str().unwrap().to_owned();
    let (first, others) = (one_each(&rig), one_each(&rig));
    all_good(&rig, &first, "new");
    for (_, token) in &first {
        ok(&revoke(&rig, &["--jti", &jti(token)]));
    }
    all_refused(&rig, &first, "revoked");
    all_good(&rig, &others, "another token than the revoked one");

    ok(&revoke(&rig, &["--subject", "operator"]));
    all_refused(&rig, &others, "revoked");
    std::thread::sleep(Duration::from_millis(1100)); // tokens of later seconds are good again
    let after = one_each(&rig);
    all_good(&rig, &after, "issued after the subject's revocation");

    let epoch = claims(&after[0].1)["ron_epoch"].as_u64().unwrap() + 4;
    ok(&revoke(&rig, &["--epoch", &epoch.to_string()]));
    all_refused(&rig, &after, "epoch");
    let stale = revoke(&rig, &["--epoch", &epoch.to_string()]);
    let said = String::from_utf8_lossy(&stale.stderr).into_owned();
    assert!(said.contains("stale_epoch"), "epochs only grow: {said}");
    let of_epoch = one_each(&rig);
    assert_eq!(claims(&of_epoch[0].1)["ron_epoch"], epoch);
    all_good(&rig, &of_epoch, "of the new epoch");

    // Killed and started again: nothing is forgotten.
    rig.fleet.kill();
    rig.fleet = Fleet::start_in(rig.fleet.keep_dir());
    all_good(&rig, &of_epoch, "after a kill");
    all_refused(&rig, &after, "epoch");
    for gone in [&first, &others] {
        for (service, token) in gone {
            assert_eq!(rig.verdict(token)["ok"], false, "{service}");
            assert_eq!(read(&rig.fleet, service, token).status, 401, "{service}");
        }
    }
    a_revoked_key_ends(&rig, &of_epoch);
}

#[test]
fn an_exchanged_token_shares_the_revocation_and_the_budget_of_those_before_it() {
    let rig = Rig::start();
    let first = text(
        &rig.operator(
            "/oauth2/token",
            &[
                ("grant_type", "client_credentials"),
                ("audience", "svc-wallet"),
                ("caveat", "budget.reqs=3"),
            ],
        ),
        "access_token",
    );
    let exchanged = |token: &str| {
        rig.operator(
            "/oauth2/token",
            &[
                ("grant_type", EXCHANGE),
                ("subject_token", token),
                ("subject_token_type", ACCESS),
            ],
        )
    };
    let second = text(&exchanged(&first), "access_token");
    let third = text(&exchanged(&second), "access_token");
    assert_eq!(rig.balance(&first).status, 200);
    assert_eq!(rig.balance(&second).status, 200);
    assert_eq!(rig.balance(&third).status, 200);
    let fourth = text(&exchanged(&third), "access_token");
    for token in [&first, &second, &third, &fourth] {
        let refused = reason(&rig.balance(token));
        assert_eq!(refused, (403, "budget".to_owned()));
    }
    // The one in the middle takes with it what came of it, and not what was before it.
    let jti = claims(&second)["jti"].as_str().unwrap().to_owned();
    ok(&rig
        .fleet
        .ron(&["token", "revoke", "--reason", "test", "--jti", &jti]));
    for token in [&second, &third, &fourth] {
        assert_eq!(rig.verdict(token)["reason"], "revoked", "at once");
        Rig::refused_soon(
            || {
                let reply = rig.balance(token);
                // 403 until the wallet has heard of it: the budget is used up.
                Reply {
                    status: if reply.status == 403 {
                        200
                    } else {
                        reply.status
                    },
                    ..reply
                }
            },
            "an exchanged token",
        );
        assert_eq!(exchanged(token).status, 400);
    }
    assert_eq!(rig.verdict(&first)["ok"], true);
    let mut newest = text(&exchanged(&first), "access_token");
    for _ in 0..7 {
        newest = text(&exchanged(&newest), "access_token");
    }
    let refused = json(&exchanged(&newest), 400);
    assert_eq!(refused["error"], "invalid_grant", "{refused}");
}

/// A revoked key leaves the key set, its tokens end, issuing stops until the key is rotated.
fn a_revoked_key_ends(rig: &Rig, tokens: &[(&'static str, String)]) {
    let header = tokens[0].1.split('.').next().unwrap();
    let header: Value = serde_json::from_slice(&b64::from_url(header).unwrap()).unwrap();
    let kid = header["kid"].as_str().unwrap();
    let args = ["token", "revoke", "--reason", "test", "--kid", kid];
    ok(&rig.fleet.ron(&args));
    for (service, token) in tokens {
        assert_eq!(rig.verdict(token)["ok"], false, "at once at the issuer");
        Rig::refused_soon(|| read(&rig.fleet, service, token), service);
    }
    let ask = [
        ("grant_type", "client_credentials"),
        ("audience", "svc-wallet"),
    ];
    assert_eq!(rig.operator("/oauth2/token", &ask).status, 503);
    rotate(&rig.fleet);
    let since = Instant::now();
    while rig.operator("/oauth2/token", &ask).status != 200 {
        let waited = since.elapsed();
        assert!(
            waited < Duration::from_secs(15),
            "not issuing after a rotation"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    all_good(rig, &one_each(rig), "by the new key");
    let jwks = json(
        &rig.fleet.get(&rig.url("/.well-known/jwks.json"), None),
        200,
    );
    assert!(!jwks.to_string().contains(kid), "{jwks}");
}

#[test]
fn exchanged_tokens_spend_the_ceilings_of_those_before_them() {
    let rig = Rig::start();
    let asked =
        |fields: &[(&str, &str)]| text(&rig.operator("/oauth2/token", fields), "access_token");
    let exchanged = |token: &str, more: &[(&str, &str)]| {
        let base = [
            ("grant_type", EXCHANGE),
            ("subject_token", token),
            ("subject_token_type", ACCESS),
        ];
        asked(&[&base, more].concat())
    };
    let url = format!("{}/v1/issue", rig.fleet.api("svc-wallet"));
    let mut number = 0;
    let mut pays = |token: &str, amount: u32| {
        number += 1;
        let key = format!("family-{number}");
        let body = json!({"to": "a", "asset": "ron", "amount_minor": amount.to_string()});
        let headers = [("Idempotency-Key", key.as_str())];
        let reply = rig
            .fleet
            .post(&url, Some(token), &body.to_string(), &headers);
        let said: Value = serde_json::from_slice(&reply.body).unwrap();
        (
            reply.status,
            said["code"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let over = (403, "limits_exceeded".to_owned());
    for ceiling in ["ceiling.total", "ceiling.daily"] {
        let first = asked(&[
            ("grant_type", "client_credentials"),
            ("audience", "svc-wallet"),
            ("caveat", &format!("{ceiling}=10")),
        ]);
        let second = exchanged(&first, &[]);
        let third = exchanged(&second, &[("caveat", &format!("{ceiling}=5"))]);
        assert_eq!(pays(&second, 4).0, 200);
        assert_eq!(pays(&third, 6), over, "its own {ceiling}");
        assert_eq!(pays(&third, 3).0, 200);
        // 7 of 10 are spent, by two tokens that came of the first.
        for token in [&first, &second] {
            assert_eq!(pays(token, 4), over, "{ceiling}");
        }
        assert_eq!(pays(&exchanged(&first, &[]), 4), over, "a new one as well");
        assert_eq!(pays(&first, 3).0, 200, "up to {ceiling} itself");
        assert_eq!(
            pays(&third, 1),
            over,
            "2 of its own 5 are left, none of the 10"
        );
    }
}

/// Makes a new version of the issuer's key in the KMS.
fn rotate(fleet: &Fleet) {
    let bootstrap = fleet.bootstrap();
    let key = bootstrap["issuer_key"].as_str().unwrap();
    fleet.kms(&format!("keys/{key}/rotate"), &json!({}), 200);
}

#[test]
fn keys_rotate_while_tokens_are_issued_and_used_without_one_failure() {
    let rig = Rig::start();
    let basic = rig.basic();
    let stop = AtomicBool::new(false);
    let (kids, used) = (Mutex::new(BTreeSet::new()), AtomicUsize::new(0));
    let ask = [
        ("grant_type", "client_credentials"),
        ("audience", "svc-wallet"),
    ];
    std::thread::scope(|scope| {
        // A failed assertion below ends the workers too.
        let _stop = Stop(&stop);
        let worker = || {
            while !stop.load(Ordering::Relaxed) {
                let reply = rig.form("/oauth2/token", &ask, &[("Authorization", &basic)]);
                let token = text(&reply, "access_token");
                let read = rig.balance(&token);
                let said = String::from_utf8_lossy(&read.body);
                assert_eq!(read.status, 200, "{said}");
                let header = token.split('.').next().unwrap().to_owned();
                kids.lock().unwrap().insert(header);
                used.fetch_add(1, Ordering::Relaxed);
            }
        };
        let workers = [scope.spawn(worker), scope.spawn(worker)];
        let working = || workers.iter().all(|worker| !worker.is_finished());
        let signed_by = |versions: usize| {
            until("tokens by the newest version are used", || {
                assert!(working(), "a worker has failed");
                kids.lock().unwrap().len() == versions
            });
            // The reaction of verifiers to a new key shows only after a moment.
            let more = used.load(Ordering::Relaxed) + 50;
            until("more tokens are used", || {
                assert!(working(), "a worker has failed");
                used.load(Ordering::Relaxed) >= more
            });
        };
        signed_by(1);
        for versions in 2..=4 {
            rotate(&rig.fleet);
            signed_by(versions);
        }
    });
    println!("{} tokens by 4 versions", used.into_inner());
}

/// Sets the flag when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
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
            .and_then(|l| l.split(' ').next())
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
    // Older versions are refused after a restart as well: the last accepted one is in force.
    rig.publish(&older, true);
    assert_eq!(rig.fleet.stop(), Some(0));
    rig.fleet = Fleet::start_in(rig.fleet.keep_dir());
    refused(&rig);
    // Without it nothing is issued under an older one either: the issuer waits for a newer one, and `ron up` for the issuer.
    assert_eq!(rig.fleet.stop(), Some(0));
    std::fs::remove_file(rig.fleet.dir().join("svc-passport/data/issuer.accepted")).unwrap();
    let out = ron_on(rig.fleet.dir(), &["up", "--base-port", "0"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(
        said.contains("svc-passport is not ready: missing policy"),
        "{said}"
    );
    assert!(said.contains("older than 2"), "{said}");
}

#[test]
fn what_is_published_verifies_and_shows_revocations() {
    let rig = Rig::start();
    let token = rig.fleet.token("svc-wallet", None);
    let place = |token: &str| {
        let status = claims(token)["status"]["status_list"].clone();
        let idx = status["idx"].as_u64().unwrap() as usize;
        (idx, status["uri"].as_str().unwrap().to_owned())
    };
    let bit_of = |token: &str| {
        let (idx, uri) = place(token);
        let reply = rig.fleet.get(&uri, None);
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (200, Some("application/statuslist+jwt"))
        );
        let jwt = String::from_utf8(reply.body).unwrap();
        let said = claims(&jwt);
        assert_eq!(
            (said["sub"].as_str(), said["status_list"]["bits"].as_u64()),
            (Some(uri.as_str()), Some(1))
        );
        let script = "import sys,base64,zlib;l=sys.stdin.read();b=zlib.decompress(base64.urlsafe_b64decode(l+'='*(-len(l)%4)));i=int(sys.argv[1]);print(len(b),b[i//8]>>(i%8)&1)";
        let out = python(
            script,
            &[&idx.to_string()],
            said["status_list"]["lst"].as_str().unwrap(),
        );
        out.trim().to_owned()
    };
    let bit = || bit_of(&token);
    assert_eq!(bit(), "32768 0");
    ok(&rig
        .fleet
        .ron(&["token", "revoke", "--token", &token, "--reason", "test"]));
    assert_eq!(bit(), "32768 1");
    // The tokens of one subject, and no others.
    let (ours, theirs) = (
        rig.fleet.token("svc-wallet", None),
        text(&rig.robot_token(), "access_token"),
    );
    assert_eq!(
        (bit_of(&ours), bit_of(&theirs)),
        ("32768 0".into(), "32768 0".into())
    );
    ok(&rig.fleet.ron(&[
        "token",
        "revoke",
        "--subject",
        "operator",
        "--reason",
        "test",
    ]));
    assert_eq!(
        (bit_of(&ours), bit_of(&theirs)),
        ("32768 1".into(), "32768 0".into())
    );
    // Tokens of this second are void too: the next command needs a later one.
    std::thread::sleep(Duration::from_millis(1_100));
    let later = rig.fleet.token("svc-wallet", None);
    assert_eq!(bit_of(&later), "32768 0");
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
    let documents = [
        "oauth-authorization-server",
        "openid-configuration",
        "jwks.json",
        "jwks-pq.json",
    ];
    for name in documents {
        let url = rig.url(&format!("/.well-known/{name}"));
        let tag = rig.fleet.get(&url, None).header("etag").unwrap().to_owned();
        let known = [("If-None-Match", tag.as_str())];
        let again = rig.fleet.send(Method::GET, &url, None, None, &known);
        assert_eq!(again.status, 304, "{name}");
    }
    let pq = json(
        &rig.fleet.get(&rig.url("/.well-known/jwks-pq.json"), None),
        200,
    );
    assert_eq!(pq, json!({"keys": []}));
}

fn python(script: &str, args: &[&str], input: &str) -> String {
    let mut command = std::process::Command::new("python3");
    ok(&fed(command.arg("-c").arg(script).args(args), input))
}
