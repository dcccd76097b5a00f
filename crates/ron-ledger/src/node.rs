//! Starts this node of a ledger whose log is in an engine: its sessions, its books as a standby, and the threads beside the writer.

use std::path::Path;
use std::sync::Arc;

use ron_files::{Dir, SharedDisk};
use ron_kernel::{ThreadCtx, queue};
use ron_proto::Timestamp;
use ron_service::log_engine::{self, EngineLogSpec, Shown, lost};
use ron_service::log_host::cosign::Witnesses;
use ron_service::{Chassis, StartError};
use ron_tlog::store::{LogBeat, LogSessions, LogUpkeep};

use crate::engine::{Engine, EngineOptions};
use crate::role::{Role, run_beat};
use crate::settings::Settings;
use crate::standby::NodeParts;
use crate::topology::{BEAT, CLAIMS, UPKEEP};

/// What the threads beside the writer do with the engine.
pub(crate) struct Sides {
    role: Arc<Role>,
    beat: Box<dyn LogBeat>,
    upkeep: Box<dyn LogUpkeep>,
}

impl Sides {
    pub fn role(&self) -> Arc<Role> {
        Arc::clone(&self.role)
    }
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
        role: Arc::new(Role::standby(node, &chassis.registry)),
        beat,
        upkeep,
    };
    Ok((opened.map_err(StartError::failed)?, Some(sides)))
}

/// The sessions with the engine of the log, if it is in one.
pub(crate) fn sessions(
    chassis: &Chassis,
    settings: &Settings,
    home: Option<&Dir>,
) -> Result<Option<LogSessions>, StartError> {
    let (Some(engine), Some(node)) = (settings.engine(), &settings.log_node) else {
        return Ok(None);
    };
    let spec = EngineLogSpec {
        engine: &engine,
        key: Settings::log_url,
        origin: &settings.origin.0,
        node,
        service: "a ledger",
        log: "the log",
        guard: None,
    };
    log_engine::sessions(chassis, home, &spec).map(Some)
}

/// Starts the threads that watch the holder of a shared log and keep its tables; without one they only idle, so that the table of
/// threads stays true.
pub(crate) fn spawn(
    chassis: &Chassis,
    settings: &Settings,
    node: Option<Sides>,
    witnesses: Option<Witnesses>,
) -> Option<NodeParts> {
    let (claims_tx, claims) = queue(&CLAIMS, CLAIMS.capacity, &chassis.km);
    let sup = &chassis.sup;
    let Some(Sides { role, beat, upkeep }) = node else {
        sup.spawn(&BEAT, ThreadCtx::wait_for_shutdown);
        sup.spawn(&UPKEEP, ThreadCtx::wait_for_shutdown);
        return None;
    };
    let (watched, after, clock) = (
        Arc::clone(&role),
        settings.log_takeover_after,
        chassis.clock.clone(),
    );
    sup.spawn_owner(
        &BEAT,
        beat,
        move |beat, ctx| run_beat(ctx, beat, &watched, &claims_tx, after, &clock),
        lost(
            sup,
            "the thread that gives the sign of life of the ledger's log panicked",
        ),
    );
    let shown = Shown {
        node: role.shown.clone(),
        durability: settings.log_durability,
        ready: chassis.ready.clone(),
        clock: chassis.clock.clone(),
    };
    sup.spawn_owner(
        &UPKEEP,
        upkeep,
        move |upkeep, ctx| log_engine::tend(ctx, upkeep, &shown),
        lost(
            sup,
            "the thread that keeps the tables of the ledger's log panicked",
        ),
    );
    Some(NodeParts {
        role,
        claims,
        witnesses,
    })
}

#[cfg(test)]
mod tests {
    use ron_service::{Config, Parts};

    use super::*;
    use crate::boot::RonLedger;
    use crate::settings::TABLE;

    #[test]
    fn an_engine_that_the_process_cannot_use_is_a_problem_of_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "data_dir = {:?}\ninsecure_loopback = true\n\
             [log]\nurl = \"postgresql://ron:secret@10.0.0.1/ron\"\nnode = \"http://127.0.0.1:1\"\n",
            dir.path().join("data")
        );
        let config = Config::from_toml(&TABLE, Path::new("x/config.toml"), &text).unwrap();
        let parts = Parts::ephemeral(TABLE.service).unwrap();
        let Err(StartError::Config(problems)) = ron_service::start::<RonLedger>(config, parts)
        else {
            panic!("a configuration with a fault is refused as one");
        };
        let problem = &problems[0];
        assert_eq!(problem.key, Settings::log_url);
        let says = if cfg!(feature = "postgres") {
            "must not have a password"
        } else {
            "feature `postgres`"
        };
        assert!(problem.why.contains(says), "{}", problem.why);
    }
}
