//! Request bodies that are written to disk as they arrive, to a file without a name, so that
//! no file is left behind however the request ends.

use std::io::{self, ErrorKind, Read};
use std::sync::Arc;

use ron_files::{Dir, DiskFile};
use ron_kernel::DiskWatches;
use ron_proto::{Problem, Tenant};

use crate::room::Room;

/// A body that is being written to disk.
#[derive(Debug)]
pub(crate) struct Spool {
    file: Arc<dyn DiskFile>,
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
    pub(crate) fn open(dir: &Dir, disk: Option<DiskWatches>, place: Place) -> io::Result<Self> {
        Ok(Self {
            file: watched(disk.as_ref(), || dir.disk().unnamed(dir.path()))?,
            len: 0,
            disk,
            _place: place,
        })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        watched(self.disk.as_ref(), || self.file.write_at(self.len, bytes))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// The body is complete.
    pub(crate) fn done(self) -> Upload {
        Upload {
            file: self.file,
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
    file: Arc<dyn DiskFile>,
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

    pub(crate) fn file(&self) -> &dyn DiskFile {
        &*self.file
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
        let count = self.upload.file.read_at(self.at, &mut into[..room])?;
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
    use ron_files::{FaultKind, SimDisk};

    use super::*;

    fn place() -> Place {
        Place::take(&Arc::new(Room::new(1)), &Tenant::default(), 1).expect("the first")
    }

    #[test]
    fn a_body_is_read_back_by_several_and_leaves_nothing() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let simulated = Dir::new(Arc::new(SimDisk::new()), "/d");
        for dir in [Dir::os(home.path()), simulated] {
            let mut spool = Spool::open(&dir, None, place()).expect("room");
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
            assert_eq!(dir.list().expect("listed"), [""; 0]);
        }
    }

    #[test]
    fn a_full_disk_is_distinguished_from_other_faults() {
        let disk = SimDisk::new();
        let full = Dir::new(Arc::new(disk.clone()), "/d");
        let mut spool = Spool::open(&full, None, place()).expect("room");
        disk.fail_after(1, FaultKind::NoSpace);
        let error = spool.write(b"x").expect_err("no room");
        assert_eq!(problem_of(&error).status, 507);
        assert_eq!(spool.len(), 0);
        let nowhere = Dir::os("/nowhere");
        let nowhere = Spool::open(&nowhere, None, place()).expect_err("no directory");
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
