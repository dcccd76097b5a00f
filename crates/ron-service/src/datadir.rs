//! The data directory: created with mode 0700, used by one process at a time. One that other users
//! could write to was refused before ([`Config::check_writers`]).

use std::io;
use std::path::Path;

use ron_files::{Dir, DiskLock, SharedDisk};

use crate::config::{ChassisSettings, Config, ConfigProblem};
use crate::error::StartError;

/// Name of the file that is locked; it says by which process.
const LOCK: &str = "LOCK";

/// A locked data directory; the lock is held until this is dropped.
#[derive(Debug)]
pub struct DataDir {
    dir: Dir,
    _lock: Box<dyn DiskLock>,
}

impl DataDir {
    /// The directory of `data_dir` on this disk; `None` with `amnesia = true`, when nothing may be written.
    pub fn open(config: &Config, disk: SharedDisk) -> Result<Option<Self>, StartError> {
        let path = Self::check(config)?;
        path.map(|path| Self::at(Dir::new(disk, path))).transpose()
    }

    /// The path of the directory; `None` with `amnesia = true`. A configuration with neither is refused.
    pub(crate) fn check(config: &Config) -> Result<Option<&Path>, Vec<ConfigProblem>> {
        let settings = config.chassis();
        match &settings.data_dir {
            _ if settings.amnesia => Ok(None),
            Some(path) => Ok(Some(path)),
            None => {
                let why = "is not set; name a directory, or set amnesia = true to keep everything in memory";
                Err(vec![config.problem(ChassisSettings::data_dir, why)])
            }
        }
    }

    /// Creates the directory if needed and locks it.
    pub fn at(dir: Dir) -> Result<Self, StartError> {
        Self::try_at(dir)?.map_err(|why| {
            StartError::io(why, "stop that process, or give this one another data_dir")
        })
    }

    /// As [`DataDir::at`], with a directory that another process uses as an outcome of its own, which says by which.
    pub fn try_at(dir: Dir) -> Result<Result<Self, String>, StartError> {
        let shown = dir.path().display();
        let fail = |error: io::Error| {
            StartError::io(
                format!("data directory {shown} cannot be used: {error}"),
                hint(&error),
            )
        };
        dir.create().map_err(fail)?;
        // Other users could read the content; restricting the mode is what every operator would do
        // next.
        let wider = dir.disk().tighten(dir.path()).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => StartError::io(
                format!("data directory {shown} is open to others and cannot be closed: {e}"),
                format!("run: chmod 700 {shown}, or use a directory of this user"),
            ),
            _ => fail(e),
        })?;
        if let Some(mode) = wider {
            let mode = format!("{mode:04o}");
            tracing::warn!(event = "data_dir_tightened", mode);
        }
        let Some(lock) = dir.disk().lock(&dir.file(LOCK)).map_err(fail)? else {
            let by = holder(&dir);
            return Ok(Err(format!("data directory {shown} is in use by {by}")));
        };
        note_holder(&dir).map_err(fail)?;
        Ok(Ok(Self { dir, _lock: lock }))
    }

    pub const fn dir(&self) -> &Dir {
        &self.dir
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// The process that holds the lock, as far as is known.
fn holder(dir: &Dir) -> String {
    let noted = dir.read_small(LOCK, 32).ok().flatten().unwrap_or_default();
    match String::from_utf8_lossy(&noted).trim() {
        "" => "another process".to_owned(),
        pid => format!("process {pid}"),
    }
}

/// Only for [`holder`]: the kernel holds the lock itself, for the handle that took it, and releases
/// it when the process ends.
fn note_holder(dir: &Dir) -> io::Result<()> {
    let file = dir.disk().open_or_create(&dir.file(LOCK))?;
    file.set_len(0)?;
    file.write_at(0, format!("{}\n", std::process::id()).as_bytes())
}

fn hint(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "it is not writable by this user; change its owner, or set data_dir to another place"
                .into()
        }
        std::io::ErrorKind::ReadOnlyFilesystem => {
            "the file system is read-only; set data_dir to another place".into()
        }
        std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::NotADirectory => {
            "it is not a directory; name a directory".into()
        }
        std::io::ErrorKind::StorageFull => "the disk is full".into(),
        _ => "check data_dir".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::sync::Arc;

    use ron_files::{MemoryDisk, SimDisk};

    use super::*;

    #[test]
    fn a_directory_is_made_private_and_serves_one() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a/b");
        let first = DataDir::at(Dir::os(&path)).expect("a fresh directory");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        let second = DataDir::at(Dir::os(&path))
            .expect_err("one process at a time")
            .to_string();
        assert!(
            second.contains("in use by process")
                && second.contains(&std::process::id().to_string()),
            "{second}"
        );
        drop(first);
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let again = DataDir::at(Dir::os(&path)).expect("the lock went with its holder");
        assert_eq!(
            std::fs::metadata(again.path()).unwrap().mode() & 0o777,
            0o700
        );
    }

    #[test]
    fn a_directory_of_another_disk_serves_one() {
        let disks: [SharedDisk; 2] = [Arc::new(MemoryDisk::new()), Arc::new(SimDisk::new())];
        for disk in disks {
            let dir = Dir::new(disk, "/nowhere/at/all");
            let first = DataDir::at(dir.clone()).expect("a fresh directory");
            let second = DataDir::at(dir.clone()).expect_err("one at a time");
            assert!(second.to_string().contains("in use by process"), "{second}");
            drop(first);
            DataDir::at(dir).expect("the lock went with its holder");
        }
        assert!(!Path::new("/nowhere").exists());
    }

    #[test]
    fn a_file_in_its_place_is_named() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("file");
        std::fs::write(&path, "x").unwrap();
        let error = DataDir::at(Dir::os(&path)).expect_err("a file").to_string();
        assert!(error.contains("file"), "{error}");
        let error = DataDir::at(Dir::os("/proc/ron-no-such"))
            .expect_err("not writable")
            .to_string();
        assert!(error.contains("/proc/ron-no-such"), "{error}");
    }
}
