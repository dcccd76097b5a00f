//! A session under the rules by which a commit survives the loss of a host, and what an error of
//! the server means for a write.

use std::sync::Arc;
use std::time::Duration;

use ron_kernel::Deadline;
use ron_tlog::store::{Refusal, StoreError};

use crate::connection::{Connection, Param, PgError, Rows, Waiter};

/// The settings of the server are read again after this time, before the next write.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Entries in one partition of a log by default.
const PARTITION_ENTRIES: u64 = 1 << 24;

/// How long an id of a client stays taken by default.
const ONCE_KEPT: Duration = Duration::from_secs(24 * 3600);

/// What makes a commit durable beyond one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Standbys that `synchronous_standby_names` names, in an order of priority.
    Standby,
    /// Also any of several (`ANY n (...)`): the operator declares that the failover manager stops a
    /// primary by a watchdog, without which two standbys can follow two primaries.
    Quorum,
    /// The operator declares that the storage below the server is replicated. The server shows
    /// nothing of it, so the standby's name is not checked.
    Storage,
}

/// One log in one schema of a database.
#[derive(Clone)]
pub struct PgLogOptions {
    /// As libpq takes it; all servers of the database, so that the primary is found. Use addresses: names are resolved
    /// without a deadline.
    pub conninfo: String,
    /// Schema of the service: lower-case letters, digits and `_`.
    pub schema: String,
    /// The log's origin.
    pub log: String,
    /// Name of this claimant. Unique for each start of a process: a claim whose outcome was lost
    /// is recognised by it.
    pub holder: String,
    pub durability: Durability,
    /// Entries in one partition. All nodes use the same number.
    pub partition_entries: u64,
    /// How long an id of a client stays taken.
    pub once_kept: Duration,
    /// The table, as `schema.table`, whose only row has the `version` that guarded appends compare.
    pub guard: Option<String>,
}

impl PgLogOptions {
    /// A session for this log.
    pub(crate) fn open(
        &self,
        commits: Commits,
        waiter: &Arc<Waiter>,
        deadline: Deadline,
    ) -> Result<Session, StoreError> {
        self.check()?;
        Session::open(&self.conninfo, self.durability, commits, waiter, deadline)
    }

    pub fn new(conninfo: &str, schema: &str, log: &str, holder: &str) -> Self {
        Self {
            conninfo: conninfo.into(),
            schema: schema.into(),
            log: log.into(),
            holder: holder.into(),
            durability: Durability::Standby,
            partition_entries: PARTITION_ENTRIES,
            once_kept: ONCE_KEPT,
            guard: None,
        }
    }

    /// Names that stand in statements as they are: no character of them may end a name or a text.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        check_schema(&self.schema)?;
        let rejected = |why: &str| Err(Refusal::Rejected(why.into()));
        if let Some(guard) = &self.guard {
            let (schema, table) = guard.split_once('.').unwrap_or(("", ""));
            check_schema(schema)?;
            check_schema(table)?;
        }
        let odd = |c: char| c.is_control() || c == '\'' || c == '\\';
        if self.log.is_empty() || self.log.len() > 1024 || self.log.contains(odd) {
            return rejected("the log's name must have 1..=1024 bytes, no quote and no backslash");
        }
        if self.holder.is_empty() {
            return rejected("the holder needs a name");
        }
        if self.partition_entries < 2 {
            return rejected("a partition must have at least 2 entries");
        }
        Ok(())
    }
}

/// Refuses the name of a schema that could not stand in a statement as it is.
pub fn check_schema(schema: &str) -> Result<(), Refusal> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if schema.is_empty() || schema.len() > 40 || !schema.chars().all(plain) {
        let why = "the schema must have 1..=40 characters a-z, 0-9 and _";
        return Err(Refusal::Rejected(why.into()));
    }
    Ok(())
}

/// Which commits of a session wait for the standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commits {
    Replicated,
    Local,
}

impl Commits {
    fn setting(self) -> &'static str {
        match self {
            Self::Replicated => "on",
            Self::Local => "local",
        }
    }
}

/// A connection with the settings that its commits need.
#[derive(Debug)]
pub struct Session {
    pub connection: Connection,
    durability: Durability,
    /// When the server started, in microseconds, which tells it from other servers of the database.
    pub(crate) server: i64,
    /// From when on the settings have to be read again; `None`: they were not read yet.
    check_at: Option<Deadline>,
}

/// Warnings must arrive: the server would not send them at a higher level, and a cancelled wait
/// for the standby would look like a commit. The server's own time-outs are off, because a
/// statement that they end is cancelled.
const SETTINGS: &str = "SELECT set_config('synchronous_commit', $1, false), \
    set_config('client_min_messages', 'notice', false), \
    set_config('default_transaction_isolation', 'read committed', false), \
    set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false), \
    set_config('idle_in_transaction_session_timeout', '0', false), \
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";

const STATE: &str = "SELECT pg_is_in_recovery(), pg_backend_pid(), \
    current_setting('synchronous_commit'), current_setting('client_min_messages'), \
    current_setting('fsync'), current_setting('full_page_writes'), \
    current_setting('synchronous_standby_names')";

impl Session {
    /// Connects. What goes wrong has changed nothing.
    pub fn open(
        conninfo: &str,
        durability: Durability,
        commits: Commits,
        waiter: &Arc<Waiter>,
        deadline: Deadline,
    ) -> Result<Self, StoreError> {
        let mut connection = Connection::connect(conninfo, waiter, deadline).map_err(of_read)?;
        let set = connection.query(SETTINGS, &[Param::Text(commits.setting())], deadline);
        let server = set.and_then(|rows| rows.int8(0, 6)).map_err(of_read)?;
        Ok(Self {
            connection,
            durability,
            server,
            check_at: None,
        })
    }

    /// Refuses unless a commit of this session is durable beyond one host. Reads the settings if
    /// they were not read for a second.
    pub fn check(&mut self, deadline: Deadline) -> Result<(), StoreError> {
        if self.check_at.is_some_and(|at| !at.expired()) {
            return Ok(());
        }
        self.check_at = None;
        let next = Deadline::within(CHECK_EVERY);
        let state = self
            .connection
            .query(STATE, &[], deadline)
            .map_err(of_read)?;
        let announced = self.connection.announced_pid();
        if let Some(why) = unsafe_because(&state, announced, self.durability).map_err(of_read)? {
            return Err(Refusal::Unsafe(why).into());
        }
        self.check_at = Some(next);
        Ok(())
    }
}

fn unsafe_because(
    state: &Rows,
    announced_pid: i32,
    durability: Durability,
) -> Result<Option<String>, PgError> {
    if state.boolean(0, 0)? {
        return Ok(Some("it is in recovery: connect to the primary".into()));
    }
    if state.int4(0, 1)? != announced_pid {
        let why = "the connection goes through a pooler: connect to the server itself";
        return Ok(Some(why.into()));
    }
    for (column, name, wanted) in [
        (2, "synchronous_commit", "on"),
        (3, "client_min_messages", "notice"),
        (4, "fsync", "on"),
        (5, "full_page_writes", "on"),
    ] {
        let value = state.text(0, column)?;
        if value != wanted {
            return Ok(Some(format!("{name} is {value} and must be {wanted}")));
        }
    }
    Ok(standbys_unsafe(state.text(0, 6)?, durability).map(str::to_owned))
}

/// What is wrong with a value of `synchronous_standby_names`.
fn standbys_unsafe(names: &str, durability: Durability) -> Option<&'static str> {
    let names = names.trim();
    if durability == Durability::Storage {
        None
    } else if names.is_empty() {
        Some("synchronous_standby_names is empty: a commit is on one host only")
    } else if names.contains('*') {
        Some("synchronous_standby_names must name a standby, not `*`: any server could count")
    } else if durability != Durability::Quorum && names.to_ascii_uppercase().starts_with("ANY ") {
        Some("synchronous_standby_names is a quorum, which needs a watchdog: declare it")
    } else {
        None
    }
}

/// An error before or instead of a write: nothing was changed.
pub fn of_read(error: PgError) -> StoreError {
    match error {
        PgError::Server { fatal: false, .. } | PgError::Misuse(_) => {
            Refusal::Rejected(error.to_string()).into()
        }
        error => Refusal::Unavailable(error.to_string()).into(),
    }
}

/// The outcome of a write that was sent.
pub fn of_write(outcome: Result<Rows, PgError>) -> Result<Rows, StoreError> {
    match outcome {
        Ok(rows) if rows.notices.is_empty() => Ok(rows),
        // A wait for the standby that was cancelled says success and a warning.
        Ok(rows) => Err(StoreError::Unknown(format!(
            "`{}` with the notice: {}",
            rows.tag, rows.notices[0].message
        ))),
        // An error that leaves the session alive comes before the commit, which rolled back.
        Err(error @ (PgError::Server { fatal: false, .. } | PgError::Misuse(_))) => {
            Err(of_read(error))
        }
        Err(error) => Err(StoreError::Unknown(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_standbys_count() {
        let wrong = |names, durability| standbys_unsafe(names, durability).is_some();
        for (names, standby, quorum) in [
            ("", true, true),
            (" ", true, true),
            ("*", true, true),
            ("FIRST 1 (*)", true, true),
            ("ANY 1 (b, c)", true, false),
            ("any 1 (b, c)", true, false),
            ("b", false, false),
            ("anybody", false, false),
            ("FIRST 1 (b, c)", false, false),
            ("\"node-b\"", false, false),
        ] {
            assert_eq!(wrong(names, Durability::Standby), standby, "{names}");
            assert_eq!(wrong(names, Durability::Quorum), quorum, "{names}");
            assert!(!wrong(names, Durability::Storage), "{names}");
        }
    }

    #[test]
    fn names_that_end_a_statement_are_refused() {
        let good = PgLogOptions::new("", "ledger_1", "example.com/log", "a");
        assert_eq!(good.check(), Ok(()));
        let mut wrong = vec![good.clone(); 5];
        wrong[0].schema = "a\"b".into();
        wrong[1].schema = "a;b".into();
        wrong[2].log = "a'b".into();
        wrong[3].log = "a\\".into();
        wrong[4].holder = String::new();
        assert!(wrong.iter().all(|options| options.check().is_err()));
    }
}
