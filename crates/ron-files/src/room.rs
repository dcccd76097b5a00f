//! Room on the disk: writes are refused while little is left, before one of them meets a full disk
//! in its middle, and go on by themselves when there is room again.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ron_kernel::SharedClock;

use crate::Dir;

/// How long an answer of the file system is used again.
const FRESH: Duration = Duration::from_millis(100);

/// Whether a directory's file system has more free bytes than a reserve. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct DiskRoom(Option<Arc<Measured>>);

type Measure = Box<dyn Fn(&Path) -> io::Result<u64> + Send + Sync>;

struct Measured {
    dir: PathBuf,
    measure: Measure,
    clock: SharedClock,
    start: Instant,
    reserve: AtomicU64,
    /// When it was measured, in milliseconds after `start`, plus 1; 0 before the first time.
    at: AtomicU64,
    free: AtomicU64,
}

impl fmt::Debug for Measured {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("DiskRoom").field(&self.dir).finish()
    }
}

/// The disk has less room than its reserve; nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{free} bytes are free for {}, less than limits.disk_reserve ({reserve}); free space there, and the service continues by itself",
    dir.display()
)]
pub struct NoRoom {
    pub dir: PathBuf,
    /// Free bytes.
    pub free: u64,
    /// Bytes that must stay free.
    pub reserve: u64,
}

impl DiskRoom {
    /// For data in memory: there is always room.
    pub fn unlimited() -> Self {
        Self(None)
    }

    /// Keeps `reserve` bytes free on the file system of `dir`.
    pub fn of(dir: &Dir, reserve: u64, clock: SharedClock) -> Self {
        let disk = dir.disk().clone();
        Self::measured(dir.path(), reserve, clock, move |dir| disk.free_bytes(dir))
    }

    fn measured(
        dir: &Path,
        reserve: u64,
        clock: SharedClock,
        measure: impl Fn(&Path) -> io::Result<u64> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(Measured {
            dir: dir.to_owned(),
            measure: Box::new(measure),
            start: clock.now(),
            clock,
            reserve: AtomicU64::new(reserve),
            at: AtomicU64::new(0),
            free: AtomicU64::new(u64::MAX),
        })))
    }

    /// Keeps this many bytes free from now on.
    pub fn set_reserve(&self, bytes: u64) {
        if let Some(disk) = &self.0 {
            disk.reserve.store(bytes, Ordering::Relaxed);
        }
    }

    /// Refuses a write while there is too little room. The file system is asked at most ten times a
    /// second.
    pub fn check(&self) -> Result<(), NoRoom> {
        let Some(disk) = &self.0 else {
            return Ok(());
        };
        let (free, reserve) = (disk.free(), disk.reserve.load(Ordering::Relaxed));
        if free >= reserve {
            return Ok(());
        }
        Err(NoRoom {
            dir: disk.dir.clone(),
            free,
            reserve,
        })
    }
}

impl Measured {
    fn free(&self) -> u64 {
        let since = self.clock.now().saturating_duration_since(self.start);
        let now = since.as_millis() as u64 + 1;
        let at = self.at.load(Ordering::Acquire);
        let fresh = at > 0 && now < at + FRESH.as_millis() as u64;
        // One thread measures; the others use the value before it meanwhile.
        let mine = !fresh
            && self
                .at
                .compare_exchange(at, now, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if mine {
            // A file system that does not say is not taken for full: a write tells.
            let free = (self.measure)(&self.dir).unwrap_or(u64::MAX);
            self.free.store(free, Ordering::Release);
        }
        self.free.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use ron_kernel::ManualClock;

    use super::*;
    use crate::{Disk as _, OsDisk};

    #[test]
    fn writes_are_refused_before_the_disk_is_full_and_go_on_by_themselves() {
        let clock = ManualClock::at(0);
        let (free, asked) = (Arc::new(AtomicU64::new(100)), Arc::new(AtomicU64::new(0)));
        let (of, count) = (free.clone(), asked.clone());
        let room = DiskRoom::measured(Path::new("/data"), 100, clock.clone(), move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            match of.load(Ordering::Relaxed) {
                u64::MAX => Err(io::Error::other("no answer")),
                free => Ok(free),
            }
        });
        assert_eq!(room.check(), Ok(()), "the reserve itself is enough");
        free.store(99, Ordering::Relaxed);
        assert_eq!(room.check(), Ok(()), "known since just now");
        clock.advance(FRESH);
        let refused = room.clone().check().unwrap_err();
        assert_eq!((refused.free, refused.reserve), (99, 100));
        assert!(refused.to_string().contains("/data"), "{refused}");
        assert_eq!(room.check(), Err(refused));
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        room.set_reserve(99);
        assert_eq!(room.check(), Ok(()));
        room.set_reserve(1_000);
        free.store(u64::MAX, Ordering::Relaxed);
        clock.advance(FRESH);
        assert_eq!(room.check(), Ok(()), "not full as far as is known");
    }

    #[test]
    fn a_real_file_system_has_free_bytes() {
        assert!(
            OsDisk
                .free_bytes(Path::new("/tmp"))
                .is_ok_and(|free| free > 0)
        );
        assert!(OsDisk.free_bytes(Path::new("/no such directory")).is_err());
        assert_eq!(DiskRoom::unlimited().check(), Ok(()));
    }
}
