//! The contract of `RecordStore`: what holds of every engine, and of those with a copy on another host under every failure
//! that a test can cause.

pub mod faulty;
#[cfg(feature = "postgres")]
pub mod postgres;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ron_kernel::{Deadline, Shutdown};
use ron_service::records::{
    EPOCH_TABLE, RecordError, RecordStore, Refusal, Row, Statements, Value, Writer,
};
use ron_service::{Migration, Store};

use crate::contract::{Rule, TwoHosts, soon};

/// The tables of the rules.
pub const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "records",
        sql: "CREATE TABLE record (name TEXT PRIMARY KEY, number INTEGER, bytes BLOB) STRICT, WITHOUT ROWID; \
              CREATE INDEX record_number ON record (number);",
    },
    Migration {
        version: 2,
        name: "epoch",
        sql: EPOCH_TABLE,
    },
];

/// Records, and sessions of nodes to them.
pub trait RecordRig: Sync {
    /// A session of the node `node`, a name that is used once.
    fn records(&self, node: &str) -> Box<dyn RecordStore>;
}

/// The rules of every engine.
pub fn rules<R: RecordRig>() -> Vec<Rule<R>> {
    vec![
        ("values come back", values_come_back),
        ("text is ordered by its bytes", text_is_ordered_by_its_bytes),
        (
            "statements say what they changed",
            statements_say_what_they_changed,
        ),
        (
            "an error of the work changes nothing",
            an_error_changes_nothing,
        ),
        (
            "a statement that fails ends its transaction",
            a_failed_statement_ends_its_transaction,
        ),
        ("what is written stays", what_is_written_stays),
        ("no increment is lost", no_increment_is_lost),
        (
            "two that read each other's row",
            two_that_read_each_others_row,
        ),
        ("a past epoch changes nothing", a_past_epoch_changes_nothing),
        ("claims at once", claims_at_once),
    ]
}

/// The rules of engines with a copy, in the order in which they can be checked on one engine.
pub fn replicated_rules<R: RecordRig + TwoHosts>() -> Vec<Rule<R>> {
    vec![
        (
            "asynchronous by mistake is refused",
            asynchronous_is_refused,
        ),
        (
            "a lost standby delays writes alone",
            a_lost_standby_delays_writes_alone,
        ),
        (
            "a notice makes a commit unknown",
            a_notice_makes_a_commit_unknown,
        ),
        ("what is read is provisional", what_is_read_is_provisional),
    ]
}

const PUT: &str = "INSERT INTO record (name, number) VALUES (?1, ?2)";

/// A session whose name is used once.
fn session<R: RecordRig>(rig: &R) -> Box<dyn RecordStore> {
    static SESSIONS: AtomicUsize = AtomicUsize::new(0);
    rig.records(&format!(
        "node-{}",
        SESSIONS.fetch_add(1, Ordering::Relaxed)
    ))
}

/// Inserts a row in a transaction of its own.
pub fn put(
    store: &mut dyn RecordStore,
    name: &str,
    number: i64,
    deadline: Deadline,
) -> Result<(), RecordError> {
    store.write(Writer::Shared, deadline, |tx| {
        tx.execute(PUT, &[name.into(), number.into()]).map(|_| ())
    })
}

/// Names and numbers of the rows whose names begin with `prefix`, as another session reads them.
pub fn found<R: RecordRig>(rig: &R, prefix: &str) -> Vec<(String, i64)> {
    let sql = "SELECT name, number FROM record WHERE name >= ?1 AND name < ?2 ORDER BY name";
    let bounds = [Value::from(prefix), format!("{prefix}~").as_str().into()];
    let rows = session(rig).read(soon(), |tx| tx.query(sql, &bounds));
    let rows = rows.expect("reads go on").into_iter();
    rows.map(|row| (row.text(0).unwrap().to_owned(), row.int(1).unwrap()))
        .collect()
}

fn pair(name: &str, number: i64) -> (String, i64) {
    (name.into(), number)
}

fn is_rejected<T>(outcome: &Result<T, RecordError>) -> bool {
    matches!(outcome, Err(RecordError::Refused(Refusal::Rejected(_))))
}

fn is_unknown<T>(outcome: &Result<T, RecordError>) -> bool {
    matches!(outcome, Err(RecordError::Unknown(_)))
}

fn values_come_back<R: RecordRig>(rig: &R) {
    let rows = [
        ("values 1", Value::Null, Value::Null),
        (
            "values 2 '?1' \"?2\" ; -- ü",
            i64::MIN.into(),
            Value::from(&[][..]),
        ),
        (
            "values 3",
            i64::MAX.into(),
            Value::from(&[0, 255, b'\''][..]),
        ),
    ];
    let written = session(rig).write(Writer::Shared, soon(), |tx| {
        for (name, number, bytes) in &rows {
            // Numbers of parameters stand in any order, and more than once.
            let sql = "INSERT INTO record (bytes, number, name) SELECT ?3, ?2, ?1 WHERE ?1 <> '?1'";
            let params = [(*name).into(), number.clone(), bytes.clone()];
            assert_eq!(tx.execute(sql, &params)?, 1);
        }
        Ok::<_, RecordError>(())
    });
    assert_eq!(written, Ok(()));
    let sql = "SELECT name, number, bytes, '?1' FROM record WHERE name >= 'values' AND name < 'values~' ORDER BY name";
    let read = session(rig).read(soon(), |tx| tx.query(sql, &[])).unwrap();
    let expected =
        rows.map(|(name, number, bytes)| Row(vec![name.into(), number, bytes, "?1".into()]));
    assert_eq!(
        read,
        [&expected[0], &expected[1], &expected[2]].map(Clone::clone)
    );
    // What only one of the engines would take.
    let mut store = session(rig);
    assert!(is_rejected(&put(&mut *store, "values \0", 1, soon())));
    assert_eq!(read[0].int(1).ok(), None, "NULL is no number");
}

fn text_is_ordered_by_its_bytes<R: RecordRig>(rig: &R) {
    let mut store = session(rig);
    for (number, name) in ["order b", "order ä", "order B", "order a"]
        .iter()
        .enumerate()
    {
        put(&mut *store, name, number as i64, soon()).unwrap();
    }
    let order: Vec<i64> = found(rig, "order").into_iter().map(|(_, n)| n).collect();
    assert_eq!(order, [2, 3, 0, 1]);
}

fn statements_say_what_they_changed<R: RecordRig>(rig: &R) {
    let names = [Value::from("changed")];
    let changed = session(rig).write(Writer::Shared, soon(), |tx| {
        let ignore = "INSERT INTO record (name, number) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        let first = tx.execute(ignore, &[names[0].clone(), 1.into()])?;
        let second = tx.execute(ignore, &[names[0].clone(), 2.into()])?;
        let upsert = "INSERT INTO record (name, number) VALUES (?1, ?2) \
                      ON CONFLICT (name) DO UPDATE SET number = record.number + excluded.number RETURNING number";
        let third = tx.query(upsert, &[names[0].clone(), 40.into()])?[0].int(0)?;
        let none = tx.execute("DELETE FROM record WHERE name = ?1 AND number = 7", &names)?;
        let count = tx.query("SELECT count(*) FROM record WHERE name = ?1", &names)?;
        Ok::<_, RecordError>((first, second, third, none, count[0].int(0)?))
    });
    assert_eq!(changed, Ok((1, 0, 41, 0, 1)));
    assert_eq!(found(rig, "changed"), [pair("changed", 41)]);
}

fn an_error_changes_nothing<R: RecordRig>(rig: &R) {
    let mut store = session(rig);
    let refused: Result<(), RecordError> = store.write(Writer::Shared, soon(), |tx| {
        tx.execute(PUT, &["rolled back".into(), 1.into()])?;
        Err(RecordError::Damaged("as the work says".into()))
    });
    let as_it_says = RecordError::Damaged("as the work says".into());
    assert_eq!(refused, Err(as_it_says));
    assert_eq!(found(rig, "rolled back"), []);
    assert_eq!(put(&mut *store, "rolled back", 2, soon()), Ok(()));
}

fn a_failed_statement_ends_its_transaction<R: RecordRig>(rig: &R) {
    let mut store = session(rig);
    let outcome: Result<(), RecordError> = store.write(Writer::Shared, soon(), |tx| {
        tx.execute(PUT, &["failed 1".into(), 1.into()])?;
        // The second one is a duplicate; the work ignores that.
        let again = tx.execute(PUT, &["failed 1".into(), 2.into()]);
        assert!(is_rejected(&again), "{again:?}");
        let after = tx.execute(PUT, &["failed 2".into(), 3.into()]);
        assert!(is_rejected(&after), "{after:?}");
        Ok(())
    });
    assert!(is_rejected(&outcome), "{outcome:?}");
    assert_eq!(found(rig, "failed"), []);
    let no_table = store.read(soon(), |tx| tx.query("SELECT 1 FROM missing", &[]));
    assert!(is_rejected(&no_table), "{no_table:?}");
    assert_eq!(put(&mut *store, "failed 3", 4, soon()), Ok(()));
    assert!(is_rejected(&store.resolve(soon())), "nothing is unknown");
}

fn what_is_written_stays<R: RecordRig>(rig: &R) {
    let mut store = session(rig);
    for number in 0..20 {
        put(&mut *store, &format!("stays {number:02}"), number, soon()).unwrap();
    }
    assert_eq!(store.confirm(soon()), Ok(()));
    drop(store);
    assert!(found(rig, "stays").iter().map(|(_, n)| *n).eq(0..20));
}

fn number_of(tx: &mut dyn Statements, name: &str) -> Result<i64, RecordError> {
    let rows = tx.query("SELECT number FROM record WHERE name = ?1", &[name.into()])?;
    rows[0].int(0)
}

fn set_number(tx: &mut dyn Statements, name: &str, number: i64) -> Result<(), RecordError> {
    let sql = "UPDATE record SET number = ?2 WHERE name = ?1";
    tx.execute(sql, &[name.into(), number.into()]).map(|_| ())
}

fn no_increment_is_lost<R: RecordRig>(rig: &R) {
    const NODES: usize = 3;
    put(&mut *session(rig), "counter", 0, soon()).unwrap();
    let stores: Vec<_> = (0..NODES).map(|_| Mutex::new(session(rig))).collect();
    ron_kernel::scoped(NODES, |node| {
        let mut store = stores[node].lock().unwrap();
        for _ in 0..5 {
            let written = store.write(Writer::Shared, soon(), |tx| {
                let number = number_of(tx, "counter")?;
                set_number(tx, "counter", number + 1)
            });
            written.expect("it is tried again until it is done");
        }
    });
    assert_eq!(found(rig, "counter"), [pair("counter", 15)]);
}

/// Each of two may switch its row off as long as the other's is on. Both read before one writes, if the engine lets them.
fn two_that_read_each_others_row<R: RecordRig>(rig: &R) {
    let names = ["skew a", "skew b"];
    for name in names {
        put(&mut *session(rig), name, 1, soon()).unwrap();
    }
    let stores = [Mutex::new(session(rig)), Mutex::new(session(rig))];
    let have_read = AtomicUsize::new(0);
    let (_trigger, never) = Shutdown::pair();
    ron_kernel::scoped(2, |node| {
        let written = stores[node]
            .lock()
            .unwrap()
            .write(Writer::Shared, soon(), |tx| {
                let other = number_of(tx, names[1 - node])?;
                have_read.fetch_add(1, Ordering::Relaxed);
                let give_up = Deadline::within(Duration::from_millis(300));
                while have_read.load(Ordering::Relaxed) < 2 && !give_up.expired() {
                    never.wait(Deadline::within(Duration::from_millis(1)));
                }
                set_number(tx, names[node], 1 - other)
            });
        written.expect("it is tried again until it is done");
    });
    let on: i64 = found(rig, "skew").iter().map(|(_, on)| on).sum();
    assert_eq!(on, 1, "as if there were one after the other");
}

fn a_past_epoch_changes_nothing<R: RecordRig>(rig: &R) {
    let (mut a, mut b) = (session(rig), session(rig));
    let seen = a.epoch(soon()).unwrap();
    let old = a.claim(seen, soon()).unwrap();
    assert_eq!(old, seen + 1);
    let write = |store: &mut Box<dyn RecordStore>, epoch, name: &str| {
        let params = [name.into(), 1.into()];
        store.write(Writer::Owner { epoch }, soon(), |tx| {
            tx.execute(PUT, &params).map(|_| ())
        })
    };
    assert_eq!(write(&mut a, old, "epoch 1"), Ok(()));
    assert_eq!(b.claim(seen, soon()), Err(RecordError::Fenced));
    let new = b.claim(old, soon()).unwrap();
    for epoch in [old, new + 1] {
        assert_eq!(write(&mut a, epoch, "epoch 2"), Err(RecordError::Fenced));
    }
    assert_eq!(a.claim(old, soon()), Err(RecordError::Fenced));
    assert_eq!(a.epoch(soon()), Ok(new));
    assert_eq!(write(&mut b, new, "epoch 3"), Ok(()));
    let names = [pair("epoch 1", 1), pair("epoch 3", 1)];
    assert_eq!(found(rig, "epoch"), names);
}

fn claims_at_once<R: RecordRig>(rig: &R) {
    let stores: Vec<_> = (0..3).map(|_| Mutex::new(session(rig))).collect();
    let seen = session(rig).epoch(soon()).unwrap();
    let claims = ron_kernel::scoped(3, |node| stores[node].lock().unwrap().claim(seen, soon()));
    let won = claims
        .iter()
        .filter(|claim| **claim == Ok(seen + 1))
        .count();
    let lost = claims
        .iter()
        .filter(|claim| **claim == Err(RecordError::Fenced));
    assert_eq!((won, lost.count()), (1, 2), "{claims:?}");
}

fn asynchronous_is_refused<R: RecordRig + TwoHosts>(rig: &R) {
    let mut store = session(rig);
    put(&mut *store, "asynchronous 1", 1, soon()).unwrap();
    rig.set_synchronous(false);
    let refused = put(&mut *store, "asynchronous 2", 2, soon());
    rig.set_synchronous(true);
    let is_unsafe = matches!(refused, Err(RecordError::Refused(Refusal::Unsafe(_))));
    assert!(is_unsafe, "{refused:?}");
    assert_eq!(put(&mut *store, "asynchronous 3", 3, soon()), Ok(()));
    let names = [pair("asynchronous 1", 1), pair("asynchronous 3", 3)];
    assert_eq!(found(rig, "asynchronous"), names);
}

fn a_lost_standby_delays_writes_alone<R: RecordRig + TwoHosts>(rig: &R) {
    let mut store = session(rig);
    put(&mut *store, "standby 1", 1, soon()).unwrap();
    rig.set_standby(false);
    let short = || Deadline::within(rig.short());
    let unknown = put(&mut *store, "standby 2", 2, short());
    assert!(is_unknown(&unknown), "{unknown:?}");
    let unresolved = RecordError::Refused(Refusal::Unresolved);
    assert_eq!(put(&mut *store, "standby 3", 3, short()), Err(unresolved));
    // Reads go on. The transaction is neither there nor gone, and nothing says otherwise.
    assert_eq!(found(rig, "standby 1"), [pair("standby 1", 1)]);
    let waits = store.resolve(short());
    assert!(is_unknown(&waits), "{waits:?}");
    rig.set_standby(true);
    let done = store.resolve(soon()).unwrap();
    let left = if done {
        vec![pair("standby 2", 2)]
    } else {
        vec![]
    };
    assert_eq!(found(rig, "standby 2"), left);
    assert_eq!(put(&mut *store, "standby 3", 3, soon()), Ok(()));
    assert_eq!(found(rig, "standby 2"), left, "nothing comes later");
}

fn a_notice_makes_a_commit_unknown<R: RecordRig + TwoHosts>(rig: &R) {
    let store = Mutex::new(session(rig));
    put(&mut **store.lock().unwrap(), "notice 1", 1, soon()).unwrap();
    rig.set_standby(false);
    let outcomes = ron_kernel::scoped(2, |part| {
        if part == 1 {
            rig.cancel_waits();
            return None;
        }
        let deadline = Deadline::within(rig.short());
        Some(put(&mut **store.lock().unwrap(), "notice 2", 2, deadline))
    });
    let outcome = outcomes[0].as_ref().expect("the first writes");
    assert!(is_unknown(outcome), "{outcome:?}");
    rig.set_standby(true);
    let done = store.lock().unwrap().resolve(soon());
    assert_eq!(done, Ok(true), "the primary had it, and has not failed");
    assert_eq!(found(rig, "notice").len(), 2);
}

fn what_is_read_is_provisional<R: RecordRig + TwoHosts>(rig: &R) {
    let mut store = session(rig);
    put(&mut *store, "provisional 1", 1, soon()).unwrap();
    rig.set_standby(false);
    let short = || Deadline::within(rig.short());
    let unknown = put(&mut *store, "provisional 2", 2, short());
    assert!(is_unknown(&unknown), "{unknown:?}");
    rig.restart_primary();
    // The restarted primary shows what no standby has.
    assert_eq!(found(rig, "provisional").len(), 2);
    let confirmed = session(rig).confirm(short());
    assert!(is_unknown(&confirmed), "{confirmed:?}");
    rig.set_standby(true);
    assert_eq!(store.resolve(soon()), Ok(true));
    assert_eq!(session(rig).confirm(soon()), Ok(()));
    assert_eq!(found(rig, "provisional").len(), 2);
}

/// Records in a file, to which several sessions have connections.
#[derive(Debug)]
pub struct FileRig(tempfile::TempDir);

impl FileRig {
    /// An empty file, in memory where the system has a directory there: nothing here loses power, and a disk that is slow
    /// would keep the lock of one session for longer than another waits for it.
    pub fn empty() -> Self {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() {
            tempfile::tempdir_in(memory)
        } else {
            tempfile::tempdir()
        };
        Self(dir.expect("a temporary directory"))
    }

    pub fn open(&self) -> ron_service::records::FileRecords {
        let store = Store::open(&self.0.path().join("records.db"), MIGRATIONS);
        ron_service::records::FileRecords::new(store.expect("it opens"))
    }
}

impl RecordRig for FileRig {
    fn records(&self, _node: &str) -> Box<dyn RecordStore> {
        Box::new(self.open())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_the_contract() {
        let rig = FileRig::empty();
        for (rule, check) in rules() {
            println!("{rule}");
            check(&rig);
        }
    }
}
