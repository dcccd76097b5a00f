//! Reads the batches of a directory in order, also beside the writer of its log: what a migration takes to an engine, or compares
//! with one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_crypto::hash::sha256;

use super::build::damaged;
use super::errors::OpenError;
use super::frame::reseal;
use super::layout::{SEGMENT_HEADER, Salt, SegmentHeader, segment_name};
use super::meta::Meta;
use super::scan::{Scanner, Step};
use super::segments;
use super::window::Window;
use crate::store::{Batch, Place};
use crate::tree::Frontier;
use ron_files::{Disk, DiskFile};

/// The batches of a directory, as far as they were read.
pub(crate) struct Source {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    pub meta: Meta,
    /// The tree of what was read.
    frontier: Frontier,
    segment: u64,
    /// Where the next batch begins in the segment; 0 before its header was read.
    position: u64,
    /// Size of the newest checkpoint that a header mentions.
    noted: u64,
}

impl Source {
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, origin: &str) -> Result<Self, OpenError> {
        let meta = Meta::load(&*disk, dir)?;
        let meta =
            meta.ok_or_else(|| OpenError::Refused(format!("{} holds no log", dir.display())))?;
        if meta.origin != origin {
            return Err(OpenError::Origin {
                found: meta.origin,
                wanted: origin.to_owned(),
            });
        }
        Ok(Self {
            disk,
            dir: dir.to_owned(),
            meta,
            frontier: Frontier::new(),
            segment: 0,
            position: 0,
            noted: 0,
        })
    }

    pub fn size(&self) -> u64 {
        self.frontier.size()
    }

    /// Size of the newest checkpoint that had been published when what was read was written.
    pub fn noted(&self) -> u64 {
        self.noted
    }

    /// Calls `each` with the batches that follow, up to the last that ends at `upto` or before, with the checksums of `salt`.
    /// A call that fails is made again from the same batch on.
    pub fn read<E: From<OpenError>>(
        &mut self,
        upto: u64,
        salt: &Salt,
        each: &mut dyn FnMut(Batch) -> Result<(), E>,
    ) -> Result<(), E> {
        while self.frontier.size() < upto {
            let path = self.dir.join(segment_name(self.segment));
            let io = |e| OpenError::io("reading", &path)(e);
            let file = segments::open(&*self.disk, &self.dir, &self.meta, self.segment);
            let file = file.map_err(io)?;
            if self.position == 0 {
                self.begin_segment(&*file)?;
            }
            let window = Window::new(&*file, file.len().map_err(io)?);
            let scanner = Scanner::new(&self.meta, window, self.frontier.size(), None);
            let mut scanner = scanner.at(self.position);
            while self.frontier.size() < upto {
                let before = self.frontier.root();
                let batch = match scanner.step(&before).map_err(io)? {
                    Step::Batch(batch) => batch,
                    Step::End => {
                        (self.segment, self.position) = (self.segment + 1, 0);
                        break;
                    }
                    Step::Bad(bad) => return Err(damaged(bad.index, bad.why).into()),
                };
                let header = batch.header;
                if header.first + u64::from(header.count) > upto {
                    return Ok(());
                }
                let mut after = self.frontier.clone();
                for entry in batch.entries() {
                    after.push(sha256(entry.preimage));
                }
                let mut frame = header.encode(salt).to_vec();
                frame.extend_from_slice(batch.body());
                reseal(&mut frame, header.first, salt);
                let end = batch.offset + batch.len;
                let place = Place {
                    first: header.first,
                    count: header.count,
                    before,
                    root: after.root(),
                };
                each(Batch { place, frame })?;
                self.noted = self.noted.max(header.checkpoint_size);
                (self.frontier, self.position) = (after, end);
            }
        }
        Ok(())
    }

    fn begin_segment(&mut self, file: &dyn DiskFile) -> Result<(), OpenError> {
        let path = self.dir.join(segment_name(self.segment));
        let mut head = [0; SEGMENT_HEADER];
        let got = file
            .read_at(0, &mut head)
            .map_err(OpenError::io("reading", path))?;
        let first = self.frontier.size();
        let header = SegmentHeader::decode(&head[..got], &self.meta.salt, &self.meta.origin);
        let header = header.map_err(|why| damaged(first, why))?;
        let says = (header.number, header.first, header.root);
        if says != (self.segment, first, self.frontier.root()) {
            let why = "the segment does not continue the entries before it";
            return Err(damaged(first, why));
        }
        self.noted = self.noted.max(header.checkpoint_size);
        self.position = SEGMENT_HEADER as u64;
        Ok(())
    }
}
