//! Moves the log of a data directory from files to an engine, and back, whichever service it belongs to: the steps of `ron ledger
//! migrate` and its siblings. On the way there the service runs until all but the end is copied.
//!
//! ```text
//!  follow ──> Followed::Copied(lock) ──> the service copies what it has beside its log ──> close_files ──> the service opens that
//!     └─────> Followed::Closed(lock)     an earlier move came so far ────────────────────> end ───────────┘
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ron_files::{Dir, SharedDisk};
use ron_kernel::{Deadline, OsNet, Shutdown};
use ron_tlog::append::{
    Back, Fill, MakePrivate, MigrateError, Migrated, finish_tombstone, is_copy, to_files,
};
use ron_tlog::note::NoteSigner;
use ron_tlog::store::{Head, LogSessions, LogStore, LogUpkeep, StoreError, Transit};
use ron_tlog::{LogOptions, OpenError, VerifierKey};

use crate::records::{Engine, EngineAccess, Engines, LogClaim};
use crate::{DataDir, StartError};

/// Maximum time of a call that makes or removes tables.
const TABLES: Duration = Duration::from_secs(60);
/// Pause between two looks at a service that still runs.
const POLL: Duration = Duration::from_secs(1);
/// Entries that may be missing when the service is to be stopped.
const NEAR: u64 = 100_000;

/// Why a log was not moved, or not all the way.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error(transparent)]
    Log(#[from] MigrateError),
    /// The data directory or the database cannot be used as it is. Nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// What the service has beside its log could not be copied, or differs after that.
    #[error("{0}")]
    Beside(String),
}

impl From<StoreError> for MoveError {
    fn from(error: StoreError) -> Self {
        MigrateError::from(error).into()
    }
}

impl From<OpenError> for MoveError {
    fn from(error: OpenError) -> Self {
        MigrateError::from(error).into()
    }
}

impl From<StartError> for MoveError {
    fn from(error: StartError) -> Self {
        Self::Refused(error.to_string())
    }
}

/// What a move reports on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Entries that were compared, and that are to be.
    Entries(u64, u64),
    /// All but the end is copied: the service has to be stopped now. The text says which process runs it.
    Stop(String),
    /// The move goes on after a while. The text says what it waits for.
    Wait(String),
}

/// Called with each step.
pub type Show<'a> = &'a mut dyn FnMut(Step);

/// A log, and the engine that it goes to or comes from.
#[derive(Clone, Copy, Debug)]
pub struct Move<'a> {
    /// The data directory of the service.
    pub data: &'a Dir,
    /// Name of the log's directory in `data`.
    pub log: &'a str,
    /// How nodes on other hosts are told of the data directory.
    pub place: &'a str,
    /// The keys that verify the log's checkpoints, oldest first; all have the log's name, and there is at least one.
    pub keys: &'a [VerifierKey],
    pub engine: &'a Engine,
    /// How it is reached.
    pub engines: &'a dyn Engines,
    /// Drawn for each start of a move: a claim whose outcome was lost is recognised by it.
    pub run: u64,
}

/// How far a move to an engine is once the service has stopped. Holds the lock of the data directory.
pub enum Followed {
    /// All that was signed is copied, and the files still are the log.
    Copied(Box<Copied>),
    /// An earlier move has closed the files.
    Closed(DataDir),
}

/// A log of which all that was signed is copied.
pub struct Copied {
    fill: Fill,
    _lock: DataDir,
}

impl Move<'_> {
    /// Moves a log with nothing beside it to the engine. The service may run meanwhile; when all but the end is copied, `show` is told
    /// that it has to stop, and the move goes on when it has. `is_resumed`: an earlier move was interrupted.
    pub fn to_engine(&self, is_resumed: bool, show: Show<'_>) -> Result<Migrated, MoveError> {
        match self.follow(is_resumed, show)? {
            Followed::Copied(copied) => self.close_files(*copied, show),
            Followed::Closed(_lock) => self.end(),
        }
    }

    /// Copies what is signed until the service has stopped.
    pub fn follow(&self, is_resumed: bool, show: Show<'_>) -> Result<Followed, MoveError> {
        self.follow_adding(None, is_resumed, show)
    }

    /// The same, and gives entries their private parts.
    pub fn follow_adding(
        &self,
        private: Option<MakePrivate>,
        is_resumed: bool,
        show: Show<'_>,
    ) -> Result<Followed, MoveError> {
        self.check()?;
        let was_moved = self.is_copy()?;
        if was_moved && !is_resumed {
            let why = format!(
                "{} is the copy of a log that a database keeps: there is nothing to move",
                self.dir().display()
            );
            return Err(MoveError::Refused(why));
        }
        if was_moved {
            return Ok(Followed::Closed(self.lock()?));
        }
        let mut fill = self.begin(self.engine, is_resumed)?.adding(private);
        let lock = self.copy_until_stopped(&mut fill, show)?;
        Ok(Followed::Copied(Box::new(Copied { fill, _lock: lock })))
    }

    /// Copies the end, closes the files, and opens the log in the engine to nodes.
    pub fn close_files(&self, copied: Copied, show: Show<'_>) -> Result<Migrated, MoveError> {
        let place = self.engine.place();
        let node = self.node_sessions()?;
        let progress = &mut |done, of| show(Step::Entries(done, of));
        Ok(copied.fill.finish(&place, node, progress)?)
    }

    /// Opens a log to nodes whose files an earlier move has closed; refused when it is open to them already.
    pub fn end(&self) -> Result<Migrated, MoveError> {
        let node = self.node_sessions()?;
        Ok(finish_tombstone(
            self.disk(),
            &self.dir(),
            self.options(),
            node,
        )?)
    }

    /// Copies what is signed by now to a schema of its own, which is removed afterwards. Nothing else is changed.
    pub fn rehearse(&self, show: Show<'_>) -> Result<Migrated, MoveError> {
        self.rehearse_adding(None, show)
    }

    /// The same, and gives entries their private parts.
    pub fn rehearse_adding(
        &self,
        private: Option<MakePrivate>,
        show: Show<'_>,
    ) -> Result<Migrated, MoveError> {
        self.check()?;
        if self.is_copy()? {
            let why = format!(
                "{} is a copy: there is nothing to move",
                self.data.path().display()
            );
            return Err(MoveError::Refused(why));
        }
        let engine = Engine {
            schema: format!("{}_rehearsal", self.engine.schema),
            ..self.engine.clone()
        };
        let LogSessions {
            mut batches,
            mut upkeep,
            ..
        } = self.sessions(&engine, "rehearsal")?;
        // What an interrupted rehearsal has left, and nothing else. The head is refused when there are no tables.
        let left = batches.head(Deadline::within(TABLES));
        if left.is_ok_and(|head| head.epoch > 0 && head.transit().is_none()) {
            let why = format!("the schema {} has a log that is in use", engine.schema);
            return Err(MoveError::Refused(why));
        }
        upkeep.remove(Deadline::within(TABLES))?;
        let copied = self.begin(&engine, false).and_then(|fill| {
            let mut fill = fill.adding(private);
            Ok(fill.copy_signed(&mut |done, of| show(Step::Entries(done, of)))?)
        });
        upkeep.remove(Deadline::within(TABLES))?;
        copied
    }

    /// Makes the copy of this node, which does not run, a log in files of its own. No node writes to the engine any more.
    pub fn to_files(&self, is_resumed: bool, show: Show<'_>) -> Result<Migrated, MoveError> {
        self.check()?;
        self.is_copy()?;
        let _lock = self.lock()?;
        self.log_to_files(None, is_resumed, show)
    }

    /// As [`Move::to_files`], for a caller that has the lock. `signer` is that of a log whose nodes sign checkpoints for themselves.
    pub fn log_to_files(
        &self,
        signer: Option<Arc<dyn NoteSigner>>,
        is_resumed: bool,
        show: Show<'_>,
    ) -> Result<Migrated, MoveError> {
        let place = self.place.to_owned();
        let node = self.sessions(self.engine, &Transit::Moved(place.clone()).holder(self.run))?;
        let reads = self.sessions(self.engine, "migrate")?;
        let sessions = Back {
            node: [node.batches, node.checkpoints],
            reads: reads.batches,
            place,
            signer,
        };
        let progress = &mut |done, of| show(Step::Entries(done, of));
        Ok(to_files(
            self.disk(),
            &self.dir(),
            self.options(),
            sessions,
            is_resumed,
            progress,
        )?)
    }

    /// Refuses an engine that this program cannot use.
    pub fn check(&self) -> Result<(), MoveError> {
        match self.engines.fault(self.engine) {
            Some(why) => Err(MoveError::Refused(format!("the database {why}"))),
            None => Ok(()),
        }
    }

    /// Whether the directory is the copy of a log that an engine keeps.
    pub fn is_copy(&self) -> Result<bool, OpenError> {
        is_copy(self.disk(), &self.dir(), self.origin())
    }

    /// Takes the lock of the data directory, which a service that runs has.
    pub fn lock(&self) -> Result<DataDir, StartError> {
        DataDir::at(self.data.clone())
    }

    /// The head of the log in the engine.
    pub fn head(&self) -> Result<Head, MoveError> {
        let mut sessions = self.sessions(self.engine, "migrate")?;
        Ok(sessions.batches.head(Deadline::within(TABLES))?)
    }

    /// A session that tends the tables of the log, which are there after [`Move::follow`].
    pub fn upkeep(&self) -> Result<Box<dyn LogUpkeep>, MoveError> {
        Ok(self.sessions(self.engine, "migrate")?.upkeep)
    }

    /// The directory of the log.
    pub fn dir(&self) -> PathBuf {
        self.data.path().join(self.log)
    }

    fn origin(&self) -> &str {
        self.keys[0].name()
    }

    fn disk(&self) -> SharedDisk {
        self.data.disk().clone()
    }

    fn options(&self) -> LogOptions {
        let options = LogOptions::new(self.origin());
        self.keys
            .iter()
            .cloned()
            .fold(options, LogOptions::verified_by)
    }

    fn sessions(&self, engine: &Engine, holder: &str) -> Result<LogSessions, MoveError> {
        let claim = LogClaim {
            log: self.origin(),
            holder,
            guard: None,
        };
        let access = EngineAccess::unstopped(Arc::new(OsNet));
        let sessions = self.engines.log_sessions(engine, &claim, &access);
        sessions.map_err(|e| MoveError::Refused(e.to_string()))
    }

    /// Two sessions under a name that no node takes for its own.
    fn node_sessions(&self) -> Result<[Box<dyn LogStore>; 2], MoveError> {
        let node = self.sessions(self.engine, &format!("migrated-{:016x}", self.run))?;
        Ok([node.batches, node.checkpoints])
    }

    /// Makes the tables, and looks at both sides.
    fn begin(&self, engine: &Engine, is_resumed: bool) -> Result<Fill, MoveError> {
        let holder = Transit::Filling(self.place.to_owned()).holder(self.run);
        let LogSessions {
            batches,
            mut upkeep,
            ..
        } = self.sessions(engine, &holder)?;
        upkeep.install(Deadline::within(TABLES))?;
        Ok(Fill::begin(
            self.disk(),
            &self.dir(),
            self.options(),
            batches,
            Some(upkeep),
            is_resumed,
        )?)
    }

    /// Returns the lock of the data directory.
    fn copy_until_stopped(&self, fill: &mut Fill, show: Show<'_>) -> Result<DataDir, MoveError> {
        let (_trigger, never) = Shutdown::pair();
        let (mut size, mut is_announced) = (0, false);
        loop {
            let copied = fill.copy_signed(&mut |done, of| show(Step::Entries(done, of)))?;
            let is_near = copied.size - size <= NEAR;
            size = copied.size;
            match DataDir::try_at(self.data.clone())? {
                Ok(lock) => return Ok(lock),
                Err(in_use) if is_near => {
                    if !is_announced {
                        show(Step::Stop(in_use));
                        is_announced = true;
                    }
                    never.wait(Deadline::within(POLL));
                }
                Err(_) => {}
            }
        }
    }
}

impl Engine {
    /// Where it is, without what tells how to log in.
    pub fn place(&self) -> String {
        let place = if self.url.contains("://") {
            self.url.split('?').next().unwrap_or_default().to_owned()
        } else {
            let shown = ["host", "hostaddr", "port", "dbname"];
            let pairs = self.url.split_whitespace();
            let pairs = pairs.filter(|pair| {
                let name = pair.split('=').next().unwrap_or_default();
                shown.contains(&name)
            });
            pairs.collect::<Vec<_>>().join(" ")
        };
        format!("{place} schema {}", self.schema).replace(char::is_control, "?")
    }
}

#[cfg(test)]
mod tests {
    use crate::records::EngineDurability;

    use super::*;

    #[test]
    fn a_place_does_not_tell_how_to_log_in() {
        for (url, place) in [
            (
                "postgresql://ron@10.0.0.1,10.0.0.2/ron?passfile=/etc/ron/pgpass",
                "postgresql://ron@10.0.0.1,10.0.0.2/ron schema s",
            ),
            (
                "hostaddr=10.0.0.1 port=5432 user=ron dbname=ron passfile=/x",
                "hostaddr=10.0.0.1 port=5432 dbname=ron schema s",
            ),
        ] {
            let engine = Engine {
                url: url.into(),
                schema: "s".into(),
                durability: EngineDurability::Standby,
            };
            assert_eq!(engine.place(), place);
        }
    }
}
