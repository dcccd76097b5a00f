//! Starts this node of an issuer whose log of revocations is in an engine: its sessions, and the thread that tends the engine's tables.

use std::sync::Arc;
use std::time::Duration;

use ron_files::Dir;
use ron_kernel::{Deadline, ThreadCtx, queue};
use ron_service::log_host::note_key::KEY_FILE;
use ron_service::records::Engine;
use ron_service::{Chassis, ReadyBoard, StartError};
use ron_tlog::store::{LogSessions, LogStore, LogUpkeep, StoreError};

use crate::once::{self, Once};
use crate::revoke::{HeadAge, SharedTimes};
use crate::settings::Settings;
use crate::topology::{ONCE, ONCE_QUEUE, UPKEEP};

/// Maximum wait for the engine at the first start of a node, which has no key yet.
const FIRST_POLL: Duration = Duration::from_secs(10);
/// Maximum time of a call that tends the tables.
const CALL: Duration = Duration::from_secs(2);
/// Pause after the tables were tended, and before the next try when they could not be made.
const TEND: Duration = Duration::from_secs(10);
const TRY: Duration = Duration::from_millis(250);
/// Readiness cause: the tables of the log in its engine.
pub const TABLES: &str = "engine_tables";

/// What this node has of the engine beside its log.
pub struct Node {
    pub head: Arc<HeadAge>,
    pub within: Duration,
    upkeep: Box<dyn LogUpkeep>,
}

impl Node {
    pub fn times(&self) -> SharedTimes {
        SharedTimes {
            head: self.head.clone(),
            within: self.within,
        }
    }
}

/// The session with the log, and the rest of the node.
type Session = (Box<dyn LogStore>, Node);

/// The session with the log, if it is in an engine. Checkpoints of all nodes are signed with one key, which the first node of
/// a new log makes; the others need a copy.
pub fn session(
    chassis: &Chassis,
    settings: &Settings,
    home: Option<&Dir>,
    origin: &str,
) -> Result<Option<Session>, StartError> {
    let Some(engine) = settings.keys.log_engine() else {
        return Ok(None);
    };
    let Some(home) = home else {
        let why = "log.url needs a data_dir: all nodes of an issuer have the same key, note.key";
        return Err(StartError::failed(why));
    };
    let holder = format!("{}#{:016x}", chassis.public_urls[0], chassis.random.u64());
    let sessions = engine.log_sessions(origin, &holder, &chassis.peers.net);
    let LogSessions {
        mut batches,
        mut upkeep,
        ..
    } = sessions.map_err(StartError::failed)?;
    if !home.exists(KEY_FILE).map_err(StartError::failed)? {
        require_new(&mut *batches, &mut *upkeep, home)?;
    }
    let max_age = settings.keys.revocation_max_age;
    let node = Node {
        head: Arc::new(HeadAge::new(chassis.clock.clone(), max_age)),
        within: settings.keys.log_commit_within,
        upkeep,
    };
    Ok(Some((batches, node)))
}

/// Refuses a node without a key, unless the log has no entry yet.
fn require_new(
    batches: &mut dyn LogStore,
    upkeep: &mut dyn LogUpkeep,
    home: &Dir,
) -> Result<(), StartError> {
    let by = Deadline::within(FIRST_POLL);
    let hint = format!(
        "copy note.key and log.vkey of another node to {}",
        home.path().display()
    );
    let made = upkeep.install(by);
    match made.and_then(|()| batches.head(by)) {
        Ok(head) if head.size == 0 && head.transit().is_none() => Ok(()),
        Ok(_) => Err(StartError::io(
            "note.key is missing, and the log of revocations exists",
            hint,
        )),
        Err(e) => {
            let why =
                format!("note.key is missing, and it is not known whether the log is new: {e}");
            Err(StartError::io(why, hint))
        }
    }
}

/// Starts the thread that tends the tables; without an engine it only idles, so that the table of threads stays true.
pub fn spawn(chassis: &Chassis, node: Option<Node>) {
    let sup = &chassis.sup;
    let Some(Node { upkeep, .. }) = node else {
        sup.spawn(&UPKEEP, ThreadCtx::wait_for_shutdown);
        return;
    };
    let (ready, fatal) = (chassis.ready.clone(), sup.clone());
    sup.spawn_owner(
        &UPKEEP,
        upkeep,
        move |upkeep, ctx| tend(ctx, upkeep, &ready),
        move || {
            // A session that a panic has met is of no use.
            fatal.set_fatal("the thread that tends the tables of the log of revocations panicked");
            None
        },
    );
}

/// Starts the thread that takes ids of proofs and assertions for all nodes; without an engine it only idles.
pub fn once(chassis: &Chassis, engine: Option<Engine>) -> Result<Option<Arc<Once>>, StartError> {
    let sup = &chassis.sup;
    let Some(engine) = engine else {
        sup.spawn(&ONCE, ThreadCtx::wait_for_shutdown);
        return Ok(None);
    };
    let opened = engine.open(&once::MIGRATIONS, &chassis.peers.net, &*chassis.random);
    let records = opened.map_err(StartError::failed)?;
    let (ids, asked) = queue(&ONCE_QUEUE, ONCE_QUEUE.capacity, &chassis.km);
    let (clock, ready, fatal) = (chassis.clock.clone(), chassis.ready.clone(), sup.clone());
    sup.spawn_owner(
        &ONCE,
        records,
        move |mut records, ctx| once::run(ctx, &asked, &mut *records, (&clock, &ready)),
        move || {
            fatal.set_fatal("the thread that takes ids of proofs panicked");
            None
        },
    );
    Ok(Some(Arc::new(Once(ids))))
}

fn tend(ctx: &ThreadCtx, mut upkeep: Box<dyn LogUpkeep>, ready: &ReadyBoard) {
    let mut is_installed = false;
    while !ctx.shutdown.is_set() {
        let by = Deadline::within(CALL);
        let mut done = Ok(());
        if !is_installed {
            done = upkeep.install(by);
            is_installed = done.is_ok();
        }
        match done.and_then(|()| upkeep.tend(by)) {
            Ok(_) => ready.clear(TABLES),
            // An engine that is away is reported by the revoker.
            Err(StoreError::Refused(_) | StoreError::Unknown(_)) => {}
            Err(error) => ready.degrade(TABLES, error.to_string()),
        }
        let pause = if is_installed { TEND } else { TRY };
        ctx.shutdown.wait(Deadline::within(pause));
    }
}
