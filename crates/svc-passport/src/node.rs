//! Starts this node of an issuer whose log of revocations is in an engine: its sessions, and the thread that tends the engine's tables.

use std::sync::Arc;
use std::time::Duration;

use ron_files::Dir;
use ron_kernel::{ThreadCtx, queue};
use ron_service::log_engine::{self, EngineLogSpec, Shown, lost};
use ron_service::log_node::LogNode;
use ron_service::records::{Engine, EngineDurability};
use ron_service::{Chassis, StartError};
use ron_tlog::LogReader;
use ron_tlog::store::{LogSessions, LogStore, LogUpkeep};

use crate::once::{self, Once};
use crate::revoke::{HeadAge, SharedTimes};
use crate::settings::{Keys, Settings};
use crate::topology::{ONCE, ONCE_QUEUE, UPKEEP};

/// What this node has of the engine beside its log.
pub struct Node {
    pub head: Arc<HeadAge>,
    pub within: Duration,
    /// What operators see of the log.
    pub shown: Arc<LogNode>,
    durability: EngineDurability,
    upkeep: Box<dyn LogUpkeep>,
}

impl Node {
    pub fn times(&self) -> SharedTimes {
        SharedTimes {
            head: self.head.clone(),
            within: self.within,
            shown: self.shown.clone(),
        }
    }
}

/// The session with the log, and the rest of the node.
type Session = (Box<dyn LogStore>, Node);

/// The session with the log, if it is in an engine.
pub fn session(
    chassis: &Chassis,
    settings: &Settings,
    home: Option<&Dir>,
    origin: &str,
) -> Result<Option<Session>, StartError> {
    let Some(engine) = settings.keys.log_engine() else {
        return Ok(None);
    };
    let name = &chassis.public_urls[0];
    let spec = EngineLogSpec {
        engine: &engine,
        key: Keys::log_url,
        origin,
        node: name,
        service: "an issuer",
        log: "the log of revocations",
        guard: None,
    };
    let LogSessions {
        batches, upkeep, ..
    } = log_engine::sessions(chassis, home, &spec)?;
    let max_age = settings.keys.revocation_max_age;
    let node = Node {
        head: Arc::new(HeadAge::new(chassis.clock.clone(), max_age)),
        within: settings.keys.log_commit_within,
        shown: LogNode::new(&chassis.registry, name),
        durability: engine.durability,
        upkeep,
    };
    Ok(Some((batches, node)))
}

/// Shows the node to operators and starts the thread that tends the tables; without an engine it only idles, so that the table of threads stays true.
pub fn spawn(chassis: &Chassis, node: Option<Node>, entries: LogReader) {
    let sup = &chassis.sup;
    let Some(node) = node else {
        sup.spawn(&UPKEEP, ThreadCtx::wait_for_shutdown);
        return;
    };
    let shown = Shown {
        node: node.shown.clone(),
        durability: node.durability,
        ready: chassis.ready.clone(),
        clock: chassis.clock.clone(),
    };
    chassis.show_log(move || node.shown.doc(entries.size_durable()));
    sup.spawn_owner(
        &UPKEEP,
        node.upkeep,
        move |upkeep, ctx| log_engine::tend(ctx, upkeep, &shown),
        lost(
            sup,
            "the thread that tends the tables of the log of revocations panicked",
        ),
    );
}

/// Starts the thread that takes ids of proofs and assertions for all nodes; without an engine it only idles.
pub fn once(chassis: &Chassis, engine: Option<Engine>) -> Result<Option<Arc<Once>>, StartError> {
    let sup = &chassis.sup;
    let Some(engine) = engine else {
        sup.spawn(&ONCE, ThreadCtx::wait_for_shutdown);
        return Ok(None);
    };
    let opened = engine.open(&once::MIGRATIONS, &chassis.engine_access, &*chassis.random);
    let records = opened.map_err(StartError::failed)?;
    let (ids, asked) = queue(&ONCE_QUEUE, ONCE_QUEUE.capacity, &chassis.km);
    let (clock, ready) = (chassis.clock.clone(), chassis.ready.clone());
    sup.spawn_owner(
        &ONCE,
        records,
        move |mut records, ctx| once::run(ctx, &asked, &mut *records, (&clock, &ready)),
        lost(sup, "the thread that takes ids of proofs panicked"),
    );
    Ok(Some(Arc::new(Once(ids))))
}
