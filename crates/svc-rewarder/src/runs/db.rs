//! Runs in SQLite: one row per (tenant, epoch).

use ron_proto::rewarder::{RunReason, RunState, RunTotals, SettlementSeqs, Withdrawal};
use ron_proto::strict;
use ron_proto::values::{Amount, EpochId, Timestamp};
use rusqlite::{Connection, Row, params};
use serde::de::DeserializeOwned;

use super::{Run, RunId};

/// The tables, as the first migration. Amounts are decimal text: SQLite integers have 64 bits.
pub const SCHEMA_1: &str = "
CREATE TABLE run (
    tenant TEXT NOT NULL,
    epoch TEXT NOT NULL,
    snapshot TEXT NOT NULL,
    policy_id TEXT NOT NULL,
    policy_hash TEXT NOT NULL,
    run_key TEXT NOT NULL,
    dry_run INTEGER NOT NULL,
    settle INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason_code TEXT,
    reason_detail TEXT,
    commitment TEXT,
    pool_minor TEXT,
    payout_minor TEXT,
    residual_minor TEXT,
    recipients INTEGER,
    intents INTEGER NOT NULL,
    open_seq INTEGER,
    close_seq INTEGER,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    adjusts TEXT,
    PRIMARY KEY (tenant, epoch)
) STRICT, WITHOUT ROWID;
";

/// Withdrawals, as the second migration.
pub const SCHEMA_2: &str = "
ALTER TABLE run ADD COLUMN void_seq INTEGER;
ALTER TABLE run ADD COLUMN withdrawn_by TEXT;
ALTER TABLE run ADD COLUMN withdrawn_why TEXT;
ALTER TABLE run ADD COLUMN withdrawn_ms INTEGER;
";

/// Approvals, as the third migration.
pub const SCHEMA_3: &str = "
ALTER TABLE run ADD COLUMN asked_by TEXT NOT NULL DEFAULT '';
ALTER TABLE run ADD COLUMN release TEXT;
";

/// Accounts of the snapshot, as the fourth migration.
pub const SCHEMA_4: &str = "ALTER TABLE run ADD COLUMN accounts INTEGER NOT NULL DEFAULT 0;";

/// Dry runs side by side, as the fifth migration: `dry_key` is the run key of a dry run, and empty for
/// the live run of an epoch. The artifacts of a dry run have another directory since, so dry runs from
/// before are computed again.
pub const SCHEMA_5: &str = "
CREATE TABLE run_5 (
    tenant TEXT NOT NULL,
    epoch TEXT NOT NULL,
    snapshot TEXT NOT NULL,
    policy_id TEXT NOT NULL,
    policy_hash TEXT NOT NULL,
    run_key TEXT NOT NULL,
    dry_run INTEGER NOT NULL,
    settle INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason_code TEXT,
    reason_detail TEXT,
    commitment TEXT,
    pool_minor TEXT,
    payout_minor TEXT,
    residual_minor TEXT,
    recipients INTEGER,
    intents INTEGER NOT NULL,
    open_seq INTEGER,
    close_seq INTEGER,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    adjusts TEXT,
    void_seq INTEGER,
    withdrawn_by TEXT,
    withdrawn_why TEXT,
    withdrawn_ms INTEGER,
    asked_by TEXT NOT NULL,
    release TEXT,
    accounts INTEGER NOT NULL,
    dry_key TEXT NOT NULL,
    PRIMARY KEY (tenant, epoch, dry_key)
) STRICT, WITHOUT ROWID;
INSERT INTO run_5 SELECT *, CASE dry_run WHEN 0 THEN '' ELSE run_key END FROM run;
DROP TABLE run;
ALTER TABLE run_5 RENAME TO run;
UPDATE run SET state = 'queued', reason_code = NULL, reason_detail = NULL WHERE dry_run = 1 AND state <> 'failed';
";

/// Epochs that pay several assets, as the sixth migration.
pub const SCHEMA_6: &str = "ALTER TABLE run ADD COLUMN assets TEXT;";

const PUT: &str = "
INSERT OR REPLACE INTO run VALUES
(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31)
";

/// Inserts or replaces a run. `computing` is stored as `queued`: after a crash the run has to be
/// computed again.
pub fn put(connection: &Connection, run: &Run) -> rusqlite::Result<()> {
    let state = if run.state == RunState::Computing {
        RunState::Queued
    } else {
        run.state
    };
    let totals = run.totals.as_ref();
    let amount = |of: fn(&RunTotals) -> Amount| totals.map(|totals| of(totals).to_string());
    let int = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let release = run.release.as_ref().map(serde_json::to_string).transpose();
    let assets = Some(&run.assets).filter(|assets| !assets.is_empty());
    let assets = assets.map(serde_json::to_string).transpose();
    let unwritten =
        |error: serde_json::Error| rusqlite::Error::ToSqlConversionFailure(Box::new(error));
    let (release, assets) = (release.map_err(unwritten)?, assets.map_err(unwritten)?);
    connection.prepare_cached(PUT)?.execute(params![
        run.tenant.as_str(),
        run.epoch.as_str(),
        run.snapshot.to_string(),
        run.policy_id.as_str(),
        run.policy_hash.to_string(),
        run.run_key.to_string(),
        run.dry_run,
        run.settle,
        state.as_str(),
        run.reason.as_ref().map(|reason| reason.code.as_str()),
        run.reason.as_ref().map(|reason| reason.detail.as_str()),
        run.commitment.map(|commitment| commitment.to_string()),
        amount(|totals| totals.pool_minor),
        amount(|totals| totals.payout_minor),
        amount(|totals| totals.residual_minor),
        totals.map(|totals| int(totals.recipients)),
        int(run.intents),
        run.seqs.open_seq.map(int),
        run.seqs.close_seq.map(int),
        int(run.created_at.0),
        int(run.updated_at.0),
        run.adjusts.as_ref().map(EpochId::as_str),
        run.seqs.void_seq.map(int),
        run.withdrawal.as_ref().map(|it| it.by.as_str()),
        run.withdrawal.as_ref().map(|it| it.reason.as_str()),
        run.withdrawal.as_ref().map(|it| int(it.at.0)),
        run.asked_by,
        release,
        int(run.accounts),
        dry_key(&run.id()),
        assets,
    ])?;
    Ok(())
}

/// Removes a run; nothing happens if there is none.
pub fn remove(connection: &Connection, id: &RunId) -> rusqlite::Result<()> {
    let sql = "DELETE FROM run WHERE tenant = ?1 AND epoch = ?2 AND dry_key = ?3";
    let mut statement = connection.prepare_cached(sql)?;
    statement.execute(params![id.tenant.as_str(), id.epoch.as_str(), dry_key(id)])?;
    Ok(())
}

fn dry_key(id: &RunId) -> String {
    id.dry_run.map_or_else(String::new, |key| key.to_string())
}

/// Reads every run; for the service's start.
pub fn load(connection: &Connection) -> rusqlite::Result<Vec<Run>> {
    let mut statement = connection.prepare("SELECT * FROM run ORDER BY tenant, epoch, dry_key")?;
    let rows = statement.query_map([], read)?;
    rows.collect()
}

fn read(row: &Row<'_>) -> rusqlite::Result<Run> {
    let reason = match (
        row.get::<_, Option<String>>(9)?,
        row.get::<_, Option<String>>(10)?,
    ) {
        (Some(code), Some(detail)) => Some(RunReason { code, detail }),
        _ => None,
    };
    let state: String = row.get(8)?;
    Ok(Run {
        tenant: text(row, 0)?,
        epoch: text(row, 1)?,
        snapshot: text(row, 2)?,
        policy_id: text(row, 3)?,
        policy_hash: text(row, 4)?,
        run_key: text(row, 5)?,
        dry_run: row.get(6)?,
        settle: row.get(7)?,
        state: RunState::parse(&state).ok_or_else(|| unreadable(8, "not a state"))?,
        reason,
        commitment: opt_text(row, 11)?,
        totals: totals(row)?,
        intents: count(row, 16)?,
        seqs: SettlementSeqs {
            open_seq: opt_count(row, 17)?,
            close_seq: opt_count(row, 18)?,
            void_seq: opt_count(row, 22)?,
        },
        created_at: Timestamp(count(row, 19)?),
        updated_at: Timestamp(count(row, 20)?),
        adjusts: opt_text(row, 21)?,
        withdrawal: withdrawal(row)?,
        asked_by: row.get(26)?,
        release: json(row, 27)?,
        accounts: count(row, 28)?,
        assets: json(row, 30)?.unwrap_or_default(),
    })
}

fn json<T: DeserializeOwned>(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(at)?;
    let read = |text: String| {
        strict::from_slice(text.as_bytes()).map_err(|error| unreadable(at, &error.to_string()))
    };
    text.map(read).transpose()
}

fn withdrawal(row: &Row<'_>) -> rusqlite::Result<Option<Withdrawal>> {
    let Some(by) = row.get(23)? else {
        return Ok(None);
    };
    Ok(Some(Withdrawal {
        by,
        reason: row.get(24)?,
        at: Timestamp(count(row, 25)?),
    }))
}

fn totals(row: &Row<'_>) -> rusqlite::Result<Option<RunTotals>> {
    let Some(pool_minor) = opt_text(row, 12)? else {
        return Ok(None);
    };
    Ok(Some(RunTotals {
        pool_minor,
        payout_minor: text(row, 13)?,
        residual_minor: text(row, 14)?,
        recipients: count(row, 15)?,
    }))
}

fn text<T>(row: &Row<'_>, at: usize) -> rusqlite::Result<T>
where
    T: std::str::FromStr<Err = ron_proto::values::ValueError>,
{
    opt_text(row, at)?.ok_or_else(|| unreadable(at, "missing"))
}

fn opt_text<T>(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<T>>
where
    T: std::str::FromStr<Err = ron_proto::values::ValueError>,
{
    row.get::<_, Option<String>>(at)?
        .map(|text| {
            text.parse()
                .map_err(|error: T::Err| unreadable(at, &error.to_string()))
        })
        .transpose()
}

fn count(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    opt_count(row, at)?.ok_or_else(|| unreadable(at, "missing"))
}

fn opt_count(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<u64>> {
    row.get::<_, Option<i64>>(at)?
        .map(|value| u64::try_from(value).map_err(|_| unreadable(at, "negative")))
        .transpose()
}

fn unreadable(column: usize, why: &str) -> rusqlite::Error {
    let error = std::io::Error::other(format!("table run, column {column}: {why}"));
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_proto::rewarder::{Approval, AssetTotals, RunRelease};
    use ron_proto::values::ContentId;

    use crate::runs::reason;

    fn run(epoch: &str) -> Run {
        Run {
            tenant: "default".parse().expect("a tenant"),
            epoch: epoch.parse().expect("an epoch"),
            snapshot: ContentId([1; 32]),
            policy_id: "p".parse().expect("an id"),
            policy_hash: ContentId([2; 32]),
            adjusts: None,
            run_key: ContentId([3; 32]),
            dry_run: false,
            settle: true,
            state: RunState::Queued,
            reason: None,
            commitment: None,
            totals: None,
            assets: Vec::new(),
            accounts: 0,
            intents: 0,
            seqs: SettlementSeqs::default(),
            withdrawal: None,
            asked_by: "operator".into(),
            release: None,
            created_at: Timestamp(1_700_000_000_000),
            updated_at: Timestamp(1_700_000_000_001),
        }
    }

    #[test]
    fn no_flipped_byte_changes_a_run() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("rewarder.db");
        let open = |path: &std::path::Path| ron_service::Store::open(path, crate::boot::MIGRATIONS);
        let store = open(&path).expect("opens");
        for n in 0..20 {
            let run = run(&format!("epoch-{n}"));
            let written = store.write(|tx| put(tx, &run).map_err(ron_service::StoreError::from));
            written.expect("written");
        }
        drop(store);
        let (refused, _) = ron_service::store_trial::flip_bytes(&path, 31, open);
        assert!(refused > 100, "{refused}");
    }

    /// A dry run, as the schema before the fifth has it.
    fn put_before(db: &Connection) {
        let sql = "INSERT INTO run (tenant, epoch, snapshot, policy_id, policy_hash, run_key, dry_run, settle, state, intents,
            created_ms, updated_ms, asked_by, accounts) VALUES ('default', 'old', ?1, 'p', ?1, ?1, 1, 0, 'sealed', 0, 1, 1, '', 0)";
        let hash = ContentId([9; 32]).to_string();
        db.execute(sql, [hash]).expect("written");
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let db = Connection::open_in_memory().expect("memory");
        db.execute_batch(SCHEMA_1).expect("the schema");
        db.execute_batch(SCHEMA_2).expect("the schema");
        db.execute_batch(SCHEMA_3).expect("the schema");
        db.execute_batch(SCHEMA_4).expect("the schema");
        put_before(&db);
        db.execute_batch(SCHEMA_5).expect("the schema");
        db.execute_batch(SCHEMA_6).expect("the schema");
        let before = load(&db).expect("read");
        assert_eq!(before.len(), 1);
        assert_eq!(before[0].state, RunState::Queued, "computed again");
        remove(&db, &before[0].id()).expect("removed");
        let mut full = run("b");
        full.state = RunState::Held;
        full.adjusts = Some("a".parse().expect("an epoch"));
        full.reason = Some(reason("pool_short", "fund it"));
        full.commitment = Some(ContentId([4; 32]));
        full.totals = Some(RunTotals {
            pool_minor: Amount::MAX,
            payout_minor: Amount(1),
            residual_minor: Amount(u128::MAX - 1),
            recipients: 7,
        });
        full.assets = ["ron", "usd"]
            .map(|asset| AssetTotals {
                asset: asset.parse().expect("an asset"),
                totals: full.totals.expect("set above"),
            })
            .to_vec();
        full.accounts = 9;
        full.intents = 8;
        full.seqs = SettlementSeqs {
            open_seq: Some(9),
            close_seq: Some(10),
            void_seq: Some(11),
        };
        full.withdrawal = Some(Withdrawal {
            by: "operator".into(),
            reason: "another month".into(),
            at: Timestamp(7),
        });
        full.release = Some(RunRelease {
            needed: 2,
            approvals: vec![Approval {
                by: "anna".into(),
                commitment: ContentId([4; 32]),
                at: Timestamp(8),
            }],
            breaches: vec![reason("recipients_min", "7 of 9")],
        });
        for run in [run("c"), full.clone(), run("a")] {
            put(&db, &run).expect("written");
        }
        assert_eq!(load(&db).expect("read"), [run("a"), full, run("c")]);
        // Dry runs of an epoch are beside its live run, each by its inputs.
        let dry = |key| Run {
            dry_run: true,
            run_key: ContentId([key; 32]),
            ..run("a")
        };
        put(&db, &dry(5)).expect("written");
        put(&db, &dry(4)).expect("written");
        assert_eq!(load(&db).expect("read")[..3], [run("a"), dry(4), dry(5)]);
        remove(&db, &dry(4).id()).expect("removed");
        remove(&db, &dry(5).id()).expect("removed");
        let mut again = run("a");
        again.state = RunState::Computing;
        put(&db, &again).expect("replaced");
        let read = load(&db).expect("read");
        assert_eq!((read.len(), read[0].state), (3, RunState::Queued));
    }
}
