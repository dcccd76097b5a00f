//! Moves closed segments, compressed, to the archive.
//!
//! ```text
//!  compressed file ──> flush ──> read back and compared ──> its name, durable ──> stand-in over the segment, durable
//! ```
//!
//! **Invariant:** the segment is there until its compressed file is durable under its name and was read back. A crash leaves the
//! segment or what stands for it, and at most a compressed file too many, which the next attempt replaces.
//! **Invariant:** a segment is moved only when a start no longer reads it: all of it is before the block of the last checkpoint.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ron_files::{Disk, DiskLock, Replacement, rename_durably, write_atomic};

use super::archived::{Archived, StandIn, archived_name, pack, places, same};
use super::errors::{ArchiveError, OpenError};
use super::layout::{SEGMENT_HEADER, segment_name};
use super::meta::Meta;
use super::segments;
use super::state::Shared;

/// The right to archive the segments of one log. Any thread may have it; readers and the writer do not wait for it.
#[derive(Clone, Debug)]
pub struct Archiver {
    pub(super) shared: Arc<Shared>,
    /// All segments before this one are archived.
    pub(super) next: u64,
    /// Excludes other processes for as long as segments may be moved.
    pub(super) _lock: Arc<dyn DiskLock>,
}

/// A segment that was archived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedSegment {
    pub number: u64,
    /// Bytes of the segment, and of its compressed file.
    pub bytes: u64,
    pub archived_bytes: u64,
    pub path: PathBuf,
}

impl Archiver {
    /// Whether the log has an archive, configured now or before.
    pub fn has_archive(&self) -> bool {
        self.shared.meta.archive.is_some()
    }

    /// As [`check_archived`], of this log.
    pub fn check(&self) -> Result<u64, OpenError> {
        check_archived(&*self.shared.disk, &self.shared.dir)
    }

    /// Archives the next segment that was last written at least `after` ago; `None` when there is none, when the log has no archive,
    /// or when `stop` returned true, which is asked every 256 KiB.
    pub fn step(
        &mut self,
        after: Duration,
        now_ms: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<ArchivedSegment>, ArchiveError> {
        let shared = Arc::clone(&self.shared);
        let Some(archive) = shared.meta.archive_in(&shared.dir) else {
            return Ok(None);
        };
        while let Some(len) = self.closed_len() {
            let path = shared.segment_path(self.next);
            let io = |e| ArchiveError::io(&path, e);
            let file = shared.disk.open_read(&path).map_err(io)?;
            if StandIn::read(&*file, &shared.meta.salt)
                .map_err(io)?
                .is_some()
            {
                self.next += 1;
                continue;
            }
            let written = file.modified_ms().map_err(io)?;
            if written.saturating_add(after.as_millis() as u64) > now_ms {
                return Ok(None);
            }
            return self.archive(&archive, len, stop);
        }
        Ok(None)
    }

    /// Length of the next segment, if a start no longer reads it.
    fn closed_len(&self) -> Option<u64> {
        let meta = &self.shared.meta;
        let kept = meta.first_of(meta.block_of(self.shared.published_size()));
        self.shared.tree.with(|tree| {
            let closed = tree.closed.get(self.next as usize)?;
            (tree.range_of(self.next).end <= kept).then_some(closed.len)
        })
    }

    fn archive(
        &self,
        archive: &Path,
        len: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<ArchivedSegment>, ArchiveError> {
        let (shared, number) = (&self.shared, self.next);
        let disk = &*shared.disk;
        let path = archive.join(archived_name(number));
        let failed = |e| ArchiveError::io(&path, e);
        disk.create_dir_all(archive).map_err(failed)?;
        let segment = disk
            .open_read(&shared.segment_path(number))
            .map_err(|e| ArchiveError::io(&shared.segment_path(number), e))?;
        let checked = archive.join(format!("{}.new", archived_name(number)));
        let mut out = Replacement::create(disk, &checked, 0o600).map_err(failed)?;
        let Some(archived_bytes) = pack(&*segment, len, &mut out, stop).map_err(failed)? else {
            return Ok(None);
        };
        out.finish().map_err(failed)?;
        let packed = disk.open_read(&checked).map_err(failed)?;
        let packed = Archived::open(packed, len).map_err(failed)?;
        let is_same = same(&*segment, &packed, len, stop).map_err(failed)?;
        if is_same != Some(true) {
            // What cannot be removed is replaced by the next attempt.
            let _ = disk.remove(&checked);
            return match is_same {
                None => Ok(None),
                Some(_) => Err(ArchiveError::ReadBack(path)),
            };
        }
        rename_durably(disk, &checked, &path).map_err(failed)?;
        let mut head = [0; SEGMENT_HEADER];
        let name = segment_name(number);
        let read = segment.read_at(0, &mut head);
        let stand_in = StandIn { head, len }.encode(&shared.meta.salt);
        read.and_then(|_| write_atomic(disk, &shared.dir, &name, &stand_in))
            .map_err(|e| ArchiveError::io(&shared.dir.join(&name), e))?;
        Ok(Some(ArchivedSegment {
            number,
            bytes: len,
            archived_bytes,
            path,
        }))
    }
}

/// Removes the compressed files of a segment that is whole in its directory again.
pub(super) fn remove_archived(
    disk: &dyn Disk,
    dir: &Path,
    meta: &Meta,
    number: u64,
) -> Result<(), OpenError> {
    for path in places(dir, meta, number) {
        let failed = |e| OpenError::io("removing", &path)(e);
        match disk.remove(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            removed => removed.map_err(failed)?,
        }
        disk.sync_dir(path.parent().unwrap_or(dir))
            .map_err(failed)?;
    }
    Ok(())
}

/// The compressed files of the archived segments of the log in `dir`: what a copy of the directory needs beside its files, each under
/// the name of its path. A missing one is an error.
pub fn archived_files(disk: &dyn Disk, dir: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let Some(meta) = Meta::load(disk, dir)? else {
        return Ok(Vec::new());
    };
    let names = disk.list(dir).map_err(OpenError::io("listing", dir))?;
    let mut files = Vec::new();
    for number in segments::numbers(&names) {
        let path = dir.join(segment_name(number));
        let found = segments::archived(disk, dir, &meta, number);
        files.extend(found.map_err(OpenError::io("reading", path))?);
    }
    Ok(files)
}

/// Opens every archived segment of the log in `dir`, without reading its content; their number. An error names the first that is missing,
/// cannot be read, or has another length.
pub fn check_archived(disk: &dyn Disk, dir: &Path) -> Result<u64, OpenError> {
    let Some(meta) = Meta::load(disk, dir)? else {
        return Ok(0);
    };
    let names = disk.list(dir).map_err(OpenError::io("listing", dir))?;
    let mut count = 0;
    for number in segments::numbers(&names) {
        let failed = OpenError::io("opening", dir.join(segment_name(number)));
        let found = segments::archived(disk, dir, &meta, number);
        let opened = found.and_then(|path| {
            let is_archived = path.is_some();
            segments::open(disk, dir, &meta, number).map(|_| u64::from(is_archived))
        });
        count += opened.map_err(failed)?;
    }
    Ok(count)
}

/// Has a copy of a log, whose archived segments are beside it, know nothing of the archive of the original.
pub fn forget_archive(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    match Meta::load(disk, dir)? {
        Some(meta) if meta.archive.is_some() => {
            let meta = Meta {
                archive: None,
                ..meta
            };
            meta.store(disk, dir)
        }
        _ => Ok(()),
    }
}

/// The directory of the compressed files of the log in `dir`, which is that log's alone; `None` without an archive.
pub fn archive_of(disk: &dyn Disk, dir: &Path) -> Result<Option<PathBuf>, OpenError> {
    let meta = Meta::load(disk, dir)?;
    Ok(meta.and_then(|meta| meta.archive_in(dir)))
}
