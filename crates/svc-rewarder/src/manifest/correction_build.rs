//! Computes a correction: compares what is due with what was paid, and writes the differences.

use std::collections::BTreeMap;

use ron_proto::rewarder::{Correction, Metric, PayRule, RewardPolicy, RunTotals};
use ron_proto::values::{Amount, ContentId};
use ruint::aliases::U256;

use super::claims::Addresses;
use super::correction::{Before, Earlier, METRICS, Paid, TOO_MUCH, more};
use super::dir;
use super::table::{Built, Table};
use crate::calculus::{Plan, ShareBlock, Stop, Sums, Usage, Watch};
use crate::inputs::snapshot::{SealError, SealWriter, Sealed};
use crate::inputs::source::Target;

/// What a correction consists of, beside its manifest.
pub(super) struct Outcome {
    pub built: Built,
    pub correction: Correction,
    /// `correction.bin`; `None` for [`Target::Nowhere`].
    pub accounts: Option<Sealed>,
}

/// Where a correction is written.
pub(super) struct Targets {
    pub payouts: Target,
    pub accounts: Target,
}

/// What is known of the rows before they are written.
#[derive(Default)]
struct Measure {
    width: usize,
    payouts_width: usize,
    paid: u128,
    payout: u128,
    overpaid_minor: u128,
    overpaid: u64,
    recipients: u64,
    /// Of an epoch with claims.
    addresses: Option<Addresses>,
}

impl Measure {
    fn add(&mut self, account: &[u8], paid: u128, due: u128) -> Result<(), Stop> {
        if let Some(addresses) = &mut self.addresses {
            let added = addresses.add(account);
            added.map_err(|error| Stop::Payee(error.to_string()))?;
        }
        self.width = self.width.max(account.len());
        self.paid = more(self.paid, paid)?;
        if due > paid {
            self.payouts_width = self.payouts_width.max(account.len());
            // No more than what is due in all, which is no more than the pool.
            self.payout = more(self.payout, due - paid)?;
            self.recipients += 1;
        }
        if paid > due {
            self.overpaid_minor += paid - due;
            self.overpaid += 1;
        }
        Ok(())
    }
}

/// Reads the usage two or three times: what is due must be known before a row can be written.
pub(super) fn build<U: Usage>(
    usage: &U,
    plan: &Plan,
    policy: &RewardPolicy,
    (earlier, targets): (&Earlier, Targets),
    watch: &impl Watch,
) -> Result<Outcome, Stop> {
    let quiet = Quiet(watch);
    let apart = policy.residual.owner != policy.pool.account;
    let mut residual = BTreeMap::new();
    if apart {
        let sums = plan.visit_shares(usage, &quiet, |_| Ok(()))?;
        if sums.residual > 0 {
            let owner = policy.residual.owner.as_str().as_bytes();
            residual.insert(owner.to_vec(), sums.residual);
        }
    }
    let mut all = Measure {
        addresses: (policy.pay == PayRule::Claims).then(Addresses::default),
        ..Measure::default()
    };
    let rows = earlier.rows(residual.clone());
    let due = merge((usage, plan), rows, &quiet, |account, paid, due| {
        all.add(account, paid, due)
    })?;
    // An address that was paid in another spelling would be paid again.
    let addresses = all.addresses.take().map_or(Ok(()), Addresses::finish);
    addresses.map_err(|error| {
        Stop::Payee(format!(
            "{error}; it keeps the spelling in which it was paid before"
        ))
    })?;
    let sums = Sums {
        pool: all.payout,
        payout: all.payout,
        residual: 0,
        recipients: all.recipients,
    };
    let pair = (&all, sums);
    let (built, accounts, cid) = write(
        (usage, plan),
        policy,
        (earlier, residual, targets),
        pair,
        watch,
    )?;
    let correction = Correction {
        of: earlier.commitment(),
        accounts: cid,
        due: RunTotals {
            pool_minor: Amount(due.pool),
            payout_minor: Amount(due.payout),
            residual_minor: Amount(due.residual),
            recipients: due.recipients,
        },
        paid_minor: Amount(all.paid),
        overpaid_minor: Amount(all.overpaid_minor),
        overpaid: all.overpaid,
    };
    check_books(&correction, &sums, apart)?;
    Ok(Outcome {
        built,
        correction,
        accounts,
    })
}

/// Writes the differences and what they are of; returns `correction.bin` and its content id as well.
fn write<U: Usage>(
    (usage, plan): (&U, &Plan),
    policy: &RewardPolicy,
    (earlier, residual, targets): (&Earlier, BTreeMap<Vec<u8>, u128>, Targets),
    (all, sums): (&Measure, Sums),
    watch: &impl Watch,
) -> Result<(Built, Option<Sealed>, ContentId), Stop> {
    let mut seal = SealWriter::new(targets.accounts, None, metrics(all.width)?, all.width)
        .map_err(unsealed)?;
    let fill = |writer: &mut super::table::Writer<'_>| {
        merge(
            (usage, plan),
            earlier.rows(residual),
            watch,
            |account, paid, due| {
                seal.push(account, [due, paid].into_iter())
                    .map_err(unsealed)?;
                if due > paid {
                    writer.row(account, due - paid)?;
                }
                Ok(())
            },
        )?;
        Ok(sums)
    };
    let built = Table::of_rows(targets.payouts, all.payouts_width, policy.pay, fill)?;
    let (head, source) = seal.close().map_err(unsealed)?;
    let (accounts, cid) = match source {
        Some(source) => {
            let sealed = Sealed::check(source).map_err(unsealed)?;
            let cid = sealed.cid();
            (Some(sealed), cid)
        }
        None => (None, earlier.stored_cid(&head)?),
    };
    Ok((built, accounts, cid))
}

impl Earlier {
    /// The content id of the stored `correction.bin`, if computing it again gives this header.
    fn stored_cid(&self, head: &[u8]) -> Result<ContentId, Stop> {
        let Paid::Stored(stored) = &*self.paid else {
            return Err(Stop::Broken("a correction was written nowhere"));
        };
        let header = stored
            .header()
            .map_err(|error| Stop::Io(error.to_string()))?;
        if *header == *head {
            Ok(stored.cid())
        } else {
            let file = dir::CORRECTION;
            Err(Stop::Io(format!(
                "computing {file} again gives other amounts"
            )))
        }
    }
}

/// What is due and what was overpaid are together what was paid before and what is paid now.
fn check_books(correction: &Correction, sums: &Sums, apart: bool) -> Result<(), Stop> {
    let due = &correction.due;
    let residual = if apart { due.residual_minor.0 } else { 0 };
    let sum = |parts: [u128; 2]| parts.into_iter().map(U256::from).sum::<U256>();
    let moved = sum([due.payout_minor.0, residual]);
    let is = moved + U256::from(correction.overpaid_minor.0);
    if is == sum([correction.paid_minor.0, sums.payout]) {
        Ok(())
    } else {
        Err(Stop::Broken(
            "what is due does not add up to what was paid and what is paid",
        ))
    }
}

/// Passes every account to which something is due or was paid to `see`, in order, with what was paid
/// and what is due.
fn merge<U: Usage>(
    (usage, plan): (&U, &Plan),
    mut before: Before,
    watch: &impl Watch,
    mut see: impl FnMut(&[u8], u128, u128) -> Result<(), Stop> + Send,
) -> Result<Sums, Stop> {
    let sums = plan.visit_shares(usage, watch, |blocks| {
        for (share, account) in blocks.iter().flat_map(ShareBlock::shares) {
            while let Some(row) = before.next_if(|name| name < account)? {
                see(&row.account, row.paid, row.due)?;
            }
            let same = before.next_if(|name| name == account)?;
            let (paid, due) = same.map_or((0, 0), |row| (row.paid, row.due));
            see(account, paid, more(due, share.amount)?)?;
        }
        Ok(())
    })?;
    while let Some(row) = before.next()? {
        see(&row.account, row.paid, row.due)?;
    }
    Ok(sums)
}

/// Only passes cancellation on, so that progress counts every account once.
struct Quiet<'w, W>(&'w W);

impl<W: Watch> Watch for Quiet<'_, W> {
    fn weighed(&self, _: u64) {}
    fn shared(&self, _: u64) {}
    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
}

/// The columns; a snapshot without accounts has none.
fn metrics(width: usize) -> Result<Vec<Metric>, Stop> {
    if width == 0 {
        return Ok(Vec::new());
    }
    let parsed = METRICS.iter().map(|name| name.parse());
    let parsed: Result<_, _> = parsed.collect();
    parsed.map_err(|_| Stop::Broken("a column of a correction has no name"))
}

fn unsealed(error: SealError) -> Stop {
    match error {
        SealError::Totals(_) => Stop::Payee(TOO_MUCH.to_owned()),
        SealError::Io(why) => Stop::Io(format!("the correction cannot be written: {why}")),
        other => Stop::Io(format!("the correction breaks its own format: {other}")),
    }
}
