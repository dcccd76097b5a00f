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

use ron_kernel::Snapshot;

use super::build::{Built, Opening, damaged};
use super::checkpointer::{CHECKPOINT_NAME, Checkpointer};
use super::errors::OpenError;
use super::layout::{FORMAT, SEGMENT_HEADER, Salt, SegmentHeader, segment_name};
use super::log::{Log, LogOptions, Recovery};
use super::meta::{META_NAME, Meta};
use super::segments;
use super::state::{Published, Shared, TreeState, View};
use super::verify::{Archived, Check};
use crate::checkpoint::{Checkpoint, CheckpointFault};
use crate::note::NOTE_BYTES_MAX;
use crate::tree::{Frontier, Hash, root_at};
use ron_files::{Disk, DiskLock, read_small};

impl Log {
    /// Opens the log in `dir`, or makes a new one when there is none. A torn tail is cut and
    /// reported by [`Log::recovery`]; any other damage is refused.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: LogOptions) -> Result<Self, OpenError> {
        Ok(Self::open_as(disk, dir, options, false)?.0)
    }

    /// Opens the copy of a log that an engine keeps, or begins one. What is not whole in it is thrown away, because the engine has
    /// it. Returns also the newest checkpoint that this node has seen, which may be beyond the copy.
    pub(crate) fn open_copy(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: LogOptions,
    ) -> Result<(Self, Option<Checkpoint>), OpenError> {
        let open = || Self::open_as(Arc::clone(&disk), dir, options.clone(), true);
        let opened = open();
        if !matches!(opened, Err(OpenError::Damaged { .. })) {
            return opened;
        }
        // The checkpoint stays: it says what the engine has acknowledged.
        let names = disk.list(dir).map_err(OpenError::io("listing", dir))?;
        for name in names.iter().filter(|n| is_entries(n)) {
            let path = dir.join(name);
            disk.remove(&path)
                .map_err(OpenError::io("removing the damaged", &path))?;
        }
        open()
    }

    /// The same for both: damage is refused.
    pub(crate) fn open_as(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: LogOptions,
        is_copy: bool,
    ) -> Result<(Self, Option<Checkpoint>), OpenError> {
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
        let mut meta = load_meta(&*disk, dir, &options, created, is_copy)?;
        let stored = meta.clone();
        if let Some(archive) = &options.archive_dir {
            name_archive(&*disk, dir, &mut meta, archive, &segments)?;
        }
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
        opening.store_meta(&stored)?;
        let shared = Arc::new(shared);
        let seen = opening.published.map(|p| p.checkpoint);
        let log = Self {
            head: built.frontier.root(),
            frontier: built.frontier,
            sealed: Arc::new(built.sealed),
            closed: Arc::new(built.closed),
            filling: built.filling,
            entry_bytes_max: options.entry_bytes_max,
            checkpointer: Some(Checkpointer {
                shared: Arc::clone(&shared),
                engine: None,
                _lock: Arc::clone(&lock),
            }),
            shared,
            recovery: opening.recovery,
            buffer: Vec::new(),
            lock,
        };
        Ok((log, seen))
    }
}

/// Whether a file holds entries or is derived from them.
fn is_entries(name: &str) -> bool {
    [".seg", ".seg.zst", ".idx"]
        .iter()
        .any(|end| name.ends_with(end))
}

fn load_meta(
    disk: &dyn Disk,
    dir: &Path,
    options: &LogOptions,
    created: bool,
    is_copy: bool,
) -> Result<Meta, OpenError> {
    match Meta::load(disk, dir)? {
        Some(meta) if meta.is_copy() && !is_copy => Err(copy_refused(&meta, dir)),
        Some(meta) if !meta.is_copy() && is_copy => Err(OpenError::Refused(format!(
            "{} holds a log of its own, which is not in the engine; move it there with `migrate`, or name another directory",
            dir.display()
        ))),
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
                copy_of: is_copy.then(String::new),
                archive: None,
                salt: Salt::new(options.random.bytes()),
            };
            meta.store(disk, dir)?;
            Ok(meta)
        }
        None => Err(damaged(0, format!("{META_NAME} is missing"))),
    }
}

/// Takes another directory for the archive, unless segments are in the one that the log has now.
fn name_archive(
    disk: &dyn Disk,
    dir: &Path,
    meta: &mut Meta,
    archive: &Path,
    segments: &[u64],
) -> Result<(), OpenError> {
    let before = meta.clone();
    meta.set_archive(dir, archive)?;
    let Some(old) = before
        .archive_in(dir)
        .filter(|_| before.archive != meta.archive)
    else {
        return Ok(());
    };
    for number in segments {
        let path = dir.join(segment_name(*number));
        let is_there = |meta| segments::archived(disk, dir, meta, *number);
        if is_there(meta).is_err()
            && is_there(&before)
                .map_err(OpenError::io("reading", path))?
                .is_some()
        {
            return Err(OpenError::Refused(format!(
                "segments are archived in {}: move the files there to {} first, or configure that directory",
                old.display(),
                archive.display()
            )));
        }
    }
    Ok(())
}

/// The refusal to take a copy for the log.
pub(crate) fn copy_refused(meta: &Meta, dir: &Path) -> OpenError {
    let place = match meta.copy_of.as_deref() {
        None | Some("") => String::new(),
        Some(place) => format!(" at {place}"),
    };
    OpenError::Refused(format!(
        "{} is a copy of a log that an engine keeps{place}; configure the engine, or take the log back with `migrate --to files`",
        dir.display()
    ))
}

pub(crate) fn load_checkpoint(
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

    /// From now on files of this program's format may follow, which an earlier program must refuse, and segments may be archived.
    fn store_meta(&mut self, stored: &Meta) -> Result<(), OpenError> {
        self.meta.format = self.meta.format.max(FORMAT);
        if self.meta != *stored {
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
                if !self.meta.is_copy() {
                    self.locate_damage()?;
                }
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
            // A copy may end before the newest checkpoint that this node has seen.
            published: Snapshot::new(
                self.published
                    .clone()
                    .filter(|p| p.checkpoint.size <= built.frontier.size()),
            ),
            poisoned: AtomicBool::new(false),
            failure: OnceLock::new(),
        }
    }

    /// Every known head must be an earlier state of this tree.
    fn check_heads(&self, shared: &Shared) -> Result<(), OpenError> {
        let tree = shared.tree.load();
        let view = View::new(shared, &tree);
        for (size, root) in &self.heads {
            if self.meta.is_copy() && *size > tree.size {
                continue;
            }
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
            archived: Archived::Read,
            visit: &mut |_| Ok(()),
            progress: &mut |_, _| (),
        };
        check
            .run()
            .map(|_| ())
            .map_err(|e| damaged(e.index.unwrap_or(0), e.why))
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
