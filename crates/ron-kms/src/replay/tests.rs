//! The journal of answers: what it remembers, for how long, within which bounds, and across restarts and crashes.

use std::path::Path;

use ron_files::{CrashMode, FaultKind, SimDisk};
use ron_kernel::Registry;

use super::*;

struct Bench {
    disk: Arc<dyn Disk>,
    replay: Arc<Replay>,
    journal: Journal,
    registry: Registry,
}

fn try_open(
    disk: &Arc<dyn Disk>,
    key: u8,
    capacity: usize,
    bytes_max: u64,
) -> Result<Bench, FileError> {
    let registry = Registry::new("t");
    let bounds = Bounds {
        capacity,
        bytes_max,
        remembered: registry.gauge("remembered", "."),
        forgotten: registry.counter("forgotten_total", "."),
    };
    let key = Secret32::from_slice(&[key; 32]);
    let (replay, journal) = Replay::open(disk, Path::new("/replay"), key, bounds)?;
    Ok(Bench {
        disk: disk.clone(),
        replay,
        journal,
        registry,
    })
}

fn open(disk: &Arc<dyn Disk>, key: u8, capacity: usize, bytes_max: u64) -> Bench {
    let bench = try_open(disk, key, capacity, bytes_max).expect("opens");
    assert_eq!(bench.journal.losses(), [""; 0]);
    bench
}

/// What the journal finds damaged or missing.
fn lost(disk: &Arc<dyn Disk>, key: u8) -> String {
    let opened = try_open(disk, key, 80, 1 << 20).expect("opens");
    opened.journal.losses().join("; ")
}

fn memory() -> Arc<dyn Disk> {
    Arc::new(SimDisk::new())
}

impl Bench {
    fn begin(&self, n: u128, body: u8, now: u64) -> Result<Lookup, Refusal> {
        let tenant = "t".parse().expect("tenant");
        self.replay
            .begin(&tenant, OpId(uuid::Uuid::from_u128(n)), [body; 32], now)
    }

    fn ticket(&self, n: u128, body: u8, now: u64) -> Ticket {
        match self.begin(n, body, now) {
            Ok(Lookup::New(ticket)) => ticket,
            Ok(Lookup::Repeated(_)) => panic!("{n} was done before"),
            Err(refusal) => panic!("{n}: {refusal:?}"),
        }
    }

    fn done(&mut self, n: u128, body: u8, answer: &[u8], now: u64) {
        let records = self.ticket(n, body, now).with(answer.to_vec());
        self.journal.keep(vec![records], now).expect("kept");
    }

    fn answer(&self, n: u128, body: u8, now: u64) -> Option<Vec<u8>> {
        match self.begin(n, body, now) {
            Ok(Lookup::Repeated(answer)) => Some(answer),
            Ok(Lookup::New(_)) => None,
            Err(refusal) => panic!("{n}: {refusal:?}"),
        }
    }

    fn why(&self, n: u128, body: u8, now: u64) -> Option<Cause> {
        self.begin(n, body, now).err().map(|refusal| refusal.cause)
    }

    fn count(&self, line: &str) -> i64 {
        let text = self.registry.render();
        let value = text.lines().find_map(|l| l.strip_prefix(line));
        value.expect("the metric").trim().parse().expect("a number")
    }

    fn files(&self) -> Vec<String> {
        self.disk.list(Path::new("/replay")).expect("lists")
    }
}

#[test]
fn same_id_same_body_same_answer_for_a_day() {
    let mut bench = open(&memory(), 1, 80, 1 << 20);
    let ticket = bench.ticket(1, 1, 0);
    assert_eq!(bench.why(1, 1, 1), Some(Cause::InFlight));
    assert_eq!(bench.why(1, 2, 1), Some(Cause::OpIdMismatch));
    let records = ticket.with(b"{\"a\":1}".to_vec());
    bench.journal.keep(vec![records], 0).expect("kept");
    assert_eq!(
        bench.answer(1, 1, OP_ID_MS - 1).as_deref(),
        Some(&b"{\"a\":1}"[..])
    );
    assert_eq!(bench.why(1, 2, 2), Some(Cause::OpIdMismatch));
    let other = "u".parse().expect("tenant");
    let id = OpId(uuid::Uuid::from_u128(1));
    let theirs = bench.replay.begin(&other, id, [1; 32], 3);
    assert!(
        matches!(theirs, Ok(Lookup::New(_))),
        "ids are a tenant's own"
    );
    assert_eq!(bench.answer(1, 2, OP_ID_MS), None, "a day later");
}

#[test]
fn what_failed_frees_its_id() {
    let bench = open(&memory(), 1, 80, 1 << 20);
    drop(bench.ticket(1, 1, 0));
    drop(bench.ticket(1, 2, 0));
}

#[test]
fn a_restart_remembers_and_a_day_later_nothing_is_left() {
    let disk = memory();
    let mut bench = open(&disk, 1, 80, 1 << 20);
    for n in 0..5 {
        bench.done(
            n,
            n as u8,
            format!("answer {n}").as_bytes(),
            1000 + n as u64,
        );
    }
    let dropped = bench.ticket(99, 1, 1);
    drop(bench); // no orderly stop: the ticket of 99 is lost with the process
    let bench = open(&disk, 1, 80, 1 << 20);
    drop(dropped);
    for n in 0..5 {
        let want = format!("answer {n}").into_bytes();
        assert_eq!(bench.answer(n, n as u8, 2000), Some(want));
    }
    assert_eq!(bench.why(3, 9, 2000), Some(Cause::OpIdMismatch));
    assert_eq!(bench.answer(99, 1, 2000), None);
    drop(bench);
    let bench = open(&disk, 1, 80, 1 << 20);
    let late = 1004 + OP_ID_MS;
    assert_eq!(bench.answer(4, 4, late), None);
    // At a start the date may be wrong: what seems old then is not removed.
    assert_eq!(bench.answer(3, 3, 2000), Some(b"answer 3".to_vec()));
    assert_eq!(bench.count("t_forgotten_total "), 0);
}

#[test]
fn a_torn_tail_is_cut_and_a_foreign_or_changed_record_is_refused() {
    let disk = memory();
    let mut bench = open(&disk, 1, 80, 1 << 20);
    for n in 0..3 {
        bench.done(n, 1, b"an answer", 10);
    }
    let name = Path::new("/replay").join(&bench.files()[0]);
    drop(bench);
    let file = disk.open_write(&name).expect("there");
    let length = file.len().expect("length");
    file.set_len(length - 1).expect("cut");
    let mut bench = open(&disk, 1, 80, 1 << 20);
    assert!(bench.answer(0, 1, 20).is_some() && bench.answer(1, 1, 20).is_some());
    assert_eq!(bench.answer(2, 1, 20), None, "its answer never left");
    bench.done(2, 1, b"another answer", 20);
    drop(bench);
    let bench = open(&disk, 1, 80, 1 << 20);
    assert_eq!(bench.files().len(), 1, "the same file was continued");
    assert!((0..3).all(|n| bench.answer(n, 1, 20).is_some()));
    // A byte of an answer is changed on disk while the program runs: the answer is not returned.
    let mut byte = [0];
    let at = 32 + 28 + 56;
    file.read_at(at, &mut byte).expect("reads");
    file.write_at(at, &[byte[0] ^ 1]).expect("writes");
    assert_eq!(bench.why(0, 1, 20), Some(Cause::Internal));
    file.write_at(at, &byte).expect("writes");
    assert!(
        lost(&disk, 2).contains("its start does not verify"),
        "another seal key"
    );
    file.write_at(7, &[2]).expect("writes");
    let newer = try_open(&disk, 1, 80, 1 << 20).err().expect("refused");
    assert!(
        newer
            .to_string()
            .contains("format 2, this program knows up to 1")
    );
}

#[test]
fn a_flipped_byte_forgets_nothing_silently() {
    let disk = memory();
    let mut bench = open(&disk, 1, 80, 1 << 20);
    for n in 0..25 {
        bench.done(n, 1, b"an answer", 10);
    }
    let files = bench.files();
    assert_eq!(files.len(), 3);
    drop(bench);
    for name in files {
        let path = Path::new("/replay").join(&name);
        let file = disk.open_write(&path).expect("there");
        let record = 28 + 56 + 9;
        for (at, offset) in [
            (3, 0),
            (20, 8),
            (32, 32),
            (40 + record, 32 + record),
            (32 + 3 * record, 32 + 3 * record),
        ] {
            let mut byte = [0];
            file.read_at(at, &mut byte).expect("reads");
            file.write_at(at, &[byte[0] ^ 1]).expect("writes");
            let why = lost(&disk, 1);
            file.write_at(at, &byte).expect("writes");
            let place = format!("{} is damaged at byte {offset}:", path.display());
            assert!(why.contains(&place), "{at}: {why}");
        }
    }
    assert_eq!(open(&disk, 1, 80, 1 << 20).count("t_remembered "), 25);
}

#[test]
fn a_missing_segment_is_noticed_unless_the_journal_removed_it() {
    let disk = memory();
    let mut bench = open(&disk, 1, 80, 1 << 20);
    for n in 0..25 {
        bench.done(n, 1, b"an answer", 10);
    }
    let files = bench.files();
    drop(bench);
    for (missing, words) in [(0, "0001 to number 1 are"), (1, "0002 to number 2 are")] {
        let path = Path::new("/replay").join(&files[missing]);
        disk.rename(&path, Path::new("/elsewhere")).expect("moved");
        assert!(lost(&disk, 1).contains(words), "{}", lost(&disk, 1));
        disk.rename(Path::new("/elsewhere"), &path).expect("back");
    }
    // A day later the journal removes them by itself.
    let mut bench = open(&disk, 1, 80, 1 << 20);
    bench.done(30, 1, b"an answer", 10 + OP_ID_MS);
    assert_eq!(bench.files(), files[2..]);
    drop(bench);
    assert_eq!(open(&disk, 1, 80, 1 << 20).count("t_remembered "), 6);
}

#[test]
fn an_accepted_loss_sets_the_damaged_segments_aside_and_keeps_the_others() {
    for (damaged, stay) in [(0, 15), (1, 5), (2, 0)] {
        let disk = memory();
        let mut bench = open(&disk, 1, 80, 1 << 20);
        for n in 0..25 {
            bench.done(n, 1, b"an answer", 10);
        }
        let files = bench.files();
        drop(bench);
        let path = Path::new("/replay").join(&files[damaged]);
        let file = disk.open_write(&path).expect("there");
        file.write_at(40, &[0xff; 4]).expect("writes");
        let before = lost(&disk, 1);
        let bench = try_open(&disk, 1, 80, 1 << 20).expect("opens");
        assert_eq!(bench.files(), files, "nothing is moved before");
        bench.replay.close();
        assert_eq!(bench.why(77, 1, 20), Some(Cause::AnswersLost));
        let kept = if damaged == 2 { 0 } else { 24 };
        assert!(
            bench.answer(kept, 1, 20).is_some(),
            "what is there is given"
        );
        drop(bench);

        let mut bench = try_open(&disk, 1, 80, 1 << 20).expect("opens");
        let name = bench.journal.loss_id();
        bench.journal.accept_losses().expect("accepted");
        bench.done(99, 1, b"after", 20);
        drop(bench);
        let mut bench = open(&disk, 1, 80, 1 << 20);
        assert_eq!(bench.count("t_remembered "), stay + 1);
        assert!(bench.answer(99, 1, 20).is_some());
        let aside = bench.files();
        let aside: Vec<_> = aside.iter().filter(|n| n.contains(".lost")).collect();
        assert_eq!(aside.len(), damaged + 1, "{before}");
        let last = Answered {
            tenant: "t".into(),
            op_id: OpId(uuid::Uuid::from_u128(24)),
            ts: 10,
        };
        // The last answer is gone only with the last segment, and that is another loss.
        bench.journal.expect(&last);
        assert_eq!(bench.journal.losses().is_empty(), damaged != 2);
        assert_ne!(bench.journal.loss_id(), name);
    }
}

#[test]
fn starts_continue_the_last_file() {
    let disk = memory();
    for n in 0..60_u128 {
        let mut bench = open(&disk, 1, 80, 1 << 20);
        bench.done(n, 1, b"an answer", n as u64);
        // A file takes an eighth of 80 operations.
        assert_eq!(bench.files().len(), 1 + n as usize / 10);
    }
    let bench = open(&disk, 1, 80, 1 << 20);
    assert!((0..60).all(|n| bench.answer(n, 1, 60).is_some()));
}

#[test]
fn a_power_cut_at_any_operation_forgets_no_answer_that_left() {
    // Batches of up to three answers, over three files; how many answers left before the failure.
    let work = |disk: &SimDisk| {
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let Ok(mut bench) = try_open(&shared, 1, 80, 1 << 20) else {
            return 0;
        };
        let mut left = 0;
        for size in [1, 3, 2, 3, 3, 1, 2, 3, 3, 3] {
            let answer = |n| bench.ticket(n, 1, 0).with(vec![b'x'; 60 * n as usize]);
            let records = (left..left + size).map(answer).collect();
            if bench.journal.keep(records, 0).is_err() {
                return left;
            }
            left += size;
        }
        left
    };
    let whole = SimDisk::new();
    assert_eq!(work(&whole), 24);
    for cut in 1..=whole.operations() {
        let disk = SimDisk::new();
        disk.fail_after(cut, FaultKind::PowerOff);
        let left = work(&disk);
        let torn = (0..4_000).step_by(97).map(CrashMode::TearLast);
        let others = [
            CrashMode::LoseAll,
            CrashMode::KeepAll,
            CrashMode::HoleInLast(512),
        ];
        for mode in torn.chain(others) {
            let image = disk.fork();
            image.crash(mode);
            let image: Arc<dyn Disk> = Arc::new(image);
            let mut bench = open(&image, 1, 80, 1 << 20);
            for n in 0..left {
                let want = vec![b'x'; 60 * n as usize];
                assert_eq!(
                    bench.answer(n, 1, 0),
                    Some(want),
                    "cut at {cut}, {mode:?}: {n}"
                );
            }
            bench.done(99, 1, b"after", 0);
            drop(bench);
            let bench = open(&image, 1, 80, 1 << 20);
            assert!(bench.answer(99, 1, 0).is_some(), "cut at {cut}, {mode:?}");
        }
    }
}

#[test]
fn memory_and_disk_are_bounded_and_the_oldest_go_first() {
    let check = |capacity: usize, bytes_max: u64| {
        let mut bench = open(&memory(), 1, capacity, bytes_max);
        for n in 0..400_u128 {
            bench.done(n, 1, &[b'x'; 50], n as u64);
        }
        let kept = usize::try_from(bench.count("t_remembered ")).expect("a count");
        assert!(kept <= capacity && kept > 8, "{kept}");
        assert_eq!(bench.count("t_forgotten_total "), 400 - kept as i64);
        drop(open(&bench.disk, 1, capacity, bytes_max));
        let dir = Path::new("/replay");
        let size = |name: &String| bench.disk.open_read(&dir.join(name)).expect("there").len();
        let bytes: u64 = bench.files().iter().map(|f| size(f).expect("length")).sum();
        assert!(bytes <= bytes_max, "{bytes}");
        assert_eq!(bench.replay.table.lock().len(), kept);
        for n in 0..400_u128 {
            let known = bench.answer(n, 1, 400).is_some();
            assert_eq!(known, n >= 400 - kept as u128, "{n} of {kept}");
        }
    };
    check(80, 1 << 20);
    check(1000, 8 << 10);
}

#[test]
fn a_failed_disk_keeps_the_id_in_flight() {
    let disk = SimDisk::new();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut bench = open(&shared, 1, 80, 1 << 20);
    bench.done(1, 1, b"before", 0);
    disk.fail_after(2, FaultKind::Io);
    let records = bench.ticket(2, 1, 0).with(b"lost".to_vec());
    assert!(bench.journal.keep(vec![records], 0).is_err());
    assert_eq!(bench.why(2, 1, 1), Some(Cause::InFlight));
}
