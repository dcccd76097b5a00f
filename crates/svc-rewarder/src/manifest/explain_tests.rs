//! Explanations: each agrees with the payout table, and with the formula that it states.

use ron_files::Dir;
use ron_proto::rewarder::{PayoutExplanation, RemainderUnit, UnpaidReason};
use ruint::aliases::U1024;
use serde_json::{Value, json};

use super::dir;
use super::explain::Explainer;
use super::reader::Reader;
use super::tests::{document, run, signed};
use crate::inputs::import;
use crate::inputs::snapshot::Sealed;
use ron_proto::rewarder::ImportKind;

fn usage(rows: &str) -> Sealed {
    let text = format!("account,metric,amount\n{rows}");
    import::csv(text.as_bytes(), ImportKind::Totals).expect("good rows")
}

/// Writes a run of this usage by a policy with these fields replaced, and opens it.
fn explainer(temp: &std::path::Path, edit: &Value, rows: &str) -> (Explainer, Reader) {
    let (snapshot, policy) = (usage(rows), signed(&document(edit)));
    let computed = run(&snapshot, &policy);
    let target = Dir::os(temp);
    dir::write(&target, &computed, &snapshot, &policy).expect("writable");
    let reader = Reader::open(&target).expect("whole");
    (Explainer::open(&target, &()).expect("whole"), reader)
}

/// What the explanation itself says that the account gets.
fn formula(it: &PayoutExplanation) -> u128 {
    let big = |text: &str| text.parse::<U1024>().expect("a whole number");
    let (weight, all) = (big(&it.weight), big(&it.split_weight));
    let share = if it.account_capped {
        it.floor_minor.0
    } else if all.is_zero() {
        0
    } else {
        let floor = weight * U1024::from(it.split_minor.0) / all;
        u128::try_from(floor).expect("no more than the pool")
    };
    assert_eq!(share, it.floor_minor.0, "{it:?}");
    let amount = share + u128::from(it.remainder_unit == RemainderUnit::Yes);
    if amount >= it.min_payout_minor.0.max(1) {
        amount
    } else {
        0
    }
}

const METRICS: &str = r#"{"a": {"weight": "1/3", "class": "metering", "category": "x"},
    "b": {"weight": "2", "class": "metering"}, "z": {"weight": "0", "class": "analytics_only"}}"#;

#[test]
fn every_account_is_explained_by_its_payout_and_the_formula() {
    let metrics: Value = serde_json::from_str(METRICS).expect("JSON");
    let mut seed = 7_u64;
    let mut draw = |below: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (seed >> 33) % below
    };
    for round in 0..60 {
        let accounts = 1 + draw(40);
        let mut rows = String::new();
        for n in 0..accounts {
            for metric in ["a", "b", "z"] {
                rows.push_str(&format!("acc:{n:02},{metric},{}\n", draw(5)));
            }
        }
        let mut edit =
            json!({"metrics": metrics.clone(), "min_payout_minor": draw(30).to_string()});
        if draw(2) == 0 {
            edit["caps"] = json!({"category_minor": {"x": draw(300).to_string()}});
        }
        if draw(2) == 0 {
            edit["caps"]["account_minor"] = (1 + draw(200)).to_string().into();
        }
        if draw(3) == 0 {
            edit["eligibility"] = json!({"exclude": ["acc:01"], "minimum": {"b": "1"}});
        }
        if draw(3) == 0 {
            edit["residual"] = json!({"owner": "acc:00"});
        }
        let temp = tempfile::tempdir().expect("a directory");
        let (explainer, reader) = explainer(temp.path(), &edit, &rows);
        let paid = reader.range(0, reader.len()).expect("readable");
        let residual = reader.residual().expect("readable");
        let mut sum = 0;
        for n in 0..=accounts {
            let account = format!("acc:{n:02}").parse().expect("an account");
            let it = explainer.explain(&account).expect("explained");
            let share = paid
                .iter()
                .filter(|row| row.account == account)
                .find(|row| residual.as_ref().is_none_or(|r| r.index != row.index));
            let due = share.map_or(0, |row| row.amount_minor.0);
            assert_eq!(it.paid_minor.0, due, "round {round}: {it:?}");
            assert_eq!(formula(&it), due, "round {round}: {it:?}");
            assert_eq!(it.unpaid.is_none(), due > 0, "{it:?}");
            sum += due + it.residual_minor.map_or(0, |amount| amount.0);
        }
        let owner_is_one = residual
            .as_ref()
            .is_none_or(|r| r.account.as_str() == "acc:00");
        assert!(owner_is_one && sum == reader.total(), "round {round}");
    }
}

#[test]
fn every_reason_is_named() {
    let metrics: Value = serde_json::from_str(METRICS).expect("JSON");
    let edit = json!({
        "metrics": metrics, "min_payout_minor": "5",
        "eligibility": {"exclude": ["acc:out"], "prefixes": ["acc:"], "minimum": {"b": "1"}},
        "caps": {"account_minor": "900"}
    });
    let rows = "acc:big,b,5000000\nacc:ten,b,40000\nacc:low,b,1500\nacc:dust,b,1\nacc:out,b,7\n\
                bot:x,b,7\nacc:less,a,9\nacc:seen,z,4\n";
    let temp = tempfile::tempdir().expect("a directory");
    let (explainer, _) = explainer(temp.path(), &edit, rows);
    let why = |account: &str| {
        let account = account.parse().expect("an account");
        explainer.explain(&account).expect("explained")
    };
    let big = why("acc:big");
    assert!(big.account_capped && big.paid_minor.0 == 900, "{big:?}");
    assert_eq!(why("acc:ten").unpaid, None);
    for (account, reason) in [
        ("acc:low", UnpaidReason::BelowMinimum),
        ("acc:dust", UnpaidReason::BelowOne),
        ("acc:out", UnpaidReason::Excluded),
        ("bot:x", UnpaidReason::OtherPrefix),
        ("acc:less", UnpaidReason::BelowRequired),
        ("acc:seen", UnpaidReason::BelowRequired),
        ("acc:none", UnpaidReason::NoUsage),
    ] {
        assert_eq!(why(account).unpaid, Some(reason), "{account}");
    }
    let metrics: Value = serde_json::from_str(METRICS).expect("JSON");
    let edit = json!({"metrics": metrics, "caps": {"category_minor": {"x": "0"}}});
    let temp = tempfile::tempdir().expect("a directory");
    let rows = "acc:a,a,9\nacc:b,b,9\nacc:z,z,9\n";
    let (explainer, _) = self::explainer(temp.path(), &edit, rows);
    let why = |account: &str| {
        let account = account.parse().expect("an account");
        explainer.explain(&account).expect("explained")
    };
    let capped = why("acc:a");
    assert_eq!(capped.unpaid, Some(UnpaidReason::CategoryCapped));
    assert!(capped.metrics[0].category_capped, "{capped:?}");
    assert_eq!(why("acc:z").unpaid, Some(UnpaidReason::AnalyticsOnly));
    assert_eq!(why("acc:b").paid_minor.0, 1_000);
}

#[test]
fn inputs_that_were_altered_explain_nothing() {
    let temp = tempfile::tempdir().expect("a directory");
    let _ = explainer(temp.path(), &json!({}), "acc:a,m,1\nacc:b,m,2\n");
    for file in [dir::POLICY, dir::SNAPSHOT, dir::PAYOUTS] {
        let path = temp.path().join(file);
        let good = std::fs::read(&path).expect("there");
        let mut bad = good.clone();
        *bad.last_mut().expect("not empty") ^= 1;
        std::fs::write(&path, bad).expect("writable");
        let opened = Explainer::open(&Dir::os(temp.path()), &());
        let refused = opened.map(|it| it.explain(&"acc:a".parse().expect("an account")));
        assert!(!matches!(refused, Ok(Ok(_))), "{file}");
        std::fs::write(&path, good).expect("writable");
    }
}
