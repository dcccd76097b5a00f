//! History and balances in a SQLite file, for operators, auditors and the history endpoint.
//!
//! Fed from the log after the acknowledgement; the writer never reads it. The file can be deleted
//! at any time: the next start rebuilds it. Amounts are decimal text, because SQLite has no 128-bit
//! integers; days are whole days since 1970.

mod queries;
mod search;
mod statement;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ron_kernel::{Receiver, ThreadCtx};
use ron_proto::ledger::{EntryAnswer, EntryKind, Event, Memo, Receipt, Reference, TxId};
use ron_proto::{Account, Amount, Asset, SignedAmount, Timestamp};
use ron_service::lag::{FollowerLag, follower_pause};
use ron_service::{StoreError, open_private};
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Transaction, params};

pub use queries::{ProjectionReader, SearchError};
pub use statement::StatementRange;

use crate::feed::wait_new_entries;
use crate::ledger::Ledger;

/// Maximum entries in one transaction.
const CHUNK: u64 = 2_000;
/// Pause after each full chunk, so that catching up leaves the CPU to the writer.
const FULL_CHUNK_PAUSE: Duration = Duration::from_millis(20);
const FORMAT: i64 = 5;
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS meta (origin TEXT NOT NULL, applied INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS entries (
  seq INTEGER PRIMARY KEY, ts TEXT NOT NULL, kind TEXT NOT NULL, outcome TEXT NOT NULL, code TEXT,
  tenant TEXT, principal TEXT, key TEXT, from_account TEXT, to_account TEXT, asset TEXT, amount_minor TEXT, nonce INTEGER,
  memo TEXT, reference TEXT, shared INTEGER NOT NULL, metadata TEXT, effective_at TEXT, hold TEXT, batch TEXT, reverses TEXT,
  txid TEXT
);
CREATE INDEX IF NOT EXISTS entries_reversed ON entries (reverses, seq) WHERE reverses IS NOT NULL;
CREATE INDEX IF NOT EXISTS entries_reference ON entries (tenant, reference, seq) WHERE reference IS NOT NULL;
CREATE INDEX IF NOT EXISTS entries_batch ON entries (batch, seq) WHERE batch IS NOT NULL;
CREATE INDEX IF NOT EXISTS entries_hold ON entries (hold, seq) WHERE hold IS NOT NULL;
CREATE TABLE IF NOT EXISTS history (
  account TEXT NOT NULL, seq INTEGER NOT NULL, asset TEXT, credits TEXT, debits TEXT, held TEXT, moved INTEGER NOT NULL,
  day INTEGER, reference TEXT, PRIMARY KEY (account, seq)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS history_asset ON history (account, asset, seq);
CREATE INDEX IF NOT EXISTS history_day ON history (account, asset, day, seq) WHERE day IS NOT NULL;
CREATE INDEX IF NOT EXISTS history_reference ON history (account, reference, seq) WHERE reference IS NOT NULL;
CREATE TABLE IF NOT EXISTS days (
  account TEXT NOT NULL, asset TEXT NOT NULL, day INTEGER NOT NULL, credits TEXT NOT NULL, debits TEXT NOT NULL,
  PRIMARY KEY (account, asset, day)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS balances (
  account TEXT NOT NULL, asset TEXT NOT NULL, amount_minor TEXT NOT NULL, credits TEXT NOT NULL, debits TEXT NOT NULL,
  held TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (account, asset)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS holds (
  seq INTEGER PRIMARY KEY, hold TEXT NOT NULL, account TEXT NOT NULL, asset TEXT NOT NULL, amount TEXT NOT NULL,
  remaining TEXT NOT NULL, captured TEXT NOT NULL, expires_at TEXT NOT NULL, open INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS holds_account ON holds (account, seq);
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
            // Another program has it locked: it is whole, and free in a moment.
            Err(ProjectionError::Sqlite(e))
                if e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) =>
            {
                Err(e.into())
            }
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

    /// Adds the next entries in one transaction; returns the time of the last, `None` without any.
    pub fn advance(&mut self, ledger: &Ledger) -> Result<Option<Timestamp>, ProjectionError> {
        let page = ledger.events(self.applied, CHUNK)?;
        let Some((last, newest)) = page.events.last().map(|e| (e.seq, e.ts)) else {
            return Ok(None);
        };
        let tx = self.db.transaction()?;
        let mut totals = Totals::default();
        for event in &page.events {
            insert(&tx, event, &mut totals)?;
        }
        totals.write(&tx, last)?;
        tx.execute("UPDATE meta SET applied = ?1", [last as i64])?;
        tx.commit()?;
        self.applied = last;
        Ok(Some(newest))
    }
}

/// What an account ever got and gave in an asset, and what holds reserve of it. The ledger refuses
/// entries with which a sum would pass 128 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Total {
    credits: u128,
    debits: u128,
    held: u128,
}

impl Total {
    /// Credits, debits and held amount as the file stores them.
    fn read([credits, debits, held]: &[String; 3]) -> Result<Self, ProjectionError> {
        Ok(Self {
            credits: number(credits)?,
            debits: number(debits)?,
            held: number(held)?,
        })
    }

    const fn balance(self) -> SignedAmount {
        SignedAmount::of(self.credits, self.debits)
    }
}

/// The rows that one transaction of the projection changes.
#[derive(Default)]
struct Totals {
    /// By account and asset.
    balances: BTreeMap<(Account, Asset), Total>,
    /// By account, asset and the day that statements show: (credited, debited).
    days: BTreeMap<(Account, Asset, u64), (u128, u128)>,
}

impl Totals {
    fn of(
        &mut self,
        tx: &Transaction<'_>,
        account: &Account,
        asset: &Asset,
    ) -> Result<&mut Total, ProjectionError> {
        match self.balances.entry((account.clone(), asset.clone())) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                let mut read = tx.prepare_cached(
                    "SELECT credits, debits, held FROM balances WHERE account = ?1 AND asset = ?2",
                )?;
                let row = read.query_row([account.as_str(), asset.as_str()], |r| {
                    Ok([r.get::<_, String>(0)?, r.get(1)?, r.get(2)?])
                });
                let total = match row.optional()? {
                    None => Total::default(),
                    Some(texts) => Total::read(&texts)?,
                };
                Ok(new.insert(total))
            }
        }
    }

    /// Adds what an entry that took effect moved.
    fn add(
        &mut self,
        tx: &Transaction<'_>,
        event: &Event,
        receipt: &Receipt,
        day: u64,
    ) -> Result<(), ProjectionError> {
        let (Some(asset), Some(Amount(amount))) = (&receipt.asset, receipt.amount_minor) else {
            return Ok(());
        };
        if let Some(from) = &receipt.from {
            let freed = freed(tx, event, receipt, amount)?;
            let total = self.of(tx, from, asset)?;
            match receipt.op {
                EntryKind::Hold => total.held = total.held.wrapping_add(amount),
                _ => total.held = total.held.wrapping_sub(freed),
            }
        }
        if !moves(receipt.op) {
            return Ok(());
        }
        for (account, credited) in [(&receipt.to, true), (&receipt.from, false)] {
            let Some(account) = account else { continue };
            let total = self.of(tx, account, asset)?;
            let sum = if credited {
                &mut total.credits
            } else {
                &mut total.debits
            };
            *sum = sum.wrapping_add(amount);
            let key = (account.clone(), asset.clone(), day);
            let (up, down) = self.days.entry(key).or_default();
            let sum = if credited { up } else { down };
            *sum = sum.wrapping_add(amount);
        }
        Ok(())
    }

    fn write(self, tx: &Transaction<'_>, seq: u64) -> Result<(), ProjectionError> {
        let mut put = tx.prepare_cached(
            "INSERT OR REPLACE INTO balances VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        for ((account, asset), total) in self.balances {
            put.execute(params![
                account.as_str(),
                asset.as_str(),
                total.balance().to_string(),
                total.credits.to_string(),
                total.debits.to_string(),
                total.held.to_string(),
                seq as i64
            ])?;
        }
        let mut read = tx.prepare_cached(
            "SELECT credits, debits FROM days WHERE account = ?1 AND asset = ?2 AND day = ?3",
        )?;
        let mut put =
            tx.prepare_cached("INSERT OR REPLACE INTO days VALUES (?1, ?2, ?3, ?4, ?5)")?;
        for ((account, asset, day), (up, down)) in self.days {
            let key = params![account.as_str(), asset.as_str(), day as i64];
            let row = read.query_row(key, |r| Ok([r.get::<_, String>(0)?, r.get(1)?]));
            let (credits, debits) = match row.optional()? {
                None => (0, 0),
                Some([credits, debits]) => (number(&credits)?, number(&debits)?),
            };
            put.execute(params![
                account.as_str(),
                asset.as_str(),
                day as i64,
                u128::wrapping_add(credits, up).to_string(),
                u128::wrapping_add(debits, down).to_string(),
            ])?;
        }
        Ok(())
    }
}

/// Whether entries of this kind change balances when they take effect.
const fn moves(kind: EntryKind) -> bool {
    match kind {
        EntryKind::Issue
        | EntryKind::Transfer
        | EntryKind::Burn
        | EntryKind::Capture
        | EntryKind::Reverse
        | EntryKind::EpochOpen
        | EntryKind::Payout => true,
        EntryKind::Hold
        | EntryKind::Release
        | EntryKind::Expire
        | EntryKind::Freeze
        | EntryKind::Unfreeze
        | EntryKind::Account
        | EntryKind::Asset
        | EntryKind::EpochClose
        | EntryKind::Abandon => false,
    }
}

/// Records a new hold, or what an entry took from one. Returns how much is no longer reserved.
fn freed(
    tx: &Transaction<'_>,
    event: &Event,
    receipt: &Receipt,
    amount: u128,
) -> Result<u128, ProjectionError> {
    if let ron_proto::ledger::Entry::Hold { expires_at, .. } = &event.entry {
        let mut put =
            tx.prepare_cached("INSERT INTO holds VALUES (?1, ?2, ?3, ?4, ?5, ?5, '0', ?6, 1)")?;
        put.execute(params![
            event.seq as i64,
            receipt.txid.to_string(),
            receipt.from.as_ref().map(Account::as_str),
            receipt.asset.as_ref().map(Asset::as_str),
            amount.to_string(),
            expires_at.to_string(),
        ])?;
        return Ok(0);
    }
    let Some(hold) = receipt.hold else {
        return Ok(0);
    };
    let mut read = tx.prepare_cached("SELECT remaining, captured FROM holds WHERE seq = ?1")?;
    let [remaining, captured] = read.query_row([hold.seq() as i64], |r| {
        Ok([r.get::<_, String>(0)?, r.get(1)?])
    })?;
    let (remaining, captured) = (number(&remaining)?, number(&captured)?);
    let (left, captured) = match &event.entry {
        ron_proto::ledger::Entry::Capture { ends_hold, .. } => {
            let left = u128::wrapping_sub(remaining, amount);
            (
                if *ends_hold { 0 } else { left },
                u128::wrapping_add(captured, amount),
            )
        }
        _ => (0, captured),
    };
    let mut put = tx.prepare_cached(
        "UPDATE holds SET remaining = ?2, captured = ?3, open = ?4 WHERE seq = ?1",
    )?;
    put.execute(params![
        hold.seq() as i64,
        left.to_string(),
        captured.to_string(),
        left > 0
    ])?;
    Ok(remaining.wrapping_sub(left))
}

/// An amount as the file stores it.
fn number(text: &str) -> Result<u128, ProjectionError> {
    text.parse()
        .map_err(|_| ProjectionError::Foreign(format!("{text} is no amount")))
}

fn insert(tx: &Transaction<'_>, e: &Event, totals: &mut Totals) -> Result<(), ProjectionError> {
    let mut entry = tx.prepare_cached(
        "INSERT INTO entries VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, \
         ?17, ?18, ?19, ?20, ?21, ?22)",
    )?;
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
    let reference = details.reference.as_ref().map(Reference::as_str);
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
        reference,
        details.share_reference,
        metadata,
        details.effective_at.map(|at| at.to_string()),
        link(receipt.and_then(|r| r.hold)),
        link(receipt.and_then(|r| r.batch)),
        link(receipt.and_then(|r| r.reverses)),
        link(receipt.map(|r| r.txid)),
    ])?;
    let day = details.effective_at.unwrap_or(e.ts).utc_day();
    if let Some(receipt) = receipt {
        totals.add(tx, e, receipt, day)?;
    }
    let moved = receipt.is_some_and(|r| moves(r.op));
    let accounts = [&columns.from, &columns.to];
    for account in accounts.into_iter().flatten() {
        let total = match &columns.asset {
            Some(asset) => Some(*totals.of(tx, account, asset)?),
            None => None,
        };
        let asset = columns.asset.as_ref();
        let other_day = (moved && day != e.ts.utc_day()).then_some(day);
        insert_history(
            tx,
            e.seq,
            account,
            (asset, total),
            (moved, other_day, reference),
        )?;
    }
    Ok(())
}

/// A row of an account's history; `day` is the one that statements show, where it is another than that
/// of the entry.
fn insert_history(
    tx: &Transaction<'_>,
    seq: u64,
    account: &Account,
    (asset, total): (Option<&Asset>, Option<Total>),
    (moved, day, reference): (bool, Option<u64>, Option<&str>),
) -> Result<(), ProjectionError> {
    let mut history = tx.prepare_cached(
        "INSERT OR IGNORE INTO history VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?;
    history.execute(params![
        account.as_str(),
        seq as i64,
        asset.map(Asset::as_str),
        total.map(|t| t.credits.to_string()),
        total.map(|t| t.debits.to_string()),
        total.map(|t| t.held.to_string()),
        moved,
        day.map(|day| day as i64),
        reference,
    ])?;
    Ok(())
}

/// The thread's body: adds new entries until shutdown. `Err` when the file has to be reopened.
pub fn run(
    ctx: &ThreadCtx,
    mut p: Projection,
    notifications: &Receiver<()>,
    ledger: &Ledger,
    lag: &FollowerLag,
) -> Result<(), ProjectionError> {
    loop {
        if ledger.head_seq() > p.applied() {
            lag.begun();
        }
        let newest = p.advance(ledger)?;
        let left = ledger.head_seq().saturating_sub(p.applied());
        lag.applied(newest, left);
        let stop = if newest.is_none() {
            wait_new_entries(ctx, notifications, Duration::from_secs(1))
        } else {
            let pause = follower_pause(FULL_CHUNK_PAUSE, left);
            ctx.shutdown.wait(ron_kernel::Deadline::within(pause))
        };
        if stop {
            return Ok(());
        }
    }
}
