//! External sort: sorted runs of added-up rows on disk, and their merge.
//!
//! A run is a record file whose records are blocks of accounts. A block holds, by account: length of
//! the account (1 byte), the account, number of cells (1), and per cell metric (1), place (8) and amount
//! (16). A block that changed on disk is an error, never another sum. Runs live in a directory of their
//! own, which is removed when [`Runs`] is dropped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;

use ron_files::{Dir, Kind, Place, RecordFile};
use ron_proto::rewarder::METRICS_MAX;

/// Maximum runs merged at once; beyond it they are first merged to one. Bounds open files and
/// buffers.
const FAN_IN: usize = if cfg!(test) { 3 } else { 64 };
/// Bytes after which a block of a run ends: what a merge holds of each run, and what is written at once.
const BLOCK: usize = 1 << 16;
const KIND: Kind = Kind {
    name: b"SORT",
    version: 1,
};

/// One amount of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub metric: u8,
    /// Where the amount was first given; never zero.
    pub place: u64,
    pub amount: u128,
}

/// The cells of one account from all runs.
pub(super) struct Merged {
    /// By metric number; place zero means no amount.
    cells: Vec<(u64, u128)>,
}

impl Merged {
    pub(super) fn amount(&self, metric: usize) -> u128 {
        self.cells[metric].1
    }

    fn clear(&mut self) {
        self.cells.fill((0, 0));
    }

    /// Adds a cell. If its metric already has one, returns the later of the two places.
    fn add(&mut self, cell: Cell) -> io::Result<Option<u64>> {
        let (place, amount) = &mut self.cells[usize::from(cell.metric)];
        let sum = amount.checked_add(cell.amount);
        *amount = sum.ok_or_else(|| io::Error::other("a sum passes 2^128"))?;
        let twice = (*place != 0).then(|| (*place).max(cell.place));
        *place = if *place == 0 {
            cell.place
        } else {
            (*place).min(cell.place)
        };
        Ok(twice)
    }

    fn present(&self) -> impl Iterator<Item = Cell> + Clone + '_ {
        let cells = self.cells.iter().enumerate();
        cells
            .filter(|(_, (place, _))| *place != 0)
            .map(|(metric, (place, amount))| Cell {
                metric: metric as u8, // below METRICS_MAX
                place: *place,
                amount: *amount,
            })
    }
}

/// A run that is complete: its file, and its blocks in order.
struct Run {
    name: String,
    blocks: Vec<Place>,
}

/// Writes a run, account by account in byte order.
struct RunWriter {
    name: String,
    file: RecordFile,
    blocks: Vec<Place>,
    block: Vec<u8>,
}

impl RunWriter {
    fn create(dir: &Dir, name: String) -> io::Result<Self> {
        Ok(Self {
            file: RecordFile::scratch(&**dir.disk(), &dir.file(&name), KIND)?,
            name,
            blocks: Vec::new(),
            block: Vec::with_capacity(BLOCK * 2),
        })
    }

    fn put(&mut self, account: &[u8], cells: impl Iterator<Item = Cell>) -> io::Result<()> {
        // Accounts have at most 160 bytes and there are at most 64 metrics, so both casts are exact.
        self.block.push(account.len() as u8);
        self.block.extend_from_slice(account);
        let count_at = self.block.len();
        self.block.push(0);
        for cell in cells {
            self.block[count_at] += 1;
            self.block.push(cell.metric);
            self.block.extend_from_slice(&cell.place.to_be_bytes());
            self.block.extend_from_slice(&cell.amount.to_be_bytes());
        }
        if self.block.len() < BLOCK {
            return Ok(());
        }
        self.end_block()
    }

    fn end_block(&mut self) -> io::Result<()> {
        self.blocks.push(self.file.add(&[&self.block]));
        self.block.clear();
        Ok(self.file.commit()?)
    }

    fn finish(mut self) -> io::Result<Run> {
        self.end_block()?;
        Ok(Run {
            name: self.name,
            blocks: self.blocks,
        })
    }
}

/// Reads a run in order.
struct RunReader<'a> {
    blocks: std::slice::Iter<'a, Place>,
    block: Vec<u8>,
    at: usize,
}

impl<'a> RunReader<'a> {
    fn new(run: &'a Run) -> Self {
        Self {
            blocks: run.blocks.iter(),
            block: Vec::new(),
            at: 0,
        }
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let bytes = self.block.get(self.at..).and_then(<[u8]>::first_chunk);
        self.at += N;
        bytes
            .copied()
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn next_account(&mut self) -> io::Result<Option<Vec<u8>>> {
        // An account never straddles two blocks.
        while self.at == self.block.len() {
            let Some(next) = self.blocks.next() else {
                return Ok(None);
            };
            (self.block, self.at) = (next.read()?, 0);
        }
        let [length] = self.take()?;
        let end = self.at + usize::from(length);
        let account = self.block.get(self.at..end);
        self.at = end;
        let account = account.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(Some(account.to_vec()))
    }

    fn next_cells(&mut self) -> io::Result<u8> {
        self.take().map(|[count]| count)
    }

    fn next_cell(&mut self) -> io::Result<Cell> {
        let [metric] = self.take()?;
        Ok(Cell {
            metric,
            place: u64::from_be_bytes(self.take()?),
            amount: u128::from_be_bytes(self.take()?),
        })
    }
}

/// The runs of one import.
pub(super) struct Runs {
    /// Made with the first run.
    dir: Dir,
    runs: Vec<Run>,
    made: u64,
    /// The first repeated total seen while runs were compacted.
    twice: Option<u64>,
}

impl Runs {
    pub(super) const fn new(dir: Dir) -> Self {
        Self {
            dir,
            runs: Vec::new(),
            made: 0,
            twice: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    fn new_run(&mut self) -> io::Result<RunWriter> {
        if self.made == 0 {
            self.dir.create()?;
        }
        self.made += 1;
        RunWriter::create(&self.dir, format!("run-{}", self.made))
    }

    /// Writes a run of accounts in byte order.
    pub(super) fn write<'a, C: Iterator<Item = Cell>>(
        &mut self,
        accounts: impl Iterator<Item = (&'a [u8], C)>,
    ) -> io::Result<()> {
        if self.runs.len() == FAN_IN {
            self.compact()?;
        }
        let mut out = self.new_run()?;
        for (account, cells) in accounts {
            out.put(account, cells)?;
        }
        self.runs.push(out.finish()?);
        Ok(())
    }

    /// Merges all runs to one.
    fn compact(&mut self) -> io::Result<()> {
        let mut out = self.new_run()?;
        let mut written = Ok(());
        let twice = self.merge_runs(|account, merged| {
            if written.is_ok() {
                written = out.put(account, merged.present());
            }
        })?;
        written?;
        self.note(twice);
        for run in std::mem::take(&mut self.runs) {
            self.dir.remove(&run.name)?;
        }
        self.runs.push(out.finish()?);
        Ok(())
    }

    fn note(&mut self, twice: Option<u64>) {
        self.twice = match (self.twice, twice) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// Passes every account, in byte order, to `see`. Returns the first place where a total was
    /// given a second time.
    pub(super) fn merge(mut self, see: impl FnMut(&[u8], &Merged)) -> io::Result<Option<u64>> {
        let twice = self.merge_runs(see)?;
        self.note(twice);
        Ok(self.twice)
    }

    /// Merges only to find that place.
    pub(super) fn first_twice(self) -> Option<u64> {
        self.merge(|_, _| {}).ok().flatten()
    }

    fn merge_runs(&self, mut see: impl FnMut(&[u8], &Merged)) -> io::Result<Option<u64>> {
        let mut readers = Vec::with_capacity(self.runs.len());
        let mut heap = BinaryHeap::with_capacity(self.runs.len());
        for (number, run) in self.runs.iter().enumerate() {
            let mut reader = RunReader::new(run);
            if let Some(account) = reader.next_account()? {
                heap.push(Reverse((account, number)));
            }
            readers.push(reader);
        }
        let mut merged = Merged {
            cells: vec![(0, 0); METRICS_MAX],
        };
        let mut twice: Option<u64> = None;
        while let Some(Reverse((account, number))) = heap.pop() {
            let reader = &mut readers[number];
            for _ in 0..reader.next_cells()? {
                let second = merged.add(reader.next_cell()?)?;
                twice = match (twice, second) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
            if let Some(next) = reader.next_account()? {
                heap.push(Reverse((next, number)));
            }
            if heap
                .peek()
                .is_none_or(|Reverse((next, _))| *next != account)
            {
                see(&account, &merged);
                merged.clear();
            }
        }
        Ok(twice)
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        if self.made > 0 {
            // Scratch files only; no result depends on their removal.
            let _ = self.dir.remove_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_changed_on_disk_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let sums = |damage: Option<u64>| {
            let mut runs = Runs::new(Dir::os(scratch.path().join("import")));
            let names: Vec<String> = (0..5_000).map(|n| format!("acc:{n:05}")).collect();
            for place in 1..=2 {
                let cell = Cell {
                    metric: 3,
                    place,
                    amount: 7,
                };
                let rows = names
                    .iter()
                    .map(|name| (name.as_bytes(), std::iter::once(cell)));
                runs.write(rows).unwrap();
            }
            if let Some(at) = damage {
                use std::os::unix::fs::FileExt as _;
                let mut options = std::fs::OpenOptions::new();
                let file = options
                    .read(true)
                    .write(true)
                    .open(runs.dir.file(&runs.runs[1].name))
                    .unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 1], at).unwrap();
            }
            let mut sums = Vec::new();
            runs.merge(|_, merged| sums.push(merged.amount(3)))?;
            Ok::<_, io::Error>(sums)
        };
        assert_eq!(sums(None).unwrap(), vec![14; 5_000]);
        for at in [60, 100, 70_000] {
            let why = sums(Some(at)).unwrap_err().to_string();
            assert!(why.contains("run-2 is damaged at byte "), "{why}");
        }
    }
}
