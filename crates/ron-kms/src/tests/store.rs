//! The sealed store: tampering, restarts, and a crash between store and log.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_custody::backend::Backends;
use ron_custody::store::{KeyStore, Pending, StoreError};
use ron_files::{CrashMode, Dir, FaultKind, SimDisk};
use ron_kernel::SeededRandom;
use ron_proto::kms::{
    KeyBackend, KeyDoc, KeyState, PayloadPolicy, RotateAnswer, RotateRequest, SignRequest,
};
use ron_proto::values::{Alg, Kid, Timestamp};
use rusqlite::Connection;

use super::{Rig, file_settings, op_id, signed};
use crate::api::keys::{self, Wanted};
use crate::audit::leaf::{Leaf, Op};
use crate::engine::store_settings;
use crate::settings::SealSource;

pub fn open(dir: &Path) -> Result<KeyStore, StoreError> {
    KeyStore::open(
        &store_settings(&file_settings(dir), Some(Dir::os(dir))),
        Backends::new(
            KeyBackend::File,
            Vec::new(),
            ron_kernel::SystemClock::shared(),
        ),
        Arc::new(SeededRandom::new(3)),
        Timestamp(1),
    )
}

pub fn database(dir: &Path) -> Connection {
    Connection::open(dir.join(ron_custody::store::FILE_NAME)).expect("opens")
}

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("dir");
    for entry in std::fs::read_dir(from)
        .expect("dir")
        .map(|e| e.expect("entry"))
    {
        let target = to.join(entry.file_name());
        if entry.file_type().expect("type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copies");
        }
    }
}

pub fn with_keys(dir: &Path) -> Vec<KeyDoc> {
    let rig = Rig::file(dir).expect("starts");
    let docs = [
        rig.create("issuer", Alg::Ed25519, PayloadPolicy::Digest, 1),
        rig.create("manifest", Alg::EcdsaP256, PayloadPolicy::Any, 2),
    ];
    rig.rotated(&docs[0].key);
    let docs = docs.iter().map(|d| rig.doc(&d.key)).collect();
    rig.stop();
    docs
}

#[test]
fn keys_and_operation_ids_survive_a_restart() {
    let dir = tempfile::tempdir().expect("dir");
    let docs = with_keys(dir.path());
    let rig = Rig::file(dir.path()).expect("starts again");
    for doc in &docs {
        assert_eq!(rig.doc(&doc.key), *doc);
    }
    let first = rig.create("manifest", Alg::EcdsaP256, PayloadPolicy::Any, 2);
    assert_eq!(first.key, docs[1].key, "the same op_id makes no second key");
    let answer = signed(&rig.sign(SignRequest::message(docs[1].key.clone(), *b"x")));
    assert!(rig.verify(&docs[1].key, None, b"x", &answer.signatures).ok);
    rig.stop();
}

/// Changes a copy of the store with SQL and says why it does not open.
fn refusal_after(dir: &Path, what: &str, change: &str) -> String {
    let copied = tempfile::tempdir().expect("dir");
    copy(dir, copied.path());
    let db = database(copied.path());
    db.execute_batch(change)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    drop(db);
    let error = open(copied.path()).err();
    error
        .unwrap_or_else(|| panic!("{what}: was opened"))
        .to_string()
}

/// Flips one bit of a value of the row of `keys` or `versions` that `place` selects; its length.
fn flip(dir: &Path, (table, column, place): (&str, &str, &str), at: usize) -> usize {
    let db = database(dir);
    db.pragma_update(None, "synchronous", "OFF").expect("set");
    let sql = format!("SELECT {column} FROM {table} WHERE {place}");
    let mut value: Vec<u8> = db.query_row(&sql, [], |r| r.get(0)).expect("a blob");
    let length = value.len();
    if let Some(byte) = value.get_mut(at) {
        *byte ^= 1;
    }
    let sql = format!("UPDATE {table} SET {column} = ?1 WHERE {place}");
    db.execute(&sql, [value]).expect("changed");
    length
}

/// Every byte of everything that the store keeps about a key: the key or the version is named, and all others are there.
#[test]
fn a_changed_byte_of_metadata_public_keys_and_sums_is_named_and_takes_nothing_else_out_of_use() {
    let dir = tempfile::tempdir().expect("dir");
    let docs = with_keys(dir.path());
    let (kid, other) = (&docs[0].key, &docs[1].key);
    let check = |table: &str, column: &str, row: &str, named: &str| {
        let copied = tempfile::tempdir().expect("dir");
        copy(dir.path(), copied.path());
        let place = (table, column, row);
        let length = flip(copied.path(), place, usize::MAX);
        assert!(length >= 32, "{column}");
        for at in 0..length {
            flip(copied.path(), place, at);
            let store = open(copied.path()).unwrap_or_else(|e| panic!("{column}, byte {at}: {e}"));
            assert_eq!(store.damaged(), [named], "{column}, byte {at}");
            let index = store.index();
            assert!(index.keys.contains_key(other));
            assert_eq!(index.keys.contains_key(kid), named.contains("#v"));
            drop(store);
            flip(copied.path(), place, at);
        }
        assert!(open(copied.path()).expect("as before").damaged().is_empty());
    };
    let key = format!("kid = '{kid}'");
    check("keys", "meta", &key, &kid.to_string());
    check("keys", "mac", &key, &kid.to_string());
    let version = |number| {
        (
            format!("{key} AND number = {number}"),
            format!("{kid}#v{number}"),
        )
    };
    let (old, old_named) = version(1);
    check("versions", "public", &old, &old_named);
    let (head, head_named) = version(2);
    for column in ["public", "sealed_sha256", "sealed", "birth_mac"] {
        check("versions", column, &head, &head_named);
    }
    let later = format!("UPDATE versions SET created = created + 1 WHERE {old}");
    database(dir.path()).execute_batch(&later).expect("set");
    assert_eq!(open(dir.path()).expect("opens").damaged(), [old_named]);
}

/// The list, whole and in pages of one key, names the damaged key with the code and reason that reading it gives.
fn listed_with_the_others(rig: &Rig, bad: &Kid, sound: &Kid) {
    let page = |wanted: &Wanted, after, limit| {
        keys::page(&rig.engine.kms, &rig.caller, wanted, after, limit)
    };
    let all = page(&Wanted::default(), None, 50);
    let index = rig.engine.kms.index.load();
    let found = index.find(&rig.caller, bad);
    let refusal = found.expect_err("it is damaged");
    assert_eq!(refusal.cause, ron_custody::Cause::Quarantined);
    let shown = serde_json::to_value(&all.quarantined).expect("json");
    let wanted = serde_json::json!([
        {"key": bad, "state": "quarantined", "reason": refusal.detail}
    ]);
    assert_eq!((shown, all.next), (wanted, None));
    assert_eq!(all.keys[0].key, *sound);

    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let one = page(&Wanted::default(), after, 1);
        assert_eq!(one.keys.len() + one.quarantined.len(), 1);
        names.extend(one.keys.into_iter().map(|doc| doc.key));
        names.extend(one.quarantined.into_iter().map(|found| found.key));
        let Some(next) = one.next else { break };
        after = Some(next.parse().expect("a key's name"));
    }
    let mut both = [bad.clone(), sound.clone()];
    both.sort();
    assert_eq!(names, both);
    let active = Wanted {
        state: Some(KeyState::Active),
        ..Wanted::default()
    };
    assert_eq!(page(&active, None, 50).quarantined, []);
}

#[test]
fn a_key_with_damaged_metadata_is_out_of_use_and_everything_else_works() {
    let dir = tempfile::tempdir().expect("dir");
    let text = |kid: &Kid| SignRequest::message(kid.clone(), *b"x");
    let rig = Rig::file(dir.path()).expect("starts");
    let [bad, sound] = [1, 2].map(|op| {
        let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, op);
        doc.key
    });
    let before = signed(&rig.sign(text(&sound)));
    rig.stop();
    let place = format!("kid = '{bad}'");
    flip(dir.path(), ("keys", "meta", &place), 20);
    // Its public key is known again from the sealed record.
    let place = format!("kid = '{sound}'");
    flip(dir.path(), ("versions", "public", &place), 3);

    for start in 0..2 {
        let rig = Rig::file(dir.path()).expect("starts");
        let ready = rig.ready.snapshot();
        assert!(ready.ready && ready.degraded == ["keys"], "{ready:?}");
        let why = rig.ready.causes()[0].2.clone();
        assert!(why.contains(&format!("{bad}, {sound}#v1")), "{why}");
        let refused = rig.sign(text(&bad));
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (503, "quarantined")
        );
        assert!(String::from_utf8_lossy(&refused.body).contains(&bad.to_string()));
        let refused = rig.rotate(&bad, RotateRequest::default());
        assert_eq!(refused.code(), "quarantined");
        let found = rig
            .engine
            .kms
            .index
            .load()
            .find(&rig.caller, &bad)
            .map(drop);
        assert!(found.is_err_and(|e| e.detail.contains("restored from a backup")));
        listed_with_the_others(&rig, &bad, &sound);
        assert!(rig.verify(&sound, Some(1), b"x", &before.signatures).ok);
        // The store takes changes of the other keys, and its MAC covers the damaged one as before.
        if start == 0 {
            assert_eq!(rig.sign(text(&sound)).code(), "quarantined");
            rig.rotated(&sound);
        }
        assert_eq!(signed(&rig.sign(text(&sound))).version, 2);
        rig.stop();
    }
}

/// Flips one byte of a sealed record.
fn damage(dir: &Path, kid: &Kid, number: u32, at: usize) {
    let row = format!("kid = '{kid}' AND number = {number}");
    let place = ("versions", "sealed", row.as_str());
    let length = flip(dir, place, usize::MAX);
    flip(dir, place, at % length);
}

#[test]
fn a_damaged_version_verifies_and_everything_else_works() {
    let dir = tempfile::tempdir().expect("dir");
    let text = |kid: &Kid| SignRequest::message(kid.clone(), *b"x");
    let rig = Rig::file(dir.path()).expect("starts");
    let [old, head, other] = [1, 2, 3].map(|op| {
        let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, op);
        doc.key
    });
    let wraps = rig
        .create("wraps", Alg::Aes256Gcm, PayloadPolicy::Any, 4)
        .key;
    let first = signed(&rig.sign(text(&old)));
    rig.rotated(&old);
    let before = signed(&rig.sign(text(&head)));
    rig.stop();
    damage(dir.path(), &old, 1, 300);
    damage(dir.path(), &head, 1, 300);
    damage(dir.path(), &wraps, 1, 300);

    let rig = Rig::file(dir.path()).expect("starts");
    let ready = rig.ready.snapshot();
    assert!(
        ready.ready && ready.degraded.contains(&"keys".to_owned()),
        "{ready:?}"
    );
    let why = rig.ready.causes();
    let why = why
        .iter()
        .find(|(name, ..)| *name == "keys")
        .expect("reported");
    for kid in [&old, &head, &wraps] {
        assert!(why.2.contains(&format!("{kid}#v1")), "{why:?}");
    }
    signed(&rig.sign(text(&other)));
    // An old version that only verifies is not missed.
    signed(&rig.sign(text(&old)));
    assert!(rig.verify(&old, Some(1), b"x", &first.signatures).ok);
    let versions = rig.engine.kms.index.load().keys[&old].versions.clone();
    assert!(versions[0].damaged && !versions[1].damaged);
    // A damaged head signs nothing, and no older version signs in its place.
    let refused = rig.sign(text(&head));
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "quarantined")
    );
    assert!(rig.verify(&head, None, b"x", &before.signatures).ok);
    rig.rotated(&head);
    let again = signed(&rig.sign(text(&head)));
    assert_eq!(again.version, 2);
    rig.stop();
    let rig = Rig::file(dir.path()).expect("starts again");
    signed(&rig.sign(text(&head)));
    rig.stop();
}

#[test]
fn rows_cannot_be_changed_removed_or_moved() {
    let dir = tempfile::tempdir().expect("dir");
    let docs = with_keys(dir.path());
    let kid = docs[0].key.to_string();
    let check = |what: &str, change: &str, word: &str| {
        let error = refusal_after(dir.path(), what, &change.replace("KID", &kid));
        assert!(
            error.contains(&word.replace("KID", &kid)),
            "{what}: {error}"
        );
    };
    check(
        "metadata and MAC changed",
        "UPDATE keys SET mac = zeroblob(32), \
           meta = CAST(replace(CAST(meta AS TEXT), 'digest', 'any') AS BLOB) WHERE kid = 'KID'",
        "changed from outside",
    );
    check(
        "metadata moved",
        "UPDATE keys SET meta = (SELECT meta FROM keys WHERE kid != 'KID') WHERE kid = 'KID'",
        "KID holds the record of another",
    );
    check(
        "public key moved",
        "UPDATE versions SET public = (SELECT public FROM versions WHERE kid = 'KID' AND number = 2) \
         WHERE kid = 'KID' AND number = 1",
        "KID#v1 holds the record of another",
    );
    check(
        "key removed",
        "DELETE FROM keys WHERE kid = 'KID'; DELETE FROM versions WHERE kid = 'KID'",
        "changed from outside",
    );
    check(
        "version removed",
        "DELETE FROM versions WHERE kid = 'KID' AND number = 2",
        "KID",
    );
    check(
        "versions moved",
        "UPDATE versions SET sealed = (SELECT sealed FROM versions WHERE kid = 'KID' AND number = 2) \
         WHERE kid = 'KID' AND number = 1",
        "KID#v1",
    );
    check(
        "version counter",
        "UPDATE store SET version = version - 1",
        "changed from outside",
    );
    check(
        "log key",
        "UPDATE store SET log_key = CAST(log_key || x'00' AS BLOB)",
        "ron-kms/log-key#v1",
    );
    check(
        "origin",
        "UPDATE store SET log_origin = 'elsewhere'",
        "changed from outside",
    );
}

#[test]
fn the_store_grows_with_its_versions_and_answers_do_not() {
    const ROTATIONS: u64 = 300;
    let dir = tempfile::tempdir().expect("dir");
    let rig = Rig::file(dir.path()).expect("starts");
    let key = rig.create("app", Alg::MlDsa65, PayloadPolicy::Any, 1).key;
    let rotate = || rig.rotate(&key, RotateRequest::default()).body.len();
    let first = rotate();
    for _ in 2..ROTATIONS {
        rotate();
    }
    // Numbers have more digits by now.
    let last = rotate();
    assert!(last < first + 32, "{first} bytes became {last}");
    rig.stop();
    let file = dir.path().join(ron_custody::store::FILE_NAME);
    let bytes = std::fs::metadata(file).expect("the store").len() / (ROTATIONS + 1);
    assert!(bytes < 8192, "{bytes} bytes for a version");
}

#[test]
fn an_audit_log_without_its_store_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    with_keys(dir.path());
    for suffix in ["", "-wal", "-shm"] {
        let name = format!("{}{suffix}", ron_custody::store::FILE_NAME);
        let _ = std::fs::remove_file(dir.path().join(name)); // the last two are gone after an orderly stop
    }
    let why = Rig::file(dir.path()).err().expect("refused").to_string();
    assert!(why.contains("keys.db is missing"), "{why}");
    assert!(!dir.path().join(ron_custody::store::FILE_NAME).exists());
}

#[test]
fn the_seal_key_must_be_the_right_one_and_private() {
    let dir = tempfile::tempdir().expect("dir");
    with_keys(dir.path());
    let key_file = dir.path().join("seal.key");
    let good = std::fs::read(&key_file).expect("made with the store");
    let check = |text: &[u8], word: &str| {
        std::fs::write(&key_file, text).expect("writes");
        let error = open(dir.path()).err().expect("refused").to_string();
        assert!(error.contains(word), "{error}");
    };
    check(&[b'0'; 64], "not the one this store was made with");
    check(b"short", "64 hex digits");
    std::fs::write(&key_file, &good).expect("writes");
    let mode = |mode| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(mode)).expect("chmod");
    };
    mode(0o644);
    assert!(
        open(dir.path())
            .err()
            .expect("refused")
            .to_string()
            .contains("chmod 600")
    );
    mode(0o600);
    std::fs::remove_file(&key_file).expect("removes");
    assert!(
        open(dir.path()).is_err(),
        "a lost seal key is not replaced by a new one"
    );
    std::fs::write(&key_file, &good).expect("writes");
    mode(0o600);
    open(dir.path()).map(drop).expect("opens");
}

#[test]
fn a_passphrase_seals_too() {
    use std::os::unix::fs::OpenOptionsExt as _;
    let dir = tempfile::tempdir().expect("dir");
    let secret = dir.path().join("passphrase");
    let write = |text: &str| {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&secret)
            .expect("opens");
        std::io::Write::write_all(&mut file, text.as_bytes()).expect("writes");
    };
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("dir");
    let mut settings = file_settings(&data);
    settings.seal = SealSource::Passphrase(secret.clone());
    let open = || {
        let backends = Backends::new(
            KeyBackend::File,
            Vec::new(),
            ron_kernel::SystemClock::shared(),
        );
        KeyStore::open(
            &store_settings(&settings, Some(Dir::os(&data))),
            backends,
            Arc::new(SeededRandom::new(3)),
            Timestamp(1),
        )
    };
    write("correct horse");
    drop(open().expect("made"));
    drop(open().expect("opens"));
    write("battery staple");
    assert!(matches!(open(), Err(StoreError::WrongSealKey)));
}

/// The power fails at every operation of the log while a change is made: the change is in the store, and its leaf is on the
/// disk or not. The next start finds the leaf or writes it, once.
#[test]
fn a_crash_between_store_and_log_is_repaired_at_start() {
    let (mut found, mut written) = (0, 0);
    for mode in [CrashMode::LoseAll, CrashMode::KeepAll] {
        for nth in 1_u64.. {
            let what = format!("{mode:?} at operation {nth}");
            let dir = tempfile::tempdir().expect("dir");
            std::fs::create_dir(dir.path().join("audit")).expect("made");
            let disk = SimDisk::new();
            let start = || Rig::start(file_settings(dir.path()), Some(disk.clone()));
            let rig = start().expect("starts");
            let kid = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1).key;
            disk.fail_after(nth, FaultKind::PowerOff);
            let request = || RotateRequest {
                expected_head: Some(1),
                op_id: Some(op_id(77)),
                ..RotateRequest::default()
            };
            let answered = rig.rotate(&kid, request()).status == 200;
            if !answered {
                assert_eq!(rig.doc(&kid).head, 1, "{what}: invisible without its leaf");
            }
            rig.sup.drain(Duration::from_secs(5));
            drop(rig);
            disk.crash(mode);
            let segment = disk.peek(&dir.path().join("audit/00000000.seg"));
            let needle = b"\"op\":\"rotate\"";
            let on_disk = segment.is_some_and(|s| s.windows(needle.len()).any(|w| w == needle));
            if answered {
                assert!(on_disk, "{what}");
                break;
            }
            *(if on_disk { &mut found } else { &mut written }) += 1;
            let rig = start().expect("starts");
            let doc = rig.doc(&kid);
            assert_eq!((doc.head, doc.versions.len()), (2, 1), "{what}");
            let again: RotateAnswer = rig.rotate(&kid, request()).json();
            assert_eq!(
                (again.op_id, again.document),
                (op_id(77), doc.clone()),
                "{what}"
            );
            let reader = rig.engine.reader.clone().expect("log");
            let leaves = (0..reader.size_durable()).map(|at| reader.entry(at).expect("leaf"));
            let leaves: Vec<Leaf> = leaves.map(|l| Leaf::parse(&l).expect("leaf")).collect();
            assert_eq!(
                leaves.iter().filter(|l| l.op == Op::Rotate).count(),
                1,
                "{what}"
            );
            let born = &leaves[doc.versions[0].receipt.index as usize];
            assert_eq!(
                (born.op, born.version, born.key_op_counter),
                (Op::Rotate, Some(2), Some(2)),
                "{what}"
            );
            rig.stop();
            let mut store = open(dir.path()).expect("opens");
            assert_eq!(store.pending().expect("reads"), None::<Pending>, "{what}");
        }
    }
    assert!(found > 0 && written > 0, "{found} found, {written} written");
}
