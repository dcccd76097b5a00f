//! What each kind of entry requires and does. Every rule checks first and changes afterwards, so
//! that a refusal has no effect. Order of checks: reserved, frozen, nonce, ceiling, funds, the
//! operator's limits.

use ron_proto::ledger::{ESCROW_PREFIX, Entry, RefusalCode, TxId, escrow_account};
use ron_proto::{Account, Amount, Asset, ContentId, EpochId, Tenant, Timestamp};

use super::decide::Step;
use super::limits::{ACCOUNTS_MAX, Limit};
use super::op::Op;
use super::state::{EpochKey, EpochRow, HoldRow};
use super::{Effect, Verdict};

/// Sequence of the entry that already has this epoch or index.
type KnownSeq = u64;

/// The result of a rule; `Err` is a refusal.
type Rule<T> = Result<T, Verdict>;

const DONE: Verdict = Verdict::Done(None);

/// Maximum minor units ever issued of an asset. No account can exceed it, and no sum of accounts
/// overflows 128 bits.
pub(super) const ISSUED_MAX: u128 = u128::MAX - 1_000_000_000;

fn no<T>(code: RefusalCode) -> Rule<T> {
    Err(Verdict::refused(code))
}

/// The common part of transfer, burn and hold.
struct Debit<'e> {
    from: &'e Account,
    asset: &'e Asset,
    amount: u128,
    nonce: u64,
    ceiling: Option<Amount>,
}

fn debit(entry: &Entry) -> Debit<'_> {
    match entry {
        Entry::Transfer {
            from,
            asset,
            amount_minor,
            nonce,
            daily_ceiling,
            ..
        }
        | Entry::Burn {
            from,
            asset,
            amount_minor,
            nonce,
            daily_ceiling,
            ..
        }
        | Entry::Hold {
            from,
            asset,
            amount_minor,
            nonce,
            daily_ceiling,
            ..
        } => Debit {
            from,
            asset,
            amount: amount_minor.0,
            nonce: *nonce,
            ceiling: *daily_ceiling,
        },
        _ => unreachable!("called for debits by their owner only"),
    }
}

fn reserved(account: &Account) -> Rule<()> {
    if account.as_str().starts_with(ESCROW_PREFIX) {
        no(RefusalCode::ReservedAccount)
    } else {
        Ok(())
    }
}

impl Step<'_> {
    /// Refuses a new account above the limit of accounts.
    fn room(&self, name: &Account) -> Rule<()> {
        self.room_among(name, self.limits.accounts.min(ACCOUNTS_MAX))
    }

    fn room_among(&self, name: &Account, most: u32) -> Rule<()> {
        if self.account_count() < u64::from(most) || self.find(name).is_some() {
            Ok(())
        } else {
            Err(Verdict::Limited(Limit::Accounts(most)))
        }
    }

    /// Refuses an amount that would bring the account above the limit per account.
    fn within_total(&self, name: &Account, asset: Option<u32>, amount: u128) -> Rule<()> {
        let there = match (self.find(name), asset) {
            (Some(ix), Some(asset)) => self.row(ix).balance(asset).total,
            _ => 0,
        };
        let most = self.limits.account_total;
        match there.checked_add(amount) {
            Some(total) if total <= most => Ok(()),
            _ => Err(Verdict::Limited(Limit::AccountTotal(most))),
        }
    }

    pub(super) fn decide(&mut self, op: &Op, seq: u64) -> Result<Verdict, KnownSeq> {
        let ruled = match op.entry() {
            Entry::EpochOpen { .. } => return self.epoch_open(op.entry(), seq),
            Entry::Payout { .. } => return self.payout(op.entry(), seq),
            Entry::EpochClose { .. } => return self.epoch_close(op.entry(), seq),
            Entry::Issue {
                to,
                asset,
                amount_minor,
                daily_ceiling,
                ..
            } => self.issue(to, asset, amount_minor.0, *daily_ceiling),
            Entry::Transfer { to, .. } => self.transfer(&debit(op.entry()), to),
            Entry::Burn { .. } => self.burn(&debit(op.entry())),
            Entry::Hold { expires_at, .. } => {
                self.make_hold(&debit(op.entry()), *expires_at, op.txid(seq))
            }
            Entry::Capture {
                hold,
                to,
                amount_minor,
                ..
            } => self.capture(*hold, to, amount_minor.0),
            Entry::Release { hold, .. } => self.end_hold(*hold),
            Entry::Expire { hold } => self.expire(*hold),
            Entry::Freeze { account, .. } => self.set_frozen(account, true),
            Entry::Unfreeze { account, .. } => self.set_frozen(account, false),
            Entry::Abandon { .. } => no(RefusalCode::Abandoned),
        };
        Ok(ruled.unwrap_or_else(|refusal| refusal))
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
            _ => super::Balance::default(),
        };
        let used = if used.day == self.ts.utc_day() {
            used.day_total
        } else {
            0
        };
        match used.checked_add(amount) {
            Some(sum) if sum <= ceiling.0 => Ok(()),
            _ => no(RefusalCode::LimitsExceeded),
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

    fn issue(
        &mut self,
        to: &Account,
        asset: &Asset,
        amount: u128,
        ceiling: Option<Amount>,
    ) -> Rule<Verdict> {
        reserved(to)?;
        let known = self.asset_ix(asset);
        self.within_ceiling(self.find(to), known, amount, ceiling)?;
        let issued = known.map_or(0, |ix| self.asset(ix).issued);
        let Some(issued) = issued.checked_add(amount) else {
            return no(RefusalCode::AmountOverflow);
        };
        if issued > ISSUED_MAX {
            return no(RefusalCode::LimitsExceeded);
        }
        self.within_total(to, known, amount)?;
        self.room(to)?;
        let ix = known.unwrap_or_else(|| self.add_asset(asset));
        let row = self.asset_mut(ix);
        row.issued = issued;
        row.circulating += amount;
        let to = self.intern(to);
        self.touch(to).row.balance_mut(ix).total += amount;
        self.count_day(to, ix, amount, ceiling);
        Ok(DONE)
    }

    /// Checks a debit; returns the row numbers of account and asset.
    fn check_debit(&self, d: &Debit<'_>) -> Rule<(u32, u32)> {
        reserved(d.from)?;
        let from = self.find(d.from);
        let nonce = match from.map(|ix| self.row(ix)) {
            Some(row) if row.frozen => return no(RefusalCode::AccountFrozen),
            Some(row) => row.nonce,
            None => 0,
        };
        if d.nonce != nonce + 1 {
            return Err(Verdict::Refused {
                code: RefusalCode::NonceConflict,
                expected: Some(nonce + 1),
            });
        }
        let asset = self.asset_ix(d.asset);
        self.within_ceiling(from, asset, d.amount, d.ceiling)?;
        let (Some(from), Some(asset)) = (from, asset) else {
            return no(RefusalCode::InsufficientFunds);
        };
        let b = self.row(from).balance(asset);
        if b.total - b.held < d.amount {
            return no(RefusalCode::InsufficientFunds);
        }
        Ok((from, asset))
    }

    /// Uses up the nonce and adds to the day's total.
    fn note_debit(&mut self, d: &Debit<'_>, from: u32, asset: u32) {
        let t = self.touch(from);
        t.row.nonce += 1;
        t.debits += 1;
        self.count_day(from, asset, d.amount, d.ceiling);
    }

    fn transfer(&mut self, d: &Debit<'_>, to: &Account) -> Rule<Verdict> {
        reserved(to)?;
        let (from, asset) = self.check_debit(d)?;
        self.within_total(to, Some(asset), d.amount)?;
        self.room(to)?;
        self.note_debit(d, from, asset);
        self.touch(from).row.balance_mut(asset).total -= d.amount;
        let to = self.intern(to);
        self.touch(to).row.balance_mut(asset).total += d.amount;
        Ok(DONE)
    }

    fn burn(&mut self, d: &Debit<'_>) -> Rule<Verdict> {
        let (from, asset) = self.check_debit(d)?;
        self.note_debit(d, from, asset);
        self.touch(from).row.balance_mut(asset).total -= d.amount;
        let row = self.asset_mut(asset);
        row.burned += d.amount;
        row.circulating -= d.amount;
        Ok(DONE)
    }

    fn make_hold(&mut self, d: &Debit<'_>, expires_at: Timestamp, id: TxId) -> Rule<Verdict> {
        if expires_at <= self.ts {
            return no(RefusalCode::HoldExpired);
        }
        let (from, asset) = self.check_debit(d)?;
        self.note_debit(d, from, asset);
        self.touch(from).row.balance_mut(asset).held += d.amount;
        let row = HoldRow {
            id,
            account: from,
            asset,
            remaining: d.amount,
            expires_at,
        };
        self.top().holds.insert(id.seq(), Some(row));
        Ok(DONE)
    }

    fn capture(&mut self, id: TxId, to: &Account, amount: u128) -> Rule<Verdict> {
        reserved(to)?;
        let ts = self.ts;
        let Some(hold) = self.hold(id).filter(|h| h.expires_at > ts).cloned() else {
            return no(RefusalCode::HoldNotFound);
        };
        if self.row(hold.account).frozen {
            return no(RefusalCode::AccountFrozen);
        }
        let Some(remaining) = hold.remaining.checked_sub(amount) else {
            return no(RefusalCode::HoldTooSmall);
        };
        // A capture to the holder's own account does not raise its total.
        if self.find(to) != Some(hold.account) {
            self.within_total(to, Some(hold.asset), amount)?;
        }
        self.room(to)?;
        let effect = self.effect(&hold, amount);
        let from = self.touch(hold.account).row.balance_mut(hold.asset);
        from.total -= amount;
        from.held -= amount;
        let to = self.intern(to);
        self.touch(to).row.balance_mut(hold.asset).total += amount;
        let left = (remaining > 0).then_some(HoldRow { remaining, ..hold });
        self.top().holds.insert(id.seq(), left);
        Ok(Verdict::Done(Some(effect)))
    }

    fn expire(&mut self, id: TxId) -> Rule<Verdict> {
        let ts = self.ts;
        if self.hold(id).is_some_and(|h| h.expires_at > ts) {
            return no(RefusalCode::HoldNotFound);
        }
        self.end_hold(id)
    }

    fn end_hold(&mut self, id: TxId) -> Rule<Verdict> {
        let Some(hold) = self.hold(id).cloned() else {
            return no(RefusalCode::HoldNotFound);
        };
        let effect = self.effect(&hold, hold.remaining);
        self.touch(hold.account).row.balance_mut(hold.asset).held -= hold.remaining;
        self.top().holds.insert(id.seq(), None);
        Ok(Verdict::Done(Some(effect)))
    }

    fn effect(&self, hold: &HoldRow, amount: u128) -> Effect {
        Effect {
            from: self.row(hold.account).name.clone(),
            asset: self.asset(hold.asset).name.clone(),
            amount: Amount(amount),
        }
    }

    fn set_frozen(&mut self, account: &Account, frozen: bool) -> Rule<Verdict> {
        reserved(account)?;
        self.room(account)?;
        let ix = self.intern(account);
        self.touch(ix).row.frozen = frozen;
        Ok(DONE)
    }
}

/// Reward settlement: an epoch binds once, payouts come in index order, the escrow ends empty.
impl Step<'_> {
    fn epoch_open(&mut self, entry: &Entry, seq: u64) -> Result<Verdict, KnownSeq> {
        let Entry::EpochOpen {
            tenant,
            epoch,
            from,
            asset,
            amount_minor,
            commitment,
            sum_root,
            recipients,
            source,
            adjusts,
            ..
        } = entry
        else {
            unreachable!("called for epoch_open only");
        };
        let key: EpochKey = (tenant.clone(), epoch.clone());
        if let Some(e) = self.epoch(&key) {
            let same = e.commitment == *commitment
                && e.sum_root == *sum_root
                && e.from == *from
                && e.recipients == *recipients
                && e.source == *source
                && e.adjusts == *adjusts
                && e.total == amount_minor.0
                && self.asset(e.asset).name == *asset;
            return if same {
                Err(e.opened_seq)
            } else {
                Ok(Verdict::refused(RefusalCode::EpochConflict))
            };
        }
        let escrow = escrow_account(tenant, epoch);
        let checked = self
            .check_source(tenant, *source, adjusts.as_ref())
            .and_then(|()| self.check_pool(from, asset, amount_minor.0));
        let room = || self.room_among(&escrow, ACCOUNTS_MAX);
        let (pool, asset) = match checked.and_then(|rows| room().map(|()| rows)) {
            Ok(rows) => rows,
            Err(refusal) => return Ok(refusal),
        };
        self.touch(pool).row.balance_mut(asset).total -= amount_minor.0;
        let escrow = self.intern(&escrow);
        self.touch(escrow).row.balance_mut(asset).total += amount_minor.0;
        let row = EpochRow {
            commitment: *commitment,
            sum_root: *sum_root,
            from: from.clone(),
            asset,
            recipients: *recipients,
            source: *source,
            adjusts: adjusts.clone(),
            total: amount_minor.0,
            paid: 0,
            next_index: 0,
            opened_seq: seq,
            closed_seq: None,
            runs: Vec::new(),
        };
        let top = self.top();
        top.sources.insert((key.0.clone(), *source), key.1.clone());
        top.epochs.insert(key, row);
        Ok(DONE)
    }

    /// Usage is paid once. A correcting epoch names the epoch that paid last, so that no correction
    /// is made twice.
    fn check_source(
        &self,
        tenant: &Tenant,
        source: ContentId,
        adjusts: Option<&EpochId>,
    ) -> Rule<()> {
        match (self.paid_by(tenant, source), adjusts) {
            (Some(paid), named) if named != Some(paid) => Err(Verdict::Paid(paid.clone())),
            (None, Some(named)) if self.epoch(&(tenant.clone(), named.clone())).is_none() => {
                no(RefusalCode::EpochUnknown)
            }
            _ => Ok(()),
        }
    }

    fn check_pool(&self, from: &Account, asset: &Asset, amount: u128) -> Rule<(u32, u32)> {
        reserved(from)?;
        let pool = self.find(from);
        if pool.is_some_and(|ix| self.row(ix).frozen) {
            return no(RefusalCode::AccountFrozen);
        }
        let (Some(pool), Some(asset)) = (pool, self.asset_ix(asset)) else {
            return no(RefusalCode::InsufficientFunds);
        };
        let b = self.row(pool).balance(asset);
        if b.total - b.held < amount {
            no(RefusalCode::InsufficientFunds)
        } else {
            Ok((pool, asset))
        }
    }

    fn payout(&mut self, entry: &Entry, seq: u64) -> Result<Verdict, KnownSeq> {
        let Entry::Payout {
            tenant,
            epoch,
            index,
            to,
            asset,
            amount_minor,
            ..
        } = entry
        else {
            unreachable!("called for payout only");
        };
        let key: EpochKey = (tenant.clone(), epoch.clone());
        let Some(e) = self.epoch(&key) else {
            return Ok(Verdict::refused(RefusalCode::EpochUnknown));
        };
        if let Some(made) = e.payout_seq(*index) {
            return Err(made);
        }
        let asset_ix = e.asset;
        if let Err(refusal) = self.check_payout(e, *index, to, asset, amount_minor.0) {
            return Ok(refusal);
        }
        let escrow = self.intern(&escrow_account(tenant, epoch));
        self.touch(escrow).row.balance_mut(asset_ix).total -= amount_minor.0;
        let to = self.intern(to);
        self.touch(to).row.balance_mut(asset_ix).total += amount_minor.0;
        let e = self.epoch_mut(&key);
        e.paid += amount_minor.0;
        e.note_payout(seq);
        Ok(DONE)
    }

    fn check_payout(
        &self,
        e: &EpochRow,
        index: u64,
        to: &Account,
        asset: &Asset,
        amount: u128,
    ) -> Rule<()> {
        reserved(to)?;
        if e.closed_seq.is_some() {
            return no(RefusalCode::EpochClosed);
        }
        if index >= e.recipients || self.asset(e.asset).name != *asset {
            return no(RefusalCode::EpochConflict);
        }
        if index > e.next_index {
            return Err(Verdict::Refused {
                code: RefusalCode::IndexGap,
                expected: Some(e.next_index),
            });
        }
        // Every recipient still to come needs at least one unit, and the last one takes exactly the
        // remainder.
        let left = e.recipients - index - 1;
        match (e.total - e.paid).checked_sub(amount) {
            Some(rest) if rest >= u128::from(left) && (left > 0 || rest == 0) => {
                self.room_among(to, ACCOUNTS_MAX)
            }
            _ => no(RefusalCode::EpochConflict),
        }
    }

    fn epoch_close(&mut self, entry: &Entry, seq: u64) -> Result<Verdict, KnownSeq> {
        let Entry::EpochClose {
            tenant,
            epoch,
            commitment,
            ..
        } = entry
        else {
            unreachable!("called for epoch_close only");
        };
        let key: EpochKey = (tenant.clone(), epoch.clone());
        let code = match self.epoch(&key) {
            None => RefusalCode::EpochUnknown,
            Some(e) if e.commitment != *commitment => RefusalCode::EpochConflict,
            Some(e) => match e.closed_seq {
                Some(closed) => return Err(closed),
                None if e.next_index == e.recipients
                    && e.paid == e.total
                    && self.escrow_is_empty(&key, e.asset) =>
                {
                    self.epoch_mut(&key).closed_seq = Some(seq);
                    return Ok(DONE);
                }
                None => RefusalCode::EpochIncomplete,
            },
        };
        Ok(Verdict::refused(code))
    }

    fn escrow_is_empty(&self, key: &EpochKey, asset: u32) -> bool {
        self.find(&escrow_account(&key.0, &key.1))
            .is_none_or(|ix| self.row(ix).balance(asset).total == 0)
    }
}
