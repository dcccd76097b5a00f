//! Builds the state of a log from its files, which are checked against each other; the signed heads come after.

use std::path::Path;
use std::sync::Arc;

use ron_crypto::hash::sha256;

use super::errors::OpenError;
use super::layout::{
    IndexParts, SEGMENT_HEADER, SegmentHeader, decode_index_leaves, index_name, segment_name,
};
use super::log::{Cut, Filling, Recovery, index_of, seal, start_segment};
use super::meta::Meta;
use super::scan::{Bad, Batch, Scanner, Step};
use super::segments;
use super::state::{Active, Closed, Published, Sealed, Segment};
use super::window::Window;
use crate::tile::{TILE_HEIGHT, TILE_WIDTH};
use crate::tree::{Frontier, Hash, complete_root};
use ron_files::{Disk, DiskFile, read_small};

/// A log that is being opened.
pub(super) struct Opening<'a> {
    pub(super) disk: &'a Arc<dyn Disk>,
    pub(super) dir: &'a Path,
    pub(super) meta: Meta,
    pub(super) published: Option<Published>,
    pub(super) heads: Vec<(u64, Hash)>,
    /// Numbers of the segment files.
    pub(super) segments: Vec<u64>,
    /// The last segment file, when a crash during its creation left it without a whole header and without
    /// entries. It is not among `segments`, and is removed when the log has been accepted.
    pub(super) unfinished: Option<u64>,
    pub(super) trust_indexes: bool,
    /// The entries are known to be right, so that index files may be written from them.
    pub(super) rebuild: bool,
    /// Blocks whose index file must be written again, once the entries are known to be right.
    pub(super) stale: Vec<u64>,
    pub(super) recovery: Recovery,
}

/// Bytes at the end of the last segment that need care before anything is written after them.
#[derive(Default)]
pub(super) struct Tail {
    pub cut: Option<Cut>,
    /// The last whole batch, when no checkpoint covers it: offset and length.
    pub last_batch: Option<(u64, u64)>,
}

/// The state built from the files, before it is checked against the signed heads.
pub(super) struct Built {
    pub frontier: Frontier,
    pub sealed: Vec<Arc<Sealed>>,
    pub closed: Vec<Closed>,
    pub filling: Filling,
    pub tail: Tail,
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

pub(crate) fn damaged(index: u64, why: impl Into<String>) -> OpenError {
    OpenError::Damaged {
        index,
        why: why.into(),
    }
}

impl Opening<'_> {
    /// Number of entries that any signed head covers.
    pub(super) fn covered(&self) -> u64 {
        self.heads.iter().map(|h| h.0).max().unwrap_or(0)
    }

    pub(super) fn published_size(&self) -> u64 {
        self.published.as_ref().map_or(0, |p| p.checkpoint.size)
    }

    /// For reading, and for writing when it is in the directory of the log.
    pub(super) fn open_segment(&self, number: u64) -> Result<(Arc<dyn DiskFile>, u64), OpenError> {
        let path = self.dir.join(segment_name(number));
        let file = segments::open_write(&**self.disk, self.dir, &self.meta, number)
            .map_err(OpenError::io("opening", &path))?;
        let len = file.len().map_err(OpenError::io("measuring", &path))?;
        Ok((file, len))
    }

    pub(super) fn remove_unfinished(&mut self) -> Result<(), OpenError> {
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

    /// Builds the state from headers, index files, and the entries of the last segments.
    pub(super) fn build(&mut self) -> Result<Built, OpenError> {
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
        if self.covered() > 0 && !self.meta.is_copy() {
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
        let bytes =
            read_small(&**self.disk, &path, most).map_err(OpenError::io("reading", &path))?;
        let leaves = bytes.and_then(|bytes| decode_index_leaves(&bytes, &self.meta.salt));
        let leaves = leaves.unwrap_or_default();
        let from = tile * TILE_WIDTH as usize;
        let tile = leaves.get(from..from + TILE_WIDTH as usize);
        let tile = tile.filter(|tile| complete_root(tile) == roots[from / TILE_WIDTH as usize]);
        let tile =
            tile.ok_or_else(|| damaged(size, format!("{} is damaged", index_name(block))))?;
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
        let covered = if self.meta.is_copy() {
            0
        } else {
            self.covered()
        };
        self.check_published(header.checkpoint_size, header.first)?;
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
                    self.check_published(batch.header.checkpoint_size, size)?;
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
                format!(
                    "{} ends before the next segment begins",
                    segment_name(header.number)
                ),
            ));
        }
        for block in full {
            let sealed = self.check_index(&block)?;
            scan.sealed.push(Arc::new(sealed));
        }
        Ok(())
    }

    /// Refuses a checkpoint file that is older than the checkpoint that a header recorded (`noted`
    /// entries) when it was written. The headers of a copy are those of whichever node wrote the batch.
    fn check_published(&self, noted: u64, index: u64) -> Result<(), OpenError> {
        let published = self.published_size();
        if noted <= published || self.meta.is_copy() {
            return Ok(());
        }
        let why = format!(
            "a checkpoint of {noted} entries was published before it, the stored one covers {published}: \
             the checkpoint is missing or was replaced by an older one"
        );
        Err(damaged(index, why))
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
}

fn cut(bad: Bad, index: u64, len: u64) -> Cut {
    Cut {
        index,
        bytes: len - bad.offset,
        why: bad.why,
    }
}
