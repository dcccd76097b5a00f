//! The books of another system come into a ledger: once, however often the import is repeated, and with the days on which
//! things happened there.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;

use ron_tests::{Fleet, caught_up, json, ok, ron_on};

const BOOKS: &str = "\
id,op,from,to,account,asset,amount_minor,effective_at,reference,memo,class,credit_limit_minor,max_balance_minor,scale,title
eur,asset,,,,EUR,,,,,,,,2,Euro
a1,account,,,acct:ada,EUR,,,,,customers,500,,,
o1,issue,,acct:ada,,EUR,1000,2025-01-01T00:00:00Z,,opening balance,,,,,
o2,issue,,acct:bob,,EUR,200,2025-01-01T00:00:00Z,,opening balance,,,,,
t1,transfer,acct:ada,acct:bob,,EUR,1300,2025-03-04T10:00:00Z,order 7,\"two, books\",,,,,
";

/// What a command says that fails.
fn refused(out: &Output) -> String {
    assert!(
        !out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stdout)
    );
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Columns that few books have, in another file: metadata, holds, and accounts that were frozen or closed there.
fn metadata_holds_and_closed_accounts(dir: &Path) {
    let file = dir.join("rest.csv");
    let heading = "id,op,from,to,account,asset,amount_minor,effective_at,reference,metadata.order,metadata.channel,expires_at,closed,frozen,max_balance_minor\n";
    let import = |lines: &str| {
        fs::write(&file, format!("{heading}{lines}")).unwrap();
        let file = file.to_str().unwrap();
        ron_on(dir, &["ledger", "import", file, "--principal", "third"])
    };
    for (line, why) in [
        (
            "a,account,,,acct:eve,,,,,,,,,,7\n",
            "line 2: its limits need asset",
        ),
        (
            "a,account,,,acct:eve,,,,,,,,maybe,,\n",
            "line 2: invalid type",
        ),
        (
            "a,account,,,acct:eve,,,,,,,,,all,\n",
            "line 2: unknown variant",
        ),
        (
            "h,hold,acct:eve,,,EUR,30,,,,,,,,\n",
            "line 2: it needs expires_at",
        ),
        (
            "h,hold,acct:eve,,,EUR,30,,,,,2020-01-01T00:00:00Z,,,\n",
            "line 2: the ledger would refuse it",
        ),
    ] {
        let said = refused(&import(line));
        assert!(said.contains(why), "{line}: {said}");
    }
    let lines = "o1,issue,,acct:eve,,EUR,50,2025-05-01T00:00:00Z,order 8,8,web,,,,\n\
        h1,hold,acct:eve,,,EUR,30,,,8,,2199-01-01T00:00:00Z,,,\n\
        a1,account,,,acct:eve,,,,,,,,,credits,\n\
        a2,account,,,acct:old,,,,,,,,true,,\n";
    assert_eq!(ok(&import(lines)), "imported: 4 entries; 0 were there\n");
    let other = refused(&import(&lines.replace(",web,", ",shop,")));
    assert!(other.contains("line 2: its id is that of entry"), "{other}");
    assert_eq!(ok(&import(lines)), "imported: 0 entries; 4 were there\n");
    let out = dir.join("entries.ndjson");
    let export = ["ledger", "export", "--out", out.to_str().unwrap()];
    ok(&ron_on(dir, &export));
    let entries = fs::read_to_string(out).unwrap();
    assert!(
        entries.contains(r#"{"channel":"web","order":"8"}"#),
        "{entries}"
    );
}

#[test]
fn books_are_imported_once_and_their_days_are_kept() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    ok(&ron_on(dir.path(), &["init"]));
    let file = dir.path().join("books.csv");
    let import = |more: &[&str]| {
        let args = [&["ledger", "import", file.to_str().unwrap()], more].concat();
        ron_on(dir.path(), &args)
    };
    // The last line is wrong: nothing of the file is imported.
    fs::write(
        &file,
        format!("{BOOKS}t2,transfer,acct:bob,,,EUR,1,,,,,,,,\n"),
    )
    .unwrap();
    let said = refused(&import(&[]));
    assert!(said.contains("line 7: it needs to"), "{said}");
    fs::write(&file, BOOKS).unwrap();
    assert_eq!(ok(&import(&["--check"])), "5 lines can be read\n");
    assert_eq!(ok(&import(&[])), "imported: 5 entries; 0 were there\n");

    // A line that the ledger would refuse uses no id; what stands before it in the file is imported only with it.
    let more = format!(
        "{BOOKS}t2,transfer,acct:bob,acct:shop,,EUR,100,,,,,,,,\nt3,burn,acct:ada,,,EUR,201,,,,,,,,\n"
    );
    fs::write(&file, &more).unwrap();
    let said = refused(&import(&[]));
    assert!(
        said.contains("line 8: the ledger would refuse it: the available balance"),
        "{said}"
    );
    fs::write(&file, more.replace("EUR,201", "EUR,200")).unwrap();
    assert_eq!(ok(&import(&[])), "imported: 2 entries; 5 were there\n");
    fs::write(&file, BOOKS.replace(",1300,", ",1301,")).unwrap();
    let said = refused(&import(&[]));
    assert!(
        said.contains("line 6: its id is that of entry 5, which says something else"),
        "{said}"
    );

    // Lines of JSON, for another name.
    let lines = dir.path().join("more.jsonl");
    fs::write(
        &lines,
        "{\"id\":\"t1\",\"op\":\"issue\",\"to\":\"acct:bob\",\"asset\":\"EUR\",\"amount_minor\":\"5\",\"metadata\":{\"order\":\"9\"}}\n\n",
    )
    .unwrap();
    let args = [
        "ledger",
        "import",
        lines.to_str().unwrap(),
        "--principal",
        "second",
    ];
    assert_eq!(
        ok(&ron_on(dir.path(), &args)),
        "imported: 1 entries; 0 were there\n"
    );
    metadata_holds_and_closed_accounts(dir.path());
    ok(&ron_on(dir.path(), &["ledger", "verify"]));

    let fleet = Fleet::start_in(Arc::clone(&dir));
    let token = fleet.token("svc-wallet", None);
    let get = |path: &str| {
        let url = format!("{}/v1/{path}", fleet.api("svc-wallet"));
        json(&caught_up(|| fleet.get(&url, Some(&token))), 200)
    };
    let range =
        "asset=EUR&from=2025-03-01T00:00:00Z&until=2025-04-01T00:00:00Z&by=effective&min_seq=8";
    let march = get(&format!("account/acct%3Aada/statement?{range}"));
    assert_eq!(
        (&march["opening_minor"], &march["closing_minor"]),
        (&"1000".into(), &"-300".into())
    );
    assert_eq!(
        march["entries"][0]["effective_at"],
        "2025-03-04T10:00:00.000Z"
    );
    let ada = get("account/acct%3Aada");
    assert_eq!(
        (&ada["class"], &ada["balances"][0]["overdrawn_minor"]),
        (&"customers".into(), &"500".into())
    );
    // What is said of an entry is shown to readers of the account that it debits, or that it reserves money of.
    let entries = get("account/acct%3Aeve/history?asset=EUR&min_seq=12")["entries"].clone();
    assert_eq!(
        (&entries[0]["metadata"], &entries[1]["reference"]),
        (&serde_json::json!({"order": "8"}), &"order 8".into()),
        "{entries}"
    );
    let eve = get("account/acct%3Aeve");
    assert_eq!(
        (&eve["frozen"], &eve["balances"][0]["available_minor"]),
        (&"credits".into(), &"20".into())
    );
    assert_eq!(get("account/acct%3Aold")["closed"], true);
    let busy = refused(&fleet.ron(&["ledger", "import", lines.to_str().unwrap()]));
    assert!(busy.contains("in use") || busy.contains("lock"), "{busy}");
}
