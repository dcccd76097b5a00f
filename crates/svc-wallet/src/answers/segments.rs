//! The files of the copy: JSON lines, and one row per entry with the end offset of its line, a
//! checksum, its time, and the hash of its key. Nothing is synced: entries lost in a power cut come
//! again from the feed, and a damaged line fails its checksum and is never served.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Maximum entries of one pair of files.
pub const ROWS: u64 = 16_384;
const ROW_BYTES: usize = 20;

/// Metadata of an entry, readable without its line. An entry without a line has no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// End offset of its line; the line starts where the previous one ends.
    pub end: u32,
    /// First 32 bits of the hash of its key; 0 without a key.
    pub hash: u32,
    /// First 32 bits of the BLAKE3 hash of its line.
    pub check: u32,
    /// Milliseconds since 1970.
    pub ts_ms: u64,
}

impl Place {
    fn to_bytes(self) -> [u8; ROW_BYTES] {
        let mut row = [0; ROW_BYTES];
        row[..4].copy_from_slice(&self.end.to_le_bytes());
        row[4..8].copy_from_slice(&self.hash.to_le_bytes());
        row[8..12].copy_from_slice(&self.check.to_le_bytes());
        row[12..].copy_from_slice(&self.ts_ms.to_le_bytes());
        row
    }

    fn from_bytes(row: &[u8]) -> Self {
        let word = |at: usize| {
            let four: [u8; 4] = row[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(four)
        };
        Self {
            end: word(0),
            hash: word(4),
            check: word(8),
            ts_ms: u64::from(word(12)) | u64::from(word(16)) << 32,
        }
    }
}

/// The first four bytes of a hash as a little-endian number.
pub fn part_of(hash: &[u8; 32]) -> u32 {
    u32::from_le_bytes(hash[..4].try_into().expect("four bytes"))
}

fn lines_of(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:020}.jsonl"))
}

fn rows_of(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:020}.rows"))
}

/// First sequences of the pairs in `dir`, ascending.
pub fn firsts(dir: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let first = name.to_str().and_then(|n| n.strip_suffix(".rows"));
        found.extend(first.and_then(|n| n.parse::<u64>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

/// The usable rows of a pair: stops at the first row that does not ascend or whose line is not
/// fully in the file.
pub fn places(dir: &Path, first: u64) -> io::Result<Vec<Place>> {
    let there = fs::metadata(lines_of(dir, first))?.len();
    let bytes = fs::read(rows_of(dir, first))?;
    let mut before = 0;
    let usable = bytes.chunks_exact(ROW_BYTES).map(Place::from_bytes);
    let usable = usable.take(ROWS as usize).take_while(|place| {
        let ascends = place.end >= before && u64::from(place.end) <= there && place.ts_ms != 0;
        before = place.end;
        ascends
    });
    Ok(usable.collect())
}

/// Removes a pair; a missing pair is not an error.
pub fn remove(dir: &Path, first: u64) -> io::Result<()> {
    for path in [rows_of(dir, first), lines_of(dir, first)] {
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// The line of entry `first + row`; `None` when the entry has no line or the checksum does not
/// match.
pub fn line(dir: &Path, first: u64, row: u64) -> io::Result<Option<Vec<u8>>> {
    match whole_line(dir, first, row) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        other => other,
    }
}

fn whole_line(dir: &Path, first: u64, row: u64) -> io::Result<Option<Vec<u8>>> {
    let rows = File::open(rows_of(dir, first))?;
    // Two rows in one read: a line starts where the previous one ends.
    let mut two = [0; 2 * ROW_BYTES];
    let (start, place) = if row == 0 {
        rows.read_exact_at(&mut two[..ROW_BYTES], 0)?;
        (0, Place::from_bytes(&two[..ROW_BYTES]))
    } else {
        rows.read_exact_at(&mut two, (row - 1) * ROW_BYTES as u64)?;
        let (before, this) = two.split_at(ROW_BYTES);
        (Place::from_bytes(before).end, Place::from_bytes(this))
    };
    let Some(len) = place.end.checked_sub(start).filter(|len| *len > 0) else {
        return Ok(None);
    };
    let lines = File::open(lines_of(dir, first))?;
    if lines.metadata()?.len() < u64::from(place.end) {
        return Ok(None);
    }
    let mut line = vec![0; len as usize];
    lines.read_exact_at(&mut line, start.into())?;
    let sound = part_of(&ron_crypto::hash::blake3(&line)) == place.check;
    Ok(sound.then_some(line))
}

/// The pair that is being written.
#[derive(Debug)]
pub struct Segment {
    /// Sequence of the first entry.
    pub first: u64,
    /// Entries in the pair, including those not yet flushed.
    pub rows: u64,
    lines: File,
    places: File,
    end: u32,
    new_lines: Vec<u8>,
    new_places: Vec<u8>,
}

impl Segment {
    /// Continues after the `rows` usable rows, the last of which ends at `end`; both files are
    /// truncated to that point.
    pub fn open(dir: &Path, first: u64, rows: u64, end: u32) -> io::Result<Self> {
        let file = |path: PathBuf, len: u64| {
            let mut options = OpenOptions::new();
            let file = options.create(true).append(true).open(path)?;
            file.set_len(len)?;
            Ok::<_, io::Error>(file)
        };
        Ok(Self {
            first,
            rows,
            lines: file(lines_of(dir, first), end.into())?,
            places: file(rows_of(dir, first), rows * ROW_BYTES as u64)?,
            end,
            new_lines: Vec::new(),
            new_places: Vec::new(),
        })
    }

    /// Adds the next entry to the buffers; `write` appends its JSON line.
    pub fn add<E>(
        &mut self,
        hash: u32,
        ts_ms: u64,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let from = self.new_lines.len();
        write(&mut self.new_lines)?;
        let line = &self.new_lines[from..];
        self.end += line.len() as u32;
        let place = Place {
            end: self.end,
            hash,
            check: part_of(&ron_crypto::hash::blake3(line)),
            ts_ms,
        };
        self.new_places.extend_from_slice(&place.to_bytes());
        self.rows += 1;
        Ok(())
    }

    /// Writes the buffers to the files. Lines go first, so that no row refers to bytes that are not
    /// there.
    pub fn flush(&mut self) -> io::Result<()> {
        self.lines.write_all(&self.new_lines)?;
        self.places.write_all(&self.new_places)?;
        self.new_lines.clear();
        self.new_places.clear();
        Ok(())
    }
}
