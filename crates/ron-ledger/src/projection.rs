//! History and balances in a SQLite file, for operators, auditors and the history endpoint.
//!
//! Fed from the log after the acknowledgement; the writer never reads it. The file can be deleted
//! at any time: the next start rebuilds it. Amounts are decimal text, because SQLite has no 128-bit
//! integers; days are whole days since 1970.

mod classes;
mod history;
mod queries;
mod recent;
mod search;
mod statement;
mod supply;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem;
use std::time::Duration;

use ron_files::Dir;
use ron_kernel::{Receiver, ThreadCtx};
use ron_proto::ledger::{EntryAnswer, EntryKind, Event, Memo, Operands, Receipt, Reference, TxId};
use ron_proto::{Account, Amount, Asset, SignedAmount, Timestamp};
use ron_service::lag::{FollowerLag, follower_pause};
use ron_service::{Image, StoreError, open_private};
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Transaction, params};

use history::{History, OfEntry};
pub use queries::{ProjectionReader, SearchError};
use recent::Recent;
pub use statement::StatementRange;
use supply::Supplies;
pub use supply::Supply;

use crate::engine::Shared;
use crate::feed::wait_new_entries;
use crate::ledger::Ledger;

/// Maximum entries in one transaction. Rows of one account share a page, so the more entries there
/// are, the fewer pages are written for each.
const CHUNK: u64 = 10_000;
/// Entries that are read from the log at once.
const PAGE: u64 = 500;
/// Shortest and longest pause after a transaction, so that following leaves the CPU to the writer.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// Pause for each entry that the last transaction added: from 5,000 entries a second on the pauses
/// grow to the longest, because larger transactions cost less for each entry.
const PAUSE_PER_ENTRY: Duration = Duration::from_micros(200);
const FILE: &str = "projection.sqlite";
const FORMAT: i64 = 8;
const SCHEMA: &str = include_str!("projection/schema.sql");
/// Pages of the writer's cache, in KiB. Each account's last rows are on a page of their own: with too
/// few in memory, every entry reads and writes several.
const CACHE_KIB: i64 = 65_536;
/// Pages (of 4 KiB) in the write-ahead log at which they are copied into the file; a page that changed
/// in many transactions until then is copied once.
const WAL_PAGES: i64 = 16_384;
/// Maximum bytes of the write-ahead log that stay allocated after a copy.
const WAL_BYTES: i64 = WAL_PAGES * 4_096;

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

fn parsed<T: std::str::FromStr>(text: &str) -> Result<T, ProjectionError> {
    text.parse()
        .map_err(|_| ProjectionError::Foreign(format!("{text} cannot be read")))
}

/// The only writer of the file; owned by the projection thread.
#[derive(Debug)]
pub struct Projection {
    db: Connection,
    /// Where it goes with each transaction, on a disk that SQLite does not know.
    image: Option<Image>,
    applied: u64,
    totals: Totals,
    history: History,
}

impl Projection {
    /// Opens the file in `dir`, or creates it; a file that is damaged, foreign, newer or ahead of the
    /// log is rebuilt.
    pub fn open(dir: &Dir, origin: &str, head: u64) -> Result<Self, ProjectionError> {
        match Self::try_open(dir, origin, head) {
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
                    // A missing file needs no removal; any other failure shows in the second
                    // attempt.
                    let _ = dir.remove(&format!("{FILE}{suffix}"));
                }
                Self::try_open(dir, origin, head)
            }
        }
    }

    fn try_open(dir: &Dir, origin: &str, head: u64) -> Result<Self, ProjectionError> {
        let (db, image) = if let Some(path) = dir.os_path(FILE) {
            (open_private(&path)?, None)
        } else {
            let (db, image) = Image::load(dir, FILE)?;
            (db, Some(image))
        };
        db.pragma_update(None, "journal_mode", "wal")?;
        db.pragma_update(None, "synchronous", "normal")?;
        db.pragma_update(None, "cache_size", -CACHE_KIB)?;
        db.pragma_update(None, "wal_autocheckpoint", WAL_PAGES)?;
        db.pragma_update(None, "journal_size_limit", WAL_BYTES)?;
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
        #[cfg(mutant = "skipped")] // what was committed while it was away is left out
        let applied = applied.max(head * u64::from(applied > 0 && ron_kernel::mutant("skipped")));
        if applied > head {
            return Err(ProjectionError::Foreign(format!(
                "it is at entry {applied}, the log at {head}"
            )));
        }
        Ok(Self {
            db,
            image,
            applied,
            totals: Totals::default(),
            history: History::default(),
        })
    }

    /// Sequence of the last entry in it.
    pub const fn applied(&self) -> u64 {
        self.applied
    }

    /// Adds the next entries in one transaction; returns the time of the last, `None` without any.
    pub fn advance(&mut self, ledger: &Shared) -> Result<Option<Timestamp>, ProjectionError> {
        let added = self.add(ledger);
        if added.is_err() {
            // They may have what was not committed.
            self.totals = Totals::default();
            self.history = History::default();
        }
        added
    }

    fn add(&mut self, ledger: &Shared) -> Result<Option<Timestamp>, ProjectionError> {
        let tx = self.db.transaction()?;
        let (totals, history) = (&mut self.totals, &mut self.history);
        let mut last = self.applied;
        let mut newest = None;
        while last < self.applied + CHUNK {
            let page = ledger.events(last, PAGE)?;
            let Some(end) = page.events.last() else { break };
            (last, newest) = (end.seq, Some(end.ts));
            for event in &page.events {
                insert(&tx, event, totals, history)?;
            }
        }
        if newest.is_none() {
            return Ok(None);
        }
        history.write(&tx)?;
        totals.write(&tx, last)?;
        tx.execute("UPDATE meta SET applied = ?1", [last as i64])?;
        tx.commit()?;
        if let Some(image) = &self.image {
            image.keep(&mut self.db)?;
        }
        self.applied = last;
        Ok(newest)
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

    /// Moves sums to the days that statements show.
    const fn shift(&mut self, by: Shift) {
        let Self {
            credits, debits, ..
        } = *self;
        self.credits = credits
            .wrapping_add(by.credits_in)
            .wrapping_sub(by.credits_out);
        self.debits = debits
            .wrapping_add(by.debits_in)
            .wrapping_sub(by.debits_out);
    }

    const fn balance(self) -> SignedAmount {
        SignedAmount::of(self.credits, self.debits)
    }
}

/// What the payments of a day add up to that statements show on another day.
#[derive(Clone, Copy, Debug, Default)]
struct Shift {
    credits_in: u128,
    debits_in: u128,
    credits_out: u128,
    debits_out: u128,
}

/// The sums that one transaction of the projection changes.
#[derive(Debug, Default)]
struct Totals {
    /// As earlier transactions left them.
    recent: Recent<(Account, Asset), Total>,
    /// By account and asset.
    balances: BTreeMap<(Account, Asset), Total>,
    /// By account, asset and day.
    shifts: BTreeMap<(Account, Asset, u64), Shift>,
    supplies: Supplies,
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
                if let Some(total) = self.recent.get(new.key()) {
                    return Ok(new.insert(total));
                }
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
            if receipt.op == EntryKind::Hold {
                let total = self.of(tx, from, asset)?;
                total.held = total.held.wrapping_add(amount);
            } else if freed > 0 {
                let total = self.of(tx, from, asset)?;
                total.held = total.held.wrapping_sub(freed);
            }
        }
        if !receipt.op.moves_money() {
            return Ok(());
        }
        self.supplies.add(tx, event.seq, receipt)?;
        for (account, credited) in [(&receipt.to, true), (&receipt.from, false)] {
            let Some(account) = account else { continue };
            let total = self.of(tx, account, asset)?;
            let sum = if credited {
                &mut total.credits
            } else {
                &mut total.debits
            };
            *sum = sum.wrapping_add(amount);
            let own = event.ts.utc_day();
            if day == own || !is_shown_on(event, account) {
                continue;
            }
            for (day, arrives) in [(day, true), (own, false)] {
                let key = (account.clone(), asset.clone(), day);
                let shift = self.shifts.entry(key).or_default();
                let sum = match (credited, arrives) {
                    (true, true) => &mut shift.credits_in,
                    (false, true) => &mut shift.debits_in,
                    (true, false) => &mut shift.credits_out,
                    (false, false) => &mut shift.debits_out,
                };
                *sum = sum.wrapping_add(amount);
            }
        }
        Ok(())
    }

    fn write(&mut self, tx: &Transaction<'_>, seq: u64) -> Result<(), ProjectionError> {
        let mut put = tx.prepare_cached(
            "INSERT OR REPLACE INTO balances VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        for ((account, asset), total) in mem::take(&mut self.balances) {
            put.execute(params![
                account.as_str(),
                asset.as_str(),
                total.balance().to_string(),
                total.credits.to_string(),
                total.debits.to_string(),
                total.held.to_string(),
                seq as i64
            ])?;
            self.recent.put((account, asset), total);
        }
        for ((account, asset, day), shift) in mem::take(&mut self.shifts) {
            shift.add(tx, (&account, &asset, day))?;
        }
        self.supplies.write(tx)
    }
}

impl Shift {
    /// Adds it to what the file has of that day.
    fn add(
        self,
        tx: &Transaction<'_>,
        (account, asset, day): (&Account, &Asset, u64),
    ) -> Result<(), ProjectionError> {
        let mut read = tx.prepare_cached(
            "SELECT credits_in, debits_in, credits_out, debits_out FROM day_shifts \
             WHERE account = ?1 AND asset = ?2 AND day = ?3",
        )?;
        let key = params![account.as_str(), asset.as_str(), day as i64];
        let row = read.query_row(key, |r| {
            Ok([r.get::<_, String>(0)?, r.get(1)?, r.get(2)?, r.get(3)?])
        });
        let before = match row.optional()? {
            None => Self::default(),
            Some(texts) => Self::read(&texts)?,
        };
        let sum = |a: u128, b: u128| a.wrapping_add(b).to_string();
        let mut put = tx.prepare_cached(
            "INSERT OR REPLACE INTO day_shifts VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        put.execute(params![
            account.as_str(),
            asset.as_str(),
            day as i64,
            sum(before.credits_in, self.credits_in),
            sum(before.debits_in, self.debits_in),
            sum(before.credits_out, self.credits_out),
            sum(before.debits_out, self.debits_out),
        ])?;
        Ok(())
    }

    /// The columns as the file stores them.
    fn read(
        [credits_in, debits_in, credits_out, debits_out]: &[String; 4],
    ) -> Result<Self, ProjectionError> {
        Ok(Self {
            credits_in: number(credits_in)?,
            debits_in: number(debits_in)?,
            credits_out: number(credits_out)?,
            debits_out: number(debits_out)?,
        })
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

fn insert(
    tx: &Transaction<'_>,
    e: &Event,
    totals: &mut Totals,
    history: &mut History,
) -> Result<(), ProjectionError> {
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
    let columns = e.operands();
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
    classes::add(tx, e)?;
    add_history(tx, e, &columns, (totals, history))
}

/// Whether statements of an account show an entry on the maker's effective day: those of the debited account,
/// and of the account that an issue credits, which nobody pays. A payee may not see the day, and no payer
/// moves entries into months that the payee has closed.
fn is_shown_on(event: &Event, account: &Account) -> bool {
    event.operands().from.is_none_or(|from| from == *account)
}

/// Adds an entry to the sums and histories of its accounts.
fn add_history(
    tx: &Transaction<'_>,
    e: &Event,
    columns: &Operands,
    (totals, history): (&mut Totals, &mut History),
) -> Result<(), ProjectionError> {
    let (receipt, details) = (e.answer.receipt(), &columns.details);
    let day = details.effective_at.unwrap_or(e.ts).utc_day();
    if let Some(receipt) = receipt {
        totals.add(tx, e, receipt, day)?;
    }
    let moved = receipt.is_some_and(|r| r.op.moves_money());
    let accounts = [&columns.from, &columns.to];
    for account in accounts.into_iter().flatten() {
        let total = match &columns.asset {
            Some(asset) => Some(*totals.of(tx, account, asset)?),
            None => None,
        };
        let row = OfEntry {
            seq: e.seq,
            asset: columns.asset.clone(),
            total,
            moved,
            day: (moved && day != e.ts.utc_day() && is_shown_on(e, account)).then_some(day),
            reference: details.reference.clone(),
        };
        history.add(tx, account, row)?;
    }
    Ok(())
}

/// Pause after a transaction that added `added` entries when `left` are not in the file yet.
pub fn pause_after(added: u64, left: u64) -> Duration {
    let (shortest, longest) = PAUSES;
    let added = u32::try_from(added).unwrap_or(u32::MAX);
    let grown = PAUSE_PER_ENTRY.saturating_mul(added);
    follower_pause(grown.clamp(shortest, longest), left)
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
        let before = p.applied();
        let newest = p.advance(&ledger.shared)?;
        let left = ledger.head_seq().saturating_sub(p.applied());
        lag.applied(newest, left);
        let stop = if newest.is_none() {
            wait_new_entries(ctx, notifications, Duration::from_secs(1))
        } else {
            let pause = pause_after(p.applied() - before, left);
            ctx.shutdown.wait(ron_kernel::Deadline::within(pause))
        };
        if stop {
            return Ok(());
        }
    }
}
