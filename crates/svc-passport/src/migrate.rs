//! Moves an issuer from files to an engine, and back: `ron issuer migrate`. In files what opens a leaf is a row of `passport.db`, in an
//! engine the private part of its record.
//!
//! ```text
//!  there: rows ──> private parts of the entries in the engine; log.meta names it ──> the copy is cleared, the rows are deleted
//!  back:  the log, which no node writes any more ──> ids of proofs and assertions end ──> a row for each entry
//! ```
//!
//! **Invariant:** at every moment at most one place takes revocations. A start in files refuses a log that `log.meta` calls a copy, and
//! one without a row for each leaf; in the engine no node appends while a migration is the holder.

use std::collections::VecDeque;
use std::sync::Arc;

use ron_auth::{RevocationView, read_seen};
use ron_files::{Dir, SharedDisk};
use ron_kernel::{Deadline, OsNet, SharedClock, SharedRandom, Shutdown};
use ron_service::log_host::note_key;
use ron_service::log_move::{Followed, Move, MoveError, Show, Step};
use ron_service::records::{Engine, EngineAccess, RecordStore};
use ron_service::{ChassisSettings, Config, ConfigProblem, ServiceSettings as _, Store};
use ron_tlog::append::{MakePrivate, Migrated, clear_copy};
use ron_tlog::note::Ed25519NoteSigner;
use ron_tlog::store::Transit;
use ron_tlog::{Log, LogOptions};
use rusqlite::Connection;

use crate::once;
use crate::revoke::{
    FILE_NAME, LOG_DIR, LogPlace, PAGE_MAX, Register, RevocationStore, Row, StoreFailed, compare,
    private_of, row_of, rows_of, signed,
};
use crate::settings::Settings;

/// Pause between two looks at the clock.
const POLL: std::time::Duration = std::time::Duration::from_secs(1);

/// An issuer, by its configuration.
#[derive(Debug)]
pub struct IssuerService {
    settings: Settings,
    data: Dir,
}

impl IssuerService {
    /// The issuer of a configuration with a data directory on this disk.
    pub fn of(config: &Config, disk: SharedDisk) -> Result<Self, Vec<ConfigProblem>> {
        let settings = Settings::from_config(config)?;
        let Some(data) = &config.chassis().data_dir else {
            let why = "is not set: there is nothing to move";
            return Err(vec![config.problem(ChassisSettings::data_dir, why)]);
        };
        let data = Dir::new(disk, data);
        Ok(Self { settings, data })
    }

    pub fn data(&self) -> &Dir {
        &self.data
    }

    /// Opens the register of an issuer in files that does not run, as a start does. Its witnesses are not asked.
    pub(crate) fn register(
        &self,
        signer: Arc<Ed25519NoteSigner>,
        random: &SharedRandom,
    ) -> Result<(Register, RevocationView), String> {
        let seen = read_seen(&self.data)?;
        let seen = seen.get(self.settings.names.first());
        let known = seen.and_then(ron_auth::IssuerRecord::head);
        let place = LogPlace {
            disk: self.data.disk().clone(),
            dir: &self.data.file(LOG_DIR),
            signer,
            known: known.into_iter().collect(),
            witnesses: None,
            random: random.clone(),
            archive_dir: None,
        };
        let store = RevocationStore::open(&self.data).map_err(|e| e.to_string())?;
        Register::open(store, place).map_err(|e| e.to_string())
    }

    /// The first name of the issuer.
    pub(crate) fn name(&self) -> &str {
        self.settings.names.first()
    }

    /// The engine of used ids, beside that of the log.
    pub fn records(&self, log: &Engine) -> Engine {
        Engine {
            schema: self.settings.keys.records_schema.clone(),
            ..log.clone()
        }
    }
}

/// An issuer, and the engine that it goes to or comes from.
pub struct IssuerMove<'a> {
    pub service: &'a IssuerService,
    pub log: Move<'a>,
    pub random: SharedRandom,
    pub clock: SharedClock,
}

fn refused(error: impl std::fmt::Display) -> MoveError {
    MoveError::Refused(error.to_string())
}

fn beside(error: impl std::fmt::Display) -> MoveError {
    MoveError::Beside(error.to_string())
}

impl IssuerMove<'_> {
    /// Moves the issuer to the engine. It may run meanwhile; when all but the end of the log is copied, `show` is told that it has to
    /// stop, and the move goes on when it has.
    pub fn to_engine(&self, is_resumed: bool, show: Show<'_>) -> Result<Migrated, MoveError> {
        self.log.check()?;
        let private = Some(self.private_parts()?);
        match self.log.follow_adding(private, is_resumed, show)? {
            Followed::Copied(copied) => {
                self.complete()?;
                self.carry_ids()?;
                let moved = self.log.close_files(*copied, show)?;
                self.clear()?;
                Ok(moved)
            }
            Followed::Closed(_lock) => self.end_there(),
        }
    }

    /// Copies what is signed to a schema of its own, which is removed afterwards.
    pub fn rehearse(&self, show: Show<'_>) -> Result<Migrated, MoveError> {
        self.log.check()?;
        self.log.rehearse_adding(Some(self.private_parts()?), show)
    }

    /// Makes the copy of this node, which does not run, an issuer in files. No node revokes any more, and none issues once its reading
    /// of the log is too old.
    pub fn to_files(&self, is_resumed: bool, show: Show<'_>) -> Result<Migrated, MoveError> {
        self.log.check()?;
        let is_copy = self.log.is_copy()?;
        let _lock = self.log.lock()?;
        let signer = self.signer()?;
        let store = self.store()?;
        if let Some(transit @ Transit::Filling(_)) = self.log.head()?.transit() {
            let why = format!("the log in the database is not in use: {transit}");
            return Err(MoveError::Refused(why));
        }
        if is_copy && store.last().map_err(refused)? > 0 {
            // The move there lacked its last step: the copy has entries without their private parts.
            self.clear()?;
        }
        let moved = self
            .log
            .log_to_files(Some(signer.clone()), is_resumed, show)?;
        // Files remember ids of assertions by name, and the engine has their hashes: an id must not count a second time.
        self.wait_for_ids(show)?;
        self.bring_rows(&store, &signer)?;
        Ok(moved)
    }

    fn home(&self) -> &Dir {
        &self.service.data
    }

    fn store(&self) -> Result<RevocationStore, MoveError> {
        RevocationStore::open(self.home()).map_err(refused)
    }

    fn records(&self) -> Result<Box<dyn RecordStore>, MoveError> {
        let engine = self.service.records(self.log.engine);
        let access = EngineAccess::unstopped(Arc::new(OsNet));
        let engines = self.log.engines;
        let records = engines.records(&engine, &once::MIGRATIONS, &access, &*self.random);
        records.map_err(refused)
    }

    /// The key of the log, which signs rows too.
    fn signer(&self) -> Result<Arc<Ed25519NoteSigner>, MoveError> {
        let origin = self.log.keys[0].name();
        let signer = note_key::load_or_make(self.home(), origin, &*self.random, false);
        let signer = signer.map_err(MoveError::Refused)?;
        if signer.verifier() != &self.log.keys[0] {
            let path = self.home().file(note_key::KEY_FILE);
            return Err(refused(format!(
                "{} is not the key that the log was signed with",
                path.display()
            )));
        }
        Ok(Arc::new(signer))
    }

    /// Reads the rows beside an issuer that runs: a row is there before its leaf.
    fn private_parts(&self) -> Result<MakePrivate, MoveError> {
        let path = self.home().os_path(FILE_NAME).filter(|path| path.exists());
        let path = path.ok_or_else(|| {
            refused(format!(
                "{} has no passport.db",
                self.home().path().display()
            ))
        })?;
        let conn = Store::reader(&path);
        let mut rows = Rows {
            conn: conn.map_err(|e| refused(format!("{}: {e}", path.display())))?,
            read: VecDeque::new(),
        };
        Ok(Box::new(move |index, leaf| {
            let private = rows.row(index + 1).and_then(|row| private_of(&row, leaf));
            private.map_err(|e| e.to_string())
        }))
    }

    /// Opens the register as a start does: compares all rows with their leaves, gives those that a crash has left without one theirs,
    /// and signs all.
    fn complete(&self) -> Result<(), MoveError> {
        let opened = self.service.register(self.signer()?, &self.random);
        opened.map(drop).map_err(MoveError::Refused)
    }

    /// Copies the ids of client assertions that may not have expired.
    fn carry_ids(&self) -> Result<(), MoveError> {
        let used = self.store()?.assertions().map_err(beside)?;
        once::carry(&mut *self.records()?, &used).map_err(beside)
    }

    /// Clears the copy, whose entries have no private parts, and deletes the rows, which say whether this was done.
    fn clear(&self) -> Result<(), MoveError> {
        let log = self.home().join(LOG_DIR);
        clear_copy(&**log.disk(), log.path())?;
        self.store()?.forget().map_err(beside)
    }

    /// Ends a move that was interrupted after the files were closed.
    fn end_there(&self) -> Result<Migrated, MoveError> {
        let head = self.log.head()?;
        let has_rows = self.store()?.last().map_err(refused)? > 0;
        let moved = match head.transit() {
            Some(Transit::Filling(_)) => self.log.end()?,
            None if has_rows => Migrated {
                size: head.size,
                root: head.root,
                ..Migrated::default()
            },
            _ => {
                return Err(refused(format!(
                    "{} is the copy of a log that a database keeps, and no migration of it is to be ended",
                    self.log.dir().display()
                )));
            }
        };
        self.clear()?;
        Ok(moved)
    }

    fn wait_for_ids(&self, show: Show<'_>) -> Result<(), MoveError> {
        let end = once::last_end(&mut *self.records()?).map_err(beside)?;
        let (_trigger, never) = Shutdown::pair();
        let mut is_announced = false;
        while self.clock.unix_ms() / 1000 <= end {
            if !is_announced {
                let left = end.saturating_sub(self.clock.unix_ms() / 1000);
                let why = format!("used proofs and assertions of clients count for {left} s more");
                show(Step::Wait(why));
                is_announced = true;
            }
            never.wait(Deadline::within(POLL));
        }
        Ok(())
    }

    /// Writes a row for each entry, and compares all of them.
    fn bring_rows(
        &self,
        store: &RevocationStore,
        signer: &Arc<Ed25519NoteSigner>,
    ) -> Result<(), MoveError> {
        let log = self.home().join(LOG_DIR);
        let key = &self.log.keys[0];
        let options = LogOptions::new(key.name()).verified_by(key.clone());
        let opened = Log::open(log.disk().clone(), log.path(), options)?;
        let reader = opened.reader();
        let (mut next, size) = (store.last().map_err(beside)?, reader.size_durable());
        while next < size {
            let end = size.min(next + PAGE_MAX as u64);
            let mut rows = Vec::new();
            let read = reader.records(next..end, |index, leaf, private| {
                rows.push(signed(row_of(index + 1, leaf, private)?, signer)?);
                Ok::<(), StoreFailed>(())
            });
            read.map_err(beside)?;
            store.append(&rows).map_err(beside)?;
            next = end;
        }
        match compare(store, &reader, key).map_err(beside)? {
            (_, unlogged) if unlogged.is_empty() => Ok(()),
            _ => Err(beside("passport.db has more rows than the log has entries")),
        }
    }
}

/// The rows of a database, read in order.
struct Rows {
    conn: Connection,
    read: VecDeque<Row>,
}

impl Rows {
    fn row(&mut self, seq: u64) -> Result<Row, StoreFailed> {
        let is_next = |row: &Row| row.event.seq == seq;
        if !self.read.front().is_some_and(is_next) {
            self.read = rows_of(&self.conn, seq - 1, PAGE_MAX)?.into();
        }
        let row = self.read.pop_front().filter(is_next);
        row.ok_or_else(|| StoreFailed::Row(format!("there is no event {seq}")))
    }
}
