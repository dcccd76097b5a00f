//! External sort: sorted runs of added-up rows on disk, and their merge.
//!
//! A run holds, by account: length of the account (1 byte), the account, number of cells (1), and
//! per cell metric (1), place (8) and amount (16). Runs live in a directory of their own under the
//! scratch directory and are removed when [`Runs`] is dropped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ron_proto::rewarder::METRICS_MAX;

/// Maximum runs merged at once; beyond it they are first merged to one. Bounds open files and
/// buffers.
const FAN_IN: usize = if cfg!(test) { 3 } else { 64 };
/// Read-ahead buffer per run, in bytes.
const READ_AHEAD: usize = 1 << 16;

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

/// The runs of one import.
pub(super) struct Runs {
    scratch: PathBuf,
    /// Created with the first run.
    dir: Option<PathBuf>,
    files: Vec<PathBuf>,
    made: u64,
    /// The first repeated total seen while runs were compacted.
    twice: Option<u64>,
}

impl Runs {
    pub(super) fn new(scratch: &Path) -> Self {
        Self {
            scratch: scratch.to_owned(),
            dir: None,
            files: Vec::new(),
            made: 0,
            twice: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn new_file(&mut self) -> io::Result<PathBuf> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if self.dir.is_none() {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("import-{}-{number}", std::process::id());
            let dir = self.scratch.join(name);
            fs::create_dir(&dir)?;
            self.dir = Some(dir);
        }
        self.made += 1;
        let dir = self.dir.as_deref().unwrap_or(&self.scratch);
        Ok(dir.join(format!("run-{}", self.made)))
    }

    /// Writes a run of accounts in byte order.
    pub(super) fn write<'a, C: Iterator<Item = Cell>>(
        &mut self,
        accounts: impl Iterator<Item = (&'a [u8], C)>,
    ) -> io::Result<()> {
        if self.files.len() == FAN_IN {
            self.compact()?;
        }
        let path = self.new_file()?;
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&path)?);
        let mut cells = Vec::with_capacity(METRICS_MAX);
        for (account, some) in accounts {
            cells.clear();
            cells.extend(some);
            put(&mut out, account, cells.iter().copied())?;
        }
        out.flush()?;
        self.files.push(path);
        Ok(())
    }

    /// Merges all runs to one.
    fn compact(&mut self) -> io::Result<()> {
        let path = self.new_file()?;
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&path)?);
        let mut written = Ok(());
        let twice = self.merge_files(|account, merged| {
            if written.is_ok() {
                written = put(&mut out, account, merged.present());
            }
        })?;
        written?;
        out.flush()?;
        self.note(twice);
        for file in std::mem::take(&mut self.files) {
            fs::remove_file(file)?;
        }
        self.files.push(path);
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
        let twice = self.merge_files(see)?;
        self.note(twice);
        Ok(self.twice)
    }

    /// Merges only to find that place.
    pub(super) fn first_twice(self) -> Option<u64> {
        self.merge(|_, _| {}).ok().flatten()
    }

    fn merge_files(&self, mut see: impl FnMut(&[u8], &Merged)) -> io::Result<Option<u64>> {
        let mut readers = Vec::with_capacity(self.files.len());
        let mut heap = BinaryHeap::with_capacity(self.files.len());
        for (number, path) in self.files.iter().enumerate() {
            let mut reader = BufReader::with_capacity(READ_AHEAD, File::open(path)?);
            if let Some(account) = next_account(&mut reader)? {
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
            let mut count = [0];
            reader.read_exact(&mut count)?;
            for _ in 0..count[0] {
                let second = merged.add(next_cell(reader)?)?;
                twice = match (twice, second) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
            if let Some(next) = next_account(reader)? {
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
        if let Some(dir) = &self.dir {
            // Scratch files only; no result depends on their removal.
            let _ = fs::remove_dir_all(dir);
        }
    }
}

fn put(
    out: &mut impl Write,
    account: &[u8],
    cells: impl Iterator<Item = Cell> + Clone,
) -> io::Result<()> {
    // Accounts have at most 160 bytes and there are at most 64 metrics, so both casts are exact.
    out.write_all(&[account.len() as u8])?;
    out.write_all(account)?;
    out.write_all(&[cells.clone().count() as u8])?;
    for cell in cells {
        out.write_all(&[cell.metric])?;
        out.write_all(&cell.place.to_be_bytes())?;
        out.write_all(&cell.amount.to_be_bytes())?;
    }
    Ok(())
}

fn next_account(reader: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0];
    if reader.read(&mut length)? == 0 {
        return Ok(None);
    }
    let mut account = vec![0; usize::from(length[0])];
    reader.read_exact(&mut account)?;
    Ok(Some(account))
}

fn next_cell(reader: &mut impl Read) -> io::Result<Cell> {
    let (mut metric, mut place, mut amount) = ([0], [0; 8], [0; 16]);
    reader.read_exact(&mut metric)?;
    reader.read_exact(&mut place)?;
    reader.read_exact(&mut amount)?;
    Ok(Cell {
        metric: metric[0],
        place: u64::from_be_bytes(place),
        amount: u128::from_be_bytes(amount),
    })
}
