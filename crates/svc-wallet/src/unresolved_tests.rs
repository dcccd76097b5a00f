//! The recorder and its file.

use super::*;
use crate::topology::{TOPOLOGY, UNRESOLVED_QUEUE, UNRESOLVED_RECORDER};
use ron_files::DiskRoom;
use ron_kernel::queue::bare_queue;
use ron_kernel::{KernelMetrics, Registry, Supervisor, SystemClock};
use ron_service::records::FileRecords;

/// A supervisor for the recorder.
fn supervisor(registry: &Registry) -> Supervisor {
    let km = KernelMetrics::new(registry);
    Supervisor::new(&TOPOLOGY, km, SystemClock::shared())
}

/// The keys of a file, and the thread that records them, without an engine.
fn start(sup: &Supervisor, store: Store, before: BTreeSet<RequestKey>) -> UnresolvedKeys {
    let (notes, notes_rx) = bare_queue(&UNRESOLVED_QUEUE, 8);
    let records: Box<dyn RecordStore> = Box::new(FileRecords::new(store));
    let body = move |records, ctx: &ThreadCtx| {
        let recorder = Recorder {
            records,
            shared: None,
            is_failing: false,
        };
        run(ctx, &notes_rx, recorder, Vec::new());
    };
    sup.spawn_owner(&UNRESOLVED_RECORDER, Some(records), body, || Some(None));
    let count = Registry::new("t").gauge("unresolved_keys", "Keys.");
    UnresolvedKeys::new(before, notes, count)
}

#[test]
fn the_number_of_keys_is_exported_while_nothing_else_runs() {
    let registry = Registry::new("t");
    let count = registry.gauge("unresolved_keys", "Keys.");
    let (notes, _keep) = bare_queue(&UNRESOLVED_QUEUE, 8);
    let keys = UnresolvedKeys::new(BTreeSet::from([request("old")]), notes, count.clone());
    assert_eq!(count.get(), 1);
    keys.add(&request("new"), Vec::new());
    assert_eq!(count.get(), 2);
    keys.release(&request("old"));
    keys.release(&request("never"));
    assert_eq!(count.get(), 1);
    keys.forget(&request("new"));
    assert_eq!(count.get(), 0);
}

fn request(key: &str) -> RequestKey {
    RequestKey {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: key.parse().unwrap(),
    }
}

#[test]
fn no_flipped_byte_changes_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(Some(&Dir::os(dir.path()))).unwrap();
    let keys = (0..50).map(|n| request(&format!("key-{n}")));
    let notes: Vec<Change> = keys.map(|key| Change::Add(key, Vec::new())).collect();
    let mut store = FileRecords::new(store);
    write(&mut store, &notes).unwrap();
    drop(store);
    let path = dir.path().join(FILE);
    let (refused, _) = ron_service::store_trial::flip_bytes(&path, 13, |_| {
        open(Some(&Dir::os(dir.path()))).map(|(store, _)| store)
    });
    assert!(refused > 100, "{refused}");
}

#[test]
fn keys_outlive_the_process_until_they_are_released() {
    let dir = tempfile::tempdir().unwrap();
    let key = request;
    let (store, before) = open(Some(&Dir::os(dir.path()))).unwrap();
    assert!(before.is_empty());
    let (caller, answer) = Responder::detached(Deadline::within(Duration::from_secs(5)));
    let notes = [
        Change::Add(key("a"), vec![caller]),
        Change::Add(key("b"), Vec::new()),
        Change::Release(key("b")),
    ];
    let mut store = FileRecords::new(store);
    write(&mut store, &notes).unwrap();
    for note in notes {
        answer_callers(note, true);
    }
    let response = answer
        .wait(Deadline::within(Duration::from_secs(1)))
        .unwrap();
    assert_eq!(
        (response.status, response.get("location")),
        (504, Some("/v1/ops/a"))
    );
    drop(store);
    let (_store, before) = open(Some(&Dir::os(dir.path()))).unwrap();
    assert_eq!(before.into_iter().collect::<Vec<_>>(), [key("a")]);
}

#[test]
fn a_key_is_held_until_it_is_released_and_the_file_follows() {
    let dir = tempfile::tempdir().unwrap();
    let (store, before) = open(Some(&Dir::os(dir.path()))).unwrap();
    let sup = supervisor(&Registry::new("svc-wallet"));
    let unresolved = start(&sup, store, before);
    let held = |key: &RequestKey| unresolved.holds(key);
    assert_eq!(unresolved.len(), 0);
    for name in ["a", "b"] {
        let (caller, answer) = Responder::detached(Deadline::within(Duration::from_secs(30)));
        unresolved.add(&request(name), vec![caller]);
        // The thread answers after its write.
        let response = answer
            .wait(Deadline::within(Duration::from_secs(30)))
            .unwrap();
        assert_eq!(response.status, 504);
    }
    assert!(held(&request("a")) && held(&request("b")) && !held(&request("c")));
    assert_eq!(unresolved.len(), 2);
    unresolved.release(&request("a"));
    assert!(!held(&request("a")) && held(&request("b")));
    sup.drain(Duration::from_secs(30));
    let (_store, before) = open(Some(&Dir::os(dir.path()))).unwrap();
    assert_eq!(before.into_iter().collect::<Vec<_>>(), [request("b")]);
}

#[test]
fn callers_are_not_referred_to_a_record_that_the_disk_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, before) = open(Some(&Dir::os(dir.path()))).unwrap();
    let refuse = |tx: &rusqlite::Transaction<'_>| {
        Ok::<_, StoreError>(tx.execute_batch("DROP TABLE unresolved")?)
    };
    store.write(refuse).unwrap();
    let sup = supervisor(&Registry::new("svc-wallet"));
    let unresolved = start(&sup, store, before);
    let (caller, answer) = Responder::detached(Deadline::within(Duration::from_secs(30)));
    unresolved.add(&request("a"), vec![caller]);
    let response = answer.wait(Deadline::within(Duration::from_secs(30)));
    let response = response.unwrap();
    assert_eq!((response.status, response.get("location")), (504, None));
    assert!(unresolved.holds(&request("a")));
    sup.drain(Duration::from_secs(30));
}

#[test]
fn a_disk_that_hangs_is_reported_and_the_record_follows() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, before) = open(Some(&Dir::os(dir.path()))).unwrap();
    // The write waits for the other writer as long as the test takes, on a slow machine too.
    let patient = |tx: &rusqlite::Transaction<'_>| {
        Ok::<_, StoreError>(tx.pragma_update(None, "busy_timeout", 60_000)?)
    };
    store.write(patient).unwrap();
    let registry = Registry::new("svc_wallet");
    let sup = supervisor(&registry);
    store.watch_disk(sup.watch_disk("unresolved"), DiskRoom::unlimited());
    let unresolved = start(&sup, store, before);
    // Another writer of the file stands for a disk that does not answer.
    let other = rusqlite::Connection::open(dir.path().join(FILE)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    unresolved.add(&request("a"), Vec::new());
    let (_keep, never) = ron_kernel::Shutdown::pair();
    let by = Deadline::within(Duration::from_secs(30));
    let mut hung = None;
    while hung.is_none() && !by.expired() {
        never.wait(Deadline::within(Duration::from_millis(10)));
        hung = sup.hung_disk();
    }
    assert_eq!(hung.map(|hung| hung.op), Some("unresolved"));
    let counted = "svc_wallet_io_timeouts_total{op=\"unresolved\"} 1";
    assert!(registry.render().contains(counted), "{}", registry.render());
    other.execute_batch("ROLLBACK").unwrap();
    sup.drain(Duration::from_secs(30));
    assert_eq!(sup.hung_disk(), None);
    let (_store, before) = open(Some(&Dir::os(dir.path()))).unwrap();
    assert_eq!(before.into_iter().collect::<Vec<_>>(), [request("a")]);
}

#[test]
fn a_start_loads_every_key_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(Some(&Dir::os(dir.path()))).unwrap();
    let all: Vec<_> = (0..70_000).map(|n| request(&format!("k{n:05}"))).collect();
    let notes: Vec<_> = all
        .iter()
        .map(|key| Change::Add(key.clone(), Vec::new()))
        .collect();
    let mut store = FileRecords::new(store);
    write(&mut store, &notes).unwrap();
    drop(store);
    let (_store, before) = open(Some(&Dir::os(dir.path()))).unwrap();
    assert_eq!(before.into_iter().collect::<Vec<_>>(), all);
}

#[test]
fn a_damaged_key_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(Some(&Dir::os(dir.path()))).unwrap();
    let odd = |tx: &rusqlite::Transaction<'_>| -> Result<(), StoreError> {
        tx.execute("INSERT INTO unresolved VALUES ('t', 'p', '')", [])?;
        Ok(())
    };
    store.write(odd).unwrap();
    drop(store);
    let why = open(Some(&Dir::os(dir.path()))).unwrap_err().to_string();
    let file = dir.path().join(FILE);
    assert!(why.contains(file.to_str().unwrap()), "{why}");
    assert!(why.contains("row 1 of table unresolved"), "{why}");
}

#[test]
fn damage_anywhere_in_the_file_stops_the_start_or_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(Some(&Dir::os(dir.path()))).unwrap();
    let all: Vec<_> = (0..400).map(|n| request(&format!("k{n:03}"))).collect();
    let adds = all.iter().map(|key| Change::Add(key.clone(), Vec::new()));
    let mut store = FileRecords::new(store);
    write(&mut store, &adds.collect::<Vec<_>>()).unwrap();
    drop(store);
    let file = dir.path().join(FILE);
    let bytes = std::fs::read(&file).unwrap();
    let (mut refused, mut read) = (0, 0);
    for page in 0..bytes.len() / 4096 {
        let mut bad = bytes.clone();
        bad[page * 4096..][..4096].fill(0xa5);
        std::fs::write(&file, &bad).unwrap();
        match open(Some(&Dir::os(dir.path()))) {
            Err(why) => {
                refused += 1;
                let why = why.to_string();
                assert!(why.contains(file.to_str().unwrap()), "{why}");
            }
            Ok((_, before)) => {
                read += 1;
                assert_eq!(before.into_iter().collect::<Vec<_>>(), all);
            }
        }
    }
    println!("{refused} damaged pages refused, {read} without effect");
    assert!(refused > read);
}
