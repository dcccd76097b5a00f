//! Segments in the archive: the compressed file, and what stands for it in the log's directory. The callers read a segment by
//! [`super::segments::open`], wherever it is.
//!
//! ```text
//! stand-in, 148 bytes                          compressed file
//!   0 header of the segment (128)                zstd frames, each of 256 KiB of the segment (the last one of the rest)
//! 128 "RONTLARC"                                 seek table: a skippable frame, as in zstd's seekable format 0.1.0
//! 136 u64 length of the segment                    0 u32 0x184D2A5E, 4 u32 bytes that follow
//! 144 u32 crc(salt, bytes 0..144)                  8 per frame: u32 compressed length, u32 length
//!                                                  u32 number of frames, u8 0, u32 0x8F92EAB1
//! ```
//!
//! Every zstd program makes the segment of the compressed file, byte by byte.

use std::io::{self, ErrorKind, Read as _, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_files::{Disk, DiskFile};
use ron_kernel::Snapshot;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::layout::{SEGMENT_HEADER, Salt, segment_name, u32_at, u64_at};
use super::meta::Meta;

const STAND_IN: usize = SEGMENT_HEADER + 20;
const MAGIC: &[u8; 8] = b"RONTLARC";
/// Bytes of a segment in one frame, which is what a read decompresses at least.
const FRAME: u64 = 256 * 1024;
/// Maximum bytes of a compressed frame: content that does not compress is stored, with a few bytes per block.
const PACKED_MAX: u64 = FRAME + 4096;
const SKIPPABLE: u32 = 0x184D_2A5E;
const SEEKABLE: u32 = 0x8F92_EAB1;
const TABLE_START: u64 = 8;
const TABLE_ENTRY: u64 = 8;
const TABLE_END: u64 = 9;

/// What is left in the log's directory of a segment in the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StandIn {
    /// The header of the segment.
    pub head: [u8; SEGMENT_HEADER],
    /// Length of the segment.
    pub len: u64,
}

impl StandIn {
    pub fn encode(&self, salt: &Salt) -> [u8; STAND_IN] {
        let mut bytes = [0; STAND_IN];
        bytes[..SEGMENT_HEADER].copy_from_slice(&self.head);
        bytes[SEGMENT_HEADER..136].copy_from_slice(MAGIC);
        bytes[136..144].copy_from_slice(&self.len.to_le_bytes());
        let crc = salt.crc(&bytes[..144]);
        bytes[144..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a file of the log; `None` when it is a segment.
    pub fn read(file: &dyn DiskFile, salt: &Salt) -> io::Result<Option<Self>> {
        if file.len()? != STAND_IN as u64 {
            return Ok(None);
        }
        let mut bytes = [0; STAND_IN];
        let got = file.read_at(0, &mut bytes)?;
        // In a segment a batch begins here.
        if got < STAND_IN || &bytes[SEGMENT_HEADER..136] != MAGIC {
            return Ok(None);
        }
        if salt.crc(&bytes[..144]) != u32_at(&bytes, 144) {
            return Err(damaged("what stands for the archived segment is damaged"));
        }
        let (head, _) = bytes.split_first_chunk().expect("a header is shorter");
        Ok(Some(Self {
            head: *head,
            len: u64_at(&bytes, 136),
        }))
    }
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

/// `00000012.seg.zst`
pub(crate) fn archived_name(number: u64) -> String {
    format!("{}.zst", segment_name(number))
}

/// Where the compressed file of a segment may be: beside the log, as in a backup, or in its archive.
pub(crate) fn places(dir: &Path, meta: &Meta, number: u64) -> Vec<PathBuf> {
    let name = archived_name(number);
    let archive = meta.archive_in(dir).map(|archive| archive.join(&name));
    [Some(dir.join(&name)), archive]
        .into_iter()
        .flatten()
        .collect()
}

/// The path of the compressed file of a segment.
pub(crate) fn find(disk: &dyn Disk, dir: &Path, meta: &Meta, number: u64) -> io::Result<PathBuf> {
    let places = places(dir, meta, number);
    for path in &places {
        if disk.exists(path)? {
            return Ok(path.clone());
        }
    }
    let name = segment_name(number);
    let last = places.last().expect("at least one").display();
    // Not `NotFound`, by which a reader knows the end of the log.
    Err(io::Error::other(format!(
        "{name} is archived, and {last} is not there; mount the archive, or copy the file to {}",
        dir.display()
    )))
}

/// A segment in the archive, to be read like the segment itself. Memory: 8 bytes per frame and the frame that was read last.
pub(crate) struct Archived {
    file: Arc<dyn DiskFile>,
    len: u64,
    /// Where each frame begins in the file, and where the last one ends.
    starts: Vec<u64>,
    last: Snapshot<Option<(usize, Vec<u8>)>>,
}

impl std::fmt::Debug for Archived {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Archived")
            .field("file", &self.file)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Archived {
    /// Opens the compressed file of a segment of `len` bytes.
    pub fn open(file: Arc<dyn DiskFile>, len: u64) -> io::Result<Self> {
        let wrong = || damaged("the archived segment is damaged, cut, or another one");
        let frames = len.div_ceil(FRAME);
        let table_len = TABLE_START + frames * TABLE_ENTRY + TABLE_END;
        let packed = file.len()?.checked_sub(table_len).ok_or_else(wrong)?;
        let mut table = vec![0; table_len as usize];
        if file.read_at(packed, &mut table)? < table.len() {
            return Err(wrong());
        }
        let mut starts = vec![0];
        let mut left = len;
        let entries = &table[TABLE_START as usize..table.len() - TABLE_END as usize];
        for entry in entries.chunks_exact(TABLE_ENTRY as usize) {
            let (packed, content) = (u64::from(u32_at(entry, 0)), u64::from(u32_at(entry, 4)));
            if content != left.min(FRAME) || packed > PACKED_MAX {
                return Err(wrong());
            }
            left -= content;
            starts.push(starts[starts.len() - 1] + packed);
        }
        if starts[starts.len() - 1] != packed || table != seek_table(&starts, len) {
            return Err(wrong());
        }
        Ok(Self {
            file,
            len,
            starts,
            last: Snapshot::new(None),
        })
    }

    /// The content of a frame, which the file must have whole.
    fn frame(&self, at: usize) -> io::Result<Vec<u8>> {
        let (from, to) = (self.starts[at], self.starts[at + 1]);
        let mut packed = vec![0; (to - from) as usize];
        if self.file.read_at(from, &mut packed)? < packed.len() {
            return Err(damaged("the archived segment was cut"));
        }
        let wanted = FRAME.min(self.len - at as u64 * FRAME) as usize;
        // A panic of the decoder counts as damage of the file.
        let content = catch_unwind(AssertUnwindSafe(|| unpack(&packed, wanted)));
        content
            .unwrap_or(None)
            .ok_or_else(|| damaged("a frame of the archived segment is damaged"))
    }

    /// Copies from the frame that holds `offset`; the number of bytes.
    fn copy(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let at = (offset / FRAME) as usize;
        let from = (offset % FRAME) as usize;
        let copy = |content: &[u8], buf: &mut [u8]| {
            let count = buf.len().min(content.len() - from);
            buf[..count].copy_from_slice(&content[from..from + count]);
            count
        };
        let last = self.last.load();
        if let Some((held, content)) = &*last
            && *held == at
        {
            return Ok(copy(content, buf));
        }
        let content = self.frame(at)?;
        let count = copy(&content, buf);
        self.last.store(Some((at, content)));
        Ok(count)
    }
}

/// Decompresses exactly `wanted` bytes.
fn unpack(packed: &[u8], wanted: usize) -> Option<Vec<u8>> {
    let decoder = StreamingDecoder::new_with_max_window_size(packed, FRAME);
    let mut decoder = decoder.ok()?;
    let mut content = Vec::with_capacity(wanted);
    // One byte more is enough to know that the frame is another one.
    let most = wanted as u64 + 1;
    (&mut decoder).take(most).read_to_end(&mut content).ok()?;
    let stated = decoder.decoder.get_checksum_from_data();
    let holds = stated.is_none() || stated == decoder.decoder.get_calculated_checksum();
    (holds && content.len() == wanted && decoder.get_ref().is_empty()).then_some(content)
}

fn read_only<T>() -> io::Result<T> {
    Err(io::Error::new(
        ErrorKind::Unsupported,
        "an archived segment is not written to",
    ))
}

impl DiskFile for Archived {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < buf.len() && offset + (got as u64) < self.len {
            got += self.copy(offset + got as u64, &mut buf[got..])?;
        }
        Ok(got)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        read_only()
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        read_only()
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the compressed file of a segment; its length. `None` when `stop` returned true.
pub(crate) fn pack(
    segment: &dyn DiskFile,
    len: u64,
    out: &mut dyn Write,
    stop: &dyn Fn() -> bool,
) -> io::Result<Option<u64>> {
    let mut starts = vec![0];
    let mut piece = Vec::new();
    let mut at = 0;
    while at < len {
        if stop() {
            return Ok(None);
        }
        piece.resize(FRAME.min(len - at) as usize, 0);
        if segment.read_at(at, &mut piece)? < piece.len() {
            return Err(damaged("the segment shrank while it was read"));
        }
        let packed = compress_to_vec(&*piece, CompressionLevel::Fastest);
        out.write_all(&packed)?;
        starts.push(starts[starts.len() - 1] + packed.len() as u64);
        at += piece.len() as u64;
    }
    let table = seek_table(&starts, len);
    out.write_all(&table)?;
    Ok(Some(starts[starts.len() - 1] + table.len() as u64))
}

fn seek_table(starts: &[u64], len: u64) -> Vec<u8> {
    let frames = starts.len() as u64 - 1;
    let follow = frames * TABLE_ENTRY + TABLE_END;
    let mut table = Vec::with_capacity((TABLE_START + follow) as usize);
    table.extend_from_slice(&SKIPPABLE.to_le_bytes());
    table.extend_from_slice(&(follow as u32).to_le_bytes());
    let mut left = len;
    for ends in starts.windows(2) {
        let content = left.min(FRAME);
        table.extend_from_slice(&((ends[1] - ends[0]) as u32).to_le_bytes());
        table.extend_from_slice(&(content as u32).to_le_bytes());
        left -= content;
    }
    table.extend_from_slice(&(frames as u32).to_le_bytes());
    table.push(0);
    table.extend_from_slice(&SEEKABLE.to_le_bytes());
    table
}

/// Whether the two files have the same first `len` bytes. `None` when `stop` returned true.
pub(crate) fn same(
    one: &dyn DiskFile,
    other: &dyn DiskFile,
    len: u64,
    stop: &dyn Fn() -> bool,
) -> io::Result<Option<bool>> {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < len {
        if stop() {
            return Ok(None);
        }
        let count = FRAME.min(len - at) as usize;
        a.resize(count, 0);
        b.resize(count, 0);
        let whole = one.read_at(at, &mut a)? == count && other.read_at(at, &mut b)? == count;
        if !whole || a != b {
            return Ok(Some(false));
        }
        at += count as u64;
    }
    Ok(Some(true))
}

#[cfg(test)]
mod tests {
    use ron_files::MemoryDisk;

    use super::*;

    /// Content of which every other piece of 100 KiB compresses.
    fn content(len: usize) -> Vec<u8> {
        let mut state = 7_u64;
        let mut next = |at: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            if (at / 102_400).is_multiple_of(2) {
                (state >> 56) as u8
            } else {
                (at % 50) as u8
            }
        };
        (0..len).map(&mut next).collect()
    }

    fn packed(disk: &MemoryDisk, bytes: &[u8]) -> Vec<u8> {
        let segment = disk.create(Path::new("/s")).expect("made");
        segment.write_at(0, bytes).expect("written");
        let mut out = Vec::new();
        let len = pack(&*segment, bytes.len() as u64, &mut out, &|| false).expect("packed");
        assert_eq!(len, Some(out.len() as u64));
        out
    }

    fn opened(disk: &MemoryDisk, packed: &[u8], len: usize) -> io::Result<Archived> {
        let file = disk.create(Path::new("/z")).expect("made");
        file.write_at(0, packed).expect("written");
        Archived::open(file, len as u64)
    }

    #[test]
    fn every_part_of_an_archived_segment_is_read_as_it_was() {
        let disk = MemoryDisk::new();
        for len in [1, FRAME as usize, FRAME as usize + 1, 700_001] {
            let bytes = content(len);
            let archived = opened(&disk, &packed(&disk, &bytes), len).expect("opens");
            for (from, count) in [(0, len), (len - 1, 9), (len / 2, 300_000), (len, 1)] {
                let mut buf = vec![0; count];
                let got = archived.read_at(from as u64, &mut buf).expect("read");
                assert_eq!(buf[..got], bytes[from..len.min(from + count)], "{len}");
            }
            assert_eq!(archived.len().expect("known"), len as u64);
            assert!(archived.write_at(0, b"x").is_err());
        }
    }

    #[test]
    fn damage_of_an_archived_segment_is_noticed() {
        let disk = MemoryDisk::new();
        let bytes = content(300_000);
        let whole = packed(&disk, &bytes);
        let read = |packed: &[u8], len: usize| -> io::Result<Vec<u8>> {
            let archived = opened(&disk, packed, len)?;
            let mut buf = vec![0; len];
            archived.read_at(0, &mut buf)?;
            Ok(buf)
        };
        assert_eq!(read(&whole, bytes.len()).expect("whole"), bytes);
        for at in (0..whole.len())
            .step_by(997)
            .chain(whole.len() - 60..whole.len())
        {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            // Some bits of a frame's header mean nothing.
            assert!(
                read(&changed, bytes.len()).is_err() || at < 16,
                "byte {at} of {}",
                whole.len()
            );
        }
        for cut in [0, 10, whole.len() / 2, whole.len() - 1] {
            assert!(read(&whole[..cut], bytes.len()).is_err(), "cut at {cut}");
        }
        assert!(read(&whole, bytes.len() - 1).is_err(), "of another length");
        let stopped = pack(
            &*disk.open_read(Path::new("/s")).expect("there"),
            bytes.len() as u64,
            &mut Vec::new(),
            &|| true,
        );
        assert_eq!(stopped.expect("no error"), None);
    }

    #[test]
    fn a_stand_in_round_trips_and_detects_every_changed_byte() {
        let (disk, salt) = (MemoryDisk::new(), Salt::new([3; 16]));
        let stand_in = StandIn {
            head: [5; SEGMENT_HEADER],
            len: 70_000,
        };
        let read = |bytes: &[u8]| {
            let file = disk.create(Path::new("/s")).expect("made");
            file.write_at(0, bytes).expect("written");
            StandIn::read(&*file, &salt)
        };
        let bytes = stand_in.encode(&salt);
        assert_eq!(read(&bytes).expect("whole"), Some(stand_in.clone()));
        assert_eq!(read(&bytes[..100]).expect("no fault"), None);
        for at in 0..bytes.len() {
            let mut changed = bytes;
            changed[at] ^= 0x40;
            assert_ne!(
                read(&changed).ok().flatten(),
                Some(stand_in.clone()),
                "byte {at}"
            );
        }
    }
}
