//! The offline check of a log directory: reads every entry, trusts only the verifier key. It takes
//! no lock and changes nothing, so it works on a copy and on a live log alike.
//!
//! The signed checkpoint proves damage: all entries below its size must hash to its root. The first
//! disagreement locates it: an entry's checksum (bound to its index), a batch out of sequence, the
//! leaf hash in the index file, or the root that each batch recorded of everything before it.

use std::path::Path;

use ron_crypto::hash::sha256;

use super::checkpointer::CHECKPOINT_NAME;
use super::errors::VerifyError;
use super::layout::{
    IndexParts, SEGMENT_HEADER, SegmentHeader, decode_index_leaves, index_name, segment_name,
    segment_number,
};
use super::meta::Meta;
use super::scan::{Entry, Scanner, Step};
use super::segments;
use super::window::Window;
use crate::checkpoint::Checkpoint;
use crate::note::{NOTE_BYTES_MAX, VerifierKey};
use crate::tree::{Frontier, Hash};
use ron_files::{Disk, OsDisk, read_small};

/// Entries between two calls of `progress`.
const PROGRESS_EVERY: u64 = 4096;

/// The contents of a directory that passed the check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The log's origin, signed by the key.
    pub origin: String,
    /// Number of entries found.
    pub size: u64,
    /// Root of their tree.
    pub root: Hash,
    /// Number of entries that the signed checkpoint covers; the rest is undamaged but not signed
    /// yet.
    pub checkpoint_size: u64,
    /// That checkpoint, a signed note.
    pub checkpoint: String,
    /// Bytes after the last whole batch: a write in progress or torn.
    pub tail_bytes: u64,
    /// Findings that do not affect the entries (a damaged derived file).
    pub notes: Vec<String>,
}

/// Checks the log in `dir` against `key`. See [`verify_on`].
pub fn verify_dir(
    dir: &Path,
    key: &VerifierKey,
    on_entry: &mut dyn FnMut(u64, &[u8], &[u8]) -> Result<(), String>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Verified, VerifyError> {
    verify_on(&OsDisk, dir, std::slice::from_ref(key), on_entry, progress)
}

/// Checks the log in `dir` of `disk`: the stored checkpoint must be signed by one of `keys`, and
/// the entries must be those that it covers. `on_entry` gets every leaf with its private part in
/// order, before the result for all of them is known, and may reject it. `progress` gets the number of entries
/// checked and the number that the checkpoint covers.
pub fn verify_on(
    disk: &dyn Disk,
    dir: &Path,
    keys: &[VerifierKey],
    on_entry: &mut dyn FnMut(u64, &[u8], &[u8]) -> Result<(), String>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Verified, VerifyError> {
    let mut visit = |visited: Visited<'_>| match visited {
        Visited::Entry(index, leaf, private) => on_entry(index, leaf, private),
        Visited::Archived(_) => Ok(()),
    };
    verify(disk, dir, keys, (Archived::Read, &mut visit), progress)
}

/// What a check has come to.
#[derive(Clone, Copy, Debug)]
pub enum Visited<'a> {
    /// An entry: index, leaf and private part.
    Entry(u64, &'a [u8], &'a [u8]),
    /// An archived segment that was passed over; the index after its last entry.
    Archived(u64),
}

/// As [`verify_on`], without reading archived segments: their entries are represented by the leaf hashes of the index files, which must
/// lead to the signed root.
pub fn verify_present(
    disk: &dyn Disk,
    dir: &Path,
    keys: &[VerifierKey],
    visit: Visitor<'_>,
) -> Result<Verified, VerifyError> {
    verify(disk, dir, keys, (Archived::PassOver, visit), &mut |_, _| ())
}

type Visitor<'a> = &'a mut dyn FnMut(Visited<'_>) -> Result<(), String>;

/// What is done with archived segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Archived {
    Read,
    PassOver,
}

fn verify(
    disk: &dyn Disk,
    dir: &Path,
    keys: &[VerifierKey],
    (archived, visit): (Archived, Visitor<'_>),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Verified, VerifyError> {
    let whole = |e: &dyn std::fmt::Display| VerifyError::whole(e.to_string());
    let meta = Meta::load(disk, dir).map_err(|e| whole(&e))?;
    let meta = meta.ok_or_else(|| VerifyError::whole(format!("{} holds no log", dir.display())))?;
    // The checkpoint first, the entries second: a live log only adds entries to those it covers.
    let (checkpoint, note) = signed_checkpoint(disk, dir, &meta, keys)?;
    let mut check = Check {
        disk,
        dir,
        meta: &meta,
        heads: vec![(checkpoint.size, checkpoint.root)],
        frontier: Frontier::new(),
        suspect: None,
        known: Vec::new(),
        unindexed: Vec::new(),
        newest_checkpoint: checkpoint.size,
        keys,
        archived,
        visit,
        progress,
    };
    let tail_bytes = check.run()?;
    let notes = check.notes();
    Ok(Verified {
        size: check.frontier.size(),
        root: check.frontier.root(),
        notes,
        origin: meta.origin,
        checkpoint_size: checkpoint.size,
        checkpoint: note,
        tail_bytes,
    })
}

/// The stored checkpoint, when one of `keys` signed it.
fn signed_checkpoint(
    disk: &dyn Disk,
    dir: &Path,
    meta: &Meta,
    keys: &[VerifierKey],
) -> Result<(Checkpoint, String), VerifyError> {
    let note = read_small(disk, &dir.join(CHECKPOINT_NAME), NOTE_BYTES_MAX as u64);
    let note = note.map_err(|e| VerifyError::whole(format!("reading the checkpoint: {e}")))?;
    let note = note
        .ok_or_else(|| VerifyError::whole("the log has no checkpoint: nothing in it is signed"))?;
    let note =
        String::from_utf8(note).map_err(|_| VerifyError::whole("the checkpoint is not text"))?;
    match Checkpoint::open(&note, keys, Some(&meta.origin)) {
        Ok(checkpoint) => Ok((checkpoint, note)),
        Err(fault) => Err(VerifyError::whole(format!(
            "the checkpoint is not acceptable: {fault}"
        ))),
    }
}

/// One run over all entries.
pub(crate) struct Check<'a> {
    pub disk: &'a dyn Disk,
    pub dir: &'a Path,
    pub meta: &'a Meta,
    /// Sizes and roots that the log must have had.
    pub heads: Vec<(u64, Hash)>,
    pub frontier: Frontier,
    /// First entry that differs from the leaf hash in its index file; it is bad only if a root does
    /// not match either.
    pub suspect: Option<u64>,
    /// Leaf hashes of the present block, from its index file.
    pub known: Vec<Hash>,
    /// Blocks whose index file is missing or damaged, and which of both.
    pub unindexed: Vec<(u64, &'static str)>,
    /// Size of the newest checkpoint that is known to have been published.
    pub newest_checkpoint: u64,
    /// Keys that may have signed it.
    pub keys: &'a [VerifierKey],
    pub archived: Archived,
    pub visit: &'a mut dyn FnMut(Visited<'_>) -> Result<(), String>,
    pub progress: &'a mut dyn FnMut(u64, u64),
}

enum After {
    NextSegment,
    /// The end of the log, with the bytes that follow it.
    End(u64),
}

impl Check<'_> {
    /// Checks everything; returns the bytes of a torn or unfinished tail.
    pub fn run(&mut self) -> Result<u64, VerifyError> {
        let names = self
            .disk
            .list(self.dir)
            .map_err(|e| VerifyError::whole(e.to_string()))?;
        let last = names.iter().filter_map(|n| segment_number(n)).max();
        // A head of size 0 has no entry after which it would be compared.
        self.check_heads()?;
        let mut number = 0;
        let tail = loop {
            match self.segment(number, last)? {
                After::NextSegment => number += 1,
                After::End(tail) => break tail,
            }
        };
        let size = self.frontier.size();
        (self.progress)(size, self.heads.iter().map(|h| h.0).max().unwrap_or(size));
        if let Some((covered, _)) = self.heads.iter().find(|h| h.0 > size) {
            let why = format!(
                "the log ends here, but a signed checkpoint covers {covered} entries: it was cut"
            );
            return Err(VerifyError::at(size, why));
        }
        Ok(tail)
    }

    /// Findings that do not affect the entries.
    fn notes(&self) -> Vec<String> {
        let full = self.meta.block_of(self.frontier.size());
        // The index file of the newest full block is written with the batch after it.
        let due = |block: u64, what: &str| block + 1 < full || (block < full && what == "damaged");
        let unindexed = self
            .unindexed
            .iter()
            .filter(|(block, what)| due(*block, what));
        let unindexed = unindexed.map(|(block, what)| {
            let name = index_name(*block);
            format!("{name} is {what}; it is derived and can be rebuilt")
        });
        let suspect = self.suspect.map(|at| {
            let name = index_name(self.meta.block_of(at));
            format!("{name} is damaged (the entries are not)")
        });
        unindexed.chain(suspect).collect()
    }

    fn segment(&mut self, number: u64, last: Option<u64>) -> Result<After, VerifyError> {
        if self.archived == Archived::PassOver && self.pass_over(number)? {
            return Ok(After::NextSegment);
        }
        let first = self.frontier.size();
        let io =
            |e: std::io::Error| VerifyError::at(first, format!("{}: {e}", segment_name(number)));
        let file = match segments::open(self.disk, self.dir, self.meta, number) {
            Ok(file) => file,
            Err(e)
                if e.kind() == std::io::ErrorKind::NotFound && last.is_none_or(|l| l < number) =>
            {
                // No such segment and none after it: the end of the log.
                return Ok(After::End(0));
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(VerifyError::at(
                    first,
                    format!("the segment file {} is missing", segment_name(number)),
                ));
            }
            Err(e) => return Err(io(e)),
        };
        // The list of segments was read before this length: a segment that had a successor then does
        // not grow any more.
        let (len, is_last) = (file.len().map_err(io)?, last.is_none_or(|l| l <= number));
        let mut window = Window::new(&*file, len);
        let head = window.at(0, SEGMENT_HEADER).map_err(io)?.unwrap_or(&[]);
        let header = match SegmentHeader::decode(head, &self.meta.salt, &self.meta.origin) {
            Ok(header) => header,
            Err(_) if is_last && len <= SEGMENT_HEADER as u64 && self.covered() <= first => {
                return Ok(After::End(len));
            }
            Err(why) => return Err(VerifyError::at(first, why)),
        };
        if (header.number, header.segment_entries) != (number, self.meta.segment_entries) {
            let why = format!(
                "{} holds segment {}: files were exchanged",
                segment_name(number),
                header.number
            );
            return Err(VerifyError::at(first, why));
        }
        if header.first != first {
            let why = format!(
                "{} begins with entry {}: the segment before it was cut, or files were exchanged",
                segment_name(number),
                header.first
            );
            return Err(VerifyError::at(first.min(header.first), why));
        }
        if header.root != self.frontier.root() {
            return Err(self.blame(
                first.saturating_sub(1),
                "entries before it are not those that were written then",
            ));
        }
        self.check_recorded_checkpoint(header.checkpoint_size)?;
        let scanner = Scanner::new(self.meta, window, first, None);
        self.scan(scanner, len, is_last)
    }

    /// Takes the leaf hashes of an archived segment from the index files. False when it is not archived, or an index file is not whole:
    /// then its entries are read.
    fn pass_over(&mut self, number: u64) -> Result<bool, VerifyError> {
        let first = self.frontier.size();
        let range = segments::archived_range(self.disk, self.dir, self.meta, number);
        let range = range.map_err(|e| VerifyError::at(first, e.to_string()))?;
        let Some(range) = range.filter(|range| range.start == first) else {
            return Ok(false);
        };
        let (mut frontier, mut known) = (self.frontier.clone(), self.known.clone());
        for index in range.clone() {
            let within = (index % self.meta.segment_entries) as usize;
            if within == 0 {
                known = self.index_leaves(self.meta.block_of(index));
            }
            let Some(leaf) = known.get(within) else {
                return Ok(false);
            };
            frontier.push(*leaf);
        }
        (self.frontier, self.known) = (frontier, known);
        self.check_heads()?;
        (self.visit)(Visited::Archived(range.end)).map_err(|why| VerifyError::at(first, why))?;
        Ok(true)
    }

    /// Leaf hashes from the index file of a block; empty when it is missing or damaged.
    fn index_leaves(&mut self, block: u64) -> Vec<Hash> {
        let most = IndexParts::of(self.meta.segment_entries).end;
        let bytes = read_small(self.disk, &self.dir.join(index_name(block)), most);
        let leaves = match &bytes {
            Ok(Some(bytes)) => decode_index_leaves(bytes, &self.meta.salt),
            _ => None,
        };
        leaves.unwrap_or_else(|| {
            let what = if matches!(bytes, Ok(Some(_))) {
                "damaged"
            } else {
                "missing"
            };
            self.unindexed.push((block, what));
            Vec::new()
        })
    }

    fn scan(
        &mut self,
        mut scanner: Scanner<'_>,
        len: u64,
        is_last: bool,
    ) -> Result<After, VerifyError> {
        loop {
            let root = self.frontier.root();
            let next = scanner.next_index();
            let step = scanner.step(&root);
            match step.map_err(|e| VerifyError::at(next, format!("cannot be read: {e}")))? {
                Step::Batch(batch) => {
                    self.check_recorded_checkpoint(batch.header.checkpoint_size)?;
                    for entry in batch.entries() {
                        self.entry(&entry)?;
                    }
                }
                Step::End if is_last => return Ok(After::End(0)),
                Step::End => return Ok(After::NextSegment),
                Step::Bad(bad) if bad.torn && is_last && bad.index >= self.covered() => {
                    return Ok(After::End(len - bad.offset));
                }
                Step::Bad(bad) if bad.torn && bad.index < self.covered() => {
                    return Err(VerifyError::at(
                        bad.index,
                        format!("{}; a signed checkpoint covers it", bad.why),
                    ));
                }
                Step::Bad(bad) => return Err(self.blame(bad.index, &bad.why)),
            }
        }
    }

    fn entry(&mut self, entry: &Entry<'_>) -> Result<(), VerifyError> {
        let (index, leaf) = (entry.index, sha256(entry.preimage));
        let within = (index % self.meta.segment_entries) as usize;
        if within == 0 {
            self.known = self.index_leaves(self.meta.block_of(index));
        }
        let kept = self.known.get(within);
        // The index file is not signed: a difference alone proves nothing, it only locates damage.
        if self.suspect.is_none() && kept.is_some_and(|k| *k != leaf) {
            self.suspect = Some(index);
        }
        self.frontier.push(leaf);
        (self.visit)(Visited::Entry(index, &entry.preimage[1..], entry.private))
            .map_err(|why| VerifyError::at(index, why))?;
        self.check_heads()?;
        if index.is_multiple_of(PROGRESS_EVERY) {
            let covered = self.covered();
            (self.progress)(index, covered);
        }
        Ok(())
    }

    /// Compares the tree with every head of exactly this size.
    fn check_heads(&mut self) -> Result<(), VerifyError> {
        let size = self.frontier.size();
        let wrong = self
            .heads
            .iter()
            .any(|(at, root)| *at == size && *root != self.frontier.root());
        if wrong {
            let why = format!(
                "the first {size} entries do not hash to the root that was signed for them"
            );
            return Err(self.blame(0, &why));
        }
        Ok(())
    }

    /// The error, at the first entry that differs from its leaf hash in the index file, or else at
    /// `index`.
    fn blame(&self, index: u64, why: &str) -> VerifyError {
        match self.suspect {
            Some(at) => {
                VerifyError::at(at, format!("it is not the entry that was written ({why})"))
            }
            None => VerifyError::at(index, why),
        }
    }

    /// Headers record the size of the checkpoint that existed when they were written; a stored
    /// checkpoint of a smaller size was put there later. On a live log a newer one may have been
    /// published since it was read, so it is read again before the check fails.
    fn check_recorded_checkpoint(&mut self, size: u64) -> Result<(), VerifyError> {
        // The headers of a copy are those of the node that wrote the batch.
        if size <= self.newest_checkpoint || self.meta.is_copy() {
            return Ok(());
        }
        if let Ok((checkpoint, _)) = signed_checkpoint(self.disk, self.dir, self.meta, self.keys) {
            self.newest_checkpoint = self.newest_checkpoint.max(checkpoint.size);
        }
        if size <= self.newest_checkpoint {
            return Ok(());
        }
        let why = format!(
            "the stored checkpoint covers {} entries, but one of {size} was published before this entry: \
             the checkpoint is missing or was replaced by an older one",
            self.newest_checkpoint
        );
        Err(VerifyError::at(self.frontier.size(), why))
    }

    fn covered(&self) -> u64 {
        self.heads.iter().map(|h| h.0).max().unwrap_or(0)
    }
}
