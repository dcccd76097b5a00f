//! The copy of answers: what it serves, for how long, and after power cuts and damage.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use ron_files::{CrashMode, Disk as _, FaultKind, SimDisk};
use ron_proto::ledger::{Details, LeafHash, PrivateFacts, Receipt, TxId};
use ron_proto::{Amount, Timestamp};

fn event(seq: u64, ts: u64, key: &str, amount: u128) -> Event {
    let entry = Entry::Issue {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: key.parse().unwrap(),
        to: "a".parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: Amount(amount),
        details: Details::default(),
        batch: None,
        budgets: Vec::new(),
    };
    let txid = TxId::new(seq, &[7; 32]);
    let receipt = Receipt {
        txid,
        op: entry.kind(),
        from: None,
        to: Some("a".parse().unwrap()),
        asset: Some("ron".parse().unwrap()),
        amount_minor: Some(Amount(amount)),
        ts: Timestamp(ts),
        seq,
        hold: None,
        batch: None,
        reverses: None,
        receipt_hash: LeafHash([0; 32]),
    };
    Event {
        seq,
        ts: Timestamp(ts),
        entry,
        answer: EntryAnswer::Done {
            seq,
            txid,
            receipt,
            private: PrivateFacts {
                idem: Some(key.to_owned()),
                ..PrivateFacts::default()
            },
            replayed: false,
        },
    }
}

fn numbered(seqs: std::ops::RangeInclusive<u64>) -> Vec<Event> {
    seqs.map(|n| event(n, n, &format!("k{n}"), n.into()))
        .collect()
}

fn on(disk: &SimDisk, path: &Path) -> Dir {
    Dir::new(Arc::new(disk.clone()), path)
}

const KEEP_FOR: Duration = Duration::from_hours(24);
const KEEP_MS: u64 = 86_400_000;

fn opened(reader: &AnswersReader, origin: &str, head: u64, keep: u64) -> Answers {
    let mut answers = Answers::open(reader, keep).unwrap().unwrap();
    answers.of_ledger(origin, head).unwrap();
    answers
}

fn key(tenant: &str, principal: &str, key: &str) -> RequestKey {
    RequestKey {
        tenant: tenant.parse().unwrap(),
        principal: principal.parse().unwrap(),
        key: key.parse().unwrap(),
    }
}

fn by_key(reader: &AnswersReader, n: u64) -> Option<Event> {
    reader.by_key(&key("t", "p", &format!("k{n}")))
}

#[test]
fn answers_are_found_until_they_are_too_old_and_a_foreign_copy_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let reader = AnswersReader::new(Some(Dir::os(dir.path().join("answers"))), KEEP_FOR);
    assert!(by_key(&reader, 1).is_none(), "no file yet");
    let mut a = opened(&reader, "o", 0, 3);
    let all = numbered(1..=3);
    a.take(&all).unwrap();
    assert_eq!(by_key(&reader, 1), Some(all[0].clone()));
    assert_eq!(reader.at(2), Some(all[1].clone()));
    a.take(&[event(4, 4, "k4", 4)]).unwrap();
    assert!(by_key(&reader, 1).is_none(), "three are kept");
    a.take(&[event(5, KEEP_MS + 4, "k5", 5)]).unwrap();
    assert!(
        reader.at(3).is_none() && reader.at(4).is_some(),
        "24 hours are kept"
    );
    drop(a);
    let again = AnswersReader::new(Some(Dir::os(dir.path().join("answers"))), KEEP_FOR);
    let b = Answers::open(&again, 3).unwrap().unwrap();
    assert_eq!(b.applied(), 5);
    assert!(
        by_key(&again, 5).is_some(),
        "also before the ledger is there"
    );
    let same = opened(&again, "o", 9, 3);
    assert_eq!(same.applied(), 5);
    assert!(same.agrees(&event(5, KEEP_MS + 4, "k5", 5)));
    assert!(!same.agrees(&event(5, KEEP_MS + 4, "k5", 6)));
    assert!(!same.agrees(&event(5, KEEP_MS + 5, "k5", 5)));
    assert!(same.agrees(&event(6, 1, "k6", 6)), "it has no other one");
    assert_eq!(
        opened(&again, "o", 4, 3).applied(),
        1,
        "the ledger went back"
    );
    assert_eq!(opened(&again, "other", 9, 3).applied(), 6);
    assert!(again.at(5).is_none());
}

#[test]
fn answers_are_kept_for_the_configured_time() {
    let check = |keep_for: Duration, found: bool| {
        let dir = tempfile::tempdir().unwrap();
        let reader = AnswersReader::new(Some(Dir::os(dir.path())), keep_for);
        let mut a = opened(&reader, "o", 0, 100);
        let minute = 60_000;
        a.take(&[event(1, minute, "k1", 1), event(2, 3 * minute, "k2", 2)])
            .unwrap();
        assert_eq!(by_key(&reader, 1).is_some(), found, "{keep_for:?}");
        assert!(by_key(&reader, 2).is_some());
    };
    check(Duration::from_mins(1), false);
    check(Duration::from_mins(2), true);
}

#[test]
fn files_roll_and_old_ones_go() {
    let dir = tempfile::tempdir().unwrap();
    let reader = AnswersReader::new(Some(Dir::os(dir.path())), KEEP_FOR);
    let keep = ROWS + 10;
    let mut a = opened(&reader, "o", 0, keep);
    for page in 0..50 {
        a.take(&numbered(page * 1_000 + 1..=page * 1_000 + 1_000))
            .unwrap();
    }
    let firsts = segments::firsts(&Dir::os(dir.path())).unwrap();
    assert_eq!(firsts, [ROWS + 1, 2 * ROWS + 1, 3 * ROWS + 1]);
    let oldest = 50_000 - keep + 1;
    for (seq, kept) in [
        (1, false),
        (oldest - 1, false),
        (oldest, true),
        (50_000, true),
    ] {
        assert_eq!(by_key(&reader, seq).is_some(), kept, "{seq}");
        assert_eq!(reader.at(seq).is_some(), kept, "{seq}");
    }
    assert_eq!(reader.range(49_998, 9).len(), 3);
    // After a gap a new pair begins, and the entries before the gap stay readable.
    a.take(&numbered(50_005..=50_006)).unwrap();
    assert!(reader.at(50_000).is_some() && reader.at(50_003).is_none());
    assert!(by_key(&reader, 50_006).is_some());
}

#[test]
fn what_was_torn_or_changed_is_not_answered_and_comes_again() {
    let pair = |dir: &Path, end: &str| dir.join(format!("{:020}.{end}", 1));
    for (end, cut) in [("rows", 1), ("rows", 73), ("jsonl", 1), ("jsonl", 1_500)] {
        let dir = tempfile::tempdir().unwrap();
        let reader = AnswersReader::new(Some(Dir::os(dir.path())), KEEP_FOR);
        opened(&reader, "o", 9, 9).take(&numbered(1..=9)).unwrap();
        let path = pair(dir.path(), end);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - cut]).unwrap();
        let mut a = opened(&reader, "o", 9, 9);
        let left = a.applied();
        assert!(left < 9, "{end} cut by {cut}");
        for seq in 1..=9 {
            assert_eq!(by_key(&reader, seq).is_some(), seq <= left);
        }
        a.take(&numbered(left + 1..=9)).unwrap();
        assert!((1..=9).all(|seq| by_key(&reader, seq).is_some()));
    }
    let dir = tempfile::tempdir().unwrap();
    let reader = AnswersReader::new(Some(Dir::os(dir.path())), KEEP_FOR);
    opened(&reader, "o", 9, 9).take(&numbered(1..=9)).unwrap();
    let path = pair(dir.path(), "jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replacen("\"amount_minor\":\"5\"", "\"amount_minor\":\"6\"", 1),
    )
    .unwrap();
    assert_ne!(fs::read_to_string(&path).unwrap(), text);
    let found: Vec<u64> = (1..=9).filter(|n| by_key(&reader, *n).is_some()).collect();
    assert_eq!(found, [1, 2, 3, 4, 6, 7, 8, 9]);
}

#[test]
fn a_torn_row_cuts_the_copy_there_and_the_rest_comes_again() {
    let disk = SimDisk::new();
    let dir = Path::new("/answers");
    let reader = AnswersReader::new(Some(on(&disk, dir)), KEEP_FOR);
    let mut a = opened(&reader, "o", 22, 22);
    a.take(&numbered(1..=9)).unwrap();
    a.take(&numbered(20..=22)).unwrap();
    let rows = disk
        .open_write(&dir.join(format!("{:020}.rows", 1)))
        .unwrap();
    rows.write_at(3 * 24 + 5, &[9]).unwrap();
    let mut a = Answers::open(&reader, 22).unwrap().unwrap();
    assert!(a.of_ledger("o", 22).is_ok_and(|dropped| !dropped));
    assert_eq!(a.applied(), 3);
    assert_eq!(
        segments::firsts(&on(&disk, dir)).unwrap(),
        [1],
        "none behind a gap"
    );
    assert!((1..=22).all(|seq| by_key(&reader, seq).is_some() == (seq <= 3)));
    a.take(&numbered(4..=22)).unwrap();
    assert!((1..=22).all(|seq| by_key(&reader, seq).is_some()));
}

#[test]
fn after_a_power_cut_at_any_operation_no_answer_is_wrong_and_all_come_again() {
    let dir = Path::new("/answers");
    let work = |disk: &SimDisk| -> Result<(), AnswersError> {
        let reader = AnswersReader::new(Some(on(disk, dir)), KEEP_FOR);
        let mut a = Answers::open(&reader, ROWS)?.expect("it has a directory");
        a.of_ledger("o", 0)?;
        for page in 0..6 {
            a.take(&numbered(page * 4 + 1..=page * 4 + 4))?;
        }
        // After a gap the next pair of files begins.
        a.take(&numbered(30..=33))
    };
    let whole = SimDisk::new();
    work(&whole).unwrap();
    for cut in 1..=whole.operations() {
        let disk = SimDisk::new();
        disk.fail_after(cut, FaultKind::PowerOff);
        assert!(work(&disk).is_err());
        let torn = (0..1_000).step_by(71).map(CrashMode::TearLast);
        let others = [
            CrashMode::LoseAll,
            CrashMode::KeepAll,
            CrashMode::HoleInLast(0),
        ];
        for mode in torn.chain(others) {
            let image = disk.fork();
            image.crash(mode);
            let reader = AnswersReader::new(Some(on(&image, dir)), KEEP_FOR);
            let mut a = opened(&reader, "o", 33, ROWS);
            let what = format!("cut at {cut}, {mode:?}");
            for seq in 1..=a.applied() {
                let found = by_key(&reader, seq);
                let right = event(seq, seq, &format!("k{seq}"), seq.into());
                assert!(found.is_none_or(|found| found == right), "{what}: {seq}");
            }
            let from = a.applied() + 1;
            a.take(&numbered(from..=40)).unwrap();
            assert!(
                (from..=40).all(|seq| by_key(&reader, seq).is_some()),
                "{what}"
            );
        }
    }
}

#[test]
fn a_request_is_compared_whole() {
    let found: Vec<Event> = (1..=2).map(|n| event(n, n, &format!("k{n}"), 1)).collect();
    let request: Vec<Entry> = found.iter().map(|e| e.entry.clone()).collect();
    let Some(Replay::First(answers)) = replay_of(&request, &found) else {
        panic!("the same request")
    };
    assert_eq!(answers[0], found[0].answer.clone().as_replayed());
    assert_eq!(replay_of(&request, &found[..1]), None, "one is missing");
    let other = event(1, 1, "k1", 2);
    assert_eq!(
        replay_of(&[other.entry], &found[..1]),
        Some(Replay::Mismatch)
    );
}

#[test]
fn an_entry_without_its_text_is_left_to_the_ledger() {
    let first = event(1, 1, "a", 5);
    let mut asked = first.entry.clone();
    let Entry::Issue { details, .. } = &mut asked else {
        panic!("an issue");
    };
    details.memo = Some("rent".parse().unwrap());
    assert_eq!(
        replay_of(&[asked], &[first]),
        None,
        "it may have been erased"
    );
}

#[test]
fn an_entry_without_a_key_takes_a_row_and_has_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let reader = AnswersReader::new(Some(Dir::os(dir.path())), KEEP_FOR);
    let mut keyless = event(2, 2, "k2", 1);
    keyless.entry = Entry::Expire {
        hold: TxId::new(1, &[7; 32]),
    };
    let events = [event(1, 1, "k1", 1), keyless, event(3, 3, "k3", 1)];
    opened(&reader, "o", 0, 9).take(&events).unwrap();
    let found: Vec<bool> = (1..=3).map(|seq| reader.at(seq).is_some()).collect();
    assert_eq!(found, [true, false, true]);
    assert!(
        segments::line(&Dir::os(dir.path()), 1, 0)
            .unwrap()
            .is_some()
    );
    assert_eq!(segments::line(&Dir::os(dir.path()), 1, 1).unwrap(), None);
    // Neither a missing row nor a removed pair has a line.
    assert_eq!(segments::line(&Dir::os(dir.path()), 1, 3).unwrap(), None);
    assert_eq!(segments::line(&Dir::os(dir.path()), 9, 0).unwrap(), None);
}

#[test]
fn keys_principals_and_tenants_are_spread_over_the_index() {
    let of = |tenant: &str, principal: &str, name: &str| hash(&key(tenant, principal, name));
    let name = |prefix: &str, n: u32| format!("{prefix}{n}");
    let mut seen: Vec<u32> = (0..700).map(|n| of("t", "p", &name("k", n))).collect();
    seen.extend((0..700).map(|n| of("t", &name("p", n), "k0")));
    seen.extend((0..600).map(|n| of(&name("t", n), "p", "k0")));
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() > 1_990 && !seen.contains(&0), "{}", seen.len());
}
