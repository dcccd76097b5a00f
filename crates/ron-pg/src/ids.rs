//! Ids of clients that a migration takes along.

use std::time::Duration;

use ron_kernel::Deadline;
use ron_tlog::store::{CarriedId, Once, StoreError};

use crate::connection::Param;
use crate::session::{Session, of_read, of_write};

/// Keeps ids in one statement, in place of what is kept under them.
pub fn carry(
    session: &mut Session,
    schema: &str,
    ids: &[CarriedId],
    deadline: Deadline,
) -> Result<(), StoreError> {
    let scopes: Vec<&str> = ids.iter().map(|id| id.once.scope.as_str()).collect();
    let keys: Vec<&str> = ids.iter().map(|id| id.once.key.as_str()).collect();
    let hashes: Vec<&[u8]> = ids.iter().map(|id| id.once.body_hash.as_slice()).collect();
    let answers: Vec<&[u8]> = ids.iter().map(|id| id.once.answer.as_slice()).collect();
    let left: Vec<String> = ids
        .iter()
        .map(|id| id.left.as_millis().to_string())
        .collect();
    let left: Vec<&str> = left.iter().map(String::as_str).collect();
    let sql = format!(
        "INSERT INTO {schema}.log_unique (scope, key, body_hash, answer, expires) \
         SELECT u.scope, u.key, u.body_hash, u.answer, now() + u.left_ms::bigint * interval '1 ms' \
         FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bytea[], $5::text[]) \
         AS u (scope, key, body_hash, answer, left_ms) \
         ON CONFLICT (scope, key) DO UPDATE SET body_hash = EXCLUDED.body_hash, \
         answer = EXCLUDED.answer, expires = EXCLUDED.expires"
    );
    let params = [
        Param::Texts(&scopes),
        Param::Texts(&keys),
        Param::BytesList(&hashes),
        Param::BytesList(&answers),
        Param::Texts(&left),
    ];
    let kept = session.connection.query(&sql, &params, deadline);
    of_write(kept).map(|_| ())
}

/// Ids of a scope behind a key.
pub fn after(
    session: &mut Session,
    schema: &str,
    (scope, after): (&str, &str),
    limit: usize,
    deadline: Deadline,
) -> Result<Vec<CarriedId>, StoreError> {
    let sql = format!(
        "SELECT key, body_hash, answer, (extract(epoch FROM expires - now()) * 1000)::bigint \
         FROM {schema}.log_unique WHERE scope = $1 AND key > $2 AND expires > now() \
         ORDER BY key LIMIT $3"
    );
    let params = [
        Param::Text(scope),
        Param::Text(after),
        Param::Int8(i64::try_from(limit).unwrap_or(i64::MAX)),
    ];
    let rows = session.connection.query(&sql, &params, deadline);
    let rows = rows.map_err(of_read)?;
    // A write of the same session makes final what was read.
    let confirm = "SELECT pg_logical_emit_message(true, 'ron', '') IS NOT NULL";
    of_write(session.connection.query(confirm, &[], deadline))?;
    let read = (0..rows.len()).map(|row| {
        let hash = rows.bytes(row, 1).map_err(of_read)?;
        let body_hash = hash.try_into();
        let once = Once {
            scope: scope.to_owned(),
            key: rows.text(row, 0).map_err(of_read)?.to_owned(),
            body_hash: body_hash
                .map_err(|_| StoreError::Damaged("a hash has not 32 bytes".into()))?,
            answer: rows.bytes(row, 2).map_err(of_read)?.to_vec(),
        };
        let left = Duration::from_millis(rows.count(row, 3).map_err(of_read)?);
        Ok(CarriedId { once, left })
    });
    read.collect()
}
