//! The canonical encoding of a request: one form per entry, fields in a fixed order
//! (`docs/formats/ledger.md`).

use ron_proto::ledger::{Entry, EntryKey, EntryKind, Memo, PrincipalName, Reference, TxId};
use ron_proto::{Account, Amount, Asset, ContentId, Timestamp};

use super::codec::{DecodeError, In, Out};

/// The number of a kind in the log. Numbers are never reused.
const fn code(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::Issue => 1,
        EntryKind::Transfer => 2,
        EntryKind::Burn => 3,
        EntryKind::Hold => 4,
        EntryKind::Capture => 5,
        EntryKind::Release => 6,
        EntryKind::Expire => 7,
        EntryKind::Freeze => 8,
        EntryKind::Unfreeze => 9,
        EntryKind::EpochOpen => 10,
        EntryKind::Payout => 11,
        EntryKind::EpochClose => 12,
        EntryKind::Abandon => 13,
    }
}

pub(super) fn encode(entry: &Entry, o: &mut Out) {
    o.byte(code(entry.kind()));
    match entry {
        Entry::Issue { .. } | Entry::Transfer { .. } | Entry::Burn { .. } => encode_money(entry, o),
        Entry::Hold { .. }
        | Entry::Capture { .. }
        | Entry::Release { .. }
        | Entry::Expire { .. } => encode_hold(entry, o),
        Entry::EpochOpen { .. } | Entry::Payout { .. } | Entry::EpochClose { .. } => {
            encode_settlement(entry, o);
        }
        Entry::Freeze {
            principal,
            key,
            account,
        }
        | Entry::Unfreeze {
            principal,
            key,
            account,
        } => {
            head(o, principal, key);
            o.text(account.as_str());
        }
        Entry::Abandon { principal, key } => head(o, principal, key),
    }
}

/// The account, asset and amount of an entry.
fn money(o: &mut Out, account: &Account, asset: &Asset, amount: Amount) {
    o.text(account.as_str());
    o.text(asset.as_str());
    o.amount(amount.0);
}

fn encode_money(entry: &Entry, o: &mut Out) {
    if let Some((principal, key)) = entry.principal_key() {
        head(o, principal, key);
    }
    match entry {
        Entry::Issue {
            to,
            asset,
            amount_minor,
            ..
        } => money(o, to, asset, *amount_minor),
        Entry::Transfer {
            from,
            to,
            asset,
            amount_minor,
            nonce,
            ..
        } => {
            o.text(from.as_str());
            money(o, to, asset, *amount_minor);
            o.varint(*nonce);
        }
        Entry::Burn {
            from,
            asset,
            amount_minor,
            nonce,
            ..
        } => {
            money(o, from, asset, *amount_minor);
            o.varint(*nonce);
        }
        _ => unreachable!("only issue, transfer and burn come here"),
    }
    tail(entry, o);
}

fn encode_hold(entry: &Entry, o: &mut Out) {
    if let Some((principal, key)) = entry.principal_key() {
        head(o, principal, key);
    }
    match entry {
        Entry::Hold {
            from,
            asset,
            amount_minor,
            nonce,
            expires_at,
            ..
        } => {
            money(o, from, asset, *amount_minor);
            o.varint(*nonce);
            o.varint(expires_at.0);
        }
        Entry::Capture {
            hold,
            to,
            amount_minor,
            ..
        } => {
            o.bytes(&hold.0.to_be_bytes());
            o.text(to.as_str());
            o.amount(amount_minor.0);
        }
        Entry::Release { hold, .. } | Entry::Expire { hold } => o.bytes(&hold.0.to_be_bytes()),
        _ => unreachable!("only the kinds of holds come here"),
    }
    tail(entry, o);
}

fn encode_settlement(entry: &Entry, o: &mut Out) {
    match entry {
        Entry::EpochOpen {
            principal,
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
        } => {
            o.text(principal.as_str());
            o.text(tenant.as_str());
            o.text(epoch.as_str());
            o.text(from.as_str());
            o.text(asset.as_str());
            o.amount(amount_minor.0);
            o.bytes(&commitment.0);
            o.bytes(&sum_root.0);
            o.varint(*recipients);
            o.bytes(&source.0);
            o.option(adjusts.as_ref(), |o, epoch| o.text(epoch.as_str()));
        }
        Entry::Payout {
            principal,
            tenant,
            epoch,
            index,
            to,
            asset,
            amount_minor,
        } => {
            o.text(principal.as_str());
            o.text(tenant.as_str());
            o.text(epoch.as_str());
            o.varint(*index);
            o.text(to.as_str());
            o.text(asset.as_str());
            o.amount(amount_minor.0);
        }
        Entry::EpochClose {
            principal,
            tenant,
            epoch,
            commitment,
        } => {
            o.text(principal.as_str());
            o.text(tenant.as_str());
            o.text(epoch.as_str());
            o.bytes(&commitment.0);
        }
        _ => unreachable!("only settlement entries come here"),
    }
}

fn head(o: &mut Out, principal: &PrincipalName, key: &EntryKey) {
    o.text(principal.as_str());
    o.text(key.as_str());
}

/// The fields that end the kinds that move money; nothing for the others.
fn tail(entry: &Entry, o: &mut Out) {
    let (memo, reference, ceiling) = match entry {
        Entry::Issue {
            memo,
            reference,
            daily_ceiling,
            ..
        }
        | Entry::Transfer {
            memo,
            reference,
            daily_ceiling,
            ..
        }
        | Entry::Burn {
            memo,
            reference,
            daily_ceiling,
            ..
        }
        | Entry::Hold {
            memo,
            reference,
            daily_ceiling,
            ..
        } => (memo, reference, *daily_ceiling),
        Entry::Capture {
            memo, reference, ..
        } => (memo, reference, None),
        _ => return,
    };
    o.option(memo.as_ref(), |o, m| o.text(m.as_str()));
    o.option(reference.as_ref(), |o, r| o.text(r.as_str()));
    o.option(ceiling, |o, c| o.amount(c.0));
}

/// The fields that `tail` wrote.
struct Tail {
    memo: Option<Memo>,
    reference: Option<Reference>,
    daily_ceiling: Option<Amount>,
}

fn read_tail(i: &mut In<'_>) -> Result<Tail, DecodeError> {
    Ok(Tail {
        memo: i.option(In::value)?,
        reference: i.option(In::value)?,
        daily_ceiling: i.option(|i| i.amount().map(Amount))?,
    })
}

fn hold_id(i: &mut In<'_>) -> Result<TxId, DecodeError> {
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

pub(super) fn decode(i: &mut In<'_>) -> Result<Entry, DecodeError> {
    let kind = i.byte()?;
    if (10..=12).contains(&kind) {
        return decode_settlement(kind, i);
    }
    if kind == 7 {
        return Ok(Entry::Expire { hold: hold_id(i)? });
    }
    if !(1..=13).contains(&kind) {
        return i.fail(format!(
            "kind {kind} is not known; a newer version may have written it"
        ));
    }
    let principal = i.value()?;
    let key = i.value()?;
    decode_keyed(kind, principal, key, i)
}

fn decode_keyed(
    kind: u8,
    principal: PrincipalName,
    key: EntryKey,
    i: &mut In<'_>,
) -> Result<Entry, DecodeError> {
    Ok(match kind {
        1 => decode_issue(principal, key, i)?,
        2 => decode_transfer(principal, key, i)?,
        3 | 4 => decode_debit(kind, principal, key, i)?,
        5 => decode_capture(principal, key, i)?,
        6 => Entry::Release {
            principal,
            key,
            hold: hold_id(i)?,
        },
        8 => Entry::Freeze {
            principal,
            key,
            account: i.value()?,
        },
        9 => Entry::Unfreeze {
            principal,
            key,
            account: i.value()?,
        },
        _ => Entry::Abandon { principal, key },
    })
}

fn decode_issue(
    principal: PrincipalName,
    key: EntryKey,
    i: &mut In<'_>,
) -> Result<Entry, DecodeError> {
    let (to, asset, amount_minor) = (i.value()?, i.value()?, Amount(i.amount()?));
    let Tail {
        memo,
        reference,
        daily_ceiling,
    } = read_tail(i)?;
    Ok(Entry::Issue {
        principal,
        key,
        to,
        asset,
        amount_minor,
        memo,
        reference,
        daily_ceiling,
    })
}

fn decode_transfer(
    principal: PrincipalName,
    key: EntryKey,
    i: &mut In<'_>,
) -> Result<Entry, DecodeError> {
    let (from, to): (Account, Account) = (i.value()?, i.value()?);
    let (asset, amount_minor, nonce) = (i.value()?, Amount(i.amount()?), i.varint()?);
    let Tail {
        memo,
        reference,
        daily_ceiling,
    } = read_tail(i)?;
    Ok(Entry::Transfer {
        principal,
        key,
        from,
        to,
        asset,
        amount_minor,
        nonce,
        memo,
        reference,
        daily_ceiling,
    })
}

/// Decodes a burn (3) or a hold (4).
fn decode_debit(
    kind: u8,
    principal: PrincipalName,
    key: EntryKey,
    i: &mut In<'_>,
) -> Result<Entry, DecodeError> {
    let (from, asset) = (i.value()?, i.value()?);
    let (amount_minor, nonce) = (Amount(i.amount()?), i.varint()?);
    let expires_at = if kind == 4 { Some(time(i)?) } else { None };
    let Tail {
        memo,
        reference,
        daily_ceiling,
    } = read_tail(i)?;
    Ok(match expires_at {
        None => Entry::Burn {
            principal,
            key,
            from,
            asset,
            amount_minor,
            nonce,
            memo,
            reference,
            daily_ceiling,
        },
        Some(expires_at) => Entry::Hold {
            principal,
            key,
            from,
            asset,
            amount_minor,
            nonce,
            expires_at,
            memo,
            reference,
            daily_ceiling,
        },
    })
}

fn decode_capture(
    principal: PrincipalName,
    key: EntryKey,
    i: &mut In<'_>,
) -> Result<Entry, DecodeError> {
    let (hold, to, amount_minor) = (hold_id(i)?, i.value()?, Amount(i.amount()?));
    let Tail {
        memo,
        reference,
        daily_ceiling,
    } = read_tail(i)?;
    if daily_ceiling.is_some() {
        return i.fail("a capture has no daily ceiling");
    }
    Ok(Entry::Capture {
        principal,
        key,
        hold,
        to,
        amount_minor,
        memo,
        reference,
    })
}

fn decode_settlement(kind: u8, i: &mut In<'_>) -> Result<Entry, DecodeError> {
    let (principal, tenant, epoch) = (i.value()?, i.value()?, i.value()?);
    Ok(match kind {
        10 => {
            let (from, asset, amount_minor) = (i.value()?, i.value()?, Amount(i.amount()?));
            let (commitment, sum_root, recipients) = (content(i)?, content(i)?, i.varint()?);
            Entry::EpochOpen {
                principal,
                tenant,
                epoch,
                from,
                asset,
                amount_minor,
                commitment,
                sum_root,
                recipients,
                source: content(i)?,
                adjusts: i.option(In::value)?,
            }
        }
        11 => {
            let (index, to, asset, amount_minor) =
                (i.varint()?, i.value()?, i.value()?, Amount(i.amount()?));
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
            commitment: content(i)?,
        },
    })
}
