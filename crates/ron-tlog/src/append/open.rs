//! Opening a log: find its files, verify everything after the last checkpoint, cut a torn tail,
//! refuse any other damage.
//!
//! Full segments that the checkpoint covers are taken from their index files, whose tile roots must
//! lead to the signed root; only the segment of the checkpoint and those after it are read entry by
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
    FORMAT, SEGMENT_HEADER, Salt, SegmentHeader, index_name, segment_name, segment_number,
};
use super::log::{Cut, Filling, Log, LogOptions, Recovery, index_of, seal, start_segment};
use super::meta::{META_NAME, Meta};
use super::scan::{Bad, Scanner, Step};
use super::state::{Active, Published, Sealed, Shared, TreeState, View};
use super::verify::Check;
use super::window::Window;
use crate::checkpoint::{Checkpoint, CheckpointFault};
use crate::note::NOTE_BYTES_MAX;
use crate::tile::TILE_WIDTH;
use crate::tree::{Frontier, Hash, root_at};
use ron_files::{Disk, DiskFile, DiskLock, read_small};

/// Bytes at the end of the last segment that need care before anything is written after them.
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
    trust_indexes: bool,
    /// Segments whose index file must be written again, once the entries are known to be right.
    stale: Vec<u64>,
    recovery: Recovery,
}

/// The state built from the files, before it is checked against the signed heads.
struct Built {
    frontier: Frontier,
    sealed: Vec<Arc<Sealed>>,
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
        let mut segments: Vec<u64> = names.iter().filter_map(|n| segment_number(n)).collect();
        segments.sort_unstable();
        // A directory with a checkpoint and no segment is damaged, not new.
        let created = segments.is_empty() && !names.iter().any(|n| n == CHECKPOINT_NAME);
        let meta = load_meta(&*disk, dir, &options, created)?;
        let published = load_checkpoint(&*disk, dir, &meta, &options)?;
        let mut opening = Opening {
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
        opening.remove_unfinished(&mut segments)?;
        opening.check_names(&segments)?;
        let (shared, built) = opening.build_and_check(&segments)?;
        // Only after the checks: no bytes of entries are changed while the log may still be refused.
        opening.repair_tail(&built)?;
        let shared = Arc::new(shared);
        Ok(Self {
            head: built.frontier.root(),
            frontier: built.frontier,
            sealed: Arc::new(built.sealed),
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

    /// Removes the last segment file when a crash during its creation left it without a whole
    /// header and without entries.
    fn remove_unfinished(&self, segments: &mut Vec<u64>) -> Result<(), OpenError> {
        let Some(last) = segments.last().copied() else {
            return Ok(());
        };
        let (file, len) = self.open_segment(last)?;
        // A longer file has had entries, and a covered segment must exist: both are left to the
        // checks.
        if len > SEGMENT_HEADER as u64 || self.covered() > self.meta.first_of(last) {
            return Ok(());
        }
        let mut head = vec![0; len as usize];
        let path = self.dir.join(segment_name(last));
        file.read_at(0, &mut head)
            .map_err(OpenError::io("reading", &path))?;
        if SegmentHeader::decode(&head, &self.meta.salt, &self.meta.origin).is_ok() {
            return Ok(());
        }
        self.disk
            .remove(&path)
            .map_err(OpenError::io("removing the unfinished", &path))?;
        self.disk
            .sync_dir(self.dir)
            .map_err(OpenError::io("syncing", self.dir))?;
        segments.pop();
        Ok(())
    }

    fn check_names(&self, segments: &[u64]) -> Result<(), OpenError> {
        for (at, number) in segments.iter().enumerate() {
            if at as u64 != *number {
                let missing = self.meta.first_of(at as u64);
                return Err(damaged(
                    missing,
                    format!("the segment file {} is missing", segment_name(at as u64)),
                ));
            }
        }
        let end = self.meta.first_of(segments.len() as u64);
        if self.covered() > end {
            let why = format!(
                "the segment file {} is missing, a checkpoint covers it",
                segment_name(segments.len() as u64)
            );
            return Err(damaged(end, why));
        }
        Ok(())
    }

    /// Builds the state and checks it. On damage it determines the cause: an entry (then the log is
    /// refused) or only an index file (then everything is built again from the entries).
    fn build_and_check(&mut self, segments: &[u64]) -> Result<(Shared, Built), OpenError> {
        let built = self.build(segments).and_then(|built| {
            let shared = self.share(&built);
            self.check_heads(&shared)?;
            Ok((shared, built))
        });
        match built {
            Ok((shared, built)) => {
                self.rebuild_indexes(&built)?;
                Ok((shared, built))
            }
            Err(OpenError::Damaged { index, why }) => {
                self.locate_damage()?;
                if !self.trust_indexes {
                    return Err(damaged(index, why));
                }
                // Only the index files can be wrong: once more without them, which ends the
                // recursion.
                self.trust_indexes = false;
                self.stale.clear();
                self.recovery.scanned = 0;
                self.build_and_check(segments)
            }
            Err(other) => Err(other),
        }
    }

    /// Writes the index files again that were missing or did not match the entries.
    fn rebuild_indexes(&mut self, built: &Built) -> Result<(), OpenError> {
        for number in std::mem::take(&mut self.stale) {
            let mut frontier = Frontier::new();
            for sealed in &built.sealed[..number as usize] {
                frontier.push_subtree(self.meta.segment_level(), sealed.root);
            }
            let (filling, _) = self.scan(number, &mut frontier, false)?;
            seal(&**self.disk, self.dir, &self.meta, &filling).map_err(OpenError::io(
                "rebuilding",
                self.dir.join(index_name(number)),
            ))?;
            self.recovery.rebuilt_indexes.push(number);
        }
        Ok(())
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
            notes: Vec::new(),
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

    fn build(&mut self, segments: &[u64]) -> Result<Built, OpenError> {
        let mut frontier = Frontier::new();
        let mut sealed = Vec::new();
        let Some(last) = segments.last().copied() else {
            let filling = start_segment(&**self.disk, self.dir, &self.meta, 0, frontier.root(), 0)
                .map_err(OpenError::io("starting the first segment in", self.dir))?;
            return Ok(Built {
                frontier,
                sealed,
                filling,
                tail: Tail {
                    cut: None,
                    last_batch: None,
                },
            });
        };
        // Segments before that of the checkpoint lie under its signed root, which `check_heads`
        // compares: their index files are enough.
        let from = last.min(self.meta.segment_of(self.published_size()));
        for number in 0..last {
            let full = if number < from {
                self.indexed(number)?
            } else {
                None
            };
            let full = match full {
                Some(full) => full,
                // On a clone, because the whole segment is pushed as one subtree below.
                None => self.rescan_full(number, &mut frontier.clone())?,
            };
            frontier.push_subtree(self.meta.segment_level(), full.root);
            sealed.push(Arc::new(full));
        }
        let (filling, tail) = self.scan(last, &mut frontier, true)?;
        Ok(Built {
            frontier,
            sealed,
            filling,
            tail,
        })
    }

    /// A full segment as recorded in its index file, if the segment file has the recorded length.
    fn indexed(&self, number: u64) -> Result<Option<Sealed>, OpenError> {
        if !self.trust_indexes {
            return Ok(None);
        }
        let path = self.dir.join(index_name(number));
        let sealed = Sealed::load(&**self.disk, self.dir, &self.meta, number);
        let sealed = sealed.map_err(OpenError::io("reading", path))?;
        let (_, len) = self.open_segment(number)?;
        Ok(sealed.filter(|s| s.segment_len == len))
    }

    /// A full segment read entry by entry; marks its index file as stale when it does not match.
    fn rescan_full(&mut self, number: u64, frontier: &mut Frontier) -> Result<Sealed, OpenError> {
        let (filling, _) = self.scan(number, frontier, false)?;
        let (bytes, sealed) = index_of(&self.meta, &filling);
        let path = self.dir.join(index_name(number));
        // An unreadable index file counts as missing and is written again.
        let kept = read_small(&**self.disk, &path, bytes.len() as u64).unwrap_or_default();
        if kept.as_deref() != Some(&bytes) {
            self.stale.push(number);
        }
        Ok(sealed)
    }

    /// Reads a segment entry by entry.
    fn scan(
        &mut self,
        number: u64,
        frontier: &mut Frontier,
        is_last: bool,
    ) -> Result<(Filling, Tail), OpenError> {
        let (file, len) = self.open_segment(number)?;
        let path = self.dir.join(segment_name(number));
        let io = |e| OpenError::io("reading", &path)(e);
        let mut window = Window::new(&*file, len);
        self.check_header(
            number,
            window.at(0, SEGMENT_HEADER).map_err(io)?.unwrap_or(&[]),
            frontier,
        )?;
        let mut filling = Filling {
            active: Arc::new(Active::new(&self.meta, number, Arc::clone(&file))),
            partial: Vec::with_capacity(TILE_WIDTH as usize),
            end: SEGMENT_HEADER as u64,
        };
        let (covered, published) = (self.covered(), self.published_size());
        let mut scanner = Scanner::new(&self.meta, window, number);
        let mut tail = Tail {
            cut: None,
            last_batch: None,
        };
        let mut scanned = 0;
        loop {
            match scanner.step(&frontier.root()).map_err(io)? {
                Step::Batch(batch) => {
                    check_published(batch.header.checkpoint_size, published, frontier.size())?;
                    for entry in batch.entries() {
                        let leaf = sha256(entry.preimage);
                        filling.take(entry.index % self.meta.segment_entries, entry.offset, leaf);
                        frontier.push(leaf);
                        scanned += 1;
                    }
                    filling.end = batch.offset + batch.len;
                    // A batch below a signed head was durable when the head was signed.
                    tail.last_batch =
                        (frontier.size() > covered).then_some((batch.offset, batch.len));
                }
                Step::End => break,
                // Torn, last, and covered by no signed head: a crash before the acknowledgement.
                // Anything else was acknowledged or signed once and must not be cut.
                Step::Bad(bad) if bad.torn && is_last && bad.index >= covered => {
                    tail.cut = Some(cut(bad, frontier.size(), len));
                    break;
                }
                Step::Bad(bad) => return Err(damaged(bad.index, bad.why)),
            }
        }
        self.recovery.scanned += scanned;
        if !is_last && frontier.size() != self.meta.first_of(number + 1) {
            return Err(damaged(
                frontier.size(),
                format!("{} ends before it is full", segment_name(number)),
            ));
        }
        Ok((filling, tail))
    }

    fn check_header(&self, number: u64, head: &[u8], frontier: &Frontier) -> Result<(), OpenError> {
        let first = self.meta.first_of(number);
        let version = head
            .get(8..12)
            .map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        if head.starts_with(b"RONTLSEG") && version > FORMAT {
            return Err(OpenError::NewerFormat {
                file: segment_name(number),
                found: version,
                known: FORMAT,
            });
        }
        let header = SegmentHeader::decode(head, &self.meta.salt, &self.meta.origin)
            .map_err(|e| damaged(first, e))?;
        if (header.number, header.first, header.segment_entries)
            != (number, first, self.meta.segment_entries)
        {
            return Err(damaged(
                first,
                format!("{} holds another segment", segment_name(number)),
            ));
        }
        if header.root != frontier.root() {
            return Err(damaged(
                first.saturating_sub(1),
                "the segment was written after other entries",
            ));
        }
        check_published(header.checkpoint_size, self.published_size(), first)
    }

    /// Cuts the torn bytes and writes the last unsigned batch (or the header, while there is no
    /// batch) again: after a failed sync the kernel may return bytes that never reached the disk
    /// and consider them clean, so that another sync alone would write nothing. The directory is
    /// synced for the same reason: the names seen here must be durable before new entries depend on
    /// them.
    fn repair_tail(&mut self, built: &Built) -> Result<(), OpenError> {
        let file = &built.filling.active.file;
        let path = self.dir.join(segment_name(built.filling.active.number));
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
