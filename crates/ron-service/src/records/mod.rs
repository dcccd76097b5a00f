//! Small records of a service in an engine: SQLite on this host, or PostgreSQL with a copy on another. The same statements run
//! on both.
//!
//! ```text
//!  write(writer, |tx| ..) ──┬─> Ok        committed, and on the standby too
//!                           ├─> Refused   nothing was changed, nothing will be
//!                           ├─> Conflict  the same, after transactions of others until the deadline
//!                           ├─> Fenced    another node has claimed the records: stop
//!                           └─> Unknown   no answer may leave ──> resolve ──> done or not
//!  read(|tx| ..) ──> provisional ──> confirm() ──> final
//! ```
//!
//! **Invariant:** transactions are serialisable. Where another is in the way, the work runs again: it may run several times.
//! **Invariant:** a statement that fails ends its transaction, on every engine and also when the work goes on.
//! **Invariant:** an unknown transaction is resolved by what it left in the engine, never guessed and never repeated blindly.
//!
//! Statements are in the subset of SQL that both engines share: parameters `?1`, `?2`; `ON CONFLICT .. DO`, `RETURNING`;
//! integers, text without a zero byte, and blobs, each in a column of its own type.

mod file;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(test, feature = "postgres"))]
mod sql;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ron_kernel::{Deadline, Random, SharedNet, Shutdown};
use ron_tlog::store::{EngineInspection, LogSessions};
pub use ron_tlog::store::{Refusal, Writer};

use crate::store::Migration;
pub use file::FileRecords;
#[cfg(feature = "postgres")]
pub use postgres::{PgRecordOptions, PgRecords};

/// The table of [`RecordStore::claim`]: a part of the migrations of a service that has one active node.
pub const EPOCH_TABLE: &str =
    "CREATE TABLE record_epoch (id INTEGER PRIMARY KEY CHECK (id = 1), epoch INTEGER NOT NULL)";

crate::choice! {
    /// What makes a commit in an engine durable beyond one host.
    #[derive(Default)]
    pub enum EngineDurability {
        /// Standbys that `synchronous_standby_names` names, in an order of priority.
        #[default]
        Standby = "standby",
        /// Also any of several: the failover manager stops a primary by a watchdog.
        Quorum = "quorum",
        /// The storage below the server is replicated, which the server does not show.
        Storage = "storage",
    }
}

#[cfg(feature = "postgres")]
impl EngineDurability {
    const fn of_engine(self) -> ron_pg::Durability {
        match self {
            Self::Standby => ron_pg::Durability::Standby,
            Self::Quorum => ron_pg::Durability::Quorum,
            Self::Storage => ron_pg::Durability::Storage,
        }
    }
}

/// Where records and logs are that several nodes share.
#[derive(Clone, Debug)]
pub struct Engine {
    /// As libpq takes it: a URL, or pairs of a name and a value.
    pub url: String,
    pub schema: String,
    pub durability: EngineDurability,
}

impl Engine {
    /// The engine that three keys of a configuration name; `None` without a URL.
    pub fn named(url: Option<&String>, schema: &str, durability: EngineDurability) -> Option<Self> {
        url.map(|url| Self {
            url: url.clone(),
            schema: schema.to_owned(),
            durability,
        })
    }
}

/// How a process reaches engines.
#[derive(Clone, Debug)]
pub struct EngineAccess {
    pub net: SharedNet,
    /// Once it has fired, calls wait for an engine that is silent no longer than `grace`.
    pub stop: Shutdown,
    /// A small part of `drain_deadline`: what is queued is still written, and an engine that is silent leaves no thread behind.
    pub grace: Duration,
}

impl EngineAccess {
    /// For a command, which ends with its process.
    pub fn unstopped(net: SharedNet) -> Self {
        let (_trigger, stop) = Shutdown::pair();
        let grace = Duration::ZERO;
        Self { net, stop, grace }
    }
}

/// Opens the engines that a configuration names. A process gives it to its services, as it gives them sockets and a disk.
pub trait Engines: fmt::Debug + Send + Sync {
    /// The sessions of one node with a log. The engine need not answer yet. `Unsupported`: the process has no such engine.
    fn log_sessions(
        &self,
        engine: &Engine,
        log: &LogClaim<'_>,
        access: &EngineAccess,
    ) -> io::Result<LogSessions>;

    /// The records of one node. The engine need not answer yet.
    fn records(
        &self,
        engine: &Engine,
        migrations: &'static [Migration],
        access: &EngineAccess,
        random: &dyn Random,
    ) -> io::Result<Box<dyn RecordStore>> {
        engine.open(migrations, access, random)
    }

    /// What is wrong with an engine in this process; `None` when nothing is known to be.
    fn fault(&self, engine: &Engine) -> Option<String> {
        engine.url_fault()
    }
}

pub type SharedEngines = Arc<dyn Engines>;

/// A log of an engine, and the process that is to write it.
#[derive(Clone, Copy, Debug)]
pub struct LogClaim<'a> {
    /// Origin of the log.
    pub log: &'a str,
    /// Unique for each start of a process.
    pub holder: &'a str,
    /// The table, as `schema.table`, whose only row has the `version` that guarded appends compare; `None` without such appends.
    pub guard: Option<&'a str>,
}

/// PostgreSQL, if the program was built with it: the engine of programs.
#[derive(Clone, Copy, Debug)]
pub struct Postgres;

impl Engines for Postgres {
    fn log_sessions(
        &self,
        engine: &Engine,
        log: &LogClaim<'_>,
        access: &EngineAccess,
    ) -> io::Result<LogSessions> {
        engine.log_sessions(log, access)
    }

    fn fault(&self, engine: &Engine) -> Option<String> {
        engine.fault()
    }
}

impl Engine {
    /// What is wrong with it in this program; `None` when nothing is known to be.
    pub fn fault(&self) -> Option<String> {
        if cfg!(not(feature = "postgres")) {
            let why = "needs PostgreSQL, without which this program was built (feature `postgres`)";
            return Some(why.into());
        }
        self.url_fault()
    }

    /// What is wrong with its URL, whichever engine it names.
    pub fn url_fault(&self) -> Option<String> {
        let user = self.url.split_once("://").map_or("", |(_, rest)| rest);
        let user = user.split(['/', '?']).next().unwrap_or("");
        let named = user.rsplit_once('@').map_or("", |(user, _)| user);
        if named.contains(':') || self.url.contains("password=") {
            let why = "must not have a password: name a file of mode 0600 with passfile=/path";
            return Some(why.into());
        }
        None
    }

    /// The records of one node. The engine need not answer yet; calls connect when they have to.
    #[cfg(feature = "postgres")]
    pub fn open(
        &self,
        migrations: &'static [Migration],
        access: &EngineAccess,
        random: &dyn Random,
    ) -> io::Result<Box<dyn RecordStore>> {
        let options = PgRecordOptions {
            conninfo: self.url.clone(),
            schema: self.schema.clone(),
            node: format!("{:016x}{:016x}", random.u64(), random.u64()),
            durability: self.durability.of_engine(),
            migrations,
        };
        Ok(Box::new(PgRecords::new(options, waiter(access)?)))
    }

    /// The sessions of one node with a log.
    #[cfg(feature = "postgres")]
    pub fn log_sessions(
        &self,
        log: &LogClaim<'_>,
        access: &EngineAccess,
    ) -> io::Result<LogSessions> {
        let mut options = ron_pg::PgLogOptions::new(&self.url, &self.schema, log.log, log.holder);
        options.durability = self.durability.of_engine();
        options.guard = log.guard.map(str::to_owned);
        Ok(LogSessions {
            batches: Box::new(ron_pg::PgLogStore::new(options.clone(), waiter(access)?)),
            checkpoints: Box::new(ron_pg::PgLogStore::new(options.clone(), waiter(access)?)),
            beat: Box::new(ron_pg::PgLogBeat::new(options.clone(), waiter(access)?)),
            upkeep: Box::new(ron_pg::Upkeep::new(options, waiter(access)?)),
        })
    }

    /// Looks at the engine as an operator would before a service writes to it. Nothing is changed.
    #[cfg(feature = "postgres")]
    pub fn inspect(&self, net: &SharedNet, deadline: Deadline) -> Result<EngineInspection, String> {
        let waiter = waiter(&EngineAccess::unstopped(net.clone())).map_err(|e| e.to_string())?;
        let durability = self.durability.of_engine();
        ron_pg::inspect(&self.url, durability, &waiter, deadline).map_err(|e| e.to_string())
    }

    /// This program was built without an engine: [`Engine::fault`] has said so.
    #[cfg(not(feature = "postgres"))]
    pub fn inspect(
        &self,
        _net: &SharedNet,
        _deadline: Deadline,
    ) -> Result<EngineInspection, String> {
        Err(self.fault().unwrap_or_default())
    }

    /// This program was built without an engine: [`Engine::fault`] has said so.
    #[cfg(not(feature = "postgres"))]
    pub fn log_sessions(
        &self,
        _log: &LogClaim<'_>,
        _access: &EngineAccess,
    ) -> io::Result<LogSessions> {
        let why = self.fault().unwrap_or_default();
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    /// This program was built without an engine: [`Engine::fault`] has said so.
    #[cfg(not(feature = "postgres"))]
    pub fn open(
        &self,
        _migrations: &'static [Migration],
        _access: &EngineAccess,
        _random: &dyn Random,
    ) -> io::Result<Box<dyn RecordStore>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(feature = "postgres")]
fn waiter(access: &EngineAccess) -> io::Result<Arc<ron_pg::Waiter>> {
    ron_pg::Waiter::new(&*access.net, &access.stop, access.grace)
}

/// A value of a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    Null,
    Int(i64),
    Text(String),
    Blob(Vec<u8>),
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::Blob(bytes.into())
    }
}

/// A row of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row(pub Vec<Value>);

impl Row {
    /// Whether the column is there and has no value.
    pub fn is_null(&self, column: usize) -> bool {
        matches!(self.0.get(column), Some(Value::Null))
    }

    /// An integer; an error for another type, NULL, and outside of the row.
    pub fn int(&self, column: usize) -> Result<i64, RecordError> {
        match self.0.get(column) {
            Some(Value::Int(number)) => Ok(*number),
            other => Err(wrong_type(column, "an integer", other)),
        }
    }

    /// A text; errors as for [`Row::int`].
    pub fn text(&self, column: usize) -> Result<&str, RecordError> {
        match self.0.get(column) {
            Some(Value::Text(text)) => Ok(text),
            other => Err(wrong_type(column, "a text", other)),
        }
    }

    /// Bytes; errors as for [`Row::int`].
    pub fn blob(&self, column: usize) -> Result<&[u8], RecordError> {
        match self.0.get(column) {
            Some(Value::Blob(bytes)) => Ok(bytes),
            other => Err(wrong_type(column, "a blob", other)),
        }
    }
}

fn wrong_type(column: usize, wanted: &str, found: Option<&Value>) -> RecordError {
    let found = match found {
        None => "missing",
        Some(Value::Null) => "NULL",
        Some(Value::Int(_)) => "an integer",
        Some(Value::Text(_)) => "a text",
        Some(Value::Blob(_)) => "a blob",
    };
    RecordError::Damaged(format!("column {column} must be {wanted} and is {found}"))
}

/// Every outcome of a call that is not `Ok`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Nothing was changed, and nothing will be.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Transactions of others were in the way until the deadline. Nothing was changed.
    #[error("transactions of others were in the way until the deadline: {0}")]
    Conflict(String),
    /// The write may be in the engine, may come into it later, or may be lost: nothing of it may be
    /// answered, and nothing else is written, before [`RecordStore::resolve`].
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// Another node has claimed the records. Nothing was changed. The caller writes nothing more.
    #[error("another node has claimed the records")]
    Fenced,
    /// What was read is no record of this service. Writes have to stop.
    #[error("the records are damaged: {0}")]
    Damaged(String),
}

/// A transaction that is open while its work runs.
pub trait Statements {
    /// Runs a statement that returns no rows; the number of rows that it has changed.
    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64, RecordError>;

    /// Runs a statement, and returns its rows. Without ORDER BY they are in any order.
    fn query(&mut self, sql: &str, params: &[Value]) -> Result<Vec<Row>, RecordError>;
}

/// The statements of a transaction. False: everything is rolled back.
pub type Work<'a> = dyn FnMut(&mut dyn Statements) -> bool + 'a;

/// The records of one service in an engine, through one session. One thread owns it; each call ends
/// at its deadline, as far as the disk lets it.
pub trait RecordStore: Send {
    /// Runs `work` in a serialisable transaction, and commits it when `work` returns true and no
    /// statement has failed. After `Ok(true)` the change is durable, on the standby too. `work` runs
    /// again when a transaction of others was in the way. Services call `write` of the trait object.
    fn transact(&mut self, work: &mut Work<'_>, deadline: Deadline) -> Result<bool, RecordError>;

    /// Runs `work`, which changes nothing, in one transaction. What it reads is provisional: it may
    /// vanish with the engine's primary until [`RecordStore::confirm`] has returned `Ok`.
    fn view(&mut self, work: &mut Work<'_>, deadline: Deadline) -> Result<(), RecordError>;

    /// After `Ok` everything that this store has read before is final.
    fn confirm(&mut self, deadline: Deadline) -> Result<(), RecordError>;

    /// Finds out what became of the transaction that was unknown: true when it is committed and
    /// durable, false when it is not and never will be. `Unknown` when that cannot be said yet.
    fn resolve(&mut self, deadline: Deadline) -> Result<bool, RecordError>;
}

impl dyn RecordStore + '_ {
    /// Runs `work` in a transaction and commits it. An error of `work` rolls everything back. `work`
    /// may run several times, so it changes nothing but records. For an owner the epoch is compared
    /// first: [`RecordError::Fenced`] when another node has claimed the records.
    pub fn write<T, E: From<RecordError>>(
        &mut self,
        writer: Writer,
        deadline: Deadline,
        mut work: impl FnMut(&mut dyn Statements) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut value = None;
        let mut keep = |tx: &mut dyn Statements| {
            let done = match is_current(tx, writer) {
                Ok(true) => work(tx),
                Ok(false) => Err(RecordError::Fenced.into()),
                Err(error) => Err(error.into()),
            };
            let commit = done.is_ok();
            value = Some(done);
            commit
        };
        self.transact(&mut keep, deadline)?;
        value.expect("the work has run")
    }

    /// Runs queries in one transaction; `work` changes nothing, and may run several times.
    pub fn read<T, E: From<RecordError>>(
        &mut self,
        deadline: Deadline,
        mut work: impl FnMut(&mut dyn Statements) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut value = None;
        let mut keep = |tx: &mut dyn Statements| {
            let done = work(tx);
            let good = done.is_ok();
            value = Some(done);
            good
        };
        self.view(&mut keep, deadline)?;
        value.expect("the work has run")
    }

    /// The newest epoch; 0 before the first claim. Needs [`EPOCH_TABLE`].
    pub fn epoch(&mut self, deadline: Deadline) -> Result<u64, RecordError> {
        let rows = self.read(deadline, |tx| {
            tx.query("SELECT epoch FROM record_epoch", &[])
        })?;
        let epoch = rows.first().map_or(Ok(0), |row| row.int(0));
        Ok(epoch?.cast_unsigned())
    }

    /// Takes the records over from the node of epoch `seen`; returns the epoch that is ours.
    /// `Fenced`: the epoch is not `seen` any more. `Unknown`: when [`RecordStore::resolve`] says that
    /// it was done, the epoch `seen + 1` is ours.
    pub fn claim(&mut self, seen: u64, deadline: Deadline) -> Result<u64, RecordError> {
        self.write(Writer::Shared, deadline, |tx| {
            let begin = "INSERT INTO record_epoch (id, epoch) VALUES (1, 0) ON CONFLICT DO NOTHING";
            tx.execute(begin, &[])?;
            let raise = "UPDATE record_epoch SET epoch = epoch + 1 WHERE epoch = ?1";
            let raised = tx.execute(raise, &[Value::Int(seen.cast_signed())])?;
            if raised == 0 {
                return Err(RecordError::Fenced);
            }
            Ok(seen + 1)
        })
    }
}

/// Whether the writer may write. An update and no query: its lock on the row lets no claim pass
/// until this transaction has ended.
fn is_current(tx: &mut dyn Statements, writer: Writer) -> Result<bool, RecordError> {
    let Writer::Owner { epoch } = writer else {
        return Ok(true);
    };
    let sql = "UPDATE record_epoch SET epoch = epoch WHERE epoch = ?1";
    Ok(tx.execute(sql, &[Value::Int(epoch.cast_signed())])? == 1)
}

/// Refuses what only one of the engines would take.
fn check_params(params: &[Value]) -> Result<(), RecordError> {
    let odd = |value: &Value| matches!(value, Value::Text(text) if text.contains('\0'));
    if params.iter().any(odd) {
        return Err(Refusal::Rejected("a text must not have a zero byte".into()).into());
    }
    Ok(())
}
