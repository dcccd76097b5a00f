//! The `ron` command line: the system in one process, and tools. One file per subcommand.

mod check;
mod demo;
mod doctor;
#[cfg(test)]
mod documented;
mod examples;
mod fleet;
mod init;
mod kms;
mod layout;
mod ledger;
mod net;
mod policy;
mod rewarder;
mod shell;
mod token;
mod up;
mod verifiers;
mod wallet;
mod witness;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{FromArgMatches, Parser, Subcommand};

/// A trust-and-value plane: keys, tokens, money, payouts, verifiable by strangers.
#[derive(Parser)]
#[command(version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Authorities (PEM) that https services must show a certificate from.
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    Up(up::UpArgs),
    Init(init::InitArgs),
    Demo(demo::DemoArgs),
    Doctor(doctor::DoctorArgs),
    Token(token::TokenArgs),
    Policy(policy::PolicyArgs),
    Audit(check::audit::AuditArgs),
    Kms(kms::KmsArgs),
    Ledger(ledger::LedgerArgs),
    Wallet(wallet::WalletArgs),
    Witness(witness::WitnessArgs),
    Rewarder(rewarder::RewarderArgs),
    Completions(shell::CompletionArgs),
    Man(shell::ManArgs),
}

fn main() -> ExitCode {
    let parsed = Cli::from_arg_matches(&examples::command().get_matches());
    let Cli { command, ca } = parsed.unwrap_or_else(|error| error.exit());
    if !matches!(command, Command::Up(_)) {
        shell::end_at_a_closed_pipe();
    }
    if let Some(Err(why)) = ca.as_deref().map(net::trust) {
        return shell::failed(why);
    }
    let result = match command {
        Command::Up(args) => return up::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Token(args) => token::run(args),
        Command::Policy(args) => policy::run(args),
        Command::Audit(args) => check::audit::run(args),
        Command::Kms(args) => kms::run(args),
        Command::Ledger(args) => ledger::run(args),
        Command::Wallet(args) => wallet::run(args),
        Command::Witness(args) => witness::run(&args),
        Command::Rewarder(args) => rewarder::run(args),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
    };
    result.map_or_else(shell::failed, |()| ExitCode::SUCCESS)
}
