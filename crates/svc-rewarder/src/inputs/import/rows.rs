//! The rows of an import that were read so far, added up.

use std::collections::BTreeMap;

use rayon::prelude::*;
use ron_proto::ledger::ESCROW_PREFIX;
use ron_proto::rewarder::{ImportKind, METRICS_MAX, Metric, UsagePeriod};
use ron_proto::values::{Account, Amount};

use super::pieces::in_order;
use super::spill::{Merged, Runs};
use super::table::Table;
use super::{Cancel, ImportError, Spill, at};
use crate::inputs::snapshot::{Records, SealError, SealWriter, Sealed};
use crate::inputs::source::Target;

const TWICE: &str =
    "this account already has a total for this metric; import events with kind=events";

/// Rows between two checks of [`Cancel`].
const CHECK_EVERY: u64 = 1 << 14;

/// Rows that one thread looks up at a time.
const LOOKUPS: usize = if cfg!(test) { 2 } else { 512 };

/// Accounts whose records one thread encodes at a time.
const RECORDS: usize = if cfg!(test) { 2 } else { 8_192 };

/// Where a row came from: the number of its source in the upper 16 bits, its line in the others.
/// Zero means no row.
type Place = u64;

/// Parsed rows that are not added up yet.
#[derive(Default)]
pub(super) struct Batch {
    /// Accounts and metrics, one after the other.
    text: String,
    rows: Vec<Waiting>,
}

struct Waiting {
    line: u64,
    /// Start of the account, its end (where the metric starts), and the end of the metric.
    bounds: [usize; 3],
    amount: u128,
}

impl Batch {
    /// Rows in a full batch: enough that two threads seldom wait for each other, few enough that
    /// their text stays in a cache. Few in unit tests, so that most of them cross a batch boundary.
    pub(super) const FULL: usize = if cfg!(test) { 3 } else { 16_384 };

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.rows.clear();
    }

    pub(super) fn push(
        &mut self,
        line: u64,
        account: &str,
        metric: &str,
        amount: &str,
    ) -> Result<(), ImportError> {
        let amount = parse_amount(line, amount)?;
        let from = self.text.len();
        self.text.push_str(account);
        let middle = self.text.len();
        self.text.push_str(metric);
        self.rows.push(Waiting {
            line,
            bounds: [from, middle, self.text.len()],
            amount,
        });
        Ok(())
    }

    fn account(&self, row: &Waiting) -> &str {
        &self.text[row.bounds[0]..row.bounds[1]]
    }

    fn metric(&self, row: &Waiting) -> &str {
        &self.text[row.bounds[1]..row.bounds[2]]
    }
}

fn parse_amount(line: u64, amount: &str) -> Result<u128, ImportError> {
    let parsed = amount.parse::<Amount>();
    Ok(parsed.map_err(|error| at(line, format!("{error}")))?.0)
}

/// What is known of all rows, beside the table of those in memory.
pub(super) struct Rows {
    kind: ImportKind,
    source: u64,
    table: Table,
    longest: usize,
    /// Metrics by name; the numbers are those of the table.
    metrics: BTreeMap<Metric, usize>,
    /// By the metric's number: sum over all rows, spilled or not.
    sums: Vec<u128>,
    spill: Option<(Spill, Runs)>,
    cancel: Option<Cancel>,
    /// Rows added so far.
    added: u64,
    /// How often the table was spilled. Row numbers from before a spill are no longer valid.
    spills: u64,
    /// Scratch space for the lookups of a batch: hash and row of each account.
    known: Vec<(u64, Option<u32>)>,
    /// Maximum of `added`.
    rows_max: u64,
}

impl Rows {
    pub(super) fn new(kind: ImportKind, spill: Option<Spill>, cancel: Option<Cancel>) -> Self {
        Self {
            kind,
            cancel,
            added: 0,
            spills: 0,
            known: Vec::new(),
            rows_max: u64::MAX,
            source: 0,
            table: Table::default(),
            longest: 0,
            metrics: BTreeMap::new(),
            sums: Vec::new(),
            spill: spill.map(|spill| {
                let runs = Runs::new(spill.dir.clone());
                (spill, runs)
            }),
        }
    }

    pub(super) fn up_to(mut self, rows_max: u64) -> Self {
        self.rows_max = rows_max;
        self
    }

    /// Refuses a file by the number of rows it claims, before the first one is decoded.
    #[cfg(feature = "parquet")]
    pub(super) fn expect(&self, rows: u64) -> Result<(), ImportError> {
        if self.added.saturating_add(rows) > self.rows_max {
            return Err(self.too_many());
        }
        Ok(())
    }

    const fn too_many(&self) -> ImportError {
        ImportError::TooMany {
            rows_max: self.rows_max,
        }
    }

    /// Lines counted from here on belong to source `number`.
    pub(super) fn next_source(&mut self, number: usize) {
        self.source = (number as u64) << 48;
    }

    pub(super) fn add(
        &mut self,
        line: u64,
        account: &str,
        metric: &str,
        amount: &str,
    ) -> Result<(), ImportError> {
        self.add_amount(line, account, metric, parse_amount(line, amount)?)
    }

    /// Adds all rows of a batch. All lookups run before the first addition: they wait for memory,
    /// which is most of the work, and several can wait at once.
    pub(super) fn add_batch(&mut self, batch: &Batch) -> Result<(), ImportError> {
        let mut known = std::mem::take(&mut self.known);
        let table = &self.table;
        known.resize(batch.len(), (0, None));
        let some = known.par_chunks_mut(LOOKUPS);
        some.zip(batch.rows.par_chunks(LOOKUPS))
            .for_each(|(known, rows)| {
                for (known, row) in known.iter_mut().zip(rows) {
                    known.0 = table.hash(batch.account(row).as_bytes());
                }
                // After all hashes, so that the processor waits for several places of the memory at once.
                for (known, row) in known.iter_mut().zip(rows) {
                    known.1 = table.find(known.0, batch.account(row).as_bytes());
                }
            });
        let spills = self.spills;
        for (row, (hash, found)) in batch.rows.iter().zip(&known) {
            self.count_row()?;
            // A spill during this batch has invalidated the row numbers looked up before it.
            let at = match found.filter(|_| self.spills == spills) {
                Some(at) => at,
                None => self.row(row.line, batch.account(row), *hash)?,
            };
            self.add_to(row.line, at, batch.metric(row), row.amount)?;
        }
        self.known = known;
        Ok(())
    }

    /// The same for an amount that needs no parsing.
    pub(super) fn add_amount(
        &mut self,
        line: u64,
        account: &str,
        metric: &str,
        amount: u128,
    ) -> Result<(), ImportError> {
        self.count_row()?;
        let hash = self.table.hash(account.as_bytes());
        let row = self.row(line, account, hash)?;
        self.add_to(line, row, metric, amount)
    }

    fn count_row(&mut self) -> Result<(), ImportError> {
        self.added += 1;
        if self.added > self.rows_max {
            return Err(self.too_many());
        }
        if self.added.is_multiple_of(CHECK_EVERY) && self.cancel.as_ref().is_some_and(|c| c.0()) {
            return Err(ImportError::Stopped);
        }
        Ok(())
    }

    fn add_to(
        &mut self,
        line: u64,
        row: u32,
        metric: &str,
        amount: u128,
    ) -> Result<(), ImportError> {
        let number = self.metric(line, metric)?;
        // The sum comes before the repetition, which is not known of rows that were spilled: a line that
        // breaks both rules is refused for the same one with any memory.
        let sum = self.sums[number].checked_add(amount);
        self.sums[number] = sum.ok_or_else(|| at(line, "the sum of this metric passes 2^128-1"))?;
        let slot = self.table.slot(row, number);
        let first = slot.place == 0;
        if !first && self.kind == ImportKind::Totals {
            return Err(at(line, TWICE));
        }
        slot.amount += amount;
        if first {
            slot.place = self.source | line;
            self.spill_if_full()?;
        }
        Ok(())
    }

    fn metric(&mut self, line: u64, metric: &str) -> Result<usize, ImportError> {
        if let Some(number) = self.metrics.get(metric) {
            return Ok(*number);
        }
        let name: Metric = metric
            .parse()
            .map_err(|error: ron_proto::values::ValueError| {
                at(line, format!("not a valid metric: {}", error.why))
            })?;
        let number = self.sums.len();
        if number == METRICS_MAX {
            return Err(at(line, format!("more than {METRICS_MAX} metrics")));
        }
        self.metrics.insert(name, number);
        self.sums.push(0);
        self.table.add_metric();
        Ok(number)
    }

    fn row(&mut self, line: u64, account: &str, hash: u64) -> Result<u32, ImportError> {
        if let Some(row) = self.table.find(hash, account.as_bytes()) {
            return Ok(row);
        }
        Account::check(account).map_err(|error| at(line, format!("{error}")))?;
        if account.starts_with(ESCROW_PREFIX) {
            return Err(at(
                line,
                "accounts under escrow: belong to the ledger and cannot be paid",
            ));
        }
        self.longest = self.longest.max(account.len());
        Ok(self.table.insert(hash, account.as_bytes()))
    }

    fn spill_if_full(&mut self) -> Result<(), ImportError> {
        match &self.spill {
            Some((limits, _)) if self.table.bytes() > limits.memory => self.spill_all(),
            _ => Ok(()),
        }
    }

    /// Moves the table from memory to a sorted run on disk.
    fn spill_all(&mut self) -> Result<(), ImportError> {
        let Some((_, runs)) = &mut self.spill else {
            return Ok(());
        };
        let written = runs.write(&self.table, self.longest, self.sums.len());
        written.map_err(|error| ImportError::Scratch(error.to_string()))?;
        self.spills += 1;
        self.table.clear();
        Ok(())
    }

    /// The fault to report when source `number` was refused with `fault`. An earlier fault may
    /// exist: a total given twice, in rows that were spilled and not compared yet.
    pub(super) fn first_fault(mut self, number: usize, fault: ImportError) -> (usize, ImportError) {
        let ImportError::Line { line, .. } = &fault else {
            return (number, fault);
        };
        let place = self.source | line;
        if self.kind == ImportKind::Events || self.spill_all().is_err() {
            return (number, fault);
        }
        let twice = self
            .spill
            .take()
            .and_then(|(_, runs)| runs.first_twice(self.sums.len()));
        // Several rows may stand on one line, which ends with a carriage return alone for some of them. Those
        // that were added came before the refused one.
        match twice.filter(|twice| *twice <= place) {
            Some(twice) => twice_at(twice),
            None => (number, fault),
        }
    }

    /// Writes the snapshot. An error names its source where it has one.
    pub(super) fn seal(
        mut self,
        target: Target,
        period: Option<UsagePeriod>,
    ) -> Result<Sealed, (Option<usize>, ImportError)> {
        let spilled = self
            .spill
            .as_ref()
            .is_some_and(|(_, runs)| !runs.is_empty());
        if spilled {
            self.spill_all().map_err(|error| (None, error))?;
        }
        let names: Vec<Metric> = self.metrics.keys().cloned().collect();
        let by_name: Vec<usize> = self.metrics.values().copied().collect();
        let seal_fault = |error| (None, ImportError::Seal(error));
        let mut writer =
            SealWriter::new(target, period, names, self.longest).map_err(seal_fault)?;
        let empty = || Records::new(self.longest, by_name.len());
        if let Some((_, runs)) = self.spill.take().filter(|_| spilled) {
            self.table = Table::default();
            seal_runs(runs, self.kind, &by_name, empty, &mut writer)?;
        } else {
            let table = &self.table;
            let order = table.order();
            let parts: Vec<&[u32]> = order.chunks(RECORDS).collect();
            let encode = |rows: &&[u32]| {
                let mut records = empty();
                for row in *rows {
                    let amounts = by_name.iter().map(|metric| table.amount(*row, *metric));
                    records.push(table.name(*row), amounts)?;
                }
                Ok(records)
            };
            in_order(&parts, encode, |records| writer.append(&records)).map_err(seal_fault)?;
        }
        writer.finish().map_err(seal_fault)
    }
}

fn twice_at(place: Place) -> (usize, ImportError) {
    let (number, line) = (place >> 48, place & ((1 << 48) - 1));
    (number as usize, at(line, TWICE))
}

/// Why a merge ended.
enum Unmerged {
    Scratch(std::io::Error),
    Seal(SealError),
}

impl From<std::io::Error> for Unmerged {
    fn from(error: std::io::Error) -> Self {
        Self::Scratch(error)
    }
}

impl From<Unmerged> for ImportError {
    fn from(error: Unmerged) -> Self {
        match error {
            Unmerged::Scratch(error) => Self::Scratch(error.to_string()),
            Unmerged::Seal(error) => Self::Seal(error),
        }
    }
}

fn seal_runs(
    runs: Runs,
    kind: ImportKind,
    by_name: &[usize],
    empty: impl Fn() -> Records + Sync,
    writer: &mut SealWriter,
) -> Result<(), (Option<usize>, ImportError)> {
    let see = |records: &mut Records, account: &[u8], cells: &Merged| {
        let amounts = by_name.iter().map(|metric| cells.amount(*metric));
        records.push(account, amounts).map_err(Unmerged::Seal)
    };
    let merged = runs.merge(by_name.len(), empty, see, |records| {
        writer.append(&records).map_err(Unmerged::Seal)
    });
    let twice = merged.map_err(|error| (None, error.into()))?;
    match twice.filter(|_| kind == ImportKind::Totals) {
        Some(place) => {
            let (number, error) = twice_at(place);
            Err((Some(number), error))
        }
        None => Ok(()),
    }
}
