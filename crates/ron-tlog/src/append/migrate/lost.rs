//! From a copy alone, when the engine is lost.

use std::path::Path;
use std::sync::Arc;

use super::super::log::{Log, LogOptions};
use super::{MigrateError, Migrated, into_own, is_copy, refused, sync_segments};
use crate::note::NoteSigner;
use ron_files::Disk;

/// Makes the copy of a stopped node a log in files, of its own, without the engine, which is lost for good: what only the engine had
/// is lost with it. The signer's checkpoint of the whole copy takes the place of those that only the engine had.
pub fn from_copy(
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: LogOptions,
    signer: &dyn NoteSigner,
) -> Result<Migrated, MigrateError> {
    if !is_copy(Arc::clone(&disk), dir, &options.origin)? {
        return refused(format!("{} holds a log of its own already", dir.display()));
    }
    // Damage is refused: there is no engine from which the copy could be made again.
    let (mut log, seen) = Log::open_as(Arc::clone(&disk), dir, options.clone(), true)?;
    let signed = seen.map_or(0, |checkpoint| checkpoint.size);
    if signed > log.size() {
        return refused(format!(
            "the copy ends at {} entries, and a checkpoint of {signed} was seen: take the copy of another node, which has more",
            log.size()
        ));
    }
    sync_segments(&*disk, dir)?;
    if signed < log.size() {
        log.publish_checkpoint(signer).map_err(|error| {
            MigrateError::Refused(format!("its checkpoint was not written: {error}"))
        })?;
    }
    drop(log);
    into_own(disk, dir, options)
}
