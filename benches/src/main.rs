//! Load on a real fleet: starts `ron up`, drives its HTTP ports with blocking clients, prints the
//! figures as Markdown, and ends with the offline checks of the data that the load left on disk.

#![allow(clippy::disallowed_methods)] // a load generator is no part of a service: it takes threads and time as they come

mod client;
mod console;
mod fair;
mod figures;
mod fleet;
mod json;
mod kms;
mod machine;
mod open;
mod pauses;
mod policy;
mod proofs;
mod raw;
mod reads;
mod revocations;
mod sizes;
mod steps;
mod tail;
mod wallet;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Load on a real fleet, or on one URL.
#[derive(Parser)]
#[command(
    name = "load",
    after_help = "Examples:\n  load fleet\n  load fleet --seconds 30 --dir /srv/bench --only transfer\n  load proofs --leaves 10000000 --dir /srv/bench\n  load get http://127.0.0.1:8080/hello --clients 256"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a fleet and measure it: start, idle, sign, tokens, transfers.
    Fleet(FleetArgs),
    /// Start ron-kms and measure how one tenant's load affects another.
    KmsFair(fair::FairArgs),
    /// Start ron-kms and measure signatures, verification, start time and memory.
    Kms(kms::KmsArgs),
    /// Measure strict parsing of JSON bodies.
    Json(json::JsonArgs),
    /// Measure what an issuer policy with many clients costs.
    Policy(policy::PolicyArgs),
    /// Measure what many live revocations cost a follower.
    Revocations(revocations::RevocationArgs),
    /// Run the signature library in a loop, for comparison.
    Raw(raw::RawArgs),
    /// Call a PKCS#11 token directly, for comparison.
    Token(raw::TokenArgs),
    /// Start a console over many nodes and measure it, also with as many that hang.
    Console(console::ConsoleArgs),
    /// Measure transfers through a wallet at many numbers of clients, evenly spread and with a hot
    /// payee.
    Wallet(WalletArgs),
    /// Fill a ledger through the wallet and measure reads of its history.
    Reads(ReadsArgs),
    /// Start a fleet and weigh what each kind of operation leaves on disk.
    Sizes(sizes::SizeArgs),
    /// Start a fleet and measure the tail of its latencies with an open loop.
    Tail(tail::TailArgs),
    /// Fill the KMS's audit log and request proofs from it.
    Proofs(proofs::ProofArgs),
    /// Do a step of a hot path some times, for a program that counts instructions.
    Steps(steps::StepArgs),
    /// GET one URL as fast as the server responds.
    Get(GetArgs),
}

#[derive(Args)]
pub struct WalletArgs {
    /// Seconds per figure.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Clients of each figure, each a thread and a connection; more than 900 need `ulimit -n 8192`.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100, 1_000])]
    clients: Vec<usize>,
    /// Let all clients debit one account, without nonces.
    #[arg(long)]
    one_account: bool,
    /// Directory on the disk to measure.
    #[arg(long)]
    dir: PathBuf,
    /// Path of the `ron` binary; the one beside this program when absent.
    #[arg(long)]
    ron: Option<PathBuf>,
}

#[derive(Args)]
pub struct ReadsArgs {
    /// Transfers in the ledger before the reads.
    #[arg(long, default_value_t = 10_000_000)]
    entries: u64,
    /// Seconds per figure.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Directory on the disk to measure.
    #[arg(long)]
    dir: PathBuf,
    /// Path of the `ron` binary; the one beside this program when absent.
    #[arg(long)]
    ron: Option<PathBuf>,
}

#[derive(Args)]
pub struct FleetArgs {
    /// Seconds per figure.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Clients of each figure, each a thread and a connection; more than 900 need `ulimit -n 8192`.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64], value_parser = clap::value_parser!(u64).range(1..=1_000))]
    clients: Vec<u64>,
    /// Directory on the disk to measure; a temporary one when absent.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Database to which logs and records are moved first, as `log.url` names it; `ron` needs the feature `postgres` then.
    #[arg(long)]
    database: Option<String>,
    /// Measure only these figures.
    #[arg(long, value_delimiter = ',', value_parser = ["start", "idle", "sign", "envelope", "token", "verify", "transfer", "balance", "commit"])]
    only: Vec<String>,
    /// Path of the `ron` binary; the one beside this program when absent.
    #[arg(long)]
    ron: Option<PathBuf>,
}

#[derive(Args)]
struct GetArgs {
    url: String,
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    clients: u64,
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

fn main() {
    let outcome = match Cli::parse().command {
        Command::Fleet(args) => figures::run(&args),
        Command::KmsFair(args) => fair::run(&args),
        Command::Kms(args) => kms::run(&args),
        Command::Json(args) => json::run(&args),
        Command::Policy(args) => policy::run(&args),
        Command::Revocations(args) => revocations::run(&args),
        Command::Raw(args) => raw::run(&args),
        Command::Token(args) => raw::run_token(&args),
        Command::Console(args) => console::run(&args),
        Command::Wallet(args) => wallet::run(&args),
        Command::Reads(args) => reads::run(&args),
        Command::Sizes(args) => sizes::run(&args),
        Command::Steps(args) => steps::run(&args),
        Command::Tail(args) => tail::run(args),
        Command::Proofs(args) => proofs::run(&args),
        Command::Get(args) => get(&args),
    };
    if let Err(why) = outcome {
        eprintln!("load: {why}");
        std::process::exit(1);
    }
}

fn get(args: &GetArgs) -> Result<(), String> {
    let (host, path) = client::split(&args.url)?;
    let request = client::request("GET", &host, &path, &[], "");
    println!("{}", client::HEADER);
    let figure = client::load(
        &host,
        args.clients as usize,
        Duration::from_secs(args.seconds),
        |_| {
            let request = request.clone();
            Box::new(move || request.clone())
        },
    )?;
    println!("{}", figure.row("GET", args.clients as usize, 1));
    Ok(())
}
