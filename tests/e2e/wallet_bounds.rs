//! Bounds that a caller meets: a full queue of writes, the budget of refusals; and texts that are erased.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_http::{Method, Reply};
use ron_tests::processes::{Rig, code};
use ron_tests::{Fleet, caught_up, json, ok};
use serde_json::{Value, json};

/// Clients that write at the same moment.
const CLIENTS: usize = 24;

#[test]
fn a_write_that_finds_the_queue_full_is_refused_and_may_be_sent_again() {
    let mut rig = Rig::start();
    rig.kill("svc-wallet");
    // A ledger that hangs is noticed late, so that writes are accepted meanwhile.
    rig.wallet_set = vec![
        "queues.work=1",
        "ledger.silent_after=10s",
        "ledger.hangs_after=10s",
        "ledger.tries=10",
    ];
    rig.run("svc-wallet");
    rig.wait_ready("svc-wallet");
    let full = "svc_wallet_busy_rejections_total{queue=\"work\"}";
    assert_eq!(rig.wallet_metric(full), 0);
    rig.signal("ron-ledger", "-STOP");
    // One write is on its way to the ledger and one waits: for the others of the same account there is no room.
    let start = std::sync::Barrier::new(CLIENTS + 1);
    let key = |n: usize| format!("full-{n}");
    let (rig, start) = (&rig, &start);
    let replies = ron_kernel::scoped(CLIENTS + 1, |n| {
        start.wait();
        if n == CLIENTS {
            std::thread::sleep(Duration::from_secs(3));
            rig.signal("ron-ledger", "-CONT");
            return None;
        }
        Some(rig.issue(&key(n), "a", 1).unwrap())
    });
    let replies: Vec<Reply> = replies.into_iter().flatten().collect();
    let busy: Vec<&Reply> = replies.iter().filter(|r| r.status == 429).collect();
    for reply in &busy {
        assert_eq!(code(reply), "busy");
        assert!(reply.header("retry-after").is_some());
    }
    assert!(
        !busy.is_empty(),
        "{:?}",
        replies.iter().map(|r| r.status).collect::<Vec<_>>()
    );
    assert!(busy.len() < CLIENTS, "some were accepted");
    assert_eq!(rig.wallet_metric(full), busy.len() as u64);
    let refused = "svc_wallet_rejects_total{reason=\"busy\"}";
    assert!(rig.wallet_metric(refused) >= busy.len() as u64);
    // All of them, sent again, are done once.
    rig.wait_ready("svc-wallet");
    for n in 0..CLIENTS {
        let done = rig.patiently(|| rig.issue(&key(n), "a", 1).unwrap());
        assert_eq!(done.status, 200, "{}", key(n));
    }
    assert_eq!(rig.balance("a")["amount_minor"], CLIENTS.to_string());
}

/// One POST to the wallet, which is not repeated.
fn post(fleet: &Fleet, token: &str, key: &str, path: &str, body: &Value) -> Reply {
    let url = format!("{}/v1/{path}", fleet.api("svc-wallet"));
    let key = [("Idempotency-Key", key)];
    fleet.send(
        Method::POST,
        &url,
        Some(token),
        Some(&body.to_string()),
        &key,
    )
}

fn get(fleet: &Fleet, token: &str, path: &str) -> Reply {
    let url = format!("{}/v1/{path}", fleet.api("svc-wallet"));
    caught_up(|| fleet.get(&url, Some(token)))
}

#[test]
fn beyond_its_budget_of_refusals_a_caller_is_refused_with_its_key_unused() {
    let fleet = Fleet::start();
    let token = fleet.token("svc-wallet", None);
    let poor = json!({"op": "transfer", "from": "acct:poor", "to": "acct:b", "asset": "ron", "amount_minor": "5"});
    let items: Vec<&Value> = vec![&poor; 1_000];
    let all = post(&fleet, &token, "many", "batch", &json!({ "items": items }));
    let all = json(&all, 200);
    let results = all["results"].as_array().unwrap();
    assert!(results.iter().all(|r| r["code"] == "insufficient_funds"));
    // A second gives one refusal back.
    let body = json!({"from": "acct:poor", "to": "acct:b", "asset": "ron", "amount_minor": "5"});
    let send = |n: u32| post(&fleet, &token, &format!("over-{n}"), "transfer", &body);
    let (over, refused) = (0..500)
        .map(|n| (n, send(n)))
        .find(|(_, reply)| reply.status == 429)
        .expect("the budget is finite");
    let problem = json(&refused, 429);
    assert_eq!(
        (&problem["code"], &problem["retryable"]),
        (&json!("refusal_budget"), &json!(true))
    );
    assert!(refused.header("retry-after").is_some());
    let unknown = get(&fleet, &token, &format!("ops/over-{over}"));
    assert_eq!(unknown.status, 404, "the refusal is no entry");
    let counted = fleet.metric(
        "svc-wallet",
        "svc_wallet_rejects_total{reason=\"refusal_budget\"}",
    );
    assert!(counted >= 1.0);
    // What can be done is done, under the same key.
    let money = json!({"to": "acct:poor", "asset": "ron", "amount_minor": "5"});
    assert_eq!(post(&fleet, &token, "money", "issue", &money).status, 200);
    assert_eq!(json(&send(over), 200)["receipt"]["amount_minor"], "5");
}

/// Whether a file below the directory holds the text.
fn holds(dir: &Path, text: &str) -> bool {
    std::fs::read_dir(dir).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return holds(&path, text);
        }
        let bytes = std::fs::read(&path).unwrap_or_default();
        bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    })
}

#[test]
fn erased_texts_are_gone_from_ledger_and_wallet_and_the_key_keeps_its_answer() {
    let mut fleet = Fleet::start();
    let token = fleet.token("svc-wallet", None);
    let money = json!({"to": "acct:a", "asset": "ron", "amount_minor": "9"});
    assert_eq!(post(&fleet, &token, "money", "issue", &money).status, 200);
    let markers = ["memo-marker", "name-marker", "value-marker", "order-marker"];
    let body = json!({"from": "acct:a", "to": "acct:b", "asset": "ron", "amount_minor": "4", "memo": markers[0],
        "metadata": {markers[1]: markers[2]}, "reference": markers[3]});
    let first = json(&post(&fleet, &token, "pay", "transfer", &body), 200);
    let txid = first["receipt"]["txid"].as_str().unwrap().to_owned();
    let seq = first["receipt"]["seq"].as_u64().unwrap();
    let erase = ["ledger", "erase", &txid, "--reason", "asked for"];
    let running = fleet.ron(&erase);
    assert!(!running.status.success(), "the ledger is running");
    assert_eq!(fleet.stop(), Some(0));
    let data = ["ron-ledger/data", "svc-wallet/data"].map(|data| fleet.dir().join(data));
    assert!(data.iter().any(|data| holds(data, markers[0])));
    let said = ok(&fleet.ron(&erase));
    assert_eq!(
        said,
        format!("erased: 3 texts of {txid}; backups still hold them\n")
    );
    for marker in markers {
        assert!(!data.iter().any(|data| holds(data, marker)), "{marker}");
    }
    let verified = ok(&fleet.ron(&["ledger", "verify"]));
    assert!(
        verified.contains("texts of 1 entries were erased"),
        "{verified}"
    );

    let dir = Arc::clone(&fleet.keep_dir());
    drop(fleet);
    let fleet = Fleet::start_in(dir);
    let token = fleet.token("svc-wallet", None);
    let shown = json(
        &get(&fleet, &token, &format!("tx/{txid}?min_seq={seq}")),
        200,
    );
    assert_eq!(shown["receipt"], first["receipt"]);
    assert_eq!(shown["private"], json!({"idem": "pay"}));
    let found = json(
        &get(
            &fleet,
            &token,
            &format!("tx?reference=order-marker&min_seq={seq}"),
        ),
        200,
    );
    assert_eq!(found["entries"], json!([]));
    // The same request is the same still: its key has the receipt, and not the texts. Another amount is another request.
    let again = post(&fleet, &token, "pay", "transfer", &body);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let again = json(&again, 200);
    assert_eq!(again["receipt"], first["receipt"]);
    assert!(!again.to_string().contains("marker"), "{again}");
    let mut other = body;
    other["amount_minor"] = "5".into();
    assert_eq!(post(&fleet, &token, "pay", "transfer", &other).status, 422);
    let balance = json(
        &get(&fleet, &token, "balance?account=acct:b&asset=ron"),
        200,
    );
    assert_eq!(balance["amount_minor"], "4");
}
