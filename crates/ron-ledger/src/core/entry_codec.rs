//! The public side of an entry, as its leaf holds it: the facts that all kinds share, then the detail
//! of the kind (`docs/formats/ledger.md`).

use std::borrow::Cow;

use ron_proto::ledger::{HoldRef, TxId, escrow_account};
use ron_proto::{Account, Amount, Asset, ContentId};

use super::codec::{DecodeError, In, Out};
use super::entry::{Body, Debit, Entry, Kind, Original};
use super::epoch::{EpochClose, EpochOpen, Payout};
use super::private::{Private, time};
use super::terms_codec as terms;
use super::verdict::Effect;

/// Accounts, money and links of an entry: what it moved, or what it asked for when it was refused.
/// A receipt consists of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts<'e> {
    /// The debited account; the account of a freeze, or of what is set for it.
    pub from: Option<Cow<'e, Account>>,
    pub to: Option<Cow<'e, Account>>,
    pub asset: Option<Cow<'e, Asset>>,
    pub amount: Option<Amount>,
    /// The hold that is captured or ended.
    pub hold: Option<TxId>,
    /// The first item of the batch that the entry belongs to.
    pub batch: Option<TxId>,
    /// The entry that this one reverses.
    pub reverses: Option<TxId>,
}

/// Bits of the number before the facts: which of them follow, in this order.
const FROM: u64 = 1;
const TO: u64 = 1 << 1;
const ASSET: u64 = 1 << 2;
const AMOUNT: u64 = 1 << 3;
const HOLD: u64 = 1 << 4;
const BATCH: u64 = 1 << 5;
const REVERSES: u64 = 1 << 6;
const KNOWN: u64 = FROM | TO | ASSET | AMOUNT | HOLD | BATCH | REVERSES;

impl<'e> Facts<'e> {
    fn money(
        from: Option<&'e Account>,
        to: Option<&'e Account>,
        asset: &'e Asset,
        n: Amount,
    ) -> Self {
        Self {
            from: from.map(Cow::Borrowed),
            to: to.map(Cow::Borrowed),
            asset: Some(Cow::Borrowed(asset)),
            amount: Some(n),
            ..Self::default()
        }
    }

    fn debit(debit: &'e Debit, effect: Option<&'e Effect>, to: Option<&'e Account>) -> Self {
        let amount = effect.map_or(debit.amount, |e| e.amount);
        let facts = Self::money(Some(&debit.from), to, &debit.asset, amount);
        // A refused debit of all that is available moved nothing, and did not ask for an amount.
        let there = debit.up_to.is_none() || !amount.is_zero();
        Self {
            amount: facts.amount.filter(|_| there),
            ..facts
        }
    }

    /// What becomes of a hold: `effect` when it was decided, else what was asked for.
    fn of_hold(
        hold: TxId,
        effect: Option<&'e Effect>,
        to: Option<&'e Account>,
        asked: Option<Amount>,
    ) -> Self {
        let moved = effect.map(|e| Self::money(Some(&e.from), to, &e.asset, e.amount));
        Self {
            hold: Some(hold),
            ..moved.unwrap_or_else(|| Self {
                to: to.map(Cow::Borrowed),
                amount: asked,
                ..Self::default()
            })
        }
    }

    /// The facts of an entry with this effect that came in this batch.
    pub fn of(entry: &'e Entry, effect: Option<&'e Effect>, batch: Option<TxId>) -> Self {
        let escrow = |epoch| Some(Cow::Owned(escrow_account(&entry.header.tenant, epoch)));
        let facts = match &entry.body {
            Body::Issue { to, asset, amount } => Self::money(None, Some(to), asset, *amount),
            Body::Transfer { debit, to } => Self::debit(debit, effect, Some(to)),
            Body::Burn { debit } | Body::Hold { debit, .. } => Self::debit(debit, effect, None),
            Body::Capture {
                hold, to, amount, ..
            } => Self::of_hold(made(*hold), effect, Some(to), *amount),
            Body::Release { hold } => Self::of_hold(made(*hold), effect, None, None),
            Body::Expire { hold } => Self::of_hold(*hold, effect, None, None),
            Body::Freeze { account, .. }
            | Body::Unfreeze { account, .. }
            | Body::Account { account, .. } => Self {
                from: Some(Cow::Borrowed(account)),
                ..Self::default()
            },
            Body::Asset { asset, .. } => Self {
                asset: Some(Cow::Borrowed(asset)),
                ..Self::default()
            },
            Body::EpochOpen(open) => Self {
                to: escrow(&open.epoch),
                ..Self::money(Some(&open.from), None, &open.asset, open.amount)
            },
            Body::Payout(payout) => Self {
                from: escrow(&payout.epoch),
                ..Self::money(None, Some(&payout.to), &payout.asset, payout.amount)
            },
            Body::EpochClose(close) => Self {
                asset: close.asset.as_ref().map(Cow::Borrowed),
                ..Self::default()
            },
            Body::EpochVoid { .. } | Body::Abandon => Self::default(),
            Body::Reverse {
                tx,
                amount,
                original,
            } => {
                let moved = effect.map(|e| e.amount).or(*amount);
                let found = original.as_ref().map(|o| {
                    Self::money(
                        Some(&o.from),
                        Some(&o.to),
                        &o.asset,
                        moved.unwrap_or(o.amount),
                    )
                });
                Self {
                    reverses: Some(*tx),
                    ..found.unwrap_or_else(|| Self {
                        amount: moved,
                        ..Self::default()
                    })
                }
            }
        };
        Self { batch, ..facts }
    }

    pub(super) fn put(&self, o: &mut Out) {
        let present = [
            (FROM, self.from.is_some()),
            (TO, self.to.is_some()),
            (ASSET, self.asset.is_some()),
            (AMOUNT, self.amount.is_some()),
            (HOLD, self.hold.is_some()),
            (BATCH, self.batch.is_some()),
            (REVERSES, self.reverses.is_some()),
        ];
        let bits = present.into_iter().filter(|(_, there)| *there);
        o.varint(bits.map(|(bit, _)| bit).sum());
        for account in [&self.from, &self.to].into_iter().flatten() {
            o.text(account.as_str());
        }
        if let Some(asset) = &self.asset {
            o.text(asset.as_str());
        }
        if let Some(amount) = self.amount {
            o.amount(amount.0);
        }
        for id in [self.hold, self.batch, self.reverses].into_iter().flatten() {
            o.bytes(&id.0.to_be_bytes());
        }
    }

    pub(super) fn read(i: &mut In<'_>) -> Result<Facts<'static>, DecodeError> {
        let present = i.varint()?;
        if present & !KNOWN != 0 {
            return i.fail(
                "the leaf has a fact that is not known; a newer version may have written it",
            );
        }
        let has = |bit| present & bit != 0;
        Ok(Facts {
            from: has(FROM).then(|| i.value().map(Cow::Owned)).transpose()?,
            to: has(TO).then(|| i.value().map(Cow::Owned)).transpose()?,
            asset: has(ASSET).then(|| i.value().map(Cow::Owned)).transpose()?,
            amount: has(AMOUNT).then(|| i.amount().map(Amount)).transpose()?,
            hold: has(HOLD).then(|| txid(i)).transpose()?,
            batch: has(BATCH).then(|| txid(i)).transpose()?,
            reverses: has(REVERSES).then(|| txid(i)).transpose()?,
        })
    }
}

/// The id that the leaf names. A hold of a commit that did not make it gets the id of the genesis record, which is no
/// hold.
fn made(hold: HoldRef) -> TxId {
    hold.id().unwrap_or(TxId(0))
}

/// What the leaf holds of a kind beside the facts.
pub(super) fn put_detail(body: &Body, o: &mut Out) {
    match body {
        Body::Hold { expires_at, .. } => o.varint(expires_at.0),
        Body::Capture {
            amount, ends_hold, ..
        } => {
            o.option(amount.map(|n| n.0), Out::amount);
            o.flag(*ends_hold);
        }
        Body::Reverse {
            amount, original, ..
        } => {
            o.option(amount.map(|n| n.0), Out::amount);
            o.option(original.as_ref().map(|o| o.amount.0), Out::amount);
        }
        Body::Freeze { sides, .. } | Body::Unfreeze { sides, .. } => {
            o.byte(terms::sides_number(*sides));
        }
        Body::Asset { terms, .. } => terms::put_asset(o, terms),
        Body::EpochOpen(open) => {
            o.text(open.epoch.as_str());
            o.bytes(&open.commitment.0);
            o.bytes(&open.sum_root.0);
            o.varint(open.recipients);
            o.bytes(&open.source.0);
            o.option(open.adjusts.as_ref(), |o, epoch| o.text(epoch.as_str()));
        }
        Body::Payout(payout) => {
            o.text(payout.epoch.as_str());
            o.varint(payout.index);
        }
        Body::EpochClose(EpochClose {
            epoch, commitment, ..
        })
        | Body::EpochVoid { epoch, commitment } => {
            o.text(epoch.as_str());
            o.bytes(&commitment.0);
        }
        Body::Issue { .. }
        | Body::Transfer { .. }
        | Body::Burn { .. }
        | Body::Release { .. }
        | Body::Expire { .. }
        | Body::Account { .. }
        | Body::Abandon => {}
    }
}

/// The entry of a leaf with these facts and of this private record; `i` is at the detail.
pub(super) fn read_entry(
    kind: Kind,
    facts: &Facts<'_>,
    i: &mut In<'_>,
    private: Private,
) -> Result<Entry, DecodeError> {
    let mut from = facts.from.as_deref().cloned();
    let mut to = facts.to.as_deref().cloned();
    let missing = || DecodeError {
        at: i.at(),
        why: "the leaf lacks a fact of its kind".to_owned(),
    };
    let (absent, hold) = (missing(), facts.hold);
    let absent = || absent.clone();
    let mut from = || from.take().ok_or_else(absent);
    let mut to = || to.take().ok_or_else(absent);
    let hold = || hold.ok_or_else(absent);
    let asset = || facts.asset.as_deref().cloned().ok_or_else(absent);
    let amount = || facts.amount.ok_or_else(absent);
    let mut debit = || {
        Ok::<Debit, DecodeError>(Debit {
            from: from()?,
            asset: asset()?,
            amount: match private.up_to {
                Some(_) => facts.amount.unwrap_or_default(),
                None => amount()?,
            },
            up_to: private.up_to,
            nonce: private.nonce,
        })
    };
    let body = match kind {
        Kind::Issue => Body::Issue {
            to: to()?,
            asset: asset()?,
            amount: amount()?,
        },
        Kind::Transfer => Body::Transfer {
            debit: debit()?,
            to: to()?,
        },
        Kind::Burn => Body::Burn { debit: debit()? },
        Kind::Hold => Body::Hold {
            debit: debit()?,
            expires_at: time(i)?,
        },
        Kind::Capture => Body::Capture {
            hold: hold()?.into(),
            to: to()?,
            amount: i.option(In::amount)?.map(Amount),
            ends_hold: i.flag()?,
        },
        Kind::Release => Body::Release {
            hold: hold()?.into(),
        },
        Kind::Expire => Body::Expire { hold: hold()? },
        Kind::Freeze => Body::Freeze {
            account: from()?,
            sides: terms::sides(i)?,
        },
        Kind::Unfreeze => Body::Unfreeze {
            account: from()?,
            sides: terms::sides(i)?,
        },
        Kind::Account => Body::Account {
            account: from()?,
            terms: match private.terms {
                Some(terms) => terms,
                None => return i.fail("the private record lacks what is set for the account"),
            },
        },
        Kind::Asset => Body::Asset {
            asset: asset()?,
            terms: terms::asset(i)?,
        },
        Kind::EpochOpen => Body::EpochOpen(EpochOpen {
            from: from()?,
            asset: asset()?,
            amount: amount()?,
            epoch: i.value()?,
            commitment: content(i)?,
            sum_root: content(i)?,
            recipients: i.varint()?,
            source: content(i)?,
            adjusts: i.option(In::value)?,
        }),
        Kind::Payout => Body::Payout(Payout {
            to: to()?,
            asset: asset()?,
            amount: amount()?,
            epoch: i.value()?,
            index: i.varint()?,
        }),
        Kind::EpochClose => Body::EpochClose(EpochClose {
            epoch: i.value()?,
            commitment: content(i)?,
            asset: facts.asset.as_deref().cloned(),
        }),
        Kind::EpochVoid => Body::EpochVoid {
            epoch: i.value()?,
            commitment: content(i)?,
        },
        Kind::Abandon => Body::Abandon,
        Kind::Reverse => Body::Reverse {
            tx: facts.reverses.ok_or_else(absent)?,
            amount: i.option(In::amount)?.map(Amount),
            original: match i.option(In::amount)? {
                None => None,
                Some(moved) => Some(Original {
                    from: from()?,
                    to: to()?,
                    asset: asset()?,
                    amount: Amount(moved),
                }),
            },
        },
    };
    Ok(Entry::new(private.header, body))
}

/// What a done entry of a kind with an effect moved.
pub(super) fn effect(facts: &Facts<'_>) -> Option<Effect> {
    Some(Effect {
        from: facts.from.as_deref()?.clone(),
        asset: facts.asset.as_deref()?.clone(),
        amount: facts.amount?,
    })
}

fn txid(i: &mut In<'_>) -> Result<TxId, DecodeError> {
    i.array().map(|b| TxId(u128::from_be_bytes(b)))
}

fn content(i: &mut In<'_>) -> Result<ContentId, DecodeError> {
    i.array().map(ContentId)
}
