//! `log.meta`: the parameters of a log directory, of which only the format is raised later. Text, so that an operator
//! can read it.
//!
//! ```text
//! ron-tlog 3
//! origin <origin>
//! segment_entries <power of two, 256..=65536>
//! salt <32 hex>
//! copy_of engine [<place>]          only in a copy of a log that an engine keeps; with its place when the log was moved there
//! archive <directory>               only of a log with an archive; a relative path begins at the log's directory
//! crc <8 hex, CRC-32 of the lines above>
//! ```

use std::path::{Path, PathBuf};

use super::errors::OpenError;
use super::layout::{OLDEST, Salt};
use crate::checkpoint::decimal;
use crate::tile::TILE_WIDTH;
use ron_files::{Disk, read_small, write_atomic};

pub(crate) const META_NAME: &str = "log.meta";
const COPY: &str = "copy_of engine";
const ARCHIVE: &str = "archive ";
/// The format of a directory whose segments may be in an archive. All of its other files have earlier formats.
const FORMAT_ARCHIVE: u32 = 4;
const META_BYTES_MAX: u64 = 8192;
/// Maximum bytes of the path of an archive.
const ARCHIVE_MAX: usize = 2048;

/// The contents of `log.meta`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    /// The newest format that a file of the directory may have.
    pub format: u32,
    pub origin: String,
    /// Entries of a block. A segment ends with the batch that gives it at least as many.
    pub segment_entries: u64,
    pub salt: Salt,
    /// An engine keeps the log, and the directory is a copy of it. The text says where the engine is; it is empty when the
    /// directory began as a copy.
    pub copy_of: Option<String>,
    /// Directory of archived segments.
    pub archive: Option<String>,
}

impl Meta {
    pub fn is_copy(&self) -> bool {
        self.copy_of.is_some()
    }

    /// Tree level of a full block's root.
    pub fn block_level(&self) -> u32 {
        self.segment_entries.trailing_zeros()
    }

    pub fn block_of(&self, index: u64) -> u64 {
        index / self.segment_entries
    }

    pub fn first_of(&self, block: u64) -> u64 {
        block * self.segment_entries
    }

    pub fn valid_segment_entries(entries: u64) -> bool {
        entries.is_power_of_two() && (TILE_WIDTH..=65_536).contains(&entries)
    }

    /// The directory of archived segments of the log in `dir`. Its name is the salt, so that several logs may have one archive.
    pub fn archive_in(&self, dir: &Path) -> Option<PathBuf> {
        let archive = Path::new(self.archive.as_ref()?);
        let archive = match (dir.parent(), archive.strip_prefix("..")) {
            (Some(home), Ok(near)) => home.join(near),
            _ => dir.join(archive),
        };
        Some(archive.join(hex::encode(self.salt.bytes())))
    }

    /// Names the archive of the log in `dir`. An archive below the directory of `dir` is named relative to it, so that both can be moved
    /// together.
    pub fn set_archive(&mut self, dir: &Path, archive: &Path) -> Result<(), OpenError> {
        let absolute = |path: &Path| {
            std::path::absolute(path).map_err(OpenError::io("finding the directory of", path))
        };
        let (home, archive) = (absolute(dir)?, absolute(archive)?);
        let near = home
            .parent()
            .and_then(|home| archive.strip_prefix(home).ok());
        let named = match near {
            Some(near) if home.parent() != Some(Path::new("/")) => Path::new("..").join(near),
            _ => archive,
        };
        let named = named
            .to_str()
            .filter(|named| named.len() <= ARCHIVE_MAX && !named.chars().any(char::is_control));
        let named = named.ok_or(OpenError::Options(
            "the path of the archive must be UTF-8, up to 2048 bytes, without control characters",
        ))?;
        self.archive = Some(named.to_owned());
        self.format = self.format.max(FORMAT_ARCHIVE);
        Ok(())
    }

    fn lines(&self) -> String {
        let salt = hex::encode(self.salt.bytes());
        let copy = match self.copy_of.as_deref() {
            None => String::new(),
            Some("") => format!("{COPY}\n"),
            Some(place) => format!("{COPY} {place}\n"),
        };
        let archive = self.archive.as_ref();
        let archive = archive.map_or_else(String::new, |dir| format!("{ARCHIVE}{dir}\n"));
        format!(
            "ron-tlog {}\norigin {}\nsegment_entries {}\nsalt {salt}\n{copy}{archive}",
            self.format, self.origin, self.segment_entries
        )
    }

    pub fn to_text(&self) -> String {
        let lines = self.lines();
        format!("{lines}crc {:08x}\n", crc32fast::hash(lines.as_bytes()))
    }

    pub fn parse(text: &str) -> Result<Self, OpenError> {
        let damaged = |why: &str| OpenError::Damaged {
            index: 0,
            why: format!("{META_NAME} {why}"),
        };
        let mut lines = text.lines();
        let version = lines
            .next()
            .and_then(|l| l.strip_prefix("ron-tlog "))
            .and_then(decimal);
        let format = match version {
            Some(v) if v > u64::from(FORMAT_ARCHIVE) => {
                return Err(OpenError::NewerFormat {
                    file: META_NAME.into(),
                    found: v as u32,
                    known: FORMAT_ARCHIVE,
                });
            }
            Some(v) if v >= u64::from(OLDEST) => v as u32,
            Some(v) => {
                return Err(damaged(&format!(
                    "has format {v}, which this program no longer reads"
                )));
            }
            None => return Err(damaged("does not start with its format")),
        };
        let mut field = |name: &str| {
            lines
                .next()
                .and_then(|l| l.strip_prefix(name))
                .map(str::to_owned)
        };
        let origin = field("origin ").filter(|o| !o.is_empty());
        let entries = field("segment_entries ")
            .and_then(|v| decimal(&v))
            .filter(|n| Self::valid_segment_entries(*n));
        let salt = field("salt ")
            .and_then(|v| hex::decode(v).ok())
            .and_then(|v| <[u8; 16]>::try_from(v).ok());
        let (Some(origin), Some(segment_entries), Some(salt)) = (origin, entries, salt) else {
            return Err(damaged("has a bad or missing line"));
        };
        let rest: Vec<&str> = lines.collect();
        let after = |name: &str| rest.iter().find_map(|line| line.strip_prefix(name));
        let meta = Self {
            format,
            origin,
            segment_entries,
            salt: Salt::new(salt),
            copy_of: after(COPY).map(|place| place.trim_start().to_owned()),
            archive: after(ARCHIVE).map(str::to_owned),
        };
        // Compared as a whole: this also checks the checksum and that no line follows.
        if meta.to_text() == text {
            Ok(meta)
        } else {
            Err(damaged("does not match its checksum"))
        }
    }

    /// Reads the file; `None` when there is none.
    pub fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>, OpenError> {
        let path = dir.join(META_NAME);
        let Some(bytes) =
            read_small(disk, &path, META_BYTES_MAX).map_err(OpenError::io("reading", path))?
        else {
            return Ok(None);
        };
        let text = String::from_utf8(bytes).map_err(|_| OpenError::Damaged {
            index: 0,
            why: format!("{META_NAME} is not text"),
        })?;
        Self::parse(&text).map(Some)
    }

    pub fn store(&self, disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
        write_atomic(disk, dir, META_NAME, self.to_text().as_bytes())
            .map_err(OpenError::io("writing", dir.join(META_NAME)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::FORMAT;
    use super::*;

    #[test]
    fn meta_round_trips_and_detects_changes() {
        let meta = Meta {
            format: FORMAT,
            origin: "log.example/a b".into(),
            segment_entries: 256,
            salt: Salt::new([7; 16]),
            copy_of: None,
            archive: None,
        };
        let text = meta.to_text();
        assert_eq!(Meta::parse(&text).expect("parses"), meta);
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] ^= 1;
            let changed = String::from_utf8(changed).expect("ASCII");
            assert!(Meta::parse(&changed).is_err(), "byte {at}");
        }
        let newer = text.replace("ron-tlog 3", "ron-tlog 5");
        assert!(matches!(
            Meta::parse(&newer),
            Err(OpenError::NewerFormat { found: 5, .. })
        ));
        for place in ["", "postgresql://a@b/c schema d"] {
            let copy = Meta {
                copy_of: Some(place.to_owned()),
                ..meta.clone()
            };
            assert_eq!(Meta::parse(&copy.to_text()).expect("parses"), copy);
            let mut archived = copy;
            let dir = Path::new("/data/log");
            for (archive, named) in [("/data/old/a b", "../old/a b"), ("/mnt/old", "/mnt/old")] {
                archived
                    .set_archive(dir, Path::new(archive))
                    .expect("a path of an archive");
                assert_eq!(archived.archive.as_deref(), Some(named));
                let parsed = Meta::parse(&archived.to_text()).expect("parses");
                assert_eq!((parsed.format, &parsed), (4, &archived));
            }
            assert!(archived.set_archive(dir, Path::new("/mnt/\n")).is_err());
        }
        let older = Meta { format: 2, ..meta };
        assert_eq!(Meta::parse(&older.to_text()).expect("parses"), older);
        assert!(Meta::parse(&text[..text.len() - 4]).is_err());
    }
}
