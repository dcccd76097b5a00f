//! The disk of a process in a world: a [`SimDisk`] whose flushes take time, which hangs for a while now and then, and which
//! answers no more once its power was cut.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ron_files::{Disk, DiskFile, DiskLock, SimDisk};
use ron_sim::{fault, time};

use crate::chance::{below, ms};

/// The usual time of a flush is up to twice as long.
const FLUSH: Duration = Duration::from_micros(300);
/// Flushes in a million that take up to `HANG` longer.
const HANGS: u32 = 3_000;
const HANG: Duration = Duration::from_secs(3);

/// When the disk of a machine has hung, and whether it hangs now and then. None of it is a point of the simulator.
#[derive(Debug, Default)]
pub struct Hangs {
    stopped: AtomicBool,
    /// When each began and ended.
    spans: Mutex<Vec<(Instant, Instant)>>,
}

impl Hangs {
    pub fn allow(&self, may: bool) {
        self.stopped.store(!may, Ordering::SeqCst);
    }

    /// How much longer a flush takes that begins now.
    fn next(&self) -> Duration {
        if self.stopped.load(Ordering::SeqCst) || !fault::happens("a disk hangs", HANGS) {
            return Duration::ZERO;
        }
        let (now, length) = (time::now(), ms(below(HANG.as_millis() as u64)));
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.push((now, now + length));
        length
    }

    /// Whether the disk hung at some time between these.
    pub fn any(&self, from: Instant, to: Instant) -> bool {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.iter().any(|span| span.0 <= to && span.1 >= from)
    }
}

/// The disk. Clones share it.
#[derive(Clone, Debug)]
pub struct WorldDisk {
    image: SimDisk,
    hangs: Arc<Hangs>,
}

impl WorldDisk {
    pub const fn new(image: SimDisk, hangs: Arc<Hangs>) -> Self {
        Self { image, hangs }
    }

    /// A call that is over when it returns. After a power cut no call returns: the machine is off, and whatever a thread
    /// would do after an error, it does not do any more.
    fn call<R>(&self, call: impl FnOnce(&SimDisk) -> io::Result<R>) -> io::Result<R> {
        let done = call(&self.image);
        while done.is_err() && self.image.is_off() {
            time::sleep(Duration::from_secs(3_600));
        }
        done
    }

    fn flush<R>(&self, call: impl FnOnce(&SimDisk) -> io::Result<R>) -> io::Result<R> {
        let usual = FLUSH.as_micros() as u64;
        let takes = Duration::from_micros(usual / 2 + below(usual + 1));
        time::sleep(takes + self.hangs.next());
        self.call(call)
    }

    fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(WorldFile {
            disk: self.clone(),
            file,
        })
    }
}

impl Disk for WorldDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.call(|disk| disk.create_dir_all(dir))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.call(|disk| disk.list(dir))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.call(|disk| disk.open_read(path)).map(|f| self.file(f))
    }

    fn open_write(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.call(|disk| disk.open_write(path))
            .map(|f| self.file(f))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.call(|disk| disk.create(path)).map(|f| self.file(f))
    }

    fn open_or_create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.call(|disk| disk.open_or_create(path))
            .map(|f| self.file(f))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(|disk| disk.rename(from, to))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(|disk| disk.link(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call(|disk| disk.remove(path))
    }

    fn unnamed(&self, dir: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.call(|disk| disk.unnamed(dir)).map(|f| self.file(f))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.flush(|disk| disk.sync_dir(dir))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DiskLock>>> {
        self.call(|disk| disk.lock(path))
    }
}

#[derive(Debug)]
struct WorldFile {
    disk: WorldDisk,
    file: Arc<dyn DiskFile>,
}

impl DiskFile for WorldFile {
    fn len(&self) -> io::Result<u64> {
        self.disk.call(|_| self.file.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.disk.call(|_| self.file.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.call(|_| self.file.write_at(offset, bytes))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.call(|_| self.file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.flush(|_| self.file.sync_data())
    }

    fn modified_ms(&self) -> io::Result<u64> {
        self.disk.call(|_| self.file.modified_ms())
    }

    fn set_modified_ms(&self, ms: u64) -> io::Result<()> {
        self.disk.call(|_| self.file.set_modified_ms(ms))
    }
}
