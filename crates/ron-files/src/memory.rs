//! A disk in memory, for services that must write nothing to disk (amnesia mode). Nothing survives the
//! process, so flushes do nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_kernel::RankedMutex;
use ron_kernel::topology::LockSpec;

use crate::disk::{Disk, DiskFile, DiskLock};

static NAMES: LockSpec = LockSpec {
    name: "memory_disk",
    rank: u16::MAX - 1,
    guards: "names and held locks of a disk in memory",
};
static CONTENT: LockSpec = LockSpec {
    name: "memory_file",
    rank: u16::MAX,
    guards: "content of one file of a disk in memory",
};

#[derive(Debug, Default)]
struct Names {
    files: BTreeMap<PathBuf, Arc<MemoryFile>>,
    locks: BTreeSet<PathBuf>,
}

/// The disk. Clones share the same files. A removed file lives until its last handle is dropped.
#[derive(Clone, Debug)]
pub struct MemoryDisk(Arc<RankedMutex<Names>>);

#[derive(Debug)]
struct MemoryFile(RankedMutex<Content>);

#[derive(Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    modified_ms: u64,
}

impl MemoryDisk {
    pub fn new() -> Self {
        Self(Arc::new(RankedMutex::new(&NAMES, Names::default())))
    }
}

impl Default for MemoryDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryFile {
    fn empty() -> Arc<Self> {
        Arc::new(Self(RankedMutex::new(&CONTENT, Content::default())))
    }
}

/// The names in a directory among the paths of all files, which imply their directories; sorted.
pub(crate) fn names_in<'p>(dir: &Path, files: impl Iterator<Item = &'p PathBuf>) -> Vec<String> {
    let below = files.filter_map(|path| path.strip_prefix(dir).ok()?.components().next());
    let names = below.filter_map(|name| name.as_os_str().to_str());
    let names: BTreeSet<&str> = names.collect();
    names.into_iter().map(str::to_owned).collect()
}

impl Disk for MemoryDisk {
    fn create_dir_all(&self, _dir: &Path) -> io::Result<()> {
        Ok(()) // directories are implied by the names in them
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        Ok(names_in(dir, self.0.lock().files.keys()))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.0.lock().files.get(path).cloned();
        Ok(file.ok_or(ErrorKind::NotFound)?)
    }

    fn open_write(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.open_read(path)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.open_or_create(path)?;
        file.set_len(0)?;
        Ok(file)
    }

    fn open_or_create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut names = self.0.lock();
        let file = names.files.entry(path.to_owned());
        Ok(file.or_insert_with(MemoryFile::empty).clone())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.0.lock();
        let file = names.files.remove(from).ok_or(ErrorKind::NotFound)?;
        names.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.0.lock();
        let file = names.files.get(from).cloned().ok_or(ErrorKind::NotFound)?;
        if names.files.contains_key(to) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        names.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = self.0.lock().files.remove(path);
        removed.map(drop).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn unnamed(&self, _dir: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(MemoryFile::empty())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DiskLock>>> {
        let taken = self.0.lock().locks.insert(path.to_owned());
        Ok(taken.then(|| {
            let lock: Box<dyn DiskLock> = Box::new(MemoryLock(self.clone(), path.to_owned()));
            lock
        }))
    }
}

#[derive(Debug)]
struct MemoryLock(MemoryDisk, PathBuf);

impl DiskLock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.0.0.lock().locks.remove(&self.1);
    }
}

impl DiskFile for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let content = &self.0.lock().bytes;
        let from = (offset as usize).min(content.len());
        let count = buf.len().min(content.len() - from);
        buf[..count].copy_from_slice(&content[from..from + count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let content = &mut self.0.lock().bytes;
        let (from, to) = (offset as usize, offset as usize + bytes.len());
        if content.len() < to {
            content.resize(to, 0);
        }
        content[from..to].copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().bytes.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn modified_ms(&self) -> io::Result<u64> {
        Ok(self.0.lock().modified_ms)
    }

    fn set_modified_ms(&self, ms: u64) -> io::Result<()> {
        self.0.lock().modified_ms = ms;
        Ok(())
    }
}
