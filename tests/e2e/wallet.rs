//! The whole wallet over HTTP: holds, batches, freeze, limits, history, replays, and many clients
//! at once.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ron_http::{Call, Method, Reply};
use ron_kernel::Deadline;
use ron_tests::{CALM, Fleet, caught_up, json, number, ok};
use serde_json::{Value, json};

/// Rounds of concurrent duplicates; `RON_WALLET_ROUNDS` makes it a long test.
fn rounds() -> usize {
    number("RON_WALLET_ROUNDS", 12) as usize
}

pub(super) struct Wallet {
    pub(super) fleet: Fleet,
    pub(super) url: String,
    pub(super) token: String,
    /// Requests that were refused temporarily and repeated.
    repeated: AtomicU64,
}

impl Wallet {
    pub(super) fn start() -> Self {
        Self::of(Fleet::start())
    }

    pub(super) fn of(fleet: Fleet) -> Self {
        let (url, token) = (fleet.api("svc-wallet"), fleet.token("svc-wallet", None));
        let repeated = AtomicU64::new(0);
        Self {
            fleet,
            url,
            token,
            repeated,
        }
    }

    /// POST; repeats a request when the response says so.
    pub(super) fn post(&self, key: &str, path: &str, body: &Value) -> Reply {
        self.insist(key, path, body).0
    }

    /// The same, for a busy machine: without a response, or with an unknown outcome, the request is
    /// repeated under the same key. Returns the number of repetitions too.
    fn insist(&self, key: &str, path: &str, body: &Value) -> (Reply, u32) {
        let url = format!("{}/v1/{path}", self.url);
        let bearer = format!("Bearer {}", self.token);
        let mut open = 0;
        for _ in 0..500 {
            let said = self.fleet.http.call(Call {
                method: Method::POST,
                url: &url,
                headers: &[("Authorization", &bearer), ("Idempotency-Key", key)],
                body: Some(body.to_string().into_bytes()),
                content_type: Some("application/json"),
                deadline: Deadline::within(Duration::from_secs(10)),
                idempotent: false,
            });
            match said {
                Ok(reply) if ![429, 503, 504].contains(&reply.status) => return (reply, open),
                Ok(reply) => {
                    self.repeated.fetch_add(1, Ordering::Relaxed);
                    open += u32::from(reply.status == 504);
                }
                Err(_) => open += 1,
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{key}: no answer after 500 tries");
    }

    pub(super) fn get(&self, path: &str) -> Reply {
        self.fleet
            .get(&format!("{}/v1/{path}", self.url), Some(&self.token))
    }

    pub(super) fn issue(&self, key: &str, to: &str, n: u64) -> Value {
        let body = json!({"to": to, "asset": "ron", "amount_minor": n.to_string()});
        json(&self.post(key, "issue", &body), 200)
    }

    pub(super) fn balance(&self, account: &str) -> (String, String, u64) {
        let doc = json(
            &self.get(&format!("balance?account={account}&asset=ron")),
            200,
        );
        let text = |name: &str| doc[name].as_str().unwrap().to_owned();
        let nonce = doc["nonce"].as_u64().unwrap();
        (text("amount_minor"), text("available_minor"), nonce)
    }
}

/// The text of an answer. In that of a refusal `request_id` names the exchange, as its header does, and is left out.
pub(super) fn but_for_the_id(reply: &Reply) -> String {
    let text = String::from_utf8(reply.body.clone()).unwrap();
    let id = reply.header("x-request-id").unwrap();
    let member = format!("\"request_id\":\"{id}\"");
    assert_eq!(
        text.matches(&member).count(),
        usize::from(reply.status >= 400)
    );
    text.replace(&member, "")
}

fn transfer(from: &str, to: &str, n: u64, nonce: u64) -> Value {
    json!({"from": from, "to": to, "asset": "ron", "amount_minor": n.to_string(), "nonce": nonce})
}

pub(super) fn three(amount: &str, available: &str, nonce: u64) -> (String, String, u64) {
    (amount.to_owned(), available.to_owned(), nonce)
}

#[test]
fn holds_batches_freeze_limits_and_history() {
    let w = Wallet::start();
    w.issue("i", "a", 1_000);
    holds(&w);
    captures_and_reversals(&w);
    batches(&w);
    freeze_and_limits(&w);
    history_and_commands(&w);
    let repeated = w.repeated.load(Ordering::Relaxed);
    assert!(repeated <= CALM, "{repeated} requests were repeated");
    ok(&w.fleet.ron(&["ledger", "verify"]));
}

fn holds(w: &Wallet) {
    let hold = |key: &str, n: u64, nonce: u64, expires: &str| {
        let body = json!({"from": "a", "asset": "ron", "amount_minor": n.to_string(), "nonce": nonce, "expires_at": expires});
        w.post(key, "hold", &body)
    };
    let far = "2200-01-01T00:00:00Z";
    let made = json(&hold("h1", 400, 1, far), 200);
    let id = made["receipt"]["txid"].as_str().unwrap().to_owned();
    assert_eq!(w.balance("a"), three("1000", "600", 1));
    let over = w.post("t0", "transfer", &transfer("a", "b", 601, 2));
    assert_eq!(json(&over, 409)["code"], "insufficient_funds");
    let capture = |key: &str, n: u64| {
        let body = json!({"to": "shop", "amount_minor": n.to_string()});
        w.post(key, &format!("hold/{id}/capture"), &body)
    };
    assert_eq!(json(&capture("c1", 150), 200)["receipt"]["from"], "a");
    let state = json(&w.get(&format!("hold/{id}")), 200);
    assert_eq!(
        (&state["state"], &state["remaining_minor"]),
        (&json!("open"), &json!("250"))
    );
    assert_eq!(json(&capture("c2", 251), 409)["code"], "hold_too_small");
    let release = |key: &str| w.post(key, &format!("hold/{id}/release"), &json!({}));
    let released = release("r1");
    assert_eq!(json(&released, 200)["receipt"]["amount_minor"], "250");
    assert_eq!(release("r1").body, released.body, "a replay");
    assert_eq!(json(&release("r2"), 409)["code"], "hold_not_found");
    assert_eq!(
        json(&w.get(&format!("hold/{id}")), 200)["state"],
        json!("ended")
    );
    assert_eq!(w.balance("a"), three("850", "850", 1));
    let unknown = "tx_00000000000000010000000000000001";
    let nobody = w.post("c3", &format!("hold/{unknown}/release"), &json!({}));
    assert_eq!(nobody.status, 404);
    // A hold that expires.
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let soon = ron_proto::Timestamp(now.as_millis() as u64 + 3_000).to_string();
    let brief = json(&hold("h2", 100, 2, &soon), 200)["receipt"]["txid"].clone();
    assert_eq!(w.balance("a"), three("850", "750", 2));
    let end = Instant::now() + Duration::from_secs(20);
    while w.balance("a") != three("850", "850", 2) {
        assert!(
            Instant::now() < end,
            "it does not end: {:?}",
            w.balance("a")
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let late = w.post(
        "c4",
        &format!("hold/{}/capture", brief.as_str().unwrap()),
        &json!({"to": "shop", "amount_minor": "1"}),
    );
    assert_eq!(json(&late, 409)["code"], "hold_not_found");
}

/// A final capture, and the reversal of a part of it and then of the rest.
fn captures_and_reversals(w: &Wallet) {
    w.issue("rev-i", "payer", 100);
    let hold = json!({"from": "payer", "asset": "ron", "amount_minor": "60", "expires_at": "2200-01-01T00:00:00Z"});
    let hold = json(&w.post("rev-h", "hold", &hold), 200)["receipt"]["txid"].clone();
    let body = json!({"to": "seller", "amount_minor": "40", "final": true});
    let path = format!("hold/{}/capture", hold.as_str().unwrap());
    let captured = json(&w.post("rev-c", &path, &body), 200);
    assert_eq!(captured["receipt"]["hold"], hold);
    assert_eq!(
        w.balance("payer"),
        three("60", "60", 0),
        "the rest is released"
    );
    let tx = captured["receipt"]["txid"].as_str().unwrap();
    let reverse = |key: &str, body: Value| w.post(key, &format!("tx/{tx}/reverse"), &body);
    let part = reverse(
        "rev-1",
        json!({"amount_minor": "15", "reference": "return-1"}),
    );
    let receipt = json(&part, 200)["receipt"].clone();
    assert_eq!(
        [
            &receipt["op"],
            &receipt["from"],
            &receipt["to"],
            &receipt["reverses"]
        ],
        [
            &json!("reverse"),
            &json!("seller"),
            &json!("payer"),
            &json!(tx)
        ]
    );
    assert_eq!(
        reverse(
            "rev-1",
            json!({"amount_minor": "15", "reference": "return-1"})
        )
        .body,
        part.body
    );
    let more = reverse("rev-2", json!({"amount_minor": "26"}));
    assert_eq!(json(&more, 409)["code"], "reversal_too_large");
    json(&reverse("rev-3", json!({})), 200);
    assert_eq!(w.balance("payer").0, "100");
    let again = reverse("rev-4", json!({}));
    assert_eq!(json(&again, 409)["code"], "reversal_too_large");
    let of_reversal = format!("tx/{}/reverse", receipt["txid"].as_str().unwrap());
    assert_eq!(w.post("rev-5", &of_reversal, &json!({})).status, 404);
    let mut now = Value::Null;
    for _ in 0..50 {
        now = json(&w.get(&format!("tx/{tx}")), 200)["now"].clone();
        if now["reversals"].as_array().unwrap().len() == 2 {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(now["reversed_minor"], "40");
    assert_eq!(now["reversals"][0], receipt["txid"]);
}

fn batches(w: &Wallet) {
    let item = |from: &str, to: &str, n: u64, nonce: u64| {
        let mut item = transfer(from, to, n, nonce);
        item["op"] = "transfer".into();
        item
    };
    let loose =
        json!({"items": [item("a", "b", 50, 3), item("a", "b", 9_999, 4), item("a", "c", 50, 4)]});
    let first = w.post("b1", "batch", &loose);
    let results = json(&first, 200)["results"].clone();
    let outcome = |i: usize| results[i]["outcome"].as_str().unwrap().to_owned();
    assert_eq!(
        [outcome(0), outcome(1), outcome(2)],
        ["done", "refused", "done"]
    );
    let again = w.post("b1", "batch", &loose);
    assert_eq!(again.body, first.body);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let mut longer = loose.clone();
    longer["items"]
        .as_array_mut()
        .unwrap()
        .push(item("a", "c", 1, 5));
    let mut shorter = loose.clone();
    shorter["items"].as_array_mut().unwrap().pop();
    for other in [&longer, &shorter] {
        assert_eq!(
            json(&w.post("b1", "batch", other), 422)["code"],
            "idempotency_mismatch"
        );
    }
    let single = w.post("b1", "transfer", &transfer("a", "b", 50, 3));
    assert_eq!(
        single.status, 422,
        "the key is the batch's, also for its first item"
    );
    let told = json(&w.get("ops/b1"), 200);
    assert_eq!(
        (&told["outcome"], told["results"].as_array().unwrap().len()),
        (&json!("batch"), 3)
    );
    assert_eq!(w.balance("a"), three("750", "750", 4));
    let linked =
        json!({"linked": true, "items": [item("a", "b", 50, 5), item("b", "c", 9_999, 1)]});
    let refused = w.post("b2", "batch", &linked);
    let problem = json(&refused, 409);
    assert_eq!(
        (&problem["code"], &problem["details"]["item"]),
        (&json!("insufficient_funds"), &json!(1))
    );
    let again = w.post("b2", "batch", &linked);
    assert_eq!(but_for_the_id(&again), but_for_the_id(&refused));
    assert_eq!(w.balance("a"), three("750", "750", 4), "all or nothing");
    let linked = json!({"linked": true, "items": [item("a", "b", 50, 5), item("b", "c", 100, 1)]});
    json(&w.post("b3", "batch", &linked), 200);
    assert_eq!(w.balance("c").0, "150");
    let many: Vec<Value> = (0..1_000)
        .map(|n| json!({"op": "issue", "to": format!("m{}", n % 7), "asset": "ron", "amount_minor": "1"}))
        .collect();
    let body = json!({ "items": many });
    let all = json(&w.post("b4", "batch", &body), 200);
    assert_eq!(all["results"].as_array().unwrap().len(), 1_000);
    let told = json(&w.get("ops/b4"), 200);
    assert_eq!(told["results"], all["results"]);
    let empty = w.post("b5", "batch", &json!({"items": []}));
    assert_eq!(empty.status, 400);
}

fn freeze_and_limits(w: &Wallet) {
    let verb = |key: &str, verb: &str| {
        let answer = w.post(key, &format!("account/a/{verb}"), &json!({}));
        assert_eq!(answer.status, 200, "{verb}");
    };
    verb("f1", "freeze");
    let refused = w.post("t1", "transfer", &transfer("a", "b", 1, 6));
    assert_eq!(json(&refused, 403)["code"], "account_frozen");
    w.issue("i2", "a", 1);
    verb("f2", "unfreeze");
    json(&w.post("t2", "transfer", &transfer("a", "b", 1, 6)), 200);
    assert_eq!(
        json(&w.post("t1", "transfer", &transfer("a", "b", 1, 6)), 403)["code"],
        "account_frozen",
        "a refusal keeps its key"
    );
    let over = json!({"to": "a", "asset": "big", "amount_minor": "100000000000000000001"});
    assert_eq!(
        json(&w.post("l1", "issue", &over), 403)["code"],
        "limits_exceeded"
    );
    the_day(w);
    let missing = w.fleet.post(
        &format!("{}/v1/transfer", w.url),
        Some(&w.token),
        &transfer("a", "b", 1, 7).to_string(),
        &[],
    );
    assert_eq!(missing.status, 400);
}

/// The daily maximum is 100 times the maximum of one operation. It counts what leaves.
fn the_day(w: &Wallet) {
    let most = "100000000000000000000";
    let many = |op: Value, n: usize| json!({ "items": vec![op; n] });
    let issue = json!({"op": "issue", "to": "rich", "asset": "big", "amount_minor": most});
    let issued = json(&w.post("l2", "batch", &many(issue, 101)), 200);
    assert_eq!(
        issued["results"][100]["outcome"], "done",
        "issues do not count"
    );
    let pay =
        json!({"op": "transfer", "from": "rich", "to": "b", "asset": "big", "amount_minor": most});
    let paid = json(&w.post("l3", "batch", &many(pay.clone(), 99)), 200);
    assert_eq!(paid["results"][98]["outcome"], "done");
    let hold = json!({"from": "rich", "asset": "big", "amount_minor": most, "expires_at": "2200-01-01T00:00:00Z"});
    for round in 0..3 {
        let made = json(&w.post(&format!("l4-{round}"), "hold", &hold), 200);
        let id = made["receipt"]["txid"].as_str().unwrap();
        let path = format!("hold/{id}/release");
        json(&w.post(&format!("l5-{round}"), &path, &json!({})), 200);
    }
    let last = json(&w.post("l6", "batch", &many(pay, 2)), 200)["results"].clone();
    assert_eq!(last[0]["outcome"], "done", "released holds do not count");
    assert_eq!(last[1]["code"], "limits_exceeded");
}

fn history_and_commands(w: &Wallet) {
    let known = json(&w.get("balance?account=shop&asset=ron"), 200)["as_of_seq"].clone();
    let path = format!("account/shop/history?min_seq={known}");
    let page = json(&caught_up(|| w.get(&path)), 200);
    let entries = page["entries"].as_array().unwrap();
    let done: Vec<&Value> = entries.iter().filter(|e| e["refused"].is_null()).collect();
    assert_eq!(done.len(), 1, "{page}");
    assert_eq!(
        (&done[0]["op"], &done[0]["amount_minor"]),
        (&json!("capture"), &json!("150"))
    );
    let out = |args: &[&str]| ok(&w.fleet.ron(args));
    let receipt: Value = serde_json::from_str(&out(&[
        "wallet", "issue", "cli", "40", "--asset", "ron", "--json",
    ]))
    .unwrap();
    assert_eq!(receipt["receipt"]["to"], "cli");
    out(&[
        "wallet", "transfer", "cli", "b", "10", "--asset", "ron", "--key", "cli-1",
    ]);
    let again = [
        "wallet", "transfer", "cli", "b", "10", "--asset", "ron", "--key", "cli-1", "--nonce", "1",
    ];
    out(&again);
    let hold = out(&["wallet", "hold", "cli", "20", "--asset", "ron", "--json"]);
    let hold: Value = serde_json::from_str(&hold).unwrap();
    let id = hold["receipt"]["txid"].as_str().unwrap();
    out(&["wallet", "capture", id, "b", "5"]);
    out(&["wallet", "release", id]);
    out(&["wallet", "burn", "cli", "25", "--asset", "ron"]);
    let shown = out(&["wallet", "balance", "cli", "--asset", "ron"]);
    assert!(
        shown.contains("amount     0") && shown.contains("nonce      0"),
        "{shown}"
    );
    let told = out(&["wallet", "op", "cli-1"]);
    assert!(told.contains("transfer"), "{told}");
    let known = json(&w.get("balance?account=cli&asset=ron"), 200)["as_of_seq"].clone();
    let path = format!("account/cli/history?min_seq={known}");
    json(&caught_up(|| w.get(&path)), 200);
    listing_commands(&out, id);
}

/// The commands that list, on what the others did with the account `cli`.
fn listing_commands(out: &dyn Fn(&[&str]) -> String, hold: &str) {
    let history = out(&["wallet", "history", "cli", "--kind", "transfer"]);
    let lines: Vec<&str> = history.lines().collect();
    assert_eq!(lines.len(), 2, "{history}");
    assert!(lines[1].contains("cli -> b"), "{history}");
    let of_hold = out(&["wallet", "history", "cli", "--hold", hold, "--csv"]);
    let ops: Vec<&str> = of_hold
        .lines()
        .skip(1)
        .map(|l| l.split(',').nth(2).unwrap())
        .collect();
    assert_eq!(ops, ["release", "capture"], "newest first: {of_hold}");
    let range = [
        "--from",
        "2020-01-01T00:00:00Z",
        "--until",
        "2099-01-01T00:00:00Z",
    ];
    let statement = ["wallet", "statement", "cli", "--asset", "ron"];
    let statement = out(&[&statement[..], &range].concat());
    let lines: Vec<&str> = statement.lines().collect();
    assert!(
        lines[1].contains("opening") && lines.last().unwrap().contains("closing"),
        "{statement}"
    );
    assert_eq!(
        lines.len(),
        7,
        "issue, transfer, capture, burn: {statement}"
    );
    let accounts = out(&["wallet", "accounts", "--prefix", "cli"]);
    assert!(accounts.contains("cli      ron         0"), "{accounts}");
    let holds = out(&["wallet", "holds", "cli", "--state", "ended", "--json"]);
    let holds: Value = serde_json::from_str(&holds).unwrap();
    assert_eq!(
        (
            &holds["holds"][0]["hold"],
            &holds["holds"][0]["captured_minor"]
        ),
        (&json!(hold), &json!("5"))
    );
    let events = out(&["wallet", "events", "cli", "--once", "--json"]);
    assert_eq!(events.lines().count(), 6, "{events}");
    let first: Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
    let at = first["seq"].to_string();
    let then = out(&["wallet", "balance", "cli", "--asset", "ron", "--at", &at]);
    assert!(
        then.contains("amount     40") && !then.contains("nonce"),
        "{then}"
    );
    let shown = out(&["wallet", "tx", first["txid"].as_str().unwrap()]);
    assert!(shown.contains("issue"), "{shown}");
}

/// Sends the same request from `n` threads at the same moment.
fn at_once<R: Send>(n: usize, send: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let start = std::sync::Barrier::new(n);
    ron_kernel::scoped(n, |i| {
        start.wait();
        send(i)
    })
}

#[test]
fn many_clients_with_one_key_make_one_commit_and_with_one_nonce_one_winner() {
    let w = Wallet::start();
    w.issue("i", "a", 1_000_000);
    for round in 0..rounds() {
        let nonce = 2 * round as u64 + 1;
        let (key, body) = (format!("same-{round}"), transfer("a", "b", 1, nonce));
        let told = at_once(64, |_| w.insist(&key, "transfer", &body));
        let open: u32 = told.iter().map(|(_, open)| open).sum();
        let replies: Vec<Reply> = told.into_iter().map(|(reply, _)| reply).collect();
        for reply in &replies {
            json(reply, 200);
            assert_eq!(reply.body, replies[0].body);
        }
        let replayed = |r: &&Reply| r.header("idempotency-replayed").is_some();
        let replayed = replies.iter().filter(replayed).count();
        // The first response may have been lost on its way; then the client receives a replay.
        assert!(
            replayed == 63 || (open > 0 && replayed == 64),
            "round {round}: {replayed}"
        );

        let body = transfer("a", "b", 1, nonce + 1);
        let replies = at_once(64, |i| {
            w.post(&format!("own-{round}-{i}"), "transfer", &body)
        });
        let won = replies.iter().filter(|r| r.status == 200).count();
        assert_eq!(won, 1, "round {round}");
        for lost in replies.iter().filter(|r| r.status != 200) {
            let problem = json(lost, 409);
            assert_eq!(problem["code"], "nonce_conflict");
            assert_eq!(problem["details"]["expected"], nonce + 2);
        }
    }
    let repeated = w.repeated.load(Ordering::Relaxed);
    println!(
        "{} rounds of 64 clients, {repeated} requests repeated",
        rounds()
    );
    // 64 clients at once are within every queue, so refusals come from the machine, and are rare.
    assert!(repeated <= CALM * rounds() as u64, "{repeated}");
    let all = 2 * rounds() as u64;
    assert_eq!(w.balance("b").0, all.to_string());
    assert_eq!(w.balance("a").2, all);
}

/// Debits without a nonce: the key alone makes each happen once, so that no worker waits for
/// another's nonce and every first attempt succeeds.
#[test]
fn sixteen_workers_pay_from_one_account_by_keys_alone() {
    let w = Wallet::start();
    w.issue("i", "a", 1_000);
    let each = 10;
    let pay = |worker: usize| {
        let body = json!({"from": "a", "to": "b", "asset": "ron", "amount_minor": "1"});
        let paid = |n| w.insist(&format!("w{worker}-{n}"), "transfer", &body);
        (0..each).map(paid).for_each(|(reply, _)| {
            let receipt = json(&reply, 200);
            assert!(receipt["private"]["nonce"].is_null(), "{receipt}");
        });
    };
    at_once(16, pay);
    // A busy machine may refuse or lose a request; no other repetition is needed.
    let repeated = w.repeated.load(Ordering::Relaxed);
    assert!(repeated <= CALM, "{repeated} requests were repeated");
    assert_eq!(w.balance("a"), three("840", "840", 0));
    assert_eq!(w.balance("b").0, "160");
    // A conflict uses neither the key nor the nonce.
    let late = w.post("order-17", "transfer", &transfer("a", "b", 1, 9));
    let problem = json(&late, 409);
    assert_eq!(problem["details"]["expected"], 1);
    let paid = w.post("order-17", "transfer", &transfer("a", "b", 1, 1));
    assert_eq!(json(&paid, 200)["private"]["nonce"], 1);
    let again = w.post("order-17", "transfer", &transfer("a", "b", 1, 9));
    assert_eq!(again.body, paid.body);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
}

#[test]
fn nonces_sent_at_once_in_order_on_one_connection_all_commit() {
    let w = Wallet::start();
    w.issue("i", "a", 1_000);
    let address = w.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).unwrap();
    let mut text = String::new();
    let count = 14;
    for nonce in 1..=count {
        let body = transfer("a", "b", 1, nonce).to_string();
        let close = if nonce == count {
            "Connection: close\r\n"
        } else {
            ""
        };
        let _ = write!(
            text,
            "POST /v1/transfer HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\nIdempotency-Key: n-{nonce}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{close}\r\n{body}",
            w.token,
            body.len()
        );
    }
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(
        answer.matches("HTTP/1.1 200 OK").count(),
        count as usize,
        "{answer}"
    );
    assert_eq!(w.balance("a").2, count);
}

#[test]
fn a_replay_is_the_same_to_the_byte_across_a_restart() {
    let w = Wallet::start();
    w.issue("i", "a", 10);
    let good = transfer("a", "b", 4, 1);
    let bad = transfer("a", "b", 400, 2);
    let before = [
        w.post("good", "transfer", &good),
        w.post("bad", "transfer", &bad),
    ];
    assert_eq!([before[0].status, before[1].status], [200, 409]);
    let Wallet { mut fleet, .. } = w;
    let dir = fleet.keep_dir();
    fleet.kill();
    let w = Wallet::of(Fleet::start_in(dir));
    let after = [
        w.post("good", "transfer", &good),
        w.post("bad", "transfer", &bad),
    ];
    assert_eq!(before[0].body, after[0].body);
    for (b, a) in before.iter().zip(&after) {
        assert_eq!((b.status, but_for_the_id(b)), (a.status, but_for_the_id(a)));
        assert_eq!(a.header("idempotency-replayed"), Some("true"));
    }
    assert_eq!(w.balance("a").0, "6");
}

#[test]
fn a_days_total_outlives_restarts_kills_and_the_loss_of_what_is_derived() {
    let mut w = Wallet::start();
    let began = utc_day();
    let most = "100000000000000000000";
    let pay = |from: &str, amount: &str| json!({"op": "transfer", "from": from, "to": "shop", "asset": "big", "amount_minor": amount});
    let issue = |to: &str| json!({"op": "issue", "to": to, "asset": "big", "amount_minor": most});
    let mut issued = vec![issue("rich"); 102];
    issued.push(issue("other"));
    json(&w.post("d0", "batch", &json!({ "items": issued })), 200);
    let paid = json!({ "items": vec![pay("rich", most); 99] });
    let results = json(&w.post("d1", "batch", &paid), 200)["results"].clone();
    assert_eq!(results[98]["outcome"], "done");
    // Of the daily maximum, 100 times that of one operation, one part is left.
    for (round, end) in ["stop", "kill", "forget"].into_iter().enumerate() {
        let dir = w.fleet.keep_dir();
        if end == "kill" {
            w.fleet.kill();
        } else {
            assert_eq!(w.fleet.stop(), Some(0));
        }
        if end == "forget" {
            let derived = dir.path().join("ron-ledger/data/derived");
            std::fs::remove_dir_all(derived).unwrap();
        }
        w = Wallet::of(Fleet::start_in(dir));
        let body = json!({"items": [pay("rich", most), pay("rich", "1"), pay("other", "1")]});
        let told = json(&w.post(&format!("d2-{round}"), "batch", &body), 200)["results"].clone();
        if utc_day() != began {
            println!("a new day began meanwhile; nothing is shown");
            return;
        }
        let first = if round == 0 { "done" } else { "refused" };
        assert_eq!(told[0]["outcome"], first, "{end}: {told}");
        assert_eq!(told[1]["code"], "limits_exceeded", "{end}: {told}");
        assert_eq!(told[2]["outcome"], "done", "{end}: the day is per account");
    }
}

/// The current UTC day.
fn utc_day() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap().as_secs() / 86_400
}
