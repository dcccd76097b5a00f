//! Measures the log on a real disk: durable appends per second at batch 1, 64 and 512; then open,
//! proof and offline check of the written log. Usage:
//! `append_rate [directory] [seconds per batch size] [entry bytes] [entries to reach]` (defaults: a
//! directory under the temporary one, 3, 256, 0). The directory is deleted first and kept afterwards.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ron_crypto::sign::Ed25519Key;
use ron_files::OsDisk;
use ron_kernel::{Clock as _, SystemClock};
use ron_tlog::{Ed25519NoteSigner, Log, LogOptions, verify_dir};

const ORIGIN: &str = "bench.example/log";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or: u64| args.get(at).map_or(Ok(or), |a| a.parse::<u64>());
    let dir = args.first().map_or_else(
        || std::env::temp_dir().join("ron-tlog-append-rate"),
        PathBuf::from,
    );
    let (seconds, bytes, reach) = (number(1, 3)?, number(2, 256)? as usize, number(3, 0)?);
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    let signer = Ed25519NoteSigner::new(ORIGIN, Ed25519Key::from_seed(&[1; 32]))?;
    let options = LogOptions::new(ORIGIN).verified_by(signer.verifier().clone());
    let mut log = Log::open(Arc::new(OsDisk), &dir, options.clone())?;
    println!("{} bytes per entry, {}", bytes, dir.display());
    for batch in [1, 64, 512] {
        rate(&mut log, batch, bytes, Duration::from_secs(seconds))?;
    }
    let more: Vec<Vec<u8>> = (0..8192).map(|i| entry(i, bytes)).collect();
    while log.size() < reach {
        log.append(&more)?;
    }
    let clock = SystemClock;
    let start = clock.now();
    log.publish_checkpoint(&signer)?;
    println!(
        "checkpoint of {} entries: {:?}",
        log.size(),
        start.elapsed()
    );
    proofs(&log)?;
    drop(log);
    let start = clock.now();
    let log = Log::open(Arc::new(OsDisk), &dir, options)?;
    println!(
        "open: {:?} ({} entries read)",
        start.elapsed(),
        log.recovery().scanned
    );
    check(&dir, &signer)
}

fn entry(index: u64, bytes: usize) -> Vec<u8> {
    let mut entry = index.to_be_bytes().to_vec();
    entry.resize(bytes.max(8), b'x');
    entry
}

fn rate(log: &mut Log, batch: usize, bytes: usize, during: Duration) -> Result<(), Box<dyn Error>> {
    let entries: Vec<Vec<u8>> = (0..batch as u64).map(|i| entry(i, bytes)).collect();
    let clock = SystemClock;
    let (start, from) = (clock.now(), log.size());
    let mut times = Vec::new();
    while start.elapsed() < during {
        let before = clock.now();
        log.append(&entries)?;
        times.push(before.elapsed());
    }
    let taken = start.elapsed();
    times.sort();
    let at = |p: usize| times[(times.len() - 1) * p / 100];
    let done = u128::from(log.size() - from) * 1_000_000 / taken.as_micros();
    println!(
        "batch {batch:>4}: {done:>8} entries/s durable; one append p50 {:?}, p99 {:?}, max {:?}",
        at(50),
        at(99),
        at(100)
    );
    Ok(())
}

fn proofs(log: &Log) -> Result<(), Box<dyn Error>> {
    let reader = log.reader();
    let clock = SystemClock;
    let mut times = Vec::new();
    for i in 0..1000u64 {
        let index = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) % log.size();
        let before = clock.now();
        reader.proof(index)?;
        times.push(before.elapsed());
    }
    times.sort();
    println!(
        "proof at {} entries: p50 {:?}, p99 {:?}",
        log.size(),
        times[500],
        times[990]
    );
    Ok(())
}

fn check(dir: &Path, signer: &Ed25519NoteSigner) -> Result<(), Box<dyn Error>> {
    let clock = SystemClock;
    let start = clock.now();
    let verified = verify_dir(
        dir,
        signer.verifier(),
        &mut |_, _, _| Ok(()),
        &mut |_, _| (),
    )?;
    let taken = start.elapsed();
    let per_second = u128::from(verified.size) * 1_000_000 / taken.as_micros().max(1);
    println!(
        "offline check of {} entries: {taken:?} ({per_second} entries/s)",
        verified.size
    );
    Ok(())
}
