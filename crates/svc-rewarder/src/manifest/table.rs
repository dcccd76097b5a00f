//! The payout table, `payouts.bin`: accounts and amounts in settlement order.
//!
//! ```text
//! offset  size      field                                   (integers big-endian)
//! 0       8         kind PAYS and format, as every file of ron-files begins
//! 8       4         A: account width = length of the longest account (0 if there is none)
//! 12      4         flags: bit 0 = the last record is the residual's owner
//! 16      8         N: number of records
//! 24      16        sum of all records
//! 40      32        BLAKE3-256 of the records
//! 72      (A+16) x N   account padded with NUL to A, then its amount; never zero
//! ```
//!
//! Records are sorted by account and a record's position is its index in the ledger's
//! settlement. Only the residual's record stands outside the order, last.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;
use ron_files::{Disk, Kind};
use ron_proto::rewarder::{PayRule, Payout, ProofStep, RewardPolicy};
use ron_proto::values::{Account, Amount};

use super::claims;
use super::tree::{self, Grower, Overflow, Tree};
use crate::calculus::{Plan, ShareBlock, Stop, Sums, Usage, Watch, trim};
use crate::inputs::snapshot::{account_field, be64, be128};
use crate::inputs::source::{Source, Target};

pub const KIND: Kind = Kind {
    name: b"PAYS",
    version: 1,
};
pub const HEAD: usize = 72;
const AMOUNT: usize = 16;

/// Why bytes are not a payout table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Wrong first bytes, widths or length.
    #[error("not a payout table: {0}")]
    Header(&'static str),
    /// A newer format than this build reads.
    #[error("a payout table of format {0}, this program knows up to {known}; use a newer program", known = KIND.version)]
    Newer(u8),
    /// A record (counted from 0, as in the ledger) breaks a rule.
    #[error("payout {index}: {why}")]
    Record { index: u64, why: &'static str },
    /// Hash or sum do not match the records.
    #[error("the header's {0} does not match the records")]
    Totals(&'static str),
    /// The table could not be read.
    #[error("it cannot be read: {0}")]
    Io(String),
}

impl From<io::Error> for TableError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.to_string())
    }
}

impl From<Overflow> for TableError {
    fn from(_: Overflow) -> Self {
        Self::Totals("sum")
    }
}

/// A payout table, in memory or in a file.
#[derive(Clone, Debug)]
pub struct Table {
    source: Arc<Source>,
    width: usize,
    records: usize,
    total: u128,
    residual_row: bool,
}

/// The result of writing a table.
#[derive(Clone, Debug)]
pub struct Built {
    /// `None` for [`Target::Nowhere`].
    pub table: Option<Table>,
    /// The first bytes, which identify the content.
    pub head: [u8; HEAD],
    pub tree: Tree,
    /// The claim tree, if the policy asks for one.
    pub claims: Option<claims::Tree>,
    /// The sums of the calculus, to compare with the tree's.
    pub sums: Sums,
}

/// Header, tree and claim tree of a written table.
type Written = ([u8; HEAD], Tree, Option<claims::Tree>);

impl Built {
    fn of(target: Target, written: Written, sums: Sums) -> Result<Self, Stop> {
        let (head, tree, claims) = written;
        let source = target.finish(&head).map_err(unwritable)?;
        let table = source.map(Table::trusted).transpose();
        let table = table.map_err(|_| Stop::Broken("the payout table breaks its own format"))?;
        Ok(Self {
            table,
            head,
            tree,
            claims,
            sums,
        })
    }
}

/// Records checked at a time.
const BATCH: usize = tree::GROUP * 16;

impl Table {
    /// Writes the table of an epoch. The residual gets its own record when the policy gives it to
    /// another account than the pool.
    pub fn build<U: Usage>(
        usage: &U,
        plan: &Plan,
        policy: &RewardPolicy,
        mut target: Target,
        watch: &impl Watch,
    ) -> Result<Built, Stop> {
        // The width is that of the longest paid account, which is known only at the end. It is
        // nearly always that of the longest account in the usage; if not, the table is written a
        // second time.
        let mut width = usage.width();
        loop {
            let mut writer = Writer::new(&mut target, width)?;
            writer.claims = (policy.pay == PayRule::Claims).then(claims::Grower::default);
            let sums = plan.visit_shares(usage, watch, |blocks| writer.write(blocks))?;
            let apart = policy.pays_residual() && sums.residual > 0;
            let owner = policy.residual.owner.as_str().as_bytes();
            let longest = writer.longest.max(if apart { owner.len() } else { 0 });
            if longest != width {
                width = longest;
                continue;
            }
            if apart {
                writer.push(owner, sums.residual);
            }
            let written = writer.finish(apart)?;
            return Built::of(target, written, sums);
        }
    }

    /// Writes a table of the rows that `fill` gives, in the order of their accounts, the longest of which
    /// has `width` bytes. It returns the sums of them.
    pub(super) fn of_rows(
        mut target: Target,
        width: usize,
        pay: PayRule,
        fill: impl FnOnce(&mut Writer<'_>) -> Result<Sums, Stop>,
    ) -> Result<Built, Stop> {
        let mut writer = Writer::new(&mut target, width)?;
        writer.claims = (pay == PayRule::Claims).then(claims::Grower::default);
        let sums = fill(&mut writer)?;
        let written = writer.finish(false)?;
        Built::of(target, written, sums)
    }

    /// Checks everything the format promises.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, TableError> {
        Self::checked(Source::Memory(bytes))
    }

    /// The same for a file of any size.
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<Self, TableError> {
        Self::checked(Source::open(disk, path)?)
    }

    fn checked(source: Source) -> Result<Self, TableError> {
        let table = Self::trusted(source)?;
        let mut body = blake3::Hasher::new();
        table.source.each(HEAD as u64, |piece| {
            body.update_rayon(piece);
        })?;
        if body.finalize().as_bytes()[..] != table.source.at(40, 32)?[..] {
            return Err(TableError::Totals("hash"));
        }
        table.check_records()?;
        Ok(table)
    }

    /// Checks the header and the length only. For callers that verify records by other means, such
    /// as the tree.
    pub fn trusted(source: Source) -> Result<Self, TableError> {
        if source.len() < HEAD as u64 {
            return Err(TableError::Header("it is shorter than a header"));
        }
        let head = source.at(0, HEAD)?;
        match KIND.version_of(&head) {
            Some(version) if version == KIND.version => {}
            Some(newer) if newer > KIND.version => return Err(TableError::Newer(newer)),
            _ => return Err(TableError::Header("wrong first bytes")),
        }
        let width = be32(&head[8..]) as usize;
        let flags = be32(&head[12..]);
        let records = be64(&head[16..]);
        if width > Account::MAX_LEN || flags > 1 || (records == 0) != (width == 0) {
            return Err(TableError::Header("its widths or flags are out of range"));
        }
        if flags == 1 && records == 0 {
            return Err(TableError::Header(
                "its flags promise a record it does not have",
            ));
        }
        let body = records.checked_mul((width + AMOUNT) as u64);
        if body.and_then(|body| body.checked_add(HEAD as u64)) != Some(source.len()) {
            return Err(TableError::Header(
                "its length is not what the header promises",
            ));
        }
        let records =
            usize::try_from(records).map_err(|_| TableError::Header("too many records"))?;
        let total = be128(&head[24..]);
        drop(head);
        Ok(Self {
            source: Arc::new(source),
            width,
            records,
            total,
            residual_row: flags == 1,
        })
    }

    fn check_records(&self) -> Result<(), TableError> {
        let sorted = self.records - usize::from(self.residual_row);
        let (mut full, mut sum) = (self.records == 0, 0_u128);
        for first in (0..self.records).step_by(BATCH) {
            // Each batch includes the record before it, so that the order is checked across
            // batches.
            let before = usize::from(first > 0);
            let rows = BATCH.min(self.records - first);
            let bytes = self.records(first - before, rows + before)?;
            let size = self.record_size();
            let record = |at: usize| bytes[at * size..(at + 1) * size].split_at(self.width);
            let check = |at: usize| {
                let (row, (padded, amount)) = (first - before + at, record(at));
                let why = if !account_field(padded) {
                    "its account is malformed"
                } else if be128(amount) == 0 {
                    "its amount is zero"
                } else if at > 0 && row < sorted && record(at - 1).0 >= padded {
                    "its account is out of order or doubled"
                } else {
                    return None;
                };
                let index = row as u64;
                Some(TableError::Record { index, why })
            };
            let range = before..rows + before;
            if let Some(bad) = range.clone().into_par_iter().find_map_first(check) {
                return Err(bad);
            }
            for (padded, amount) in range.map(record) {
                full |= padded.last() != Some(&0);
                let more = sum.checked_add(be128(amount));
                sum = more.ok_or(TableError::Totals("sum"))?;
            }
        }
        if !full {
            return Err(TableError::Header(
                "its account width is not that of the longest account",
            ));
        }
        if sum != self.total {
            return Err(TableError::Totals("sum"));
        }
        Ok(())
    }

    /// The whole file; for tables known to be small.
    pub fn bytes(&self) -> io::Result<Cow<'_, [u8]>> {
        self.source.whole()
    }

    /// The header. It contains the hash of the records, so it identifies the whole table.
    pub fn head(&self) -> io::Result<[u8; HEAD]> {
        let mut head = [0; HEAD];
        head.copy_from_slice(&self.source.at(0, HEAD)?);
        Ok(head)
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Bytes of one record.
    pub const fn record_size(&self) -> usize {
        self.width + AMOUNT
    }

    /// The bytes of `rows` records from `first` on.
    pub fn records(&self, first: usize, rows: usize) -> io::Result<Cow<'_, [u8]>> {
        let size = self.record_size();
        self.source.at((HEAD + first * size) as u64, rows * size)
    }

    pub const fn len(&self) -> usize {
        self.records
    }

    pub const fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Sum of all records, in minor units: the amount that settlement moves.
    pub const fn total(&self) -> u128 {
        self.total
    }

    /// True if the last record is the residual's.
    pub const fn residual_row(&self) -> bool {
        self.residual_row
    }

    /// The record in `bytes`, as the API shows it.
    pub fn payout(&self, row: usize, bytes: &[u8]) -> Result<Payout, TableError> {
        let (account, amount) = bytes.split_at(self.width);
        let account = std::str::from_utf8(trim(account)).ok();
        let account = account.and_then(|text| text.parse().ok());
        Ok(Payout {
            index: row as u64,
            account: account.ok_or(TableError::Record {
                index: row as u64,
                why: "its account is malformed",
            })?,
            amount_minor: Amount(be128(amount)),
        })
    }

    /// Hashes the table, reading it once.
    pub fn tree(&self) -> Result<Tree, TableError> {
        let mut grower = Grower::default();
        let step = tree::GROUP * 32;
        for first in (0..self.len()).step_by(step) {
            let records = self.records(first, step.min(self.len() - first))?;
            grower.add(&records, self.record_size())?;
        }
        Ok(grower.finish())
    }

    /// The records of a group, checked against the table's tree.
    pub fn group(&self, group: usize, tree: &Tree) -> Result<Cow<'_, [u8]>, TableError> {
        let first = group * tree::GROUP;
        let records = self.records(first, tree::GROUP.min(self.len() - first))?;
        if tree.has_group(group, &records, self.record_size())? {
            Ok(records)
        } else {
            Err(TableError::Totals("tree"))
        }
    }

    /// The path of record `row` to the root of the table's tree, or `None` if there is no such
    /// record.
    pub fn path(&self, row: usize, tree: &Tree) -> Result<Option<Vec<ProofStep>>, TableError> {
        if row >= self.len() {
            return Ok(None);
        }
        let records = self.group(row / tree::GROUP, tree)?;
        Ok(Some(tree.path(row, &records, self.record_size())?))
    }

    /// Every record, in order; for tables known to be small.
    pub fn payouts(&self) -> Result<Vec<Payout>, TableError> {
        let bytes = self.records(0, self.records)?;
        let records = bytes.chunks_exact(self.record_size()).enumerate();
        records
            .map(|(row, bytes)| self.payout(row, bytes))
            .collect()
    }

    /// Position of an account's own payout. The residual's record is found only when its owner has
    /// no other.
    pub fn find(&self, account: &Account) -> io::Result<Option<usize>> {
        let wanted = account.as_str().as_bytes();
        let sorted = self.records - usize::from(self.residual_row);
        let at = |row: usize| -> io::Result<Vec<u8>> {
            Ok(trim(&self.records(row, 1)?[..self.width]).to_vec())
        };
        let found = find_row(sorted, |row| {
            at(row).map(|account| account.as_slice().cmp(wanted))
        })?;
        if found.is_some() {
            return Ok(found);
        }
        Ok((self.residual_row && at(sorted)? == wanted).then_some(sorted))
    }
}

/// Searches sorted rows; `order` compares a row with the wanted one.
pub(super) fn find_row<E>(
    rows: usize,
    order: impl Fn(usize) -> Result<Ordering, E>,
) -> Result<Option<usize>, E> {
    let (mut low, mut high) = (0, rows);
    while low < high {
        let middle = low.midpoint(high);
        match order(middle)? {
            Ordering::Equal => return Ok(Some(middle)),
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
        }
    }
    Ok(None)
}

fn unwritable(error: io::Error) -> Stop {
    Stop::Io(format!("the payout table cannot be written: {error}"))
}

fn not_a_payee(error: &claims::ClaimError) -> Stop {
    Stop::Payee(error.to_string())
}

/// Writes records and hashes them by groups on the way.
pub(super) struct Writer<'a> {
    target: &'a mut Target,
    width: usize,
    longest: usize,
    buffer: Vec<u8>,
    records: u64,
    body: blake3::Hasher,
    grower: Grower,
    /// For an epoch with claims.
    claims: Option<claims::Grower>,
}

impl<'a> Writer<'a> {
    fn new(target: &'a mut Target, width: usize) -> Result<Self, Stop> {
        target.start(HEAD).map_err(unwritable)?;
        Ok(Self {
            target,
            width,
            longest: 0,
            buffer: Vec::new(),
            records: 0,
            body: blake3::Hasher::new(),
            grower: Grower::default(),
            claims: None,
        })
    }

    /// Writes the records of some blocks, in order. Each thread fills the slots of a block.
    fn write(&mut self, blocks: &[ShareBlock<'_>]) -> Result<(), Stop> {
        let (width, size) = (self.width, self.width + AMOUNT);
        let records: usize = blocks.iter().map(ShareBlock::len).sum();
        let held = self.buffer.len();
        self.buffer.resize(held + records * size, 0);
        let mut free = &mut self.buffer[held..];
        let mut slots = Vec::with_capacity(blocks.len());
        for block in blocks {
            let (mine, rest) = free.split_at_mut(block.len() * size);
            slots.push((block, mine));
            free = rest;
        }
        let longest = slots.into_par_iter().map(|(block, slots)| {
            let mut longest = 0;
            for ((share, account), slot) in block.shares().zip(slots.chunks_exact_mut(size)) {
                longest = longest.max(account.len());
                slot[..account.len()].copy_from_slice(account);
                slot[width..].copy_from_slice(&share.amount.to_be_bytes());
            }
            longest
        });
        self.longest = self.longest.max(longest.max().unwrap_or(0));
        self.records += records as u64;
        self.flush_groups()
    }

    /// Writes the next record.
    pub(super) fn row(&mut self, account: &[u8], amount: u128) -> Result<(), Stop> {
        self.push(account, amount);
        if self.buffer.len() < BATCH * (self.width + AMOUNT) {
            return Ok(());
        }
        self.flush_groups()
    }

    fn flush_groups(&mut self) -> Result<(), Stop> {
        let group = tree::GROUP * (self.width + AMOUNT);
        self.flush(self.buffer.len() / group * group)
    }

    fn push(&mut self, account: &[u8], amount: u128) {
        let end = self.buffer.len() + self.width;
        self.buffer.extend_from_slice(account);
        self.buffer.resize(end, 0);
        self.buffer.extend_from_slice(&amount.to_be_bytes());
        self.records += 1;
    }

    /// Hashes and writes the first `bytes` of the buffer.
    fn flush(&mut self, bytes: usize) -> Result<(), Stop> {
        let (out, size) = (&self.buffer[..bytes], self.width + AMOUNT);
        self.body.update_rayon(out);
        let grown = self.grower.add(out, size);
        grown.map_err(|_| Stop::Broken("the payout table passes 2^128"))?;
        if let Some(claims) = &mut self.claims {
            claims.add(out, size).map_err(|error| not_a_payee(&error))?;
        }
        self.target.append(out).map_err(unwritable)?;
        self.buffer.drain(..bytes);
        Ok(())
    }

    fn finish(mut self, residual_row: bool) -> Result<Written, Stop> {
        self.flush(self.buffer.len())?;
        let claims = self.claims.take().map(claims::Grower::finish).transpose();
        let claims = claims.map_err(|error| not_a_payee(&error))?;
        let tree = self.grower.finish();
        let root = tree.root();
        let root = root.map_err(|_| Stop::Broken("the payout table passes 2^128"))?;
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&KIND.start());
        head[8..12].copy_from_slice(&(self.width as u32).to_be_bytes());
        head[12..16].copy_from_slice(&u32::from(residual_row).to_be_bytes());
        head[16..24].copy_from_slice(&self.records.to_be_bytes());
        head[24..40].copy_from_slice(&root.total_minor.0.to_be_bytes());
        head[40..].copy_from_slice(self.body.finalize().as_bytes());
        Ok((head, tree, claims))
    }
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
