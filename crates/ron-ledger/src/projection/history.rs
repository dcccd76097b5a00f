//! Rows of the accounts' histories: added in the order of their key, because rows of one account then
//! change one page once.

use ron_proto::ledger::Reference;
use ron_proto::{Account, Asset};
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::parsed;
use super::recent::Recent;
use super::{ProjectionError, Total};

/// What entries add to the histories of accounts.
#[derive(Debug, Default)]
pub(super) struct History {
    known: Recent<Account, Known>,
    /// Rows that are not in the file yet.
    rows: Vec<Row>,
}

/// A row of the accounts.
#[derive(Clone, Debug)]
struct Known {
    id: i64,
    /// Asset of the account's first entry.
    asset: Option<Asset>,
    /// Whether it has had entries in another asset too.
    mixed: bool,
}

#[derive(Debug)]
struct Row {
    account: i64,
    mixed: bool,
    entry: OfEntry,
}

/// What a row says of the entry.
#[derive(Debug)]
pub(super) struct OfEntry {
    pub seq: u64,
    pub asset: Option<Asset>,
    pub total: Option<Total>,
    pub moved: bool,
    /// The day that statements show, where it is another than that of the entry.
    pub day: Option<u64>,
    pub reference: Option<Reference>,
}

impl History {
    pub fn add(
        &mut self,
        tx: &Transaction<'_>,
        account: &Account,
        entry: OfEntry,
    ) -> Result<(), ProjectionError> {
        let (known, new) = match self.known.get(account) {
            Some(known) => (known, false),
            None => match Known::read(tx, account)? {
                Some(known) => (known, true),
                None => (Known::first(tx, account, entry.asset.as_ref())?, true),
            },
        };
        let (known, new) = if known.mixed || known.asset == entry.asset {
            (known, new)
        } else {
            (known.mix(tx, entry.seq)?, true)
        };
        self.rows.push(Row {
            account: known.id,
            mixed: known.mixed,
            entry,
        });
        if new {
            self.known.put(account.clone(), known);
        }
        Ok(())
    }

    /// Adds the rows to the file.
    pub fn write(&mut self, tx: &Transaction<'_>) -> Result<(), ProjectionError> {
        self.rows.sort_by_key(|row| (row.account, row.entry.seq));
        // An entry between an account and itself has one row.
        let mut put = tx.prepare_cached(
            "INSERT OR IGNORE INTO history VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )?;
        for row in self.rows.drain(..) {
            let entry = row.entry;
            put.execute(params![
                row.account,
                entry.seq as i64,
                entry.asset.as_ref().map(Asset::as_str),
                entry.total.map(|t| t.credits.to_string()),
                entry.total.map(|t| t.debits.to_string()),
                entry.total.map(|t| t.held.to_string()),
                entry.moved,
                entry.day.map(|day| day as i64),
                entry.reference.as_ref().map(Reference::as_str),
                row.mixed,
            ])?;
        }
        Ok(())
    }
}

impl Known {
    fn read(tx: &Transaction<'_>, account: &Account) -> Result<Option<Self>, ProjectionError> {
        let mut read = tx.prepare_cached(
            "SELECT id, asset, mixed_from IS NOT NULL FROM accounts WHERE name = ?1",
        )?;
        let row = read.query_row([account.as_str()], |r| {
            Ok((
                r.get(0)?,
                r.get::<_, Option<String>>(1)?,
                r.get::<_, bool>(2)?,
            ))
        });
        let Some((id, asset, mixed)) = row.optional()? else {
            return Ok(None);
        };
        let asset = asset.as_deref().map(parsed).transpose()?;
        Ok(Some(Self { id, asset, mixed }))
    }

    fn first(
        tx: &Transaction<'_>,
        account: &Account,
        asset: Option<&Asset>,
    ) -> Result<Self, ProjectionError> {
        let mut put = tx.prepare_cached("INSERT INTO accounts (name, asset) VALUES (?1, ?2)")?;
        let id = put.insert(params![account.as_str(), asset.map(Asset::as_str)])?;
        Ok(Self {
            id,
            asset: asset.cloned(),
            mixed: false,
        })
    }

    fn mix(self, tx: &Transaction<'_>, seq: u64) -> Result<Self, ProjectionError> {
        let mut put = tx.prepare_cached("UPDATE accounts SET mixed_from = ?2 WHERE id = ?1")?;
        put.execute([self.id, seq as i64])?;
        Ok(Self {
            mixed: true,
            ..self
        })
    }
}
