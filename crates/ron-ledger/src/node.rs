//! Starts this node of a ledger whose log is in an engine: its sessions, its books as a standby, and the threads beside the writer.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_files::{Dir, SharedDisk};
use ron_kernel::{Deadline, Supervisor, ThreadCtx, queue};
use ron_proto::Timestamp;
use ron_service::log_host::cosign::Witnesses;
use ron_service::log_host::note_key::KEY_FILE;
use ron_service::{Chassis, StartError};
use ron_tlog::store::{LogBeat, LogSessions, LogUpkeep};

use crate::engine::{Engine, EngineOptions};
use crate::role::{Role, holder_name, run_beat, run_upkeep};
use crate::settings::Settings;
use crate::standby::NodeParts;
use crate::topology::{BEAT, CLAIMS, UPKEEP};

/// Maximum wait for the engine at the first start of a node, which has no key yet.
const FIRST_POLL: Duration = Duration::from_secs(10);

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
    let (engines, net) = (&chassis.engines, &chassis.peers.net);
    let sessions = engines.log_sessions(&engine, &settings.origin.0, &holder, net);
    let mut sessions = sessions.map_err(|error| match error.kind() {
        ErrorKind::Unsupported => {
            let why = error.to_string();
            vec![chassis.config.load().problem(Settings::log_url, why)].into()
        }
        _ => StartError::failed(error),
    })?;
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
        Ok(head) if head.size == 0 && head.transit().is_none() => Ok(Some(sessions)),
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
    let (kept, ready, clock) = (
        Arc::clone(&role),
        chassis.ready.clone(),
        chassis.clock.clone(),
    );
    sup.spawn_owner(
        &UPKEEP,
        upkeep,
        move |upkeep, ctx| run_upkeep(ctx, upkeep, &kept, &ready, &clock),
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

/// A session that a panic has met is of no use, and a node without a sign of life is taken over from: the process has to start
/// again.
fn lost<T>(sup: &Supervisor, what: &'static str) -> impl Fn() -> Option<T> + Send + Sync + 'static {
    let sup = sup.clone();
    move || {
        sup.set_fatal(what);
        None
    }
}

#[cfg(all(test, not(feature = "postgres")))]
mod tests {
    use ron_service::{Config, Parts};

    use super::*;
    use crate::boot::RonLedger;
    use crate::settings::TABLE;

    #[test]
    fn an_engine_that_the_process_does_not_have_is_a_problem_of_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "data_dir = {:?}\ninsecure_loopback = true\n\
             [log]\nurl = \"postgresql://ron@10.0.0.1/ron\"\nnode = \"http://127.0.0.1:1\"\n",
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
        assert!(
            problem.why.contains("feature `postgres`"),
            "{}",
            problem.why
        );
    }
}
