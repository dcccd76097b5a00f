//! Operation ids of changes with their answers, each row under a MAC, so that a damaged one is not taken for another operation.

use ron_crypto::ct;
use ron_proto::values::{OpId, Tenant, Timestamp};
use rusqlite::{OptionalExtension as _, Row, Transaction, params};

use super::seal::Sealer;
use super::{Db, KeyStore, OP_ID_MS, StoreError};

/// The row that makes a change idempotent.
#[derive(Clone, Debug)]
pub struct OpRow {
    /// Tenant of the caller.
    pub tenant: Tenant,
    pub op_id: OpId,
    /// SHA-256 of the operation's name and canonical body.
    pub body: [u8; 32],
    pub now: Timestamp,
}

/// What the store knows of an operation id.
#[derive(Debug, PartialEq, Eq)]
pub enum OpRecord {
    /// Its row differs from what was written: whether it was done is in the audit log.
    Damaged,
    /// Committed with this body.
    Known {
        /// SHA-256 of the operation's name and canonical body.
        body: [u8; 32],
        /// The answer as JSON, once its leaf was durable.
        answer: Option<String>,
    },
}

/// Tenant and id of an operation.
pub type OpName<'a> = (&'a Tenant, OpId);

/// A row of `ops` as the database holds it.
struct Stored {
    tenant: String,
    op_id: String,
    body: Vec<u8>,
    created: i64,
    answer: Option<String>,
    mac: Vec<u8>,
}

const COLUMNS: &str = "SELECT tenant, op_id, body, created, answer, mac FROM ops";

impl Stored {
    fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            tenant: row.get(0)?,
            op_id: row.get(1)?,
            body: row.get(2)?,
            created: row.get(3)?,
            answer: row.get(4)?,
            mac: row.get(5)?,
        })
    }

    fn sum(&self, sealer: &Sealer) -> [u8; 32] {
        let answer = self.answer.as_deref();
        let mut data = Vec::with_capacity(64 + answer.map_or(0, str::len));
        data.extend_from_slice(&self.created.to_be_bytes());
        // The length keeps body and answer apart, and no answer differs from an empty one.
        data.extend_from_slice(&(self.body.len() as u64).to_be_bytes());
        data.extend_from_slice(&self.body);
        data.push(u8::from(answer.is_some()));
        data.extend_from_slice(answer.unwrap_or_default().as_bytes());
        // Neither a tenant nor an id has a space.
        sealer.mac(&format!("operation {} {}", self.tenant, self.op_id), &data)
    }

    fn whole(&self, sealer: &Sealer) -> bool {
        ct::eq(&self.sum(sealer), &self.mac)
    }
}

/// Stores a new operation, and forgets those whose time has passed.
pub(super) fn insert(tx: &Transaction<'_>, sealer: &Sealer, op: &OpRow) -> rusqlite::Result<()> {
    // Operations without an answer stay, however old: their change is still pending. A time that is yet to come is damage.
    let (forget, soon) = (op.now.0.saturating_sub(OP_ID_MS), op.now.0 + OP_ID_MS);
    tx.execute(
        "DELETE FROM ops WHERE (created <= ?1 OR created > ?2) AND answer IS NOT NULL",
        [forget.cast_signed(), soon.cast_signed()],
    )?;
    let row = Stored {
        tenant: op.tenant.as_str().to_owned(),
        op_id: op.op_id.to_string(),
        body: op.body.to_vec(),
        created: op.now.0.cast_signed(),
        answer: None,
        mac: Vec::new(),
    };
    tx.execute(
        "INSERT INTO ops (tenant, op_id, body, created, mac) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![
            row.tenant,
            row.op_id,
            row.body,
            row.created,
            &row.sum(sealer)[..]
        ],
    )
    .map(drop)
}

/// Adds the answer of an operation. A row that is damaged stays so.
pub(super) fn answer(
    tx: &Transaction<'_>,
    sealer: &Sealer,
    (tenant, op_id): OpName<'_>,
    answer: &str,
) -> rusqlite::Result<()> {
    let name = (tenant.as_str(), op_id.to_string());
    let Some(mut row) = find(tx, &name)?.filter(|row| row.whole(sealer)) else {
        return Ok(());
    };
    row.answer = Some(answer.to_owned());
    tx.execute(
        "UPDATE ops SET answer = ?1, mac = ?2 WHERE tenant = ?3 AND op_id = ?4",
        params![answer, &row.sum(sealer)[..], name.0, name.1],
    )
    .map(drop)
}

fn find(
    db: &rusqlite::Connection,
    (tenant, op_id): &(&str, String),
) -> rusqlite::Result<Option<Stored>> {
    let sql = format!("{COLUMNS} WHERE tenant = ?1 AND op_id = ?2");
    db.query_row(&sql, params![tenant, op_id], Stored::from_row)
        .optional()
}

/// The operations whose rows are damaged, as `<tenant>/<op_id>`, which may be what is damaged.
pub(super) fn damaged(db: &Db, sealer: &Sealer) -> Result<Vec<String>, StoreError> {
    db.read(|c| {
        let mut query = c.prepare(COLUMNS)?;
        let mut found = Vec::new();
        for row in query.query_map([], Stored::from_row)? {
            let row = row?;
            if !row.whole(sealer) {
                found.push(format!("{}/{}", row.tenant, row.op_id));
            }
        }
        Ok(found)
    })
}

impl KeyStore {
    /// The stored operation, if it is younger than 24 hours or still unfinished, or damaged.
    pub fn find_op(
        &self,
        (tenant, op_id): OpName<'_>,
        now: Timestamp,
    ) -> Result<Option<OpRecord>, StoreError> {
        let young = now.0.saturating_sub(OP_ID_MS).cast_signed();
        let row = self
            .db
            .read(|c| find(c, &(tenant.as_str(), op_id.to_string())))?;
        let Some(row) = row else {
            return Ok(None);
        };
        let body: Option<[u8; 32]> = row.body[..].try_into().ok();
        Ok(match body.filter(|_| row.whole(&self.sealer)) {
            None => Some(OpRecord::Damaged),
            Some(_) if row.created <= young && row.answer.is_some() => None,
            Some(body) => Some(OpRecord::Known {
                body,
                answer: row.answer,
            }),
        })
    }
}
