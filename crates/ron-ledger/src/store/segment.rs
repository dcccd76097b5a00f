//! One file of the key index: sorted (key hash, sequence) records that never change.
//!
//! ```text
//! sealed file of kind KEYS: from u64 | to u64 | count u64 | records 24 bytes each: key hash 16, seq 8
//! ```
//! Covers the keys of entries `from..=to`. Memory holds a filter (12 bits per key), and of every 128 records the first hash
//! and a checksum: a record that rotted must not be missed, because its key would be decided again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_files::{Disk, DiskFile, FileError, Kind, Sealed, SealedWriter};

use super::filter::Filter;
use crate::core::KeyHash;

const KIND: Kind = Kind {
    name: b"KEYS",
    version: 1,
};
/// Bytes of the content before the first record.
const HEADER: usize = 24;
const RECORD: usize = 24;
/// Records between two hashes kept in memory: one lookup reads 3 KiB.
const STRIDE: usize = 128;
/// Records that a merge reads at once.
const PIECE: usize = 64 * STRIDE;

/// What a segment covers, and the hash of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentId {
    pub from: u64,
    pub to: u64,
    pub hash: [u8; 32],
}

impl SegmentId {
    pub fn file_name(&self) -> String {
        file_name(self.from, self.to)
    }
}

fn file_name(from: u64, to: u64) -> String {
    format!("keys-{from:016}-{to:016}.idx")
}

#[derive(Debug)]
pub struct Segment {
    id: SegmentId,
    count: usize,
    file: Arc<dyn DiskFile>,
    filter: Filter,
    fences: Fences,
}

/// What memory knows of every 128 records.
#[derive(Debug)]
struct Fences {
    /// The first eight bytes of the first hash.
    first: Vec<u64>,
    /// Checksums of the records.
    sums: Vec<u64>,
    /// The records since the last checksum.
    open: Vec<u8>,
}

impl Fences {
    fn with_capacity(count: usize) -> Self {
        let strides = count.div_ceil(STRIDE);
        Self {
            first: Vec::with_capacity(strides),
            sums: Vec::with_capacity(strides),
            open: Vec::new(),
        }
    }

    fn push(&mut self, key: &KeyHash, seq: u64) {
        if self.open.is_empty() {
            self.first.push(prefix(key));
        }
        self.open.extend_from_slice(key);
        self.open.extend_from_slice(&seq.to_be_bytes());
        if self.open.len() == STRIDE * RECORD {
            self.close();
        }
    }

    /// After the last record.
    fn close(&mut self) {
        if !self.open.is_empty() {
            self.sums.push(checksum(&self.open));
        }
        self.open = Vec::new();
    }
}

fn checksum(records: &[u8]) -> u64 {
    let hash = ron_crypto::hash::blake3(records);
    let (first, _) = hash.split_at(8);
    first.iter().fold(0, |sum, b| sum << 8 | u64::from(*b))
}

/// Writes records in ascending order to a file.
struct Builder<'a> {
    out: SealedWriter<'a>,
    disk: &'a dyn Disk,
    path: PathBuf,
    from: u64,
    to: u64,
    filter: Filter,
    fences: Fences,
    count: usize,
}

fn prefix(key: &KeyHash) -> u64 {
    let mut b = [0; 8];
    b.copy_from_slice(&key[..8]);
    u64::from_be_bytes(b)
}

fn record(bytes: &[u8]) -> (KeyHash, u64) {
    let (mut key, mut seq) = ([0; 16], [0; 8]);
    key.copy_from_slice(&bytes[..16]);
    seq.copy_from_slice(&bytes[16..RECORD]);
    (key, u64::from_be_bytes(seq))
}

impl<'a> Builder<'a> {
    fn start(
        disk: &'a dyn Disk,
        dir: &'a Path,
        from: u64,
        to: u64,
        count: usize,
    ) -> io::Result<Self> {
        let name = file_name(from, to);
        let mut out = SealedWriter::create(disk, dir, &name, KIND)?;
        for n in [from, to, count as u64] {
            out.put(&n.to_be_bytes())?;
        }
        Ok(Self {
            out,
            disk,
            path: dir.join(name),
            from,
            to,
            filter: Filter::with_capacity(count),
            fences: Fences::with_capacity(count),
            count: 0,
        })
    }

    fn finish(mut self) -> io::Result<Segment> {
        self.fences.close();
        let (from, to, hash) = (self.from, self.to, self.out.finish()?);
        Ok(Segment {
            id: SegmentId { from, to, hash },
            count: self.count,
            file: self.disk.open_read(&self.path)?,
            filter: self.filter,
            fences: self.fences,
        })
    }

    fn push(&mut self, key: &KeyHash, seq: u64) -> io::Result<()> {
        self.filter.insert(key);
        self.fences.push(key, seq);
        self.count += 1;
        self.out.put(key)?;
        self.out.put(&seq.to_be_bytes())
    }
}

impl Segment {
    /// Writes `records` (ascending by hash) as the segment of entries `from..=to` and opens it.
    pub fn write(
        disk: &dyn Disk,
        dir: &Path,
        from: u64,
        to: u64,
        records: &[(KeyHash, u64)],
    ) -> io::Result<Self> {
        let mut b = Builder::start(disk, dir, from, to, records.len())?;
        for (key, seq) in records {
            b.push(key, *seq)?;
        }
        b.finish()
    }

    /// Writes the union of neighbouring segments, oldest first.
    pub fn merge(disk: &dyn Disk, dir: &Path, of: &[Arc<Self>]) -> io::Result<Self> {
        let from = of.first().map_or(0, |s| s.id.from);
        let to = of.last().map_or(0, |s| s.id.to);
        let count = of.iter().map(|s| s.count).sum();
        let mut out = Builder::start(disk, dir, from, to, count)?;
        let mut cursors: Vec<Cursor<'_>> = of.iter().map(|s| Cursor::new(s)).collect();
        let mut heads = Vec::with_capacity(cursors.len());
        for cursor in &mut cursors {
            heads.push(cursor.next()?);
        }
        let first = |heads: &[Option<(KeyHash, u64)>]| {
            let present = heads.iter().enumerate();
            present.filter_map(|(n, head)| Some(((*head)?, n))).min()
        };
        while let Some(((key, seq), n)) = first(&heads) {
            out.push(&key, seq)?;
            heads[n] = cursors[n].next()?;
        }
        out.finish()
    }

    /// Opens the segment `id`; refuses it when its content does not have the hash of `id`.
    pub fn open(disk: &dyn Disk, dir: &Path, id: SegmentId) -> Result<Self, FileError> {
        let path = dir.join(id.file_name());
        let sealed = Sealed::read(disk, &path, KIND)?;
        if sealed.hash != id.hash {
            return Err(sealed.damaged(0, "it is not the key file that the snapshot names"));
        }
        let records = sealed.content().get(HEADER..);
        let records = records.filter(|records| records.len() % RECORD == 0);
        let records = records.ok_or_else(|| sealed.damaged(0, "it has half a record"))?;
        let count = records.len() / RECORD;
        let mut filter = Filter::with_capacity(count);
        let mut fences = Fences::with_capacity(count);
        for r in records.chunks_exact(RECORD) {
            let (key, seq) = record(r);
            filter.insert(&key);
            fences.push(&key, seq);
        }
        fences.close();
        let file = disk.open_read(&path).map_err(FileError::io(&path))?;
        Ok(Self {
            id,
            count,
            file,
            filter,
            fences,
        })
    }

    pub const fn id(&self) -> SegmentId {
        self.id
    }

    pub const fn len(&self) -> usize {
        self.count
    }

    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Memory used, in bytes.
    pub const fn memory(&self) -> usize {
        self.filter.bytes() + (self.fences.first.len() + self.fences.sums.len()) * 8
    }

    /// The sequence of a key. Reads the file only when the filter says that the key may be there.
    pub fn find(&self, key: &KeyHash) -> io::Result<Option<u64>> {
        if !self.filter.may_have(key) {
            return Ok(None);
        }
        // Hashes with the same first eight bytes may straddle a fence, so start one stride earlier.
        let want = prefix(key);
        let fence = &self.fences.first;
        let mut stride = fence.partition_point(|f| *f < want).saturating_sub(1);
        let mut buf = [0u8; STRIDE * RECORD];
        while stride < fence.len() && fence[stride] <= want {
            let n = (self.count - stride * STRIDE).min(STRIDE);
            self.read(stride, &mut buf[..n * RECORD])?;
            let block = &buf[..n * RECORD];
            if let Some(r) = block.chunks_exact(RECORD).find(|r| r[..16] == *key) {
                return Ok(Some(record(r).1));
            }
            stride += 1;
        }
        Ok(None)
    }

    /// Fills `buf` with the records from this stride on, up to the end of another or of the file.
    fn read(&self, stride: usize, buf: &mut [u8]) -> io::Result<()> {
        let mut at = Sealed::CONTENT + (HEADER + stride * STRIDE * RECORD) as u64;
        let mut rest = &mut *buf;
        while !rest.is_empty() {
            match self.file.read_at(at, rest)? {
                0 => {
                    let why = "a key file ends too early";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
                n => {
                    at += n as u64;
                    rest = &mut rest[n..];
                }
            }
        }
        let mut read = buf.chunks(STRIDE * RECORD).zip(&self.fences.sums[stride..]);
        if read.all(|(records, sum)| checksum(records) == *sum) {
            return Ok(());
        }
        let name = self.id.file_name();
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{name} is damaged; it is rebuilt at the next start"),
        ))
    }
}

/// Iterates over a segment in order.
struct Cursor<'a> {
    of: &'a Segment,
    next: usize,
    buffer: Vec<u8>,
    at: usize,
}

impl<'a> Cursor<'a> {
    const fn new(of: &'a Segment) -> Self {
        Self {
            of,
            next: 0,
            buffer: Vec::new(),
            at: 0,
        }
    }

    fn next(&mut self) -> io::Result<Option<(KeyHash, u64)>> {
        if self.at == self.buffer.len() {
            let n = (self.of.count - self.next).min(PIECE);
            if n == 0 {
                return Ok(None);
            }
            self.buffer.resize(n * RECORD, 0);
            self.of.read(self.next / STRIDE, &mut self.buffer)?;
            self.next += n;
            self.at = 0;
        }
        let r = record(&self.buffer[self.at..self.at + RECORD]);
        self.at += RECORD;
        Ok(Some(r))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_files::SimDisk;

    fn key(n: u64) -> KeyHash {
        let mut k = [0; 16];
        k.copy_from_slice(&ron_crypto::hash::blake3(&n.to_be_bytes())[..16]);
        k
    }

    fn sorted(range: std::ops::Range<u64>) -> Vec<(KeyHash, u64)> {
        let mut all: Vec<_> = range.map(|n| (key(n), n)).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn keys_are_found_after_writing_merging_and_opening_again() {
        let disk = SimDisk::new();
        let dir = Path::new("/d");
        disk.create_dir_all(dir).unwrap();
        let write = |from: u64, to: u64| {
            Arc::new(Segment::write(&disk, dir, from, to, &sorted(from..to + 1)).unwrap())
        };
        let parts = [write(1, 999), write(1_000, 1_400), write(1_401, 1_500)];
        let all = Segment::merge(&disk, dir, &parts).unwrap();
        assert_eq!((all.id().from, all.id().to), (1, 1_500));
        let again = Segment::open(&disk, dir, all.id()).unwrap();
        for s in [&all, &again] {
            assert_eq!(s.len(), 1_500);
            for n in 1..=1_500 {
                assert_eq!(s.find(&key(n)).unwrap(), Some(n));
            }
            for n in 1_501..3_000 {
                assert_eq!(s.find(&key(n)).unwrap(), None);
            }
        }
        assert_eq!(parts[0].find(&key(1_000)).unwrap(), None);
    }

    #[test]
    fn neighbours_with_the_same_first_bytes_are_told_apart() {
        let disk = SimDisk::new();
        let dir = Path::new("/d");
        disk.create_dir_all(dir).unwrap();
        let same = |n: u64| {
            let mut k = [7u8; 16];
            k[8..].copy_from_slice(&n.to_be_bytes());
            k
        };
        let records: Vec<_> = (0..1_000).map(|n| (same(n), n)).collect();
        let s = Segment::write(&disk, dir, 0, 999, &records).unwrap();
        assert!((0..1_000).all(|n| s.find(&same(n)).unwrap() == Some(n)));
    }

    #[test]
    fn a_record_that_rots_while_the_file_is_open_is_not_missed() {
        let disk = SimDisk::new();
        let dir = Path::new("/d");
        disk.create_dir_all(dir).unwrap();
        let records = sorted(1..301);
        let s = Arc::new(Segment::write(&disk, dir, 1, 300, &records).unwrap());
        let reopened = Arc::new(Segment::open(&disk, dir, s.id()).unwrap());
        let other = Segment::write(&disk, dir, 301, 302, &sorted(301..303)).unwrap();
        let other = Arc::new(other);
        // In the record number 140, which is in the second 128.
        let at = Sealed::CONTENT as usize + HEADER + 140 * RECORD;
        disk.flip(&dir.join(s.id().file_name()), at as u64, 3);
        for s in [&s, &reopened] {
            let find = |n: usize| s.find(&records[n].0).map_err(|e| e.kind());
            assert_eq!(find(140), Err(io::ErrorKind::InvalidData));
            assert_eq!(find(130), Err(io::ErrorKind::InvalidData));
            assert_eq!(find(0), Ok(Some(records[0].1)));
            assert_eq!(find(299), Ok(Some(records[299].1)));
            let merged = Segment::merge(&disk, dir, &[s.clone(), other.clone()]);
            assert_eq!(merged.unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn a_changed_byte_is_refused() {
        let disk = SimDisk::new();
        let dir = Path::new("/d");
        disk.create_dir_all(dir).unwrap();
        let id = Segment::write(&disk, dir, 1, 9, &sorted(1..10))
            .unwrap()
            .id();
        let path = dir.join(id.file_name());
        let mut bytes = disk.peek(&path).unwrap();
        bytes[40] ^= 1;
        disk.poke(&path, Some(bytes));
        assert!(Segment::open(&disk, dir, id).is_err());
    }
}
