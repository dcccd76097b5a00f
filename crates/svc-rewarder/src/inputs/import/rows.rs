//! The growing table of an import: the rows read so far, added up.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rayon::prelude::*;
use ron_proto::ledger::ESCROW_PREFIX;
use ron_proto::rewarder::{ImportKind, METRICS_MAX, Metric, UsagePeriod};
use ron_proto::values::{Account, Amount};

use super::spill::{Cell, Merged, Runs};
use super::{Cancel, ImportError, Spill, at};
use crate::inputs::snapshot::{SealWriter, Sealed};
use crate::inputs::source::Target;

const TWICE: &str =
    "this account already has a total for this metric; import events with kind=events";

/// Rows between two checks of [`Cancel`].
const CHECK_EVERY: u64 = 1 << 14;

/// Rows that one thread looks up at a time.
const LOOKUPS: usize = if cfg!(test) { 2 } else { 512 };

/// Memory of an account beside its name, in bytes: two shared pointers, their counts, a slot in the
/// map.
const ACCOUNT_COST: usize = 112;
/// Memory of a cell, in bytes: amount and place, with the slack of growing vectors.
const CELL_COST: usize = 36;

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

/// The amounts of one metric, by row number.
#[derive(Default)]
struct Column {
    amounts: Vec<u128>,
    /// Where each amount was first given; it tells a given zero from no amount.
    places: Vec<Place>,
    /// Over all rows, spilled or not.
    sum: u128,
}

/// The table. The map is used for lookups only and never iterated, so its order does not affect the
/// result.
pub(super) struct Rows {
    kind: ImportKind,
    source: u64,
    index: HashMap<Arc<[u8]>, usize>,
    accounts: Vec<Arc<[u8]>>,
    name_bytes: usize,
    longest: usize,
    /// Metrics by name; the numbers index `columns`.
    metrics: BTreeMap<Metric, usize>,
    columns: Vec<Column>,
    spill: Option<(Spill, Runs)>,
    cancel: Option<Cancel>,
    /// Rows added so far.
    added: u64,
    /// How often the table was spilled. Row numbers from before a spill are no longer valid.
    spills: u64,
    /// Scratch space for the lookups of a batch.
    known: Vec<Option<usize>>,
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
            index: HashMap::new(),
            accounts: Vec::new(),
            name_bytes: 0,
            longest: 0,
            metrics: BTreeMap::new(),
            columns: Vec::new(),
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
        let index = &self.index;
        let rows = batch.rows.par_iter().with_min_len(LOOKUPS);
        rows.map(|row| index.get(batch.account(row).as_bytes()).copied())
            .collect_into_vec(&mut known);
        let spills = self.spills;
        for (row, known) in batch.rows.iter().zip(&known) {
            self.count_row()?;
            // A spill during this batch has invalidated the row numbers looked up before it.
            let at = match known.filter(|_| self.spills == spills) {
                Some(at) => at,
                None => self.row(row.line, batch.account(row))?,
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
        let row = self.row(line, account)?;
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
        row: usize,
        metric: &str,
        amount: u128,
    ) -> Result<(), ImportError> {
        let number = self.metric(line, metric)?;
        let column = &mut self.columns[number];
        if column.amounts.len() <= row {
            column.amounts.resize(row + 1, 0);
            column.places.resize(row + 1, 0);
        }
        // The sum comes before the repetition, which is not known of rows that were spilled: a line that
        // breaks both rules is refused for the same one with any memory.
        let sum = column.sum.checked_add(amount);
        column.sum = sum.ok_or_else(|| at(line, "the sum of this metric passes 2^128-1"))?;
        let first = column.places[row] == 0;
        if !first && self.kind == ImportKind::Totals {
            return Err(at(line, TWICE));
        }
        if first {
            column.places[row] = self.source | line;
        }
        column.amounts[row] += amount;
        if first {
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
        if self.columns.len() == METRICS_MAX {
            return Err(at(line, format!("more than {METRICS_MAX} metrics")));
        }
        self.metrics.insert(name, self.columns.len());
        self.columns.push(Column::default());
        Ok(self.columns.len() - 1)
    }

    fn row(&mut self, line: u64, account: &str) -> Result<usize, ImportError> {
        if let Some(row) = self.index.get(account.as_bytes()) {
            return Ok(*row);
        }
        account
            .parse::<Account>()
            .map_err(|error| at(line, format!("{error}")))?;
        if account.starts_with(ESCROW_PREFIX) {
            return Err(at(
                line,
                "accounts under escrow: belong to the ledger and cannot be paid",
            ));
        }
        self.longest = self.longest.max(account.len());
        self.name_bytes += account.len();
        let account: Arc<[u8]> = Arc::from(account.as_bytes());
        let row = self.accounts.len();
        self.accounts.push(Arc::clone(&account));
        self.index.insert(account, row);
        Ok(row)
    }

    fn spill_if_full(&mut self) -> Result<(), ImportError> {
        let Some((limits, _)) = &self.spill else {
            return Ok(());
        };
        let cells: usize = self.columns.iter().map(|column| column.amounts.len()).sum();
        let used = self.accounts.len() * ACCOUNT_COST + self.name_bytes + cells * CELL_COST;
        if used > limits.memory {
            self.spill_all()?;
        }
        Ok(())
    }

    /// Row numbers in the byte order of their accounts.
    fn order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.accounts.len() as u32).collect();
        order.par_sort_unstable_by(|a, b| {
            self.accounts[*a as usize].cmp(&self.accounts[*b as usize])
        });
        order
    }

    fn cells(&self, row: usize) -> impl Iterator<Item = Cell> + '_ {
        let columns = self.columns.iter().enumerate();
        columns.filter_map(move |(metric, column)| {
            let place = *column.places.get(row).filter(|place| **place != 0)?;
            Some(Cell {
                metric: metric as u8, // below METRICS_MAX
                place,
                amount: column.amounts[row],
            })
        })
    }

    /// Moves the table from memory to a sorted run on disk.
    fn spill_all(&mut self) -> Result<(), ImportError> {
        let Some((limits, mut runs)) = self.spill.take() else {
            return Ok(());
        };
        let order = self.order();
        let rows = order.iter().map(|row| *row as usize);
        let written = runs.write(rows.map(|row| (&*self.accounts[row], self.cells(row))));
        written.map_err(|error| ImportError::Scratch(error.to_string()))?;
        self.spill = Some((limits, runs));
        self.spills += 1;
        self.index = HashMap::new();
        self.accounts = Vec::new();
        self.name_bytes = 0;
        for column in &mut self.columns {
            (column.amounts, column.places) = (Vec::new(), Vec::new());
        }
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
        let twice = self.spill.take().and_then(|(_, runs)| runs.first_twice());
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
        if let Some((_, runs)) = self.spill.take().filter(|_| spilled) {
            seal_runs(runs, self.kind, &by_name, &mut writer)?;
        } else {
            self.index = HashMap::new();
            for row in self.order() {
                let amount = |metric: &usize| {
                    let amounts = &self.columns[*metric].amounts;
                    amounts.get(row as usize).copied().unwrap_or(0)
                };
                let account = &self.accounts[row as usize];
                let pushed = writer.push(account, by_name.iter().map(amount));
                pushed.map_err(seal_fault)?;
            }
        }
        writer.finish().map_err(seal_fault)
    }
}

fn twice_at(place: Place) -> (usize, ImportError) {
    let (number, line) = (place >> 48, place & ((1 << 48) - 1));
    (number as usize, at(line, TWICE))
}

fn seal_runs(
    runs: Runs,
    kind: ImportKind,
    by_name: &[usize],
    writer: &mut SealWriter,
) -> Result<(), (Option<usize>, ImportError)> {
    let mut pushed = Ok(());
    let merged = runs.merge(|account: &[u8], cells: &Merged| {
        if pushed.is_ok() {
            let amounts = by_name.iter().map(|metric| cells.amount(*metric));
            pushed = writer.push(account, amounts);
        }
    });
    let twice = merged.map_err(|error| (None, ImportError::Scratch(error.to_string())))?;
    match twice.filter(|_| kind == ImportKind::Totals) {
        Some(place) => {
            let (number, error) = twice_at(place);
            Err((Some(number), error))
        }
        None => pushed.map_err(|error| (None, ImportError::Seal(error))),
    }
}
