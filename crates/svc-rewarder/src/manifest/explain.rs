//! Why an account gets what it gets: recomputed from a run's sealed inputs, and equal to its payout
//! table.

use ron_files::Dir;
use ron_proto::rewarder::{
    CorrectedPayee, EventClass, ExplainedMetric, Metric, PayoutExplanation, RemainderUnit,
    RewardPolicy, UnpaidReason,
};
use ron_proto::strict;
use ron_proto::values::{Account, Amount, ContentId};

use super::correction;
use super::dir;
use super::files::{VerifyError, must_read, read_manifest, wrong};
use super::reader::Reader;
use super::table::find_row;
use super::verify::{check_policy, open_snapshot};
use crate::calculus::{self, Barred, Block, Part, Plan, Rules, Usage, Watch};
use crate::inputs::snapshot::Sealed;

/// A run, planned once, whose accounts can be explained one by one.
#[derive(Debug)]
pub struct Explainer {
    payouts: Reader,
    snapshot: Sealed,
    metrics: Vec<Metric>,
    policy: RewardPolicy,
    plan: Plan,
    /// `correction.bin` of a correction.
    accounts: Option<Sealed>,
}

impl Explainer {
    /// Opens a run directory and plans the epoch again: takes as long as half of its computation. Fails
    /// for a quarantined run. Inputs are those that the manifest names; whether it is signed is for the
    /// caller to check.
    pub fn open(dir: &Dir, watch: &impl Watch) -> Result<Self, VerifyError> {
        let payouts = Reader::with(dir, read_manifest(dir)?)?;
        let accounts = correction::accounts(dir, &payouts.manifest)?;
        let json = must_read(dir, dir::POLICY)?;
        check_policy(ContentId::of(&json), &payouts.manifest)?;
        let policy: RewardPolicy =
            strict::from_slice(&json).map_err(|error| wrong(dir::POLICY, &error))?;
        let policy = policy
            .of_asset(&payouts.manifest.asset)
            .ok_or_else(|| wrong(dir::POLICY, &"it does not pay the asset of the manifest"))?;
        let snapshot = open_snapshot(dir, &payouts.manifest)?;
        let metrics = snapshot.metric_names();
        let rules = Rules::new(&policy, &metrics).map_err(|error| wrong(dir::POLICY, &error))?;
        let plan =
            calculus::plan(&snapshot, &rules, watch).map_err(|error| wrong(dir::RUN, &error))?;
        Ok(Self {
            payouts,
            snapshot,
            metrics,
            policy,
            plan,
            accounts,
        })
    }

    /// The explanation of one account. An error says that the payout table differs from what the inputs
    /// give.
    pub fn explain(&self, account: &Account) -> Result<PayoutExplanation, VerifyError> {
        let corrected = self.corrected(account)?;
        let (paid, residual) = match &corrected {
            None => self.paid(account)?,
            Some(it) => self.due(it)?,
        };
        let found = self.find(account)?;
        let row = found.as_ref().map(|block| (block, 0));
        let part = match row {
            Some((block, at)) => self.part(block, at)?,
            None => nothing(self.plan_of_nobody()?.as_ref()),
        };
        let unit = self.unit(&part, paid)?;
        let manifest = &self.payouts.manifest;
        Ok(PayoutExplanation {
            tenant: manifest.tenant.clone(),
            epoch_id: manifest.epoch_id.clone(),
            commitment: manifest.commitment,
            account: account.clone(),
            asset: manifest.asset.clone(),
            paid_minor: Amount(paid),
            unpaid: (paid == 0).then(|| self.why_nothing(row, &part)),
            residual_minor: residual,
            metrics: row.map_or_else(Vec::new, |(block, at)| self.used(block, at)),
            weight: part.weight,
            split_weight: part.split_weight,
            split_minor: Amount(part.split),
            account_capped: part.capped,
            floor_minor: Amount(part.floor),
            remainder_unit: unit,
            min_payout_minor: self.policy.min_payout_minor,
            correction: corrected,
        })
    }

    /// What the payout table has for the account: its share, and the residual if it is its owner.
    fn paid(&self, account: &Account) -> Result<(u128, Option<Amount>), VerifyError> {
        let residual = self.payouts.residual()?;
        let residual = residual.filter(|paid| paid.account == *account);
        let paid = self.payouts.payout(account)?;
        // An account that only has the residual is found by the residual's record.
        let share = paid.filter(|paid| residual.as_ref().is_none_or(|it| it.index != paid.index));
        let residual = residual.map(|paid| paid.amount_minor);
        Ok((share.map_or(0, |paid| paid.amount_minor.0), residual))
    }

    /// What a correction means for the account; `None` in an epoch that corrects none. It must be what
    /// the payout table says.
    fn corrected(&self, account: &Account) -> Result<Option<CorrectedPayee>, VerifyError> {
        let Some(accounts) = &self.accounts else {
            return Ok(None);
        };
        let row = correction::find(accounts, account);
        let row = row.map_err(|error| wrong(dir::CORRECTION, &error))?;
        let (before, due) = row.map_or((0, 0), |row| (row.paid, row.due));
        let corrected = CorrectedPayee::of(account.clone(), before, due);
        if self.paid(account)?.0 == corrected.payout_minor.0 {
            Ok(Some(corrected))
        } else {
            Err(wrong(
                dir::PAYOUTS,
                &"the account has another payout than the difference",
            ))
        }
    }

    /// The two parts of what is due to an account in a correction: its share, and the residual if it is
    /// its owner.
    fn due(&self, corrected: &CorrectedPayee) -> Result<(u128, Option<Amount>), VerifyError> {
        let manifest = &self.payouts.manifest;
        let is_owner = corrected.account == manifest.residual_owner;
        let residual = Some(manifest.residual_due());
        let residual = residual.filter(|due| is_owner && !due.is_zero());
        let due = corrected.due_minor.0;
        let share = due.checked_sub(residual.map_or(0, |due| due.0));
        let share = share.ok_or_else(|| {
            wrong(
                dir::CORRECTION,
                &"less than the residual is due to its owner",
            )
        })?;
        Ok((share, residual))
    }

    /// The row of an account, as a block of its own.
    fn find(&self, account: &Account) -> Result<Option<Block<'_>>, VerifyError> {
        let wanted = account.as_str().as_bytes();
        let block = |row| {
            let block = self.snapshot.block(row, 1);
            block.map_err(|error| wrong(dir::SNAPSHOT, &error))
        };
        let order = |row| block(row).map(|block| block.account(0).cmp(wanted));
        let row = find_row(self.snapshot.accounts(), order)?;
        row.map(block).transpose()
    }

    fn part(&self, block: &Block<'_>, at: usize) -> Result<Part, VerifyError> {
        let part = self.plan.part(block, at);
        part.map_err(|error| wrong(dir::RUN, &error))
    }

    /// What the other accounts split, for an account without usage. Any row shows it.
    fn plan_of_nobody(&self) -> Result<Option<Part>, VerifyError> {
        if self.snapshot.accounts() == 0 {
            return Ok(None);
        }
        let block = self.snapshot.block(0, 1);
        let block = block.map_err(|error| wrong(dir::SNAPSHOT, &error))?;
        self.part(&block, 0).map(Some)
    }

    /// Whether the account got a unit that was left over. Where remainders tie, the payout table says
    /// it.
    fn unit(&self, part: &Part, paid: u128) -> Result<RemainderUnit, VerifyError> {
        let least = self.policy.min_payout_minor.0.max(1);
        let pays = |amount: u128| if amount >= least { amount } else { 0 };
        let (without, with) = (pays(part.floor), pays(part.floor.saturating_add(1)));
        let differs = || {
            wrong(
                dir::PAYOUTS,
                &"the inputs give the account another amount than it has",
            )
        };
        match part.unit {
            std::cmp::Ordering::Less if paid == without => Ok(RemainderUnit::No),
            std::cmp::Ordering::Greater if paid == with => Ok(RemainderUnit::Yes),
            std::cmp::Ordering::Equal if paid == with && with == without => Ok(RemainderUnit::Tied),
            std::cmp::Ordering::Equal if paid == with => Ok(RemainderUnit::Yes),
            std::cmp::Ordering::Equal if paid == without => Ok(RemainderUnit::No),
            _ => Err(differs()),
        }
    }

    fn used(&self, block: &Block<'_>, at: usize) -> Vec<ExplainedMetric> {
        let rules = &self.policy.metrics;
        let all = self.metrics.iter().enumerate();
        let used = all.filter(|(metric, _)| block.amount(at, *metric) > 0);
        used.filter_map(|(metric, name)| {
            let rule = rules.get(name)?;
            let capped = &self.policy.caps.category_minor;
            let category = rule.category.as_ref();
            Some(ExplainedMetric {
                metric: name.clone(),
                amount: Amount(block.amount(at, metric)),
                weight: rule.weight,
                class: rule.class,
                category: category.filter(|name| capped.contains_key(*name)).cloned(),
                category_capped: self.plan.category_capped(metric),
            })
        })
        .collect()
    }

    fn why_nothing(&self, row: Option<(&Block<'_>, usize)>, part: &Part) -> UnpaidReason {
        let Some((block, at)) = row else {
            return UnpaidReason::NoUsage;
        };
        match self.plan.barred(block, at) {
            Some(Barred::Excluded) => return UnpaidReason::Excluded,
            Some(Barred::OtherPrefix) => return UnpaidReason::OtherPrefix,
            Some(Barred::BelowRequired) => return UnpaidReason::BelowRequired,
            None => {}
        }
        let used = self.used(block, at);
        if used.is_empty() {
            return UnpaidReason::NoUsage;
        }
        if used.iter().all(|it| it.class == EventClass::AnalyticsOnly) {
            return UnpaidReason::AnalyticsOnly;
        }
        if used.iter().all(|it| it.weight.is_zero()) {
            return UnpaidReason::NoWeight;
        }
        if part.weight == "0" {
            // The policy gives it a weight, and the caps of categories took all of it.
            return UnpaidReason::CategoryCapped;
        }
        if part.floor == 0 {
            return match part.unit {
                std::cmp::Ordering::Greater => UnpaidReason::BelowMinimum,
                _ => UnpaidReason::BelowOne,
            };
        }
        UnpaidReason::BelowMinimum
    }
}

/// The part of an account without usage, where another row has this one.
fn nothing(split: Option<&Part>) -> Part {
    Part {
        weight: "0".to_owned(),
        split_weight: split.map_or_else(|| "0".to_owned(), |part| part.split_weight.clone()),
        split: split.map_or(0, |part| part.split),
        capped: false,
        floor: 0,
        unit: std::cmp::Ordering::Less,
    }
}
