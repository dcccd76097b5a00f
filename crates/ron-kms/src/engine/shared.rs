//! Keys and audit log of a node in an engine, where other nodes have the same keys and audit logs of their own.

use std::sync::Arc;
use std::time::Duration;

use ron_custody::backend::Backends;
use ron_custody::store::{FILE_NAME, KeyStore, StoreSettings};
use ron_files::Dir;
use ron_kernel::{Deadline, SharedRandom, Shutdown};
use ron_proto::values::Timestamp;
use ron_service::log_node::LogNode;
use ron_service::records::{EngineDurability, RecordStore};
use ron_tlog::append::{EngineError as LogError, EngineLog, LogOptions, OpenError, is_copy};
use ron_tlog::store::{LogStore, LogUpkeep, StoreError as LogStoreError};

use super::distrust::{Distrust, failure, of_open};
use super::{EngineError, EngineParts};
use crate::audit;
use crate::audit::health::Fault;

/// How long a start waits for an engine that is away.
pub const START_WAIT: Duration = Duration::from_secs(30);
/// Maximum time of one call at a start.
const CALL: Duration = Duration::from_secs(5);
/// Pause before an engine that is away is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// What a node has of the engine.
pub struct SharedParts {
    /// Taken at the start.
    pub records: Option<Box<dyn RecordStore>>,
    /// The sessions with the log: for batches and for checkpoints; taken at the start.
    pub sessions: Option<[Box<dyn LogStore>; 2]>,
    pub upkeep: Box<dyn LogUpkeep>,
    /// Maximum time of an append.
    pub within: Duration,
    /// What operators see of the log.
    pub node: Arc<LogNode>,
    pub durability: EngineDurability,
    /// Ends the wait of a start for the engine.
    pub stop: Shutdown,
}

/// What a node shows of its log in an engine, and the session that tends the engine's tables.
pub struct Shown {
    pub node: Arc<LogNode>,
    pub durability: EngineDurability,
    pub upkeep: Box<dyn LogUpkeep>,
}

/// The sessions that write the log.
pub struct EngineSessions<'a> {
    pub batches: Box<dyn LogStore>,
    pub checkpoints: Box<dyn LogStore>,
    pub upkeep: &'a mut dyn LogUpkeep,
    pub within: Duration,
    pub stop: &'a Shutdown,
}

impl SharedParts {
    pub fn shown(self) -> Shown {
        Shown {
            node: self.node,
            durability: self.durability,
            upkeep: self.upkeep,
        }
    }

    /// The sessions of the log; `None` the second time.
    pub fn sessions(&mut self) -> Option<EngineSessions<'_>> {
        let [batches, checkpoints] = self.sessions.take()?;
        Some(EngineSessions {
            batches,
            checkpoints,
            upkeep: &mut *self.upkeep,
            within: self.within,
            stop: &self.stop,
        })
    }
}

/// Opens the keys of all nodes in the engine.
pub fn open_store(
    records: Box<dyn RecordStore>,
    settings: &StoreSettings,
    parts: &EngineParts,
    (backends, now): (Backends, Timestamp),
) -> Result<KeyStore, EngineError> {
    if let Some(home) = &parts.home
        && home.exists(FILE_NAME).unwrap_or(false)
    {
        return Err(EngineError::OtherStore(home.file(FILE_NAME)));
    }
    refuse_other_log(parts, settings)?;
    let random: SharedRandom = parts.random.clone();
    Ok(KeyStore::open_in(records, settings, backends, random, now)?)
}

/// Refuses the copy of another log before the name that is configured joins the store, from which no name is removed.
fn refuse_other_log(parts: &EngineParts, settings: &StoreSettings) -> Result<(), EngineError> {
    let (Some(home), Some(origin)) = (&parts.home, &settings.origin) else {
        return Ok(());
    };
    let dir = home.join(audit::DIR);
    let disk = parts.disk.as_ref().unwrap_or(home.disk());
    match is_copy(disk.clone(), dir.path(), origin) {
        Err(OpenError::Origin { found, .. }) => Err(EngineError::OtherLog {
            configured: origin.clone(),
            found,
        }),
        // No log yet, or a fault that is judged when the copy is opened.
        _ => Ok(()),
    }
}

/// Opens this node's copy of its log, makes the tables that are missing, and claims the log: an earlier process of this node has
/// ended, because two cannot have the data directory.
pub fn claim(
    dir: &Dir,
    options: LogOptions,
    sessions: EngineSessions<'_>,
) -> Result<EngineLog, Distrust> {
    let EngineSessions {
        batches,
        checkpoints,
        upkeep,
        stop,
        ..
    } = sessions;
    let opened = EngineLog::open(
        dir.disk().clone(),
        dir.path(),
        options,
        batches,
        checkpoints,
    );
    let mut log = opened.map_err(|error| judge(&error))?;
    let by = Deadline::within(START_WAIT);
    retry(by, stop, || Ok(upkeep.install(Deadline::within(CALL))?)).map_err(|e| judge(&e))?;
    // The epoch that is claimed; kept after a claim without an answer, which the next call waits for.
    let mut seen = None;
    let claimed = retry(by, stop, || {
        let epoch = match seen {
            Some(epoch) => epoch,
            None => log.head(Deadline::within(CALL))?.epoch,
        };
        let claimed = log.claim(epoch, &[], Deadline::within(CALL));
        seen = match &claimed {
            Err(LogError::Store(LogStoreError::Unknown(_))) => Some(epoch),
            // This call has changed nothing, but the claim before it may be in the engine, which takes no other one until it is known.
            Err(LogError::Store(LogStoreError::Refused(_))) => seen,
            _ => None,
        };
        claimed.map(|_| ())
    });
    claimed.map_err(|e| judge(&e))?;
    Ok(log)
}

/// Repeats a call until the engine has answered it, or the process is to stop.
fn retry(
    by: Deadline,
    stop: &Shutdown,
    mut call: impl FnMut() -> Result<(), LogError>,
) -> Result<(), LogError> {
    loop {
        match call() {
            Err(LogError::Store(
                LogStoreError::Refused(_) | LogStoreError::Unknown(_) | LogStoreError::Fenced,
            )) if !by.expired() && !stop.wait(Deadline::within(AGAIN)) => {}
            done => return done,
        }
    }
}

fn judge(error: &LogError) -> Distrust {
    match error {
        LogError::Open(OpenError::Refused(_)) => failure(
            "data_dir has an audit log in files, and log.url names a database: move it there with `ron kms migrate`, or give a node with \
             keys in a database an empty data_dir",
        ),
        LogError::Open(error) => of_open(error),
        LogError::Store(LogStoreError::Lost(_) | LogStoreError::Damaged(_)) => {
            tracing::error!(event = "engine_lost_data", %error);
            Distrust {
                fault: Fault::Tampering,
                why: format!("the audit log: {error}"),
            }
        }
        LogError::Store(error) => Distrust {
            fault: Fault::Unavailable,
            why: format!(
                "the database of the audit log: {error}; the service needs the database at its start"
            ),
        },
        error => failure(format!("the audit log cannot be opened: {error}")),
    }
}
