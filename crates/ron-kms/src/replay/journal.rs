//! The journal of answers: record files (ron-files), written by one thread, read at start and when an
//! operation is repeated.
//!
//! ```text
//! replay/0000000000000001     at most an eighth of the bounds each; a start continues the last one
//!   record file of kind JRNL, its id the number in its name, its MACs with a key of the store
//!   body of a record: time 8 | op 16 | body 32 | answer
//! ```
//!
//! Integers are big-endian. `op` is the first half of SHA-256 over tenant, zero byte and id; `body`
//! the hash of the request; the answer is JSON. A batch that a crash interrupted, before any of its
//! answers left, is cut from the last segment. A start refuses a segment with any other damage, and a
//! number that is missing between two others.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_custody::store::OP_ID_MS;
use ron_files::{Check, Disk, FileError, Kind, Place, RecordFile, Tail};

use super::{Bounds, Entry, JournalRecord, OpKey, Replay};

const KIND: Kind = Kind {
    name: b"JRNL",
    version: 1,
};
/// Bytes of a record before the answer.
const HEAD: usize = 8 + 16 + 32;
/// Number of segments that share the bounds; whole segments are forgotten.
const SEGMENTS: u64 = 8;

/// Why the journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error(
        "the journal of answers: {0}. Restore the file from a backup, or move it and all files with lower numbers away: the service then forgets the operation ids in them, and performs a repeated request again"
    )]
    File(#[from] FileError),
    #[error(
        "the journal of answers: {} is missing. Restore the file from a backup, or move all files with lower numbers away: the service then forgets the operation ids in them, and performs a repeated request again",
        .0.display()
    )]
    Missing(PathBuf),
}

/// Reads the answer of the record at `place`.
pub(super) fn answer(place: &Place) -> Result<Vec<u8>, FileError> {
    let mut record = place.read()?;
    record.drain(..HEAD);
    Ok(record)
}

struct Segment {
    file: RecordFile,
    newest_ms: u64,
    keys: Vec<OpKey>,
}

impl Segment {
    fn note(&mut self, key: OpKey, made_ms: u64) {
        self.keys.push(key);
        self.newest_ms = self.newest_ms.max(made_ms);
    }
}

/// The journal; owned by the thread that appends to the audit log.
pub struct Journal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    check: Arc<Check>,
    replay: Arc<Replay>,
    bounds: Bounds,
    /// Oldest first. Each keeps its file open, so a start continues the last one instead of adding one.
    segments: VecDeque<Segment>,
    next: u64,
}

impl Journal {
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        check: Check,
        replay: Arc<Replay>,
        bounds: Bounds,
    ) -> Result<Self, JournalError> {
        disk.create_dir_all(dir).map_err(FileError::io(dir))?;
        let names = disk.list(dir).map_err(FileError::io(dir))?;
        // Other files in the directory are not the journal's.
        let segments = names.iter().filter(|name| name.len() == 16);
        let numbers = segments.filter_map(|name| u64::from_str_radix(name, 16).ok());
        let numbers: Vec<u64> = numbers.collect();
        let mut journal = Self {
            disk,
            dir: dir.to_owned(),
            check: Arc::new(check),
            replay,
            bounds,
            segments: VecDeque::new(),
            next: numbers.last().map_or(1, |last| last + 1),
        };
        // Only the oldest segments are ever removed, in order, so the numbers have no gap.
        if let Some(two) = numbers.windows(2).find(|two| two[1] != two[0] + 1) {
            return Err(JournalError::Missing(journal.path(two[0] + 1)));
        }
        for (number, left) in numbers.iter().zip((0..numbers.len()).rev()) {
            // A segment is begun only after the one before it was durable.
            let tail = if left == 0 {
                Tail::MayBeTorn
            } else {
                Tail::Whole
            };
            journal.load(*number, tail)?;
        }
        // Nothing is removed for its age yet: at a start the machine's date may be wrong. Old answers are
        // not given all the same, and the next write removes them.
        journal.prune(0, 0)?;
        Ok(journal)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:016x}"))
    }

    /// Loads the records of a segment.
    fn load(&mut self, number: u64, tail: Tail) -> Result<(), FileError> {
        let (path, check) = (self.path(number), self.check.clone());
        let mut found = Vec::new();
        let mut short = None;
        let opened = RecordFile::open(
            &*self.disk,
            &path,
            KIND,
            number,
            check,
            tail,
            |place, body| match Self::parse(body) {
                Some((key, body, made_ms)) => found.push((
                    key,
                    Entry {
                        body,
                        place: Some(place),
                        made_ms,
                    },
                )),
                None => short = Some(place),
            },
        )?;
        if let Some(place) = short {
            return Err(place.damaged("a record is shorter than any answer's"));
        }
        let Some(opened) = opened else {
            tracing::warn!(event = "replay_segment_removed", segment = number);
            self.disk.remove(&path).map_err(FileError::io(&path))?;
            // It never had a record, so its number is free: the next segment must leave no gap.
            self.next = number;
            // The segment before is continued: if this name came back after a power failure, that segment would be read as one
            // that was complete, and its torn tail as damage.
            return self
                .disk
                .sync_dir(&self.dir)
                .map_err(FileError::io(&self.dir));
        };
        if opened.cut > 0 {
            tracing::warn!(
                event = "replay_tail_cut",
                segment = number,
                bytes = opened.cut
            );
        }
        let mut segment = Segment {
            file: opened.file,
            newest_ms: 0,
            keys: Vec::with_capacity(found.len()),
        };
        for (key, entry) in found {
            segment.note(key, entry.made_ms);
            self.replay.record(key, entry);
        }
        self.segments.push_back(segment);
        Ok(())
    }

    /// The operation, the hash of its request and its time, of a record.
    fn parse(record: &[u8]) -> Option<(OpKey, [u8; 32], u64)> {
        let (made_ms, rest) = record.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let body = rest.first_chunk()?;
        Some((*key, *body, u64::from_be_bytes(*made_ms)))
    }

    /// Makes the answers durable, then visible to repetitions. After an error none of them may leave, and their
    /// operations stay in flight until a restart reads what is on disk.
    pub fn keep(&mut self, records: Vec<JournalRecord>, now_ms: u64) -> Result<(), FileError> {
        if records.is_empty() {
            return Ok(());
        }
        let mut entries = Vec::with_capacity(records.len());
        for JournalRecord { mut ticket, answer } in records {
            let Some(key) = ticket.key else { continue };
            if self.is_full() {
                self.begin_segment()?;
            }
            let segment = self.segments.back_mut().expect("a segment was begun");
            let made_ms = ticket.made_ms;
            let place = segment
                .file
                .add(&[&made_ms.to_be_bytes(), &key, &ticket.body, &answer]);
            segment.note(key, made_ms);
            let entry = Entry {
                body: ticket.body,
                place: Some(place),
                made_ms,
            };
            // The ticket gives up the id without freeing it: the record may be on disk even if the write fails, so
            // after an error the id must stay in flight.
            ticket.key = None;
            entries.push((key, entry));
        }
        self.commit()?;
        for (key, entry) in entries {
            self.replay.record(key, entry);
        }
        // The last segment is being written.
        self.prune(now_ms, 1)
    }

    fn commit(&mut self) -> Result<(), FileError> {
        self.segments
            .back_mut()
            .map_or(Ok(()), |last| last.file.commit())
    }

    /// Whether the next record needs a new segment.
    fn is_full(&self) -> bool {
        let Some(last) = self.segments.back() else {
            return true;
        };
        last.file.len() >= self.bounds.bytes_max / SEGMENTS
            || last.keys.len() as u64 >= (self.bounds.capacity as u64 / SEGMENTS).max(1)
    }

    fn begin_segment(&mut self) -> Result<(), FileError> {
        // The last segment must be durable before the next exists: a start takes only the last one's tail for torn.
        self.commit()?;
        // The MAC binds each record to the number of its segment.
        let (number, path) = (self.next, self.path(self.next));
        let file = RecordFile::create(&*self.disk, &path, KIND, number, self.check.clone())?;
        self.next += 1;
        self.segments.push_back(Segment {
            file,
            newest_ms: 0,
            keys: Vec::new(),
        });
        Ok(())
    }

    /// Removes segments whose newest record is a day old, and the oldest ones while a bound is exceeded. Never removes
    /// the last `least` segments.
    fn prune(&mut self, now_ms: u64, least: usize) -> Result<(), FileError> {
        loop {
            let bytes: u64 = self.segments.iter().map(|s| s.file.len()).sum();
            let count: usize = self.segments.iter().map(|s| s.keys.len()).sum();
            self.bounds.remembered.set(count as i64);
            let Some(oldest) = self.segments.front() else {
                return Ok(());
            };
            let old = oldest.newest_ms.saturating_add(OP_ID_MS) <= now_ms;
            let too_much = bytes > self.bounds.bytes_max || count > self.bounds.capacity;
            if self.segments.len() <= least || !(old || too_much) {
                return Ok(());
            }
            let oldest = self.segments.pop_front().expect("there is a front segment");
            // Out of the table before the file is removed, so that no repetition finds a place that is gone.
            let forgotten = self.replay.forget(&oldest.keys, oldest.file.id());
            if !old {
                self.bounds.forgotten.inc_by(forgotten);
                tracing::warn!(event = "replay_forgotten_early", operations = forgotten);
            }
            let path = oldest.file.path();
            self.disk.remove(path).map_err(FileError::io(path))?;
            // Before the next removal: in another order a power failure could leave a gap.
            self.disk
                .sync_dir(&self.dir)
                .map_err(FileError::io(&self.dir))?;
        }
    }
}
