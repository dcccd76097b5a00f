//! Records in PostgreSQL: one session, serialisable transactions, and a row by which a commit without a known outcome is found.

use std::sync::Arc;
use std::time::Duration;

use ron_crypto::hash::sha256;
use ron_kernel::Deadline;
use ron_pg::{
    Cell, Commits, Connection, Durability, Param, PgError, Rows, Session, Waiter, check_schema,
    of_read, of_write,
};
use ron_tlog::store::StoreError;

use super::{RecordError, RecordStore, Refusal, Row, Statements, Value, Work, check_params, sql};
use crate::store::Migration;

/// Serialises migrations of several nodes; any number that no other program uses.
const TABLES_LOCK: i64 = 0x726f_6e5f_7265_6373;

/// A session in which [`RESOLVE`] waits this long is given up, and the next call opens another: its server may be gone without
/// a word. A server that is not gone goes on waiting for the row.
const RESOLVER_WAITS: Duration = Duration::from_secs(30);

/// Names and texts in statements are as in the service, and tables are those of its schema. The server ends the transaction of a
/// client that is gone without a word, and with it its locks: a session that waits for a statement was not asked to commit.
const SETTINGS: &str = "SELECT set_config('search_path', $1, false), set_config('client_encoding', 'UTF8', false), \
     set_config('idle_in_transaction_session_timeout', '30s', false)";

/// The row of one opened store, under its random name, is written by each of its transactions.
const TABLES: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS record_op (node text PRIMARY KEY, op bigint NOT NULL, at timestamptz NOT NULL DEFAULT now()) \
     WITH (fillfactor = 50)",
    "CREATE TABLE IF NOT EXISTS record_schema (version bigint PRIMARY KEY, sum bytea NOT NULL)",
];

const OPERATION: &str = "INSERT INTO record_op (node, op) VALUES ($1, $2) \
     ON CONFLICT (node) DO UPDATE SET op = EXCLUDED.op, at = now()";

/// Waits for a transaction of this store that is still under way, because it has the row. Writes the row
/// again, so that what is returned is on the standby.
const RESOLVE: &str = "INSERT INTO record_op AS r (node, op) VALUES ($1, 0) \
     ON CONFLICT (node) DO UPDATE SET at = now() RETURNING r.op";

/// Rows of stores that have written nothing for long: their processes have ended.
const FORGET: &str = "DELETE FROM record_op WHERE node <> $1 AND at < now() - interval '30 days'";

/// The records of one service in one schema of a database.
#[derive(Clone)]
pub struct PgRecordOptions {
    /// As libpq takes it. Use addresses (`hostaddr`): names are resolved without a deadline.
    pub conninfo: String,
    /// Schema of the service: lower-case letters, digits and `_`.
    pub schema: String,
    /// Name of this store. Unique for each start of a process and each store in it: a commit whose
    /// outcome was lost is found by it.
    pub node: String,
    pub durability: Durability,
    pub migrations: &'static [Migration],
}

/// A transaction that is perhaps committed.
#[derive(Debug)]
struct Pending {
    op: i64,
    /// Until when the answer to [`RESOLVE`], which was sent, is waited for on this session.
    sent: Option<Deadline>,
}

/// Records of one service, through one session that is opened again when it is lost. Earlier sessions may still wait at the
/// server: the one with the transaction whose outcome is unknown, and others that resolve it, one more each [`RESOLVER_WAITS`].
pub struct PgRecords {
    options: PgRecordOptions,
    waiter: Arc<Waiter>,
    session: Option<Session>,
    /// The tables are those of the migrations.
    is_installed: bool,
    /// Number of the newest transaction of this store.
    op: i64,
    pending: Option<Pending>,
}

/// How one attempt at a transaction ended.
enum Attempt {
    Committed,
    /// As the work wanted.
    RolledBack,
    /// Another transaction was in the way.
    Again(String),
    Failed(RecordError),
    Unknown(String),
}

impl PgRecords {
    /// Connects with the first call, and makes the tables if they are missing. `waiter` is for this store alone.
    pub fn new(options: PgRecordOptions, waiter: Arc<Waiter>) -> Self {
        Self {
            options,
            waiter,
            session: None,
            is_installed: false,
            op: 0,
            pending: None,
        }
    }

    /// The connection of the session, opened if there is none.
    fn open(&mut self, deadline: Deadline) -> Result<&mut Connection, RecordError> {
        if self.session.is_none() {
            let options = &self.options;
            check_schema(&options.schema)?;
            let mut session = Session::open(
                &options.conninfo,
                options.durability,
                Commits::Replicated,
                &self.waiter,
                deadline,
            )?;
            let schema = [Param::Text(&options.schema)];
            let set = session.connection.query(SETTINGS, &schema, deadline);
            set.map_err(of_read)?;
            self.session = Some(session);
        }
        Ok(&mut self.session.as_mut().expect("opened above").connection)
    }

    /// Refuses unless commits of the session are durable beyond one host.
    fn check(&mut self, deadline: Deadline) -> Result<(), RecordError> {
        self.open(deadline)?;
        let session = self.session.as_mut().expect("opened above");
        let checked = session.check(deadline);
        if checked.is_err() {
            self.session = None; // another server may be the primary by the next call
        }
        Ok(checked?)
    }

    /// A statement outside of a transaction of the service, or one that begins or ends it.
    fn query(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
        deadline: Deadline,
    ) -> Result<Rows, PgError> {
        let Some(session) = &mut self.session else {
            return Err(PgError::Misuse("there is no session"));
        };
        let rows = session.connection.query(sql, params, deadline);
        if rows.as_ref().is_err_and(PgError::ends_session) {
            self.session = None;
        }
        rows
    }

    /// Ends the transaction without a commit.
    fn roll_back(&mut self, deadline: Deadline) -> Result<(), RecordError> {
        let ended = self.query("ROLLBACK", &[], deadline);
        if ended.is_err() {
            self.session = None; // the server rolls back when it notices
        }
        ended
            .map(drop)
            .map_err(|error| Refusal::Unavailable(error.to_string()).into())
    }

    fn attempt(&mut self, work: &mut Work<'_>, deadline: Deadline) -> Attempt {
        self.op += 1;
        let begin = "BEGIN ISOLATION LEVEL SERIALIZABLE";
        let begun = self.query(begin, &[], deadline).and_then(|_| {
            let node = self.options.node.clone();
            self.query(
                OPERATION,
                &[Param::Text(&node), Param::Int8(self.op)],
                deadline,
            )
        });
        let ran = begun.map_err(failed).and_then(|_| self.run(work, deadline));
        match ran {
            Ok(true) => self.commit(deadline),
            Ok(false) => {
                let _ = self.roll_back(deadline); // the session is dropped then
                Attempt::RolledBack
            }
            Err(attempt) => {
                let _ = self.roll_back(deadline); // the session is dropped then
                attempt
            }
        }
    }

    /// Runs the statements of the service in the transaction that is open.
    fn run(&mut self, work: &mut Work<'_>, deadline: Deadline) -> Result<bool, Attempt> {
        let mut open = PgStatements {
            store: self,
            deadline,
            failed: None,
        };
        let commit = work(&mut open);
        match open.failed {
            None => Ok(commit),
            Some(Failure::Engine(error)) => Err(failed(error)),
            Some(Failure::Record(error)) => Err(Attempt::Failed(error)),
        }
    }

    fn commit(&mut self, deadline: Deadline) -> Attempt {
        let outcome = match self.query("COMMIT", &[], deadline) {
            Err(error) if !error.ends_session() => return failed(error),
            outcome => outcome,
        };
        match of_write(outcome) {
            Ok(rows) if rows.tag == "COMMIT" => Attempt::Committed,
            // A failed transaction answers COMMIT with ROLLBACK.
            Ok(_) => Attempt::Failed(Refusal::Rejected("it was rolled back".into()).into()),
            Err(StoreError::Unknown(why)) => {
                self.session = None;
                self.pending = Some(Pending {
                    op: self.op,
                    sent: None,
                });
                Attempt::Unknown(why)
            }
            Err(error) => Attempt::Failed(error.into()),
        }
    }

    /// Whether the transaction is the newest in the row of this store, once none of it is under way any more.
    fn find(&mut self, deadline: Deadline) -> Result<bool, RecordError> {
        let Some(Pending { op, sent }) = self.pending else {
            return Err(Refusal::Rejected("no write is unknown".into()).into());
        };
        if sent.is_some_and(Deadline::expired) {
            self.session = None;
        }
        if sent.is_none() || self.session.is_none() {
            self.pending = Some(Pending { op, sent: None });
            self.check(deadline)?;
            let node = self.options.node.clone();
            let sent = self.open(deadline)?.send(RESOLVE, &[Param::Text(&node)]);
            if let Err(error) = sent {
                self.session = None;
                return Err(RecordError::Unknown(error.to_string()));
            }
            self.pending = Some(Pending {
                op,
                sent: Some(Deadline::within(RESOLVER_WAITS)),
            });
        }
        let session = self.session.as_mut().expect("opened above");
        let answer = session.connection.finish(deadline);
        if matches!(answer, Err(PgError::TimedOut)) {
            // Waited for by the next call: more sessions would wait for the same row.
            return Err(RecordError::Unknown(
                "its row is locked at the server".into(),
            ));
        }
        self.pending = Some(Pending { op, sent: None });
        let newest = of_write(answer).and_then(|rows| rows.int8(0, 0).map_err(of_read));
        match newest {
            Ok(newest) => {
                self.pending = None;
                Ok(newest == op)
            }
            Err(error) => {
                self.session = None;
                Err(RecordError::Unknown(error.to_string()))
            }
        }
    }
}

/// What an error before the commit means: nothing was changed.
fn failed(error: PgError) -> Attempt {
    match error {
        PgError::Server { sqlstate, message, fatal: false }
            // serialization_failure, deadlock_detected
            if sqlstate == "40001" || sqlstate == "40P01" =>
        {
            Attempt::Again(message)
        }
        error => Attempt::Failed(of_read(error).into()),
    }
}

impl From<StoreError> for RecordError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(refusal) => Self::Refused(refusal),
            StoreError::Unknown(why) => Self::Unknown(why),
            StoreError::Fenced | StoreError::Moved | StoreError::Stale => Self::Fenced,
            StoreError::Damaged(why) | StoreError::Lost(why) => Self::Damaged(why),
        }
    }
}

impl RecordStore for PgRecords {
    fn transact(&mut self, work: &mut Work<'_>, deadline: Deadline) -> Result<bool, RecordError> {
        if self.pending.is_some() {
            return Err(Refusal::Unresolved.into());
        }
        loop {
            self.check(deadline)?;
            self.install(deadline)?;
            if self.op == 0 {
                self.forget(deadline)?;
            }
            let why = match self.attempt(work, deadline) {
                Attempt::Committed => return Ok(true),
                Attempt::RolledBack => return Ok(false),
                Attempt::Failed(error) => return Err(error),
                Attempt::Again(why) => why,
                Attempt::Unknown(why) => match self.find(deadline) {
                    Ok(true) => return Ok(true),
                    Ok(false) => why,
                    Err(_) => return Err(RecordError::Unknown(why)),
                },
            };
            if deadline.expired() {
                return Err(RecordError::Conflict(why));
            }
        }
    }

    fn view(&mut self, work: &mut Work<'_>, deadline: Deadline) -> Result<(), RecordError> {
        if self
            .pending
            .as_ref()
            .is_some_and(|pending| pending.sent.is_some())
        {
            return Err(Refusal::Unresolved.into()); // the session waits for another answer
        }
        loop {
            self.open(deadline)?;
            self.install(deadline)?;
            let begin = "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY";
            let begun = self.query(begin, &[], deadline).map_err(failed);
            let ran = begun.and_then(|_| self.run(work, deadline));
            let ended = self.roll_back(deadline); // there is nothing to keep
            match ran {
                Err(Attempt::Again(why)) if deadline.expired() => {
                    return Err(RecordError::Conflict(why));
                }
                Err(Attempt::Failed(error)) => return Err(error),
                Err(_) => {}
                // A write through another session would make nothing final of what was read through this one.
                Ok(_) => return ended,
            }
        }
    }

    fn confirm(&mut self, deadline: Deadline) -> Result<(), RecordError> {
        if self.pending.is_some() {
            return Err(Refusal::Unresolved.into());
        }
        self.check(deadline)?;
        // A record in the server's log and a commit, and nothing in a table.
        let sql = "SELECT pg_logical_emit_message(true, 'ron', '') IS NOT NULL";
        let outcome = of_write(self.query(sql, &[], deadline));
        if matches!(outcome, Err(StoreError::Unknown(_))) {
            self.session = None;
        }
        Ok(outcome.map(|_| ())?)
    }

    fn resolve(&mut self, deadline: Deadline) -> Result<bool, RecordError> {
        self.find(deadline)
    }
}

/// Why a statement failed.
enum Failure {
    Engine(PgError),
    Record(RecordError),
}

/// A transaction of the server.
struct PgStatements<'a> {
    store: &'a mut PgRecords,
    deadline: Deadline,
    /// The first failure ends all.
    failed: Option<Failure>,
}

impl PgStatements<'_> {
    fn once(&mut self, sql: &str, params: &[Value]) -> Result<Rows, RecordError> {
        match &self.failed {
            Some(Failure::Engine(error)) => return Err(of_read(error.clone()).into()),
            Some(Failure::Record(error)) => return Err(error.clone()),
            None => {}
        }
        if let Err(error) = check_params(params) {
            self.failed = Some(Failure::Record(error.clone()));
            return Err(error);
        }
        let params: Vec<Param<'_>> = params
            .iter()
            .map(|value| match value {
                Value::Null => Param::Null,
                Value::Int(number) => Param::Int8(*number),
                Value::Text(text) => Param::Text(text),
                Value::Blob(bytes) => Param::Bytes(bytes),
            })
            .collect();
        let rows = self
            .store
            .query(&sql::statement(sql), &params, self.deadline);
        rows.map_err(|error| {
            self.failed = Some(Failure::Engine(error.clone()));
            of_read(error).into()
        })
    }
}

impl Statements for PgStatements<'_> {
    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64, RecordError> {
        Ok(self.once(sql, params)?.changed())
    }

    fn query(&mut self, sql: &str, params: &[Value]) -> Result<Vec<Row>, RecordError> {
        let rows = self.once(sql, params)?;
        let read = (0..rows.len()).map(|row| {
            let cells = (0..rows.width()).map(|column| rows.cell(row, column).map(owned));
            Ok(Row(cells.collect::<Result<_, PgError>>()?))
        });
        read.collect::<Result<_, PgError>>().map_err(|error| {
            self.failed = Some(Failure::Engine(error.clone()));
            of_read(error).into()
        })
    }
}

fn owned(cell: Cell<'_>) -> Value {
    match cell {
        Cell::Null => Value::Null,
        Cell::Int(number) => Value::Int(number),
        Cell::Text(text) => Value::Text(text.to_owned()),
        Cell::Bytes(bytes) => Value::Blob(bytes.to_owned()),
    }
}

impl PgRecords {
    /// Compares the tables with the migrations, and makes what is missing. Safe to repeat, also by
    /// several nodes at once and after an unknown outcome.
    fn install(&mut self, deadline: Deadline) -> Result<(), RecordError> {
        if self.is_installed {
            return Ok(());
        }
        if !self.has_all(deadline)? {
            self.check(deadline)?;
            let made = self.migrate(deadline);
            if made.is_err() {
                self.session = None; // the server rolls back
            }
            made?;
        }
        self.is_installed = true;
        Ok(())
    }

    /// Deletes the rows of processes that ended long ago, before the first write of this store. In no transaction of the
    /// service: the rows that it looks at would be in the way of all others.
    fn forget(&mut self, deadline: Deadline) -> Result<(), RecordError> {
        let node = self.options.node.clone();
        let forgotten = self.query(FORGET, &[Param::Text(&node)], deadline);
        // Nothing of the service was sent: it is refused, whatever became of the rows.
        Ok(forgotten.map(|_| ()).map_err(of_read)?)
    }

    /// Whether no migration is missing. An error when there are others than this program knows.
    fn has_all(&mut self, deadline: Deadline) -> Result<bool, RecordError> {
        let exists = "SELECT to_regclass('record_schema') IS NOT NULL";
        let exists = self.query(exists, &[], deadline).map_err(of_read)?;
        if !exists.boolean(0, 0).map_err(of_read)? {
            return Ok(false);
        }
        let sql = "SELECT version, sum FROM record_schema ORDER BY version";
        let found = self.query(sql, &[], deadline).map_err(of_read)?;
        let known = self.options.migrations;
        if found.len() > known.len() {
            let why = format!(
                "the records are of format {}, this program knows up to {}; use a newer program",
                found.len(),
                known.len()
            );
            return Err(Refusal::Rejected(why).into());
        }
        for (row, step) in known.iter().enumerate().take(found.len()) {
            if found.bytes(row, 1).map_err(of_read)? != sha256(step.sql.as_bytes()) {
                let why = format!("migration {} was another one", step.version);
                return Err(RecordError::Damaged(why));
            }
        }
        Ok(found.len() == known.len())
    }

    /// Makes what is missing in one transaction. Another node that does the same waits.
    fn migrate(&mut self, deadline: Deadline) -> Result<(), RecordError> {
        let schema = format!("CREATE SCHEMA IF NOT EXISTS {}", self.options.schema);
        let lock = "SELECT pg_advisory_xact_lock($1)";
        self.query("BEGIN", &[], deadline).map_err(of_read)?;
        let lock = self.query(lock, &[Param::Int8(TABLES_LOCK)], deadline);
        lock.map_err(of_read)?;
        for sql in [schema.as_str(), TABLES[0], TABLES[1]] {
            self.query(sql, &[], deadline).map_err(of_read)?;
        }
        let count = "SELECT count(*) FROM record_schema";
        let found = self.query(count, &[], deadline).map_err(of_read)?;
        let found = found.count(0, 0).map_err(of_read)?;
        for step in self.options.migrations.iter().skip(found as usize) {
            for sql in sql::migration(step.sql) {
                self.query(&sql, &[], deadline).map_err(of_read)?;
            }
            let row = [
                Param::Int8(step.version.into()),
                Param::Bytes(&sha256(step.sql.as_bytes())),
            ];
            let note = "INSERT INTO record_schema (version, sum) VALUES ($1, $2)";
            self.query(note, &row, deadline).map_err(of_read)?;
        }
        let committed = of_write(self.query("COMMIT", &[], deadline));
        if let Err(StoreError::Unknown(why)) = committed {
            // Making the same again is harmless: nothing of it is unknown to the service.
            return Err(Refusal::Unavailable(why).into());
        }
        committed?;
        if self.has_all(deadline)? {
            return Ok(());
        }
        Err(Refusal::Unavailable("the migration was rolled back".into()).into())
    }
}
