//! Corrections: an epoch that pays what an earlier epoch should have paid, and did not.
//!
//! ```text
//! due      what the inputs of the correction give each account, and the residual to its owner
//! before   what the earlier epoch, and the corrections before this one, have paid
//! payout   due - before, where that is above zero
//! ```
//!
//! Nothing is taken back: an account that got too much keeps it, and is listed. `correction.bin` has the
//! two amounts of every account that has either, as a sealed snapshot with the metrics `due` and `paid`;
//! the manifest names it, so that the correction is computed again from its own directory.
//!
//! **Invariant:** what is due and what was overpaid are together what was paid before and what the
//! correction pays.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ron_files::Dir;
use ron_proto::rewarder::{Metric, Payout, PolicyId, RewardPolicy, RunManifest};
use ron_proto::values::{Account, Asset, ContentId, EpochId, Tenant};

use super::dir;
use super::files::{VerifyError, read_manifest, wrong};
use super::reader::Reader;
use super::table::find_row;
use crate::calculus::{Stop, Usage};
use crate::inputs::snapshot::{SealError, Sealed};
use crate::inputs::source::Source;

/// Columns of `correction.bin`, in the order of their names.
pub(super) const METRICS: [&str; 2] = ["due", "paid"];
const DUE: usize = 0;
const PAID: usize = 1;
pub(super) const TOO_MUCH: &str =
    "what the corrected epoch and its corrections have paid passes 2^128";
/// Rows read at a time.
const STEP: usize = 8_192;

/// An epoch that is corrected, and what was paid by it and by the corrections before.
#[derive(Debug)]
pub struct Earlier {
    tenant: Tenant,
    epoch: EpochId,
    commitment: ContentId,
    policy_id: PolicyId,
    asset: Asset,
    /// Whether its payees claim their payouts elsewhere.
    claims: bool,
    pub(super) paid: Arc<Paid>,
}

#[derive(Debug)]
pub(super) enum Paid {
    /// An epoch that corrects none: its payouts.
    Payouts(Box<Reader>),
    /// A correction: what was paid before it, or what was due where that was more.
    Corrected(Sealed),
    /// The correction itself, computed again: what was paid before it.
    Stored(Sealed),
}

impl Earlier {
    /// Opens the run directory of an epoch that was settled.
    pub fn open(dir: &Dir) -> Result<Self, VerifyError> {
        let manifest = read_manifest(dir)?;
        let paid = match accounts(dir, &manifest)? {
            Some(accounts) => Paid::Corrected(accounts),
            None => Paid::Payouts(Box::new(Reader::with(dir, manifest.clone())?)),
        };
        Ok(Self {
            tenant: manifest.tenant,
            epoch: manifest.epoch_id,
            commitment: manifest.commitment,
            policy_id: manifest.inputs.policy_id,
            asset: manifest.asset,
            claims: manifest.claims.is_some(),
            paid: Arc::new(paid),
        })
    }

    /// What the correction in `dir` itself says was paid before; `None` for an epoch that corrects none.
    pub(super) fn stored(dir: &Dir, manifest: &RunManifest) -> Result<Option<Self>, VerifyError> {
        let (Some(accounts), Some(correction), Some(epoch)) = (
            accounts(dir, manifest)?,
            &manifest.correction,
            &manifest.adjusts,
        ) else {
            return Ok(None);
        };
        Ok(Some(Self {
            tenant: manifest.tenant.clone(),
            epoch: epoch.clone(),
            commitment: correction.of,
            policy_id: manifest.inputs.policy_id.clone(),
            asset: manifest.asset.clone(),
            claims: manifest.claims.is_some(),
            paid: Arc::new(Paid::Stored(accounts)),
        }))
    }

    /// The epoch's id.
    pub const fn epoch(&self) -> &EpochId {
        &self.epoch
    }

    /// Commitment of its manifest.
    pub const fn commitment(&self) -> ContentId {
        self.commitment
    }

    /// Refuses to correct what another policy paid, or paid in another way.
    pub(super) fn check(&self, policy: &RewardPolicy) -> Result<(), String> {
        let epoch = &self.epoch;
        let refuse = |why: String| Err(format!("it does not correct epoch {epoch}: {why}"));
        if self.tenant != policy.tenant {
            return refuse(format!("that is an epoch of tenant {}", self.tenant));
        }
        if self.policy_id != policy.id {
            return refuse(format!(
                "that was paid by policy \"{}\"; correct it by a version of that policy",
                self.policy_id
            ));
        }
        if self.asset != policy.asset {
            return refuse(format!(
                "that paid {}, and the policy pays {}",
                self.asset, policy.asset
            ));
        }
        if self.claims != policy.claims_account.is_some() {
            return refuse(
                "one of the two pays claims, and the other one in the ledger".to_owned(),
            );
        }
        Ok(())
    }

    /// Checks that `correction.bin` in `dir`, the directory of a correction of this epoch, has what was
    /// paid.
    pub fn check_correction(&self, dir: &Dir) -> Result<(), VerifyError> {
        let manifest = read_manifest(dir)?;
        let (Some(correction), Some(accounts)) = (manifest.correction, accounts(dir, &manifest)?)
        else {
            return Err(wrong(dir::RUN, &"it is not the manifest of a correction"));
        };
        if correction.of != self.commitment {
            return Err(wrong(
                dir::RUN,
                &format!(
                    "it corrects another manifest than that of epoch {}",
                    self.epoch
                ),
            ));
        }
        let unread = |stop| wrong(dir::PAYOUTS, &stop);
        let mut paid = self.paid().map_err(unread)?;
        let mut rows = Rows::over(&accounts);
        loop {
            let stored = rows.next().map_err(|stop| wrong(dir::CORRECTION, &stop))?;
            if stored.as_ref().is_some_and(|row| row.paid == 0) {
                continue;
            }
            let was = paid.next().map_err(unread)?;
            match (stored, was) {
                (None, None) => return Ok(()),
                (Some(stored), Some(was))
                    if (&stored.account, stored.paid) == (&was.account, was.paid) => {}
                _ => {
                    let why = "it has other amounts than were paid before";
                    return Err(wrong(dir::CORRECTION, &why));
                }
            }
        }
    }

    /// What was paid to every account, a residual among it, in the order of the accounts.
    pub fn paid(&self) -> Result<Before, Stop> {
        self.rows(None)
    }

    /// What was paid, and beside it what is due to the owner of a residual.
    pub(super) fn rows(&self, residual: Option<(&Account, u128)>) -> Result<Before, Stop> {
        let mut extra: BTreeMap<Vec<u8>, (u128, u128)> = BTreeMap::new();
        if let Some((owner, due)) = residual {
            extra.insert(owner.as_str().as_bytes().to_vec(), (0, due));
        }
        if let Paid::Payouts(reader) = &*self.paid
            && let Some(residual) = reader.residual().map_err(unread)?
        {
            let row = paid_row(residual);
            extra.entry(row.account).or_default().0 = row.paid;
        }
        let mut rows = Before {
            paid: Arc::clone(&self.paid),
            next: 0,
            page: Vec::new().into_iter(),
            head: None,
            extra,
        };
        rows.head = rows.read()?;
        Ok(rows)
    }

    /// Number of accounts that were paid, at most.
    pub fn accounts(&self) -> usize {
        match &*self.paid {
            // A table that is open is on the disk, where lengths are addresses.
            Paid::Payouts(reader) => reader.len() as usize,
            Paid::Corrected(accounts) | Paid::Stored(accounts) => accounts.accounts(),
        }
    }
}

/// Opens `correction.bin` of a run's directory, which must be the one that its manifest names; `None`
/// for an epoch that corrects none.
pub fn accounts(dir: &Dir, manifest: &RunManifest) -> Result<Option<Sealed>, VerifyError> {
    let Some(correction) = &manifest.correction else {
        return Ok(None);
    };
    let sealed = Sealed::open(&**dir.disk(), &dir.file(dir::CORRECTION));
    let sealed = sealed.map_err(|error| wrong(dir::CORRECTION, &error))?;
    if sealed.cid() != correction.accounts {
        return Err(not_named());
    }
    with_columns(sealed).map(Some)
}

/// The same without reading all of it, to answer for a few accounts: its content is not compared with the manifest.
pub fn unchecked(dir: &Dir, manifest: &RunManifest) -> Result<Option<Sealed>, VerifyError> {
    let Some(correction) = &manifest.correction else {
        return Ok(None);
    };
    let source = Source::open(&**dir.disk(), &dir.file(dir::CORRECTION));
    let sealed = source
        .map_err(SealError::from)
        .and_then(|source| Sealed::unchecked(source, correction.accounts));
    let sealed = sealed.map_err(|error| wrong(dir::CORRECTION, &error))?;
    with_columns(sealed).map(Some)
}

fn with_columns(sealed: Sealed) -> Result<Sealed, VerifyError> {
    let names = sealed.metric_names();
    let are_columns = sealed.accounts() == 0 || names.iter().map(Metric::as_str).eq(METRICS);
    are_columns.then_some(sealed).ok_or_else(not_named)
}

fn not_named() -> VerifyError {
    wrong(
        dir::CORRECTION,
        &"it is not the file that the manifest names",
    )
}

/// One account of a correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub account: Vec<u8>,
    /// What was paid before, in minor units.
    pub paid: u128,
    /// What is due, in minor units.
    pub due: u128,
}

impl Row {
    /// What the account has in all once the correction is paid: nothing is taken back.
    pub fn paid_in_all(&self) -> u128 {
        self.paid.max(self.due)
    }
}

/// The accounts of `correction.bin`, in order.
#[derive(Debug)]
pub struct Rows<'s> {
    accounts: &'s Sealed,
    next: usize,
    page: std::vec::IntoIter<Row>,
}

impl<'s> Rows<'s> {
    /// Reads from the first account on.
    pub fn over(accounts: &'s Sealed) -> Self {
        Self {
            accounts,
            next: 0,
            page: Vec::new().into_iter(),
        }
    }

    /// The next account, in order; `None` after the last one.
    #[expect(clippy::should_implement_trait, reason = "reading may fail")]
    pub fn next(&mut self) -> Result<Option<Row>, Stop> {
        if self.page.len() == 0 {
            self.page = page(self.accounts, &mut self.next)?.into_iter();
        }
        Ok(self.page.next())
    }
}

fn page(accounts: &Sealed, next: &mut usize) -> Result<Vec<Row>, Stop> {
    let from = *next;
    *next += STEP.min(accounts.accounts() - from);
    range(accounts, from as u64..*next as u64)
}

/// Rows of `correction.bin`, which has as many.
pub fn range(accounts: &Sealed, rows: Range<u64>) -> Result<Vec<Row>, Stop> {
    // Row numbers of an open file are addresses.
    let (first, rows) = (rows.start as usize, (rows.end - rows.start) as usize);
    if rows == 0 {
        return Ok(Vec::new());
    }
    let block = accounts.block(first, rows)?;
    let row = |at| Row {
        account: block.account(at).to_vec(),
        paid: block.amount(at, PAID),
        due: block.amount(at, DUE),
    };
    Ok((0..rows).map(row).collect())
}

/// The account's row of `correction.bin`.
pub fn find(accounts: &Sealed, account: &Account) -> Result<Option<Row>, Stop> {
    let wanted = account.as_str().as_bytes();
    let order = |row| {
        accounts
            .block(row, 1)
            .map(|block| block.account(0).cmp(wanted))
    };
    let Some(mut row) = find_row(accounts.accounts(), order)? else {
        return Ok(None);
    };
    let found = page(accounts, &mut row)?;
    Ok(found.into_iter().next())
}

/// What was paid before, in the order of the accounts, with the residuals at their owners' places.
#[derive(Debug)]
pub struct Before {
    paid: Arc<Paid>,
    next: usize,
    page: std::vec::IntoIter<Row>,
    /// The next row of `paid`.
    head: Option<Row>,
    /// What was paid and is due beside it, by account.
    extra: BTreeMap<Vec<u8>, (u128, u128)>,
}

impl Before {
    fn read(&mut self) -> Result<Option<Row>, Stop> {
        if self.page.len() == 0 {
            self.page = self.read_page()?.into_iter();
        }
        Ok(self.page.next())
    }

    fn read_page(&mut self) -> Result<Vec<Row>, Stop> {
        let (rows, paid): (_, fn(&Row) -> u128) = match &*self.paid {
            Paid::Payouts(reader) => {
                let (from, end) = (self.next as u64, reader.manifest.totals.recipients);
                let rows = reader.range(from, end.min(from + STEP as u64));
                let rows = rows.map_err(unread)?;
                self.next += rows.len();
                return Ok(rows.into_iter().map(paid_row).collect());
            }
            Paid::Corrected(accounts) => (page(accounts, &mut self.next)?, Row::paid_in_all),
            Paid::Stored(accounts) => (page(accounts, &mut self.next)?, |row| row.paid),
        };
        let before = |row: Row| Row {
            paid: paid(&row),
            due: 0,
            account: row.account,
        };
        Ok(rows.into_iter().map(before).collect())
    }

    /// The next account with anything, if `wanted` takes its name.
    pub(super) fn next_if(&mut self, wanted: impl Fn(&[u8]) -> bool) -> Result<Option<Row>, Stop> {
        let head = self.head.as_ref().map(|row| row.account.as_slice());
        let extra = self
            .extra
            .first_key_value()
            .map(|(account, _)| account.as_slice());
        let first = match (head, extra) {
            (Some(head), Some(extra)) => head.min(extra),
            (head, extra) => match head.or(extra) {
                Some(first) => first,
                None => return Ok(None),
            },
        };
        if !wanted(first) {
            return Ok(None);
        }
        let is_extra = extra == Some(first);
        let mut row = if head == Some(first) {
            let next = self.read()?;
            std::mem::replace(&mut self.head, next)
        } else {
            None
        };
        if is_extra && let Some((account, (paid, due))) = self.extra.pop_first() {
            let row = row.get_or_insert(Row {
                account,
                paid: 0,
                due: 0,
            });
            row.paid = more(row.paid, paid)?;
            row.due = more(row.due, due)?;
        }
        Ok(row)
    }

    /// The next account, in order; `None` after the last one.
    #[expect(clippy::should_implement_trait, reason = "reading may fail")]
    pub fn next(&mut self) -> Result<Option<Row>, Stop> {
        self.next_if(|_| true)
    }
}

fn unread(error: VerifyError) -> Stop {
    Stop::Io(error.to_string())
}

fn paid_row(payout: Payout) -> Row {
    Row {
        account: payout.account.as_str().as_bytes().to_vec(),
        paid: payout.amount_minor.0,
        due: 0,
    }
}

pub(super) fn more(sum: u128, amount: u128) -> Result<u128, Stop> {
    let sum = sum.checked_add(amount);
    sum.ok_or_else(|| Stop::Payee(TOO_MUCH.to_owned()))
}
