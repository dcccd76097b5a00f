//! The register of revocations of an issuer that runs on several hosts: a log in an engine, to which every node appends. What
//! the feed shows of an event, and what it does not show, stands beside the leaf as its private part, so that a node that
//! has the log has all of it, and no row can be without its leaf.
//!
//! **Invariant:** a node shows the events that a checkpoint of its own covers, and such a checkpoint covers final entries only.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_auth::{RevocationView, revocation_log};
use ron_files::Disk;
use ron_kernel::{Deadline, SharedClock, SharedRandom, Snapshot};
use ron_proto::kms::Bytes;
use ron_proto::passport::{RevocationEvent, RevocationPage, Revoked};
use ron_proto::{Problem, Timestamp};
use ron_service::log_node::LogNode;
use ron_tlog::append::{Archiver, EngineError, Record, SharedLog};
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::{Ed25519NoteSigner, NoteSignature, NoteSigner as _};
use ron_tlog::store::{LogStore, StoreError};
use ron_tlog::{CheckpointError, LogOptions, LogReader, ReadError};
use serde::{Deserialize, Serialize};

use super::PAGE_MAX;
use super::draft::{Draft, EPOCH_FIRST};
use super::recorded::Recorded;
use super::store::{Row, StoreFailed};

/// Maximum time of a read of the log: the thread that reads records revocations too.
const READ: Duration = Duration::from_secs(2);
/// Longest pause after reads that failed.
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// The private part of an event's record, in JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Opening {
    /// Unix milliseconds.
    ts: u64,
    revoked: Revoked,
    salt: Bytes,
    actor: String,
    reason: String,
    by_salt: Bytes,
}

impl Opening {
    fn of(draft: &Draft<'_>, now_ms: u64, random: &SharedRandom) -> Self {
        let salt = || Bytes(random.bytes::<{ revocation_log::SALT_BYTES }>().to_vec());
        Self {
            ts: now_ms,
            revoked: draft.revoked.clone(),
            salt: salt(),
            actor: draft.actor.to_owned(),
            reason: draft.reason.to_owned(),
            by_salt: salt(),
        }
    }

    /// The event under a number.
    fn event(&self, seq: u64) -> Result<RevocationEvent, StoreFailed> {
        let by_salt = self.by_salt.as_slice().try_into();
        let by_salt = by_salt.map_err(|_| damaged(seq, "its salt has another length"))?;
        Ok(RevocationEvent {
            seq,
            ts: Timestamp(self.ts),
            revoked: self.revoked.clone(),
            salt: self.salt.clone(),
            by: revocation_log::by(by_salt, &self.actor, &self.reason),
        })
    }

    /// What opens the leaf of a row.
    fn of_row(row: &Row) -> Self {
        Self {
            ts: row.event.ts.0,
            revoked: row.event.revoked.clone(),
            salt: row.event.salt.clone(),
            actor: row.actor.clone(),
            reason: row.reason.clone(),
            by_salt: Bytes(row.by_salt.to_vec()),
        }
    }

    fn entry(&self) -> Result<Entry, StoreFailed> {
        Ok(Entry {
            leaf: revocation_log::leaf(&self.event(0)?),
            private: serde_json::to_vec(self).map_err(|e| StoreFailed::Row(e.to_string()))?,
        })
    }
}

fn damaged(seq: u64, why: &str) -> StoreFailed {
    StoreFailed::Row(format!("event {seq} of the log: {why}"))
}

/// A leaf and what opens it.
#[derive(Clone, Debug)]
struct Entry {
    leaf: Vec<u8>,
    private: Vec<u8>,
}

impl Record for Entry {
    fn leaf(&self) -> &[u8] {
        &self.leaf
    }

    fn private(&self) -> &[u8] {
        &self.private
    }
}

/// The event of a record of the log. It is what the leaf commits to.
pub fn opened(seq: u64, leaf: &[u8], private: &[u8]) -> Result<RevocationEvent, StoreFailed> {
    opened_whole(seq, leaf, private).map(|recorded| recorded.event)
}

/// The same, with actor and reason.
fn opened_whole(seq: u64, leaf: &[u8], private: &[u8]) -> Result<Recorded, StoreFailed> {
    let opening: Opening =
        serde_json::from_slice(private).map_err(|e| damaged(seq, &e.to_string()))?;
    let event = opening.event(seq)?;
    if revocation_log::leaf(&event) != leaf {
        return Err(damaged(seq, "its leaf commits to something else"));
    }
    Ok(Recorded {
        event,
        actor: opening.actor,
        reason: opening.reason,
    })
}

/// The private part that a row becomes in a shared log. It opens the leaf.
pub fn private_of(row: &Row, leaf: &[u8]) -> Result<Vec<u8>, StoreFailed> {
    let entry = Opening::of_row(row).entry()?;
    if entry.leaf != leaf {
        return Err(damaged(row.event.seq, "its leaf is not that of its row"));
    }
    Ok(entry.private)
}

/// The row that a record of a shared log becomes, without a signature.
pub fn row_of(seq: u64, leaf: &[u8], private: &[u8]) -> Result<Row, StoreFailed> {
    let recorded = opened_whole(seq, leaf, private)?;
    let opening: Opening =
        serde_json::from_slice(private).map_err(|e| damaged(seq, &e.to_string()))?;
    let by_salt = opening.by_salt.as_slice().try_into();
    Ok(Row {
        event: recorded.event,
        actor: recorded.actor,
        reason: recorded.reason,
        by_salt: by_salt.map_err(|_| damaged(seq, "its salt has another length"))?,
        sig: Vec::new(),
    })
}

/// Where the shared log is, and how its copy is opened.
pub struct SharedPlace<'a> {
    pub disk: Arc<dyn Disk>,
    /// Directory of the copy.
    pub dir: &'a Path,
    /// Signs checkpoints; all nodes have the same key. Its name is the log's origin.
    pub signer: Arc<Ed25519NoteSigner>,
    /// Heads that the log must extend.
    pub known: Vec<Checkpoint>,
    pub random: SharedRandom,
    pub store: Box<dyn LogStore>,
    /// Maximum time of a commit.
    pub within: Duration,
    pub head: Arc<HeadAge>,
    /// Directory for archived segments.
    pub archive_dir: Option<PathBuf>,
}

/// The shared log with what this node needs to write it.
pub struct SharedRegister {
    log: SharedLog,
    signer: Arc<Ed25519NoteSigner>,
    random: SharedRandom,
    within: Duration,
    head: Arc<HeadAge>,
}

impl SharedRegister {
    /// Opens this node's copy. The engine need not answer: the view is that of what this node knew last, and refuses all passports when that
    /// is nothing.
    pub fn open(place: SharedPlace<'_>) -> Result<(Self, RevocationView), StoreFailed> {
        let signer = place.signer;
        let mut options = LogOptions::new(signer.name()).verified_by(signer.verifier().clone());
        options.known_heads = place.known;
        options.random = place.random.clone();
        options.archive_dir = place.archive_dir;
        let log = SharedLog::open(place.disk, place.dir, options, place.store).map_err(failed)?;
        let register = Self {
            log,
            signer,
            random: place.random,
            within: place.within,
            head: place.head,
        };
        let covered = register.covered();
        let events = events(&register.reader(), 0..covered)?;
        let mut view = RevocationView::default();
        let page = page_of(&view, events);
        view.apply(&page, covered > 0, 0)
            .map_err(|gap| StoreFailed::Log(gap.to_string()))?;
        Ok((register, view))
    }

    pub fn archiver(&self) -> Archiver {
        self.log.archiver()
    }

    pub fn reader(&self) -> LogReader {
        self.log.reader()
    }

    pub fn poisoned(&self) -> bool {
        self.log.poisoned()
    }

    /// A number that tells a list from those that other nodes open in the same second.
    pub fn draw(&self) -> u32 {
        (self.random.u64() >> 33) as u32
    }

    /// Stores cosignatures with this node's checkpoint `text`; other nodes have their own cosigned.
    pub fn add_signatures(
        &mut self,
        text: &str,
        lines: &[NoteSignature],
    ) -> Result<Arc<str>, CheckpointError> {
        self.log.add_signatures(text, lines)
    }

    /// Number of events that a checkpoint of this node covers.
    fn covered(&self) -> u64 {
        self.log.reader().checkpoint_size()
    }

    /// Reads the log to its end, and returns the events after `after`.
    pub fn follow(&mut self, after: u64) -> Result<Vec<RevocationEvent>, StoreFailed> {
        let by = Deadline::within(self.head.max_age.min(READ));
        self.log.refresh(by).map_err(failed)?;
        self.show(after)
    }

    /// Appends events behind the event `after`, and returns them. `Moved`: another node has recorded some, which [`SharedRegister::follow`] returns.
    pub fn record(
        &mut self,
        drafts: &[Draft<'_>],
        now_ms: u64,
        after: u64,
    ) -> Result<Vec<RevocationEvent>, StoreFailed> {
        if self.log.size() != after {
            return Err(StoreFailed::Moved);
        }
        let openings = drafts.iter();
        let openings = openings.map(|draft| Opening::of(draft, now_ms, &self.random));
        let entries: Vec<Entry> = openings
            .map(|opening| opening.entry())
            .collect::<Result<_, _>>()?;
        let mut moved = false;
        let mut make = |came: std::ops::Range<u64>| {
            moved |= !came.is_empty();
            // What was decided does not hold any more.
            if moved { Vec::new() } else { entries.clone() }
        };
        let by = Deadline::within(self.within);
        let appended = self.log.append_by(&mut make, by).map_err(failed)?;
        if appended.is_empty() {
            return Err(StoreFailed::Moved);
        }
        self.show(after)
    }

    /// Covers what the copy has by a checkpoint, and returns the events after `after`.
    fn show(&mut self, after: u64) -> Result<Vec<RevocationEvent>, StoreFailed> {
        self.log.publish_checkpoint(&*self.signer)?;
        events(&self.log.reader(), after..self.covered())
    }

    /// Up to [`PAGE_MAX`] events after a number; `last` is the number of the last event in force. That there is none needs a log whose end
    /// was read.
    pub fn page(
        &self,
        after: u64,
        last: u64,
        current_epoch: u64,
    ) -> Result<RevocationPage, StoreFailed> {
        let reader = self.log.reader();
        let next = last.min(after.saturating_add(PAGE_MAX as u64));
        if reader.checkpoint_size() != last {
            return Err(StoreFailed::Unread(
                "the log of revocations was not read yet".to_owned(),
            ));
        }
        if next <= after {
            self.head.check().map_err(StoreFailed::Unread)?;
        }
        Ok(RevocationPage {
            events: events(&reader, after..next.max(after))?,
            next: next.max(after),
            current_epoch,
            checkpoint: reader
                .checkpoint()
                .map_or_else(String::new, |n| n.to_string()),
        })
    }
}

impl SharedRegister {
    /// Up to `limit` events before a number, newest first.
    pub fn recorded(&self, before: u64, limit: usize) -> Result<Vec<Recorded>, StoreFailed> {
        let last = before.saturating_sub(1);
        let first = last.saturating_sub(limit as u64);
        let mut found = Vec::new();
        self.reader().records(first..last, |index, leaf, private| {
            found.push(opened_whole(index + 1, leaf, private)?);
            Ok::<(), StoreFailed>(())
        })?;
        found.reverse();
        Ok(found)
    }
}

/// The page that continues a view.
fn page_of(view: &RevocationView, events: Vec<RevocationEvent>) -> RevocationPage {
    let epochs = events.iter().filter_map(|event| match event.revoked {
        Revoked::Epoch { epoch } => Some(epoch),
        _ => None,
    });
    RevocationPage {
        next: events.last().map_or(view.after(), |event| event.seq),
        current_epoch: epochs.fold(view.epoch().max(EPOCH_FIRST), u64::max),
        events,
        checkpoint: String::new(),
    }
}

/// The events of a range of the log's indexes.
fn events(
    log: &LogReader,
    range: std::ops::Range<u64>,
) -> Result<Vec<RevocationEvent>, StoreFailed> {
    let mut events = Vec::new();
    log.records(range, |index, leaf, private| {
        events.push(opened(index + 1, leaf, private)?);
        Ok::<(), StoreFailed>(())
    })?;
    Ok(events)
}

fn failed(error: EngineError) -> StoreFailed {
    match error {
        EngineError::Store(StoreError::Moved) => StoreFailed::Moved,
        EngineError::Store(StoreError::Refused(why)) => StoreFailed::Unread(why.to_string()),
        EngineError::Store(StoreError::Unknown(why)) => StoreFailed::Unknown(why),
        error => StoreFailed::Log(error.to_string()),
    }
}

impl From<ReadError> for StoreFailed {
    fn from(e: ReadError) -> Self {
        Self::Log(e.to_string())
    }
}

/// When the log in an engine was read, and how long other nodes may be first.
#[derive(Debug)]
pub struct SharedTimes {
    pub head: Arc<HeadAge>,
    /// Maximum time of a commit.
    pub within: Duration,
    /// What operators see of the log.
    pub shown: Arc<LogNode>,
}

/// When this node has read the end of the shared log: tokens are issued while that is not long ago.
#[derive(Debug)]
pub struct HeadAge {
    clock: SharedClock,
    max_age: Duration,
    /// When the last read began that a write has made final, and whose events are in force.
    read: Snapshot<Option<Instant>>,
}

impl HeadAge {
    pub fn new(clock: SharedClock, max_age: Duration) -> Self {
        Self {
            clock,
            max_age,
            read: Snapshot::new(None),
        }
    }

    /// Pause between two reads, of which `failed` in a row have failed: each leaves a session at a database that waits for its standby.
    pub fn pause(&self, failed: u32) -> Duration {
        let pause = (self.max_age / 4).min(Duration::from_millis(500));
        pause
            .saturating_mul(1 << failed.saturating_sub(1).min(6))
            .min(PAUSE_MAX.max(pause))
    }

    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// All that a read has found that began at `asked` is in force here.
    pub fn in_force(&self, asked: Instant) {
        self.read.store(Some(asked));
    }

    /// Whether all is in force here that the log had at `seen`.
    pub fn read_since(&self, seen: Instant) -> bool {
        self.read.load().is_some_and(|read| read >= seen)
    }

    /// Why the newest revocations may be missing here.
    pub fn check(&self) -> Result<(), String> {
        let now = self.clock.now();
        match *self.read.load() {
            Some(read) if now.saturating_duration_since(read) <= self.max_age => Ok(()),
            Some(read) => {
                let age = now.saturating_duration_since(read).as_secs();
                Err(format!("the log of revocations was last read {age} s ago"))
            }
            None => Err("the log of revocations was not read yet".to_owned()),
        }
    }

    /// The answer to a request for a token; `None` when it may be issued.
    pub fn refusal(&self) -> Option<Problem> {
        let why = self.check().err()?;
        Some(Problem::unavailable(
            format!("{why}: no token is issued meanwhile"),
            1,
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use ron_crypto::sign::Ed25519Key;
    use ron_files::{Dir, OsDisk};
    use ron_kernel::OsRandom;
    use ron_tlog::Log;

    use super::super::store::RevocationStore;
    use super::super::verify::verify;
    use super::*;

    fn entry(n: u64) -> Entry {
        let revoked = Revoked::Jti {
            jti: format!("token-{n}"),
            until: n,
        };
        let draft = Draft {
            revoked: &revoked,
            reason: "leaked",
            actor: "operator",
        };
        let opening = Opening::of(&draft, 1_000 + n, &OsRandom::shared());
        opening.entry().unwrap()
    }

    #[test]
    fn a_leaf_is_opened_by_its_own_private_part_alone() {
        let (one, other) = (entry(1), entry(2));
        let event = opened(5, &one.leaf, &one.private).unwrap();
        assert_eq!((event.seq, event.ts), (5, Timestamp(1_001)));
        assert_eq!(revocation_log::leaf(&event), one.leaf);
        for hidden in ["operator", "leaked", "token-1"] {
            let leaf = String::from_utf8(one.leaf.clone()).unwrap();
            assert!(!leaf.contains(hidden), "{leaf}");
        }
        assert!(opened(5, &one.leaf, &other.private).is_err());
        assert!(opened(5, &one.leaf, b"").is_err());
        let text = String::from_utf8(one.private).unwrap();
        for (from, to) in [("leaked", "lost"), ("1001", "1002"), ("token-1", "token-2")] {
            let changed = text.replace(from, to);
            assert_ne!(changed, text);
            assert!(opened(5, &one.leaf, changed.as_bytes()).is_err(), "{from}");
        }
    }

    #[test]
    fn a_row_becomes_a_private_part_and_back() {
        for n in 1..4 {
            let entry = entry(n);
            let row = row_of(n, &entry.leaf, &entry.private).unwrap();
            assert_eq!((row.event.seq, row.reason.as_str()), (n, "leaked"));
            assert_eq!(private_of(&row, &entry.leaf).unwrap(), entry.private);
            let mut other = row.clone();
            other.reason = "lost".to_owned();
            assert!(private_of(&other, &entry.leaf).is_err());
            assert!(row_of(n, &entry.leaf, b"").is_err());
        }
    }

    /// A log of entries with their private parts, beside a database without rows, as a node has it.
    fn written(entries: &[Entry]) -> (tempfile::TempDir, PathBuf, Ed25519NoteSigner) {
        let dir = tempfile::tempdir().unwrap();
        let signer = Ed25519NoteSigner::new("i/revocations", Ed25519Key::from_seed(&[7; 32]));
        let signer = signer.unwrap();
        drop(RevocationStore::open(&Dir::os(dir.path())).unwrap());
        let path = dir.path().join("revocations");
        let mut log = Log::open(Arc::new(OsDisk), &path, LogOptions::new(signer.name())).unwrap();
        log.append(entries).unwrap();
        log.publish_checkpoint(&signer).unwrap();
        (dir, path, signer)
    }

    #[test]
    fn the_offline_check_opens_every_leaf_of_a_copy() {
        let good = [entry(1), entry(2), entry(3)];
        let (_dir, path, signer) = written(&good);
        let verified = verify(&path, signer.verifier(), &mut |_, _| {}).unwrap();
        assert_eq!((verified.leaves, verified.checkpoint_size), (3, 3));
        let mut wrong = good;
        let private = wrong[0].private.clone();
        wrong[1].private = private;
        let (_dir, path, signer) = written(&wrong);
        let refused = verify(&path, signer.verifier(), &mut |_, _| {});
        assert!(refused.unwrap_err().contains("event 2"));
    }

    /// A log that came back from an engine has both, and neither may lack an event.
    #[test]
    fn the_offline_check_compares_rows_with_private_parts() {
        let entries = [entry(1), entry(2), entry(3)];
        let (dir, path, signer) = written(&entries);
        let store = RevocationStore::open(&Dir::os(dir.path())).unwrap();
        let rows = entries.iter().zip(1..).map(|(entry, seq)| {
            let row = row_of(seq, &entry.leaf, &entry.private).unwrap();
            super::super::signed(row, &signer).unwrap()
        });
        let rows: Vec<Row> = rows.collect();
        store.append(&rows[..2]).unwrap();
        let refused = verify(&path, signer.verifier(), &mut |_, _| {}).unwrap_err();
        assert!(refused.contains("no event 3"), "{refused}");
        store.append(&rows[2..]).unwrap();
        let verified = verify(&path, signer.verifier(), &mut |_, _| {}).unwrap();
        assert_eq!((verified.leaves, verified.rows), (3, Some(3)));
    }

    #[test]
    fn a_head_that_was_read_long_ago_refuses_tokens() {
        let clock = ron_kernel::SystemClock::shared();
        let head = HeadAge::new(clock.clone(), Duration::from_secs(2));
        let pauses = [0, 1, 2, 5, 6, 60].map(|failed| head.pause(failed).as_millis());
        assert_eq!(pauses, [500, 500, 1_000, 8_000, 8_000, 8_000]);
        assert_eq!(head.refusal().unwrap().status, 503, "never read");
        let age = |seconds| clock.now().checked_sub(Duration::from_secs(seconds));
        head.read.store(age(60));
        assert!(head.check().unwrap_err().contains("60 s ago"));
        head.read.store(age(0));
        assert_eq!(head.refusal(), None);
    }
}
