//! Opens the log and the database of revocations, in files, in an engine or in memory, and compares the log with its witnesses.

use std::path::PathBuf;
use std::sync::Arc;

use ron_auth::{RevocationView, read_seen, revocation_log};
use ron_files::{Dir, MemoryDisk, SharedDisk};
use ron_proto::scope;
use ron_service::log_host::asker::WitnessSettings;
use ron_service::log_host::cosign::{WitnessTimes, Witnesses};
use ron_service::log_host::{CosignedView, KeyView, LogHost, note_key};
use ron_service::{Chassis, StartError};
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::VerifierKey;

use crate::node::{self, Node};
use crate::revoke::{LOG_DIR, LogPlace, Register, RevocationStore, SharedPlace};
use crate::settings::Settings;
use crate::witness;

/// The register of revocations as it was found.
pub struct Opened {
    pub register: Register,
    pub view: RevocationView,
    pub log_key: VerifierKey,
    /// Of a log in an engine.
    pub node: Option<Node>,
    pub witnesses: Option<(Witnesses, WitnessTimes)>,
}

impl Opened {
    /// The log as it is served.
    pub fn host(&self) -> LogHost {
        LogHost {
            reader: self.register.reader(),
            keys: KeyView::of(self.log_key.clone()),
            entries_scope: scope::PASSPORT_INTROSPECT,
            cosigned: CosignedView::default(),
        }
    }
}

/// Opens database and log, in memory with amnesia on.
pub fn open_register(
    settings: &Settings,
    data_dir: Option<&Dir>,
    chassis: &Chassis,
) -> Result<Opened, StartError> {
    let origin = revocation_log::origin(settings.names.first());
    let asked = WitnessSettings::load(&chassis.config.load(), &settings.keys.witness);
    let asked = asked.map_err(|problem| vec![problem])?;
    let session = node::session(chassis, settings, data_dir, &origin)?;
    let disk: SharedDisk;
    let (store, signer, dir, known);
    if let Some(home) = data_dir {
        // The register has a watch of its own.
        disk = chassis.disk.clone();
        dir = home.file(LOG_DIR);
        store = RevocationStore::open(home);
        let log = home.join(LOG_DIR);
        // A node without a key was refused, unless the log in the engine is new.
        let there = log.exists("log.meta").map_err(StartError::failed)?;
        let fresh = session.is_some() || !there;
        signer = note_key::load_or_make(home, &origin, &*chassis.random, fresh);
        // This service follows its own feed, too, and remembers the newest head.
        let seen = read_seen(home).map_err(StartError::failed)?;
        known = seen
            .get(settings.names.first())
            .and_then(ron_auth::IssuerRecord::head);
    } else {
        disk = Arc::new(MemoryDisk::new());
        dir = PathBuf::from("/").join(LOG_DIR);
        store = RevocationStore::memory();
        signer = note_key::ephemeral(&origin, &*chassis.random);
        known = None;
    }
    let mut store = store.map_err(StartError::failed)?;
    let watch = chassis.sup.watch_disk("store");
    store.watch_disk(watch.clone(), chassis.room.clone());
    let signer = signer.map_err(|why| {
        StartError::io(
            why,
            "the checkpoints of the revocation log are signed with this key",
        )
    })?;
    let log_key = signer.verifier().clone();
    let mut witnesses = witness::of(asked.as_ref(), &log_key, chassis)?;
    let mut known: Vec<Checkpoint> = known.into_iter().collect();
    let signer = Arc::new(signer);
    let random = chassis.random.clone();
    let archive_dir = settings.keys.archive.dir.clone();
    let (opened, node) = match session {
        None => {
            let place = LogPlace {
                disk,
                dir: &dir,
                signer,
                known,
                witnesses: witnesses.as_mut(),
                random,
                archive_dir,
            };
            (Register::open(store, place), None)
        }
        Some((session, node)) => {
            // This node may be behind them; the log in the engine must not be.
            known.extend(witnesses.as_ref().map(witness::heads).into_iter().flatten());
            let place = SharedPlace {
                disk,
                dir: &dir,
                signer,
                known,
                random,
                store: session,
                within: node.within,
                head: node.head.clone(),
                archive_dir,
            };
            (Register::open_shared(store, place), Some(node))
        }
    };
    let (mut register, view) = opened.map_err(StartError::failed)?;
    register.watch_disk(watch);
    Ok(Opened {
        register,
        view,
        log_key,
        node,
        witnesses: witnesses.zip(asked.map(|asked| asked.times)),
    })
}
