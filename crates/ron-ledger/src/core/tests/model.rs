//! A naive ledger to compare the core with: maps of names, one entry at a time, cloned to roll back.

use std::collections::BTreeMap;

use ron_proto::Amount;
use ron_proto::ledger::{Entry, RefusalCode, TxId, escrow_account};

const DAY: u64 = 86_400_000;

/// The ledger as one would write it on a napkin: maps of names, one entry at a time, clone to roll back.
#[derive(Default, Clone, Debug)]
pub(super) struct Model {
    pub(super) total: BTreeMap<(String, String), u128>,
    pub(super) held: BTreeMap<(String, String), u128>,
    pub(super) nonce: BTreeMap<String, u64>,
    pub(super) frozen: BTreeMap<String, bool>,
    pub(super) issued: BTreeMap<String, u128>,
    pub(super) burned: BTreeMap<String, u128>,
    pub(super) days: BTreeMap<(String, String, u64), u128>,
    pub(super) holds: BTreeMap<TxId, (String, String, u128, u64)>,
    pub(super) epochs: BTreeMap<String, (Entry, u64, u128, bool)>,
}

pub(super) type Said = Result<(), RefusalCode>;

impl Model {
    pub(super) fn has(&self, a: &str, s: &str) -> u128 {
        self.total.get(&(a.into(), s.into())).copied().unwrap_or(0)
    }

    pub(super) fn free(&self, a: &str, s: &str) -> u128 {
        self.has(a, s) - self.held.get(&(a.into(), s.into())).copied().unwrap_or(0)
    }

    fn add(&mut self, a: &str, s: &str, n: u128) {
        *self.total.entry((a.into(), s.into())).or_default() += n;
    }

    fn sub(&mut self, a: &str, s: &str, n: u128) {
        *self.total.get_mut(&(a.into(), s.into())).unwrap() -= n;
    }

    fn day(
        &mut self,
        a: &str,
        s: &str,
        n: u128,
        ceiling: Option<Amount>,
        ts: u64,
        write: bool,
    ) -> Said {
        let Some(c) = ceiling else { return Ok(()) };
        let used = self.days.entry((a.into(), s.into(), ts / DAY)).or_default();
        let sum = used
            .checked_add(n)
            .filter(|sum| *sum <= c.0)
            .ok_or(RefusalCode::LimitsExceeded)?;
        if write {
            *used = sum;
        }
        Ok(())
    }

    fn debit(&mut self, a: &str, s: &str, n: u128, nonce: u64, c: Option<Amount>, ts: u64) -> Said {
        if a.starts_with("escrow:") {
            return Err(RefusalCode::ReservedAccount);
        }
        if self.frozen.get(a) == Some(&true) {
            return Err(RefusalCode::AccountFrozen);
        }
        if nonce != self.nonce.get(a).copied().unwrap_or(0) + 1 {
            return Err(RefusalCode::NonceConflict);
        }
        self.day(a, s, n, c, ts, false)?;
        if self.free(a, s) < n {
            return Err(RefusalCode::InsufficientFunds);
        }
        self.day(a, s, n, c, ts, true)?;
        self.nonce.insert(a.into(), nonce);
        Ok(())
    }

    pub(super) fn run(&mut self, e: &Entry, id: TxId, ts: u64) -> Said {
        let reserved = |a: &ron_proto::Account| {
            if a.as_str().starts_with("escrow:") {
                Err(RefusalCode::ReservedAccount)
            } else {
                Ok(())
            }
        };
        match e {
            Entry::Issue {
                to,
                asset,
                amount_minor,
                daily_ceiling,
                ..
            } => {
                reserved(to)?;
                self.day(
                    to.as_str(),
                    asset.as_str(),
                    amount_minor.0,
                    *daily_ceiling,
                    ts,
                    false,
                )?;
                let sum = self
                    .issued
                    .get(asset.as_str())
                    .copied()
                    .unwrap_or(0)
                    .checked_add(amount_minor.0);
                self.issued
                    .insert(asset.to_string(), sum.ok_or(RefusalCode::AmountOverflow)?);
                self.day(
                    to.as_str(),
                    asset.as_str(),
                    amount_minor.0,
                    *daily_ceiling,
                    ts,
                    true,
                )?;
                self.add(to.as_str(), asset.as_str(), amount_minor.0);
            }
            Entry::Transfer {
                from,
                to,
                asset,
                amount_minor,
                nonce,
                daily_ceiling,
                ..
            } => {
                reserved(to)?;
                self.debit(
                    from.as_str(),
                    asset.as_str(),
                    amount_minor.0,
                    *nonce,
                    *daily_ceiling,
                    ts,
                )?;
                self.sub(from.as_str(), asset.as_str(), amount_minor.0);
                self.add(to.as_str(), asset.as_str(), amount_minor.0);
            }
            Entry::Burn {
                from,
                asset,
                amount_minor,
                nonce,
                daily_ceiling,
                ..
            } => {
                self.debit(
                    from.as_str(),
                    asset.as_str(),
                    amount_minor.0,
                    *nonce,
                    *daily_ceiling,
                    ts,
                )?;
                self.sub(from.as_str(), asset.as_str(), amount_minor.0);
                *self.burned.entry(asset.to_string()).or_default() += amount_minor.0;
            }
            Entry::Hold {
                from,
                asset,
                amount_minor,
                nonce,
                expires_at,
                daily_ceiling,
                ..
            } => {
                if expires_at.0 <= ts {
                    return Err(RefusalCode::HoldExpired);
                }
                self.debit(
                    from.as_str(),
                    asset.as_str(),
                    amount_minor.0,
                    *nonce,
                    *daily_ceiling,
                    ts,
                )?;
                *self
                    .held
                    .entry((from.to_string(), asset.to_string()))
                    .or_default() += amount_minor.0;
                self.holds.insert(
                    id,
                    (
                        from.to_string(),
                        asset.to_string(),
                        amount_minor.0,
                        expires_at.0,
                    ),
                );
            }
            Entry::Capture {
                hold,
                to,
                amount_minor,
                ..
            } => {
                reserved(to)?;
                let (a, s, rest, end) = self
                    .holds
                    .get(hold)
                    .cloned()
                    .ok_or(RefusalCode::HoldNotFound)?;
                if end <= ts {
                    return Err(RefusalCode::HoldNotFound);
                }
                if self.frozen.get(&a) == Some(&true) {
                    return Err(RefusalCode::AccountFrozen);
                }
                let left = rest
                    .checked_sub(amount_minor.0)
                    .ok_or(RefusalCode::HoldTooSmall)?;
                *self.held.get_mut(&(a.clone(), s.clone())).unwrap() -= amount_minor.0;
                self.sub(&a, &s, amount_minor.0);
                self.add(to.as_str(), &s, amount_minor.0);
                self.holds.remove(hold);
                if left > 0 {
                    self.holds.insert(*hold, (a, s, left, end));
                }
            }
            Entry::Release { hold, .. } | Entry::Expire { hold } => {
                let (a, s, rest, _) = self.holds.remove(hold).ok_or(RefusalCode::HoldNotFound)?;
                *self.held.get_mut(&(a, s)).unwrap() -= rest;
            }
            Entry::Freeze { account, .. } => {
                reserved(account)?;
                self.frozen.insert(account.to_string(), true);
            }
            Entry::Unfreeze { account, .. } => {
                reserved(account)?;
                self.frozen.insert(account.to_string(), false);
            }
            Entry::Abandon { .. } => return Err(RefusalCode::Abandoned),
            Entry::EpochOpen { .. } | Entry::Payout { .. } | Entry::EpochClose { .. } => {
                return self.settle(e);
            }
        }
        Ok(())
    }

    /// Settlement; an entry already made is `Ok` and changes nothing.
    fn settle(&mut self, e: &Entry) -> Said {
        match e {
            Entry::EpochOpen {
                tenant,
                epoch,
                from,
                asset,
                amount_minor,
                ..
            } => {
                if let Some((bound, ..)) = self.epochs.get(epoch.as_str()) {
                    return if bound == e {
                        Ok(())
                    } else {
                        Err(RefusalCode::EpochConflict)
                    };
                }
                if self.frozen.get(from.as_str()) == Some(&true) {
                    return Err(RefusalCode::AccountFrozen);
                }
                if self.free(from.as_str(), asset.as_str()) < amount_minor.0 {
                    return Err(RefusalCode::InsufficientFunds);
                }
                // An unknown pool or asset is short even of nothing.
                if !self.issued.contains_key(asset.as_str()) || !self.known(from.as_str()) {
                    return Err(RefusalCode::InsufficientFunds);
                }
                if amount_minor.0 > 0 {
                    self.sub(from.as_str(), asset.as_str(), amount_minor.0);
                }
                self.add(
                    escrow_account(tenant, epoch).as_str(),
                    asset.as_str(),
                    amount_minor.0,
                );
                self.epochs
                    .insert(epoch.to_string(), (e.clone(), 0, 0, false));
            }
            Entry::Payout {
                tenant,
                epoch,
                index,
                to,
                asset: s,
                amount_minor,
                ..
            } => {
                let Some((
                    Entry::EpochOpen {
                        asset,
                        recipients,
                        amount_minor: total,
                        ..
                    },
                    next,
                    paid,
                    closed,
                )) = self.epochs.get(epoch.as_str()).cloned()
                else {
                    return Err(RefusalCode::EpochUnknown);
                };
                if *index < next {
                    return Ok(());
                }
                if closed {
                    return Err(RefusalCode::EpochClosed);
                }
                if *index >= recipients || *s != asset {
                    return Err(RefusalCode::EpochConflict);
                }
                if *index > next {
                    return Err(RefusalCode::IndexGap);
                }
                let rest = (total.0 - paid)
                    .checked_sub(amount_minor.0)
                    .ok_or(RefusalCode::EpochConflict)?;
                let left = u128::from(recipients - index - 1);
                if rest < left || (left == 0 && rest > 0) {
                    return Err(RefusalCode::EpochConflict);
                }
                self.sub(
                    escrow_account(tenant, epoch).as_str(),
                    asset.as_str(),
                    amount_minor.0,
                );
                self.add(to.as_str(), asset.as_str(), amount_minor.0);
                let row = self.epochs.get_mut(epoch.as_str()).unwrap();
                (row.1, row.2) = (next + 1, paid + amount_minor.0);
            }
            Entry::EpochClose {
                epoch,
                commitment: c,
                ..
            } => {
                let Some((
                    Entry::EpochOpen {
                        commitment,
                        recipients,
                        ..
                    },
                    next,
                    _,
                    closed,
                )) = self.epochs.get_mut(epoch.as_str())
                else {
                    return Err(RefusalCode::EpochUnknown);
                };
                if c != commitment {
                    return Err(RefusalCode::EpochConflict);
                }
                if next != recipients {
                    return Err(RefusalCode::EpochIncomplete);
                }
                *closed = true;
            }
            _ => unreachable!(),
        }
        Ok(())
    }

    fn known(&self, a: &str) -> bool {
        self.total.keys().any(|(n, _)| n == a) || self.frozen.contains_key(a)
    }
}
