//! The journal of answers: what it remembers, for how long, within which bounds, and across restarts and crashes.

use std::path::Path;

use ron_files::{FaultKind, SimDisk};
use ron_kernel::Registry;

use super::*;

struct Bench {
    disk: Arc<dyn Disk>,
    replay: Arc<Replay>,
    journal: Journal,
    registry: Registry,
}

fn open(disk: &Arc<dyn Disk>, key: u8, capacity: usize, bytes_max: u64, now_ms: u64) -> Bench {
    let registry = Registry::new("t");
    let bounds = Bounds {
        capacity,
        bytes_max,
        remembered: registry.gauge("remembered", "."),
        forgotten: registry.counter("forgotten_total", "."),
    };
    let key = Secret32::from_slice(&[key; 32]);
    let (replay, journal) =
        Replay::open(disk, Path::new("/replay"), key, bounds, now_ms).expect("opens");
    Bench {
        disk: disk.clone(),
        replay,
        journal,
        registry,
    }
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

    fn why(&self, n: u128, body: u8, now: u64) -> Option<Why> {
        self.begin(n, body, now).err().map(|refusal| refusal.why)
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
    let mut bench = open(&memory(), 1, 80, 1 << 20, 0);
    let ticket = bench.ticket(1, 1, 0);
    assert_eq!(bench.why(1, 1, 1), Some(Why::InFlight));
    assert_eq!(bench.why(1, 2, 1), Some(Why::OpIdMismatch));
    let records = ticket.with(b"{\"a\":1}".to_vec());
    bench.journal.keep(vec![records], 0).expect("kept");
    assert_eq!(
        bench.answer(1, 1, OP_ID_MS - 1).as_deref(),
        Some(&b"{\"a\":1}"[..])
    );
    assert_eq!(bench.why(1, 2, 2), Some(Why::OpIdMismatch));
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
    let bench = open(&memory(), 1, 80, 1 << 20, 0);
    drop(bench.ticket(1, 1, 0));
    drop(bench.ticket(1, 2, 0));
}

#[test]
fn a_restart_remembers_and_a_day_later_nothing_is_left() {
    let disk = memory();
    let mut bench = open(&disk, 1, 80, 1 << 20, 0);
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
    let bench = open(&disk, 1, 80, 1 << 20, 2000);
    drop(dropped);
    for n in 0..5 {
        let want = format!("answer {n}").into_bytes();
        assert_eq!(bench.answer(n, n as u8, 2000), Some(want));
    }
    assert_eq!(bench.why(3, 9, 2000), Some(Why::OpIdMismatch));
    assert_eq!(bench.answer(99, 1, 2000), None);
    drop(bench);
    let bench = open(&disk, 1, 80, 1 << 20, 1004 + OP_ID_MS);
    assert_eq!(bench.files(), Vec::<String>::new());
    assert_eq!(bench.count("t_remembered "), 0);
    assert_eq!(bench.count("t_forgotten_total "), 0, "it was their time");
}

#[test]
fn a_torn_or_foreign_record_ends_what_is_believed() {
    let disk = memory();
    let mut bench = open(&disk, 1, 80, 1 << 20, 0);
    for n in 0..3 {
        bench.done(n, 1, b"an answer", 10);
    }
    let name = Path::new("/replay").join(&bench.files()[0]);
    drop(bench);
    let file = disk.open_write(&name).expect("there");
    let length = file.len().expect("length");
    file.set_len(length - 1).expect("cut");
    let bench = open(&disk, 1, 80, 1 << 20, 20);
    assert!(bench.answer(0, 1, 20).is_some() && bench.answer(1, 1, 20).is_some());
    assert_eq!(bench.answer(2, 1, 20), None, "the torn one was told nobody");
    drop(bench);
    let bench = open(&disk, 2, 80, 1 << 20, 20);
    assert_eq!(bench.answer(0, 1, 20), None, "another store's seal key");
    drop(bench);
    // A byte of an answer is changed on disk while the program runs: the answer is not returned.
    let bench = open(&disk, 1, 80, 1 << 20, 20);
    let mut byte = [0];
    file.read_at(8 + 20 + 56, &mut byte).expect("reads");
    file.write_at(8 + 20 + 56, &[byte[0] ^ 1]).expect("writes");
    assert_eq!(bench.why(0, 1, 20), Some(Why::Internal));
    file.write_at(7, &[2]).expect("writes");
    let bounds = Bounds {
        capacity: 8,
        bytes_max: 1 << 20,
        remembered: bench.registry.gauge("other", "."),
        forgotten: bench.registry.counter("others_total", "."),
    };
    let key = Secret32::from_slice(&[1; 32]);
    let newer = Replay::open(&disk, Path::new("/replay"), key, bounds, 20);
    assert!(matches!(newer, Err(JournalError::Newer { known: 1, .. })));
}

#[test]
fn starts_continue_the_last_file_and_a_torn_one_is_left_as_it_is() {
    let disk = memory();
    let mut tear = None;
    for n in 0..60_u128 {
        let mut bench = open(&disk, 1, 80, 1 << 20, n as u64);
        bench.done(n, 1, b"an answer", n as u64);
        // A file takes an eighth of 80 operations; the torn one is followed by another.
        let full = 1 + n as usize / 10;
        let files = bench.files();
        assert!(
            files.len() == full || tear.is_some() && files.len() == full + 1,
            "{n}: {files:?}"
        );
        if n == 25 {
            let name = Path::new("/replay").join(files.last().expect("one"));
            let file = disk.open_write(&name).expect("there");
            let length = file.len().expect("length");
            file.write_at(length, b"half a record").expect("written");
            tear = Some((name, length + 13));
        }
    }
    let bench = open(&disk, 1, 80, 1 << 20, 60);
    for n in 0..60 {
        assert!(bench.answer(n, 1, 60).is_some(), "{n}");
    }
    let (name, length) = tear.expect("one was torn");
    let file = disk.open_read(&name).expect("there");
    assert_eq!(file.len().expect("length"), length);
}

#[test]
fn memory_and_disk_are_bounded_and_the_oldest_go_first() {
    let check = |capacity: usize, bytes_max: u64| {
        let mut bench = open(&memory(), 1, capacity, bytes_max, 0);
        for n in 0..400_u128 {
            bench.done(n, 1, &[b'x'; 50], n as u64);
        }
        let kept = usize::try_from(bench.count("t_remembered ")).expect("a count");
        assert!(kept <= capacity && kept > 8, "{kept}");
        assert_eq!(bench.count("t_forgotten_total "), 400 - kept as i64);
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
fn a_failed_disk_keeps_the_id_and_tells_nobody() {
    let disk = SimDisk::new();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut bench = open(&shared, 1, 80, 1 << 20, 0);
    bench.done(1, 1, b"before", 0);
    disk.fail_after(2, FaultKind::Io);
    let records = bench.ticket(2, 1, 0).with(b"lost".to_vec());
    assert!(bench.journal.keep(vec![records], 0).is_err());
    assert_eq!(bench.why(2, 1, 1), Some(Why::InFlight));
}
