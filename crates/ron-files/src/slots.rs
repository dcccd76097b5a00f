//! Slot files: slots of one size that are written by position and never flushed. They hold copies,
//! and hints whose loss is harmless: after a power failure any slot may be missing or torn.
//!
//! ```text
//! offset                 bytes   field
//! n x (SIZE + 4)         SIZE    content of slot n
//! n x (SIZE + 4) + SIZE  4       CRC-32 over kind and format (8), id (8), n (8, big-endian), content
//! ```
//!
//! There is no start: each slot stands for itself, and its checksum covers the kind of the file. A slot of
//! zeros is empty.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, DiskFile, read_all};
use crate::kind::{FileError, Kind};

const CHECK: usize = 4;

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot<const SIZE: usize> {
    Empty,
    Sound([u8; SIZE]),
    Damaged,
}

/// An open slot file. Any number of threads may use it, as long as no two write the same slot.
#[derive(Debug)]
pub struct SlotFile<const SIZE: usize> {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    kind: Kind,
    /// The file's number among its neighbours.
    id: u64,
}

impl<const SIZE: usize> SlotFile<SIZE> {
    /// Bytes of a slot in the file.
    pub const SLOT: usize = SIZE + CHECK;

    /// Opens an existing file; `None` when there is none.
    pub fn open(
        disk: &dyn Disk,
        path: &Path,
        kind: Kind,
        id: u64,
    ) -> Result<Option<Self>, FileError> {
        match disk.open_read(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            opened => Self::of(opened, path, kind, id).map(Some),
        }
    }

    /// Opens a file for writing, and creates it when there is none.
    pub fn open_or_create(
        disk: &dyn Disk,
        path: &Path,
        kind: Kind,
        id: u64,
    ) -> Result<Self, FileError> {
        Self::of(disk.open_or_create(path), path, kind, id)
    }

    fn of(
        opened: std::io::Result<Arc<dyn DiskFile>>,
        path: &Path,
        kind: Kind,
        id: u64,
    ) -> Result<Self, FileError> {
        Ok(Self {
            file: opened.map_err(FileError::io(path))?,
            path: path.to_owned(),
            kind,
            id,
        })
    }

    fn check(&self, slot: u64, content: &[u8; SIZE]) -> [u8; CHECK] {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&self.kind.start());
        crc.update(&self.id.to_be_bytes());
        crc.update(&slot.to_be_bytes());
        crc.update(content);
        crc.finalize().to_be_bytes()
    }

    fn slot(&self, number: u64, raw: &[u8]) -> Slot<SIZE> {
        if raw.iter().all(|byte| *byte == 0) {
            return Slot::Empty;
        }
        let sound = |content: &[u8; SIZE]| raw[SIZE..] == self.check(number, content);
        match raw.first_chunk() {
            Some(content) if sound(content) => Slot::Sound(*content),
            _ => Slot::Damaged,
        }
    }

    /// Writes consecutive slots from number `first` on, with one write. A content of zeros is not allowed: it would read as
    /// an empty slot's if its checksum were zero too.
    pub fn write(
        &self,
        first: u64,
        contents: impl Iterator<Item = [u8; SIZE]>,
    ) -> Result<(), FileError> {
        let mut raw = Vec::with_capacity(contents.size_hint().0 * Self::SLOT);
        for (content, number) in contents.zip(first..) {
            raw.extend_from_slice(&content);
            raw.extend_from_slice(&self.check(number, &content));
        }
        let written = self.file.write_at(Self::offset(first), &raw);
        written.map_err(FileError::io(&self.path))
    }

    /// Reads `COUNT` slots from number `first` on; slots beyond the end of the file are empty.
    pub fn read<const COUNT: usize>(&self, first: u64) -> Result<[Slot<SIZE>; COUNT], FileError> {
        let mut raw = vec![0; COUNT * Self::SLOT];
        let got = self.file.read_at(Self::offset(first), &mut raw);
        let got = got.map_err(FileError::io(&self.path))?;
        raw[got..].fill(0);
        let mut slots = [Slot::Empty; COUNT];
        for ((slot, number), raw) in slots.iter_mut().zip(first..).zip(raw.chunks(Self::SLOT)) {
            *slot = self.slot(number, raw);
        }
        Ok(slots)
    }

    /// Number of slots up to the end of the file, with one that is not whole.
    pub fn slots(&self) -> Result<u64, FileError> {
        let bytes = self.file.len().map_err(FileError::io(&self.path))?;
        Ok(bytes.div_ceil(Self::SLOT as u64))
    }

    /// Reads the slots from the first to the last that the file has.
    pub fn all(&self) -> Result<Vec<Slot<SIZE>>, FileError> {
        let raw = read_all(&*self.file).map_err(FileError::io(&self.path))?;
        let slots = raw.chunks(Self::SLOT).zip(0..);
        Ok(slots.map(|(raw, number)| self.slot(number, raw)).collect())
    }

    /// The sound slots before the first that is not, of a file that is written in order. A power cut may leave sound slots
    /// behind torn ones, because the pages of a file reach the disk in any order; the owner cuts the file to this front
    /// and writes the rest again.
    pub fn sound_front(&self) -> Result<Vec<[u8; SIZE]>, FileError> {
        let sound = |slot| match slot {
            Slot::Sound(content) => Some(content),
            Slot::Empty | Slot::Damaged => None,
        };
        Ok(self.all()?.into_iter().map_while(sound).collect())
    }

    /// Cuts the file to its first `slots` slots.
    pub fn cut(&self, slots: u64) -> Result<(), FileError> {
        let cut = self.file.set_len(Self::offset(slots));
        cut.map_err(FileError::io(&self.path))
    }

    /// The error for a slot that is not as it was written.
    pub fn damaged(&self, slot: u64) -> FileError {
        FileError::damaged(
            &self.path,
            Self::offset(slot),
            "a slot does not match its checksum",
        )
    }

    const fn offset(slot: u64) -> u64 {
        slot * Self::SLOT as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{CrashMode, SimDisk};

    const KIND: Kind = Kind {
        name: b"TEST",
        version: 1,
    };

    fn file(disk: &SimDisk, id: u64) -> SlotFile<6> {
        SlotFile::open_or_create(disk, Path::new("/d/slots"), KIND, id).expect("opens")
    }

    fn content(n: u64) -> [u8; 6] {
        [1, 2, 3, 4, 5, n as u8]
    }

    #[test]
    fn every_flipped_byte_damages_its_slot_alone() {
        let disk = SimDisk::new();
        let path = Path::new("/d/slots");
        assert!(
            SlotFile::<6>::open(&disk, path, KIND, 7)
                .expect("no error")
                .is_none()
        );
        file(&disk, 7)
            .write(0, (0..3).map(content))
            .expect("written");
        file(&disk, 7)
            .write(5, (5..7).map(content))
            .expect("written");
        let good = file(&disk, 7).all().expect("reads");
        let sound = |n| Slot::Sound(content(n));
        let empty = Slot::Empty;
        assert_eq!(
            good,
            [
                sound(0),
                sound(1),
                sound(2),
                empty,
                empty,
                sound(5),
                sound(6)
            ]
        );
        assert_eq!(file(&disk, 7).read(6).expect("reads"), [sound(6), empty]);
        assert_eq!(file(&disk, 7).slots().expect("reads"), 7);
        let bytes = disk.peek(path).expect("there");
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            disk.poke(path, Some(bad));
            let mut want = good.clone();
            want[at / 10] = Slot::Damaged;
            assert_eq!(file(&disk, 7).all().expect("reads"), want, "{at}");
        }
        let other = file(&disk, 8).all().expect("reads");
        assert!(
            !other.iter().any(|slot| matches!(slot, Slot::Sound(_))),
            "another file's"
        );
    }

    #[test]
    fn a_file_is_cut_at_its_first_torn_slot_and_goes_on_from_there() {
        let check = |raw: &dyn Fn(&SimDisk), sound: u64| {
            let disk = SimDisk::new();
            file(&disk, 7)
                .write(0, (0..200).map(content))
                .expect("written");
            raw(&disk);
            let front = file(&disk, 7).sound_front().expect("read");
            assert!(front.into_iter().eq((0..sound).map(content)));
            file(&disk, 7).cut(sound).expect("cut");
            file(&disk, 7)
                .write(sound, (sound..200).map(content))
                .expect("written");
            assert_eq!(file(&disk, 7).sound_front().expect("whole").len(), 200);
        };
        for torn in 0..40 {
            check(
                &|disk| disk.crash(CrashMode::TearLast(torn)),
                torn as u64 / 10,
            );
        }
        // 512 bytes in the middle never reached the disk; there are sound slots behind them.
        check(&|disk| disk.crash(CrashMode::HoleInLast(0)), 0);
        check(&|disk| disk.crash(CrashMode::HoleInLast(512)), 51);
        let flip = |disk: &SimDisk| {
            let raw = disk.open_write(Path::new("/d/slots")).expect("opens");
            raw.write_at(13, &[9]).expect("written");
        };
        check(&flip, 1);
    }
}
