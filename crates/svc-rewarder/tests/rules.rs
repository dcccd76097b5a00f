//! Every rule of a policy through the HTTP API, against amounts worked out by hand: caps, minimum,
//! residual, eligibility, and the quarantine of epochs that cannot be computed exactly.

mod support;

use std::fmt::Write as _;
use std::time::Duration;

use ron_client::ClientError;
use ron_http::Method;
use ron_proto::rewarder::{PayoutProof, RunManifest, RunState};
use serde_json::{Value, json};
use support::{Caller, by, end, policy, start};
use svc_rewarder::manifest::verify::check_proof;

const WAIT: Duration = Duration::from_secs(25);

/// Accounts with their expected amounts, and the expected residual.
type Expected<'a> = (&'a [(&'a str, u128)], u128);

/// Computes one epoch with its own policy and compares the whole payout table.
fn check(caller: &Caller, name: &str, edit: &Value, rows: &str, expected: Expected<'_>) {
    let mut edit = edit.clone();
    edit["id"] = name.into();
    let request = caller.inputs(&policy(&edit), rows);
    let epoch = name.parse().expect("an epoch");
    let run = caller.typed().compute(&epoch, &request, WAIT, by());
    let run = run.unwrap_or_else(|error| panic!("{name}: {error}"));
    let totals = run.totals.expect("sealed");
    assert_eq!(
        (run.state, totals.residual_minor.0),
        (RunState::Sealed, expected.1),
        "{name}"
    );
    assert_eq!(
        totals.payout_minor.0 + totals.residual_minor.0,
        1_000,
        "{name}: payouts and residual are the pool"
    );
    let page = caller.get(&format!("/rewarder/epochs/{name}/payouts"), 200);
    let paid: Vec<(&str, u128)> = page["payouts"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|payout| {
            let amount = payout["amount_minor"].as_str().expect("digits");
            let account = payout["account"].as_str().expect("a name");
            (account, amount.parse().expect("digits"))
        })
        .collect();
    assert_eq!(paid, expected.0, "{name}");
    let manifest = caller.call(
        Method::GET,
        &format!("/rewarder/epochs/{name}/manifest"),
        None,
    );
    let manifest: RunManifest = manifest.json().expect("a manifest");
    for (account, amount) in expected.0 {
        let path = format!(
            "/rewarder/epochs/{name}/proof/{}",
            account.replace(':', "%3A")
        );
        let proof: PayoutProof =
            serde_json::from_value(caller.get(&path, 200)).expect("a proof for every payee");
        assert_eq!(proof.payout.amount_minor.0, *amount, "{name}");
        assert_eq!(proof.manifest, manifest, "{name}");
        check_proof(&proof).expect("it holds");
    }
}

#[test]
fn every_rule_of_a_policy_shows_in_the_payouts() {
    let data = tempfile::tempdir().expect("a directory");
    let (running, caller) = start(&format!("data_dir = \"{}\"", data.path().display()));
    let rows = "a,m,600\nb,m,300\nc,m,90\nd,m,10\n";
    let check = |name, edit, rows, expected| check(&caller, name, &edit, rows, expected);

    // The excess above a cap flows to the accounts below it until all are at it; the rest is
    // residual. An owner other than the pool is paid the residual like any other payout.
    let apart = json!({"owner": "treasury:main"});
    let capped = json!({"caps": {"account_minor": "300"}});
    let flows: Expected<'_> = (&[("a", 300), ("b", 300), ("c", 300), ("d", 100)], 0);
    check("account-cap", capped, rows, flows);
    let capped = json!({"caps": {"account_minor": "200"}, "residual": apart});
    let full = [
        ("a", 200),
        ("b", 200),
        ("c", 200),
        ("d", 200),
        ("treasury:main", 200),
    ];
    check("account-cap-all", capped, rows, (&full, 200));

    // All accounts of category x together get 100; the others share the rest by weight.
    let metrics = json!({
        "m": {"weight": "1", "class": "metering"},
        "n": {"weight": "1", "class": "metering", "category": "x"}
    });
    let capped = json!({"metrics": metrics, "caps": {"category_minor": {"x": "100"}}});
    let rows_of_two = "a,m,600\nb,m,300\ne,n,5000\n";
    let shaped: Expected<'_> = (&[("a", 600), ("b", 300), ("e", 100)], 0);
    check("category-cap", capped, rows_of_two, shaped);

    // Shares below the minimum go back into the residual, which stays in the pool by default.
    let least = json!({"min_payout_minor": "91"});
    check("minimum", least, rows, (&[("a", 600), ("b", 300)], 100));
    let least = json!({"min_payout_minor": "90", "residual": apart});
    let paid = [("a", 600), ("b", 300), ("c", 90), ("treasury:main", 10)];
    check("minimum-apart", least, rows, (&paid, 10));

    // Remainders of one unit: 1000 by 1:1:1 gives the first account one more; the older rule set
    // leaves it.
    let thirds = "a,m,1\nb,m,1\nc,m,1\n";
    let largest: Expected<'_> = (&[("a", 334), ("b", 333), ("c", 333)], 0);
    check("hamilton", json!({}), thirds, largest);
    let floor: Expected<'_> = (&[("a", 333), ("b", 333), ("c", 333)], 1);
    check("floor", json!({"rule_set": "floor/1"}), thirds, floor);

    // Eligibility: not the excluded, only the prefixes, only with a minimum amount.
    let some = json!({"eligibility": {
        "exclude": ["op:c"], "prefixes": ["op:"], "minimum": {"m": "2"}
    }});
    let rows = "op:a,m,3\nop:b,m,2\nop:c,m,9\nop:d,m,1\nuser:e,m,50\n";
    let eligible: Expected<'_> = (&[("op:a", 600), ("op:b", 400)], 0);
    check("eligibility", some, rows, eligible);

    // A metric for analysis is counted and never pays.
    let metrics = json!({
        "m": {"weight": "1", "class": "metering"},
        "views": {"weight": "0", "class": "analytics_only"}
    });
    let rows = "a,m,1\nb,views,1000\n";
    check(
        "classes",
        json!({"metrics": metrics}),
        rows,
        (&[("a", 1_000)], 0),
    );
    end(running);
}

/// Eight capped categories of the heaviest weights over the largest amounts: their common
/// denominator exceeds every integer type in use.
fn too_wide() -> (Value, String) {
    let caps: serde_json::Map<_, _> = (0..8).map(|c| (format!("c{c}"), json!("1"))).collect();
    let rule = |c| json!({"weight": "18446744073709551615", "class": "metering", "category": format!("c{c}")});
    let metrics: serde_json::Map<_, _> = (0..8).map(|c| (format!("m{c}"), rule(c))).collect();
    let mut rows = String::new();
    for c in 0..8 {
        let _ = writeln!(rows, "a,m{c},{}", u128::MAX);
    }
    let edit = json!({"id": "wide", "metrics": metrics, "caps": {"category_minor": caps}});
    (edit, rows)
}

#[test]
fn a_run_that_cannot_be_exact_is_quarantined_and_other_inputs_may_follow() {
    let data = tempfile::tempdir().expect("a directory");
    let (running, caller) = start(&format!("data_dir = \"{}\"", data.path().display()));
    let (edit, rows) = too_wide();
    let request = caller.inputs(&policy(&edit), &rows);
    let epoch = "e1".parse().expect("an epoch");
    let refused = caller.typed().compute(&epoch, &request, WAIT, by());
    let refused = refused.expect_err("it cannot be computed exactly");
    assert!(matches!(refused, ClientError::Refused { status: 409, .. }));
    assert_eq!(refused.code(), Some("quarantined"));
    let run = caller.get("/rewarder/epochs/e1", 200);
    assert_eq!(run["state"], "quarantined");
    assert_eq!(run["reason"]["code"], "overflow");
    assert_eq!(run["totals"]["payout_minor"], "0");
    let manifest = caller.get("/rewarder/epochs/e1/manifest", 200);
    assert_eq!(manifest["status"], "quarantined");
    assert_eq!(
        manifest.get("payouts").unwrap_or(&Value::Null),
        &Value::Null
    );
    let payouts = caller.get("/rewarder/epochs/e1/payouts", 409);
    assert_eq!(payouts["code"], "quarantined");
    assert_eq!(
        caller.get("/rewarder/epochs/e1/proof/a", 404)["code"],
        "not_found"
    );
    let again = caller.typed().compute(&epoch, &request, WAIT, by());
    assert_eq!(
        again.expect_err("the same inputs again").code(),
        Some("quarantined")
    );
    let alarm = r#"svc_rewarder_invariant_failures_total{kind="overflow"} 1"#;
    assert!(caller.metrics().contains(alarm), "the alarm");
    // A quarantined epoch is not bound to its inputs: with corrected inputs it is computed.
    let request = caller.inputs(&policy(&json!({})), "a,m,1\n");
    let run = caller.typed().compute(&epoch, &request, WAIT, by());
    assert_eq!(run.expect("computed").state, RunState::Sealed);
    end(running);
}

#[test]
fn an_upload_of_too_many_rows_is_refused_in_every_form() {
    let data = tempfile::tempdir().expect("a directory");
    let (running, caller) = start(&format!(
        "data_dir = \"{}\"\nlimits.max_rows = 3",
        data.path().display()
    ));
    let full = caller.upload("a,m,1\nb,m,1\nc,m,1\n");
    assert_eq!(full.accounts, 3);
    let rows = "account,metric,amount\na,m,1\nb,m,1\nc,m,1\nd,m,1\n";
    let json = "{\"account\":\"a\",\"metric\":\"m\",\"amount\":\"1\"}\n".repeat(4);
    let sealed =
        svc_rewarder::inputs::import::csv(rows.as_bytes(), ron_proto::rewarder::ImportKind::Totals);
    let sealed = sealed.expect("good rows");
    let sealed = sealed.bytes().expect("in memory").into_owned();
    for (kind, query, body) in [
        ("text/csv", "", rows.as_bytes()),
        ("application/x-ndjson", "?kind=events", json.as_bytes()),
        ("application/octet-stream", "", &sealed),
    ] {
        let path = format!("/rewarder/snapshots{query}");
        let reply = caller.call(Method::POST, &path, Some((kind, body)));
        let problem = reply.problem().expect("a problem");
        assert_eq!(
            (reply.status, problem.code.as_str()),
            (413, "too_many_rows"),
            "{kind}: {}",
            problem.detail
        );
        assert_eq!(problem.details, Some(json!({"rows_max": 3})));
    }
    let left = std::fs::read_dir(data.path().join("intake")).expect("there");
    assert_eq!(left.count(), 0, "nothing is left behind");
    let stored = data.path().join("snapshots/tenant-default");
    assert_eq!(std::fs::read_dir(stored).expect("there").count(), 1);
    end(running);
}
