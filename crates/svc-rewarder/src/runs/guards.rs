//! Guard rails: whether a computed epoch is one that its policy lets pay without being looked at.
//!
//! The rails are checked when the artifacts are durable, against the epoch that the same policy
//! settled last. Payouts of both are read in their order, a page at a time, so memory does not grow
//! with the epoch. A correction is judged by what is due in all, against what was paid before.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ron_files::Dir;
use ron_proto::rewarder::{
    Correction, GuardRails, NO_RECIPIENTS, Payout, RewardPolicy, RunManifest, RunReason,
};
use ron_proto::values::{Account, Asset};
use ruint::aliases::U256;

use super::registry::Registry;
use super::{Run, reason};
use crate::calculus::Stop;
use crate::inputs::snapshot::Sealed;
use crate::manifest::correction::Rows;
use crate::manifest::reader::{Pages, Reader};
use crate::manifest::verify::{VerifyError, read_manifest, wrong};
use crate::manifest::{Computed, assets, dir};

/// The largest recipients whose share is bounded.
const LARGEST: usize = 10;

/// What the rails compare.
#[derive(Clone, Debug, PartialEq)]
struct Facts {
    recipients: u64,
    /// Sum of what they get, in minor units.
    paid_minor: u128,
    /// Whether the epoch moves any money.
    pays: bool,
    /// The largest payouts, at most [`LARGEST`], and their sum.
    largest_minor: u128,
    largest_sum: u128,
    before: Before,
}

/// The epoch that the policy settled last.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    /// This is the first one.
    None,
    /// Its payouts are past their retention, or damaged.
    Unknown,
    Known {
        payout_minor: u128,
        /// What the epoch pays more or less than it, in minor units.
        change_minor: u128,
        /// Recipients that it did not pay.
        new_recipients: u64,
    },
}

/// The largest payouts seen so far.
#[derive(Default)]
struct Largest(BinaryHeap<Reverse<u128>>);

impl Largest {
    fn add(&mut self, amount: u128) {
        self.0.push(Reverse(amount));
        if self.0.len() > LARGEST {
            self.0.pop();
        }
    }

    /// The largest one, and the sum of all that are kept.
    fn close(self) -> (u128, u128) {
        let amounts = || self.0.iter().map(|Reverse(amount)| *amount);
        // No more than the sum of all payouts, which has 128 bits.
        (amounts().max().unwrap_or(0), amounts().sum())
    }
}

/// The rails that the computed epoch, whose artifacts are in `target`, is beyond in any of its assets. An
/// error says that its own payouts cannot be read.
pub(super) fn breaches(
    root: &Dir,
    registry: &Registry,
    run: &Run,
    (target, computed): (&Dir, &Computed),
    policy: &RewardPolicy,
) -> Result<Vec<RunReason>, VerifyError> {
    let pays = computed.each().any(|it| it.manifest.totals.recipients > 0);
    let mut all = Vec::new();
    for (one, policy) in computed.each().zip(policy.of_each_asset()) {
        let asset = &one.manifest.asset;
        let dir = assets::of_asset(target, &computed.manifest, asset);
        let dir = dir.as_ref().unwrap_or(target);
        let earlier = Earlier {
            root,
            registry,
            run,
            asset,
        };
        let mut found = breaches_of(&earlier, (dir, one), &policy.release.guards)?;
        // An epoch pays nobody if none of its assets does.
        found.retain(|breach| (breach.code == NO_RECIPIENTS) != pays);
        if !computed.also.is_empty() {
            for breach in &mut found {
                breach.detail = format!("{asset}: {}", breach.detail);
            }
        }
        all.extend(found);
    }
    Ok(all)
}

/// The epoch before, in one asset.
struct Earlier<'a> {
    root: &'a Dir,
    registry: &'a Registry,
    run: &'a Run,
    asset: &'a Asset,
}

impl Earlier<'_> {
    /// The payouts of the epoch that the policy settled last; `None` where that paid none of the asset.
    fn open(&self) -> Option<Result<Reader, VerifyError>> {
        let run = self.run;
        let earlier = self.registry.last_settled(&run.tenant, &run.policy_id);
        let earlier = earlier.filter(|earlier| earlier.epoch != run.epoch)?;
        let dir = earlier.dir(self.root);
        match read_manifest(&dir) {
            Ok(manifest) => {
                let dir = assets::of_asset(&dir, &manifest, self.asset)?;
                Some(Reader::open(&dir))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

fn breaches_of(
    earlier: &Earlier<'_>,
    (target, computed): (&Dir, &Computed),
    guards: &GuardRails,
) -> Result<Vec<RunReason>, VerifyError> {
    let manifest = &computed.manifest;
    let totals = manifest.totals;
    if *guards == GuardRails::default() || totals.recipients == 0 {
        let facts = Facts {
            recipients: totals.recipients,
            paid_minor: totals.payout_minor.0,
            pays: totals.recipients > 0,
            largest_minor: 0,
            largest_sum: 0,
            before: Before::None,
        };
        let least = GuardRails {
            recipients_min: guards.recipients_min,
            ..GuardRails::default()
        };
        return Ok(judge(&least, &facts));
    }
    if let (Some(correction), Some(accounts)) = (&manifest.correction, &computed.accounts) {
        let facts = corrected(manifest, correction, accounts);
        let facts = facts.map_err(|error| wrong(dir::CORRECTION, &error))?;
        return Ok(judge(guards, &facts));
    }
    let payouts = Reader::open(target)?;
    let compares = guards.change_max_percent.is_some() || guards.new_recipients_max.is_some();
    let table = if compares { earlier.open() } else { None };
    let (mut earlier, mut known) = match table {
        None => (None, Before::None),
        Some(Err(_)) => (None, Before::Unknown),
        Some(Ok(reader)) => {
            let payout_minor = reader.manifest.totals.payout_minor.0;
            let known = Before::Known {
                payout_minor,
                change_minor: totals.payout_minor.0.abs_diff(payout_minor),
                new_recipients: 0,
            };
            (Some(reader), known)
        }
    };
    let mut accounts = earlier.as_mut().map(Accounts::of);
    let mut largest = Largest::default();
    let mut recipients = Recipients::of(&payouts);
    while let Some(payout) = recipients.next()? {
        largest.add(payout.amount_minor.0);
        if let (Some(accounts), Before::Known { new_recipients, .. }) = (&mut accounts, &mut known)
        {
            match accounts.has(&payout.account) {
                Ok(true) => {}
                Ok(false) => *new_recipients += 1,
                Err(_) => known = Before::Unknown,
            }
        }
    }
    let (largest_minor, largest_sum) = largest.close();
    let facts = Facts {
        recipients: totals.recipients,
        paid_minor: totals.payout_minor.0,
        pays: true,
        largest_minor,
        largest_sum,
        before: known,
    };
    Ok(judge(guards, &facts))
}

/// What is due in all by a correction, against what was paid before. The owner of the residual is no
/// recipient by the residual.
fn corrected(
    manifest: &RunManifest,
    correction: &Correction,
    accounts: &Sealed,
) -> Result<Facts, Stop> {
    let due = &correction.due;
    let owner = manifest.residual_owner.as_str().as_bytes();
    let residual = manifest.residual_due().0;
    let (mut rows, mut largest, mut new_recipients) = (Rows::over(accounts), Largest::default(), 0);
    while let Some(row) = rows.next()? {
        let is_owner = row.account == owner;
        let share = row.due.saturating_sub(if is_owner { residual } else { 0 });
        if share > 0 {
            largest.add(share);
            new_recipients += u64::from(row.paid == 0);
        }
    }
    let (largest_minor, largest_sum) = largest.close();
    let (before, payout) = (correction.paid_minor.0, manifest.totals.payout_minor.0);
    let moved = due.payout_minor.0.saturating_add(residual);
    Ok(Facts {
        recipients: due.recipients,
        paid_minor: due.payout_minor.0,
        pays: manifest.totals.recipients > 0,
        largest_minor,
        largest_sum,
        before: Before::Known {
            payout_minor: before,
            // What is due may be as much as was paid, and the correction yet pays much.
            change_minor: moved.abs_diff(before).max(payout),
            new_recipients,
        },
    })
}

/// The payouts of an epoch to its recipients, in the order of their accounts.
struct Recipients<'r> {
    pages: Pages<'r>,
    page: std::vec::IntoIter<Payout>,
}

impl<'r> Recipients<'r> {
    fn of(reader: &'r Reader) -> Self {
        Self {
            // The owner of the residual is no recipient; its record follows theirs.
            pages: reader.pages(reader.manifest.totals.recipients),
            page: Vec::new().into_iter(),
        }
    }

    fn next(&mut self) -> Result<Option<Payout>, VerifyError> {
        if self.page.len() == 0 {
            let page = self.pages.next().transpose()?;
            self.page = page.unwrap_or_default().into_iter();
        }
        Ok(self.page.next())
    }
}

/// The recipients of an earlier epoch, asked for in ascending order.
struct Accounts<'r> {
    rows: Recipients<'r>,
    at: Option<Payout>,
    begun: bool,
}

impl<'r> Accounts<'r> {
    fn of(reader: &'r mut Reader) -> Self {
        Self {
            rows: Recipients::of(reader),
            at: None,
            begun: false,
        }
    }

    fn has(&mut self, account: &Account) -> Result<bool, VerifyError> {
        if !self.begun {
            (self.at, self.begun) = (self.rows.next()?, true);
        }
        while self.at.as_ref().is_some_and(|at| at.account < *account) {
            self.at = self.rows.next()?;
        }
        Ok(self.at.as_ref().is_some_and(|at| at.account == *account))
    }
}

fn judge(guards: &GuardRails, facts: &Facts) -> Vec<RunReason> {
    let mut breaches = Vec::new();
    let mut breach = |code: &str, detail: String| breaches.push(reason(code, detail));
    let (recipients, paid) = (facts.recipients, facts.paid_minor);
    if !facts.pays {
        breach(NO_RECIPIENTS, "nobody is paid".to_owned());
    }
    if let Some(least) = guards.recipients_min.filter(|least| recipients < *least) {
        breach(
            "recipients_min",
            format!("{recipients} recipients, at least {least} are expected"),
        );
    }
    if let Some(most) = guards.recipients_max.filter(|most| recipients > *most) {
        breach(
            "recipients_max",
            format!("{recipients} recipients, at most {most} are expected"),
        );
    }
    let most = guards.account_max_minor;
    if let Some(most) = most.filter(|most| facts.largest_minor > most.0) {
        let largest = facts.largest_minor;
        breach(
            "account_max",
            format!("one account gets {largest}, at most {most} is expected"),
        );
    }
    let most = guards.largest_ten_max_percent;
    if let Some(most) = most.filter(|most| is_above(facts.largest_sum, *most, paid)) {
        let percent = percent(facts.largest_sum, paid);
        breach(
            "largest_ten",
            format!(
                "the ten largest recipients get {percent} % of the payouts, at most {most} % is expected"
            ),
        );
    }
    match facts.before {
        Before::None => {}
        Before::Unknown => breach(
            "epoch_before_unknown",
            "the epoch before cannot be compared: its payouts are past their retention or damaged"
                .to_owned(),
        ),
        Before::Known {
            payout_minor,
            change_minor,
            new_recipients,
        } => {
            let most = guards.change_max_percent;
            if let Some(most) = most.filter(|most| is_above(change_minor, *most, payout_minor)) {
                breach(
                    "total_change",
                    format!(
                        "{paid} is paid in all and {payout_minor} was before, a change by {change_minor}, which is more than {most} %"
                    ),
                );
            }
            let most = guards.new_recipients_max;
            if let Some(most) = most.filter(|most| new_recipients > *most) {
                breach(
                    "new_recipients",
                    format!(
                        "{new_recipients} recipients were not paid in the epoch before, at most {most} are expected"
                    ),
                );
            }
        }
    }
    breaches
}

/// Whether `part` is more than so many percent of `whole`, exactly.
fn is_above(part: u128, percent: u32, whole: u128) -> bool {
    U256::from(part) * U256::from(100) > U256::from(whole) * U256::from(percent)
}

/// Whole percent, rounded down; for people.
fn percent(part: u128, whole: u128) -> U256 {
    let whole = U256::from(whole.max(1));
    U256::from(part) * U256::from(100) / whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_proto::values::Amount;

    fn facts() -> Facts {
        Facts {
            recipients: 20,
            paid_minor: 900,
            pays: true,
            largest_minor: 90,
            largest_sum: 630,
            before: Before::Known {
                payout_minor: 1_000,
                change_minor: 100,
                new_recipients: 3,
            },
        }
    }

    fn codes(guards: GuardRails, facts: &Facts) -> Vec<String> {
        let breaches = judge(&guards, facts).into_iter();
        breaches.map(|breach| breach.code).collect()
    }

    #[test]
    fn each_rail_holds_at_its_bound_and_stops_what_is_beyond_it() {
        let check = |guards: GuardRails, code: Option<&str>| {
            let want: Vec<String> = code.iter().map(|code| (*code).to_owned()).collect();
            assert_eq!(codes(guards, &facts()), want, "{guards:?}");
        };
        let none = GuardRails::default();
        check(none, None);
        for (bound, beyond) in [(20, false), (21, true)] {
            let guards = GuardRails {
                recipients_min: Some(bound),
                ..none
            };
            check(guards, beyond.then_some("recipients_min"));
        }
        for (bound, beyond) in [(20, false), (19, true)] {
            let guards = GuardRails {
                recipients_max: Some(bound),
                ..none
            };
            check(guards, beyond.then_some("recipients_max"));
        }
        for (bound, beyond) in [(90, false), (89, true)] {
            let guards = GuardRails {
                account_max_minor: Some(Amount(bound)),
                ..none
            };
            check(guards, beyond.then_some("account_max"));
        }
        for (bound, beyond) in [(10, false), (9, true)] {
            let guards = GuardRails {
                change_max_percent: Some(bound),
                ..none
            };
            check(guards, beyond.then_some("total_change"));
        }
        for (bound, beyond) in [(3, false), (2, true)] {
            let guards = GuardRails {
                new_recipients_max: Some(bound),
                ..none
            };
            check(guards, beyond.then_some("new_recipients"));
        }
        for (bound, beyond) in [(70, false), (69, true)] {
            let guards = GuardRails {
                largest_ten_max_percent: Some(bound),
                ..none
            };
            check(guards, beyond.then_some("largest_ten"));
        }
    }

    #[test]
    fn an_epoch_without_recipients_and_one_that_cannot_be_compared_are_breaches() {
        let mut nobody = facts();
        nobody.pays = false;
        assert_eq!(codes(GuardRails::default(), &nobody), [NO_RECIPIENTS]);
        let mut lost = facts();
        lost.before = Before::Unknown;
        assert_eq!(
            codes(GuardRails::default(), &lost),
            ["epoch_before_unknown"]
        );
    }

    #[test]
    fn percentages_are_exact_at_128_bits() {
        assert!(!is_above(u128::MAX, 100, u128::MAX));
        assert!(is_above(u128::MAX, 100, u128::MAX - 1));
        assert!(is_above(1, 0, u128::MAX) && !is_above(0, 0, 0));
        assert_eq!(percent(u128::MAX, u128::MAX), U256::from(100));
    }
}
