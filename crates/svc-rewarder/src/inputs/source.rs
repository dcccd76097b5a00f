//! Bytes that may be larger than memory: a buffer, or a file that is read by position.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_files::{Disk, DiskFile};

/// Permissions of snapshots and artifacts, which auditors read under their own names.
pub const READABLE: u32 = 0o644;
/// Bytes read at a time when a whole source is hashed.
const STEP: usize = 4 << 20;

/// A buffer or an open file. A file must not change while it is open: everything here is written
/// once under a temporary name and never again.
#[derive(Debug)]
pub enum Source {
    Memory(Vec<u8>),
    File {
        file: Arc<dyn DiskFile>,
        path: PathBuf,
        /// Length when it was opened, in bytes.
        len: u64,
    },
}

impl Source {
    pub fn open(disk: &dyn Disk, path: &Path) -> io::Result<Self> {
        let file = disk.open_read(path)?;
        let (len, path) = (file.len()?, path.to_owned());
        Ok(Self::File { file, path, len })
    }

    pub const fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File { len, .. } => *len,
        }
    }

    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads bytes from `offset` on into the front of `into` and returns how many; fewer only at the
    /// end.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Memory(bytes) => bytes.read_at(offset, into),
            Self::File { file, .. } => file.read_at(offset, into),
        }
    }

    /// `len` bytes from `offset` on; an error if there are fewer.
    pub fn at(&self, offset: u64, len: usize) -> io::Result<Cow<'_, [u8]>> {
        match self {
            Self::Memory(bytes) => {
                let from = usize::try_from(offset).ok();
                let part = from.and_then(|from| bytes.get(from..from.checked_add(len)?));
                part.map(Cow::Borrowed)
                    .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
            }
            Self::File { file, .. } => {
                let mut bytes = vec![0; len];
                if file.read_at(offset, &mut bytes)? < len {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(Cow::Owned(bytes))
            }
        }
    }

    /// The whole source, read into memory; for sources known to be small.
    pub fn whole(&self) -> io::Result<Cow<'_, [u8]>> {
        let len = usize::try_from(self.len()).map_err(io::Error::other)?;
        self.at(0, len)
    }

    /// Passes all bytes from `offset` on to `see`, piece by piece.
    pub fn each(&self, offset: u64, mut see: impl FnMut(&[u8])) -> io::Result<()> {
        let mut at = offset;
        while at < self.len() {
            let step = usize::try_from(self.len() - at).unwrap_or(STEP).min(STEP);
            see(&self.at(at, step)?);
            at += step as u64;
        }
        Ok(())
    }

    /// Makes a durable copy at `target`, which must not exist: a hard link where the file system
    /// supports it. The caller syncs the directory.
    pub fn place(&self, disk: &dyn Disk, target: &Path) -> io::Result<()> {
        match self {
            Self::Memory(bytes) => put(disk, target, bytes),
            Self::File { path, .. } if disk.link(path, target).is_err() => {
                disk.copy(path, target, READABLE)
            }
            Self::File { file, .. } => file.sync_data(),
        }
    }
}

/// Writes a file durably, but for its name.
pub fn put(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = disk.create_with_mode(path, READABLE)?;
    file.write_at(0, bytes)?;
    file.sync_data()
}

/// Bytes that any number of threads read by position.
pub trait Positioned: Send + Sync {
    /// Length in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Reads bytes from `offset` on into the front of `into` and returns how many; 0 only at the
    /// end.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
}

impl Positioned for File {
    fn size(&self) -> io::Result<u64> {
        self.metadata().map(|meta| meta.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, into, offset)
    }
}

impl Positioned for Vec<u8> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(self.len());
        let count = into.len().min(self.len() - from);
        into[..count].copy_from_slice(&self[from..from + count]);
        Ok(count)
    }
}

/// Where bytes are written: the head, which is known last, and then the rest in order.
#[derive(Debug)]
pub enum Target {
    Memory(Vec<u8>),
    /// Every append is a write, so callers append large pieces.
    File {
        path: PathBuf,
        file: Arc<dyn DiskFile>,
        len: u64,
    },
    /// Written nowhere: the caller only counts and hashes.
    Nowhere,
}

impl Target {
    /// Creates a new, empty file; its directory must exist.
    pub fn file(disk: &dyn Disk, path: &Path) -> io::Result<Self> {
        Ok(Self::File {
            path: path.to_owned(),
            file: disk.create_with_mode(path, READABLE)?,
            len: 0,
        })
    }

    /// Discards what was written and reserves `head` bytes for the head.
    pub fn start(&mut self, head: usize) -> io::Result<()> {
        match self {
            Self::Memory(bytes) => {
                bytes.clear();
                bytes.resize(head, 0);
            }
            Self::File { file, len, .. } => {
                file.set_len(0)?;
                *len = head as u64;
            }
            Self::Nowhere => {}
        }
        Ok(())
    }

    /// Appends to what was written.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Memory(all) => all.extend_from_slice(bytes),
            Self::File { file, len, .. } => {
                file.write_at(*len, bytes)?;
                *len += bytes.len() as u64;
            }
            Self::Nowhere => {}
        }
        Ok(())
    }

    /// Writes the head and makes a file durable. `None` for [`Target::Nowhere`].
    pub fn finish(self, head: &[u8]) -> io::Result<Option<Source>> {
        match self {
            Self::Memory(mut bytes) => {
                bytes[..head.len()].copy_from_slice(head);
                Ok(Some(Source::Memory(bytes)))
            }
            Self::File { path, file, len } => {
                file.write_at(0, head)?;
                file.sync_data()?;
                Ok(Some(Source::File { file, path, len }))
            }
            Self::Nowhere => Ok(None),
        }
    }
}
