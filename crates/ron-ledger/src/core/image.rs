//! The canonical encoding of a whole state, as stored in snapshots. Equal states have equal bytes.

use std::collections::BTreeMap;

use ron_proto::ledger::BudgetId;
use ron_proto::{Asset, ContentId, Timestamp};
use smallvec::SmallVec;

use super::codec::{DecodeError, In, Out};
use super::state::{
    AccountRow, AssetRow, Balance, BalanceLimits, BudgetRow, EpochAsset, EpochRow, Frozen, HoldRow,
    RowTerms, State,
};
use super::terms_codec as terms;
use crate::table::{Numbers, Rows};

/// Why an image was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    #[error("the image is damaged: {0}")]
    Decode(#[from] DecodeError),
    /// The rows do not add up.
    #[error("the image does not add up: {0}")]
    Audit(String),
}

/// Rows between two calls of `put`, so that memory stays small.
const ROWS_PER_PIECE: usize = 4_096;

impl Frozen {
    pub fn encode<E>(&self, mut put: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut o = Out::default();
        o.varint(self.seq);
        o.varint(self.ts.0);
        o.varint(self.assets.len() as u64);
        for a in &self.assets {
            o.text(a.name.as_str());
            o.option(a.terms.as_ref(), terms::put_asset);
            o.amount(a.issued);
            o.amount(a.burned);
            o.amount(a.credits);
            o.amount(a.debits);
        }
        o.varint(self.accounts.len() as u64);
        for (i, row) in self.accounts.iter().enumerate() {
            put_account(&mut o, row);
            if i % ROWS_PER_PIECE == 0 {
                put(&o.0)?;
                o.0.clear();
            }
        }
        o.varint(self.holds.len() as u64);
        for h in self.holds.values() {
            o.bytes(&h.id.0.to_be_bytes());
            o.varint(u64::from(h.account));
            o.varint(u64::from(h.asset));
            o.amount(h.remaining);
            o.varint(h.expires_at.0);
            o.varint(h.made_on);
            o.flag(h.counted);
            o.varint(h.budgets.len() as u64);
            h.budgets.iter().for_each(|id| o.bytes(&id.0));
        }
        o.varint(self.epochs.len() as u64);
        for ((tenant, epoch), e) in &self.epochs {
            o.text(tenant.as_str());
            o.text(epoch.as_str());
            put_epoch(&mut o, e);
        }
        o.varint(self.budgets.len() as u64);
        for (id, b) in &self.budgets {
            o.bytes(&id.0);
            o.amount(b.spent);
            o.varint(b.day);
            o.amount(b.day_spent);
            o.varint(b.until.0);
        }
        o.varint(self.refusals.len() as u64);
        for ((tenant, principal), full) in &self.refusals {
            o.text(tenant.as_str());
            o.text(principal.as_str());
            o.varint(full.0);
        }
        o.varint(self.reversed.len() as u64);
        for (seq, amount) in &self.reversed {
            o.varint(*seq);
            o.amount(*amount);
        }
        o.varint(self.voids.len() as u64);
        for ((tenant, epoch, commitment), seq) in &self.voids {
            o.text(tenant.as_str());
            o.text(epoch.as_str());
            o.bytes(&commitment.0);
            o.varint(*seq);
        }
        put(&o.0)
    }
}

impl State {
    /// Decodes an image and checks that it adds up.
    pub fn from_image(bytes: &[u8]) -> Result<Self, ImageError> {
        let mut i = In::new(bytes);
        let mut s = Self {
            seq: i.varint()?,
            ts: Timestamp(i.varint()?),
            ..Self::default()
        };
        for _ in 0..i.varint()? {
            let name: Asset = i.value()?;
            let known = s.asset_names.insert(name.folded(), s.assets.len() as u32);
            if known.is_some() {
                return Err(ImageError::Audit(format!("asset {name} is there twice")));
            }
            s.assets.push(AssetRow {
                name,
                terms: i.option(terms::asset)?,
                issued: i.amount()?,
                burned: i.amount()?,
                credits: i.amount()?,
                debits: i.amount()?,
            });
        }
        let n = i.varint()?;
        // The count is not trusted: an account takes at least four bytes.
        s.numbers = Numbers::with_capacity(usize::try_from(n).unwrap_or(0).min(bytes.len() / 4));
        s.accounts = Rows::default();
        for ix in 0..n {
            let row = account(&mut i)?;
            if s.account_ix(&row.name).is_some() {
                return Err(ImageError::Audit(format!(
                    "account {} is there twice",
                    row.name
                )));
            }
            s.numbers.add(&row.name, ix as u32);
            s.accounts.push(row);
        }
        for _ in 0..i.varint()? {
            let id = ron_proto::ledger::TxId(u128::from_be_bytes(i.array()?));
            let (account, asset) = (row_number(&mut i)?, row_number(&mut i)?);
            let (remaining, expires_at) = (i.amount()?, Timestamp(i.varint()?));
            s.set_hold(
                id.seq(),
                Some(HoldRow {
                    id,
                    account,
                    asset,
                    remaining,
                    expires_at,
                    made_on: i.varint()?,
                    counted: i.flag()?,
                    budgets: budget_ids(&mut i)?,
                }),
            );
        }
        for _ in 0..i.varint()? {
            let key = (i.value()?, i.value()?);
            s.epochs.insert(key, epoch(&mut i)?);
        }
        for _ in 0..i.varint()? {
            let id = BudgetId(i.array()?);
            let row = BudgetRow {
                spent: i.amount()?,
                day: i.varint()?,
                day_spent: i.amount()?,
                until: Timestamp(i.varint()?),
            };
            s.set_budget(id, row);
        }
        for _ in 0..i.varint()? {
            let owner = (i.value()?, i.value()?);
            s.set_refusals(owner, Timestamp(i.varint()?));
        }
        for _ in 0..i.varint()? {
            s.reversed.insert(i.varint()?, i.amount()?);
        }
        for _ in 0..i.varint()? {
            let key = (i.value()?, i.value()?, ContentId(i.array()?));
            s.voids.insert(key, i.varint()?);
        }
        i.end()?;
        s.sources = Self::sources_of(&s.epochs).map_err(ImageError::Audit)?;
        s.audit().map_err(ImageError::Audit)?;
        Ok(s)
    }
}

fn put_account(o: &mut Out, row: &AccountRow) {
    o.text(row.name.as_str());
    o.varint(row.nonce);
    o.byte(terms::sides_number(row.frozen));
    o.option(row.terms.as_deref(), put_terms);
    o.varint(row.balances.len() as u64);
    for b in &row.balances {
        o.varint(u64::from(b.asset));
        o.amount(b.credits);
        o.amount(b.debits);
        o.amount(b.held);
        o.varint(b.day);
        o.amount(b.day_total);
    }
}

fn put_terms(o: &mut Out, terms: &RowTerms) {
    o.flag(terms.closed);
    o.flag(terms.require_nonce);
    o.option(terms.class.as_ref(), |o, class| o.text(class.as_str()));
    o.varint(terms.limits.len() as u64);
    for (asset, limits) in &terms.limits {
        o.varint(u64::from(*asset));
        o.amount(limits.credit);
        o.option(limits.max, Out::amount);
    }
}

fn row_terms(i: &mut In<'_>) -> Result<Box<RowTerms>, DecodeError> {
    let mut terms = RowTerms {
        closed: i.flag()?,
        require_nonce: i.flag()?,
        class: i.option(In::value)?,
        limits: BTreeMap::new(),
    };
    for _ in 0..i.varint()? {
        let asset = row_number(i)?;
        let limits = BalanceLimits {
            credit: i.amount()?,
            max: i.option(In::amount)?,
        };
        terms.limits.insert(asset, limits);
    }
    Ok(Box::new(terms))
}

fn row_number(i: &mut In<'_>) -> Result<u32, DecodeError> {
    let n = i.varint()?;
    u32::try_from(n).or_else(|_| i.fail("the row number is too large"))
}

fn budget_ids(i: &mut In<'_>) -> Result<Box<[BudgetId]>, DecodeError> {
    let n = i.varint()?;
    (0..n).map(|_| i.array().map(BudgetId)).collect()
}

fn account(i: &mut In<'_>) -> Result<AccountRow, DecodeError> {
    let (name, nonce) = (i.value()?, i.varint()?);
    let frozen = terms::sides(i)?;
    let terms = i.option(row_terms)?;
    let n = i.varint()?;
    let mut balances = SmallVec::with_capacity(usize::try_from(n).unwrap_or(0).min(16));
    for _ in 0..n {
        let asset = row_number(i)?;
        balances.push(Balance {
            asset,
            credits: i.amount()?,
            debits: i.amount()?,
            held: i.amount()?,
            day: i.varint()?,
            day_total: i.amount()?,
        });
    }
    Ok(AccountRow {
        name,
        nonce,
        frozen,
        terms,
        balances,
    })
}

fn put_epoch(o: &mut Out, e: &EpochRow) {
    o.bytes(&e.commitment.0);
    o.bytes(&e.source.0);
    o.option(e.adjusts.as_ref(), |o, epoch| o.text(epoch.as_str()));
    o.varint(e.assets.len() as u64);
    e.assets.iter().for_each(|it| put_epoch_asset(o, it));
}

fn put_epoch_asset(o: &mut Out, e: &EpochAsset) {
    o.varint(u64::from(e.asset));
    o.bytes(&e.sum_root.0);
    o.text(e.from.as_str());
    o.varint(e.recipients);
    o.amount(e.total);
    o.amount(e.paid);
    o.varint(e.next_index);
    o.varint(e.opened_seq);
    o.option(e.closed_seq, Out::varint);
    o.varint(e.runs.len() as u64);
    for (index, seq) in &e.runs {
        o.varint(*index);
        o.varint(*seq);
    }
}

fn epoch(i: &mut In<'_>) -> Result<EpochRow, DecodeError> {
    let mut e = EpochRow {
        commitment: ContentId(i.array()?),
        source: ContentId(i.array()?),
        adjusts: i.option(In::value)?,
        assets: Vec::new(),
    };
    for _ in 0..i.varint()? {
        e.assets.push(epoch_asset(i)?);
    }
    Ok(e)
}

fn epoch_asset(i: &mut In<'_>) -> Result<EpochAsset, DecodeError> {
    let mut e = EpochAsset {
        asset: row_number(i)?,
        sum_root: ContentId(i.array()?),
        from: i.value()?,
        recipients: i.varint()?,
        total: i.amount()?,
        paid: i.amount()?,
        next_index: i.varint()?,
        opened_seq: i.varint()?,
        closed_seq: i.option(In::varint)?,
        runs: Vec::new(),
    };
    for _ in 0..i.varint()? {
        e.runs.push((i.varint()?, i.varint()?));
    }
    Ok(e)
}
