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

    /// Checks the first bytes of the file `path`, as far as they are there.
    pub fn check(self, path: &Path, content: &[u8]) -> Result<(), FileError> {
        let damaged = |why| FileError::damaged(path, 0, why);
        let Some(start) = content.first_chunk::<START>() else {
            return Err(damaged("it is shorter than any file of its kind"));
        };
        let known = self.start();
        if start[..START - 1] != known[..START - 1] {
            return Err(damaged("it does not begin as a file of its kind does"));
        }
        match start[START - 1] {
            found if found > self.version => Err(FileError::Newer {
                path: path.to_owned(),
                found,
                known: self.version,
            }),
            found if found == self.version => Ok(()),
            _ => Err(damaged("its format number was never used")),
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
