//! `ron wallet` for people and for scripts: a hold that is sent again, a key that is printed when the outcome is not known,
//! lists that follow their pages, tables for spreadsheets, a capped token.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use ron_tests::processes::Rig;
use ron_tests::{json, ok, ron_on, until};
use serde_json::{Value, json};

use crate::wallet::Wallet;

/// What a command says that fails.
fn refused(out: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(!out.status.success(), "{}", text(&out.stdout));
    text(&out.stderr)
}

fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn run(w: &Wallet, line: &str) -> Output {
    let args: Vec<&str> = line.split(' ').collect();
    w.fleet.ron(&args)
}

/// A sequence that every entry so far is before.
fn last(w: &Wallet, account: &str) -> String {
    let doc = json(&w.get(&format!("balance?account={account}&asset=ron")), 200);
    doc["as_of_seq"].to_string()
}

#[test]
fn a_hold_is_sent_again_under_its_key_and_says_what_differs() {
    let w = Wallet::start();
    w.issue("i", "a", 100);
    let hold = "wallet hold a 20 --asset ron --key h1 --memo deposit";
    let first = read(&ok(&run(&w, &format!("{hold} --expires-in 1h --json"))));
    // Another moment gives another end, yet it is the same hold.
    for again in ["--expires-in 1h", "--expires-in 3600s"] {
        let second = read(&ok(&run(&w, &format!("{hold} {again} --json"))));
        assert_eq!(second["receipt"], first["receipt"]);
    }
    assert_eq!(w.balance("a"), ("100".into(), "80".into(), 0));
    let id = first["receipt"]["txid"].as_str().unwrap();
    let shown = read(&ok(&run(&w, &format!("wallet show {id} --json"))));
    let end = shown["expires_at"].as_str().unwrap();
    ok(&run(&w, &format!("{hold} --expires-at {end}")));
    let longer = refused(&run(&w, &format!("{hold} --expires-in 2h")));
    assert!(
        longer.contains(end) && longer.contains("another duration"),
        "{longer}"
    );
    let more = refused(&run(&w, &hold.replace("20", "21")));
    assert!(
        more.contains("another duration") && more.contains("h1"),
        "the usual 15m: {more}"
    );
    let more = hold.replace(" 20 ", " 21 ");
    let more = refused(&run(&w, &format!("{more} --expires-in 1h")));
    for part in [
        "the key h1 belongs to another request",
        "op hold",
        "amount 20",
        id,
    ] {
        assert!(more.contains(part), "{part}: {more}");
    }
    // A key of another kind of operation, and of a refused one.
    let other = refused(&run(&w, "wallet hold a 1 --asset ron --key i"));
    assert!(other.contains("op issue, to a"), "{other}");
    refused(&run(&w, "wallet hold a 900 --asset ron --key h2"));
    let other = refused(&run(&w, "wallet hold a 900 --asset ron --key h2"));
    assert!(
        other.contains("h2 belongs to another request of yours: refused:"),
        "{other}"
    );
    // A release says why, and the account's history shows its hold.
    ok(&run(
        &w,
        &format!("wallet release {id} --memo sold-out --meta case=9 --key r1"),
    ));
    let seq = last(&w, "a");
    let history = ok(&run(
        &w,
        &format!("wallet history a --min-seq {seq} --kind release"),
    ));
    for part in ["hold", id, "sold-out", "case=9"] {
        assert!(history.contains(part), "{part}: {history}");
    }
    assert_eq!(w.balance("a").1, "100");
}

#[test]
fn an_unknown_outcome_is_printed_with_its_key() {
    let rig = Rig::start();
    let ron = |line: &str| {
        let args: Vec<&str> = line.split(' ').collect();
        ron_on(rig.dir.path(), &args)
    };
    ok(&ron("wallet issue a 5 --asset ron"));
    rig.signal("ron-ledger", "-STOP");
    let open = refused(&ron("wallet issue a 7 --asset ron"));
    rig.signal("ron-ledger", "-CONT");
    let key = open.lines().find_map(|line| line.strip_prefix("key: "));
    let key = key.unwrap_or_else(|| panic!("{open}"));
    assert!(
        open.contains("the outcome is not known")
            && open.contains(&format!("`ron wallet op {key}`")),
        "{open}"
    );
    rig.wait_ready("svc-wallet");
    let again = ok(&ron(&format!("wallet issue a 7 --asset ron --key {key}")));
    assert!(again.contains(&format!("key        {key}")), "{again}");
    assert!(ok(&ron(&format!("wallet op {key}"))).contains("amount     7"));
    assert_eq!(rig.balance("a")["amount_minor"], "12", "once");
}

#[test]
fn lists_follow_their_pages_and_spreadsheets_get_no_formulas() {
    let w = Wallet::start();
    w.issue("i", "a", 10_000);
    let items = |item: &Value, n: usize| json!({"items": vec![item; n], "linked": true});
    let pay =
        json!({"op": "transfer", "from": "a", "to": "b", "asset": "ron", "amount_minor": "1"});
    for round in 0..2 {
        json(
            &w.post(&format!("p{round}"), "batch", &items(&pay, 900)),
            200,
        );
    }
    let reserve = json!({"op": "hold", "from": "a", "asset": "ron", "amount_minor": "1",
        "expires_at": "2200-01-01T00:00:00Z"});
    json(&w.post("h", "batch", &items(&reserve, 600)), 200);
    let said = json!({"from": "a", "to": "b", "asset": "ron", "amount_minor": "250", "memo": "@memo",
        "reference": "=1+1", "metadata": {"n": "-1"}});
    let paid = json(&w.post("f", "transfer", &said), 200)["receipt"].clone();
    let (seq, txid) = (paid["seq"].to_string(), paid["txid"].as_str().unwrap());
    let out = |line: &str| ok(&run(&w, &format!("{line} --min-seq {seq}")));

    // The issue is older than the entries that the service looks at for one page.
    let issues = out("wallet history a --kind issue --json");
    assert_eq!(
        read(&issues)["entries"][0]["amount_minor"],
        "10000",
        "{issues}"
    );
    let issues = out("wallet history a --kind issue");
    assert_eq!(issues.lines().count(), 2, "{issues}");
    let upwards = out("wallet history a --kind transfer --meta n=-1 --after 0 --json");
    assert_eq!(read(&upwards)["entries"][0]["txid"], txid, "{upwards}");
    let upwards = out("wallet history a --kind burn --after 0 --json");
    assert_eq!(read(&upwards)["entries"], json!([]));
    let some = out("wallet history a --kind transfer --limit 500");
    let older = some
        .lines()
        .last()
        .unwrap()
        .strip_prefix("older: --before ");
    assert_eq!(some.lines().count(), 502);
    let next = out(&format!(
        "wallet history a --before {} --limit 2 --csv",
        older.unwrap()
    ));
    assert_eq!(
        next.lines().count(),
        3,
        "the cursor is no line of it: {next}"
    );
    assert_eq!(out("wallet holds a").lines().count(), 601);
    assert_eq!(out("wallet holds a --csv").lines().count(), 601);

    // What can be done with an entry is in its row; a payer's texts are no formulas.
    let found = out("wallet find =1+1 --csv");
    let row = found.lines().nth(1).unwrap();
    assert!(
        row.contains(txid) && row.contains(",'=1+1,'@memo,\"{\"\"n\"\":\"\"-1\"\"}\","),
        "{found}"
    );
    let history = out("wallet history a --limit 1 --csv");
    assert!(
        history.contains(&format!(",transfer,done,{txid},a,b,ron,250,-250,")),
        "{history}"
    );
    let held = out("wallet history a --kind hold --limit 1 --csv");
    assert!(
        held.contains(",a,,ron,1,0,"),
        "a hold moves nothing: {held}"
    );
    assert!(out("wallet history b --limit 1 --csv").contains(",ron,250,250,2050,"));
    let range = "asset=ron&from=2020-01-01T00:00:00Z&until=2099-01-01T00:00:00Z";
    let theirs = w.get(&format!(
        "account/b/statement?format=csv&after={}&{range}",
        paid["seq"].as_u64().unwrap() - 1
    ));
    let theirs = String::from_utf8(theirs.body).unwrap();
    let ours = out(
        "wallet statement b --asset ron --from 2020-01-01T00:00:00Z --until 2099-01-01T00:00:00Z --csv",
    );
    let (ours, theirs): (Vec<&str>, Vec<&str>) = (ours.lines().collect(), theirs.lines().collect());
    assert_eq!(ours.len(), 1_804, "all pages");
    assert_eq!(
        (ours[0], &ours[ours.len() - 2..]),
        (theirs[0], &theirs[1..])
    );
    assert!(ours[1802].contains(",250,2050,'=1+1,"), "{}", ours[1802]);

    let balance = out("wallet balance b --asset ron --csv");
    assert!(
        balance.starts_with(
            "account,asset,amount_minor,available_minor,nonce,as_of_seq,as_of\nb,ron,2050,2050,0,"
        ),
        "{balance}"
    );
    let sums = out("wallet trial-balance ron");
    assert!(sums.contains("issued: 10000, burned: 0"), "{sums}");
    ok(&run(&w, &format!("wallet reverse {txid} 50 --key back")));
    // How much is reversed is known at once; by what, when the projection has it.
    until("the reversal is listed", || {
        let shown = ok(&run(&w, &format!("wallet tx {txid}")));
        assert!(shown.contains("reversed   50"), "{shown}");
        shown.contains("by         tx_")
    });
    let shown = ok(&run(&w, &format!("wallet tx {txid} --csv")));
    let (heads, row) = shown.split_once('\n').unwrap();
    assert!(heads.ends_with(",metadata,effective_at,reversed_minor"));
    assert!(
        row.contains(",f,,'=1+1,'@memo,") && row.ends_with(",,50\n"),
        "{shown}"
    );
    let listed = ok(&run(&w, "wallet events b --after 0 --once --csv"));
    let heads = listed
        .lines()
        .filter(|line| line.starts_with("seq,"))
        .count();
    assert_eq!((heads, listed.lines().count()), (1, 1_803));
}

#[test]
fn a_token_from_a_file_shows_and_keeps_its_budget() {
    let w = Wallet::start();
    w.issue("i", "a", 100);
    let file = w.fleet.dir().join("capped.token");
    let token = ok(&run(
        &w,
        "token --audience svc-wallet --caveat ceiling.total=20",
    ));
    std::fs::write(&file, token).unwrap();
    let shared = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&file, shared).unwrap();
    let with = |line: &str| run(&w, &format!("{line} --token {}", file.display()));
    let open = refused(&with("wallet budget"));
    assert!(open.contains("run: chmod 600"), "{open}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    ok(&with("wallet transfer a b 5 --asset ron"));
    let left = ok(&with("wallet budget --csv"));
    assert_eq!(left, "limit,of,left\ntotal,20,15\n");
    let over = refused(&with("wallet transfer a b 16 --asset ron"));
    assert!(over.contains("limits_exceeded"), "{over}");
    let own = ok(&run(&w, "wallet budget"));
    assert!(own.contains("no spending limit"), "{own}");
    assert_eq!(read(&ok(&run(&w, "wallet budget --json"))), json!({}));
    let both = refused(&run(&w, "wallet budget --json --csv"));
    assert!(both.contains("cannot be used with"), "{both}");
}
