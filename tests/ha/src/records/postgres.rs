//! The contract on PostgreSQL with a synchronous standby, and what holds of PostgreSQL alone.

use ron_service::Migration;
use ron_service::records::{PgRecordOptions, PgRecords, RecordStore};

use super::{MIGRATIONS, RecordRig};
use crate::cluster::waiter;
use crate::postgres::PgRig;

impl PgRig {
    /// Options of records in a schema of the cluster, whatever server is its primary.
    pub fn record_options(&self, node: &str, migrations: &'static [Migration]) -> PgRecordOptions {
        let ports = self.cluster(|cluster| {
            let standby = cluster.standby.as_ref().map(|standby| standby.port);
            [Some(cluster.primary.port), standby]
        });
        let ports: Vec<String> = ports.iter().flatten().map(u16::to_string).collect();
        let hosts = vec!["127.0.0.1"; ports.len()].join(",");
        let ports = ports.join(",");
        let conninfo = format!(
            "hostaddr={hosts} port={ports} target_session_attrs=read-write user=ron dbname=postgres"
        );
        PgRecordOptions {
            conninfo,
            schema: "records".into(),
            node: node.into(),
            durability: self.durability(),
            migrations,
        }
    }
}

impl RecordRig for PgRig {
    fn records(&self, node: &str) -> Box<dyn RecordStore> {
        let options = self.record_options(node, MIGRATIONS);
        Box::new(PgRecords::new(options, waiter()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ron_kernel::{Clock, Deadline, SystemClock};
    use ron_pg::Durability;
    use ron_service::records::{RecordError, Refusal};

    use super::*;
    use crate::cluster::Cluster;
    use crate::contract::{Rig as _, TwoHosts as _, soon};
    use crate::records::{found, put, replicated_rules, rules};

    /// [`MIGRATIONS`] with another first step.
    static CHANGED: [Migration; 2] = [
        Migration {
            version: 1,
            name: "another",
            sql: "CREATE TABLE another (name TEXT)",
        },
        MIGRATIONS[1],
    ];

    #[test]
    fn postgresql_keeps_the_contract_of_records() {
        let rig = PgRig::new(Cluster::pair(), Durability::Standby);
        for (rule, check) in rules().into_iter().chain(replicated_rules()) {
            let begun = SystemClock.now();
            check(&rig);
            let took = SystemClock.now() - begun;
            println!("{rule}: {:.1} s", took.as_secs_f64());
        }
    }

    /// The standby takes over without the commit; its session reconnects to it.
    #[test]
    fn a_commit_that_was_lost_with_its_primary_is_not_done() {
        // The new primary has no standby, so nothing but a declaration makes it safe.
        let rig = PgRig::new(Cluster::pair(), Durability::Storage);
        let mut store = rig.records("a");
        put(&mut *store, "lost 1", 1, soon()).unwrap();
        rig.set_standby(false);
        let unknown = put(&mut *store, "lost 2", 2, Deadline::within(rig.short()));
        assert!(
            matches!(unknown, Err(RecordError::Unknown(_))),
            "{unknown:?}"
        );
        rig.fail_over();
        assert_eq!(store.resolve(soon()), Ok(false));
        assert_eq!(put(&mut *store, "lost 3", 3, soon()), Ok(()));
        let left = [("lost 1".to_owned(), 1), ("lost 3".to_owned(), 3)];
        assert_eq!(found(&rig, "lost"), left);
    }

    #[test]
    fn migrations_go_forward_and_are_never_changed() {
        let rig = PgRig::new(Cluster::alone(), Durability::Storage);
        let store = |node: &str, migrations| -> Box<dyn RecordStore> {
            Box::new(PgRecords::new(
                rig.record_options(node, migrations),
                waiter(),
            ))
        };
        // Two nodes that start at once.
        let made = ron_kernel::scoped(2, |node| {
            put(
                &mut *store(&format!("{node}"), &MIGRATIONS[..1]),
                &format!("{node}"),
                1,
                soon(),
            )
        });
        assert_eq!(made, [Ok(()), Ok(())]);
        let mut older = store("older", &MIGRATIONS[..1]);
        assert_eq!(put(&mut *older, "older", 1, soon()), Ok(()));
        assert_eq!(store("newer", MIGRATIONS).claim(0, soon()), Ok(1));
        assert_eq!(found(&rig, "").len(), 3);
        let refused = put(&mut *store("old", &MIGRATIONS[..1]), "old", 1, soon());
        let Err(RecordError::Refused(Refusal::Rejected(why))) = refused else {
            panic!("{refused:?}");
        };
        assert!(why.contains("newer program"), "{why}");
        let changed = put(&mut *store("changed", &CHANGED), "changed", 1, soon());
        assert!(
            matches!(changed, Err(RecordError::Damaged(_))),
            "{changed:?}"
        );
    }

    #[test]
    fn the_first_write_of_a_store_forgets_rows_of_processes_that_ended_long_ago() {
        let rig = PgRig::new(Cluster::alone(), Durability::Storage);
        let admin = |sql: &str| rig.cluster(|cluster| cluster.primary.admin(sql, &[]));
        // The tables are there before the store that forgets is opened.
        let mut kept = rig.records("kept");
        for (number, name) in ["gone", "recent"].into_iter().enumerate() {
            put(&mut *rig.records(name), name, number as i64, soon()).unwrap();
        }
        put(&mut *kept, "kept 1", 1, soon()).unwrap();
        let age = "UPDATE records.record_op SET at = now() - CASE node WHEN 'recent' \
                    THEN interval '29 days' ELSE interval '31 days' END";
        admin(age);
        put(&mut *rig.records("new"), "new", 1, soon()).unwrap();
        let nodes = || {
            let rows = admin("SELECT node FROM records.record_op ORDER BY node");
            let names = (0..rows.len()).map(|row| rows.text(row, 0).unwrap().to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(nodes(), ["new", "recent"]);
        // A store that was silent for long has its row again with its next write.
        put(&mut *kept, "kept 2", 2, soon()).unwrap();
        assert_eq!(nodes(), ["kept", "new", "recent"]);
    }

    #[test]
    fn an_engine_that_is_away_refuses_and_comes_back_by_itself() {
        let rig = PgRig::new(Cluster::alone(), Durability::Storage);
        let mut store = rig.records("a");
        put(&mut *store, "away 1", 1, soon()).unwrap();
        let stopped = |signal| {
            rig.cluster(|cluster| cluster.primary.signal(signal));
        };
        stopped(rustix::process::Signal::STOP);
        let short = Deadline::within(Duration::from_millis(300));
        let refused = put(&mut *store, "away 2", 2, short);
        let away = RecordError::Refused(Refusal::Unavailable(String::new()));
        let kind = |error: &RecordError| std::mem::discriminant(error);
        assert_eq!(
            refused.as_ref().map_err(kind),
            Err(kind(&away)),
            "{refused:?}"
        );
        stopped(rustix::process::Signal::CONT);
        assert_eq!(put(&mut *store, "away 3", 3, soon()), Ok(()));
        assert_eq!(found(&rig, "away").len(), 2);
    }
}
