//! What every file of ours begins with: its kind and the version of its format.

use std::io;
use std::path::{Path, PathBuf};

/// Bytes of the start that [`Kind::start`] gives.
pub const START: usize = 8;

/// A kind of file and the newest version of its format that this program knows.
///
/// ```text
/// offset  bytes
/// 0       3      "RON"
/// 3       4      name of the kind, ASCII
/// 7       1      version of the format, from 1
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub name: &'static [u8; 4],
    pub version: u8,
}

impl Kind {
    /// The first bytes of a file of this kind.
    pub const fn start(self) -> [u8; START] {
        let [a, b, c, d] = *self.name;
        [b'R', b'O', b'N', a, b, c, d, self.version]
    }

    /// The version of the format in the first bytes of a file; `None` when they are not of this kind.
    pub fn version_of(self, content: &[u8]) -> Option<u8> {
        let (version, rest) = content.first_chunk::<START>()?.split_last()?;
        (rest == &self.start()[..START - 1]).then_some(*version)
    }

    /// Checks the first bytes of the file `path`.
    pub fn check(self, path: &Path, content: &[u8]) -> Result<(), FileError> {
        match self.version_of(content) {
            Some(version) if version == self.version => Ok(()),
            Some(found) if found > self.version => Err(FileError::Newer {
                path: path.to_owned(),
                found,
                known: self.version,
            }),
            Some(_) => Err(FileError::damaged(
                path,
                7,
                "its format number was never used",
            )),
            None => Err(FileError::damaged(
                path,
                0,
                "it does not begin as a file of its kind",
            )),
        }
    }
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    /// The content is not what was written. Nothing of it was changed.
    #[error("{} is damaged at byte {offset}: {why}", path.display())]
    Damaged {
        path: PathBuf,
        /// Offset in bytes of the first part that is not as it was written.
        offset: u64,
        why: String,
    },
    #[error(
        "{} is of format {found}, this program knows up to {known}; use a newer program",
        path.display()
    )]
    Newer {
        path: PathBuf,
        found: u8,
        /// The newest format that this program knows.
        known: u8,
    },
    /// An earlier write or flush of this file failed, so its end is unknown until it is opened again.
    #[error("{}: an earlier write failed; the file is closed until the next start", path.display())]
    Closed { path: PathBuf },
}

impl FileError {
    pub fn damaged(path: &Path, offset: u64, why: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            offset,
            why: why.into(),
        }
    }

    /// For `map_err`: an error of the operating system about `path`.
    pub fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |error| Self::Io {
            path: path.to_owned(),
            error,
        }
    }
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        let kind = match &error {
            FileError::Io { error, .. } => error.kind(),
            FileError::Damaged { .. } | FileError::Newer { .. } => io::ErrorKind::InvalidData,
            FileError::Closed { .. } => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
