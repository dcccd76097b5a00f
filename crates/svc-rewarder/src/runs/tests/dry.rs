//! Dry runs of one epoch are kept side by side, beside its live run.

use std::path::Path;
use std::time::Duration;

use ron_files::Dir;
use ron_kernel::Deadline;
use ron_proto::rewarder::RunState;

use super::ledger::SimLedger;
use super::life::{Life, inputs, status, tenant};
use crate::manifest::reader::Reader;
use crate::runs::registry::Entry;
use crate::runs::{DRY_RUNS_MAX, RunAction};

/// Computes a dry run of `e1` over usage of so many accounts; returns its answer's status.
fn dry(life: &mut Life, root: &Path, rows: usize) -> u16 {
    let waiting = life.ask("e1", inputs(root, "e1", rows, true), true);
    life.settle_down();
    status(waiting).0
}

fn kept(life: &Life) -> Vec<Entry> {
    let epoch = "e1".parse().expect("an epoch");
    life.scheduler.registry.dry_runs(&tenant(), &epoch)
}

/// Accounts of the dry runs, and of their tables.
fn accounts(life: &Life, root: &Path) -> Vec<(u64, u64)> {
    let root = Dir::os(root.join("runs"));
    let one = |entry: &Entry| {
        let reader = Reader::open(&entry.run.dir(&root)).expect("its own table");
        assert_eq!(entry.run.commitment, Some(reader.manifest.commitment));
        (entry.run.accounts, reader.len())
    };
    let mut all: Vec<_> = kept(life).iter().map(one).collect();
    all.sort_unstable();
    all
}

#[test]
fn dry_runs_are_beside_each_other_and_beside_the_live_run() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    assert_eq!(dry(&mut life, root.path(), 3), 200);
    assert_eq!(dry(&mut life, root.path(), 5), 200);
    let live = inputs(root.path(), "e1", 4, false);
    let waiting = life.ask("e1", live.clone(), true);
    life.settle_down();
    assert_eq!(status(waiting).0, 200);
    // Also once the epoch is paid, and of the inputs that were paid.
    for rows in [6, 4, 3] {
        assert_eq!(dry(&mut life, root.path(), rows), 200);
    }
    for restart in [false, true] {
        if restart {
            drop(life);
            life = Life::begin(root.path(), &ledger, true);
        }
        let all = accounts(&life, root.path());
        assert_eq!(all, [(3, 3), (4, 4), (5, 5), (6, 6)]);
        let run = life.run("e1");
        assert_eq!((run.state, run.accounts), (RunState::Settled, 4));
    }
    assert_eq!(ledger.balance("pool:default/test"), 0, "paid once");
    let refused = life.ask("e1", inputs(root.path(), "e1", 5, false), false);
    assert_eq!(status(refused).0, 409, "the live run is one");
}

#[test]
fn the_oldest_dry_run_gives_its_place_to_a_further_one() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    for rows in 1..=DRY_RUNS_MAX + 2 {
        assert_eq!(dry(&mut life, root.path(), rows), 200);
        life.shutdown
            .wait(Deadline::within(Duration::from_millis(2)));
    }
    // Again the same inputs: the same run.
    assert_eq!(dry(&mut life, root.path(), DRY_RUNS_MAX), 200);
    let all = accounts(&life, root.path());
    let wanted: Vec<_> = (3..=DRY_RUNS_MAX as u64 + 2).map(|n| (n, n)).collect();
    assert_eq!(all, wanted);
    let newest = life.run("e1").accounts;
    assert_eq!(
        newest,
        DRY_RUNS_MAX as u64 + 2,
        "while there is no live run"
    );
    let places = || {
        let tenant = root.path().join("runs/tenant-default");
        std::fs::read_dir(tenant).expect("a directory").count()
    };
    assert_eq!(places(), DRY_RUNS_MAX + 2);
    life.writer.sweep(&life.shutdown);
    assert_eq!(places(), DRY_RUNS_MAX, "what no run has is removed");
    drop(life);
    let life = Life::begin(root.path(), &ledger, true);
    assert_eq!(accounts(&life, root.path()), wanted);
}

#[test]
fn a_further_dry_run_waits_while_all_others_are_computed() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    for rows in 1..=DRY_RUNS_MAX {
        let _ = life.ask("e1", inputs(root.path(), "e1", rows, true), false);
    }
    let refused = life.ask("e1", inputs(root.path(), "e1", 99, true), false);
    let (code, body) = status(refused);
    assert_eq!((code, body["code"].as_str()), (409, Some("in_flight")));
}

#[test]
fn a_dry_run_past_its_retention_is_forgotten() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    life.writer.retention.artifacts = Duration::from_millis(1);
    assert_eq!(dry(&mut life, root.path(), 3), 200);
    life.shutdown
        .wait(Deadline::within(Duration::from_millis(5)));
    life.writer.sweep(&life.shutdown);
    life.settle_down();
    assert!(kept(&life).is_empty());
    life.writer.sweep(&life.shutdown);
    let tenant = root.path().join("runs/tenant-default");
    assert_eq!(std::fs::read_dir(tenant).expect("a directory").count(), 0);
    assert_eq!(
        status(life.ask("e1", RunAction::Settle, false)).0,
        404,
        "nothing is left of it"
    );
    assert_eq!(dry(&mut life, root.path(), 3), 200, "and is computed again");
    assert_eq!(accounts(&life, root.path()), [(3, 3)]);
}
