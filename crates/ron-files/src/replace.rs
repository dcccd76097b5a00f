//! Files that have their names only when they are complete and durable.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, DiskFile};

/// A file is flushed whenever so many bytes are new, so that each flush is a short call, also for a large file: a watch over
/// the disk would take a long one for a disk that hangs.
const FLUSH_EVERY: u64 = 8 << 20;

/// Writes a file under a temporary name (`<name>.tmp`), which it removes when it is dropped
/// unfinished. Every write is one of the disk: a caller with small pieces puts a buffer in front.
#[derive(Debug)]
pub struct Replacement<'a> {
    disk: &'a dyn Disk,
    path: PathBuf,
    temporary: PathBuf,
    file: Arc<dyn DiskFile>,
    len: u64,
    flushed: u64,
    finished: bool,
}

impl<'a> Replacement<'a> {
    /// Permissions as in [`Disk::create_with_mode`].
    pub fn create(disk: &'a dyn Disk, path: &Path, mode: u32) -> io::Result<Self> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        Ok(Self {
            disk,
            path: path.to_owned(),
            file: disk.create_with_mode(&temporary, mode)?,
            temporary,
            len: 0,
            flushed: 0,
            finished: false,
        })
    }

    /// Makes the content durable, then gives it its name, durably. A file of this name is replaced.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.sync_data()?;
        rename_durably(self.disk, &self.temporary, &self.path)?;
        self.finished = true;
        Ok(())
    }
}

impl io::Write for Replacement<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(self.len, bytes)?;
        self.len += bytes.len() as u64;
        if self.len - self.flushed >= FLUSH_EVERY {
            self.file.sync_data()?;
            self.flushed = self.len;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // The next writer replaces a temporary file that cannot be removed.
            let _ = self.disk.remove(&self.temporary);
        }
    }
}

/// Replaces a small file atomically: after a crash either the old or the new content is there,
/// whole; on return the new content is durable. Only the owner can read it (mode 0600).
pub fn write_atomic(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    write_atomic_with_mode(disk, dir, name, bytes, 0o600)
}

/// As [`write_atomic`], with other permissions, of which the umask is taken.
pub fn write_atomic_with_mode(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    bytes: &[u8],
    mode: u32,
) -> io::Result<()> {
    let mut file = Replacement::create(disk, &dir.join(name), mode)?;
    file.write_all(bytes)?;
    file.finish()
}

/// Renames a file or, on the disk of the operating system, a directory; the new name is durable on
/// return. The content must be durable already.
pub fn rename_durably(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
    disk.rename(from, to)?;
    let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty());
    disk.sync_dir(dir.unwrap_or(Path::new(".")))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::{CrashMode, FaultKind, MemoryDisk, OsDisk, SimDisk, read_small};

    #[test]
    fn a_crash_at_any_operation_leaves_the_old_or_the_new_content() {
        let (dir, path) = (Path::new("/d"), Path::new("/d/x"));
        for fault in [FaultKind::PowerOff, FaultKind::Io, FaultKind::NoSpace] {
            for at in 1..=6 {
                let disk = SimDisk::new();
                write_atomic(&disk, dir, "x", b"old").expect("written");
                disk.fail_after(at, fault);
                let done = write_atomic(&disk, dir, "x", b"the new one").is_ok();
                assert_eq!(
                    done,
                    at == 6,
                    "five operations: create, write, sync, rename, sync"
                );
                let torn = (0..12).map(CrashMode::TearLast);
                let whole = [
                    CrashMode::LoseAll,
                    CrashMode::KeepAll,
                    CrashMode::HoleInLast(0),
                ];
                for mode in torn.chain(whole) {
                    let image = disk.fork();
                    image.crash(mode);
                    let left = read_small(&image, path, 20).expect("read").expect("there");
                    let new = left == b"the new one";
                    assert!(
                        new || !done && left == b"old",
                        "{fault:?} at {at}, {mode:?}"
                    );
                    write_atomic(&image, dir, "x", b"next").expect("over the temporary file");
                }
            }
        }
    }

    #[test]
    fn a_large_file_is_flushed_in_pieces() {
        let piece = vec![7; 4 << 20];
        // Create, five writes, a flush after the second and the fourth, and at the end flush, rename, flush.
        for (fault_at, finished) in [(11, false), (12, true)] {
            let disk = SimDisk::new();
            disk.fail_after(fault_at, FaultKind::Io);
            let mut file = Replacement::create(&disk, Path::new("/d/x"), 0o600).expect("created");
            for _ in 0..5 {
                file.write_all(&piece).expect("written");
            }
            assert_eq!(file.finish().is_ok(), finished, "operation {fault_at}");
        }
    }

    #[test]
    fn a_temporary_file_of_others_is_not_written_into() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let (temporary, path) = (home.path().join("x.tmp"), home.path().join("x"));
        let mode = || {
            std::fs::metadata(&path)
                .expect("there")
                .permissions()
                .mode()
                & 0o777
        };
        std::fs::write(&temporary, b"left by a crash").expect("written");
        std::fs::set_permissions(&temporary, Permissions::from_mode(0o666)).expect("set");
        write_atomic(&OsDisk, home.path(), "x", b"secret").expect("written");
        assert_eq!(
            (mode(), std::fs::read(&path).expect("read")),
            (0o600, b"secret".to_vec())
        );
        write_atomic_with_mode(&OsDisk, home.path(), "x", b"public", 0o400).expect("written");
        assert_eq!(
            (mode(), std::fs::read(&path).expect("read")),
            (0o400, b"public".to_vec())
        );
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let (disk, path) = (MemoryDisk::new(), Path::new("/d/x"));
        let content = || read_small(&disk, path, 100).expect("readable");
        let mut broken = Replacement::create(&disk, path, 0o600).expect("created");
        broken.write_all(b"half of").expect("written");
        drop(broken);
        assert_eq!(disk.list(Path::new("/d")).expect("listed"), [""; 0]);
        let mut whole = Replacement::create(&disk, path, 0o600).expect("created");
        whole.write_all(b"the one ").expect("written");
        whole.write_all(b"and the other").expect("written");
        assert_eq!(content(), None);
        whole.finish().expect("finished");
        assert_eq!(content(), Some(b"the one and the other".to_vec()));
        assert_eq!(disk.list(Path::new("/d")).expect("listed"), ["x"]);
    }
}
