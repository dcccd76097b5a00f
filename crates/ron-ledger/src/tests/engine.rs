//! The engine on a simulated disk: replay, snapshots, keys in files, linked commits at segment ends.

use ron_files::SimDisk;
use ron_proto::ledger::Entry;
use ron_proto::{Amount, Timestamp};

use super::support::*;
use crate::core::{Op, Outcome, Refusal, Verdict};
use crate::engine::{Atomicity, Request};

fn seq(d: &Outcome) -> u64 {
    match d {
        Outcome::Fresh { seq, .. } | Outcome::Known { seq } => *seq,
        Outcome::Mixed | Outcome::Rejected(_) => panic!("{d:?}"),
    }
}

#[test]
fn reopening_gives_the_same_state_and_root() {
    let disk = SimDisk::new();
    let mut e = open(&disk);
    commit(
        &mut e,
        vec![issue("i", "a", 1_000), issue("j", "pool:t/x", 100)],
        false,
    );
    for n in 1..=300 {
        commit(
            &mut e,
            vec![transfer(&format!("t{n}"), "a", "b", 2, n)],
            false,
        );
    }
    commit(
        &mut e,
        vec![
            hold("h", "a", 50, 301, T0 + 1_000),
            epoch_open("e1", "pool:t/x", 60, 2, 1),
        ],
        false,
    );
    commit(&mut e, vec![payout("e1", 0, "c", 20)], false);
    let (before, root) = (image(&e), e.shared().reader().head());
    drop(e);
    let again = open(&disk);
    // Two issues, 300 transfers, a hold, an epoch and its first payout.
    assert_eq!(again.opened().replayed, 305);
    assert_eq!(image(&again), before);
    assert_eq!(again.shared().reader().head(), root);
}

#[test]
fn a_snapshot_shortens_the_replay_and_old_keys_are_still_known() {
    let disk = SimDisk::new();
    let mut e = open(&disk);
    commit(&mut e, vec![issue("i", "a", 1_000_000)], false);
    let mut nonce = 0;
    for round in 0..6 {
        let entries = (0..40).map(|n| {
            nonce += 1;
            transfer(&format!("r{round}-{n}"), "a", "b", 1, nonce)
        });
        commit(&mut e, entries.collect(), false);
        let job = e.begin_snapshot(true).expect("there is something new");
        assert!(e.begin_snapshot(true).is_none(), "one at a time");
        e.snapshotter().write(&job).unwrap();
    }
    commit(
        &mut e,
        vec![transfer("tail", "a", "b", 1, nonce + 1)],
        false,
    );
    let check = |e: &mut crate::engine::Engine| {
        for round in 0..6 {
            for n in 0..40 {
                let again = commit(
                    e,
                    vec![transfer(&format!("r{round}-{n}"), "a", "b", 1, 999)],
                    false,
                );
                assert_eq!(
                    again,
                    [Outcome::Known {
                        seq: 2 + round * 40 + n
                    }]
                );
            }
        }
        assert_eq!(
            commit(e, vec![transfer("tail", "x", "y", 1, 1)], false),
            [Outcome::Known { seq: 242 }]
        );
    };
    check(&mut e);
    let (memory, files, _) = e.shared().keys().sizes();
    assert_eq!((memory, files), (1, 241));
    let before = image(&e);
    drop(e);
    let mut again = open(&disk);
    assert_eq!(
        (again.opened().snapshot_seq, again.opened().replayed),
        (241, 1)
    );
    assert!(again.opened().skipped.is_empty());
    assert_eq!(image(&again), before);
    check(&mut again);
}

#[test]
fn a_damaged_snapshot_is_skipped_and_said_so() {
    let disk = SimDisk::new();
    let mut e = open(&disk);
    commit(&mut e, vec![issue("i", "a", 5)], false);
    let job = e.begin_snapshot(true).unwrap();
    e.snapshotter().write(&job).unwrap();
    let before = image(&e);
    drop(e);
    let path = std::path::Path::new("/ledger/derived/snap-0000000000000001.state");
    let good = disk.peek(path).unwrap();
    for at in [0, 20, 60, good.len() - 40, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 4;
        disk.poke(path, Some(bad));
        let again = open(&disk);
        assert_eq!(
            (again.opened().snapshot_seq, again.opened().skipped.len()),
            (0, 1),
            "byte {at}"
        );
        assert_eq!(image(&again), before);
    }
}

#[test]
fn a_linked_commit_at_the_end_of_a_segment_is_whole_and_has_no_gap_before_it() {
    let disk = SimDisk::new();
    let mut e = open(&disk);
    commit(&mut e, vec![issue("i", "a", 1_000)], false);
    for n in 1..=250 {
        commit(
            &mut e,
            vec![transfer(&format!("t{n}"), "a", "b", 1, n)],
            false,
        );
    }
    let linked = (1..=20).map(|n| transfer(&format!("l{n}"), "a", "c", 1, 250 + n));
    let got = commit(&mut e, linked.collect(), true);
    assert_eq!(seq(&got[0]), 252);
    assert!(got.iter().all(done));
    let before = image(&e);
    drop(e);
    assert_eq!(image(&open(&disk)), before);
    // Torn at any byte, the commit is gone as a whole.
    let segment = std::path::Path::new("/ledger/log/00000000.seg");
    let whole = disk.peek(segment).unwrap();
    for cut in (1..600).step_by(7) {
        disk.poke(segment, Some(whole[..whole.len() - cut].to_vec()));
        assert_eq!(open(&disk).shared().head(), 251, "{cut} bytes less");
        disk.poke(segment, Some(whole.clone()));
    }
}

#[test]
fn linked_commits_are_all_or_nothing() {
    let disk = SimDisk::new();
    let mut e = open(&disk);
    commit(&mut e, vec![issue("i", "a", 10)], false);
    let got = commit(
        &mut e,
        vec![
            transfer("x1", "a", "b", 6, 1),
            transfer("x2", "a", "b", 6, 2),
        ],
        true,
    );
    let codes: Vec<_> = got
        .iter()
        .map(|d| match d {
            Outcome::Fresh {
                verdict: Verdict::Refused(why),
                ..
            } => why.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(codes, [Refusal::LinkedFailed, Refusal::InsufficientFunds]);
    e.shared().state(|s| {
        assert_eq!(s.account(&"a".parse().unwrap()).unwrap().nonce, 0);
        assert!(s.account(&"b".parse().unwrap()).is_none());
    });
    // The same request is a replay; a mix of used and fresh keys does nothing.
    let again = commit(
        &mut e,
        vec![
            transfer("x1", "a", "b", 6, 1),
            transfer("x2", "a", "b", 6, 2),
        ],
        true,
    );
    assert_eq!(
        again,
        [Outcome::Known { seq: 2 }, Outcome::Known { seq: 3 }]
    );
    let mixed = commit(
        &mut e,
        vec![
            transfer("x1", "a", "b", 6, 1),
            transfer("x3", "a", "b", 1, 1),
        ],
        true,
    );
    assert_eq!(mixed, [Outcome::Mixed, Outcome::Mixed]);
    assert_eq!(e.shared().head(), 3);
}

fn batch(engine: &mut crate::engine::Engine, entries: Vec<Entry>) -> Vec<Outcome> {
    let request = Request {
        atomicity: Atomicity::Batch,
        ..request(entries, false)
    };
    let mut committed = engine.commit(Timestamp(T0), &[request]).unwrap();
    committed.outcomes.remove(0)
}

#[test]
fn the_keys_of_a_batch_are_all_new_or_all_used() {
    let disk = SimDisk::new();
    let mut e = open(&disk);
    commit(&mut e, vec![issue("i", "a", 100)], false);
    let two = vec![
        transfer("k", "a", "b", 10, 1),
        transfer("k#1", "a", "b", 500, 2),
    ];
    let first = batch(&mut e, two.clone());
    assert!(done(&first[0]), "each entry is decided by itself");
    assert!(!done(&first[1]), "500 are not there");
    assert!(matches!(first[1], Outcome::Fresh { .. }));
    let size = e.shared().head();
    let again = batch(&mut e, two.clone());
    assert_eq!(
        again,
        [seq(&first[0]), seq(&first[1])].map(|seq| Outcome::Known { seq })
    );
    let mut longer = two;
    longer.push(transfer("k#2", "a", "b", 1, 2));
    assert_eq!(batch(&mut e, longer), vec![Outcome::Mixed; 3]);
    assert_eq!(
        batch(&mut e, vec![issue("n", "a", 1), issue("n", "a", 1)]),
        vec![Outcome::Mixed; 2]
    );
    assert_eq!(e.shared().head(), size, "nothing was written for these");
    // No entry stands between a batch and what was before it, also at the end of a segment.
    for n in 0..240 - size {
        commit(&mut e, vec![issue(&format!("f{n}"), "a", 1)], false);
    }
    let many = (0..20).map(|n| issue(&format!("m#{n}"), "a", 1)).collect();
    assert_eq!(seq(&batch(&mut e, many)[0]), 241);
}

#[test]
fn a_request_sent_again_after_the_policy_changed_is_the_same_request() {
    let disk = SimDisk::new();
    let mut e = open(&disk);
    let with = |ceiling: Option<u128>, amount: u128| {
        let mut entry = transfer("k", "a", "b", amount, 1);
        if let Entry::Transfer { daily_ceiling, .. } = &mut entry {
            *daily_ceiling = ceiling.map(Amount);
        }
        Op::new(entry, &salts()).unwrap()
    };
    commit(&mut e, vec![Entry::from(&with(Some(50), 10))], false);
    let first = with(Some(50), 10);
    assert!(with(None, 10).repeats(&first) && with(Some(1), 10).repeats(&first));
    assert!(!with(Some(50), 11).repeats(&first));
}

#[test]
fn holds_end_by_themselves_also_after_a_restart() {
    let disk = SimDisk::new();
    let mut e = open(&disk);
    commit(
        &mut e,
        vec![issue("i", "a", 10), hold("h", "a", 7, 1, T0 + 500)],
        false,
    );
    assert_eq!(e.next_expiry(), Some(Timestamp(T0 + 500)));
    assert!(
        !done(&commit(&mut e, vec![transfer("t", "a", "b", 4, 2)], false)[0]),
        "only 3 are available"
    );
    drop(e);
    let mut e = open(&disk);
    e.commit(Timestamp(T0 + 499), &[]).unwrap();
    assert!(e.next_expiry().is_some());
    e.commit(Timestamp(T0 + 500), &[]).unwrap();
    assert_eq!(e.next_expiry(), None);
    assert!(done(
        &commit(&mut e, vec![transfer("t2", "a", "b", 10, 2)], false)[0]
    ));
}

#[test]
fn what_was_paid_is_known_after_a_restart_with_a_snapshot_and_without() {
    let disk = SimDisk::new();
    let mut e = open(&disk);
    commit(&mut e, vec![issue("i", "pool:t/r", 100)], false);
    let first = paying(epoch_open("e", "pool:t/r", 10, 1, 1), 5, None);
    assert!(done(&commit(&mut e, vec![first], false)[0]));
    let refused = |e: &mut crate::engine::Engine, name: &str| {
        let again = paying(epoch_open(name, "pool:t/r", 10, 1, 2), 5, None);
        let said = commit(e, vec![again], false).remove(0);
        let by = "e".parse().unwrap();
        assert_eq!(said, Outcome::Rejected(Refusal::UsagePaid { by }));
    };
    refused(&mut e, "e-2");
    drop(e);
    let mut e = open(&disk);
    refused(&mut e, "e-3");
    let job = e.begin_snapshot(true).expect("there is something new");
    e.snapshotter().write(&job).unwrap();
    drop(e);
    let mut e = open(&disk);
    assert_eq!(e.opened().replayed, 0);
    refused(&mut e, "e-4");
    let corrects = paying(epoch_open("e-5", "pool:t/r", 10, 1, 2), 5, Some("e"));
    assert!(done(&commit(&mut e, vec![corrects], false)[0]));
    e.shared().state(|s| s.audit().unwrap());
}

#[test]
fn epochs_settle_once() {
    let disk = SimDisk::new();
    let mut e = open(&disk);
    commit(&mut e, vec![issue("i", "pool:t/r", 100)], false);
    let all = || {
        vec![
            epoch_open("e", "pool:t/r", 30, 3, 1),
            payout("e", 0, "a", 10),
            payout("e", 1, "b", 10),
            payout("e", 2, "c", 10),
            epoch_close("e", 1),
        ]
    };
    assert!(commit(&mut e, all(), false).iter().all(done));
    let before = image(&e);
    for d in commit(&mut e, all(), false) {
        assert!(matches!(d, Outcome::Known { .. }), "{d:?}");
    }
    assert_eq!(image(&e), before);
    let other = commit(
        &mut e,
        vec![epoch_open("e", "pool:t/r", 30, 3, 2), epoch_close("e", 2)],
        false,
    );
    assert_eq!(
        other,
        vec![Outcome::Rejected(Refusal::EpochConflict); 2],
        "a settler that repeats a refused entry does not fill the log"
    );
    assert_eq!(image(&e), before);
    e.shared().state(|s| s.audit().unwrap());
}
