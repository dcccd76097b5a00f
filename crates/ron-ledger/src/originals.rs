//! What reversals move back.

use crate::core::{Facts, Leaf, Original, ReversedTo, State, Verdict};

/// What a reversal of the entry moves, or why it cannot be reversed.
pub fn original(leaf: &Leaf, state: &State) -> Result<Original, String> {
    let Verdict::Done(effect) = &leaf.verdict else {
        return Err("was refused".to_owned());
    };
    let entry = leaf.op.entry();
    let Some(back) = entry.body.reversed_to() else {
        return Err("is no transfer, capture or payout".to_owned());
    };
    let facts = Facts::of(entry, effect.as_ref(), leaf.place.batch);
    let to = match back {
        ReversedTo::Payer => facts.from.as_deref().cloned(),
        ReversedTo::PoolOf(payout) => {
            let epoch = (entry.header.tenant.clone(), payout.epoch.clone());
            let asset = state.asset_ix(&payout.asset);
            let paid = asset.and_then(|asset| state.epoch(&epoch)?.of(asset));
            paid.map(|it| it.from.clone())
        }
    };
    let found = || {
        Some(Original {
            from: facts.to.as_deref()?.clone(),
            to: to?,
            asset: facts.asset.as_deref()?.clone(),
            amount: facts.amount?,
        })
    };
    found().ok_or_else(|| "lacks a fact of its kind".to_owned())
}
