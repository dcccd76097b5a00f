//! The sessions of a node with a log of the engine in memory, as a service or a migration opens them.

use std::time::Duration;

use ron_kernel::Deadline;
use ron_tlog::store::{CarriedId, EngineState, LogSessions, LogUpkeep, StoreError};

use super::{MemoryEngine, MemoryStore, Op};
use crate::contract::Rig as _;

/// How long an id of the engine counts: no clock goes there.
const LEFT: Duration = Duration::from_hours(20);

impl MemoryEngine {
    pub fn sessions(&self, log: &str, holder: &str) -> LogSessions {
        LogSessions {
            batches: Box::new(self.store(log, holder)),
            checkpoints: Box::new(self.store(log, holder)),
            beat: Box::new(self.beat(log)),
            upkeep: Box::new(MemoryUpkeep(self.store(log, holder))),
        }
    }
}

/// The engine in memory has no tables to make.
#[derive(Debug)]
struct MemoryUpkeep(MemoryStore);

impl LogUpkeep for MemoryUpkeep {
    fn install(&mut self, _deadline: Deadline) -> Result<(), StoreError> {
        Ok(())
    }

    fn tend(&mut self, _deadline: Deadline) -> Result<EngineState, StoreError> {
        Ok(EngineState::default())
    }

    fn carry_ids(&mut self, ids: &[CarriedId], _deadline: Deadline) -> Result<(), StoreError> {
        let ids = ids.iter().map(|id| id.once.clone()).collect();
        self.0.write(Op::Ids(ids))
    }

    fn ids_after(
        &mut self,
        scope: &str,
        after: &str,
        limit: usize,
        _deadline: Deadline,
    ) -> Result<Vec<CarriedId>, StoreError> {
        let state = self.0.engine.state();
        let from = (scope.to_owned(), after.to_owned());
        let behind = state.view.ids.range(from.clone()..);
        let behind = behind.filter(|(name, _)| name.0 == scope && **name != from);
        let found = behind.take(limit).map(|(_, once)| CarriedId {
            once: once.clone(),
            left: LEFT,
        });
        Ok(found.collect())
    }

    fn remove(&mut self, _deadline: Deadline) -> Result<(), StoreError> {
        let mut state = self.0.engine.state();
        state.view.logs.remove(&self.0.log);
        Ok(())
    }
}
