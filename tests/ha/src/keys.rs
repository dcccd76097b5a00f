//! The store of keys in an engine: the same as in a file, and what holds when several nodes have it open.

use std::sync::Arc;

use ron_custody::backend::Backends;
use ron_custody::keys::note::Checkpoint;
use ron_custody::store::{
    Change, Erase, KeyStore, MIGRATIONS, OpName, OpRecord, OpRow, SealSource, StoreError,
    StoreSettings,
};
use ron_kernel::{SeededRandom, SystemClock};
use ron_proto::kms::{KeyBackend, KeyState, PayloadPolicy};
use ron_proto::values::{Alg, Kid, OpId, Tenant, Timestamp};
use ron_service::Store;
use ron_service::records::{FileRecords, RecordStore};
use tempfile::TempDir;
use uuid::Uuid;

/// A seal key that every node was given.
fn seal_key(dir: &TempDir, name: &str, digit: char) -> SealSource {
    let path = dir.path().join(name);
    std::fs::write(&path, digit.to_string().repeat(64)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, mode).unwrap();
    SealSource::KeyFile {
        path,
        may_create: false,
    }
}

/// The store as the node with the log `kms.example/SEED` has it.
fn open(
    records: Box<dyn RecordStore>,
    seal: &SealSource,
    seed: u64,
) -> Result<KeyStore, StoreError> {
    let settings = StoreSettings {
        home: None,
        seal: seal.clone(),
        origin: Some(format!("kms.example/{seed}")),
    };
    let backends = Backends::new(KeyBackend::File, Vec::new(), SystemClock::shared());
    let random = Arc::new(SeededRandom::new(seed));
    KeyStore::open_in(records, &settings, backends, random, Timestamp(1))
}

fn in_memory() -> Box<dyn RecordStore> {
    Box::new(FileRecords::new(Store::memory(MIGRATIONS).unwrap()))
}

fn kid(number: u128, alg: Alg) -> Kid {
    Kid {
        tenant: tenant(),
        purpose: "keys".parse().unwrap(),
        alg,
        id: Uuid::from_u128(number),
    }
}

fn tenant() -> Tenant {
    "shop".parse().unwrap()
}

fn op(number: u128) -> OpRow {
    OpRow {
        tenant: tenant(),
        op_id: OpId(Uuid::from_u128(number)),
        body: [7; 32],
        now: Timestamp(1_000),
    }
}

/// Commits a change and completes it.
fn commit(store: &mut KeyStore, change: Change, number: u128) -> Result<(), StoreError> {
    store.commit(change, &op(number), b"leaf", 3)?;
    let pending = store.pending()?.expect("it was committed");
    store.complete(&pending, number as u64, "answer")
}

fn make(store: &mut KeyStore, number: u128, alg: Alg) -> Kid {
    let kid = kid(number, alg);
    let change = store.new_key(&kid, KeyBackend::File, PayloadPolicy::Any, Timestamp(5));
    commit(store, change.unwrap(), number).unwrap();
    kid
}

fn destruction(store: &KeyStore, kid: &Kid) -> Change {
    let mut meta = store.meta(kid).unwrap().clone();
    (meta.destroyed, meta.destroy_at) = (true, Some(Timestamp(9)));
    Change {
        erase: Erase::All,
        ..Change::of(kid, meta)
    }
}

/// What readers see of a store, but for the keys themselves, which are made at random.
fn shown(store: &KeyStore) -> Vec<String> {
    let index = store.index();
    let keys = index.keys.values().map(|key| {
        let births: Vec<_> = key.versions.iter().map(|v| (v.created, v.birth)).collect();
        let state = (key.state, key.head, key.secret.is_some(), key.secrets.len());
        format!("{} {state:?} {births:?}", key.kid)
    });
    keys.collect()
}

/// Everything that a store is asked for; the same on every engine.
fn changes(store: &mut KeyStore, reopen: impl Fn() -> KeyStore) -> Vec<String> {
    let signs = make(store, 1, Alg::Ed25519);
    let wraps = make(store, 2, Alg::Aes256Gcm);
    let change = store.next_version(&signs, Timestamp(6)).unwrap();
    commit(store, change, 3).unwrap();
    assert_eq!(
        store.reserve_uses(&wraps, 1, 100, 250).unwrap(),
        Some((0, 100))
    );
    assert_eq!(
        store.reserve_uses(&wraps, 1, 200, 250).unwrap(),
        Some((100, 250))
    );
    assert_eq!(store.reserve_uses(&wraps, 1, 200, 250).unwrap(), None);
    let note = Checkpoint {
        size: 4,
        root: [4; 32],
    };
    store.advance_note(&signs, &note).unwrap();
    let gone = make(store, 4, Alg::EcdsaP256);
    let change = destruction(store, &gone);
    commit(store, change, 5).unwrap();
    let found = |store: &mut KeyStore, number, now| {
        let tenant = tenant();
        let name: OpName<'_> = (&tenant, OpId(Uuid::from_u128(number)));
        store.find_op(name, Timestamp(now)).unwrap()
    };
    let known = Some(OpRecord::Known {
        body: [7; 32],
        answer: Some("answer".into()),
    });
    assert_eq!(found(store, 3, 2_000), known);
    assert_eq!(found(store, 3, 2_000 + 24 * 3_600_000), None);
    assert_eq!(found(store, 99, 2_000), None);
    // A change whose leaf is not known to be durable is still pending when the store is opened again.
    let change = store.next_version(&signs, Timestamp(8)).unwrap();
    store.commit(change, &op(6), b"its leaf", 7).unwrap();
    let mut again = reopen();
    assert_eq!(shown(&again), shown(store));
    let public = |store: &KeyStore| store.key(&signs).unwrap().to_doc();
    assert_eq!(public(&again), public(store));
    assert_eq!(again.note_head(&signs), Some(note));
    assert_eq!(again.uses_reserved(&wraps, 1), 250);
    assert!(again.reopen(&signs, 1).unwrap().is_some());
    assert!(again.reopen(&gone, 1).is_err(), "its header is no record");
    let pending = again.pending().unwrap().expect("it was committed");
    assert_eq!(
        (pending.leaf.as_slice(), pending.log_size),
        (&b"its leaf"[..], 7)
    );
    again.complete(&pending, 8, "later").unwrap();
    assert_eq!(again.pending().unwrap(), None);
    let key = again.key(&signs).unwrap();
    assert_eq!((key.head, key.versions[2].birth), (3, 8));
    assert_eq!(again.key(&gone).unwrap().state, KeyState::Destroyed);
    shown(&again)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let seal = seal_key(&dir, "seal", 'a');
        let mut store = open(in_memory(), &seal, 1).unwrap();
        let kid = make(&mut store, 1, Alg::Ed25519);
        assert!(!store.refresh().unwrap(), "nothing has changed");
        assert_eq!(store.key(&kid).unwrap().head, 1);
    }

    #[cfg(feature = "postgres")]
    mod postgres {
        use std::sync::Mutex;
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        use std::time::Duration;

        use ron_crypto::sign::Ed25519Key;
        use ron_files::SimDisk;
        use ron_kernel::Deadline;
        use ron_pg::{Durability, PgLogOptions, PgLogStore};
        use ron_proto::passport::IssuerPolicy;
        use ron_proto::policy::{PolicySig, policy_message};
        use ron_proto::{b64, jcs};
        use ron_service::pinned::{KeyRing, PinnedKey};
        use ron_service::records::{
            PgRecordOptions, PgRecords, RecordError, Row, Statements, Value, Work,
        };
        use ron_service::signed_policy;
        use ron_tlog::append::{EngineError, EngineLog};
        use ron_tlog::store::StoreError as LogError;
        use serde_json::json;

        use super::*;
        use crate::cluster::{Cluster, waiter};
        use crate::contract::{TwoHosts as _, soon, wait_for};
        use crate::log;
        use crate::postgres::PgRig;

        fn records(rig: &PgRig, schema: &str, node: &str) -> Box<dyn RecordStore> {
            let options = PgRecordOptions {
                schema: schema.into(),
                ..rig.record_options(node, MIGRATIONS)
            };
            Box::new(PgRecords::new(options, waiter()))
        }

        #[test]
        fn keys_in_postgresql() {
            let rig = PgRig::new(Cluster::pair(), Durability::Standby);
            let dir = tempfile::tempdir().unwrap();
            let seal = seal_key(&dir, "seal", 'a');
            the_same_in_a_file_and_in_the_engine(&rig, &seal);
            nodes_that_start_at_once_have_one_store(&rig, &seal);
            a_node_with_another_seal_key_is_refused(&rig, &seal, &seal_key(&dir, "other", 'b'));
            a_change_is_decided_from_the_newest_keys(&rig, &seal);
            each_node_has_a_log_of_its_own(&rig, &seal);
            a_policy_is_in_force_until_the_next_one_is(&rig, &seal);
            no_use_number_is_given_to_two_nodes(&rig, &seal);
            a_destruction_that_was_acknowledged_is_final(&rig, &seal);
            a_change_without_an_answer_is_found(&rig, &seal);
            a_node_reads_the_keys_that_were_changed(&rig, &seal);
        }

        fn the_same_in_a_file_and_in_the_engine(rig: &PgRig, seal: &SealSource) {
            let at = |node: &str| open(records(rig, "keys_same", node), seal, 7).unwrap();
            let in_engine = changes(&mut at("a"), || at("b"));
            let dir = tempfile::tempdir().unwrap();
            let home = ron_files::Dir::os(dir.path());
            let file = || {
                let store = Store::open_without_copies(&home, "keys.db", MIGRATIONS);
                open(Box::new(FileRecords::new(store.unwrap())), seal, 7).unwrap()
            };
            assert_eq!(in_engine, changes(&mut file(), file));
        }

        fn nodes_that_start_at_once_have_one_store(rig: &PgRig, seal: &SealSource) {
            let mut stores = ron_kernel::scoped(3, |at| {
                open(records(rig, "keys_once", &format!("{at}")), seal, at as u64).unwrap()
            });
            stores[0].refresh().unwrap(); // the others may have joined since
            let kid = make(&mut stores[0], 1, Alg::Ed25519);
            for store in &mut stores[1..] {
                assert!(store.refresh().unwrap());
                assert!(store.meta(&kid).is_some());
            }
        }

        fn a_node_with_another_seal_key_is_refused(
            rig: &PgRig,
            seal: &SealSource,
            other: &SealSource,
        ) {
            let mut a = open(records(rig, "keys_seal", "a"), seal, 1).unwrap();
            let before = shown(&a);
            let refused = open(records(rig, "keys_seal", "b"), other, 2).err();
            assert!(
                matches!(refused, Some(StoreError::WrongSealKey)),
                "{refused:?}"
            );
            assert!(!a.refresh().unwrap());
            assert_eq!(shown(&a), before);
        }

        fn a_change_is_decided_from_the_newest_keys(rig: &PgRig, seal: &SealSource) {
            let [mut a, mut b] =
                ["a", "b"].map(|node| open(records(rig, "keys_two", node), seal, 1).unwrap());
            assert!(
                !b.refresh().unwrap(),
                "a node that starts again is the same"
            );
            let kid = make(&mut a, 1, Alg::Ed25519);
            assert!(b.refresh().unwrap());
            let late = b.next_version(&kid, Timestamp(7)).unwrap();
            let change = destruction(&a, &kid);
            commit(&mut a, change, 2).unwrap();
            let moved = b.commit(late, &op(3), b"leaf", 0);
            assert!(matches!(moved, Err(StoreError::Moved)), "{moved:?}");
            assert_eq!(
                b.key(&kid).unwrap().state,
                KeyState::Active,
                "as it was read"
            );
            let note = Checkpoint {
                size: 1,
                root: [1; 32],
            };
            let moved = b.advance_note(&kid, &note);
            assert!(matches!(moved, Err(StoreError::Moved)), "{moved:?}");
            assert!(b.refresh().unwrap());
            assert_eq!(b.key(&kid).unwrap().state, KeyState::Destroyed);
            assert!(b.key(&kid).unwrap().secret.is_none());
            assert_eq!(shown(&a), shown(&b));
        }

        /// Counts the rows that a node reads.
        struct Counting {
            records: Box<dyn RecordStore>,
            rows: Arc<AtomicU64>,
        }

        struct CountingStatements<'a> {
            tx: &'a mut dyn Statements,
            rows: &'a AtomicU64,
        }

        impl Statements for CountingStatements<'_> {
            fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64, RecordError> {
                self.tx.execute(sql, params)
            }

            fn query(&mut self, sql: &str, params: &[Value]) -> Result<Vec<Row>, RecordError> {
                let found = self.tx.query(sql, params)?;
                self.rows.fetch_add(found.len() as u64, Ordering::SeqCst);
                Ok(found)
            }
        }

        impl RecordStore for Counting {
            fn transact(&mut self, work: &mut Work<'_>, by: Deadline) -> Result<bool, RecordError> {
                self.records.transact(work, by)
            }

            fn view(&mut self, work: &mut Work<'_>, by: Deadline) -> Result<(), RecordError> {
                let rows = &self.rows;
                let mut counted =
                    |tx: &mut dyn Statements| work(&mut CountingStatements { tx, rows });
                self.records.view(&mut counted, by)
            }

            fn confirm(&mut self, by: Deadline) -> Result<(), RecordError> {
                self.records.confirm(by)
            }

            fn resolve(&mut self, by: Deadline) -> Result<bool, RecordError> {
                self.records.resolve(by)
            }
        }

        /// And no others; where the mark of a changed key is missing, all of them.
        fn a_node_reads_the_keys_that_were_changed(rig: &PgRig, seal: &SealSource) {
            let rows = Arc::new(AtomicU64::new(0));
            let mut a = open(records(rig, "keys_part", "a"), seal, 1).unwrap();
            let counting = Counting {
                records: records(rig, "keys_part", "b"),
                rows: rows.clone(),
            };
            let mut b = open(Box::new(counting), seal, 2).unwrap();
            a.refresh().unwrap(); // the other has joined
            let kids: Vec<Kid> = (1..=30).map(|n| make(&mut a, n, Alg::Aes256Gcm)).collect();
            let read = |b: &mut KeyStore| {
                let before = rows.load(Ordering::SeqCst);
                assert!(b.refresh().unwrap());
                rows.load(Ordering::SeqCst) - before
            };
            assert!(read(&mut b) >= 60, "each key and its version");
            let changes: [&dyn Fn(&mut KeyStore); 3] = [
                &|a| {
                    let change = a.next_version(&kids[3], Timestamp(6)).unwrap();
                    commit(a, change, 40).unwrap();
                },
                &|a| {
                    let change = destruction(a, &kids[4]);
                    commit(a, change, 41).unwrap();
                },
                &|a| {
                    assert_eq!(
                        a.reserve_uses(&kids[5], 1, 100, 250).unwrap(),
                        Some((0, 100))
                    );
                },
            ];
            for change in changes {
                change(&mut a);
                let read = read(&mut b);
                assert!(read < 10, "{read} rows");
                assert_eq!(shown(&a), shown(&b));
            }
            assert_eq!(b.uses_reserved(&kids[5], 1), 100);
            let change = a.next_version(&kids[6], Timestamp(7)).unwrap();
            commit(&mut a, change, 42).unwrap();
            let forget = "UPDATE keys_part.keys SET changed = 0";
            rig.cluster(|cluster| cluster.primary.admin(forget, &[]));
            assert!(read(&mut b) >= 60, "the MAC of the store does not match");
            assert_eq!(shown(&a), shown(&b));
            // A program without these marks makes a key, and the other node reads it before its leaf is durable.
            let made = kid(50, Alg::Ed25519);
            let change = a.new_key(&made, KeyBackend::File, PayloadPolicy::Any, Timestamp(8));
            a.commit(change.unwrap(), &op(50), b"leaf", 3).unwrap();
            read(&mut b);
            assert!(b.key(&made).is_none());
            let pending = a.pending().unwrap().unwrap();
            a.complete(&pending, 50, "answer").unwrap();
            rig.cluster(|cluster| cluster.primary.admin(forget, &[]));
            let read = read(&mut b);
            assert!(read < 10, "{read} rows");
            assert_eq!(shown(&a), shown(&b));
        }

        fn a_policy_is_in_force_until_the_next_one_is(rig: &PgRig, seal: &SealSource) {
            let signs = Ed25519Key::from_seed(&[9; 32]);
            let pinned = KeyRing::new(vec![PinnedKey::new(None, signs.public())]);
            let policy = |version: u64| {
                let tree = json!({"version": version, "audiences": [], "clients": []});
                let bytes = jcs::canonicalize(&tree);
                let sig = PolicySig {
                    alg: "ed25519".to_owned(),
                    key: b64::url(&signs.public()),
                    value: b64::url(&signs.sign(&policy_message("issuer", &bytes))),
                };
                signed_policy::check::<IssuerPolicy>("issuer", &bytes, &sig, &pinned).unwrap()
            };
            let open = |node: &str, seed| open(records(rig, "keys_policy", node), seal, seed);
            let (mut a, mut b) = (open("a", 1).unwrap(), open("b", 2).unwrap());
            let in_force = |store: &KeyStore| {
                let policy = store.policy_in_force(&pinned);
                policy.map(|policy| (policy.signed.policy.version, policy.log.to_string()))
            };
            a.refresh().unwrap();
            a.commit_policy(&policy(1), b"leaf", 1).unwrap();
            b.refresh().unwrap();
            assert_eq!((in_force(&a), in_force(&b)), (None, None));
            a.complete_policy(1).unwrap();
            b.refresh().unwrap();
            let first = Some((1, "kms.example/1".to_owned()));
            assert_eq!((in_force(&a), in_force(&b)), (first.clone(), first.clone()));
            a.commit_policy(&policy(2), b"leaf", 2).unwrap();
            b.refresh().unwrap();
            assert_eq!(in_force(&b), first, "its leaf is not durable yet");
            assert_eq!(b.policy_version(), 2, "an older one is refused");
            a.complete_policy(2).unwrap();
            b.refresh().unwrap();
            assert_eq!(in_force(&b), Some((2, "kms.example/1".to_owned())));
        }

        /// Both have a change under way, and one of them never comes back.
        fn each_node_has_a_log_of_its_own(rig: &PgRig, seal: &SealSource) {
            let open = |node: &str, seed| open(records(rig, "keys_logs", node), seal, seed);
            let mut b = open("b", 2).unwrap();
            let mut a = open("a", 1).unwrap();
            assert!(b.refresh().unwrap(), "another node has joined");
            let origins = [&a, &b].map(|store| store.log().origin.clone());
            assert_eq!(origins, ["kms.example/1", "kms.example/2"]);
            assert_ne!(a.log().newest().public, b.log().newest().public);
            let first = make(&mut a, 1, Alg::Ed25519);
            let key = a.next_log_key(7, Timestamp(9)).unwrap();
            a.commit_log_key(key, &op(11), b"of the key", 7).unwrap();
            b.refresh().unwrap();
            assert_eq!(
                b.pending_log_key().unwrap(),
                None,
                "it is that of the other"
            );
            let change = b.next_version(&first, Timestamp(6)).unwrap();
            b.commit(change, &op(2), b"of b", 3).unwrap();
            a.refresh().unwrap();
            assert_eq!(a.pending().unwrap(), None);
            let second = make(&mut a, 3, Alg::EcdsaP256);
            let pending = b.pending().unwrap().unwrap();
            assert_eq!(pending.leaf, b"of b");
            // The other node has changed the store since.
            b.complete(&pending, 40, "answer").unwrap();
            let made_by = |store: &KeyStore, kid: &Kid, number: usize| {
                let key = store.key(kid).unwrap();
                let version = &key.versions[number - 1];
                (version.log.to_string(), version.birth)
            };
            a.refresh().unwrap();
            for store in [&a, &b, &open("again", 1).unwrap(), &open("new", 3).unwrap()] {
                assert_eq!(made_by(store, &first, 1), ("kms.example/1".into(), 1));
                assert_eq!(made_by(store, &first, 2), ("kms.example/2".into(), 40));
                assert_eq!(made_by(store, &second, 1), ("kms.example/1".into(), 3));
            }
            let pending = open("again too", 1).unwrap().pending_log_key().unwrap();
            assert_eq!(pending.unwrap().leaf, b"of the key");
            let nameless = StoreSettings {
                home: None,
                seal: seal.clone(),
                origin: None,
            };
            let backends = Backends::new(KeyBackend::File, Vec::new(), SystemClock::shared());
            let random = Arc::new(SeededRandom::new(9));
            let records = records(rig, "keys_logs", "nameless");
            let refused = KeyStore::open_in(records, &nameless, backends, random, Timestamp(1));
            assert!(matches!(refused.err(), Some(StoreError::NoOrigin)));
        }

        fn no_use_number_is_given_to_two_nodes(rig: &PgRig, seal: &SealSource) {
            let mut first = open(records(rig, "keys_uses", "first"), seal, 1).unwrap();
            let kid = make(&mut first, 1, Alg::Aes256Gcm);
            let blocks = Mutex::new(Vec::new());
            ron_kernel::scoped(3, |at| {
                let node = format!("{at}");
                let mut store = open(records(rig, "keys_uses", &node), seal, 2).unwrap();
                for _ in 0..5 {
                    let block = store.reserve_uses(&kid, 1, 10, 1_000).unwrap();
                    blocks.lock().unwrap().push(block.unwrap());
                }
            });
            let mut blocks = blocks.into_inner().unwrap();
            blocks.sort_unstable();
            let expected: Vec<_> = (0..15).map(|n| (n * 10, n * 10 + 10)).collect();
            assert_eq!(blocks, expected);
            assert!(first.refresh().unwrap());
            assert_eq!(first.uses_reserved(&kid, 1), 150);
        }

        /// A node signs as fast as it can, from keys that it has read some time ago, while another one destroys the key. What it
        /// begins after the destruction was acknowledged has no leaf, so that no answer of it can leave.
        fn a_destruction_that_was_acknowledged_is_final(rig: &PgRig, seal: &SealSource) {
            const ROUNDS: u128 = 15;
            let open =
                |node: &str, seed| open(records(rig, "keys_final", node), seal, seed).unwrap();
            let (a, b) = (Mutex::new(open("a", 1)), Mutex::new(open("b", 2)));
            let options = PgLogOptions {
                guard: Some("keys_final.store".into()),
                ..rig.options("final b", "b")
            };
            let session = || Box::new(PgLogStore::new(options.clone(), waiter()));
            let disk = Arc::new(SimDisk::new());
            let log = EngineLog::open(disk, log::dir(), log::options(), session(), session());
            let mut log = log.unwrap();
            log::take_over(&mut log);
            let log = Mutex::new(log);
            a.lock().unwrap().refresh().unwrap(); // the other one has joined
            for round in 0..ROUNDS {
                let kid = make(&mut a.lock().unwrap(), 10 * round, Alg::Ed25519);
                let (signed, is_gone) = (AtomicU64::new(0), AtomicBool::new(false));
                ron_kernel::scoped(2, |node| {
                    if node == 0 {
                        let mut store = a.lock().unwrap();
                        let change = destruction(&store, &kid);
                        wait_for("signatures", || {
                            signed.load(Ordering::SeqCst) > round as u64 % 5
                        });
                        commit(&mut store, change, 10 * round + 1).unwrap();
                        is_gone.store(true, Ordering::SeqCst);
                        return;
                    }
                    let (mut store, mut log) = (b.lock().unwrap(), log.lock().unwrap());
                    store.refresh().unwrap();
                    let by = Deadline::within(Duration::from_secs(60));
                    while store
                        .key(&kid)
                        .is_some_and(|key| key.state == KeyState::Active)
                    {
                        assert!(!by.expired(), "the destruction is not seen");
                        let was_gone = is_gone.load(Ordering::SeqCst);
                        let leaf = [format!("sign {kid}")];
                        match log.append_once(&leaf, Some(store.version()), &[], soon()) {
                            Ok(_) => {
                                assert!(!was_gone, "a signature with a destroyed key");
                                signed.fetch_add(1, Ordering::SeqCst);
                            }
                            Err(EngineError::Store(LogError::Stale)) => {
                                assert!(store.refresh().unwrap(), "there was something to read");
                            }
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                });
                assert!(is_gone.into_inner() && signed.into_inner() > 0);
            }
        }

        /// The standby is stopped while a change commits: nobody knows what became of it until it is back.
        fn a_change_without_an_answer_is_found(rig: &PgRig, seal: &SealSource) {
            let mut store = open(records(rig, "keys_unknown", "a"), seal, 1).unwrap();
            let kid = make(&mut store, 1, Alg::Ed25519);
            let version = store.version();
            let change = destruction(&store, &kid);
            rig.set_standby(false);
            let unknown = store.commit(change, &op(2), b"leaf", 0);
            assert!(
                matches!(unknown, Err(StoreError::Unknown(_))),
                "{unknown:?}"
            );
            assert!(store.refresh().is_err(), "it is still not known");
            rig.set_standby(true);
            let by = Deadline::within(Duration::from_secs(60));
            while let Err(error) = store.refresh() {
                assert!(!by.expired(), "{error}");
            }
            assert_eq!(store.version(), version + 1);
            assert_eq!(store.key(&kid).unwrap().state, KeyState::Destroyed);
            assert!(store.pending().unwrap().is_some());
        }
    }
}
