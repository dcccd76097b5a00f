//! The ledger without threads: opens the store, decides batches, makes them durable, applies them.
//!
//! **Invariant:** a decision leaves [`Engine::commit`] only after its leaf is durable; readers see
//! a state only after its leaves are durable.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ron_files::{Disk, WatchedDisk};
use ron_kernel::{DiskWatches, OsRandom, RankedRwLock, SharedRandom};
use ron_proto::Timestamp;
use ron_tlog::append::Archiver;
use ron_tlog::tree::leaf_hash;
use ron_tlog::{Checkpointer, Hash, Log, LogOptions, LogReader, ReadError, VerifierKey};

use crate::core::{
    Batch, Broken, Delta, Frozen, KeyHash, Leaf, Limits, Op, Outcome, Record, State, Step, genesis,
    read_genesis,
};
pub use crate::errors::{CommitError, EngineError};
use crate::journal::Journal;
use crate::replay::{Keys, Replay, read_beside};
use crate::salts;
use crate::store::keys::KeyIndex;
use crate::store::segment::Segment;
use crate::store::snapshot;
use crate::topology;

/// Entries after which a segment of the log ends.
const SEGMENT_ENTRIES: u64 = 65_536;

#[derive(Clone, Debug)]
pub struct EngineOptions {
    pub origin: String,
    /// The key that signs its checkpoints, if there is one already.
    pub verifier: Option<VerifierKey>,
    /// Entries after which a segment of the log ends (tests use small ones).
    pub segment_entries: u64,
    pub snapshot_every: u64,
    /// The operator's limits; may change between two starts.
    pub limits: Limits,
    /// Directory for archived segments of the log.
    pub archive_dir: Option<PathBuf>,
    /// Gives the salts of the log's checksums and of private records.
    pub random: SharedRandom,
}

impl EngineOptions {
    pub fn new(origin: impl Into<String>) -> Self {
        Self {
            origin: origin.into(),
            verifier: None,
            segment_entries: SEGMENT_ENTRIES,
            snapshot_every: 1_000_000,
            limits: Limits::default(),
            archive_dir: None,
            random: OsRandom::shared(),
        }
    }

    pub(crate) fn of_log(&self) -> LogOptions {
        let mut log = LogOptions::new(self.origin.clone());
        log.segment_entries = self.segment_entries;
        log.random = self.random.clone();
        log.archive_dir.clone_from(&self.archive_dir);
        log.verifiers.extend(self.verifier.clone());
        log
    }
}

/// Entries that are decided together.
#[derive(Clone, Debug)]
pub struct Request {
    pub ops: Vec<Op>,
    pub atomicity: Atomicity,
}

/// Atomicity mode of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomicity {
    /// Each entry is decided by itself.
    Independent,
    /// One request: its keys are all new or all used, its entries are decided each by itself.
    Batch,
    /// All entries take effect or none.
    Linked,
}

impl Atomicity {
    /// The mode for the two flags of a commit; `linked` takes precedence over `batch`.
    pub const fn of(linked: bool, batch: bool) -> Self {
        match (linked, batch) {
            (true, _) => Self::Linked,
            (false, true) => Self::Batch,
            (false, false) => Self::Independent,
        }
    }
}

/// The durable outcomes of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The time of all fresh entries.
    pub ts: Timestamp,
    /// One list per request, one outcome per entry.
    pub outcomes: Vec<Vec<Outcome>>,
}

impl ron_tlog::Record for Record {
    fn leaf(&self) -> &[u8] {
        &self.leaf
    }

    fn private(&self) -> &[u8] {
        &self.private
    }
}

/// State shared by readers and the writer.
#[derive(Debug)]
pub struct Shared {
    state: RankedRwLock<State>,
    keys: KeyIndex,
    reader: LogReader,
    snapshot_running: AtomicBool,
}

impl Shared {
    /// Reads the durable state under its lock; keep `read` short, because the writer waits for it.
    pub fn state<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.state.read())
    }

    pub const fn keys(&self) -> &KeyIndex {
        &self.keys
    }

    /// Shows readers entries that are durable. Keys before state: a reader that sees an entry in the state also finds its key.
    pub(crate) fn apply(&self, delta: Delta, last_seq: u64, ts: Timestamp) {
        #[cfg(mutant = "keys")] // state before keys
        if ron_kernel::mutant("keys") {
            let keys = delta.keys().to_vec();
            self.state.write().apply(delta, last_seq, ts);
            self.keys.insert(&keys);
            return;
        }
        self.keys.insert(delta.keys());
        self.state.write().apply(delta, last_seq, ts);
    }

    pub const fn reader(&self) -> &LogReader {
        &self.reader
    }

    /// The last durable sequence.
    pub fn head(&self) -> u64 {
        self.reader.size_durable().saturating_sub(1)
    }
}

/// The input of a snapshot, taken at one moment and written later by another thread.
#[derive(Debug)]
pub struct SnapshotJob {
    frozen: Frozen,
    keys: Arc<Keys>,
    keys_from: u64,
    size: u64,
    root: Hash,
}

/// Result of opening a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Sequence of the loaded snapshot; 0 without one.
    pub snapshot_seq: u64,
    /// Entries replayed after it.
    pub replayed: u64,
    /// Snapshots that were not used, with the reason.
    pub skipped: Vec<String>,
}

/// The only writer; owned by the writer thread.
#[derive(Debug)]
pub struct Engine {
    pub(crate) log: Journal,
    pub(crate) shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
    derived: PathBuf,
    pub(crate) options: EngineOptions,
    /// A commit without a known outcome, with what its callers are told when it is done.
    pub(crate) undecided: Option<Box<(Batch, Committed)>>,
    snapshot_seq: u64,
    keys_from: u64,
    opened: Opened,
}

impl Engine {
    /// Opens the ledger in `dir`, or creates one. `now` is the time of the first leaf of a new one.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: EngineOptions,
        now: Timestamp,
    ) -> Result<Self, EngineError> {
        disk.create_dir_all(dir)?;
        let mut log = Log::open(Arc::clone(&disk), &dir.join("log"), options.of_log())?;
        if log.size() == 0 {
            log.append(&[genesis(now, &options.origin)])?;
        }
        Self::on(Journal::Files(Box::new(log)), disk, dir, options)
    }

    /// The books of a log, from the newest snapshot and the entries after it. Only a log that is shared may be empty.
    pub(crate) fn on(
        log: Journal,
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        if log.size() > 0 {
            check_genesis(&log.reader(), &options.origin)?;
        }
        let derived = dir.join("derived");
        disk.create_dir_all(&derived)?;
        let (state, keys, opened) = recover(&*disk, &derived, &log.reader())?;
        let shared = Arc::new(Shared {
            reader: log.reader(),
            state: RankedRwLock::new(&topology::STATE_LOCK, state),
            keys,
            snapshot_running: AtomicBool::new(false),
        });
        let snapshot_seq = opened.snapshot_seq;
        Ok(Self {
            log,
            shared,
            disk,
            derived,
            options,
            undecided: None,
            snapshot_seq,
            keys_from: snapshot_seq + 1,
            opened,
        })
    }

    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// The source of salts.
    pub const fn random(&self) -> &SharedRandom {
        &self.options.random
    }

    pub const fn opened(&self) -> &Opened {
        &self.opened
    }

    /// The checkpointer of the log; `None` when it was taken before.
    pub fn take_checkpointer(&mut self) -> Option<Checkpointer> {
        self.log.take_checkpointer()
    }

    /// True once a write has failed.
    pub fn poisoned(&self) -> bool {
        self.log.poisoned()
    }

    /// Sequence of the last snapshot that was started; 0 before the first.
    pub const fn snapshot_seq(&self) -> u64 {
        self.snapshot_seq
    }

    /// The earliest expiry of an open hold.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.shared.state.read().next_expiry()
    }

    /// Decides requests in order, makes the result durable with one flush and publishes it to
    /// readers. Holds that are due by `now` end first.
    pub fn commit(
        &mut self,
        now: Timestamp,
        requests: &[Request],
    ) -> Result<Committed, CommitError> {
        if self.log.poisoned() {
            return Err(CommitError::Poisoned);
        }
        if self.undecided.is_some() {
            let why = "an earlier commit has no known outcome yet".to_owned();
            return Err(CommitError::Unavailable(why));
        }
        let keys: Vec<Option<KeyHash>> = requests
            .iter()
            .flat_map(|r| r.ops.iter().map(Op::key))
            .collect();
        let priors = self.shared.keys.resolve(&keys).map_err(CommitError::Keys)?;
        // A read lock suffices: this thread is the only one that writes the state.
        let (outcomes, batch) = {
            let state = self.shared.state.read();
            self.decide(&state, now, requests, &priors)?
        };
        let committed = Committed {
            ts: batch.ts,
            outcomes,
        };
        self.make_durable(batch, committed)
    }

    fn decide(
        &self,
        state: &State,
        now: Timestamp,
        requests: &[Request],
        priors: &[Option<u64>],
    ) -> Result<(Vec<Vec<Outcome>>, Batch), Broken> {
        let mut step = Step::new(state, now);
        step.prepare(requests.iter().flat_map(|r| &r.ops));
        step.set_limits(self.options.limits);
        step.expire_due(&mut || salts::one(&*self.options.random));
        let mut rest = priors;
        let mut outcomes = Vec::with_capacity(requests.len());
        for r in requests {
            let (mine, later) = rest.split_at(r.ops.len());
            rest = later;
            let atomicity = if r.ops.len() > 1 {
                r.atomicity
            } else {
                Atomicity::Independent
            };
            outcomes.push(match atomicity {
                Atomicity::Linked => step.linked(&r.ops, mine),
                Atomicity::Batch => step.batch(&r.ops, mine),
                Atomicity::Independent => r
                    .ops
                    .iter()
                    .zip(mine)
                    .map(|(op, prior)| step.entry(op, *prior))
                    .collect(),
            });
        }
        Ok((outcomes, step.finish()?))
    }

    fn make_durable(
        &mut self,
        batch: Batch,
        committed: Committed,
    ) -> Result<Committed, CommitError> {
        if batch.records.is_empty() {
            return Ok(committed);
        }
        let index = match self.log.append(&batch.records) {
            Ok(index) => index,
            Err(error) => {
                if matches!(error, CommitError::Undecided(_)) {
                    self.undecided = Some(Box::new((batch, committed)));
                }
                return Err(error);
            }
        };
        assert_eq!(
            index, batch.first_seq,
            "sequence and log index are one number"
        );
        let (last, ts) = (batch.last_seq(), batch.ts);
        self.shared.apply(batch.delta, last, ts);
        Ok(committed)
    }

    /// Collects what a snapshot needs when one is due (or, with `force`, when there is anything
    /// new) and no other is being written.
    pub fn begin_snapshot(&mut self, force: bool) -> Option<SnapshotJob> {
        let seq = self.shared.head();
        let new = seq - self.snapshot_seq;
        if new == 0 || (new < self.options.snapshot_every && !force) || self.log.poisoned() {
            return None;
        }
        if self.shared.snapshot_running.swap(true, Ordering::AcqRel) {
            return None;
        }
        let Some(keys) = self.shared.keys.begin_spill() else {
            self.shared.snapshot_running.store(false, Ordering::Release);
            return None;
        };
        let frozen = self.shared.state.read().freeze();
        let job = SnapshotJob {
            frozen,
            keys,
            keys_from: self.keys_from,
            size: self.log.size(),
            root: self.log.root(),
        };
        self.snapshot_seq = seq;
        self.keys_from = seq + 1;
        Some(job)
    }

    /// The right to archive segments of the log, for another thread.
    pub fn archiver(&self) -> Archiver {
        self.log.archiver()
    }

    /// The part that writes snapshots, for another thread.
    pub fn snapshotter(&self) -> Snapshotter {
        Snapshotter {
            shared: self.shared(),
            disk: Arc::clone(&self.disk),
            dir: self.derived.clone(),
        }
    }
}

/// Writes snapshots, in parallel to the writer.
#[derive(Clone, Debug)]
pub struct Snapshotter {
    shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl Snapshotter {
    /// Has its calls to the disk watched.
    #[must_use]
    pub fn watch_disk(self, watches: DiskWatches) -> Self {
        Self {
            disk: Arc::new(WatchedDisk::new(self.disk, watches)),
            ..self
        }
    }

    /// Writes a snapshot. After an error the older snapshot remains, keys stay in memory, and the
    /// next snapshot tries again.
    pub fn write(&self, job: &SnapshotJob) -> io::Result<()> {
        let done = self.try_write(job);
        if done.is_err() {
            self.shared.keys.undo_spill();
        }
        self.shared.snapshot_running.store(false, Ordering::Release);
        done
    }

    fn try_write(&self, job: &SnapshotJob) -> io::Result<()> {
        let keys = self.shared.keys.spill(
            &*self.disk,
            &self.dir,
            &job.keys,
            job.keys_from,
            job.frozen.seq(),
        )?;
        #[cfg(mutant = "spill")] // the snapshot does not name the keys that were spilled for it
        let keys = match ron_kernel::mutant("spill") {
            true => keys[..keys.len().saturating_sub(1)].to_vec(),
            false => keys,
        };
        snapshot::write(
            &*self.disk,
            &self.dir,
            &job.frozen,
            job.size,
            &job.root,
            &keys,
        )
    }
}

pub(crate) fn check_genesis(reader: &LogReader, origin: &str) -> Result<(), EngineError> {
    let bytes = reader.entry(0)?;
    match read_genesis(&bytes) {
        Ok(found) if found == origin => Ok(()),
        Ok(found) => Err(EngineError::Foreign(format!(
            "the log is that of `{found}`, the configuration says `{origin}`"
        ))),
        Err(e) => Err(EngineError::Foreign(format!(
            "the log does not begin with a ledger's genesis record: {e}"
        ))),
    }
}

/// Loads the newest snapshot that fits the log and replays everything after it.
fn recover(
    disk: &dyn Disk,
    dir: &Path,
    reader: &LogReader,
) -> Result<(State, KeyIndex, Opened), EngineError> {
    let mut opened = Opened::default();
    let mut start = (State::default(), Vec::new());
    for name in snapshot::list(disk, dir)? {
        match load_snapshot(disk, dir, &name, reader) {
            Ok(found) => {
                opened.snapshot_seq = found.0.seq();
                start = found;
                break;
            }
            Err(why) => opened.skipped.push(format!("{name}: {why}")),
        }
    }
    let (state, segments) = start;
    let size = reader.size_durable();
    let mut replay = Replay::from_state(state);
    let (read, decided) = read_beside(
        |feed| {
            reader.records(opened.snapshot_seq + 1..size, |index, bytes, private| {
                let passed = feed.leaf(index, bytes, private);
                passed.map_err(EngineError::from)
            })
        },
        |leaf| replay.add(leaf),
    )?;
    decided?;
    read?;
    let (state, tail) = replay.finish()?;
    opened.replayed = size.saturating_sub(1) - opened.snapshot_seq;
    Ok((
        state,
        KeyIndex::new(&topology::KEYS_LOCK, segments, tail),
        opened,
    ))
}

type LoadedSnapshot = (State, Vec<Arc<Segment>>);

fn load_snapshot(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    reader: &LogReader,
) -> Result<LoadedSnapshot, String> {
    let loaded = snapshot::load(disk, dir, name).map_err(|e| e.to_string())?;
    if loaded.size > reader.size_durable() {
        return Err(format!(
            "it covers {} leaves, the log has {}",
            loaded.size,
            reader.size_durable()
        ));
    }
    if reader.root_at(loaded.size).map_err(|e| e.to_string())? != loaded.root {
        return Err("its root differs from the log's".to_owned());
    }
    let open = |id| {
        Segment::open(disk, dir, id)
            .map(Arc::new)
            .map_err(|e| e.to_string())
    };
    Ok((
        loaded.state,
        loaded
            .keys
            .into_iter()
            .map(open)
            .collect::<Result<_, _>>()?,
    ))
}

/// The entry at `seq` with the hash of its leaf.
pub fn read_entry(reader: &LogReader, seq: u64) -> Result<(Leaf, Hash), ReadError> {
    let (leaf, private) = reader.record(seq)?;
    decode_entry(seq, &leaf, &private)
}

/// Like [`read_entry`], from the bytes of leaf and private record.
pub fn decode_entry(seq: u64, bytes: &[u8], private: &[u8]) -> Result<(Leaf, Hash), ReadError> {
    let damaged = |why: String| ReadError::Damaged { index: seq, why };
    let leaf = Leaf::decode(bytes, private).map_err(|e| damaged(e.to_string()))?;
    if leaf.seq != seq {
        return Err(damaged(format!("it is the entry {}", leaf.seq)));
    }
    Ok((leaf, leaf_hash(bytes)))
}
