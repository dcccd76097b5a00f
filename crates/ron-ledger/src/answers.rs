//! Turns decisions and leaves into what callers see: answers, receipts, events. Pure.

use std::borrow::Cow;

use ron_proto::ledger::{
    EntryAnswer, EntryKey, EntryKind, Event, LeafHash, PrivateFacts, Receipt, RefusalCode, TxId,
};
use ron_proto::{EpochId, Timestamp};

use crate::core::{Body, Facts, Kind, Leaf, Limit, Op, PublicLeaf, Refusal, Verdict};

/// A decided entry: what its record in the log says.
#[derive(Clone, Copy, Debug)]
pub struct LogEntry<'a> {
    pub seq: u64,
    pub ts: Timestamp,
    pub batch: Option<TxId>,
    pub op: &'a Op,
    pub verdict: &'a Verdict,
    /// RFC 6962 hash of its leaf.
    pub leaf_hash: [u8; 32],
}

impl<'a> LogEntry<'a> {
    pub const fn of(leaf: &'a Leaf, leaf_hash: [u8; 32]) -> Self {
        Self {
            seq: leaf.seq,
            ts: leaf.ts,
            batch: leaf.place.batch,
            op: &leaf.op,
            verdict: &leaf.verdict,
            leaf_hash,
        }
    }
}

pub fn answer(entry: LogEntry<'_>) -> EntryAnswer {
    match entry.verdict {
        Verdict::Done(effect) => {
            let facts = Facts::of(entry.op.entry(), effect.as_ref(), entry.batch);
            let id = (entry.seq, entry.op.txid(entry.seq));
            let receipt = render(id, entry.ts, entry.op.kind(), facts, entry.leaf_hash);
            EntryAnswer::Done {
                seq: entry.seq,
                txid: receipt.txid,
                receipt,
                private: private_facts(entry.op),
                replayed: false,
            }
        }
        Verdict::Refused(why) => refused(why, Some(entry.seq)),
    }
}

/// The answer to an entry that was refused without a leaf.
pub fn rejected(why: &Refusal) -> EntryAnswer {
    refused(why, None)
}

fn refused(why: &Refusal, seq: Option<u64>) -> EntryAnswer {
    EntryAnswer::Refused {
        code: why.into(),
        seq,
        expected: expected(why),
        paid_by: paid_by(why),
        replayed: false,
    }
}

const fn expected(why: &Refusal) -> Option<u64> {
    if let Refusal::NonceConflict { expected } | Refusal::IndexGap { expected } = why {
        Some(*expected)
    } else {
        None
    }
}

fn paid_by(why: &Refusal) -> Option<EpochId> {
    if let Refusal::UsagePaid { by } = why {
        Some(by.clone())
    } else {
        None
    }
}

/// The answer to `op` when `first` already has its key, epoch or index.
pub fn replayed(op: &Op, first: LogEntry<'_>) -> EntryAnswer {
    let repeats = op.repeats(first.op);
    #[cfg(mutant = "mismatch")] // the answer of a key for whatever is asked with it
    let repeats = repeats || crate::mutant("mismatch");
    if !repeats {
        return mismatch(op);
    }
    answer(first).as_replayed()
}

/// The refusal of a request whose key (or epoch index) belongs to a different request.
pub fn mismatch(op: &Op) -> EntryAnswer {
    let code = if op.kind().is_settlement() {
        RefusalCode::EpochConflict
    } else {
        RefusalCode::IdempotencyMismatch
    };
    EntryAnswer::Refused {
        code,
        seq: None,
        expected: None,
        paid_by: None,
        replayed: false,
    }
}

/// The entry as the event feed shows it.
pub fn event(entry: LogEntry<'_>) -> Event {
    Event {
        seq: entry.seq,
        ts: entry.ts,
        entry: entry.op.into(),
        answer: answer(entry),
    }
}

/// The receipt that a leaf alone gives; `None` for a refused entry.
pub fn receipt(leaf: &PublicLeaf, leaf_hash: [u8; 32]) -> Option<Receipt> {
    let id = (leaf.seq, leaf.txid());
    let done = leaf.verdict.is_done();
    done.then(|| render(id, leaf.ts, leaf.kind, leaf.facts.clone(), leaf_hash))
}

/// The receipt of a leaf. The leaf's first byte is also the version of this rendering: another one
/// must come with another format of the leaf, so that a receipt never changes.
fn render(
    (seq, txid): (u64, TxId),
    ts: Timestamp,
    kind: Kind,
    facts: Facts<'_>,
    leaf_hash: [u8; 32],
) -> Receipt {
    Receipt {
        txid,
        op: kind.into(),
        from: facts.from.map(Cow::into_owned),
        to: facts.to.map(Cow::into_owned),
        asset: facts.asset.map(Cow::into_owned),
        amount_minor: facts.amount,
        ts,
        seq,
        hold: facts.hold,
        batch: facts.batch,
        reverses: facts.reverses,
        receipt_hash: LeafHash(leaf_hash),
    }
}

impl From<Kind> for EntryKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Issue => Self::Issue,
            Kind::Transfer => Self::Transfer,
            Kind::Burn => Self::Burn,
            Kind::Hold => Self::Hold,
            Kind::Capture => Self::Capture,
            Kind::Release => Self::Release,
            Kind::Expire => Self::Expire,
            Kind::Freeze => Self::Freeze,
            Kind::Unfreeze => Self::Unfreeze,
            Kind::Account => Self::Account,
            Kind::Asset => Self::Asset,
            Kind::EpochOpen => Self::EpochOpen,
            Kind::Payout => Self::Payout,
            Kind::EpochClose => Self::EpochClose,
            Kind::EpochVoid => Self::EpochVoid,
            Kind::Abandon => Self::Abandon,
            Kind::Reverse => Self::Reverse,
        }
    }
}

impl From<&Refusal> for RefusalCode {
    fn from(why: &Refusal) -> Self {
        match why {
            Refusal::InsufficientFunds => Self::InsufficientFunds,
            Refusal::NonceConflict { .. } => Self::NonceConflict,
            Refusal::LimitsExceeded
            | Refusal::Limit(Limit::Accounts(_) | Limit::AccountTotal(_)) => Self::LimitsExceeded,
            Refusal::Limit(Limit::RegisteredAssets) => Self::AssetUnregistered,
            Refusal::AmountOverflow => Self::AmountOverflow,
            Refusal::AccountFrozen => Self::AccountFrozen,
            Refusal::AccountClosed => Self::AccountClosed,
            Refusal::AccountNotEmpty => Self::AccountNotEmpty,
            Refusal::CreditInUse => Self::CreditInUse,
            Refusal::MaxBalance => Self::MaxBalance,
            Refusal::AssetScale => Self::AssetScale,
            Refusal::ReservedAccount => Self::ReservedAccount,
            Refusal::HoldNotFound => Self::HoldNotFound,
            Refusal::HoldTooSmall => Self::HoldTooSmall,
            Refusal::HoldExpired => Self::HoldExpired,
            Refusal::EpochConflict => Self::EpochConflict,
            Refusal::EpochUnknown => Self::EpochUnknown,
            Refusal::EpochClosed => Self::EpochClosed,
            Refusal::EpochOpened => Self::EpochOpened,
            Refusal::EpochVoid => Self::EpochVoid,
            Refusal::IndexGap { .. } => Self::IndexGap,
            Refusal::EpochIncomplete => Self::EpochIncomplete,
            Refusal::LinkedFailed => Self::LinkedFailed,
            Refusal::Abandoned => Self::Abandoned,
            Refusal::UsagePaid { .. } => Self::UsagePaid,
            Refusal::AssetSpelling => Self::AssetSpelling,
            Refusal::RefusalBudget => Self::RefusalBudget,
            Refusal::NotReversible => Self::NotReversible,
            Refusal::ReversalTooLarge => Self::ReversalTooLarge,
        }
    }
}

/// The private side of an entry, as its maker sees it.
pub fn private_facts(op: &Op) -> PrivateFacts {
    let header = &op.entry().header;
    PrivateFacts {
        idem: Some(idem(op)),
        nonce: op.entry().body.nonce(),
        memo: header.memo.clone(),
        metadata: header.metadata.clone(),
        reference: header.reference.clone(),
        effective_at: header.effective_at,
    }
}

/// The entry's key, or a text that identifies an entry without one.
fn idem(op: &Op) -> String {
    let header = &op.entry().header;
    let (kind, tenant) = (EntryKind::from(op.kind()), &header.tenant);
    match &op.entry().body {
        Body::EpochOpen(open) => format!("{kind}:{tenant}/{}/{}", open.epoch, open.asset),
        Body::Payout(payout) => {
            let (epoch, asset, index) = (&payout.epoch, &payout.asset, payout.index);
            format!("{kind}:{tenant}/{epoch}/{asset}/{index}")
        }
        Body::EpochClose(close) => match &close.asset {
            Some(asset) => format!("{kind}:{tenant}/{}/{asset}", close.epoch),
            None => format!("{kind}:{tenant}/{}", close.epoch),
        },
        Body::EpochVoid { epoch, commitment } => format!("{kind}:{tenant}/{epoch}/{commitment}"),
        Body::Expire { hold } => format!("{kind}:{hold}"),
        Body::Issue { .. }
        | Body::Transfer { .. }
        | Body::Burn { .. }
        | Body::Hold { .. }
        | Body::Capture { .. }
        | Body::Release { .. }
        | Body::Freeze { .. }
        | Body::Unfreeze { .. }
        | Body::Account { .. }
        | Body::Asset { .. }
        | Body::Abandon
        | Body::Reverse { .. } => header
            .key
            .as_ref()
            .map(EntryKey::to_string)
            .unwrap_or_default(),
    }
}
