//! What each kind of entry requires and does. Every rule checks first and changes afterwards, so
//! that a refusal has no effect. Order of checks: reserved, closed, frozen, nonce, ceiling, budgets,
//! funds, then whether the credited account may take it, the operator's limits, overflow.

use std::borrow::Cow;

use ron_proto::ledger::{ESCROW_PREFIX, HoldRef, TxId};
use ron_proto::{Account, Amount, Asset, Timestamp};

use super::entry::{Body, Budget, Debit, Header, Original};
use super::limits::{ACCOUNTS_MAX, ISSUED_MAX, Limit};
use super::op::Op;
use super::overlay::Overlay;
use super::state::{Balance, HoldRow};
use super::verdict::{Effect, Refusal};

/// Why an entry takes no effect.
#[derive(Debug)]
pub(super) enum Stop {
    Refused(Refusal),
    /// The entry at this sequence already opened, closed or withdrew the epoch, or made the payout.
    Known(u64),
}

/// The result of a rule.
pub(super) type Rule<T> = Result<T, Stop>;

pub(super) fn no<T>(why: Refusal) -> Rule<T> {
    Err(Stop::Refused(why))
}

pub(super) fn reserved(account: &Account) -> Rule<()> {
    if account.as_str().starts_with(ESCROW_PREFIX) {
        no(Refusal::ReservedAccount)
    } else {
        Ok(())
    }
}

/// The hold's id. [`Step::linked`](super::Step::linked) has replaced the holds that its own entries make.
fn made(hold: HoldRef) -> Rule<TxId> {
    hold.id().map_or_else(|| no(Refusal::HoldNotFound), Ok)
}

/// What a debit of all that is available moves; others say it themselves.
fn moved(debit: &Debit) -> Option<Effect> {
    debit.up_to.map(|_| Effect {
        from: debit.from.clone(),
        asset: debit.asset.clone(),
        amount: debit.amount,
    })
}

impl Overlay<'_> {
    /// Applies the rule of one entry, which gets sequence `seq` if it is recorded. On an error
    /// nothing has changed.
    pub(super) fn decide(&mut self, op: &Op, seq: u64) -> Rule<Option<Effect>> {
        let (header, tenant) = (&op.entry().header, &op.entry().header.tenant);
        match &op.entry().body {
            Body::Issue { to, asset, amount } => {
                self.issue(to, asset, amount.0, &header.budgets)?;
            }
            Body::Transfer { debit, to } => {
                let debit = self.sized(debit);
                self.transfer(&debit, header, to)?;
                return Ok(moved(&debit));
            }
            Body::Burn { debit } => {
                let debit = self.sized(debit);
                self.burn(&debit, header)?;
                return Ok(moved(&debit));
            }
            Body::Hold { debit, expires_at } => {
                let debit = self.sized(debit);
                self.make_hold(&debit, header, *expires_at, op.txid(seq))?;
                return Ok(moved(&debit));
            }
            Body::Capture {
                hold,
                to,
                amount,
                ends_hold,
            } => {
                let asked = (*amount, *ends_hold);
                return self
                    .capture(made(*hold)?, to, asked, &header.budgets)
                    .map(Some);
            }
            Body::Reverse {
                tx,
                amount,
                original,
            } => {
                let Some(original) = original else {
                    return no(Refusal::NotReversible);
                };
                return self.reverse(*tx, *amount, original, header).map(Some);
            }
            Body::Release { hold } => return self.end_hold(made(*hold)?).map(Some),
            Body::Expire { hold } => return self.expire(*hold).map(Some),
            Body::Freeze { account, sides } => {
                self.freeze(account, self.frozen(account).and(*sides))?;
            }
            Body::Unfreeze { account, sides } => {
                self.freeze(account, self.frozen(account).without(*sides))?;
            }
            Body::Account { account, terms } => self.set_account(account, terms)?,
            Body::Asset { asset, terms } => self.set_asset(asset, terms)?,
            Body::EpochOpen(open) => self.epoch_open(tenant, open, seq)?,
            Body::Payout(payout) => self.payout(tenant, payout, seq)?,
            Body::EpochClose(close) => self.epoch_close(tenant, close, seq)?,
            Body::EpochVoid { epoch, commitment } => {
                self.epoch_void((tenant.clone(), epoch.clone()), *commitment, seq)?;
            }
            Body::Abandon => return no(Refusal::Abandoned),
        }
        Ok(None)
    }

    /// The row number of an asset; refuses a second spelling of a known one.
    pub(super) fn asset_ix(&self, name: &Asset) -> Rule<Option<u32>> {
        match self.asset_like(name) {
            Some(ix) if self.asset(ix).name != *name => no(Refusal::AssetSpelling),
            known => Ok(known),
        }
    }

    /// Refuses a new account above the limit of accounts.
    pub(super) fn room(&self, account: Option<u32>) -> Rule<()> {
        self.room_among(account, self.limits.accounts.min(ACCOUNTS_MAX))
    }

    pub(super) fn room_among(&self, account: Option<u32>, most: u32) -> Rule<()> {
        if account.is_some() || self.account_count() < u64::from(most) {
            Ok(())
        } else {
            no(Refusal::Limit(Limit::Accounts(most)))
        }
    }

    /// Refuses to debit an account that is closed or frozen.
    pub(super) fn may_debit(&self, account: u32) -> Rule<()> {
        let row = self.row(account);
        if row.is_closed() {
            return no(Refusal::AccountClosed);
        }
        if row.frozen.debits() {
            return no(Refusal::AccountFrozen);
        }
        Ok(())
    }

    /// Refuses to credit an account that is closed or frozen.
    pub(super) fn may_credit(&self, account: Option<u32>) -> Rule<()> {
        match account.map(|ix| self.row(ix)) {
            Some(row) if row.is_closed() => no(Refusal::AccountClosed),
            Some(row) if row.frozen.credits() => no(Refusal::AccountFrozen),
            _ => Ok(()),
        }
    }

    /// Refuses an amount that the account may not take, or would bring it above its maximum or the
    /// operator's. Money that the account itself pays does not raise its balance.
    fn check_credit(
        &self,
        to: Option<u32>,
        asset: Option<u32>,
        amount: u128,
        payer: Option<u32>,
    ) -> Rule<()> {
        self.may_credit(to)?;
        if to.is_none() || to != payer {
            let (there, own) = match (to, asset) {
                (Some(ix), Some(asset)) => {
                    let row = self.row(ix);
                    (row.balance(asset), row.limits(asset).max)
                }
                _ => (Balance::default(), None),
            };
            let sum = there.after_credit(amount);
            let within = |most: u128| sum.is_some_and(|sum| sum <= most);
            if own.is_some_and(|most| !within(most)) {
                return no(Refusal::MaxBalance);
            }
            let most = self.limits.account_total;
            if !within(most) {
                return no(Refusal::Limit(Limit::AccountTotal(most)));
            }
        }
        self.room(to)
    }

    /// Refuses an amount that an asset's sums of all credits and debits cannot take.
    pub(super) fn turnover(&self, asset: Option<u32>, amount: u128) -> Rule<()> {
        let Some(row) = asset.map(|ix| self.asset(ix)) else {
            return Ok(());
        };
        let fits = |sum: u128| sum.checked_add(amount).is_some();
        if fits(row.credits) && fits(row.debits) {
            Ok(())
        } else {
            no(Refusal::AmountOverflow)
        }
    }

    /// Refuses an amount that would bring the day's total of (account, asset) above the ceiling.
    fn within_ceiling(
        &self,
        account: Option<u32>,
        asset: Option<u32>,
        amount: u128,
        ceiling: Option<Amount>,
    ) -> Rule<()> {
        let Some(ceiling) = ceiling else {
            return Ok(());
        };
        let used = match (account, asset) {
            (Some(a), Some(s)) => self.row(a).balance(s),
            _ => Balance::default(),
        };
        let used = if used.day == self.ts.utc_day() {
            used.day_total
        } else {
            0
        };
        match used.checked_add(amount) {
            Some(sum) if sum <= ceiling.0 => Ok(()),
            _ => no(Refusal::LimitsExceeded),
        }
    }

    /// Refuses an amount that would bring what was spent under one of the budgets above its limits.
    fn within_budgets<'b>(
        &self,
        budgets: impl IntoIterator<Item = &'b Budget>,
        amount: u128,
    ) -> Rule<()> {
        let day = self.ts.utc_day();
        let fits = |budget: &Budget| {
            let row = self.budget(budget.id);
            let within = |spent: u128, most: Option<Amount>| {
                let sum = spent.checked_add(amount);
                sum.is_some_and(|sum| most.is_none_or(|most| sum <= most.0))
            };
            within(row.spent, budget.total) && within(row.spent_on(day), budget.daily)
        };
        if budgets.into_iter().all(fits) {
            Ok(())
        } else {
            no(Refusal::LimitsExceeded)
        }
    }

    fn count_budgets<'b>(&mut self, budgets: impl IntoIterator<Item = &'b Budget>, amount: u128) {
        let day = self.ts.utc_day();
        for budget in budgets {
            let mut row = self.budget(budget.id);
            row.spent += amount;
            row.day_spent = row.spent_on(day) + amount;
            row.day = day;
            row.until = row.until.max(budget.until);
            self.top().budgets.insert(budget.id, row);
        }
    }

    /// Returns what a hold did not pay: to its budgets, and to the day on which it was made while
    /// that day lasts.
    fn give_back(&mut self, hold: &HoldRow, amount: u128) {
        let today = self.ts.utc_day();
        let same_day = hold.made_on == today;
        if hold.counted && same_day {
            let b = self.touch(hold.account).row.balance_mut(hold.asset);
            b.day_total -= amount;
        }
        for id in &hold.budgets {
            let mut row = self.budget(*id);
            // The row was dropped, and perhaps made again, when the token ended before the hold.
            if row.until >= self.ts {
                row.spent = row.spent.saturating_sub(amount);
                if same_day && row.day == today {
                    row.day_spent = row.day_spent.saturating_sub(amount);
                }
                self.top().budgets.insert(*id, row);
            }
        }
    }

    fn count_day(&mut self, account: u32, asset: u32, amount: u128, ceiling: Option<Amount>) {
        if ceiling.is_none() {
            return;
        }
        let day = self.ts.utc_day();
        let b = self.touch(account).row.balance_mut(asset);
        if b.day != day {
            (b.day, b.day_total) = (day, 0);
        }
        b.day_total += amount;
    }

    fn issue(&mut self, to: &Account, asset: &Asset, amount: u128, budgets: &[Budget]) -> Rule<()> {
        reserved(to)?;
        let known = self.usable_asset(asset)?;
        self.within_budgets(budgets, amount)?;
        let issued = known.map_or(0, |ix| self.asset(ix).issued);
        let Some(issued) = issued.checked_add(amount) else {
            return no(Refusal::AmountOverflow);
        };
        if issued > ISSUED_MAX {
            return no(Refusal::LimitsExceeded);
        }
        let payee = self.find(to);
        self.check_credit(payee, known, amount, None)?;
        self.turnover(known, amount)?;
        let ix = known.unwrap_or_else(|| self.add_asset(asset));
        self.asset_mut(ix).issued = issued;
        let payee = self.or_new(payee, to);
        self.credit(payee, ix, amount);
        self.count_budgets(budgets, amount);
        Ok(())
    }

    /// The debit with its amount: one of all that is available gets it here, and is refused by the checks that follow
    /// when that is nothing.
    fn sized<'d>(&self, debit: &'d Debit) -> Cow<'d, Debit> {
        if debit.up_to.is_none() {
            return Cow::Borrowed(debit);
        }
        let rows = (self.find(&debit.from), self.asset_like(&debit.asset));
        let amount = match rows {
            (Some(account), Some(asset)) => self.available(account, asset),
            _ => 0,
        };
        Cow::Owned(Debit {
            amount: Amount(amount),
            ..debit.clone()
        })
    }

    /// Checks a debit; returns the row numbers of account and asset.
    fn check_debit(&self, d: &Debit, header: &Header) -> Rule<(u32, u32)> {
        reserved(&d.from)?;
        let from = self.find(&d.from);
        let (expected, required) = match from {
            Some(ix) => {
                self.may_debit(ix)?;
                let row = self.row(ix);
                (row.nonce + 1, row.requires_nonce())
            }
            None => (1, false),
        };
        #[cfg(mutant = "nonce")] // compared with the state before the batch
        let expected = match crate::mutant("nonce") {
            true => {
                from.and_then(|ix| self.state.account_at(ix))
                    .map_or(0, |row| row.nonce)
                    + 1
            }
            false => expected,
        };
        if d.nonce.map_or(required, |n| n != expected) {
            return no(Refusal::NonceConflict { expected });
        }
        let asset = self.asset_ix(&d.asset)?;
        if d.up_to.is_some_and(|most| d.amount > most) {
            return no(Refusal::LimitsExceeded);
        }
        self.within_ceiling(from, asset, d.amount.0, header.daily_ceiling)?;
        self.within_budgets(&header.budgets, d.amount.0)?;
        let (Some(from), Some(asset)) = (from, asset) else {
            return no(Refusal::InsufficientFunds);
        };
        if d.amount.is_zero() || self.available(from, asset) < d.amount.0 {
            return no(Refusal::InsufficientFunds);
        }
        Ok((from, asset))
    }

    /// Uses up the nonce, if there is one, and adds to the day's total and to the budgets.
    fn note_debit(&mut self, d: &Debit, header: &Header, (from, asset): (u32, u32)) {
        if d.nonce.is_some() {
            let t = self.touch(from);
            t.row.nonce += 1;
            t.nonces += 1;
        }
        self.count_day(from, asset, d.amount.0, header.daily_ceiling);
        self.count_budgets(&header.budgets, d.amount.0);
    }

    fn transfer(&mut self, d: &Debit, header: &Header, to: &Account) -> Rule<()> {
        reserved(to)?;
        let (from, asset) = self.check_debit(d, header)?;
        let payee = self.find(to);
        self.check_credit(payee, Some(asset), d.amount.0, None)?;
        self.turnover(Some(asset), d.amount.0)?;
        self.note_debit(d, header, (from, asset));
        self.debit(from, asset, d.amount.0);
        let payee = self.or_new(payee, to);
        self.credit(payee, asset, d.amount.0);
        Ok(())
    }

    fn burn(&mut self, d: &Debit, header: &Header) -> Rule<()> {
        let (from, asset) = self.check_debit(d, header)?;
        // With credit an account can hold more than there is.
        if self.asset(asset).circulating() < d.amount.0 {
            return no(Refusal::InsufficientFunds);
        }
        self.turnover(Some(asset), d.amount.0)?;
        self.note_debit(d, header, (from, asset));
        self.debit(from, asset, d.amount.0);
        self.asset_mut(asset).burned += d.amount.0;
        Ok(())
    }

    fn make_hold(
        &mut self,
        d: &Debit,
        header: &Header,
        expires_at: Timestamp,
        id: TxId,
    ) -> Rule<()> {
        if expires_at <= self.ts {
            return no(Refusal::HoldExpired);
        }
        let (from, asset) = self.check_debit(d, header)?;
        self.note_debit(d, header, (from, asset));
        self.touch(from).row.balance_mut(asset).held += d.amount.0;
        let row = HoldRow {
            id,
            account: from,
            asset,
            remaining: d.amount.0,
            expires_at,
            made_on: self.ts.utc_day(),
            counted: header.daily_ceiling.is_some(),
            budgets: header.budgets.iter().map(|b| b.id).collect(),
        };
        self.top().holds.insert(id.seq(), Some(row));
        Ok(())
    }

    fn capture(
        &mut self,
        id: TxId,
        to: &Account,
        (asked, ends_hold): (Option<Amount>, bool),
        budgets: &[Budget],
    ) -> Rule<Effect> {
        reserved(to)?;
        let ts = self.ts;
        let Some(hold) = self.hold(id).filter(|h| h.expires_at > ts).cloned() else {
            return no(Refusal::HoldNotFound);
        };
        let may_pay = self.may_debit(hold.account);
        #[cfg(mutant = "frozen")] // a hold pays although its account is frozen
        let may_pay = may_pay.or_else(|why| match crate::mutant("frozen") {
            true => Ok(()),
            false => Err(why),
        });
        may_pay?;
        let amount = asked.map_or(hold.remaining, |asked| asked.0);
        // The budgets that the hold was counted against have paid for its captures already.
        let others = || budgets.iter().filter(|b| !hold.budgets.contains(&b.id));
        self.within_budgets(others(), amount)?;
        let Some(remaining) = hold.remaining.checked_sub(amount) else {
            return no(Refusal::HoldTooSmall);
        };
        let payee = self.find(to);
        self.check_credit(payee, Some(hold.asset), amount, Some(hold.account))?;
        self.turnover(Some(hold.asset), amount)?;
        let effect = self.effect(&hold, amount);
        self.touch(hold.account).row.balance_mut(hold.asset).held -= amount;
        self.debit(hold.account, hold.asset, amount);
        self.count_budgets(others(), amount);
        let payee = self.or_new(payee, to);
        self.credit(payee, hold.asset, amount);
        let left = (remaining > 0).then(|| HoldRow {
            remaining,
            ..hold.clone()
        });
        self.top().holds.insert(id.seq(), left);
        if ends_hold && remaining > 0 {
            self.end_hold(id)?;
        }
        Ok(effect)
    }

    /// Moves back what an entry moved: an outflow of the account that it credited, like any other.
    fn reverse(
        &mut self,
        tx: TxId,
        asked: Option<Amount>,
        original: &Original,
        header: &Header,
    ) -> Rule<Effect> {
        let Original { from, to, .. } = original;
        reserved(from)?;
        reserved(to)?;
        let done = self.reversed(tx.seq());
        #[cfg(mutant = "reversed")] // forgets what was moved back before
        let done = done * u128::from(!crate::mutant("reversed"));
        let left = original.amount.0.saturating_sub(done);
        let amount = asked.map_or(left, |asked| asked.0);
        if amount == 0 || amount > left {
            return no(Refusal::ReversalTooLarge);
        }
        let payer = self.find(from);
        payer.map_or(Ok(()), |ix| self.may_debit(ix))?;
        let asset = self.asset_ix(&original.asset)?;
        self.within_ceiling(payer, asset, amount, header.daily_ceiling)?;
        self.within_budgets(&header.budgets, amount)?;
        let (Some(payer), Some(asset)) = (payer, asset) else {
            return no(Refusal::InsufficientFunds);
        };
        if self.available(payer, asset) < amount {
            return no(Refusal::InsufficientFunds);
        }
        let payee = self.find(to);
        self.check_credit(payee, Some(asset), amount, Some(payer))?;
        self.turnover(Some(asset), amount)?;
        self.count_day(payer, asset, amount, header.daily_ceiling);
        self.count_budgets(&header.budgets, amount);
        self.debit(payer, asset, amount);
        let payee = self.or_new(payee, to);
        self.credit(payee, asset, amount);
        self.top().reversed.insert(tx.seq(), done + amount);
        Ok(Effect {
            from: from.clone(),
            asset: original.asset.clone(),
            amount: Amount(amount),
        })
    }

    fn expire(&mut self, id: TxId) -> Rule<Effect> {
        let ts = self.ts;
        #[cfg(mutant = "expiry")] // off by one
        let ts = Timestamp(ts.0 + u64::from(crate::mutant("expiry")));
        if self.hold(id).is_some_and(|h| h.expires_at > ts) {
            return no(Refusal::HoldNotFound);
        }
        self.end_hold(id)
    }

    fn end_hold(&mut self, id: TxId) -> Rule<Effect> {
        let Some(hold) = self.hold(id).cloned() else {
            return no(Refusal::HoldNotFound);
        };
        let effect = self.effect(&hold, hold.remaining);
        self.touch(hold.account).row.balance_mut(hold.asset).held -= hold.remaining;
        self.give_back(&hold, hold.remaining);
        self.top().holds.insert(id.seq(), None);
        Ok(effect)
    }

    fn effect(&self, hold: &HoldRow, amount: u128) -> Effect {
        Effect {
            from: self.row(hold.account).name.clone(),
            asset: self.asset(hold.asset).name.clone(),
            amount: Amount(amount),
        }
    }
}
