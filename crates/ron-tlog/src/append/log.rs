//! The writer: one owner, one write and one fdatasync per batch, closed after the first failure
//! until the log is reopened.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ron_crypto::hash::sha256;
use ron_kernel::{OsRandom, SharedRandom};

use super::archiver::Archiver;
use super::checkpointer::Checkpointer;
use super::errors::{AppendError, CheckpointError, OpenError};
use super::layout::{
    BATCH_BODY_MAX, BATCH_HEADER, BatchHeader, ENTRY_HEADER, SEGMENT_HEADER, Salt, SegmentHeader,
    encode_index, index_name, push_entry, segment_name,
};
use super::meta::Meta;
use super::reader::LogReader;
use super::state::{Active, Closed, FullTile, Sealed, Segment, Shared, TreeState};
use crate::checkpoint::Checkpoint;
use crate::note::{NoteSignature, NoteSigner, VerifierKey};
use crate::tile::{ENTRY_BYTES_MAX, TILE_WIDTH};
use crate::tree::{Frontier, Hash, complete_root};
use ron_files::{Disk, DiskLock, write_atomic};

/// Default entries per segment.
const SEGMENT_ENTRIES: u64 = 65_536;
/// A batch buffer above this size is freed after the batch.
const BUFFER_KEPT: usize = 1024 * 1024;

/// Maximum length of the private part of a record in bytes.
const PRIVATE_BYTES_MAX: usize = 65_535;

/// What an append stores at one index. The tree, its tiles and the entry bundles carry the leaf
/// alone; the private part stands beside it in the segment files and in copies of them.
pub trait Record {
    fn leaf(&self) -> &[u8];

    fn private(&self) -> &[u8] {
        &[]
    }
}

/// A record without a private part.
impl<T: AsRef<[u8]>> Record for T {
    fn leaf(&self) -> &[u8] {
        self.as_ref()
    }
}

/// Options for opening a log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The log's identity: first line of its checkpoints, and usually the name of its key.
    pub origin: String,
    /// Keys of which one must have signed the stored checkpoint. Empty: the signature is not
    /// checked.
    pub verifiers: Vec<VerifierKey>,
    /// Heads known from elsewhere (a second path, a witness) that the log must extend; only size
    /// and root are compared.
    pub known_heads: Vec<Checkpoint>,
    /// Maximum length of a leaf in bytes, at most 65,535.
    pub entry_bytes_max: usize,
    /// Entries after which a segment file of a new log ends, and which one index file describes: a power
    /// of two, 256..=65,536. An existing log keeps its own.
    pub segment_entries: u64,
    /// Directory for archived segments, which [`super::Archiver`] moves there. `None` leaves a log with the one that it has.
    pub archive_dir: Option<PathBuf>,
    /// Gives the salt of a new log's checksums.
    pub random: SharedRandom,
}

impl LogOptions {
    /// Defaults for a log of this origin.
    pub fn new(origin: impl Into<String>) -> Self {
        Self {
            origin: origin.into(),
            verifiers: Vec::new(),
            known_heads: Vec::new(),
            entry_bytes_max: ENTRY_BYTES_MAX,
            segment_entries: SEGMENT_ENTRIES,
            archive_dir: None,
            random: OsRandom::shared(),
        }
    }

    /// Adds a key that may have signed the stored checkpoint.
    pub fn verified_by(mut self, key: VerifierKey) -> Self {
        self.verifiers.push(key);
        self
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        if self.origin.is_empty()
            || self.origin.len() > 1024
            || self.origin.chars().any(char::is_control)
        {
            return Err(OpenError::Options(
                "the origin must have 1..=1024 bytes and no control characters",
            ));
        }
        if self.entry_bytes_max == 0 || self.entry_bytes_max > ENTRY_BYTES_MAX {
            return Err(OpenError::Options("entry_bytes_max must be 1..=65535"));
        }
        if !Meta::valid_segment_entries(self.segment_entries) {
            return Err(OpenError::Options(
                "segment_entries must be a power of two, 256..=65536",
            ));
        }
        Ok(())
    }
}

/// What opening found and repaired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// True when the log was new.
    pub created: bool,
    /// Entries that were read and checked one by one.
    pub scanned: u64,
    /// A torn tail that was cut off; no entry of it was ever acknowledged.
    pub cut: Option<Cut>,
    /// Segments whose (derived) index file was missing or bad and was written again.
    pub rebuilt_indexes: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The index that the first lost entry would have had.
    pub index: u64,
    /// Bytes that were cut.
    pub bytes: u64,
    pub why: String,
}

/// The writer's state of the segment and the block being filled.
#[derive(Debug)]
pub(crate) struct Filling {
    pub segment: Arc<Segment>,
    /// Length of the segment file.
    pub end: u64,
    pub active: Arc<Active>,
    pub partial: Vec<Hash>,
    /// Full blocks before `active` whose index files are not written yet.
    pub full: Vec<Arc<Active>>,
}

impl Filling {
    /// The state in front of the first entry of `segment`.
    pub fn at(meta: &Meta, segment: Arc<Segment>, block: u64) -> Self {
        Self {
            segment,
            end: SEGMENT_HEADER as u64,
            active: Arc::new(Active::new(meta, block)),
            partial: Vec::with_capacity(TILE_WIDTH as usize),
            full: Vec::new(),
        }
    }

    /// Adds the next entry's leaf: `offset` is the entry's place in the segment file.
    pub fn take(&mut self, meta: &Meta, index: u64, offset: u64, leaf: Hash) {
        let block = meta.block_of(index);
        if block != self.active.number {
            let next = Arc::new(Active::new(meta, block));
            self.full.push(std::mem::replace(&mut self.active, next));
        }
        let position = index % meta.segment_entries;
        self.active.record_offset(position, offset);
        self.partial.push(leaf);
        if self.partial.len() as u64 == TILE_WIDTH {
            let leaves =
                std::mem::replace(&mut self.partial, Vec::with_capacity(TILE_WIDTH as usize));
            let tile = FullTile {
                root: complete_root(&leaves),
                leaves: leaves.into_boxed_slice(),
            };
            let cell = &self.active.tiles[(position / TILE_WIDTH) as usize];
            // Readers may hold this block already, but a view never reads cells beyond its size.
            assert!(cell.set(tile).is_ok(), "a tile is filled once");
        }
    }
}

/// A batch that is encoded and not a part of the tree yet.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// Place within the batch, and hash, of each leaf.
    pub leaves: Vec<(u64, Hash)>,
    /// The tree after the batch.
    pub frontier: Frontier,
    pub root: Hash,
}

impl Encoded {
    pub fn take(&mut self, at: u64, leaf: Hash) {
        self.leaves.push((at, leaf));
        self.frontier.push(leaf);
    }
}

/// The writer of a log. There is exactly one; the thread that appends owns it.
#[derive(Debug)]
pub struct Log {
    pub(crate) shared: Arc<Shared>,
    pub(crate) frontier: Frontier,
    /// Root of `frontier`, cached because every batch needs it twice.
    pub(crate) head: Hash,
    pub(crate) sealed: Arc<Vec<Arc<Sealed>>>,
    pub(crate) closed: Arc<Vec<Closed>>,
    pub(crate) filling: Filling,
    pub(crate) entry_bytes_max: usize,
    pub(crate) checkpointer: Option<Checkpointer>,
    pub(crate) recovery: Recovery,
    pub(crate) buffer: Vec<u8>,
    pub(crate) lock: Arc<dyn DiskLock>,
}

/// Closes the log for writing when dropped while true: an error or a panic in the middle of a batch
/// leaves file and tree state that may not match.
struct PoisonGuard<'a>(&'a Shared, bool);

impl Drop for PoisonGuard<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.poison();
        }
    }
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> AppendError {
    move |source| AppendError::Io { what, source }
}

/// Records the disk's failure. Called before the guard poisons the log, so that a thread that sees
/// the log closed also sees the reason.
fn record_failure(shared: &Shared, e: &AppendError) {
    if let AppendError::Io { what, source } = e {
        shared.poison_by(what, source);
    }
}

impl Log {
    /// Number of durable entries.
    pub fn size(&self) -> u64 {
        self.shared.tree.with(|t| t.size)
    }

    /// Root of the tree of all durable entries.
    pub fn root(&self) -> Hash {
        self.shared.tree.with(|t| t.root)
    }

    pub fn origin(&self) -> &str {
        &self.shared.meta.origin
    }

    /// What opening found and repaired.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// True once a write has failed.
    pub fn poisoned(&self) -> bool {
        self.shared.is_poisoned()
    }

    /// The right to archive segments, for the thread that does it. It is of no use without [`LogOptions::archive_dir`].
    pub fn archiver(&self) -> Archiver {
        Archiver {
            shared: Arc::clone(&self.shared),
            next: 0,
            _lock: Arc::clone(&self.lock),
        }
    }

    /// A handle for readers.
    pub fn reader(&self) -> LogReader {
        LogReader(Arc::clone(&self.shared))
    }

    /// Appends a batch and returns the index of its first entry; the others follow. When this
    /// returns, all of them are durable. On an error none may be acknowledged: after
    /// [`AppendError::Io`] all or none of them are in the log when it is opened again.
    pub fn append<R: Record>(&mut self, records: &[R]) -> Result<u64, AppendError> {
        self.admit(records)?;
        let first = self.frontier.size();
        if records.is_empty() {
            return Ok(first);
        }
        #[cfg(mutant = "ack")] // entries are acknowledged, but shown only with the next batch
        if ron_kernel::mutant("ack") {
            self.publish_tree();
        }
        let shared = Arc::clone(&self.shared);
        let mut guard = PoisonGuard(&shared, true);
        self.store(records)
            .inspect_err(|e| record_failure(&shared, e))?;
        guard.1 = false;
        #[cfg(mutant = "ack")]
        if ron_kernel::mutant("ack") {
            return Ok(first);
        }
        // Published before the caller acknowledges: a client that has its index can read the entry.
        self.publish_tree();
        if self.buffer.capacity() > BUFFER_KEPT {
            self.buffer = Vec::new();
        }
        Ok(first)
    }

    pub(crate) fn admit<R: Record>(&self, records: &[R]) -> Result<(), AppendError> {
        if self.shared.is_poisoned() {
            return Err(AppendError::Poisoned);
        }
        let mut total = 0;
        for (at, record) in records.iter().enumerate() {
            let parts = [
                (record.leaf().len(), self.entry_bytes_max),
                (record.private().len(), PRIVATE_BYTES_MAX),
            ];
            for (bytes, most) in parts {
                if bytes > most {
                    return Err(AppendError::EntryTooLarge { at, bytes, most });
                }
                total += bytes;
            }
            total += ENTRY_HEADER;
        }
        if total > BATCH_BODY_MAX {
            return Err(AppendError::BatchTooLarge {
                bytes: total,
                most: BATCH_BODY_MAX,
            });
        }
        Ok(())
    }

    /// Makes a batch durable, in a new segment when the last one has its entries already.
    fn store<R: Record>(&mut self, records: &[R]) -> Result<(), AppendError> {
        self.roll_when_full()?;
        self.write_batch(records)?;
        self.seal()
    }

    fn roll_when_full(&mut self) -> Result<(), AppendError> {
        let held = self.frontier.size() - self.filling.segment.first;
        if held < self.shared.meta.segment_entries {
            return Ok(());
        }
        self.roll()
    }

    /// Writes one batch: encode, write, sync.
    fn write_batch<R: Record>(&mut self, records: &[R]) -> Result<(), AppendError> {
        let shared = Arc::clone(&self.shared);
        let encoded = self.encode(records, &shared.meta.salt);
        // A disk that failed may have a part of the batch: the guard of `append` closes the log.
        let file = &self.filling.segment.file;
        file.write_at(self.filling.end, &self.buffer)
            .map_err(failed("writing a batch"))?;
        let flush = || file.sync_data();
        #[cfg(mutant = "early")] // acknowledged before it is durable
        let flush = || match ron_kernel::mutant("early") {
            true => Ok(()),
            false => flush(),
        };
        #[cfg(mutant = "flush")] // a failed flush counts as done
        let flush = || match ron_kernel::mutant("flush") {
            true => flush().or(Ok(())),
            false => flush(),
        };
        flush().map_err(failed("syncing a batch"))?;
        self.adopt(encoded, self.buffer.len() as u64);
        Ok(())
    }

    /// The next batch, of `count` entries, before its first.
    pub(crate) fn begin(&self, count: usize) -> Encoded {
        Encoded {
            leaves: Vec::with_capacity(count),
            frontier: self.frontier.clone(),
            root: self.head,
        }
    }

    /// Writes a batch that an engine keeps to this copy, without a flush, and shows it to readers.
    pub(crate) fn copy_batch(&mut self, encoded: Encoded, frame: &[u8]) -> Result<(), AppendError> {
        if self.shared.is_poisoned() {
            // Not `Poisoned`, which says that nothing was written: the engine has the batch.
            let earlier = io::Error::other("an earlier write to this copy failed");
            return Err(failed("writing a batch")(earlier));
        }
        let shared = Arc::clone(&self.shared);
        let mut guard = PoisonGuard(&shared, true);
        self.write_copy(encoded, frame)
            .inspect_err(|e| record_failure(&shared, e))?;
        guard.1 = false;
        self.publish_tree();
        Ok(())
    }

    fn write_copy(&mut self, encoded: Encoded, frame: &[u8]) -> Result<(), AppendError> {
        self.roll_when_full()?;
        let file = &self.filling.segment.file;
        file.write_at(self.filling.end, frame)
            .map_err(failed("writing a batch"))?;
        self.adopt(encoded, frame.len() as u64);
        self.seal()
    }

    /// Encodes the next batch into the buffer, with this salt of its checksums. Nothing of the log changes.
    pub(crate) fn encode<R: Record>(&mut self, records: &[R], salt: &Salt) -> Encoded {
        let mut encoded = self.begin(records.len());
        // The header needs the length of the body: its space is left empty first and filled last.
        self.buffer.clear();
        self.buffer.resize(BATCH_HEADER, 0);
        for record in records {
            let index = encoded.frontier.size();
            let at = self.buffer.len() as u64;
            let (leaf, private) = (record.leaf(), record.private());
            let preimage = push_entry(&mut self.buffer, salt, index, leaf, private);
            encoded.take(at, sha256(&self.buffer[preimage]));
        }
        encoded.root = encoded.frontier.root();
        let header = BatchHeader {
            count: records.len() as u32,
            body: (self.buffer.len() - BATCH_HEADER) as u32,
            first: self.frontier.size(),
            root: self.head,
            checkpoint_size: self.shared.published_size(),
        };
        self.buffer[..BATCH_HEADER].copy_from_slice(&header.encode(salt));
        encoded
    }

    /// Makes a batch whose `len` bytes were written a part of the tree.
    pub(crate) fn adopt(&mut self, encoded: Encoded, len: u64) {
        let (first, end) = (self.frontier.size(), self.filling.end);
        for (index, (at, leaf)) in (first..).zip(encoded.leaves) {
            self.filling.take(&self.shared.meta, index, end + at, leaf);
        }
        self.filling.end += len;
        self.frontier = encoded.frontier;
        self.head = encoded.root;
    }

    /// Starts the next segment.
    fn roll(&mut self) -> Result<(), AppendError> {
        let closed = Closed {
            first: self.filling.segment.first,
            len: self.filling.end,
        };
        let header = SegmentHeader {
            segment_entries: self.shared.meta.segment_entries,
            number: self.filling.segment.number + 1,
            first: self.frontier.size(),
            root: self.head,
            checkpoint_size: self.shared.published_size(),
            previous_len: closed.len,
        };
        let shared = &self.shared;
        let segment = start_segment(&*shared.disk, &shared.dir, &shared.meta, &header)
            .map_err(failed("starting a segment"))?;
        Arc::make_mut(&mut self.closed).push(closed);
        self.filling.segment = Arc::new(segment);
        self.filling.end = SEGMENT_HEADER as u64;
        Ok(())
    }

    /// Writes the index files of the blocks that the last batch has left behind. Its entries are durable already:
    /// after a crash in between, opening makes the files from them.
    fn seal(&mut self) -> Result<(), AppendError> {
        let shared = &self.shared;
        for block in std::mem::take(&mut self.filling.full) {
            let sealed = seal(&*shared.disk, &shared.dir, &shared.meta, &block)
                .map_err(failed("writing an index"))?;
            Arc::make_mut(&mut self.sealed).push(Arc::new(sealed));
        }
        Ok(())
    }

    /// Shows readers the durable state of now.
    fn publish_tree(&self) {
        self.shared.tree.store(TreeState {
            size: self.frontier.size(),
            root: self.head,
            sealed: Arc::clone(&self.sealed),
            active: Arc::clone(&self.filling.active),
            partial: self.filling.partial.clone(),
            closed: Arc::clone(&self.closed),
            segment: Arc::clone(&self.filling.segment),
            end: self.filling.end,
        });
    }

    /// Signs and publishes the head of the durable tree. For logs with a local key; a log whose
    /// signer may be slow gives its checkpointer to another thread ([`Log::take_checkpointer`]).
    pub fn publish_checkpoint(
        &mut self,
        signer: &dyn NoteSigner,
    ) -> Result<Arc<str>, CheckpointError> {
        self.checkpointer
            .as_mut()
            .ok_or(CheckpointError::HandedOut)?
            .publish(&[signer])
    }

    /// Adds signatures to the published checkpoint, as [`Checkpointer::add_signatures`], for as long
    /// as the checkpointer was not taken.
    pub fn add_signatures(
        &mut self,
        text: &str,
        lines: &[NoteSignature],
    ) -> Result<Arc<str>, CheckpointError> {
        self.checkpointer
            .as_mut()
            .ok_or(CheckpointError::HandedOut)?
            .add_signatures(text, lines)
    }

    /// Takes the right to publish checkpoints, for the thread that publishes them. `None` the
    /// second time.
    pub fn take_checkpointer(&mut self) -> Option<Checkpointer> {
        self.checkpointer.take()
    }
}

/// Writes the index file of a full block.
pub(crate) fn seal(disk: &dyn Disk, dir: &Path, meta: &Meta, block: &Active) -> io::Result<Sealed> {
    let (bytes, sealed) = index_of(meta, block);
    write_atomic(disk, dir, &index_name(block.number), &bytes)?;
    Ok(sealed)
}

/// The index file of a full block, and the part of it that stays in memory.
pub(crate) fn index_of(meta: &Meta, block: &Active) -> (Vec<u8>, Sealed) {
    let tile_roots = block.tile_roots();
    let leaves: Vec<Hash> = block
        .tiles
        .iter()
        .filter_map(|t| t.get())
        .flat_map(|t| t.leaves.iter().copied())
        .collect();
    assert_eq!(
        leaves.len() as u64,
        meta.segment_entries,
        "only a full block is sealed"
    );
    let offsets: Vec<u64> = block
        .offsets
        .iter()
        .map(|o| o.load(Ordering::Relaxed))
        .collect();
    let root = complete_root(&tile_roots);
    let bytes = encode_index(
        &meta.salt,
        block.number,
        &root,
        &tile_roots,
        &offsets,
        &leaves,
    );
    (bytes, Sealed { tile_roots, root })
}

/// Makes a segment file with a header and no entries, durable with its name.
pub(crate) fn start_segment(
    disk: &dyn Disk,
    dir: &Path,
    meta: &Meta,
    header: &SegmentHeader,
) -> io::Result<Segment> {
    let file = disk.create(&dir.join(segment_name(header.number)))?;
    file.write_at(0, &header.encode(&meta.salt, &meta.origin))?;
    file.sync_data()?;
    disk.sync_dir(dir)?;
    Ok(Segment {
        number: header.number,
        first: header.first,
        file,
    })
}
