//! Moves a log from files to an engine, and back. No leaf is written: batches keep their bounds and leaves, so that roots,
//! receipts, checkpoints and cosignatures stay valid.
//!
//! ```text
//!  files ──Fill──> the engine, held as `filling` ── all read back and compared ──> tombstone in log.meta ──> open to nodes
//!  a node's copy ──to_files──> all compared with the engine ──> the engine held as `moved` ──> log.meta: a log of its own
//!  a node's copy ──from_copy──> a checkpoint of all of it ──> log.meta: a log of its own     the engine is lost
//! ```
//!
//! **Invariant:** at every moment at most one place takes entries. On the way there that is the files until `log.meta` names the
//! engine, and on the way back the engine until its holder is `moved`.
//! **Invariant:** a step that was interrupted is made again; what is there is compared and not trusted.

mod back;
mod lost;
mod read_back;
mod there;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_kernel::Deadline;

use super::engine_log::{EngineError, EngineLog};
use super::errors::OpenError;
use super::layout::segment_number;
use super::log::{Log, LogOptions};
use super::meta::Meta;
use super::open::copy_refused;
use super::source::Source;
use crate::store::{Head, LogStore, StoreError};
use crate::tree::Hash;
use ron_files::Disk;

pub use back::{Back, to_files};
pub use lost::from_copy;
pub use there::{Fill, MakePrivate, finish_tombstone};

/// Maximum time of one call to the engine.
const CALL: Duration = Duration::from_secs(30);
/// Maximum time until an append or a claim without an outcome has one.
const UNKNOWN: Duration = Duration::from_secs(120);

/// Why a migration went no further. All but [`MigrateError::Refused`] can be tried again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// What is there does not fit. Nothing was changed in the files.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Files(#[from] OpenError),
    /// This node's copy could not be read or written.
    #[error(transparent)]
    Copy(EngineError),
}

impl From<EngineError> for MigrateError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Store(error) => Self::Store(error),
            EngineError::Open(error) => Self::Files(error),
            error => Self::Copy(error),
        }
    }
}

fn refused<T>(why: impl Into<String>) -> Result<T, MigrateError> {
    Err(MigrateError::Refused(why.into()))
}

/// Called with the number of entries that were compared, and of all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// What a migration has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Entries of the log.
    pub size: u64,
    pub root: Hash,
    /// Entries that this call has appended to the engine, and bytes of their batches.
    pub sent: u64,
    pub bytes: u64,
}

fn by() -> Deadline {
    Deadline::within(CALL)
}

/// Claims a log, and waits for the outcome.
fn claim(store: &mut dyn LogStore, seen: u64) -> Result<Head, StoreError> {
    let give_up = Deadline::within(UNKNOWN);
    loop {
        match store.claim(seen, by()) {
            Err(StoreError::Unknown(_)) if !give_up.expired() => {}
            outcome => return outcome,
        }
    }
}

/// Whether a directory holds the copy of a log that an engine keeps. Refused when it holds no log, or another one.
pub fn is_copy(disk: Arc<dyn Disk>, dir: &Path, origin: &str) -> Result<bool, OpenError> {
    Ok(Source::open(disk, dir, origin)?.meta.is_copy())
}

/// Refuses the copy of a log that an engine keeps, whichever log it is of: what a service does before it opens what it has beside the
/// log.
pub fn refuse_copy(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    match Meta::load(disk, dir)? {
        Some(meta) if meta.is_copy() => Err(copy_refused(&meta, dir)),
        _ => Ok(()),
    }
}

/// Removes the entries of a copy that lacks their private parts; the next node to open it reads all of them from the engine. What was
/// signed stays, so that the engine is compared with it.
pub fn clear_copy(disk: &dyn Disk, dir: &Path) -> Result<(), MigrateError> {
    match Meta::load(disk, dir)? {
        Some(meta) if meta.is_copy() => {}
        _ => return refused(format!("{} is no copy", dir.display())),
    }
    let names = disk.list(dir).map_err(OpenError::io("listing", dir))?;
    let is_index = |name: &str| Path::new(name).extension().is_some_and(|end| end == "idx");
    let of_entries = |name: &&String| is_index(name) || segment_number(name).is_some();
    for name in names.iter().filter(of_entries) {
        let path = dir.join(name);
        disk.remove(&path)
            .map_err(OpenError::io("removing", &path))?;
    }
    Ok(disk.sync_dir(dir).map_err(OpenError::io("syncing", dir))?)
}

/// Ends a migration to files: a copy that is complete and durable is a log of its own from now on.
fn into_own(
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: LogOptions,
) -> Result<Migrated, MigrateError> {
    let meta = Meta::load(&*disk, dir)?.expect("it was read before");
    if meta.is_copy() {
        let copy_of = None;
        Meta { copy_of, ..meta }.store(&*disk, dir)?;
    }
    let log = Log::open(disk, dir, options)?;
    Ok(Migrated {
        size: log.size(),
        root: log.root(),
        ..Migrated::default()
    })
}

fn claim_copy(copy: &mut EngineLog, seen: u64) -> Result<(), EngineError> {
    let give_up = Deadline::within(UNKNOWN);
    loop {
        match copy.claim(seen, &[], by()) {
            Err(EngineError::Store(StoreError::Unknown(_))) if !give_up.expired() => {}
            outcome => return outcome.map(drop),
        }
    }
}

/// Makes the entries of a copy durable, which is written without a flush.
fn sync_segments(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    let names = disk.list(dir).map_err(OpenError::io("listing", dir))?;
    for name in names.iter().filter(|name| segment_number(name).is_some()) {
        let path = dir.join(name);
        let synced = disk.open_write(&path).and_then(|file| file.sync_data());
        synced.map_err(OpenError::io("syncing", &path))?;
    }
    disk.sync_dir(dir).map_err(OpenError::io("syncing", dir))
}
