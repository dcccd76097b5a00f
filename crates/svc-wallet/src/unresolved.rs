//! Unresolved keys: keys whose outcome is unknown. They are recorded on disk, their callers are
//! informed, and a lookup reports them as open until the ledger has an entry for the key; the wallet
//! never guesses, and only its caller gives a key up.

use std::collections::BTreeSet;
use std::error::Error;
use std::ops::Bound;
use std::time::Duration;

use ron_files::Dir;
use ron_http::Responder;
use ron_kernel::{Deadline, RankedMutex, Receiver, Recv, SendError, Sender, ThreadCtx};
use ron_proto::ledger::RequestKey;
use ron_service::{Migration, Store, StoreError};

use crate::errors::{unknown, unknown_and_not_recorded};
use crate::topology::UNRESOLVED;

/// Name of the file in the data directory.
const FILE: &str = "unresolved.sqlite";
/// How long a committer waits for space in the queue.
const ROOM_WAIT: Duration = Duration::from_millis(500);
/// Maximum changes written in one transaction.
const NOTES_MAX: usize = 512;

static MIGRATIONS: [Migration; 1] = [Migration {
    version: 1,
    name: "unresolved keys",
    sql: "CREATE TABLE unresolved (tenant TEXT NOT NULL, principal TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (tenant, principal, key)) WITHOUT ROWID",
}];

/// A change to the recorded set.
#[derive(Debug)]
pub enum Change {
    /// The outcome of this key is unknown; once that is recorded, these callers get their answer.
    Add(RequestKey, Vec<Responder>),
    /// The outcome is known.
    Release(RequestKey),
}

/// The set of unresolved keys, and the queue to the thread that records them. The set has no
/// maximum, because a forgotten key would make `/v1/ops` report a committed operation as never sent.
/// It grows only by writes that were in flight when the ledger stopped answering: a wallet whose
/// ledger does not answer takes no new ones.
#[derive(Debug)]
pub struct UnresolvedKeys {
    set: RankedMutex<BTreeSet<RequestKey>>,
    notes: Sender<Change>,
}

impl UnresolvedKeys {
    /// Starts with the keys from the file; changes go to `notes`.
    pub fn new(before: BTreeSet<RequestKey>, notes: Sender<Change>) -> Self {
        Self {
            set: RankedMutex::new(&UNRESOLVED, before),
            notes,
        }
    }

    /// Records a key as unresolved. Once the record is durable the callers get 504 with a Location; without one when the
    /// disk fails.
    pub fn add(&self, key: &RequestKey, callers: Vec<Responder>) {
        #[cfg(mutant = "unresolved")]
        // the callers are referred to a record that does not exist yet
        if ron_kernel::mutant("unresolved") {
            answer_callers(Change::Add(key.clone(), callers), true);
            self.set.lock().insert(key.clone());
            return;
        }
        // Memory first: from here on a lookup by the caller reports the key as open.
        self.set.lock().insert(key.clone());
        let note = Change::Add(key.clone(), callers);
        match self.notes.send(note, Deadline::within(ROOM_WAIT)) {
            Ok(()) => {}
            Err(SendError::Full(note) | SendError::Closed(note)) => {
                tracing::warn!(event = "unresolved_not_durable", key = key.key.as_str());
                answer_callers(note, false);
            }
        }
    }

    /// Removes a key whose outcome is known.
    pub fn release(&self, key: &RequestKey) {
        let was = {
            let mut set = self.set.lock();
            !set.is_empty() && set.remove(key)
        };
        if was {
            // A dropped release is harmless: the ledger is asked first whenever a recorded key is
            // used.
            let _ = self.notes.send(
                Change::Release(key.clone()),
                Deadline::within(Duration::ZERO),
            );
        }
    }

    /// Whether the outcome of the key is unknown.
    pub fn holds(&self, key: &RequestKey) -> bool {
        self.set.lock().contains(key)
    }

    pub fn len(&self) -> usize {
        self.set.lock().len()
    }

    /// The first key after `before`, or the first of all.
    pub fn next(&self, before: Option<&RequestKey>) -> Option<RequestKey> {
        let set = self.set.lock();
        let after = before.map_or(Bound::Unbounded, Bound::Excluded);
        let next = set.range((after, Bound::Unbounded)).next();
        next.or_else(|| set.first()).cloned()
    }
}

/// Opens the file; without a directory the records do not survive the process.
pub fn open(dir: Option<&Dir>) -> Result<(Store, BTreeSet<RequestKey>), StoreError> {
    let store = match dir {
        Some(dir) => Store::open_in(dir, FILE, &MIGRATIONS)?,
        None => Store::memory(&MIGRATIONS)?,
    };
    let keys = store.read(|db| {
        let mut q = db.prepare("SELECT tenant, principal, key FROM unresolved")?;
        let mut rows = q.query([])?;
        let mut keys = BTreeSet::new();
        let mut number = 0;
        while let Some(row) = rows.next()? {
            number += 1;
            // A row that cannot be read stops the start: its key would be forgotten.
            let key = parsed(row).map_err(|why| StoreError::Damaged {
                path: dir
                    .map_or_else(|| FILE.into(), |dir| dir.file(FILE))
                    .display()
                    .to_string(),
                why: format!("row {number} of table unresolved: {why}"),
            })?;
            keys.insert(key);
        }
        Ok::<_, StoreError>(keys)
    })?;
    Ok((store, keys))
}

fn parsed(row: &rusqlite::Row<'_>) -> Result<RequestKey, Box<dyn Error>> {
    let text = |column: usize| row.get::<_, String>(column);
    Ok(RequestKey {
        tenant: text(0)?.parse()?,
        principal: text(1)?.parse()?,
        key: text(2)?.parse()?,
    })
}

/// The thread's body: records changes, then answers the callers. Ends when shut down and the queue
/// is empty.
pub fn run(ctx: &ThreadCtx, notes: &Receiver<Change>, file: Option<&Store>) {
    let mut some = Vec::new();
    loop {
        match notes.recv(&ctx.shutdown, Deadline::within(Duration::from_secs(60))) {
            Recv::Item(note) => some.push(note),
            Recv::Timeout => continue,
            Recv::Shutdown | Recv::Closed => {
                if notes.drain_into(&mut some, NOTES_MAX) == 0 {
                    return;
                }
            }
        }
        let room = NOTES_MAX.saturating_sub(some.len());
        notes.drain_into(&mut some, room);
        let written = file.map_or(Ok(()), |file| write(file, &some));
        if let Err(why) = &written {
            tracing::error!(event = "unresolved_not_durable", reason = %why);
        }
        let durable = written.is_ok();
        some.drain(..)
            .for_each(|note| answer_callers(note, durable));
    }
}

fn write(file: &Store, notes: &[Change]) -> Result<(), StoreError> {
    file.write(|tx| {
        for note in notes {
            let (sql, key) = match note {
                Change::Add(key, _) => {
                    ("INSERT OR IGNORE INTO unresolved VALUES (?1, ?2, ?3)", key)
                }
                Change::Release(key) => (
                    "DELETE FROM unresolved WHERE tenant = ?1 AND principal = ?2 AND key = ?3",
                    key,
                ),
            };
            let columns = [
                key.tenant.as_str(),
                key.principal.as_str(),
                key.key.as_str(),
            ];
            tx.execute(sql, columns)?;
        }
        Ok(())
    })
}

/// Only callers whose key is recorded are referred to the record.
fn answer_callers(note: Change, recorded: bool) {
    if let Change::Add(key, callers) = note {
        for caller in callers {
            caller.send(if recorded {
                unknown(&key.key)
            } else {
                unknown_and_not_recorded()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{TOPOLOGY, UNRESOLVED_QUEUE, UNRESOLVED_RECORDER};
    use ron_files::DiskRoom;
    use ron_kernel::queue::bare_queue;
    use ron_kernel::{KernelMetrics, Registry, Supervisor, SystemClock};

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
        write(&store, &notes).unwrap();
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
        write(&store, &notes).unwrap();
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
        let km = KernelMetrics::new(&Registry::new("svc-wallet"));
        let sup = Supervisor::new(&TOPOLOGY, km, SystemClock::shared());
        let (notes, notes_rx) = bare_queue(&UNRESOLVED_QUEUE, 8);
        let body = move |store: Option<Store>, ctx: &ThreadCtx| run(ctx, &notes_rx, store.as_ref());
        sup.spawn_owner(&UNRESOLVED_RECORDER, Some(store), body, || Some(None));
        let unresolved = UnresolvedKeys::new(before, notes);
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
        let km = KernelMetrics::new(&Registry::new("svc-wallet"));
        let sup = Supervisor::new(&TOPOLOGY, km, SystemClock::shared());
        let (notes, notes_rx) = bare_queue(&UNRESOLVED_QUEUE, 8);
        let body = move |store: Option<Store>, ctx: &ThreadCtx| run(ctx, &notes_rx, store.as_ref());
        sup.spawn_owner(&UNRESOLVED_RECORDER, Some(store), body, || Some(None));
        let unresolved = UnresolvedKeys::new(before, notes);
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
        let km = KernelMetrics::new(&registry);
        let sup = Supervisor::new(&TOPOLOGY, km, SystemClock::shared());
        store.watch_disk(sup.watch_disk("unresolved"), DiskRoom::unlimited());
        let (notes, notes_rx) = bare_queue(&UNRESOLVED_QUEUE, 8);
        let body = move |store: Option<Store>, ctx: &ThreadCtx| run(ctx, &notes_rx, store.as_ref());
        sup.spawn_owner(&UNRESOLVED_RECORDER, Some(store), body, || Some(None));
        let unresolved = UnresolvedKeys::new(before, notes);
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
        write(&store, &notes).unwrap();
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
        write(&store, &adds.collect::<Vec<_>>()).unwrap();
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
}
