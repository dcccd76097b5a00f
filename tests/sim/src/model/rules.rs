//! What each kind of entry requires and does, in the model.

use ron_proto::ledger::{AccountTerms, AssetTerms, Entry, RefusalCode, TxId, escrow_account};
use ron_proto::{Account, Amount, Asset, Timestamp};

use super::books::{Books, Epoch, EpochKey, Hold, Reversible};
use super::{Limits, Moved, Rule};

/// The account, asset and amount of a debit.
struct Debit<'a> {
    from: &'a Account,
    asset: &'a Asset,
    amount: Amount,
    up_to: Option<Amount>,
    nonce: Option<u64>,
}

fn require(holds: bool, code: RefusalCode) -> Rule<()> {
    if holds { Ok(()) } else { Err(code) }
}

impl Books {
    /// Decides an entry, which gets this id if it is a hold or can be reversed. Nothing changes when it is refused.
    pub(super) fn decide(&mut self, entry: &Entry, ts: Timestamp, id: TxId) -> Rule {
        match entry {
            Entry::Issue {
                to,
                asset,
                amount_minor,
                ..
            } => self.issue(to, asset, amount_minor.0),
            Entry::Transfer {
                from,
                to,
                asset,
                amount_minor,
                up_to,
                nonce,
                ..
            } => {
                let debit = Debit {
                    from,
                    asset,
                    amount: *amount_minor,
                    up_to: *up_to,
                    nonce: *nonce,
                };
                self.transfer(&debit, to, id)
            }
            Entry::Burn {
                from,
                asset,
                amount_minor,
                up_to,
                nonce,
                ..
            } => self.burn(&Debit {
                from,
                asset,
                amount: *amount_minor,
                up_to: *up_to,
                nonce: *nonce,
            }),
            Entry::Hold {
                from,
                asset,
                amount_minor,
                up_to,
                nonce,
                expires_at,
                ..
            } => {
                let debit = Debit {
                    from,
                    asset,
                    amount: *amount_minor,
                    up_to: *up_to,
                    nonce: *nonce,
                };
                self.hold(&debit, (ts, *expires_at), id)
            }
            other => self.decide_hold(other, ts, id),
        }
    }

    /// What ends holds, reverses or abandons.
    fn decide_hold(&mut self, entry: &Entry, ts: Timestamp, id: TxId) -> Rule {
        match entry {
            Entry::Capture {
                hold,
                to,
                amount_minor,
                ends_hold,
                ..
            } => {
                let hold = hold.id().ok_or(RefusalCode::HoldNotFound)?;
                self.capture(hold, to, (*amount_minor, *ends_hold), ts, id)
            }
            Entry::Release { hold, .. } => {
                self.end_hold(hold.id().ok_or(RefusalCode::HoldNotFound)?)
            }
            Entry::Expire { hold } => {
                let due = self.holds.get(hold).is_some_and(|h| h.expires_at <= ts);
                require(due, RefusalCode::HoldNotFound)?;
                self.end_hold(*hold)
            }
            Entry::Reverse {
                tx, amount_minor, ..
            } => self.reverse(*tx, *amount_minor),
            Entry::Abandon { .. } => Err(RefusalCode::Abandoned),
            other => self.decide_terms(other, id),
        }
    }

    /// Entries of operators and of settlement.
    fn decide_terms(&mut self, entry: &Entry, id: TxId) -> Rule {
        let named = |account: &Account| Moved {
            from: Some(account.clone()),
            ..Moved::default()
        };
        match entry {
            Entry::Freeze { account, sides, .. } => {
                let holder = self.accounts.entry(account.clone()).or_default();
                holder.frozen = holder.frozen.and(*sides);
                Ok(named(account))
            }
            Entry::Unfreeze { account, sides, .. } => {
                let holder = self.accounts.entry(account.clone()).or_default();
                holder.frozen = holder.frozen.without(*sides);
                Ok(named(account))
            }
            Entry::Account { account, terms, .. } => {
                self.set_account(account, terms)?;
                Ok(named(account))
            }
            Entry::Asset { asset, terms, .. } => {
                self.set_asset(asset, terms)?;
                Ok(Moved {
                    asset: Some(asset.clone()),
                    ..Moved::default()
                })
            }
            Entry::EpochOpen { .. } => self.open_epoch(entry),
            Entry::Payout { .. } => self.payout(entry, id),
            Entry::EpochClose {
                tenant,
                epoch,
                commitment,
                ..
            } => {
                let key = (tenant.clone(), epoch.clone());
                let e = self.epochs.get_mut(&key);
                let e = e.ok_or(RefusalCode::EpochUnknown)?;
                require(e.commitment == *commitment, RefusalCode::EpochConflict)?;
                let paid = e.next == e.recipients && e.paid == e.total && !e.closed;
                require(paid, RefusalCode::EpochIncomplete)?;
                e.closed = true;
                Ok(Moved::default())
            }
            Entry::EpochVoid {
                tenant,
                epoch,
                commitment,
                ..
            } => {
                let key = (tenant.clone(), epoch.clone());
                let opened = self.epochs.get(&key);
                let opened = opened.is_some_and(|e| e.commitment == *commitment);
                require(!opened, RefusalCode::EpochOpened)?;
                let is_new = self.voids.insert((key, *commitment));
                require(is_new, RefusalCode::EpochConflict)?;
                Ok(Moved::default())
            }
            other => unreachable!("{other:?} is decided above"),
        }
    }

    fn may_debit(&self, account: &Account) -> Rule<()> {
        let Some(holder) = self.accounts.get(account) else {
            return Ok(());
        };
        require(!holder.closed, RefusalCode::AccountClosed)?;
        require(!holder.frozen.debits(), RefusalCode::AccountFrozen)
    }

    fn may_credit(&self, account: &Account) -> Rule<()> {
        let Some(holder) = self.accounts.get(account) else {
            return Ok(());
        };
        require(!holder.closed, RefusalCode::AccountClosed)?;
        require(!holder.frozen.credits(), RefusalCode::AccountFrozen)
    }

    /// Whether the account may take the amount.
    fn may_take(&self, account: &Account, asset: &Asset, amount: u128) -> Rule<()> {
        self.may_credit(account)?;
        let holder = self.accounts.get(account);
        let purse = holder.and_then(|holder| holder.purses.get(asset));
        let purse = purse.copied().unwrap_or_default();
        // An overdrawn account first pays its debt.
        let after = (purse.credits + amount).saturating_sub(purse.debits);
        let max = self.limits(account, asset).max;
        require(max.is_none_or(|max| after <= max), RefusalCode::MaxBalance)
    }

    /// Checks a debit; its amount.
    fn may_pay(&self, debit: &Debit<'_>) -> Rule<u128> {
        self.may_debit(debit.from)?;
        let holder = self.accounts.get(debit.from).cloned().unwrap_or_default();
        let fits = match debit.nonce {
            Some(nonce) => nonce == holder.nonce + 1,
            None => !holder.require_nonce,
        };
        require(fits, RefusalCode::NonceConflict)?;
        let available = self.available(debit.from, debit.asset);
        let amount = match debit.up_to {
            Some(most) => {
                require(available <= most.0, RefusalCode::LimitsExceeded)?;
                available
            }
            None => debit.amount.0,
        };
        let enough = amount > 0 && amount <= available;
        require(enough, RefusalCode::InsufficientFunds)?;
        Ok(amount)
    }

    fn use_nonce(&mut self, debit: &Debit<'_>) {
        if debit.nonce.is_some() {
            self.accounts.entry(debit.from.clone()).or_default().nonce += 1;
        }
    }

    fn issue(&mut self, to: &Account, asset: &Asset, amount: u128) -> Rule {
        self.may_take(to, asset, amount)?;
        self.assets.entry(asset.clone()).or_default().issued += amount;
        self.credit(to, asset, amount);
        Ok(Moved {
            to: Some(to.clone()),
            asset: Some(asset.clone()),
            amount: Some(amount),
            ..Moved::default()
        })
    }

    fn transfer(&mut self, debit: &Debit<'_>, to: &Account, id: TxId) -> Rule {
        let amount = self.may_pay(debit)?;
        self.may_take(to, debit.asset, amount)?;
        self.use_nonce(debit);
        Ok(self.pay(
            (debit.from, to),
            debit.asset,
            amount,
            Some((id, debit.from)),
        ))
    }

    /// Moves money. `back` is the id under which it can be reversed, and the account to which it goes back.
    fn pay(
        &mut self,
        (from, to): (&Account, &Account),
        asset: &Asset,
        amount: u128,
        back: Option<(TxId, &Account)>,
    ) -> Moved {
        self.debit(from, asset, amount);
        self.credit(to, asset, amount);
        if let Some((id, payer)) = back {
            let moved = Reversible {
                credited: to.clone(),
                payer: payer.clone(),
                asset: asset.clone(),
                amount,
                left: amount,
            };
            self.moved.insert(id, moved);
        }
        Moved {
            from: Some(from.clone()),
            to: Some(to.clone()),
            asset: Some(asset.clone()),
            amount: Some(amount),
            ..Moved::default()
        }
    }

    fn burn(&mut self, debit: &Debit<'_>) -> Rule {
        let amount = self.may_pay(debit)?;
        let sums = self.assets.get(debit.asset).copied().unwrap_or_default();
        let circulating = sums.issued - sums.burned;
        require(amount <= circulating, RefusalCode::InsufficientFunds)?;
        self.use_nonce(debit);
        self.debit(debit.from, debit.asset, amount);
        self.assets.entry(debit.asset.clone()).or_default().burned += amount;
        Ok(out_of(debit.from, debit.asset, amount))
    }

    fn hold(&mut self, debit: &Debit<'_>, (now, end): (Timestamp, Timestamp), id: TxId) -> Rule {
        require(end > now, RefusalCode::HoldExpired)?;
        let amount = self.may_pay(debit)?;
        self.use_nonce(debit);
        self.set_held(debit.from, debit.asset, amount as i128);
        let hold = Hold {
            from: debit.from.clone(),
            asset: debit.asset.clone(),
            left: amount,
            expires_at: end,
        };
        self.holds.insert(id, hold);
        Ok(out_of(debit.from, debit.asset, amount))
    }

    fn capture(
        &mut self,
        hold: TxId,
        to: &Account,
        (asked, ends): (Option<Amount>, bool),
        now: Timestamp,
        id: TxId,
    ) -> Rule {
        let open = self.holds.get(&hold).filter(|h| h.expires_at > now);
        let open = open.cloned().ok_or(RefusalCode::HoldNotFound)?;
        self.may_debit(&open.from)?;
        let amount = asked.map_or(open.left, |asked| asked.0);
        require(amount <= open.left, RefusalCode::HoldTooSmall)?;
        if *to == open.from {
            // What it pays to itself does not raise its balance.
            self.may_credit(to)?;
        } else {
            self.may_take(to, &open.asset, amount)?;
        }
        self.set_held(&open.from, &open.asset, -(amount as i128));
        let back = Some((id, &open.from));
        let moved = self.pay((&open.from, to), &open.asset, amount, back);
        if amount == open.left {
            self.holds.remove(&hold);
        } else {
            self.holds.get_mut(&hold).expect("found above").left -= amount;
            if ends {
                self.end_hold(hold)?;
            }
        }
        let hold = Some(hold);
        Ok(Moved { hold, ..moved })
    }

    fn end_hold(&mut self, id: TxId) -> Rule {
        let hold = self.holds.remove(&id).ok_or(RefusalCode::HoldNotFound)?;
        self.set_held(&hold.from, &hold.asset, -(hold.left as i128));
        let moved = out_of(&hold.from, &hold.asset, hold.left);
        let hold = Some(id);
        Ok(Moved { hold, ..moved })
    }

    fn reverse(&mut self, tx: TxId, asked: Option<Amount>) -> Rule {
        let original = self.moved.get(&tx).cloned();
        let original = original.ok_or(RefusalCode::NotReversible)?;
        let amount = asked.map_or(original.left, |asked| asked.0);
        let fits = amount > 0 && amount <= original.left;
        require(fits, RefusalCode::ReversalTooLarge)?;
        let (from, to) = (&original.credited, &original.payer);
        self.may_debit(from)?;
        let enough = amount <= self.available(from, &original.asset);
        require(enough, RefusalCode::InsufficientFunds)?;
        if from == to {
            self.may_credit(to)?;
        } else {
            self.may_take(to, &original.asset, amount)?;
        }
        self.moved.get_mut(&tx).expect("found above").left -= amount;
        let moved = self.pay((from, to), &original.asset, amount, None);
        let reverses = Some(tx);
        Ok(Moved { reverses, ..moved })
    }

    fn set_account(&mut self, account: &Account, terms: &AccountTerms) -> Rule<()> {
        let holder = self.accounts.get(account).cloned().unwrap_or_default();
        if terms.closed == Some(true) {
            let mut purses = holder.purses.values();
            let empty = purses.all(|p| p.credits == p.debits && p.held == 0);
            require(empty, RefusalCode::AccountNotEmpty)?;
        }
        if let Some(limits) = &terms.limits {
            let purse = holder.purses.get(&limits.asset).copied();
            let purse = purse.unwrap_or_default();
            let covered = purse.debits + purse.held <= purse.credits + limits.credit_limit_minor.0;
            require(covered, RefusalCode::CreditInUse)?;
        }
        let holder = self.accounts.entry(account.clone()).or_default();
        if let Some(limits) = &terms.limits {
            self.assets.entry(limits.asset.clone()).or_default();
            let set = Limits {
                credit: limits.credit_limit_minor.0,
                max: limits.max_balance_minor.map(|max| max.0),
            };
            holder.limits.insert(limits.asset.clone(), set);
        }
        holder.closed = terms.closed.unwrap_or(holder.closed);
        holder.frozen = terms.frozen.unwrap_or(holder.frozen);
        holder.require_nonce = terms.require_nonce.unwrap_or(holder.require_nonce);
        Ok(())
    }

    fn set_asset(&mut self, asset: &Asset, terms: &AssetTerms) -> Rule<()> {
        let sums = self.assets.entry(asset.clone()).or_default();
        let other = sums.scale.is_some_and(|scale| scale != terms.scale);
        require(!other || sums.issued == 0, RefusalCode::AssetScale)?;
        sums.scale = Some(terms.scale);
        Ok(())
    }

    fn open_epoch(&mut self, entry: &Entry) -> Rule {
        let Entry::EpochOpen {
            tenant,
            epoch,
            from,
            asset,
            amount_minor,
            commitment,
            recipients,
            source,
            adjusts,
            ..
        } = entry
        else {
            unreachable!("the caller has matched it");
        };
        let key: EpochKey = (tenant.clone(), epoch.clone());
        require(!self.epochs.contains_key(&key), RefusalCode::EpochConflict)?;
        let withdrawn = self.voids.contains(&(key.clone(), *commitment));
        require(!withdrawn, RefusalCode::EpochVoid)?;
        let paid_by = self.sources.get(&(tenant.clone(), *source));
        let is_known = paid_by.is_none() || paid_by == adjusts.as_ref();
        require(is_known, RefusalCode::UsagePaid)?;
        let corrected = adjusts.as_ref().map(|of| (tenant.clone(), of.clone()));
        let is_first = corrected
            .as_ref()
            .is_none_or(|of| !self.corrected.contains(of));
        require(is_first, RefusalCode::UsagePaid)?;
        self.may_debit(from)?;
        let enough = amount_minor.0 <= self.available(from, asset);
        require(enough, RefusalCode::InsufficientFunds)?;
        self.sources
            .insert((tenant.clone(), *source), epoch.clone());
        self.corrected.extend(corrected);
        let escrow = escrow_account(tenant, epoch);
        let row = Epoch {
            commitment: *commitment,
            pool: from.clone(),
            asset: asset.clone(),
            total: amount_minor.0,
            recipients: *recipients,
            next: 0,
            paid: 0,
            closed: false,
        };
        self.epochs.insert(key, row);
        Ok(self.pay((from, &escrow), asset, amount_minor.0, None))
    }

    /// Payouts come in the order of their numbers, and the last one takes what is left.
    fn payout(&mut self, entry: &Entry, id: TxId) -> Rule {
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
            unreachable!("the caller has matched it");
        };
        let key: EpochKey = (tenant.clone(), epoch.clone());
        let e = self.epochs.get(&key).ok_or(RefusalCode::EpochUnknown)?;
        require(!e.closed, RefusalCode::EpochClosed)?;
        require(*index == e.next, RefusalCode::IndexGap)?;
        let left = e.recipients.checked_sub(index + 1);
        let rest = (e.total - e.paid).checked_sub(amount_minor.0);
        let fits = left.zip(rest).is_some_and(|(left, rest)| {
            rest >= u128::from(left) && (left > 0 || rest == 0) && e.asset == *asset
        });
        require(fits, RefusalCode::EpochConflict)?;
        let pool = e.pool.clone();
        self.may_credit(to)?;
        let escrow = escrow_account(tenant, epoch);
        let e = self.epochs.get_mut(&key).expect("found above");
        e.next += 1;
        e.paid += amount_minor.0;
        Ok(self.pay((&escrow, to), asset, amount_minor.0, Some((id, &pool))))
    }
}

/// What leaves an account, or is reserved, for no other account.
fn out_of(from: &Account, asset: &Asset, amount: u128) -> Moved {
    Moved {
        from: Some(from.clone()),
        asset: Some(asset.clone()),
        amount: Some(amount),
        ..Moved::default()
    }
}
