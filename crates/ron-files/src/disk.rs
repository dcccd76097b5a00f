//! The interface of a disk, and its implementation by the operating system.
//!
//! Callers may rely on these durability rules only: file contents are durable after `sync_data`;
//! names (created, renamed, removed) are durable after `sync_dir` of their directory; a write that
//! returned an error may have happened in part.

use std::fmt::Debug;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use ron_kernel::assert_no_locks;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A disk that several owners use.
pub type SharedDisk = Arc<dyn Disk>;

/// A disk: directories and files. Paths are absolute or relative to the process, as usual.
pub trait Disk: Debug + Send + Sync {
    /// Makes the directory and its parents (mode 0700), with durable names; no error when it
    /// exists.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Names of the files and directories in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Whether there is a file of this name.
    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.open_read(path) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
    /// Opens an existing file for reading.
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens an existing file for reading and writing.
    fn open_write(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Creates an empty file (mode 0600) for reading and writing; truncates an existing one.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Creates an empty file with these permissions, and removes an existing one, whose permissions may
    /// be wider. A disk in memory has no permissions.
    fn create_with_mode(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn DiskFile>> {
        let _ = mode;
        self.create(path)
    }
    /// Opens a file for reading and writing; creates it (mode 0600) when there is none.
    fn open_or_create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames a file over another or to a new name in the same directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file a second name, which no file may have. Both lead to the same content.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with all that is in it; not found when there is none. A crash in its middle leaves
    /// a part. This default is for disks in memory, whose directories are implied by their files: an empty directory
    /// counts as none.
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        let names = self.list(dir)?;
        if names.is_empty() {
            return Err(ErrorKind::NotFound.into());
        }
        for name in names {
            let path = dir.join(name);
            match self.remove(&path) {
                // The name is that of a directory, which is implied by the files in it.
                Err(e) if e.kind() == ErrorKind::NotFound => self.remove_dir_all(&path)?,
                removed => removed?,
            }
        }
        Ok(())
    }
    /// Creates a file without a name (mode 0600) for reading and writing, on the file system of a directory. It
    /// is gone with its last handle.
    fn unnamed(&self, dir: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let _ = dir;
        Err(ErrorKind::Unsupported.into())
    }
    /// Makes a durable copy of a file, with these permissions; replaces a file of the new name, whose
    /// directory the caller syncs.
    fn copy(&self, from: &Path, to: &Path, mode: u32) -> io::Result<()> {
        let (from, to) = (self.open_read(from)?, self.create_with_mode(to, mode)?);
        let (mut at, mut piece) = (0, vec![0; 1 << 20]);
        loop {
            let count = from.read_at(at, &mut piece)?;
            if count == 0 {
                return to.sync_data();
            }
            to.write_at(at, &piece[..count])?;
            at += count as u64;
        }
    }
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes the exclusive lock on a file (created when missing); `None` when it is held already.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DiskLock>>>;
    /// Closes a directory to other users; its mode before, when they could use it. A disk in memory has
    /// no other users.
    fn tighten(&self, dir: &Path) -> io::Result<Option<u32>> {
        let _ = dir;
        Ok(None)
    }
    /// Free bytes for the user of this process on the file system of a directory. A disk in memory is
    /// never full.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let _ = dir;
        Ok(u64::MAX)
    }
    /// The path under which the operating system knows a file, for libraries that open files by
    /// themselves; `None` when this disk is another one.
    fn os_path<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        let _ = path;
        None
    }
}

pub trait DiskFile: Debug + Send + Sync {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Cuts or extends (with zeros) the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes contents and length durable (fdatasync).
    fn sync_data(&self) -> io::Result<()>;
    /// The date of the last change, in milliseconds since 1970. A disk in memory knows no date: it has the one
    /// that was set last, or 0.
    fn modified_ms(&self) -> io::Result<u64> {
        Err(ErrorKind::Unsupported.into())
    }
    /// Sets that date. A crash may lose it.
    fn set_modified_ms(&self, ms: u64) -> io::Result<()> {
        let _ = ms;
        Err(ErrorKind::Unsupported.into())
    }
    /// True when the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A held lock; dropping it releases the lock.
pub trait DiskLock: Debug + Send + Sync {}

/// The operating system's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsDisk;

impl Disk for OsDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        let parent = dir
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        self.create_dir_all(parent)?;
        match std::fs::DirBuilder::new().mode(0o700).create(dir) {
            // Another process may have made it meanwhile.
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        // The new name is durable only after a sync of its parent.
        self.sync_dir(parent)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            // All of our names are UTF-8; others belong to other programs.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OsFile(File::open(path)?)))
    }

    fn open_write(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OsFile(
            OpenOptions::new().read(true).write(true).open(path)?,
        )))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OsFile(writable().truncate(true).open(path)?)))
    }

    fn create_with_mode(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OsFile(create_new(path, mode)?)))
    }

    fn open_or_create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OsFile(writable().open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(dir)
    }

    fn unnamed(&self, dir: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE;
        let file = match rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            // File systems and kernels without O_TMPFILE answer one or the other.
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => without_name(dir)?,
            Err(error) => return Err(error.into()),
        };
        Ok(Arc::new(OsFile(file)))
    }

    /// The kernel copies, and shares the blocks where the file system can.
    fn copy(&self, from: &Path, to: &Path, mode: u32) -> io::Result<()> {
        assert_no_locks("a copy");
        let (mut from, mut to) = (File::open(from)?, create_new(to, mode)?);
        io::copy(&mut from, &mut to)?;
        to.sync_data()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        assert_no_locks("a directory sync");
        File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DiskLock>>> {
        let file = writable().open(path)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(OsLock(file)))),
            Err(e) if e == Errno::WOULDBLOCK => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn tighten(&self, dir: &Path) -> io::Result<Option<u32>> {
        let meta = std::fs::metadata(dir)?;
        if !meta.is_dir() {
            return Err(ErrorKind::NotADirectory.into());
        }
        let open = meta.mode() & 0o077 != 0;
        if open {
            std::fs::set_permissions(dir, Permissions::from_mode(0o700))?;
        }
        Ok(open.then_some(meta.mode() & 0o7777))
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn os_path<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        Some(path)
    }
}

/// A private file for reading and writing, which is created when it is missing.
fn writable() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    options
}

/// An empty file with these permissions in place of one whose permissions may be wider.
fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    writable().mode(mode).create_new(true).open(path)
}

/// A file whose name is removed at once, for file systems without unnamed files.
fn without_name(dir: &Path) -> io::Result<File> {
    let mut number = 0_u64;
    loop {
        let path = dir.join(format!(".unnamed-{number}"));
        match writable().create_new(true).open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
            // Another caller has created its file and not yet removed the name.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(e) => return Err(e),
        }
    }
}

/// flock holds as long as the file is open.
#[derive(Debug)]
struct OsLock(#[expect(dead_code, reason = "held, never read")] File);

impl DiskLock for OsLock {}

#[derive(Debug)]
struct OsFile(File);

impl DiskFile for OsFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.0.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert_no_locks("a write");
        self.0.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        assert_no_locks("a sync");
        self.0.sync_data()
    }

    fn modified_ms(&self) -> io::Result<u64> {
        let since = self.0.metadata()?.modified()?.duration_since(UNIX_EPOCH);
        let ms = since.unwrap_or_default().as_millis();
        Ok(u64::try_from(ms).unwrap_or(u64::MAX))
    }

    fn set_modified_ms(&self, ms: u64) -> io::Result<()> {
        self.0.set_modified(UNIX_EPOCH + Duration::from_millis(ms))
    }
}

/// Reads a whole small file; `None` when it does not exist, an error when it is longer than
/// `bytes_max`.
pub fn read_small(disk: &dyn Disk, path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match disk.open_read(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if file.len()? > bytes_max {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("the file is longer than {bytes_max} bytes"),
        ));
    }
    read_all(&*file).map(Some)
}

/// Reads a whole file into memory.
pub(crate) fn read_all(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    let got = file.read_at(0, &mut bytes)?;
    bytes.truncate(got);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write_atomic;

    #[test]
    fn disks_lock_list_and_replace() {
        let home = tempfile::tempdir().expect("a temporary directory");
        check(&OsDisk, &home.path().join("a/b"));
        check(&crate::MemoryDisk::new(), Path::new("/a/b"));
        check(&crate::SimDisk::new(), Path::new("/a/b"));
    }

    #[test]
    fn disks_remove_directories_date_files_and_have_files_without_names() {
        let home = tempfile::tempdir().expect("a temporary directory");
        check_others(&OsDisk, &home.path().join("a"));
        check_others(&crate::MemoryDisk::new(), Path::new("/a"));
        check_others(&crate::SimDisk::new(), Path::new("/a"));
        let file = without_name(home.path()).expect("room");
        file.write_all_at(b"x", 0).expect("written");
        assert_eq!(OsDisk.list(home.path()).expect("listed"), ["a"]);
    }

    fn check_others(disk: &dyn Disk, dir: &Path) {
        let gone = |dir: &Path| disk.remove_dir_all(dir).expect_err("there is none").kind();
        assert_eq!(gone(&dir.join("b")), ErrorKind::NotFound);
        disk.create_dir_all(&dir.join("b/c")).expect("made");
        write_atomic(disk, &dir.join("b/c"), "x", b"x").expect("written");
        for name in ["y", "z"] {
            write_atomic(disk, &dir.join("b"), name, b"x").expect("written");
        }
        write_atomic(disk, dir, "kept", b"x").expect("written");
        disk.remove_dir_all(&dir.join("b")).expect("removed");
        assert_eq!(disk.list(dir).expect("listed"), ["kept"]);
        assert_eq!(gone(&dir.join("b")), ErrorKind::NotFound);

        let kept = disk.open_read(&dir.join("kept")).expect("there");
        kept.set_modified_ms(1_700_000_000_001).expect("dated");
        let again = disk.open_read(&dir.join("kept")).expect("there");
        assert_eq!(again.modified_ms().expect("known"), 1_700_000_000_001);

        let files = [(); 2].map(|()| disk.unnamed(dir).expect("room"));
        for (file, content) in files.iter().zip([b"one", b"two"]) {
            file.write_at(0, content).expect("written");
        }
        for (file, content) in files.iter().zip([b"one", b"two"]) {
            assert_eq!(read_all(&**file).expect("read"), content);
        }
        assert_eq!(disk.list(dir).expect("listed"), ["kept"]);
    }

    fn check(disk: &dyn Disk, dir: &Path) {
        disk.create_dir_all(dir).expect("made");
        disk.create_dir_all(dir).expect("made again");
        write_atomic(disk, dir, "x", b"one").expect("written");
        write_atomic(disk, dir, "x", b"two").expect("written");
        assert_eq!(
            read_small(disk, &dir.join("x"), 10).expect("read"),
            Some(b"two".to_vec())
        );
        assert_eq!(read_small(disk, &dir.join("y"), 10).expect("read"), None);
        assert!(read_small(disk, &dir.join("x"), 2).is_err());
        let [from, second, copy] = ["x", "second", "copy"].map(|name| dir.join(name));
        disk.link(&from, &second).expect("linked");
        let again = disk.link(&from, &second).expect_err("a file has the name");
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
        disk.copy(&from, &copy, 0o600).expect("copied");
        disk.copy(&from, &copy, 0o600).expect("copied over it");
        let original = disk.open_write(&from).expect("open");
        original.write_at(0, b"T").expect("written");
        for (path, content) in [(&second, b"Two"), (&copy, b"two")] {
            let read = read_small(disk, path, 10).expect("read");
            assert_eq!(read.as_deref(), Some(&content[..]));
            disk.remove(path).expect("removed");
        }
        let held = disk.lock(&dir.join("lock")).expect("no error");
        assert!(held.is_some());
        assert!(disk.lock(&dir.join("lock")).expect("no error").is_none());
        drop(held);
        assert!(disk.lock(&dir.join("lock")).expect("no error").is_some());
        let names = disk.list(dir).expect("listed");
        assert_eq!(names.last().map(String::as_str), Some("x"));
        let above = disk.list(dir.parent().expect("it has one"));
        assert_eq!(above.expect("listed"), ["b"], "a directory is named too");
        let exists = |name| disk.exists(&dir.join(name)).expect("it is known");
        assert!(exists("x") && !exists("y"));
        assert_eq!(disk.tighten(dir).expect("closed"), None);
        assert!(disk.free_bytes(dir).expect("known") > 0);
        let x = disk.open_or_create(&dir.join("x")).expect("open");
        disk.remove(&dir.join("x")).expect("removed");
        assert!(disk.open_read(&dir.join("x")).is_err());
        x.write_at(4, b"four").expect("written");
        let mut all = [1; 10];
        assert_eq!(
            x.read_at(0, &mut all).expect("read"),
            8,
            "handles outlive names"
        );
        assert_eq!(&all, b"Two\0four\x01\x01");
        x.set_len(1).expect("cut");
        assert_eq!(
            (x.len().expect("length"), x.is_empty().expect("length")),
            (1, false)
        );
        disk.create(&dir.join("y")).expect("made");
        disk.rename(&dir.join("y"), &dir.join("z"))
            .expect("renamed");
        assert!(
            disk.open_write(&dir.join("z"))
                .expect("there")
                .is_empty()
                .expect("length")
        );
    }
}
