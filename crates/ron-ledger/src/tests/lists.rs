//! Lists of accounts and assets: also those that never moved money.

use ron_proto::Amount;
use ron_proto::ledger::{
    AccountClass, AccountPage, AssetPage, ClassTotal, ListedAccount, Sides, TrialBalance,
};
use serde_json::{Value, json};

use super::service::{Rig, rig};

/// Commits an entry of tenant t; `more` is what its kind has beside its key.
fn commit(rig: &Rig, key: &str, more: &Value) {
    let mut entry = json!({"tenant": "t", "principal": "p", "key": key});
    let members = more.as_object().unwrap().clone();
    entry.as_object_mut().unwrap().extend(members);
    let body = json!({"entries": [entry]}).to_string();
    let (status, answer) = rig.send("wallet", "/v1/ledger/commit", Some(body));
    assert_eq!(status, 200, "{more}: {}", String::from_utf8_lossy(&answer));
}

#[test]
fn lists_have_accounts_without_money_and_all_assets() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    let limits = json!({"asset": "EUR", "credit_limit_minor": "0", "max_balance_minor": "90"});
    let entries = [
        json!({"kind": "issue", "to": "paid", "asset": "usd", "amount_minor": "100"}),
        json!({"kind": "hold", "from": "paid", "asset": "usd", "amount_minor": "30", "expires_at": "2090-01-01T00:00:00Z"}),
        json!({"kind": "account", "account": "limited", "terms": {"limits": limits}}),
        json!({"kind": "account", "account": "opened", "terms": {"closed": false, "class": "clearing"}}),
        json!({"kind": "freeze", "account": "frozen", "sides": "credits"}),
        json!({"kind": "asset", "asset": "gold", "terms": {"scale": 3}}),
        json!({"kind": "asset", "asset": "EUR", "terms": {"scale": 2, "title": "Euro"}}),
        // A refused attempt opens no account.
        json!({"kind": "transfer", "from": "nobody", "to": "paid", "asset": "usd", "amount_minor": "1"}),
    ];
    for (at, entry) in entries.iter().enumerate() {
        commit(&rig, &format!("k{at}"), entry);
    }
    let mut accounts: Vec<ListedAccount> = Vec::new();
    let mut after = String::new();
    loop {
        let page: AccountPage = rig.get(&format!("/v1/ledger/accounts?limit=2&min_seq=8{after}"));
        assert_eq!(page.seq, 8);
        accounts.extend(page.accounts);
        match page.next {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    let names: Vec<_> = accounts.iter().map(|a| a.account.as_str()).collect();
    assert_eq!(names, ["frozen", "limited", "opened", "paid"]);
    assert_eq!(
        (accounts[0].frozen, accounts[0].closed),
        (Sides::Credits, false)
    );
    let limited = &accounts[1].balances[0];
    assert_eq!(limited.asset.as_str(), "EUR");
    assert_eq!(
        (limited.amount_minor, limited.max_balance_minor),
        (Amount(0), Some(Amount(90)))
    );
    assert_eq!(
        accounts[2].class.as_ref().map(AccountClass::as_str),
        Some("clearing")
    );
    let paid = &accounts[3].balances[0];
    let sums = [paid.amount_minor, paid.held_minor, paid.available_minor];
    assert_eq!(sums, [Amount(100), Amount(30), Amount(70)]);

    let page: AssetPage = rig.get("/v1/ledger/assets?limit=2");
    let names = |page: &AssetPage| {
        let names = page.assets.iter().map(|a| a.asset.to_string());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&page), ["EUR", "gold"]);
    assert_eq!(
        page.assets[0].title.as_ref().map(ToString::to_string),
        Some("Euro".to_owned())
    );
    let next = page.next.expect("there are three");
    let page: AssetPage = rig.get(&format!("/v1/ledger/assets?after={next}"));
    assert_eq!((names(&page), page.next), (vec!["usd".to_owned()], None));
    assert_eq!(page.assets[0].scale, None, "used and not registered");
    let foreign = rig.send("of-t", "/v1/ledger/assets", None);
    assert_eq!(foreign.0, 404, "the names of assets are not for one tenant");
    let budget = format!("budgets/{}", "07".repeat(16));
    for path in [
        "assets",
        "assets/gold",
        "accounts/paid",
        &budget,
        "epochs/t/e1",
    ] {
        let read = |seq| rig.send("reader", &format!("/v1/ledger/{path}?min_seq={seq}"), None);
        assert_eq!(read(9).0, 400, "{path}: the ledger has no entry 9");
        assert_ne!(read(8).0, 400, "{path}");
    }
}

#[test]
fn a_past_trial_balance_has_the_classes_of_then() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    let class = |name: &str| json!({"kind": "account", "account": "a", "terms": {"class": name}});
    let refused = json!({"closed": true, "class": "closed"});
    let entries = [
        json!({"kind": "issue", "to": "a", "asset": "usd", "amount_minor": "100"}),
        class("clearing"),
        json!({"kind": "issue", "to": "b", "asset": "usd", "amount_minor": "5"}),
        class("revenue"),
        // Terms without a class leave it, and refused ones change nothing.
        json!({"kind": "account", "account": "a", "terms": {"frozen": "credits"}}),
        json!({"kind": "account", "account": "a", "terms": refused}),
        class(""),
        class("late"),
    ];
    for (at, entry) in entries.iter().enumerate() {
        commit(&rig, &format!("k{at}"), entry);
    }
    let path = "/v1/ledger/assets/usd/trial-balance";
    let labels = |at: usize| -> Vec<(Option<String>, u64, u128)> {
        let sums: TrialBalance = rig.get(&format!("{path}?at={at}&min_seq={}", entries.len()));
        let of = |sum: ClassTotal| {
            let class = sum.class.map(|class| class.to_string());
            (class, sum.accounts, sum.credits_minor.0)
        };
        sums.classes.into_iter().map(of).collect()
    };
    let named = |class: &str| vec![(None, 1, 5), (Some(class.to_owned()), 1, 100)];
    assert_eq!(labels(1), [(None, 1, 100)]);
    assert_eq!(labels(2), [(Some("clearing".to_owned()), 1, 100)]);
    assert_eq!(labels(3), named("clearing"));
    for at in 4..=6 {
        assert_eq!(labels(at), named("revenue"), "at {at}");
    }
    assert_eq!(labels(7), [(None, 2, 105)]);
    assert_eq!(labels(8), named("late"));
}
