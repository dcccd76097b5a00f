//! The history of a key: its backup and restore, and the destruction of old versions.

use std::time::Duration;

use ron_custody::{Cause, Refusal};
use ron_files::{CrashMode, FaultKind, SimDisk};
use ron_kernel::Random as _;
use ron_kernel::SeededRandom;
use ron_proto::kms::{
    BackupAnswer, BackupKey, Bytes, DestroyKey, KeyDoc, KeyState, NotePolicy, PayloadPolicy,
    Period, RestoreKey, RetireKey, SignRequest, UpdateKey,
};
use ron_proto::values::{Alg, Kid};

use super::envelope::{one, unwrap, why, wrap};
use super::lifecycle::{Timed, eventually, holds, sealed_records};
use super::{Rig, TestReply, file_settings, op_id, principal, signed};
use crate::audit::leaf::{Leaf, OK, Op};
use crate::work::envelope::EnvelopeOutput;
use crate::work::key_request::KeyRequest;
use crate::work::{Purposes, StoreJob};

fn backup(rig: &Rig, key: &Kid) -> TestReply {
    let (call, waiter) = rig.call_context(&rig.caller);
    let job = StoreJob::Backup(call, key.clone(), BackupKey::default());
    rig.engine.kms.submit_store(job);
    Rig::wait(waiter)
}

fn request(text: &str, op: u128) -> RestoreKey {
    RestoreKey {
        tenant: "ron".parse().expect("a tenant"),
        purpose: None,
        backup: text.to_owned(),
        op_id: op_id(op),
    }
}

fn restore(rig: &Rig, request: RestoreKey) -> TestReply {
    let (call, waiter) = rig.call_context(&rig.caller);
    let job = StoreJob::Restore(call, Box::new(request), Purposes::Shared);
    rig.engine.kms.submit_store(job);
    Rig::wait(waiter)
}

fn text_of(rig: &Rig, key: &Kid) -> String {
    let answer: BackupAnswer = backup(rig, key).json();
    assert_eq!(answer.key, *key);
    answer.backup
}

fn publics(rig: &Rig, key: &Kid) -> Vec<Vec<u8>> {
    let index = rig.engine.kms.index.load();
    let versions = &index.keys[key].versions;
    versions
        .iter()
        .map(|version| version.public.raw().to_vec())
        .collect()
}

/// A ciphertext of the key's head.
fn text(rig: &Rig, key: &Kid, plaintext: &[u8]) -> Bytes {
    let made = one(rig, wrap(key, None, plaintext)).expect("wraps");
    made.ciphertext.expect("a ciphertext")
}

fn plain(opened: Result<EnvelopeOutput, Refusal>) -> Vec<u8> {
    let plaintext = opened.expect("opens").plaintext;
    plaintext.expect("a plaintext").expose().to_vec()
}

fn below(version: u32, delay_s: u64) -> KeyRequest {
    KeyRequest::Destroy(DestroyKey {
        below_version: Some(version),
        delay: Some(Period::from_s(delay_s).expect("a period")),
        ..DestroyKey::default()
    })
}

fn least(version: u32) -> KeyRequest {
    KeyRequest::Update(UpdateKey {
        min_verify_version: Some(version),
        ..UpdateKey::default()
    })
}

#[test]
fn a_restored_key_has_its_whole_history_and_a_name_of_its_own() {
    let rig = Rig::memory();
    for (n, alg) in (0_u128..).zip(Alg::ALL) {
        let doc = rig.create("app", alg, PayloadPolicy::Any, 10 * n);
        let ciphertext = alg.wraps().then(|| text(&rig, &doc.key, b"old"));
        let signatures = alg.signs().then(|| {
            let ask = SignRequest::message(doc.key.clone(), *b"old");
            signed(&rig.sign(ask)).signatures
        });
        rig.rotated(&doc.key);
        let text = text_of(&rig, &doc.key);
        assert!(text.starts_with("ron-kms-backup:v1:"), "{text}");
        let got = restore(&rig, request(&text, 10 * n + 1));
        assert_eq!(got.status, 201, "{alg}: {}", got.code());
        let new: KeyDoc = got.json();
        assert_ne!(new.key, doc.key);
        assert_eq!((new.head, new.key.alg), (2, alg));
        assert_eq!(publics(&rig, &new.key), publics(&rig, &doc.key));
        let again = restore(&rig, request(&text, 10 * n + 1));
        assert_eq!((again.status, again.body), (201, got.body), "same op_id");
        if let Some(old) = ciphertext {
            let opened = one(&rig, unwrap(&new.key, None, &old));
            // HPKE binds the name of the key, so only the key of that name opens its ciphertexts.
            let symmetric = publics(&rig, &new.key)[0].is_empty();
            if symmetric {
                assert_eq!(plain(opened), b"old", "{alg}");
            }
            let fresh = one(&rig, wrap(&new.key, None, b"new")).expect("wraps");
            assert_eq!(fresh.version, Some(2));
        }
        if let Some(old) = signatures {
            assert!(rig.verify(&new.key, Some(1), b"old", &old).ok, "{alg}");
            let ask = SignRequest::message(new.key.clone(), *b"new");
            let fresh = signed(&rig.sign(ask));
            assert!(rig.verify(&doc.key, Some(2), b"new", &fresh.signatures).ok);
        }
    }
    rig.stop();
}

#[test]
fn a_backup_opens_under_its_seal_key_alone_and_every_refusal_is_a_leaf() {
    let (one, other) = (Rig::memory(), Rig::memory());
    let doc = one.create("app", Alg::Ed25519, PayloadPolicy::Any, 1);
    let text = text_of(&one, &doc.key);
    assert_eq!(
        restore(&other, request(&text, 1)).code(),
        "wrapped_key_refused"
    );
    let random = SeededRandom::new(11);
    for _ in 0..64 {
        let mut place = [0; 2];
        random.fill(&mut place);
        let mut bytes = text.clone().into_bytes();
        let at = usize::from(u16::from_be_bytes(place)) % bytes.len();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).expect("ascii");
        let got = restore(&one, request(&changed, 2));
        assert_eq!(got.code(), "wrapped_key_refused", "byte {at}");
    }
    // A caller that may use one key must not make it of another one.
    let limited = principal("ron", Some(&["ron/other/"]));
    let ask = RestoreKey {
        purpose: Some("other".parse().expect("a purpose")),
        ..request(&text, 3)
    };
    let (call, waiter) = one.call_context(&limited);
    one.engine
        .kms
        .submit_store(StoreJob::Restore(call, Box::new(ask), Purposes::Shared));
    assert_eq!(Rig::wait(waiter).code(), "forbidden");
    let foreign = RestoreKey {
        tenant: "default".parse().expect("a tenant"),
        ..request(&text, 4)
    };
    assert_eq!(restore(&one, foreign).code(), "forbidden");
    let policy = PayloadPolicy::Note(NotePolicy {
        origin: "example.org/log".into(),
    });
    let note = one.create("log", Alg::Ed25519, policy, 5);
    assert_eq!(backup(&one, &note.key).code(), "unsupported");
    let reader = one.engine.reader.clone().expect("a log");
    let leaves: Vec<Leaf> = (0..reader.size_durable())
        .map(|at| Leaf::parse(&reader.entry(at).expect("a leaf")).expect("a leaf"))
        .collect();
    let of = |op: Op, result: &str| {
        let is = |leaf: &&Leaf| leaf.op == op && leaf.result == result;
        leaves.iter().filter(is).count()
    };
    assert_eq!(of(Op::Backup, OK), 1);
    assert_eq!(of(Op::Backup, "unsupported"), 1);
    assert_eq!(of(Op::Restore, "wrapped_key_refused"), 64);
    assert_eq!(of(Op::Restore, "forbidden"), 2);
    assert_eq!(of(Op::Restore, OK), 0);
    one.stop();
    other.stop();
}

/// A new store with the seal key of a lost one opens its backups, and a restored key survives a restart.
#[test]
fn a_lost_store_is_made_up_for_by_its_seal_key_and_backups() {
    let (lost, new) = (
        tempfile::tempdir().expect("dir"),
        tempfile::tempdir().expect("dir"),
    );
    let rig = Rig::file(lost.path()).expect("starts");
    let algs = [Alg::Aes256Gcm, Alg::X25519MlKem768];
    let keys = algs.map(|alg| rig.create("app", alg, PayloadPolicy::Any, alg as u128).key);
    let old = keys.each_ref().map(|key| text(&rig, key, b"kept"));
    for key in keys.iter().cycle().take(8) {
        rig.rotated(key);
    }
    let texts = keys.each_ref().map(|key| text_of(&rig, key));
    rig.stop();
    let seal = "seal.key";
    std::fs::copy(lost.path().join(seal), new.path().join(seal)).expect("copied");
    let rig = Rig::file(new.path()).expect("starts");
    let made: Vec<KeyDoc> = (1..)
        .zip(&texts)
        .map(|(op, text)| restore(&rig, request(text, op)).json())
        .collect();
    // There was no key of this name, so that references to it and ciphertexts that name it hold.
    assert_eq!(made[1].key, keys[1]);
    rig.stop();
    let rig = Rig::file(new.path()).expect("starts");
    for (made, old) in made.iter().zip(&old) {
        assert_eq!(plain(one(&rig, unwrap(&made.key, None, old))), b"kept");
        assert_eq!(rig.doc(&made.key).head, 5);
        let head = one(&rig, wrap(&made.key, None, b"x")).expect("wraps");
        assert_eq!(head.version, Some(5));
    }
    rig.stop();
}

/// As for a rotation: whatever a crash keeps, the next start finds the leaf of the restore or writes it, and all versions are
/// there or none.
#[test]
fn a_crash_in_a_restore_leaves_all_versions_or_none() {
    let mut repaired = 0;
    for mode in [CrashMode::LoseAll, CrashMode::KeepAll] {
        for nth in 1_u64.. {
            let what = format!("{mode:?} at operation {nth}");
            let dir = tempfile::tempdir().expect("dir");
            std::fs::create_dir(dir.path().join("audit")).expect("made");
            let disk = SimDisk::new();
            let start = || Rig::start(file_settings(dir.path()), Some(disk.clone()));
            let rig = start().expect("starts");
            let key = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1).key;
            rig.rotated(&key);
            let text = text_of(&rig, &key);
            disk.fail_after(nth, FaultKind::PowerOff);
            let answered = restore(&rig, request(&text, 77)).status == 201;
            rig.sup.drain(Duration::from_secs(5));
            drop(rig);
            disk.crash(mode);
            if answered {
                break;
            }
            repaired += 1;
            let rig = start().expect("starts");
            let again = restore(&rig, request(&text, 77));
            assert_eq!(again.status, 201, "{what}: {}", again.code());
            let doc: KeyDoc = again.json();
            assert_eq!(doc.head, 2, "{what}");
            assert_eq!(publics(&rig, &doc.key), publics(&rig, &key), "{what}");
            assert_eq!(rig.engine.kms.index.load().keys.len(), 2, "{what}");
            rig.stop();
        }
    }
    assert!(repaired > 0);
}

#[test]
fn old_versions_are_destroyed_later_and_the_key_goes_on() {
    let dir = tempfile::tempdir().expect("dir");
    let timed = Timed::start(file_settings(dir.path()));
    let rig = &timed.rig;
    let key = rig.create("p", Alg::Aes256Gcm, PayloadPolicy::Any, 1).key;
    let old = text(rig, &key, b"old");
    for _ in 0..3 {
        rig.rotated(&key);
    }
    let kept = text(rig, &key, b"kept");
    let records = sealed_records(dir.path(), &key);
    let secret = |n: usize| records[n][records[n].len() - 48..].to_vec();
    let code = |request| rig.change(&key, request).code();
    assert_eq!(
        code(below(3, 60)),
        "bad_request",
        "above min_verify_version"
    );
    assert_eq!(code(least(3)), "ok");
    assert_eq!(code(below(1, 60)), "bad_request");
    assert_eq!(code(below(3, 60)), "ok");
    let doc = rig.doc(&key);
    assert_eq!(doc.state, KeyState::Active, "it goes on");
    assert_eq!(doc.trim.expect("ordered").below_version, 3);
    assert_eq!(code(least(2)), "bad_request", "about to be destroyed");
    // Cancelled, ordered again, carried out.
    let cancel = || KeyRequest::CancelDestroy(RetireKey::default());
    assert_eq!(code(cancel()), "ok");
    assert_eq!(rig.doc(&key).trim, None);
    assert_eq!(code(cancel()), "key_not_active");
    timed.pass(70);
    assert!(holds(dir.path(), &secret(0)).is_some(), "it was cancelled");
    assert_eq!(code(below(3, 60)), "ok");
    timed.pass(70);
    eventually("trimmed", || rig.doc(&key).min_available_version == 3);
    for n in [0, 1] {
        assert_eq!(holds(dir.path(), &secret(n)), None, "version {}", n + 1);
    }
    for n in [2, 3] {
        assert!(holds(dir.path(), &secret(n)).is_some(), "version {}", n + 1);
    }
    assert_eq!(code(least(1)), "bad_request", "destroyed");
    assert_eq!(code(below(3, 60)), "bad_request", "done already");
    let opens = |rig: &Rig| {
        assert_eq!(plain(one(rig, unwrap(&key, None, &kept))), b"kept");
        let refused = why(one(rig, unwrap(&key, None, &old)));
        assert_eq!(refused, Some(Cause::BadRequest));
    };
    opens(rig);
    let text = text_of(rig, &key);
    let made: KeyDoc = restore(rig, request(&text, 9)).json();
    assert_eq!((made.head, made.min_available_version), (4, 3));
    timed.rig.stop();
    let rig = Rig::file(dir.path()).expect("starts");
    opens(&rig);
    assert_eq!(rig.doc(&key).min_available_version, 3);
    assert_eq!(plain(one(&rig, unwrap(&made.key, None, &kept))), b"kept");
    rig.stop();
}

#[test]
fn a_backup_has_a_bound() {
    let rig = Rig::memory();
    let doc = rig.create("p", Alg::MlDsa87, PayloadPolicy::Any, 1);
    for _ in 0..205 {
        rig.rotated(&doc.key);
    }
    let got = backup(&rig, &doc.key);
    assert_eq!(got.code(), "too_large");
    rig.stop();
}
