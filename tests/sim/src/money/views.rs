//! What callers read: balances, accounts and totals, each of the sequence that it names; and what they knew when.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ron_client::WalletClient;
use ron_kernel::Deadline;
use ron_proto::ledger::{AccountDoc, TrialBalance};
use ron_proto::wallet::Balance;
use ron_proto::{Account, Asset};
use ron_sim::{ensure, time};

use super::clients::CALL;
use super::requests::ASSET;
use crate::ledger::{same_account, same_totals};
use crate::model::Model;

/// What all callers of a world know together, beside its clock. None of it is a point of the simulator.
#[derive(Debug, Default)]
pub struct History {
    /// Begins and ends of planned stops of the wallet; odd while it is stopped.
    stops: AtomicU64,
    kills: AtomicU64,
    /// The newest entry that any caller knew, and since when.
    known: Mutex<Vec<(Duration, u64)>>,
}

impl History {
    pub fn stops(&self) -> u64 {
        self.stops.load(Ordering::SeqCst)
    }

    pub fn begin_or_end_stop(&self) {
        self.stops.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether the wallet was stopped at that count, or since then.
    pub fn stopped_since(&self, since: u64) -> bool {
        since % 2 == 1 || self.stops() > since
    }

    pub fn killed(&self) {
        self.kills.fetch_add(1, Ordering::SeqCst);
    }

    /// Changes when the wallet is another process.
    pub fn lives(&self) -> u64 {
        self.stops() + self.kills.load(Ordering::SeqCst)
    }

    pub fn learnt(&self, seq: u64) {
        let now = time::elapsed();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.last().is_none_or(|(_, newest)| *newest < seq) {
            known.push((now, seq));
        }
    }

    /// The newest entry that was known at this time.
    fn known_at(&self, at: Duration) -> u64 {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.iter().rev().find(|(since, _)| *since <= at);
        before.map_or(0, |(_, seq)| *seq)
    }
}

/// What one caller has read.
#[derive(Debug, Default)]
pub struct Views {
    balances: Vec<Balance>,
    accounts: Vec<AccountDoc>,
    totals: Vec<TrialBalance>,
}

fn asset() -> Asset {
    ASSET.parse().expect("an asset")
}

impl Views {
    pub fn append(&mut self, other: &mut Self) {
        self.balances.append(&mut other.balances);
        self.accounts.append(&mut other.accounts);
        self.totals.append(&mut other.totals);
    }

    /// A balance is no older than it says.
    pub fn balance(
        &mut self,
        wallet: &WalletClient,
        account: &str,
        history: &History,
    ) -> Option<Balance> {
        let name: Account = account.parse().expect("an account");
        let begun = time::elapsed();
        let read = wallet
            .balance(&name, &asset(), None, Deadline::within(CALL))
            .ok()?;
        let age = Duration::from_millis(read.stale_ms + 1);
        let known = begun.checked_sub(age).map_or(0, |at| history.known_at(at));
        let text = format!("{read:?} is older than it says: {known} was known before");
        ensure(read.as_of_seq >= known, &text);
        self.balances.push(read.clone());
        Some(read)
    }

    pub fn account(&mut self, wallet: &WalletClient, account: &str) -> bool {
        let name: Account = account.parse().expect("an account");
        let read = wallet.account(&name, Deadline::within(CALL));
        read.map(|doc| self.accounts.push(doc)).is_ok()
    }

    pub fn totals(&mut self, wallet: &WalletClient) -> bool {
        let read = wallet.trial_balance(&asset(), None, Deadline::within(CALL));
        read.map(|doc| self.totals.push(doc)).is_ok()
    }

    /// What was read of the present sequence is what the model has; it is not looked at again.
    pub fn compare(&mut self, model: &Model) -> Result<(), String> {
        let seq = model.seq();
        for read in self.balances.extract_if(.., |read| read.as_of_seq == seq) {
            same_balance(model, &read)?;
        }
        for doc in self.accounts.extract_if(.., |doc| doc.seq == seq) {
            same_account(model, &doc)?;
        }
        for said in self.totals.extract_if(.., |said| said.seq == seq) {
            same_totals(model, &said)?;
        }
        Ok(())
    }

    /// What is left was of no sequence that the log has.
    pub fn all_compared(&self) -> Result<(), String> {
        let left = self.balances.len() + self.accounts.len() + self.totals.len();
        if left == 0 {
            Ok(())
        } else {
            Err(format!("of no sequence: {self:?}"))
        }
    }
}

fn same_balance(model: &Model, read: &Balance) -> Result<(), String> {
    let holder = model.holder(&read.account);
    let purse = holder.purses.get(&read.asset).copied().unwrap_or_default();
    let mine = (
        purse.credits.saturating_sub(purse.debits),
        purse.debits.saturating_sub(purse.credits),
        model.available(&read.account, &read.asset),
    );
    let said = (
        read.amount_minor.0,
        read.overdrawn_minor.0,
        read.available_minor.0,
    );
    if mine == said && read.nonce == Some(holder.nonce) {
        Ok(())
    } else {
        Err(format!("{read:?} is not {mine:?}, nonce {}", holder.nonce))
    }
}
