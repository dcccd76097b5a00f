//! Intake: how snapshots enter the library, by upload or from a configured URL.
//!
//! When the intake gets a body, it is on disk already, in an unnamed file. An intake thread turns
//! it into its sealed form, with bounded memory, and sends the response. Requests that only read
//! never wait for the intake.

pub mod fetch;

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ron_files::{Dir, Disk, DiskFile, SharedDisk};
use ron_http::{Responder, Response, Upload};
use ron_kernel::{Deadline, Receiver, Recv, SharedClock, Shutdown, ThreadCtx};
use ron_proto::problem::Problem;
use ron_proto::rewarder::{ImportKind, UsagePeriod};
use ron_proto::values::{ContentId, Tenant};

use crate::errors;
use crate::inline;
use crate::inputs::import::{Cancel, Format, ImportError, Input, Options, Spill, import_inputs};
use crate::inputs::snapshot::Sealed;
use crate::inputs::source::{Positioned, READABLE, Target};
use crate::library::{Library, LibraryError};

const IDLE: Duration = Duration::from_secs(60);
/// Maximum time from a complete upload to its response.
pub const SEAL_BUDGET: Duration = Duration::from_mins(15);
/// Bytes copied at a time.
const COPY: usize = 1 << 20;

/// The content of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadContent {
    /// A snapshot in its canonical form.
    Sealed,
    /// Rows to be sealed, with the period they were measured in.
    Rows(Format, ImportKind, Option<UsagePeriod>),
}

/// One upload on its way into the library.
pub struct Task {
    pub upload: Upload,
    pub content: UploadContent,
    /// The content id that the sealed form must have, if the caller named one.
    pub wanted: Option<ContentId>,
    /// The tenant that will own the snapshot.
    pub tenant: Tenant,
    pub responder: Responder,
}

pub struct Intake {
    pub tasks: Receiver<Task>,
    /// Where sealed snapshots are stored.
    pub library: Library,
    /// For incomplete files, on the library's file system.
    pub scratch: Scratch,
    /// The disk under it.
    pub disk: SharedDisk,
    /// Approximate memory for the rows of an upload, in bytes.
    pub memory: usize,
    /// Maximum rows of an upload, and accounts of an upload that is sealed already.
    pub rows_max: u64,
    pub clock: SharedClock,
}

/// The directory of incomplete files. Clones share it.
#[derive(Clone, Debug)]
pub struct Scratch {
    dir: Dir,
    next: Arc<AtomicU64>,
}

impl Scratch {
    /// Removes the files that were incomplete when the process last ended.
    pub fn open(dir: Dir) -> io::Result<Self> {
        match dir.remove_all() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => dir.create()?,
        }
        let next = Arc::new(AtomicU64::new(0));
        Ok(Self { dir, next })
    }

    pub const fn dir(&self) -> &Dir {
        &self.dir
    }

    /// A file of a name that no other thread uses.
    pub fn temporary(&self) -> Temporary {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Temporary {
            disk: self.dir.disk().clone(),
            path: self.dir.file(&format!("snapshot-{number}")),
        }
    }
}

/// A file that is removed when this value is dropped.
pub struct Temporary {
    disk: SharedDisk,
    path: PathBuf,
}

impl Temporary {
    /// Path of the file, whether or not it exists yet.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// A directory for rows that do not fit in memory.
    fn spill(&self) -> Dir {
        Dir::new(self.disk.clone(), self.path.with_extension("rows"))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // The library has its own link to a stored snapshot. A file that cannot be removed here is
        // removed by [`Scratch::open`] at the next start.
        let _ = self.disk.remove(&self.path);
    }
}

impl Intake {
    /// The thread's body.
    pub fn run(&self, ctx: &ThreadCtx) {
        // Sorting and hashing stay on this thread: the rew-calc pool is for epochs.
        inline::here();
        loop {
            match self.tasks.recv(&ctx.shutdown, Deadline::within(IDLE)) {
                Recv::Item(task) => self.tick(task, &ctx.shutdown),
                Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => break,
            }
        }
        while let Some(task) = self.tasks.try_recv() {
            task.responder.send(Problem::draining(1));
        }
    }

    /// Seals one upload and sends the response.
    pub fn tick(&self, task: Task, shutdown: &Shutdown) {
        let (by, stop) = (task.responder.deadline(), shutdown.clone());
        let cancel = Cancel(Arc::new(move || by.expired() || stop.is_set()));
        let answer = self.take(&task, &cancel);
        let answer = answer.unwrap_or_else(|problem| {
            if shutdown.is_set() {
                Problem::draining(1).into()
            } else {
                (*problem).into()
            }
        });
        task.responder.send(answer);
    }

    fn take(&self, task: &Task, cancel: &Cancel) -> Result<Response, Box<Problem>> {
        let temporary = self.scratch.temporary();
        let sealed = self.seal(task, &temporary, cancel);
        let sealed = sealed.map_err(|error| Box::new(refused(error)))?;
        if let Some(wanted) = task.wanted
            && sealed.cid() != wanted
        {
            return Err(Box::new(errors::cid_mismatch(&sealed.cid())));
        }
        let now_ms = self.clock.unix_ms();
        let stored = self.library.put_snapshot(&task.tenant, &sealed, now_ms);
        let new = stored.map_err(|error| Box::new(errors::library(&error, false)))?;
        let status = if new { 201 } else { 200 };
        let location = format!("/rewarder/snapshots/{}", sealed.cid());
        Ok(Response::json(status, &sealed.info()).header("Location", location))
    }

    fn seal(
        &self,
        task: &Task,
        temporary: &Temporary,
        cancel: &Cancel,
    ) -> Result<Sealed, ImportError> {
        let (format, kind, period) = match &task.content {
            UploadContent::Sealed => {
                let into = self.disk.create_with_mode(temporary.path(), READABLE);
                copy(&task.upload, &*into.map_err(disk)?, cancel)?;
                let sealed = Sealed::open(temporary.disk(), temporary.path())?;
                return within(sealed, self.rows_max);
            }
            UploadContent::Rows(format, kind, period) => (*format, *kind, period.clone()),
        };
        let options = Options {
            kind,
            period,
            target: Target::file(&*self.disk, temporary.path()).map_err(disk)?,
            spill: Some(Spill {
                memory: self.memory,
                dir: temporary.spill(),
            }),
            rows_max: self.rows_max,
            cancel: Some(cancel.clone()),
        };
        let input = match format {
            Format::Parquet => Input::Parquet(Arc::new(task.upload.clone())),
            format => Input::Stream(format, task.upload.reader()),
        };
        import_inputs([input], options).map_err(|(_, error)| error)
    }
}

impl Positioned for Upload {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        ron_http::Source::read_at(self, offset, into)
    }
}

/// Refuses a snapshot with more accounts than the maximum.
pub fn within(sealed: Sealed, rows_max: u64) -> Result<Sealed, ImportError> {
    if sealed.info().accounts > rows_max {
        return Err(ImportError::TooMany { rows_max });
    }
    Ok(sealed)
}

fn disk(error: io::Error) -> ImportError {
    ImportError::Scratch(error.to_string())
}

fn copy(upload: &Upload, into: &dyn DiskFile, cancel: &Cancel) -> Result<(), ImportError> {
    let mut from = upload.reader();
    let (mut at, mut piece) = (0, vec![0; COPY]);
    loop {
        let count = from.read(&mut piece)?;
        if count == 0 {
            return Ok(());
        }
        if cancel.0() {
            return Err(ImportError::Stopped);
        }
        into.write_at(at, &piece[..count]).map_err(disk)?;
        at += count as u64;
    }
}

fn refused(error: ImportError) -> Problem {
    match error {
        ImportError::Stopped => {
            Problem::deadline_exceeded("sealing took longer than the request may; nothing was kept")
        }
        // The body is on the local disk by now, so these errors are the server's and not the
        // caller's.
        ImportError::Read(error) => errors::library(&LibraryError::Io(error), false),
        ImportError::Scratch(why) => {
            errors::library(&LibraryError::Io(io::Error::other(why)), false)
        }
        refused => errors::bad_snapshot(&refused),
    }
}
