//! Aliases, tags and descriptions: what names a key, and who may use a key by them.

use ron_http::{Principal, PrincipalKind};
use ron_proto::kms::{
    KeyChanged, KeyDoc, PayloadPolicy, SetAlias, SignAnswer, SignRequest, UpdateKey,
};
use ron_proto::values::{Alg, Alias, Kid};

use super::{Rig, TestReply, op_id, principal};
use crate::api::keys::{Wanted, page};
use crate::audit::leaf::Op;
use crate::work::key_request::KeyRequest;

fn alias(name: &str) -> Alias {
    name.parse().expect("an alias")
}

fn set(rig: &Rig, name: &str, key: &Kid, from: Option<&Kid>) -> TestReply {
    let ask = SetAlias {
        key: key.clone(),
        from: from.cloned(),
        op_id: None,
    };
    rig.change(key, KeyRequest::SetAlias(alias(name), ask))
}

fn tag(rig: &Rig, key: &Kid, name: &str, value: Option<&str>) -> TestReply {
    let value = value.map(|value| value.parse().expect("a value"));
    let update = UpdateKey {
        tags: [(name.parse().expect("a name"), value)].into(),
        ..UpdateKey::default()
    };
    rig.change(key, KeyRequest::Update(update))
}

/// Whom an alias is resolved to by a signature.
fn signer(rig: &Rig, name: &str) -> Result<Kid, String> {
    let reply = rig.sign(SignRequest::message(alias(name), *b"m"));
    if reply.status == 200 {
        Ok(reply.json::<SignAnswer>().key)
    } else {
        Err(reply.code())
    }
}

pub fn limited(caveats: &[&str]) -> Principal {
    let caveats: Vec<_> = caveats
        .iter()
        .map(|c| c.parse().expect("a caveat"))
        .collect();
    Principal {
        key_prefixes: ron_auth::caveats::key_prefixes(&caveats),
        caveats: caveats.into(),
        kind: PrincipalKind::Service,
        ..principal("ron", None)
    }
}

#[test]
fn an_alias_names_one_key_at_any_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::file(dir.path()).expect("starts");
    let [a, b] = [1, 2].map(|n| rig.create("app", Alg::Ed25519, PayloadPolicy::Any, n).key);
    assert_eq!(signer(&rig, "app"), Err("not_found".into()));
    let made: KeyChanged = set(&rig, "app", &a, None).json();
    assert_eq!(made.document.aliases, [alias("app")].into());
    assert_eq!(signer(&rig, "app"), Ok(a.clone()));
    // Set again: nothing else. For another key: it has to be moved.
    assert_eq!(set(&rig, "app", &a, None).status, 200);
    assert_eq!(set(&rig, "app", &b, None).code(), "stale_alias");
    assert_eq!(set(&rig, "app", &b, Some(&b)).code(), "stale_alias");
    assert_eq!(set(&rig, "none", &b, Some(&a)).code(), "stale_alias");
    assert_eq!(set(&rig, "app", &b, Some(&a)).status, 200);
    assert_eq!(signer(&rig, "app"), Ok(b.clone()));
    assert!(rig.doc(&a).aliases.is_empty());
    rig.stop();

    let rig = Rig::file(dir.path()).expect("starts again");
    assert_eq!(signer(&rig, "app"), Ok(b.clone()));
    let gone = |key: &Kid| {
        let delete = KeyRequest::DeleteAlias(alias("app"));
        rig.change(key, delete)
    };
    assert_eq!(gone(&a).code(), "stale_alias");
    assert_eq!(gone(&b).status, 200);
    assert_eq!(signer(&rig, "app"), Err("not_found".into()));
    rig.stop();
}

#[test]
fn an_answer_that_is_repeated_names_the_key_of_its_time() {
    let rig = Rig::memory();
    let [a, b] = [1, 2].map(|n| rig.create("app", Alg::Ed25519, PayloadPolicy::Any, n).key);
    let wanted = SetAlias {
        key: a.clone(),
        from: None,
        op_id: Some(op_id(7)),
    };
    let change = || rig.change(&a, KeyRequest::SetAlias(alias("app"), wanted.clone()));
    let first: KeyChanged = change().json();
    let request = SignRequest {
        op_id: Some(op_id(8)),
        ..SignRequest::message(alias("app"), *b"m")
    };
    let signed: SignAnswer = rig.sign(request.clone()).json();
    assert_eq!(set(&rig, "app", &b, Some(&a)).status, 200);
    assert_eq!(rig.sign(request).json::<SignAnswer>(), signed);
    assert_eq!(change().json::<KeyChanged>(), first);
    rig.stop();
}

#[test]
fn tags_and_descriptions_are_set_removed_and_bounded() {
    let rig = Rig::memory();
    let key = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let changed: KeyChanged = tag(&rig, &key, "team", Some("web")).json();
    assert_eq!(changed.document.tags.len(), 1);
    for n in 1..32 {
        assert_eq!(tag(&rig, &key, &format!("t{n}"), Some("x")).status, 200);
    }
    assert_eq!(tag(&rig, &key, "more", Some("x")).code(), "bad_request");
    assert_eq!(tag(&rig, &key, "t1", None).status, 200);
    assert_eq!(rig.doc(&key).tags.len(), 31);
    let describe = |text: &str| {
        let update = UpdateKey {
            description: Some(text.to_owned()),
            ..UpdateKey::default()
        };
        rig.change(&key, KeyRequest::Update(update))
    };
    assert_eq!(describe("invoices of the shop").status, 200);
    let shown = || rig.doc(&key).description;
    assert_eq!(shown().as_deref(), Some("invoices of the shop"));
    assert_eq!(describe(&"x".repeat(513)).code(), "bad_request");
    assert_eq!(describe("a\nb").code(), "bad_request");
    assert_eq!(describe("").status, 200);
    assert_eq!(shown(), None);
    rig.stop();
}

#[test]
fn lists_are_filtered_by_labels() {
    let rig = Rig::memory();
    let keys: Vec<Kid> = (1..=5)
        .map(|n| rig.create("app", Alg::Ed25519, PayloadPolicy::Any, n).key)
        .collect();
    assert_eq!(tag(&rig, &keys[1], "team", Some("web")).status, 200);
    assert_eq!(tag(&rig, &keys[3], "team", Some("ops")).status, 200);
    assert_eq!(set(&rig, "app", &keys[2], None).status, 200);
    let check = |name: Option<&str>, tags: &[&str], want: &[&Kid]| {
        let wanted = Wanted {
            alias: name.map(alias),
            tags: tags.iter().map(|tag| tag.parse().expect("a tag")).collect(),
            ..Wanted::default()
        };
        let found = page(&rig.engine.kms, &rig.caller, &wanted, None, 10);
        let found: Vec<&Kid> = found.keys.iter().map(|doc: &KeyDoc| &doc.key).collect();
        let mut want = want.to_vec();
        want.sort();
        assert_eq!(found, want, "{name:?} {tags:?}");
    };
    check(None, &["team"], &[&keys[1], &keys[3]]);
    check(None, &["team=web"], &[&keys[1]]);
    check(None, &["team=web", "team=ops"], &[]);
    check(Some("app"), &[], &[&keys[2]]);
    check(Some("app"), &["team"], &[]);
    rig.stop();
}

#[test]
fn a_caveat_by_alias_or_tag_holds_for_what_they_name_at_the_time_of_use() {
    let rig = Rig::memory();
    let [a, b] = [1, 2].map(|n| rig.create("app", Alg::Ed25519, PayloadPolicy::Any, n).key);
    assert_eq!(set(&rig, "app", &a, None).status, 200);
    let (by_alias, by_tag) = (limited(&["key=alias/app"]), limited(&["key=tag/team=web"]));
    let both = limited(&["key=alias/app", "key=tag/team=web"]);
    let check = |caller: &Principal, key: &Kid, code: &str| {
        let reply = rig.sign_as(caller, SignRequest::message(key, *b"m"));
        assert_eq!(reply.code(), code, "{key}");
    };
    check(&by_alias, &a, "ok");
    check(&by_alias, &b, "forbidden");
    check(&by_tag, &a, "forbidden");
    assert_eq!(tag(&rig, &b, "team", Some("web")).status, 200);
    check(&by_tag, &b, "ok");
    check(&both, &a, "forbidden");
    check(&both, &b, "forbidden");
    assert_eq!(set(&rig, "app", &b, Some(&a)).status, 200);
    check(&by_alias, &a, "forbidden");
    check(&by_alias, &b, "ok");
    check(&both, &b, "ok");
    check(
        &limited(&["key=alias/app", "key=ron/other"]),
        &b,
        "forbidden",
    );
    // Whether a key exists is not told either.
    let mut unknown = b.clone();
    unknown.id = uuid::Uuid::from_u128(9);
    check(&by_alias, &unknown, "forbidden");
    // A limited caller gives itself no other key.
    let more = SetAlias {
        key: a.clone(),
        from: Some(b.clone()),
        op_id: None,
    };
    let more = KeyRequest::SetAlias(alias("app"), more);
    assert_eq!(rig.change_as(&by_alias, &a, more).code(), "forbidden");
    rig.stop();
}

#[test]
fn changes_of_labels_are_leaves() {
    let rig = Rig::memory();
    let [a, b] = [1, 2].map(|n| rig.create("app", Alg::Ed25519, PayloadPolicy::Any, n).key);
    assert_eq!(set(&rig, "app", &a, None).status, 200);
    assert_eq!(set(&rig, "app", &b, Some(&a)).status, 200);
    let leaves = [&a, &b]
        .map(|key| super::lifecycle::leaves(&rig, key))
        .concat();
    let of = leaves.iter().filter(|leaf| leaf.op == Op::Alias);
    let of: Vec<_> = of
        .map(|leaf| (leaf.key.clone(), leaf.context.clone()))
        .collect();
    let text = |key: &Kid, context: String| (Some(key.to_string()), Some(context));
    assert_eq!(
        of,
        [
            text(&a, "alias/app".into()),
            text(&b, format!("alias/app from {a}"))
        ]
    );
    rig.stop();
}
