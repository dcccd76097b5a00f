//! Bytes that may be larger than memory: a buffer, or a file that is read by position.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Bytes read at a time when a whole source is hashed.
const STEP: usize = 4 << 20;

/// A buffer or an open file. A file must not change while it is open: everything here is written
/// once under a temporary name and never again.
#[derive(Debug)]
pub enum Source {
    Memory(Vec<u8>),
    File {
        file: File,
        path: PathBuf,
        /// Length when it was opened, in bytes.
        len: u64,
    },
}

impl Source {
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let path = path.to_owned();
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
                file.read_exact_at(&mut bytes, offset)?;
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
    /// supports it.
    pub fn place(&self, target: &Path) -> io::Result<()> {
        match self {
            Self::Memory(bytes) => put(target, bytes),
            Self::File { path, .. } => {
                if fs::hard_link(path, target).is_err() {
                    fs::copy(path, target)?;
                }
                File::open(target)?.sync_all()
            }
        }
    }
}

/// Writes a file durably; for files in a directory that is not in place yet.
pub fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
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
    File {
        path: PathBuf,
        out: io::BufWriter<File>,
    },
    /// Written nowhere: the caller only counts and hashes.
    Nowhere,
}

impl Target {
    /// Creates a new, empty file; its directory must exist.
    pub fn file(path: &Path) -> io::Result<Self> {
        Ok(Self::File {
            path: path.to_owned(),
            out: io::BufWriter::with_capacity(1 << 20, File::create(path)?),
        })
    }

    /// Discards what was written and reserves `head` bytes for the head.
    pub fn start(&mut self, head: usize) -> io::Result<()> {
        match self {
            Self::Memory(bytes) => {
                bytes.clear();
                bytes.resize(head, 0);
            }
            Self::File { out, .. } => {
                out.flush()?;
                out.get_mut().set_len(0)?;
                out.seek(SeekFrom::Start(0))?;
                out.write_all(&vec![0; head])?;
            }
            Self::Nowhere => {}
        }
        Ok(())
    }

    /// Appends to what was written.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Memory(all) => all.extend_from_slice(bytes),
            Self::File { out, .. } => out.write_all(bytes)?,
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
            Self::File { path, mut out } => {
                out.flush()?;
                let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
                file.write_all_at(head, 0)?;
                file.sync_all()?;
                Source::open(&path).map(Some)
            }
            Self::Nowhere => Ok(None),
        }
    }
}
