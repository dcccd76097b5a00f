//! The journal of answers: append-only files, written by one thread, read at start and when an
//! operation is repeated.
//!
//! ```text
//! replay/0000000000000001     at most an eighth of the bounds each; a start continues the last one if it is intact
//!   0     "ronrep", 0, format 1
//!   8..   records: length 4 (of what follows the MAC) | MAC 16 | time 8 | op 16 | body 32 | answer
//! ```
//!
//! Integers are big-endian. `op` is the first half of SHA-256 over tenant, zero byte and id; `body`
//! the hash of the request; the answer is JSON. The MAC is HMAC-SHA-256, truncated to 16 bytes, with a
//! key of the store, over the segment's number, the record's offset and the rest of the record, so that a
//! record can neither be forged nor moved without the seal key. A record that does not verify ends its
//! segment: it is the rest of a batch that a crash interrupted before any of its answers left.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_crypto::ct;
use ron_crypto::hash::hmac_sha256;
use ron_crypto::secret::Secret32;
use ron_files::{Disk, DiskFile};

use super::{Bounds, Entry, JournalRecord, OpKey, Replay};
use crate::store::OP_ID_MS;

const MAGIC: &[u8; 8] = b"ronrep\0\x01";
const LENGTH: usize = 4;
const MAC: usize = 16;
const HEAD: usize = 8 + 16 + 32;
/// Maximum bytes of a record after its MAC. The largest answer is a wrapped plaintext of 64 KiB in base64.
const RECORD_MAX: usize = 256 * 1024;
/// Number of segments that share the bounds; whole segments are forgotten.
const SEGMENTS: u64 = 8;

/// Why the journal cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    #[error("replay journal: {0}")]
    Io(#[from] io::Error),
    /// A newer program has written the journal.
    #[error(
        "the journal of answers replay/{name} is of format {found}, this program knows up to {known}; use a newer program, or remove the file: the operation ids in it are then forgotten"
    )]
    Newer {
        name: String,
        found: u8,
        /// The newest format that this program knows.
        known: u8,
    },
}

/// Where a record is; keeps its segment's file open.
#[derive(Clone)]
pub(super) struct Place {
    file: Arc<dyn DiskFile>,
    pub(super) segment: u64,
    offset: u32,
    length: u32,
}

impl Place {
    /// Reads the record, checks its MAC and returns the answer.
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

/// What follows the MAC of the record at the start of `raw`, if the record is complete and its MAC is right.
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
    /// Oldest first. Each keeps its file open, so a start continues the last one instead of adding one.
    segments: VecDeque<Segment>,
    next: u64,
    /// Whether records may be appended to the last segment.
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
                continue; // not a file of the journal
            };
            journal.next = journal.next.max(number + 1);
            whole = journal.load(number, &name)?;
        }
        journal.prune(now_ms)?;
        if let Some(last) = journal.segments.back() {
            // The previous process may have written these records without flushing them. They are used from now on, so
            // they must not be lost in a later crash.
            last.file.sync_data()?;
            journal.writable = whole;
        }
        Ok(journal)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:016x}"))
    }

    /// Loads the records of a segment. True when the whole file is valid, so that it may be continued.
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

    /// Loads the record at `at` and returns its length; `None` at the end or at a record that does not verify.
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
        self.replay.record(
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

    /// Makes the answers durable, then visible to repetitions. After an error none of them may leave, and their
    /// operations stay in flight until a restart reads what is on disk.
    pub fn keep(&mut self, records: Vec<JournalRecord>, now_ms: u64) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let mut entries = Vec::with_capacity(records.len());
        let mut pending: Vec<u8> = Vec::new();
        for JournalRecord { mut ticket, answer } in records {
            let Some(key) = ticket.key else { continue };
            if self.is_full(pending.len() as u64) {
                self.write(&mut pending)?;
                self.begin_segment()?;
            }
            let segment = self.segments.back_mut().expect("a segment was begun");
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
            // The ticket gives up the id without freeing it: the record may be on disk even if the write fails, so
            // after an error the id must stay in flight.
            ticket.key = None;
            entries.push((key, entry));
        }
        self.write(&mut pending)?;
        for (key, entry) in entries {
            self.replay.record(key, entry);
        }
        self.prune(now_ms)
    }

    /// Whether the next record needs a new segment.
    fn is_full(&self, pending: u64) -> bool {
        // A damaged segment is never continued: records after the damage would not be found.
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
        let segment = self
            .segments
            .back_mut()
            .expect("the pending records have a segment");
        segment.file.write_at(segment.bytes, pending)?;
        segment.file.sync_data()?;
        segment.bytes += pending.len() as u64;
        pending.clear();
        Ok(())
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        // Above every number seen so far: the MAC binds each record to the number of its segment.
        let number = self.next;
        let file = self.disk.create(&self.path(number))?;
        file.write_at(0, MAGIC)?;
        file.sync_data()?;
        // The directory too, or a crash could lose the file with all records that follow.
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

    /// Removes segments whose newest record is a day old, and the oldest ones while a bound is exceeded. Never removes
    /// the segment that is being written.
    fn prune(&mut self, now_ms: u64) -> io::Result<()> {
        loop {
            let bytes: u64 = self.segments.iter().map(|s| s.bytes).sum();
            let count: usize = self.segments.iter().map(|s| s.keys.len()).sum();
            self.bounds.remembered.set(count as i64);
            let Some(oldest) = self.segments.front() else {
                return Ok(());
            };
            let written = self.writable && self.segments.len() == 1;
            let old = oldest.newest_ms.saturating_add(OP_ID_MS) <= now_ms;
            let too_much = bytes > self.bounds.bytes_max || count > self.bounds.capacity;
            if written || !(old || too_much) {
                return Ok(());
            }
            let oldest = self.segments.pop_front().expect("there is a front segment");
            // Out of the table before the file is removed, so that no repetition finds a place that is gone.
            let forgotten = self.replay.forget(&oldest.keys, oldest.number);
            if !old {
                self.bounds.forgotten.inc_by(forgotten);
                tracing::warn!(event = "replay_forgotten_early", operations = forgotten);
            }
            self.disk.remove(&self.path(oldest.number))?;
        }
    }
}
