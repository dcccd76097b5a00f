//! Checks of a database that keeps a log or records: the rules by which what it acknowledges survives the loss of a host.

use std::sync::Arc;
use std::time::Duration;

use ron_kernel::{Deadline, OsNet, SharedNet};
use ron_kms::RonKms;
use ron_ledger::RonLedger;
use ron_service::log_host::asker::WitnessKeys;
use ron_service::records::{Engine, EngineDurability};
use ron_service::{Config, Service, ServiceSettings as _};
use ron_tlog::store::EngineInspection;
use svc_passport::SvcPassport;
use svc_wallet::SvcWallet;

use crate::doctor::Report;

/// Maximum time for all questions to one database.
const WITHIN: Duration = Duration::from_secs(10);
/// The oldest server that the statements are written for.
const VERSION_MIN: u64 = 14;
/// The newest server that they were tried with.
const VERSION_TRIED: u64 = 15;
/// Half of the transactions that a server can tell apart.
const OLD_TRANSACTION: u64 = 1 << 30;

/// Checks the database of a service, if it has one.
pub fn check(report: &mut Report, name: &str, config: &Config) {
    let engine = match name {
        "ron-ledger" => config
            .read::<<RonLedger as Service>::Settings>()
            .ok()
            .and_then(|keys| keys.engine()),
        "svc-wallet" => config
            .read::<<SvcWallet as Service>::Settings>()
            .ok()
            .and_then(|keys| keys.records()),
        "ron-kms" => <RonKms as Service>::Settings::from_config(config)
            .ok()
            .and_then(|settings| settings.engine()),
        "svc-passport" => <SvcPassport as Service>::Settings::from_config(config)
            .ok()
            .and_then(|settings| settings.engine()),
        _ => None,
    };
    let Some(engine) = engine else {
        return;
    };
    let about = format!("{name} database");
    if matches!(name, "ron-ledger" | "ron-kms" | "svc-passport") {
        witness(report, &about, config, &engine);
    }
    if let Some(why) = engine.fault() {
        report.fail(&about, why, "correct it: the service does not start");
        return;
    }
    let net: SharedNet = Arc::new(OsNet);
    match engine.inspect(&net, Deadline::within(WITHIN)) {
        Ok(found) => judge(report, &about, &engine, &found),
        Err(why) => report.fail(
            &about,
            format!("it cannot be asked: {why}"),
            "start it, or correct its addresses, user and passfile; until then nothing is written",
        ),
    }
}

fn witness(report: &mut Report, about: &str, config: &Config, engine: &Engine) {
    let has_witness = config
        .read::<WitnessKeys>()
        .is_ok_and(|keys| keys.policy_file.is_some());
    if has_witness {
        return;
    }
    let says = "no witness remembers the log (witness.policy_file): a database that lost entries is noticed only by a node that has seen them";
    let hint = "run `ron witness` on a host of its own, see docs/witness.md";
    if engine.durability == EngineDurability::Storage {
        report.fail(about, says, hint);
    } else {
        report.warn(about, says, hint);
    }
}

fn judge(report: &mut Report, about: &str, engine: &Engine, found: &EngineInspection) {
    let EngineInspection {
        unsafe_because,
        state,
        version,
        sessions_max,
    } = found;
    let synchronous = state.standbys.iter().filter(|one| one.synchronous).count();
    let before = report.findings.len();
    if let Some(why) = unsafe_because {
        let hint = "set it as docs/ha/patroni.yml does; until then nothing is written";
        report.fail(about, why.clone(), hint);
    } else if engine.durability == EngineDurability::Storage {
        report.warn(
            about,
            "its storage is declared to be replicated (durability = \"storage\"), which the server cannot show",
            "make sure that a write is answered when it is on two hosts",
        );
    } else if synchronous == 0 {
        let hint =
            "start the standby, see docs/ha/runbooks.md; until then writes wait and are refused";
        report.fail(about, "no standby follows that writes wait for", hint);
    }
    if engine.durability == EngineDurability::Quorum {
        report.warn(
            about,
            "writes wait for any of several standbys (durability = \"quorum\")",
            "make sure that Patroni has `watchdog: mode: required`, or two primaries may each have a quorum",
        );
    }
    if *version < VERSION_MIN {
        let hint = format!("use PostgreSQL {VERSION_MIN} or newer");
        report.fail(about, format!("it is PostgreSQL {version}"), hint);
    } else if *version > VERSION_TRIED {
        let hint = format!("PostgreSQL {VERSION_TRIED} is what the tests use");
        report.warn(
            about,
            format!("it is PostgreSQL {version}, which was not tried"),
            hint,
        );
    }
    if sessions_max.is_none() {
        report.warn(
            about,
            "its user may have any number of sessions, so processes that start again and again can leave it without any for others",
            "ALTER ROLE ... CONNECTION LIMIT 30",
        );
    }
    if state.standbys.iter().any(|one| one.behind_bytes.is_none()) {
        report.warn(
            about,
            "its user is not told how far standbys are behind",
            "GRANT pg_monitor TO the user, so that metrics and `ron ha status` show it",
        );
    }
    if state.oldest_transaction > OLD_TRANSACTION {
        report.fail(
            about,
            format!("its oldest transaction is {} ago: it stops before 2147483648", state.oldest_transaction),
            "end sessions that stay in a transaction, drop unused replication slots, then VACUUM FREEZE",
        );
    }
    if report.findings.len() == before {
        let plural = if synchronous == 1 { "" } else { "s" };
        let says = format!(
            "PostgreSQL {version} at {}, with {synchronous} standby{plural} that writes wait for",
            state.server
        );
        report.ok(about, says);
    }
}

#[cfg(test)]
mod tests {
    use ron_tlog::store::{EngineStandby, EngineState};

    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn each_rule_has_its_finding() {
        let engine = |durability| Engine {
            url: String::new(),
            schema: String::new(),
            durability,
        };
        let standby = |synchronous, behind_bytes| EngineStandby {
            name: "s1".to_owned(),
            synchronous,
            behind_bytes,
        };
        let good = EngineInspection {
            unsafe_because: None,
            state: EngineState {
                server: "10.0.0.1:5432".to_owned(),
                standbys: vec![standby(true, Some(0))],
                oldest_transaction: 100,
                partitions_ahead: 0,
            },
            version: 15,
            sessions_max: Some(30),
        };
        let check =
            |durability, change: &dyn Fn(&mut EngineInspection), fails: &[&str], warns: &[&str]| {
                let (mut report, mut found) = (Report::default(), good.clone());
                change(&mut found);
                judge(&mut report, "database", &engine(durability), &found);
                let of = |verdict: Verdict| {
                    let all = report.findings.iter().filter(|f| f.verdict == verdict);
                    all.map(|f| f.says.as_str()).collect::<Vec<_>>()
                };
                for (found, wanted) in [(of(Verdict::Fail), fails), (of(Verdict::Warn), warns)] {
                    assert_eq!(found.len(), wanted.len(), "{found:?}");
                    for (says, part) in found.iter().zip(wanted) {
                        assert!(says.contains(part), "{says}");
                    }
                }
                let is_good = fails.is_empty() && warns.is_empty();
                assert_eq!(of(Verdict::Ok).len(), usize::from(is_good));
            };
        let by_standby = EngineDurability::Standby;
        check(by_standby, &|_| {}, &[], &[]);
        check(
            by_standby,
            &|f| f.unsafe_because = Some("fsync is off".to_owned()),
            &["fsync is off"],
            &[],
        );
        check(
            by_standby,
            &|f| f.state.standbys.clear(),
            &["no standby follows"],
            &[],
        );
        check(
            by_standby,
            &|f| f.state.standbys = vec![standby(false, Some(0))],
            &["no standby follows"],
            &[],
        );
        check(
            by_standby,
            &|f| f.state.standbys = vec![standby(true, None)],
            &[],
            &["how far"],
        );
        check(by_standby, &|f| f.version = 13, &["PostgreSQL 13"], &[]);
        check(by_standby, &|f| f.version = 17, &[], &["not tried"]);
        check(
            by_standby,
            &|f| f.sessions_max = None,
            &[],
            &["any number of sessions"],
        );
        check(
            by_standby,
            &|f| f.state.oldest_transaction = 2_000_000_000,
            &["oldest transaction"],
            &[],
        );
        check(EngineDurability::Quorum, &|_| {}, &[], &["any of several"]);
        check(
            EngineDurability::Storage,
            &|f| f.state.standbys.clear(),
            &[],
            &["storage"],
        );
    }
}
