//! Computes a correction: compares what is due with what was paid, and writes the differences.

use ron_proto::rewarder::{Correction, Metric, PayRule, RewardPolicy, RunTotals};
use ron_proto::values::{Account, Amount, ContentId};
use ruint::aliases::U256;

use super::claims::Addresses;
use super::correction::{Earlier, METRICS, Paid, TOO_MUCH, more};
use super::dir;
use super::table::{Built, Table, Writer};
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
    /// The sums of what the correction pays, which has no residual.
    const fn sums(&self) -> Sums {
        Sums {
            pool: self.payout,
            payout: self.payout,
            residual: 0,
            recipients: self.recipients,
        }
    }

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

/// What a correction is computed from.
struct Inputs<'a, U> {
    usage: &'a U,
    plan: &'a Plan,
    policy: &'a RewardPolicy,
    earlier: &'a Earlier,
    /// The residual that is due to its owner; `None` where the pool keeps it.
    residual: Option<(&'a Account, u128)>,
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
    let residual = if policy.pays_residual() {
        let sums = plan.visit_shares(usage, &quiet, |_| Ok(()))?;
        (sums.residual > 0).then_some((&policy.residual.owner, sums.residual))
    } else {
        None
    };
    let inputs = Inputs {
        usage,
        plan,
        policy,
        earlier,
        residual,
    };
    let (all, due) = inputs.measure(&quiet)?;
    let (built, accounts, cid) = inputs.write(targets, &all, watch)?;
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
    check_books(&correction, all.payout, residual.map_or(0, |(_, due)| due))?;
    Ok(Outcome {
        built,
        correction,
        accounts,
    })
}

impl<U: Usage> Inputs<'_, U> {
    /// What has to be known before the first row is written, and the sums of what is due.
    fn measure(&self, watch: &impl Watch) -> Result<(Measure, Sums), Stop> {
        let mut all = Measure {
            addresses: (self.policy.pay == PayRule::Claims).then(Addresses::default),
            ..Measure::default()
        };
        let due = self.merge(watch, |account, paid, due| all.add(account, paid, due))?;
        // An address that was paid in another spelling would be paid again.
        let addresses = all.addresses.take().map_or(Ok(()), Addresses::finish);
        addresses.map_err(|error| {
            Stop::Payee(format!(
                "{error}; it keeps the spelling in which it was paid before"
            ))
        })?;
        Ok((all, due))
    }

    /// Writes the differences and what they are of; returns `correction.bin` and its content id as well.
    fn write(
        &self,
        targets: Targets,
        all: &Measure,
        watch: &impl Watch,
    ) -> Result<(Built, Option<Sealed>, ContentId), Stop> {
        let seal = SealWriter::new(targets.accounts, None, metrics(all.width)?, all.width);
        let mut seal = seal.map_err(unsealed)?;
        let fill = |writer: &mut Writer<'_>| {
            self.merge(watch, |account, paid, due| {
                let sealed = seal.push(account, [due, paid].into_iter());
                sealed.map_err(unsealed)?;
                if due > paid {
                    writer.row(account, due - paid)?;
                }
                Ok(())
            })?;
            Ok(all.sums())
        };
        let (width, pay) = (all.payouts_width, self.policy.pay);
        let built = Table::of_rows(targets.payouts, width, pay, fill)?;
        let (head, source) = seal.close().map_err(unsealed)?;
        let Some(source) = source else {
            return Ok((built, None, self.earlier.stored_cid(&head)?));
        };
        let sealed = Sealed::check(source).map_err(unsealed)?;
        let cid = sealed.cid();
        Ok((built, Some(sealed), cid))
    }

    /// Passes every account to which something is due or was paid to `see`, in order, with what was paid
    /// and what is due.
    fn merge(
        &self,
        watch: &impl Watch,
        mut see: impl FnMut(&[u8], u128, u128) -> Result<(), Stop> + Send,
    ) -> Result<Sums, Stop> {
        let mut before = self.earlier.rows(self.residual)?;
        let sums = self.plan.visit_shares(self.usage, watch, |blocks| {
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

/// What is due and what was overpaid are together what was paid before and what is paid now. `residual`
/// is what of it is due to its owner.
fn check_books(correction: &Correction, payout: u128, residual: u128) -> Result<(), Stop> {
    let sum = |parts: [Amount; 3]| parts.iter().map(|part| U256::from(part.0)).sum::<U256>();
    let is = sum([
        correction.due.payout_minor,
        Amount(residual),
        correction.overpaid_minor,
    ]);
    if is == sum([correction.paid_minor, Amount(payout), Amount::ZERO]) {
        Ok(())
    } else {
        Err(Stop::Broken(
            "what is due does not add up to what was paid and what is paid",
        ))
    }
}

/// Only passes cancellation on, so that progress counts every account once.
pub(super) struct Quiet<'w, W>(pub(super) &'w W);

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
