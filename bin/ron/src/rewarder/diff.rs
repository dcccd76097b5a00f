//! `ron rewarder diff`: what differs between the payouts of two runs, as a table, CSV and a picture.

mod picture;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use ron_proto::rewarder::{Payout, RunTotals};
use ron_proto::{Account, Amount, ContentId};
use svc_rewarder::manifest::correction::{Before, Earlier, Row};
use svc_rewarder::manifest::reader::Reader;
use svc_rewarder::manifest::verify::{VerifyError, read_manifest};

use self::picture::Picture;
use super::correction::fetch;
use super::place::{PAYOUTS, Place};
use super::remote::{NamedRun, Remote, failed, within};

const REPLACED: &str = "the run was replaced while it was read; compare again";
/// Payouts read at a time from a directory.
const STEP: u64 = 8_192;

/// Compare the payouts of two runs: epochs or dry runs, in directories or in the service. Says who appeared, who left, and
/// whose payout changed most. A correction counts with what it corrects: compared is what was paid in all.
#[derive(Args)]
#[command(after_help = "Examples:\n  ron rewarder diff run-before run\n  \
                  ron rewarder diff 2026-10 2026-11 --csv changes.csv --svg changes.svg\n  \
                  ron rewarder diff 2026-11@3fa2 2026-11@90b1\n  \
                  ron rewarder diff 2026-10/usd 2026-11/usd")]
pub struct DiffArgs {
    /// Directory of a run, address of a bundle, id of an epoch of the service, or EPOCH@KEY for one of its dry runs: what is
    /// compared with. Of an epoch that pays several assets the first; others are DIR/asset-NAME and EPOCH/NAME.
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
    Dir(Box<Reader>, Place),
    /// What a run has paid in all.
    Paid(
        Before,
        #[expect(dead_code, reason = "kept for its files")] Place,
    ),
    /// All rows are in the page already.
    Memory,
    Service {
        remote: Remote,
        run: NamedRun,
        commitment: Option<ContentId>,
        corrects: bool,
    },
}

impl Rows {
    fn open(name: &str, data_dir: Option<&Path>) -> Result<Self, String> {
        let (source, totals) = if let Some(place) = Place::find(name, PAYOUTS)? {
            let reader = Reader::open(&place.open()).map_err(|e| format!("run {name}: {e}"))?;
            let totals = reader.manifest.totals;
            (Source::Dir(Box::new(reader), place), totals)
        } else {
            let remote = Remote::connect(data_dir)?;
            let found = remote.find(name)?;
            let run = remote.client.epoch(found.as_ref(), within());
            let run = run.map_err(failed)?;
            let state = run.state.as_str();
            let totals = found
                .totals(&run)
                .ok_or_else(|| format!("epoch {name} is {state} and has no payouts"))?;
            let source = Source::Service {
                remote,
                run: NamedRun {
                    asset: found.asset.clone(),
                    ..NamedRun::of(&run)
                },
                commitment: run.commitment,
                corrects: run.adjusts.is_some(),
            };
            (source, totals)
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
        if let Source::Paid(rows, _) = &mut self.source {
            let row = rows.next().map_err(|e| e.to_string())?;
            return row.map(payout).transpose();
        }
        // The owner of the residual is no recipient; its record follows theirs.
        let end = match self.source {
            Source::Memory => self.next,
            _ => self.totals.recipients,
        };
        if self.next >= end {
            return Ok(None);
        }
        let mut rows = match &self.source {
            Source::Paid(..) | Source::Memory => return Ok(None),
            Source::Dir(reader, _) => reader
                .range(self.next, end.min(self.next + STEP))
                .map_err(|e| e.to_string())?,
            Source::Service { remote, run, .. } => {
                let page = remote.client.payouts(run.as_ref(), self.next, within());
                page.map_err(failed)?.payouts
            }
        };
        if rows.is_empty() {
            return Err(REPLACED.to_owned());
        }
        rows.retain(|row| row.index < end);
        self.next += rows.len() as u64;
        self.page = rows.into_iter();
        Ok(self.page.next())
    }
}

impl Rows {
    /// Whether the run corrects another one.
    fn corrects(&self) -> bool {
        match &self.source {
            Source::Dir(reader, _) => reader.manifest.correction.is_some(),
            Source::Service { corrects, .. } => *corrects,
            Source::Paid(..) | Source::Memory => false,
        }
    }

    /// What the run has paid in all: a correction with what it corrects, and a residual with the payouts.
    fn in_all(mut self) -> Result<Self, String> {
        let (source, paid, recipients) = match self.source {
            Source::Dir(reader, place) => {
                let earlier = Earlier::open(&place.open()).map_err(|e| e.to_string())?;
                let manifest = &reader.manifest;
                let before = manifest.correction.map_or(0, |of| of.paid_minor.0);
                let paid = before.saturating_add(reader.total());
                let rows = earlier.paid().map_err(|e| e.to_string())?;
                (Source::Paid(rows, place), paid, manifest.totals.recipients)
            }
            Source::Service { remote, run, .. } => {
                let (source, paid) = if let Some(place) = fetch(&remote, &run)? {
                    let of = |e: VerifyError| format!("run {}: {e}", run.short());
                    let manifest = read_manifest(&place.open()).map_err(of)?;
                    let earlier = Earlier::open(&place.open()).map_err(of)?;
                    let before = manifest.correction.map_or(0, |of| of.paid_minor.0);
                    let paid = before.saturating_add(self.totals.payout_minor.0);
                    let rows = earlier.paid().map_err(|e| e.to_string())?;
                    (Source::Paid(rows, place), paid)
                } else {
                    let rows = paid_by(&remote, &run)?;
                    let paid = rows.iter().map(|row| row.amount_minor.0);
                    let paid = paid.fold(0_u128, u128::saturating_add);
                    self.page = rows.into_iter();
                    (Source::Memory, paid)
                };
                (source, paid, self.totals.recipients)
            }
            other => (other, self.totals.payout_minor.0, self.totals.recipients),
        };
        self.source = source;
        self.totals = RunTotals {
            pool_minor: Amount(paid),
            payout_minor: Amount(paid),
            residual_minor: Amount::ZERO,
            recipients,
        };
        Ok(self)
    }

    /// Fails if another run took the place of this one while it was read.
    fn are_whole(&self) -> Result<(), String> {
        let Source::Service {
            remote,
            run,
            commitment,
            ..
        } = &self.source
        else {
            return Ok(());
        };
        let now = remote.client.epoch(run.as_ref(), within());
        if now.map_err(failed)?.commitment == *commitment {
            Ok(())
        } else {
            Err(REPLACED.to_owned())
        }
    }
}

fn payout(row: Row) -> Result<Payout, String> {
    let account = String::from_utf8(row.account).map_err(|e| e.to_string())?;
    Ok(Payout {
        index: 0,
        account: account.parse().map_err(|e| format!("{e}"))?,
        amount_minor: Amount(row.paid),
    })
}

/// What a run of the service that corrects no other has paid. Held in memory, because its residual may have no place in the order.
fn paid_by(remote: &Remote, run: &NamedRun) -> Result<Vec<Payout>, String> {
    let mut paid: BTreeMap<Account, u128> = BTreeMap::new();
    let mut from = Some(0);
    while let Some(first) = from {
        let page = remote.client.payouts(run.as_ref(), first, within());
        let page = page.map_err(failed)?;
        for row in page.payouts {
            *paid.entry(row.account).or_default() += row.amount_minor.0;
        }
        from = page.next;
    }
    let row = |(account, minor)| Payout {
        index: 0,
        account,
        amount_minor: Amount(minor),
    };
    Ok(paid.into_iter().map(row).collect())
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
    if before.corrects() || after.corrects() {
        (before, after) = (before.in_all()?, after.in_all()?);
    }
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
    before.are_whole()?;
    after.are_whole()?;
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
