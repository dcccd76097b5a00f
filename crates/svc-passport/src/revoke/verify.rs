//! The offline check of the revocation log and of the database beside it. Takes no lock, so it works beside a running
//! issuer too.

use std::collections::VecDeque;
use std::path::Path;

use ron_auth::revocation_log;
use ron_service::Store;
use ron_tlog::note::VerifierKey;
use ron_tlog::verify_dir;
use rusqlite::Connection;

use super::PAGE_MAX;
use super::register::{BATCH_MAX, is_own};
use super::shared::opened;
use super::store::{Row, rows_of};

/// How far leaves, checkpoint and rows reach, all of them checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub leaves: u64,
    /// Number of leaves that the signed checkpoint covers.
    pub checkpoint_size: u64,
    /// Rows that were compared with their leaves; `None` without a database.
    pub rows: Option<u64>,
}

/// Checks every leaf, the tree and the checkpoint, and what opens each leaf: its private part, or, if there is a `passport.db` beside
/// the log, its row. `progress` gets the number of leaves checked and of those that the checkpoint covers.
pub fn verify(
    log: &Path,
    key: &VerifierKey,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Verified, String> {
    let database = log.parent().map(|home| home.join("passport.db"));
    let database = database.filter(|path| path.exists());
    let rows = database.map(|path| {
        let conn = Store::reader(&path);
        conn.map(Rows::new)
            .map_err(|e| format!("{}: {e}", path.display()))
    });
    let mut rows = rows.transpose()?;
    // The copy of a log that several nodes write has no rows; one that was moved back to files has both.
    let has_rows = rows.as_mut().map(Rows::any).transpose()?.unwrap_or(false);
    let mut compare = |index: u64, leaf: &[u8], private: &[u8]| {
        if !private.is_empty() {
            opened(index + 1, leaf, private).map_err(|e| e.to_string())?;
            if !has_rows {
                return Ok(());
            }
        }
        match &mut rows {
            Some(rows) => rows.matches(index + 1, leaf),
            None => Ok(()),
        }
    };
    let log = verify_dir(log, key, &mut compare, progress).map_err(|e| e.to_string())?;
    let rows = rows.map(|rows| rows.finish(log.size, key)).transpose()?;
    Ok(Verified {
        leaves: log.size,
        checkpoint_size: log.checkpoint_size,
        rows,
    })
}

/// The rows of a database, in order.
struct Rows {
    conn: Connection,
    read: VecDeque<Row>,
    after: u64,
}

impl Rows {
    fn new(conn: Connection) -> Self {
        Self {
            conn,
            read: VecDeque::new(),
            after: 0,
        }
    }

    /// Whether there are rows at all.
    fn any(&mut self) -> Result<bool, String> {
        self.fill()?;
        Ok(!self.read.is_empty())
    }

    fn fill(&mut self) -> Result<(), String> {
        if self.read.is_empty() {
            let rows = rows_of(&self.conn, self.after, PAGE_MAX).map_err(|e| e.to_string())?;
            self.read.extend(rows);
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Row>, String> {
        self.fill()?;
        let row = self.read.pop_front();
        self.after = row.as_ref().map_or(self.after, |row| row.event.seq);
        Ok(row)
    }

    fn matches(&mut self, event: u64, leaf: &[u8]) -> Result<(), String> {
        match self.next()? {
            Some(row) if row.event.seq == event => {
                if revocation_log::leaf(&row.event) == leaf {
                    return Ok(());
                }
                Err(format!(
                    "event {event} of passport.db is not what this leaf commits to"
                ))
            }
            _ => Err(format!("passport.db has no event {event} for this leaf")),
        }
    }

    /// The number of rows. The last ones may still be without leaves, but this service must have written them.
    fn finish(mut self, leaves: u64, key: &VerifierKey) -> Result<u64, String> {
        let mut count = leaves;
        while let Some(row) = self.next()? {
            count += 1;
            let own = row.event.seq == count && is_own(&row, key);
            if !own || count - leaves > BATCH_MAX as u64 {
                return Err(format!(
                    "passport.db has event {} without a leaf, which the issuer did not write",
                    row.event.seq
                ));
            }
        }
        Ok(count)
    }
}
