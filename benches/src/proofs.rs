//! Proofs over HTTP: fills the KMS's audit log by signing in batches, then requests the proofs of
//! random leaves. The ledger's log is served by the same code.

use std::path::{Path, PathBuf, absolute};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::client::{HEADER, Maker, load, once, request};
use crate::figures::{ask, bearer, beside};
use crate::fleet::Fleet;
use crate::machine;

/// Leaves of one call, which is also the number of filling clients.
const BATCH: u64 = 1_000;
const FILLING: usize = 8;
/// Time between two checks of the number of leaves.
const FILL_FOR: Duration = Duration::from_secs(2);
/// The last checkpoint comes a second after the last leaf.
const CHECKPOINT: Duration = Duration::from_secs(5);

#[derive(Args)]
pub struct ProofArgs {
    /// Leaves in the log before it is measured.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    leaves: u64,
    /// Seconds per figure.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Clients of each figure, each a thread and a connection.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    clients: Vec<usize>,
    /// Directory on the disk to measure; a log that an earlier run filled there is used again.
    #[arg(long)]
    dir: PathBuf,
    /// Path of the `ron` binary; the one beside this program when absent.
    #[arg(long)]
    ron: Option<PathBuf>,
}

/// Runs all figures and prints them.
pub fn run(args: &ProofArgs) -> Result<(), String> {
    let dir = absolute(&args.dir).map_err(|e| e.to_string())?;
    let ron = args.ron.clone().map_or_else(|| beside("ron"), Ok)?;
    print!("{}", machine::facts(&dir_made(&dir)?)?);
    let fleet = Fleet::start(&ron, &dir)?;
    let host = fleet.host("ron-kms")?;
    fill(&fleet, &host, args.leaves)?;
    let size = size(&host)?;
    println!("- a log of {size} leaves, {} s per figure", args.seconds);
    let first = once(&host, &proof_of(&host, size - 1))?;
    if first.0 != 200 || !first.1.starts_with("c2sp.org/tlog-proof@v1") {
        return Err(format!("no proof of leaf {}: {first:?}", size - 1));
    }
    println!("- a proof of it has {} bytes\n\n{HEADER}", first.1.len());
    for clients in args.clients.iter().copied() {
        let time = Duration::from_secs(args.seconds);
        let figure = load(&host, clients, time, |n| random_proofs(&host, size, n))?;
        println!("{}", figure.row("proofs of random leaves", clients, 1));
    }
    println!(
        "\n- resident afterwards, whole fleet: {} MiB",
        machine::status(fleet.pid(), "VmRSS")? / 1024
    );
    Ok(())
}

fn dir_made(dir: &Path) -> Result<PathBuf, String> {
    std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(dir.to_owned())
}

/// Signs until this many leaves are under a checkpoint.
fn fill(fleet: &Fleet, host: &str, leaves: u64) -> Result<(), String> {
    let token = bearer(&fleet.token("ron-kms")?);
    let auth = [("Authorization", token.as_str())];
    let create = json!({
        "tenant": "default", "purpose": "bench", "alg": "ed25519",
        "op_id": "0190f0a0-0000-7000-8000-0000000000b2"
    });
    let made = request("POST", host, "/v1/kms/keys", &auth, &create.to_string());
    let key = ask(host, &made)?["key"].clone();
    let items: Vec<Value> = (0..BATCH)
        .map(|_| json!({"message": "A".repeat(44)}))
        .collect();
    let body = json!({"key": key, "items": items}).to_string();
    let call = request("POST", host, "/v1/kms/sign_batch", &auth, &body);
    let (began, before) = (Instant::now(), size(host)?);
    let mut there = before;
    while there < leaves {
        let short = (leaves - there).div_ceil(BATCH);
        let clients = FILLING.min(usize::try_from(short).unwrap_or(FILLING));
        let same = |_| -> Maker {
            let call = call.clone();
            Box::new(move || call.clone())
        };
        load(host, clients, FILL_FOR, same)?;
        there = settled(host, there)?;
    }
    if there > before {
        println!(
            "- filled with {} leaves at {:.0} a second, signed and durable",
            there - before,
            (there - before) as f64 / began.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// The size under the checkpoint, once it has grown beyond `before`.
fn settled(host: &str, before: u64) -> Result<u64, String> {
    let began = Instant::now();
    loop {
        let now = size(host)?;
        if now > before {
            return Ok(now);
        }
        if began.elapsed() > CHECKPOINT {
            return Err(format!("no checkpoint over more than {before} leaves came"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The second line of the checkpoint; 0 before the first one.
fn size(host: &str) -> Result<u64, String> {
    let (status, text) = once(host, &request("GET", host, "/audit/v1/checkpoint", &[], ""))?;
    match (status, text.lines().nth(1).map(str::parse)) {
        (200, Some(Ok(size))) => Ok(size),
        (404, _) => Ok(0),
        _ => Err(format!("the checkpoint of the audit log: {status} {text}")),
    }
}

fn proof_of(host: &str, index: u64) -> Vec<u8> {
    request("GET", host, &format!("/audit/v1/proof/{index}"), &[], "")
}

/// Requests for proofs of leaves all over the log, in a different order for each client.
fn random_proofs(host: &str, size: u64, client: usize) -> Maker {
    let host = host.to_owned();
    let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(client as u64 + 1) | 1;
    Box::new(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        proof_of(&host, state % size)
    })
}
