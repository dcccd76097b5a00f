//! Turns decisions and leaves into what callers see: answers, receipts, events. Pure.

use ron_proto::ledger::{Entry, EntryAnswer, Event, Receipt, RefusalCode, escrow_account};
use ron_proto::{Account, Amount, Asset, ContentId, Timestamp};

use crate::core::{Op, Verdict};

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

    fn with_nonce(self, nonce: u64) -> Self {
        Self {
            nonce: Some(nonce),
            ..self
        }
    }
}

pub fn answer(op: &Op, seq: u64, ts: Timestamp, verdict: &Verdict) -> EntryAnswer {
    if let Some((code, expected)) = verdict.refusal() {
        return EntryAnswer::Refused {
            code,
            seq: Some(seq),
            expected,
            paid_by: verdict.paid_by().cloned(),
            replayed: false,
        };
    }
    let receipt = receipt(op, seq, ts, verdict);
    EntryAnswer::Done {
        seq,
        txid: receipt.txid,
        receipt,
        replayed: false,
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
        entry: op.entry().clone(),
        answer: answer(op, seq, ts, verdict),
    }
}

/// The receipt of a committed entry. It depends only on the leaf and its sequence, so it can be
/// made again at any time.
pub fn receipt(op: &Op, seq: u64, ts: Timestamp, verdict: &Verdict) -> Receipt {
    let moved = moved(op.entry(), verdict);
    Receipt {
        txid: op.txid(seq),
        op: op.kind(),
        from: moved.from,
        to: moved.to,
        asset: moved.asset,
        amount_minor: moved.amount,
        nonce: moved.nonce,
        idem: idem(op.entry()),
        ts,
        seq,
        receipt_hash: ContentId([0; 32]),
    }
    .sealed()
    .expect("a receipt has no floats and no maps, so it has a canonical form")
}

fn moved(entry: &Entry, verdict: &Verdict) -> Moved {
    if let Verdict::Done(Some(e)) = verdict {
        let to = if let Entry::Capture { to, .. } = entry {
            Some(to)
        } else {
            None
        };
        return Moved::of(Some(&e.from), to, &e.asset, e.amount);
    }
    match entry {
        Entry::Issue { .. } | Entry::Transfer { .. } | Entry::Burn { .. } | Entry::Hold { .. } => {
            moved_by_owner(entry)
        }
        Entry::Freeze { account, .. } | Entry::Unfreeze { account, .. } => Moved {
            from: Some(account.clone()),
            ..Moved::default()
        },
        settlement => moved_by_settlement(settlement),
    }
}

fn moved_by_owner(entry: &Entry) -> Moved {
    match entry {
        Entry::Issue {
            to,
            asset,
            amount_minor,
            ..
        } => Moved::of(None, Some(to), asset, *amount_minor),
        Entry::Transfer {
            from,
            to,
            asset,
            amount_minor,
            nonce,
            ..
        } => Moved::of(Some(from), Some(to), asset, *amount_minor).with_nonce(*nonce),
        Entry::Burn {
            from,
            asset,
            amount_minor,
            nonce,
            ..
        }
        | Entry::Hold {
            from,
            asset,
            amount_minor,
            nonce,
            ..
        } => Moved::of(Some(from), None, asset, *amount_minor).with_nonce(*nonce),
        _ => Moved::default(),
    }
}

fn moved_by_settlement(entry: &Entry) -> Moved {
    match entry {
        Entry::EpochOpen {
            tenant,
            epoch,
            from,
            asset,
            amount_minor,
            ..
        } => Moved::of(
            Some(from),
            Some(&escrow_account(tenant, epoch)),
            asset,
            *amount_minor,
        ),
        Entry::Payout {
            tenant,
            epoch,
            to,
            asset,
            amount_minor,
            ..
        } => Moved::of(
            Some(&escrow_account(tenant, epoch)),
            Some(to),
            asset,
            *amount_minor,
        ),
        _ => Moved::default(),
    }
}

fn idem(entry: &Entry) -> String {
    match entry {
        Entry::EpochOpen { tenant, epoch, .. } => format!("epoch_open:{tenant}/{epoch}"),
        Entry::Payout {
            tenant,
            epoch,
            index,
            ..
        } => format!("payout:{tenant}/{epoch}/{index}"),
        Entry::EpochClose { tenant, epoch, .. } => format!("epoch_close:{tenant}/{epoch}"),
        Entry::Expire { hold } => format!("expire:{hold}"),
        keyed => keyed
            .principal_key()
            .map(|(_, k)| k.to_string())
            .unwrap_or_default(),
    }
}
