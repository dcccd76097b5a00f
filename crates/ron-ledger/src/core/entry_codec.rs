//! The canonical encoding of a request: kind, header, then the fields of the body in a fixed order
//! (`docs/formats/ledger.md`).

use ron_proto::ledger::TxId;
use ron_proto::{Account, Amount, Asset, ContentId, Timestamp};

use super::codec::{DecodeError, In, Out};
use super::entry::{Body, Debit, Entry, EpochOpen, Header, Kind, Payout};

/// Bits of the number that precedes a header: which optional fields follow, in this order. A later
/// version takes further bits for further fields.
const KEY: u64 = 1;
const MEMO: u64 = 1 << 1;
const REFERENCE: u64 = 1 << 2;
const DAILY_CEILING: u64 = 1 << 3;
const KNOWN: u64 = KEY | MEMO | REFERENCE | DAILY_CEILING;

pub(super) fn encode(entry: &Entry, o: &mut Out) {
    o.byte(entry.body.kind() as u8);
    put_header(o, &entry.header);
    match &entry.body {
        Body::Issue { to, asset, amount } => put_money(o, to, asset, *amount),
        Body::Transfer { debit, to } => {
            put_debit(o, debit);
            o.text(to.as_str());
        }
        Body::Burn { debit } => put_debit(o, debit),
        Body::Hold { debit, expires_at } => {
            put_debit(o, debit);
            o.varint(expires_at.0);
        }
        Body::Capture { hold, to, amount } => {
            o.bytes(&hold.0.to_be_bytes());
            o.text(to.as_str());
            o.amount(amount.0);
        }
        Body::Release { hold } | Body::Expire { hold } => o.bytes(&hold.0.to_be_bytes()),
        Body::Freeze { account } | Body::Unfreeze { account } => o.text(account.as_str()),
        Body::EpochOpen(open) => put_epoch_open(o, open),
        Body::Payout(payout) => {
            o.text(payout.epoch.as_str());
            o.varint(payout.index);
            put_money(o, &payout.to, &payout.asset, payout.amount);
        }
        Body::EpochClose { epoch, commitment } => {
            o.text(epoch.as_str());
            o.bytes(&commitment.0);
        }
        Body::Abandon => {}
    }
}

pub(super) fn decode(i: &mut In<'_>) -> Result<Entry, DecodeError> {
    let number = i.byte()?;
    let Some(kind) = Kind::from_number(number) else {
        return i.fail(format!(
            "kind {number} is not known; a newer version may have written it"
        ));
    };
    let header = header(i)?;
    let body = match kind {
        Kind::Issue => {
            let (to, asset, amount) = money(i)?;
            Body::Issue { to, asset, amount }
        }
        Kind::Transfer => Body::Transfer {
            debit: debit(i)?,
            to: i.value()?,
        },
        Kind::Burn => Body::Burn { debit: debit(i)? },
        Kind::Hold => Body::Hold {
            debit: debit(i)?,
            expires_at: time(i)?,
        },
        Kind::Capture => Body::Capture {
            hold: hold(i)?,
            to: i.value()?,
            amount: Amount(i.amount()?),
        },
        Kind::Release => Body::Release { hold: hold(i)? },
        Kind::Expire => Body::Expire { hold: hold(i)? },
        Kind::Freeze => Body::Freeze {
            account: i.value()?,
        },
        Kind::Unfreeze => Body::Unfreeze {
            account: i.value()?,
        },
        Kind::EpochOpen => Body::EpochOpen(epoch_open(i)?),
        Kind::Payout => {
            let (epoch, index) = (i.value()?, i.varint()?);
            let (to, asset, amount) = money(i)?;
            Body::Payout(Payout {
                epoch,
                index,
                to,
                asset,
                amount,
            })
        }
        Kind::EpochClose => Body::EpochClose {
            epoch: i.value()?,
            commitment: content(i)?,
        },
        Kind::Abandon => Body::Abandon,
    };
    Ok(Entry::new(header, body))
}

fn put_header(o: &mut Out, h: &Header) {
    let present = [
        (KEY, h.key.is_some()),
        (MEMO, h.memo.is_some()),
        (REFERENCE, h.reference.is_some()),
        (DAILY_CEILING, h.daily_ceiling.is_some()),
    ];
    let bits = present.into_iter().filter(|(_, there)| *there);
    o.varint(bits.map(|(bit, _)| bit).sum());
    o.text(h.tenant.as_str());
    o.text(h.principal.as_str());
    if let Some(key) = &h.key {
        o.text(key.as_str());
    }
    if let Some(memo) = &h.memo {
        o.text(memo.as_str());
    }
    if let Some(reference) = &h.reference {
        o.text(reference.as_str());
    }
    if let Some(ceiling) = h.daily_ceiling {
        o.amount(ceiling.0);
    }
}

fn header(i: &mut In<'_>) -> Result<Header, DecodeError> {
    let present = i.varint()?;
    if present & !KNOWN != 0 {
        return i
            .fail("the header has a field that is not known; a newer version may have written it");
    }
    let mut h = Header::new(i.value()?, i.value()?);
    if present & KEY != 0 {
        h.key = Some(i.value()?);
    }
    if present & MEMO != 0 {
        h.memo = Some(i.value()?);
    }
    if present & REFERENCE != 0 {
        h.reference = Some(i.value()?);
    }
    if present & DAILY_CEILING != 0 {
        h.daily_ceiling = Some(Amount(i.amount()?));
    }
    Ok(h)
}

fn put_money(o: &mut Out, account: &Account, asset: &Asset, amount: Amount) {
    o.text(account.as_str());
    o.text(asset.as_str());
    o.amount(amount.0);
}

fn money(i: &mut In<'_>) -> Result<(Account, Asset, Amount), DecodeError> {
    Ok((i.value()?, i.value()?, Amount(i.amount()?)))
}

fn put_debit(o: &mut Out, debit: &Debit) {
    put_money(o, &debit.from, &debit.asset, debit.amount);
    o.varint(debit.nonce);
}

fn debit(i: &mut In<'_>) -> Result<Debit, DecodeError> {
    let (from, asset, amount) = money(i)?;
    Ok(Debit {
        from,
        asset,
        amount,
        nonce: i.varint()?,
    })
}

fn put_epoch_open(o: &mut Out, open: &EpochOpen) {
    o.text(open.epoch.as_str());
    put_money(o, &open.from, &open.asset, open.amount);
    o.bytes(&open.commitment.0);
    o.bytes(&open.sum_root.0);
    o.varint(open.recipients);
    o.bytes(&open.source.0);
    o.option(open.adjusts.as_ref(), |o, epoch| o.text(epoch.as_str()));
}

fn epoch_open(i: &mut In<'_>) -> Result<EpochOpen, DecodeError> {
    let epoch = i.value()?;
    let (from, asset, amount) = money(i)?;
    Ok(EpochOpen {
        epoch,
        from,
        asset,
        amount,
        commitment: content(i)?,
        sum_root: content(i)?,
        recipients: i.varint()?,
        source: content(i)?,
        adjusts: i.option(In::value)?,
    })
}

fn hold(i: &mut In<'_>) -> Result<TxId, DecodeError> {
    i.array().map(|b| TxId(u128::from_be_bytes(b)))
}

fn content(i: &mut In<'_>) -> Result<ContentId, DecodeError> {
    i.array().map(ContentId)
}

fn time(i: &mut In<'_>) -> Result<Timestamp, DecodeError> {
    match i.varint()? {
        ms if ms <= Timestamp::MAX.0 => Ok(Timestamp(ms)),
        _ => i.fail("the time is past the year 9999"),
    }
}
