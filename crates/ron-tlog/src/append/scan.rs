//! Reads a segment file batch by batch, checks everything, and distinguishes a torn tail from
//! damage.
//!
//! The writer issues a batch only after the one before it is durable. So only the last batch of the
//! log can be torn by a crash, and an error before a later batch is damage. A whole batch header
//! states where the batch ends: bytes beyond that prove that the batch was durable once. A batch
//! without a whole header is torn only when no later header is found after it.

use std::io;

use super::layout::{
    BATCH_BODY_MAX, BATCH_HEADER, BATCH_TAG, BatchHeader, ENTRY_HEADER, SEGMENT_HEADER,
    entry_holds, entry_len, entry_parts,
};
use super::meta::Meta;
use super::window::Window;
use crate::tree::Hash;

/// What the scanner found at its position.
pub(crate) enum Step<'w> {
    Batch(Batch<'w>),
    /// The end of the file, at the end of a batch.
    End,
    /// Torn or damaged bytes.
    Bad(Bad),
}

/// A place where the file is not as it was written, with the index of the first entry affected.
#[derive(Debug)]
pub(crate) struct Bad {
    pub index: u64,
    /// Start of the batch in the file.
    pub offset: u64,
    pub why: String,
    /// True when a crash during the last, unacknowledged write explains it.
    pub torn: bool,
}

/// A batch whose checksums hold.
pub(crate) struct Batch<'w> {
    pub header: BatchHeader,
    pub offset: u64,
    pub len: u64,
    body: &'w [u8],
}

/// One entry of a batch.
pub(crate) struct Entry<'w> {
    pub index: u64,
    /// Start of the entry in the file.
    pub offset: u64,
    /// A zero byte and the leaf: the input of the leaf hash.
    pub preimage: &'w [u8],
    pub private: &'w [u8],
}

impl<'w> Batch<'w> {
    /// The bytes after the header.
    pub fn body(&self) -> &'w [u8] {
        self.body
    }

    pub fn entries(&self) -> impl Iterator<Item = Entry<'w>> + use<'w> {
        let (mut rest, mut index) = (self.body, self.header.first);
        let mut offset = self.offset + BATCH_HEADER as u64;
        std::iter::from_fn(move || {
            let (entry, after) = rest.split_at_checked(entry_len(rest)?)?;
            let (preimage, private) = entry_parts(entry);
            let this = Entry {
                index,
                offset,
                preimage,
                private,
            };
            offset += entry.len() as u64;
            index += 1;
            rest = after;
            Some(this)
        })
    }
}

pub(crate) struct Scanner<'f> {
    meta: &'f Meta,
    window: Window<'f>,
    position: u64,
    next: u64,
    limit: Option<u64>,
    previous: Option<u64>,
}

impl<'f> Scanner<'f> {
    /// Scans the segment that begins with entry `first`, from behind its header. `limit` is the first
    /// entry of the next segment, if there is one.
    pub fn new(meta: &'f Meta, window: Window<'f>, first: u64, limit: Option<u64>) -> Self {
        Self {
            meta,
            window,
            position: SEGMENT_HEADER as u64,
            next: first,
            limit,
            previous: None,
        }
    }

    /// Goes on at the batch that begins at `position`.
    pub fn at(mut self, position: u64) -> Self {
        self.position = position;
        self
    }

    /// Index of the entry that comes next.
    pub fn next_index(&self) -> u64 {
        self.next
    }

    /// Reads the next batch. `root` is the root of the tree of all entries before it.
    pub fn step(&mut self, root: &Hash) -> io::Result<Step<'_>> {
        let (offset, end) = (self.position, self.window.end());
        if offset >= end {
            return Ok(Step::End);
        }
        let header = self
            .window
            .at(offset, BATCH_HEADER)?
            .and_then(|b| BatchHeader::decode(b, &self.meta.salt));
        let Some(header) = header else {
            // A later header proves that this batch was durable once.
            let torn = !self.later_batch(offset)?;
            return Ok(self.bad(
                self.next,
                torn,
                format!("no whole batch begins at byte {offset} of the segment"),
            ));
        };
        if let Some(bad) = self.misplaced(&header, root) {
            return Ok(Step::Bad(bad));
        }
        let body_end = offset + (BATCH_HEADER as u64) + u64::from(header.body);
        if let Some(at) = self.first_bad_entry(&header, offset)? {
            // Bytes after this batch were written only once it was durable: then it is damage, not
            // a torn write.
            let torn = body_end >= end;
            let what = if body_end > end {
                "the segment ends within its batch"
            } else {
                "its checksum does not hold"
            };
            return Ok(self.bad(header.first + at, torn, what.into()));
        }
        self.position = body_end;
        self.next = header.first + u64::from(header.count);
        self.previous = Some(header.first);
        let body = self
            .window
            .at(offset + BATCH_HEADER as u64, header.body as usize)?;
        Ok(Step::Batch(Batch {
            header,
            offset,
            len: body_end - offset,
            body: body.ok_or_else(|| io::Error::other("the segment shrank while it was read"))?,
        }))
    }

    /// As [`Self::step`], without knowing the tree of the entries before it: the header's word is taken for its root.
    pub fn step_unproved(&mut self) -> io::Result<Step<'_>> {
        let header = self.window.at(self.position, BATCH_HEADER)?;
        let header = header.and_then(|b| BatchHeader::decode(b, &self.meta.salt));
        self.step(&header.map_or(Hash::default(), |header| header.root))
    }

    fn bad(&self, index: u64, torn: bool, why: String) -> Step<'static> {
        Step::Bad(Bad {
            index,
            offset: self.position,
            why,
            torn,
        })
    }

    /// Checks that a header belongs here. A whole header in the wrong place is damage, never the
    /// result of a crash.
    fn misplaced(&self, header: &BatchHeader, root: &Hash) -> Option<Bad> {
        let (index, why) = if header.first != self.next {
            (
                self.next,
                format!("the batch of entry {} stands in its place", header.first),
            )
        } else if header.count == 0
            || (header.body as usize / ENTRY_HEADER) < header.count as usize
            || header.body as usize > BATCH_BODY_MAX
            || (self.limit).is_some_and(|limit| header.first + u64::from(header.count) > limit)
        {
            (self.next, "its batch has an impossible size".into())
        } else if header.root != *root {
            let why = format!(
                "entries before {} are not those that were written then",
                header.first
            );
            (self.previous.unwrap_or(self.next.saturating_sub(1)), why)
        } else {
            return None;
        };
        Some(Bad {
            index,
            offset: self.position,
            why,
            torn: false,
        })
    }

    /// Position in the batch of the first damaged or incomplete entry, or `None`.
    fn first_bad_entry(&mut self, header: &BatchHeader, offset: u64) -> io::Result<Option<u64>> {
        let from = offset + BATCH_HEADER as u64;
        let there = u64::from(header.body).min(self.window.end() - from);
        let whole = there == u64::from(header.body);
        let salt = &self.meta.salt;
        let Some(mut rest) = self.window.at(from, there as usize)? else {
            return Ok(Some(0));
        };
        for at in 0..u64::from(header.count) {
            let Some((entry, after)) = entry_len(rest).and_then(|n| rest.split_at_checked(n))
            else {
                return Ok(Some(at));
            };
            if !entry_holds(entry, salt, header.first + at) {
                return Ok(Some(at));
            }
            rest = after;
        }
        // Missing or surplus bytes after all entries are counted to the last one.
        let leftover = !whole || !rest.is_empty();
        Ok(leftover.then(|| u64::from(header.count) - 1))
    }

    /// Whether a whole header of a later batch follows anywhere after `offset`. The salted checksum
    /// keeps bytes inside an entry from passing for a header.
    fn later_batch(&mut self, offset: u64) -> io::Result<bool> {
        const PIECE: usize = 64 * 1024;
        let end = self.window.end();
        let mut at = offset + 1;
        while at + BATCH_HEADER as u64 <= end {
            let n = (PIECE + BATCH_HEADER).min((end - at) as usize);
            let Some(bytes) = self.window.at(at, n)? else {
                break;
            };
            let starts = bytes.len() - BATCH_HEADER + 1;
            let found = (0..starts).filter(|i| bytes[*i] == BATCH_TAG).any(|i| {
                let header = BatchHeader::decode(&bytes[i..], &self.meta.salt);
                header.is_some_and(|h| h.first > self.next)
            });
            if found {
                return Ok(true);
            }
            at += starts as u64; // pieces overlap by a header, so that none is missed at a boundary
        }
        Ok(false)
    }
}
