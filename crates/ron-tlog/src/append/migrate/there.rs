//! From files to an engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_kernel::Deadline;

use super::super::build::damaged;
use super::super::engine_log::EngineLog;
use super::super::frame;
use super::super::log::{Log, LogOptions};
use super::super::open::load_checkpoint;
use super::super::source::Source;
use super::read_back::ReadBack;
use super::{MigrateError, Migrated, Progress, UNKNOWN, by, claim, claim_copy, refused};
use crate::checkpoint::Checkpoint;
use crate::store::{Batch, Head, LogStore, LogUpkeep, Place, StoreError, Transit, Writer};
use crate::tree::{Hash, empty_root};
use ron_files::Disk;

/// Bytes, and batches, that one transaction appends.
const RUN_BYTES: usize = 1 << 20;
const RUN_BATCHES: usize = 512;
/// Entries after which the engine's tables are looked at: fewer than half of a partition has.
const TEND_EVERY: u64 = 1 << 20;

/// A log that goes from files to an engine.
pub struct Fill {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    options: LogOptions,
    source: Source,
    target: Target,
    private: Option<MakePrivate>,
}

/// Makes the private part of an entry from its index and leaf, where the log in files has none.
pub type MakePrivate = Box<dyn FnMut(u64, &[u8]) -> Result<Vec<u8>, String>>;

/// The engine's side.
struct Target {
    store: Box<dyn LogStore>,
    upkeep: Option<Box<dyn LogUpkeep>>,
    seen: Head,
    /// The epoch under which this migration appends; claimed when all that was there has been compared.
    epoch: Option<u64>,
    /// What the engine has, with `run`.
    size: u64,
    root: Hash,
    /// Batches that go with the next append.
    run: Vec<Batch>,
    run_bytes: usize,
    back: ReadBack,
    sent: u64,
    bytes: u64,
    tended: u64,
}

impl Target {
    fn take(&mut self, batch: Batch) -> Result<(), MigrateError> {
        let place = batch.place;
        if place.end() > self.size {
            if (place.first, place.before) != (self.size, self.root) {
                return refused(format!(
                    "the log in the database is another one: it has {} entries with another root, or batches of other lengths",
                    self.size
                ));
            }
            self.claim()?;
            (self.size, self.root) = (place.end(), place.root);
            self.run_bytes += batch.frame.len();
            self.run.push(batch.clone());
            if self.run_bytes >= RUN_BYTES || self.run.len() >= RUN_BATCHES {
                self.send()?;
            }
        }
        self.back.expect(batch);
        if self.back.is_due() {
            self.flush()?;
        }
        Ok(())
    }

    /// Claims the log for the migration, once what it has was compared. Later ones fence this one.
    fn claim(&mut self) -> Result<u64, MigrateError> {
        if let Some(epoch) = self.epoch {
            return Ok(epoch);
        }
        self.back.read(&mut *self.store)?;
        let head = claim(&mut *self.store, self.seen.epoch)?;
        if (head.size, head.root) != (self.seen.size, self.seen.root) {
            return Err(StoreError::Lost("its end vanished while it was read".into()).into());
        }
        self.epoch = Some(head.epoch);
        Ok(head.epoch)
    }

    /// Appends what is collected.
    fn send(&mut self) -> Result<(), MigrateError> {
        let (Some(first), Some(last)) = (self.run.first(), self.run.last()) else {
            return Ok(());
        };
        let whole = Batch {
            place: Place {
                first: first.place.first,
                count: (last.place.end() - first.place.first) as u32,
                before: first.place.before,
                root: last.place.root,
            },
            frame: Vec::new(),
        };
        if let Some(upkeep) = &mut self.upkeep
            && last.place.end() >= self.tended
        {
            upkeep.install(by())?;
            self.tended = last.place.end() + TEND_EVERY;
        }
        let give_up = Deadline::within(UNKNOWN);
        let mut epoch = self.epoch.expect("claimed before anything is collected");
        let mut is_sent = false;
        while !is_sent {
            is_sent = match self.store.append_run(epoch, &self.run, by()) {
                Ok(()) => true,
                Err(StoreError::Unknown(why)) => loop {
                    let writer = Writer::Owner { epoch };
                    match self.store.resolve(writer, &[], &whole, by()) {
                        Ok(resolution) => {
                            epoch = resolution.head.epoch;
                            self.epoch = Some(epoch);
                            break resolution.done;
                        }
                        Err(StoreError::Unknown(_)) if !give_up.expired() => {}
                        Err(StoreError::Unknown(_)) => return Err(StoreError::Unknown(why).into()),
                        Err(error) => return Err(error.into()),
                    }
                },
                Err(error) => return Err(error.into()),
            };
        }
        self.sent += u64::from(whole.place.count);
        self.bytes += self.run_bytes as u64;
        (self.run, self.run_bytes) = (Vec::new(), 0);
        Ok(())
    }

    /// Appends what is collected, and reads back what was not yet.
    fn flush(&mut self) -> Result<(), MigrateError> {
        self.send()?;
        self.back.read(&mut *self.store)
    }

    fn report(&self) -> Migrated {
        Migrated {
            size: self.back.tree.size(),
            root: self.back.tree.root(),
            sent: self.sent,
            bytes: self.bytes,
        }
    }
}

impl Fill {
    /// Looks at both sides; changes nothing. The log in the engine is new, or the one that an earlier migration of these files
    /// has begun (`is_resumed`) or moved back. `store` is a session under the name of [`Transit::Filling`].
    pub fn begin(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: LogOptions,
        mut store: Box<dyn LogStore>,
        upkeep: Option<Box<dyn LogUpkeep>>,
        is_resumed: bool,
    ) -> Result<Self, MigrateError> {
        let source = Source::open(Arc::clone(&disk), dir, &options.origin)?;
        if source.meta.is_copy() {
            return refused(format!(
                "{} is the copy of a log that an engine keeps: there is nothing to move",
                dir.display()
            ));
        }
        let seen = store.head(by())?;
        match seen.transit() {
            Some(Transit::Filling(from)) if !is_resumed => {
                return refused(format!(
                    "the database has a part of the log from an earlier migration of {from}: go on with --resume"
                ));
            }
            Some(_) => {}
            None if seen.size == 0 && seen.epoch == 0 && seen.root == empty_root() => {}
            None => {
                return refused(format!(
                    "the database has a log of this name with {} entries, which {} has claimed: name another schema",
                    seen.size,
                    match seen.holder.as_str() {
                        "" => "nobody",
                        holder => holder,
                    }
                ));
            }
        }
        let back = ReadBack::new(&options.origin);
        Ok(Self {
            disk,
            dir: dir.to_owned(),
            target: Target {
                store,
                upkeep,
                epoch: None,
                size: seen.size,
                root: seen.root,
                seen,
                run: Vec::new(),
                run_bytes: 0,
                back,
                sent: 0,
                bytes: 0,
                tended: 0,
            },
            options,
            source,
            private: None,
        })
    }

    /// Has entries without a private part get one in the engine: what files keep beside the log. The copy in the directory lacks it,
    /// so its segments are to be removed at the end.
    #[must_use]
    pub fn adding(self, private: Option<MakePrivate>) -> Self {
        Self { private, ..self }
    }

    /// Copies what the newest checkpoint in the directory covers, reads it back, and compares the root; another process may write
    /// the log meanwhile. What a checkpoint covers is durable, so that no crash of that process takes it back.
    pub fn copy_signed(&mut self, progress: Progress<'_>) -> Result<Migrated, MigrateError> {
        let published = load_checkpoint(&*self.disk, &self.dir, &self.source.meta, &self.options)?;
        let Some(published) = published else {
            return Ok(self.target.report());
        };
        let checkpoint = &published.checkpoint;
        self.copy(checkpoint.size, progress)?;
        if self.source.size() == checkpoint.size {
            self.sign(checkpoint, &published.text)?;
        }
        Ok(self.target.report())
    }

    fn copy(&mut self, upto: u64, progress: Progress<'_>) -> Result<(), MigrateError> {
        let (source, target) = (&mut self.source, &mut self.target);
        let private = &mut self.private;
        let salt = target.back.salt.clone();
        source.read(upto, &salt, &mut |batch| {
            let whole = match private {
                Some(private) => {
                    let first = batch.place.first;
                    let whole = frame::with_private(&batch, &salt, private);
                    whole.map_err(|why| damaged(first, why))?
                }
                None => batch,
            };
            target.take(whole)?;
            progress(target.back.tree.size(), upto);
            Ok::<(), MigrateError>(())
        })?;
        target.flush()?;
        progress(target.back.tree.size(), upto);
        Ok(())
    }

    /// Compares the tree that was read back with a signed checkpoint, and gives that to the engine.
    fn sign(&mut self, checkpoint: &Checkpoint, note: &str) -> Result<(), MigrateError> {
        let target = &mut self.target;
        let (size, root) = (target.back.tree.size(), target.back.tree.root());
        if size == checkpoint.size && root != checkpoint.root {
            return Err(damaged(
                0,
                format!("the first {size} entries do not have the root of their checkpoint"),
            )
            .into());
        }
        let epoch = target.claim()?;
        let writer = Writer::Owner { epoch };
        target
            .store
            .put_checkpoint(writer, checkpoint.size, note, by())?;
        Ok(())
    }

    /// Takes the log's lock, copies the rest, compares everything, and makes the engine its place: `log.meta` says so first, and
    /// no program without the engine opens the directory any more; then nodes may claim the log. `place` names the engine for that
    /// message. `node` are two sessions under the name that the log has when it is open to nodes.
    pub fn finish(
        mut self,
        place: &str,
        node: [Box<dyn LogStore>; 2],
        progress: Progress<'_>,
    ) -> Result<Migrated, MigrateError> {
        let (disk, dir, options) = (
            Arc::clone(&self.disk),
            self.dir.clone(),
            self.options.clone(),
        );
        // Opening cuts a torn end and makes the last batch durable: what is copied now cannot vanish from the files.
        let log = Log::open(Arc::clone(&disk), &dir, options.clone())?;
        let (size, root) = (log.size(), log.root());
        self.copy(size, progress)?;
        if let Some(published) = log.shared.published.load().as_ref() {
            self.sign(&published.checkpoint, &published.text)?;
        }
        let target = &mut self.target;
        if target.size > size {
            return refused(format!(
                "the database has {} entries of this log, and the files have {size}: they are of an earlier time",
                target.size
            ));
        }
        let epoch = target.claim()?;
        let head = target.store.head(by())?;
        let found = (head.size, head.root, head.epoch);
        if found != (size, root, epoch) || target.back.tree.root() != root {
            let why = format!("it has {} entries after all {size} were copied", head.size);
            return Err(StoreError::Lost(why).into());
        }
        let mut meta = log.shared.meta.clone();
        meta.copy_of = Some(place.to_owned());
        meta.store(&*disk, &dir)?;
        drop(log);
        let report = target.report();
        open_to_nodes(disk, &dir, options, node, epoch)?;
        Ok(report)
    }
}

/// Ends a migration that was interrupted when `log.meta` named the engine already. `node` are sessions as for [`Fill::finish`].
pub fn finish_tombstone(
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: LogOptions,
    mut node: [Box<dyn LogStore>; 2],
) -> Result<Migrated, MigrateError> {
    let head = node[0].head(by())?;
    if !matches!(head.transit(), Some(Transit::Filling(_))) {
        return refused(format!(
            "{} is the copy of a log that an engine keeps, and no migration of it is to be ended",
            dir.display()
        ));
    }
    open_to_nodes(disk, dir, options, node, head.epoch)
}

/// Opens the directory as this node's copy and claims the log under a name that no node takes for its own: the claim compares the
/// engine with all that the copy has.
fn open_to_nodes(
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: LogOptions,
    [store, checkpoints]: [Box<dyn LogStore>; 2],
    seen: u64,
) -> Result<Migrated, MigrateError> {
    let mut copy = EngineLog::open(disk, dir, options, store, checkpoints)?;
    claim_copy(&mut copy, seen)?;
    Ok(Migrated {
        size: copy.size(),
        root: copy.root(),
        ..Migrated::default()
    })
}
