//! Entries as JSON: the form of each kind, what is refused, and what counts as the same request.

use super::*;

fn transfer() -> Entry {
    Entry::Transfer {
        tenant: "t".parse().unwrap(),
        principal: "alice".parse().unwrap(),
        key: "k-1".parse().unwrap(),
        from: "acc:a".parse().unwrap(),
        to: "acc:b".parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: Amount(12),
        up_to: None,
        nonce: Some(1),
        details: Details::default(),
        batch: None,
        daily_ceiling: None,
        budgets: Vec::new(),
    }
}

#[test]
fn entries_are_flat_tagged_objects() {
    let json = serde_json::to_string(&transfer()).unwrap();
    assert_eq!(
        json,
        r#"{"kind":"transfer","tenant":"t","principal":"alice","key":"k-1","from":"acc:a","to":"acc:b","asset":"ron","amount_minor":"12","nonce":1}"#
    );
    assert_eq!(serde_json::from_str::<Entry>(&json).unwrap(), transfer());
}

#[test]
fn bad_entries_are_refused() {
    let good = serde_json::to_value(transfer()).unwrap();
    let check = |field: &str, value: serde_json::Value| {
        let mut v = good.clone();
        v[field] = value;
        assert!(
            serde_json::from_value::<Entry>(v).is_err(),
            "{field} was accepted"
        );
    };
    check("colour", "red".into());
    check("kind", "teleport".into());
    check("principal", "".into());
    check("principal", "two words".into());
    check("key", "k\n".into());
    check("key", "x".repeat(129).into());
    check("memo", "line\nbreak".into());
    check("memo", "m".repeat(257).into());
    check("nonce", (-1).into());
    check("amount_minor", 12.into());
    check("amount_minor", "-12".into());
    check("reference", "".into());
    check("reference", "r".repeat(129).into());
    check("metadata", "m".into());
    check("metadata", serde_json::json!({"a": {}}));
    check("effective_at", "yesterday".into());
    check("share_reference", "yes".into());
    check("details", serde_json::json!({}));
}

#[test]
fn details_are_members_of_the_entry() {
    let mut entry = transfer();
    if let Entry::Transfer { details, .. } = &mut entry {
        details.reference = Some("order 17".parse().unwrap());
        details.share_reference = false;
    }
    let json = serde_json::to_string(&entry).unwrap();
    assert!(
        json.ends_with(r#""nonce":1,"reference":"order 17","share_reference":false}"#),
        "{json}"
    );
    assert_eq!(serde_json::from_str::<Entry>(&json).unwrap(), entry);
}

fn capture(hold: &str, batch: Option<BatchTag>) -> Entry {
    Entry::Capture {
        tenant: "t".parse().unwrap(),
        principal: "alice".parse().unwrap(),
        key: "k-1".parse().unwrap(),
        hold: hold.parse().unwrap(),
        to: "acc:b".parse().unwrap(),
        amount_minor: None,
        ends_hold: false,
        details: Details::default(),
        batch,
        budgets: Vec::new(),
    }
}

#[test]
fn a_hold_is_named_by_its_id_or_by_the_entry_that_makes_it() {
    let id = format!("tx_{:032x}", 7);
    for good in [id.as_str(), "#0", "#7", "#10", "#999"] {
        let hold: HoldRef = good.parse().unwrap();
        assert_eq!(hold.to_string(), good);
    }
    for bad in [
        "", "#", "7", "#00", "#07", "#-1", "#+1", "# 1", "#1000", "tx_7", "##1",
    ] {
        assert!(bad.parse::<HoldRef>().is_err(), "{bad}");
    }
}

#[test]
fn in_a_batch_the_tag_stands_for_the_hold() {
    let id = format!("tx_{:032x}", 7);
    let tag = |n| {
        Some(BatchTag {
            items: 2,
            digest: [n; 16],
        })
    };
    let same = |a: Entry, b: Entry| a.compared() == b.compared();
    assert!(same(capture("#0", tag(1)), capture(&id, tag(1))));
    assert!(!same(capture("#0", tag(1)), capture("#0", tag(2))));
    assert!(!same(capture("#0", None), capture(&id, None)));
}

#[test]
fn all_that_is_available_is_the_same_however_much_it_was() {
    let all = |n: u128, most: u128| {
        let mut entry = transfer();
        if let Entry::Transfer {
            amount_minor,
            up_to,
            ..
        } = &mut entry
        {
            (*amount_minor, *up_to) = (Amount(n), Some(Amount(most)));
        }
        entry
    };
    assert_eq!(all(0, 5).compared(), all(3, 9).compared());
    assert_ne!(all(12, 5).compared(), transfer().compared());
    assert_eq!(all(0, 5).operands().amount_minor, None);
    assert_eq!(all(3, 5).operands().amount_minor, Some(Amount(3)));
}
