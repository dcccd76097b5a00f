//! Request bodies that are written to disk as they arrive, to an unlinked temporary file, so that
//! no file is left behind however the request ends.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use ron_kernel::DiskWatches;
use ron_proto::{Problem, Tenant};
use rustix::fs::{Mode, OFlags};

use crate::room::Room;

/// A body that is being written to disk.
#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    len: u64,
    disk: Option<DiskWatches>,
    /// Its place among the front's uploads, freed when the body is complete or given up.
    _place: Place,
}

/// A place among the uploads that may run at once.
#[derive(Debug)]
pub(crate) struct Place {
    room: Arc<Room>,
    tenant: Tenant,
}

impl Place {
    /// Takes one of `max` places, if the tenant's share has room.
    pub(crate) fn take(room: &Arc<Room>, tenant: &Tenant, max: usize) -> Option<Self> {
        room.take_upload(tenant, max).then(|| Self {
            room: room.clone(),
            tenant: tenant.clone(),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.give_upload(&self.tenant);
    }
}

impl Spool {
    /// Opens an unnamed file in `dir`.
    pub(crate) fn open(dir: &Path, disk: Option<DiskWatches>, place: Place) -> io::Result<Self> {
        Ok(Self {
            file: watched(disk.as_ref(), || unnamed(dir))?,
            len: 0,
            disk,
            _place: place,
        })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        watched(self.disk.as_ref(), || self.file.write_all(bytes))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// The body is complete.
    pub(crate) fn done(self) -> Upload {
        Upload {
            file: Arc::new(self.file),
            len: self.len,
        }
    }
}

/// Calls the disk, unless it hangs.
fn watched<R>(disk: Option<&DiskWatches>, call: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    match disk {
        Some(disk) => disk.try_call(call)?,
        None => call(),
    }
}

fn unnamed(dir: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE;
    match rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(File::from(file)),
        // File systems and kernels without O_TMPFILE answer one or the other.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => named(dir),
        Err(error) => Err(error.into()),
    }
}

/// A fallback for file systems without unnamed files: a named one that is removed at once.
fn named(dir: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
    let mut number = 0_u64;
    loop {
        let path = dir.join(format!(".upload-{number}"));
        match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(File::from(file));
            }
            // Another upload has created its file and not yet removed the name.
            Err(rustix::io::Errno::EXIST) => number += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

/// The answer to a client whose body cannot be written.
pub(crate) fn problem_of(error: &io::Error) -> Problem {
    let full = matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    );
    if full {
        let detail = "there is no room on disk for this body; nothing was kept";
        return Problem::new(507, "insufficient_storage", "No room on disk", detail)
            .retryable(true);
    }
    Problem::unavailable("the body cannot be written to disk; nothing was kept", 5)
}

/// A complete request body in an unnamed file. The file disappears with the last clone.
#[derive(Clone, Debug)]
pub struct Upload {
    file: Arc<File>,
    len: u64,
}

impl Upload {
    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True for an empty body.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Reads it from the start; readers are independent of each other.
    pub fn reader(&self) -> UploadReader {
        UploadReader {
            upload: self.clone(),
            at: 0,
        }
    }
}

/// Reads an [`Upload`] from its start to its end.
#[derive(Debug)]
pub struct UploadReader {
    upload: Upload,
    at: u64,
}

impl Read for UploadReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.upload.len - self.at).unwrap_or(usize::MAX);
        let room = into.len().min(left);
        let count = self.upload.file.read_at(&mut into[..room], self.at)?;
        // The file is shorter than the body that was written: it was damaged.
        if count == 0 && room > 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place::take(&Arc::new(Room::new(1)), &Tenant::default(), 1).expect("the first")
    }

    #[test]
    fn a_body_is_read_back_by_several_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for file in [unnamed, named] {
            let mut spool = Spool {
                file: file(dir.path()).expect("room"),
                len: 0,
                disk: None,
                _place: place(),
            };
            spool.write(b"abc").expect("room");
            spool.write(b"defg").expect("room");
            assert_eq!(spool.len(), 7);
            let upload = spool.done();
            for _ in 0..2 {
                let mut text = String::new();
                upload.reader().read_to_string(&mut text).expect("readable");
                assert_eq!(text, "abcdefg");
            }
            assert_eq!((upload.len(), upload.is_empty()), (7, false));
            let left = std::fs::read_dir(dir.path()).expect("there").count();
            assert_eq!(left, 0);
        }
    }

    #[test]
    fn a_full_disk_is_distinguished_from_other_faults() {
        let file = File::options().write(true).open("/dev/full");
        let mut spool = Spool {
            file: file.expect("the full device"),
            len: 0,
            disk: None,
            _place: place(),
        };
        let error = spool.write(b"x").expect_err("no room");
        assert_eq!(problem_of(&error).status, 507);
        assert_eq!(spool.len(), 0);
        let nowhere = Spool::open(Path::new("/nowhere"), None, place()).expect_err("no directory");
        assert_eq!(problem_of(&nowhere).status, 503);
    }

    #[test]
    fn places_are_freed() {
        let (room, tenant) = (Arc::new(Room::new(1)), Tenant::default());
        let first = Place::take(&room, &tenant, 4).expect("one");
        let _second = Place::take(&room, &tenant, 4).expect("two");
        assert!(Place::take(&room, &tenant, 4).is_none());
        drop(first);
        assert!(Place::take(&room, &tenant, 4).is_some());
    }
}
