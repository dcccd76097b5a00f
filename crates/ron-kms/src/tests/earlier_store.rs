//! A key store that an earlier program has written.

use ron_custody::store::OpRow;
use ron_proto::kms::{KeyBackend, PayloadPolicy};
use ron_proto::values::{Kid, Timestamp};

use super::op_id;
use super::store::{database, open};

/// A store from before logs had rows of their own, with a change and a key of the log whose leaves are not durable.
#[test]
fn a_store_of_one_log_goes_on() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut store = open(dir.path()).expect("made");
    let kid: Kid = "shop/keys/ed25519/0190f0a0-0000-7000-8000-000000000001"
        .parse()
        .expect("a key");
    let op = |byte| OpRow {
        tenant: "shop".parse().expect("a tenant"),
        op_id: op_id(byte),
        body: [1; 32],
        now: Timestamp(1),
    };
    let new = store.new_key(&kid, KeyBackend::File, PayloadPolicy::Any, Timestamp(2));
    store
        .commit(new.expect("planned"), &op(1), b"leaf", 0)
        .expect("committed");
    let pending = store.pending().expect("reads").expect("pending");
    store.complete(&pending, 4, "answer").expect("completed");
    let change = store.next_version(&kid, Timestamp(3)).expect("planned");
    store
        .commit(change, &op(2), b"its leaf", 5)
        .expect("committed");
    let key = store.next_log_key(6, Timestamp(4)).expect("made");
    store
        .commit_log_key(key, &op(3), b"the key's leaf", 6)
        .expect("committed");
    let before = (
        store.version(),
        store.pending().expect("reads"),
        store.pending_log_key().expect("reads"),
    );
    drop(store);
    let db = database(dir.path());
    let made = |table: &str| {
        let mut steps = ron_custody::store::MIGRATIONS[0].sql.split(';');
        let create = format!("CREATE TABLE {table} ");
        steps.find(|step| step.contains(&create)).expect("a table")
    };
    let earlier = format!(
        "ALTER TABLE outbox RENAME TO o; {};
         INSERT INTO outbox SELECT 1, tenant, op_id, kid, number, leaf, log_size, version_before FROM o;
         DROP TABLE o; ALTER TABLE log_keys RENAME TO l; {};
         INSERT INTO log_keys SELECT number, created, sealed, statement, leaf, log_size, version_before, birth FROM l;
         DROP TABLE l; DROP TABLE logs; ALTER TABLE versions DROP COLUMN birth_log;
         ALTER TABLE issuer_policy DROP COLUMN log;
         DROP INDEX keys_changed; ALTER TABLE keys DROP COLUMN changed;
         ALTER TABLE store DROP COLUMN transit; PRAGMA user_version = 1",
        made("outbox"),
        made("log_keys"),
    );
    db.execute_batch(&earlier).expect("the tables of before");
    drop(db);
    let mut store = open(dir.path()).expect("goes on");
    let after = (
        store.version(),
        store.pending().expect("reads"),
        store.pending_log_key().expect("reads"),
    );
    assert_eq!(after, before);
    assert!(before.1.is_some() && before.2.is_some());
    let key = store.key(&kid).expect("the key");
    let born = &key.versions[0];
    assert_eq!((&*born.log, born.birth), (&*store.log().origin, 4));
}
