//! The readers' view: an immutable snapshot of the durable log, replaced after every batch.
//!
//! Full blocks keep 32 bytes per 256 entries (tile roots) in memory; their leaf hashes and
//! offsets stay in the index file and are checked against the tile roots on every read. The block
//! being filled keeps its leaf hashes in memory, in cells that are written once; a snapshot never
//! reads cells beyond its size. Of a segment that is no longer written, first index and length stay in memory.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ron_kernel::Snapshot;

use super::errors::{ReadError, WriteFailure};
use super::layout::{
    INDEX_HEADER, IndexParts, SEGMENT_HEADER, STRIDE, decode_index_head, hashes_of, index_name,
    segment_name,
};
use super::meta::Meta;
use super::segments;
use crate::checkpoint::Checkpoint;
use crate::tile::{TILE_HEIGHT, TILE_WIDTH};
use crate::tree::{Hash, HashReader, complete_root};
use ron_files::{Disk, DiskFile};

/// A full, immutable block.
#[derive(Debug)]
pub(crate) struct Sealed {
    /// Roots of its tiles (tree level 8).
    pub tile_roots: Vec<Hash>,
    pub root: Hash,
}

impl Sealed {
    /// Reads the head of an index file; `None` when it is missing or unusable.
    pub fn load(
        disk: &dyn Disk,
        dir: &std::path::Path,
        meta: &Meta,
        number: u64,
    ) -> io::Result<Option<Self>> {
        let file = match disk.open_read(&dir.join(index_name(number))) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let parts = IndexParts::of(meta.segment_entries);
        if file.len()? != parts.end {
            return Ok(None);
        }
        let mut head = vec![0; parts.offsets as usize];
        file.read_at(0, &mut head)?;
        let Some((header, tile_roots)) = decode_index_head(&head, &meta.salt) else {
            return Ok(None);
        };
        let fits = header.number == number
            && header.segment_entries == meta.segment_entries
            && complete_root(&tile_roots) == header.root;
        Ok(fits.then_some(Self {
            tile_roots,
            root: header.root,
        }))
    }
}

/// A full tile of the block being filled.
#[derive(Debug)]
pub(crate) struct FullTile {
    pub leaves: Box<[Hash]>,
    pub root: Hash,
}

/// A segment to which no more batches are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    /// Index of its first entry.
    pub first: u64,
    /// Length of its file.
    pub len: u64,
}

/// The segment that batches are written to.
#[derive(Debug)]
pub(crate) struct Segment {
    pub number: u64,
    pub first: u64,
    pub file: Arc<dyn DiskFile>,
}

/// The block being filled.
#[derive(Debug)]
pub(crate) struct Active {
    pub number: u64,
    pub tiles: Box<[OnceLock<FullTile>]>,
    /// File offset of every 64th entry, each in the segment that holds the entry.
    pub offsets: Box<[AtomicU64]>,
}

impl Active {
    pub fn new(meta: &Meta, number: u64) -> Self {
        Self {
            number,
            tiles: (0..meta.segment_entries / TILE_WIDTH)
                .map(|_| OnceLock::new())
                .collect(),
            offsets: (0..meta.segment_entries / STRIDE)
                .map(|_| AtomicU64::new(0))
                .collect(),
        }
    }

    /// Records the file offset of the entry at `position` of this block, for every 64th entry.
    pub fn record_offset(&self, position: u64, offset: u64) {
        if position.is_multiple_of(STRIDE) {
            // Relaxed: readers reach this offset only through a snapshot that is stored afterwards,
            // and that store orders the two.
            self.offsets[(position / STRIDE) as usize].store(offset, Ordering::Relaxed);
        }
    }

    /// Root of the block; every tile must be full.
    pub fn root(&self) -> Hash {
        complete_root(&self.tile_roots())
    }

    pub fn tile_roots(&self) -> Vec<Hash> {
        self.tiles
            .iter()
            .map_while(|t| t.get().map(|t| t.root))
            .collect()
    }
}

/// A snapshot of the tree.
#[derive(Debug)]
pub(crate) struct TreeState {
    pub size: u64,
    pub root: Hash,
    pub sealed: Arc<Vec<Arc<Sealed>>>,
    pub active: Arc<Active>,
    /// Leaf hashes of the last, partial tile.
    pub partial: Vec<Hash>,
    /// All segments before `segment`.
    pub closed: Arc<Vec<Closed>>,
    pub segment: Arc<Segment>,
    /// Durable bytes of `segment`.
    pub end: u64,
}

impl TreeState {
    /// Number of the segment that holds the entry at `index`.
    pub fn segment_of(&self, index: u64) -> u64 {
        if index >= self.segment.first {
            return self.segment.number;
        }
        // The first segment begins at 0, so at least one begins at or before the index.
        self.closed.partition_point(|closed| closed.first <= index) as u64 - 1
    }

    /// Indexes of the entries of segment `number`.
    pub fn range_of(&self, number: u64) -> Range<u64> {
        let first = |number: u64| {
            let closed = self.closed.get(number as usize);
            closed.map_or(self.segment.first, |closed| closed.first)
        };
        let end = if number < self.segment.number {
            first(number + 1)
        } else {
            self.size
        };
        first(number)..end
    }
}

/// The last published checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub text: Arc<str>,
    pub checkpoint: Checkpoint,
}

/// State shared by the writer, the checkpointer and the readers.
#[derive(Debug)]
pub(crate) struct Shared {
    pub disk: Arc<dyn Disk>,
    pub dir: PathBuf,
    pub meta: Meta,
    pub tree: Snapshot<TreeState>,
    pub published: Snapshot<Option<Published>>,
    pub poisoned: AtomicBool,
    /// The disk failure that closed the log, if that was the reason.
    pub failure: OnceLock<WriteFailure>,
}

impl Shared {
    /// Closes the log for writing and records the reason; the first reason stays.
    pub fn poison_by(&self, what: &'static str, e: &io::Error) {
        let kind = e.kind();
        let text = format!("{what} failed: {e}");
        // Before the flag: a thread that sees the log closed must find the reason.
        let _ = self.failure.set(WriteFailure { kind, text });
        self.poison();
    }

    pub fn poison(&self) {
        self.poisoned.store(true, Ordering::SeqCst);
    }

    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::SeqCst)
    }

    pub fn published_size(&self) -> u64 {
        self.published
            .with(|p| p.as_ref().map_or(0, |p| p.checkpoint.size))
    }

    pub fn segment_path(&self, number: u64) -> PathBuf {
        self.dir.join(segment_name(number))
    }

    pub fn open_index(&self, number: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open_read(&self.dir.join(index_name(number)))
    }
}

/// A snapshot together with the files behind it.
pub(crate) struct View<'a> {
    pub shared: &'a Shared,
    pub tree: &'a TreeState,
    /// Leaf tiles that this view has read from disk; a proof touches at most three.
    tiles: RefCell<Vec<(u64, Arc<Vec<Hash>>)>>,
}

impl<'a> View<'a> {
    pub fn new(shared: &'a Shared, tree: &'a TreeState) -> Self {
        Self {
            shared,
            tree,
            tiles: RefCell::new(Vec::new()),
        }
    }

    /// The segment file of `number` and its durable length.
    pub fn segment(&self, number: u64) -> io::Result<(Arc<dyn DiskFile>, u64)> {
        match self.tree.closed.get(number as usize) {
            Some(closed) => {
                let Shared {
                    disk, dir, meta, ..
                } = self.shared;
                Ok((segments::open(&**disk, dir, meta, number)?, closed.len))
            }
            None => Ok((Arc::clone(&self.tree.segment.file), self.tree.end)),
        }
    }

    /// File offset of the last 64th entry at or before `index` in the segment of `index`, with its index; the
    /// first entry of the segment when no 64th one comes before.
    pub fn offset_before(&self, index: u64) -> io::Result<(u64, u64)> {
        let segment = self.tree.segment_of(index);
        let known = index - index % STRIDE;
        if known <= self.tree.range_of(segment).start {
            return Ok(self.segment_start(segment));
        }
        let meta = &self.shared.meta;
        let number = meta.block_of(index);
        let stride = index % meta.segment_entries / STRIDE;
        let offset = if self.tree.sealed.get(number as usize).is_some() {
            let mut bytes = [0; 8];
            let at = IndexParts::of(meta.segment_entries).offsets + stride * 8;
            self.shared.open_index(number)?.read_at(at, &mut bytes)?;
            u64::from_le_bytes(bytes)
        } else {
            self.tree.active.offsets[stride as usize].load(Ordering::Relaxed)
        };
        Ok((offset, known))
    }

    /// File offset and index of the first entry of a segment.
    pub fn segment_start(&self, number: u64) -> (u64, u64) {
        (SEGMENT_HEADER as u64, self.tree.range_of(number).start)
    }

    /// Leaf hashes of tile `tile`: 256, or fewer for the last one.
    pub fn leaves(&self, tile: u64) -> Result<Cow<'_, [Hash]>, ReadError> {
        let meta = &self.shared.meta;
        let number = meta.block_of(tile * TILE_WIDTH);
        let at = (tile * TILE_WIDTH % meta.segment_entries / TILE_WIDTH) as usize;
        if let Some(sealed) = self.tree.sealed.get(number as usize) {
            return self
                .sealed_leaves(tile, number, at, &sealed.tile_roots[at])
                .map(Cow::Owned);
        }
        // The last, partial tile of this snapshot; the writer may have filled the cell since.
        if tile == self.tree.size / TILE_WIDTH {
            return Ok(Cow::Borrowed(&self.tree.partial));
        }
        let full = self.tree.active.tiles.get(at).and_then(OnceLock::get);
        full.map(|t| Cow::Borrowed(&*t.leaves))
            .ok_or(ReadError::NotFound {
                index: tile * TILE_WIDTH,
                size: self.tree.size,
            })
    }

    /// Reads a leaf tile from the index file, or hashes the entries when the index file is damaged.
    fn sealed_leaves(
        &self,
        tile: u64,
        number: u64,
        at: usize,
        root: &Hash,
    ) -> Result<Vec<Hash>, ReadError> {
        if let Some((_, leaves)) = self.tiles.borrow().iter().find(|(t, _)| *t == tile) {
            return Ok(leaves.to_vec());
        }
        let first = tile * TILE_WIDTH;
        let mut leaves = self.indexed_leaves(number, at).unwrap_or_default();
        // The index file is derived: its leaves count only when they hash to the tile root in
        // memory.
        if leaves.len() as u64 != TILE_WIDTH || complete_root(&leaves) != *root {
            leaves = self.rehashed_leaves(first)?;
            if complete_root(&leaves) != *root {
                return Err(ReadError::Damaged {
                    index: first,
                    why: format!(
                        "entries {first} to {} do not hash to their tile",
                        first + TILE_WIDTH - 1
                    ),
                });
            }
        }
        self.tiles
            .borrow_mut()
            .push((tile, Arc::new(leaves.clone())));
        Ok(leaves)
    }

    fn indexed_leaves(&self, number: u64, at: usize) -> io::Result<Vec<Hash>> {
        let mut bytes = vec![0; TILE_WIDTH as usize * 32];
        let from =
            IndexParts::of(self.shared.meta.segment_entries).leaves + (at * bytes.len()) as u64;
        let got = self.shared.open_index(number)?.read_at(from, &mut bytes)?;
        Ok(hashes_of(&bytes[..got]))
    }

    fn rehashed_leaves(&self, first: u64) -> Result<Vec<Hash>, ReadError> {
        let mut leaves = Vec::with_capacity(TILE_WIDTH as usize);
        self.walk(first, first + TILE_WIDTH, &mut |_, preimage, _| {
            leaves.push(ron_crypto::hash::sha256(preimage));
            Ok::<(), ReadError>(())
        })?;
        Ok(leaves)
    }

    /// Root of block `number`, which must be full.
    fn block_root(&self, number: u64) -> Hash {
        match self.tree.sealed.get(number as usize) {
            Some(sealed) => sealed.root,
            None => self.tree.active.root(),
        }
    }

    fn tile_roots(&self, number: u64) -> Cow<'_, [Hash]> {
        match self.tree.sealed.get(number as usize) {
            Some(sealed) => Cow::Borrowed(&sealed.tile_roots),
            None => Cow::Owned(self.tree.active.tile_roots()),
        }
    }
}

impl HashReader for View<'_> {
    type Error = ReadError;

    fn node(&self, level: u32, index: u64) -> Result<Hash, ReadError> {
        let meta = &self.shared.meta;
        let first = index << level;
        if (index + 1)
            .checked_shl(level)
            .is_none_or(|end| end > self.tree.size)
        {
            return Err(ReadError::NotFound {
                index: first,
                size: self.tree.size,
            });
        }
        // Above blocks from their roots, within a block from tile roots, below a tile from
        // leaves.
        if level >= meta.block_level() {
            let n = 1 << (level - meta.block_level());
            let roots: Vec<Hash> = (index * n..(index + 1) * n)
                .map(|k| self.block_root(k))
                .collect();
            return Ok(complete_root(&roots));
        }
        if level >= TILE_HEIGHT {
            let roots = self.tile_roots(meta.block_of(first));
            let from = (first % meta.segment_entries / TILE_WIDTH) as usize;
            return Ok(complete_root(
                &roots[from..from + (1 << (level - TILE_HEIGHT))],
            ));
        }
        let leaves = self.leaves(first / TILE_WIDTH)?;
        let from = (first % TILE_WIDTH) as usize;
        Ok(complete_root(&leaves[from..from + (1 << level)]))
    }
}

const _: () = assert!(
    INDEX_HEADER.is_multiple_of(32),
    "hashes in an index file are aligned"
);
