//! What an integrator finds again: an order by its reference, pages of a history in both directions, balances of the
//! past, statements as JSON and CSV. A payee and another tenant see, and can search for, only what they may know.

use ron_http::{Method, Reply};
use ron_tests::{Fleet, caught_up, issuer, json};
use serde_json::{Value, json};

/// A caller of the wallet.
struct Caller<'a> {
    fleet: &'a Fleet,
    token: String,
}

impl<'a> Caller<'a> {
    fn new(fleet: &'a Fleet, tenant: &str, name: &str) -> Self {
        let scope = "wallet:issue wallet:transfer wallet:hold wallet:read";
        let claims = json!({"tenant": tenant, "sub": name, "scope": scope});
        let token = issuer::minted(fleet, "svc-wallet", &claims);
        Self { fleet, token }
    }

    fn reply(&self, path: &str) -> Reply {
        let url = format!("{}/v1/{path}", self.fleet.api("svc-wallet"));
        let token = Some(self.token.as_str());
        caught_up(|| self.fleet.get(&url, token))
    }

    fn get(&self, path: &str) -> Value {
        json(&self.reply(path), 200)
    }

    fn post(&self, key: &str, path: &str, body: &Value) -> Value {
        let url = format!("{}/v1/{path}", self.fleet.api("svc-wallet"));
        let (token, body) = (Some(self.token.as_str()), body.to_string());
        let key = [("Idempotency-Key", key)];
        json(
            &self
                .fleet
                .send(Method::POST, &url, token, Some(&body), &key),
            200,
        )
    }

    fn history(&self, account: &str, query: &str) -> Vec<Value> {
        let page = self.get(&format!("account/{account}/history?{query}"));
        page["entries"].as_array().unwrap().clone()
    }
}

fn seqs(entries: &[Value]) -> Vec<u64> {
    let seqs = entries.iter().map(|e| e["seq"].as_u64().unwrap());
    seqs.collect()
}

fn seq(done: &Value) -> u64 {
    done["receipt"]["seq"].as_u64().unwrap()
}

fn fleet() -> Fleet {
    let fleet = Fleet::start();
    let rule = |tenant: &str, principal: &str, accounts: Value, actions: Value| json!({"tenant": tenant, "principal": principal, "accounts": accounts, "assets": ["*"], "actions": actions});
    fleet.add_wallet_rules([
        rule(
            "t",
            "shop",
            json!(["h:*"]),
            json!(["read", "issue", "transfer", "hold"]),
        ),
        rule("t", "books", json!(["h:ada"]), json!(["read"])),
        rule("t", "bob", json!(["h:bob"]), json!(["read"])),
        rule("u", "shop", json!(["h:bob"]), json!(["read"])),
    ]);
    fleet
}

/// Three orders of `h:ada`, paid to `h:bob`: the first with a shared reference and the others without.
fn pay(shop: &Caller<'_>) -> Vec<Value> {
    shop.post(
        "deposit",
        "issue",
        &json!({"to": "h:ada", "asset": "eur", "amount_minor": "1000"}),
    );
    let order = |n: u64| {
        let body = json!({"from": "h:ada", "to": "h:bob", "asset": "eur", "amount_minor": (10 * n).to_string(),
            "reference": format!("order {n}"), "share_reference": n == 1, "memo": "=secret()", "nonce": n,
            "metadata": {"part": format!("{n}")}, "effective_at": "2026-01-31T12:00:00Z"});
        shop.post(&format!("order-{n}"), "transfer", &body)
    };
    (1..=3).map(order).collect()
}

#[test]
fn payments_are_found_again_by_those_who_may_know_them() {
    let fleet = fleet();
    let [shop, books, bob, outsider] = [("t", "shop"), ("t", "books"), ("t", "bob"), ("u", "shop")]
        .map(|(tenant, name)| Caller::new(&fleet, tenant, name));
    let paid = pay(&shop);
    let last = seq(&paid[2]);
    let known = format!("min_seq={last}");

    // Newest first; pages in both directions give the same entries once.
    let whole = shop.history("h%3Aada", &known);
    assert_eq!(seqs(&whole), [last, last - 1, last - 2, last - 3]);
    let balances: Vec<&str> = whole
        .iter()
        .map(|e| e["balance_minor"].as_str().unwrap())
        .collect();
    assert_eq!(balances, ["940", "970", "990", "1000"]);
    let page = |query: &str| shop.get(&format!("account/h%3Aada/history?limit=3&{query}"));
    let first = page(&known);
    let older = page(&format!("before={}", first["older"]));
    assert_eq!(seqs(older["entries"].as_array().unwrap()), [last - 3]);
    assert!(older["older"].is_null());
    let up = page("after=0");
    assert_eq!(
        seqs(up["entries"].as_array().unwrap()),
        [last - 1, last - 2, last - 3]
    );
    let next = page(&format!("after={}", up["newer"]));
    assert_eq!(seqs(next["entries"].as_array().unwrap()), [last]);

    filters(&shop, last);
    private(&[&shop, &books, &bob, &outsider], last);
    found_by_reference(&shop, &books, &bob, last);
    past(&shop, &bob, last);
    statements(&shop, &bob, last);
    fresh(&shop, &paid[2]);
}

fn filters(shop: &Caller<'_>, last: u64) {
    let found = |query: &str| seqs(&shop.history("h%3Aada", query));
    assert_eq!(found("kind=issue"), [last - 3]);
    assert_eq!(found("direction=in"), [last - 3]);
    assert_eq!(found("direction=out&limit=2"), [last, last - 1]);
    assert_eq!(
        found("counterparty=h%3Abob&reference=order%202"),
        [last - 1]
    );
    assert_eq!(found("metadata=part%3D3"), [last]);
    assert_eq!(found("asset=usd"), [0; 0]);
    assert_eq!(found("until=2020-01-01T00:00:00Z"), [0; 0]);
    assert_eq!(found("from=2020-01-01T00:00:00Z").len(), 4);
    for (bad, hint) in [
        ("kind=gift", "kind"),
        ("before=x", "before"),
        ("limit=501", "limit is 1 to 500"),
        ("colour=red", "unknown query parameter"),
        ("metadata=part", "name=value"),
        ("direction=up", "in or out"),
        ("from=yesterday", "from"),
    ] {
        let reply = shop.reply(&format!("account/h%3Aada/history?{bad}"));
        let said = json(&reply, 400)["detail"].to_string();
        assert!(said.contains(hint), "{bad}: {said}");
    }
    let late = shop.reply(&format!("account/h%3Aada/history?min_seq={}", last + 9));
    assert!(json(&late, 400)["detail"].to_string().contains("no entry"));
    let by_reference = shop.get("tx?reference=order%203");
    assert_eq!(seqs(by_reference["entries"].as_array().unwrap()), [last]);
    assert_eq!(shop.reply("tx").status, 400);
}

/// The filters of a search by reference, and what a reader sees of the transaction that it finds.
fn found_by_reference(shop: &Caller<'_>, books: &Caller<'_>, bob: &Caller<'_>, last: u64) {
    let found = |caller: &Caller<'_>, query: &str| {
        let page = caller.get(&format!("tx?reference=order%20{query}"));
        page["entries"].as_array().unwrap().clone()
    };
    for (query, wanted) in [
        ("3&metadata=part%3D3&kind=transfer&asset=eur", true),
        ("3&metadata=part%3D1", false),
        ("3&kind=issue", false),
        ("3&asset=usd", false),
        ("3&until=2020-01-01T00:00:00Z", false),
    ] {
        assert_eq!(!found(shop, query).is_empty(), wanted, "{query}");
    }
    // The reference is shared with the payee, its metadata is not: neither can be found by guessing.
    let seen = found(bob, "1");
    assert_eq!(seqs(&seen), [last - 2]);
    assert!(found(bob, "1&metadata=part%3D1").is_empty());
    assert_eq!(
        shop.reply("tx?reference=order%203&direction=out").status,
        400
    );
    let txid = seen[0]["txid"].as_str().unwrap();
    let private = |caller: &Caller<'_>| caller.get(&format!("tx/{txid}"))["private"].clone();
    assert_eq!(private(shop)["idem"], "order-1");
    assert_eq!(private(bob), json!({"reference": "order 1"}));
    let books = private(books);
    assert!(books["idem"].is_null(), "keys are their maker's: {books}");
    assert_eq!(
        (&books["memo"], &books["metadata"]),
        (&json!("=secret()"), &json!({"part": "1"}))
    );
}

/// Every read takes `min_seq`, and refuses a parameter that it does not know.
fn fresh(shop: &Caller<'_>, paid: &Value) {
    let (txid, last) = (paid["receipt"]["txid"].as_str().unwrap(), seq(paid));
    let hold = json!({"from": "h:ada", "asset": "eur", "amount_minor": "25", "expires_at": "2099-01-01T00:00:00Z"});
    let hold = shop.post("captured", "hold", &hold);
    let id = hold["receipt"]["txid"].as_str().unwrap().to_owned();
    for path in [
        &format!("tx/{txid}?"),
        &format!("tx/{txid}/receipt?wait=5&"),
        &format!("hold/{id}?"),
        "ops/order-3?",
        "assets?",
        "assets/eur?",
        "events?account=h%3Aada&",
        "budget?",
        "accounts?",
        "holds?account=h%3Aada&",
    ] {
        assert_eq!(
            shop.reply(&format!("{path}min_seq={last}")).status,
            200,
            "{path}"
        );
        let late = shop.reply(&format!("{path}min_seq={}", last + 1_000_000));
        let said = json(&late, 400)["detail"].to_string();
        assert!(said.contains("has no entry"), "{path}: {said}");
        let said = json(&shop.reply(&format!("{path}colour=1")), 400)["detail"].to_string();
        assert!(said.contains("min_seq"), "{path}: {said}");
    }
    // What was captured of a hold is told while it is open and after its end.
    let state = || {
        let doc = shop.get(&format!("hold/{id}"));
        ["state", "remaining_minor", "captured_minor"].map(|name| doc[name].clone())
    };
    assert_eq!(state(), ["open", "25", "0"].map(Value::from));
    let capture = json!({"to": "h:ada", "amount_minor": "10"});
    shop.post("c1", &format!("hold/{id}/capture"), &capture);
    assert_eq!(state(), ["open", "15", "10"].map(Value::from));
    shop.post("c2", &format!("hold/{id}/release"), &json!({}));
    assert_eq!(state(), ["ended", "0", "10"].map(Value::from));
}

/// The maker, a reader of the debited account in its tenant, the payee, and the payee's reader in another tenant.
fn private([shop, books, bob, outsider]: &[&Caller<'_>; 4], last: u64) {
    let texts = |caller: &Caller<'_>, account: &str, seq: u64| {
        let entries = caller.history(account, "");
        let entry = entries.into_iter().find(|e| e["seq"] == seq).unwrap();
        ["reference", "memo", "metadata", "nonce", "effective_at"]
            .map(|name| !entry[name].is_null())
    };
    for (caller, account) in [(shop, "h%3Aada"), (shop, "h%3Abob"), (books, "h%3Aada")] {
        assert_eq!(texts(caller, account, last), [true; 5]);
    }
    for payee in [bob, outsider] {
        assert_eq!(texts(payee, "h%3Abob", last), [false; 5]);
        let first = texts(payee, "h%3Abob", last - 2);
        assert_eq!(first, [true, false, false, false, false], "it is shared");
        // What is not shown cannot be found by guessing either.
        let guess = |query: &str| seqs(&payee.history("h%3Abob", query));
        assert_eq!(guess("reference=order%201"), [last - 2]);
        assert_eq!(guess("reference=order%202"), [0; 0]);
        assert_eq!(guess("metadata=part%3D1"), [0; 0]);
        assert_eq!(payee.reply("account/h%3Aada/history").status, 403);
        assert_eq!(payee.reply("account/h%3Aada/statement?asset=eur&from=2026-01-01T00:00:00Z&until=2027-01-01T00:00:00Z").status, 403);
        assert_eq!(payee.reply("holds?account=h%3Aada").status, 403);
        assert_eq!(
            payee.reply("balance?account=h%3Aada&asset=eur&at=1").status,
            403
        );
        let accounts = payee.get("accounts");
        let names: Vec<&Value> = accounts["accounts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|a| &a["account"])
            .collect();
        assert_eq!(names, ["h:bob"]);
    }
    let by_reference = |caller: &Caller<'_>, n: u64| {
        let found = caller.get(&format!("tx?reference=order%20{n}"));
        seqs(found["entries"].as_array().unwrap())
    };
    assert_eq!(
        (by_reference(books, 1), by_reference(books, 2)),
        (vec![last - 2], vec![last - 1])
    );
    assert_eq!(
        (by_reference(bob, 1), by_reference(bob, 2)),
        (vec![last - 2], vec![])
    );
    assert_eq!(
        by_reference(outsider, 1),
        [0; 0],
        "the maker is of another tenant"
    );
}

fn past(shop: &Caller<'_>, bob: &Caller<'_>, last: u64) {
    let at = |caller: &Caller<'_>, account: &str, at: &str| {
        let balance = caller.get(&format!("balance?account={account}&asset=eur&at={at}"));
        assert!(balance["nonce"].is_null());
        balance["amount_minor"].as_str().unwrap().to_owned()
    };
    assert_eq!(at(shop, "h%3Aada", &(last - 1).to_string()), "970");
    assert_eq!(at(bob, "h%3Abob", &(last - 3).to_string()), "0");
    assert_eq!(at(bob, "h%3Abob", "2099-01-01T00:00:00Z"), "60");
    assert_eq!(at(bob, "h%3Abob", "2020-01-01T00:00:00Z"), "0");
    let reply = shop.reply(&format!(
        "balance?account=h%3Aada&asset=eur&at={}",
        last + 1_000_000
    ));
    assert!(json(&reply, 400)["detail"].to_string().contains("no entry"));
    let now = shop.get(&format!("balance?account=h%3Aada&asset=eur&min_seq={last}"));
    assert_eq!(now["amount_minor"], "940");
    assert!(now["as_of_seq"].as_u64().unwrap() >= last);
    let hold = json!({"from": "h:ada", "asset": "eur", "amount_minor": "40", "expires_at": "2099-01-01T00:00:00Z"});
    let hold = shop.post("hold", "hold", &hold);
    let open = shop.get(&format!(
        "holds?account=h%3Aada&state=open&min_seq={}",
        seq(&hold)
    ));
    assert_eq!(open["holds"][0]["hold"], hold["receipt"]["txid"]);
    let then = shop.get(&format!(
        "balance?account=h%3Aada&asset=eur&at={}",
        seq(&hold)
    ));
    assert_eq!(
        (&then["amount_minor"], &then["available_minor"]),
        (&json!("940"), &json!("900"))
    );
}

fn statements(shop: &Caller<'_>, bob: &Caller<'_>, last: u64) {
    let statement = |caller: &Caller<'_>, account: &str, query: &str| {
        caller.reply(&format!("account/{account}/statement?asset=eur&{query}"))
    };
    let all = "from=2020-01-01T00:00:00Z&until=2099-01-01T00:00:00Z";
    let doc = json(&statement(shop, "h%3Aada", all), 200);
    let sums =
        ["opening", "credits", "debits", "closing"].map(|sum| doc[format!("{sum}_minor")].clone());
    assert_eq!(sums, ["0", "1000", "60", "940"].map(Value::from));
    assert_eq!(
        seqs(doc["entries"].as_array().unwrap()),
        [last - 3, last - 2, last - 1, last]
    );
    // By effective day the payer made the payments in January, before the deposit that covered them. The payee, which
    // may not see that day, got them when they came.
    let january = "from=2026-01-01T00:00:00Z&until=2026-02-01T00:00:00Z";
    let by_day = format!("{january}&by=effective");
    let doc = json(&statement(shop, "h%3Aada", &by_day), 200);
    assert_eq!(
        (
            &doc["closing_minor"],
            doc["entries"].as_array().unwrap().len()
        ),
        (&json!("-60"), 3)
    );
    for query in [&by_day, january] {
        let doc = json(&statement(bob, "h%3Abob", query), 200);
        assert_eq!(
            (&doc["closing_minor"], &doc["entries"]),
            (&json!("0"), &json!([])),
            "{query}"
        );
    }
    let all_days = format!("{all}&by=effective");
    let doc = json(&statement(bob, "h%3Abob", &all_days), 200);
    assert_eq!(
        (&doc["opening_minor"], &doc["closing_minor"]),
        (&json!("0"), &json!("60"))
    );
    // As CSV, in pages that name the next one.
    let reply = statement(shop, "h%3Aada", &format!("{all}&format=csv&limit=3"));
    assert_eq!(
        reply.header("content-type"),
        Some("text/csv; charset=utf-8; header=present")
    );
    let link = reply.header("link").unwrap();
    let next = link
        .strip_prefix("</v1/")
        .unwrap()
        .strip_suffix(">; rel=\"next\"")
        .unwrap();
    let text = |reply: &Reply| String::from_utf8(reply.body.clone()).unwrap();
    let rest = shop.reply(next);
    assert!(rest.header("link").is_none());
    let (first, rest) = (text(&reply), text(&rest));
    assert_eq!(
        (first.lines().count(), rest.lines().count()),
        (5, 3),
        "{first}{rest}"
    );
    assert!(
        first.lines().nth(1).unwrap().contains(",opening,,,,0,,"),
        "{first}"
    );
    assert!(
        rest.lines().last().unwrap().contains(",closing,,,,940,,"),
        "{rest}"
    );
    assert!(
        rest.contains("-30,940,order 3,'=secret()"),
        "formulas are no cells: {rest}"
    );
    for (bad, hint) in [
        ("from=2026-01-01T00:00:00Z", "until is missing"),
        (
            "from=2026-02-01T00:00:00Z&until=2026-01-01T00:00:00Z",
            "until is after from",
        ),
        (
            "from=2026-01-01T00:00:01Z&until=2026-02-01T00:00:00Z&by=effective",
            "whole UTC days",
        ),
        (&format!("{all}&format=xml"), "json or csv"),
    ] {
        let said = json(&statement(shop, "h%3Aada", bad), 400)["detail"].to_string();
        assert!(said.contains(hint), "{bad}: {said}");
    }
}
