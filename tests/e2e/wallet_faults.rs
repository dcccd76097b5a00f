//! The wallet and the ledger as processes of their own, stopped, killed and restarted: correct
//! responses meanwhile, nothing acknowledged lost, nothing doubled, every unknown outcome resolved.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ron_tests::issuer::claims;
use ron_tests::processes::{Rig, code};
use ron_tests::{Draws, json, number, ok, ron_on, sqlite, until};
use serde_json::Value;

/// Maximum wait for a state of a service.
const SOON: Duration = Duration::from_secs(30);

/// Stops the ledger for a moment, several times; returns the shortest time until the wallet was not
/// ready. A busy machine may delay any one of them.
fn noticed_at_best(rig: &Rig) -> Duration {
    let once = |_| {
        rig.signal("ron-ledger", "-STOP");
        let took = rig.wait_status("svc-wallet", 503, SOON);
        let refused = rig.issue("in-between", "a", 1).unwrap();
        rig.signal("ron-ledger", "-CONT");
        assert_eq!(refused.status, 503, "not ready means no new writes");
        assert_eq!(code(&refused), "retry_later");
        rig.wait_ready("svc-wallet");
        took
    };
    (0..5).map(once).min().unwrap()
}

/// Restarts the wallet with these settings.
fn wallet_with(rig: &mut Rig, settings: &[&'static str]) {
    rig.kill("svc-wallet");
    rig.wallet_set = settings.to_vec();
    rig.run("svc-wallet");
    rig.wait_ready("svc-wallet");
}

#[test]
fn a_hanging_ledger_is_distinguished_from_a_healthy_one() {
    let mut rig = Rig::start();
    // With the defaults of operators.
    wallet_with(
        &mut rig,
        &["ledger.silent_after=120ms", "ledger.hangs_after=500ms"],
    );
    println!(
        "not ready {:?} after the stop, at best",
        noticed_at_best(&rig)
    );
    // Long enough for writes to be accepted before the stop is noticed.
    wallet_with(&mut rig, &["ledger.silent_after=800ms"]);
    let rig = Arc::new(rig);
    let first = rig.patiently(|| rig.issue("before", "a", 5).unwrap());
    assert_eq!(first.status, 200);
    assert_eq!(rig.balance("a")["amount_minor"], "5");
    rig.wait_copied(&first);
    rig.signal("ron-ledger", "-STOP");
    let stopped = Instant::now();
    // Written before the stop was noticed: the request waits for the ledger, and its repetition
    // waits with it.
    let waiting = {
        let rig = Arc::clone(&rig);
        std::thread::spawn(move || ron_kernel::scoped(3, |_| rig.issue("during", "a", 7).unwrap()))
    };
    rig.wait_status("svc-wallet", 503, SOON);
    while stopped.elapsed() < Duration::from_millis(1_000) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let refused = rig.issue("late", "a", 1).unwrap();
    assert_eq!(
        (refused.status, code(&refused)),
        (503, "retry_later".into())
    );
    let again = rig.issue("before", "a", 5).unwrap();
    assert_eq!((again.status, &again.body), (200, &first.body), "a replay");
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let other = rig.issue("before", "a", 6).unwrap();
    assert_eq!(
        (other.status, code(&other)),
        (422, "idempotency_mismatch".into())
    );
    let told = rig.get("/v1/ops/before");
    assert_eq!(told.status, 200);
    assert_eq!(
        rig.get("/v1/ops/never").status,
        503,
        "never 404 while it is away"
    );
    let silent = stopped.elapsed();
    let old = rig.balance("a");
    let stale = Duration::from_millis(old["stale_ms"].as_u64().unwrap());
    assert_eq!(old["amount_minor"], "5");
    assert!(
        stale >= silent.saturating_sub(Duration::from_millis(100)),
        "{stale:?} of {silent:?}"
    );
    while stopped.elapsed() < Duration::from_millis(2_000) {
        std::thread::sleep(Duration::from_millis(10));
    }
    rig.signal("ron-ledger", "-CONT");
    let replies = waiting.join().unwrap();
    for reply in &replies {
        json(reply, 200);
        assert_eq!(reply.body, replies[0].body);
    }
    rig.wait_ready("svc-wallet");
    assert_eq!(rig.balance("a")["amount_minor"], "12", "once");
    let late = rig.patiently(|| rig.issue("late", "a", 1).unwrap());
    assert_eq!(late.status, 200);
}

#[test]
fn an_unknown_outcome_is_reported_and_resolved() {
    let mut rig = Rig::start();
    assert_eq!(rig.issue("before", "a", 5).unwrap().status, 200);
    rig.signal("ron-ledger", "-STOP");
    let open = rig.issue("open", "a", 7).unwrap();
    assert_eq!(open.status, 504, "{}", String::from_utf8_lossy(&open.body));
    assert_eq!(open.header("location"), Some("/v1/ops/open"));
    // The wallet that reported the open outcome goes down; the next one still knows that it is
    // open.
    rig.kill("svc-wallet");
    rig.kill("ron-ledger");
    rig.run("svc-wallet");
    rig.wait_without("svc-wallet", &["ledger", "ledger_writes"]);
    let told = rig.get("/v1/ops/open");
    assert_eq!(json(&told, 200)["outcome"], "open", "also without a ledger");
    rig.run("ron-ledger");
    rig.wait_ready("svc-wallet");
    let told = rig.get("/v1/ops/open");
    assert_eq!(told.status, 200, "{}", String::from_utf8_lossy(&told.body));
    let told: Value = serde_json::from_slice(&told.body).unwrap();
    let outcome = told["outcome"].as_str().unwrap();
    assert!(
        ["done", "open"].contains(&outcome),
        "asking gives nothing up: {told}"
    );
    let again = rig.issue("open", "a", 7).unwrap();
    assert_eq!(again.status, 200, "sending it again commits the same entry");
    assert_eq!(rig.balance("a")["amount_minor"], "12");
    assert_eq!(json(&rig.get("/v1/ops/open"), 200)["outcome"], "done");
    assert_eq!(rig.get("/v1/ops/never").status, 404);
}

#[test]
fn while_it_drains_replays_and_reads_are_answered_and_new_writes_are_not() {
    let mut rig = Rig::start();
    let first = rig.issue("before", "a", 5).unwrap();
    assert_eq!(first.status, 200);
    assert_eq!(rig.balance("a")["amount_minor"], "5");
    // Connections for later, each busy while the others are made: the drain accepts no new ones, and each existing one gets
    // one more response.
    let read = "/v1/balance?account=a&asset=ron";
    let seq = json(&first, 200)["receipt"]["seq"].as_u64().unwrap();
    let poll = format!("/v1/events?account=a&after={seq}&wait=1");
    ron_kernel::scoped(8, |_| assert_eq!(rig.get(&poll).status, 200));
    rig.wait_copied(&first);
    // A write in flight at the stopped ledger keeps the wallet from ending.
    rig.signal("ron-ledger", "-STOP");
    std::thread::scope(|s| {
        let under_way = s.spawn(|| rig.issue("during", "a", 7).unwrap());
        until("the write is under way", || {
            rig.wallet_metric("svc_wallet_inflight{op=\"issue\"} ") == 1
        });
        rig.signal("svc-wallet", "-TERM");
        rig.wait_drain("svc-wallet");
        let again = rig.issue("before", "a", 5).unwrap();
        assert_eq!((again.status, &again.body), (200, &first.body), "a replay");
        assert_eq!(again.header("idempotency-replayed"), Some("true"));
        assert_eq!(rig.get(read).status, 200);
        let other = rig.issue("before", "a", 6).unwrap();
        assert_eq!(code(&other), "idempotency_mismatch");
        let new = rig.issue("after", "a", 1).unwrap();
        assert_eq!((new.status, code(&new)), (503, "draining".into()));
        assert!(new.header("retry-after").is_some());
        rig.signal("ron-ledger", "-CONT");
        let last = under_way.join().unwrap();
        assert_eq!(last.status, 200, "taken in before the drain, so answered");
    });
    let ended = rig.children.get_mut("svc-wallet").unwrap().wait().unwrap();
    assert_eq!(ended.code(), Some(0));
    rig.run("svc-wallet");
    rig.wait_ready("svc-wallet");
    assert_eq!(rig.balance("a")["amount_minor"], "12");
    assert_eq!(rig.issue("after", "a", 1).unwrap().status, 200);
}

/// The responses one client received, per key.
#[derive(Default)]
struct Responses {
    done: BTreeMap<String, Vec<u8>>,
    open: Vec<String>,
}

#[test]
fn killed_at_any_moment_nothing_acknowledged_is_lost_or_doubled() {
    let mut rig = Rig::start();
    let (mut all, mut draws) = (Responses::default(), Draws::seeded());
    // For a long test that must end in time: no further round begins after so many minutes.
    let minutes = number("RON_KILL_MINUTES", 600);
    let (began, mut made) = (Instant::now(), 0);
    for round in 0..number("RON_KILL_ROUNDS", 6) {
        if began.elapsed() > Duration::from_secs(60 * minutes) {
            break;
        }
        made += 1;
        let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
        let pause = Duration::from_millis(draws.below(400));
        let victims: &[&'static str] = [
            &["ron-ledger"][..],
            &["svc-wallet"],
            &["ron-ledger", "svc-wallet"],
        ][draws.below(3) as usize];
        let (responses, gone) = std::thread::scope(|s| {
            let (rig_ref, stop, acknowledged) = (&rig, &stop, &acknowledged);
            // All are at work before the first is waited for.
            #[allow(clippy::needless_collect)]
            let clients: Vec<_> = (0..4)
                .map(|c| s.spawn(move || load(rig_ref, round, c, stop, acknowledged)))
                .collect();
            until("somebody was answered", || {
                acknowledged.load(Ordering::Relaxed) > 0
                    || clients
                        .iter()
                        .any(std::thread::ScopedJoinHandle::is_finished)
            });
            std::thread::sleep(pause);
            for name in victims {
                rig_ref.signal(name, "-KILL");
            }
            std::thread::sleep(Duration::from_millis(150));
            stop.store(true, Ordering::Release);
            let responses: Vec<Responses> =
                clients.into_iter().map(|c| c.join().unwrap()).collect();
            (responses, victims)
        });
        for name in gone {
            let mut child = rig.children.remove(name).unwrap();
            child.wait().unwrap();
            rig.run(name);
        }
        rig.wait_ready("ron-ledger");
        rig.wait_ready("svc-wallet");
        for part in responses {
            all.done.extend(part.done);
            all.open.extend(part.open);
        }
    }
    println!("{made} rounds in {:?}", began.elapsed());
    settle(&rig, all);
    for name in ["svc-wallet", "ron-ledger"] {
        rig.signal(name, "-TERM");
        assert_eq!(
            rig.children.get_mut(name).unwrap().wait().unwrap().code(),
            Some(0),
            "{name}"
        );
    }
    let log: &Path = &rig.dir.path().join("ron-ledger/data/log");
    ok(&ron_on(
        rig.dir.path(),
        &["ledger", "verify", "--log-dir", &log.to_string_lossy()],
    ));
}

/// One client that issues single units, each under a key of its own.
fn load(
    rig: &Rig,
    round: u64,
    client: usize,
    stop: &AtomicBool,
    acknowledged: &AtomicU64,
) -> Responses {
    let mut responses = Responses::default();
    for n in 0.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let key = format!("k-{round}-{client}-{n}");
        match rig.issue(&key, "sum", 1) {
            Ok(reply) if reply.status == 200 => {
                responses.done.insert(key, reply.body);
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Ok(reply) if reply.status == 504 => {
                assert_eq!(
                    reply.header("location"),
                    Some(format!("/v1/ops/{key}").as_str())
                );
                responses.open.push(key);
            }
            Ok(_) => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => {
                // This client received no response: it retries later, as for a 504.
                responses.open.push(key);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    responses
}

/// Every acknowledged receipt exists, every open outcome is resolved one way or the other, and the
/// sum is right.
fn settle(rig: &Rig, responses: Responses) {
    let (done, open) = (responses.done.len(), responses.open.len());
    rig.calm();
    assert!(done > 0);
    for (key, body) in &responses.done {
        let again = rig.patiently(|| rig.issue(key, "sum", 1).unwrap());
        assert_eq!((again.status, &again.body), (200, body), "{key}");
    }
    let mut late = 0_u64;
    for key in &responses.open {
        let asked = rig.patiently(|| rig.get(&format!("/v1/ops/{key}")));
        let again = rig.patiently(|| rig.issue(key, "sum", 1).unwrap());
        // 404: the wallet was killed before it could respond. Sending again is safe in any case, and
        // completes the operation.
        assert!(
            [200, 404].contains(&asked.status),
            "{key}: {}",
            asked.status
        );
        assert_eq!(again.status, 200, "{key}");
        late += 1;
    }
    let sum = rig.balance("sum")["amount_minor"].clone();
    assert_eq!(
        sum,
        (done as u64 + late).to_string(),
        "none lost, none doubled"
    );
    rig.was_calm();
    println!("{done} acknowledged, {open} open, {late} of them done");
}

#[test]
fn a_recorded_key_whose_event_had_come_before_is_released() {
    let mut rig = Rig::start();
    rig.wait_copied(&rig.patiently(|| rig.issue("known", "a", 5).unwrap()));
    let claims = claims(&rig.token);
    rig.kill("svc-wallet");
    // As after a call whose answer was lost and whose event was faster than the record.
    let file = rig.dir.path().join("svc-wallet/data/unresolved.sqlite");
    for key in ["known", "never"] {
        let row = [
            claims["tenant"].as_str().unwrap(),
            claims["sub"].as_str().unwrap(),
            key,
        ];
        sqlite(
            &file,
            &format!("INSERT INTO unresolved VALUES ('{}')", row.join("','")),
        );
    }
    rig.run("svc-wallet");
    rig.wait_ready("svc-wallet");
    let unresolved = || rig.wallet_metric("svc_wallet_unresolved_keys");
    until("the key of a committed entry is released", || {
        unresolved() == 1
    });
    let outcome = json(&rig.get("/v1/ops/known"), 200);
    assert_eq!(outcome["outcome"], "done");
    for _ in 0..2 {
        let outcome = json(&rig.get("/v1/ops/never"), 200);
        assert_eq!(outcome["outcome"], "open", "a lookup changes nothing");
    }
    for _ in 0..2 {
        let outcome = json(&rig.abandon("never"), 200);
        assert_eq!(outcome["code"], "abandoned");
    }
    assert_eq!(json(&rig.abandon("known"), 200)["outcome"], "done");
    let late = rig.issue("never", "a", 5).unwrap();
    assert_eq!((late.status, code(&late)), (409, "abandoned".into()));
    until("nothing is unresolved", || unresolved() == 0);
}
