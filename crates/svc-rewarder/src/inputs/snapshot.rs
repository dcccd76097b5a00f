//! The sealed usage snapshot: a sorted file of fixed-width records with a header.
//!
//! ```text
//! offset  size      field                                   (integers big-endian)
//! 0       8         kind USAG and format, as every file of ron-files begins
//! 8       4         A: account width = length of the longest account (0 if there is none)
//! 12      4         M: number of metrics, at most 64
//! 16      8         N: number of records
//! 24      32        BLAKE3-256 of the records
//! 56      64        period the usage was measured in, padded with NUL; all NUL if it has none
//! 120     88 x M    per metric, by name: name padded with NUL to 64, accounts above zero (8), sum (16)
//! ...     (A+16M) x N   records by account: account padded with NUL to A, then one amount per metric
//! ```
//!
//! The same usage of the same period always gives the same bytes, so the content id (BLAKE3-256 of
//! the whole file) names the usage itself.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;
use ron_files::{Disk, Kind};
use ron_proto::ledger::ESCROW_PREFIX;
use ron_proto::rewarder::{METRICS_MAX, Metric, MetricTotal, SnapshotInfo, UsagePeriod};
use ron_proto::values::{Account, Amount, ContentId};

use super::source::{Source, Target};
use crate::calculus::{Block, CHUNK, Stop, Usage, trim};

pub const KIND: Kind = Kind {
    name: b"USAG",
    version: 1,
};
const PERIOD: usize = 56;
const HEAD: usize = PERIOD + 64;
const METRIC_NAME: usize = 64;
const METRIC_ENTRY: usize = METRIC_NAME + 8 + 16;
const AMOUNT: usize = 16;

/// Why bytes are not a sealed snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Too short, or another kind of file.
    #[error("not a sealed snapshot: {0}")]
    Header(&'static str),
    /// A newer format than this build reads.
    #[error("a sealed snapshot of format {0}, this program knows up to {known}; use a newer program", known = KIND.version)]
    Newer(u8),
    /// Bytes after the last record, or missing before it.
    #[error("the header promises {expected} bytes, the file has {found}")]
    Length {
        /// Length that follows from the header, in bytes.
        expected: u64,
        /// Actual length, in bytes.
        found: u64,
    },
    /// The records do not hash to the value in the header.
    #[error("the hash of the records is not the one in the header")]
    Hash,
    /// Metric names out of order, repeated or malformed.
    #[error("metric {0} in the header is malformed, doubled or out of order")]
    Metric(usize),
    /// A record (counted from 1) breaks a rule.
    #[error("record {record}: {why}")]
    Record { record: u64, why: &'static str },
    /// Counts or sums do not match the records.
    #[error("the header's {0} do not match the records")]
    Totals(&'static str),
    /// The file could not be read or written.
    #[error("the snapshot's file: {0}")]
    Io(String),
}

impl From<std::io::Error> for SealError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error.to_string())
    }
}

/// A checked snapshot, in memory or in a file.
#[derive(Clone, Debug)]
pub struct Sealed {
    source: Arc<Source>,
    cid: ContentId,
    head: Head,
}

/// The fields of the header.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    width: usize,
    records: usize,
    body: [u8; 32],
    period: Option<UsagePeriod>,
    metrics: Vec<MetricTotal>,
}

impl Head {
    /// Reads the header and checks its own consistency and the length of the source.
    pub fn read(source: &Source) -> Result<Self, SealError> {
        let found = source.len();
        if found < HEAD as u64 {
            return Err(SealError::Header("it is shorter than a header"));
        }
        let fixed = source.at(0, HEAD)?;
        match KIND.version_of(&fixed) {
            Some(version) if version == KIND.version => {}
            Some(newer) if newer > KIND.version => return Err(SealError::Newer(newer)),
            _ => return Err(SealError::Header("wrong first bytes")),
        }
        let width = be32(&fixed[8..]) as usize;
        let count = be32(&fixed[12..]) as usize;
        let records = be64(&fixed[16..]);
        if width > Account::MAX_LEN || count > METRICS_MAX {
            return Err(SealError::Header("its widths are out of range"));
        }
        if (records == 0) != (width == 0) || (records == 0) != (count == 0) {
            return Err(SealError::Header(
                "accounts and metrics must both be there, or both not",
            ));
        }
        let record = (width + AMOUNT * count) as u64;
        let expected = records
            .checked_mul(record)
            .and_then(|body| body.checked_add((HEAD + METRIC_ENTRY * count) as u64));
        if expected != Some(found) {
            return Err(SealError::Length {
                expected: expected.unwrap_or(u64::MAX),
                found,
            });
        }
        Ok(Self {
            width,
            records: usize::try_from(records).map_err(|_| SealError::Header("too many records"))?,
            body: first(&fixed[24..]),
            period: parse_period(&fixed[PERIOD..])?,
            metrics: parse_metrics(&source.at(HEAD as u64, METRIC_ENTRY * count)?)?,
        })
    }

    /// The metrics, sorted by name.
    pub fn metric_names(&self) -> Vec<Metric> {
        let names = self.metrics.iter().map(|total| total.metric.clone());
        names.collect()
    }

    /// Description of a snapshot with this header, as the API returns it.
    pub fn info(&self, cid: ContentId, bytes: u64) -> SnapshotInfo {
        SnapshotInfo {
            cid,
            period: self.period.clone(),
            accounts: self.records as u64,
            bytes,
            metrics: self.metrics.clone(),
        }
    }

    pub const fn accounts(&self) -> usize {
        self.records
    }

    const fn body_at(&self) -> u64 {
        (HEAD + METRIC_ENTRY * self.metrics.len()) as u64
    }

    const fn record(&self) -> usize {
        self.width + AMOUNT * self.metrics.len()
    }
}

impl Sealed {
    /// Checks everything the format promises. Refuses trailing bytes, unsorted or repeated
    /// accounts, and totals that do not match.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, SealError> {
        Self::check(Source::Memory(bytes))
    }

    /// The same for a file of any size, which is read in pieces and not kept in memory.
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<Self, SealError> {
        Self::check(Source::open(disk, path)?)
    }

    /// The same for either kind of source.
    pub fn check(source: Source) -> Result<Self, SealError> {
        let head = Head::read(&source)?;
        let mut whole = blake3::Hasher::new();
        let mut body = blake3::Hasher::new();
        whole.update(&source.at(0, head.body_at() as usize)?);
        source.each(head.body_at(), |piece| {
            rayon::join(|| whole.update_rayon(piece), || body.update_rayon(piece));
        })?;
        if body.finalize().as_bytes() != &head.body {
            return Err(SealError::Hash);
        }
        let sealed = Self {
            source: Arc::new(source),
            cid: ContentId(*whole.finalize().as_bytes()),
            head,
        };
        sealed.check_records()?;
        Ok(sealed)
    }

    /// Reads the header alone, and takes `cid` for the content id: for a few records of a file that was checked when it was made.
    pub fn unchecked(source: Source, cid: ContentId) -> Result<Self, SealError> {
        Ok(Self {
            head: Head::read(&source)?,
            source: Arc::new(source),
            cid,
        })
    }

    /// The content id of the whole file.
    pub const fn cid(&self) -> ContentId {
        self.cid
    }

    /// The whole file, read into memory; for snapshots known to be small.
    pub fn bytes(&self) -> std::io::Result<Cow<'_, [u8]>> {
        self.source.whole()
    }

    /// The bytes of the snapshot, in memory or in a file.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Its header, which contains the hash of the records and so identifies the whole.
    pub(crate) fn header(&self) -> std::io::Result<Cow<'_, [u8]>> {
        self.source.at(0, self.head.body_at() as usize)
    }

    /// The metrics it holds, sorted by name.
    pub fn metrics(&self) -> &[MetricTotal] {
        &self.head.metrics
    }

    pub fn metric_names(&self) -> Vec<Metric> {
        self.head.metric_names()
    }

    /// Description of the snapshot, as the API returns it.
    pub fn info(&self) -> SnapshotInfo {
        self.head.info(self.cid, self.source.len())
    }

    fn read(&self, first: usize, rows: usize) -> std::io::Result<Block<'_>> {
        let record = self.head.record();
        let from = self.head.body_at() + (first * record) as u64;
        let bytes = self.source.at(from, rows * record)?;
        Ok(Block::new(
            first,
            bytes,
            self.head.width,
            self.head.metrics.len(),
        ))
    }

    /// Checks every rule of a record, and the header's totals.
    fn check_records(&self) -> Result<(), SealError> {
        let records = self.head.records;
        let found = (0..records.div_ceil(CHUNK))
            .into_par_iter()
            .map(|chunk| self.check_chunk(chunk * CHUNK, records.min((chunk + 1) * CHUNK)))
            .reduce(|| Ok(Findings::default()), Findings::join)?;
        if records > 0 && !found.full {
            return Err(SealError::Header(
                "its account width is not that of the longest account",
            ));
        }
        let totals = if records == 0 {
            Vec::new()
        } else {
            found.totals
        };
        for (total, (above, sum)) in self.head.metrics.iter().zip(totals) {
            if total.accounts != above {
                return Err(SealError::Totals("counts"));
            }
            if total.sum.0 != sum {
                return Err(SealError::Totals("sums"));
            }
        }
        Ok(())
    }

    fn check_chunk(&self, from: usize, to: usize) -> Result<Findings, SealError> {
        // Each chunk includes the row before it, so that the order is checked across chunks.
        let before = usize::from(from > 0);
        let block = self.read(from - before, to - from + before)?;
        let metrics = self.head.metrics.len();
        let mut found = Findings {
            full: false,
            totals: vec![(0, 0); metrics],
        };
        for at in before..block.rows() {
            let padded = block.padded(at);
            let refuse = |why| SealError::Record {
                record: (block.first() + at) as u64 + 1,
                why,
            };
            if !account_field(padded) {
                return Err(refuse("its account is malformed"));
            }
            if at > 0 && block.padded(at - 1) >= padded {
                return Err(refuse("its account is out of order or doubled"));
            }
            found.full |= padded.last() != Some(&0);
            for (metric, (above, sum)) in found.totals.iter_mut().enumerate() {
                let amount = block.amount(at, metric);
                *above += u64::from(amount != 0);
                *sum = add_up(*sum, amount)?;
            }
        }
        Ok(found)
    }
}

fn add_up(sum: u128, more: u128) -> Result<u128, SealError> {
    sum.checked_add(more)
        .ok_or(SealError::Totals("sums (above 2^128)"))
}

/// Totals over the records of some chunks.
#[derive(Default)]
struct Findings {
    /// True if an account fills the whole width.
    full: bool,
    totals: Vec<(u64, u128)>,
}

impl Findings {
    /// Of two faults the one in the lower chunk counts, so that the error does not depend on
    /// timing.
    fn join(a: Result<Self, SealError>, b: Result<Self, SealError>) -> Result<Self, SealError> {
        let (mut a, b) = (a?, b?);
        if a.totals.is_empty() {
            return Ok(b);
        }
        a.full |= b.full;
        for ((above, sum), (more, part)) in a.totals.iter_mut().zip(b.totals) {
            *above += more;
            *sum = add_up(*sum, part)?;
        }
        Ok(a)
    }
}

impl Usage for Sealed {
    fn accounts(&self) -> usize {
        self.head.records
    }

    fn width(&self) -> usize {
        self.head.width
    }

    fn block(&self, first: usize, rows: usize) -> Result<Block<'_>, Stop> {
        self.read(first, rows)
            .map_err(|error| Stop::Io(format!("the snapshot cannot be read: {error}")))
    }
}

/// Records in byte order of their accounts, with their totals; a part of a snapshot.
pub(crate) struct Records {
    width: usize,
    bytes: Vec<u8>,
    count: u64,
    /// By metric: accounts above zero, and the sum.
    totals: Vec<(u64, u128)>,
}

impl Records {
    /// No records yet, for accounts of at most `width` bytes.
    pub(crate) fn new(width: usize, metrics: usize) -> Self {
        Self {
            width,
            bytes: Vec::new(),
            count: 0,
            totals: vec![(0, 0); metrics],
        }
    }

    /// Appends the next account, with one amount per metric.
    pub(crate) fn push(
        &mut self,
        account: &[u8],
        amounts: impl Iterator<Item = u128>,
    ) -> Result<(), SealError> {
        let end = self.bytes.len() + self.width;
        self.bytes.extend_from_slice(account);
        self.bytes.resize(end, 0);
        for (amount, (above, sum)) in amounts.zip(&mut self.totals) {
            self.bytes.extend_from_slice(&amount.to_be_bytes());
            *above += u64::from(amount != 0);
            *sum = add_up(*sum, amount)?;
        }
        self.count += 1;
        Ok(())
    }
}

/// Writes a sealed snapshot, in order.
pub(crate) struct SealWriter {
    target: Target,
    period: Option<UsagePeriod>,
    metrics: Vec<Metric>,
    body: blake3::Hasher,
    /// Those of `records.bytes` that are written are not in it any more.
    records: Records,
}

/// Write buffer of a [`SealWriter`], in bytes.
const BUFFER: usize = 1 << 20;

impl SealWriter {
    /// For these metrics, sorted by name, and accounts of at most `width` bytes; at least one
    /// account must have exactly `width`.
    pub(crate) fn new(
        mut target: Target,
        period: Option<UsagePeriod>,
        metrics: Vec<Metric>,
        width: usize,
    ) -> Result<Self, SealError> {
        target.start(HEAD + METRIC_ENTRY * metrics.len())?;
        Ok(Self {
            target,
            period,
            records: Records::new(width, metrics.len()),
            metrics,
            body: blake3::Hasher::new(),
        })
    }

    /// Appends the next account in byte order, with one amount per metric.
    pub(crate) fn push(
        &mut self,
        account: &[u8],
        amounts: impl Iterator<Item = u128>,
    ) -> Result<(), SealError> {
        self.records.push(account, amounts)?;
        if self.records.bytes.len() >= BUFFER {
            self.flush()?;
        }
        Ok(())
    }

    /// Appends the next records.
    pub(crate) fn append(&mut self, next: &Records) -> Result<(), SealError> {
        self.flush()?;
        self.write(&next.bytes)?;
        self.records.count += next.count;
        for ((above, sum), (more, part)) in self.records.totals.iter_mut().zip(&next.totals) {
            *above += more;
            *sum = add_up(*sum, *part)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SealError> {
        let mut bytes = std::mem::take(&mut self.records.bytes);
        self.write(&bytes)?;
        bytes.clear();
        self.records.bytes = bytes;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SealError> {
        self.body.update_rayon(bytes);
        Ok(self.target.append(bytes)?)
    }

    /// Writes the header and reads the whole file again: a returned snapshot has passed every
    /// check.
    pub(crate) fn finish(self) -> Result<Sealed, SealError> {
        let (_, source) = self.close()?;
        Sealed::check(source.ok_or(SealError::Header("it was written nowhere"))?)
    }

    /// Writes the header and returns it: it contains the hash of the records, so it identifies the
    /// whole. No source for [`Target::Nowhere`].
    pub(crate) fn close(mut self) -> Result<(Vec<u8>, Option<Source>), SealError> {
        self.flush()?;
        let mut head = vec![0; HEAD + METRIC_ENTRY * self.metrics.len()];
        head[..8].copy_from_slice(&KIND.start());
        head[8..12].copy_from_slice(&(self.records.width as u32).to_be_bytes());
        head[12..16].copy_from_slice(&(self.metrics.len() as u32).to_be_bytes());
        head[16..24].copy_from_slice(&self.records.count.to_be_bytes());
        head[24..PERIOD].copy_from_slice(self.body.finalize().as_bytes());
        if let Some(period) = &self.period {
            let name = period.as_str().as_bytes();
            head[PERIOD..PERIOD + name.len()].copy_from_slice(name);
        }
        for (at, (metric, (above, sum))) in
            self.metrics.iter().zip(&self.records.totals).enumerate()
        {
            let entry = &mut head[HEAD + at * METRIC_ENTRY..HEAD + (at + 1) * METRIC_ENTRY];
            entry[..metric.as_str().len()].copy_from_slice(metric.as_str().as_bytes());
            entry[METRIC_NAME..METRIC_NAME + 8].copy_from_slice(&above.to_be_bytes());
            entry[METRIC_NAME + 8..].copy_from_slice(&sum.to_be_bytes());
        }
        let source = self.target.finish(&head)?;
        Ok((head, source))
    }
}

fn parse_period(field: &[u8]) -> Result<Option<UsagePeriod>, SealError> {
    let name = trim(field);
    if name.is_empty() {
        return Ok(None);
    }
    let period = std::str::from_utf8(name)
        .ok()
        .and_then(|name| name.parse().ok());
    period
        .map(Some)
        .ok_or(SealError::Header("its period is malformed"))
}

fn parse_metrics(table: &[u8]) -> Result<Vec<MetricTotal>, SealError> {
    let mut metrics: Vec<MetricTotal> = Vec::new();
    for (at, entry) in table.chunks_exact(METRIC_ENTRY).enumerate() {
        let bad = || SealError::Metric(at + 1);
        let name = trim(&entry[..METRIC_NAME]);
        let metric: Metric = std::str::from_utf8(name)
            .ok()
            .and_then(|name| name.parse().ok())
            .ok_or_else(bad)?;
        if metrics.last().is_some_and(|last| last.metric >= metric) {
            return Err(bad());
        }
        metrics.push(MetricTotal {
            metric,
            accounts: be64(&entry[METRIC_NAME..]),
            sum: Amount(be128(&entry[METRIC_NAME + 8..])),
        });
    }
    Ok(metrics)
}

/// True for one or more account characters followed by padding only, unless the account is one of
/// the ledger's own, which cannot be paid.
pub(crate) fn account_field(padded: &[u8]) -> bool {
    let account = trim(padded);
    // Without an early exit at the first bad byte the compiler vectorises this loop.
    let good = account.iter().fold(true, |good, byte| {
        good & (byte.is_ascii_alphanumeric() | matches!(byte, b':' | b'/' | b'_' | b'-'))
    });
    good && !account.is_empty() && !account.starts_with(ESCROW_PREFIX.as_bytes())
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(first(bytes))
}

pub(crate) fn be64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(first(bytes))
}

pub(crate) fn be128(bytes: &[u8]) -> u128 {
    u128::from_be_bytes(first(bytes))
}

fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}
