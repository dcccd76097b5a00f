//! The data directory: created with mode 0700, used by one process at a time. One that other users
//! could write to was refused before ([`Config::check_writers`]).

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::config::{ChassisSettings, Config};
use crate::error::StartError;

/// A locked data directory; the lock is held until this is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// The directory of `data_dir`; `None` with `amnesia = true`, when nothing may be written.
    pub fn open(config: &Config) -> Result<Option<Self>, StartError> {
        let settings = config.chassis();
        if settings.amnesia {
            return Ok(None);
        }
        let Some(path) = &settings.data_dir else {
            let why =
                "is not set; name a directory, or set amnesia = true to keep everything in memory";
            return Err(StartError::Config(vec![
                config.problem(ChassisSettings::data_dir, why),
            ]));
        };
        Self::at(path).map(Some)
    }

    /// Creates the directory if needed and locks it.
    pub fn at(path: &Path) -> Result<Self, StartError> {
        let shown = path.display();
        let fail = |error: &std::io::Error| {
            StartError::io(
                format!("data directory {shown} cannot be used: {error}"),
                hint(error),
            )
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|e| fail(&e))?;
        let meta = std::fs::metadata(path).map_err(|e| fail(&e))?;
        if !meta.is_dir() {
            return Err(StartError::io(
                format!("data_dir {shown} is not a directory"),
                "name a directory",
            ));
        }
        if meta.mode() & 0o077 != 0 {
            // Other users could read the content; restricting the mode is what every operator would
            // do next.
            std::fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(|e| {
                StartError::io(
                    format!("data directory {shown} is open to others and cannot be closed: {e}"),
                    format!("run: chmod 700 {shown}, or use a directory of this user"),
                )
            })?;
            tracing::warn!(
                event = "data_dir_tightened",
                mode = format!("{:04o}", meta.mode() & 0o7777)
            );
        }
        let lock = lock(path, &fail)?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path inside the directory.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

fn lock(path: &Path, fail: &dyn Fn(&std::io::Error) -> StartError) -> Result<File, StartError> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path.join("LOCK"))
        .map_err(|e| fail(&e))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            let _ = (&file).take(32).read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => "another process".to_owned(),
                pid => format!("process {pid}"),
            };
            return Err(StartError::io(
                format!("data directory {} is in use by {holder}", path.display()),
                "stop that process, or give this one another data_dir",
            ));
        }
        Err(error) => return Err(fail(&error.into())),
    }
    // Only for the message above; the kernel holds the lock itself and releases it when the process
    // ends.
    let note = || -> std::io::Result<()> {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    let mut note = note;
    note().map_err(|e| fail(&e))?;
    Ok(file)
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
        std::io::ErrorKind::StorageFull => "the disk is full".into(),
        _ => "check data_dir".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_made_private_and_serves_one() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a/b");
        let first = DataDir::at(&path).expect("a fresh directory");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        let second = DataDir::at(&path)
            .expect_err("one process at a time")
            .to_string();
        assert!(
            second.contains("in use by process")
                && second.contains(&std::process::id().to_string()),
            "{second}"
        );
        drop(first);
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let again = DataDir::at(&path).expect("the lock went with its holder");
        assert_eq!(
            std::fs::metadata(again.path()).unwrap().mode() & 0o777,
            0o700
        );
    }

    #[test]
    fn a_file_in_its_place_is_named() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("file");
        std::fs::write(&path, "x").unwrap();
        let error = DataDir::at(&path).expect_err("a file").to_string();
        assert!(error.contains("file"), "{error}");
        let error = DataDir::at(Path::new("/proc/ron-no-such"))
            .expect_err("not writable")
            .to_string();
        assert!(error.contains("/proc/ron-no-such"), "{error}");
    }
}
