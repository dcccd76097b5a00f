//! The same transfers in PostgreSQL, in the fastest batched pattern known for it: callers pass
//! their transfers to a few committers; each committer takes what waits and makes one call of a
//! prepared function with arrays, in one transaction: rows locked in id order, keys inserted once,
//! balances and nonces changed by sets. `synchronous_commit` is on. Callers are threads of this
//! process: no HTTP, no tokens and no limits are in these figures.
//!
//! `rival-pg CONNECTION SECONDS CLIENTS...`, for example `rival-pg "host=/run/pg user=postgres" 10
//! 1 10 100 1000`

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};

const COMMITTERS: usize = 4;
const BATCH: usize = 512;
const PAYEES: u64 = 10_000;

const SCHEMA: &str = "
DROP TABLE IF EXISTS entries, accounts;
CREATE TABLE accounts (id bigint PRIMARY KEY, balance numeric(39) NOT NULL CHECK (balance >= 0), nonce bigint NOT NULL)
  WITH (fillfactor = 50);
CREATE TABLE entries (seq bigint GENERATED ALWAYS AS IDENTITY, key text PRIMARY KEY, debit bigint NOT NULL,
  credit bigint NOT NULL, amount numeric(39) NOT NULL, nonce bigint NOT NULL, ts timestamptz NOT NULL DEFAULT now());
CREATE OR REPLACE FUNCTION transfer_batch(keys text[], debits bigint[], credits bigint[], amounts bigint[], nonces bigint[])
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE done bigint;
BEGIN
  PERFORM 1 FROM accounts WHERE id = ANY(debits || credits) ORDER BY id FOR UPDATE;
  WITH t AS (SELECT * FROM unnest(keys, debits, credits, amounts, nonces) AS t(key, debit, credit, amount, nonce)),
  good AS (SELECT t.* FROM t JOIN accounts a ON a.id = t.debit WHERE a.nonce + 1 = t.nonce AND a.balance >= t.amount),
  fresh AS (INSERT INTO entries (key, debit, credit, amount, nonce) SELECT * FROM good ON CONFLICT (key) DO NOTHING
    RETURNING debit, credit, amount),
  moves AS (SELECT debit AS id, -amount AS change, 1 AS used FROM fresh UNION ALL SELECT credit, amount, 0 FROM fresh),
  sums AS (SELECT id, sum(change) AS change, sum(used) AS used FROM moves GROUP BY id),
  changed AS (UPDATE accounts a SET balance = a.balance + s.change, nonce = a.nonce + s.used FROM sums s WHERE a.id = s.id
    RETURNING 1)
  SELECT count(*) INTO done FROM fresh;
  RETURN done;
END $$;
";

struct Transfer {
    key: String,
    debit: i64,
    credit: i64,
    nonce: i64,
    done: Sender<()>,
}

#[derive(Default)]
struct Desk {
    waiting: Mutex<VecDeque<Transfer>>,
    some: Condvar,
    stop: AtomicBool,
}

impl Desk {
    /// The waiting transfers, each debited account once: a set-based statement checks one nonce per
    /// account.
    fn take(&self) -> Vec<Transfer> {
        let mut waiting = self.waiting.lock().unwrap();
        while waiting.is_empty() {
            if self.stop.load(Ordering::Acquire) {
                return Vec::new();
            }
            waiting = self
                .some
                .wait_timeout(waiting, Duration::from_millis(50))
                .unwrap()
                .0;
        }
        let mut seen = HashSet::new();
        let (mut mine, mut later) = (Vec::new(), VecDeque::new());
        while let Some(t) = waiting.pop_front() {
            if mine.len() < BATCH && seen.insert(t.debit) {
                mine.push(t);
            } else {
                later.push_back(t);
            }
        }
        *waiting = later;
        mine
    }

    fn commit(&self, to: &str) {
        let mut db = Client::connect(to, NoTls).expect("PostgreSQL answers");
        let call = db
            .prepare("SELECT transfer_batch($1, $2, $3, $4, $5)")
            .expect("the function is there");
        loop {
            let batch = self.take();
            if batch.is_empty() {
                return;
            }
            let keys: Vec<&str> = batch.iter().map(|t| t.key.as_str()).collect();
            let column = |pick: fn(&Transfer) -> i64| batch.iter().map(pick).collect::<Vec<i64>>();
            let (debits, credits, nonces) = (
                column(|t| t.debit),
                column(|t| t.credit),
                column(|t| t.nonce),
            );
            let amounts = vec![1_i64; batch.len()];
            let row = db
                .query_one(&call, &[&keys, &debits, &credits, &amounts, &nonces])
                .expect("it commits");
            assert_eq!(
                row.get::<_, i64>(0),
                batch.len() as i64,
                "a transfer was refused"
            );
            for t in batch {
                let _ = t.done.send(());
            }
        }
    }
}

/// The next payee: even, or by Zipf's law.
fn payee(state: &mut u64, sums: &[f64]) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    match sums.last() {
        None => *state % PAYEES,
        Some(all) => {
            let at = (*state >> 11) as f64 / (1_u64 << 53) as f64 * all;
            sums.partition_point(|s| *s < at) as u64
        }
    }
}

fn client(
    desk: &Desk,
    family: &str,
    n: usize,
    base: u64,
    time: Duration,
    sums: &[f64],
) -> Vec<u32> {
    let mut micros = Vec::new();
    let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(n as u64 + 1) | 1;
    let begun = Instant::now();
    for nonce in 1.. {
        if begun.elapsed() >= time {
            break;
        }
        let (done, told) = channel();
        let sent = Instant::now();
        let transfer = Transfer {
            key: format!("{family}-{n}-{nonce}"),
            debit: (base + n as u64) as i64,
            credit: payee(&mut state, sums) as i64,
            nonce,
            done,
        };
        desk.waiting.lock().unwrap().push_back(transfer);
        desk.some.notify_one();
        told.recv().expect("the committer answers");
        micros.push(sent.elapsed().as_micros() as u32);
    }
    micros
}

fn figure(to: &str, name: &str, clients: usize, time: Duration, sums: &[f64], base: u64) {
    let desk = Desk::default();
    let begun = Instant::now();
    let mut micros: Vec<u32> = std::thread::scope(|s| {
        let committers: Vec<_> = (0..COMMITTERS)
            .map(|_| s.spawn(|| desk.commit(to)))
            .collect();
        let family = format!("{base}");
        let running: Vec<_> = (0..clients)
            .map(|n| {
                let (desk, family) = (&desk, family.clone());
                s.spawn(move || client(desk, &family, n, base, time, sums))
            })
            .collect();
        let all = running
            .into_iter()
            .flat_map(|r| r.join().expect("a client does not panic"))
            .collect();
        desk.stop.store(true, Ordering::Release);
        committers
            .into_iter()
            .for_each(|c| c.join().expect("a committer does not panic"));
        all
    });
    let seconds = begun.elapsed().as_secs_f64();
    micros.sort_unstable();
    let at = |share: usize| f64::from(micros[(micros.len() - 1) * share / 100]) / 1_000.0;
    let rate = micros.len() as f64 / seconds;
    println!(
        "| transfers, {name} | {clients} | {rate:.0} | {:.2} | {:.2} | {:.2} | 0 |",
        at(50),
        at(99),
        at(100)
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [to, seconds, clients @ ..] = args.as_slice() else {
        panic!("usage: rival-pg CONNECTION SECONDS CLIENTS...")
    };
    let time = Duration::from_secs(seconds.parse().expect("seconds"));
    let clients: Vec<usize> = clients
        .iter()
        .map(|c| c.parse().expect("a number of clients"))
        .collect();
    let mut db = Client::connect(to, NoTls).expect("PostgreSQL answers");
    db.batch_execute(SCHEMA).expect("the schema is made");
    for setting in [
        "server_version",
        "fsync",
        "synchronous_commit",
        "shared_buffers",
    ] {
        let row = db
            .query_one(&format!("SHOW {setting}"), &[])
            .expect("a setting");
        println!("- {setting} {}", row.get::<_, String>(0));
    }
    let fill = "INSERT INTO accounts SELECT n, 1000000000, 0 FROM generate_series($1::bigint, $2::bigint) n";
    db.execute(fill, &[&0_i64, &(PAYEES as i64)])
        .expect("payees");
    println!(
        "\n| figure | clients | per second | p50 ms | p99 ms | max ms | refused |\n|---|--:|--:|--:|--:|--:|--:|"
    );
    let mut base = 1_000_000;
    let mut sum = 0.0;
    let zipf: Vec<f64> = (1..=PAYEES)
        .map(|k| {
            sum += 1.0 / k as f64;
            sum
        })
        .collect();
    for (name, sums) in [
        ("payees spread evenly", &[][..]),
        ("a hot payee (Zipf)", &zipf),
    ] {
        for n in &clients {
            db.execute(fill, &[&(base as i64), &((base + *n as u64) as i64)])
                .expect("accounts");
            db.batch_execute("VACUUM ANALYZE accounts")
                .expect("statistics");
            figure(to, name, *n, time, sums, base);
            base += 1_000_000;
        }
    }
}
