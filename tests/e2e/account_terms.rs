//! What an operator sets for accounts and assets: credit, maximum, freezes, closing, classes, registration, and the trial
//! balance over them; through HTTP and through `ron wallet`.

use std::fs;
use std::sync::Arc;

use ron_http::{Method, Reply};
use ron_tests::{Fleet, caught_up, issuer, json, ok, ron_on};
use serde_json::{Value, json};

struct Wallet<'a> {
    fleet: &'a Fleet,
    token: String,
}

impl<'a> Wallet<'a> {
    fn operator(fleet: &'a Fleet) -> Self {
        let token = fleet.token("svc-wallet", None);
        Self { fleet, token }
    }

    fn url(&self, path: &str) -> String {
        format!("{}/v1/{path}", self.fleet.api("svc-wallet"))
    }

    fn send(&self, method: Method, key: &str, path: &str, body: &Value) -> Reply {
        let (token, body) = (Some(self.token.as_str()), body.to_string());
        let key = [("Idempotency-Key", key)];
        let url = self.url(path);
        self.fleet.send(method, &url, token, Some(&body), &key)
    }

    fn done(&self, method: Method, key: &str, path: &str, body: &Value) -> u64 {
        let done = json(&self.send(method, key, path, body), 200);
        done["receipt"]["seq"].as_u64().unwrap()
    }

    fn put(&self, key: &str, path: &str, body: &Value) -> u64 {
        self.done(Method::PUT, key, path, body)
    }

    fn post(&self, key: &str, path: &str, body: &Value) -> u64 {
        self.done(Method::POST, key, path, body)
    }

    /// Status and code of a request that is refused.
    fn refused(&self, method: Method, key: &str, path: &str, body: &Value) -> (u16, String) {
        let reply = self.send(method, key, path, body);
        let problem: Value = serde_json::from_slice(&reply.body).unwrap();
        (reply.status, problem["code"].as_str().unwrap().to_owned())
    }

    fn get(&self, path: &str) -> Value {
        let token = Some(self.token.as_str());
        json(&caught_up(|| self.fleet.get(&self.url(path), token)), 200)
    }
}

fn money(from: &str, to: &str, amount: u64) -> Value {
    json!({"from": from, "to": to, "asset": "EUR", "amount_minor": amount.to_string()})
}

fn is((status, code): (u16, String), wanted: (u16, &str)) {
    assert_eq!((status, code.as_str()), wanted);
}

#[test]
fn an_account_is_overdrawn_to_its_limit_and_every_read_says_so() {
    let mut fleet = Fleet::start();
    let w = Wallet::operator(&fleet);
    w.post(
        "i",
        "issue",
        &json!({"to": "acct:bank", "asset": "EUR", "amount_minor": "100"}),
    );
    let limits = |credit: &str| json!({"limits": {"asset": "EUR", "credit_limit_minor": credit}});
    let set = w.put("l1", "account/acct%3Aada", &limits("50"));
    assert_eq!(
        w.put("l1", "account/acct%3Aada", &limits("50")),
        set,
        "sent again"
    );
    let spent = w.post("t1", "transfer", &money("acct:ada", "acct:bob", 30));
    let known = format!("min_seq={spent}");

    let balance = w.get(&format!("balance?account=acct:ada&asset=EUR&{known}"));
    let of = |doc: &Value, names: &[&str]| -> Vec<String> {
        let text = |name: &&str| doc[*name].as_str().unwrap().to_owned();
        names.iter().map(text).collect()
    };
    let names = ["amount_minor", "overdrawn_minor", "available_minor"];
    assert_eq!(of(&balance, &names), ["0", "30", "20"]);
    let past = w.get(&format!("balance?account=acct:ada&asset=EUR&at={spent}"));
    assert_eq!(of(&past, &names), ["0", "30", "0"]);
    let doc = w.get("account/acct%3Aada");
    let names = ["credits_minor", "debits_minor", "credit_limit_minor"];
    assert_eq!(of(&doc["balances"][0], &names), ["0", "30", "50"]);
    let history = w.get(&format!("account/acct%3Aada/history?{known}"));
    assert_eq!(history["entries"][0]["balance_minor"], "-30");
    let range = "asset=EUR&from=2020-01-01T00:00:00Z&until=2100-01-01T00:00:00Z";
    let statement = w.get(&format!("account/acct%3Aada/statement?{range}&{known}"));
    assert_eq!(
        of(&statement, &["opening_minor", "closing_minor"]),
        ["0", "-30"]
    );
    let listed = w.get(&format!("accounts?prefix=acct:ada&{known}"));
    assert_eq!(
        listed["accounts"][0]["balances"][0]["overdrawn_minor"],
        "30"
    );

    let too_much = w.refused(
        Method::POST,
        "t2",
        "transfer",
        &money("acct:ada", "acct:bob", 21),
    );
    is(too_much, (409, "insufficient_funds"));
    let lower = w.refused(Method::PUT, "l2", "account/acct%3Aada", &limits("29"));
    is(lower, (409, "credit_in_use"));
    let all = json!({"from": "acct:ada", "to": "acct:bob", "asset": "EUR", "amount_minor": "max"});
    w.post("t3", "transfer", &all);
    let shown = ok(&fleet.ron(&["wallet", "account", "acct:ada"]));
    assert!(shown.contains("EUR        -50"), "{shown}");
    let repaid = w.post("t4", "transfer", &money("acct:bank", "acct:ada", 60));
    let balance = w.get(&format!(
        "balance?account=acct:ada&asset=EUR&min_seq={repaid}"
    ));
    assert_eq!(
        of(&balance, &["amount_minor", "overdrawn_minor"]),
        ["10", "0"]
    );

    // What was set is in the log alone; a start from it finds the same.
    let before = w.get("account/acct%3Aada");
    assert_eq!(fleet.stop(), Some(0));
    ok(&fleet.ron(&["ledger", "verify"]));
    fs::remove_dir_all(fleet.dir().join("ron-ledger/data/derived")).unwrap();
    let fleet = Fleet::start_in(fleet.keep_dir());
    let again = Wallet::operator(&fleet).get("account/acct%3Aada");
    for member in ["balances", "closed", "frozen", "seq"] {
        assert_eq!(before[member], again[member], "{member}");
    }
}

#[test]
fn an_account_can_require_nonces() {
    let mut fleet = Fleet::start();
    let w = Wallet::operator(&fleet);
    let issue = json!({"to": "acct:ada", "asset": "EUR", "amount_minor": "100"});
    w.post("i", "issue", &issue);
    w.post("free", "transfer", &money("acct:ada", "acct:bob", 1));
    let set = |key: &str, required: bool| {
        w.put(
            key,
            "account/acct%3Aada",
            &json!({"require_nonce": required}),
        );
        assert_eq!(w.get("account/acct%3Aada")["require_nonce"], required);
    };
    set("on", true);
    let numbered = |n: u64| {
        let mut body = money("acct:ada", "acct:bob", 1);
        body["nonce"] = n.into();
        body
    };
    let without = money("acct:ada", "acct:bob", 1);
    is(
        w.refused(Method::POST, "t1", "transfer", &without),
        (409, "nonce_conflict"),
    );
    let burn = json!({"from": "acct:ada", "asset": "EUR", "amount_minor": "1"});
    is(
        w.refused(Method::POST, "b1", "burn", &burn),
        (409, "nonce_conflict"),
    );
    is(
        w.refused(Method::POST, "t1", "transfer", &numbered(2)),
        (409, "nonce_conflict"),
    );
    w.post("t1", "transfer", &numbered(1));
    let shown = ok(&fleet.ron(&["wallet", "account", "acct:ada"]));
    assert!(shown.contains("nonce: 1, required"), "{shown}");
    // Other terms leave it as it is, and so does a start from the log alone.
    w.put("class", "account/acct%3Aada", &json!({"class": "users"}));
    assert_eq!(fleet.stop(), Some(0));
    ok(&fleet.ron(&["ledger", "verify"]));
    fs::remove_dir_all(fleet.dir().join("ron-ledger/data/derived")).unwrap();
    let fleet = Fleet::start_in(fleet.keep_dir());
    let w = Wallet::operator(&fleet);
    is(
        w.refused(Method::POST, "t2", "transfer", &without),
        (409, "nonce_conflict"),
    );
    ok(&fleet.ron(&[
        "wallet",
        "set-account",
        "acct:ada",
        "--require-nonce",
        "false",
    ]));
    w.post("t2", "transfer", &without);
}

#[test]
fn an_account_is_frozen_on_either_side_capped_closed_and_opened() {
    let fleet = Fleet::start();
    let w = Wallet::operator(&fleet);
    w.post(
        "i",
        "issue",
        &json!({"to": "acct:ada", "asset": "EUR", "amount_minor": "100"}),
    );
    let pay = |key: &str, amount| {
        w.refused(
            Method::POST,
            key,
            "transfer",
            &money("acct:ada", "acct:bob", amount),
        )
    };
    w.post(
        "f1",
        "account/acct%3Abob/freeze",
        &json!({"sides": "credits", "memo": "case 9"}),
    );
    is(pay("p1", 5), (403, "account_frozen"));
    assert_eq!(w.get("account/acct%3Abob")["frozen"], "credits");
    w.post("f2", "account/acct%3Abob/freeze", &json!({}));
    assert_eq!(w.get("account/acct%3Abob")["frozen"], "both");
    w.post("f3", "account/acct%3Abob/unfreeze", &json!({}));
    let none = w.refused(
        Method::POST,
        "f4",
        "account/acct%3Abob/freeze",
        &json!({"sides": "none"}),
    );
    is(none, (400, "bad_request"));

    let most = json!({"class": "users", "limits": {"asset": "EUR", "max_balance_minor": "10"}});
    w.put("m1", "account/acct%3Abob", &most);
    is(pay("p2", 11), (403, "max_balance"));
    w.post("p3", "transfer", &money("acct:ada", "acct:bob", 10));
    let doc = w.get("account/acct%3Abob");
    assert_eq!(
        (&doc["class"], &doc["frozen"]),
        (&json!("users"), &json!("none"))
    );

    let close = json!({"closed": true});
    let full = w.refused(Method::PUT, "c1", "account/acct%3Abob", &close);
    is(full, (409, "account_not_empty"));
    w.post("p4", "transfer", &money("acct:bob", "acct:ada", 10));
    w.put("c2", "account/acct%3Abob", &close);
    is(pay("p5", 1), (403, "account_closed"));
    let hold = json!({"from": "acct:bob", "asset": "EUR", "amount_minor": "1", "expires_at": "2099-01-01T00:00:00Z"});
    is(
        w.refused(Method::POST, "h1", "hold", &hold),
        (403, "account_closed"),
    );
    ok(&fleet.ron(&["wallet", "set-account", "acct:bob", "--open"]));
    w.post("p6", "transfer", &money("acct:ada", "acct:bob", 1));

    // An account that never moved money is listed with what was set for it.
    let limits = json!({"asset": "EUR", "credit_limit_minor": "7"});
    let opened = w.put(
        "n1",
        "account/acct%3Afresh",
        &json!({"class": "users", "limits": limits}),
    );
    let listed = w.get(&format!("accounts?prefix=acct:f&min_seq={opened}"));
    let fresh = &listed["accounts"][0];
    assert_eq!(
        (&fresh["account"], &fresh["class"]),
        (&json!("acct:fresh"), &json!("users"))
    );
    let names = [
        "amount_minor",
        "held_minor",
        "available_minor",
        "credit_limit_minor",
    ];
    let amounts = names.map(|name| fresh["balances"][0][name].clone());
    assert_eq!(amounts, ["0", "0", "7", "7"].map(Value::from));
    let shown = ok(&fleet.ron(&["wallet", "accounts", "--prefix", "acct:f", "--csv"]));
    assert!(
        shown.contains("\nacct:fresh,EUR,0,7,,7,,users,\n"),
        "{shown}"
    );

    let nothing = w.refused(
        Method::PUT,
        "c3",
        "account/acct%3Abob",
        &json!({"memo": "x"}),
    );
    is(nothing, (400, "bad_request"));
    let escrow = format!("account/escrow%3A{}", "0".repeat(64));
    let reserved = w.refused(Method::PUT, "c4", &escrow, &close);
    is(reserved, (403, "forbidden"));
}

#[test]
fn a_strict_ledger_issues_registered_assets_and_the_trial_balance_sums_them_by_class() {
    let dir = tempfile::tempdir().unwrap();
    ok(&ron_on(dir.path(), &["init"]));
    let path = dir.path().join("ron-ledger/config.toml");
    let config = fs::read_to_string(&path).unwrap();
    assert!(!config.contains("[assets]"), "{config}");
    fs::write(&path, format!("{config}\n[assets]\nstrict = true\n")).unwrap();
    let fleet = Fleet::start_in(Arc::new(dir));
    fleet.add_wallet_rules([
        json!({"tenant": "t", "principal": "shop", "accounts": ["acct:shop"], "assets": ["EUR"], "actions": ["read", "admin"]}),
        json!({"tenant": "t", "principal": "bank", "accounts": ["acct:shop"], "assets": ["EUR"],
            "actions": ["read", "admin", "issue"], "per_op": "50"}),
    ]);
    let w = Wallet::operator(&fleet);
    let issue = json!({"to": "acct:ada", "asset": "EUR", "amount_minor": "100"});
    is(
        w.refused(Method::POST, "i1", "issue", &issue),
        (403, "asset_unregistered"),
    );
    w.put("a1", "assets/EUR", &json!({"scale": 2, "title": "Euro"}));
    w.post("i2", "issue", &issue);
    let scale = w.refused(Method::PUT, "a2", "assets/EUR", &json!({"scale": 3}));
    is(scale, (409, "asset_scale"));
    let wrong = w.refused(Method::PUT, "a3", "assets/EUR", &json!({"scale": 39}));
    is(wrong, (400, "bad_request"));
    w.put("a4", "assets/EUR", &json!({"scale": 2, "title": "euro"}));
    let doc = w.get("assets/EUR");
    assert_eq!((&doc["scale"], &doc["title"]), (&json!(2), &json!("euro")));

    // Registration and sums are for administrators of all accounts; scale and title for all who read in the asset.
    let claims = json!({"tenant": "t", "sub": "shop", "scope": "wallet:read wallet:admin"});
    let token = issuer::minted(&fleet, "svc-wallet", &claims);
    let shop = Wallet {
        fleet: &fleet,
        token,
    };
    assert_eq!(shop.get("assets/EUR")["title"], "euro");
    // The list has the assets that a rule names.
    w.put("a6", "assets/gold", &json!({"scale": 3}));
    let eur = json!({"asset": "EUR", "scale": 2, "title": "euro"});
    assert_eq!(shop.get("assets")["assets"], json!([eur]));
    let gold = json!({"asset": "gold", "scale": 3});
    assert_eq!(w.get("assets")["assets"], json!([eur, gold]));
    let shown = ok(&fleet.ron(&["wallet", "assets", "--csv"]));
    assert_eq!(shown, "asset,scale,title\nEUR,2,euro\ngold,3,\n");
    let taken = shop.refused(Method::PUT, "a5", "assets/EUR", &json!({"scale": 2}));
    is(taken, (403, "forbidden"));
    // Credit is money that nobody issued: its limit needs the rights of an issue of as much.
    let limits = |credit: &str| json!({"limits": {"asset": "EUR", "credit_limit_minor": credit, "max_balance_minor": "90"}});
    let bank = |scope: &str| {
        let claims = json!({"tenant": "t", "sub": "bank", "scope": scope});
        let token = issuer::minted(&fleet, "svc-wallet", &claims);
        Wallet {
            fleet: &fleet,
            token,
        }
    };
    let (all, few) = (bank("wallet:admin wallet:issue"), bank("wallet:admin"));
    shop.put("l1", "account/acct%3Ashop", &limits("0"));
    for (wallet, key, credit, code) in [
        (&shop, "l2", "1", "forbidden"),
        (&few, "l3", "1", "forbidden"),
        (&all, "l4", "51", "limits_exceeded"),
    ] {
        let refused = wallet.refused(Method::PUT, key, "account/acct%3Ashop", &limits(credit));
        is(refused, (403, code));
    }
    all.put("l5", "account/acct%3Ashop", &limits("50"));
    for path in ["assets/EUR/trial-balance", "assets/USD"] {
        let reply = fleet.get(&shop.url(path), Some(&shop.token));
        assert_eq!(reply.status, 403, "{path}");
    }

    w.put("s1", "account/acct%3Ashop", &json!({"class": "shops"}));
    let then = w.post("p1", "transfer", &money("acct:ada", "acct:shop", 30));
    w.post("p2", "transfer", &money("acct:shop", "acct:ada", 10));
    let burnt = w.post(
        "b1",
        "burn",
        &json!({"from": "acct:shop", "asset": "EUR", "amount_minor": "5"}),
    );
    let sums = |path: &str| {
        let doc = w.get(path);
        let classes = doc["classes"].as_array().unwrap().iter();
        let row = |c: &Value| {
            let texts = ["credits_minor", "debits_minor", "balance_minor"]
                .map(|n| c[n].as_str().unwrap().to_owned());
            format!(
                "{} {} {}",
                c["class"].as_str().unwrap_or("-"),
                c["accounts"],
                texts.join(" ")
            )
        };
        let rows: Vec<String> = classes.map(row).collect();
        let supply = ["supply_minor", "issued_minor", "burned_minor"]
            .map(|n| doc[n].as_str().unwrap().to_owned());
        (rows, supply.join(" "))
    };
    let now = (
        vec!["- 1 110 30 80".to_owned(), "shops 1 30 15 15".to_owned()],
        "95 100 5".to_owned(),
    );
    assert_eq!(sums("assets/EUR/trial-balance"), now);
    assert_eq!(
        sums(&format!(
            "assets/EUR/trial-balance?at={burnt}&min_seq={burnt}"
        )),
        now
    );
    let past = (
        vec!["- 1 100 30 70".to_owned(), "shops 1 30 0 30".to_owned()],
        "100 100 0".to_owned(),
    );
    assert_eq!(
        sums(&format!(
            "assets/EUR/trial-balance?at={then}&min_seq={burnt}"
        )),
        past
    );
    let table = ok(&fleet.ron(&["wallet", "trial-balance", "EUR"]));
    let mut lines = table.lines().rev();
    assert_eq!(lines.next(), Some("issued: 100, burned: 5"), "{table}");
    let all: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(all, ["all", "2", "140", "45", "95"], "{table}");
}
