//! Operations inside a token: wrap under a key in it, destroy keys in it, and make keys without delaying other
//! changes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ron_proto::kms::{
    DestroyKey, KeyBackend, KeyDoc, KeyState, PayloadPolicy, Period, PrivateBytes,
};
use ron_proto::values::{Alg, Kid};

use super::super::envelope::{one, task, unwrap, why, wrap};
use super::super::{Rig, TestReply, settings, signed};
use super::softhsm::{MODULE, flags, say, shimmed, token, tool};
use super::{in_backend, in_child, until, var};
use crate::work::envelope::EnvelopeOp;
use crate::work::key_request::KeyRequest;
use crate::work::{Purposes, StoreJob};

fn rig(dir: &std::path::Path, module: &str) -> Rig {
    let mut flags = flags(dir, module);
    flags.push(("destroy.delay_min".into(), "1s".into()));
    let flags: Vec<_> = flags
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    Rig::start(settings(&flags), None).expect("starts")
}

fn home() -> PathBuf {
    PathBuf::from(var("RON_DIR"))
}

fn state(rig: &Rig, key: &Kid) -> KeyState {
    rig.doc(key).state
}

fn destroy(rig: &Rig, key: &Kid) -> TestReply {
    rig.change(
        key,
        KeyRequest::Destroy(DestroyKey {
            below_version: None,
            delay: Some(Period::from_s(1).expect("a period")),
            expected_head: None,
            op_id: None,
        }),
    )
}

/// The answers of wrapping and unwrapping, without the parts that differ between two keys.
fn transcript(rig: &Rig, backend: KeyBackend, op: u128) -> Vec<String> {
    let make = |n| -> KeyDoc { rig.create_in(backend, Alg::Aes256Kwp, op + n) };
    let (key, other) = (make(0).key, make(1).key);
    let mut said = Vec::new();
    for length in [1_usize, 7, 8, 9, 32, 255, 2048, 4096] {
        let text = vec![0x5a; length];
        let made = one(rig, wrap(&key, None, &text)).expect("wraps");
        let sealed = made.ciphertext.expect("text");
        let back = one(rig, unwrap(&key, None, &sealed)).expect("opens");
        let same = back.plaintext == Some(PrivateBytes::from(text.as_slice()));
        let foreign = why(one(rig, unwrap(&other, None, &sealed)));
        let mut bad = sealed.clone();
        *bad.0.last_mut().expect("bytes") ^= 1;
        let flipped = why(one(rig, unwrap(&key, None, &bad)));
        bad.0.truncate(bad.0.len() - 8);
        let cut = why(one(rig, unwrap(&key, None, &bad)));
        said.push(format!("{length}: {same} {foreign:?} {flipped:?} {cut:?}"));
    }
    said.push(format!("{:?}", why(one(rig, wrap(&key, None, b"")))));
    said.push(format!(
        "{:?}",
        why(one(rig, wrap(&key, Some(b"aad"), b"x")))
    ));
    let sealed = one(rig, wrap(&key, None, b"first")).expect("wraps");
    let sealed = sealed.ciphertext.expect("text");
    said.push(rig.rotated(&key).document.head.to_string());
    let moved = one(rig, task(&key, None, EnvelopeOp::Rewrap(sealed.clone()))).expect("moved");
    said.push(format!("{:?} {:?}", moved.from_version, moved.version));
    let old = one(rig, unwrap(&key, None, &sealed)).expect("an old version unwraps");
    said.push(format!("{:?} {:?}", old.version, old.plaintext));
    said
}

#[test]
fn a_token_wraps_like_the_store() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::custody::a_token_wraps_like_the_store";
    if !in_child(name, || token(dir.path())) {
        return;
    }
    let dir = home();
    let first = rig(&dir, MODULE);
    let want = transcript(&first, KeyBackend::File, 100);
    assert!(want[0].contains("true Some(CiphertextRefused)"), "{want:?}");
    assert_eq!(transcript(&first, KeyBackend::Pkcs11, 200), want);
    // Wrong ciphertexts, which this module reports as general errors, have not made the token unavailable.
    let reconnects = "ron_kms_backend_reconnects_total{backend=\"pkcs11\"} ";
    assert_eq!(first.gauge(reconnects), 0);
    let doc = first.create_in(KeyBackend::Pkcs11, Alg::Aes256Kwp, 300);
    let made = one(&first, wrap(&doc.key, None, b"kept")).expect("wraps");
    first.stop();
    let second = rig(&dir, MODULE);
    let text = made.ciphertext.expect("text");
    let back = one(&second, unwrap(&doc.key, None, &text)).expect("opens after a restart");
    assert_eq!(back.plaintext, Some(PrivateBytes::from(b"kept".as_slice())));
    let listed = tool(&dir, &["--login", "--pin", "648219", "--list-objects"]);
    assert!(!listed.contains("kept"), "nothing passing stays: {listed}");
    second.stop();
}

#[test]
fn a_destroyed_key_is_gone_from_the_token() {
    let dir = tempfile::tempdir().expect("dir");
    let name = "tests::devices::custody::a_destroyed_key_is_gone_from_the_token";
    if !in_child(name, || shimmed(dir.path())) {
        return;
    }
    let dir = home();
    let rig = rig(&dir, dir.join("shim.so").to_str().expect("utf-8"));
    let doc = rig.create_in(KeyBackend::Pkcs11, Alg::EcdsaP256, 1);
    let kwp = rig.create_in(KeyBackend::Pkcs11, Alg::Aes256Kwp, 2);
    let stays = rig.create_in(KeyBackend::Pkcs11, Alg::Ed25519, 3);
    rig.rotated(&doc.key);
    let listed = || tool(&dir, &["--login", "--pin", "648219", "--list-objects"]);
    let shown = listed();
    assert_eq!(shown.matches(&doc.key.to_string()).count(), 4, "{shown}");
    assert_eq!(shown.matches(&kwp.key.to_string()).count(), 1, "{shown}");
    // While the token is unavailable the destruction waits, and the key keeps its state.
    say("fail");
    assert_eq!(rig.sign_text(&doc, b"x").status, 503);
    assert_eq!(destroy(&rig, &doc.key).status, 200);
    assert_eq!(destroy(&rig, &kwp.key).status, 200);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(state(&rig, &doc.key), KeyState::PendingDestruction);
    let cancel = KeyRequest::CancelDestroy(ron_proto::kms::RetireKey::default());
    assert_eq!(rig.change(&doc.key, cancel).code(), "key_not_active");
    say("ok");
    for key in [&doc.key, &kwp.key] {
        until("it is destroyed", || {
            state(&rig, key) == KeyState::Destroyed
        });
    }
    let shown = listed();
    for key in [&doc.key, &kwp.key] {
        assert!(!shown.contains(&key.to_string()), "{shown}");
    }
    assert_eq!(rig.sign_text(&doc, b"x").code(), "key_not_active");
    signed(&rig.sign_text(&stays, b"the others stay"));
    assert_eq!(listed().matches(&stays.key.to_string()).count(), 2);
    rig.stop();
}

#[test]
fn a_token_that_hangs_while_it_makes_a_key_holds_up_no_other_change() {
    let dir = tempfile::tempdir().expect("dir");
    let name =
        "tests::devices::custody::a_token_that_hangs_while_it_makes_a_key_holds_up_no_other_change";
    if !in_child(name, || shimmed(dir.path())) {
        return;
    }
    let dir = home();
    let rig = rig(&dir, dir.join("shim.so").to_str().expect("utf-8"));
    let local = rig.create("local", Alg::Ed25519, PayloadPolicy::Any, 1);
    // A slow disk may make one round's local changes as slow as the token; it does not do so in each of five.
    let passed_by = (0..5).any(|round| {
        let n = 100 * (round + 1);
        say("hang-once");
        let request = in_backend(KeyBackend::Pkcs11, Alg::Ed25519, n);
        let begun = Instant::now();
        let (call, waiter) = rig.call_context(&rig.caller);
        let job = StoreJob::Create(call, Box::new(request.clone()), Purposes::Shared);
        rig.engine.kms.submit_store(job);
        std::thread::sleep(Duration::from_millis(100));
        for other in n + 1..n + 5 {
            rig.create("other", Alg::Ed25519, PayloadPolicy::Any, other);
            rig.rotated(&local.key);
        }
        // The token itself makes keys meanwhile: it has another session.
        rig.create_in(KeyBackend::Pkcs11, Alg::EcdsaP256, n + 5);
        let while_hanging = begun.elapsed() < Duration::from_millis(1900);
        let got = Rig::wait(waiter);
        assert_eq!(
            (got.status, got.code().as_str()),
            (504, "deadline_exceeded")
        );
        say("ok");
        let again = rig.create_as(&rig.caller, request);
        assert_eq!(
            again.status, 201,
            "the same operation id, as nothing came of it"
        );
        while_hanging
    });
    assert!(passed_by, "every change waited for the token");
    rig.stop();
}

#[test]
fn the_same_operation_twice_at_once_leaves_one_key_in_the_token() {
    let dir = tempfile::tempdir().expect("dir");
    let name =
        "tests::devices::custody::the_same_operation_twice_at_once_leaves_one_key_in_the_token";
    if !in_child(name, || token(dir.path())) {
        return;
    }
    let dir = home();
    let rig = rig(&dir, MODULE);
    let request = in_backend(KeyBackend::Pkcs11, Alg::Ed25519, 5);
    let send = || {
        let (call, waiter) = rig.call_context(&rig.caller);
        let job = StoreJob::Create(call, Box::new(request.clone()), Purposes::Shared);
        rig.engine.kms.submit_store(job);
        waiter
    };
    let (one, two) = (send(), send());
    let (one, two): (KeyDoc, KeyDoc) = (Rig::wait(one).json(), Rig::wait(two).json());
    assert_eq!(one.key, two.key, "one operation, one key");
    // Two rotations at once are two rotations, one after the other.
    let rotate = |n| {
        let (call, waiter) = rig.call_context(&rig.caller);
        let change = KeyRequest::Rotate(ron_proto::kms::RotateRequest {
            expected_head: None,
            op_id: Some(super::super::op_id(n)),
            ..ron_proto::kms::RotateRequest::default()
        });
        let job = StoreJob::Change(call, one.key.clone(), change);
        rig.engine.kms.submit_store(job);
        waiter
    };
    let (first, second) = (rotate(6), rotate(7));
    let heads = [first, second].map(|w| {
        let answer: ron_proto::kms::RotateAnswer = Rig::wait(w).json();
        answer.document.head
    });
    assert!(heads == [2, 3] || heads == [3, 2], "{heads:?}");
    signed(&rig.sign_text(&rig.doc(&one.key), b"with the third"));
    // Keys that no change used are destroyed: the token has one private key per version, and no more. Counted by name:
    // SoftHSM may leave an object without name and value where it reports a general error.
    let privkeys = || {
        let shown = tool(
            &dir,
            &[
                "--login",
                "--pin",
                "648219",
                "--list-objects",
                "--type",
                "privkey",
            ],
        );
        shown.matches(&one.key.to_string()).count()
    };
    until("what nobody took is gone", || privkeys() == 3);
    rig.stop();
}
