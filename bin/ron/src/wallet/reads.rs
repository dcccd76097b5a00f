//! `ron wallet` commands that list: history, statement, accounts, holds, transactions by reference,
//! events.

use std::time::Duration;

use clap::{Args, Subcommand};
use ron_client::WalletClient;
use ron_proto::ledger::{
    AccountPage, Direction, EntryKind, HoldPage, HoldState, MetadataMember, Reference,
    StatementTime, TxId,
};
use ron_proto::wallet::{
    FoundTransactions, HistoryEntry, HistoryPage, STATEMENT_COLUMNS, Statement,
};
use ron_proto::{Account, Amount, Asset, SignedAmount, Timestamp};

use super::show::{ENTRY_COLUMNS, Stream, cell, entry_cells, of_entries};
use super::{Fresh, deadline, explain};
use crate::table::{Out, Table, column, sparse};

/// How long one request for events waits.
const EVENTS_WAIT: Duration = Duration::from_secs(30);
/// Maximum entries of a request.
pub const PAGE: u64 = 500;

#[derive(Subcommand)]
pub enum ReadCommand {
    /// Entries that touched an account, newest first.
    History {
        /// Account to show.
        account: Account,
        #[command(flatten)]
        filters: Filters,
        #[command(flatten)]
        cursors: Cursors,
        #[command(flatten)]
        fresh: Fresh,
    },
    /// Opening balance, entries and closing balance of an account.
    Statement {
        /// Account to show.
        account: Account,
        /// Asset of the statement.
        #[arg(long)]
        asset: Asset,
        /// First time, such as 2026-11-01T00:00:00Z.
        #[arg(long)]
        from: Timestamp,
        /// End, not part of the statement.
        #[arg(long)]
        until: Timestamp,
        /// Entries by the ledger's time (entry) or by the day of their effective_at (effective).
        #[arg(long, default_value = "entry")]
        by: StatementTime,
        #[command(flatten)]
        fresh: Fresh,
    },
    /// Accounts that were ever opened, used or given terms: balances, holds, limits, class, whether they are
    /// frozen or closed.
    Accounts {
        /// Only accounts whose name begins with this.
        #[arg(long)]
        prefix: Option<String>,
        #[command(flatten)]
        fresh: Fresh,
    },
    /// Holds of an account, newest first.
    Holds {
        /// Account whose money is or was reserved.
        account: Account,
        /// Asset of the holds.
        #[arg(long)]
        asset: Option<Asset>,
        /// Only holds in this state: open or ended.
        #[arg(long)]
        state: Option<HoldState>,
        #[command(flatten)]
        fresh: Fresh,
    },
    /// Transactions made with a reference, newest first.
    Find {
        /// Reference given by the maker.
        reference: Reference,
        #[command(flatten)]
        filters: FoundBy,
        #[command(flatten)]
        cursors: Cursors,
        #[command(flatten)]
        fresh: Fresh,
    },
    /// Print what happens to an account, as it happens; ends with Ctrl-C.
    Events {
        /// Account to follow.
        account: Account,
        /// Begin after this sequence number.
        #[arg(long, default_value_t = 0)]
        after: u64,
        /// Print what there is, and end.
        #[arg(long)]
        once: bool,
        #[command(flatten)]
        fresh: Fresh,
    },
}

/// What any search of entries takes.
#[derive(Args)]
pub struct FoundBy {
    /// Only entries from this time on.
    #[arg(long)]
    from: Option<Timestamp>,
    /// Only entries before this time.
    #[arg(long)]
    until: Option<Timestamp>,
    /// Only entries in this asset.
    #[arg(long)]
    asset: Option<Asset>,
    /// Only entries of this kind, such as transfer or capture.
    #[arg(long)]
    kind: Option<EntryKind>,
    /// Only items of this batch.
    #[arg(long)]
    batch: Option<TxId>,
    /// Only what became of this hold.
    #[arg(long)]
    hold: Option<TxId>,
    /// Only entries with this member, as name=value; may be repeated.
    #[arg(long = "meta", value_name = "NAME=VALUE")]
    metadata: Vec<MetadataMember>,
}

#[derive(Args)]
pub struct Filters {
    #[command(flatten)]
    found_by: FoundBy,
    /// Only credits (in) or debits (out).
    #[arg(long)]
    direction: Option<Direction>,
    /// Only entries with this account on the other side.
    #[arg(long)]
    counterparty: Option<Account>,
    /// Only entries with this reference.
    #[arg(long)]
    reference: Option<Reference>,
}

#[derive(Args, Clone, Copy)]
pub struct Cursors {
    /// Only entries before this sequence number, the newest of them.
    #[arg(long)]
    before: Option<u64>,
    /// Only entries after this sequence number, the oldest of them.
    #[arg(long, conflicts_with = "before")]
    after: Option<u64>,
    /// Maximum number of entries, up to 500.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=PAGE))]
    limit: u64,
}

type Query = Vec<(&'static str, String)>;

fn add<T: ToString>(query: &mut Query, name: &'static str, value: Option<&T>) {
    query.extend(value.map(|value| (name, value.to_string())));
}

impl FoundBy {
    fn query(&self) -> Query {
        let mut query = Query::new();
        add(&mut query, "from", self.from.as_ref());
        add(&mut query, "until", self.until.as_ref());
        add(&mut query, "asset", self.asset.as_ref());
        add(&mut query, "kind", self.kind.as_ref());
        add(&mut query, "batch", self.batch.as_ref());
        add(&mut query, "hold", self.hold.as_ref());
        for member in &self.metadata {
            add(&mut query, "metadata", Some(member));
        }
        query
    }
}

impl Filters {
    fn query(&self) -> Query {
        let mut query = self.found_by.query();
        let direction = self.direction.map(Direction::as_str);
        add(&mut query, "direction", direction.as_ref());
        add(&mut query, "counterparty", self.counterparty.as_ref());
        let reference = self.reference.as_ref().map(Reference::as_str);
        add(&mut query, "reference", reference.as_ref());
        query
    }
}

impl Cursors {
    fn query(&self) -> Query {
        let mut query = vec![("limit", self.limit.to_string())];
        add(&mut query, "before", self.before.as_ref());
        add(&mut query, "after", self.after.as_ref());
        query
    }
}

pub fn run(wallet: &WalletClient, command: ReadCommand, out: Out) -> Result<(), String> {
    match command {
        ReadCommand::History {
            account,
            filters,
            cursors,
            fresh,
        } => {
            let wallet = wallet.knowing(fresh.min_seq);
            let filters = filters.query();
            let page: HistoryPage = filled(cursors, |cursors| {
                let query = [filters.clone(), cursors.query()].concat();
                explain(wallet.history(&account, &query, deadline()))
            })?;
            let (text, csv) = of_entries(&page.entries, Some(&account));
            out.tables(&page, &text, &csv)?;
            more(page.older, cursors, out);
        }
        ReadCommand::Statement {
            account,
            asset,
            from,
            until,
            by,
            fresh,
        } => {
            let wallet = wallet.knowing(fresh.min_seq);
            let statement = whole(&wallet, &account, (asset, from, until, by))?;
            out.tables(&statement, &as_text(&statement), &as_csv(&statement))?;
        }
        ReadCommand::Accounts { prefix, fresh } => {
            accounts(&wallet.knowing(fresh.min_seq), prefix, out)?;
        }
        ReadCommand::Holds {
            account,
            asset,
            state,
            fresh,
        } => {
            let wallet = wallet.knowing(fresh.min_seq);
            let holds = holds(&wallet, &account, asset.as_ref(), state)?;
            out.table(&holds, &of_holds(&holds))?;
        }
        ReadCommand::Find {
            reference,
            filters,
            cursors,
            fresh,
        } => {
            let wallet = wallet.knowing(fresh.min_seq);
            let filters = filters.query();
            let page: FoundTransactions = filled(cursors, |cursors| {
                let mut query = [filters.clone(), cursors.query()].concat();
                query.push(("reference", reference.as_str().to_owned()));
                explain(wallet.transactions(&query, deadline()))
            })?;
            let (text, csv) = of_entries(&page.entries, None);
            out.tables(&page, &text, &csv)?;
            more(page.older, cursors, out);
        }
        ReadCommand::Events {
            account,
            after,
            once,
            fresh,
        } => events(&wallet.knowing(fresh.min_seq), account, after, once, out)?,
    }
    Ok(())
}

fn more(older: Option<u64>, cursors: Cursors, out: Out) {
    if let (Some(older), None) = (older, cursors.after) {
        out.note(&format!("older: --before {older}"));
    }
}

/// A page of entries, newest first.
trait EntryPage {
    fn parts(&mut self) -> (&mut Vec<HistoryEntry>, &mut Option<u64>, &mut u64);
}

impl EntryPage for HistoryPage {
    fn parts(&mut self) -> (&mut Vec<HistoryEntry>, &mut Option<u64>, &mut u64) {
        (&mut self.entries, &mut self.older, &mut self.newer)
    }
}

impl EntryPage for FoundTransactions {
    fn parts(&mut self) -> (&mut Vec<HistoryEntry>, &mut Option<u64>, &mut u64) {
        (&mut self.entries, &mut self.older, &mut self.newer)
    }
}

/// Reads pages until there are as many entries as asked for, or no more. The service looks at a bounded number of
/// entries for each page, so a page of a search may have none and be followed by others.
fn filled<P: EntryPage>(
    asked: Cursors,
    read: impl Fn(Cursors) -> Result<P, String>,
) -> Result<P, String> {
    let mut all = read(asked)?;
    if asked.after.is_some() {
        fill_upwards(&mut all, asked.limit, &read)?;
    } else {
        fill_downwards(&mut all, asked.limit, &read)?;
    }
    Ok(all)
}

fn fill_downwards<P: EntryPage>(
    all: &mut P,
    limit: u64,
    read: &impl Fn(Cursors) -> Result<P, String>,
) -> Result<(), String> {
    let (entries, older, _) = all.parts();
    while let (Some(before), left @ 1..) = (*older, limit.saturating_sub(entries.len() as u64)) {
        let mut page = read(Cursors {
            before: Some(before),
            after: None,
            limit: left,
        })?;
        let (further, next, _) = page.parts();
        entries.append(further);
        *older = *next;
    }
    Ok(())
}

fn fill_upwards<P: EntryPage>(
    all: &mut P,
    limit: u64,
    read: &impl Fn(Cursors) -> Result<P, String>,
) -> Result<(), String> {
    let (entries, _, newer) = all.parts();
    let left = |entries: &[HistoryEntry]| limit.saturating_sub(entries.len() as u64);
    if left(entries) == 0 {
        return Ok(());
    }
    // The end moves with the ledger: entries after the one that is newest now are not waited for.
    let newest = Cursors {
        before: None,
        after: None,
        limit: 1,
    };
    let last = *read(newest)?.parts().2;
    while *newer < last
        && let left @ 1.. = left(entries)
    {
        let mut page = read(Cursors {
            before: None,
            after: Some(*newer),
            limit: left,
        })?;
        let (further, _, next) = page.parts();
        entries.splice(0..0, further.drain(..));
        *newer = *next;
    }
    Ok(())
}

/// All pages of a statement.
fn whole(
    wallet: &WalletClient,
    account: &Account,
    (asset, from, until, by): (Asset, Timestamp, Timestamp, StatementTime),
) -> Result<Statement, String> {
    let query = |after: Option<u64>| {
        let mut query = vec![
            ("asset", asset.to_string()),
            ("from", from.to_string()),
            ("until", until.to_string()),
            ("by", by.as_str().to_owned()),
        ];
        add(&mut query, "after", after.as_ref());
        query
    };
    let read = |after| explain(wallet.statement(account, &query(after), deadline()));
    let mut statement = read(None)?;
    while let Some(next) = statement.next {
        let page = read(Some(next))?;
        statement.entries.extend(page.entries);
        // Entries may have come in meanwhile; the sums belong to the last page.
        statement.credits_minor = page.credits_minor;
        statement.debits_minor = page.debits_minor;
        statement.closing_minor = page.closing_minor;
        statement.as_of_seq = page.as_of_seq;
        statement.next = page.next;
    }
    Ok(statement)
}

fn accounts(wallet: &WalletClient, prefix: Option<String>, out: Out) -> Result<(), String> {
    let mut query = vec![("limit", PAGE.to_string())];
    add(&mut query, "prefix", prefix.as_ref());
    let mut page = explain(wallet.accounts(&query, deadline()))?;
    while let Some(next) = page.next.take() {
        let query = [query.clone(), vec![("after", next.to_string())]].concat();
        let further = explain(wallet.accounts(&query, deadline()))?;
        page.accounts.extend(further.accounts);
        (page.next, page.seq) = (further.next, further.seq);
    }
    out.table(&page, &of_accounts(&page))
}

/// A row for each balance; an account without one has a row too.
fn of_accounts(page: &AccountPage) -> Table {
    let mut table = Table::of(&[
        column("account"),
        column("asset"),
        column("amount"),
        column("available"),
        sparse("held"),
        sparse("credit limit"),
        sparse("maximum"),
        sparse("class"),
        sparse("state"),
    ]);
    let some = |amount: Amount| (!amount.is_zero()).then_some(amount);
    for listed in &page.accounts {
        let mut state = Vec::new();
        state.extend(listed.closed.then(|| "closed".to_owned()));
        if !listed.frozen.is_none() {
            state.push(format!("frozen: {}", listed.frozen));
        }
        let no_balance = listed.balances.is_empty().then_some(None);
        for balance in listed.balances.iter().map(Some).chain(no_balance) {
            let amount = balance.map(|b| SignedAmount::of(b.amount_minor.0, b.overdrawn_minor.0));
            table.row([
                listed.account.to_string(),
                cell(balance.map(|b| &b.asset)),
                cell(amount),
                cell(balance.map(|b| b.available_minor)),
                cell(balance.and_then(|b| some(b.held_minor))),
                cell(balance.and_then(|b| some(b.credit_limit_minor))),
                cell(balance.and_then(|b| b.max_balance_minor)),
                cell(listed.class.as_ref()),
                state.join(", "),
            ]);
        }
    }
    table
}

/// All holds that match.
fn holds(
    wallet: &WalletClient,
    account: &Account,
    asset: Option<&Asset>,
    state: Option<HoldState>,
) -> Result<HoldPage, String> {
    let mut query = vec![
        ("account", account.to_string()),
        ("limit", PAGE.to_string()),
    ];
    add(&mut query, "asset", asset);
    add(&mut query, "state", state.map(HoldState::as_str).as_ref());
    let mut all = explain(wallet.holds(&query, deadline()))?;
    while let Some(before) = all.older.take() {
        let query = [query.clone(), vec![("before", before.to_string())]].concat();
        let page = explain(wallet.holds(&query, deadline()))?;
        all.holds.extend(page.holds);
        all.older = page.older;
    }
    Ok(all)
}

fn of_holds(page: &HoldPage) -> Table {
    let mut table = Table::new(&[
        "hold",
        "state",
        "asset",
        "amount",
        "remaining",
        "captured",
        "expires",
    ]);
    for h in &page.holds {
        table.row([
            h.hold.to_string(),
            h.state.as_str().to_owned(),
            h.asset.to_string(),
            h.amount_minor.to_string(),
            h.remaining_minor.to_string(),
            h.captured_minor.to_string(),
            h.expires_at.to_string(),
        ]);
    }
    table
}

fn events(
    wallet: &WalletClient,
    account: Account,
    mut after: u64,
    once: bool,
    out: Out,
) -> Result<(), String> {
    let wait = if once { Duration::ZERO } else { EVENTS_WAIT };
    let mut stream = Stream::new(out, account.clone());
    loop {
        let by = ron_kernel::Deadline::within(wait + Duration::from_secs(10));
        let page = explain(wallet.events(&account, after, wait, by))?;
        page.events.iter().try_for_each(|e| stream.entry(e))?;
        if once && page.next == after {
            return Ok(());
        }
        after = page.next;
    }
}

/// A statement for people: the amounts are what they change in the balance.
fn as_text(statement: &Statement) -> Table {
    let mut table = Table::of(&ENTRY_COLUMNS);
    let sum = |name: &str, at: Timestamp, balance: SignedAmount| {
        let mut cells = [const { String::new() }; ENTRY_COLUMNS.len()];
        cells[1] = at.to_string();
        name.clone_into(&mut cells[2]);
        cells[5] = statement.asset.to_string();
        cells[6] = balance.to_string();
        cells
    };
    table.row(sum("opening", statement.from, statement.opening_minor));
    for entry in &statement.entries {
        let mut cells = entry_cells(entry);
        cells[4] = entry.change(&statement.account);
        table.row(cells);
    }
    table.row(sum("closing", statement.until, statement.closing_minor));
    table
}

/// The lines of `GET /v1/account/{a}/statement?format=csv`.
fn as_csv(statement: &Statement) -> Table {
    let mut table = Table::new(&STATEMENT_COLUMNS);
    statement.lines(true).for_each(|cells| table.row(cells));
    table
}
