//! Operation ids of changes with their answers, each row under a MAC, so that a damaged one is not taken for another operation.

use ron_crypto::ct;
use ron_proto::values::{OpId, Tenant, Timestamp};
use ron_service::records::{Row, Statements, Value};

use super::seal::Sealer;
use super::{KeyStore, OP_ID_MS, PAGE, StoreError};

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
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        let answer = (!row.is_null(4)).then(|| row.text(4)).transpose()?;
        Ok(Self {
            tenant: row.text(0)?.to_owned(),
            op_id: row.text(1)?.to_owned(),
            body: row.blob(2)?.to_vec(),
            created: row.int(3)?,
            answer: answer.map(str::to_owned),
            mac: row.blob(5)?.to_vec(),
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
pub(super) fn insert(
    tx: &mut dyn Statements,
    sealer: &Sealer,
    op: &OpRow,
) -> Result<(), StoreError> {
    // Operations without an answer stay, however old: their change is still pending. A time that is yet to come is damage.
    let (forget, soon) = (op.now.0.saturating_sub(OP_ID_MS), op.now.0 + OP_ID_MS);
    tx.execute(
        "DELETE FROM ops WHERE (created <= ?1 OR created > ?2) AND answer IS NOT NULL",
        &[forget.cast_signed().into(), soon.cast_signed().into()],
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
        &[
            row.tenant.as_str().into(),
            row.op_id.as_str().into(),
            row.body[..].into(),
            row.created.into(),
            row.sum(sealer)[..].into(),
        ],
    )?;
    Ok(())
}

/// Adds the answer of an operation. A row that is damaged stays so.
pub(super) fn answer(
    tx: &mut dyn Statements,
    sealer: &Sealer,
    (tenant, op_id): OpName<'_>,
    answer: &str,
) -> Result<(), StoreError> {
    let name = (tenant.as_str(), op_id.to_string());
    let Some(mut row) = find(tx, &name)?.filter(|row| row.whole(sealer)) else {
        return Ok(());
    };
    row.answer = Some(answer.to_owned());
    tx.execute(
        "UPDATE ops SET answer = ?1, mac = ?2 WHERE tenant = ?3 AND op_id = ?4",
        &[
            answer.into(),
            row.sum(sealer)[..].into(),
            name.0.into(),
            name.1.as_str().into(),
        ],
    )?;
    Ok(())
}

fn find(
    tx: &mut dyn Statements,
    (tenant, op_id): &(&str, String),
) -> Result<Option<Stored>, StoreError> {
    let sql = format!("{COLUMNS} WHERE tenant = ?1 AND op_id = ?2");
    let name: [Value; 2] = [(*tenant).into(), op_id.as_str().into()];
    let rows = tx.query(&sql, &name)?;
    rows.first().map(Stored::from_row).transpose()
}

/// A comparison of all rows of operations with their MACs, in pages, because there may be a day's operations.
#[derive(Debug, Default)]
pub struct OpsCheck {
    /// Tenant and id of the last row that was compared.
    after: (String, String),
    damaged: Vec<String>,
    /// The last page could not be read.
    failed: bool,
    is_done: bool,
}

impl OpsCheck {
    /// Whether all rows that were there at its begin were compared.
    pub const fn is_done(&self) -> bool {
        self.is_done
    }

    /// Whether the next page may be read at once: there is one, and the last one was read.
    pub const fn goes_on(&self) -> bool {
        !self.is_done && !self.failed
    }

    /// The operations whose rows are damaged, as `<tenant>/<op_id>`, which may be what is damaged.
    pub fn damaged(&self) -> &[String] {
        &self.damaged
    }

    fn take(&mut self, rows: Vec<Stored>, sealer: &Sealer) {
        let damaged = rows.iter().filter(|row| !row.whole(sealer));
        let damaged = damaged.map(|row| format!("{}/{}", row.tenant, row.op_id));
        self.damaged.extend(damaged);
        let last = rows.into_iter().next_back();
        match last.map(|row| (row.tenant, row.op_id)) {
            Some(last) if last > self.after => self.after = last,
            // The end, or a name that is out of order: that row is damaged and was found; those behind it are checked when they
            // are used.
            _ => self.is_done = true,
        }
    }
}

impl KeyStore {
    /// Compares the next page of operations. Their repetition is refused in any case when its row is damaged.
    pub fn check_ops(&mut self, check: &mut OpsCheck) -> Result<(), StoreError> {
        let sql =
            format!("{COLUMNS} WHERE (tenant, op_id) > (?1, ?2) ORDER BY tenant, op_id LIMIT ?3");
        let (tenant, op_id) = (check.after.0.as_str(), check.after.1.as_str());
        let rows: Result<Vec<Stored>, _> = self.db.read(|tx| {
            let rows = tx.query(&sql, &[tenant.into(), op_id.into(), PAGE.into()])?;
            rows.iter().map(Stored::from_row).collect()
        });
        check.failed = rows.is_err();
        check.take(rows?, &self.sealer);
        Ok(())
    }

    /// The stored operation, if it is younger than 24 hours or still unfinished, or damaged.
    pub fn find_op(
        &mut self,
        (tenant, op_id): OpName<'_>,
        now: Timestamp,
    ) -> Result<Option<OpRecord>, StoreError> {
        let young = now.0.saturating_sub(OP_ID_MS).cast_signed();
        let row = self
            .db
            .read(|tx| find(tx, &(tenant.as_str(), op_id.to_string())))?;
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
