//! Cache of account documents: served for a moment without asking the ledger, and longer only while
//! the ledger is unavailable. A document is never reported younger than it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_kernel::RankedMutex;
use ron_proto::Account;
use ron_proto::ledger::AccountDoc;

use crate::topology::BALANCES;

/// How old documents may be.
#[derive(Debug, Clone, Copy)]
pub struct MaxAge {
    /// While the ledger answers: a document is fresh for this long.
    pub fresh: Duration,
    /// While the ledger is unavailable.
    pub stale: Duration,
}

#[derive(Debug, Clone)]
struct StoredBalance {
    doc: Arc<AccountDoc>,
    /// When the request was sent: the document is no older than that.
    asked: Instant,
    /// The account has changed since the document was read.
    changed: bool,
}

/// Two generations of at most `half` accounts: a document that is read enters the young one; when
/// the young one is full it becomes the old one, and the previous old one is dropped.
#[derive(Debug, Default)]
struct Generations {
    young: BTreeMap<Account, StoredBalance>,
    old: BTreeMap<Account, StoredBalance>,
    /// The highest sequence of any reported change.
    newest: u64,
}

#[derive(Debug)]
pub struct Balances {
    inner: RankedMutex<Generations>,
    half: usize,
    max_age: MaxAge,
}

#[derive(Debug, Clone)]
pub struct KnownBalance {
    pub doc: Arc<AccountDoc>,
    /// Time since the request to the ledger was sent.
    pub age: Duration,
}

impl Balances {
    /// A cache of at most `accounts` documents.
    pub fn new(accounts: usize, max_age: MaxAge) -> Self {
        Self {
            inner: RankedMutex::new(&BALANCES, Generations::default()),
            half: (accounts / 2).max(1),
            max_age,
        }
    }

    /// A fresh document, whose account has not changed.
    pub fn fresh(&self, account: &Account, now: Instant) -> Option<KnownBalance> {
        self.find(account, now, self.max_age.fresh, |kept| !kept.changed)
    }

    /// A document for when the ledger is unavailable; it may be outdated.
    pub fn stale(&self, account: &Account, now: Instant) -> Option<KnownBalance> {
        self.find(account, now, self.max_age.stale, |_| true)
    }

    fn find(
        &self,
        account: &Account,
        now: Instant,
        at_most: Duration,
        good: impl Fn(&StoredBalance) -> bool,
    ) -> Option<KnownBalance> {
        let inner = self.inner.lock();
        let kept = inner
            .young
            .get(account)
            .or_else(|| inner.old.get(account))?;
        let age = now.saturating_duration_since(kept.asked);
        (age <= at_most && good(kept)).then(|| KnownBalance {
            doc: Arc::clone(&kept.doc),
            age,
        })
    }

    /// Stores the ledger's answer to a request sent at `asked`.
    pub fn keep(&self, doc: Arc<AccountDoc>, asked: Instant) {
        let mut inner = self.inner.lock();
        // A change reported while the request was in flight may or may not be in the answer; the
        // document's sequence decides.
        let changed = doc.seq < inner.newest;
        #[cfg(mutant = "balance")]
        // a late answer counts as current, whatever changed in the meantime
        let changed = changed && !ron_kernel::mutant("balance");
        if inner.young.len() >= self.half && !inner.young.contains_key(&doc.account) {
            inner.old = std::mem::take(&mut inner.young);
        }
        let account = doc.account.clone();
        // Two readers may race: the answer to the younger request wins.
        let newer = inner.young.get(&account).is_none_or(|k| k.asked <= asked);
        if newer {
            inner.old.remove(&account);
            inner.young.insert(
                account,
                StoredBalance {
                    doc,
                    asked,
                    changed,
                },
            );
        }
    }

    /// Marks accounts as changed by the entry at `seq`.
    pub fn changed<'a>(&self, accounts: impl IntoIterator<Item = &'a Account>, seq: u64) {
        let mut inner = self.inner.lock();
        inner.newest = inner.newest.max(seq);
        let Generations { young, old, .. } = &mut *inner;
        for account in accounts {
            for side in [&mut *young, &mut *old] {
                if let Some(kept) = side.get_mut(account)
                    && kept.doc.seq < seq
                {
                    kept.changed = true;
                }
            }
        }
    }

    /// Marks every account as changed, because events may have been missed.
    pub fn all_changed(&self) {
        let mut inner = self.inner.lock();
        let Generations { young, old, .. } = &mut *inner;
        for kept in young.values_mut().chain(old.values_mut()) {
            kept.changed = true;
        }
    }

    /// Drops everything, because the ledger is a different one.
    pub fn clear(&self) {
        *self.inner.lock() = Generations::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doc(name: &str, seq: u64) -> Arc<AccountDoc> {
        Arc::new(AccountDoc {
            require_nonce: false,
            account: name.parse().unwrap(),
            nonce: 0,
            frozen: ron_proto::ledger::Sides::None,
            closed: false,
            class: None,
            balances: Vec::new(),
            holds: Vec::new(),
            seq,
            ts: ron_proto::Timestamp(0),
        })
    }

    const AGE: MaxAge = MaxAge {
        fresh: Duration::from_millis(250),
        stale: Duration::from_secs(30),
    };

    fn cache(accounts: usize) -> Balances {
        Balances::new(accounts, AGE)
    }

    fn name(n: &str) -> Account {
        n.parse().unwrap()
    }

    fn start() -> Instant {
        ron_kernel::Deadline::within(Duration::ZERO).at()
    }

    #[test]
    fn a_document_is_fresh_for_one_time_and_stale_for_another() {
        let check = |fresh_ms: u64, stale_ms: u64| {
            let ms = Duration::from_millis;
            let (fresh, stale) = (ms(fresh_ms), ms(stale_ms));
            let (b, t) = (Balances::new(8, MaxAge { fresh, stale }), start());
            b.keep(doc("a", 5), t);
            assert_eq!(b.fresh(&name("a"), t + fresh).unwrap().age, fresh);
            let later = t + fresh + ms(1);
            assert!(b.fresh(&name("a"), later).is_none());
            assert_eq!(b.stale(&name("a"), later).unwrap().age, later - t);
            assert!(b.stale(&name("a"), t + stale).is_some());
            assert!(b.stale(&name("a"), t + stale + ms(1)).is_none());
            assert!(b.stale(&name("b"), t).is_none());
        };
        check(250, 30_000);
        check(0, 1);
        check(2_000, 600_000);
    }

    #[test]
    fn a_change_ends_freshness_whichever_side_wins_the_race() {
        let (b, t) = (cache(8), start());
        b.keep(doc("a", 5), t);
        b.changed([&name("a")], 5);
        assert!(b.fresh(&name("a"), t).is_some(), "entry 5 is in it");
        b.changed([&name("a")], 6);
        assert!(b.fresh(&name("a"), t).is_none());
        assert!(b.stale(&name("a"), t).is_some());
        b.keep(doc("a", 5), t);
        assert!(b.fresh(&name("a"), t).is_none(), "an answer from before 6");
        b.keep(doc("a", 6), t);
        assert!(b.fresh(&name("a"), t).is_some());
        b.all_changed();
        assert!(b.fresh(&name("a"), t).is_none());
        b.clear();
        assert!(b.stale(&name("a"), t).is_none());
    }

    #[test]
    fn an_older_question_does_not_replace_a_younger_answer() {
        let (b, t) = (cache(8), start());
        b.keep(doc("a", 7), t + Duration::from_millis(10));
        b.keep(doc("a", 7), t);
        let found = b.fresh(&name("a"), t + Duration::from_millis(10)).unwrap();
        assert_eq!(found.age, Duration::ZERO);
    }

    #[test]
    fn it_stays_small() {
        let (b, t) = (cache(10), start());
        for n in 0..100 {
            b.keep(doc(&format!("a{n}"), 1), t);
        }
        let inner = b.inner.lock();
        assert!(inner.young.len() + inner.old.len() <= 10);
        assert!(inner.young.contains_key(&name("a99")));
    }
}
