//! A directory of a disk: the place that a part of a service gets for its files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_kernel::DiskWatches;

use crate::disk::{DiskFile, OsDisk, SharedDisk, read_small};
use crate::replace::{write_atomic, write_atomic_with_mode};
use crate::watched::WatchedDisk;

/// A directory and the disk that it is on. Names are relative to it.
#[derive(Clone, Debug)]
pub struct Dir {
    disk: SharedDisk,
    path: PathBuf,
}

impl Dir {
    /// The directory need not exist.
    pub fn new(disk: SharedDisk, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { disk, path }
    }

    /// A directory of the operating system, for programs that are no service.
    pub fn os(path: impl Into<PathBuf>) -> Self {
        Self::new(Arc::new(OsDisk), path)
    }

    pub fn disk(&self) -> &SharedDisk {
        &self.disk
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A directory in it.
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        Self::new(self.disk.clone(), self.file(name))
    }

    /// The same directory, with a watch over every call to its disk.
    #[must_use]
    pub fn watched(&self, watches: DiskWatches) -> Self {
        let disk = WatchedDisk::new(self.disk.clone(), watches);
        Self::new(Arc::new(disk), self.path.clone())
    }

    /// Makes it and its parents (mode 0700), with durable names; no error when it exists.
    pub fn create(&self) -> io::Result<()> {
        self.disk.create_dir_all(&self.path)
    }

    /// Names of the files and directories in it, sorted.
    pub fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list(&self.path)
    }

    /// Whether there is a file of this name.
    pub fn exists(&self, name: &str) -> io::Result<bool> {
        self.disk.exists(&self.file(name))
    }

    /// Makes durable which files are in it. A file that exists may be one that a process put in place before it was killed,
    /// without the sync that would have followed; a power cut takes such a file away.
    pub fn sync(&self) -> io::Result<()> {
        self.disk.sync_dir(&self.path)
    }

    /// Opens an existing file for reading.
    pub fn open_read(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open_read(&self.file(name))
    }

    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(&self.file(name))
    }

    /// Removes it with all that is in it; not found when there is none.
    pub fn remove_all(&self) -> io::Result<()> {
        self.disk.remove_dir_all(&self.path)
    }

    /// Reads a whole file; `None` when there is none.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.read_small(name, u64::MAX)
    }

    /// Reads a whole small file, as [`read_small`] does.
    pub fn read_small(&self, name: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        read_small(&*self.disk, &self.file(name), bytes_max)
    }

    /// Replaces a small file, as [`write_atomic`] does.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        write_atomic(&*self.disk, &self.path, name, bytes)
    }

    /// As [`Dir::write`], with other permissions, of which the umask is taken.
    pub fn write_with_mode(&self, name: &str, bytes: &[u8], mode: u32) -> io::Result<()> {
        write_atomic_with_mode(&*self.disk, &self.path, name, bytes, mode)
    }

    /// The path under which the operating system knows a file in it; `None` on another disk.
    pub fn os_path(&self, name: &str) -> Option<PathBuf> {
        let path = self.file(name);
        self.disk.os_path(&path).map(Path::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDisk;

    #[test]
    fn files_are_found_in_their_directory_of_their_disk() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let memory = Dir::new(Arc::new(MemoryDisk::new()), "/d");
        for dir in [Dir::os(home.path()), memory] {
            let below = dir.join("a/b");
            below.create().expect("made");
            assert!(!below.exists("x").expect("known"));
            below.write("x", b"one").expect("written");
            below.write_with_mode("y", b"two", 0o644).expect("written");
            assert!(dir.exists("a/b/x").expect("known"));
            let read = dir.join("a").read_small("b/x", 3).expect("read");
            assert_eq!(read.as_deref(), Some(&b"one"[..]));
            assert_eq!(dir.read("a/b/x").expect("read"), read);
            assert_eq!(dir.read("x").expect("known"), None);
            assert_eq!(below.list().expect("listed"), ["x", "y"]);
            assert_eq!(dir.list().expect("listed"), ["a"]);
            let known = below.os_path("x");
            assert_eq!(known.is_some(), dir.path() == home.path());
            assert!(known.is_none_or(|path| path == below.file("x")));
            let opened = below.open_read("x").expect("there");
            assert_eq!(opened.len().expect("known"), 3);
            below.remove("x").expect("removed");
            assert_eq!(below.list().expect("listed"), ["y"]);
            dir.join("a").remove_all().expect("removed");
            assert_eq!(dir.list().expect("listed"), [""; 0]);
        }
    }
}
