//! `ron rewarder diff`: what differs between the payouts of two runs, as a table, CSV and a picture.

mod picture;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use ron_proto::rewarder::{Payout, RunTotals};
use ron_proto::{Account, EpochId};
use svc_rewarder::manifest::reader::Reader;

use self::picture::Picture;
use super::place::{PAYOUTS, Place};
use super::remote::{Remote, failed, within};

/// Payouts read at a time from a directory.
const STEP: u64 = 8_192;

/// Compare the payouts of two runs: epochs or dry runs, in directories or in the service. Says who appeared, who left, and
/// whose payout changed most.
#[derive(Args)]
#[command(after_help = "Examples:\n  ron rewarder diff run-before run\n  \
                  ron rewarder diff 2026-10 2026-11 --csv changes.csv --svg changes.svg")]
pub struct DiffArgs {
    /// Directory of a run, address of a bundle, or id of an epoch of the service: what is compared with.
    before: String,
    /// The same, of what is compared.
    after: String,
    /// Accounts in the table, those with the largest changes.
    #[arg(long, default_value_t = 10)]
    top: usize,
    /// File to write every change to, as CSV.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// File to draw the changes to, as SVG.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Data directory of `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print the sums and the largest changes as JSON.
    #[arg(long)]
    json: bool,
}

/// The payouts of a run to its recipients, in the order of their accounts.
struct Rows {
    source: Source,
    totals: RunTotals,
    page: std::vec::IntoIter<Payout>,
    next: u64,
}

enum Source {
    /// The reader reads from the place, which must stay.
    Dir(
        Box<Reader>,
        #[expect(dead_code, reason = "kept for its files")] Place,
    ),
    Service(Remote, EpochId),
}

impl Rows {
    fn open(name: &str, data_dir: Option<&Path>) -> Result<Self, String> {
        let (source, totals) = if let Some(place) = Place::find(name, PAYOUTS)? {
            let reader = Reader::open(&place.open()).map_err(|e| format!("run {name}: {e}"))?;
            let totals = reader.manifest.totals;
            (Source::Dir(Box::new(reader), place), totals)
        } else {
            let epoch: EpochId = name.parse().map_err(|e| format!("{e}"))?;
            let remote = Remote::connect(data_dir)?;
            let run = remote.client.epoch(&epoch, within()).map_err(failed)?;
            let state = run.state.as_str();
            let totals = run
                .totals
                .ok_or_else(|| format!("epoch {epoch} is {state} and has no payouts"))?;
            (Source::Service(remote, epoch), totals)
        };
        Ok(Self {
            source,
            totals,
            page: Vec::new().into_iter(),
            next: 0,
        })
    }

    fn next(&mut self) -> Result<Option<Payout>, String> {
        if let Some(payout) = self.page.next() {
            return Ok(Some(payout));
        }
        // The owner of the residual is no recipient; its record follows theirs.
        let end = self.totals.recipients;
        if self.next >= end {
            return Ok(None);
        }
        let mut rows = match &self.source {
            Source::Dir(reader, _) => reader
                .range(self.next, end.min(self.next + STEP))
                .map_err(|e| e.to_string())?,
            Source::Service(remote, epoch) => {
                let page = remote.client.payouts(epoch, self.next, within());
                page.map_err(failed)?.payouts
            }
        };
        if rows.is_empty() {
            return Err("the run was replaced while it was read; compare again".to_owned());
        }
        rows.retain(|row| row.index < end);
        self.next += rows.len() as u64;
        self.page = rows.into_iter();
        Ok(self.page.next())
    }
}

/// One account whose payout differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Change {
    by: u128,
    account: Account,
    before: u128,
    after: u128,
}

impl Change {
    fn signed(&self) -> String {
        let sign = if self.after < self.before { "-" } else { "+" };
        format!("{sign}{}", self.by)
    }
}

/// Number and sum of changes of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    accounts: u64,
    minor: u128,
}

impl Sum {
    fn add(&mut self, minor: u128) {
        self.accounts += 1;
        // Each sum is part of the payouts of one run, which have 128 bits.
        self.minor += minor;
    }
}

#[derive(Debug, Default)]
struct Sums {
    appeared: Sum,
    left: Sum,
    raised: Sum,
    lowered: Sum,
    same: Sum,
}

impl Sums {
    fn named(&self) -> [(&'static str, Sum); 5] {
        [
            ("appeared", self.appeared),
            ("left", self.left),
            ("raised", self.raised),
            ("lowered", self.lowered),
            ("same", self.same),
        ]
    }
}

pub fn run(args: &DiffArgs) -> Result<(), String> {
    let data_dir = args.data_dir.as_deref();
    let mut before = Rows::open(&args.before, data_dir)?;
    let mut after = Rows::open(&args.after, data_dir)?;
    let cannot = |path: &Path, e: io::Error| format!("cannot write {}: {e}", path.display());
    let mut csv = match &args.csv {
        None => None,
        Some(path) => {
            let mut out = BufWriter::new(File::create(path).map_err(|e| cannot(path, e))?);
            let head = writeln!(out, "account,before_minor,after_minor,change_minor");
            head.map_err(|e| cannot(path, e))?;
            Some((path, out))
        }
    };
    let mut picture = Picture::default();
    let (mut sums, mut top) = (Sums::default(), BinaryHeap::new());
    compare(&mut before, &mut after, |account, was, is| {
        picture.add(was, is);
        let by = is.abs_diff(was);
        match (was, is) {
            (0, is) => sums.appeared.add(is),
            (was, 0) => sums.left.add(was),
            _ if by == 0 => sums.same.add(is),
            _ if is > was => sums.raised.add(by),
            _ => sums.lowered.add(by),
        }
        if by == 0 {
            return Ok(());
        }
        let change = Change {
            by,
            account,
            before: was,
            after: is,
        };
        if let Some((path, out)) = &mut csv {
            let row = writeln!(
                out,
                "{},{was},{is},{}",
                change.account,
                change.signed().trim_start_matches('+')
            );
            row.map_err(|e| cannot(path, e))?;
        }
        top.push(Reverse(change));
        if top.len() > args.top {
            top.pop();
        }
        Ok(())
    })?;
    if let Some((path, mut out)) = csv {
        out.flush().map_err(|e| cannot(path, e))?;
    }
    if let Some(path) = &args.svg {
        let drawn = picture.draw(&args.before, &args.after);
        std::fs::write(path, drawn).map_err(|e| cannot(path, e))?;
    }
    let mut top: Vec<Change> = top.into_iter().map(|Reverse(change)| change).collect();
    // The largest first; equal ones in the order of their accounts.
    top.sort_by(|a, b| (Reverse(a.by), &a.account).cmp(&(Reverse(b.by), &b.account)));
    print(args, (&before.totals, &after.totals), &sums, &top);
    Ok(())
}

/// Passes every account of both runs to `see`, in order, with its payouts; 0 for none.
fn compare(
    before: &mut Rows,
    after: &mut Rows,
    mut see: impl FnMut(Account, u128, u128) -> Result<(), String>,
) -> Result<(), String> {
    let (mut was, mut is) = (before.next()?, after.next()?);
    loop {
        let order = match (&was, &is) {
            (None, None) => return Ok(()),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(was), Some(is)) => was.account.as_str().cmp(is.account.as_str()),
        };
        let old = if order.is_le() { was.take() } else { None };
        let new = if order.is_ge() { is.take() } else { None };
        let amount = |of: &Option<Payout>| of.as_ref().map_or(0, |payout| payout.amount_minor.0);
        let (old_minor, new_minor) = (amount(&old), amount(&new));
        if let Some(payout) = old.or(new) {
            see(payout.account, old_minor, new_minor)?;
        }
        if was.is_none() && order.is_le() {
            was = before.next()?;
        }
        if is.is_none() && order.is_ge() {
            is = after.next()?;
        }
    }
}

fn print(args: &DiffArgs, (before, after): (&RunTotals, &RunTotals), sums: &Sums, top: &[Change]) {
    if args.json {
        let sums: serde_json::Map<_, _> = sums
            .named()
            .into_iter()
            .map(|(name, sum)| {
                let sum =
                    serde_json::json!({"accounts": sum.accounts, "minor": sum.minor.to_string()});
                (name.to_owned(), sum)
            })
            .collect();
        let top: Vec<_> = top
            .iter()
            .map(|change| {
                serde_json::json!({"account": change.account, "before_minor": change.before.to_string(),
                    "after_minor": change.after.to_string()})
            })
            .collect();
        let doc =
            serde_json::json!({"before": before, "after": after, "changes": sums, "largest": top});
        println!("{doc}");
        return;
    }
    println!("{:<12} {:>24} {:>24}", "", args.before, args.after);
    println!(
        "{:<12} {:>24} {:>24}",
        "recipients", before.recipients, after.recipients
    );
    println!(
        "{:<12} {:>24} {:>24}",
        "paid",
        before.payout_minor.to_string(),
        after.payout_minor.to_string()
    );
    for (name, sum) in sums.named() {
        println!("{name:<12} {:>24} accounts {:>15}", sum.minor, sum.accounts);
    }
    if !top.is_empty() {
        println!();
    }
    for change in top {
        println!(
            "{:<40} {:>20} -> {:>20} {:>21}",
            change.account.as_str(),
            change.before,
            change.after,
            change.signed()
        );
    }
}
