//! The reference model: the simplest possible ledger. Maps of names, one entry at a time as JSON, a clone to roll back.
//! It shares no rule with the core, so that a mistake would have to be made twice.

use std::collections::{BTreeMap, BTreeSet};

use ron_proto::ledger::{Entry, RefusalCode as No, TxId, escrow_account};
use serde_json::Value;

const DAY: u64 = 86_400_000;

type Purse = (String, String);
/// Purse, remaining amount, expiry, the day it was made, the entry.
pub(super) type HeldMoney = (Purse, u128, u64, u64, Value);
/// The sum of one day per purse.
type Day = ((Purse, u64), u128);

#[derive(Default, Clone, Debug)]
pub(super) struct Model {
    /// By purse, all that was ever credited and debited.
    pub(super) sums: BTreeMap<Purse, (u128, u128)>,
    pub(super) held: BTreeMap<Purse, u128>,
    pub(super) nonce: BTreeMap<String, u64>,
    /// Every account that was ever named by an entry that took effect.
    pub(super) known: BTreeSet<String>,
    /// Accounts frozen for debits, and for credits.
    pub(super) frozen: [BTreeSet<String>; 2],
    pub(super) closed: BTreeSet<String>,
    /// Accounts whose debits need a nonce.
    pub(super) numbered: BTreeSet<String>,
    pub(super) class: BTreeMap<String, String>,
    /// Credit limit and maximum.
    pub(super) limits: BTreeMap<Purse, (u128, Option<u128>)>,
    /// Every asset with its registration.
    pub(super) assets: BTreeMap<String, Option<(u64, String)>>,
    pub(super) issued: BTreeMap<String, u128>,
    pub(super) burned: BTreeMap<String, u128>,
    pub(super) days: BTreeMap<(Purse, u64), u128>,
    /// By budget: spent in all, and by day.
    pub(super) budgets: BTreeMap<String, (u128, BTreeMap<u64, u128>)>,
    /// By tenant: the milliseconds until its refusals are forgotten, as of a time.
    pub(super) refusals: BTreeMap<String, (u64, u64)>,
    /// Done transfers, captures and payouts: their purse, the account that got it, how much it got and how much is left.
    pub(super) moved: BTreeMap<TxId, (Purse, String, u128, u128)>,
    pub(super) holds: BTreeMap<TxId, HeldMoney>,
    /// By epoch, of each asset the opening entry, the next index, the amount paid, closed.
    pub(super) epochs: BTreeMap<String, Vec<(Value, u64, u128, bool)>>,
    /// The epochs that the commit at hand has opened.
    opening: BTreeSet<String>,
    /// By source, the epoch that paid last.
    pub(super) paid: BTreeMap<String, String>,
    /// Withdrawn manifests: epoch and commitment.
    pub(super) voids: BTreeSet<(String, String)>,
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

/// An entry of a linked commit with the id of the hold that another entry of it makes.
pub(super) fn with_ids(mut entry: Entry, id: impl Fn(usize) -> TxId) -> Entry {
    if let Entry::Capture { hold, .. } | Entry::Release { hold, .. } = &mut entry
        && let Some(made) = hold.item()
    {
        *hold = id(made as usize).into();
    }
    entry
}

fn ensure(good: bool, code: No) -> Expected {
    if good { Ok(()) } else { Err(code) }
}

fn open(account: &str) -> Expected {
    ensure(!account.starts_with("escrow:"), No::ReservedAccount)
}

/// A sum that may have 129 bits.
fn wide(a: u128, b: u128) -> (bool, u128) {
    let (sum, carry) = a.overflowing_add(b);
    (carry, sum)
}

const MOST: u128 = u128::MAX - 1_000_000_000;

impl Model {
    pub(super) fn has(&self, a: &str, s: &str) -> (u128, u128) {
        let purse = (a.into(), s.into());
        self.sums.get(&purse).copied().unwrap_or_default()
    }

    /// What a debit may take: credits and credit limit less debits and held money.
    pub(super) fn free(&self, a: &str, s: &str) -> u128 {
        let purse = (a.into(), s.into());
        let (credits, debits) = self.has(a, s);
        let limit = self.limits.get(&purse).map_or(0, |l| l.0);
        let held = self.held.get(&purse).copied().unwrap_or(0);
        let (more, less) = (wide(credits, limit), wide(debits, held));
        assert!(more >= less, "{a} {s} is beyond its limit");
        more.1.wrapping_sub(less.1)
    }

    fn put(&mut self, a: &str, s: &str, n: u128) {
        self.known.insert(a.into());
        self.sums.entry((a.into(), s.into())).or_default().0 += n;
    }

    fn take(&mut self, a: &str, s: &str, n: u128) {
        self.sums.entry((a.into(), s.into())).or_default().1 += n;
    }

    /// Whether the account may get `n` more; `payer` says if it pays itself.
    fn may_get(&self, a: &str, s: &str, n: u128, payer: &str) -> Expected {
        self.accepts(a)?;
        if a == payer {
            return Ok(());
        }
        let (credits, debits) = self.has(a, s);
        let sum = wide(credits, n);
        let within = |most: u128| sum <= wide(debits, most);
        let own = self.limits.get(&(a.into(), s.into())).and_then(|l| l.1);
        ensure(own.is_none_or(within), No::MaxBalance)?;
        ensure(within(MOST), No::LimitsExceeded)
    }

    fn accepts(&self, a: &str) -> Expected {
        ensure(!self.closed.contains(a), No::AccountClosed)?;
        ensure(!self.frozen[1].contains(a), No::AccountFrozen)
    }

    /// Whether the sums of an asset have room for `n` more.
    fn turns(&self, s: &str, n: u128) -> Expected {
        let of = |pick: fn(&(u128, u128)) -> u128| {
            let mine = self.sums.iter().filter(|((_, asset), _)| asset == s);
            mine.map(|(_, sums)| pick(sums)).sum::<u128>()
        };
        let fits = |sum: u128| sum.checked_add(n).is_some();
        ensure(fits(of(|s| s.0)) && fits(of(|s| s.1)), No::AmountOverflow)
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
        ensure(!self.assets.keys().any(other), No::AssetSpelling)
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
        *used = if refused {
            *used + 1_000
        } else {
            used.saturating_sub(250)
        };
    }

    fn live(&self, a: &str) -> Expected {
        ensure(!self.closed.contains(a), No::AccountClosed)?;
        ensure(!self.frozen[0].contains(a), No::AccountFrozen)
    }

    /// A debit by the owner: reserved, frozen, nonce, day, funds; then the nonce, if there is one, is
    /// used.
    fn debit(&mut self, e: &Value, ts: u64) -> Result<(Purse, u128), No> {
        let purse = (text(e, "from"), text(e, "asset"));
        let up_to = number(e, "up_to");
        let n = up_to.map_or(amount(e), |_| self.free(&purse.0, &purse.1));
        open(&purse.0)?;
        self.live(&purse.0)?;
        let next = self.nonce.get(&purse.0).copied().unwrap_or(0) + 1;
        let numbered = !e["nonce"].is_null();
        let required = self.numbered.contains(&purse.0);
        let right = if numbered {
            e["nonce"] == next
        } else {
            !required
        };
        ensure(right, No::NonceConflict)?;
        self.spelt(&purse.1)?;
        ensure(up_to.is_none_or(|most| n <= most), No::LimitsExceeded)?;
        let day = self.day(&purse, e, n, ts)?;
        self.clone().spend(e, &Value::Null, n, ts)?;
        let enough = self.free(&purse.0, &purse.1) >= n && n > 0;
        ensure(enough, No::InsufficientFunds)?;
        self.spend(e, &Value::Null, n, ts)?;
        self.days.extend(day);
        if numbered {
            self.nonce.insert(purse.0.clone(), next);
        }
        Ok((purse, n))
    }

    /// Runs one entry; a refused one changes nothing.
    pub(super) fn run(&mut self, entry: &Entry, id: TxId, ts: u64) -> Expected {
        let before = self.clone();
        let said = self.try_run(entry, id, ts);
        if said.is_err() {
            *self = before;
        }
        said
    }

    fn try_run(&mut self, entry: &Entry, id: TxId, ts: u64) -> Expected {
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
                ensure(issued <= MOST, No::LimitsExceeded)?;
                self.may_get(&to, &s, n, "")?;
                self.turns(&s, n)?;
                self.issued.insert(s.clone(), issued);
                self.assets.entry(s.clone()).or_default();
                self.spend(e, &Value::Null, n, ts)?;
                self.put(&to, &s, n);
            }
            Entry::Transfer { .. } | Entry::Burn { .. } => {
                open(&to)?;
                let (purse, n) = self.debit(e, ts)?;
                if to.is_empty() {
                    let gone = self.burned.get(&s).copied().unwrap_or(0);
                    let issued = self.issued.get(&s).copied().unwrap_or(0);
                    ensure(issued - gone >= n, No::InsufficientFunds)?;
                } else {
                    self.may_get(&to, &s, n, "")?;
                }
                self.turns(&s, n)?;
                self.take(&purse.0, &s, n);
                match to.as_str() {
                    "" => *self.burned.entry(s).or_default() += n,
                    to => {
                        self.put(to, &s, n);
                        self.moved.insert(id, (purse, to.to_owned(), n, n));
                    }
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
                let hold = &hold.id().expect("with_ids was called");
                open(&to)?;
                let found = self.holds.get(hold).filter(|h| h.2 > ts).cloned();
                let (purse, rest, end, made, by) = found.ok_or(No::HoldNotFound)?;
                self.live(&purse.0)?;
                let n = number(e, "amount_minor").unwrap_or(rest);
                self.clone().spend(e, &by, n, ts)?;
                let left = rest.checked_sub(n).ok_or(No::HoldTooSmall)?;
                self.may_get(&to, &purse.1, n, &purse.0)?;
                self.turns(&purse.1, n)?;
                self.spend(e, &by, n, ts)?;
                *self.held.get_mut(&purse).unwrap() -= n;
                self.take(&purse.0, &purse.1, n);
                self.put(&to, &purse.1, n);
                self.moved.insert(id, (purse.clone(), to, n, n));
                self.holds.remove(hold);
                if left > 0 {
                    self.holds.insert(*hold, (purse, left, end, made, by));
                }
                if left > 0 && e["final"] == true {
                    let principal = e["principal"].clone();
                    let release = serde_json::json!({"kind": "release", "tenant": e["tenant"],
                        "principal": principal, "key": "final", "hold": e["hold"]});
                    let release = serde_json::from_value(release).unwrap();
                    self.run(&release, id, ts)?;
                }
            }
            Entry::Reverse { tx, original, .. } => {
                ensure(original.is_some(), No::NotReversible)?;
                let (purse, from, _, left) = self.moved[tx].clone();
                let (to, s) = purse;
                open(&from)?;
                open(&to)?;
                let n = number(e, "amount_minor").unwrap_or(left);
                ensure(n > 0 && n <= left, No::ReversalTooLarge)?;
                self.live(&from)?;
                let payer = (from.clone(), s.clone());
                let day = self.day(&payer, e, n, ts)?;
                self.clone().spend(e, &Value::Null, n, ts)?;
                ensure(self.free(&from, &s) >= n, No::InsufficientFunds)?;
                self.may_get(&to, &s, n, &from)?;
                self.turns(&s, n)?;
                self.spend(e, &Value::Null, n, ts)?;
                self.days.extend(day);
                self.take(&from, &s, n);
                self.put(&to, &s, n);
                self.moved.get_mut(tx).unwrap().3 -= n;
            }
            Entry::Release { hold, .. } => {
                self.end(hold.id().expect("with_ids was called"), ts)?;
            }
            Entry::Expire { hold } => self.end(*hold, ts)?,
            Entry::Freeze { account, .. } | Entry::Unfreeze { account, .. } => {
                open(account.as_str())?;
                self.known.insert(account.to_string());
                let sides = text(e, "sides");
                for (i, side) in ["debits", "credits"].iter().enumerate() {
                    if sides == *side || sides == "both" {
                        self.freeze(i, account.as_str(), e["kind"] == "freeze");
                    }
                }
            }
            Entry::Account { .. } => self.account(e)?,
            Entry::Asset { .. } => {
                self.spelt(&s)?;
                let terms = &e["terms"];
                let new = (terms["scale"].as_u64().unwrap(), text(terms, "title"));
                let issued = self.issued.get(&s).copied().unwrap_or(0);
                let old = self.assets.entry(s).or_default();
                let other = old.as_ref().is_some_and(|old| old.0 != new.0);
                ensure(!other || issued == 0, No::AssetScale)?;
                *old = Some(new);
            }
            Entry::Abandon { .. } => return Err(No::Abandoned),
            Entry::EpochOpen { .. } => return self.epoch_open(e),
            Entry::Payout { .. } => return self.payout(e, id),
            Entry::EpochClose { .. } => return self.epoch_close(e),
            Entry::EpochVoid { .. } => return self.epoch_void(e),
        }
        Ok(())
    }

    fn freeze(&mut self, side: usize, account: &str, on: bool) {
        if on {
            self.frozen[side].insert(account.to_owned());
        } else {
            self.frozen[side].remove(account);
        }
    }

    /// A commit of one entry, or of several, of which those behind a refused one are tried too. `None` when all of them repeat
    /// earlier ones, which only entries without a key can.
    pub(super) fn commit(
        &mut self,
        entries: impl Iterator<Item = (Entry, TxId)>,
        ts: u64,
    ) -> Option<Vec<Expected>> {
        self.opening.clear();
        let (mut said, mut all_repeat) = (Vec::new(), true);
        for (entry, id) in entries {
            let before = (entry.request_key().is_none()).then(|| format!("{self:?}"));
            let mut one = self.run(&entry, id, ts);
            let repeats = one.is_ok() && before.is_some_and(|before| before == format!("{self:?}"));
            // The assets of an epoch are known all or none.
            if one.is_ok() && !said.is_empty() && repeats != all_repeat {
                one = Err(No::EpochConflict);
            }
            all_repeat &= repeats;
            said.push(one);
        }
        Some(said).filter(|_| !all_repeat)
    }

    fn account(&mut self, e: &Value) -> Expected {
        let (a, terms) = (text(e, "account"), &e["terms"]);
        open(&a)?;
        if terms["closed"] == true {
            let empty = |p: &&Purse| {
                self.sums.get(*p).is_none_or(|s| s.0 == s.1)
                    && self.held.get(*p).is_none_or(|held| *held == 0)
            };
            let mut purses = self.sums.keys().chain(self.held.keys());
            let full = purses.any(|p| p.0 == a && !empty(&p));
            ensure(!full, No::AccountNotEmpty)?;
        }
        let limits = &terms["limits"];
        if limits.is_object() {
            let s = text(limits, "asset");
            self.spelt(&s)?;
            let credit = number(limits, "credit_limit_minor").unwrap_or(0);
            let purse = (a.clone(), s.clone());
            let (credits, debits) = self.has(&a, &s);
            let held = self.held.get(&purse).copied().unwrap_or(0);
            let enough = wide(credits, credit) >= wide(debits, held);
            ensure(enough, No::CreditInUse)?;
            let set = (credit, number(limits, "max_balance_minor"));
            self.limits.insert(purse, set);
            self.assets.entry(s).or_default();
        }
        self.known.insert(a.clone());
        match &terms["closed"] {
            Value::Bool(true) => _ = self.closed.insert(a.clone()),
            Value::Bool(false) => _ = self.closed.remove(&a),
            _ => {}
        }
        match &terms["require_nonce"] {
            Value::Bool(true) => _ = self.numbered.insert(a.clone()),
            Value::Bool(false) => _ = self.numbered.remove(&a),
            _ => {}
        }
        if let Some(sides) = terms["frozen"].as_str() {
            self.freeze(0, &a, sides == "debits" || sides == "both");
            self.freeze(1, &a, sides == "credits" || sides == "both");
        }
        match terms["class"].as_str() {
            Some("") => _ = self.class.remove(&a),
            Some(class) => _ = self.class.insert(a, class.to_owned()),
            None => {}
        }
        Ok(())
    }

    fn end(&mut self, hold: TxId, ts: u64) -> Expected {
        let found = self.holds.remove(&hold).ok_or(No::HoldNotFound)?;
        let (purse, rest, _, made, by) = found;
        *self.held.get_mut(&purse).unwrap() -= rest;
        self.give_back(&purse, made, &by, rest, ts);
        Ok(())
    }

    /// By epoch, the one that corrects it.
    pub(super) fn corrected(&self) -> BTreeMap<String, String> {
        let all = self.epochs.iter();
        let all = all.map(|(epoch, assets)| (text(&assets[0].0, "adjusts"), epoch.clone()));
        all.filter(|(of, _)| !of.is_empty()).collect()
    }

    /// Opening an epoch again with the same fields is `Ok` and changes nothing; so are repeated
    /// payouts and closings.
    fn epoch_open(&mut self, e: &Value) -> Expected {
        let (epoch, from) = (text(e, "epoch"), text(e, "from"));
        let (s, n) = (text(e, "asset"), amount(e));
        if let Some(assets) = self.epochs.get(&epoch) {
            let mut bound = ["commitment", "source", "adjusts"].iter();
            let alike = bound.all(|field| assets[0].0[field] == e[field]);
            ensure(alike, No::EpochConflict)?;
            if let Some((bound, ..)) = assets.iter().find(|it| it.0["asset"] == e["asset"]) {
                return ensure(bound == e, No::EpochConflict);
            }
            ensure(self.opening.contains(&epoch), No::EpochConflict)?;
        } else {
            self.epoch_binds(e)?;
        }
        self.live(&from)?;
        self.spelt(&s)?;
        // An unknown pool or asset lacks funds even for zero.
        let known = self.known.contains(&from) && self.assets.contains_key(&s);
        ensure(known && self.free(&from, &s) >= n, No::InsufficientFunds)?;
        self.turns(&s, n)?;
        if n > 0 {
            self.take(&from, &s, n);
        }
        self.put(&escrow(e), &s, n);
        self.paid.insert(text(e, "source"), text(e, "epoch"));
        self.opening.insert(epoch.clone());
        let assets = self.epochs.entry(epoch).or_default();
        assets.push((e.clone(), 0, 0, false));
        Ok(())
    }

    fn epoch_binds(&self, e: &Value) -> Expected {
        let manifest = (text(e, "epoch"), text(e, "commitment"));
        ensure(!self.voids.contains(&manifest), No::EpochVoid)?;
        let named = text(e, "adjusts");
        if let Some(last) = self.paid.get(&text(e, "source")) {
            ensure(*last == named, No::UsagePaid)?;
        } else {
            let known = named.is_empty() || self.epochs.contains_key(&named);
            ensure(known, No::EpochUnknown)?;
        }
        ensure(!self.corrected().contains_key(&named), No::UsagePaid)
    }

    fn payout(&mut self, e: &Value, id: TxId) -> Expected {
        let (index, n) = (e["index"].as_u64().unwrap(), amount(e));
        let found = self.epochs.get_mut(&text(e, "epoch"));
        let mut assets = found.ok_or(No::EpochUnknown)?.iter_mut();
        let found = assets.find(|it| it.0["asset"] == e["asset"]);
        let (bound, next, paid, closed) = found.ok_or(No::EpochConflict)?;
        if index < *next {
            return Ok(());
        }
        ensure(!*closed, No::EpochClosed)?;
        let all = bound["recipients"].as_u64().unwrap();
        ensure(index < all, No::EpochConflict)?;
        ensure(index == *next, No::IndexGap)?;
        let rest = (amount(bound) - *paid).checked_sub(n);
        let rest = rest.ok_or(No::EpochConflict)?;
        let left = u128::from(all - index - 1);
        ensure(rest >= left && (left > 0 || rest == 0), No::EpochConflict)?;
        (*next, *paid) = (*next + 1, *paid + n);
        let bound = bound.clone();
        self.accepts(&text(e, "to"))?;
        self.turns(&text(e, "asset"), n)?;
        let pool = (text(&bound, "from"), text(e, "asset"));
        self.moved.insert(id, (pool, text(e, "to"), n, n));
        self.take(&escrow(e), &text(e, "asset"), n);
        self.put(&text(e, "to"), &text(e, "asset"), n);
        Ok(())
    }

    fn epoch_close(&mut self, e: &Value) -> Expected {
        let found = self.epochs.get_mut(&text(e, "epoch"));
        let assets = found.ok_or(No::EpochUnknown)?;
        let alone = assets.len() == 1;
        let named = |of: &Value| of["asset"] == e["asset"] || (e["asset"].is_null() && alone);
        let found = assets.iter_mut().find(|it| named(&it.0));
        let (bound, next, _, closed) = found.ok_or(No::EpochConflict)?;
        ensure(bound["commitment"] == e["commitment"], No::EpochConflict)?;
        ensure(bound["recipients"] == *next, No::EpochIncomplete)?;
        *closed = true;
        Ok(())
    }

    fn epoch_void(&mut self, e: &Value) -> Expected {
        let manifest = (text(e, "epoch"), text(e, "commitment"));
        let bound = self.epochs.get(&manifest.0);
        let opened = bound.is_some_and(|assets| assets[0].0["commitment"] == e["commitment"]);
        ensure(!opened, No::EpochOpened)?;
        self.voids.insert(manifest);
        Ok(())
    }
}
