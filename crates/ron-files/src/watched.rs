//! A disk whose calls are watched, each by itself: a large copy in pieces is not taken for a call that
//! hangs.

use std::io;
use std::path::Path;
use std::sync::Arc;

use ron_kernel::DiskWatches;

use crate::disk::{Disk, DiskFile, DiskLock, SharedDisk};

/// Another disk, with a watch over every call to it and to its files.
#[derive(Debug)]
pub struct WatchedDisk {
    disk: SharedDisk,
    watches: DiskWatches,
    flushes: bool,
}

impl WatchedDisk {
    /// Calls that hang appear under the name of `watches`.
    pub fn new(disk: SharedDisk, watches: DiskWatches) -> Self {
        Self {
            disk,
            watches,
            flushes: true,
        }
    }

    /// Without a watch over the flushes of files: that of a large file may take long.
    #[must_use]
    pub fn except_flushes(self) -> Self {
        Self {
            flushes: false,
            ..self
        }
    }

    fn file(
        &self,
        open: impl FnOnce() -> io::Result<Arc<dyn DiskFile>>,
    ) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(WatchedFile {
            file: self.watches.call(open)?,
            watches: self.watches.clone(),
            flushes: self.flushes,
        }))
    }
}

impl Disk for WatchedDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.watches.call(|| self.disk.create_dir_all(dir))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.watches.call(|| self.disk.list(dir))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.watches.call(|| self.disk.exists(path))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.file(|| self.disk.open_read(path))
    }

    fn open_write(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.file(|| self.disk.open_write(path))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.file(|| self.disk.create(path))
    }

    fn create_with_mode(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn DiskFile>> {
        self.file(|| self.disk.create_with_mode(path, mode))
    }

    fn open_or_create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.file(|| self.disk.open_or_create(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.watches.call(|| self.disk.rename(from, to))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.watches.call(|| self.disk.link(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.watches.call(|| self.disk.remove(path))
    }

    /// Without a watch: a large directory may take long.
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.disk.remove_dir_all(dir)
    }

    fn unnamed(&self, dir: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.file(|| self.disk.unnamed(dir))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.watches.call(|| self.disk.sync_dir(dir))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DiskLock>>> {
        self.watches.call(|| self.disk.lock(path))
    }

    fn tighten(&self, dir: &Path) -> io::Result<Option<u32>> {
        self.watches.call(|| self.disk.tighten(dir))
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.watches.call(|| self.disk.free_bytes(dir))
    }

    fn os_path<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        self.disk.os_path(path)
    }
}

#[derive(Debug)]
struct WatchedFile {
    file: Arc<dyn DiskFile>,
    watches: DiskWatches,
    flushes: bool,
}

impl DiskFile for WatchedFile {
    fn len(&self) -> io::Result<u64> {
        self.watches.call(|| self.file.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.watches.call(|| self.file.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.watches.call(|| self.file.write_at(offset, bytes))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.watches.call(|| self.file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.flushes {
            self.watches.call(|| self.file.sync_data())
        } else {
            self.file.sync_data()
        }
    }

    fn modified_ms(&self) -> io::Result<u64> {
        self.watches.call(|| self.file.modified_ms())
    }

    fn set_modified_ms(&self, ms: u64) -> io::Result<()> {
        self.watches.call(|| self.file.set_modified_ms(ms))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use ron_kernel::{HANGS_AFTER, KernelMetrics, ManualClock, Registry, Supervisor, Topology};

    use super::*;
    use crate::{MemoryDisk, OsDisk};

    static TOPOLOGY: Topology = Topology {
        service: "t",
        threads: &[],
        queues: &[],
        locks: &[],
    };

    /// Takes too long for each write and flush.
    #[derive(Debug)]
    struct Slow {
        file: Arc<dyn DiskFile>,
        hang: Hang,
    }

    #[derive(Clone)]
    struct Hang(Arc<dyn Fn() + Send + Sync>);

    impl std::fmt::Debug for Hang {
        fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.write_str("Hang")
        }
    }

    impl DiskFile for Slow {
        fn len(&self) -> io::Result<u64> {
            self.file.len()
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
            self.file.read_at(offset, buf)
        }
        fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
            (self.hang.0)();
            self.file.write_at(offset, bytes)
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.file.set_len(len)
        }
        fn sync_data(&self) -> io::Result<()> {
            (self.hang.0)();
            self.file.sync_data()
        }
    }

    #[test]
    fn writes_and_flushes_that_hang_are_seen() {
        let clock = ManualClock::at(1_000);
        let registry = Registry::new("t");
        let sup = Supervisor::new(&TOPOLOGY, KernelMetrics::new(&registry), clock.clone());
        let seen = Arc::new(AtomicU32::new(0));
        let hang = Hang({
            let (sup, seen) = (sup.clone(), seen.clone());
            Arc::new(move || {
                clock.advance(HANGS_AFTER + Duration::from_millis(1));
                seen.fetch_add(u32::from(sup.hung_disk().is_some()), Ordering::SeqCst);
            })
        });
        for (flushes, expected) in [(true, 2), (false, 1)] {
            let disk = WatchedDisk::new(Arc::new(MemoryDisk::new()), sup.watch_disks("files", 1));
            let disk = if flushes { disk } else { disk.except_flushes() };
            let hang = hang.clone();
            let slow = || -> io::Result<Arc<dyn DiskFile>> {
                let file = disk.disk.create(Path::new("/x"))?;
                Ok(Arc::new(Slow { file, hang }))
            };
            let file = disk.file(slow).expect("made");
            file.write_at(0, b"x").expect("written");
            file.sync_data().expect("flushed");
            assert_eq!(seen.swap(0, Ordering::SeqCst), expected);
        }
        assert_eq!(sup.hung_disk(), None);
    }

    #[test]
    fn a_file_has_the_mode_that_was_asked_for() {
        let registry = Registry::new("t");
        let clock = ManualClock::at(1_000);
        let sup = Supervisor::new(&TOPOLOGY, KernelMetrics::new(&registry), clock);
        let disk = WatchedDisk::new(Arc::new(OsDisk), sup.watch_disks("files", 1));
        let home = tempfile::tempdir().expect("a temporary directory");
        let path = home.path().join("x");
        for mode in [0o600, 0o640, 0o600] {
            disk.create_with_mode(&path, mode).expect("made");
            let meta = std::fs::metadata(&path).expect("there");
            assert_eq!(meta.permissions().mode() & 0o777, mode);
        }
    }
}
