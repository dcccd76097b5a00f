//! Commits per second in process, with fsync, at batch sizes 1, 64 and 1,000: random keys, then one
//! hot account; then the time to reopen that ledger, from its snapshot and from the log alone, and
//! to verify all of it offline.
//!
//! `cargo run --release -p ron-ledger --example commits -- <dir> [entries already there]`

use std::path::Path;
use std::sync::Arc;
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

const ACCOUNTS: u64 = 100_000;
const FUNDS: u128 = 1_000_000_000;

struct Load {
    engine: Engine,
    clock: SystemClock,
    nonces: Vec<u64>,
    serial: u64,
    random: u64,
}

impl Load {
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
                let from = if hot { 0 } else { self.next() % ACCOUNTS };
                let to = (from + 1 + self.next() % (ACCOUNTS - 1)) % ACCOUNTS;
                Request {
                    ops: vec![self.transfer(from, to)],
                    atomicity: Atomicity::Independent,
                }
            })
            .collect()
    }

    fn commit(&mut self, requests: &[Request]) {
        let now = Timestamp(self.clock.unix_ms());
        let decided = self.engine.commit(now, requests).expect("the disk works");
        assert!(
            decided
                .outcomes
                .iter()
                .flatten()
                .all(|o| matches!(o, Outcome::Fresh { verdict, .. } if verdict.is_done()))
        );
        if let Some(job) = self.engine.begin_snapshot(false) {
            self.engine
                .snapshotter()
                .write(&job)
                .expect("the disk works");
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
        .expect("usage: commits <dir> [entries already there]");
    let already: u64 = args
        .next()
        .map_or(0, |n| n.parse().expect("a number of entries"));
    let clock = SystemClock;
    let now = Timestamp(clock.unix_ms());
    let engine =
        Engine::open(Arc::new(OsDisk), Path::new(&dir), options(), now).expect("a new directory");
    let mut load = Load {
        engine,
        clock,
        nonces: vec![0; ACCOUNTS as usize],
        serial: 0,
        random: 0x2545_F491_4F6C_DD1D,
    };
    for chunk in 0..ACCOUNTS / 1_000 {
        let ops = (0..1_000).map(|i| {
            let n = chunk * 1_000 + i;
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
        load.commit(&[request]);
    }
    while load.serial < already {
        let requests = load.batch(4_096, false);
        load.commit(&requests);
    }
    println!("| in process | transfers/s |\n|---|--:|");
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
    drop((checkpointer, load));
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
    let now = Timestamp(clock.unix_ms());
    let engine = Engine::open(Arc::new(OsDisk), Path::new(dir), options(), now);
    let engine = engine.expect("it opens again");
    let took = clock.now().duration_since(started);
    let opened = engine.opened();
    println!(
        "| {how} (snapshot of entry {}, {} decided again) | {took:.2?} |",
        opened.snapshot_seq, opened.replayed
    );
}
