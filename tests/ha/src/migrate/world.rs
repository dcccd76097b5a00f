//! An engine in memory for a service that is moved: its logs and its records, of which any write can fail.

use std::io;
use std::sync::{Arc, Mutex};

use ron_files::{Dir, SimDisk};
use ron_kernel::{Deadline, Random};
use ron_service::records::{
    Engine, EngineAccess, Engines, FileRecords, LogClaim, RecordError, RecordStore, Refusal, Work,
};
use ron_service::{Migration, Store};
use ron_tlog::store::LogSessions;

use crate::memory::{Defect, MemoryEngine};

/// How a transaction ends that the test has chosen.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    Refused,
    UnknownDone,
}

/// An engine in memory: its logs, and its records on a disk of their own.
#[derive(Clone, Debug)]
pub struct World {
    pub logs: MemoryEngine,
    pub tables: SimDisk,
    pub migrations: &'static [Migration],
    /// Transactions of records until one ends otherwise.
    pub ends: Arc<Mutex<Option<(usize, Ending)>>>,
}

impl World {
    pub fn new(migrations: &'static [Migration]) -> Self {
        Self {
            logs: MemoryEngine::new(Defect::None),
            tables: SimDisk::new(),
            migrations,
            ends: Arc::default(),
        }
    }

    pub fn tables(&self) -> Box<dyn RecordStore> {
        let dir = Dir::new(Arc::new(self.tables.clone()), "/tables");
        let store = Store::open_without_copies(&dir, "records.db", self.migrations).unwrap();
        Box::new(FileRecords::new(store))
    }
}

impl Engines for World {
    fn log_sessions(
        &self,
        _engine: &Engine,
        log: &LogClaim<'_>,
        _access: &EngineAccess,
    ) -> io::Result<LogSessions> {
        Ok(self.logs.sessions(log.log, log.holder))
    }

    fn records(
        &self,
        _engine: &Engine,
        _migrations: &'static [Migration],
        _access: &EngineAccess,
        _random: &dyn Random,
    ) -> io::Result<Box<dyn RecordStore>> {
        Ok(Box::new(Failing {
            inner: self.tables(),
            ends: self.ends.clone(),
        }))
    }
}

struct Failing {
    inner: Box<dyn RecordStore>,
    ends: Arc<Mutex<Option<(usize, Ending)>>>,
}

impl RecordStore for Failing {
    fn transact(&mut self, work: &mut Work<'_>, by: Deadline) -> Result<bool, RecordError> {
        let due = {
            let mut ends = self.ends.lock().unwrap();
            if let Some((left, _)) = &mut *ends {
                *left -= 1;
            }
            ends.take_if(|(left, _)| *left == 0)
        };
        match due {
            None => self.inner.transact(work, by),
            Some((_, Ending::Refused)) => Err(Refusal::Unavailable("as wanted".into()).into()),
            Some((_, Ending::UnknownDone)) => {
                self.inner.transact(work, by)?;
                Err(RecordError::Unknown("as the test wants it".into()))
            }
        }
    }

    fn view(&mut self, work: &mut Work<'_>, by: Deadline) -> Result<(), RecordError> {
        self.inner.view(work, by)
    }

    fn confirm(&mut self, by: Deadline) -> Result<(), RecordError> {
        self.inner.confirm(by)
    }

    fn resolve(&mut self, by: Deadline) -> Result<bool, RecordError> {
        self.inner.resolve(by)
    }
}
