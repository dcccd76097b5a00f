//! Intake: how snapshots come into the library, by upload or from a configured URL.
//!
//! A body is on disk when it gets here, in a file without a name. An intake thread turns it into
//! its sealed form, with bounded memory, and answers. Requests that only read never wait for it.

pub mod fetch;

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ron_http::{Responder, Response, Upload};
use ron_kernel::{Deadline, Receiver, Recv, SharedClock, Shutdown, ThreadCtx};
use ron_proto::problem::Problem;
use ron_proto::rewarder::{ImportKind, UsagePeriod};
use ron_proto::values::{ContentId, Tenant};

use crate::api::errors;
use crate::inputs::import::{Cancel, Format, ImportError, Input, Options, Spill, import_inputs};
use crate::inputs::snapshot::Sealed;
use crate::inputs::source::{Positioned, Target};
use crate::runs::library::{Library, LibraryError};

const IDLE: Duration = Duration::from_secs(5);
/// Longest time from a complete upload to its answer.
pub const SEAL_BUDGET: Duration = Duration::from_mins(15);
/// Bytes copied at a time.
const COPY: usize = 1 << 20;

/// What an upload holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The canonical form itself.
    Sealed,
    /// Rows, to be sealed, of this period.
    Rows(Format, ImportKind, Option<UsagePeriod>),
}

/// One upload on its way into the library.
pub struct Task {
    /// The body.
    pub upload: Upload,
    /// What it is.
    pub holds: Holds,
    /// The content id its sealed form must have, if the caller said so.
    pub wanted: Option<ContentId>,
    /// Whose it will be.
    pub tenant: Tenant,
    /// Who gets the answer.
    pub responder: Responder,
}

/// What an intake thread works with.
pub struct Intake {
    /// Uploads.
    pub tasks: Receiver<Task>,
    /// Where they go.
    pub library: Library,
    /// A directory of the library's file system for what is not complete. Emptied at start.
    pub scratch: PathBuf,
    /// About how much memory the rows of an upload may take.
    pub memory: usize,
    /// Most rows of an upload, and accounts of one that is sealed already.
    pub rows_max: u64,
    /// Time.
    pub clock: SharedClock,
}

/// A file that goes when this does.
pub struct Temporary(PathBuf);

impl Temporary {
    /// A name in `dir` that no other thread of this process uses.
    pub fn new(dir: &Path) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(dir.join(format!("snapshot-{number}")))
    }

    /// Where it is, or would be.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // The library has its own link; what cannot be removed is swept at the next start.
        let _ = fs::remove_file(&self.0);
    }
}

impl Intake {
    /// The thread's body.
    pub fn run(&self, ctx: &ThreadCtx) {
        // Sorting and hashing stay on this thread: the computing pool is for epochs.
        let inline = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .use_current_thread()
            .build();
        if let Err(error) = &inline {
            tracing::warn!(event = "intake_pool", reason = %error, "sorting uses the shared pool");
        }
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

    /// One upload.
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
        let temporary = Temporary::new(&self.scratch);
        let sealed = self.seal(task, &temporary, cancel);
        let sealed = sealed.map_err(|error| Box::new(refused(error)))?;
        if let Some(wanted) = task.wanted
            && sealed.cid() != wanted
        {
            return Err(Box::new(errors::cid_mismatch(&sealed.cid())));
        }
        let stored = self.library.put_snapshot(&task.tenant, &sealed);
        let new = stored.map_err(|error| Box::new(errors::library(&error, false)))?;
        if !new {
            let now_ms = self.clock.unix_ms();
            self.library.renew(&task.tenant, &sealed.cid(), now_ms);
        }
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
        let (format, kind, period) = match &task.holds {
            Holds::Sealed => {
                copy(&task.upload, temporary.path(), cancel)?;
                let sealed = Sealed::open(temporary.path())?;
                return within(sealed, self.rows_max);
            }
            Holds::Rows(format, kind, period) => (*format, *kind, period.clone()),
        };
        let options = Options {
            kind,
            period,
            target: Target::file(temporary.path()).map_err(disk)?,
            spill: Some(Spill {
                memory: self.memory,
                scratch: self.scratch.clone(),
            }),
            rows_max: self.rows_max,
            cancel: Some(cancel.clone()),
        };
        let input = match format {
            Format::Parquet => Input::Parquet(Arc::new(Body(task.upload.clone()))),
            format => Input::Stream(format, task.upload.reader()),
        };
        import_inputs([input], options).map_err(|(_, error)| error)
    }
}

/// An upload that is read by position.
struct Body(Upload);

impl Positioned for Body {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        ron_http::Source::read_at(&self.0, offset, into)
    }
}

/// The snapshot, if it has no more accounts than one may have.
pub fn within(sealed: Sealed, rows_max: u64) -> Result<Sealed, ImportError> {
    if sealed.info().accounts > rows_max {
        return Err(ImportError::TooMany { rows_max });
    }
    Ok(sealed)
}

fn disk(error: io::Error) -> ImportError {
    ImportError::Scratch(error.to_string())
}

fn copy(upload: &Upload, to: &Path, cancel: &Cancel) -> Result<(), ImportError> {
    let (mut from, mut into) = (upload.reader(), File::create(to).map_err(disk)?);
    let mut piece = vec![0; COPY];
    loop {
        let count = from.read(&mut piece)?;
        if count == 0 {
            return Ok(());
        }
        if cancel.0() {
            return Err(ImportError::Stopped);
        }
        into.write_all(&piece[..count]).map_err(disk)?;
    }
}

fn refused(error: ImportError) -> Problem {
    match error {
        ImportError::Stopped => {
            Problem::deadline_exceeded("sealing took longer than the request may; nothing was kept")
        }
        // The body is on our own disk by now, so these are our faults and not the caller's.
        ImportError::Read(error) => errors::library(&LibraryError::Io(error), false),
        ImportError::Scratch(why) => {
            errors::library(&LibraryError::Io(io::Error::other(why)), false)
        }
        refused => errors::bad_snapshot(&refused),
    }
}

/// What was not complete when the process ended is of no use.
pub fn clear(scratch: &Path) -> io::Result<()> {
    match fs::remove_dir_all(scratch) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    crate::manifest::dir::create_dirs(scratch)
}
