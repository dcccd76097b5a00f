//! The files of the copy: JSON lines, and one row per entry with the end offset of its line, a
//! checksum, its time, and the hash of its key. Nothing is flushed to the disk: entries lost in a power
//! cut come again from the feed, and a damaged line fails its checksum and is never served.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ron_files::{Dir, DiskFile, FileError, Kind, Slot, SlotFile};

/// Maximum entries of one pair of files.
pub const ROWS: u64 = 16_384;
/// The rows file: its slots are [`Place`]s, its id the first sequence.
const KIND: Kind = Kind {
    name: b"ROWS",
    version: 1,
};
const ROW_BYTES: usize = 20;

type Rows = SlotFile<ROW_BYTES>;

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
        row[..4].copy_from_slice(&self.end.to_be_bytes());
        row[4..8].copy_from_slice(&self.hash.to_be_bytes());
        row[8..12].copy_from_slice(&self.check.to_be_bytes());
        row[12..].copy_from_slice(&self.ts_ms.to_be_bytes());
        row
    }

    fn from_bytes(row: [u8; ROW_BYTES]) -> Self {
        let word = |at: usize| {
            let four: [u8; 4] = row[at..at + 4].try_into().expect("four bytes");
            u32::from_be_bytes(four)
        };
        Self {
            end: word(0),
            hash: word(4),
            check: word(8),
            ts_ms: u64::from(word(12)) << 32 | u64::from(word(16)),
        }
    }
}

/// The first four bytes of a hash as a number.
pub fn part_of(hash: &[u8; 32]) -> u32 {
    u32::from_be_bytes(hash[..4].try_into().expect("four bytes"))
}

fn lines_of(dir: &Dir, first: u64) -> PathBuf {
    dir.file(&format!("{first:020}.jsonl"))
}

fn rows_of(dir: &Dir, first: u64) -> PathBuf {
    dir.file(&format!("{first:020}.rows"))
}

/// First sequences of the pairs in `dir`, ascending.
pub fn firsts(dir: &Dir) -> io::Result<Vec<u64>> {
    let names = dir.list()?;
    let rows = names.iter().filter_map(|name| name.strip_suffix(".rows"));
    // The names have leading zeros, so their order is that of the sequences.
    Ok(rows.filter_map(|first| first.parse().ok()).collect())
}

/// The usable rows of a pair: those before the first that is torn or whose line is not fully in the file.
pub fn places(dir: &Dir, first: u64) -> Result<Vec<Place>, FileError> {
    let Some(rows) = Rows::open(&**dir.disk(), &rows_of(dir, first), KIND, first)? else {
        return Ok(Vec::new());
    };
    let lines = lines_of(dir, first);
    let there = dir.disk().open_read(&lines).and_then(|lines| lines.len());
    let there = there.map_err(FileError::io(&lines))?;
    let places = rows.sound_front()?.into_iter().map(Place::from_bytes);
    let places = places.take(ROWS as usize);
    Ok(places
        .take_while(|place| u64::from(place.end) <= there)
        .collect())
}

/// Removes a pair; a missing pair is not an error.
pub fn remove(dir: &Dir, first: u64) -> io::Result<()> {
    for path in [rows_of(dir, first), lines_of(dir, first)] {
        match dir.disk().remove(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// The line of entry `first + row`; `None` when the pair was removed, when the entry has no line, or when a checksum does not
/// match.
pub fn line(dir: &Dir, first: u64, row: u64) -> Result<Option<Vec<u8>>, FileError> {
    let Some(rows) = Rows::open(&**dir.disk(), &rows_of(dir, first), KIND, first)? else {
        return Ok(None);
    };
    // Two rows in one read: a line starts where the previous one ends.
    let (start, place) = match row.checked_sub(1) {
        None => (Some(0), rows.read::<1>(0)?.map(sound)[0]),
        Some(before) => {
            let [before, this] = rows.read::<2>(before)?.map(sound);
            (before.map(|before| before.end), this)
        }
    };
    let (Some(start), Some(place)) = (start, place) else {
        return Ok(None);
    };
    let Some(len) = place.end.checked_sub(start).filter(|len| *len > 0) else {
        return Ok(None);
    };
    let path = lines_of(dir, first);
    let lines = match dir.disk().open_read(&path) {
        // The writer removes the rows first, then the lines.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        lines => lines.map_err(FileError::io(&path))?,
    };
    if lines.len().map_err(FileError::io(&path))? < u64::from(place.end) {
        return Ok(None);
    }
    let mut line = vec![0; len as usize];
    let got = lines.read_at(start.into(), &mut line);
    line.truncate(got.map_err(FileError::io(&path))?);
    let whole = part_of(&ron_crypto::hash::blake3(&line)) == place.check;
    Ok(whole.then_some(line))
}

fn sound(slot: Slot<ROW_BYTES>) -> Option<Place> {
    match slot {
        Slot::Sound(row) => Some(Place::from_bytes(row)),
        Slot::Empty | Slot::Damaged => None,
    }
}

/// The pair that is being written.
#[derive(Debug)]
pub struct Segment {
    /// Sequence of the first entry.
    pub first: u64,
    /// Entries in the pair, including those not yet flushed.
    pub rows: u64,
    lines: Arc<dyn DiskFile>,
    places: Rows,
    /// End of the lines, and number of rows, in the files.
    flushed: (u32, u64),
    end: u32,
    new_lines: Vec<u8>,
    new_places: Vec<Place>,
}

impl Segment {
    /// Continues after the `rows` usable rows, the last of which ends at `end`; both files are
    /// truncated to that point.
    pub fn open(dir: &Dir, first: u64, rows: u64, end: u32) -> Result<Self, FileError> {
        let path = lines_of(dir, first);
        let lines = dir.disk().open_or_create(&path).and_then(|lines| {
            lines.set_len(end.into())?;
            Ok(lines)
        });
        let places = Rows::open_or_create(&**dir.disk(), &rows_of(dir, first), KIND, first)?;
        places.cut(rows)?;
        Ok(Self {
            first,
            rows,
            lines: lines.map_err(FileError::io(&path))?,
            places,
            flushed: (end, rows),
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
        self.new_places.push(place);
        self.rows += 1;
        Ok(())
    }

    /// Writes the buffers to the files. Lines go first, so that no row refers to bytes that are not
    /// there.
    pub fn flush(&mut self, dir: &Dir) -> Result<(), FileError> {
        let (end, rows) = self.flushed;
        let written = self.lines.write_at(end.into(), &self.new_lines);
        written.map_err(FileError::io(&lines_of(dir, self.first)))?;
        let places = self.new_places.iter().map(|place| place.to_bytes());
        self.places.write(rows, places)?;
        self.flushed = (self.end, self.rows);
        self.new_lines.clear();
        self.new_places.clear();
        Ok(())
    }
}
