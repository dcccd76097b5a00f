//! An in-memory ledger that keeps the settlement rules of the real one and can lose calls.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ron_kernel::{Deadline, LockSpec, RankedMutex};
use ron_proto::ledger::{
    AccountDoc, BalanceDoc, CommitAnswer, Entry, EntryAnswer, EpochDoc, EpochState, LeafHash,
    PrivateFacts, Receipt, RefusalCode, TxId, escrow_account,
};
use ron_proto::values::{Account, Amount, Asset, ContentId, EpochId, Tenant, Timestamp};

use crate::runs::ports::{Ledger, PortError};

pub(super) static SIM_LOCK: LockSpec = LockSpec {
    name: "sim",
    rank: 1,
    guards: "the simulated ledger",
};

#[derive(Clone, Default)]
pub(super) struct Books {
    /// By account; of other assets than `ron` by account and asset.
    pub(super) balances: BTreeMap<String, u128>,
    pub(super) epochs: BTreeMap<(Tenant, EpochId, Asset), EpochDoc>,
    /// By epoch, and by epoch and asset, as the balances.
    pub(super) paid: BTreeMap<(String, u64), u128>,
    pub(super) voids: BTreeMap<(Tenant, EpochId, ContentId), u64>,
    pub(super) seq: u64,
}

/// An in-memory ledger whose k-th call can be lost, before or after it is carried out.
pub(super) struct SimLedger {
    pub(super) books: RankedMutex<Books>,
    pub(super) calls: AtomicU64,
    pub(super) lose_call: AtomicU64,
    pub(super) lose_answer: AtomicU64,
    pub(super) away: AtomicU64,
}

impl SimLedger {
    pub(super) fn new(pool: u128) -> Arc<Self> {
        let mut books = Books::default();
        books.balances.insert("pool:default/test".into(), pool);
        Arc::new(Self {
            books: RankedMutex::new(&SIM_LOCK, books),
            calls: AtomicU64::new(0),
            lose_call: AtomicU64::new(u64::MAX),
            lose_answer: AtomicU64::new(u64::MAX),
            away: AtomicU64::new(0),
        })
    }

    /// Makes the call with this number, from 0, fail: the call is lost, or its answer after it was carried out.
    pub(super) fn lose(&self, call: u64, answer: bool) {
        let fault = if answer {
            &self.lose_answer
        } else {
            &self.lose_call
        };
        fault.store(call, Ordering::SeqCst);
    }

    fn guarded<T>(&self, act: impl FnOnce(&mut Books) -> T) -> Result<T, PortError> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let gone = |at: &AtomicU64| at.load(Ordering::SeqCst) == call;
        if self.away.load(Ordering::SeqCst) == 1 || gone(&self.lose_call) {
            return Err(PortError::Unavailable("lost".into()));
        }
        let answer = act(&mut self.books.lock());
        if gone(&self.lose_answer) {
            Err(PortError::Unavailable("answer lost".into()))
        } else {
            Ok(answer)
        }
    }

    pub(super) fn balance(&self, account: &str) -> u128 {
        self.books
            .lock()
            .balances
            .get(account)
            .copied()
            .unwrap_or(0)
    }
}

/// The name under which the books have something in an asset.
pub(super) fn named(name: impl Display, asset: &Asset) -> String {
    if asset.as_str() == "ron" {
        name.to_string()
    } else {
        format!("{name} {asset}")
    }
}

pub(super) fn done(books: &mut Books, entry: &Entry, replayed: bool) -> EntryAnswer {
    if !replayed {
        books.seq += 1;
    }
    let (seq, txid) = (books.seq, TxId(u128::from(books.seq)));
    let receipt = Receipt {
        txid,
        op: entry.kind(),
        from: None,
        to: None,
        asset: None,
        amount_minor: None,
        ts: Timestamp(0),
        seq,
        hold: None,
        batch: None,
        reverses: None,
        receipt_hash: LeafHash([0; 32]),
    };
    EntryAnswer::Done {
        seq,
        txid,
        receipt,
        private: PrivateFacts::default(),
        replayed,
    }
}

pub(super) fn refused(code: RefusalCode, expected: Option<u64>) -> EntryAnswer {
    EntryAnswer::Refused {
        code,
        seq: None,
        expected,
        paid_by: None,
        replayed: false,
    }
}

pub(super) fn apply(books: &mut Books, entry: &Entry) -> EntryAnswer {
    match entry {
        Entry::EpochOpen { .. } => open(books, entry),
        Entry::Payout { .. } => pay(books, entry),
        Entry::EpochClose { .. } => close(books, entry),
        Entry::EpochVoid { .. } => void(books, entry),
        other => panic!("the rewarder may not make {other:?}"),
    }
}

pub(super) fn open(books: &mut Books, entry: &Entry) -> EntryAnswer {
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
    let key = (tenant.clone(), epoch.clone(), asset.clone());
    if let Some(doc) = books.epochs.get(&key) {
        let same = doc.commitment == *commitment && doc.sum_root == *sum_root;
        return if same {
            done(books, entry, true)
        } else {
            refused(RefusalCode::EpochConflict, None)
        };
    }
    let manifest = (tenant.clone(), epoch.clone(), *commitment);
    if books.voids.contains_key(&manifest) {
        return refused(RefusalCode::EpochVoid, None);
    }
    let of_others = |doc: &&EpochDoc| doc.epoch != *epoch || doc.commitment != *commitment;
    let paid = books.epochs.values().filter(|doc| doc.source == *source);
    let paid = paid.filter(of_others);
    let last = paid.max_by_key(|doc| doc.opened_seq);
    let other = last.filter(|doc| adjusts.as_ref() != Some(&doc.epoch));
    let corrects_it =
        |doc: &&EpochDoc| adjusts.is_some() && doc.adjusts == *adjusts && of_others(doc);
    if let Some(doc) = other.or_else(|| books.epochs.values().find(corrects_it)) {
        return EntryAnswer::Refused {
            code: RefusalCode::UsagePaid,
            seq: None,
            expected: None,
            paid_by: Some(doc.epoch.clone()),
            replayed: false,
        };
    }
    let pool = books.balances.entry(named(from, asset)).or_default();
    let Some(rest) = pool.checked_sub(amount_minor.0) else {
        return refused(RefusalCode::InsufficientFunds, None);
    };
    *pool = rest;
    let doc = EpochDoc {
        tenant: tenant.clone(),
        epoch: epoch.clone(),
        state: EpochState::Open,
        commitment: *commitment,
        sum_root: *sum_root,
        asset: asset.clone(),
        other_assets: Vec::new(),
        from: from.clone(),
        escrow: escrow_account(tenant, epoch),
        recipients: *recipients,
        source: *source,
        adjusts: adjusts.clone(),
        amount_minor: *amount_minor,
        paid_minor: Amount::ZERO,
        next_index: 0,
        opened_seq: books.seq + 1,
        closed_seq: None,
    };
    books.epochs.insert(key, doc);
    done(books, entry, false)
}

pub(super) fn pay(books: &mut Books, entry: &Entry) -> EntryAnswer {
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
    let key = (tenant.clone(), epoch.clone(), asset.clone());
    let Some(doc) = books.epochs.get_mut(&key) else {
        return refused(RefusalCode::EpochUnknown, None);
    };
    if *index < doc.next_index {
        return done(books, entry, true);
    }
    if *index > doc.next_index {
        return refused(RefusalCode::IndexGap, Some(doc.next_index));
    }
    doc.next_index += 1;
    doc.paid_minor.0 += amount_minor.0;
    assert!(
        doc.paid_minor <= doc.amount_minor,
        "paid more than the escrow holds"
    );
    *books.balances.entry(named(to, asset)).or_default() += amount_minor.0;
    let twice = books
        .paid
        .insert((named(epoch, asset), *index), amount_minor.0);
    assert_eq!(twice, None, "payout {index} made twice");
    done(books, entry, false)
}

pub(super) fn close(books: &mut Books, entry: &Entry) -> EntryAnswer {
    let Entry::EpochClose {
        tenant,
        epoch,
        commitment,
        asset,
        ..
    } = entry
    else {
        unreachable!("called for epoch_close only");
    };
    let of = |doc: &&mut EpochDoc| (&doc.tenant, &doc.epoch) == (tenant, epoch);
    let mut opened: Vec<_> = books.epochs.values_mut().filter(of).collect();
    assert_eq!(
        opened.len() > 1,
        asset.is_some(),
        "named where there are several"
    );
    opened.retain(|doc| asset.as_ref().is_none_or(|asset| doc.asset == *asset));
    let Some(doc) = opened.pop() else {
        return refused(RefusalCode::EpochUnknown, None);
    };
    assert_eq!(doc.commitment, *commitment);
    if doc.next_index < doc.recipients {
        return refused(RefusalCode::EpochIncomplete, None);
    }
    let again = std::mem::replace(&mut doc.state, EpochState::Closed) == EpochState::Closed;
    done(books, entry, again)
}

pub(super) fn void(books: &mut Books, entry: &Entry) -> EntryAnswer {
    let Entry::EpochVoid {
        tenant,
        epoch,
        commitment,
        ..
    } = entry
    else {
        unreachable!("called for epoch_void only");
    };
    let mut opened = books.epochs.values();
    let is_open =
        |doc: &EpochDoc| (&doc.tenant, &doc.epoch, doc.commitment) == (tenant, epoch, *commitment);
    if opened.any(is_open) {
        return refused(RefusalCode::EpochOpened, None);
    }
    let manifest = (tenant.clone(), epoch.clone(), *commitment);
    let again = books.voids.insert(manifest, books.seq).is_some();
    done(books, entry, again)
}

impl Ledger for SimLedger {
    fn answers(&self, _: Deadline) -> Result<(), PortError> {
        self.guarded(|_| ())
    }

    fn account(&self, account: &Account, _: Deadline) -> Result<AccountDoc, PortError> {
        self.guarded(|books| AccountDoc {
            require_nonce: false,
            account: account.clone(),
            nonce: 0,
            frozen: ron_proto::ledger::Sides::None,
            closed: false,
            class: None,
            balances: vec![BalanceDoc {
                asset: "ron".parse().expect("an asset"),
                amount_minor: Amount(books.balances.get(account.as_str()).copied().unwrap_or(0)),
                held_minor: Amount::ZERO,
                available_minor: Amount::ZERO,
                overdrawn_minor: Amount(0),
                credits_minor: Amount::ZERO,
                debits_minor: Amount(0),
                credit_limit_minor: Amount(0),
                max_balance_minor: None,
            }],
            holds: Vec::new(),
            seq: books.seq,
            ts: Timestamp(0),
        })
    }

    fn epoch(
        &self,
        tenant: &Tenant,
        epoch: &EpochId,
        asset: &Asset,
        _: Deadline,
    ) -> Result<Option<EpochDoc>, PortError> {
        let key = (tenant.clone(), epoch.clone(), asset.clone());
        self.guarded(|books| books.epochs.get(&key).cloned())
    }

    fn commit(
        &self,
        entries: &[Entry],
        linked: bool,
        _: Deadline,
    ) -> Result<CommitAnswer, PortError> {
        assert!(entries.len() <= ron_proto::ledger::MAX_ENTRIES);
        self.guarded(|books| {
            let before = books.clone();
            let mut results: Vec<_> = entries.iter().map(|entry| apply(books, entry)).collect();
            let is_refused = |answer: &EntryAnswer| matches!(answer, EntryAnswer::Refused { .. });
            if linked && let Some(at) = results.iter().position(is_refused) {
                *books = before;
                let failed = |_| refused(RefusalCode::LinkedFailed, None);
                let why = results.swap_remove(at);
                results = (0..entries.len()).map(failed).collect();
                results[at] = why;
            }
            CommitAnswer { results }
        })
    }
}
