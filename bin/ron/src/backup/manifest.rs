//! `backup.json`, and the directory of backups.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ron_crypto::hash::Sha256;
use ron_files::{Disk as _, DiskLock, OsDisk};
use ron_proto::Timestamp;
use serde::{Deserialize, Serialize};

use crate::layout::{read_format, write_json};

/// Format of `backup.json`.
const FORMAT: u32 = 1;
pub const NAME: &str = "backup.json";
/// Ends the name of a backup that is being made.
const PARTIAL: &str = ".partial";

/// What a backup consists of.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: u32,
    /// Version of the program that made it.
    program: String,
    /// When it was begun: what was acknowledged before is in it.
    pub taken: Timestamp,
    /// The data directory that it is of.
    pub root: PathBuf,
    /// By their paths in the data directory.
    pub files: BTreeMap<String, FileEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    pub bytes: u64,
    pub sha256: String,
    pub mode: u32,
    /// Unix microseconds, of the file that was copied.
    pub modified_us: u64,
}

impl Manifest {
    pub fn new(taken: Timestamp, root: &Path, files: BTreeMap<String, FileEntry>) -> Self {
        Self {
            format: FORMAT,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            taken,
            root: root.to_owned(),
            files,
        }
    }

    pub fn write(&self, backup: &Path) -> Result<(), String> {
        write_json(&backup.join(NAME), self, 0o600)
    }

    pub fn read(backup: &Path) -> Result<Self, String> {
        read_format(&backup.join(NAME), FORMAT, |read: &Self| read.format)
    }

    /// Compares every file of a backup with its hash.
    pub fn check(&self, backup: &Path) -> Result<(), String> {
        for (name, entry) in &self.files {
            let path = backup.join(name);
            let (bytes, sha256) = hash(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            if (bytes, &sha256) != (entry.bytes, &entry.sha256) {
                return Err(format!(
                    "{} is not the file that was backed up: use another backup",
                    path.display()
                ));
            }
        }
        Ok(())
    }
}

/// Length and SHA-256 of a file.
pub fn hash(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let (mut hasher, mut length) = (Sha256::new(), 0);
    let mut part = vec![0; 1 << 20];
    loop {
        match file.read(&mut part)? {
            0 => return Ok((length, hex::encode(hasher.finish()))),
            n => {
                hasher.update(&part[..n]);
                length += n as u64;
            }
        }
    }
}

/// A directory of backups, which one process uses at a time.
pub struct Backups {
    dir: PathBuf,
    _lock: Box<dyn DiskLock>,
}

impl Backups {
    /// Opens it, and removes what an interrupted backup has left.
    pub fn open(dir: &Path) -> Result<Self, String> {
        let failed = |e: io::Error| format!("{}: {e}", dir.display());
        let mode = std::fs::metadata(dir).map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(format!(
                "{} is open to others, and backups have private keys; run: chmod 700 {}",
                dir.display(),
                dir.display()
            ));
        }
        let lock = OsDisk.lock(&dir.join("lock")).map_err(failed)?;
        let lock = lock.ok_or_else(|| {
            format!(
                "another backup to {} is running; wait until it ends",
                dir.display()
            )
        })?;
        for name in OsDisk.list(dir).map_err(failed)? {
            if name.ends_with(PARTIAL) {
                OsDisk.remove_dir_all(&dir.join(name)).map_err(failed)?;
            }
        }
        Ok(Self {
            dir: dir.to_owned(),
            _lock: lock,
        })
    }

    /// The directory of a backup that is not finished.
    pub fn partial(&self, taken: Timestamp) -> PathBuf {
        self.dir.join(name_of(taken) + PARTIAL)
    }

    pub fn finished(&self, taken: Timestamp) -> PathBuf {
        self.dir.join(name_of(taken))
    }

    /// The newest backup here.
    pub fn newest(&self) -> Result<Option<(PathBuf, Manifest)>, String> {
        let Some(newest) = all(&self.dir)?.pop() else {
            return Ok(None);
        };
        let manifest = Manifest::read(&newest)?;
        Ok(Some((newest, manifest)))
    }

    /// Removes the oldest ones, so that this many are left.
    pub fn remove_but(&self, keep: usize) -> Result<(), String> {
        let all = all(&self.dir)?;
        for old in &all[..all.len().saturating_sub(keep)] {
            // Without this file it is no backup any more, however far the removal gets.
            let gone = OsDisk.remove(&old.join(NAME));
            gone.and_then(|()| OsDisk.remove_dir_all(old))
                .map_err(|e| format!("{}: {e}", old.display()))?;
            println!("removed: {}", old.display());
        }
        Ok(())
    }
}

/// The backup that a path names: itself, or the newest one in it.
pub fn find(path: &Path) -> Result<(PathBuf, Manifest), String> {
    let found = if path.join(NAME).exists() {
        Some(path.to_owned())
    } else {
        all(path)?.pop()
    };
    let found = found.ok_or_else(|| {
        format!(
            "{} is no backup, and has none: a backup has a file {NAME}",
            path.display()
        )
    })?;
    let manifest = Manifest::read(&found)?;
    Ok((found, manifest))
}

/// The backups in a directory, oldest first: their names are times.
fn all(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let names = OsDisk.list(dir);
    let names = names.map_err(|e| format!("cannot read {}: {e}", dir.display()))?;
    let paths = names.into_iter().map(|name| dir.join(name));
    Ok(paths.filter(|path| path.join(NAME).exists()).collect())
}

/// The time without the colons, which some file systems refuse.
fn name_of(taken: Timestamp) -> String {
    taken.to_string().replace(':', "-")
}
