//! The leaves in the segment files of a directory, without a check of tree and checkpoint: to find leaves in a log of any length,
//! not to prove them. Takes no lock and changes nothing.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::build::damaged;
use super::errors::OpenError;
use super::layout::{SEGMENT_HEADER, SegmentHeader, segment_name};
use super::meta::Meta;
use super::scan::{Scanner, Step};
use super::segments;
use super::window::Window;
use ron_files::Disk;

/// The segments of a directory.
#[derive(Debug)]
pub struct LeafFiles<'d> {
    disk: &'d dyn Disk,
    dir: PathBuf,
    meta: Meta,
    /// Numbers of the segments, ascending.
    segments: Vec<u64>,
}

impl<'d> LeafFiles<'d> {
    /// Finds the segments of `dir`; `None` when it holds no log.
    pub fn open(disk: &'d dyn Disk, dir: &Path) -> Result<Option<Self>, OpenError> {
        let Some(meta) = Meta::load(disk, dir)? else {
            return Ok(None);
        };
        let names = disk.list(dir).map_err(OpenError::io("listing", dir))?;
        Ok(Some(Self {
            disk,
            dir: dir.to_owned(),
            meta,
            segments: segments::numbers(&names),
        }))
    }

    pub fn origin(&self) -> &str {
        &self.meta.origin
    }

    /// Numbers of the segments, in the order of their leaves.
    pub fn segments(&self) -> &[u64] {
        &self.segments
    }

    /// Calls `each` with index and bytes of the leaves of a segment, in order, as long as it says so. A batch that is not whole
    /// yet at the end of the last segment is not there.
    pub fn read(
        &self,
        segment: u64,
        each: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), OpenError> {
        let path = self.dir.join(segment_name(segment));
        let io = || OpenError::io("reading", &path);
        let file = segments::open(self.disk, &self.dir, &self.meta, segment).map_err(io())?;
        let mut window = Window::new(&*file, file.len().map_err(io())?);
        let is_last = self.segments.last() == Some(&segment);
        let head = window.at(0, SEGMENT_HEADER).map_err(io())?.unwrap_or(&[]);
        let header = match SegmentHeader::decode(head, &self.meta.salt, &self.meta.origin) {
            Ok(header) => header,
            Err(_) if is_last && head.is_empty() => return Ok(()), // just made
            Err(why) => return Err(damaged(0, format!("{}: {why}", path.display()))),
        };
        let mut scanner = Scanner::new(&self.meta, window, header.first, None);
        loop {
            match scanner.step_unproved().map_err(io())? {
                Step::Batch(batch) => {
                    for entry in batch.entries() {
                        if each(entry.index, &entry.preimage[1..]).is_break() {
                            return Ok(());
                        }
                    }
                }
                Step::Bad(bad) if !(bad.torn && is_last) => {
                    return Err(damaged(bad.index, bad.why));
                }
                Step::End | Step::Bad(_) => return Ok(()),
            }
        }
    }
}
