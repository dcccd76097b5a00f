//! Reading a log while it grows: entries, tiles, bundles, checkpoint, proofs. Readers never block
//! the writer and take no lock.

use std::ops::Range;
use std::sync::Arc;

use super::errors::{ProofError, ReadError, WriteFailure};
use super::layout::{
    BATCH_HEADER, BATCH_TAG, BatchHeader, ENTRY_HEADER, entry_holds, entry_len, entry_parts,
};
use super::state::{Shared, View};
use super::window::Window;
use crate::checkpoint::Checkpoint;
use crate::proof::TlogProof;
use crate::tile::{LEVELS, TILE_HEIGHT, TILE_WIDTH, TilePath, push_entry};
use crate::tree::{self, Hash, HashReader as _};

/// Bytes per disk read for a few entries.
const NEAR: usize = 32 * 1024;
/// Bytes per disk read for a long run of entries.
const FAR: usize = 256 * 1024;

/// The head of the durable tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeHead {
    /// Number of durable entries.
    pub size: u64,
    /// Root of their tree.
    pub root: Hash,
}

/// A handle for readers, cheap to clone. It may outlive its [`super::Log`] and then shows the log's
/// last state.
#[derive(Clone, Debug)]
pub struct LogReader(pub(crate) Arc<Shared>);

impl LogReader {
    pub fn origin(&self) -> &str {
        &self.0.meta.origin
    }

    /// Number of entries that are durable.
    pub fn size_durable(&self) -> u64 {
        self.0.tree.with(|t| t.size)
    }

    /// Size and root of the durable tree, from one snapshot.
    pub fn head(&self) -> TreeHead {
        self.0.tree.with(|t| TreeHead {
            size: t.size,
            root: t.root,
        })
    }

    /// True once a write has failed: no entry is appended until the log is opened again.
    pub fn poisoned(&self) -> bool {
        self.0.is_poisoned()
    }

    /// The disk failure that closed the log; `None` also when the log was closed for another
    /// reason.
    pub fn write_failure(&self) -> Option<&WriteFailure> {
        self.0.failure.get()
    }

    /// Closes the log for writing, as after a failed write: for a caller that has found the log to
    /// be inconsistent with what was published of it.
    pub fn close_for_writing(&self) {
        self.0.poison();
    }

    /// The last published checkpoint, a signed note.
    pub fn checkpoint(&self) -> Option<Arc<str>> {
        self.0
            .published
            .with(|p| p.as_ref().map(|p| Arc::clone(&p.text)))
    }

    /// The contents of the last published checkpoint.
    pub fn checkpoint_head(&self) -> Option<Checkpoint> {
        self.0
            .published
            .with(|p| p.as_ref().map(|p| p.checkpoint.clone()))
    }

    /// Number of entries that the last published checkpoint covers.
    pub fn checkpoint_size(&self) -> u64 {
        self.0.published_size()
    }

    /// The leaf at `index`.
    pub fn entry(&self, index: u64) -> Result<Vec<u8>, ReadError> {
        self.record(index).map(|(leaf, _)| leaf)
    }

    /// The leaf and the private part at `index`.
    pub fn record(&self, index: u64) -> Result<(Vec<u8>, Vec<u8>), ReadError> {
        let mut found = (Vec::new(), Vec::new());
        self.records(index..index.saturating_add(1), |_, leaf, private| {
            found.0.extend_from_slice(leaf);
            found.1.extend_from_slice(private);
            Ok::<(), ReadError>(())
        })?;
        Ok(found)
    }

    /// Calls `visit` with every leaf of `range` in order. Ends early with the visitor's error.
    pub fn entries<E: From<ReadError>>(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.records(range, |index, leaf, _| visit(index, leaf))
    }

    /// Hash of the leaf at `index`; read from memory while its block is being filled.
    pub fn leaf_hash(&self, index: u64) -> Result<Hash, ReadError> {
        let tree = self.0.tree.load();
        View::new(&self.0, &tree).node(0, index)
    }

    /// Calls `visit` with every leaf of `range` and its private part in order. Ends early with the
    /// visitor's error.
    pub fn records<E: From<ReadError>>(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(u64, &[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let tree = self.0.tree.load();
        if range.end > tree.size && range.start < range.end {
            return Err(E::from(ReadError::NotFound {
                index: range.start.max(tree.size),
                size: tree.size,
            }));
        }
        let view = View::new(&self.0, &tree);
        view.walk(range.start, range.end, &mut |index, preimage, private| {
            visit(index, &preimage[1..], private)
        })
    }

    /// The bytes of a hash tile (`width` hashes), as C2SP tlog-tiles serves them.
    pub fn tile(&self, level: u8, index: u64, width: u16) -> Result<Vec<u8>, ReadError> {
        let tree = self.0.tree.load();
        let not_there = ReadError::NotFound {
            index: index
                .saturating_mul(TILE_WIDTH)
                .checked_shl(TILE_HEIGHT * u32::from(level))
                .unwrap_or(u64::MAX),
            size: tree.size,
        };
        if level >= LEVELS
            || !(TilePath::Hashes {
                level,
                index,
                width,
            })
            .exists_at(tree.size)
        {
            return Err(not_there);
        }
        let view = View::new(&self.0, &tree);
        let mut bytes = Vec::with_capacity(usize::from(width) * 32);
        if level == 0 {
            for hash in &view.leaves(index)?[..usize::from(width)] {
                bytes.extend_from_slice(hash);
            }
        } else {
            for at in 0..u64::from(width) {
                let node = view.node(TILE_HEIGHT * u32::from(level), index * TILE_WIDTH + at)?;
                bytes.extend_from_slice(&node);
            }
        }
        Ok(bytes)
    }

    /// The bytes of an entry bundle (`width` entries), as C2SP tlog-tiles serves them.
    pub fn entry_bundle(&self, index: u64, width: u16) -> Result<Vec<u8>, ReadError> {
        let size = self.size_durable();
        if !(TilePath::Entries { index, width }).exists_at(size) {
            return Err(ReadError::NotFound {
                index: index.saturating_mul(TILE_WIDTH),
                size,
            });
        }
        let first = index * TILE_WIDTH;
        let mut bundle = Vec::new();
        self.entries(first..first + u64::from(width), |_, entry| {
            push_entry(&mut bundle, entry);
            Ok::<(), ReadError>(())
        })?;
        Ok(bundle)
    }

    /// The `c2sp.org/tlog-proof@v1` text that entry `index` is in the published checkpoint.
    pub fn proof(&self, index: u64) -> Result<String, ProofError> {
        // The checkpoint first, the tree second: the tree only grows, so it covers the checkpoint
        // read before it.
        let published = self.0.published.load();
        match published.as_ref() {
            Some(p) => self.proof_of(index, &p.checkpoint, &p.text),
            None => Err(self.uncovered(index, 0)),
        }
    }

    /// As [`LogReader::proof`], in an earlier signed checkpoint `note` of this log (one that
    /// witnesses have cosigned). The note is checked against the tree; its signatures are not
    /// checked.
    pub fn proof_under(&self, index: u64, note: &str) -> Result<String, ProofError> {
        let checkpoint = Checkpoint::read_unverified(note, Some(self.origin()));
        let checkpoint = checkpoint.map_err(|fault| ReadError::Damaged {
            index,
            why: fault.to_string(),
        })?;
        self.proof_of(index, &checkpoint, note)
    }

    fn uncovered(&self, index: u64, covered: u64) -> ProofError {
        let size = self.size_durable();
        if index < size {
            ProofError::NotYetCovered { index, covered }
        } else {
            ProofError::NotFound { index, size }
        }
    }

    fn proof_of(
        &self,
        index: u64,
        checkpoint: &Checkpoint,
        note: &str,
    ) -> Result<String, ProofError> {
        let tree = self.0.tree.load();
        let covered = checkpoint.size;
        if index >= covered || covered > tree.size {
            return Err(self.uncovered(index, covered));
        }
        let view = View::new(&self.0, &tree);
        let hashes = tree::inclusion_proof(&view, index, covered)?;
        let leaf = view.node(0, index)?;
        // Every proof is checked against the signed root before it is returned.
        tree::verify_inclusion(&leaf, index, covered, &hashes, &checkpoint.root).map_err(
            |fault| ReadError::Damaged {
                index,
                why: format!("its proof does not lead to the signed root: {fault}"),
            },
        )?;
        let proof = TlogProof {
            extra: None,
            index,
            hashes,
            checkpoint: note.to_owned(),
        };
        Ok(proof.to_string())
    }

    /// Root of the tree of the first `size` entries.
    pub fn root_at(&self, size: u64) -> Result<Hash, ReadError> {
        let tree = self.0.tree.load();
        if size > tree.size {
            return Err(ReadError::NotFound {
                index: size,
                size: tree.size,
            });
        }
        tree::root_at(&View::new(&self.0, &tree), size)
    }

    /// Consistency proof between two sizes of this log (for witnesses).
    pub fn consistency(&self, old: u64, new: u64) -> Result<Vec<Hash>, ReadError> {
        let tree = self.0.tree.load();
        if new > tree.size || old > new {
            return Err(ReadError::NotFound {
                index: old.max(new),
                size: tree.size,
            });
        }
        tree::consistency_proof(&View::new(&self.0, &tree), old, new)
    }
}

impl View<'_> {
    /// Calls `visit` with index, leaf preimage (a zero byte and the leaf) and private part of every
    /// record of `[from, to)`, which must exist.
    pub(crate) fn walk<E: From<ReadError>>(
        &self,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(u64, &[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut next = from;
        while next < to {
            let number = self.tree.segment_of(next);
            let until = to.min(self.tree.range_of(number).end);
            let at = self.offset_before(next);
            let at = at.map_err(|source| ReadError::Io {
                index: next,
                source,
            })?;
            let from_stride = self.walk_segment(number, at, next..until, visit)?;
            if let Some(reached) = from_stride {
                // A bad offset costs a longer read, not the answer: try again from the start of the
                // segment.
                let start = self.segment_start(number);
                if let Some(bad) = self.walk_segment(number, start, reached..until, visit)? {
                    return Err(E::from(ReadError::Damaged {
                        index: bad,
                        why: "it is not as it was written".into(),
                    }));
                }
            }
            next = until;
        }
        Ok(())
    }

    /// Walks one segment from a known offset. `Some(index)` when an entry at or before `index`
    /// could not be found from there; all entries of `range` before `index` were visited.
    fn walk_segment<E: From<ReadError>>(
        &self,
        number: u64,
        (mut offset, mut index): (u64, u64),
        range: Range<u64>,
        visit: &mut dyn FnMut(u64, &[u8], &[u8]) -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        let io = |source| ReadError::Io {
            index: range.start,
            source,
        };
        let (file, end) = self.segment(number).map_err(io)?;
        let chunk = if range.end - range.start > TILE_WIDTH {
            FAR
        } else {
            NEAR
        };
        let mut window = Window::with_chunk(&*file, end, chunk);
        let salt = &self.shared.meta.salt;
        while index < range.end {
            let reached = Ok(Some(index.max(range.start)));
            let Some(head) = window.at(offset, ENTRY_HEADER).map_err(io)? else {
                return reached;
            };
            // A batch header may lie before any entry.
            if head[0] == BATCH_TAG {
                let header = window.at(offset, BATCH_HEADER).map_err(io)?;
                match header.and_then(|b| BatchHeader::decode(b, salt)) {
                    Some(header) if header.first == index => offset += BATCH_HEADER as u64,
                    _ => return reached,
                }
                continue;
            }
            let Some(len) = entry_len(head) else {
                return reached;
            };
            if index >= range.start {
                let entry = window
                    .at(offset, len)
                    .map_err(io)?
                    .filter(|e| entry_holds(e, salt, index));
                let Some(entry) = entry else { return reached };
                let (preimage, private) = entry_parts(entry);
                visit(index, preimage, private)?;
            }
            index += 1;
            offset += len as u64;
        }
        Ok(None)
    }
}
