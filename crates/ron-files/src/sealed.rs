//! Sealed files: written once, in one pass, and never changed. They have their name only when they
//! are complete and durable.
//!
//! ```text
//! offset  bytes  field
//! 0       8      kind and format, see [`Kind`]
//! 8              content
//! end-32  32     SHA-256 of everything before
//! ```

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use ron_crypto::hash::{Sha256, sha256};

use crate::disk::{Disk, read_all};
use crate::kind::{FileError, Kind, START};
use crate::replace::Replacement;

/// Bytes written at once.
const PIECE: usize = 1 << 18;
const HASH: usize = 32;

/// Writes a sealed file; until [`SealedWriter::finish`] it has a temporary name (`<name>.tmp`).
pub struct SealedWriter<'a> {
    file: Replacement<'a>,
    buffer: Vec<u8>,
    hash: Sha256,
}

impl<'a> SealedWriter<'a> {
    pub fn create(disk: &'a dyn Disk, dir: &Path, name: &str, kind: Kind) -> io::Result<Self> {
        let file = Replacement::create(disk, &dir.join(name), 0o600)?;
        let mut buffer = Vec::with_capacity(PIECE);
        buffer.extend_from_slice(&kind.start());
        Ok(Self {
            file,
            buffer,
            hash: Sha256::new(),
        })
    }

    /// Appends to the content.
    pub fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hash.update(&self.buffer);
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Makes the file durable, then gives it its name, durably; returns its hash.
    pub fn finish(mut self) -> io::Result<[u8; HASH]> {
        self.flush()?;
        let hash = self.hash.finish();
        self.file.write_all(&hash)?;
        self.file.finish()?;
        Ok(hash)
    }
}

/// A sealed file in memory, whose hash was right.
#[derive(Debug)]
pub struct Sealed {
    path: PathBuf,
    bytes: Vec<u8>,
    pub hash: [u8; HASH],
}

impl Sealed {
    /// Offset of the content in the file, for readers that later read parts of it.
    pub const CONTENT: u64 = START as u64;

    /// Reads and checks a file.
    pub fn read(disk: &dyn Disk, path: &Path, kind: Kind) -> Result<Self, FileError> {
        let file = disk.open_read(path).map_err(FileError::io(path))?;
        let mut bytes = read_all(&*file).map_err(FileError::io(path))?;
        kind.check(path, &bytes)?;
        let damaged = |offset: usize, why| FileError::damaged(path, offset as u64, why);
        let end = bytes.len().checked_sub(HASH).filter(|end| *end >= START);
        let end = end.ok_or_else(|| damaged(bytes.len(), "it ends before its hash"))?;
        let hash = sha256(&bytes[..end]);
        if bytes[end..] != hash {
            return Err(damaged(START, "its hash is not that of its content"));
        }
        bytes.truncate(end);
        let path = path.to_owned();
        Ok(Self { path, bytes, hash })
    }

    pub fn content(&self) -> &[u8] {
        &self.bytes[START..]
    }

    /// The error for content at `offset` that its reader cannot use although its hash is right.
    pub fn damaged(&self, offset: usize, why: impl Into<String>) -> FileError {
        FileError::damaged(&self.path, (START + offset) as u64, why)
    }
}
