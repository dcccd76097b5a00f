//! The threads: group commit under concurrent callers, replays, a full queue, a drain that answers
//! every caller.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_files::{Disk, DiskRoom, FaultKind, SimDisk};
use ron_kernel::{
    ClockAlarm, Deadline, KernelMetrics, ManualClock, Registry, SharedClock, Supervisor,
    SystemClock, scoped,
};
use ron_proto::ledger::{
    ClosedCause, Details, Entry, EntryAnswer, HoldRef, LEDGER_PRINCIPAL, RefusalCode, RequestKey,
};
use ron_proto::{Amount, Tenant, Timestamp};

use super::support::*;
use crate::engine::{Atomicity, Engine};
use crate::health::NoHealth;
use crate::ledger::{Ledger, SubmitError};
use crate::metrics::Metrics;
use crate::topology::TOPOLOGY;
use crate::writer::{WriterParts, spawn};

pub(super) struct Rig {
    pub(super) ledger: Ledger,
    sup: Supervisor,
    disk: SimDisk,
}

pub(super) fn rig() -> Rig {
    rig_by(SystemClock::shared())
}

fn rig_by(clock: SharedClock) -> Rig {
    let disk = SimDisk::new();
    let arc: Arc<dyn Disk> = Arc::new(disk.clone());
    let engine = Engine::open(arc, Path::new("/ledger"), options(65_536), Timestamp(T0)).unwrap();
    let registry = Registry::new("ron-ledger");
    let km = KernelMetrics::new(&registry);
    let sup = Supervisor::new(&TOPOLOGY, km.clone(), SystemClock::shared());
    let parts = WriterParts {
        sup: sup.clone(),
        km,
        clock,
        metrics: Metrics::new(&registry),
        health: Arc::new(NoHealth),
        room: DiskRoom::unlimited(),
        commits: 64,
        node: None,
        archive: None,
    };
    let (ledger, _notifications) = spawn(engine, parts);
    Rig { ledger, sup, disk }
}

pub(super) fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(10))
}

fn key(key: &str) -> RequestKey {
    RequestKey {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: key.parse().unwrap(),
    }
}

fn code(a: &EntryAnswer) -> Option<RefusalCode> {
    match a {
        EntryAnswer::Refused { code, .. } => Some(*code),
        EntryAnswer::Done { .. } => None,
    }
}

#[test]
fn many_callers_share_flushes_and_every_nonce_is_used_once() {
    let rig = rig();
    let callers = 8u64;
    for c in 0..callers {
        rig.ledger
            .commit(
                vec![issue(&format!("i{c}"), &format!("a{c}"), 1_000)],
                Atomicity::Independent,
                soon(),
            )
            .unwrap();
    }
    scoped(callers as usize, |c| {
        for n in 1..=50 {
            let e = transfer(&format!("c{c}-{n}"), &format!("a{c}"), "sink", 1, n);
            let got = rig
                .ledger
                .commit(vec![e], Atomicity::Independent, soon())
                .unwrap();
            let receipt = got[0].receipt().expect("done");
            let leaf = rig.ledger.shared.reader().entry(receipt.seq).unwrap();
            let hash = ron_tlog::tree::leaf_hash(&leaf);
            assert_eq!(receipt.receipt_hash.0, hash);
            assert_eq!(receipt.seq, receipt.txid.seq());
        }
    });
    assert_eq!(rig.ledger.head_seq(), callers * 51);
    let sink = rig.ledger.account(&"sink".parse().unwrap());
    assert_eq!(sink.balances[0].amount_minor.0, u128::from(callers * 50));
    assert_eq!(
        rig.sup.drain(Duration::from_secs(5)).stragglers,
        Vec::<String>::new()
    );
}

#[test]
fn the_same_request_again_gets_the_same_answer_and_another_body_does_not() {
    let rig = rig();
    rig.ledger
        .commit(vec![issue("i", "a", 10)], Atomicity::Independent, soon())
        .unwrap();
    let first = rig
        .ledger
        .commit(
            vec![transfer("t", "a", "b", 1, 1)],
            Atomicity::Independent,
            soon(),
        )
        .unwrap();
    let again = rig
        .ledger
        .commit(
            vec![transfer("t", "a", "b", 1, 1)],
            Atomicity::Independent,
            soon(),
        )
        .unwrap();
    assert_eq!(first[0].receipt(), again[0].receipt());
    assert!(matches!(again[0], EntryAnswer::Done { replayed: true, .. }));
    let other = rig
        .ledger
        .commit(
            vec![transfer("t", "a", "b", 2, 1)],
            Atomicity::Independent,
            soon(),
        )
        .unwrap();
    assert_eq!(code(&other[0]), Some(RefusalCode::IdempotencyMismatch));
    let short = rig
        .ledger
        .commit(
            vec![transfer("u", "a", "b", 100, 2)],
            Atomicity::Independent,
            soon(),
        )
        .unwrap();
    assert_eq!(code(&short[0]), Some(RefusalCode::InsufficientFunds));
    let funded = rig
        .ledger
        .commit(vec![issue("j", "a", 1_000)], Atomicity::Independent, soon())
        .unwrap();
    assert_eq!(code(&funded[0]), None);
    let still = rig
        .ledger
        .commit(
            vec![transfer("u", "a", "b", 100, 2)],
            Atomicity::Independent,
            soon(),
        )
        .unwrap();
    assert_eq!(
        code(&still[0]),
        Some(RefusalCode::InsufficientFunds),
        "a refusal consumes its key"
    );
    rig.sup.drain(Duration::from_secs(5));
}

#[test]
fn keys_of_two_tenants_are_two_keys() {
    let rig = rig();
    let of = |name: &str, n: u128| {
        let mut entry = issue("k", "a", n);
        if let Entry::Issue { tenant, .. } = &mut entry {
            *tenant = name.parse().unwrap();
        }
        entry
    };
    let commit = |entry: Entry| {
        let answers = rig
            .ledger
            .commit(vec![entry], Atomicity::Independent, soon());
        answers.unwrap().remove(0)
    };
    let (first, second) = (commit(of("t", 5)), commit(of("u", 7)));
    let [a, b] = [&first, &second].map(|answer| answer.receipt().expect("done"));
    assert_eq!((a.seq, b.seq), (1, 2));
    assert!(!second.is_replayed());
    // Each tenant gets its own answer again, and another request is a mismatch for it alone.
    assert_eq!(commit(of("u", 7)), second.clone().as_replayed());
    assert_eq!(commit(of("t", 5)), first.clone().as_replayed());
    let mismatch = commit(of("u", 5));
    assert_eq!(code(&mismatch), Some(RefusalCode::IdempotencyMismatch));
    for (tenant, seq) in [("t", 1), ("u", 2)] {
        let owned = RequestKey {
            tenant: tenant.parse().unwrap(),
            ..key("k")
        };
        let event = rig.ledger.by_key(owned.clone()).unwrap().unwrap();
        assert_eq!((event.seq, event.entry.request_key()), (seq, Some(owned)));
    }
    let balance = rig.ledger.account(&"a".parse().unwrap()).balances.remove(0);
    assert_eq!(balance.amount_minor.0, 12);
    rig.sup.drain(Duration::from_secs(5));
}

#[test]
fn resolve_tells_or_gives_up_and_a_late_commit_is_refused() {
    let rig = rig();
    let done = rig
        .ledger
        .commit(vec![issue("i", "a", 10)], Atomicity::Independent, soon())
        .unwrap();
    let told = rig.ledger.resolve(key("i"), soon()).unwrap();
    assert_eq!(told.receipt(), done[0].receipt());
    let gone = rig.ledger.resolve(key("late"), soon()).unwrap();
    assert_eq!(code(&gone), Some(RefusalCode::Abandoned));
    let refused = rig
        .ledger
        .commit(vec![issue("late", "a", 10)], Atomicity::Independent, soon())
        .unwrap();
    assert_eq!(code(&refused[0]), Some(RefusalCode::Abandoned));
    assert_eq!(rig.ledger.by_key(key("late")).unwrap().unwrap().seq, 2);
    assert_eq!(rig.ledger.head_seq(), 2);
    rig.sup.drain(Duration::from_secs(5));
}

#[test]
fn what_only_the_ledger_writes_is_refused_at_the_door() {
    let rig = rig();
    let bad = |e| {
        matches!(
            rig.ledger.commit(vec![e], Atomicity::Independent, soon()),
            Err(SubmitError::Bad { index: 0, .. })
        )
    };
    assert!(bad(ron_proto::ledger::Entry::Expire {
        hold: ron_proto::ledger::TxId(1)
    }));
    assert!(bad(ron_proto::ledger::Entry::Abandon {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: "k".parse().unwrap()
    }));
    assert!(bad(ron_proto::ledger::Entry::Freeze {
        tenant: "t".parse().unwrap(),
        principal: LEDGER_PRINCIPAL.parse().unwrap(),
        key: "own:1".parse().unwrap(),
        account: "a".parse().unwrap(),
        sides: ron_proto::ledger::Sides::Debits,
        details: ron_proto::ledger::Details::default(),
    }));
    let reserved = RequestKey {
        tenant: Tenant::system(),
        principal: LEDGER_PRINCIPAL.parse().unwrap(),
        key: "own:65535".parse().unwrap(),
    };
    let resolved = rig.ledger.resolve(reserved, soon());
    assert!(matches!(resolved, Err(SubmitError::Bad { index: 0, .. })));
    let twice = rig.ledger.commit(
        vec![issue("k", "a", 1), issue("k", "b", 1)],
        Atomicity::Linked,
        soon(),
    );
    assert!(matches!(twice, Err(SubmitError::Bad { index: 1, .. })));
    assert_eq!(rig.ledger.head_seq(), 0);
    rig.sup.drain(Duration::from_secs(5));
}

#[test]
fn holds_are_ended_by_the_writer_on_time() {
    let rig = rig();
    rig.ledger
        .commit(vec![issue("i", "a", 10)], Atomicity::Independent, soon())
        .unwrap();
    let now = SystemClock::shared().unix_ms();
    let held = rig
        .ledger
        .commit(
            vec![hold("h", "a", 10, 1, now + 3_000)],
            Atomicity::Independent,
            soon(),
        )
        .unwrap();
    let id = held[0].receipt().unwrap().txid;
    assert_eq!(rig.ledger.hold(id).unwrap().amount_minor.0, 10);
    let part = rig
        .ledger
        .commit(
            vec![capture("c", id, "b", 4)],
            Atomicity::Independent,
            soon(),
        )
        .unwrap();
    let receipt = part[0].receipt().unwrap();
    assert_eq!(
        (
            receipt.from.as_ref().unwrap().as_str(),
            receipt.amount_minor.unwrap().0
        ),
        ("a", 4)
    );
    let (_keep, never) = ron_kernel::Shutdown::pair();
    let limit = Deadline::within(Duration::from_secs(20));
    while rig.ledger.hold(id).is_some() && !limit.expired() {
        never.wait(Deadline::within(Duration::from_millis(20)));
    }
    let doc = rig.ledger.account(&"a".parse().unwrap());
    assert_eq!(
        (
            doc.balances[0].amount_minor.0,
            doc.balances[0].available_minor.0
        ),
        (6, 6)
    );
    rig.sup.drain(Duration::from_secs(5));
}

#[test]
fn after_a_failed_flush_replays_are_answered_and_nothing_else() {
    let rig = rig();
    let first = rig
        .ledger
        .commit(vec![issue("i", "a", 10)], Atomicity::Independent, soon())
        .unwrap();
    rig.disk.fail_after(1, FaultKind::Io);
    let lost = rig
        .ledger
        .commit(vec![issue("j", "a", 1)], Atomicity::Independent, soon());
    assert!(matches!(lost, Err(SubmitError::Unknown(_))), "{lost:?}");
    let again = rig
        .ledger
        .commit(vec![issue("i", "a", 10)], Atomicity::Independent, soon())
        .unwrap();
    assert_eq!(again[0].receipt(), first[0].receipt());
    let refused = rig
        .ledger
        .commit(vec![issue("k", "a", 1)], Atomicity::Independent, soon());
    let Err(SubmitError::Closed(why)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(why.cause, ClosedCause::DiskFailed);
    assert!(why.detail.contains("restart the ledger"), "{}", why.detail);
    assert_eq!(rig.ledger.head().closed, Some(why));
    rig.sup.drain(Duration::from_secs(5));
}

#[test]
fn nothing_is_written_while_the_date_is_not_known() {
    let clock = ManualClock::at(T0);
    let rig = rig_by(clock.clone());
    let commit = |key| {
        rig.ledger
            .commit(vec![issue(key, "a", 1)], Atomicity::Independent, soon())
    };
    commit("before").unwrap();
    let alarm = |at_start| ClockAlarm {
        ahead_ms: -172_800_000,
        at_start,
    };
    clock.doubt(Some(alarm(true)));
    let refused = commit("meanwhile");
    let Err(SubmitError::Closed(why)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(why.cause, ClosedCause::DateUnknown);
    assert!(why.detail.contains("172800 s behind"), "{}", why.detail);
    // After a jump the service's own date goes on, and that was right.
    clock.doubt(Some(alarm(false)));
    commit("later").unwrap();
    rig.sup.drain(Duration::from_secs(5));
}

#[test]
fn a_full_disk_is_told_as_such_whatever_met_it_first() {
    let rig = rig();
    assert_eq!(rig.ledger.head().closed, None);
    rig.disk.fail_after(1, FaultKind::NoSpace);
    let lost = rig
        .ledger
        .commit(vec![issue("j", "a", 1)], Atomicity::Independent, soon());
    assert!(matches!(lost, Err(SubmitError::Unknown(_))), "{lost:?}");
    let refused = rig.ledger.resolve(key("k"), soon());
    let Err(SubmitError::Closed(why)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(why.cause, ClosedCause::DiskFull);
    let problem = why.problem();
    assert_eq!((problem.status, problem.code), (503, "ledger_closed"));
    assert!(problem.detail.contains("free space"), "{}", problem.detail);
    assert_eq!(problem.details.unwrap()["cause"], "disk_full");
    rig.sup.drain(Duration::from_secs(5));
}

#[test]
fn an_expired_job_is_dropped_before_work() {
    let rig = rig();
    let late = rig.ledger.commit(
        vec![issue("i", "a", 10)],
        Atomicity::Independent,
        Deadline::within(Duration::ZERO),
    );
    assert!(late.is_err());
    rig.ledger
        .commit(vec![issue("j", "a", 1)], Atomicity::Independent, soon())
        .unwrap();
    assert_eq!(rig.ledger.head_seq(), 1);
    rig.sup.drain(Duration::from_secs(5));
}

/// The year 2100.
const FAR: u64 = 4_102_444_800_000;

fn release(key: &str, hold: impl Into<HoldRef>) -> Entry {
    Entry::Release {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: key.parse().unwrap(),
        hold: hold.into(),
        details: Details::default(),
        batch: None,
    }
}

#[test]
fn a_linked_commit_names_the_holds_that_it_makes() {
    let rig = rig();
    let commit = |entries, atomicity| rig.ledger.commit(entries, atomicity, soon());
    commit(vec![issue("i", "a", 100)], Atomicity::Independent).unwrap();
    let paid = |hold: HoldRef| {
        vec![
            hold_of("h", 60),
            capture("c1", hold, "b", 20),
            capture("c2", hold, "c", 30),
            release("r", hold),
        ]
    };
    let first = commit(paid(HoldRef::Item(0)), Atomicity::Linked).unwrap();
    let receipts: Vec<_> = first.iter().map(|a| a.receipt().unwrap()).collect();
    let id = receipts[0].txid;
    let moved: Vec<_> = receipts.iter().map(|r| r.amount_minor.unwrap().0).collect();
    assert_eq!(moved, [60, 20, 30, 10]);
    assert!(receipts[1..].iter().all(|r| r.hold == Some(id)));
    for receipt in &receipts[1..] {
        let event = rig.ledger.event(receipt.seq).unwrap().unwrap();
        let (Entry::Capture { hold, .. } | Entry::Release { hold, .. }) = event.entry else {
            panic!("{event:?}");
        };
        assert_eq!(hold.id(), Some(id), "the log has the id");
    }
    let again: Vec<_> = first
        .iter()
        .cloned()
        .map(EntryAnswer::as_replayed)
        .collect();
    assert_eq!(
        commit(paid(HoldRef::Item(0)), Atomicity::Linked).unwrap(),
        again
    );
    assert_eq!(
        commit(paid(id.into()), Atomicity::Linked).unwrap(),
        again,
        "the same hold"
    );
    let other = commit(vec![hold_of("h2", 5)], Atomicity::Linked).unwrap();
    let other = other[0].receipt().unwrap().txid;
    let changed = commit(paid(other.into()), Atomicity::Linked).unwrap();
    let codes: Vec<_> = changed.iter().map(code).collect();
    let mismatch = Some(RefusalCode::IdempotencyMismatch);
    assert_eq!(codes, [None, mismatch, mismatch, mismatch]);
    let check = |entries, atomicity, why: &str| {
        let said = commit(entries, atomicity).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    };
    let two = || vec![hold_of("x", 5), release("y", HoldRef::Item(0))];
    for atomicity in [Atomicity::Independent, Atomicity::Batch] {
        check(
            two(),
            atomicity,
            "entries[1].hold: #i stands in linked commits only",
        );
    }
    let mut late = two();
    late.reverse();
    check(
        late,
        Atomicity::Linked,
        "entries[0].hold: #i must be the number of an earlier",
    );
    let own = vec![hold_of("x", 5), release("y", HoldRef::Item(1))];
    check(
        own,
        Atomicity::Linked,
        "entries[1].hold: #i must be the number of an earlier",
    );
    let other = vec![issue("x", "a", 5), release("y", HoldRef::Item(0))];
    check(
        other,
        Atomicity::Linked,
        "entries[1].hold: #i must be the number of an entry that",
    );
    // The hold of a commit that is refused is not made; its key tells so again.
    let over = || vec![hold_of("x", 5), capture("y", HoldRef::Item(0), "b", 6)];
    for _ in 0..2 {
        let said: Vec<_> = commit(over(), Atomicity::Linked).unwrap();
        let codes: Vec<_> = said.iter().map(code).collect();
        assert_eq!(
            codes,
            [
                Some(RefusalCode::LinkedFailed),
                Some(RefusalCode::HoldTooSmall)
            ]
        );
    }
    rig.sup.drain(Duration::from_secs(10));
}

fn hold_of(key: &str, n: u128) -> Entry {
    let mut entry = hold(key, "a", n, 1, FAR);
    if let Entry::Hold { nonce, .. } = &mut entry {
        *nonce = None;
    }
    entry
}

#[test]
fn a_debit_of_all_that_is_available_says_what_it_moved() {
    let rig = rig();
    let commit = |entry| {
        let said = rig
            .ledger
            .commit(vec![entry], Atomicity::Independent, soon());
        said.map(|mut all| all.remove(0))
    };
    commit(issue("i", "a", 100)).unwrap();
    commit(hold_of("h", 30)).unwrap();
    let all = |key: &str, most: u128| {
        let mut entry = transfer(key, "a", "b", 0, 1);
        if let Entry::Transfer { up_to, nonce, .. } = &mut entry {
            (*up_to, *nonce) = (Some(Amount(most)), None);
        }
        entry
    };
    let above = commit(all("x", 69)).unwrap();
    assert_eq!(code(&above), Some(RefusalCode::LimitsExceeded));
    let event = rig.ledger.event(3).unwrap().unwrap();
    assert_eq!(
        event.entry.operands().amount_minor,
        None,
        "it moved nothing"
    );
    let paid = commit(all("y", 70)).unwrap();
    assert_eq!(paid.receipt().unwrap().amount_minor, Some(Amount(70)));
    let event = rig.ledger.event(4).unwrap().unwrap();
    assert_eq!(event.entry.operands().amount_minor, Some(Amount(70)));
    assert_eq!(event.answer, paid, "the log gives the first answer");
    commit(issue("i2", "a", 5)).unwrap();
    // The maximum comes from a policy, which may have changed.
    assert_eq!(commit(all("y", 1)).unwrap(), paid.as_replayed());
    let exactly = commit(transfer("y", "a", "b", 70, 1)).unwrap();
    assert_eq!(code(&exactly), Some(RefusalCode::IdempotencyMismatch));
    commit(all("z", 5)).unwrap();
    let empty = commit(all("e", 5)).unwrap();
    assert_eq!(code(&empty), Some(RefusalCode::InsufficientFunds));
    let mut odd = all("o", 5);
    if let Entry::Transfer { amount_minor, .. } = &mut odd {
        *amount_minor = Amount(1);
    }
    let said = commit(odd).unwrap_err().to_string();
    assert!(
        said.contains("amount_minor: must be 0 with up_to"),
        "{said}"
    );
    rig.sup.drain(Duration::from_secs(10));
}
