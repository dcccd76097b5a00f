//! The signed issuer policy: who may bring it, which one is in force, and what the issuer's keys sign under it.

use std::path::Path;

use ron_crypto::sign::Ed25519Key;
use ron_files::{FaultKind, SimDisk};
use ron_http::{Principal, PrincipalKind};
use ron_proto::b64;
use ron_proto::jcs;
use ron_proto::kms::{
    IssuerPolicyInForce, JwtPolicy, KeyDoc, NotePolicy, PayloadPolicy, PutIssuerPolicy, SignRequest,
};
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::values::{Alg, Kid};
use serde_json::{Value, json};

use super::{Rig, TestReply, principal, settings};
use crate::audit::leaf::{Leaf, Op};
use crate::settings::Settings;
use crate::work::StoreJob;
use crate::work::policy::BroughtPolicy;

/// A key that is not in the KMS: its owner keeps it offline.
fn offline() -> Ed25519Key {
    Ed25519Key::from_seed(&[11; 32])
}

fn pinning(key: &Ed25519Key, place: &[(&str, &str)]) -> Settings {
    let pin = b64::url(&key.public());
    let flags = [("policy.public_keys", pin.as_str()), ("signers", "1")];
    settings(&[place, &flags].concat())
}

fn on_disk(dir: &Path, key: &Ed25519Key) -> Settings {
    pinning(key, &[("data_dir", dir.to_str().expect("utf-8"))])
}

fn rig() -> Rig {
    let settings = pinning(&offline(), &[("amnesia", "true")]);
    Rig::start(settings, Some(SimDisk::new())).expect("starts")
}

/// A policy in which `shop` gets these scopes at `my-api`.
fn policy(version: u64, scopes: &[&str]) -> Value {
    json!({"version": version, "audiences": [{"audience": "my-api", "scopes": ["read", "write", "admin"]}], "clients": [{"client_id": "shop", "tenant": "t1", "max_ttl_s": 600,
        "audiences": [{"audience": "my-api", "scopes": scopes}]}]})
}

fn signed_as(kind: &str, policy: Value, key: &Ed25519Key) -> PutIssuerPolicy {
    let bytes = jcs::canonicalize(&policy);
    let signature = PolicySig {
        alg: "ed25519".into(),
        key: "offline".into(),
        value: b64::url(&key.sign(&policy_message(kind, &bytes))),
    };
    PutIssuerPolicy { policy, signature }
}

fn signed(policy: Value, key: &Ed25519Key) -> PutIssuerPolicy {
    signed_as("issuer", policy, key)
}

fn put_as(rig: &Rig, caller: &Principal, request: &PutIssuerPolicy) -> TestReply {
    let kms = &rig.engine.kms;
    let brought = kms
        .settings
        .with(|settings| BroughtPolicy::new(request, &settings.keys.policy_keys));
    let (call, waiter) = rig.call_context(caller);
    kms.submit_store(StoreJob::IssuerPolicy(call, Box::new(brought)));
    Rig::wait(waiter)
}

fn put(rig: &Rig, request: &PutIssuerPolicy) -> TestReply {
    put_as(rig, &rig.caller, request)
}

fn adopted(rig: &Rig, version: u64, scopes: &[&str]) -> IssuerPolicyInForce {
    put(rig, &signed(policy(version, scopes), &offline())).json()
}

fn issuer_key(rig: &Rig) -> KeyDoc {
    let jwt = JwtPolicy {
        typ: vec!["at+jwt".into(), "statuslist+jwt".into()],
        iss: "http://i".into(),
        aud: Vec::new(),
        issuer_policy: true,
        max_ttl_s: 3600,
    };
    rig.create("issuer", Alg::Ed25519, PayloadPolicy::Jwt(jwt), 1)
}

fn kid(doc: &KeyDoc) -> String {
    let jwk = doc.versions[0].jwk.as_ref();
    jwk.expect("a signing key has one").kid.clone()
}

/// Has a token for `shop` signed; `change` differs from one that the policy allows.
fn token(rig: &Rig, key: &KeyDoc, change: &Value) -> TestReply {
    let now = rig.engine.kms.clock.unix_ms() / 1000;
    let mut claims = json!({"iss": "http://i", "sub": "shop", "aud": "my-api", "iat": now, "nbf": now, "exp": now + 600,
        "jti": "j", "client_id": "shop", "tenant": "t1", "scope": "read", "ron_epoch": 1});
    let (to, from) = (claims.as_object_mut(), change.as_object());
    to.expect("an object")
        .extend(from.expect("an object").clone());
    let part = |value: &Value| b64::url(value.to_string().as_bytes());
    let header = json!({"alg": "EdDSA", "kid": kid(key), "typ": "at+jwt"});
    let input = format!("{}.{}", part(&header), part(&claims));
    rig.sign(SignRequest::message(key.key.clone(), input.into_bytes()))
}

fn leaf(rig: &Rig, index: u64) -> Leaf {
    let reader = rig.engine.reader.as_ref().expect("a log");
    Leaf::parse(&reader.entry(index).expect("durable")).expect("canonical")
}

/// The last leaf, which records `request` refused.
fn refused(rig: &Rig, reply: &TestReply, (status, code): (u16, &str)) {
    assert_eq!((reply.status, reply.code().as_str()), (status, code));
    let last = leaf(rig, rig.engine.kms.log_size() - 1);
    assert_eq!((last.op, last.result.as_str()), (Op::IssuerPolicy, code));
}

#[test]
fn the_issuers_keys_sign_what_the_policy_in_force_allows() {
    let rig = rig();
    let key = issuer_key(&rig);
    let none = token(&rig, &key, &json!({}));
    assert_eq!(
        (none.status, none.code().as_str()),
        (403, "payload_refused")
    );
    let first = adopted(&rig, 1, &["read"]);
    let recorded = leaf(&rig, first.receipt.index);
    assert_eq!(
        (recorded.op, recorded.result.as_str()),
        (Op::IssuerPolicy, "ok")
    );
    let context = format!("version 1 {}", first.hash);
    assert_eq!(recorded.context, Some(context));
    assert_eq!(token(&rig, &key, &json!({})).status, 200);
    for outside in [
        json!({"aud": "svc-wallet"}),
        json!({"scope": "read write"}),
        json!({"tenant": "t2"}),
        json!({"client_id": "other"}),
        json!({"sub": "somebody"}),
        json!({"iss": "http://other"}),
        json!({"exp": u64::MAX}),
        json!({"groups": ["admin"]}),
        json!({"authorization_details": [{"type": "payment"}]}),
    ] {
        let got = token(&rig, &key, &outside);
        assert_eq!(
            (got.status, got.code().as_str()),
            (403, "payload_refused"),
            "{outside}"
        );
    }
    // From the answer on, the next policy decides.
    adopted(&rig, 2, &["write"]);
    assert_eq!(token(&rig, &key, &json!({})).status, 403);
    assert_eq!(token(&rig, &key, &json!({"scope": "write"})).status, 200);
    rig.stop();
}

#[test]
fn only_a_pinned_signature_over_a_newer_policy_counts() {
    let rig = rig();
    let in_force = adopted(&rig, 3, &["read"]);
    let size = rig.engine.kms.log_size();
    // The same again is no change.
    assert_eq!(adopted(&rig, 3, &["read"]), in_force);
    assert_eq!(rig.engine.kms.log_size(), size);
    let wide = || policy(4, &["admin"]);
    let other = Ed25519Key::from_seed(&[12; 32]);
    let mut altered = signed(wide(), &offline());
    altered.policy["clients"][0]["tenant"] = "t2".into();
    let mut odd = wide();
    odd["clients"][0]["scope"] = "admin".into();
    let mut faulty = wide();
    faulty["audiences"] = json!([]);
    for request in [
        signed(wide(), &other),
        signed_as("wallet", wide(), &offline()),
        altered,
        signed(odd, &offline()),
        signed(faulty, &offline()),
        signed(policy(2, &["read"]), &offline()),
        signed(policy(3, &["admin"]), &offline()),
    ] {
        refused(&rig, &put(&rig, &request), (409, "policy_refused"));
    }
    let good = signed(wide(), &offline());
    let passport = |tenant: &str| Principal {
        kind: PrincipalKind::Passport,
        ..principal(tenant, None)
    };
    for caller in [
        passport("ron"),
        passport("default"),
        principal("default", None),
    ] {
        refused(&rig, &put_as(&rig, &caller, &good), (403, "forbidden"));
    }
    let shown = rig.engine.kms.issuer_policy().expect("in force");
    assert_eq!(shown, in_force, "nothing has changed it");
    // The credential of the issuer may bring it: the signature decides.
    let issuer = principal("ron", Some(&["ron/issuer/", "ron/note/"]));
    assert_eq!(put_as(&rig, &issuer, &good).status, 200);
    rig.stop();
}

#[test]
fn a_kms_without_pinned_keys_accepts_no_policy() {
    let rig = Rig::memory();
    let got = put(&rig, &signed(policy(1, &["read"]), &offline()));
    refused(&rig, &got, (409, "policy_refused"));
    rig.stop();
}

#[test]
fn the_newest_version_outlives_a_restart_and_a_change_of_the_pins() {
    let dir = tempfile::tempdir().expect("dir");
    let start = |key: &Ed25519Key| Rig::start(on_disk(dir.path(), key), None).expect("starts");
    let rig = start(&offline());
    let key = issuer_key(&rig);
    adopted(&rig, 1, &["read"]);
    let second = adopted(&rig, 2, &["read"]);
    rig.stop();
    let rig = start(&offline());
    assert_eq!(rig.engine.kms.issuer_policy().expect("in force"), second);
    assert_eq!(token(&rig, &key, &json!({})).status, 200);
    let older = put(&rig, &signed(policy(1, &["read"]), &offline()));
    refused(&rig, &older, (409, "policy_refused"));
    rig.stop();
    // With another key pinned the stored policy is not in force, but its version still counts.
    let other = Ed25519Key::from_seed(&[12; 32]);
    let rig = start(&other);
    assert!(rig.engine.kms.issuer_policy().is_err());
    let degraded = rig.ready.causes();
    assert!(
        degraded.iter().any(|(name, ..)| *name == "policy"),
        "{degraded:?}"
    );
    assert_eq!(token(&rig, &key, &json!({})).status, 403);
    let older = put(&rig, &signed(policy(1, &["read"]), &other));
    refused(&rig, &older, (409, "policy_refused"));
    assert_eq!(put(&rig, &signed(policy(2, &["read"]), &other)).status, 200);
    assert_eq!(token(&rig, &key, &json!({})).status, 200);
    let left = rig.ready.causes();
    assert!(!left.iter().any(|(name, ..)| *name == "policy"), "{left:?}");
    rig.stop();
}

#[test]
fn the_stored_policy_cannot_be_changed_removed_or_put_back() {
    let dir = tempfile::tempdir().expect("dir");
    let rig = Rig::start(on_disk(dir.path(), &offline()), None).expect("starts");
    adopted(&rig, 1, &["read", "write"]);
    rig.stop();
    let before = tempfile::tempdir().expect("dir");
    super::store::copy(dir.path(), before.path());
    let rig = Rig::start(on_disk(dir.path(), &offline()), None).expect("starts");
    adopted(&rig, 2, &["read"]);
    rig.stop();
    let old = before.path().join(ron_custody::store::FILE_NAME);
    let back = format!(
        "ATTACH '{}' AS old; DELETE FROM issuer_policy; INSERT INTO issuer_policy SELECT * FROM old.issuer_policy;",
        old.display()
    );
    for change in [
        back.as_str(),
        "DELETE FROM issuer_policy",
        "UPDATE issuer_policy SET version = 1",
        "UPDATE issuer_policy SET policy = CAST(policy || x'20' AS BLOB)",
        "UPDATE issuer_policy SET signature = CAST(signature || x'20' AS BLOB)",
    ] {
        let place = tempfile::tempdir().expect("dir");
        super::store::copy(dir.path(), place.path());
        let db = rusqlite::Connection::open(place.path().join(ron_custody::store::FILE_NAME));
        db.expect("opens").execute_batch(change).expect("runs");
        assert!(super::store::open(place.path()).is_err(), "{change}");
    }
    // The whole store of that time: the audit log knows of a newer one.
    std::fs::copy(&old, dir.path().join(ron_custody::store::FILE_NAME)).expect("copied");
    let rig = Rig::start(on_disk(dir.path(), &offline()), None).expect("starts, to verify only");
    assert!(!rig.engine.kms.health.is_ok());
    rig.stop();
}

#[test]
fn a_policy_whose_leaf_was_lost_comes_into_force_at_the_next_start() {
    let place = tempfile::tempdir().expect("dir");
    std::fs::create_dir(place.path().join("audit")).expect("made");
    let disk = SimDisk::new();
    let start = |disk: &SimDisk| {
        Rig::start(on_disk(place.path(), &offline()), Some(disk.clone())).expect("starts")
    };
    let rig = start(&disk);
    adopted(&rig, 1, &["read"]);
    let before = disk.fork();
    // The commit is in the store, and its leaf is in no log.
    disk.fail_after(1, FaultKind::Io);
    let lost = put(&rig, &signed(policy(2, &["write"]), &offline()));
    assert_eq!(lost.status, 503);
    rig.sup.drain(std::time::Duration::from_secs(5));
    drop(rig);
    let rig = start(&before);
    assert_eq!(rig.engine.kms.health.reason(), None);
    let shown = rig.engine.kms.issuer_policy().expect("in force");
    assert_eq!(shown.version, 2);
    let recorded = leaf(&rig, shown.receipt.index);
    assert_eq!(
        (recorded.op, recorded.result.as_str()),
        (Op::IssuerPolicy, "ok")
    );
    rig.stop();
}

#[test]
fn a_policy_note_lists_only_the_issuers_keys_and_names_the_policy_in_force() {
    let rig = rig();
    let ours = issuer_key(&rig);
    let jwt = |iss: &str, issuer_policy: bool| {
        PayloadPolicy::Jwt(JwtPolicy {
            typ: vec!["at+jwt".into()],
            iss: iss.into(),
            aud: if issuer_policy {
                vec![]
            } else {
                vec!["a".into()]
            },
            issuer_policy,
            max_ttl_s: 60,
        })
    };
    let other = rig.create("issuer", Alg::Ed25519, jwt("http://other", true), 2);
    let free = rig.create("issuer", Alg::Ed25519, jwt("http://i", false), 3);
    let any = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 4);
    let origin = "http://i/policy".to_owned();
    let note = PayloadPolicy::Note(NotePolicy { origin });
    let notes = rig.create("note", Alg::Ed25519, note, 5);
    let signs = |named: &str, kids: &[String]| {
        let mut text = format!("http://i/policy\nversion 1\nissuer http://i\n{named}");
        for kid in kids {
            text = format!("{text}key {kid} EdDSA 1 - good\n");
        }
        let request = SignRequest::message(notes.key.clone(), text.into_bytes());
        rig.sign(request).status
    };
    let named =
        |policy: &IssuerPolicyInForce| format!("policy {} {}\n", policy.version, policy.hash);
    let first = kid(&ours);
    let older = adopted(&rig, 1, &["read"]);
    assert_eq!(signs(&named(&older), std::slice::from_ref(&first)), 200);
    let newer = adopted(&rig, 2, &["read"]);
    let line = named(&newer);
    assert_eq!(signs(&line, &[]), 200);
    assert_eq!(signs(&line, std::slice::from_ref(&first)), 200);
    rig.rotated(&ours.key);
    assert_eq!(
        signs(&line, std::slice::from_ref(&first)),
        200,
        "an older version"
    );
    for outsider in [
        kid(&other),
        kid(&free),
        kid(&any),
        kid(&notes),
        "x".to_owned(),
    ] {
        assert_eq!(
            signs(&line, &[first.clone(), outsider.clone()]),
            403,
            "{outsider}"
        );
    }
    // Under another name that the issuer has or had, still only keys that sign by the policy.
    let moved = format!("was http://other 9\n{line}");
    assert_eq!(signs(&moved, &[first.clone(), kid(&other)]), 200);
    for outsider in [kid(&free), kid(&any)] {
        assert_eq!(signs(&moved, &[outsider]), 403);
    }
    for unchecked in [
        named(&older),
        format!("policy 3 {}\n", newer.hash),
        format!("policy 2 {}\n", older.hash),
        format!("{line}{line}"),
        "policy 2\n".to_owned(),
        String::new(),
    ] {
        assert_eq!(signs(&unchecked, &[]), 403, "{unchecked}");
    }
    rig.stop();
}

#[test]
fn a_policy_note_does_not_go_back_while_the_kms_runs() {
    let dir = tempfile::tempdir().expect("dir");
    let start = || Rig::start(on_disk(dir.path(), &offline()), None).expect("starts");
    let rig = start();
    let in_force = adopted(&rig, 1, &["read"]);
    let line = format!("policy {} {}", in_force.version, in_force.hash);
    let note = |origin: &str, number: u128, rig: &Rig| {
        let origin = origin.to_owned();
        let note = PayloadPolicy::Note(NotePolicy { origin });
        rig.create("note", Alg::Ed25519, note, number).key
    };
    let (notes, other) = (
        note("http://i/policy", 1, &rig),
        note("http://j/policy", 2, &rig),
    );
    let signs = |rig: &Rig, key: &Kid, rest: &str| {
        let issuer = if *key == notes {
            "http://i"
        } else {
            "http://j"
        };
        let text = format!("{issuer}/policy\nissuer {issuer}\n{line}\n{rest}\n");
        rig.sign(SignRequest::message(key.clone(), text.into_bytes()))
    };
    let good = "version 7\nepoch 2\nrevocations log+1+A";
    let back = [
        ("version 6\nepoch 2\nrevocations log+1+A", "version"),
        ("version 8\nepoch 1\nrevocations log+1+A", "epoch"),
        ("version 8\nepoch 2\nrevocations log+2+B", "revocation log"),
        ("version 8\nepoch 2", "revocation log"),
        (
            "version 8\nversion 8\nepoch 2\nrevocations log+1+A",
            "one line",
        ),
        ("epoch 2\nrevocations log+1+A", "one line"),
    ];
    assert_eq!(signs(&rig, &notes, good).status, 200);
    for (rest, why) in back {
        let reply = signs(&rig, &notes, rest);
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (403, "payload_refused"),
            "{rest}"
        );
        let body = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(body.contains(why), "{rest}: {body}");
        let last = leaf(&rig, rig.engine.kms.log_size() - 1);
        assert_eq!(
            (last.op, last.result.as_str()),
            (Op::Sign, "payload_refused")
        );
    }
    // What was refused is not remembered, and each key has its own notes.
    assert_eq!(signs(&rig, &notes, good).status, 200);
    assert_eq!(signs(&rig, &other, "version 1").status, 200);
    rig.stop();
    // An issuer that was restored is taken up with a restart.
    let rig = start();
    assert_eq!(signs(&rig, &notes, back[0].0).status, 200);
    rig.stop();
}
