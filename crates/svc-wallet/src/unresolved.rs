//! Unresolved keys: keys whose outcome is unknown. They are recorded, their callers are informed, and a
//! lookup reports them as open until the ledger has an entry for the key; the wallet never guesses,
//! and only its caller gives a key up.
//!
//! The records are in a file of this wallet, or in an engine: then every wallet of the engine reports
//! the key as open, and none says that a key has never reached the ledger before it has looked there.

use std::collections::BTreeSet;
use std::error::Error;
use std::ops::Bound;
use std::time::Duration;

use ron_files::Dir;
use ron_http::Responder;
use ron_kernel::{
    Deadline, Gauge, RankedMutex, Receiver, Recv, ReplySender, SendError, Sender, ThreadCtx, reply,
};
use ron_proto::ledger::RequestKey;
use ron_service::records::{RecordError, RecordStore, Refusal, Row, Value, Writer};
use ron_service::{Migration, ReadyBoard, Store, StoreError};

use crate::errors::{unknown, unknown_and_not_recorded};
use crate::topology::UNRESOLVED;

/// Name of the file in the data directory.
const FILE: &str = "unresolved.sqlite";
/// How long a committer waits for space in the queue.
const ROOM_WAIT: Duration = Duration::from_millis(500);
/// Maximum changes written in one transaction.
const NOTES_MAX: usize = 512;
/// Maximum time of a transaction in an engine; a caller waits that long for its 504 while the engine is unavailable.
const ENGINE_WAIT: Duration = Duration::from_secs(2);
/// How often keys that other wallets have recorded are read.
const READ_EVERY: Duration = Duration::from_secs(60);
/// The same while the engine does not answer.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// Pause before what an engine did not take is sent again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Readiness cause: the engine does not take records.
pub const CAUSE: &str = "records";

pub static MIGRATIONS: [Migration; 1] = [Migration {
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
    /// Whether any wallet has the key recorded.
    Ask(RequestKey, Deadline, ReplySender<Result<bool, RecordError>>),
}

/// The set of unresolved keys, and the queue to the thread that records them. The set has no
/// maximum, because a forgotten key would make `/v1/ops` report a committed operation as never sent.
/// It grows only by writes that were in flight when the ledger stopped answering: a wallet whose
/// ledger does not answer takes no new ones.
#[derive(Debug)]
pub struct UnresolvedKeys {
    set: RankedMutex<BTreeSet<RequestKey>>,
    /// The number of keys, as exported.
    count: Gauge,
    notes: Sender<Change>,
    /// The records are those of several wallets, and the set has a part of them.
    is_shared: bool,
}

impl UnresolvedKeys {
    /// Starts with the keys from the file; changes go to `notes`, their number to `count`.
    pub fn new(before: BTreeSet<RequestKey>, notes: Sender<Change>, count: Gauge) -> Self {
        show(&count, &before);
        Self {
            set: RankedMutex::new(&UNRESOLVED, before),
            count,
            notes,
            is_shared: false,
        }
    }

    /// Starts with the keys of a file that this wallet had; those of the engine follow when it answers.
    pub fn shared(before: BTreeSet<RequestKey>, notes: Sender<Change>, count: Gauge) -> Self {
        Self {
            is_shared: true,
            ..Self::new(before, notes, count)
        }
    }

    /// Records a key as unresolved. Once the record is durable the callers get 504 with a Location; without one when the
    /// disk fails.
    pub fn add(&self, key: &RequestKey, callers: Vec<Responder>) {
        #[cfg(mutant = "unresolved")]
        // the callers are referred to a record that does not exist yet
        if ron_kernel::mutant("unresolved") {
            answer_callers(Change::Add(key.clone(), callers), true);
            self.change(|set| set.insert(key.clone()));
            return;
        }
        // Memory first: from here on a lookup by the caller reports the key as open.
        self.change(|set| set.insert(key.clone()));
        let note = Change::Add(key.clone(), callers);
        match self.notes.send(note, Deadline::within(ROOM_WAIT)) {
            Ok(()) => {}
            Err(SendError::Full(note) | SendError::Closed(note)) => {
                tracing::warn!(event = "unresolved_not_durable", key = key.key.as_str());
                answer_callers(note, false);
            }
        }
    }

    fn change<R>(&self, change: impl FnOnce(&mut BTreeSet<RequestKey>) -> R) -> R {
        let mut set = self.set.lock();
        let before = set.len();
        let changed = change(&mut set);
        // Nearly every committed write releases a key that is not in the set.
        if set.len() != before {
            show(&self.count, &set);
        }
        changed
    }

    /// Whether other wallets record keys in the same place.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Removes a key whose outcome is known.
    pub fn release(&self, key: &RequestKey) {
        if self.change(|set| !set.is_empty() && set.remove(key)) {
            self.note_release(key);
        }
    }

    /// Removes a key that its caller has given up, also when another wallet has recorded it.
    pub fn forget(&self, key: &RequestKey) {
        if self.is_shared {
            self.change(|set| set.remove(key));
            self.note_release(key);
        } else {
            self.release(key);
        }
    }

    fn note_release(&self, key: &RequestKey) {
        // A dropped release is harmless: the ledger is asked first whenever a recorded key is used.
        let _ = self.notes.send(
            Change::Release(key.clone()),
            Deadline::within(Duration::ZERO),
        );
    }

    /// Whether the outcome of the key is unknown.
    pub fn holds(&self, key: &RequestKey) -> bool {
        self.set.lock().contains(key)
    }

    /// Whether another wallet says that the outcome of the key is unknown. Without shared records none does. False is said
    /// by an engine that still has the newest records, or not at all.
    pub fn held_elsewhere(&self, key: &RequestKey, by: Deadline) -> Result<bool, RecordError> {
        if !self.is_shared {
            return Ok(false);
        }
        let late = || Refusal::Unavailable("it did not answer in time".into()).into();
        let (answer, waiter) = reply();
        let asked = self.notes.send(Change::Ask(key.clone(), by, answer), by);
        asked.map_err(|_| late())?;
        waiter.wait(by).unwrap_or_else(|_| Err(late()))
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

fn show(count: &Gauge, set: &BTreeSet<RequestKey>) {
    count.set(i64::try_from(set.len()).unwrap_or(i64::MAX));
}

/// The keys of the file of a wallet that has an engine now; none when there never was a file.
pub fn of_file(dir: Option<&Dir>) -> Result<BTreeSet<RequestKey>, StoreError> {
    match dir {
        Some(there) if there.exists(FILE).unwrap_or(true) => Ok(open(dir)?.1),
        _ => Ok(BTreeSet::new()),
    }
}

/// Opens the file; without a directory the records do not survive the process.
pub fn open(dir: Option<&Dir>) -> Result<(Store, BTreeSet<RequestKey>), StoreError> {
    let store = match dir {
        Some(dir) => Store::open_in(dir, FILE, &MIGRATIONS)?,
        None => Store::memory(&MIGRATIONS)?,
    };
    let keys = store.read(|db| {
        let mut q = db.prepare(ALL)?;
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

const ALL: &str = "SELECT tenant, principal, key FROM unresolved";

fn parsed(row: &rusqlite::Row<'_>) -> Result<RequestKey, Box<dyn Error>> {
    let text = |column: usize| row.get::<_, String>(column);
    Ok(RequestKey {
        tenant: text(0)?.parse()?,
        principal: text(1)?.parse()?,
        key: text(2)?.parse()?,
    })
}

/// What the thread records with, and for whom.
pub struct Recorder<'a> {
    /// `None`: nothing is recorded.
    pub records: Option<Box<dyn RecordStore>>,
    /// The set and readiness of a wallet whose records are in an engine.
    pub shared: Option<(&'a UnresolvedKeys, &'a ReadyBoard)>,
    /// The newest changes were not taken, which the log says once.
    pub is_failing: bool,
}

/// The thread's body: records changes, then answers the callers. Ends when shut down and the queue
/// is empty. `late`: changes that an engine has not taken yet, whose callers have been answered.
pub fn run(
    ctx: &ThreadCtx,
    notes: &Receiver<Change>,
    mut recorder: Recorder<'_>,
    mut late: Vec<Change>,
) {
    let mut some = Vec::new();
    let mut read_at = Deadline::within(Duration::ZERO);
    loop {
        if read_at.expired() {
            let is_read = recorder.read_others(late.is_empty());
            read_at = Deadline::within(if is_read { READ_EVERY } else { READ_AGAIN });
        }
        let again_at = Deadline::within(AGAIN_AFTER);
        let until = if late.is_empty() {
            read_at
        } else {
            read_at.earlier(again_at)
        };
        match notes.recv(&ctx.shutdown, until) {
            Recv::Item(note) => some.push(note),
            Recv::Timeout if late.is_empty() => continue,
            Recv::Timeout => {}
            Recv::Shutdown | Recv::Closed => {
                if notes.drain_into(&mut some, NOTES_MAX) == 0 {
                    if !late.is_empty() {
                        recorder.take(&mut some, &mut late);
                    }
                    return;
                }
            }
        }
        let room = NOTES_MAX.saturating_sub(some.len());
        notes.drain_into(&mut some, room);
        recorder.take(&mut some, &mut late);
    }
}

impl Recorder<'_> {
    /// Records changes, after those that came too late, and answers their callers.
    fn take(&mut self, some: &mut Vec<Change>, late: &mut Vec<Change>) {
        let written = match &mut self.records {
            None => Ok(()),
            Some(records) => {
                write_late(&mut **records, late).and_then(|()| write(&mut **records, some))
            }
        };
        let is_durable = written.is_ok();
        if let Err(why) = &written
            && !self.is_failing
        {
            tracing::error!(event = "unresolved_not_durable", reason = %why);
        }
        self.is_failing = !is_durable;
        if let Some((_, ready)) = self.shared {
            match &written {
                Ok(()) => ready.clear(CAUSE),
                Err(why) => ready.degrade(CAUSE, format!("keys are not recorded: {why}")),
            }
        }
        for note in some.drain(..) {
            match note {
                Change::Ask(key, by, answer) => {
                    let _ = answer.send(self.ask(&key, by)); // unless its caller has given up
                }
                note => {
                    let again = match &note {
                        Change::Add(key, _) => Change::Add(key.clone(), Vec::new()),
                        Change::Release(key) => Change::Release(key.clone()),
                        Change::Ask(..) => unreachable!("answered above"),
                    };
                    if !is_durable && self.shared.is_some() {
                        late.push(again);
                    }
                    answer_callers(note, is_durable);
                }
            }
        }
    }

    fn ask(&mut self, key: &RequestKey, by: Deadline) -> Result<bool, RecordError> {
        let Some(records) = &mut self.records else {
            return Err(Refusal::Unavailable("nothing is recorded".into()).into());
        };
        let by = by.earlier(Deadline::within(ENGINE_WAIT));
        settled(&mut **records, by, |records| {
            let sql = "SELECT 1 FROM unresolved WHERE tenant = ?1 AND principal = ?2 AND key = ?3";
            let found = records.read(by, |tx| tx.query(sql, &columns(key)))?;
            if found.is_empty() {
                // A server that was the primary once may lack the key; it can confirm nothing.
                records.confirm(by)?;
            }
            Ok(!found.is_empty())
        })
    }

    /// Reads what all wallets have recorded, so that the ledger is asked about keys of wallets that are gone;
    /// false when the engine does not answer.
    fn read_others(&mut self, all_written: bool) -> bool {
        let (Some(records), Some((keys, ready))) = (&mut self.records, self.shared) else {
            return true;
        };
        let by = Deadline::within(ENGINE_WAIT);
        let read = settled(&mut **records, by, |records| {
            let rows = records.read(by, |tx| tx.query(ALL, &[]))?;
            rows.iter().map(parsed_row).collect::<Result<Vec<_>, _>>()
        });
        match read {
            Ok(found) => {
                keys.change(|set| set.extend(found));
                if all_written {
                    ready.clear(CAUSE);
                }
                true
            }
            Err(why) => {
                ready.degrade(CAUSE, format!("keys are not read: {why}"));
                false
            }
        }
    }
}

fn parsed_row(row: &Row) -> Result<RequestKey, RecordError> {
    let of = |column| row.text(column);
    let odd =
        |why: &dyn std::fmt::Display| RecordError::Damaged(format!("table unresolved: {why}"));
    Ok(RequestKey {
        tenant: of(0)?.parse().map_err(|e| odd(&e))?,
        principal: of(1)?.parse().map_err(|e| odd(&e))?,
        key: of(2)?.parse().map_err(|e| odd(&e))?,
    })
}

/// Finds out what became of an earlier transaction, when `work` is refused until that is known. The callers of that one have
/// been answered, and its changes are sent again.
fn settled<T>(
    records: &mut dyn RecordStore,
    by: Deadline,
    mut work: impl FnMut(&mut dyn RecordStore) -> Result<T, RecordError>,
) -> Result<T, RecordError> {
    match work(records) {
        Err(RecordError::Refused(Refusal::Unresolved)) => {
            records.resolve(by)?;
            work(records)
        }
        done => done,
    }
}

fn columns(key: &RequestKey) -> [Value; 3] {
    [
        key.tenant.as_str(),
        key.principal.as_str(),
        key.key.as_str(),
    ]
    .map(Value::from)
}

fn write(records: &mut dyn RecordStore, notes: &[Change]) -> Result<(), RecordError> {
    if notes.iter().all(|note| matches!(note, Change::Ask(..))) {
        return Ok(());
    }
    let by = Deadline::within(ENGINE_WAIT);
    settled(records, by, |records| {
        records.write(Writer::Shared, by, |tx| {
            for note in notes {
                let (sql, key) = match note {
                    Change::Add(key, _) => (
                        "INSERT INTO unresolved VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
                        key,
                    ),
                    Change::Release(key) => (
                        "DELETE FROM unresolved WHERE tenant = ?1 AND principal = ?2 AND key = ?3",
                        key,
                    ),
                    Change::Ask(..) => continue,
                };
                tx.execute(sql, &columns(key))?;
            }
            Ok(())
        })
    })
}

/// Writes changes that an engine did not take before, in transactions that fit their deadline however many there are.
fn write_late(records: &mut dyn RecordStore, late: &mut Vec<Change>) -> Result<(), RecordError> {
    while !late.is_empty() {
        let some = late.len().min(NOTES_MAX);
        write(records, &late[..some])?;
        late.drain(..some);
    }
    Ok(())
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
#[path = "unresolved_tests.rs"]
mod tests;
