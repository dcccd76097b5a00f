//! Starts this node of a ledger whose log is in an engine: its sessions, its books as a standby, and the threads beside the writer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_files::{Dir, SharedDisk};
use ron_kernel::{Deadline, Receiver, ThreadCtx, queue};
use ron_proto::Timestamp;
use ron_service::log_host::note_key::KEY_FILE;
use ron_service::{Chassis, StartError};
use ron_tlog::store::{LogBeat, LogSessions, LogUpkeep};

use crate::engine::{Engine, EngineOptions};
use crate::role::{Role, holder_name, run_beat, run_upkeep};
use crate::settings::Settings;
use crate::topology::{BEAT, CLAIMS, UPKEEP};

/// Maximum wait for the engine at the first start of a node, which has no key yet.
const FIRST_POLL: Duration = Duration::from_secs(10);

/// What the threads beside the writer do with the engine.
pub(crate) struct Sides {
    role: Arc<Role>,
    beat: Box<dyn LogBeat>,
    upkeep: Box<dyn LogUpkeep>,
}

/// Opens the ledger on files, or this node of a shared one as a standby.
pub(crate) fn open(
    chassis: &Chassis,
    settings: &Settings,
    disk: SharedDisk,
    dir: &Path,
    options: EngineOptions,
    sessions: Option<LogSessions>,
) -> Result<(Engine, Option<Sides>), StartError> {
    let (Some(sessions), Some(node)) = (sessions, &settings.log_node) else {
        let now = Timestamp(chassis.clock.unix_ms());
        let opened = Engine::open(disk, dir, options, now).map_err(StartError::failed)?;
        return Ok((opened, None));
    };
    let LogSessions {
        batches,
        checkpoints,
        beat,
        upkeep,
    } = sessions;
    let within = settings.log_commit_within;
    let opened = Engine::open_shared(disk, dir, options, [batches, checkpoints], within);
    let sides = Sides {
        role: Arc::new(Role::standby(node)),
        beat,
        upkeep,
    };
    Ok((opened.map_err(StartError::failed)?, Some(sides)))
}

/// The sessions with the engine of the log, if it is in one. Checkpoints of all nodes are signed with one key, which the first
/// node of a new log makes; the others need a copy.
pub(crate) fn sessions(
    chassis: &Chassis,
    settings: &Settings,
    home: Option<&Dir>,
) -> Result<Option<LogSessions>, StartError> {
    let (Some(engine), Some(node)) = (settings.engine(), &settings.log_node) else {
        return Ok(None);
    };
    let Some(home) = home else {
        let why = "log.url needs a data_dir: all nodes of a ledger have the same key, note.key";
        return Err(StartError::failed(why));
    };
    let holder = holder_name(node, chassis.random.u64());
    let sessions = engine.log_sessions(&settings.origin.0, &holder, &chassis.peers.net);
    let mut sessions = sessions.map_err(StartError::failed)?;
    if home.exists(KEY_FILE).map_err(StartError::failed)? {
        return Ok(Some(sessions));
    }
    let by = Deadline::within(FIRST_POLL);
    let made = sessions.upkeep.install(by);
    let hint = format!(
        "copy note.key and log.vkey of another node to {}",
        home.path().display()
    );
    match made.and_then(|()| sessions.batches.head(by)) {
        Ok(head) if head.size == 0 => Ok(Some(sessions)),
        Ok(_) => Err(StartError::io(
            "note.key is missing, and the log exists",
            hint,
        )),
        Err(e) => {
            let why =
                format!("note.key is missing, and it is not known whether the log is new: {e}");
            Err(StartError::io(why, hint))
        }
    }
}

/// Starts the threads that watch the holder of a shared log and keep its tables; without one they idle.
pub(crate) fn spawn(
    chassis: &Chassis,
    settings: &Settings,
    node: Option<Sides>,
) -> Option<(Arc<Role>, Receiver<()>)> {
    let (claims_tx, claims) = queue(&CLAIMS, CLAIMS.capacity, &chassis.km);
    let (role, beat, upkeep) = match node {
        Some(Sides { role, beat, upkeep }) => (Some(role), Some(beat), Some(upkeep)),
        None => (None, None, None),
    };
    let watched = role.clone().unwrap_or_else(|| Arc::new(Role::standby("")));
    let (after, clock) = (settings.log_takeover_after, chassis.clock.clone());
    let beats = move |mut beat: Option<Box<dyn LogBeat>>, ctx: &ThreadCtx| {
        run_beat(ctx, beat.as_mut(), &watched, &claims_tx, after, &clock);
    };
    chassis.sup.spawn_owner(&BEAT, beat, beats, || Some(None));
    let ready = chassis.ready.clone();
    let tends = move |mut upkeep: Option<Box<dyn LogUpkeep>>, ctx: &ThreadCtx| {
        run_upkeep(ctx, upkeep.as_mut(), &ready);
    };
    chassis
        .sup
        .spawn_owner(&UPKEEP, upkeep, tends, || Some(None));
    Some((role?, claims))
}
