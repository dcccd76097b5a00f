//! How fast the projection applies entries on its own: fills a ledger in process, then lets an empty
//! projection catch up; then commits batches at a fixed rate and says how far it is behind.
//!
//! `cargo run --release -p ron-ledger --example projection -- <dir> [transfers] [transfers/s] [seconds]`

#![allow(clippy::disallowed_methods)] // a load generator is no part of a service: it takes threads and time as they come

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ron_files::{Dir, OsDisk};
use ron_kernel::{Clock, OsRandom, SystemClock};
use ron_ledger::core::Op;
use ron_ledger::engine::{Atomicity, Engine, EngineOptions, Request, Shared};
use ron_ledger::projection::{Projection, pause_after};
use ron_ledger::salts;
use ron_proto::ledger::{Details, Entry};
use ron_proto::{Amount, Timestamp};

const ORIGIN: &str = "bench/ledger";
const FUNDS: u128 = 1_000_000_000;
const BATCH: u64 = 500;

/// What the transfers are like.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    accounts: u64,
    reference: fn(u64) -> Option<String>,
}

const LOADS: [Load; 4] = [
    Load {
        name: "10,000 accounts, every fourth transfer with one of 10,000 references",
        accounts: 10_000,
        reference: |n| (n % 4 == 0).then(|| format!("order-{}", n / 4 % 10_000)),
    },
    Load {
        name: "10,000 accounts, ascending references",
        accounts: 10_000,
        reference: |n| Some(format!("order-{n:010}")),
    },
    Load {
        name: "10,000 accounts, random references",
        accounts: 10_000,
        reference: |n| Some(format!("order-{:016x}", mixed(n))),
    },
    Load {
        name: "2 hot accounts, ascending references",
        accounts: 2,
        reference: |n| Some(format!("order-{n:010}")),
    },
];

/// A bijection without visible order (the last step of SplitMix64).
const fn mixed(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

struct Filler {
    engine: Engine,
    load: Load,
    serial: u64,
}

impl Filler {
    fn new(dir: &Path, load: Load) -> Self {
        let options = EngineOptions::new(ORIGIN);
        let engine = Engine::open(Arc::new(OsDisk), dir, options, now()).expect("a new directory");
        let mut filler = Self {
            engine,
            load,
            serial: 0,
        };
        let all: Vec<u64> = (0..load.accounts).collect();
        for some in all.chunks(1_000) {
            filler.commit(some.iter().map(|n| issue(*n)));
        }
        filler
    }

    fn commit(&mut self, entries: impl Iterator<Item = Entry>) {
        let op = |entry| Op::new(entry, &salts::one(&OsRandom)).expect("a good entry");
        let request = Request {
            ops: entries.map(op).collect(),
            atomicity: Atomicity::Independent,
        };
        self.engine
            .commit(now(), &[request])
            .expect("the disk works");
    }

    fn transfers(&mut self, count: u64) {
        let (load, first) = (self.load, self.serial);
        self.serial += count;
        self.commit((first..first + count).map(|n| transfer(load, n)));
    }
}

fn issue(n: u64) -> Entry {
    Entry::Issue {
        tenant: "t".parse().expect("a name"),
        principal: "bench".parse().expect("a name"),
        key: format!("fund-{n}").parse().expect("a key"),
        to: account(n),
        asset: "ron".parse().expect("a name"),
        amount_minor: Amount(FUNDS),
        details: Details::default(),
        batch: None,
        budgets: Vec::new(),
    }
}

fn account(n: u64) -> ron_proto::Account {
    format!("acct:holder-{n}").parse().expect("a name")
}

fn transfer(load: Load, n: u64) -> Entry {
    let from = mixed(n) % load.accounts;
    let to = (from + 1 + mixed(!n) % (load.accounts - 1)) % load.accounts;
    let details = Details {
        reference: (load.reference)(n).map(|text| text.parse().expect("a reference")),
        ..Details::default()
    };
    Entry::Transfer {
        tenant: "t".parse().expect("a name"),
        principal: "bench".parse().expect("a name"),
        key: format!("k-{:016x}-{n}", mixed(n)).parse().expect("a key"),
        from: account(from),
        to: account(to),
        asset: "ron".parse().expect("a name"),
        amount_minor: Amount(1 + u128::from(n % 100)),
        up_to: None,
        nonce: None,
        details,
        batch: None,
        daily_ceiling: None,
        budgets: Vec::new(),
    }
}

fn now() -> Timestamp {
    Timestamp(SystemClock.unix_ms())
}

/// Time that this thread had a processor.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
    let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.expect("a number"))
}

/// Entries per second, and processor time for each in us.
fn catch_up(projection: &mut Projection, ledger: &Shared) -> (f64, f64) {
    let first = projection.applied();
    let (started, before) = (Instant::now(), cpu());
    while projection
        .advance(ledger)
        .expect("the disk works")
        .is_some()
    {}
    let entries = (projection.applied() - first) as f64;
    let (took, spent) = (started.elapsed(), cpu().saturating_sub(before));
    (
        entries / took.as_secs_f64(),
        spent.as_secs_f64() * 1e6 / entries,
    )
}

/// Commits batches at a rate on another thread; returns the transfers per second that were reached,
/// the greatest age of an entry when it was applied, and processor time for each in us.
fn follow(
    projection: &mut Projection,
    filler: &mut Filler,
    rate: u64,
    time: Duration,
) -> (f64, Duration, f64) {
    let shared = filler.engine.shared().clone();
    let (first, started, before) = (projection.applied(), Instant::now(), cpu());
    let ended = AtomicBool::new(false);
    let mut oldest = Duration::ZERO;
    let mut reached = 0.0;
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut sent = 0;
            while started.elapsed() < time {
                filler.transfers(BATCH);
                sent += BATCH;
                let due = Duration::from_secs_f64(sent as f64 / rate as f64);
                thread::sleep(due.saturating_sub(started.elapsed()));
            }
            ended.store(true, Ordering::Release);
            sent as f64 / started.elapsed().as_secs_f64()
        });
        loop {
            let done = ended.load(Ordering::Acquire);
            let oldest_ts = shared.events(projection.applied(), 1).expect("it is whole");
            let Some(waiting) = oldest_ts.events.first().map(|event| event.ts) else {
                if done {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            let before = projection.applied();
            projection.advance(&shared).expect("the disk works");
            oldest = oldest.max(Duration::from_millis(now().0.saturating_sub(waiting.0)));
            let applied = projection.applied();
            thread::sleep(pause_after(applied - before, shared.head() - applied));
        }
        reached = writer.join().expect("it does not panic");
    });
    let entries = (projection.applied() - first) as f64;
    let spent = cpu().saturating_sub(before).as_secs_f64() * 1e6 / entries;
    (reached, oldest, spent)
}

fn main() {
    let usage = "usage: projection <dir> [transfers] [transfers/s] [seconds] [load]";
    let mut args = std::env::args().skip(1);
    let dir = args.next().expect(usage);
    let mut number = |default: u64| args.next().map_or(default, |n| n.parse().expect(usage));
    let (transfers, rate, seconds) = (number(1_000_000), number(20_000), number(10));
    let only = number(u64::MAX);
    println!(
        "| load | alone, entries/s | CPU us per entry | beside transfers/s | oldest entry when applied | CPU us per entry | file MB |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    for (at, load) in LOADS.into_iter().enumerate() {
        if only != u64::MAX && at as u64 != only {
            continue;
        }
        let dir = Path::new(&dir).join(load.accounts.to_string() + "-" + &at.to_string());
        let mut filler = Filler::new(&dir, load);
        while filler.serial < transfers {
            filler.transfers(2_000);
        }
        let path = dir.join("projection.sqlite");
        let shared = filler.engine.shared().clone();
        let at = Dir::os(&dir);
        let mut projection = Projection::open(&at, ORIGIN, shared.head()).expect("a new file");
        let (alone, cpu_alone) = catch_up(&mut projection, &shared);
        let (reached, oldest, cpu) = follow(
            &mut projection,
            &mut filler,
            rate,
            Duration::from_secs(seconds),
        );
        let bytes = std::fs::metadata(&path).expect("it is there").len();
        println!(
            "| {} | {alone:.0} | {cpu_alone:.1} | {reached:.0} | {oldest:.0?} | {cpu:.1} | {} |",
            load.name,
            bytes / 1_000_000
        );
        drop((projection, filler));
        std::fs::remove_dir_all(&dir).expect("it can be removed");
    }
}
