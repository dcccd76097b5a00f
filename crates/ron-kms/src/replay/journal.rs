//! The journal of answers: record files (ron-files), written by one thread, read at start and when an
//! operation is repeated.
//!
//! ```text
//! replay/0000000000000001     at most an eighth of the bounds each; a start continues the last one
//!   record file of kind JRNL, its id the number in its name, its MACs with a key of the store
//!   body of a record: time 8 | op 16 | body 32 | answer
//!   or, before segments are removed: time 8 | zeros 48 | number of the last of them 8
//! replay/0000000000000001.lost    set aside when an operator accepted its loss; never read
//! ```
//!
//! Integers are big-endian. `op` is the first half of SHA-256 over tenant, zero byte and id; `body`
//! the hash of the request; the answer is JSON. A batch that a crash interrupted, before any of its
//! answers left, is cut from the last segment. A start notices a segment with any other damage, one
//! that is missing though no record says that it was removed, and, from the audit log, that the
//! newest answers are missing. It then leaves the journal as it is and takes no new operation id,
//! until an operator accepts the loss.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_crypto::hash::sha256;
use ron_custody::store::OP_ID_MS;
use ron_files::{Check, Dir, Disk, FileError, Kind, Place, RecordFile, Tail};

use super::{Answered, Bounds, Entry, JournalRecord, OpKey, Replay};

const KIND: Kind = Kind {
    name: b"JRNL",
    version: 1,
};
/// Bytes of a record before the answer.
const HEAD: usize = 8 + 16 + 32;
/// Number of segments that share the bounds; whole segments are forgotten.
const SEGMENTS: u64 = 8;
/// In place of an operation and of its body: the record says which segments were removed.
const REMOVED: OpKey = [0; 16];

/// Reads the answer of the record at `place`.
pub(super) fn answer(place: &Place) -> Result<Vec<u8>, FileError> {
    let mut record = place.read()?;
    record.drain(..HEAD);
    Ok(record)
}

/// Removes the journal in `dir`, whose answers are elsewhere by now; what an operator has set aside stays.
pub fn remove(dir: &Dir) -> std::io::Result<()> {
    let names = match dir.list() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        names => names?,
    };
    for name in names.iter().filter(|name| is_segment(name)) {
        dir.remove(name)?;
    }
    dir.sync()
}

fn is_segment(name: &str) -> bool {
    name.len() == 16 && u64::from_str_radix(name, 16).is_ok()
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
    /// Segments up to this number were removed, by a record.
    removed: u64,
    /// What is damaged or missing. Nothing is written while there is any.
    losses: Vec<String>,
    /// Number of the last segment that is damaged or missing.
    lost: u64,
}

impl Journal {
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        check: Check,
        replay: Arc<Replay>,
        bounds: Bounds,
    ) -> Result<Self, FileError> {
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
            removed: 0,
            losses: Vec::new(),
            lost: 0,
        };
        let mut damaged = Vec::new();
        for (number, left) in numbers.iter().zip((0..numbers.len()).rev()) {
            // A segment is begun only after the one before it was durable.
            let tail = if left == 0 {
                Tail::MayBeTorn
            } else {
                Tail::Whole
            };
            match journal.load(*number, tail) {
                Err(error @ FileError::Damaged { .. }) => damaged.push((*number, error)),
                loaded => loaded?,
            }
        }
        let gone = numbers.iter().filter(|number| **number <= journal.removed);
        // A crash came between the record and the removal.
        journal.remove(&gone.copied().collect::<Vec<_>>())?;
        damaged.retain(|(number, _)| *number > journal.removed);
        journal.find_losses(&numbers, damaged);
        if journal.losses.is_empty() {
            // Nothing is removed for its age yet: at a start the machine's date may be wrong. Old answers are
            // not given all the same, and the next write removes them.
            journal.prune(0)?;
        }
        Ok(journal)
    }

    /// Only the oldest segments are ever removed, in order and by a record, so the other numbers have no gap.
    fn find_losses(&mut self, numbers: &[u64], damaged: Vec<(u64, FileError)>) {
        let mut before = self.removed;
        for number in numbers.iter().filter(|number| **number > self.removed) {
            if *number != before + 1 {
                let (first, last) = (self.path(before + 1), number - 1);
                let why = format!("{} to number {last:x} are missing", first.display());
                self.losses.push(why);
                self.lost = last;
            }
            before = *number;
        }
        for (number, error) in damaged {
            self.losses.push(error.to_string());
            self.lost = self.lost.max(number);
        }
    }

    /// What is damaged or missing.
    pub fn losses(&self) -> &[String] {
        &self.losses
    }

    /// Checks that the journal has the answer to an operation of which the audit log says that it has.
    pub fn expect(&mut self, newest: &Answered) {
        if !self.replay.has(&newest.key()) {
            let Answered { op_id, tenant, .. } = newest;
            let (dir, why) = (self.dir.display(), "and those after the last one kept");
            let why = format!(
                "{dir} has no answer to operation {op_id} of tenant {tenant}, {why}, are missing"
            );
            self.losses.push(why);
        }
    }

    /// Names the losses, for the operator who accepts them: other losses have another name.
    pub fn loss_id(&self) -> String {
        hex::encode(&sha256(self.losses.join("\n").as_bytes())[..8])
    }

    /// Goes on without what is damaged or missing: sets the damaged segments aside, with those before them.
    pub fn accept_losses(&mut self) -> Result<(), FileError> {
        if self.lost > 0 {
            let aside: Vec<u64> = (self.removed + 1..=self.lost).collect();
            let stays = |last: &Segment| last.file.id() > self.lost;
            if !self.segments.back().is_some_and(stays) {
                self.begin_segment()?;
            }
            self.note_removed(self.lost)?;
            self.drop_segments(&aside);
            for path in aside.iter().map(|number| self.path(*number)) {
                match self.disk.rename(&path, &path.with_extension("lost")) {
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    done => done.map_err(FileError::io(&path))?,
                }
            }
            self.disk
                .sync_dir(&self.dir)
                .map_err(FileError::io(&self.dir))?;
        }
        self.losses.clear();
        Ok(())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:016x}"))
    }

    /// Loads the records of a segment.
    fn load(&mut self, number: u64, tail: Tail) -> Result<(), FileError> {
        let (path, check) = (self.path(number), self.check.clone());
        let mut found = Vec::new();
        let (mut short, mut removed) = (None, 0);
        let opened = RecordFile::open(
            &*self.disk,
            &path,
            KIND,
            number,
            check,
            tail,
            |place, record| match Self::parse(record) {
                Some((REMOVED, ..)) => match record[HEAD..].try_into() {
                    Ok(number) => removed = u64::from_be_bytes(number),
                    Err(_) => short = Some(place),
                },
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
            return Err(place.damaged("a record has another length than any"));
        }
        self.removed = self.removed.max(removed);
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
        self.prune(now_ms)
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

    /// Removes segments whose newest record is a day old, and the oldest ones while a bound is exceeded; never the last,
    /// which is being written.
    fn prune(&mut self, now_ms: u64) -> Result<(), FileError> {
        let mut bytes: u64 = self.segments.iter().map(|s| s.file.len()).sum();
        let mut count: usize = self.segments.iter().map(|s| s.keys.len()).sum();
        let mut numbers = Vec::new();
        for oldest in self.segments.range(..self.segments.len().saturating_sub(1)) {
            let old = oldest.newest_ms.saturating_add(OP_ID_MS) <= now_ms;
            if !old && bytes <= self.bounds.bytes_max && count <= self.bounds.capacity {
                break;
            }
            bytes -= oldest.file.len();
            count -= oldest.keys.len();
            numbers.push(oldest.file.id());
            if !old {
                let operations = oldest.keys.len() as u64;
                self.bounds.forgotten.inc_by(operations);
                tracing::warn!(event = "replay_forgotten_early", operations);
            }
        }
        self.bounds.remembered.set(count as i64);
        let Some(last) = numbers.last() else {
            return Ok(());
        };
        self.note_removed(*last)?;
        self.remove(&numbers)
    }

    /// Records, durably and in the last segment, that the segments up to this number are no longer there.
    fn note_removed(&mut self, number: u64) -> Result<(), FileError> {
        let last = self.segments.back_mut().expect("the last segment stays");
        last.file
            .add(&[&[0; 8], &REMOVED, &[0; 32], &number.to_be_bytes()]);
        self.removed = number;
        self.commit()
    }

    /// Removes these segments, whose removal is recorded.
    fn remove(&mut self, numbers: &[u64]) -> Result<(), FileError> {
        // Out of the table before the file is removed, so that no repetition finds a place that is gone.
        self.drop_segments(numbers);
        for path in numbers.iter().map(|number| self.path(*number)) {
            self.disk.remove(&path).map_err(FileError::io(&path))?;
        }
        if numbers.is_empty() {
            return Ok(());
        }
        self.disk
            .sync_dir(&self.dir)
            .map_err(FileError::io(&self.dir))
    }

    fn drop_segments(&mut self, numbers: &[u64]) {
        let replay = &self.replay;
        self.segments.retain(|segment| {
            let stays = !numbers.contains(&segment.file.id());
            if !stays {
                replay.forget(&segment.keys, segment.file.id());
            }
            stays
        });
    }
}
