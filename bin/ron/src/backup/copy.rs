//! Copies files of a data directory whose services may be running.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ron_custody::store::is_unfinished;
use ron_files::{Disk as _, OsDisk};
use ron_service::Store;
use ron_tlog::OpenError;
use ron_tlog::append::{archive_of, archived_files};

use super::manifest::{FileEntry, Manifest, hash};
use crate::net::pause;

/// What belongs to the current run, and copies that a service makes again from its log or from the ledger.
const LEFT_OUT: [&str; 4] = [
    "run",
    "logs",
    "ron-ledger/data/derived",
    "svc-wallet/data/answers",
];
/// The ledger's copy for queries.
const PROJECTION: &str = "ron-ledger/data/projection.sqlite";
/// Names of files that are locks, parts of databases, or unfinished.
const NO_DATA: [&str; 5] = ["-wal", "-shm", "-journal", ".tmp", ".restoring"];
/// How often the keys are copied until no change is under way, and the pause in between.
const KEY_COPIES: u32 = 100;
const KEY_PAUSE: Duration = Duration::from_millis(50);

pub struct Copier {
    from: PathBuf,
    to: PathBuf,
    before: Option<(PathBuf, Manifest)>,
    files: BTreeMap<String, FileEntry>,
    dirs: BTreeSet<PathBuf>,
    /// Directories of archived segments, which were copied with their logs.
    archives: BTreeSet<PathBuf>,
    /// Bytes that were copied, and that are shared with the backup before.
    copied: u64,
    shared: u64,
}

impl Copier {
    /// Copies from a data directory to an empty directory; `before` is the backup with whose closed segments it may share.
    pub fn new(from: &Path, to: &Path, before: Option<(PathBuf, Manifest)>) -> Self {
        Self {
            from: from.to_owned(),
            to: to.to_owned(),
            before,
            files: BTreeMap::new(),
            dirs: BTreeSet::from([to.to_owned()]),
            archives: BTreeSet::new(),
            copied: 0,
            shared: 0,
        }
    }

    /// Bytes copied, and bytes shared.
    pub const fn bytes(&self) -> (u64, u64) {
        (self.copied, self.shared)
    }

    /// Makes the names durable, and returns the files.
    pub fn done(self) -> Result<BTreeMap<String, FileEntry>, String> {
        for dir in &self.dirs {
            OsDisk
                .sync_dir(dir)
                .map_err(|e| format!("{}: {e}", dir.display()))?;
        }
        Ok(self.files)
    }

    /// Copies a directory with what is in it, but for what was copied already: databases first, because their rows name files.
    pub fn dir(&mut self, name: &str) -> Result<(), String> {
        let from = self.from.join(name);
        if from.join("log.meta").exists() {
            return self.log(name);
        }
        let mut names = OsDisk
            .list(&from)
            .map_err(|e| format!("cannot read {}: {e}", from.display()))?;
        // Logs next: they name their archives, which are copied with them.
        let is_log = |name: &String| from.join(name).join("log.meta").exists();
        names.sort_by_key(|name| (!is_database(name), !is_log(name)));
        for below in names {
            let path = if name.is_empty() {
                below
            } else {
                format!("{name}/{below}")
            };
            if is_left_out(&path) || self.archives.contains(&self.from.join(&path)) {
                continue;
            }
            match std::fs::metadata(self.from.join(&path)) {
                Ok(meta) if meta.is_dir() => self.dir(&path)?,
                Ok(meta) if meta.is_file() => self.file_if_there(&path)?,
                _ => {} // a socket, or gone meanwhile
            }
        }
        Ok(())
    }

    /// Copies a file unless it was; one that is not there, or no more, is left out.
    pub fn file_if_there(&mut self, name: &str) -> Result<(), String> {
        let from = self.from.join(name);
        self.file_from(&from, name)
    }

    fn file_from(&mut self, from: &Path, name: &str) -> Result<(), String> {
        if self.files.contains_key(name) {
            return Ok(());
        }
        let to = self.target(name)?;
        let failed = |e: io::Error| format!("cannot copy {}: {e}", from.display());
        let meta = match std::fs::metadata(from) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            meta => meta.map_err(failed)?,
        };
        if is_database(name) {
            Store::copy(from, &to).map_err(|e| e.to_string())?;
        } else {
            match OsDisk.copy(from, &to, meta.mode() & 0o777) {
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
                done => done.map_err(failed)?,
            }
        }
        let (bytes, sha256) = hash(&to).map_err(failed)?;
        self.copied += bytes;
        let entry = FileEntry {
            bytes,
            sha256,
            mode: meta.mode() & 0o777,
            modified_us: modified_us(&meta),
        };
        self.files.insert(name.to_owned(), entry);
        Ok(())
    }

    /// Copies the database of keys at a moment at which no change waits for its leaf in the log.
    pub fn keys(&mut self, name: &str) -> Result<(), String> {
        for _ in 0..KEY_COPIES {
            self.file_if_there(name)?;
            let copy = self.to.join(name);
            if !copy.exists() || !is_unfinished(&copy).map_err(|e| e.to_string())? {
                return Ok(());
            }
            self.files.remove(name);
            std::fs::remove_file(&copy).map_err(|e| format!("{}: {e}", copy.display()))?;
            pause(KEY_PAUSE);
        }
        Err(format!(
            "keys are being changed all the time, or ron-kms does not run and a crash has interrupted a change: start it, or \
             try again ({name})"
        ))
    }

    /// Copies a log: what says how far it is signed first, then the segments that are there at that moment, then their indexes, and
    /// the archived segments to the directory of the log, so that the copy needs no archive.
    pub fn log(&mut self, name: &str) -> Result<(), String> {
        let dir = self.from.join(name);
        let list = || {
            OsDisk
                .list(&dir)
                .map_err(|e| format!("{}: {e}", dir.display()))
        };
        let ends = |name: &String, ending: &str| name.ends_with(ending);
        let is_bulk = |name: &String| {
            [".seg", ".idx", ".seg.zst"]
                .iter()
                .any(|end| name.ends_with(end))
        };
        // The keys that signed a checkpoint are written before it.
        let mut small: Vec<String> = list()?.into_iter().filter(|name| !is_bulk(name)).collect();
        small.sort_by_key(|name| name != "checkpoint");
        for below in small {
            let path = format!("{name}/{below}");
            if !is_left_out(&path) && dir.join(&below).is_file() {
                self.file_if_there(&path)?;
            }
        }
        let names = list()?;
        let newest = names.iter().filter(|name| ends(name, ".seg")).max();
        for ending in [".seg", ".idx"] {
            for below in names.iter().filter(|name| ends(name, ending)) {
                let path = format!("{name}/{below}");
                // All segments but the last are complete.
                let is_closed =
                    newest.is_some_and(|newest| below[..8.min(below.len())] < newest[..8]);
                if !(is_closed && self.share(&dir.join(below), &path)?) {
                    self.file_if_there(&path)?;
                }
            }
        }
        let failed = |e: OpenError| format!("{}: {e}", dir.display());
        self.archives
            .extend(archive_of(&OsDisk, &dir).map_err(failed)?);
        // After the segments: what has been archived since is copied twice, and nothing is missing.
        for packed in archived_files(&OsDisk, &dir).map_err(failed)? {
            let below = packed.file_name().unwrap_or_default().to_string_lossy();
            let path = format!("{name}/{below}");
            if !self.share(&packed, &path)? {
                self.file_from(&packed, &path)?;
            }
        }
        Ok(())
    }

    /// Links a file of the backup before, if that is a copy of the same file; false if it is not.
    fn share(&mut self, from: &Path, name: &str) -> Result<bool, String> {
        let Some((backup, manifest)) = &self.before else {
            return Ok(false);
        };
        let Some(entry) = manifest.files.get(name).cloned() else {
            return Ok(false);
        };
        let meta = std::fs::metadata(from).map_err(|e| format!("{}: {e}", from.display()))?;
        if (meta.len(), modified_us(&meta)) != (entry.bytes, entry.modified_us) {
            return Ok(false);
        }
        let old = backup.join(name);
        let to = self.target(name)?;
        // A file system without links gets a copy.
        if OsDisk.link(&old, &to).is_err() {
            return Ok(false);
        }
        self.shared += entry.bytes;
        self.files.insert(name.to_owned(), entry);
        Ok(true)
    }

    /// The place of a file in the backup, whose directory is made.
    fn target(&mut self, name: &str) -> Result<PathBuf, String> {
        let to = self.to.join(name);
        let parent = to.parent().unwrap_or(&self.to).to_owned();
        if !self.dirs.contains(&parent) {
            OsDisk
                .create_dir_all(&parent)
                .map_err(|e| format!("{}: {e}", parent.display()))?;
            self.dirs.insert(parent);
        }
        Ok(to)
    }
}

fn modified_us(meta: &std::fs::Metadata) -> u64 {
    let us = meta.mtime() * 1_000_000 + meta.mtime_nsec() / 1_000;
    u64::try_from(us).unwrap_or(0)
}

fn is_database(name: &str) -> bool {
    [".db", ".sqlite"]
        .iter()
        .any(|ending| name.ends_with(ending))
}

fn is_left_out(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let no_data = name.eq_ignore_ascii_case("lock")
        || name.starts_with(".unnamed-")
        || NO_DATA.iter().any(|ending| name.ends_with(ending));
    no_data || LEFT_OUT.contains(&path) || path.starts_with(PROJECTION)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ron_tlog::append::{Log, LogOptions};

    use super::*;

    /// A directory like that of a service, with a log whose first segment is closed.
    fn data(dir: &Path) -> PathBuf {
        let root = dir.join("data");
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for name in [
            "LOCK",
            "x.tmp",
            "a.db-wal",
            "run/sock",
            "logs/ron.log",
            "svc-wallet/data/answers/about",
        ] {
            write(name, "left out");
        }
        let made = dir.join("made");
        let options = LogOptions::new("log.example");
        drop(Log::open(Arc::new(OsDisk), &made, options).unwrap());
        let meta = std::fs::read_to_string(made.join("log.meta")).unwrap();
        write("log/log.meta", &meta);
        write("log/lock", "");
        write("log/checkpoint", "c");
        write("log/00000000.seg", "closed");
        write("log/00000001.seg", "open");
        write("config.toml", "x = 1");
        root
    }

    fn copied(
        root: &Path,
        to: &Path,
        before: Option<(PathBuf, Manifest)>,
    ) -> (Manifest, (u64, u64)) {
        std::fs::create_dir(to).unwrap();
        let mut copier = Copier::new(root, to, before);
        copier.dir("").unwrap();
        let bytes = copier.bytes();
        let taken = ron_proto::Timestamp(0);
        (Manifest::new(taken, root, copier.done().unwrap()), bytes)
    }

    #[test]
    fn closed_segments_are_shared_and_what_is_no_data_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let root = data(dir.path());
        let (first, second, third) = (
            dir.path().join("1"),
            dir.path().join("2"),
            dir.path().join("3"),
        );
        let (manifest, bytes) = copied(&root, &first, None);
        let names: Vec<&str> = manifest.files.keys().map(String::as_str).collect();
        let all = [
            "config.toml",
            "log/00000000.seg",
            "log/00000001.seg",
            "log/checkpoint",
            "log/log.meta",
        ];
        assert_eq!(names, all);
        let meta = std::fs::metadata(root.join("log/log.meta")).unwrap().len();
        assert_eq!(bytes, (16 + meta, 0));
        assert_eq!(manifest.check(&first), Ok(()));

        let (again, bytes) = copied(&root, &second, Some((first.clone(), manifest)));
        assert_eq!(bytes, (10 + meta, 6), "the closed segment is shared");
        assert_eq!(again.check(&second), Ok(()));

        // A closed segment that was written again, of the same length, is copied.
        std::fs::write(root.join("log/00000000.seg"), "erased").unwrap();
        let (last, bytes) = copied(&root, &third, Some((second, again)));
        assert_eq!(bytes, (16 + meta, 0));
        std::fs::write(third.join("config.toml"), "x = 2").unwrap();
        let why = last.check(&third).unwrap_err();
        assert!(why.contains("config.toml is not the file"), "{why}");
    }
}
