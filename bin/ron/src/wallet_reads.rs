//! `ron wallet` commands that list: history, statement, accounts, holds, transactions by reference,
//! events.

use std::time::Duration;

use clap::{Args, Subcommand};
use ron_client::WalletClient;
use ron_proto::ledger::{
    Direction, EntryKind, HoldState, ListedBalance, MetadataMember, Reference, StatementTime, TxId,
};
use ron_proto::wallet::{HistoryEntry, Statement};
use ron_proto::{Account, Asset, SignedAmount, Timestamp};

use crate::wallet::table::{Form, Table, print};
use crate::wallet::{Out, deadline, explain};

/// How long one request for events waits.
const EVENTS_WAIT: Duration = Duration::from_secs(30);
/// Maximum entries of a request.
const PAGE: u64 = 500;

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
        form: Form,
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
        form: Form,
    },
    /// Accounts that ever moved money, with their balances.
    Accounts {
        /// Only accounts whose name begins with this.
        #[arg(long)]
        prefix: Option<String>,
        #[command(flatten)]
        form: Form,
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
        form: Form,
    },
    /// Transactions made with a reference, newest first.
    Find {
        /// Reference given by the maker.
        reference: Reference,
        #[command(flatten)]
        cursors: Cursors,
        #[command(flatten)]
        form: Form,
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
    },
}

#[derive(Args)]
pub struct Filters {
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
    /// Only credits (in) or debits (out).
    #[arg(long)]
    direction: Option<Direction>,
    /// Only entries with this account on the other side.
    #[arg(long)]
    counterparty: Option<Account>,
    /// Only entries with this reference.
    #[arg(long)]
    reference: Option<Reference>,
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
pub struct Cursors {
    /// Only entries before this sequence number, the newest of them.
    #[arg(long)]
    before: Option<u64>,
    /// Only entries after this sequence number, the oldest of them.
    #[arg(long, conflicts_with = "before")]
    after: Option<u64>,
    /// Maximum number of entries, up to 500.
    #[arg(long, default_value_t = 100)]
    limit: u64,
}

type Query = Vec<(&'static str, String)>;

fn add<T: ToString>(query: &mut Query, name: &'static str, value: Option<&T>) {
    query.extend(value.map(|value| (name, value.to_string())));
}

impl Filters {
    fn query(&self) -> Query {
        let mut query = Query::new();
        add(&mut query, "from", self.from.as_ref());
        add(&mut query, "until", self.until.as_ref());
        add(&mut query, "asset", self.asset.as_ref());
        add(&mut query, "kind", self.kind.as_ref());
        add(
            &mut query,
            "direction",
            self.direction.map(Direction::as_str).as_ref(),
        );
        add(&mut query, "counterparty", self.counterparty.as_ref());
        add(
            &mut query,
            "reference",
            self.reference.as_ref().map(Reference::as_str).as_ref(),
        );
        add(&mut query, "batch", self.batch.as_ref());
        add(&mut query, "hold", self.hold.as_ref());
        for member in &self.metadata {
            add(&mut query, "metadata", Some(member));
        }
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
            form,
        } => {
            let query = [filters.query(), cursors.query()].concat();
            let page = explain(wallet.history(&account, &query, deadline()))?;
            print(&page, &of_entries(&page.entries), out, &form)?;
            more(page.older.filter(|_| cursors.after.is_none()), out, &form);
        }
        ReadCommand::Statement {
            account,
            asset,
            from,
            until,
            by,
            form,
        } => {
            let statement = whole(wallet, &account, (asset, from, until, by))?;
            print(&statement, &of_statement(&statement), out, &form)?;
        }
        ReadCommand::Accounts { prefix, form } => accounts(wallet, prefix, out, &form)?,
        ReadCommand::Holds {
            account,
            asset,
            state,
            form,
        } => {
            let mut query = vec![
                ("account", account.to_string()),
                ("limit", PAGE.to_string()),
            ];
            add(&mut query, "asset", asset.as_ref());
            add(&mut query, "state", state.map(HoldState::as_str).as_ref());
            let page = explain(wallet.holds(&query, deadline()))?;
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
            print(&page, &table, out, &form)?;
        }
        ReadCommand::Find {
            reference,
            cursors,
            form,
        } => {
            let mut query = cursors.query();
            query.push(("reference", reference.as_str().to_owned()));
            let page = explain(wallet.transactions(&query, deadline()))?;
            print(&page, &of_entries(&page.entries), out, &form)?;
            more(page.older.filter(|_| cursors.after.is_none()), out, &form);
        }
        ReadCommand::Events {
            account,
            after,
            once,
        } => events(wallet, &account, after, once, out)?,
    }
    Ok(())
}

fn more(older: Option<u64>, out: Out, form: &Form) {
    if let Some(older) = older
        && !out.json
        && !form.csv
    {
        println!("older: --before {older}");
    }
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

fn accounts(
    wallet: &WalletClient,
    prefix: Option<String>,
    out: Out,
    form: &Form,
) -> Result<(), String> {
    let mut query = vec![("limit", PAGE.to_string())];
    add(&mut query, "prefix", prefix.as_ref());
    let mut page = explain(wallet.accounts(&query, deadline()))?;
    while let Some(next) = page.next.take() {
        let query = [query.clone(), vec![("after", next.to_string())]].concat();
        let further = explain(wallet.accounts(&query, deadline()))?;
        page.accounts.extend(further.accounts);
        (page.next, page.seq) = (further.next, further.seq);
    }
    let mut table = Table::new(&["account", "asset", "amount"]);
    for listed in &page.accounts {
        for ListedBalance {
            asset,
            amount_minor,
            overdrawn_minor,
        } in &listed.balances
        {
            let account = listed.account.to_string();
            let balance = SignedAmount::of(amount_minor.0, overdrawn_minor.0);
            table.row([account, asset.to_string(), balance.to_string()]);
        }
    }
    print(&page, &table, out, form)
}

fn events(
    wallet: &WalletClient,
    account: &Account,
    mut after: u64,
    once: bool,
    out: Out,
) -> Result<(), String> {
    let wait = if once { Duration::ZERO } else { EVENTS_WAIT };
    loop {
        let by = ron_kernel::Deadline::within(wait + Duration::from_secs(10));
        let page = explain(wallet.events(account, after, wait, by))?;
        for event in &page.events {
            if out.json {
                let line = serde_json::to_string(event).map_err(|e| e.to_string())?;
                println!("{line}");
            } else {
                println!("{}", of_entries(std::slice::from_ref(event)).line(0));
            }
        }
        if once && page.next == after {
            return Ok(());
        }
        after = page.next;
    }
}

const ENTRY_COLUMNS: [&str; 9] = [
    "seq",
    "time",
    "op",
    "outcome",
    "amount",
    "asset",
    "balance",
    "from -> to",
    "reference",
];

fn of_entries(entries: &[HistoryEntry]) -> Table {
    let mut table = Table::new(&ENTRY_COLUMNS);
    for e in entries {
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let account = |account: &Option<Account>| text(account.as_ref().map(ToString::to_string));
        table.row([
            e.seq.to_string(),
            e.ts.to_string(),
            e.op.as_str().to_owned(),
            e.refused.map_or("done", |code| code.as_str()).to_owned(),
            text(e.amount_minor.map(|a| a.to_string())),
            text(e.asset.as_ref().map(ToString::to_string)),
            text(e.balance_minor.map(|b| b.to_string())),
            format!("{} -> {}", account(&e.from), account(&e.to)),
            text(e.reference.as_ref().map(|r| r.as_str().to_owned())),
        ]);
    }
    table
}

fn of_statement(statement: &Statement) -> Table {
    let mut table = Table::new(&ENTRY_COLUMNS);
    let asset = statement.asset.to_string();
    let sum = |table: &mut Table, name: &str, at: Timestamp, balance: String| {
        let none = || "-".to_owned();
        let asset = asset.clone();
        table.row([
            none(),
            at.to_string(),
            name.to_owned(),
            none(),
            none(),
            asset,
            balance,
            none(),
            none(),
        ]);
    };
    sum(
        &mut table,
        "opening",
        statement.from,
        statement.opening_minor.to_string(),
    );
    table.rows.extend(of_entries(&statement.entries).rows);
    sum(
        &mut table,
        "closing",
        statement.until,
        statement.closing_minor.to_string(),
    );
    table
}
