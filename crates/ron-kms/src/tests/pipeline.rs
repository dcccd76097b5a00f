//! From a request to its durable answer: signing, rotation, replay, limits, overload.

use ron_custody::keys::Input;
use ron_http::{Principal, PrincipalKind};
use ron_kernel::Credit;
use ron_proto::kms::{
    CreateKey, Digest, DigestAlg, JwtPolicy, KeyDoc, NotePolicy, PayloadPolicy, RotateAnswer,
    RotateRequest, SignAnswer, SignBatch, SignItem, SignRequest, Signature, VerifyMode,
    VerifyRequest,
};
use ron_proto::values::Alg;

use super::gate::eventually;
use super::{Rig, create_request, memory_settings, op_id, principal, signed};
use crate::audit::leaf::{Leaf, Op};
use crate::work::Kms;
use crate::work::key_request::KeyRequest;
use crate::work::verify::verify;

fn leaf(rig: &Rig, index: u64) -> Leaf {
    let reader = rig.engine.reader.as_ref().expect("a log");
    Leaf::parse(&reader.entry(index).expect("durable")).expect("canonical")
}

#[test]
fn a_signature_verifies_and_its_leaf_says_so() {
    let rig = Rig::memory();
    for (n, alg) in Alg::ALL.into_iter().filter(|alg| alg.signs()).enumerate() {
        let doc = rig.create("app", alg, PayloadPolicy::Any, n as u128);
        assert_eq!((doc.head, doc.versions.len()), (1, 1));
        let born = leaf(&rig, doc.versions[0].receipt.index);
        assert_eq!(
            (born.op, born.version, born.key_op_counter),
            (Op::Create, Some(1), Some(1))
        );
        let answer = signed(&rig.sign(SignRequest::message(doc.key.clone(), *b"hello")));
        assert_eq!((&answer.key, answer.version), (&doc.key, 1));
        assert!(rig.verify(&doc.key, None, b"hello", &answer.signatures).ok);
        assert!(!rig.verify(&doc.key, None, b"hullo", &answer.signatures).ok);
        let leaf = leaf(&rig, answer.receipt.index);
        assert_eq!(
            (leaf.op, leaf.result.as_str(), leaf.key_op_counter),
            (Op::Sign, "ok", Some(2))
        );
        assert_eq!(leaf.key, Some(doc.key.to_string()));
        assert_eq!(
            leaf.input_sha256,
            Some(hex::encode(ron_crypto::hash::sha256(b"hello")))
        );
        let signatures = answer.signatures.iter().map(|s| s.signature.as_slice());
        let all = signatures.collect::<Vec<_>>().concat();
        assert_eq!(
            leaf.output_sha256,
            Some(hex::encode(ron_crypto::hash::sha256(&all)))
        );
    }
    rig.stop();
}

#[test]
fn two_signatures_count_as_the_mode_says() {
    let rig = Rig::memory();
    let doc = rig.create("app", Alg::Ed25519MlDsa65, PayloadPolicy::Any, 1);
    let both = signed(&rig.sign(SignRequest::message(doc.key.clone(), *b"x"))).signatures;
    rig.rotated(&doc.key);
    let next = signed(&rig.sign(SignRequest::message(doc.key.clone(), *b"x"))).signatures;
    let mut broken = both.clone();
    broken[1].signature.0[7] ^= 1;
    let index = rig.engine.kms.index.load();
    let check = |signatures: &[Signature], mode: VerifyMode, ok: bool| {
        let request = VerifyRequest {
            key: doc.key.clone().into(),
            version: None,
            message: Some(b"x".as_slice().into()),
            digest: None,
            prehash: None,
            signatures: signatures.to_vec(),
            mode,
        };
        let got = verify(&index, &rig.caller, request).expect("judged");
        assert_eq!(got.ok, ok, "{mode:?} {got:?}");
    };
    use VerifyMode::{And, Or, PqOnly};
    check(&both, And, true);
    check(&both[..1], And, false);
    check(&both[1..], And, false);
    check(&broken, And, false);
    check(&[both[0].clone(), next[1].clone()], And, false); // of two versions
    check(&both[..1], Or, true);
    check(&both[1..], Or, true);
    check(&broken, Or, true);
    check(&broken[1..], Or, false);
    check(&both[..1], PqOnly, false);
    check(&both[1..], PqOnly, true);
    check(&broken, PqOnly, false);
    rig.stop();
}

#[test]
fn refusals_are_leaves_too() {
    let rig = Rig::memory();
    let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Digest, 1);
    let mut gone = doc.key.clone();
    gone.id = uuid::Uuid::nil();
    let digest = Digest::new(DigestAlg::Blake3, &[7; 32]);
    let good = SignRequest::digest(doc.key.clone(), digest);
    let check = |request: SignRequest, status: u16, code: &str| {
        let size = rig.engine.kms.log_size();
        let got = rig.sign(request);
        assert_eq!((got.status, got.code().as_str()), (status, code));
        let leaf = leaf(&rig, size);
        let result = if status == 200 { "ok" } else { code };
        assert_eq!(
            (leaf.op, leaf.result.as_str(), leaf.actor.as_str()),
            (Op::Sign, result, "tester")
        );
    };
    let pinned = |version: u32| SignRequest {
        version: Some(version),
        ..good.clone()
    };
    let text = SignRequest::message(doc.key.clone(), *b"text");
    let unknown = SignRequest {
        key: gone.into(),
        ..good.clone()
    };
    let empty = SignRequest {
        digest: None,
        ..good.clone()
    };
    let remark = SignRequest {
        context: Some("a\nb".into()),
        ..good.clone()
    };
    check(good.clone(), 200, "ok");
    check(text, 403, "payload_refused");
    check(unknown, 404, "not_found");
    check(pinned(2), 404, "not_found");
    check(pinned(0), 404, "not_found");
    check(empty, 400, "bad_request");
    check(remark, 400, "bad_request");
    rig.rotated(&doc.key);
    check(pinned(1), 409, "version_not_head");
    check(pinned(2), 200, "ok");
    rig.stop();
}

#[test]
fn only_the_tenant_and_the_prefix_of_the_caller() {
    let rig = Rig::memory();
    let doc = rig.create("issuer", Alg::Ed25519, PayloadPolicy::Any, 1);
    let request = SignRequest::message(doc.key.clone(), *b"x");
    let check = |tenant: &str, prefixes: Option<&[&str]>, status: u16| {
        let caller = principal(tenant, prefixes);
        assert_eq!(
            rig.sign_as(&caller, request.clone()).status,
            status,
            "{tenant} {prefixes:?}"
        );
    };
    check("ron", None, 200);
    check("ron", Some(&["ron/issuer/"]), 200);
    check("ron", Some(&["ron/manifest/", "ron/issuer/"]), 200);
    check("ron", Some(&["ron/manifest/"]), 403);
    check("ron", Some(&[]), 403);
    check("default", None, 403);
    check("default", Some(&["ron/issuer/"]), 403);
    let create = |tenant: &str, prefixes: Option<&[&str]>, op: u128| {
        let request = create_request("issuer", Alg::Ed25519, PayloadPolicy::Any, op);
        rig.create_as(&principal(tenant, prefixes), request).status
    };
    assert_eq!(create("ron", Some(&["ron/issuer/"]), 20), 201);
    assert_eq!(create("ron", Some(&["ron/manifest/"]), 21), 403);
    assert_eq!(create("default", None, 22), 403);
    rig.stop();
}

#[test]
fn no_passport_uses_a_key_of_the_installation() {
    let rig = Rig::memory();
    let doc = rig.create("policy", Alg::Ed25519, PayloadPolicy::Any, 1);
    let passport = |tenant: &str| Principal {
        kind: PrincipalKind::Passport,
        ..principal(tenant, None)
    };
    for tenant in ["ron", "default", "evil"] {
        let caller = passport(tenant);
        let request = SignRequest::message(doc.key.clone(), *b"x");
        assert_eq!(rig.sign_as(&caller, request).status, 403, "{tenant}");
        let request = create_request("policy", Alg::Ed25519, PayloadPolicy::Any, 20);
        assert_eq!(rig.create_as(&caller, request).status, 403, "{tenant}");
        let change = KeyRequest::Rotate(RotateRequest::default());
        assert_eq!(
            rig.change_as(&caller, &doc.key, change).status,
            403,
            "{tenant}"
        );
        let index = rig.engine.kms.index.load();
        assert!(index.find(&caller, &doc.key).is_err(), "{tenant}");
    }
    rig.stop();
}

#[test]
fn an_operation_id_is_answered_once() {
    let rig = Rig::memory();
    let doc = rig.create("app", Alg::EcdsaP256, PayloadPolicy::Any, 1);
    let again: KeyDoc = rig.create("app", Alg::EcdsaP256, PayloadPolicy::Any, 1);
    assert_eq!(again, doc, "create");
    let other = create_request("other", Alg::EcdsaP256, PayloadPolicy::Any, 1);
    assert_eq!(rig.create_as(&rig.caller, other).status, 422);

    let request = SignRequest {
        op_id: Some(op_id(9)),
        ..SignRequest::message(doc.key.clone(), *b"x")
    };
    let first = signed(&rig.sign(request.clone()));
    // P-256 signatures are randomised: the same bytes again prove that nothing was signed again.
    assert_eq!(signed(&rig.sign(request.clone())), first);
    let size = rig.engine.kms.log_size();
    assert_eq!(signed(&rig.sign(request.clone())), first);
    assert_eq!(
        rig.engine.kms.log_size(),
        size,
        "a repetition is no new operation"
    );
    let changed = SignRequest {
        context: Some("other".into()),
        ..request.clone()
    };
    assert_eq!(rig.sign(changed).status, 422);
    let outsider = principal("ron", Some(&["ron/manifest/"]));
    assert_eq!(
        rig.sign_as(&outsider, request).status,
        403,
        "a repetition needs the right too"
    );

    let rotate = RotateRequest {
        expected_head: Some(1),
        op_id: Some(op_id(10)),
        ..RotateRequest::default()
    };
    let first: RotateAnswer = rig.rotate(&doc.key, rotate.clone()).json();
    let second: RotateAnswer = rig.rotate(&doc.key, rotate.clone()).json();
    assert_eq!((first.document.head, &first), (2, &second));
    assert_eq!(
        rig.rotate(
            &doc.key,
            RotateRequest {
                expected_head: None,
                ..rotate
            }
        )
        .status,
        422
    );
    let stale = rig.rotate(
        &doc.key,
        RotateRequest {
            expected_head: Some(1),
            op_id: None,
            ..RotateRequest::default()
        },
    );
    assert_eq!((stale.status, stale.code().as_str()), (409, "stale_head"));
    rig.stop();
}

#[test]
fn what_cannot_be_made_is_refused() {
    let mut settings = memory_settings();
    settings.keys.algs.retain(|alg| *alg != Alg::Aes256Gcm);
    let rig = Rig::start(settings, None).expect("starts");
    let good = create_request("app", Alg::Ed25519, PayloadPolicy::Any, 0);
    let mut op = 100;
    let mut check = |request: CreateKey, status: u16, code: &str| {
        op += 1;
        let got = rig.create_as(
            &rig.caller,
            CreateKey {
                op_id: op_id(op),
                ..request
            },
        );
        assert_eq!((got.status, got.code().as_str()), (status, code));
    };
    check(
        CreateKey {
            alg: Alg::Aes256Gcm,
            ..good.clone()
        },
        400,
        "unsupported",
    );
    check(
        CreateKey {
            alg: Alg::Aes256Gcm,
            ..good.clone()
        },
        400,
        "unsupported",
    );
    check(
        CreateKey {
            rotate_every: Some("59s".parse().expect("a period")),
            ..good.clone()
        },
        400,
        "bad_request",
    );
    let jwt = JwtPolicy {
        typ: vec![],
        iss: "i".into(),
        aud: vec![],
        issuer_policy: false,
        max_ttl_s: 1,
    };
    check(
        CreateKey {
            payload: PayloadPolicy::Jwt(jwt),
            ..good
        },
        400,
        "bad_request",
    );
    rig.stop();
}

#[test]
fn a_batch_has_one_leaf_per_item_and_errors_per_item() {
    let rig = Rig::memory();
    let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1);
    let item = |text: &str| SignItem {
        message: Some(text.as_bytes().into()),
        ..SignItem::default()
    };
    let size = rig.engine.kms.log_size();
    let op = Some(op_id(5));
    let answer = rig.sign_batch(SignBatch {
        key: Some(doc.key.clone().into()),
        version: None,
        items: vec![
            item("a"),
            SignItem {
                version: Some(9),
                ..item("b")
            },
            SignItem {
                op_id: op,
                ..item("c")
            },
            SignItem {
                op_id: op,
                ..item("c")
            },
            SignItem::default(),
            item("d"),
        ],
    });
    let codes: Vec<_> = answer
        .results
        .iter()
        .map(|r| r.error.as_ref().map(|e| e.code.as_str()))
        .collect();
    assert_eq!(
        codes,
        [
            None,
            Some("not_found"),
            None,
            Some("in_flight"),
            Some("bad_request"),
            None
        ]
    );
    let indexes: Vec<_> = answer
        .results
        .iter()
        .filter_map(|r| Some(r.answer.as_ref()?.receipt.index))
        .collect();
    assert_eq!(indexes, [size, size + 2, size + 4]);
    assert_eq!(
        rig.engine.kms.log_size(),
        size + 5,
        "no leaf for the one that was in flight"
    );
    for (at, text) in [(0, "a"), (2, "c"), (5, "d")] {
        let answer = answer.results[at].answer.as_ref().expect("signed");
        assert!(
            rig.verify(&doc.key, None, text.as_bytes(), &answer.signatures)
                .ok,
            "{text}"
        );
    }
    rig.stop();
}

#[test]
fn a_full_batch_is_one_append() {
    let rig = Rig::memory();
    let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1);
    let item = |text: &str| SignItem {
        message: Some(text.as_bytes().into()),
        ..SignItem::default()
    };
    let full = SignBatch {
        key: Some(doc.key.clone().into()),
        version: None,
        items: vec![item("x"); 1000],
    };
    let syncs = rig.disk.syncs();
    let answer = rig.sign_batch(full);
    assert!(answer.results.iter().all(|r| r.answer.is_some()));
    // One sync for the batch; a checkpoint may add its own (file and directory).
    assert!(
        rig.disk.syncs() - syncs <= 4,
        "{} syncs",
        rig.disk.syncs() - syncs
    );
    rig.stop();
}

#[test]
fn no_answer_mixes_two_versions() {
    let rig = Rig::memory();
    let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1);
    const ROTATIONS: u32 = 40;
    let answers: Vec<Vec<SignAnswer>> = ron_kernel::scoped(4, |worker| {
        let mut seen = Vec::new();
        if worker == 0 {
            for _ in 0..ROTATIONS {
                rig.rotated(&doc.key);
            }
        } else {
            while rig.doc(&doc.key).head <= ROTATIONS {
                seen.push(signed(
                    &rig.sign(SignRequest::message(doc.key.clone(), *b"race")),
                ));
            }
        }
        seen
    });
    assert_eq!(rig.doc(&doc.key).head, ROTATIONS + 1);
    let index = rig.engine.kms.index.load();
    let mut versions = std::collections::BTreeSet::new();
    for answer in answers.iter().flatten() {
        let public = &index.keys[&doc.key].versions[answer.version as usize - 1].public;
        let raw = answer.signatures[0].signature.as_slice();
        assert!(
            public.verify(Input::Message(b"race"), None, raw),
            "signature labelled v{} is of another version",
            answer.version
        );
        assert_eq!(
            leaf(&rig, answer.receipt.index).version,
            Some(answer.version)
        );
        versions.insert(answer.version);
    }
    assert!(
        versions.len() > 3,
        "the race did not happen: only versions {versions:?}"
    );
    rig.stop();
}

#[test]
fn a_checkpoint_key_never_signs_a_shrinking_log() {
    let rig = Rig::memory();
    let policy = PayloadPolicy::Note(NotePolicy {
        origin: "example.org/log".into(),
    });
    let doc = rig.create("note", Alg::Ed25519, policy, 1);
    let note = |size: u64, root: &str| {
        let text = format!("example.org/log\n{size}\n{root}\n");
        rig.sign(SignRequest::message(doc.key.clone(), text.into_bytes()))
            .status
    };
    let (one, two) = (
        format!("{}=", "A".repeat(43)),
        format!("{}E=", "A".repeat(42)),
    );
    assert_eq!(note(5, &one), 200);
    assert_eq!(note(5, &one), 200, "the same head again");
    assert_eq!(note(5, &two), 409, "another root at the same size");
    assert_eq!(note(4, &one), 409, "smaller");
    assert_eq!(note(9, &two), 200);
    rig.rotated(&doc.key);
    assert_eq!(note(8, &two), 409, "a rotation does not forget");
    assert_eq!(note(10, &two), 200);
    let text = rig.sign(SignRequest::message(
        doc.key.clone(),
        b"example.org/log\nwords\n".to_vec(),
    ));
    assert_eq!(
        text.status, 200,
        "other notes of the origin are not counted"
    );
    let batch = SignBatch {
        key: Some(doc.key.clone().into()),
        version: None,
        items: vec![SignItem {
            message: Some(format!("example.org/log\n99\n{one}\n").into_bytes().into()),
            ..SignItem::default()
        }],
    };
    let error = rig
        .sign_batch(batch)
        .results
        .remove(0)
        .error
        .expect("refused");
    assert_eq!(error.code, "unsupported");
    rig.stop();
}

/// All room of the audit queue. What earlier requests have taken comes back shortly after their answers.
fn all_room(kms: &Kms) -> Vec<Credit> {
    let mut held = Vec::new();
    eventually("all room is free", || {
        held.extend(std::iter::from_fn(|| kms.credits.try_acquire()));
        held.len() == kms.settings.load().keys.audit_queue
    });
    held
}

#[test]
fn a_full_queue_answers_429_at_once() {
    let mut settings = memory_settings();
    (settings.keys.signers, settings.keys.sign_queue) = (1, 8);
    settings.keys.reserve_wait = std::time::Duration::from_secs(3);
    let rig = Rig::start(settings, None).expect("starts");
    let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1);
    // Without room in the log the only signer waits, holding the first request.
    let kms = &rig.engine.kms;
    let held = all_room(kms);
    let send = || rig.send_sign(&rig.caller, SignRequest::message(doc.key.clone(), *b"x"));
    let mut waiting = vec![send()];
    let (_keep, never) = ron_kernel::Shutdown::pair();
    while !kms.sign.is_empty() {
        never.wait(ron_kernel::Deadline::within(
            std::time::Duration::from_millis(1),
        ));
    }
    waiting.extend((0..8).map(|_| send()));
    for _ in 0..20 {
        let got = Rig::wait(send());
        assert_eq!((got.status, got.code().as_str()), (429, "busy"));
    }
    drop(held);
    for waiter in waiting {
        assert_eq!(Rig::wait(waiter).status, 200, "those that had room wait");
    }
    rig.stop();
}

#[test]
fn a_full_audit_queue_answers_429_after_the_reserve_wait() {
    let mut settings = memory_settings();
    settings.keys.reserve_wait = std::time::Duration::from_millis(50);
    let rig = Rig::start(settings, None).expect("starts");
    let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1);
    let kms = &rig.engine.kms;
    let held = all_room(kms);
    let size = kms.log_size();
    let got = rig.sign(SignRequest::message(doc.key.clone(), *b"x"));
    assert_eq!((got.status, got.code().as_str()), (429, "busy"));
    assert_eq!(
        kms.log_size(),
        size,
        "nothing was signed, nothing was logged"
    );
    drop(held);
    assert_eq!(
        rig.sign(SignRequest::message(doc.key.clone(), *b"x"))
            .status,
        200
    );
    rig.stop();
}
