//! Turns decisions and leaves into what callers see: answers, receipts, events. Pure.

use ron_proto::ledger::{
    EntryAnswer, EntryKey, EntryKind, Event, Receipt, RefusalCode, escrow_account,
};
use ron_proto::{Account, Amount, Asset, ContentId, EpochId, Timestamp};

use crate::core::{Body, Debit, Effect, Op, Refusal, Verdict};

/// The accounts, asset, amount and nonce of a receipt.
#[derive(Default)]
struct Moved {
    from: Option<Account>,
    to: Option<Account>,
    asset: Option<Asset>,
    amount: Option<Amount>,
    nonce: Option<u64>,
}

impl Moved {
    fn of(from: Option<&Account>, to: Option<&Account>, asset: &Asset, amount: Amount) -> Self {
        let (from, to) = (from.cloned(), to.cloned());
        Self {
            from,
            to,
            asset: Some(asset.clone()),
            amount: Some(amount),
            nonce: None,
        }
    }

    fn debit(debit: &Debit, to: Option<&Account>) -> Self {
        Self {
            nonce: Some(debit.nonce),
            ..Self::of(Some(&debit.from), to, &debit.asset, debit.amount)
        }
    }

    /// What a hold gave up, to `to` when it was captured.
    fn effect(effect: Option<&Effect>, to: Option<&Account>) -> Self {
        effect.map_or_else(Self::default, |e| {
            Self::of(Some(&e.from), to, &e.asset, e.amount)
        })
    }

    /// What a done entry moved.
    fn by(op: &Op, effect: Option<&Effect>) -> Self {
        let escrow = |epoch| escrow_account(&op.entry().header.tenant, epoch);
        match &op.entry().body {
            Body::Issue { to, asset, amount } => Self::of(None, Some(to), asset, *amount),
            Body::Transfer { debit, to } => Self::debit(debit, Some(to)),
            Body::Burn { debit } | Body::Hold { debit, .. } => Self::debit(debit, None),
            Body::Capture { to, .. } => Self::effect(effect, Some(to)),
            Body::Release { .. } | Body::Expire { .. } => Self::effect(effect, None),
            Body::Freeze { account } | Body::Unfreeze { account } => Self {
                from: Some(account.clone()),
                ..Self::default()
            },
            Body::EpochOpen(open) => {
                let to = escrow(&open.epoch);
                Self::of(Some(&open.from), Some(&to), &open.asset, open.amount)
            }
            Body::Payout(payout) => {
                let from = escrow(&payout.epoch);
                Self::of(Some(&from), Some(&payout.to), &payout.asset, payout.amount)
            }
            Body::EpochClose { .. } | Body::Abandon => Self::default(),
        }
    }
}

pub fn answer(op: &Op, seq: u64, ts: Timestamp, verdict: &Verdict) -> EntryAnswer {
    match verdict {
        Verdict::Done(effect) => {
            let receipt = receipt(op, seq, ts, effect.as_ref());
            EntryAnswer::Done {
                seq,
                txid: receipt.txid,
                receipt,
                replayed: false,
            }
        }
        Verdict::Refused(why) => EntryAnswer::Refused {
            code: why.into(),
            seq: Some(seq),
            expected: expected(why),
            paid_by: paid_by(why),
            replayed: false,
        },
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

/// The answer to `op` when the entry at `seq` already has its key, epoch or index.
pub fn replayed(op: &Op, seq: u64, first: (Timestamp, &Op, &Verdict)) -> EntryAnswer {
    let (ts, first_op, verdict) = first;
    if !op.repeats(first_op) {
        return mismatch(op);
    }
    answer(first_op, seq, ts, verdict).as_replayed()
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

/// The entry at `seq` as the event feed shows it.
pub fn event(seq: u64, ts: Timestamp, op: &Op, verdict: &Verdict) -> Event {
    Event {
        seq,
        ts,
        entry: op.into(),
        answer: answer(op, seq, ts, verdict),
    }
}

/// The receipt of a committed entry. It depends only on the leaf and its sequence, so it can be
/// made again at any time.
pub fn receipt(op: &Op, seq: u64, ts: Timestamp, effect: Option<&Effect>) -> Receipt {
    let moved = Moved::by(op, effect);
    Receipt {
        txid: op.txid(seq),
        op: op.kind().into(),
        from: moved.from,
        to: moved.to,
        asset: moved.asset,
        amount_minor: moved.amount,
        nonce: moved.nonce,
        idem: idem(op),
        ts,
        seq,
        receipt_hash: ContentId([0; 32]),
    }
    .sealed()
    .expect("a receipt has no floats and no maps, so it has a canonical form")
}

/// The entry's key, or a text that identifies an entry without one.
fn idem(op: &Op) -> String {
    let header = &op.entry().header;
    let (kind, tenant) = (EntryKind::from(op.kind()), &header.tenant);
    match &op.entry().body {
        Body::EpochOpen(open) => format!("{kind}:{tenant}/{}", open.epoch),
        Body::Payout(payout) => format!("{kind}:{tenant}/{}/{}", payout.epoch, payout.index),
        Body::EpochClose { epoch, .. } => format!("{kind}:{tenant}/{epoch}"),
        Body::Expire { hold } => format!("{kind}:{hold}"),
        Body::Issue { .. }
        | Body::Transfer { .. }
        | Body::Burn { .. }
        | Body::Hold { .. }
        | Body::Capture { .. }
        | Body::Release { .. }
        | Body::Freeze { .. }
        | Body::Unfreeze { .. }
        | Body::Abandon => header
            .key
            .as_ref()
            .map(EntryKey::to_string)
            .unwrap_or_default(),
    }
}
