//! How far an endpoint is: a small file per endpoint in the data directory.

use ron_files::Dir;
use ron_kernel::RankedMutex;
use ron_proto::{Timestamp, strict};
use serde::{Deserialize, Serialize};

use crate::topology::KEPT_PROGRESS;

/// Format version of the file.
const FORMAT: u32 = 1;
/// Maximum size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// The cursor of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Entries up to this sequence were delivered or do not concern the endpoint.
    pub after: u64,
    /// The first failure since the last delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Timestamp>,
    /// Nothing is sent until the endpoint is resumed.
    #[serde(default)]
    pub disabled: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u32,
    progress: Progress,
}

/// Only the format, so that a newer file is distinguished from a damaged one.
#[derive(Deserialize)]
struct Formatted {
    format: u32,
}

/// Where the cursor is kept: a file, or memory in amnesia mode.
#[derive(Debug)]
pub enum ProgressFile {
    At(Dir, String),
    Memory(RankedMutex<Option<Progress>>),
}

impl ProgressFile {
    /// The file of an endpoint in `dir`, which exists.
    pub fn new(dir: Option<Dir>, endpoint: &str) -> Self {
        match dir {
            Some(dir) => Self::At(dir, format!("{endpoint}.json")),
            None => Self::Memory(RankedMutex::new(&KEPT_PROGRESS, None)),
        }
    }

    /// The cursor; `None` for a new endpoint.
    pub fn read(&self) -> Result<Option<Progress>, String> {
        let (dir, name) = match self {
            Self::At(dir, name) => (dir, name),
            Self::Memory(kept) => return Ok(kept.lock().clone()),
        };
        let path = dir.file(name);
        let damaged = |why: String| {
            format!(
                "{} is damaged ({why}); remove it to go on from the ledger's head",
                path.display()
            )
        };
        let bytes = dir.read_small(name, FILE_BYTES_MAX);
        let bytes = bytes.map_err(|e| format!("{}: {e}", path.display()))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let format: Formatted =
            serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        if format.format != FORMAT {
            return Err(format!(
                "{} has format {}, this program reads {FORMAT}",
                path.display(),
                format.format
            ));
        }
        let document: Document = strict::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        Ok(Some(document.progress))
    }

    /// Replaces the cursor, durably when this returns.
    pub fn write(&self, progress: &Progress) -> Result<(), String> {
        match self {
            Self::At(dir, name) => {
                let document = Document {
                    format: FORMAT,
                    progress: progress.clone(),
                };
                let bytes = serde_json::to_vec(&document).map_err(|e| e.to_string())?;
                dir.write(name, &bytes).map_err(|e| e.to_string())
            }
            Self::Memory(kept) => {
                *kept.lock() = Some(progress.clone());
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_written_and_a_damaged_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = ProgressFile::new(Some(Dir::os(dir.path())), "shop");
        assert_eq!(file.read(), Ok(None));
        let progress = Progress {
            after: 17,
            failing_since: Some(Timestamp(1_000)),
            disabled: true,
        };
        file.write(&progress).unwrap();
        assert_eq!(file.read(), Ok(Some(progress)));
        let path = dir.path().join("shop.json");
        for (bytes, says) in [
            (&b"{\"format\":1,\"progress\":{\"aft"[..], "is damaged"),
            (b"{\"format\":2,\"progress\":{\"after\":1}}", "has format 2"),
            (b"", "is damaged"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let why = file.read().unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }
}
