//! A process of a key service takes the place of another one that still makes changes: what it has to read again, and to finish.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // clients are threads

mod kms;

use kms::{HeldLock, Kms};
use ron_ha::cluster::Cluster;
use ron_ha::contract::{soon, wait_for};
use ron_proto::kms::SignRequest;

/// Has claims of a log wait for the lock 7, and no append: what a claim waits for otherwise is in the way of appends too.
const HOLD_CLAIMS: [&str; 2] = [
    "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
       IF current_query() LIKE '%epoch + 1%' THEN PERFORM pg_advisory_xact_lock(7); END IF; RETURN NULL;
     END $$",
    "CREATE TRIGGER hold BEFORE UPDATE ON ron_kms.log_head FOR EACH STATEMENT EXECUTE FUNCTION hold()",
];

/// The process reads the keys, and then waits with its claim, while the one before makes a key with its leaf.
#[test]
fn the_keys_are_read_again_after_the_claim() {
    let cluster = Cluster::pair();
    let before = Kms::start(&cluster, "a");
    before.wait_ready();
    before.create(1).unwrap();
    for sql in HOLD_CLAIMS {
        cluster.primary.admin(sql, &[]);
    }
    let lock = HeldLock::take(&cluster, "SELECT pg_advisory_xact_lock(7)");
    let after = Kms::start(&cluster, "a");
    lock.wait_for_waiter();
    let key = before.create(2).unwrap();
    drop(lock);
    after.wait_ready();
    let message = SignRequest::message(key, *b"made between reading and claim");
    after.client().sign(&message, soon()).unwrap();
}

/// A change of the process before is committed when the log is claimed, so that it has no leaf: the process gives it one.
#[test]
fn a_change_that_is_committed_after_the_claim_gets_its_leaf() {
    let cluster = Cluster::pair();
    let before = Kms::start(&cluster, "a");
    before.wait_ready();
    before.create(1).unwrap();
    let lock = HeldLock::take(&cluster, "LOCK TABLE ron_kms_keys.outbox IN EXCLUSIVE MODE");
    let after = std::thread::scope(|scope| {
        let made = scope.spawn(|| before.create(2));
        lock.wait_for_waiter();
        let after = Kms::start(&cluster, "a");
        after.wait_ready();
        drop(lock);
        assert!(made.join().unwrap().is_err(), "its leaf is not in the log");
        after
    });
    let count = |table: &str| {
        let sql = format!("SELECT count(*) FROM ron_kms_keys.{table}");
        cluster.primary.admin(&sql, &[]).int8(0, 0)
    };
    // By the process before: nobody has asked the other one for it.
    assert_eq!(count("keys"), Ok(2), "the change is committed");
    wait_for("the change is complete", || count("outbox") == Ok(0));
    // The same operation: it is answered, and not done again.
    let key = after.create(2).unwrap();
    assert_eq!(count("keys"), Ok(2));
    let message = SignRequest::message(key, *b"made after the claim");
    after.client().sign(&message, soon()).unwrap();
}

/// An auditor who has the log of one node learns of the other's, and of its new key. A node that joins names the first before its
/// first result; the first names it when it reads the keys.
#[test]
fn logs_name_each_other() {
    let cluster = Cluster::pair();
    let nodes = ["a", "b"].map(|name| {
        let node = Kms::start(&cluster, name);
        node.wait_ready();
        node
    });
    let vkey = |node: usize| {
        let vkey = nodes[node].client().audit_vkey(soon()).unwrap();
        vkey.trim().to_owned()
    };
    let first = [vkey(0), vkey(1)];
    let named = |by: usize, key: &str| {
        let dir = nodes[by].node.dir.path().join("data/audit");
        wait_for("the log is named", || {
            let report = ron_kms::verify_dir(&dir, &first[by], &mut |_, _| ());
            let Ok(report) = report else {
                return false; // it is written to meanwhile
            };
            report
                .peer_logs
                .values()
                .any(|peer| peer.to_string() == key)
        });
    };
    named(1, &first[0]);
    named(0, &first[1]);
    let change = ron_proto::kms::RotateLogKey::default();
    nodes[1].client().rotate_log_key(&change, soon()).unwrap();
    let newest = vkey(1);
    assert_ne!(newest, first[1]);
    named(0, &newest);
}
