//! The sealed usage snapshot: a sorted file of fixed-width records with a header.
//!
//! ```text
//! offset  size      field                                   (integers big-endian)
//! 0       8         "RONUSG1\n"
//! 8       4         A: account width = length of the longest account (0 if there is none)
//! 12      4         M: number of metrics, at most 64
//! 16      8         N: number of records
//! 24      32        BLAKE3-256 of the records
//! 56      88 x M    per metric, by name: name padded with NUL to 64, accounts above zero (8), sum (16)
//! ...     (A+16M) x N   records by account: account padded with NUL to A, then one amount per metric
//! ```
//!
//! The same usage always gives the same bytes, so the content id (BLAKE3-256 of the whole file)
//! names the usage itself.

use rayon::prelude::*;
use ron_proto::ledger::ESCROW_PREFIX;
use ron_proto::rewarder::{METRICS_MAX, Metric, MetricTotal, SnapshotInfo};
use ron_proto::values::{Account, Amount, ContentId};

use crate::calculus::{CHUNK, Usage};

/// First bytes of every sealed snapshot; the digit is the format's version.
pub const MAGIC: &[u8; 8] = b"RONUSG1\n";
const HEAD: usize = 56;
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
    #[error("sealed snapshot of a newer format; update this program")]
    Newer,
    /// Bytes after the last record, or missing before it.
    #[error("the header promises {expected} bytes, the file has {found}")]
    Length {
        /// From the header.
        expected: u64,
        /// What there is.
        found: u64,
    },
    /// The records are not those the header was written for.
    #[error("the hash of the records is not the one in the header")]
    Hash,
    /// Metric names out of order, doubled or malformed.
    #[error("metric {0} in the header is malformed, doubled or out of order")]
    Metric(usize),
    /// A record (counted from 1) breaks a rule.
    #[error("record {record}: {why}")]
    Record {
        /// From 1.
        record: u64,
        /// The rule.
        why: &'static str,
    },
    /// Counts or sums do not match the records.
    #[error("the header's {0} do not match the records")]
    Totals(&'static str),
}

/// A checked snapshot in memory.
#[derive(Clone, Debug)]
pub struct Sealed {
    bytes: Vec<u8>,
    cid: ContentId,
    width: usize,
    records: usize,
    metrics: Vec<MetricTotal>,
}

/// What a snapshot is written from.
pub(super) struct Unsealed<'a> {
    /// Sorted by name.
    pub metrics: Vec<Metric>,
    /// Accounts sorted by bytes, without duplicates, each with its row in the columns.
    pub rows: Vec<(&'a [u8], usize)>,
    /// Amounts by row, one column per metric; a column may end early, with zeros.
    pub columns: Vec<&'a [u128]>,
}

impl Sealed {
    /// Checks everything the format promises. Refuses trailing bytes, unsorted or doubled
    /// accounts, and totals that do not match.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, SealError> {
        if bytes.len() < HEAD {
            return Err(SealError::Header("it is shorter than a header"));
        }
        if &bytes[..8] != MAGIC {
            let newer = bytes.starts_with(b"RONUSG") && bytes[7] == b'\n';
            return Err(if newer {
                SealError::Newer
            } else {
                SealError::Header("wrong first bytes")
            });
        }
        let width = be32(&bytes[8..]) as usize;
        let count = be32(&bytes[12..]) as usize;
        let records = be64(&bytes[16..]);
        if width > Account::MAX_LEN || count > METRICS_MAX {
            return Err(SealError::Header("its widths are out of range"));
        }
        if (records == 0) != (width == 0) || (records == 0) != (count == 0) {
            return Err(SealError::Header(
                "accounts and metrics must both be there, or both not",
            ));
        }
        let record = (width + AMOUNT * count) as u64;
        let found = bytes.len() as u64;
        let expected = records
            .checked_mul(record)
            .and_then(|body| body.checked_add((HEAD + METRIC_ENTRY * count) as u64));
        match expected {
            Some(expected) if expected == found => {}
            other => {
                return Err(SealError::Length {
                    expected: other.unwrap_or(u64::MAX),
                    found,
                });
            }
        }
        let metrics = parse_metrics(&bytes[HEAD..HEAD + METRIC_ENTRY * count])?;
        let body = HEAD + METRIC_ENTRY * count;
        if blake3::hash(&bytes[body..]).as_bytes() != &bytes[24..HEAD] {
            return Err(SealError::Hash);
        }
        let records =
            usize::try_from(records).map_err(|_| SealError::Header("too many records"))?;
        let cid = ContentId::of(&bytes);
        let sealed = Self {
            bytes,
            cid,
            width,
            records,
            metrics,
        };
        sealed.check_records()?;
        sealed.check_totals()?;
        Ok(sealed)
    }

    /// Writes and re-reads: what leaves here has passed every check of [`Sealed::parse`].
    pub(super) fn seal(unsealed: &Unsealed<'_>) -> Result<Self, SealError> {
        let count = unsealed.metrics.len();
        let width = unsealed
            .rows
            .iter()
            .map(|(account, _)| account.len())
            .max()
            .unwrap_or(0);
        let body = HEAD + METRIC_ENTRY * count;
        let mut bytes = vec![0; body];
        bytes.reserve_exact((width + AMOUNT * count) * unsealed.rows.len());
        let mut totals = vec![(0_u64, 0_u128); count];
        for (account, row) in &unsealed.rows {
            let start = bytes.len();
            bytes.extend_from_slice(account);
            bytes.resize(start + width, 0);
            for (column, (above, sum)) in unsealed.columns.iter().zip(&mut totals) {
                let amount = column.get(*row).copied().unwrap_or(0);
                bytes.extend_from_slice(&amount.to_be_bytes());
                *above += u64::from(amount != 0);
                *sum = sum
                    .checked_add(amount)
                    .ok_or(SealError::Totals("sums (above 2^128)"))?;
            }
        }
        let hash = blake3::hash(&bytes[body..]);
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&(width as u32).to_be_bytes());
        bytes[12..16].copy_from_slice(&(count as u32).to_be_bytes());
        bytes[16..24].copy_from_slice(&(unsealed.rows.len() as u64).to_be_bytes());
        bytes[24..HEAD].copy_from_slice(hash.as_bytes());
        for (at, (metric, (above, sum))) in unsealed.metrics.iter().zip(&totals).enumerate() {
            let entry = &mut bytes[HEAD + at * METRIC_ENTRY..HEAD + (at + 1) * METRIC_ENTRY];
            entry[..metric.as_str().len()].copy_from_slice(metric.as_str().as_bytes());
            entry[METRIC_NAME..METRIC_NAME + 8].copy_from_slice(&above.to_be_bytes());
            entry[METRIC_NAME + 8..].copy_from_slice(&sum.to_be_bytes());
        }
        Self::parse(bytes)
    }

    /// The content id of the whole file.
    pub const fn cid(&self) -> ContentId {
        self.cid
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The metrics it holds, sorted by name.
    pub fn metrics(&self) -> &[MetricTotal] {
        &self.metrics
    }

    /// Their names.
    pub fn metric_names(&self) -> Vec<Metric> {
        self.metrics
            .iter()
            .map(|total| total.metric.clone())
            .collect()
    }

    /// What the API says about it.
    pub fn info(&self) -> SnapshotInfo {
        SnapshotInfo {
            cid: self.cid,
            accounts: self.records as u64,
            bytes: self.bytes.len() as u64,
            metrics: self.metrics.clone(),
        }
    }

    fn record(&self, row: usize) -> &[u8] {
        let size = self.width + AMOUNT * self.metrics.len();
        let start = HEAD + METRIC_ENTRY * self.metrics.len() + row * size;
        &self.bytes[start..start + size]
    }

    fn check_records(&self) -> Result<(), SealError> {
        let first_bad = (0..self.records).into_par_iter().find_map_first(|row| {
            let padded = &self.record(row)[..self.width];
            let why = if !account_field(padded) {
                Some("its account is malformed")
            } else if row > 0 && &self.record(row - 1)[..self.width] >= padded {
                Some("its account is out of order or doubled")
            } else {
                None
            };
            why.map(|why| SealError::Record {
                record: row as u64 + 1,
                why,
            })
        });
        if let Some(bad) = first_bad {
            return Err(bad);
        }
        let full = (0..self.records)
            .into_par_iter()
            .any(|row| self.record(row)[self.width - 1] != 0);
        if self.records > 0 && !full {
            return Err(SealError::Header(
                "its account width is not that of the longest account",
            ));
        }
        Ok(())
    }

    fn check_totals(&self) -> Result<(), SealError> {
        let zero = || Some(vec![(0_u64, 0_u128); self.metrics.len()]);
        let add = |a: Option<Vec<(u64, u128)>>, b: Option<Vec<(u64, u128)>>| {
            let (mut a, b) = (a?, b?);
            for ((above, sum), (more, part)) in a.iter_mut().zip(b) {
                *above += more;
                *sum = sum.checked_add(part)?;
            }
            Some(a)
        };
        let totals = (0..self.records.div_ceil(CHUNK))
            .into_par_iter()
            .map(|chunk| {
                let mut totals = zero()?;
                for row in chunk * CHUNK..self.records.min((chunk + 1) * CHUNK) {
                    for (metric, (above, sum)) in totals.iter_mut().enumerate() {
                        let amount = self.amount(row, metric);
                        *above += u64::from(amount != 0);
                        *sum = sum.checked_add(amount)?;
                    }
                }
                Some(totals)
            })
            .reduce(zero, add)
            .ok_or(SealError::Totals("sums (above 2^128)"))?;
        for (total, (above, sum)) in self.metrics.iter().zip(totals) {
            if total.accounts != above {
                return Err(SealError::Totals("counts"));
            }
            if total.sum.0 != sum {
                return Err(SealError::Totals("sums"));
            }
        }
        Ok(())
    }
}

impl Usage for Sealed {
    fn accounts(&self) -> usize {
        self.records
    }

    fn account(&self, row: usize) -> &[u8] {
        trim(&self.record(row)[..self.width])
    }

    fn amount(&self, row: usize, metric: usize) -> u128 {
        let at = self.width + AMOUNT * metric;
        be128(&self.record(row)[at..at + AMOUNT])
    }
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

/// One or more account characters, then only padding; not one of the ledger's own accounts, which
/// could never be paid.
pub(crate) fn account_field(padded: &[u8]) -> bool {
    let account = trim(padded);
    !account.is_empty()
        && !account.starts_with(ESCROW_PREFIX.as_bytes())
        && account
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'/' | b'_' | b'-'))
}

/// `padded` without the NULs at its end.
pub(crate) fn trim(padded: &[u8]) -> &[u8] {
    let end = padded
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    &padded[..end]
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
