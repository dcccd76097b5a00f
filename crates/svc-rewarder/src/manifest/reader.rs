//! Reads a run's payouts a few at a time, each one checked against the manifest's root.
//!
//! The upper part of the tree is stored beside the table. It is small, and it is trusted because it
//! hashes to the root. One payout, or one page of them, therefore costs one group of records,
//! however large the epoch is.

use ron_files::Dir;
use ron_proto::rewarder::{ClaimHash, ClaimsRoot, Payout, PayoutProof, PayoutsRoot, RunManifest};
use ron_proto::values::Account;

use super::claims;
use super::claims_file;
use super::dir;
use super::files::{VerifyError, read, read_manifest, read_signatures, wrong};
use super::table::{Table, TableError};
use super::tree::{GROUP, Tree};
use crate::inputs::source::Source;

/// Payouts in a page, so that memory does not grow with the epoch.
const PAGE: u64 = 8_192;

/// The payouts of a run that was not quarantined.
#[derive(Debug)]
pub struct Reader {
    pub manifest: RunManifest,
    payouts: PayoutsRoot,
    dir: Dir,
    table: Table,
    tree: Tree,
}

/// Why there is no proof.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProveError {
    /// The directory is damaged.
    #[error(transparent)]
    Dir(#[from] VerifyError),
    /// The run pays nothing to the account.
    #[error("this account has no payout in this epoch")]
    NotPaid,
}

fn damaged(error: &TableError) -> VerifyError {
    wrong(dir::PAYOUTS, error)
}

impl Reader {
    /// Opens a run directory. Fails for a quarantined run, which has no payouts.
    pub fn open(dir: &Dir) -> Result<Self, VerifyError> {
        Self::with(dir, read_manifest(dir)?)
    }

    /// The same for a manifest that was read already.
    pub fn with(dir: &Dir, manifest: RunManifest) -> Result<Self, VerifyError> {
        let Some(payouts) = manifest.payouts else {
            return Err(wrong(dir::RUN, &"a quarantined run has no payouts"));
        };
        let source = Source::open(&**dir.disk(), &dir.file(dir::PAYOUTS))
            .map_err(|error| wrong(dir::PAYOUTS, &error))?;
        let table = Table::trusted(source).map_err(|error| damaged(&error))?;
        if table.len() as u64 != payouts.count || table.total() != payouts.total_minor.0 {
            return Err(wrong(
                dir::PAYOUTS,
                &"its count or total is not the manifest's",
            ));
        }
        let stored = read(dir, dir::TREE)?;
        let stored = stored.and_then(|bytes| Tree::from_bytes(&bytes, &payouts));
        let tree = match stored {
            Some(tree) => tree,
            // The stored tree is only a shortcut: if it is lost or altered, it is computed from the
            // table.
            None => table.tree().map_err(|error| damaged(&error))?,
        };
        if tree.root() != Ok(payouts) {
            return Err(wrong(
                dir::PAYOUTS,
                &"it does not hash to the manifest's root",
            ));
        }
        Ok(Self {
            manifest,
            payouts,
            dir: dir.clone(),
            table,
            tree,
        })
    }

    pub const fn len(&self) -> u64 {
        self.payouts.count
    }

    /// True if nothing is paid.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sum of all payouts, in minor units.
    pub const fn total(&self) -> u128 {
        self.payouts.total_minor.0
    }

    /// The payouts before `end`, a page at a time.
    pub const fn pages(&self, end: u64) -> Pages<'_> {
        Pages {
            reader: self,
            next: 0,
            end,
        }
    }

    /// Payouts `from .. to`, cut at the end of the table.
    pub fn range(&self, from: u64, to: u64) -> Result<Vec<Payout>, VerifyError> {
        self.read_range(from, to).map_err(|error| damaged(&error))
    }

    /// Payouts from `from` to the end of its group, which is checked as a whole: a reader of small pieces takes it at once.
    pub fn rest_of_group(&self, from: u64) -> Result<Vec<Payout>, VerifyError> {
        let group = GROUP as u64;
        self.range(from, (from / group + 1) * group)
    }

    fn read_range(&self, from: u64, to: u64) -> Result<Vec<Payout>, TableError> {
        let size = self.table.record_size();
        let (mut row, end) = (from as usize, to.min(self.len()) as usize);
        let mut payouts = Vec::with_capacity(end.saturating_sub(row));
        while row < end {
            let group = row / GROUP;
            let records = self.table.group(group, &self.tree)?;
            let last = end.min((group + 1) * GROUP);
            for at in row..last {
                let within = (at % GROUP) * size;
                payouts.push(self.table.payout(at, &records[within..within + size])?);
            }
            row = last;
        }
        Ok(payouts)
    }

    /// The payout of `account`, if it has one.
    pub fn payout(&self, account: &Account) -> Result<Option<Payout>, VerifyError> {
        let row = self.table.find(account);
        let row = row.map_err(|error| wrong(dir::PAYOUTS, &error))?;
        let Some(row) = row else { return Ok(None) };
        let rows = self.range(row as u64, row as u64 + 1)?;
        Ok(rows.into_iter().next())
    }

    /// The record of the residual's owner, if it is paid out.
    pub fn residual(&self) -> Result<Option<Payout>, VerifyError> {
        if !self.table.residual_row() {
            return Ok(None);
        }
        let last = self.len().saturating_sub(1);
        Ok(self.range(last, last + 1)?.into_iter().next())
    }

    /// The proof of `account`'s payout.
    pub fn prove(&self, account: &Account) -> Result<PayoutProof, ProveError> {
        let found = self.table.find(account);
        let row = found.map_err(|error| wrong(dir::PAYOUTS, &error))?;
        let row = row.ok_or(ProveError::NotPaid)?;
        let path = self.table.path(row, &self.tree);
        let path = path.map_err(|error| damaged(&error))?;
        let payouts = self.range(row as u64, row as u64 + 1)?;
        let (Some(path), Some(payout)) = (path, payouts.into_iter().next()) else {
            return Err(ProveError::NotPaid);
        };
        let claim = match &self.manifest.claims {
            Some(claims) => self.claim(&payout, claims)?,
            None => Vec::new(),
        };
        Ok(PayoutProof {
            payout,
            path,
            manifest: self.manifest.clone(),
            signatures: read_signatures(&self.dir)?,
            claim,
        })
    }

    /// Passes the proof of every record to `see`, in the order of the table, and ends at its first
    /// error. Each group of records is hashed once.
    pub fn each_proof(
        &self,
        mut see: impl FnMut(&PayoutProof) -> Result<(), String>,
    ) -> Result<(), String> {
        let text = |error: TableError| damaged(&error).to_string();
        let signatures = read_signatures(&self.dir).map_err(|error| error.to_string())?;
        let claims = match &self.manifest.claims {
            Some(_) => Some(self.claim_tree().map_err(|error| error.to_string())?),
            None => None,
        };
        let size = self.table.record_size();
        let paths = self.tree.paths().map_err(|error| text(error.into()))?;
        for group in 0..self.table.len().div_ceil(GROUP) {
            let records = self.table.group(group, &self.tree).map_err(text)?;
            let steps = paths.group(group, &records, size);
            let steps = steps.map_err(|error| text(error.into()))?;
            for (at, record) in records.chunks_exact(size).enumerate() {
                let row = group * GROUP + at;
                let claim = claims.as_ref().and_then(|tree| tree.path(row));
                see(&PayoutProof {
                    payout: self.table.payout(row, record).map_err(text)?,
                    path: steps.path(at),
                    manifest: self.manifest.clone(),
                    signatures: signatures.clone(),
                    claim: claim.unwrap_or_default(),
                })?;
            }
        }
        Ok(())
    }

    /// Index of the residual's record, if its owner has another one, of which [`Reader::prove`] gives
    /// the proof.
    pub fn second_record(&self) -> Result<Option<u64>, VerifyError> {
        let Some(residual) = self.residual()? else {
            return Ok(None);
        };
        let own = self.payout(&residual.account)?;
        Ok(own
            .is_some_and(|own| own.index != residual.index)
            .then_some(residual.index))
    }

    /// The path of a payout in the claim tree. The stored tree is only a shortcut: where it is lost or
    /// altered, the tree is computed from the table.
    fn claim(&self, payout: &Payout, of: &ClaimsRoot) -> Result<Vec<ClaimHash>, VerifyError> {
        let stored = Source::open(&**self.dir.disk(), &self.dir.file(dir::CLAIMS_TREE)).ok();
        let row = payout.index as usize;
        let path = stored.and_then(|tree| {
            let read = |from, len| tree.at(from, len).ok().map(std::borrow::Cow::into_owned);
            claims::stored_path(self.table.len(), row, read)
        });
        let holds = |path: &Vec<ClaimHash>| claims::check_path(payout, path, &of.root).is_ok();
        if let Some(path) = path.filter(holds) {
            return Ok(path);
        }
        let path = self.claim_tree()?.path(row);
        let path = path.filter(holds);
        path.ok_or_else(|| {
            wrong(
                dir::PAYOUTS,
                &"it does not hash to the manifest's claim root",
            )
        })
    }

    /// The claim tree, computed from the table.
    pub fn claim_tree(&self) -> Result<claims::Tree, VerifyError> {
        claims_file::tree_of(&self.table).map_err(|error| wrong(dir::PAYOUTS, &error))
    }

    /// The payout table. Its records are unchecked but for what this reader hands out.
    pub const fn table(&self) -> &Table {
        &self.table
    }
}

/// What [`Reader::pages`] returns.
#[derive(Debug)]
pub struct Pages<'r> {
    reader: &'r Reader,
    next: u64,
    end: u64,
}

impl Iterator for Pages<'_> {
    type Item = Result<Vec<Payout>, VerifyError>;

    fn next(&mut self) -> Option<Self::Item> {
        let from = self.next;
        self.next = self.end.min(from + PAGE);
        (from < self.end).then(|| self.reader.range(from, self.next))
    }
}

/// The proof of `account`'s payout from the run in `dir`.
pub fn prove(dir: &Dir, account: &Account) -> Result<PayoutProof, ProveError> {
    let manifest = read_manifest(dir)?;
    if manifest.payouts.is_none() {
        return Err(ProveError::NotPaid);
    }
    Reader::with(dir, manifest)?.prove(account)
}
