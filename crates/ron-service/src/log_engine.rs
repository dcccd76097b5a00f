//! What a service does as a node of a log in an engine, whichever service it is: opens its sessions, and tends the engine's tables.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use ron_files::Dir;
use ron_kernel::{Deadline, SharedClock, Shutdown, Supervisor, ThreadCtx};
use ron_proto::Timestamp;
use ron_tlog::store::{EngineStandby, EngineState, LogSessions, LogUpkeep, StoreError};

use crate::chassis::Chassis;
use crate::error::StartError;
use crate::log_host::note_key::KEY_FILE;
use crate::log_node::LogNode;
use crate::ready::ReadyBoard;
use crate::records::{Engine, EngineDurability, LogClaim};

/// Readiness cause: the tables of the log in its engine.
const TABLES: &str = "engine_tables";

/// Readiness cause: no server follows that of the log's engine.
const STANDBYS: &str = "engine_standby";

/// The causes that [`tend`] reports, for [`ReadyBoard::declare`].
pub const CAUSES: [&str; 2] = [TABLES, STANDBYS];

/// Maximum wait for the engine at the first start of a node, which has no key yet.
const FIRST: Duration = Duration::from_secs(10);
/// Maximum time of a call that tends the tables.
const CALL: Duration = Duration::from_secs(2);
/// Pause after the tables were tended, and before the next try when they could not be made.
const TEND: Duration = Duration::from_secs(10);
const TRY: Duration = Duration::from_millis(250);

/// The log of a service in an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineLogSpec<'a> {
    pub engine: &'a Engine,
    /// The configuration key that names the engine.
    pub key: &'a str,
    pub origin: &'a str,
    /// URL under which others know this node.
    pub node: &'a str,
    /// What its nodes make up, for messages: `a ledger`.
    pub service: &'a str,
    /// What the log is called in messages: `the log`.
    pub log: &'a str,
    /// As in [`LogClaim`].
    pub guard: Option<&'a str>,
}

/// The name of a claimant: the node's URL, and what tells this start of its process from others.
pub fn holder_name(node: &str, start: u64) -> String {
    format!("{node}#{start:016x}")
}

/// The sessions of this node. Checkpoints of all nodes are signed with one key, which the first node of a new log makes; the
/// others need a copy of it in `home`.
pub fn sessions(
    chassis: &Chassis,
    home: Option<&Dir>,
    spec: &EngineLogSpec<'_>,
) -> Result<LogSessions, StartError> {
    let Some(home) = home else {
        return Err(StartError::failed(format!(
            "{} needs a data_dir: all nodes of {} have the same key, note.key",
            spec.key, spec.service
        )));
    };
    let mut sessions = keyless_sessions(chassis, spec)?;
    if !home.exists(KEY_FILE).map_err(StartError::failed)? {
        require_new(&mut sessions, home, spec.log, &chassis.engine_access.stop)?;
    }
    Ok(sessions)
}

/// As [`sessions`], for a log whose keys are not in a file of each node.
pub fn keyless_sessions(
    chassis: &Chassis,
    spec: &EngineLogSpec<'_>,
) -> Result<LogSessions, StartError> {
    let holder = holder_name(spec.node, chassis.random.u64());
    let claim = LogClaim {
        log: spec.origin,
        holder: &holder,
        guard: spec.guard,
    };
    let engines = &chassis.engines;
    let sessions = engines.log_sessions(spec.engine, &claim, &chassis.engine_access);
    sessions.map_err(|error| match error.kind() {
        ErrorKind::Unsupported => {
            let why = error.to_string();
            vec![chassis.config.load().problem(spec.key, why)].into()
        }
        _ => StartError::failed(error),
    })
}

/// Refuses a node without a key, unless the log has no entry yet.
fn require_new(
    sessions: &mut LogSessions,
    home: &Dir,
    log: &str,
    stop: &Shutdown,
) -> Result<(), StartError> {
    let by = Deadline::within(FIRST);
    let made = sessions.upkeep.install(by);
    let hint = format!(
        "copy note.key and log.vkey of another node to {}",
        home.path().display()
    );
    match made.and_then(|()| sessions.batches.head(by)) {
        Ok(head) if head.size == 0 && head.transit().is_none() => Ok(()),
        Ok(_) => Err(StartError::io(
            format!("note.key is missing, and {log} exists"),
            hint,
        )),
        Err(e) => {
            let why =
                format!("note.key is missing, and it is not known whether the log is new: {e}");
            // The engine was not waited for any longer.
            if stop.is_set() {
                return Err(StartError::Stopped(why));
            }
            Err(StartError::io(why, hint))
        }
    }
}

/// Where a thread that tends the tables of a log shows what it has seen of the engine.
#[derive(Clone, Debug)]
pub struct Shown {
    pub node: Arc<LogNode>,
    pub durability: EngineDurability,
    pub ready: ReadyBoard,
    pub clock: SharedClock,
}

/// The body of a thread that makes and tends the tables.
pub fn tend(ctx: &ThreadCtx, mut upkeep: Box<dyn LogUpkeep>, shown: &Shown) {
    let ready = &shown.ready;
    let mut is_installed = false;
    while !ctx.shutdown.is_set() {
        let by = Deadline::within(CALL);
        let mut done = Ok(());
        if !is_installed {
            done = upkeep.install(by);
            is_installed = done.is_ok();
        }
        match done.and_then(|()| upkeep.tend(by)) {
            Ok(state) => {
                let now = Timestamp(shown.clock.unix_ms());
                shown.node.engine(&state, now);
                check_standbys(ready, shown.durability, &state);
                ready.clear(TABLES);
            }
            // An engine that is away is reported by the thread that reads or writes the log.
            Err(StoreError::Refused(_) | StoreError::Unknown(_)) => {}
            Err(error) => ready.degrade(TABLES, error.to_string()),
        }
        let pause = if is_installed { TEND } else { TRY };
        ctx.shutdown.wait(Deadline::within(pause));
    }
}

/// Says whether a second server has what is written, unless the storage below the engine is replicated.
fn check_standbys(ready: &ReadyBoard, durability: EngineDurability, state: &EngineState) {
    let replicated = durability == EngineDurability::Storage;
    // Without the rights of `pg_monitor` a node sees that there is a standby, and not whether writes wait for it.
    let known_idle = |server: &EngineStandby| !server.synchronous && server.behind_bytes.is_some();
    if replicated || !state.standbys.iter().all(known_idle) {
        ready.clear(STANDBYS);
    } else {
        ready.degrade(
            STANDBYS,
            "the database has no standby that writes wait for: they are refused, and the loss of its host would lose the log; bring the \
             standby back, `ron ha status` shows what the database sees of it",
        );
    }
}

/// Gives nothing to a thread that is started again after a panic: a session that a panic has met is of no use, and the process
/// has to start again.
pub fn lost<T>(
    sup: &Supervisor,
    what: &'static str,
) -> impl Fn() -> Option<T> + Send + Sync + 'static {
    let sup = sup.clone();
    move || {
        sup.set_fatal(what);
        None
    }
}

#[cfg(test)]
mod tests {
    use ron_kernel::Registry;

    use super::*;

    #[test]
    fn a_database_without_a_standby_that_writes_wait_for_is_named() {
        let ready = ReadyBoard::new(&Registry::new("t"));
        ready.declare(&[STANDBYS]);
        let standby = |synchronous, behind_bytes| EngineStandby {
            name: "second".to_owned(),
            synchronous,
            behind_bytes,
        };
        let named = |durability, standbys: Vec<EngineStandby>| {
            let state = EngineState {
                server: "db1".to_owned(),
                oldest_transaction: 1,
                standbys,
                partitions_ahead: 1,
            };
            check_standbys(&ready, durability, &state);
            ready.causes().iter().any(|(cause, ..)| *cause == STANDBYS)
        };
        let durability = EngineDurability::Standby;
        assert!(named(durability, Vec::new()));
        assert!(named(durability, vec![standby(false, Some(0))]));
        assert!(!named(durability, vec![standby(true, Some(0))]));
        let several = vec![standby(false, Some(9)), standby(true, Some(0))];
        assert!(!named(durability, several));
        // Without the right to see more than that there is one.
        assert!(!named(durability, vec![standby(false, None)]));
        assert!(!named(EngineDurability::Storage, Vec::new()));
    }
}
