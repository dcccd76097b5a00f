//! The sign of life of a log's holder, in PostgreSQL.

use std::sync::Arc;

use ron_kernel::Deadline;
use ron_tlog::store::{LogBeat, StoreError};

use crate::connection::{Param, Rows, Waiter};
use crate::session::{Commits, PgLogOptions, Session, of_read};

/// The beat of one log, through a session whose commits do not wait for the standby.
pub struct PgLogBeat {
    options: PgLogOptions,
    waiter: Arc<Waiter>,
    session: Option<Session>,
    beat: String,
    observe: String,
}

impl PgLogBeat {
    /// Connects with the first call. `waiter` is not that of the log's store.
    pub fn new(options: PgLogOptions, waiter: Arc<Waiter>) -> Self {
        let table = format!("{}.log_beat", options.schema);
        Self {
            beat: format!(
                "INSERT INTO {table} AS b (log, beat) VALUES ($1, 1) \
                 ON CONFLICT (log) DO UPDATE SET beat = b.beat + 1"
            ),
            observe: format!("SELECT beat FROM {table} WHERE log = $1"),
            options,
            waiter,
            session: None,
        }
    }

    fn query(&mut self, beats: bool, deadline: Deadline) -> Result<Rows, StoreError> {
        if self.session.is_none() {
            let session = self.options.open(Commits::Local, &self.waiter, deadline)?;
            self.session = Some(session);
        }
        let session = self.session.as_mut().expect("opened above");
        let sql = if beats { &self.beat } else { &self.observe };
        let log = [Param::Text(&self.options.log)];
        let rows = session.connection.query(sql, &log, deadline);
        if rows.is_err() {
            self.session = None;
        }
        rows.map_err(of_read)
    }
}

impl LogBeat for PgLogBeat {
    fn beat(&mut self, deadline: Deadline) -> Result<(), StoreError> {
        self.query(true, deadline).map(|_| ())
    }

    fn observe(&mut self, deadline: Deadline) -> Result<u64, StoreError> {
        let rows = self.query(false, deadline)?;
        if rows.is_empty() {
            return Ok(0);
        }
        rows.count(0, 0).map_err(of_read)
    }
}
