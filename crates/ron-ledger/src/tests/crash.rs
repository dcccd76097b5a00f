//! Power cuts: for every n-th disk operation and several ways to lose unsynced data, reopening
//! gives a legal state that has every acknowledged entry exactly once.

use std::sync::Arc;

use ron_files::{CrashMode, Dir, FaultKind, SimDisk};
use ron_proto::Timestamp;
use ron_proto::ledger::EntrySearch;

use super::support::*;
use crate::core::Outcome;
use crate::engine::Engine;
use crate::projection::{Projection, ProjectionReader};

/// A client's record: each key and the sequence that its answer gave.
type Journal = Vec<(String, u64)>;

/// A typical run: transfers, linked commits, snapshots. Stops at the first failure.
fn work(disk: &SimDisk, journal: &mut Journal) {
    let Ok(mut e) = try_open(disk) else { return };
    let mut nonce = e
        .shared()
        .state(|s| s.account(&"a".parse().unwrap()).map_or(0, |r| r.nonce));
    if commit_noted(&mut e, vec![issue("i", "a", 1_000_000)], false, journal).is_none() {
        return;
    }
    for round in 0..12u64 {
        let entries = (1..=3).map(|n| transfer(&format!("k{}", nonce + n), "a", "b", 1, nonce + n));
        if commit_noted(&mut e, entries.collect(), round % 2 == 1, journal).is_none() {
            return;
        }
        nonce += 3;
        if round % 4 == 3
            && let Some(job) = e.begin_snapshot(true)
        {
            // A failed snapshot costs nothing but time.
            let _ = e.snapshotter().write(&job);
        }
    }
}

fn commit_noted(
    e: &mut Engine,
    entries: Vec<ron_proto::ledger::Entry>,
    linked: bool,
    journal: &mut Journal,
) -> Option<()> {
    let keys: Vec<String> = entries
        .iter()
        .map(|e| e.request_key().unwrap().key.to_string())
        .collect();
    let decided = e
        .commit(Timestamp(T0), &[request(entries, linked)])
        .ok()?
        .outcomes
        .remove(0);
    for (key, d) in keys.into_iter().zip(decided) {
        match d {
            Outcome::Fresh { seq, .. } | Outcome::Known { seq } => journal.push((key, seq)),
            Outcome::Mixed | Outcome::Rejected(_) => panic!("{key}: a linked commit was torn"),
        }
    }
    Some(())
}

/// After the crash: the ledger opens, adds up, and has every recorded entry at its acknowledged
/// sequence.
fn check(disk: &SimDisk, journal: &Journal, what: &str) {
    let mut e = try_open(disk).unwrap_or_else(|e| panic!("{what}: {e}"));
    let shared = e.shared();
    shared.state(|s| s.audit().unwrap_or_else(|why| panic!("{what}: {why}")));
    for (key, seq) in journal {
        let (leaf, _) = crate::engine::read_entry(shared.reader(), *seq)
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        let op = &leaf.op;
        op.check_private().unwrap_or_else(|e| panic!("{what}: {e}"));
        let found = op.entry().header.key.as_ref().unwrap();
        assert_eq!(found.as_str(), key, "{what}");
        assert_eq!(
            shared.keys().find(op.key().unwrap()).unwrap(),
            Some(*seq),
            "{what}: {key} is there twice or not at all"
        );
    }
    let moved = shared.state(|s| {
        s.account(&"b".parse().unwrap())
            .map_or(0, |r| r.balance(0).level().amount().0)
    });
    let nonce = shared.state(|s| s.account(&"a".parse().unwrap()).map_or(0, |r| r.nonce));
    assert_eq!(
        moved,
        u128::from(nonce),
        "{what}: money moved without its nonce"
    );
    assert_eq!(nonce % 3, 0, "{what}: a commit was torn");
    // The ledger accepts further commits.
    let more = commit(&mut e, vec![issue("after", "z", 1)], false);
    assert!(!matches!(more[0], Outcome::Mixed));
}

#[test]
fn a_power_cut_at_any_operation_loses_nothing_acknowledged() {
    let whole = SimDisk::new();
    work(&whole, &mut Journal::new());
    let operations = whole.operations();
    assert!(operations > 60, "{operations}");
    let modes = [
        CrashMode::LoseAll,
        CrashMode::KeepAll,
        CrashMode::TearLast(1),
        CrashMode::TearLast(40),
        CrashMode::HoleInLast(0),
    ];
    for at in 1..=operations {
        let disk = SimDisk::new();
        let mut journal = Journal::new();
        disk.fail_after(at, FaultKind::PowerOff);
        work(&disk, &mut journal);
        for mode in modes {
            let fork = disk.fork();
            fork.crash(mode);
            check(
                &fork,
                &journal,
                &format!("operation {at} of {operations}, {mode:?}"),
            );
        }
    }
}

#[test]
fn a_failed_write_closes_the_ledger_and_reads_go_on() {
    for kind in [FaultKind::Io, FaultKind::NoSpace] {
        let disk = SimDisk::new();
        let mut e = open(&disk);
        commit(&mut e, vec![issue("i", "a", 10)], false);
        let before = image(&e);
        disk.fail_after(1, kind);
        assert!(
            e.commit(
                Timestamp(T0),
                &[request(vec![transfer("t", "a", "b", 1, 1)], false)]
            )
            .is_err()
        );
        assert!(e.poisoned());
        assert_eq!(image(&e), before, "readers see what is durable");
        assert!(
            e.commit(Timestamp(T0), &[request(vec![issue("j", "a", 1)], false)])
                .is_err(),
            "and it stays closed"
        );
        assert!(e.begin_snapshot(true).is_none());
    }
}

/// On a disk that SQLite does not know, a projection is what its last transaction left, whatever operation fails.
#[test]
fn a_projection_is_a_prefix_of_the_log_after_a_fault_at_any_operation() {
    let mut e = open(&SimDisk::new());
    let ledger = e.shared().clone();
    let found = |disk: &SimDisk| {
        let dir = Dir::new(Arc::new(disk.clone()), "/p");
        let search = EntrySearch {
            limit: 500,
            ..EntrySearch::default()
        };
        ProjectionReader::new(dir).search(&search).map(|f| f.newer)
    };
    let mut n = 0;
    for at in 1..40 {
        let disk = SimDisk::new();
        let dir = Dir::new(Arc::new(disk.clone()), "/p");
        disk.fail_after(at, FaultKind::PowerOff);
        let mut applied = Vec::new();
        for _ in 0..3 {
            n += 1;
            commit(&mut e, vec![issue(&format!("p{n}"), "a", 1)], false);
            let opened = Projection::open(&dir, "test/ledger", ledger.head());
            let advanced = opened.and_then(|mut p| p.advance(&ledger).map(|_| p.applied()));
            applied.extend(advanced.ok());
        }
        disk.crash(CrashMode::LoseAll);
        if let Some(last) = applied.last() {
            assert!(found(&disk).unwrap() >= *last, "power cut at {at}");
        }
        // A next start goes on from there, or makes it new.
        let mut p = Projection::open(&dir, "test/ledger", ledger.head()).unwrap();
        assert!(p.applied() <= ledger.head());
        p.advance(&ledger).unwrap();
        assert_eq!(found(&disk).unwrap(), ledger.head(), "power cut at {at}");
    }
}
