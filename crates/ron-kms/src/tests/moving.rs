//! What of a key store cannot go to another host, and what a service says of keys that a migration has.

use std::sync::Arc;

use ron_custody::backend::Backends;
use ron_custody::store::{FILE_NAME, KeyStore, immovable_in, records_in, remove_from};
use ron_files::Dir;
use ron_kernel::SeededRandom;
use ron_proto::kms::KeyBackend;

use super::file_settings;
use super::store::{database, open, with_keys};
use crate::engine::store_settings;

/// As a migration opens it: all MACs are checked.
fn moving(home: &Dir) -> KeyStore {
    let records = records_in(home, false).expect("opens").expect("a file");
    let settings = store_settings(&file_settings(home.path()), Some(home.clone()));
    let backends = Backends::new(
        KeyBackend::File,
        Vec::new(),
        ron_kernel::SystemClock::shared(),
    );
    let random = Arc::new(SeededRandom::new(3));
    let opened = KeyStore::open_moving(records, &settings, backends, random);
    opened.expect("opens").expect("a store")
}

#[test]
fn keys_of_a_device_and_counted_starts_stay_where_they_are() {
    let dir = tempfile::tempdir().expect("tempdir");
    with_keys(dir.path());
    let home = Dir::os(dir.path());
    assert_eq!(immovable_in(&home).expect("reads"), None);
    assert_eq!(moving(&home).immovable(), None);
    // A device's key is told by its metadata, beside a service that runs as well.
    let db = database(dir.path());
    let in_device = "UPDATE keys SET meta = CAST('{\"backend\":\"pkcs11\",' || substr(CAST(meta AS TEXT), 2) AS BLOB)
                     WHERE kid = (SELECT min(kid) FROM keys)";
    assert_eq!(db.execute(in_device, []).expect("changes"), 1);
    let why = immovable_in(&home).expect("reads").expect("a device");
    assert!(why.contains("1 keys are in a device"), "{why}");
    let back = "UPDATE keys SET meta = CAST(replace(CAST(meta AS TEXT), '\"backend\":\"pkcs11\",', '') AS BLOB)";
    db.execute(back, []).expect("changes");
    drop(db);
    open(dir.path())
        .expect("opens")
        .set_tpm_counter(7)
        .expect("kept");
    for why in [
        immovable_in(&home).expect("reads"),
        moving(&home).immovable(),
    ] {
        assert!(why.expect("a counter").contains("counted in a TPM"));
    }
}

#[test]
fn keys_that_a_migration_has_are_refused() {
    let dir = tempfile::tempdir().expect("tempdir");
    with_keys(dir.path());
    let mark = |text: &str| {
        let sql = format!("UPDATE store SET transit = {text}");
        database(dir.path()).execute(&sql, []).expect("marked");
    };
    let refused = || open(dir.path()).err().expect("refused").to_string();
    mark("'moved:host-b:/data#0'");
    let said = refused();
    assert!(said.contains("they were moved to host-b:/data"), "{said}");
    mark("'filling:postgresql://a/b#0'");
    let said = refused();
    assert!(
        said.contains("from postgresql://a/b") && said.contains("--resume"),
        "{said}"
    );
    mark("'no such thing'");
    let said = refused();
    assert!(said.contains("its transit"), "{said}");
    mark("NULL");
    open(dir.path()).expect("in use again");
}

/// Nothing of a sealed record stays in a file of the store.
#[test]
fn keys_that_are_elsewhere_are_overwritten_and_removed() {
    let dir = tempfile::tempdir().expect("tempdir");
    with_keys(dir.path());
    let home = Dir::os(dir.path());
    let path = dir.path().join(FILE_NAME);
    let sealed: Vec<u8> = database(dir.path())
        .query_row("SELECT sealed FROM versions LIMIT 1", [], |row| row.get(0))
        .expect("a record");
    let kept = dir.path().join("kept");
    std::fs::hard_link(&path, &kept).expect("a second name");
    let holds = |path: &std::path::Path| {
        let bytes = std::fs::read(path).expect("reads");
        bytes.windows(sealed.len()).any(|window| window == sealed)
    };
    assert!(holds(&kept));
    for _ in 0..2 {
        remove_from(&home).expect("removed");
        assert!(!path.exists());
    }
    assert!(!holds(&kept));
}
