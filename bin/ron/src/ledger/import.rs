//! `ron ledger import`: accounts, opening balances and history of another system, from CSV or lines of
//! JSON.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use indicatif::ProgressBar;
use ron_files::{Dir, OsDisk};
use ron_kernel::{Clock as _, OsRandom, SystemClock};
use ron_ledger::core::{Body, Debit, Entry, Header, Op};
use ron_ledger::engine::{Engine, EngineOptions};
use ron_ledger::import::{Imported, import};
use ron_ledger::salts;
use ron_proto::ledger::{
    AccountClass, AccountTerms, AssetLimits, AssetTerms, AssetTitle, EntryKey, LEDGER_PRINCIPAL,
    Memo, Metadata, PrincipalName, Reference, RequestKey, Sides,
};
use ron_proto::{Account, Amount, Asset, Tenant, Timestamp};
use ron_service::DataDir;
use ron_tlog::note::VerifierKey;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Lines that are written with one flush.
const CHUNK: usize = 1_000;

#[derive(Args)]
pub struct ImportArgs {
    /// File with comma-separated values under a heading (.csv), or with a JSON object on each line.
    /// Members: id, op (asset, account, issue, transfer, burn or hold), from, to, account, asset,
    /// amount_minor, expires_at, effective_at, reference, memo, metadata (columns metadata.NAME),
    /// class, closed, frozen, credit_limit_minor, max_balance_minor, scale, title.
    file: PathBuf,
    /// Name that the entries are made for; ids are unique for it.
    #[arg(long, default_value = "import")]
    principal: PrincipalName,
    /// Tenant that the entries are made for.
    #[arg(long, default_value = "default")]
    tenant: Tenant,
    /// Read the file and check its lines, and change nothing.
    #[arg(long)]
    check: bool,
}

/// What a line may say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: EntryKey,
    op: Operation,
    from: Option<Account>,
    to: Option<Account>,
    account: Option<Account>,
    asset: Option<Asset>,
    amount_minor: Option<Amount>,
    effective_at: Option<Timestamp>,
    reference: Option<Reference>,
    memo: Option<Memo>,
    metadata: Option<Metadata>,
    expires_at: Option<Timestamp>,
    class: Option<AccountClass>,
    closed: Option<bool>,
    frozen: Option<Sides>,
    credit_limit_minor: Option<Amount>,
    max_balance_minor: Option<Amount>,
    scale: Option<u8>,
    title: Option<AssetTitle>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Operation {
    Asset,
    Account,
    Issue,
    Transfer,
    Burn,
    Hold,
}

fn need<T>(value: Option<T>, name: &str) -> Result<T, String> {
    value.ok_or_else(|| format!("it needs {name}"))
}

/// The limits of an account in one asset, which are set together.
fn limits(
    asset: Option<Asset>,
    credit_limit: Option<Amount>,
    max_balance_minor: Option<Amount>,
) -> Result<Option<AssetLimits>, String> {
    let Some(asset) = asset else {
        if credit_limit.is_some() || max_balance_minor.is_some() {
            return Err("its limits need asset".to_owned());
        }
        return Ok(None);
    };
    Ok(Some(AssetLimits {
        asset,
        credit_limit_minor: credit_limit.unwrap_or_default(),
        max_balance_minor,
    }))
}

impl Line {
    fn entry(self, tenant: Tenant, principal: PrincipalName) -> Result<Entry, String> {
        let owned = RequestKey {
            tenant,
            principal,
            key: self.id,
        };
        let header = Header {
            memo: self.memo,
            metadata: self.metadata,
            reference: self.reference,
            effective_at: self.effective_at,
            ..Header::keyed(owned)
        };
        let amount = || need(self.amount_minor, "amount_minor");
        let debit = |from: Option<Account>, asset: Option<Asset>| {
            Ok::<_, String>(Debit {
                from: need(from, "from")?,
                asset: need(asset, "asset")?,
                amount: amount()?,
                up_to: None,
                nonce: None,
            })
        };
        let body = match self.op {
            Operation::Asset => Body::Asset {
                asset: need(self.asset, "asset")?,
                terms: AssetTerms {
                    scale: need(self.scale, "scale")?,
                    title: self.title,
                },
            },
            Operation::Account => Body::Account {
                account: need(self.account, "account")?,
                terms: AccountTerms {
                    closed: self.closed,
                    frozen: self.frozen,
                    require_nonce: None,
                    class: self.class,
                    limits: limits(self.asset, self.credit_limit_minor, self.max_balance_minor)?,
                },
            },
            Operation::Issue => Body::Issue {
                to: need(self.to, "to")?,
                amount: amount()?,
                asset: need(self.asset, "asset")?,
            },
            Operation::Transfer => Body::Transfer {
                debit: debit(self.from, self.asset)?,
                to: need(self.to, "to")?,
            },
            Operation::Burn => Body::Burn {
                debit: debit(self.from, self.asset)?,
            },
            Operation::Hold => Body::Hold {
                debit: debit(self.from, self.asset)?,
                expires_at: need(self.expires_at, "expires_at")?,
            },
        };
        Ok(Entry::new(header, body))
    }
}

/// Calls `each` with the number and the entry of every line.
fn lines(
    args: &ImportArgs,
    each: &mut dyn FnMut(u64, Op) -> Result<(), String>,
) -> Result<(), String> {
    let open = || File::open(&args.file).map_err(|e| format!("{}: {e}", args.file.display()));
    let at = |line: u64, why: String| format!("{}, line {line}: {why}", args.file.display());
    let mut take = |number: u64, value: Value| {
        let bad = |why| at(number, why);
        let line: Line = serde_json::from_value(value).map_err(|e| bad(e.to_string()))?;
        let entry = line
            .entry(args.tenant.clone(), args.principal.clone())
            .map_err(bad)?;
        let op = Op::new(entry, &salts::one(&OsRandom));
        each(number, op.map_err(|e| bad(e.to_string()))?)
    };
    if args.file.extension().is_some_and(|ext| ext == "csv") {
        let mut csv = csv::Reader::from_reader(open()?);
        let headings = csv.headers().map_err(|e| e.to_string())?.clone();
        for record in csv.records() {
            let record = record.map_err(|e| format!("{}: {e}", args.file.display()))?;
            let number = record.position().map_or(0, csv::Position::line);
            let cells = headings.iter().zip(record.iter());
            take(number, Value::Object(members(cells)))?;
        }
        return Ok(());
    }
    for (number, line) in (1..).zip(BufReader::new(open()?).lines()) {
        let line = line.map_err(|e| at(number, e.to_string()))?;
        if !line.trim().is_empty() {
            let value = serde_json::from_str(&line).map_err(|e| at(number, e.to_string()))?;
            take(number, value)?;
        }
    }
    Ok(())
}

/// The cells of a line as JSON has them. Columns that begin with `metadata.` are the members of its metadata.
fn members<'a>(cells: impl Iterator<Item = (&'a str, &'a str)>) -> Map<String, Value> {
    let (mut line, mut metadata) = (Map::new(), Map::new());
    for (name, cell) in cells.filter(|(_, cell)| !cell.is_empty()) {
        if let Some(member) = name.strip_prefix("metadata.") {
            metadata.insert(member.to_owned(), cell.into());
            continue;
        }
        let value = match name {
            "scale" => cell.parse::<u8>().ok().map(Value::from),
            "closed" => cell.parse::<bool>().ok().map(Value::from),
            _ => None,
        };
        line.insert(name.to_owned(), value.unwrap_or_else(|| cell.into()));
    }
    if !metadata.is_empty() {
        line.insert("metadata".to_owned(), metadata.into());
    }
    line
}

/// Imports into the ledger of this data directory, whose log has this key.
pub fn run(args: &ImportArgs, data: &Path, vkey: &VerifierKey) -> Result<(), String> {
    if args.principal.as_str() == LEDGER_PRINCIPAL {
        return Err(format!("{LEDGER_PRINCIPAL} is the ledger's own name"));
    }
    // All of the file first, so that a slip at its end is found before anything is written.
    let mut count = 0;
    lines(args, &mut |_, _| {
        count += 1;
        Ok(())
    })?;
    if args.check {
        println!("{count} lines can be read");
        return Ok(());
    }
    let _lock = DataDir::at(Dir::os(data)).map_err(|e| e.to_string())?;
    let mut options = EngineOptions::new(vkey.name());
    options.verifier = Some(vkey.clone());
    let now = || Timestamp(SystemClock.unix_ms());
    let mut engine = Engine::open(Arc::new(OsDisk), data, options, now())
        .map_err(|e| format!("{}: {e}", data.display()))?;
    let bar = ProgressBar::new(count);
    let (mut sum, mut pending) = (Imported::default(), Vec::with_capacity(CHUNK));
    let mut write = |pending: &mut Vec<(u64, Op)>| {
        let ops: Vec<Op> = pending.iter().map(|(_, op)| op.clone()).collect();
        let imported = import(&mut engine, now(), &ops).map_err(|e| {
            let line = e.index().map(|index| pending[index].0);
            let line = line.map_or(String::new(), |line| format!(", line {line}"));
            format!("{}{line}: {e}", args.file.display())
        })?;
        sum.new += imported.new;
        sum.known += imported.known;
        bar.inc(pending.len() as u64);
        pending.clear();
        Ok::<(), String>(())
    };
    let read = lines(args, &mut |number, op| {
        pending.push((number, op));
        if pending.len() < CHUNK {
            return Ok(());
        }
        write(&mut pending)
    });
    let written = read.and_then(|()| write(&mut pending));
    bar.finish_and_clear();
    println!("imported: {} entries; {} were there", sum.new, sum.known);
    written.map_err(|why| {
        format!(
            "{why}\nhint: correct the file and run the command again; it skips what is imported"
        )
    })
}
