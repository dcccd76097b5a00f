//! From an engine to files.

use std::path::Path;
use std::sync::Arc;

use super::super::checkpointer::CHECKPOINT_NAME;
use super::super::engine_log::{EngineError, EngineLog};
use super::super::errors::OpenError;
use super::super::log::LogOptions;
use super::super::source::Source;
use super::read_back::ReadBack;
use super::{
    MigrateError, Migrated, Progress, by, claim_copy, into_own, is_copy, refused, sync_segments,
};
use crate::checkpoint::Checkpoint;
use crate::note::NoteSigner;
use crate::store::{LogStore, StoreError, Transit};
use ron_files::{Disk, write_atomic};

/// The sessions of a migration to files.
pub struct Back {
    /// Under the name of [`Transit::Moved`].
    pub node: [Box<dyn LogStore>; 2],
    /// For reads alone, so that its name does not matter.
    pub reads: Box<dyn LogStore>,
    /// Where the directory is, as in the name of `node`.
    pub place: String,
    /// Signs the log once nothing comes any more: of one whose checkpoints are in no engine.
    pub signer: Option<Arc<dyn NoteSigner>>,
}

/// Makes the copy of a stopped node a log in files, of its own. Until the claim other nodes may go on; after it none writes, because
/// the log's holder is the name of the files.
pub fn to_files(
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: LogOptions,
    sessions: Back,
    is_resumed: bool,
    progress: Progress<'_>,
) -> Result<Migrated, MigrateError> {
    let Back {
        node: [store, checkpoints],
        mut reads,
        place,
        signer,
    } = sessions;
    let engine = &mut *reads;
    let is_copy = is_copy(Arc::clone(&disk), dir, &options.origin)?;
    match engine.head(by())?.transit() {
        Some(Transit::Moved(at)) if at == place && !is_resumed => {
            return refused(
                "an earlier migration has begun to move the log here: go on with --resume",
            );
        }
        Some(Transit::Moved(at)) if at == place => {}
        Some(transit) => {
            return refused(format!("the log in the database is not in use: {transit}"));
        }
        None if is_copy => {}
        None => {
            return refused(format!("{} holds a log of its own already", dir.display()));
        }
    }
    if is_copy {
        let mut copy =
            EngineLog::open(Arc::clone(&disk), dir, options.clone(), store, checkpoints)?;
        let signer = signer.as_deref();
        take_over(&disk, dir, &options, &mut copy, (engine, signer), progress)?;
    }
    into_own(disk, dir, options)
}

/// Takes the log over from its nodes, and makes the copy as good as a log of its own: complete, compared, durable.
fn take_over(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    options: &LogOptions,
    copy: &mut EngineLog,
    (engine, signer): (&mut dyn LogStore, Option<&dyn NoteSigner>),
    progress: Progress<'_>,
) -> Result<(), MigrateError> {
    while !copy.follow(by())?.is_empty() {
        progress(0, copy.size());
    }
    let mut source = Source::open(Arc::clone(disk), dir, &options.origin)?;
    let mut back = ReadBack::new(&options.origin);
    compare(&mut source, &mut back, copy.size(), engine, progress)?;
    // A log of its own is not opened without the checkpoints that it mentions. Those of later batches are in the engine before them.
    let newest = engine.checkpoint(by())?.map_or(0, |(size, _)| size);
    if signer.is_none() && source.noted() > newest.max(copy.reader().checkpoint_size()) {
        return refused(format!(
            "the database has no checkpoint of {} entries or more, which the log mentions",
            source.noted()
        ));
    }
    let seen = engine.head(by())?.epoch;
    claim_copy(copy, seen)?;
    // Nothing comes any more: what a node has appended since is compared too.
    compare(&mut source, &mut back, copy.size(), engine, progress)?;
    if (back.tree.size(), back.tree.root()) != (copy.size(), copy.root()) {
        let why = "the copy in the files is not what the database has";
        return Err(StoreError::Lost(why.into()).into());
    }
    if let Some(signer) = signer {
        let signed = copy.publish_checkpoint(signer);
        signed
            .map_err(|e| MigrateError::Refused(format!("its checkpoint was not written: {e}")))?;
    }
    adopt_checkpoint(&**disk, dir, options, copy, engine)?;
    sync_segments(&**disk, dir)?;
    Ok(())
}

/// Compares the batches of a copy with those in the engine.
fn compare(
    source: &mut Source,
    back: &mut ReadBack,
    upto: u64,
    engine: &mut dyn LogStore,
    progress: Progress<'_>,
) -> Result<(), MigrateError> {
    let salt = back.salt.clone();
    source.read(upto, &salt, &mut |batch| {
        back.expect(batch);
        if back.is_due() {
            back.read(engine)?;
        }
        progress(back.tree.size(), upto);
        Ok::<(), MigrateError>(())
    })?;
    back.read(engine)?;
    progress(back.tree.size(), upto);
    Ok(())
}

/// Takes the engine's newest checkpoint over, unless this node has seen a later one.
fn adopt_checkpoint(
    disk: &dyn Disk,
    dir: &Path,
    options: &LogOptions,
    copy: &EngineLog,
    engine: &mut dyn LogStore,
) -> Result<(), MigrateError> {
    let reader = copy.reader();
    let Some((size, note)) = engine.checkpoint(by())? else {
        return Ok(());
    };
    if size < reader.checkpoint_size() {
        return Ok(());
    }
    let origin = Some(options.origin.as_str());
    let checkpoint = match &options.verifiers[..] {
        [] => Checkpoint::read_unverified(&note, origin),
        keys => Checkpoint::open(&note, keys, origin),
    };
    let checkpoint = checkpoint.map_err(OpenError::from)?;
    let root = reader.root_at(checkpoint.size).map_err(EngineError::from)?;
    if root != checkpoint.root {
        let why = format!("its checkpoint of {size} entries is of another log");
        return Err(StoreError::Lost(why).into());
    }
    write_atomic(disk, dir, CHECKPOINT_NAME, note.as_bytes())
        .map_err(OpenError::io("writing", dir.join(CHECKPOINT_NAME)))?;
    Ok(())
}
