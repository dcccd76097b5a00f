//! What a server shows of itself and of its standbys.

use std::sync::Arc;

use ron_kernel::Deadline;
use ron_tlog::store::{EngineInspection, EngineStandby, EngineState, Refusal, StoreError};

use crate::connection::{PgError, Rows, Waiter};
use crate::session::{Commits, Durability, Session, of_read};

/// Looks at a server as an operator would before a service writes to it. Nothing is changed.
pub fn inspect(
    conninfo: &str,
    durability: Durability,
    waiter: &Arc<Waiter>,
    deadline: Deadline,
) -> Result<EngineInspection, StoreError> {
    let mut session = Session::open(conninfo, durability, Commits::Replicated, waiter, deadline)?;
    let unsafe_because = match session.check(deadline) {
        Ok(()) => None,
        Err(StoreError::Refused(Refusal::Unsafe(why))) => Some(why),
        Err(error) => return Err(error),
    };
    let sql = "SELECT current_setting('server_version_num')::bigint / 10000, \
         (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user)::bigint";
    let rows = read(&mut session, sql, deadline)?;
    Ok(EngineInspection {
        unsafe_because,
        state: state(&mut session, deadline)?,
        version: rows.count(0, 0).map_err(of_read)?,
        sessions_max: u64::try_from(rows.int8(0, 1).map_err(of_read)?).ok(),
    })
}

/// Without the number of partitions, which is that of a log.
pub(crate) fn state(session: &mut Session, deadline: Deadline) -> Result<EngineState, StoreError> {
    let sql = "SELECT coalesce(host(inet_server_addr()) || ':' || inet_server_port(), 'a Unix socket'), \
         (SELECT max(age(datfrozenxid)) FROM pg_database)::bigint";
    let server = read(session, sql, deadline)?;
    // Without the rights of pg_monitor the server shows that there is a standby, and no more of it. In recovery it has no position
    // of its own.
    let sql = "SELECT coalesce(application_name, ''), coalesce(sync_state IN ('sync', 'quorum'), false), \
         CASE WHEN pg_is_in_recovery() THEN -1 \
         ELSE coalesce(greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn), 0)::bigint, -1) END \
         FROM pg_stat_replication ORDER BY 1";
    let rows = read(session, sql, deadline)?;
    let standby = |row| {
        Ok(EngineStandby {
            name: rows.text(row, 0)?.to_owned(),
            synchronous: rows.boolean(row, 1)?,
            behind_bytes: u64::try_from(rows.int8(row, 2)?).ok(),
        })
    };
    let standbys: Result<_, PgError> = (0..rows.len()).map(standby).collect();
    Ok(EngineState {
        server: server.text(0, 0).map_err(of_read)?.to_owned(),
        oldest_transaction: server.count(0, 1).map_err(of_read)?,
        standbys: standbys.map_err(of_read)?,
        partitions_ahead: 0,
    })
}

fn read(session: &mut Session, sql: &str, deadline: Deadline) -> Result<Rows, StoreError> {
    let rows = session.connection.query(sql, &[], deadline);
    rows.map_err(of_read)
}
