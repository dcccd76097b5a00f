//! Record files: records of any length, appended in batches, each durable before the next begins.
//!
//! ```text
//! offset  bytes   field                                        (integers big-endian)
//! 0       8       kind and format, see [`Kind`]
//! 8       8       id: the file's number among its neighbours
//! 16      16      check of the start
//! 32              records
//!
//! record:
//! 0       4       B7 'R' 'E' 'C'
//! 4       4       distance: bytes from the first record of its batch to this one
//! 8       4       length of the body
//! 12      16      check
//! 28      length  body
//! ```
//!
//! A check is the first half of HMAC-SHA-256 under the owner's key, or of SHA-256 where the owner
//! has none, over the kind (8), the id (8), the record's offset in the file (8), its distance (4) and
//! its body. So a record of another file, or one that was moved, does not pass for a record of this
//! file. The start is checked as a record at offset 0 without a body.
//!
//! **Torn tail or damage.** A batch is one write and one flush, and the next batch is written only
//! after the flush. So a power failure can damage the last batch alone. When a record does not verify,
//! the reader looks for a later record that does. If there is one, and its batch began after the
//! bad record, then the bad record was durable once: the file is damaged, and is refused. If there is
//! none, the bad record belongs to the last batch, whose writer never returned: the tail is cut. One
//! loss looks the same as a torn tail: damage to the very last batch.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_crypto::ct;
use ron_crypto::hash::{Sha256, hmac_sha256};
use ron_crypto::secret::Secret32;

use crate::disk::{Disk, DiskFile, read_all};
use crate::kind::{FileError, Kind, START};

const MARK: &[u8; 4] = b"\xb7REC";
const CHECK: usize = 16;
/// Bytes of the file before its first record.
const FIRST: usize = START + 8 + CHECK;
/// Bytes of a record before its body.
const HEAD: usize = 12 + CHECK;
/// Bytes of what a check covers before the body.
const BOUND: usize = START + 8 + 8 + 4;

/// What protects the records of a file.
pub enum Check {
    /// A checksum: finds accidents.
    Sum,
    /// A MAC: also finds records that were written without the key.
    Mac(Secret32),
}

impl fmt::Debug for Check {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Sum => "Sum",
            Self::Mac(_) => "Mac",
        })
    }
}

impl Check {
    fn of(&self, bound: &[u8; BOUND], body: &[&[u8]]) -> [u8; CHECK] {
        let whole = match self {
            Self::Sum => {
                let mut hash = Sha256::new();
                hash.update(bound);
                for part in body {
                    hash.update(part);
                }
                hash.finish()
            }
            Self::Mac(key) => {
                let mut message = bound.to_vec();
                for part in body {
                    message.extend_from_slice(part);
                }
                hmac_sha256(key.expose(), &message)
            }
        };
        *whole.first_chunk().expect("16 of 32 bytes")
    }
}

/// Whether the end of a file may be a batch that a crash interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The file was the last to be written to: a torn batch is cut.
    MayBeTorn,
    /// A later file was begun after this one was complete: every byte counts.
    Whole,
}

/// What the readers of a file share.
#[derive(Debug)]
struct Shared {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    kind: Kind,
    id: u64,
    check: Arc<Check>,
}

impl Shared {
    fn check_of(&self, offset: u64, distance: u32, body: &[&[u8]]) -> [u8; CHECK] {
        let mut bound = [0; BOUND];
        bound[..8].copy_from_slice(&self.kind.start());
        bound[8..16].copy_from_slice(&self.id.to_be_bytes());
        bound[16..24].copy_from_slice(&offset.to_be_bytes());
        bound[24..].copy_from_slice(&distance.to_be_bytes());
        self.check.of(&bound, body)
    }

    fn start(&self) -> [u8; FIRST] {
        let mut start = [0; FIRST];
        start[..8].copy_from_slice(&self.kind.start());
        start[8..16].copy_from_slice(&self.id.to_be_bytes());
        start[16..].copy_from_slice(&self.check_of(0, 0, &[]));
        start
    }

    /// The record at the front of `raw`, which is at `offset` of the file; `None` unless it is whole and verifies.
    fn record<'a>(&self, offset: u64, raw: &'a [u8]) -> Option<Record<'a>> {
        let (mark, rest) = raw.split_first_chunk::<4>()?;
        let (distance, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (check, rest) = rest.split_first_chunk::<CHECK>()?;
        let distance = u32::from_be_bytes(*distance);
        let body = rest.get(..u32::from_be_bytes(*length) as usize)?;
        let sound = mark == MARK && ct::eq(&self.check_of(offset, distance, &[body]), check);
        sound.then_some(Record { distance, body })
    }

    fn damaged(&self, offset: usize, why: &str) -> FileError {
        FileError::damaged(&self.path, offset as u64, why)
    }
}

struct Record<'a> {
    distance: u32,
    body: &'a [u8],
}

/// Where a record is; keeps its file open.
#[derive(Clone, Debug)]
pub struct Place {
    of: Arc<Shared>,
    offset: u64,
    length: u32,
}

impl Place {
    /// Reads the record's body and checks it.
    pub fn read(&self) -> Result<Vec<u8>, FileError> {
        let shared = &self.of;
        let mut raw = vec![0; HEAD + self.length as usize];
        let got = shared.file.read_at(self.offset, &mut raw);
        raw.truncate(got.map_err(FileError::io(&shared.path))?);
        match shared.record(self.offset, &raw) {
            Some(record) if record.body.len() == self.length as usize => {
                raw.drain(..HEAD);
                Ok(raw)
            }
            _ => Err(self.damaged("a record does not verify")),
        }
    }

    /// The error for a record whose body its reader cannot use.
    pub fn damaged(&self, why: &str) -> FileError {
        self.of.damaged(self.offset as usize, why)
    }

    /// Id of the record's file.
    pub fn id(&self) -> u64 {
        self.of.id
    }
}

/// A record file that is open for appending. One thread owns it; its [`Place`]s are read by any.
#[derive(Debug)]
pub struct RecordFile {
    shared: Arc<Shared>,
    /// End of the last complete batch, in bytes.
    end: u64,
    /// Records added since the last commit.
    pending: Vec<u8>,
    /// Whether the records must survive the process.
    durable: bool,
    failed: bool,
}

/// What opening a file found.
#[derive(Debug)]
pub struct Opened {
    pub file: RecordFile,
    /// Bytes of a torn batch that were cut from its end.
    pub cut: u64,
}

impl RecordFile {
    /// Creates the file `id` at `path`, durably.
    pub fn create(
        disk: &dyn Disk,
        path: &Path,
        kind: Kind,
        id: u64,
        check: Arc<Check>,
    ) -> Result<Self, FileError> {
        let made = Self::make(disk, path, (kind, id, check), true)?;
        made.shared.file.sync_data().map_err(FileError::io(path))?;
        // The directory too, or a crash could lose the file with all records that follow.
        disk.sync_dir(parent(path)).map_err(FileError::io(path))?;
        Ok(made)
    }

    /// Creates a file of intermediate results, which nobody reads after this process: nothing of it is ever flushed.
    pub fn scratch(disk: &dyn Disk, path: &Path, kind: Kind) -> Result<Self, FileError> {
        Self::make(disk, path, (kind, 0, Arc::new(Check::Sum)), false)
    }

    fn make(
        disk: &dyn Disk,
        path: &Path,
        (kind, id, check): (Kind, u64, Arc<Check>),
        durable: bool,
    ) -> Result<Self, FileError> {
        let file = disk.create(path).map_err(FileError::io(path))?;
        let path = path.to_owned();
        let shared = Shared {
            file,
            path,
            kind,
            id,
            check,
        };
        let written = shared.file.write_at(0, &shared.start());
        written.map_err(FileError::io(&shared.path))?;
        Ok(Self {
            shared: Arc::new(shared),
            end: FIRST as u64,
            pending: Vec::new(),
            durable,
            failed: false,
        })
    }

    /// Opens a durable file and passes each record's place and body to `see`, in order. `None` when a crash interrupted the
    /// file's creation: it never had a record and may be removed.
    ///
    /// Everything that `see` got is durable when this returns. After an error the file is as it was.
    pub fn open(
        disk: &dyn Disk,
        path: &Path,
        kind: Kind,
        id: u64,
        check: Arc<Check>,
        tail: Tail,
        mut see: impl FnMut(Place, &[u8]),
    ) -> Result<Option<Opened>, FileError> {
        let file = disk.open_write(path).map_err(FileError::io(path))?;
        let raw = read_all(&*file).map_err(FileError::io(path))?;
        let path = path.to_owned();
        let shared = Arc::new(Shared {
            file,
            path,
            kind,
            id,
            check,
        });
        if raw.get(..FIRST) != Some(&shared.start()) {
            return shared.bad_start(&raw, tail).map(|()| None);
        }
        // Until there is a record, the last thing written is the start.
        let (mut at, mut last_batch) = (FIRST, 0);
        while at < raw.len() {
            let offset = at as u64;
            let Some(record) = shared.record(offset, &raw[at..]) else {
                shared.must_be_torn(&raw, at, tail)?;
                break;
            };
            last_batch = at.saturating_sub(record.distance as usize);
            let place = Place {
                of: shared.clone(),
                offset,
                length: record.body.len() as u32,
            };
            see(place, record.body);
            at += HEAD + record.body.len();
        }
        let cut = (raw.len() - at) as u64;
        if tail == Tail::MayBeTorn {
            let kept = shared.keep_batch(disk, &raw[last_batch..at], last_batch as u64, cut > 0);
            kept.map_err(FileError::io(&shared.path))?;
        }
        let end = at as u64;
        let (pending, durable, failed) = (Vec::new(), true, false);
        let file = Self {
            shared,
            end,
            pending,
            durable,
            failed,
        };
        Ok(Some(Opened { file, cut }))
    }

    /// Adds a record to the batch; its body is `parts`, one after the other. The place may be read once
    /// [`RecordFile::commit`] has returned.
    pub fn add(&mut self, parts: &[&[u8]]) -> Place {
        let small = |bytes: usize| u32::try_from(bytes).expect("a batch is shorter than 4 GiB");
        let distance = small(self.pending.len());
        let offset = self.len();
        let length = small(parts.iter().map(|part| part.len()).sum());
        self.pending.extend_from_slice(MARK);
        self.pending.extend_from_slice(&distance.to_be_bytes());
        self.pending.extend_from_slice(&length.to_be_bytes());
        let check = self.shared.check_of(offset, distance, parts);
        self.pending.extend_from_slice(&check);
        for part in parts {
            self.pending.extend_from_slice(part);
        }
        Place {
            of: self.shared.clone(),
            offset,
            length,
        }
    }

    /// Writes the batch, with one write and (unless the file is scratch) one flush. After an error the file takes nothing more:
    /// a failed flush is never repeated.
    pub fn commit(&mut self) -> Result<(), FileError> {
        let path = &self.shared.path;
        if self.failed {
            return Err(FileError::Closed { path: path.clone() });
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        let file = &self.shared.file;
        let written = file.write_at(self.end, &self.pending);
        let done = written.and_then(|()| {
            if self.durable {
                file.sync_data()
            } else {
                Ok(())
            }
        });
        self.failed = done.is_err();
        done.map_err(FileError::io(path))?;
        self.end = self.len();
        self.pending.clear();
        Ok(())
    }

    /// Length in bytes, with the batch that is not committed yet.
    pub fn len(&self) -> u64 {
        self.end + self.pending.len() as u64
    }

    /// True when the file has no record.
    pub fn is_empty(&self) -> bool {
        self.len() == FIRST as u64
    }

    /// The file's number among its neighbours.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    pub fn path(&self) -> &Path {
        &self.shared.path
    }
}

fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

impl Shared {
    /// Judges a file without a sound start: `Ok` when its creation was interrupted.
    fn bad_start(&self, raw: &[u8], tail: Tail) -> Result<(), FileError> {
        // The start is durable before the first record is written.
        if raw.len() <= FIRST && tail == Tail::MayBeTorn {
            return match self.kind.check(&self.path, raw) {
                Err(newer @ FileError::Newer { .. }) => Err(newer),
                _ => Ok(()),
            };
        }
        self.kind.check(&self.path, raw)?;
        Err(self.damaged(
            8,
            "its start does not verify, or belongs to another file or key",
        ))
    }

    /// Judges the record at `bad`, which does not verify: `Ok` when it can only be the rest of a torn batch.
    fn must_be_torn(&self, raw: &[u8], bad: usize, tail: Tail) -> Result<(), FileError> {
        let refused = || self.damaged(bad, "a record does not verify, and it was complete once");
        if tail == Tail::Whole {
            return Err(refused());
        }
        let mut at = bad + 1;
        while at + HEAD <= raw.len() {
            // Bodies may contain the mark; only the check decides.
            match self.record(at as u64, &raw[at..]) {
                Some(record) if at.saturating_sub(record.distance as usize) > bad => {
                    return Err(refused());
                }
                Some(record) => at += HEAD + record.body.len(),
                None => at += 1,
            }
        }
        Ok(())
    }

    /// Cuts the file behind its last batch, and makes that batch durable.
    fn keep_batch(&self, disk: &dyn Disk, batch: &[u8], at: u64, cut: bool) -> io::Result<()> {
        if cut {
            self.file.set_len(at + batch.len() as u64)?;
        }
        // The process before may have ended between the write and the flush, or in a failed flush, after which Linux counts
        // the bytes as clean: only a second write makes the next flush save them.
        self.file.write_at(at, batch)?;
        self.file.sync_data()?;
        disk.sync_dir(parent(&self.path))
    }
}
