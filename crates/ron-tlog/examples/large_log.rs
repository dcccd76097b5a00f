//! Figures of a large log on a real disk: appends with group commit, the lag of the checkpoint,
//! proofs, reopening, the offline check, memory.
//!
//! usage: large_log [entries, default 1000000] [bytes of an entry, default 400, as the leaves of
//! the KMS] [directory]

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a measuring program may panic

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_crypto::sign::Ed25519Key;
use ron_files::OsDisk;
use ron_tlog::{Ed25519NoteSigner, Log, LogOptions, verify_dir};

/// Leaves of one durable append.
const BATCH: u64 = 512;

fn signer() -> Ed25519NoteSigner {
    Ed25519NoteSigner::new("log.example/large", Ed25519Key::from_seed(&[4; 32])).unwrap()
}

fn options() -> LogOptions {
    LogOptions::new("log.example/large").verified_by(signer().verifier().clone())
}

/// `VmHWM` or `VmRSS` in MiB.
fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with(field)).unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        / 1024
}

fn fill(log: &mut Log, n: u64, bytes: usize) {
    let begun = Instant::now();
    let mut checkpointer = log.take_checkpointer().unwrap();
    let signer = signer();
    let (mut oldest, mut behind) = (None::<Instant>, Duration::ZERO);
    let mut batch = vec![vec![b'x'; bytes]; BATCH as usize];
    while log.size() < n {
        for (at, entry) in batch.iter_mut().enumerate() {
            entry[..8].copy_from_slice(&(log.size() + at as u64).to_le_bytes());
        }
        log.append(&batch).unwrap();
        let since = *oldest.get_or_insert_with(Instant::now);
        if checkpointer.uncovered() >= 5_000 || since.elapsed() > Duration::from_millis(900) {
            checkpointer.publish(&[&signer]).unwrap();
            behind = behind.max(since.elapsed());
            oldest = None;
        }
    }
    checkpointer.publish(&[&signer]).unwrap();
    let took = begun.elapsed();
    println!(
        "appended {} leaves of {bytes} bytes in batches of {BATCH}: {} leaves/s; a checkpoint every 5,000 leaves, at most {} ms behind",
        log.size(),
        u128::from(log.size()) * 1_000 / took.as_millis().max(1),
        behind.as_millis()
    );
}

fn prove(log: &Log) {
    let reader = log.reader();
    let size = reader.checkpoint_size();
    let mut times: Vec<u128> = (0..20_000_u64)
        .map(|n| {
            let index = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % size;
            let begun = Instant::now();
            assert!(reader.proof(index).unwrap().len() > 100);
            begun.elapsed().as_micros()
        })
        .collect();
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 1000];
    println!(
        "proofs of random leaves: p50 {} us, p99 {} us, p99.9 {} us, slowest {} us",
        at(500),
        at(990),
        at(999),
        at(1000)
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let n: u64 = args.next().map_or(1_000_000, |n| n.parse().unwrap());
    let bytes = args.next().map_or(400, |n| n.parse().unwrap());
    let home = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = home.join(format!("large-log-{}", std::process::id()));
    let mut log = Log::open(Arc::new(OsDisk), &dir, options()).unwrap();
    fill(&mut log, n, bytes);
    println!("memory while writing: {} MiB at most", memory("VmHWM"));
    prove(&log);
    drop(log);
    let begun = Instant::now();
    let log = Log::open(Arc::new(OsDisk), &dir, options()).unwrap();
    println!("reopened in {} ms", begun.elapsed().as_millis());
    prove(&log);
    drop(log);
    let begun = Instant::now();
    let verified = verify_dir(
        &dir,
        signer().verifier(),
        &mut |_, _, _| Ok(()),
        &mut |_, _| (),
    )
    .unwrap();
    let took = begun.elapsed();
    println!(
        "verified {} leaves in {:.1} s on one thread: {} leaves/s",
        verified.size,
        took.as_secs_f64(),
        u128::from(verified.size) * 1_000 / took.as_millis().max(1)
    );
    println!(
        "memory of everything: {} MiB at most, {} MiB at the end",
        memory("VmHWM"),
        memory("VmRSS")
    );
    std::fs::remove_dir_all(&dir).unwrap();
}
