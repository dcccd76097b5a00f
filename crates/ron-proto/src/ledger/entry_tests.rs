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
