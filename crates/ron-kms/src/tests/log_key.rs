//! Rotation of the log's own key: which keys sign when, what a pinned key leads to, and a crash at every step.

use std::path::Path;

use ron_custody::store::{KeyStore, StoreError};
use ron_files::{CrashMode, FaultKind, SimDisk};
use ron_http::{Principal, PrincipalKind};
use ron_proto::kms::{PayloadPolicy, RotateLogKey, RotateLogKeyAnswer, SignRequest};
use ron_proto::values::Alg;
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::{Note, VerifierKey};
use ron_tlog::rotation::{KeyChain, Rotation};

use super::{Rig, file_settings, op_id, principal, settings};
use crate::audit::leaf::{Leaf, Op};
use crate::audit::ring::{CHAIN_FILE, open_checkpoint};
use crate::audit::verify::{verify_dir, verify_on};
use crate::settings::Settings;

fn request(op: u128) -> RotateLogKey {
    RotateLogKey {
        op_id: Some(op_id(op)),
        expected_number: None,
    }
}

fn rotated(rig: &Rig, op: u128) -> RotateLogKeyAnswer {
    rig.rotate_log_key(request(op)).json()
}

#[test]
fn only_the_operators_token_rotates_the_logs_key() {
    let rig = Rig::memory();
    let first = rotated(&rig, 1);
    let passport = |tenant: &str| Principal {
        kind: PrincipalKind::Passport,
        ..principal(tenant, None)
    };
    for (caller, who) in [
        (principal("default", None), "another tenant's token"),
        (principal("evil", Some(&["ron/"])), "with the prefix"),
        (
            principal("ron", Some(&["ron/app/"])),
            "a token for some keys",
        ),
        (principal("ron", Some(&[])), "a token for no key"),
        (passport("evil"), "a passport"),
        (passport("default"), "a passport"),
        (passport("ron"), "a passport that says it is of tenant ron"),
    ] {
        assert_eq!(
            rig.rotate_log_key_as(&caller, request(2)).status,
            403,
            "{who}"
        );
        // Nor do they get the answer of an operation.
        assert_eq!(
            rig.rotate_log_key_as(&caller, request(1)).status,
            403,
            "{who}"
        );
    }
    let operator = principal("ron", Some(&["ron/"]));
    let next = rig.rotate_log_key_as(&operator, request(3));
    let next: RotateLogKeyAnswer = next.json();
    assert_eq!(next.number, first.number + 1, "none of them did");
    rig.stop();
}

/// Keys of `chain` that signed the note, by number.
fn signed_by(chain: &KeyChain, note: &str) -> Vec<usize> {
    let note = Note::parse(note).expect("a note");
    let mut numbers: Vec<usize> = note
        .verify(chain.keys())
        .expect("a known key")
        .into_iter()
        .map(|at| at + 1)
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Stops and returns the last checkpoint.
fn last_checkpoint(rig: Rig) -> String {
    let reader = rig.engine.reader.clone().expect("a log");
    rig.stop();
    reader.checkpoint().expect("one at the stop").to_string()
}

fn with_overlap(dir: &Path, overlap: &str) -> Settings {
    let dir = dir.to_str().expect("utf-8");
    settings(&[
        ("data_dir", dir),
        ("signers", "1"),
        ("audit.log_key_overlap", overlap),
    ])
}

#[test]
fn both_keys_sign_for_the_overlap_and_a_pin_leads_on() {
    let dir = tempfile::tempdir().expect("dir");
    let rig = Rig::file(dir.path()).expect("starts");
    let pin = rig.engine.keys.vkey();
    let first = rotated(&rig, 1);
    assert_eq!(
        (first.number, rotated(&rig, 1)),
        (2, first.clone()),
        "once per op_id"
    );
    let stale = RotateLogKey {
        expected_number: Some(1),
        op_id: None,
    };
    let refused = rig.rotate_log_key(stale);
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (409, "stale_head")
    );
    let second = rotated(&rig, 2);
    assert_eq!(
        (second.number, rig.engine.keys.vkey()),
        (3, second.vkey.clone())
    );
    let statement = Rotation::open(&second.statement).expect("both signed");
    assert_eq!(
        (statement.old.to_string(), statement.new.to_string()),
        (first.vkey, second.vkey)
    );
    let reader = rig.engine.reader.clone().expect("a log");
    let leaf = reader.entry(second.receipt.index).expect("durable");
    let leaf = Leaf::parse(&leaf).expect("canonical");
    assert_eq!((leaf.op, leaf.version), (Op::RotateLogKey, Some(3)));
    assert_eq!(leaf.context, Some(second.statement));
    let chain = (*rig.engine.keys.chain()).clone();
    assert_eq!(signed_by(&chain, &last_checkpoint(rig)), [1, 2, 3]);
    let audit = dir.path().join("audit");
    let kept = std::fs::read_to_string(audit.join(CHAIN_FILE)).expect("kept");
    assert_eq!(KeyChain::parse(&kept), Ok(chain.clone()));
    for key in chain.keys() {
        let report = verify_dir(&audit, &key.to_string(), &mut |_, _| ()).expect("verifies");
        assert_eq!(report.log_key_rotations, 2);
    }
    // The overlap has ended: the newest key signs alone, and the chain still leads to it from the pinned key.
    let rig = Rig::start(with_overlap(dir.path(), "0s"), None).expect("starts again");
    assert_eq!(*rig.engine.keys.chain(), chain);
    assert_eq!(signed_by(&chain, &last_checkpoint(rig)), [3]);
    verify_dir(&audit, &pin, &mut |_, _| ()).expect("led from the first key");
    std::fs::remove_file(audit.join(CHAIN_FILE)).expect("removed");
    let lost = verify_dir(&audit, &pin, &mut |_, _| ()).expect_err("nothing leads on");
    assert!(lost.why.contains("known key"), "{lost}");
    // The file is rewritten from the store.
    Rig::file(dir.path()).expect("starts again").stop();
    verify_dir(&audit, &pin, &mut |_, _| ()).expect("led again");
}

#[test]
fn too_many_keys_do_not_sign_at_once() {
    let rig = Rig::memory();
    for n in 0..7 {
        assert_eq!(rotated(&rig, n).number, n as u32 + 2);
    }
    let refused = rig.rotate_log_key(request(9));
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (409, "stale_head")
    );
    rig.stop();
}

/// A checkpoint over the rotation's leaf that only the old key has signed is refused: a thief of that key made it.
#[test]
fn an_old_key_alone_vouches_for_nothing_later() {
    let dir = tempfile::tempdir().expect("dir");
    let rig = Rig::file(dir.path()).expect("starts");
    rotated(&rig, 1);
    let chain = (*rig.engine.keys.chain()).clone();
    let note = last_checkpoint(rig);
    let forged = {
        let mut note = Note::parse(&note).expect("a note");
        let old = chain.keys()[0].key_id();
        note.signatures.retain(|line| line.key_id == old);
        note.to_string()
    };
    let store = open_store(dir.path()).expect("opens");
    assert!(open_checkpoint(store.log(), &note).is_ok());
    let why = open_checkpoint(store.log(), &forged).expect_err("the new key is missing");
    assert!(why.contains("in use by then"), "{why}");
    drop(store);
    let audit = dir.path().join("audit");
    std::fs::write(audit.join("checkpoint"), &forged).expect("written");
    let pin = chain.keys()[0].to_string();
    let found = verify_dir(&audit, &pin, &mut |_, _| ()).expect_err("found offline");
    assert!(found.why.contains("in use by then"), "{found}");
    let rig = Rig::file(dir.path()).expect("starts, to verify only");
    assert!(!rig.engine.kms.health.is_ok());
    assert_eq!(rig.rotate_log_key(request(2)).status, 503);
    rig.stop();
}

fn open_store(dir: &Path) -> Result<KeyStore, StoreError> {
    super::store::open(dir)
}

#[test]
fn rows_of_log_keys_cannot_be_changed_or_removed() {
    let dir = tempfile::tempdir().expect("dir");
    let rig = Rig::file(dir.path()).expect("starts");
    rotated(&rig, 1);
    rotated(&rig, 2);
    rig.stop();
    for change in [
        "DELETE FROM log_keys WHERE number = 3",
        "DELETE FROM log_keys WHERE number = 2",
        "DELETE FROM log_keys",
        "UPDATE log_keys SET statement = (SELECT statement FROM log_keys WHERE number = 2) WHERE number = 3",
        "UPDATE log_keys SET created = created + 1 WHERE number = 2",
        "UPDATE log_keys SET sealed = CAST(sealed || x'00' AS BLOB) WHERE number = 2",
    ] {
        let place = tempfile::tempdir().expect("dir");
        super::store::copy(dir.path(), place.path());
        let db = rusqlite::Connection::open(place.path().join(ron_custody::store::FILE_NAME));
        let db = db.expect("opens");
        assert!(db.execute(change, []).expect("runs") > 0);
        drop(db);
        assert!(open_store(place.path()).is_err(), "{change}");
    }
    assert_eq!(open_store(dir.path()).expect("opens").log().keys.len(), 3);
}

/// Whatever happened before: the KMS starts, the log verifies from the first key, and the rotation was done once or not
/// at all.
fn check_restart(dir: &Path, disk: &SimDisk, pin: &VerifierKey, what: &str) -> usize {
    let rig = Rig::start(file_settings(dir), Some(disk.clone()));
    let rig = rig.unwrap_or_else(|e| panic!("{what}: {e}"));
    let reason = rig.engine.kms.health.reason();
    assert_eq!(reason, None, "{what}");
    let keys = rig.engine.keys.chain().keys().len();
    assert!((1..=2).contains(&keys), "{what}: {keys} keys");
    // A retry with the same op_id: the rotation is done once.
    let answer = rotated(&rig, 7);
    assert_eq!(answer.number, 2, "{what}");
    assert_eq!(rig.engine.keys.chain().keys().len(), 2, "{what}");
    let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 5);
    let signed = rig.sign(SignRequest::message(doc.key, *b"on"));
    assert_eq!(signed.status, 200, "{what}");
    let chain = (*rig.engine.keys.chain()).clone();
    let note = last_checkpoint(rig);
    assert_eq!(signed_by(&chain, &note), [1, 2], "{what}");
    Checkpoint::open(&note, std::slice::from_ref(pin), None).expect("the pin accepts it");
    let led = chain.since(pin).expect("the pin is its first key");
    let dir = dir.join("audit");
    let report = verify_on(disk, &dir, led, &|| false, &mut |_, _| ());
    let report = report.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(report.log_key_rotations, 1, "{what}");
    keys
}

/// A data directory that is restored before each try. Its path stays the same: the log on the simulated disk is under it too.
struct Home {
    place: tempfile::TempDir,
    dir: std::path::PathBuf,
}

impl Home {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("dir");
        let dir = place.path().join("work");
        std::fs::create_dir(&dir).expect("made");
        Self { place, dir }
    }

    fn keep(&self) {
        super::store::copy(&self.dir, &self.place.path().join("kept"));
    }

    fn restore(&self) {
        std::fs::remove_dir_all(&self.dir).expect("removed");
        super::store::copy(&self.place.path().join("kept"), &self.dir);
    }
}

/// A KMS in `dir` whose log is on a simulated disk; its first key.
fn prepared(dir: &Path) -> (SimDisk, VerifierKey) {
    std::fs::create_dir(dir.join("audit")).expect("made");
    let disk = SimDisk::new();
    let rig = Rig::start(file_settings(dir), Some(disk.clone())).expect("starts");
    let pin = rig.engine.keys.chain().newest().clone();
    rig.stop();
    (disk, pin)
}

/// The power fails at the n-th write of the log, for every n until the rotation and the stop succeed.
#[test]
fn a_crash_at_every_write_of_the_log_is_legal() {
    let home = Home::new();
    let (disk, pin) = prepared(&home.dir);
    home.keep();
    let (mut done, mut undone) = (0, 0);
    for mode in [
        CrashMode::LoseAll,
        CrashMode::KeepAll,
        CrashMode::TearLast(60),
    ] {
        for nth in 1_u64.. {
            let what = format!("{mode:?} at write {nth}");
            home.restore();
            let disk = disk.fork();
            let rig = Rig::start(file_settings(&home.dir), Some(disk.clone())).expect("starts");
            disk.fail_after(nth, FaultKind::PowerOff);
            let answered = rig.rotate_log_key(request(7)).status == 200;
            rig.sup.drain(std::time::Duration::from_secs(5));
            drop(rig);
            let whole = ron_files::Disk::list(&disk, &home.dir.join("audit")).is_ok();
            disk.crash(mode);
            let keys = check_restart(&home.dir, &disk, &pin, &what);
            assert!(keys == 2 || !answered, "{what}: it was answered");
            if answered {
                done += 1;
            } else {
                undone += 1;
            }
            if whole {
                break;
            }
        }
    }
    assert!(done > 3 && undone > 3, "{done} done, {undone} not");
}

/// The store's write-ahead log is cut at every frame, as a crash in the middle of its commit would leave it; and the process
/// ends after each step between the commit and the completed change.
#[test]
fn a_crash_at_every_write_of_the_store_is_legal() {
    let home = Home::new();
    let (disk, pin) = prepared(&home.dir);
    let rig = Rig::start(file_settings(&home.dir), Some(disk.clone())).expect("starts");
    let wal = home.dir.join("keys.db-wal");
    let before = std::fs::metadata(&wal).map_or(0, |m| m.len());
    let log = disk.fork();
    // The commit is in the store, and its leaf is in no log. (The chain beside the log is written before the leaf.)
    disk.fail_after(1, FaultKind::PowerOff);
    assert_eq!(rig.rotate_log_key(request(7)).status, 503);
    let bytes = std::fs::read(&wal).expect("the commit is in the write-ahead log");
    assert!(bytes.len() as u64 > before + 4096);
    home.keep();
    rig.sup.drain(std::time::Duration::from_secs(5));
    drop(rig);
    let mut seen = [0, 0];
    for cut in (0..bytes.len()).step_by(1031).chain([bytes.len()]) {
        home.restore();
        let _ = std::fs::remove_file(home.dir.join("keys.db-shm"));
        std::fs::write(&wal, &bytes[..cut]).expect("written");
        let keys = check_restart(&home.dir, &log.fork(), &pin, &format!("cut at {cut}"));
        seen[keys - 1] += 1;
    }
    assert!(seen[0] > 1 && seen[1] > 0, "{seen:?}");
}
