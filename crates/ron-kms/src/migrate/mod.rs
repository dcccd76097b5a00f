//! Moves a key service from files to an engine, and back: `ron kms migrate`. Beside the audit log there are the keys and the
//! answers that are remembered.
//!
//! ```text
//!  there                                          closed by          back                                       closed by
//!  the log, while the service runs                -                  what a move there has left is removed      -
//!  keys to the engine, as `filling`; read back    -                  the log, to files of this node             (the keys are not there)
//!  answers to the engine; read back               -                  the keys of all nodes end, as `moved`      the engine: transit
//!  end of the log; log.meta names the engine      files: log.meta    keys to keys.db, as `filling`; read back
//!  the keys are open to nodes                                        answers to the journal
//!  keys.db and the journal are removed                               keys.db is open; the rows of the engine are deleted
//! ```
//!
//! **Invariant:** at every moment at most one place signs. There the files do until `log.meta` names the engine, and the keys in the
//! engine are open to nodes after that. Back the nodes do until the keys are `moved`, and `keys.db` is open after that.
//! **Invariant:** nothing is removed before it was read at the other side and compared, and is in use there.
//! **Invariant:** every step can be made again.

mod answers;
mod back;
mod there;

use std::sync::Arc;

use ron_custody::backend::Backends;
use ron_custody::store::{
    KeyStore, MIGRATIONS, SealSource, StoreError, StoreSettings, immovable_in,
};
use ron_files::{Dir, SharedDisk};
use ron_kernel::{OsNet, Registry, SharedClock, SharedRandom};
use ron_proto::kms::KeyBackend;
use ron_service::log_move::{Move, MoveError, Show};
use ron_service::records::{Engine, EngineAccess, RecordStore};
use ron_service::{Config, ConfigProblem, ServiceSettings as _};
use ron_tlog::VerifierKey;
use ron_tlog::append::Migrated;

use crate::audit::DIR;
use crate::engine::distrust::Distrust;
use crate::engine::log::{anchors, examine};
use crate::engine::{JOURNAL, open_journal, store_settings};
use crate::kept_keys;
use crate::metrics::Metrics;
use crate::replay::{Answered, Journal, Replay};
use crate::settings::Settings;

/// Directory of the audit log in the data directory.
pub const LOG: &str = DIR;

/// Ends the name of the schema that has the keys beside the logs.
const KEYS_SCHEMA: &str = "_keys";

/// A key service, by its configuration.
#[derive(Debug)]
pub struct KeyService {
    settings: Settings,
    data: Dir,
}

impl KeyService {
    /// The service of a configuration with a data directory on this disk.
    pub fn of(config: &Config, disk: SharedDisk) -> Result<Self, Vec<ConfigProblem>> {
        let settings = Settings::from_config(config)?;
        let Some(data) = &settings.data_dir else {
            let key = ron_service::ChassisSettings::data_dir;
            let why = "is not set: there is nothing to move";
            return Err(vec![config.problem(key, why)]);
        };
        let data = Dir::new(disk, data);
        Ok(Self { settings, data })
    }

    pub fn data(&self) -> &Dir {
        &self.data
    }

    /// The keys that verify the checkpoints of the log, from a pinned one on.
    pub fn verifiers(&self, pin: &VerifierKey) -> Result<Vec<VerifierKey>, String> {
        kept_keys(self.data.join(DIR).path(), pin)
    }

    /// The answers that are remembered in files.
    pub(crate) fn journal(&self, store: &KeyStore) -> Result<(Arc<Replay>, Journal), String> {
        let metrics = Metrics::new(&Registry::new("ron-kms"), "file");
        let opened = open_journal(&self.settings, &metrics, store, &self.data);
        opened.map_err(|e| format!("the journal of answers: {e}"))
    }

    /// What the key store of this service needs of its configuration.
    pub(crate) fn store_settings(&self) -> StoreSettings {
        store_settings(&self.settings, Some(self.data.clone()))
    }

    /// The table `seal` that a node with these keys needs in its configuration.
    pub fn seal_table(&self) -> String {
        let (key, path) = match &self.settings.seal {
            SealSource::Passphrase(path) => ("passphrase_file", path),
            SealSource::KeyFile { path, .. } | SealSource::Tpm(path) => ("key_file", path),
            SealSource::Ephemeral => return String::new(),
        };
        format!("[seal]\n{key} = \"{}\"", path.display())
    }
}

/// A key service, and the engine that it goes to or comes from.
pub struct KeyMove<'a> {
    pub service: &'a KeyService,
    /// Of the audit log; its schema is that of the logs.
    pub log: Move<'a>,
    pub random: SharedRandom,
    pub clock: SharedClock,
}

impl KeyMove<'_> {
    /// Copies what is signed of the log to a schema of its own, which is removed afterwards, and says whether the keys could be moved.
    pub fn rehearse(&self, show: Show<'_>) -> Result<Migrated, MoveError> {
        self.log.check()?;
        self.refuse_immovable()?;
        self.log.rehearse(show)
    }

    /// Looks at the keys beside a service that runs, so that it is not stopped in vain.
    fn refuse_immovable(&self) -> Result<(), MoveError> {
        if matches!(self.service.settings.seal, SealSource::Tpm(_)) {
            let why = "the seal key is in a TPM (seal.tpm_file), which belongs to one host: leave the service in files";
            return Err(MoveError::Refused(why.to_owned()));
        }
        match immovable_in(self.home()).map_err(refused)? {
            Some(why) => Err(MoveError::Refused(why)),
            None => Ok(()),
        }
    }

    fn home(&self) -> &Dir {
        &self.service.data
    }

    fn store_settings(&self) -> StoreSettings {
        StoreSettings {
            origin: Some(self.log.keys[0].name().to_owned()),
            ..self.service.store_settings()
        }
    }

    /// The tables of the keys in the engine.
    fn records(&self) -> Result<Box<dyn RecordStore>, MoveError> {
        let engine = Engine {
            schema: format!("{}{KEYS_SCHEMA}", self.log.engine.schema),
            ..self.log.engine.clone()
        };
        let access = EngineAccess::unstopped(Arc::new(OsNet));
        let engines = self.log.engines;
        let records = engines.records(&engine, MIGRATIONS, &access, &*self.random);
        records.map_err(|e| MoveError::Refused(e.to_string()))
    }

    /// Opens keys with all their MACs checked; `None` when there are none. This node's log is the one that is moved.
    fn open(&self, records: Box<dyn RecordStore>) -> Result<Option<KeyStore>, MoveError> {
        let backends = Backends::new(KeyBackend::File, Vec::new(), self.clock.clone());
        let (settings, random) = (self.store_settings(), self.random.clone());
        let opened = KeyStore::open_moving(records, &settings, backends, random);
        let opened = opened.map_err(refused)?;
        let Some(store) = &opened else {
            return Ok(None);
        };
        let chain = store.log().chain().map_err(MoveError::Refused)?;
        if chain.since(&self.log.keys[0]) != Some(self.log.keys) {
            let why = "the keys of the audit log are others than those in the key store: start the service once, so that a rotation is at its \
                       end, or name the log's verifier key";
            return Err(MoveError::Refused(why.to_owned()));
        }
        Ok(opened)
    }

    /// Compares the log in files with the keys, as a start does.
    fn examine(&self, store: &KeyStore) -> Result<Option<Answered>, MoveError> {
        let anchors = anchors(&self.service.settings, self.home(), &store.log().origin);
        let examined = examine(&self.home().join(DIR), &anchors, store);
        examined.map_err(|Distrust { why, .. }| MoveError::Refused(why))
    }

    /// The answers that are remembered in files.
    fn journal(&self, store: &KeyStore) -> Result<(Arc<Replay>, Journal), MoveError> {
        self.service.journal(store).map_err(MoveError::Beside)
    }

    fn journal_dir(&self) -> Dir {
        self.home().join(JOURNAL)
    }
}

/// Before anything is changed.
fn refused(error: StoreError) -> MoveError {
    MoveError::Refused(error.to_string())
}

fn beside(error: StoreError) -> MoveError {
    MoveError::Beside(error.to_string())
}
