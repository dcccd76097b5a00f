//! What the tables hold at one moment.

use std::sync::Arc;

use ron_proto::values::Timestamp;
use ron_service::records::{Row, Statements};
use ron_tlog::store::Transit;

use super::StoreError;
use super::db::{bytes, optional, unsigned};
use super::log_key::{self, LogIdentity};
use super::part::Part;
use super::policy::{self, StoredPolicy};
use super::record::{Loaded, load_records};
use super::seal::Sealer;
use crate::backend::Backends;

pub(super) struct StoreRow {
    pub(super) store_id: [u8; 16],
    pub(super) salt: [u8; 16],
    pub(super) version: u64,
    pub(super) seal_check: Vec<u8>,
    pub(super) log_origin: String,
    pub(super) log_key: Vec<u8>,
    pub(super) log_key_created: Timestamp,
    pub(super) mac: Vec<u8>,
    pub(super) tpm_counter: Option<u64>,
    pub(super) transit: Option<Transit>,
}

fn transit(row: &Row, column: usize) -> Result<Option<Transit>, StoreError> {
    if row.is_null(column) {
        return Ok(None);
    }
    let transit = Transit::of_holder(row.text(column)?);
    let transit = transit.ok_or_else(|| StoreError::Tampered("its transit".into()))?;
    Ok(Some(transit))
}

impl StoreRow {
    fn of(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            store_id: bytes(row, 0)?,
            salt: bytes(row, 1)?,
            version: unsigned(row, 2)?,
            seal_check: row.blob(3)?.to_vec(),
            log_origin: row.text(4)?.to_owned(),
            log_key: row.blob(5)?.to_vec(),
            log_key_created: Timestamp(unsigned(row, 6)?),
            mac: row.blob(7)?.to_vec(),
            tpm_counter: optional(row, 8)?,
            transit: transit(row, 9)?,
        })
    }

    /// `None` when there is no store yet.
    pub(super) fn find(tx: &mut dyn Statements) -> Result<Option<Self>, StoreError> {
        let sql =
            "SELECT store_id, salt, version, seal_check, log_origin, log_key, log_key_created, mac,
                     tpm_counter, transit FROM store";
        let rows = tx.query(sql, &[])?;
        rows.first().map(Self::of).transpose()
    }
}

/// What is in the tables at one moment. The store's MAC is still to be checked.
pub(super) struct Content {
    pub(super) row: StoreRow,
    pub(super) logs: Vec<LogIdentity>,
    pub(super) loaded: Loaded,
    pub(super) policy: Option<StoredPolicy>,
}

impl Content {
    pub(super) fn read(
        tx: &mut dyn Statements,
        row: StoreRow,
        sealer: &Arc<Sealer>,
        backends: &Backends,
        part: &Part,
    ) -> Result<Self, StoreError> {
        let first = (&*row.log_origin, row.log_key_created, &*row.log_key);
        let logs = log_key::load(tx, sealer, first)?;
        let first = logs[0].origin.as_str();
        Ok(Self {
            loaded: load_records(tx, sealer, backends, part, first)?,
            policy: policy::load(tx, first)?,
            row,
            logs,
        })
    }
}
