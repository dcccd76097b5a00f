//! Commits per second in process, with fsync, while the ledger grows to a number of entries and snapshots are
//! written beside it as in the service; then at batch sizes 1, 64 and 1,000: random keys, then one
//! hot account; then the time to reopen that ledger, from its snapshot and from the log alone, to
//! verify all of it offline, and the memory that an account takes in an open ledger.
//!
//! `cargo run --release -p ron-ledger --example commits -- <dir> [entries already there] [accounts]`
//!
//! `commits <dir> batches <number>` only commits so many batches of 64 between a thousand accounts, for a program that
//! counts instructions.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ron_crypto::sign::Ed25519Key;
use ron_files::OsDisk;
use ron_kernel::{Clock, OsRandom, SystemClock};
use ron_ledger::core::{Op, Outcome};
use ron_ledger::engine::{Atomicity, Engine, EngineOptions, Request};
use ron_ledger::salts;
use ron_ledger::verify::verify_dir;
use ron_proto::ledger::{Details, Entry};
use ron_proto::{Amount, Timestamp};
use ron_tlog::Ed25519NoteSigner;
use rustix::time::{ClockId, clock_gettime};

/// Accounts, unless said otherwise.
const ACCOUNTS: u64 = 100_000;
/// Transfers of a batch while the ledger grows, and rows of its table.
const GROWTH: (usize, u64) = (1_000, 10);
const FUNDS: u128 = 1_000_000_000;
/// Accounts that are added to see what they take.
const MORE: u64 = 1_000_000;
/// Second argument of the process that only opens the ledger.
const OPEN: &str = "open";
/// The same of a process that only commits batches, of so many transfers between so many accounts.
const BATCHES: (&str, usize, u64) = ("batches", 64, 1_000);

struct Load {
    engine: Engine,
    clock: SystemClock,
    nonces: Vec<u64>,
    serial: u64,
    random: u64,
    /// A snapshot that is being written.
    snapshot: Option<JoinHandle<()>>,
}

/// Batches of a part of the growth.
#[derive(Default)]
struct Part {
    batches: Vec<Duration>,
    /// Processor time of the committing thread in them.
    busy: Duration,
    /// The longest while a snapshot was written, and the most processor time of one then: the rest of it are waits for the disk.
    beside: Duration,
    busy_beside: Duration,
    /// The longest that the writer collected what a snapshot needs.
    begun: Duration,
    snapshots: u64,
}

impl Load {
    fn on(dir: &str, accounts: u64) -> Self {
        Self {
            engine: open(dir),
            clock: SystemClock,
            nonces: vec![0; accounts as usize],
            serial: 0,
            random: 0x2545_F491_4F6C_DD1D,
            snapshot: None,
        }
    }

    /// Writes a snapshot and closes the ledger; then KiB of memory of a new process that has opened it, so
    /// that nothing of what made it counts.
    fn closed_kib(mut self, dir: &str) -> u64 {
        if let Some(job) = self.engine.begin_snapshot(true) {
            self.engine
                .snapshotter()
                .write(&job)
                .expect("the disk works");
        }
        drop(self);
        let program = std::env::current_exe().expect("a path");
        let mut child = std::process::Command::new(program);
        let out = child.args([dir, OPEN]).output().expect("it runs");
        let text = String::from_utf8_lossy(&out.stdout);
        text.trim().parse().expect("a number")
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn transfer(&mut self, from: u64, to: u64) -> Op {
        self.serial += 1;
        self.nonces[from as usize] += 1;
        let entry = Entry::Transfer {
            tenant: "t".parse().expect("a name"),
            principal: "bench".parse().expect("a name"),
            key: format!(
                "k-{:016x}-{}",
                self.serial.wrapping_mul(0x9E37_79B9_7F4A_7C15),
                self.serial
            )
            .parse()
            .expect("a key"),
            from: format!("acc:{from}").parse().expect("a name"),
            to: format!("acc:{to}").parse().expect("a name"),
            asset: "ron".parse().expect("a name"),
            amount_minor: Amount(1),
            up_to: None,
            nonce: Some(self.nonces[from as usize]),
            details: Details::default(),
            batch: None,
            daily_ceiling: None,
            budgets: Vec::new(),
        };
        Op::new(entry, &salts::one(&OsRandom)).expect("a good entry")
    }

    fn batch(&mut self, n: usize, hot: bool) -> Vec<Request> {
        (0..n)
            .map(|_| {
                let accounts = self.nonces.len() as u64;
                let from = if hot { 0 } else { self.next() % accounts };
                let to = (from + 1 + self.next() % (accounts - 1)) % accounts;
                Request {
                    ops: vec![self.transfer(from, to)],
                    atomicity: Atomicity::Independent,
                }
            })
            .collect()
    }

    /// Commits requests, all of which must be done.
    fn decide(&mut self, requests: &[Request]) {
        let now = Timestamp(self.clock.unix_ms());
        let decided = self.engine.commit(now, requests).expect("the disk works");
        assert!(
            decided
                .outcomes
                .iter()
                .flatten()
                .all(|o| matches!(o, Outcome::Fresh { verdict, .. } if verdict.is_done()))
        );
    }

    /// The same, and writes a snapshot when one is due.
    fn commit(&mut self, requests: &[Request]) {
        self.decide(requests);
        if let Some(job) = self.engine.begin_snapshot(false) {
            self.engine
                .snapshotter()
                .write(&job)
                .expect("the disk works");
        }
    }

    /// Commits random transfers until this many were made since the start; prints a row for each part.
    fn grow(&mut self, entries: u64) {
        let (n, rows) = GROWTH;
        println!(
            "| entries | transfers/s | CPU us per transfer | p50 ms | p99 ms | max ms | max beside a snapshot, ms | of it CPU, ms | max collecting one, ms | snapshots | memory MiB |\n\
             |--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
        );
        for row in 1..=rows {
            let mut part = Part::default();
            while self.serial < entries * row / rows {
                self.growing_batch(n, &mut part);
            }
            self.print(&mut part, n);
        }
        if let Some(running) = self.snapshot.take() {
            running.join().expect("it is written");
        }
    }

    #[allow(clippy::disallowed_methods)] // a program without services has no supervisor
    fn growing_batch(&mut self, n: usize, part: &mut Part) {
        let requests = self.batch(n, false);
        let is_beside = self.snapshot.as_ref().is_some_and(|s| !s.is_finished());
        let (started, busy) = (self.clock.now(), thread_time());
        self.decide(&requests);
        let busy = thread_time().saturating_sub(busy);
        part.busy += busy;
        let committed = self.clock.now();
        if let Some(job) = self.engine.begin_snapshot(false) {
            part.begun = part.begun.max(committed.elapsed());
            part.snapshots += 1;
            let snapshotter = self.engine.snapshotter();
            let write = move || snapshotter.write(&job).expect("the disk works");
            self.snapshot = Some(std::thread::spawn(write));
        }
        let took = self.clock.now().duration_since(started);
        part.batches.push(took);
        if is_beside {
            part.beside = part.beside.max(took);
            part.busy_beside = part.busy_beside.max(busy);
        }
    }

    fn print(&self, part: &mut Part, n: usize) {
        let Part {
            batches,
            busy,
            beside,
            busy_beside,
            begun,
            snapshots,
        } = part;
        batches.sort();
        let spent: Duration = batches.iter().sum();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let at = |share: usize| ms(batches[(batches.len() - 1) * share / 1_000]);
        println!(
            "| {} | {:.0} | {:.2} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {snapshots} | {} |",
            self.engine.shared().head(),
            (batches.len() * n) as f64 / spent.as_secs_f64(),
            busy.as_secs_f64() * 1e6 / (batches.len() * n) as f64,
            at(500),
            at(990),
            at(1_000),
            ms(*beside),
            ms(*busy_beside),
            ms(*begun),
            memory_kib() / 1024
        );
    }

    /// Issues money to the accounts of these numbers, which come into being by it.
    fn fund(&mut self, accounts: Range<u64>) {
        for first in accounts.clone().step_by(1_000) {
            let ops = (first..accounts.end.min(first + 1_000)).map(|n| {
                let entry = Entry::Issue {
                    tenant: "t".parse().expect("a name"),
                    principal: "bench".parse().expect("a name"),
                    key: format!("fund-{n}").parse().expect("a key"),
                    to: format!("acc:{n}").parse().expect("a name"),
                    asset: "ron".parse().expect("a name"),
                    amount_minor: Amount(FUNDS),
                    details: Details::default(),
                    batch: None,
                    budgets: Vec::new(),
                };
                Op::new(entry, &salts::one(&OsRandom)).expect("a good entry")
            });
            let request = Request {
                ops: ops.collect(),
                atomicity: Atomicity::Independent,
            };
            self.commit(&[request]);
        }
    }

    /// Entries per second at one batch size. Making the requests is not timed, because callers do
    /// that.
    fn rate(&mut self, n: usize, hot: bool, time: Duration) -> f64 {
        let (mut entries, mut spent) = (0usize, Duration::ZERO);
        while spent < time {
            let requests = self.batch(n, hot);
            let started = self.clock.now();
            self.commit(&requests);
            spent += Instant::duration_since(&self.clock.now(), started);
            entries += n;
        }
        entries as f64 / spent.as_secs_f64()
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args
        .next()
        .expect("usage: commits <dir> [entries already there] [accounts]");
    let already = args.next();
    if already.as_deref() == Some(OPEN) {
        let engine = open(&dir);
        println!("{}", memory_kib());
        drop(engine);
        return;
    }
    let (batches, n, few) = BATCHES;
    if already.as_deref() == Some(batches) {
        let number: u64 = args
            .next()
            .and_then(|n| n.parse().ok())
            .expect("a number of batches");
        let mut load = Load::on(&dir, few);
        load.fund(0..few);
        for _ in 0..number {
            let requests = load.batch(n, false);
            load.commit(&requests);
        }
        return;
    }
    let already: u64 = already.map_or(0, |n| n.parse().expect("a number of entries"));
    let accounts = args
        .next()
        .map_or(ACCOUNTS, |n| n.parse().expect("a number of accounts"));
    let clock = SystemClock;
    let mut load = Load::on(&dir, accounts);
    load.fund(0..accounts);
    if already > 0 {
        load.grow(already);
    }
    println!("\n| in process | transfers/s |\n|---|--:|");
    for (n, hot) in [(1, false), (64, false), (1_000, false), (1_000, true)] {
        let rate = load.rate(n, hot, Duration::from_secs(3));
        let accounts = if hot {
            "one hot account"
        } else {
            "random accounts"
        };
        println!("| batches of {n}, {accounts} | {rate:.0} |");
    }
    let head = load.engine.shared().head();
    let mut checkpointer = load.engine.take_checkpointer().expect("not taken before");
    checkpointer.publish(&[&signer()]).expect("the disk works");
    let Load { engine, .. } = load;
    drop((checkpointer, engine));
    println!("\n| {head} entries | |\n|---|---|");
    reopen(&dir, clock, "opened from its snapshot");
    std::fs::remove_dir_all(Path::new(&dir).join("derived")).expect("it can be removed");
    reopen(&dir, clock, "opened from the log alone");
    let started = clock.now();
    let vkey = signer().verifier().clone();
    let report = verify_dir(Path::new(&dir), &vkey, &mut |_, _| {}).expect("it is whole");
    let took = clock.now().duration_since(started);
    println!(
        "| {} entries checked offline | {took:.2?} |",
        report.entries
    );
    let before = Load::on(&dir, accounts).closed_kib(&dir);
    let mut load = Load::on(&dir, accounts);
    load.fund(accounts..accounts + MORE);
    let bytes = (load.closed_kib(&dir) - before) * 1024 / MORE;
    println!("| memory per account, of {MORE} more in an open ledger | {bytes} bytes |");
}

/// Opens the ledger of the directory.
fn open(dir: &str) -> Engine {
    let now = Timestamp(SystemClock.unix_ms());
    Engine::open(Arc::new(OsDisk), Path::new(dir), options(), now).expect("it opens")
}

/// Time that this thread has had a processor.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::from_secs(time.tv_sec.unsigned_abs())
        + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

/// Resident memory of this process in KiB.
fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let number = line.and_then(|l| l.split_whitespace().next());
    number.and_then(|n| n.parse().ok()).expect("a number")
}

fn signer() -> Ed25519NoteSigner {
    let key = Ed25519Key::from_seed(&[4; 32]);
    Ed25519NoteSigner::new("bench/ledger", key).expect("a good name")
}

fn options() -> EngineOptions {
    let mut options = EngineOptions::new("bench/ledger");
    options.verifier = Some(signer().verifier().clone());
    options
}

fn reopen(dir: &str, clock: SystemClock, how: &str) {
    let started = clock.now();
    let engine = open(dir);
    let took = clock.now().duration_since(started);
    let opened = engine.opened();
    println!(
        "| {how} (snapshot of entry {}, {} decided again) | {took:.2?} |",
        opened.snapshot_seq, opened.replayed
    );
}
