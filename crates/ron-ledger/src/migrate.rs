//! Moves the ledger of a data directory from files to an engine, and back: `ron ledger migrate`. On the way there the ledger runs
//! until all but its end is copied.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ron_files::{Dir, SharedDisk};
use ron_kernel::{Deadline, OsNet, Random, Shutdown};
use ron_service::log_host::note_key;
use ron_service::records::{Engine, EngineAccess, LogClaim};
use ron_service::{DataDir, StartError};
pub use ron_tlog::append::Migrated;
use ron_tlog::append::{Back, Fill, MigrateError, finish_tombstone, from_copy, is_copy, to_files};
use ron_tlog::store::{LogSessions, StoreError, Transit};
use ron_tlog::{LogOptions, OpenError, VerifierKey};

/// Maximum time of a call that makes or removes tables.
const TABLES: Duration = Duration::from_secs(60);
/// Pause between two looks at a ledger that still runs.
const POLL: Duration = Duration::from_secs(1);
/// Entries that may be missing when the ledger is to be stopped.
const NEAR: u64 = 100_000;

/// Why a ledger was not moved, or not all the way.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error(transparent)]
    Log(#[from] MigrateError),
    /// The data directory or the database cannot be used as it is. Nothing was changed.
    #[error("{0}")]
    Refused(String),
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
    /// All but the end is copied: the ledger has to be stopped now. The text says which process runs it.
    Stop(String),
}

/// Called with each step.
pub type Show<'a> = &'a mut dyn FnMut(Step);

/// A ledger, and the engine that it goes to or comes from.
#[derive(Clone, Copy, Debug)]
pub struct Move<'a> {
    /// The data directory of the ledger, whose log is in `log`.
    pub data: &'a Dir,
    /// How nodes on other hosts are told of the data directory.
    pub place: &'a str,
    pub vkey: &'a VerifierKey,
    pub engine: &'a Engine,
    /// Drawn for each start of a move: a claim whose outcome was lost is recognised by it.
    pub run: u64,
}

impl Move<'_> {
    /// Moves the ledger to the engine. It may run meanwhile; when all but the end is copied, `show` is told that it has to stop,
    /// and the move goes on when it has. `is_resumed`: an earlier move was interrupted.
    pub fn to_engine(&self, is_resumed: bool, show: Show<'_>) -> Result<Migrated, MoveError> {
        self.check()?;
        let (origin, log) = (self.vkey.name(), self.log());
        let was_moved = is_copy(self.disk(), &log, origin)?;
        if was_moved && !is_resumed {
            let why = format!(
                "{} is the copy of a log that a database keeps: there is nothing to move",
                log.display()
            );
            return Err(MoveError::Refused(why));
        }
        let node = self.sessions(self.engine, &format!("migrated-{:016x}", self.run))?;
        let node = [node.batches, node.checkpoints];
        if was_moved {
            let _lock = DataDir::at(self.data.clone())?;
            return Ok(finish_tombstone(self.disk(), &log, self.options(), node)?);
        }
        let mut fill = self.begin(self.engine, is_resumed)?;
        let _lock = self.follow(&mut fill, show)?;
        let place = place_of(self.engine);
        Ok(fill.finish(&place, node, &mut |done, of| show(Step::Entries(done, of)))?)
    }

    /// Copies what is signed by now to a schema of its own, which is removed afterwards. Nothing else is changed.
    pub fn rehearse(&self, show: Show<'_>) -> Result<Migrated, MoveError> {
        self.check()?;
        if is_copy(self.disk(), &self.log(), self.vkey.name())? {
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
        let copied = self.begin(&engine, false).and_then(|mut fill| {
            Ok(fill.copy_signed(&mut |done, of| show(Step::Entries(done, of)))?)
        });
        upkeep.remove(Deadline::within(TABLES))?;
        copied
    }

    /// Makes the copy of this node, which does not run, a ledger in files of its own. No node writes to the engine any more.
    pub fn to_files(&self, is_resumed: bool, show: Show<'_>) -> Result<Migrated, MoveError> {
        self.check()?;
        let log = self.log();
        is_copy(self.disk(), &log, self.vkey.name())?;
        let _lock = DataDir::at(self.data.clone())?;
        let place = self.place.to_owned();
        let node = self.sessions(self.engine, &Transit::Moved(place.clone()).holder(self.run))?;
        let reads = self.sessions(self.engine, "migrate")?;
        let sessions = Back {
            node: [node.batches, node.checkpoints],
            reads: reads.batches,
            place,
        };
        let progress = &mut |done, of| show(Step::Entries(done, of));
        Ok(to_files(
            self.disk(),
            &log,
            self.options(),
            sessions,
            is_resumed,
            progress,
        )?)
    }

    fn check(&self) -> Result<(), MoveError> {
        match self.engine.fault() {
            Some(why) => Err(MoveError::Refused(format!("the database {why}"))),
            None => Ok(()),
        }
    }

    fn log(&self) -> PathBuf {
        self.data.path().join("log")
    }

    fn disk(&self) -> SharedDisk {
        self.data.disk().clone()
    }

    fn options(&self) -> LogOptions {
        LogOptions::new(self.vkey.name()).verified_by(self.vkey.clone())
    }

    fn sessions(&self, engine: &Engine, holder: &str) -> Result<LogSessions, MoveError> {
        let claim = LogClaim {
            log: self.vkey.name(),
            holder,
            guard: None,
        };
        let sessions = engine.log_sessions(&claim, &EngineAccess::unstopped(Arc::new(OsNet)));
        sessions.map_err(|e| MoveError::Refused(e.to_string()))
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
        let (log, options) = (self.log(), self.options());
        Ok(Fill::begin(
            self.disk(),
            &log,
            options,
            batches,
            Some(upkeep),
            is_resumed,
        )?)
    }

    /// Copies what is signed until the ledger has stopped; returns the lock of its data directory.
    fn follow(&self, fill: &mut Fill, show: Show<'_>) -> Result<DataDir, MoveError> {
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

/// Makes the copy of a node, which does not run, a ledger in files of its own when its engine is lost for good. What only the engine
/// had is lost with it.
pub fn without_engine(
    data: &Dir,
    vkey: &VerifierKey,
    random: &dyn Random,
) -> Result<Migrated, MoveError> {
    let log = data.path().join("log");
    let _lock = DataDir::at(data.clone())?;
    let signer = note_key::load_or_make(data, vkey.name(), random, false);
    let signer = signer.map_err(MoveError::Refused)?;
    if signer.verifier() != vkey {
        let why = format!(
            "{} is not the key that the log was signed with",
            data.file(note_key::KEY_FILE).display()
        );
        return Err(MoveError::Refused(why));
    }
    let options = LogOptions::new(vkey.name()).verified_by(vkey.clone());
    Ok(from_copy(data.disk().clone(), &log, options, &signer)?)
}

/// An engine, without what tells how to log in.
fn place_of(engine: &Engine) -> String {
    let place = if engine.url.contains("://") {
        engine.url.split('?').next().unwrap_or_default().to_owned()
    } else {
        let shown = ["host", "hostaddr", "port", "dbname"];
        let pairs = engine.url.split_whitespace();
        let pairs = pairs.filter(|pair| {
            let name = pair.split('=').next().unwrap_or_default();
            shown.contains(&name)
        });
        pairs.collect::<Vec<_>>().join(" ")
    };
    format!("{place} schema {}", engine.schema).replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use ron_service::records::EngineDurability;

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
            assert_eq!(place_of(&engine), place);
        }
    }
}
