//! Opening a log: find its files, verify everything after the last checkpoint, cut a torn tail,
//! refuse any other damage.
//!
//! Full blocks that the checkpoint covers are taken from their index files, whose tile roots must
//! lead to the signed root; only the block of the checkpoint and those after it are read entry by
//! entry. When the roots do not match, all entries are read: to name the first bad entry, or to
//! find that only an index file was bad and rebuild it.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use ron_crypto::hash::sha256;
use ron_kernel::Snapshot;

use super::checkpointer::{CHECKPOINT_NAME, Checkpointer};
use super::errors::OpenError;
use super::layout::{
    FORMAT, IndexParts, SEGMENT_HEADER, Salt, SegmentHeader, decode_index_leaves, index_name,
    segment_name,
};
use super::log::{Cut, Filling, Log, LogOptions, Recovery, index_of, seal, start_segment};
use super::meta::{META_NAME, Meta};
use super::scan::{Bad, Batch, Scanner, Step};
use super::segments;
use super::state::{Active, Closed, Published, Sealed, Segment, Shared, TreeState, View};
use super::verify::Check;
use super::window::Window;
use crate::checkpoint::{Checkpoint, CheckpointFault};
use crate::note::NOTE_BYTES_MAX;
use crate::tile::{TILE_HEIGHT, TILE_WIDTH};
use crate::tree::{Frontier, Hash, complete_root, root_at};
use ron_files::{Disk, DiskFile, DiskLock, read_small};

/// Bytes at the end of the last segment that need care before anything is written after them.
#[derive(Default)]
struct Tail {
    cut: Option<Cut>,
    /// The last whole batch, when no checkpoint covers it: offset and length.
    last_batch: Option<(u64, u64)>,
}

struct Opening<'a> {
    disk: &'a Arc<dyn Disk>,
    dir: &'a Path,
    meta: Meta,
    published: Option<Published>,
    heads: Vec<(u64, Hash)>,
    /// Numbers of the segment files.
    segments: Vec<u64>,
    /// The last segment file, when a crash during its creation left it without a whole header and without
    /// entries. It is not among `segments`, and is removed when the log has been accepted.
    unfinished: Option<u64>,
    trust_indexes: bool,
    /// The entries are known to be right, so that index files may be written from them.
    rebuild: bool,
    /// Blocks whose index file must be written again, once the entries are known to be right.
    stale: Vec<u64>,
    recovery: Recovery,
}

/// The state built from the files, before it is checked against the signed heads.
struct Built {
    frontier: Frontier,
    sealed: Vec<Arc<Sealed>>,
    closed: Vec<Closed>,
    filling: Filling,
    tail: Tail,
}

impl Log {
    /// Opens the log in `dir`, or makes a new one when there is none. A torn tail is cut and
    /// reported by [`Log::recovery`]; any other damage is refused.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: LogOptions) -> Result<Self, OpenError> {
        options.check()?;
        disk.create_dir_all(dir)
            .map_err(OpenError::io("making the directory", dir))?;
        let lock_path = dir.join("lock");
        let lock = disk
            .lock(&lock_path)
            .map_err(OpenError::io("locking", lock_path))?;
        let lock: Arc<dyn DiskLock> =
            Arc::from(lock.ok_or_else(|| OpenError::InUse(dir.to_owned()))?);
        let names = disk.list(dir).map_err(OpenError::io("listing", dir))?;
        let segments = segments::numbers(&names);
        // A directory with a checkpoint and no segment is damaged, not new.
        let created = segments.is_empty() && !names.iter().any(|n| n == CHECKPOINT_NAME);
        let meta = load_meta(&*disk, dir, &options, created)?;
        let published = load_checkpoint(&*disk, dir, &meta, &options)?;
        let mut opening = Opening {
            segments,
            unfinished: None,
            rebuild: false,
            disk: &disk,
            dir,
            heads: known_heads(&meta, published.as_ref(), &options)?,
            meta,
            published,
            trust_indexes: true,
            stale: Vec::new(),
            recovery: Recovery {
                created,
                ..Recovery::default()
            },
        };
        opening.set_unfinished_aside()?;
        let (shared, built) = opening.build_and_check()?;
        // Only after the checks: no bytes of entries are changed while the log may still be refused.
        opening.repair_tail(&built)?;
        opening.raise_format()?;
        let shared = Arc::new(shared);
        Ok(Self {
            head: built.frontier.root(),
            frontier: built.frontier,
            sealed: Arc::new(built.sealed),
            closed: Arc::new(built.closed),
            filling: built.filling,
            entry_bytes_max: options.entry_bytes_max,
            checkpointer: Some(Checkpointer {
                shared: Arc::clone(&shared),
                _lock: Arc::clone(&lock),
            }),
            shared,
            recovery: opening.recovery,
            buffer: Vec::new(),
            _lock: lock,
        })
    }
}

fn damaged(index: u64, why: impl Into<String>) -> OpenError {
    OpenError::Damaged {
        index,
        why: why.into(),
    }
}

fn load_meta(
    disk: &dyn Disk,
    dir: &Path,
    options: &LogOptions,
    created: bool,
) -> Result<Meta, OpenError> {
    match Meta::load(disk, dir)? {
        Some(meta) if meta.origin == options.origin => Ok(meta),
        Some(meta) => Err(OpenError::Origin {
            found: meta.origin,
            wanted: options.origin.clone(),
        }),
        None if created => {
            let meta = Meta {
                format: FORMAT,
                origin: options.origin.clone(),
                segment_entries: options.segment_entries,
                salt: Salt::new(options.random.bytes()),
            };
            meta.store(disk, dir)?;
            Ok(meta)
        }
        None => Err(damaged(0, format!("{META_NAME} is missing"))),
    }
}

fn load_checkpoint(
    disk: &dyn Disk,
    dir: &Path,
    meta: &Meta,
    options: &LogOptions,
) -> Result<Option<Published>, OpenError> {
    let path = dir.join(CHECKPOINT_NAME);
    let bytes =
        read_small(disk, &path, NOTE_BYTES_MAX as u64).map_err(OpenError::io("reading", path))?;
    let Some(bytes) = bytes else { return Ok(None) };
    let text =
        String::from_utf8(bytes).map_err(|_| CheckpointFault::Malformed("it is not text"))?;
    let origin = Some(meta.origin.as_str());
    let checkpoint = if options.verifiers.is_empty() {
        Checkpoint::read_unverified(&text, origin)?
    } else {
        Checkpoint::open(&text, &options.verifiers, origin)?
    };
    Ok(Some(Published {
        text: text.into(),
        checkpoint,
    }))
}

fn known_heads(
    meta: &Meta,
    published: Option<&Published>,
    options: &LogOptions,
) -> Result<Vec<(u64, Hash)>, OpenError> {
    if let Some(foreign) = options.known_heads.iter().find(|h| h.origin != meta.origin) {
        return Err(CheckpointFault::Origin(foreign.origin.clone()).into());
    }
    let known = options
        .known_heads
        .iter()
        .chain(published.map(|p| &p.checkpoint));
    Ok(known.map(|c| (c.size, c.root)).collect())
}

impl Opening<'_> {
    /// Number of entries that any signed head covers.
    fn covered(&self) -> u64 {
        self.heads.iter().map(|h| h.0).max().unwrap_or(0)
    }

    fn published_size(&self) -> u64 {
        self.published.as_ref().map_or(0, |p| p.checkpoint.size)
    }

    fn open_segment(&self, number: u64) -> Result<(Arc<dyn DiskFile>, u64), OpenError> {
        let path = self.dir.join(segment_name(number));
        let file = self
            .disk
            .open_write(&path)
            .map_err(OpenError::io("opening", &path))?;
        let len = file.len().map_err(OpenError::io("measuring", &path))?;
        Ok((file, len))
    }

    /// Finds a last segment file that a crash left without a whole header.
    fn set_unfinished_aside(&mut self) -> Result<(), OpenError> {
        let Some(last) = self.segments.last().copied() else {
            return Ok(());
        };
        let (file, len) = self.open_segment(last)?;
        // A longer file has had entries, which is left to the checks.
        if len > SEGMENT_HEADER as u64 {
            return Ok(());
        }
        let mut head = vec![0; len as usize];
        let path = self.dir.join(segment_name(last));
        file.read_at(0, &mut head)
            .map_err(OpenError::io("reading", &path))?;
        if SegmentHeader::decode(&head, &self.meta.salt, &self.meta.origin).is_err() {
            self.unfinished = self.segments.pop();
        }
        Ok(())
    }

    fn remove_unfinished(&mut self) -> Result<(), OpenError> {
        let Some(number) = self.unfinished.take() else {
            return Ok(());
        };
        let path = self.dir.join(segment_name(number));
        self.disk
            .remove(&path)
            .map_err(OpenError::io("removing the unfinished", &path))?;
        self.disk
            .sync_dir(self.dir)
            .map_err(OpenError::io("syncing", self.dir))
    }

    /// From now on files of this program's format may follow, which an earlier program must refuse.
    fn raise_format(&mut self) -> Result<(), OpenError> {
        if self.meta.format < FORMAT {
            self.meta.format = FORMAT;
            self.meta.store(&**self.disk, self.dir)?;
        }
        Ok(())
    }

    /// Builds the state and checks it. On damage it determines the cause: an entry (then the log is
    /// refused) or only an index file (then everything is built again from the entries).
    fn build_and_check(&mut self) -> Result<(Shared, Built), OpenError> {
        match self.build_once() {
            Ok(done) if self.stale.is_empty() => return Ok(done),
            Ok(_) => {}
            Err(OpenError::Damaged { .. }) => {
                self.locate_damage()?;
                self.trust_indexes = false;
            }
            Err(other) => return Err(other),
        }
        // The entries are right. Once more, and index files that are not are written again.
        self.rebuild = true;
        self.stale.clear();
        self.recovery.scanned = 0;
        self.build_once()
    }

    fn build_once(&mut self) -> Result<(Shared, Built), OpenError> {
        let built = self.build()?;
        let shared = self.share(&built);
        self.check_heads(&shared)?;
        Ok((shared, built))
    }

    fn share(&self, built: &Built) -> Shared {
        Shared {
            disk: Arc::clone(self.disk),
            dir: self.dir.to_owned(),
            meta: self.meta.clone(),
            tree: Snapshot::new(TreeState {
                size: built.frontier.size(),
                root: built.frontier.root(),
                sealed: Arc::new(built.sealed.clone()),
                active: Arc::clone(&built.filling.active),
                partial: built.filling.partial.clone(),
                closed: Arc::new(built.closed.clone()),
                segment: Arc::clone(&built.filling.segment),
                end: built.filling.end,
            }),
            published: Snapshot::new(self.published.clone()),
            poisoned: AtomicBool::new(false),
            failure: OnceLock::new(),
        }
    }

    /// Every known head must be an earlier state of this tree.
    fn check_heads(&self, shared: &Shared) -> Result<(), OpenError> {
        let tree = shared.tree.load();
        let view = View::new(shared, &tree);
        for (size, root) in &self.heads {
            if *size > tree.size {
                let why = format!(
                    "the log ends here, but a checkpoint covers {size} entries: it was cut or rolled back"
                );
                return Err(damaged(tree.size, why));
            }
            let found = root_at(&view, *size)
                .map_err(|e| damaged(size.saturating_sub(1), e.to_string()))?;
            if found != *root {
                let why =
                    format!("the first {size} entries do not hash to the root of their checkpoint");
                return Err(damaged(0, why));
            }
        }
        Ok(())
    }

    /// Reads all entries; the error names the first bad one. `Ok` when no entry is bad.
    fn locate_damage(&self) -> Result<(), OpenError> {
        let mut check = Check {
            disk: &**self.disk,
            dir: self.dir,
            meta: &self.meta,
            heads: self.heads.clone(),
            frontier: Frontier::new(),
            suspect: None,
            known: Vec::new(),
            unindexed: Vec::new(),
            newest_checkpoint: u64::MAX,
            keys: &[],
            on_entry: &mut |_, _, _| Ok(()),
            progress: &mut |_, _| (),
        };
        check
            .run()
            .map(|_| ())
            .map_err(|e| damaged(e.index.unwrap_or(0), e.why))
    }

    fn build(&mut self) -> Result<Built, OpenError> {
        let headers = segments::headers(&**self.disk, self.dir, &self.meta, &self.segments)?;
        let Some(((last, _), closed)) = headers.split_last() else {
            return self.begin();
        };
        let closed = closed.iter().map(|(header, len)| Closed {
            first: header.first,
            len: *len,
        });
        // Blocks before that of the checkpoint lie under its signed root, which `check_heads`
        // compares: their index files are enough.
        let mut sealed = Vec::new();
        while (sealed.len() as u64) < self.meta.block_of(self.published_size()) {
            let Some(block) = self.indexed(sealed.len() as u64)? else {
                break;
            };
            sealed.push(Arc::new(block));
        }
        let block = sealed.len() as u64;
        let known = self.meta.first_of(block);
        let from = segments::holding(&headers, known);
        let mut scan = Scan {
            frontier: self.frontier_at(headers[from].0.first, &sealed)?,
            filling: Filling::at(&self.meta, self.segment(&headers[from].0)?, block),
            known,
            sealed,
            tail: Tail::default(),
        };
        for at in from..headers.len() {
            let (header, _) = &headers[at];
            scan.filling.segment = self.segment(header)?;
            scan.filling.end = SEGMENT_HEADER as u64;
            // A segment is made when all batches before it are durable.
            scan.tail = Tail::default();
            let limit = headers.get(at + 1).map(|(next, _)| next.first);
            self.scan(header, limit, &mut scan)?;
        }
        let size = scan.frontier.size();
        if size < known {
            let why = format!(
                "the log ends here, but a checkpoint covers {} entries: it was cut or rolled back",
                self.covered()
            );
            return Err(damaged(size, why));
        }
        debug_assert_eq!(scan.filling.segment.number, last.number);
        Ok(Built {
            closed: closed.collect(),
            frontier: scan.frontier,
            sealed: scan.sealed,
            filling: scan.filling,
            tail: scan.tail,
        })
    }

    /// The state of a log without entries and files.
    fn begin(&mut self) -> Result<Built, OpenError> {
        let covered = self.covered();
        if covered > 0 {
            let name = segment_name(0);
            let why = format!("the segment file {name} is missing, a checkpoint covers it");
            return Err(damaged(0, why));
        }
        self.remove_unfinished()?;
        let frontier = Frontier::new();
        let header = SegmentHeader {
            segment_entries: self.meta.segment_entries,
            number: 0,
            first: 0,
            root: frontier.root(),
            checkpoint_size: 0,
            previous_len: 0,
        };
        let segment = start_segment(&**self.disk, self.dir, &self.meta, &header)
            .map_err(OpenError::io("starting the first segment in", self.dir))?;
        Ok(Built {
            frontier,
            sealed: Vec::new(),
            closed: Vec::new(),
            filling: Filling::at(&self.meta, Arc::new(segment), 0),
            tail: Tail::default(),
        })
    }

    fn segment(&self, header: &SegmentHeader) -> Result<Arc<Segment>, OpenError> {
        let (file, _) = self.open_segment(header.number)?;
        Ok(Arc::new(Segment {
            number: header.number,
            first: header.first,
            file,
        }))
    }

    /// A full block as recorded in its index file.
    fn indexed(&self, number: u64) -> Result<Option<Sealed>, OpenError> {
        if !self.trust_indexes {
            return Ok(None);
        }
        let path = self.dir.join(index_name(number));
        let sealed = Sealed::load(&**self.disk, self.dir, &self.meta, number);
        sealed.map_err(OpenError::io("reading", path))
    }

    /// The tree of the first `size` entries, which lie within the given blocks.
    fn frontier_at(&self, size: u64, sealed: &[Arc<Sealed>]) -> Result<Frontier, OpenError> {
        let mut frontier = Frontier::new();
        let block = self.meta.block_of(size);
        for sealed in &sealed[..block as usize] {
            frontier.push_subtree(self.meta.block_level(), sealed.root);
        }
        let rest = size - frontier.size();
        if rest == 0 {
            return Ok(frontier);
        }
        let tile = (rest / TILE_WIDTH) as usize;
        let roots = &sealed[block as usize].tile_roots;
        for root in &roots[..tile] {
            frontier.push_subtree(TILE_HEIGHT, *root);
        }
        let path = self.dir.join(index_name(block));
        let most = IndexParts::of(self.meta.segment_entries).end;
        let bytes = read_small(&**self.disk, &path, most).map_err(OpenError::io("reading", &path))?;
        let leaves = bytes.and_then(|bytes| decode_index_leaves(&bytes, &self.meta.salt));
        let leaves = leaves.unwrap_or_default();
        let from = tile * TILE_WIDTH as usize;
        let tile = leaves.get(from..from + TILE_WIDTH as usize);
        let tile = tile.filter(|tile| complete_root(tile) == roots[from / TILE_WIDTH as usize]);
        let tile = tile.ok_or_else(|| damaged(size, format!("{} is damaged", index_name(block))))?;
        for leaf in &tile[..(rest % TILE_WIDTH) as usize] {
            frontier.push(*leaf);
        }
        Ok(frontier)
    }

    /// Reads a segment entry by entry, up to the first entry of the next one. `limit` is `None` for the last segment.
    fn scan(
        &mut self,
        header: &SegmentHeader,
        limit: Option<u64>,
        scan: &mut Scan,
    ) -> Result<(), OpenError> {
        if header.root != scan.frontier.root() {
            return Err(damaged(
                header.first.saturating_sub(1),
                "the segment was written after other entries",
            ));
        }
        let (covered, published) = (self.covered(), self.published_size());
        check_published(header.checkpoint_size, published, header.first)?;
        let file = Arc::clone(&scan.filling.segment.file);
        let path = self.dir.join(segment_name(header.number));
        let io = |e| OpenError::io("reading", &path)(e);
        let len = file.len().map_err(io)?;
        let mut scanner = Scanner::new(&self.meta, Window::new(&*file, len), header.first, limit);
        let mut scanned = 0;
        let mut full = Vec::new();
        loop {
            match scanner.step(&scan.frontier.root()).map_err(io)? {
                Step::Batch(batch) => {
                    let size = scan.frontier.size();
                    check_published(batch.header.checkpoint_size, published, size)?;
                    scanned += u64::from(batch.header.count);
                    scan.take(&self.meta, &batch);
                    full.append(&mut scan.filling.full);
                    // A batch below a signed head was durable when the head was signed.
                    let size = scan.frontier.size();
                    scan.tail.last_batch = (size > covered).then_some((batch.offset, batch.len));
                }
                Step::End => break,
                // Torn, last, and covered by no signed head: a crash before the acknowledgement.
                // Anything else was acknowledged or signed once and must not be cut.
                Step::Bad(bad) if bad.torn && limit.is_none() && bad.index >= covered => {
                    scan.tail.cut = Some(cut(bad, scan.frontier.size(), len));
                    break;
                }
                Step::Bad(bad) => return Err(damaged(bad.index, bad.why)),
            }
        }
        self.recovery.scanned += scanned;
        if limit.is_some_and(|limit| scan.frontier.size() != limit) {
            return Err(damaged(
                scan.frontier.size(),
                format!("{} ends before the next segment begins", segment_name(header.number)),
            ));
        }
        for block in full {
            let sealed = self.check_index(&block)?;
            scan.sealed.push(Arc::new(sealed));
        }
        Ok(())
    }

    /// A full block that was read entry by entry. Its index file is written again when it does not match and the
    /// entries are known to be right, and marked as stale otherwise.
    fn check_index(&mut self, block: &Active) -> Result<Sealed, OpenError> {
        let (bytes, sealed) = index_of(&self.meta, block);
        let path = self.dir.join(index_name(block.number));
        // An unreadable index file counts as missing and is written again.
        let kept = read_small(&**self.disk, &path, bytes.len() as u64).unwrap_or_default();
        if kept.as_deref() == Some(&bytes) {
            return Ok(sealed);
        }
        if self.rebuild {
            seal(&**self.disk, self.dir, &self.meta, block)
                .map_err(OpenError::io("rebuilding", path))?;
            self.recovery.rebuilt_indexes.push(block.number);
        } else {
            self.stale.push(block.number);
        }
        Ok(sealed)
    }

    /// Cuts the torn bytes and writes the last unsigned batch (or the header, while there is no
    /// batch) again: after a failed sync the kernel may return bytes that never reached the disk
    /// and consider them clean, so that another sync alone would write nothing. The directory is
    /// synced for the same reason: the names seen here must be durable before new entries depend on
    /// them.
    fn repair_tail(&mut self, built: &Built) -> Result<(), OpenError> {
        self.remove_unfinished()?;
        let file = &built.filling.segment.file;
        let path = self.dir.join(segment_name(built.filling.segment.number));
        let io = |what| OpenError::io(what, &path);
        if built.tail.cut.is_some() {
            file.set_len(built.filling.end)
                .map_err(io("cutting the torn end of"))?;
        }
        let header =
            (built.filling.end == SEGMENT_HEADER as u64).then_some((0, SEGMENT_HEADER as u64));
        if let Some((offset, len)) = built.tail.last_batch.or(header) {
            let mut bytes = vec![0; len as usize];
            file.read_at(offset, &mut bytes).map_err(io("reading"))?;
            file.write_at(offset, &bytes)
                .map_err(io("writing the end of"))?;
        }
        if built.tail.cut.is_some() || built.tail.last_batch.is_some() || header.is_some() {
            file.sync_data().map_err(io("syncing"))?;
        }
        self.disk
            .sync_dir(self.dir)
            .map_err(OpenError::io("syncing", self.dir))?;
        self.recovery.cut.clone_from(&built.tail.cut);
        Ok(())
    }
}

/// What the scan of the segments has found so far.
struct Scan {
    frontier: Frontier,
    sealed: Vec<Arc<Sealed>>,
    filling: Filling,
    /// Entries before this one are described by the index files in `sealed`.
    known: u64,
    tail: Tail,
}

impl Scan {
    fn take(&mut self, meta: &Meta, batch: &Batch<'_>) {
        for entry in batch.entries() {
            let leaf = sha256(entry.preimage);
            if entry.index >= self.known {
                self.filling.take(meta, entry.index, entry.offset, leaf);
            }
            self.frontier.push(leaf);
        }
        self.filling.end = batch.offset + batch.len;
    }
}

fn cut(bad: Bad, index: u64, len: u64) -> Cut {
    Cut {
        index,
        bytes: len - bad.offset,
        why: bad.why,
    }
}

/// Refuses a checkpoint file that is older than the checkpoint that a header recorded (`noted`
/// entries) when it was written.
fn check_published(noted: u64, published: u64, index: u64) -> Result<(), OpenError> {
    if noted > published {
        let why = format!(
            "a checkpoint of {noted} entries was published before it, the stored one covers {published}: \
             the checkpoint is missing or was replaced by an older one"
        );
        return Err(damaged(index, why));
    }
    Ok(())
}
