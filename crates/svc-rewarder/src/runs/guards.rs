//! Guard rails: whether a computed epoch is one that its policy lets pay without being looked at.
//!
//! The rails are checked when the artifacts are durable, against the epoch that the same policy
//! settled last. Payouts of both are read in their order, a page at a time, so memory does not grow
//! with the epoch.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ron_files::Dir;
use ron_proto::rewarder::{GuardRails, NO_RECIPIENTS, Payout, ReleaseRule, RunReason, RunTotals};
use ron_proto::values::Account;
use ruint::aliases::U256;

use super::registry::Registry;
use super::{Run, reason};
use crate::manifest::dir;
use crate::manifest::reader::{Pages, Reader};
use crate::manifest::verify::VerifyError;

/// The largest recipients whose share is bounded.
const LARGEST: usize = 10;

/// What the rails compare.
#[derive(Clone, Debug, PartialEq)]
struct Facts {
    totals: RunTotals,
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
        /// Recipients that it did not pay.
        new_recipients: u64,
    },
}

/// The rails that the epoch in `target`, which has these totals, is beyond. An error says that its own payouts cannot be read.
pub(super) fn breaches(
    root: &Dir,
    registry: &Registry,
    run: &Run,
    (target, totals): (&Dir, RunTotals),
    release: &ReleaseRule,
) -> Result<Vec<RunReason>, VerifyError> {
    let guards = &release.guards;
    if *guards == GuardRails::default() || totals.recipients == 0 {
        let facts = Facts {
            totals,
            largest_minor: 0,
            largest_sum: 0,
            before: Before::None,
        };
        return Ok(judge(&GuardRails::default(), &facts));
    }
    let payouts = Reader::open(target)?;
    let compares = guards.change_max_percent.is_some() || guards.new_recipients_max.is_some();
    let earlier = registry
        .last_settled(&run.tenant, &run.policy_id)
        .filter(|earlier| compares && earlier.epoch != run.epoch);
    let table = earlier.as_ref().map(|earlier| {
        let dir = dir::of(root, &earlier.tenant, &earlier.epoch, false);
        Reader::open(&dir)
    });
    let (mut earlier, mut known) = match table {
        None => (None, Before::None),
        Some(Err(_)) => (None, Before::Unknown),
        Some(Ok(reader)) => {
            let payout_minor = reader.manifest.totals.payout_minor.0;
            let known = Before::Known {
                payout_minor,
                new_recipients: 0,
            };
            (Some(reader), known)
        }
    };
    let mut accounts = earlier.as_mut().map(Accounts::of);
    let mut largest = BinaryHeap::with_capacity(LARGEST + 1);
    let mut recipients = Rows::of(&payouts);
    while let Some(payout) = recipients.next()? {
        largest.push(Reverse(payout.amount_minor.0));
        if largest.len() > LARGEST {
            largest.pop();
        }
        if let (Some(accounts), Before::Known { new_recipients, .. }) = (&mut accounts, &mut known)
        {
            match accounts.has(&payout.account) {
                Ok(true) => {}
                Ok(false) => *new_recipients += 1,
                Err(_) => known = Before::Unknown,
            }
        }
    }
    let largest: Vec<u128> = largest.into_iter().map(|Reverse(amount)| amount).collect();
    let facts = Facts {
        totals,
        largest_minor: largest.iter().copied().max().unwrap_or(0),
        // No more than the sum of all payouts, which has 128 bits.
        largest_sum: largest.iter().sum(),
        before: known,
    };
    Ok(judge(guards, &facts))
}

/// The payouts of an epoch to its recipients, in the order of their accounts.
struct Rows<'r> {
    pages: Pages<'r>,
    page: std::vec::IntoIter<Payout>,
}

impl<'r> Rows<'r> {
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
    rows: Rows<'r>,
    at: Option<Payout>,
    begun: bool,
}

impl<'r> Accounts<'r> {
    fn of(reader: &'r mut Reader) -> Self {
        Self {
            rows: Rows::of(reader),
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
    let totals = &facts.totals;
    let (recipients, paid) = (totals.recipients, totals.payout_minor.0);
    if recipients == 0 {
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
            new_recipients,
        } => {
            let change = paid.abs_diff(payout_minor);
            let most = guards.change_max_percent;
            if let Some(most) = most.filter(|most| is_above(change, *most, payout_minor)) {
                breach(
                    "total_change",
                    format!(
                        "the payouts are {paid} in all and were {payout_minor} in the epoch before, a change of more than {most} %"
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
            totals: RunTotals {
                pool_minor: Amount(1_000),
                payout_minor: Amount(900),
                residual_minor: Amount(100),
                recipients: 20,
            },
            largest_minor: 90,
            largest_sum: 630,
            before: Before::Known {
                payout_minor: 1_000,
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
        nobody.totals.recipients = 0;
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
