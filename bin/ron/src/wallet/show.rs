//! Operations, transactions and entries as `ron wallet` prints them.

use ron_proto::Account;
use ron_proto::ledger::{Metadata, PrivateFacts, Receipt};
use ron_proto::wallet::{HistoryEntry, ItemOutcome, Operation, Transaction};

use crate::table::{Column, Form, Out, Table, column, csv_lines, sparse};

/// A value as the cell of a table.
pub fn cell<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// What became of an operation, in a few words.
pub fn describe(operation: &Operation) -> String {
    match operation {
        Operation::Done { receipt, .. } => format!("done, {}", receipt.txid),
        Operation::Refused { code } => format!("refused: {}", code.meaning()),
        Operation::Open {} => {
            "open: send it again with its key, or run ron wallet abandon".to_owned()
        }
        Operation::Batch { results } => {
            format!("batch of {}, {} refused", results.len(), refused(results))
        }
    }
}

/// Number of refused items.
pub fn refused(results: &[ItemOutcome]) -> usize {
    let refused = |r: &&ItemOutcome| matches!(r, ItemOutcome::Refused { .. });
    results.iter().filter(refused).count()
}

/// The facts of a receipt, for people.
pub fn receipt_fields(r: &Receipt) -> Vec<(&'static str, String)> {
    let mut fields = vec![("txid", r.txid.to_string()), ("op", r.op.to_string())];
    let parts = [
        ("from", r.from.as_ref().map(ToString::to_string)),
        ("to", r.to.as_ref().map(ToString::to_string)),
        ("asset", r.asset.as_ref().map(ToString::to_string)),
        ("amount", r.amount_minor.map(|a| a.to_string())),
        ("hold", r.hold.map(|id| id.to_string())),
        ("batch", r.batch.map(|id| id.to_string())),
        ("reverses", r.reverses.map(|id| id.to_string())),
        ("entry", Some(format!("{}, {}", r.seq, r.ts))),
    ];
    fields.extend(parts.into_iter().filter_map(|(n, v)| v.map(|v| (n, v))));
    fields
}

/// The private side of a transaction, for people.
pub fn private_fields(p: &PrivateFacts) -> Vec<(&'static str, String)> {
    let metadata = p.metadata.iter().flat_map(Metadata::iter);
    let metadata = metadata.map(|(name, value)| ("metadata", format!("{name}={value}")));
    let parts = [
        ("key", p.idem.clone()),
        ("nonce", p.nonce.map(|n| n.to_string())),
        ("memo", p.memo.as_ref().map(ToString::to_string)),
        ("reference", p.reference.as_ref().map(ToString::to_string)),
        ("effective", p.effective_at.map(|at| at.to_string())),
    ];
    let parts = parts.into_iter().filter_map(|(n, v)| v.map(|v| (n, v)));
    parts.chain(metadata).collect()
}

/// The facts of a receipt on one line.
pub fn one_line(r: &Receipt) -> String {
    let facts = receipt_fields(r).into_iter().filter(|(n, _)| *n != "entry");
    let facts: Vec<String> = facts
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    facts.join(", ")
}

pub fn transaction(out: Out, t: &Transaction) -> Result<(), String> {
    let none = PrivateFacts::default();
    let mut fields = receipt_fields(&t.receipt);
    fields.extend(private_fields(t.private.as_ref().unwrap_or(&none)));
    if let Some(now) = t.now.as_ref().filter(|now| !now.reversed_minor.is_zero()) {
        fields.push(("reversed", now.reversed_minor.to_string()));
        fields.extend(now.reversals.iter().map(|by| ("by", by.to_string())));
    }
    out.record(t, &fields, &record(t))
}

/// A transaction in columns.
fn record(t: &Transaction) -> [(&'static str, String); 18] {
    let (r, none) = (&t.receipt, PrivateFacts::default());
    let p = t.private.as_ref().unwrap_or(&none);
    let metadata = p.metadata.as_ref().map(serde_json::to_string);
    [
        ("txid", r.txid.to_string()),
        ("op", r.op.to_string()),
        ("from", cell(r.from.as_ref())),
        ("to", cell(r.to.as_ref())),
        ("asset", cell(r.asset.as_ref())),
        ("amount_minor", cell(r.amount_minor)),
        ("hold", cell(r.hold)),
        ("batch", cell(r.batch)),
        ("reverses", cell(r.reverses)),
        ("seq", r.seq.to_string()),
        ("time", r.ts.to_string()),
        ("key", cell(p.idem.as_ref())),
        ("nonce", cell(p.nonce)),
        ("reference", cell(p.reference.as_ref())),
        ("memo", cell(p.memo.as_ref())),
        ("metadata", cell(metadata.and_then(Result::ok))),
        ("effective_at", cell(p.effective_at)),
        (
            "reversed_minor",
            cell(t.now.as_ref().map(|now| now.reversed_minor)),
        ),
    ]
}

pub fn operation(out: Out, operation: Operation) -> Result<(), String> {
    match operation {
        Operation::Done { receipt, private } => {
            let done = Transaction {
                receipt,
                private: Some(private),
                now: None,
            };
            transaction(out, &done)
        }
        Operation::Batch { ref results } => {
            out.note(&format!("outcome    {}", describe(&operation)));
            out.table(&operation, &of_items(results))
        }
        other => out.fields(&other, &[("outcome", describe(&other))]),
    }
}

/// The outcomes of a batch's items.
pub fn of_items(results: &[ItemOutcome]) -> Table {
    let mut table = Table::of(&[
        column("item"),
        column("op"),
        column("outcome"),
        column("amount"),
        column("asset"),
        column("txid"),
        column("from"),
        column("to"),
        sparse("hold"),
        sparse("reverses"),
    ]);
    for (i, result) in results.iter().enumerate() {
        let none = String::new;
        match result {
            ItemOutcome::Done { receipt: r, .. } => table.row([
                i.to_string(),
                r.op.to_string(),
                "done".to_owned(),
                cell(r.amount_minor),
                cell(r.asset.as_ref()),
                r.txid.to_string(),
                cell(r.from.as_ref()),
                cell(r.to.as_ref()),
                cell(r.hold),
                cell(r.reverses),
            ]),
            ItemOutcome::Refused { code } => table.row([
                i.to_string(),
                none(),
                code.as_str().to_owned(),
                none(),
                none(),
                none(),
                none(),
                none(),
                none(),
                none(),
            ]),
        }
    }
    table
}

/// The columns of entries as text; sums of a statement have no more than these.
pub const ENTRY_COLUMNS: [Column; 16] = [
    column("seq"),
    column("time"),
    column("op"),
    column("outcome"),
    column("amount"),
    column("asset"),
    column("balance"),
    column("from -> to"),
    column("txid"),
    sparse("reference"),
    sparse("hold"),
    sparse("batch"),
    sparse("reverses"),
    sparse("memo"),
    sparse("metadata"),
    sparse("effective"),
];

/// The cells of an entry as text.
pub fn entry_cells(e: &HistoryEntry) -> [String; ENTRY_COLUMNS.len()] {
    let account = |account: &Option<Account>| match account {
        Some(account) => account.to_string(),
        None => "-".to_owned(),
    };
    let members = e.metadata.iter().flat_map(Metadata::iter);
    let members: Vec<String> = members.map(|(n, v)| format!("{n}={v}")).collect();
    [
        e.seq.to_string(),
        e.ts.to_string(),
        e.op.to_string(),
        e.refused.map_or("done", |code| code.as_str()).to_owned(),
        cell(e.amount_minor),
        cell(e.asset.as_ref()),
        cell(e.balance_minor),
        format!("{} -> {}", account(&e.from), account(&e.to)),
        cell(e.txid),
        cell(e.reference.as_ref()),
        cell(e.hold),
        cell(e.batch),
        cell(e.reverses),
        cell(e.memo.as_ref()),
        members.join(" "),
        cell(e.effective_at),
    ]
}

/// The headings of entries as comma-separated values: the members of the API, and the change of the balance.
const ENTRY_CSV: [&str; 18] = [
    "seq",
    "time",
    "op",
    "outcome",
    "txid",
    "from",
    "to",
    "asset",
    "amount_minor",
    "change_minor",
    "balance_minor",
    "hold",
    "batch",
    "reverses",
    "reference",
    "memo",
    "metadata",
    "effective_at",
];

fn entry_csv(e: &HistoryEntry, account: Option<&Account>) -> [String; ENTRY_CSV.len()] {
    let metadata = e.metadata.as_ref().map(serde_json::to_string);
    [
        e.seq.to_string(),
        e.ts.to_string(),
        e.op.to_string(),
        e.refused.map_or("done", |code| code.as_str()).to_owned(),
        cell(e.txid),
        cell(e.from.as_ref()),
        cell(e.to.as_ref()),
        cell(e.asset.as_ref()),
        cell(e.amount_minor),
        cell(account.map(|account| e.change(account))),
        cell(e.balance_minor),
        cell(e.hold),
        cell(e.batch),
        cell(e.reverses),
        cell(e.reference.as_ref()),
        cell(e.memo.as_ref()),
        cell(metadata.and_then(Result::ok)),
        cell(e.effective_at),
    ]
}

/// Entries as text and as comma-separated values; `account` is the one whose balance they change.
pub fn of_entries(entries: &[HistoryEntry], account: Option<&Account>) -> (Table, Table) {
    let (mut text, mut csv) = (Table::of(&ENTRY_COLUMNS), Table::new(&ENTRY_CSV));
    for e in entries {
        text.row(entry_cells(e));
        csv.row(entry_csv(e, account));
    }
    (text, csv)
}

/// Prints entries as they come: the headings of comma-separated values come first, and the text has none.
pub struct Stream {
    out: Out,
    account: Account,
    begun: bool,
}

impl Stream {
    pub const fn new(out: Out, account: Account) -> Self {
        Self {
            out,
            account,
            begun: false,
        }
    }

    pub fn entry(&mut self, entry: &HistoryEntry) -> Result<(), String> {
        let (text, csv) = of_entries(std::slice::from_ref(entry), Some(&self.account));
        match self.out.form {
            Form::Json => println!(
                "{}",
                serde_json::to_string(entry).map_err(|e| e.to_string())?
            ),
            Form::Text => println!("{}", text.lines()[1]),
            Form::Csv if self.begun => {
                print!("{}", csv_lines(csv.rows.iter().map(Vec::as_slice))?);
            }
            Form::Csv => print!("{}", csv.csv()?),
        }
        self.begun = true;
        Ok(())
    }
}
