//! The payout table, `payouts.bin`: who gets how much, in settlement order.
//!
//! ```text
//! offset  size      field                                   (integers big-endian)
//! 0       8         "RONPAY1\n"
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

use rayon::prelude::*;
use ron_proto::rewarder::{Payout, RewardPolicy};
use ron_proto::values::{Account, Amount};

use crate::calculus::{Outcome, Stop, Usage};
use crate::inputs::snapshot::{account_field, be64, be128, trim};

/// First bytes of every payout table; the digit is the format's version.
pub const MAGIC: &[u8; 8] = b"RONPAY1\n";
const HEAD: usize = 72;
const AMOUNT: usize = 16;

/// Why bytes are not a payout table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Wrong first bytes, widths or length.
    #[error("not a payout table: {0}")]
    Header(&'static str),
    /// A record (counted from 0, as in the ledger) breaks a rule.
    #[error("payout {index}: {why}")]
    Record {
        /// From 0.
        index: u64,
        /// The rule.
        why: &'static str,
    },
    /// Hash or sum do not match the records.
    #[error("the header's {0} does not match the records")]
    Totals(&'static str),
}

/// A checked payout table in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    bytes: Vec<u8>,
    width: usize,
    records: usize,
    total: u128,
    residual_row: bool,
}

impl Table {
    /// Writes the table of an outcome. The residual gets a record of its own when the policy
    /// gives it to another account than the pool.
    pub fn build<U: Usage>(
        usage: &U,
        outcome: &Outcome,
        policy: &RewardPolicy,
    ) -> Result<Self, Stop> {
        let owner = policy.residual.owner.as_str().as_bytes();
        let residual_row = policy.residual.owner != policy.pool.account && outcome.residual > 0;
        let shares = &outcome.shares;
        let width = shares
            .iter()
            .map(|share| usage.account(share.row as usize).len())
            .chain(residual_row.then_some(owner.len()))
            .max()
            .unwrap_or(0);
        let records = shares.len() + usize::from(residual_row);
        let total = if residual_row {
            outcome.pool
        } else {
            outcome.payout
        };
        let mut bytes = vec![0; HEAD];
        bytes.reserve_exact(records * (width + AMOUNT));
        let mut push = |account: &[u8], amount: u128| {
            let start = bytes.len();
            bytes.extend_from_slice(account);
            bytes.resize(start + width, 0);
            bytes.extend_from_slice(&amount.to_be_bytes());
        };
        for share in shares {
            push(usage.account(share.row as usize), share.amount);
        }
        if residual_row {
            push(owner, outcome.residual);
        }
        let hash = blake3::hash(&bytes[HEAD..]);
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&(width as u32).to_be_bytes());
        bytes[12..16].copy_from_slice(&u32::from(residual_row).to_be_bytes());
        bytes[16..24].copy_from_slice(&(records as u64).to_be_bytes());
        bytes[24..40].copy_from_slice(&total.to_be_bytes());
        bytes[40..HEAD].copy_from_slice(hash.as_bytes());
        Self::parse(bytes).map_err(|_| Stop::Broken("the payout table breaks its own format"))
    }

    /// Checks everything the format promises.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, TableError> {
        if bytes.len() < HEAD || &bytes[..8] != MAGIC {
            return Err(TableError::Header("wrong first bytes"));
        }
        let width = be32(&bytes[8..]) as usize;
        let flags = be32(&bytes[12..]);
        let records = be64(&bytes[16..]);
        if width > Account::MAX_LEN || flags > 1 || (records == 0) != (width == 0) {
            return Err(TableError::Header("its widths or flags are out of range"));
        }
        if flags == 1 && records == 0 {
            return Err(TableError::Header(
                "its flags promise a record it does not have",
            ));
        }
        let body = records.checked_mul((width + AMOUNT) as u64);
        if body.and_then(|body| body.checked_add(HEAD as u64)) != Some(bytes.len() as u64) {
            return Err(TableError::Header(
                "its length is not what the header promises",
            ));
        }
        if blake3::hash(&bytes[HEAD..]).as_bytes() != &bytes[40..HEAD] {
            return Err(TableError::Totals("hash"));
        }
        let records =
            usize::try_from(records).map_err(|_| TableError::Header("too many records"))?;
        let total = be128(&bytes[24..]);
        let table = Self {
            bytes,
            width,
            records,
            total,
            residual_row: flags == 1,
        };
        table.check_records()?;
        Ok(table)
    }

    fn check_records(&self) -> Result<(), TableError> {
        let sorted = self.records - usize::from(self.residual_row);
        let first_bad = (0..self.records).into_par_iter().find_map_first(|row| {
            let padded = &self.record(row)[..self.width];
            let why = if !account_field(padded) {
                Some("its account is malformed")
            } else if self.amount(row) == 0 {
                Some("its amount is zero")
            } else if row > 0 && row < sorted && &self.record(row - 1)[..self.width] >= padded {
                Some("its account is out of order or doubled")
            } else {
                None
            };
            why.map(|why| TableError::Record {
                index: row as u64,
                why,
            })
        });
        if let Some(bad) = first_bad {
            return Err(bad);
        }
        let full = (0..self.records).any(|row| self.record(row)[self.width - 1] != 0);
        if self.records > 0 && !full {
            return Err(TableError::Header(
                "its account width is not that of the longest account",
            ));
        }
        let sum = (0..self.records).try_fold(0_u128, |sum, row| sum.checked_add(self.amount(row)));
        if sum != Some(self.total) {
            return Err(TableError::Totals("sum"));
        }
        Ok(())
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of records.
    pub const fn len(&self) -> usize {
        self.records
    }

    /// True without any record.
    pub const fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Sum of all records, in minor units: what settlement moves.
    pub const fn total(&self) -> u128 {
        self.total
    }

    /// True if the last record is the residual's.
    pub const fn residual_row(&self) -> bool {
        self.residual_row
    }

    fn record(&self, row: usize) -> &[u8] {
        let size = self.width + AMOUNT;
        &self.bytes[HEAD + row * size..HEAD + (row + 1) * size]
    }

    /// The account of a record.
    pub fn account(&self, row: usize) -> &[u8] {
        trim(&self.record(row)[..self.width])
    }

    /// The amount of a record, in minor units.
    pub fn amount(&self, row: usize) -> u128 {
        be128(&self.record(row)[self.width..])
    }

    /// The record as the API shows it.
    pub fn payout(&self, row: usize) -> Payout {
        let account = std::str::from_utf8(self.account(row))
            .ok()
            .and_then(|text| text.parse().ok());
        Payout {
            index: row as u64,
            account: account.expect("parse has checked every account"),
            amount_minor: Amount(self.amount(row)),
        }
    }

    /// Where an account's own payout is. The residual's record is found only when the owner has
    /// no other.
    pub fn find(&self, account: &Account) -> Option<usize> {
        let wanted = account.as_str().as_bytes();
        let sorted = self.records - usize::from(self.residual_row);
        let (mut low, mut high) = (0, sorted);
        while low < high {
            let middle = low.midpoint(high);
            match self.account(middle).cmp(wanted) {
                std::cmp::Ordering::Equal => return Some(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        (self.residual_row && self.account(sorted) == wanted).then_some(sorted)
    }
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
