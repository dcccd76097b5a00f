//! Tables of logs, and their upkeep on a session of its own: partitions ahead of need, closed ones
//! frozen, expired ids.

use std::sync::Arc;

use ron_crypto::hash::sha256;
use ron_kernel::Deadline;
use ron_tlog::store::{CarriedId, EngineState, LogUpkeep, Refusal, StoreError};
use ron_tlog::tree::empty_root;

use crate::connection::{Param, Rows, Waiter};
use crate::ids;
use crate::inspect::state;
use crate::session::{Commits, PgLogOptions, Session, of_read, of_write};

/// Serialises changes of tables between nodes; any number that no other program uses.
const TABLES_LOCK: i64 = 0x726f_6e5f_6c6f_6773;

/// Expired ids that one call deletes at most.
const EXPIRED_MAX: i64 = 10_000;

/// Creates what a log needs, and keeps partitions ahead of it.
pub struct Upkeep {
    options: PgLogOptions,
    waiter: Arc<Waiter>,
}

impl LogUpkeep for Upkeep {
    fn install(&mut self, deadline: Deadline) -> Result<(), StoreError> {
        Self::install(self, deadline)
    }

    fn tend(&mut self, deadline: Deadline) -> Result<EngineState, StoreError> {
        let partitions_ahead = self.ahead(deadline)?;
        self.freeze_closed(deadline)?;
        self.forget_expired(deadline)?;
        let mut session = self.open(deadline)?;
        Ok(EngineState {
            partitions_ahead,
            ..state(&mut session, deadline)?
        })
    }

    fn remove(&mut self, deadline: Deadline) -> Result<(), StoreError> {
        let mut session = self.open(deadline)?;
        let s = &self.options.schema;
        let tables = ["head", "batch", "checkpoint", "beat", "unique"];
        let tables = tables.map(|table| format!("{s}.log_{table}")).join(", ");
        let tables = format!("DROP TABLE IF EXISTS {tables} CASCADE");
        // Refused when anything else is in it; then the tables stay too.
        let schema = format!("DROP SCHEMA IF EXISTS {s}");
        transaction(&mut session, &[tables, schema], deadline)
    }

    fn carry_ids(&mut self, ids: &[CarriedId], deadline: Deadline) -> Result<(), StoreError> {
        let mut session = self.open(deadline)?;
        ids::carry(&mut session, &self.options.schema, ids, deadline)
    }

    fn ids_after(
        &mut self,
        scope: &str,
        after: &str,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<CarriedId>, StoreError> {
        let mut session = self.open(deadline)?;
        let schema = &self.options.schema;
        ids::after(&mut session, schema, (scope, after), limit, deadline)
    }
}

impl Upkeep {
    pub fn new(options: PgLogOptions, waiter: Arc<Waiter>) -> Self {
        Self { options, waiter }
    }

    /// Creates schema, tables, the log's row and its first partitions, if they are missing. Safe
    /// to repeat, also by several nodes at once and after an unknown outcome.
    pub fn install(&mut self, deadline: Deadline) -> Result<(), StoreError> {
        let schema = &self.options.schema;
        let mut statements = vec![format!("CREATE SCHEMA IF NOT EXISTS {schema}")];
        statements.extend(TABLES.iter().map(|table| table.replace("SCHEMA", schema)));
        let mut session = self.open(deadline)?;
        // Making what is there already would still take locks, for which appends wait, or with which they deadlock.
        if !exists(&mut session, &format!("{schema}.{LAST_MADE}"), deadline)? {
            transaction(&mut session, &statements, deadline)?;
        }
        let sql = format!(
            "INSERT INTO {schema}.log_head (log, size, root, epoch, holder) \
             VALUES ($1, 0, $2, 0, '') ON CONFLICT DO NOTHING"
        );
        let log = Param::Text(&self.options.log);
        of_write(
            session
                .connection
                .query(&sql, &[log, Param::Bytes(&empty_root())], deadline),
        )?;
        drop(session);
        self.ahead(deadline).map(|_| ())
    }

    /// Creates the partition in which the log ends and, from its half on, the next one. Returns how
    /// many partitions are ready beyond the one in use. Appends go on meanwhile.
    pub fn ahead(&mut self, deadline: Deadline) -> Result<u32, StoreError> {
        let schema = &self.options.schema;
        let each = self.options.partition_entries;
        let mut session = self.open(deadline)?;
        let sql = format!("SELECT size FROM {schema}.log_head WHERE log = $1");
        let log = Param::Text(&self.options.log);
        let head = query(&mut session, &sql, &[log], deadline)?;
        let size = head.count(0, 0).map_err(of_read)?;
        let (now, next) = (size / each, (size + each / 2) / each);
        let of_log = self.table_of_log();
        if !exists(&mut session, &of_log, deadline)? {
            let attached = format!("IN ('{}')", self.options.log);
            let parent = format!("{schema}.log_batch");
            self.attach(
                &mut session,
                &parent,
                &of_log,
                "PARTITION BY RANGE (first)",
                &attached,
                deadline,
            )?;
        }
        for number in now..=next {
            let table = format!("{of_log}_{number}");
            if !exists(&mut session, &table, deadline)? {
                let range = format!("FROM ({}) TO ({})", number * each, (number + 1) * each);
                self.attach(&mut session, &of_log, &table, "", &range, deadline)?;
            }
        }
        Ok((next - now) as u32)
    }

    /// Freezes partitions that get no more rows, so that the server never has to read them again
    /// before its transaction numbers wrap; returns their number. Takes as long as they are large.
    pub fn freeze_closed(&mut self, deadline: Deadline) -> Result<u32, StoreError> {
        let mut session = self.open(deadline)?;
        // A partition that was frozen says so in its comment.
        let sql = format!(
            "SELECT p.oid::regclass::text FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhrelid \
             JOIN {}.log_head h ON h.log = $2 WHERE i.inhparent = to_regclass($1) \
             AND obj_description(p.oid, 'pg_class') IS NULL \
             AND substring(p.relname FROM '[0-9]+$')::bigint < h.size / $3",
            self.options.schema
        );
        let of_log = self.table_of_log();
        let params = [
            Param::Text(&of_log),
            Param::Text(&self.options.log),
            Param::Int8(self.options.partition_entries as i64),
        ];
        let closed = query(&mut session, &sql, &params, deadline)?;
        for row in 0..closed.len() {
            let table = closed.text(row, 0).map_err(of_read)?;
            let freeze = format!("VACUUM (FREEZE) {table}");
            query(&mut session, &freeze, &[], deadline)?;
            let note = format!("COMMENT ON TABLE {table} IS 'frozen'");
            of_write(session.connection.query(&note, &[], deadline))?;
        }
        Ok(closed.len() as u32)
    }

    fn table_of_log(&self) -> String {
        let name = hex::encode(&sha256(self.options.log.as_bytes())[..8]);
        format!("{}.log_batch_{name}", self.options.schema)
    }

    /// Deletes ids whose time is over, some thousands at most; returns their number.
    pub fn forget_expired(&mut self, deadline: Deadline) -> Result<u64, StoreError> {
        let table = format!("{}.log_unique", self.options.schema);
        let sql = format!(
            "DELETE FROM {table} WHERE (scope, key) IN \
             (SELECT scope, key FROM {table} WHERE expires < now() LIMIT $1)"
        );
        let mut session = self.open(deadline)?;
        let most = [Param::Int8(EXPIRED_MAX)];
        let deleted = session.connection.query(&sql, &most, deadline);
        Ok(of_write(deleted)?.changed())
    }

    fn open(&self, deadline: Deadline) -> Result<Session, StoreError> {
        let mut session = self
            .options
            .open(Commits::Replicated, &self.waiter, deadline)?;
        session.check(deadline)?;
        Ok(session)
    }

    /// A new partition in two steps, because `PARTITION OF` would stop all readers and writers of
    /// the parent; ATTACH lets them go on.
    fn attach(
        &self,
        session: &mut Session,
        parent: &str,
        table: &str,
        kind: &str,
        values: &str,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let like = &self.options.schema;
        let create =
            format!("CREATE TABLE {table} (LIKE {like}.log_batch INCLUDING STORAGE) {kind}");
        let attach = format!("ALTER TABLE {parent} ATTACH PARTITION {table} FOR VALUES {values}");
        let made = transaction(session, &[create, attach], deadline);
        match made {
            // Another node was first: the lock has ended its transaction before ours began.
            Err(StoreError::Refused(Refusal::Rejected(_))) if exists(session, table, deadline)? => {
                Ok(())
            }
            made => made,
        }
    }
}

/// Made last of [`TABLES`], in the same transaction.
const LAST_MADE: &str = "log_unique_expires";

const TABLES: [&str; 7] = [
    "CREATE TABLE IF NOT EXISTS SCHEMA.log_head (log text PRIMARY KEY, size bigint NOT NULL, \
     root bytea NOT NULL, epoch bigint NOT NULL, holder text NOT NULL) WITH (fillfactor = 50)",
    "CREATE TABLE IF NOT EXISTS SCHEMA.log_batch (log text NOT NULL, first bigint NOT NULL, \
     n int NOT NULL, epoch bigint NOT NULL, before bytea NOT NULL, root bytea NOT NULL, frame bytea NOT NULL, \
     PRIMARY KEY (log, first)) PARTITION BY LIST (log)",
    // Frames are read whole, and packing them would cost more time than it saves bytes.
    "ALTER TABLE SCHEMA.log_batch ALTER COLUMN frame SET STORAGE EXTERNAL",
    "CREATE TABLE IF NOT EXISTS SCHEMA.log_checkpoint (log text NOT NULL, size bigint NOT NULL, \
     epoch bigint NOT NULL, note bytea NOT NULL, PRIMARY KEY (log, size))",
    "CREATE TABLE IF NOT EXISTS SCHEMA.log_beat (log text PRIMARY KEY, beat bigint NOT NULL)",
    "CREATE TABLE IF NOT EXISTS SCHEMA.log_unique (scope text NOT NULL, key text NOT NULL, \
     body_hash bytea NOT NULL, answer bytea NOT NULL, expires timestamptz NOT NULL, \
     PRIMARY KEY (scope, key))",
    "CREATE INDEX IF NOT EXISTS log_unique_expires ON SCHEMA.log_unique (expires)",
];

/// Changes tables in one transaction. A node that does the same waits.
fn transaction(
    session: &mut Session,
    statements: &[String],
    deadline: Deadline,
) -> Result<(), StoreError> {
    query(session, "BEGIN", &[], deadline)?;
    let lock = [Param::Int8(TABLES_LOCK)];
    let mut made = query(session, "SELECT pg_advisory_xact_lock($1)", &lock, deadline);
    for statement in statements {
        // Their notices (`already exists, skipping`) are not of the commit.
        made = made.and_then(|_| query(session, statement, &[], deadline));
    }
    if let Err(error) = made {
        let _ = query(session, "ROLLBACK", &[], deadline); // else the server does, when we close
        return Err(error);
    }
    let committed = session.connection.query("COMMIT", &[], deadline);
    of_write(committed).map(|_| ())
}

fn exists(session: &mut Session, table: &str, deadline: Deadline) -> Result<bool, StoreError> {
    let sql = "SELECT to_regclass($1) IS NOT NULL";
    let rows = query(session, sql, &[Param::Text(table)], deadline)?;
    rows.boolean(0, 0).map_err(of_read)
}

/// A statement that changes nothing by itself.
fn query(
    session: &mut Session,
    sql: &str,
    params: &[Param<'_>],
    deadline: Deadline,
) -> Result<Rows, StoreError> {
    session
        .connection
        .query(sql, params, deadline)
        .map_err(of_read)
}
