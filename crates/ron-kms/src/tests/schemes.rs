//! ECDSA and RSA: hash functions and paddings, hashes of callers, and keys that take long to make.

use ron_crypto::Hashed;
use ron_custody::keys::sha2_of;
use ron_proto::kms::{
    KeyDoc, PayloadPolicy, Prehash, Scheme, SignAnswer, SignRequest, Signature, VerifyMode,
    VerifyRequest,
};
use ron_proto::values::Alg;

use super::{Rig, create_request, file_settings, op_id, principal, signed};
use crate::work::verify::verify;
use crate::work::{Purposes, StoreJob};

const TEXT: &[u8] = b"signed by many programs";

fn prehash(scheme: Scheme, text: &[u8]) -> Prehash {
    let hash = Hashed::of(sha2_of(scheme.hash()), text);
    Prehash::new(scheme.hash(), hash.as_bytes())
}

/// Whether the signature is one of the text, given as itself and as its hash.
fn holds(rig: &Rig, doc: &KeyDoc, scheme: Scheme, text: &[u8], signature: &Signature) -> [bool; 2] {
    let index = rig.engine.kms.index.load();
    let check = |message: Option<&[u8]>, prehash: Option<Prehash>| {
        let request = VerifyRequest {
            key: doc.key.clone().into(),
            version: None,
            message: message.map(|text| text.to_vec().into()),
            digest: None,
            prehash,
            signatures: vec![signature.clone()],
            mode: VerifyMode::And,
        };
        verify(&index, &rig.caller, request).expect("judged").ok
    };
    [
        check(Some(text), None),
        check(None, Some(prehash(scheme, text))),
    ]
}

#[test]
fn a_message_and_its_hash_have_the_same_signatures_in_every_scheme() {
    let rig = Rig::memory();
    let algs = [
        Alg::EcdsaP256,
        Alg::EcdsaP384,
        Alg::EcdsaSecp256k1,
        Alg::Rsa2048,
    ];
    for (op, alg) in (1..).zip(algs) {
        let doc = rig.create("app", alg, PayloadPolicy::Prehash, op);
        let fitting = || Scheme::ALL.into_iter().filter(|scheme| scheme.fits(alg));
        for scheme in fitting() {
            let of_message = SignRequest {
                scheme: Some(scheme),
                ..SignRequest::message(doc.key.clone(), TEXT)
            };
            let of_hash = SignRequest {
                scheme: Some(scheme),
                ..SignRequest::prehash(doc.key.clone(), prehash(scheme, TEXT))
            };
            for request in [of_message, of_hash] {
                let answer: SignAnswer = signed(&rig.sign(request));
                let [signature] = &answer.signatures[..] else {
                    panic!("one signature: {answer:?}");
                };
                // Of ECDSA only what is not usual is named, so that callers of before see what they have seen.
                let is_named = alg.is_rsa() || Some(scheme) != Scheme::usual(alg);
                assert_eq!(signature.scheme, is_named.then_some(scheme), "{alg}");
                assert_eq!(holds(&rig, &doc, scheme, TEXT, signature), [true; 2]);
                assert_eq!(holds(&rig, &doc, scheme, b"other", signature), [false; 2]);
                for other in fitting().filter(|other| *other != scheme) {
                    let bent = Signature {
                        scheme: Some(other),
                        ..signature.clone()
                    };
                    assert_eq!(holds(&rig, &doc, other, TEXT, &bent), [false; 2]);
                }
            }
        }
    }
    rig.stop();
}

#[test]
fn schemes_and_hashes_that_do_not_fit_are_refused() {
    let rig = Rig::memory();
    let any = rig.create("any", Alg::EcdsaP256, PayloadPolicy::Any, 1).key;
    let plain = rig.create("ed", Alg::Ed25519, PayloadPolicy::Any, 2).key;
    let hashes = rig
        .create("hashes", Alg::EcdsaP256, PayloadPolicy::Prehash, 3)
        .key;
    let scheme = Scheme::EcdsaSha256;
    let hash = || prehash(scheme, TEXT);
    for (request, code) in [
        (SignRequest::prehash(any.clone(), hash()), "payload_refused"),
        (
            SignRequest::prehash(plain.clone(), hash()),
            "payload_refused",
        ),
        (
            SignRequest {
                scheme: Some(Scheme::RsaPssSha256),
                ..SignRequest::message(any, TEXT)
            },
            "bad_request",
        ),
        (
            SignRequest {
                scheme: Some(scheme),
                ..SignRequest::message(plain, TEXT)
            },
            "bad_request",
        ),
        (
            SignRequest {
                scheme: Some(Scheme::EcdsaSha512),
                ..SignRequest::prehash(hashes.clone(), hash())
            },
            "bad_request",
        ),
        (
            SignRequest {
                message: Some(TEXT.to_vec().into()),
                ..SignRequest::prehash(hashes, hash())
            },
            "bad_request",
        ),
    ] {
        assert_eq!(rig.sign(request.clone()).code(), code, "{request:?}");
    }
    let senseless = create_request("ed", Alg::Ed25519, PayloadPolicy::Prehash, 9);
    assert_eq!(rig.create_as(&rig.caller, senseless).code(), "bad_request");
    rig.stop();
}

#[test]
fn an_rsa_key_is_made_once_rotates_and_survives_a_restart() {
    let dir = tempfile::tempdir().expect("dir");
    let rig = Rig::file(dir.path()).expect("starts");
    let request = || create_request("app", Alg::Rsa2048, PayloadPolicy::Any, 1);
    // The second is planned while the first waits for its key.
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let (call, waiter) = rig.call_context(&rig.caller);
            let job = StoreJob::Create(call, Box::new(request()), Purposes::Shared);
            rig.engine.kms.submit_store(job);
            waiter
        })
        .collect();
    let docs: Vec<KeyDoc> = waiters
        .into_iter()
        .map(|waiter| Rig::wait(waiter).json())
        .collect();
    assert_eq!(docs[0], docs[1]);
    let key = docs[0].key.clone();
    let before = signed(&rig.sign(SignRequest::message(key.clone(), TEXT)));
    assert_eq!(rig.rotated(&key).document.head, 2);
    rig.stop();
    let rig = Rig::start(file_settings(dir.path()), None).expect("starts again");
    assert!(rig.verify(&key, Some(1), TEXT, &before.signatures).ok);
    let after = signed(&rig.sign(SignRequest::message(key.clone(), TEXT)));
    assert_eq!(after.version, 2);
    assert!(rig.verify(&key, Some(2), TEXT, &after.signatures).ok);
    assert!(!rig.verify(&key, Some(1), TEXT, &after.signatures).ok);
    rig.stop();
}

#[test]
fn keys_that_take_long_delay_nobody_else_and_a_tenant_has_its_share() {
    let rig = Rig::memory();
    let other = principal("other", None);
    let large = |op| create_request("app", Alg::Rsa3072, PayloadPolicy::Any, op);
    let submit = |op| {
        let (call, waiter) = rig.call_context(&rig.caller);
        let job = StoreJob::Create(call, Box::new(large(op)), Purposes::Shared);
        rig.engine.kms.submit_store(job);
        waiter
    };
    // More than the share of a tenant, and all are planned before the first is made.
    let waiters: Vec<_> = (1..=6).map(submit).collect();
    let quick = rig.create("quick", Alg::Ed25519, PayloadPolicy::Any, 100);
    signed(&rig.sign(SignRequest::message(quick.key, TEXT)));
    let of_other = super::CreateKey {
        tenant: other.tenant.clone(),
        op_id: op_id(200),
        ..large(200)
    };
    let answers: Vec<_> = waiters.into_iter().map(Rig::wait).collect();
    let made = answers.iter().filter(|answer| answer.status == 201).count();
    let busy = answers.iter().filter(|answer| answer.status == 429).count();
    assert_eq!(
        (made + busy, made >= 4),
        (6, true),
        "{made} made, {busy} busy"
    );
    assert_eq!(rig.create_as(&other, of_other).status, 201);
    // The share is free again.
    assert_eq!(rig.create_as(&rig.caller, large(7)).status, 201);
    rig.stop();
}
