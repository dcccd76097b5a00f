//! Import and export of keys, wrapped, and the refusal of every other way out.

use ron_crypto::hpke::{HpkeKey, Kem};
use ron_crypto::keyblob;
use ron_crypto::secret::SecretBytes;
use ron_custody::keys::{SecretKey, wrapping};
use ron_kernel::SeededRandom;
use ron_proto::kms::{
    Bytes, ExportAnswer, ExportKey, ImportKey, KeyDoc, PayloadPolicy, Recipient, SignRequest,
    WrappingKeyDoc,
};
use ron_proto::values::{Alg, Kid};
use ron_tlog::note::{Note, VerifierKey};

use super::lifecycle::destroy;
use super::{Rig, TestReply, create_request, op_id, principal, signed};
use crate::attest::verify::{Expect, verify};
use crate::audit::leaf::{Leaf, OK, Op};
use crate::audit::verify::LeafCheck;
use crate::work::{CallContext, Purposes, StoreJob};

fn doc(rig: &Rig, alg: Alg) -> WrappingKeyDoc {
    rig.engine.kms.wrapping.doc(alg).expect("offered").clone()
}

fn import_request(rig: &Rig, by: Alg, alg: Alg, secret: &SecretBytes, op: u128) -> ImportKey {
    let to = doc(rig, by);
    let (tenant, purpose) = ("ron".parse().expect("t"), "byok".parse().expect("p"));
    let info = wrapping::import_info(&tenant, &purpose, alg);
    let recipient = Recipient {
        alg: to.alg,
        public_key: to.public_key,
    };
    let random = SeededRandom::new(9);
    ImportKey {
        wrapped: wrapping::wrap_for(&recipient, &info, secret, &random).expect("wraps"),
        tenant,
        purpose,
        alg,
        payload: PayloadPolicy::Any,
        exportable: true,
        rotate_every: None,
        into: None,
        wrapping_key: to.id,
        op_id: op_id(op),
    }
}

/// The key of these bytes, imported.
pub(super) fn imported(rig: &Rig, alg: Alg, secret: &[u8]) -> Kid {
    let secret = SecretBytes::from_slice(secret);
    let ask = import_request(rig, Alg::X25519HkdfAes256Gcm, alg, &secret, 1);
    import(rig, ask).json::<KeyDoc>().key
}

pub(super) fn import(rig: &Rig, ask: ImportKey) -> TestReply {
    let (call, waiter) = rig.call_context(&rig.caller);
    rig.engine
        .kms
        .submit_store(StoreJob::Import(call, Box::new(ask), Purposes::Shared));
    Rig::wait(waiter)
}

fn export(rig: &Rig, key: &Kid, recipient: Option<Recipient>, version: Option<u32>) -> TestReply {
    let (call, waiter) = rig.call_context(&rig.caller);
    let ask = ExportKey {
        version,
        recipient,
        op_id: None,
    };
    rig.engine
        .kms
        .submit_store(StoreJob::Export(call, key.clone(), Box::new(ask)));
    Rig::wait(waiter)
}

fn last_leaf(rig: &Rig, index: u64) -> Leaf {
    let reader = rig.engine.reader.as_ref().expect("log");
    Leaf::parse(&reader.entry(index).expect("leaf")).expect("leaf")
}

#[test]
fn every_algorithm_comes_in_and_leaves_as_the_same_key() {
    let rig = Rig::memory();
    let random = SeededRandom::new(4);
    let kems = [
        (Alg::X25519MlKem768, Kem::XWing),
        (Alg::X25519HkdfAes256Gcm, Kem::X25519),
    ];
    for (n, alg) in Alg::ALL.into_iter().enumerate() {
        let (by, kem) = kems[n % 2];
        let (key, secret) = SecretKey::generate(alg, &random);
        let ask = import_request(&rig, by, alg, &secret, n as u128);
        let got = import(&rig, ask.clone());
        assert_eq!(got.status, 201, "{alg}: {}", got.code());
        let doc: KeyDoc = got.json();
        assert!(doc.imported && doc.exportable);
        assert_eq!(doc.versions[0].public_key.0, key.public().raw(), "{alg}");
        let leaf = last_leaf(&rig, doc.receipt.clone().expect("receipt").index);
        assert_eq!((leaf.op, leaf.result.as_str()), (Op::Import, OK));
        let again = import(&rig, ask);
        assert_eq!((again.status, again.body), (201, got.body), "same op_id");
        if alg.signs() {
            let message = SignRequest::message(doc.key.clone(), *b"m");
            let answer = signed(&rig.sign(message));
            assert!(rig.verify(&doc.key, None, b"m", &answer.signatures).ok);
        }
        let mine = HpkeKey::generate(kem, &random);
        let recipient = Recipient {
            alg: by,
            public_key: Bytes(mine.public().to_vec()),
        };
        let out: ExportAnswer = export(&rig, &doc.key, Some(recipient), None).json();
        let info = wrapping::export_info(&doc.key, 1);
        let opened = keyblob::unwrap_key(&mine, &info, &out.wrapped.0).expect("opens");
        assert_eq!(opened.expose(), secret.expose(), "{alg}");
        let leaf = last_leaf(&rig, out.receipt.index);
        assert_eq!((leaf.op, leaf.result.as_str()), (Op::Export, OK));
    }
    rig.stop();
}

/// As in the facade of Vault's API, to which a purpose is the name of one key: each request was checked before the other was done.
#[test]
fn of_a_key_that_is_made_and_imported_at_once_one_comes_to_be() {
    let rig = Rig::memory();
    let (_, secret) = SecretKey::generate(Alg::Ed25519, &SeededRandom::new(4));
    let ask = import_request(&rig, Alg::X25519MlKem768, Alg::Ed25519, &secret, 1);
    let purpose = ask.purpose.as_str().to_owned();
    let made = create_request(&purpose, Alg::Ed25519, PayloadPolicy::Any, 2);
    let submit = |job: Box<dyn FnOnce(CallContext) -> StoreJob>| {
        let (call, waiter) = rig.call_context(&rig.caller);
        rig.engine.kms.submit_store(job(call));
        waiter
    };
    let first = submit(Box::new(|call| {
        StoreJob::Import(call, Box::new(ask), Purposes::Single)
    }));
    let again = made.clone();
    let second = submit(Box::new(|call| {
        StoreJob::Create(call, Box::new(again), Purposes::Single)
    }));
    assert_eq!(Rig::wait(first).status, 201);
    let refused = Rig::wait(second);
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (409, "in_flight")
    );
    // The native API has any number of keys of one purpose.
    assert_eq!(rig.create_as(&rig.caller, made).status, 201);
    rig.stop();
}

/// A key whose destruction is ordered is deleted to clients of Vault's API, which may make another one of its name at once.
#[test]
fn a_name_is_free_for_a_new_key_once_the_destruction_of_its_key_is_ordered() {
    let rig = Rig::memory();
    let make = |op| {
        let ask = create_request("app", Alg::Ed25519, PayloadPolicy::Any, op);
        let (call, waiter) = rig.call_context(&rig.caller);
        let job = StoreJob::Create(call, Box::new(ask), Purposes::Single);
        rig.engine.kms.submit_store(job);
        Rig::wait(waiter)
    };
    let first: KeyDoc = make(1).json();
    assert_eq!(make(2).code(), "in_flight", "the name is taken");
    let two_days = 2 * 24 * 60 * 60;
    assert_eq!(rig.change(&first.key, destroy(two_days)).status, 200);
    assert_eq!(make(3).status, 201);
    rig.stop();
}

#[test]
fn an_imported_key_has_a_birth_certificate_and_its_export_counts_as_no_version() {
    let rig = Rig::memory();
    let random = SeededRandom::new(4);
    let (_, secret) = SecretKey::generate(Alg::Ed25519, &random);
    let ask = import_request(&rig, Alg::X25519MlKem768, Alg::Ed25519, &secret, 1);
    let doc: KeyDoc = import(&rig, ask).json();
    let mine = HpkeKey::generate(Kem::XWing, &random);
    let recipient = Recipient {
        alg: Alg::X25519MlKem768,
        public_key: Bytes(mine.public().to_vec()),
    };
    assert_eq!(export(&rig, &doc.key, Some(recipient), None).status, 200);
    let certificate = rig.certificate(&doc, b"n");
    assert!(certificate.evidence.statement.exportable);
    let birth = verify(&certificate, &Expect::default()).expect("verifies");
    assert_eq!((&birth.key, birth.version), (&doc.key, 1));
    assert!(birth.imported);
    let reader = rig.engine.reader.clone().expect("log");
    let mut check = LeafCheck::default();
    for index in 0..reader.size_durable() {
        let leaf = reader.entry(index).expect("leaf");
        check.take(&leaf).expect("in order");
    }
    assert_eq!(check.report.keys[&doc.key.to_string()].versions, 1);
    rig.stop();
}

#[test]
fn what_was_wrapped_for_something_else_does_not_come_in() {
    let rig = Rig::memory();
    let other = Rig::memory();
    let secret = SecretBytes::from_slice(&[7; 32]);
    let by = Alg::X25519HkdfAes256Gcm;
    let good = import_request(&rig, by, Alg::Ed25519, &secret, 0);
    let mut op = 10;
    let mut check = |ask: ImportKey, code: &str| {
        op += 1;
        let got = import(
            &rig,
            ImportKey {
                op_id: op_id(op),
                ..ask
            },
        );
        assert_eq!((got.status / 100, got.code().as_str()), (4, code));
    };
    let refused = "wrapped_key_refused";
    check(
        import_request(&other, by, Alg::Ed25519, &secret, 0),
        refused,
    );
    check(
        ImportKey {
            alg: Alg::MlDsa44,
            ..good.clone()
        },
        refused,
    );
    check(
        ImportKey {
            purpose: "else".parse().expect("p"),
            ..good.clone()
        },
        refused,
    );
    check(
        ImportKey {
            wrapped: Bytes(good.wrapped.0[1..].to_vec()),
            ..good.clone()
        },
        refused,
    );
    check(
        ImportKey {
            wrapped: Bytes(vec![0; 9000]),
            ..good.clone()
        },
        "too_large",
    );
    let short = SecretBytes::from_slice(&[7; 31]);
    check(import_request(&rig, by, Alg::Ed25519, &short, 0), refused);
    check(
        import_request(&rig, by, Alg::EcdsaP256, &secret, 0),
        refused,
    );
    check(
        ImportKey {
            tenant: "other".parse().expect("t"),
            ..good
        },
        "forbidden",
    );
    assert!(rig.engine.kms.index.load().keys.is_empty());
    rig.stop();
    other.stop();
}

#[test]
fn nothing_leaves_that_may_not_and_every_refusal_is_a_leaf() {
    let rig = Rig::memory();
    let mine = HpkeKey::generate(Kem::X25519, &SeededRandom::new(4));
    let recipient = || {
        Some(Recipient {
            alg: Alg::X25519HkdfAes256Gcm,
            public_key: Bytes(mine.public().to_vec()),
        })
    };
    let stays = rig.create("p", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let mut ask = create_request("p", Alg::Ed25519, PayloadPolicy::Any, 2);
    ask.exportable = true;
    let leaves: KeyDoc = rig.create_as(&rig.caller, ask).json();
    rig.rotated(&leaves.key);
    let check = |key: &Kid, to: Option<Recipient>, version, status: u16, code: &str| {
        let size = rig.engine.kms.log_size();
        let got = export(&rig, key, to, version);
        assert_eq!((got.status, got.code().as_str()), (status, code));
        let reader = rig.engine.reader.as_ref().expect("log");
        let new: Vec<Leaf> = (size..reader.size_durable())
            .map(|at| last_leaf(&rig, at))
            .filter(|leaf| leaf.op == Op::Export)
            .collect();
        assert!(new.iter().any(|leaf| leaf.result == code), "{code}");
    };
    check(&stays, recipient(), None, 403, "export_forbidden");
    check(&stays, None, None, 403, "export_forbidden");
    check(&leaves.key, None, None, 403, "export_forbidden");
    check(&leaves.key, recipient(), Some(3), 404, "not_found");
    check(&leaves.key, recipient(), Some(0), 404, "not_found");
    let bad = Recipient {
        alg: Alg::Ed25519,
        public_key: Bytes(vec![1; 32]),
    };
    check(&leaves.key, Some(bad), None, 400, "bad_request");
    assert_eq!(export(&rig, &leaves.key, recipient(), Some(1)).status, 200);
    let mut outsider = Rig::memory();
    outsider.caller = principal("other", None);
    let got = export(&outsider, &leaves.key, recipient(), None);
    assert_eq!((got.status, got.code()), (403, "forbidden".into()));
    rig.stop();
    outsider.stop();
}

#[test]
fn a_wrapping_key_is_vouched_for_by_the_audit_log() {
    let rig = Rig::memory();
    let vkey = VerifierKey::parse(&rig.engine.keys.vkey()).expect("a verifier key");
    for alg in [Alg::X25519MlKem768, Alg::X25519HkdfAes256Gcm] {
        let doc = doc(&rig, alg);
        let note = Note::parse(&doc.statement).expect("a note");
        assert!(note.verify(std::slice::from_ref(&vkey)).is_ok());
        let lines: Vec<&str> = doc.statement.lines().collect();
        assert_eq!(
            lines[..3],
            ["ron-kms/v1/wrapping-key", vkey.name(), alg.as_str()]
        );
        use base64::Engine as _;
        let public = base64::engine::general_purpose::STANDARD.encode(&doc.public_key.0);
        assert_eq!(lines[3], public);
    }
    rig.stop();
}
