//! Usage as the calculus reads it: rows in the fixed-width form of a sealed snapshot, in blocks, so
//! that a snapshot may be larger than memory.

use std::borrow::Cow;

use super::{CHUNK, Stop};

/// Bytes of one amount.
const AMOUNT: usize = 16;

/// Usage per account, sorted by account bytes without duplicates.
pub trait Usage: Sync {
    /// Number of accounts; below 2^32.
    fn accounts(&self) -> usize;
    /// Length of the longest account, in bytes.
    fn width(&self) -> usize;
    /// Rows `first .. first + rows`, all of which must exist.
    fn block(&self, first: usize, rows: usize) -> Result<Block<'_>, Stop>;
}

#[derive(Clone, Debug)]
pub struct Block<'a> {
    first: usize,
    bytes: Cow<'a, [u8]>,
    width: usize,
    size: usize,
}

impl<'a> Block<'a> {
    /// Rows from row `first` on: each is an account padded with NUL to `width`, followed by one
    /// amount per metric (16 bytes, big-endian).
    pub fn new(first: usize, bytes: Cow<'a, [u8]>, width: usize, metrics: usize) -> Self {
        let size = width + AMOUNT * metrics;
        debug_assert!(size > 0 && bytes.len().is_multiple_of(size));
        Self {
            first,
            bytes,
            width,
            size,
        }
    }

    /// The row number of the block's first row.
    pub const fn first(&self) -> usize {
        self.first
    }

    pub fn rows(&self) -> usize {
        self.bytes.len() / self.size
    }

    /// The account field of row `at` of the block, with its padding.
    pub fn padded(&self, at: usize) -> &[u8] {
        &self.bytes[at * self.size..at * self.size + self.width]
    }

    /// The account of row `at` of the block.
    pub fn account(&self, at: usize) -> &[u8] {
        trim(self.padded(at))
    }

    /// The amount of metric `metric` in row `at` of the block.
    pub fn amount(&self, at: usize, metric: usize) -> u128 {
        let from = at * self.size + self.width + AMOUNT * metric;
        let mut amount = [0; AMOUNT];
        amount.copy_from_slice(&self.bytes[from..from + AMOUNT]);
        u128::from_be_bytes(amount)
    }
}

/// `padded` without the trailing NULs.
pub(crate) fn trim(padded: &[u8]) -> &[u8] {
    let end = padded
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    &padded[..end]
}

/// Number of blocks of [`CHUNK`] rows; the last one may be shorter.
pub(super) fn chunks<U: Usage>(usage: &U) -> usize {
    usage.accounts().div_ceil(CHUNK)
}

/// Block `chunk` of [`CHUNK`] rows; the last one may be shorter.
pub(super) fn chunk<U: Usage>(usage: &U, chunk: usize) -> Result<Block<'_>, Stop> {
    let first = chunk * CHUNK;
    usage.block(first, CHUNK.min(usage.accounts() - first))
}
