//! What tests with random moments share: their seed, their draws, and how many rounds they make. Only tests call it.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub use crate::draws::Draws;

use crate::disk::{Disk, DiskFile, DiskLock};
use crate::memory::MemoryDisk;
use crate::sim::CrashMode;

/// The number in an environment variable, by which a long run asks for more; else the default.
pub fn number(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(default)
}

impl Draws {
    pub fn seeded() -> Self {
        let seed = number("RON_SEED", std::process::id().into());
        println!("seed {seed} (RON_SEED={seed} repeats the draws)");
        Self::of(seed)
    }

    /// A result of a power cut for a last write of about `bytes`.
    pub fn crash_mode(&mut self, bytes: u64) -> CrashMode {
        match self.below(4) {
            0 => CrashMode::LoseAll,
            1 => CrashMode::KeepAll,
            2 => CrashMode::TearLast(self.below(bytes) as usize),
            _ => CrashMode::HoleInLast(512 * self.below(1 + bytes / 512) as usize),
        }
    }
}

/// A disk in memory that makes a call before each rename, with the new name: a test lets time pass there, so that the
/// disk hangs.
pub struct Hooked<F> {
    disk: MemoryDisk,
    before_rename: F,
}

impl<F: Fn(&Path)> Hooked<F> {
    pub fn new(before_rename: F) -> Self {
        Self {
            disk: MemoryDisk::new(),
            before_rename,
        }
    }
}

impl<F> fmt::Debug for Hooked<F> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Hooked")
    }
}

impl<F: Fn(&Path) + Send + Sync> Disk for Hooked<F> {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir_all(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open_read(path)
    }
    fn open_write(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open_write(path)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create(path)
    }
    fn open_or_create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open_or_create(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.before_rename)(to);
        self.disk.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.link(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DiskLock>>> {
        self.disk.lock(path)
    }
}
