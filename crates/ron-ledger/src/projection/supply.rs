//! What was ever issued and burned of each asset, after every entry that changed it.

use std::collections::BTreeMap;
use std::mem;

use ron_proto::Asset;
use ron_proto::ledger::{EntryKind, Receipt};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::recent::Recent;
use super::{ProjectionError, number};

/// In minor units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    pub issued: u128,
    pub burned: u128,
}

/// The supplies that one transaction of the projection changes.
#[derive(Debug, Default)]
pub(super) struct Supplies {
    /// As earlier transactions left them.
    recent: Recent<Asset, Supply>,
    /// Those that this one has changed.
    changed: BTreeMap<Asset, Supply>,
    /// Rows that are not in the file yet.
    rows: Vec<(Asset, u64, Supply)>,
}

impl Supplies {
    /// Adds an entry that took effect.
    pub fn add(
        &mut self,
        tx: &Transaction<'_>,
        seq: u64,
        receipt: &Receipt,
    ) -> Result<(), ProjectionError> {
        let (Some(asset), Some(amount)) = (&receipt.asset, receipt.amount_minor) else {
            return Ok(());
        };
        let issue = match receipt.op {
            EntryKind::Issue => true,
            EntryKind::Burn => false,
            _ => return Ok(()),
        };
        let known = self.changed.get(asset).copied();
        let mut supply = match known.or_else(|| self.recent.get(asset)) {
            Some(supply) => supply,
            None => Supply::at(tx, asset, seq)?,
        };
        let sum = if issue {
            &mut supply.issued
        } else {
            &mut supply.burned
        };
        *sum = sum.wrapping_add(amount.0);
        self.changed.insert(asset.clone(), supply);
        self.rows.push((asset.clone(), seq, supply));
        Ok(())
    }

    /// Adds the rows to the file.
    pub fn write(&mut self, tx: &Transaction<'_>) -> Result<(), ProjectionError> {
        let mut put = tx.prepare_cached("INSERT INTO supply VALUES (?1, ?2, ?3, ?4)")?;
        for (asset, seq, supply) in self.rows.drain(..) {
            put.execute(params![
                asset.as_str(),
                seq as i64,
                supply.issued.to_string(),
                supply.burned.to_string()
            ])?;
        }
        for (asset, supply) in mem::take(&mut self.changed) {
            self.recent.put(asset, supply);
        }
        Ok(())
    }
}

pub(super) const SUPPLY: &str =
    "SELECT issued, burned FROM supply WHERE asset = ?1 AND seq <= ?2 ORDER BY seq DESC LIMIT 1";

impl Supply {
    /// After the entry at `seq`.
    pub(super) fn at(db: &Connection, asset: &Asset, seq: u64) -> Result<Self, ProjectionError> {
        let mut read = db.prepare_cached(SUPPLY)?;
        let row = read.query_row(params![asset.as_str(), seq as i64], |r| {
            Ok((r.get::<_, String>(0)?, r.get::<_, String>(1)?))
        });
        let Some((issued, burned)) = row.optional()? else {
            return Ok(Self::default());
        };
        Ok(Self {
            issued: number(&issued)?,
            burned: number(&burned)?,
        })
    }
}
