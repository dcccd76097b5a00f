//! The reference model: the simplest possible ledger. Maps of names, one entry at a time as JSON, a
//! clone to roll back. It shares no rule with the core, so that a mistake would have to be made
//! twice. Below it, entries made from drawn numbers, for the property tests and the fuzzer.

use std::collections::BTreeMap;

use ron_proto::ledger::{
    BatchTag, BudgetId, Details, Entry, RefusalCode as No, TokenBudget, TxId, escrow_account,
};
use ron_proto::{Account, Amount, ContentId, Timestamp};
use serde_json::Value;

const DAY: u64 = 86_400_000;

type Purse = (String, String);
/// The sum of one day per purse.
type Day = ((Purse, u64), u128);

#[derive(Default, Clone, Debug)]
pub(super) struct Model {
    pub(super) total: BTreeMap<Purse, u128>,
    pub(super) held: BTreeMap<Purse, u128>,
    pub(super) nonce: BTreeMap<String, u64>,
    pub(super) frozen: BTreeMap<String, bool>,
    pub(super) issued: BTreeMap<String, u128>,
    pub(super) burned: BTreeMap<String, u128>,
    pub(super) days: BTreeMap<(Purse, u64), u128>,
    /// By budget: spent in all, and by day.
    pub(super) budgets: BTreeMap<String, (u128, BTreeMap<u64, u128>)>,
    /// By tenant: the milliseconds until its refusals are forgotten, as of a time.
    pub(super) refusals: BTreeMap<String, (u64, u64)>,
    /// Purse, remaining amount, expiry, the day it was made, the entry.
    pub(super) holds: BTreeMap<TxId, (Purse, u128, u64, u64, Value)>,
    /// The opening entry, the next index, the amount paid, closed.
    pub(super) epochs: BTreeMap<String, (Value, u64, u128, bool)>,
    /// By source, the epoch that paid last.
    pub(super) paid: BTreeMap<String, String>,
}

pub(super) type Expected = Result<(), No>;

fn text(e: &Value, field: &str) -> String {
    e[field].as_str().unwrap_or_default().to_owned()
}

fn number(e: &Value, field: &str) -> Option<u128> {
    e[field].as_str().map(|t| t.parse().unwrap())
}

fn amount(e: &Value) -> u128 {
    number(e, "amount_minor").unwrap_or(0)
}

fn escrow(e: &Value) -> String {
    let (tenant, epoch) = (text(e, "tenant"), text(e, "epoch"));
    escrow_account(&tenant.parse().unwrap(), &epoch.parse().unwrap()).to_string()
}

fn ensure(good: bool, code: No) -> Expected {
    if good { Ok(()) } else { Err(code) }
}

fn open(account: &str) -> Expected {
    ensure(!account.starts_with("escrow:"), No::ReservedAccount)
}

impl Model {
    pub(super) fn has(&self, a: &str, s: &str) -> u128 {
        let purse = (a.into(), s.into());
        self.total.get(&purse).copied().unwrap_or(0)
    }

    pub(super) fn free(&self, a: &str, s: &str) -> u128 {
        let purse = (a.into(), s.into());
        self.has(a, s) - self.held.get(&purse).copied().unwrap_or(0)
    }

    fn put(&mut self, a: &str, s: &str, n: u128) {
        *self.total.entry((a.into(), s.into())).or_default() += n;
    }

    fn take(&mut self, a: &str, s: &str, n: u128) {
        *self.total.get_mut(&(a.into(), s.into())).unwrap() -= n;
    }

    /// The day's total with `n` more, when the entry has a ceiling.
    fn day(&self, purse: &Purse, e: &Value, n: u128, ts: u64) -> Result<Option<Day>, No> {
        let Some(ceiling) = number(e, "daily_ceiling") else {
            return Ok(None);
        };
        let day = (purse.clone(), ts / DAY);
        let used = self.days.get(&day).copied().unwrap_or(0);
        let sum = used.checked_add(n).filter(|n| *n <= ceiling);
        Ok(Some((day, sum.ok_or(No::LimitsExceeded)?)))
    }

    /// The one spelling of an asset.
    fn spelt(&self, s: &str) -> Expected {
        let other = |known: &String| known != s && known.eq_ignore_ascii_case(s);
        ensure(!self.issued.keys().any(other), No::AssetSpelling)
    }

    /// Counts `n` against the budgets of the entry, but for those of `but`, or refuses.
    fn spend(&mut self, e: &Value, but: &Value, n: u128, ts: u64) -> Expected {
        let before = self.budgets.clone();
        for b in e["budgets"].as_array().into_iter().flatten() {
            let id = text(b, "id");
            let paid = but["budgets"].as_array().into_iter().flatten();
            if paid.map(|b| text(b, "id")).any(|paid| paid == id) {
                continue;
            }
            let (all, days) = self.budgets.entry(id).or_default();
            let day = days.entry(ts / DAY).or_default();
            let sums = (all.checked_add(n), day.checked_add(n));
            let within = |sum: Option<u128>, most: &str| {
                sum.is_some_and(|sum| number(b, most).is_none_or(|most| sum <= most))
            };
            if !within(sums.0, "total") || !within(sums.1, "daily") {
                self.budgets = before;
                return Err(No::LimitsExceeded);
            }
            (*all, *day) = (sums.0.unwrap(), sums.1.unwrap());
        }
        Ok(())
    }

    /// What a hold did not pay goes back to its budgets, and to its day while that lasts.
    fn give_back(&mut self, purse: &Purse, made: u64, hold: &Value, n: u128, ts: u64) {
        let today = made == ts / DAY;
        if today && number(hold, "daily_ceiling").is_some() {
            *self.days.get_mut(&(purse.clone(), made)).unwrap() -= n;
        }
        for b in hold["budgets"].as_array().into_iter().flatten() {
            let (all, days) = self.budgets.get_mut(&text(b, "id")).unwrap();
            *all -= n;
            if today {
                *days.get_mut(&made).unwrap() -= n;
            }
        }
    }

    /// Whether the tenant's principal may cause `n` more refusals, of `burst` at once.
    pub(super) fn may_refuse(&self, tenant: &str, n: u64, ts: u64, burst: u32) -> bool {
        let (used, at) = self.refusals.get(tenant).copied().unwrap_or_default();
        used.saturating_sub(ts - at) + n * 1_000 <= u64::from(burst) * 1_000
    }

    /// Counts a recorded outcome.
    pub(super) fn note(&mut self, tenant: &str, refused: bool, ts: u64) {
        let (used, at) = self.refusals.entry(tenant.to_owned()).or_default();
        *used = used.saturating_sub(ts - *at);
        *at = ts;
        *used = if refused { *used + 1_000 } else { used.saturating_sub(250) };
    }

    fn live(&self, a: &str) -> Expected {
        ensure(self.frozen.get(a) != Some(&true), No::AccountFrozen)
    }

    /// A debit by the owner: reserved, frozen, nonce, day, funds; then the nonce, if there is one, is
    /// used.
    fn debit(&mut self, e: &Value, ts: u64) -> Result<(Purse, u128), No> {
        let purse = (text(e, "from"), text(e, "asset"));
        let n = amount(e);
        open(&purse.0)?;
        self.live(&purse.0)?;
        let next = self.nonce.get(&purse.0).copied().unwrap_or(0) + 1;
        let numbered = !e["nonce"].is_null();
        ensure(!numbered || e["nonce"] == next, No::NonceConflict)?;
        self.spelt(&purse.1)?;
        let day = self.day(&purse, e, n, ts)?;
        self.clone().spend(e, &Value::Null, n, ts)?;
        ensure(self.free(&purse.0, &purse.1) >= n, No::InsufficientFunds)?;
        self.spend(e, &Value::Null, n, ts)?;
        self.days.extend(day);
        if numbered {
            self.nonce.insert(purse.0.clone(), next);
        }
        Ok((purse, n))
    }

    pub(super) fn run(&mut self, entry: &Entry, id: TxId, ts: u64) -> Expected {
        let e = &serde_json::to_value(entry).unwrap();
        let (to, s) = (text(e, "to"), text(e, "asset"));
        let n = amount(e);
        match entry {
            Entry::Issue { .. } => {
                open(&to)?;
                self.spelt(&s)?;
                self.clone().spend(e, &Value::Null, n, ts)?;
                let issued = self.issued.get(&s).copied().unwrap_or(0).checked_add(n);
                let issued = issued.ok_or(No::AmountOverflow)?;
                ensure(issued <= u128::MAX - 1_000_000_000, No::LimitsExceeded)?;
                self.issued.insert(s.clone(), issued);
                self.spend(e, &Value::Null, n, ts)?;
                self.put(&to, &s, n);
            }
            Entry::Transfer { .. } | Entry::Burn { .. } => {
                open(&to)?;
                let (purse, n) = self.debit(e, ts)?;
                self.take(&purse.0, &s, n);
                match to.as_str() {
                    "" => *self.burned.entry(s).or_default() += n,
                    to => self.put(to, &s, n),
                }
            }
            Entry::Hold { expires_at, .. } => {
                ensure(expires_at.0 > ts, No::HoldExpired)?;
                let (purse, n) = self.debit(e, ts)?;
                *self.held.entry(purse.clone()).or_default() += n;
                self.holds
                    .insert(id, (purse, n, expires_at.0, ts / DAY, e.clone()));
            }
            Entry::Capture { hold, .. } => {
                open(&to)?;
                let found = self.holds.get(hold).filter(|h| h.2 > ts).cloned();
                let (purse, rest, end, made, by) = found.ok_or(No::HoldNotFound)?;
                self.live(&purse.0)?;
                self.clone().spend(e, &by, n, ts)?;
                let left = rest.checked_sub(n).ok_or(No::HoldTooSmall)?;
                self.spend(e, &by, n, ts)?;
                *self.held.get_mut(&purse).unwrap() -= n;
                self.take(&purse.0, &purse.1, n);
                self.put(&to, &purse.1, n);
                self.holds.remove(hold);
                if left > 0 {
                    self.holds.insert(*hold, (purse, left, end, made, by));
                }
            }
            Entry::Release { hold, .. } | Entry::Expire { hold } => {
                let found = self.holds.remove(hold).ok_or(No::HoldNotFound)?;
                let (purse, rest, _, made, by) = found;
                *self.held.get_mut(&purse).unwrap() -= rest;
                self.give_back(&purse, made, &by, rest, ts);
            }
            Entry::Freeze { account, .. } | Entry::Unfreeze { account, .. } => {
                open(account.as_str())?;
                self.frozen
                    .insert(account.to_string(), e["kind"] == "freeze");
            }
            Entry::Abandon { .. } => return Err(No::Abandoned),
            Entry::EpochOpen { .. } => return self.epoch_open(e),
            Entry::Payout { .. } => return self.payout(e),
            Entry::EpochClose { .. } => return self.epoch_close(e),
        }
        Ok(())
    }

    /// Opening an epoch again with the same fields is `Ok` and changes nothing; so are repeated
    /// payouts and closings.
    fn epoch_open(&mut self, e: &Value) -> Expected {
        let (from, s, n) = (text(e, "from"), text(e, "asset"), amount(e));
        if let Some((bound, ..)) = self.epochs.get(&text(e, "epoch")) {
            return ensure(bound == e, No::EpochConflict);
        }
        let named = text(e, "adjusts");
        if let Some(last) = self.paid.get(&text(e, "source")) {
            ensure(*last == named, No::UsagePaid)?;
        } else {
            let known = named.is_empty() || self.epochs.contains_key(&named);
            ensure(known, No::EpochUnknown)?;
        }
        self.live(&from)?;
        self.spelt(&s)?;
        // An unknown pool or asset lacks funds even for zero.
        let known = self.total.keys().any(|(a, _)| *a == from) || self.frozen.contains_key(&from);
        let rich = self.free(&from, &s) >= n && self.issued.contains_key(&s) && known;
        ensure(rich, No::InsufficientFunds)?;
        if n > 0 {
            self.take(&from, &s, n);
        }
        self.put(&escrow(e), &s, n);
        self.paid.insert(text(e, "source"), text(e, "epoch"));
        self.epochs
            .insert(text(e, "epoch"), (e.clone(), 0, 0, false));
        Ok(())
    }

    fn payout(&mut self, e: &Value) -> Expected {
        let (index, n) = (e["index"].as_u64().unwrap(), amount(e));
        let found = self.epochs.get_mut(&text(e, "epoch"));
        let (bound, next, paid, closed) = found.ok_or(No::EpochUnknown)?;
        if index < *next {
            return Ok(());
        }
        ensure(!*closed, No::EpochClosed)?;
        let all = bound["recipients"].as_u64().unwrap();
        ensure(
            index < all && e["asset"] == bound["asset"],
            No::EpochConflict,
        )?;
        ensure(index == *next, No::IndexGap)?;
        let rest = (amount(bound) - *paid).checked_sub(n);
        let rest = rest.ok_or(No::EpochConflict)?;
        let left = u128::from(all - index - 1);
        ensure(rest >= left && (left > 0 || rest == 0), No::EpochConflict)?;
        (*next, *paid) = (*next + 1, *paid + n);
        self.take(&escrow(e), &text(e, "asset"), n);
        self.put(&text(e, "to"), &text(e, "asset"), n);
        Ok(())
    }

    fn epoch_close(&mut self, e: &Value) -> Expected {
        let found = self.epochs.get_mut(&text(e, "epoch"));
        let (bound, next, _, closed) = found.ok_or(No::EpochUnknown)?;
        ensure(bound["commitment"] == e["commitment"], No::EpochConflict)?;
        ensure(bound["recipients"] == *next, No::EpochIncomplete)?;
        *closed = true;
        Ok(())
    }
}

/// A recipe for one entry; `nonce` is relative to what the account has when the entry is made, and 2
/// makes a debit without a nonce.
#[derive(Clone, Debug, Default)]
pub(super) struct Draw {
    pub(super) kind: u8,
    pub(super) key: u8,
    pub(super) from: u8,
    pub(super) to: u8,
    pub(super) asset: u8,
    pub(super) amount: u128,
    pub(super) nonce: i8,
    pub(super) ceiling: Option<u128>,
    pub(super) pick: u8,
}

impl Draw {
    /// The values of `kind` are below this.
    pub(super) const KINDS: u8 = 15;
}

/// What is said about an entry; no rule depends on it. Each member is there in half of the draws.
fn details(pick: u8) -> (Details, Option<BatchTag>) {
    let has = |bit: u8| pick & bit != 0;
    let members = (0..pick % 3).map(|n| (format!("m{n}"), format!("v{pick}")));
    let metadata: BTreeMap<String, String> = members.collect();
    let details = Details {
        memo: has(1).then(|| format!("memo {pick}").parse().unwrap()),
        reference: has(2).then(|| format!("order {pick}").parse().unwrap()),
        metadata: has(4).then(|| metadata.try_into().unwrap()),
        effective_at: has(8).then_some(Timestamp(u64::from(pick))),
        share_reference: has(16),
    };
    let batch = has(32).then_some(BatchTag {
        items: u32::from(pick) + 1,
        digest: [pick; 16],
    });
    (details, batch)
}

/// The inputs of generated entries: the current nonces and holds.
pub(super) struct Maker<'a> {
    model: &'a Model,
    pub(super) holds: Vec<TxId>,
    ts: u64,
}

impl<'a> Maker<'a> {
    pub(super) fn new(model: &'a Model, ts: u64) -> Self {
        Self {
            model,
            holds: model.holds.keys().copied().collect(),
            ts,
        }
    }

    /// `None` for the draws that are no well-formed entry.
    pub(super) fn entry(&self, d: &Draw) -> Option<Entry> {
        // Every account may fund an epoch.
        let account = |n: u8| format!("pool:t/{n}").parse::<Account>().unwrap();
        let (principal, key) = ("p".parse().unwrap(), format!("k{}", d.key).parse().unwrap());
        let (from, to, asset) = (
            account(d.from),
            account(d.to),
            // The last one is another spelling of the first.
            ["as0", "as1", "AS0"][usize::from(d.asset)].parse().unwrap(),
        );
        let amount_minor = Amount(d.amount);
        let last = self.model.nonce.get(from.as_str()).copied().unwrap_or(0);
        let nonce = (last + 1)
            .checked_add_signed(i64::from(d.nonce))
            .filter(|n| *n > 0)?;
        let (details, batch) = details(d.pick);
        let daily_ceiling = d.ceiling.map(Amount);
        let nonce = (d.nonce != 2).then_some(nonce);
        let budget = |most| TokenBudget {
            id: BudgetId::derive(["one", "two"][usize::from(d.key % 2)]),
            total: (d.pick % 3 != 0).then_some(Amount(2 * most)),
            daily: (d.pick % 3 != 1).then_some(Amount(most)),
            until: Timestamp::MAX,
        };
        let budgets: Vec<_> = d.ceiling.into_iter().map(budget).collect();
        let hold = self
            .holds
            .get(usize::from(d.pick) % self.holds.len().max(1))
            .copied()
            .unwrap_or(TxId(u128::from(d.pick)));
        // Two tenants whose principals and keys read alike; the first owns the epochs.
        let tenant = if d.pick < 128 || d.kind > 11 {
            "t"
        } else {
            "u"
        };
        let tenant = tenant.parse().unwrap();
        let epoch = format!("e{}", d.pick % 3).parse().unwrap();
        let commitment = ContentId([d.pick % 5 / 4; 32]);
        let source = ContentId([d.key % 3; 32]);
        let adjusts = format!("e{}", d.to).parse().unwrap();
        let adjusts = Some(adjusts).filter(|named| d.from < 2 && *named != epoch);
        Some(match d.kind {
            0..=2 => Entry::Issue {
                tenant,
                principal,
                key,
                to,
                asset,
                amount_minor,
                details,
                batch,
                budgets,
            },
            3..=5 if from == to => return None,
            3..=5 => Entry::Transfer {
                tenant,
                principal,
                key,
                from,
                to,
                asset,
                amount_minor,
                nonce,
                details,
                batch,
                daily_ceiling,
                budgets,
            },
            6 => Entry::Burn {
                tenant,
                principal,
                key,
                from,
                asset,
                amount_minor,
                nonce,
                details,
                batch,
                daily_ceiling,
                budgets,
            },
            7 => {
                let expires_at = Timestamp(self.ts + u64::from(d.pick) * 40 - 1_000);
                Entry::Hold {
                    tenant,
                    principal,
                    key,
                    from,
                    asset,
                    amount_minor,
                    nonce,
                    expires_at,
                    details,
                    batch,
                    daily_ceiling,
                    budgets,
                }
            }
            8 => Entry::Capture {
                tenant,
                principal,
                key,
                hold,
                to,
                amount_minor,
                details,
                batch,
                budgets,
            },
            9 => Entry::Release {
                tenant,
                principal,
                key,
                hold,
                details,
            },
            10 if d.pick.is_multiple_of(3) => Entry::Freeze {
                tenant,
                principal,
                key,
                account: from,
                details,
            },
            10 => Entry::Unfreeze {
                tenant,
                principal,
                key,
                account: from,
                details,
            },
            11 => Entry::Abandon {
                tenant,
                principal,
                key,
            },
            12 => Entry::EpochOpen {
                principal,
                tenant,
                epoch,
                from,
                asset,
                amount_minor: Amount(d.amount.min(9)),
                commitment,
                sum_root: commitment,
                recipients: 2.min(d.amount.min(9) as u64),
                source,
                adjusts,
            },
            13 => {
                let index = self
                    .model
                    .epochs
                    .get(epoch.as_str())
                    .map_or(0, |e| e.1)
                    .saturating_add_signed(i64::from(d.nonce));
                Entry::Payout {
                    principal,
                    tenant,
                    epoch,
                    index,
                    to,
                    asset,
                    amount_minor,
                }
            }
            _ => Entry::EpochClose {
                principal,
                tenant,
                epoch,
                commitment,
            },
        })
    }
}
