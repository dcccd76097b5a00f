//! Batches of every kind of operation: items that pay out of a hold that an earlier item makes, reversals, rights item by
//! item, replays after a kill, and the command.

use std::process::Command;
use std::time::Duration;

use ron_http::Reply;
use ron_tests::{Fleet, issuer, json, ok, ron_binary};
use serde_json::{Value, json};

use super::wallet::{Wallet, but_for_the_id, three};

const FAR: &str = "2200-01-01T00:00:00Z";

fn hold(from: &str, n: u64) -> Value {
    json!({"op": "hold", "from": from, "asset": "ron", "amount_minor": n.to_string(), "expires_at": FAR})
}

fn capture(hold: &str, to: &str, n: u64) -> Value {
    json!({"op": "capture", "hold": hold, "to": to, "amount_minor": n.to_string()})
}

fn release(hold: &str) -> Value {
    json!({"op": "release", "hold": hold})
}

fn linked(items: &[Value]) -> Value {
    json!({"linked": true, "items": items})
}

/// The two payees get their parts of a hold, and what is left goes back.
fn payout() -> Value {
    let mut first = capture("#0", "shop", 50);
    first["reference"] = "order 17".into();
    linked(&[
        hold("a", 100),
        first,
        capture("#0", "tax", 20),
        release("#0"),
    ])
}

fn refused(reply: &Reply, status: u16, code: &str, detail: &str) {
    let problem = json(reply, status);
    assert_eq!(problem["code"], code, "{problem}");
    let said = problem["detail"].as_str().unwrap();
    assert!(said.starts_with(detail), "{said}");
}

#[test]
fn a_linked_batch_pays_two_payees_out_of_the_hold_that_it_makes() {
    let w = Wallet::start();
    w.issue("i", "a", 150);
    let first = w.post("pay", "batch", &payout());
    let results = json(&first, 200)["results"].clone();
    let receipts: Vec<&Value> = (0..4).map(|i| &results[i]["receipt"]).collect();
    let id = &receipts[0]["txid"];
    for (receipt, (op, to, amount)) in receipts.iter().zip([
        ("hold", Value::Null, "100"),
        ("capture", json!("shop"), "50"),
        ("capture", json!("tax"), "20"),
        ("release", Value::Null, "30"),
    ]) {
        let said = [&receipt["op"], &receipt["from"], &receipt["amount_minor"]];
        assert_eq!(said, [op, "a", amount], "{receipt}");
        assert_eq!((&receipt["to"], &receipt["batch"]), (&to, id));
        let named = if op == "hold" { &Value::Null } else { id };
        assert_eq!(&receipt["hold"], named, "a receipt has the hold's id");
    }
    assert_eq!(w.balance("a"), three("80", "80", 0));
    assert_eq!(
        (w.balance("shop").0, w.balance("tax").0),
        ("50".into(), "20".into())
    );
    let state = json(&w.get(&format!("hold/{}", id.as_str().unwrap())), 200);
    assert_eq!(state["state"], "ended");
    let told = json(&w.get("ops/pay"), 200);
    assert_eq!(
        (&told["outcome"], &told["results"]),
        (&json!("batch"), &results)
    );
    failures_leave_nothing(&w);
    let over = linked(&[hold("a", 10), capture("#0", "shop", 11)]);
    let late = w.post("late", "batch", &over);
    refused(&late, 409, "hold_too_small", "");

    // A kill, then the same requests: the first answers to the byte.
    let Wallet { mut fleet, .. } = w;
    let dir = fleet.keep_dir();
    fleet.kill();
    let w = Wallet::of(Fleet::start_in(dir));
    for (key, body, before) in [("pay", payout(), &first), ("late", over, &late)] {
        let again = w.post(key, "batch", &body);
        assert_eq!(
            (again.status, but_for_the_id(&again)),
            (before.status, but_for_the_id(before))
        );
        assert_eq!(again.header("idempotency-replayed"), Some("true"));
    }
    // The same amounts, but the captures are of another hold.
    let other = json(
        &w.post("h", "hold", &{
            let mut body = hold("a", 80);
            body.as_object_mut().unwrap().remove("op");
            body
        }),
        200,
    );
    let mut changed = payout();
    changed["items"][1]["hold"] = other["receipt"]["txid"].clone();
    refused(
        &w.post("pay", "batch", &changed),
        422,
        "idempotency_mismatch",
        "",
    );
    assert_eq!(w.balance("a"), three("80", "0", 0));
    ok(&w.fleet.ron(&["ledger", "verify"]));
}

/// Each of them changes nothing.
fn failures_leave_nothing(w: &Wallet) {
    let before = w.balance("a");
    // The second capture is more than is left; the first is undone with the hold.
    let body = linked(&[
        hold("a", 60),
        capture("#0", "shop", 50),
        capture("#0", "tax", 11),
    ]);
    let reply = w.post("f1", "batch", &body);
    refused(&reply, 409, "hold_too_small", "");
    assert_eq!(json(&reply, 409)["details"]["item"], 2);
    // The hold itself is refused.
    let body = linked(&[hold("a", 1_000), capture("#0", "shop", 50)]);
    let reply = w.post("f2", "batch", &body);
    refused(&reply, 409, "insufficient_funds", "");
    assert_eq!(json(&reply, 409)["details"]["item"], 0);
    let loose = json!({"items": [hold("a", 10), capture("#0", "shop", 5)]});
    let check = |key: &str, body: &Value, detail: &str| {
        refused(&w.post(key, "batch", body), 400, "bad_request", detail);
    };
    check(
        "f3",
        &loose,
        "items[1]: hold #0: an item names the hold of another item only in a linked batch",
    );
    let later = linked(&[capture("#1", "shop", 5), hold("a", 10)]);
    check(
        "f4",
        &later,
        "items[0]: hold #1: it must be the number of an earlier item",
    );
    let own = linked(&[hold("a", 10), release("#1")]);
    check(
        "f5",
        &own,
        "items[1]: hold #1: it must be the number of an earlier item",
    );
    let pay =
        json!({"op": "transfer", "from": "a", "to": "b", "asset": "ron", "amount_minor": "1"});
    check(
        "f6",
        &linked(&[pay, release("#0")]),
        "items[1]: hold #0: that item makes no hold",
    );
    for odd in ["#", "#01", "#-1", "#1000", "0", "tx_1"] {
        check("f7", &linked(&[hold("a", 10), release(odd)]), "");
    }
    assert_eq!(w.balance("a"), before);
    assert_eq!(w.balance("b").0, "0");
}

#[test]
fn items_need_the_rights_of_their_own_requests() {
    let w = Wallet::start();
    w.issue("i", "a", 100);
    let url = format!("{}/v1/batch", w.url);
    let send = |token: &str, key: &str, body: &Value| {
        w.fleet.post(
            &url,
            Some(token),
            &body.to_string(),
            &[("Idempotency-Key", key)],
        )
    };
    let pays =
        json!({"op": "transfer", "from": "a", "to": "b", "asset": "ron", "amount_minor": "10"});
    let paid = json(&w.post("p", "batch", &json!({"items": [pays]})), 200);
    let tx = paid["results"][0]["receipt"]["txid"].as_str().unwrap();
    let reverse = json!({"op": "reverse", "txid": tx, "amount_minor": "4"});

    // A token with another scope.
    let narrow = w.fleet.token("svc-wallet", Some("wallet:hold"));
    let body = linked(&[hold("a", 10), pays.clone()]);
    refused(
        &send(&narrow, "s1", &body),
        403,
        "forbidden",
        "items[1]: this needs the scope wallet:transfer",
    );
    refused(
        &send(&narrow, "s2", &json!({"items": [reverse]})),
        403,
        "forbidden",
        "items[0]: a reversal needs",
    );
    let narrow = w.fleet.token("svc-wallet", Some("wallet:transfer"));
    for item in [hold("a", 10), capture(tx, "b", 1), release(tx)] {
        let body = json!({"items": [pays, item]});
        refused(
            &send(&narrow, "s3", &body),
            403,
            "forbidden",
            "items[1]: this needs the scope wallet:hold",
        );
    }
    // A caller of another tenant, with every scope, and without a rule of the policy.
    let made = json(
        &w.post("h", "batch", &json!({"items": [hold("a", 30)]})),
        200,
    );
    let id = made["results"][0]["receipt"]["txid"].as_str().unwrap();
    let scopes = "wallet:hold wallet:transfer wallet:read";
    let other = issuer::minted(
        &w.fleet,
        "svc-wallet",
        &json!({"tenant": "other", "scope": scopes}),
    );
    for item in [
        hold("a", 1),
        capture(id, "b", 1),
        release(id),
        reverse.clone(),
    ] {
        refused(
            &send(&other, "t", &json!({"items": [item]})),
            403,
            "forbidden",
            "items[0]: the wallet policy has no rule",
        );
    }
    // What is not there, and what is no hold.
    let unknown = "tx_00000000000000010000000000000001";
    for id in [unknown, tx] {
        let body = json!({"items": [pays, release(id)]});
        refused(
            &w.post("u", "batch", &body),
            404,
            "not_found",
            "items[1]: there is no such hold",
        );
    }
    // With the rights: a loose batch, each item by itself, the batch's id in every receipt and in the history.
    let body = json!({"items": [release(id), capture(id, "b", 1), reverse]});
    let reply = w.post("r", "batch", &body);
    let results = json(&reply, 200)["results"].clone();
    let outcomes: Vec<&Value> = (0..3).map(|i| &results[i]["outcome"]).collect();
    assert_eq!(outcomes, ["done", "refused", "done"]);
    assert_eq!(results[1]["code"], "hold_not_found");
    let batch = results[0]["receipt"]["txid"].clone();
    assert_eq!(
        (
            &results[0]["receipt"]["batch"],
            &results[2]["receipt"]["batch"]
        ),
        (&batch, &batch)
    );
    assert_eq!(results[2]["receipt"]["reverses"], tx);
    assert_eq!(w.post("r", "batch", &body).body, reply.body);
    let told = json(&w.get("ops/r"), 200);
    assert_eq!(told["results"], results, "its first item is a release");
    let entries = || json(&w.get("account/a/history?limit=500"), 200)["entries"].clone();
    let in_batch = |entries: &Value| {
        let all = entries.as_array().unwrap().iter();
        all.filter(|e| e["batch"] == batch).count()
    };
    for _ in 0..100 {
        if in_batch(&entries()) == 2 {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(in_batch(&entries()), 2);
    assert_eq!(w.balance("a"), three("94", "94", 0));
    // A key that is given up refuses the batch for good.
    json(&w.post("gone", "ops/gone/abandon", &json!({})), 200);
    refused(&w.post("gone", "batch", &payout()), 409, "abandoned", "");
    ok(&w.fleet.ron(&["ledger", "verify"]));
}

#[test]
fn the_command_sends_a_batch_from_a_file() {
    let w = Wallet::start();
    w.issue("i", "a", 150);
    let file = w.fleet.dir().join("payout.json");
    std::fs::write(&file, payout().to_string()).unwrap();
    let path = file.to_str().unwrap();
    let table = ok(&w.fleet.ron(&["wallet", "batch", path, "--key", "payout-7"]));
    for part in ["key        payout-7", "capture", "a     shop", "release"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    // Sent again it changes nothing, from standard input too.
    let piped = Command::new(ron_binary())
        .args([
            "wallet",
            "batch",
            "-",
            "--key",
            "payout-7",
            "--json",
            "--data-dir",
        ])
        .arg(w.fleet.dir())
        .stdin(std::fs::File::open(&file).unwrap())
        .output()
        .unwrap();
    let answer: Value = serde_json::from_str(&ok(&piped)).unwrap();
    assert_eq!(answer["results"].as_array().unwrap().len(), 4);
    assert_eq!(w.balance("a").0, "80");
    let told = ok(&w.fleet.ron(&["wallet", "op", "payout-7"]));
    assert!(
        told.contains("batch of 4, 0 refused") && told.contains("a     tax"),
        "{told}"
    );
    let over = linked(&[hold("a", 10), capture("#0", "shop", 11)]);
    std::fs::write(&file, over.to_string()).unwrap();
    let refused = w.fleet.ron(&["wallet", "batch", path]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("items[1]: ") && said.contains("hold_too_small"),
        "{said}"
    );
    let loose = json!({"items": [hold("a", 10), hold("a", 1_000)]});
    std::fs::write(&file, loose.to_string()).unwrap();
    let partly = w.fleet.ron(&["wallet", "batch", path]);
    let said = String::from_utf8_lossy(&partly.stderr);
    assert!(
        !partly.status.success() && said.contains("1 of 2 items were refused"),
        "{said}"
    );
    assert_eq!(w.balance("a"), three("80", "70", 0));
    std::fs::write(&file, "[]").unwrap();
    let odd = w.fleet.ron(&["wallet", "batch", path]);
    let said = String::from_utf8_lossy(&odd.stderr);
    assert!(
        !odd.status.success() && said.contains("body of POST /v1/batch"),
        "{said}"
    );
}

/// `max` is what is available when the ledger decides, in batches and alone.
#[test]
fn max_moves_all_that_is_available_within_the_limits() {
    let w = Wallet::start();
    w.issue("i", "a", 100);
    let all = |op: &str| {
        let mut item = json!({"op": op, "from": "a", "asset": "ron", "amount_minor": "max"});
        match op {
            "transfer" => item["to"] = "b".into(),
            "hold" => item["expires_at"] = FAR.into(),
            _ => {}
        }
        item
    };
    // Each item sees what the ones before it left.
    let body = linked(&[
        hold("a", 30),
        all("hold"),
        capture("#1", "shop", 60),
        release("#1"),
    ]);
    let made = w.post("m1", "batch", &body);
    let results = json(&made, 200)["results"].clone();
    assert_eq!(results[1]["receipt"]["amount_minor"], "70");
    assert_eq!(results[3]["receipt"]["amount_minor"], "10");
    assert_eq!(w.balance("a"), three("40", "10", 0));
    let single = |item: &Value| {
        let mut body = item.clone();
        body.as_object_mut().unwrap().remove("op");
        body
    };
    let paid = w.post("m2", "transfer", &single(&all("transfer")));
    let receipt = json(&paid, 200)["receipt"].clone();
    assert_eq!(receipt["amount_minor"], "10");
    assert_eq!(w.balance("a"), three("30", "0", 0), "what is held stays");
    let empty = w.post("m3", "burn", &single(&all("burn")));
    refused(&empty, 409, "insufficient_funds", "");
    // The same request again, however much is there now; an amount is another request.
    w.issue("i2", "a", 50);
    assert_eq!(
        w.post("m2", "transfer", &single(&all("transfer"))).body,
        paid.body
    );
    let again = w.post("m3", "burn", &single(&all("burn")));
    assert_eq!(but_for_the_id(&again), but_for_the_id(&empty));
    assert_eq!(w.post("m1", "batch", &body).body, made.body);
    let mut exactly = single(&all("transfer"));
    exactly["amount_minor"] = "10".into();
    refused(
        &w.post("m2", "transfer", &exactly),
        422,
        "idempotency_mismatch",
        "",
    );
    // The maximum of a token binds what is moved, and nothing is moved above it.
    let narrow = |caveat: &str| {
        let token = ["token", "attenuate", &w.token, "--caveat", caveat];
        ok(&w.fleet.ron(&token)).trim().to_owned()
    };
    let send = |token: &str, key: &str| {
        let url = format!("{}/v1/transfer", w.url);
        let body = single(&all("transfer")).to_string();
        w.fleet
            .post(&url, Some(token), &body, &[("Idempotency-Key", key)])
    };
    refused(
        &send(&narrow("ceiling.per_op=49"), "n1"),
        403,
        "limits_exceeded",
        "",
    );
    refused(
        &send(&narrow("ceiling.total=49"), "n2"),
        403,
        "limits_exceeded",
        "",
    );
    assert_eq!(w.balance("a"), three("80", "50", 0));
    let within = json(&send(&narrow("ceiling.per_op=50"), "n3"), 200);
    assert_eq!(within["receipt"]["amount_minor"], "50");
    // Issues and captures have no maximum to take.
    let issue = json!({"to": "a", "asset": "ron", "amount_minor": "max"});
    refused(&w.post("n4", "issue", &issue), 400, "bad_request", "");
    // The command, a reversal of all that was moved, and the file of a receipt.
    w.issue("i3", "a", 7);
    let out = ok(&w.fleet.ron(&[
        "wallet", "transfer", "a", "b", "max", "--asset", "ron", "--json",
    ]));
    let sent: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(sent["receipt"]["amount_minor"], "7");
    let txid = sent["receipt"]["txid"].as_str().unwrap();
    let file = w.fleet.dir().join("max.receipt.json");
    ok(&w
        .fleet
        .ron(&["wallet", "receipt", txid, "--out", file.to_str().unwrap()]));
    ok(&w.fleet.ron(&["receipt", "verify", file.to_str().unwrap()]));
    let back = json(
        &w.post("n5", &format!("tx/{txid}/reverse"), &json!({})),
        200,
    );
    assert_eq!(back["receipt"]["amount_minor"], "7");
    ok(&w.fleet.ron(&["ledger", "verify"]));
    let Wallet { mut fleet, .. } = w;
    let dir = fleet.keep_dir();
    fleet.kill();
    let w = Wallet::of(Fleet::start_in(dir));
    assert_eq!(
        w.post("m2", "transfer", &single(&all("transfer"))).body,
        paid.body
    );
    assert_eq!(w.post("m1", "batch", &body).body, made.body);
    assert_eq!(w.balance("a"), three("37", "7", 0));
}
