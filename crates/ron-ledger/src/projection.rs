//! History and balances in a SQLite file, for operators, auditors and the history endpoint.
//!
//! Fed from the log after the acknowledgement; the writer never reads it. The file can be deleted
//! at any time: the next start rebuilds it. Amounts are decimal text, because SQLite has no 128-bit
//! integers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ron_kernel::{Receiver, ThreadCtx};
use ron_proto::ledger::{EntryAnswer, EntryKind, Event, Memo, Reference, TxId};
use ron_proto::{Account, Asset};
use ron_service::{StoreError, open_private};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Transaction, params};

use crate::feed::wait_new_entries;
use crate::ledger::Ledger;
use crate::metrics::Metrics;

/// Maximum entries in one transaction.
const CHUNK: u64 = 2_000;
/// Pause after each full chunk, so that catching up leaves the CPU to the writer.
const FULL_CHUNK_PAUSE: Duration = Duration::from_millis(20);
const FORMAT: i64 = 3;
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS meta (origin TEXT NOT NULL, applied INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS entries (
  seq INTEGER PRIMARY KEY, ts TEXT NOT NULL, kind TEXT NOT NULL, outcome TEXT NOT NULL, code TEXT,
  tenant TEXT, principal TEXT, key TEXT, from_account TEXT, to_account TEXT, asset TEXT, amount_minor TEXT, nonce INTEGER,
  memo TEXT, reference TEXT, metadata TEXT, effective_at TEXT, hold TEXT, batch TEXT, reverses TEXT, txid TEXT
);
CREATE INDEX IF NOT EXISTS reversals ON entries (reverses, seq) WHERE reverses IS NOT NULL;
CREATE TABLE IF NOT EXISTS history (account TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (account, seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS balances (
  account TEXT NOT NULL, asset TEXT NOT NULL, amount_minor TEXT NOT NULL, seq INTEGER NOT NULL,
  PRIMARY KEY (account, asset)
) WITHOUT ROWID;
";

/// Why the projection failed.
#[derive(Debug, thiserror::Error)]
pub enum ProjectionError {
    #[error("the projection: {0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    Open(#[from] StoreError),
    #[error("the projection cannot read the log: {0}")]
    Read(#[from] ron_tlog::ReadError),
    /// Its content does not fit the log.
    #[error("the projection does not fit the log: {0}")]
    Foreign(String),
}

/// The only writer of the file; owned by the projection thread.
#[derive(Debug)]
pub struct Projection {
    db: Connection,
    applied: u64,
}

impl Projection {
    /// Opens the file, or creates it; a file that is damaged, foreign, newer or ahead of the log is
    /// rebuilt.
    pub fn open(path: &Path, origin: &str, head: u64) -> Result<Self, ProjectionError> {
        match Self::try_open(path, origin, head) {
            Ok(p) => Ok(p),
            Err(why) => {
                tracing::warn!(event = "projection_rebuilt", reason = %why);
                for suffix in ["", "-wal", "-shm"] {
                    let mut name = path.as_os_str().to_owned();
                    name.push(suffix);
                    // A missing file needs no removal; any other failure shows in the second
                    // attempt.
                    let _ = std::fs::remove_file(PathBuf::from(name));
                }
                Self::try_open(path, origin, head)
            }
        }
    }

    fn try_open(path: &Path, origin: &str, head: u64) -> Result<Self, ProjectionError> {
        let db = open_private(path)?;
        db.pragma_update(None, "journal_mode", "wal")?;
        db.pragma_update(None, "synchronous", "normal")?;
        db.busy_timeout(Duration::from_secs(2))?;
        let format: i64 = db.pragma_query_value(None, "user_version", |r| r.get(0))?;
        if format != 0 && format != FORMAT {
            return Err(ProjectionError::Foreign(format!(
                "it has format {format}, this program writes {FORMAT}"
            )));
        }
        db.execute_batch(SCHEMA)?;
        db.pragma_update(None, "user_version", FORMAT)?;
        let meta = db.query_row("SELECT origin, applied FROM meta", [], |r| {
            Ok((r.get::<_, String>(0)?, r.get::<_, i64>(1)?))
        });
        let applied = match meta.optional()? {
            None => {
                db.execute("INSERT INTO meta VALUES (?1, 0)", [origin])?;
                0
            }
            Some((found, _)) if found != origin => {
                return Err(ProjectionError::Foreign(format!("it is of {found}")));
            }
            Some((_, applied)) => u64::try_from(applied).unwrap_or(u64::MAX),
        };
        if applied > head {
            return Err(ProjectionError::Foreign(format!(
                "it is at entry {applied}, the log at {head}"
            )));
        }
        Ok(Self { db, applied })
    }

    /// Sequence of the last entry in it.
    pub const fn applied(&self) -> u64 {
        self.applied
    }

    /// Adds the next entries in one transaction; returns how many.
    pub fn advance(&mut self, ledger: &Ledger) -> Result<u64, ProjectionError> {
        let page = ledger.events(self.applied, CHUNK)?;
        let Some(last) = page.events.last().map(|e| e.seq) else {
            return Ok(0);
        };
        let tx = self.db.transaction()?;
        let mut changes = Changes::default();
        for event in &page.events {
            insert(&tx, event)?;
            changes.note(event);
        }
        changes.write(&tx, last)?;
        tx.execute("UPDATE meta SET applied = ?1", [last as i64])?;
        tx.commit()?;
        let done = last - self.applied;
        self.applied = last;
        Ok(done)
    }
}

/// Sums moved in one transaction of the projection, per (account, asset): (credited, debited).
#[derive(Default)]
struct Changes(BTreeMap<(String, String), (u128, u128)>);

impl Changes {
    fn note(&mut self, event: &Event) {
        let EntryAnswer::Done { receipt, .. } = &event.answer else {
            return;
        };
        if matches!(
            receipt.op,
            EntryKind::Hold | EntryKind::Release | EntryKind::Expire
        ) {
            return;
        }
        let (Some(asset), Some(amount)) = (&receipt.asset, receipt.amount_minor) else {
            return;
        };
        // The sums of one transaction may pass 128 bits where no balance does; modulo 2^128 the
        // result is still right.
        if let Some(to) = &receipt.to {
            let key = (to.to_string(), asset.to_string());
            let (up, _) = self.0.entry(key).or_default();
            *up = up.wrapping_add(amount.0);
        }
        if let Some(from) = &receipt.from {
            let key = (from.to_string(), asset.to_string());
            let (_, down) = self.0.entry(key).or_default();
            *down = down.wrapping_add(amount.0);
        }
    }

    fn write(self, tx: &Transaction<'_>, seq: u64) -> Result<(), ProjectionError> {
        let mut read = tx.prepare_cached(
            "SELECT amount_minor FROM balances WHERE account = ?1 AND asset = ?2",
        )?;
        let mut put =
            tx.prepare_cached("INSERT OR REPLACE INTO balances VALUES (?1, ?2, ?3, ?4)")?;
        for ((account, asset), (up, down)) in self.0 {
            let old: Option<String> = read
                .query_row([&account, &asset], |r| r.get(0))
                .optional()?;
            let old: u128 = old.map_or(Ok(0), |t| t.parse()).map_err(|_| {
                ProjectionError::Foreign(format!("the balance of {account} is no number"))
            })?;
            let new = old.wrapping_add(up).wrapping_sub(down);
            put.execute(params![account, asset, new.to_string(), seq as i64])?;
        }
        Ok(())
    }
}

fn insert(tx: &Transaction<'_>, e: &Event) -> Result<(), ProjectionError> {
    let mut entry = tx.prepare_cached(
        "INSERT INTO entries VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, \
         ?17, ?18, ?19, ?20, ?21)",
    )?;
    let mut history = tx.prepare_cached("INSERT OR IGNORE INTO history VALUES (?1, ?2)")?;
    let (outcome, code) = match &e.answer {
        EntryAnswer::Done { .. } => ("done", None),
        EntryAnswer::Refused { code, .. } => ("refused", Some(code.as_str())),
    };
    let key = e.entry.request_key();
    let receipt = e.answer.receipt();
    // A committed entry shows what it moved, a refused one what it asked for.
    let mut columns = e.entry.operands();
    if let Some(r) = receipt {
        (columns.from, columns.to) = (r.from.clone(), r.to.clone());
        (columns.asset, columns.amount_minor) = (r.asset.clone(), r.amount_minor);
    }
    let details = &columns.details;
    let metadata = details.metadata.as_ref().map(serde_json::to_string);
    let metadata = metadata
        .transpose()
        .map_err(|e| ProjectionError::Foreign(e.to_string()))?;
    let link = |id: Option<TxId>| id.map(|id| id.to_string());
    entry.execute(params![
        e.seq as i64,
        e.ts.to_string(),
        e.entry.kind().as_str(),
        outcome,
        code,
        key.as_ref().map(|k| k.tenant.as_str()),
        key.as_ref().map(|k| k.principal.as_str()),
        key.as_ref().map(|k| k.key.as_str()),
        columns.from.as_ref().map(Account::as_str),
        columns.to.as_ref().map(Account::as_str),
        columns.asset.as_ref().map(Asset::as_str),
        columns.amount_minor.map(|a| a.to_string()),
        columns.nonce.map(|n| n as i64),
        details.memo.as_ref().map(Memo::as_str),
        details.reference.as_ref().map(Reference::as_str),
        metadata,
        details.effective_at.map(|at| at.to_string()),
        link(receipt.and_then(|r| r.hold)),
        link(receipt.and_then(|r| r.batch)),
        link(receipt.and_then(|r| r.reverses)),
        link(receipt.map(|r| r.txid)),
    ])?;
    for account in [&columns.from, &columns.to].into_iter().flatten() {
        history.execute(params![account.as_str(), e.seq as i64])?;
    }
    Ok(())
}

/// Read access for the history endpoint; opens the file for each request.
#[derive(Clone, Debug)]
pub struct ProjectionReader {
    path: PathBuf,
}

impl ProjectionReader {
    pub const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The reversals of a transaction, oldest first.
    pub fn reversals(&self, tx: TxId) -> Result<Vec<TxId>, ProjectionError> {
        let db = self.open()?;
        let mut q =
            db.prepare("SELECT txid FROM entries WHERE reverses = ?1 ORDER BY seq LIMIT 100")?;
        let rows = q.query_map([tx.to_string()], |r| r.get::<_, String>(0))?;
        rows.map(|row| {
            let text = row?;
            let id = text.parse();
            id.map_err(|_| ProjectionError::Foreign(format!("{text} is no transaction id")))
        })
        .collect()
    }

    fn open(&self) -> Result<Connection, ProjectionError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(&self.path, flags)?;
        db.busy_timeout(Duration::from_secs(1))?;
        Ok(db)
    }

    /// Sequences of an account's entries after `after`, ascending, and the last entry in the file.
    pub fn history(
        &self,
        account: &Account,
        after: u64,
        limit: u64,
    ) -> Result<(Vec<u64>, u64), ProjectionError> {
        let db = self.open()?;
        let applied: i64 = db.query_row("SELECT applied FROM meta", [], |r| r.get(0))?;
        let mut q = db.prepare(
            "SELECT seq FROM history WHERE account = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
        )?;
        let rows = q.query_map(params![account.as_str(), after as i64, limit as i64], |r| {
            r.get::<_, i64>(0)
        })?;
        let seqs = rows
            .map(|r| r.map(|n| n as u64))
            .collect::<Result<_, _>>()?;
        Ok((seqs, applied as u64))
    }
}

/// The thread's body: adds new entries until shutdown. `Err` when the file has to be reopened.
pub fn run(
    ctx: &ThreadCtx,
    mut p: Projection,
    notifications: &Receiver<()>,
    ledger: &Ledger,
    metrics: &Metrics,
) -> Result<(), ProjectionError> {
    loop {
        let done = p.advance(ledger)?;
        let lag = ledger.head_seq().saturating_sub(p.applied());
        metrics
            .projection_lag
            .set(i64::try_from(lag).unwrap_or(i64::MAX));
        let stop = if done == 0 {
            wait_new_entries(ctx, notifications, Duration::from_secs(1))
        } else {
            ctx.shutdown
                .wait(ron_kernel::Deadline::within(FULL_CHUNK_PAUSE))
        };
        if stop {
            return Ok(());
        }
    }
}
