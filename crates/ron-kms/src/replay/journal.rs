//! The journal of answers: files that only grow, written by one thread, read at start and when an
//! operation is repeated.
//!
//! ```text
//! replay/0000000000000001     at most an eighth of the bounds each; a start continues the last one if it is whole
//!   0     "ronrep", 0, format 1
//!   8..   records: length 4 (of what follows the MAC) | MAC 16 | time 8 | op 16 | body 32 | answer
//! ```
//!
//! Integers are big-endian. `op` is the first half of SHA-256 over tenant, zero byte and id; `body`
//! the hash of the request; the answer is JSON. The MAC is HMAC-SHA-256, cut, with a key of the
//! store over the segment's number, the record's offset and the rest of it, so that a record can
//! neither be made nor moved without the seal key. A record that does not verify ends its segment:
//! it is what a crash left of a batch that nobody was told of.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_crypto::ct;
use ron_crypto::hash::hmac_sha256;
use ron_crypto::secret::Secret32;
use ron_tlog::append::{Disk, DiskFile};

use super::{Bounds, Entry, OpKey, REPLAY_MS, Replay, Settling};

const MAGIC: &[u8; 8] = b"ronrep\0\x01";
const LENGTH: usize = 4;
const MAC: usize = 16;
const HEAD: usize = 8 + 16 + 32;
/// Longest record: a wrapped 64 KiB and some.
const RECORD_MAX: usize = 256 * 1024;
/// Into how many segments the bounds are divided: forgetting goes by whole segments.
const SEGMENTS: u64 = 8;

/// Why the journal cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The disk failed.
    #[error("replay journal: {0}")]
    Io(#[from] io::Error),
    /// It is of a newer program.
    #[error(
        "the journal of answers replay/{name} is of format {found}, this program knows up to {known}; use a newer program, or remove the file: the operation ids in it are forgotten then"
    )]
    Newer {
        /// The file.
        name: String,
        /// Its format.
        found: u8,
        /// The newest format that is known.
        known: u8,
    },
}

/// Where an answer is.
#[derive(Clone)]
pub(super) struct Place {
    file: Arc<dyn DiskFile>,
    pub(super) segment: u64,
    offset: u32,
    length: u32,
}

impl Place {
    /// The answer.
    pub(super) fn read(&self, key: &Secret32) -> io::Result<Vec<u8>> {
        let mut raw = vec![0; self.length as usize];
        let mut at = 0;
        while at < raw.len() {
            match self
                .file
                .read_at(u64::from(self.offset) + at as u64, &mut raw[at..])?
            {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => at += n,
            }
        }
        let rest = checked(key, self.segment, self.offset, &raw)
            .ok_or_else(|| io::Error::other("a record does not verify"))?;
        Ok(rest[HEAD..].to_vec())
    }
}

fn mac(key: &Secret32, segment: u64, offset: u32, rest: &[u8]) -> [u8; MAC] {
    let framed = [&segment.to_be_bytes()[..], &offset.to_be_bytes(), rest].concat();
    *hmac_sha256(key.expose(), &framed)
        .first_chunk()
        .expect("16 of 32 bytes")
}

/// What follows the MAC of the record at the start of `raw`, if it is whole and ours.
fn checked<'a>(key: &Secret32, segment: u64, offset: u32, raw: &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = raw.split_first_chunk::<LENGTH>()?;
    let (given, rest) = rest.split_first_chunk::<MAC>()?;
    let length = u32::from_be_bytes(*length) as usize;
    if !(HEAD..=RECORD_MAX).contains(&length) {
        return None;
    }
    let rest = rest.get(..length)?;
    ct::eq(&mac(key, segment, offset, rest), given).then_some(rest)
}

/// One file.
struct Segment {
    number: u64,
    file: Arc<dyn DiskFile>,
    bytes: u64,
    newest_ms: u64,
    keys: Vec<OpKey>,
}

/// The journal; owned by the thread that appends to the audit log.
pub struct Journal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    replay: Arc<Replay>,
    bounds: Bounds,
    /// Oldest first. Each keeps its file open, so a start must not make more of them.
    segments: VecDeque<Segment>,
    next: u64,
    /// Whether the last one may be continued.
    writable: bool,
}

impl Journal {
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        replay: Arc<Replay>,
        bounds: Bounds,
        now_ms: u64,
    ) -> Result<Self, JournalError> {
        disk.create_dir_all(dir)?;
        let mut journal = Self {
            disk,
            dir: dir.to_owned(),
            replay,
            bounds,
            segments: VecDeque::new(),
            next: 1,
            writable: false,
        };
        let mut whole = false;
        for name in journal.disk.list(dir)? {
            let Ok(number) = u64::from_str_radix(&name, 16) else {
                continue; // not ours
            };
            journal.next = journal.next.max(number + 1);
            whole = journal.load(number, &name)?;
        }
        journal.prune(now_ms)?;
        if let Some(last) = journal.segments.back() {
            // What is believed now must not be lost later: it may have been written, and not flushed.
            last.file.sync_data()?;
            journal.writable = whole;
        }
        Ok(journal)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:016x}"))
    }

    /// Remembers what is in a segment; whether all of it is.
    fn load(&mut self, number: u64, name: &str) -> Result<bool, JournalError> {
        let file = self.disk.open_write(&self.path(number))?;
        let mut raw = vec![0; usize::try_from(file.len()?).unwrap_or(usize::MAX)];
        let mut at = 0;
        while at < raw.len() {
            match file.read_at(at as u64, &mut raw[at..])? {
                0 => break,
                n => at += n,
            }
        }
        raw.truncate(at);
        if raw.len() > MAGIC.len() && raw[..7] == MAGIC[..7] && raw[7] > MAGIC[7] {
            return Err(JournalError::Newer {
                name: name.to_owned(),
                found: raw[7],
                known: MAGIC[7],
            });
        }
        let mut segment = Segment {
            number,
            file,
            bytes: raw.len() as u64,
            newest_ms: 0,
            keys: Vec::new(),
        };
        let mut at = MAGIC.len();
        let ours = raw.starts_with(MAGIC);
        if ours {
            while let Some(length) = self.take(&mut segment, &raw, at) {
                at += length;
            }
        }
        if at < raw.len() {
            let rest = raw.len() - at;
            tracing::warn!(event = "replay_tail_ignored", segment = name, bytes = rest);
        }
        self.segments.push_back(segment);
        Ok(ours && at == raw.len())
    }

    /// Remembers the record at `at`; its length, or `None` at the end.
    fn take(&self, segment: &mut Segment, raw: &[u8], at: usize) -> Option<usize> {
        let offset = u32::try_from(at).ok()?;
        let rest = checked(&self.replay.key, segment.number, offset, &raw[at..])?;
        let length = LENGTH + MAC + rest.len();
        let made_ms = u64::from_be_bytes(*rest.first_chunk()?);
        let key: OpKey = rest.get(8..24)?.try_into().ok()?;
        let body = rest.get(24..HEAD)?.try_into().ok()?;
        let place = Some(Place {
            file: segment.file.clone(),
            segment: segment.number,
            offset,
            length: u32::try_from(length).ok()?,
        });
        self.replay.settle(
            key,
            Entry {
                body,
                place,
                made_ms,
            },
        );
        segment.keys.push(key);
        segment.newest_ms = segment.newest_ms.max(made_ms);
        Some(length)
    }

    /// Makes the answers durable, then known. After an error none of them may leave, and what was
    /// under way stays so until a restart tells what is on disk.
    pub fn keep(&mut self, settling: Vec<Settling>, now_ms: u64) -> io::Result<()> {
        if settling.is_empty() {
            return Ok(());
        }
        let mut entries = Vec::with_capacity(settling.len());
        let mut pending: Vec<u8> = Vec::new();
        for Settling { mut ticket, answer } in settling {
            let Some(key) = ticket.key else { continue };
            if self.is_full(pending.len() as u64) {
                self.write(&mut pending)?;
                self.begin_segment()?;
            }
            let segment = self.segments.back_mut().expect("one was begun");
            let offset = (segment.bytes + pending.len() as u64) as u32;
            let rest = [
                &ticket.made_ms.to_be_bytes()[..],
                &key,
                &ticket.body,
                &answer,
            ]
            .concat();
            if rest.len() > RECORD_MAX {
                return Err(io::Error::other("an answer is longer than any can be"));
            }
            let tag = mac(&self.replay.key, segment.number, offset, &rest);
            pending.extend_from_slice(&(rest.len() as u32).to_be_bytes());
            pending.extend_from_slice(&tag);
            pending.extend_from_slice(&rest);
            segment.keys.push(key);
            segment.newest_ms = segment.newest_ms.max(ticket.made_ms);
            let place = Some(Place {
                file: segment.file.clone(),
                segment: segment.number,
                offset,
                length: (LENGTH + MAC + rest.len()) as u32,
            });
            let entry = Entry {
                body: ticket.body,
                place,
                made_ms: ticket.made_ms,
            };
            // From here on the id is the journal's: it is settled below, or never free again.
            ticket.key = None;
            entries.push((key, entry));
        }
        self.write(&mut pending)?;
        for (key, entry) in entries {
            self.replay.settle(key, entry);
        }
        self.prune(now_ms)
    }

    /// Whether the next record belongs into a new segment.
    fn is_full(&self, pending: u64) -> bool {
        let Some(last) = self.segments.back().filter(|_| self.writable) else {
            return true;
        };
        last.bytes + pending >= self.bounds.bytes_max / SEGMENTS
            || last.keys.len() as u64 >= (self.bounds.capacity as u64 / SEGMENTS).max(1)
    }

    fn write(&mut self, pending: &mut Vec<u8>) -> io::Result<()> {
        if pending.is_empty() {
            return Ok(());
        }
        let segment = self.segments.back_mut().expect("something was put into it");
        segment.file.write_at(segment.bytes, pending)?;
        segment.file.sync_data()?;
        segment.bytes += pending.len() as u64;
        pending.clear();
        Ok(())
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        let number = self.next;
        let file = self.disk.create(&self.path(number))?;
        file.write_at(0, MAGIC)?;
        file.sync_data()?;
        self.disk.sync_dir(&self.dir)?;
        self.next += 1;
        self.writable = true;
        self.segments.push_back(Segment {
            number,
            file,
            bytes: MAGIC.len() as u64,
            newest_ms: 0,
            keys: Vec::new(),
        });
        Ok(())
    }

    /// Removes segments that are a day old, and the oldest while there is too much.
    fn prune(&mut self, now_ms: u64) -> io::Result<()> {
        loop {
            let bytes: u64 = self.segments.iter().map(|s| s.bytes).sum();
            let count: usize = self.segments.iter().map(|s| s.keys.len()).sum();
            self.bounds.remembered.set(count as i64);
            let Some(oldest) = self.segments.front() else {
                return Ok(());
            };
            let written = self.writable && self.segments.len() == 1;
            let old = oldest.newest_ms.saturating_add(REPLAY_MS) <= now_ms;
            let too_much = bytes > self.bounds.bytes_max || count > self.bounds.capacity;
            if written || !(old || too_much) {
                return Ok(());
            }
            let oldest = self.segments.pop_front().expect("looked at above");
            let forgotten = self.replay.forget(&oldest.keys, oldest.number);
            if !old {
                self.bounds.forgotten.inc_by(forgotten);
                tracing::warn!(event = "replay_forgotten_early", operations = forgotten);
            }
            self.disk.remove(&self.path(oldest.number))?;
        }
    }
}
