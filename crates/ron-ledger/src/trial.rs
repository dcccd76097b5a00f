//! Trial balances: what accounts were credited and debited, by class.

use std::collections::BTreeMap;

use ron_kernel::Deadline;
use ron_proto::ledger::{AccountClass, ClassTotal, TrialBalance};
use ron_proto::{Amount, Asset, SignedAmount};

use crate::ledger::Ledger;
use crate::projection::{ProjectionReader, SearchError};

/// By class: number of accounts, credits and debits.
#[derive(Default)]
struct Classes(BTreeMap<Option<AccountClass>, (u64, u128, u128)>);

impl Classes {
    fn add(&mut self, class: Option<&AccountClass>, credits: u128, debits: u128) {
        let sums = self.0.entry(class.cloned()).or_default();
        // The sums over all accounts of an asset do not pass 128 bits.
        *sums = (sums.0 + 1, sums.1 + credits, sums.2 + debits);
    }

    /// Credits and debits of all classes.
    fn sums(&self) -> (u128, u128) {
        let all = self.0.values();
        all.fold((0, 0), |(up, down), (_, c, d)| (up + c, down + d))
    }

    fn totals(self) -> Vec<ClassTotal> {
        let one = |(class, (accounts, credits, debits))| ClassTotal {
            class,
            accounts,
            credits_minor: Amount(credits),
            debits_minor: Amount(debits),
            balance_minor: SignedAmount::of(credits, debits),
        };
        self.0.into_iter().map(one).collect()
    }
}

impl Ledger {
    /// The trial balance of an asset now.
    pub fn trial_balance(&self, asset: &Asset) -> Option<TrialBalance> {
        // Rows are shared copies, so that the writer does not wait while they are summed up.
        let (accounts, ix, row, seq, ts) = self.shared.state(|s| {
            let ix = s.asset_ix(asset)?;
            let row = s.asset(ix)?.clone();
            Some((s.accounts_copy(), ix, row, s.seq(), s.ts()))
        })?;
        let mut classes = Classes::default();
        for account in accounts.iter() {
            if let Some(b) = account.balances.iter().find(|b| b.asset == ix) {
                classes.add(account.class(), b.credits, b.debits);
            }
        }
        Some(TrialBalance {
            asset: row.name.clone(),
            supply_minor: Amount(row.circulating()),
            issued_minor: Amount(row.issued),
            burned_minor: Amount(row.burned),
            credits_minor: Amount(row.credits),
            debits_minor: Amount(row.debits),
            classes: classes.totals(),
            seq,
            ts,
        })
    }
}

impl ProjectionReader {
    /// The trial balance of an asset after the entry at `seq`.
    pub fn trial_balance_at(
        &self,
        asset: &Asset,
        seq: u64,
        min_seq: u64,
        deadline: Deadline,
    ) -> Result<TrialBalance, SearchError> {
        let mut classes = Classes::default();
        let (supply, ts) = self.totals_at(asset, seq, min_seq, |class, credits, debits| {
            classes.add(class, credits, debits);
            !deadline.expired()
        })?;
        let (credits, debits) = classes.sums();
        Ok(TrialBalance {
            asset: asset.clone(),
            supply_minor: Amount(credits.saturating_sub(debits)),
            issued_minor: Amount(supply.issued),
            burned_minor: Amount(supply.burned),
            credits_minor: Amount(credits),
            debits_minor: Amount(debits),
            classes: classes.totals(),
            seq,
            ts,
        })
    }
}
