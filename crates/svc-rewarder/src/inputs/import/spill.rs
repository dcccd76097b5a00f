//! External sort: sorted runs of added-up rows on disk, and their merge.
//!
//! A run is a record file whose records are blocks of accounts. A block holds, by account: length of
//! the account (1 byte), the account, number of cells (1), and per cell metric (1), place (8) and amount
//! (16). A block that changed on disk is an error, never another sum. Runs live in a directory of their
//! own, which is removed when [`Runs`] is dropped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::io;

use ron_files::{Dir, Kind, Place, RecordFile};

use super::pieces::in_order;
use super::table::{Cell, Table};

/// Maximum runs merged at once; beyond it they are first merged to one. Bounds open files and
/// buffers.
const FAN_IN: usize = if cfg!(test) { 3 } else { 64 };
/// Maximum bytes of a block, unless a single account has more: what a merge holds of each run.
const BLOCK: usize = if cfg!(test) { 1 << 8 } else { 1 << 16 };
/// Blocks of each run that one thread merges at a time. Blocks at the border of two such parts are read for both.
const BLOCKS_OF_A_RUN: usize = if cfg!(test) { 2 } else { 8 };
const KIND: Kind = Kind {
    name: b"SORT",
    version: 1,
};

/// Encoded length of a cell, in bytes.
const CELL: usize = 1 + 8 + 16;

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
        let found = self.cells.get_mut(usize::from(cell.metric));
        let (place, amount) = found.ok_or_else(|| io::Error::other("a metric that no row has"))?;
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

/// Accounts of a run that are encoded, in byte order.
#[derive(Default)]
struct Block {
    first: Vec<u8>,
    bytes: Vec<u8>,
}

impl Block {
    fn put(&mut self, account: &[u8], cells: impl Iterator<Item = Cell>) {
        if self.bytes.is_empty() {
            self.first = account.to_vec();
        }
        // Accounts have at most 160 bytes and there are at most 64 metrics, so both casts are exact.
        self.bytes.push(account.len() as u8);
        self.bytes.extend_from_slice(account);
        let count_at = self.bytes.len();
        self.bytes.push(0);
        for cell in cells {
            self.bytes[count_at] += 1;
            self.bytes.push(cell.metric);
            self.bytes.extend_from_slice(&cell.place.to_be_bytes());
            self.bytes.extend_from_slice(&cell.amount.to_be_bytes());
        }
    }
}

/// A run that is complete: its file, and its blocks in order, each with its first account.
struct Run {
    name: String,
    blocks: Vec<(Vec<u8>, Place)>,
}

/// Writes a run, block by block.
struct RunWriter {
    file: RecordFile,
    run: Run,
}

impl RunWriter {
    fn create(dir: &Dir, name: String) -> io::Result<Self> {
        Ok(Self {
            file: RecordFile::scratch(&**dir.disk(), &dir.file(&name), KIND)?,
            run: Run {
                name,
                blocks: Vec::new(),
            },
        })
    }

    fn put(&mut self, block: Block) -> io::Result<()> {
        let place = self.file.add(&[&block.bytes]);
        self.run.blocks.push((block.first, place));
        Ok(self.file.commit()?)
    }
}

/// The accounts of a merge that one thread takes at a time: from the first name on, up to the second or to the end.
type Part = (Vec<u8>, Option<Vec<u8>>);

/// Reads the accounts of a part from a run, in order.
struct RunReader<'a> {
    blocks: std::slice::Iter<'a, (Vec<u8>, Place)>,
    block: Vec<u8>,
    at: usize,
    part: &'a Part,
}

impl<'a> RunReader<'a> {
    fn new(run: &'a Run, part: &'a Part) -> Self {
        // The block before the first that begins behind the part's first account may have accounts of the part too.
        let behind = run.blocks.partition_point(|(first, _)| *first <= part.0);
        Self {
            blocks: run.blocks[behind.saturating_sub(1)..].iter(),
            block: Vec::new(),
            at: 0,
            part,
        }
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let bytes = self.block.get(self.at..).and_then(<[u8]>::first_chunk);
        self.at += N;
        bytes
            .copied()
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Reads the name of the next account of the part. False at its end.
    fn next_account(&mut self, account: &mut Vec<u8>) -> io::Result<bool> {
        let (from, to) = self.part;
        loop {
            // An account never straddles two blocks.
            while self.at == self.block.len() {
                match self.blocks.next() {
                    Some((first, next)) if to.as_ref().is_none_or(|to| first < to) => {
                        (self.block, self.at) = (next.read()?, 0);
                    }
                    _ => return Ok(false),
                }
            }
            let [length] = self.take()?;
            let end = self.at + usize::from(length);
            let name = self.block.get(self.at..end);
            let name = name.ok_or(io::ErrorKind::UnexpectedEof)?;
            if to.as_ref().is_some_and(|to| name >= to.as_slice()) {
                return Ok(false);
            }
            let is_before = name < from.as_slice();
            if !is_before {
                account.clear();
                account.extend_from_slice(name);
            }
            self.at = end;
            if !is_before {
                return Ok(true);
            }
            let cells = self.next_cells()?;
            self.at += usize::from(cells) * CELL;
        }
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

/// The earlier of two places.
fn earlier(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
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

    /// Writes the accounts of a table as a run. A block has as many accounts as surely fit: none is longer than `longest` or has
    /// more than `metrics` cells.
    pub(super) fn write(
        &mut self,
        table: &Table,
        longest: usize,
        metrics: usize,
    ) -> io::Result<()> {
        if self.runs.len() == FAN_IN {
            self.compact(metrics)?;
        }
        let mut out = self.new_run()?;
        let order = table.order();
        let accounts = (BLOCK / (2 + longest + metrics * CELL)).max(1);
        let blocks: Vec<&[u32]> = order.chunks(accounts).collect();
        let encode = |rows: &&[u32]| {
            let mut block = Block::default();
            for row in *rows {
                block.put(table.name(*row), table.cells(*row));
            }
            Ok(block)
        };
        in_order(&blocks, encode, |block| out.put(block))?;
        self.runs.push(out.run);
        Ok(())
    }

    /// Merges all runs to one.
    fn compact(&mut self, metrics: usize) -> io::Result<()> {
        let mut out = self.new_run()?;
        let encode = |blocks: &mut Vec<Block>, account: &[u8], merged: &Merged| {
            if blocks.last().is_none_or(|last| last.bytes.len() >= BLOCK) {
                blocks.push(Block::default());
            }
            if let Some(block) = blocks.last_mut() {
                block.put(account, merged.present());
            }
            Ok(())
        };
        let twice = self.merge_runs(metrics, Vec::new, encode, |blocks| {
            blocks.into_iter().try_for_each(|block| out.put(block))
        })?;
        self.twice = earlier(self.twice, twice);
        for run in std::mem::take(&mut self.runs) {
            self.dir.remove(&run.name)?;
        }
        self.runs.push(out.run);
        Ok(())
    }

    /// Passes every account, in byte order, to `see`, with a part of the result that begins as `empty`; and the parts, in order,
    /// to `take`. Returns the first place where a total was given a second time.
    pub(super) fn merge<P: Send, E: From<io::Error> + Send>(
        self,
        metrics: usize,
        empty: impl Fn() -> P + Sync,
        see: impl Fn(&mut P, &[u8], &Merged) -> Result<(), E> + Sync,
        take: impl FnMut(P) -> Result<(), E> + Send,
    ) -> Result<Option<u64>, E> {
        let twice = self.merge_runs(metrics, empty, see, take)?;
        Ok(earlier(self.twice, twice))
    }

    /// Merges only to find that place.
    pub(super) fn first_twice(self, metrics: usize) -> Option<u64> {
        let nothing = |(): &mut (), _: &[u8], _: &Merged| Ok::<_, io::Error>(());
        let merged = self.merge(metrics, || (), nothing, |()| Ok(()));
        merged.ok().flatten()
    }

    fn merge_runs<P: Send, E: From<io::Error> + Send>(
        &self,
        metrics: usize,
        empty: impl Fn() -> P + Sync,
        see: impl Fn(&mut P, &[u8], &Merged) -> Result<(), E> + Sync,
        mut take: impl FnMut(P) -> Result<(), E> + Send,
    ) -> Result<Option<u64>, E> {
        let mut first = None;
        let merge = |part: &Part| {
            let mut result = empty();
            let twice = self.merge_part(metrics, part, |account, merged| {
                see(&mut result, account, merged)
            })?;
            Ok((result, twice))
        };
        in_order(&self.parts(), merge, |(result, twice)| {
            first = earlier(first, twice);
            take(result)
        })?;
        Ok(first)
    }

    /// Parts of about the same size, in order, which together are everything.
    fn parts(&self) -> Vec<Part> {
        let blocks = self.runs.iter().flat_map(|run| &run.blocks);
        let mut firsts: Vec<&Vec<u8>> = blocks.map(|(first, _)| first).collect();
        firsts.sort_unstable();
        let each = BLOCKS_OF_A_RUN * self.runs.len().max(1);
        let mut from: Vec<&Vec<u8>> = firsts.into_iter().step_by(each).collect();
        from.dedup();
        let to = from.iter().skip(1).map(|next| Some((*next).clone()));
        let to = to.chain(std::iter::once(None));
        from.iter().map(|from| (*from).clone()).zip(to).collect()
    }

    fn merge_part<E: From<io::Error>>(
        &self,
        metrics: usize,
        part: &Part,
        mut see: impl FnMut(&[u8], &Merged) -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        let mut readers = Vec::with_capacity(self.runs.len());
        let mut heap = BinaryHeap::with_capacity(self.runs.len());
        for (number, run) in self.runs.iter().enumerate() {
            let (mut reader, mut account) = (RunReader::new(run, part), Vec::new());
            if reader.next_account(&mut account)? {
                heap.push(Reverse((account, number)));
            }
            readers.push(reader);
        }
        let mut merged = Merged {
            cells: vec![(0, 0); metrics],
        };
        let (mut twice, mut current) = (None, Vec::new());
        while let Some(mut next) = heap.peek_mut() {
            let Reverse((account, number)) = &mut *next;
            if *account != current {
                if !current.is_empty() {
                    see(&current, &merged)?;
                }
                merged.clear();
                current.clone_from(account);
            }
            let reader = &mut readers[*number];
            for _ in 0..reader.next_cells()? {
                twice = earlier(twice, merged.add(reader.next_cell()?)?);
            }
            if !reader.next_account(account)? {
                PeekMut::pop(next);
            }
        }
        if !current.is_empty() {
            see(&current, &merged)?;
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
    use super::super::table::Slot;
    use super::*;

    #[test]
    fn a_run_that_changed_on_disk_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let sums = |damage: Option<u64>| {
            let mut runs = Runs::new(Dir::os(scratch.path().join("import")));
            let mut table = Table::default();
            (0..=3).for_each(|_| table.add_metric());
            for number in 0..5_000 {
                let name = format!("acc:{number:05}");
                let row = table.insert(table.hash(name.as_bytes()), name.as_bytes());
                *table.slot(row, 3) = Slot {
                    place: 1,
                    amount: 7,
                };
            }
            for _ in 0..2 {
                runs.write(&table, 9, 4).unwrap();
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
            let see = |some: &mut Vec<u128>, _: &[u8], merged: &Merged| {
                some.push(merged.amount(3));
                Ok(())
            };
            runs.merge(4, Vec::new, see, |some| {
                sums.extend(some);
                Ok::<_, io::Error>(())
            })?;
            Ok::<_, io::Error>(sums)
        };
        assert_eq!(sums(None).unwrap(), vec![14; 5_000]);
        for at in [60, 100, 70_000] {
            let why = sums(Some(at)).unwrap_err().to_string();
            assert!(why.contains("run-2 is damaged at byte "), "{why}");
        }
    }
}
