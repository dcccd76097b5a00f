//! The encoding of what an operator sets for accounts and assets.

use ron_proto::Amount;
use ron_proto::ledger::{AccountTerms, AssetLimits, AssetTerms, Sides};

use super::codec::{DecodeError, In, Out};

/// The number of frozen sides: 1 for debits and 2 for credits, added.
pub(super) const fn sides_number(sides: Sides) -> u8 {
    sides.debits() as u8 + 2 * sides.credits() as u8
}

pub(super) fn sides(i: &mut In<'_>) -> Result<Sides, DecodeError> {
    let number = i.byte()?;
    let known = Sides::ALL
        .into_iter()
        .find(|sides| sides_number(*sides) == number);
    known.map_or_else(|| i.fail("the sides are not known"), Ok)
}

pub(super) fn put_account(o: &mut Out, terms: &AccountTerms) {
    o.option(terms.closed, Out::flag);
    o.option(terms.frozen, |o, sides| o.byte(sides_number(sides)));
    o.option(terms.require_nonce, Out::flag);
    o.option(terms.class.as_ref(), |o, class| o.text(class.as_str()));
    o.option(terms.limits.as_ref(), |o, limits| {
        o.text(limits.asset.as_str());
        o.amount(limits.credit_limit_minor.0);
        o.option(limits.max_balance_minor.map(|most| most.0), Out::amount);
    });
}

pub(super) fn account(i: &mut In<'_>) -> Result<AccountTerms, DecodeError> {
    Ok(AccountTerms {
        closed: i.option(In::flag)?,
        frozen: i.option(sides)?,
        require_nonce: i.option(In::flag)?,
        class: i.option(In::value)?,
        limits: i.option(|i| {
            Ok(AssetLimits {
                asset: i.value()?,
                credit_limit_minor: i.amount().map(Amount)?,
                max_balance_minor: i.option(In::amount)?.map(Amount),
            })
        })?,
    })
}

/// Length of what [`put_account`] writes.
pub(super) fn account_len(terms: &AccountTerms) -> usize {
    let mut o = Out::default();
    put_account(&mut o, terms);
    o.0.len()
}

pub(super) fn put_asset(o: &mut Out, terms: &AssetTerms) {
    o.byte(terms.scale);
    o.option(terms.title.as_ref(), |o, title| o.text(title.as_str()));
}

pub(super) fn asset(i: &mut In<'_>) -> Result<AssetTerms, DecodeError> {
    Ok(AssetTerms {
        scale: i.byte()?,
        title: i.option(In::value)?,
    })
}
