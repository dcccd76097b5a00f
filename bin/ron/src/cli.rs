//! What the command line takes, and which file does it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{
    check, client, demo, doctor, init, issuer, kms, ledger, net, policy, rewarder, shell, token,
    up, wallet, witness,
};

/// A trust-and-value plane: keys, tokens, money, payouts, verifiable by strangers.
#[derive(Parser)]
#[command(version, about, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Authorities (PEM) that https services must show a certificate from.
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Certificate (PEM) to show to services that ask for one.
    #[arg(long, global = true, value_name = "FILE", requires_all = ["ca", "client_key"])]
    client_cert: Option<PathBuf>,
    /// Its private key (PEM), readable by its owner only.
    #[arg(long, global = true, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
    /// User id that the server of a Unix socket given with --url may run as; may be repeated. Yours
    /// when absent. For the services of a data directory it is known.
    #[arg(long, global = true, value_name = "UID")]
    peer_uid: Vec<u32>,
    /// Send service tokens and client secrets over plain http on loopback too. Any user of the host
    /// who takes the port of a service that is down gets them. RON_INSECURE_LOOPBACK=1 is the same.
    #[arg(long, global = true)]
    insecure_loopback: bool,
}

#[derive(Subcommand)]
enum Command {
    Up(up::UpArgs),
    Init(init::InitArgs),
    Demo(demo::DemoArgs),
    Doctor(doctor::DoctorArgs),
    Token(token::TokenArgs),
    Client(client::ClientArgs),
    Policy(policy::PolicyArgs),
    Issuer(issuer::IssuerArgs),
    Audit(check::audit::AuditArgs),
    Kms(kms::KmsArgs),
    Ledger(ledger::LedgerArgs),
    Wallet(wallet::WalletArgs),
    Witness(witness::WitnessArgs),
    Rewarder(rewarder::RewarderArgs),
    Completions(shell::CompletionArgs),
    Man(shell::ManArgs),
}

impl Cli {
    /// Runs the command that was named.
    pub fn run(self) -> ExitCode {
        // Its standard output is a log, whose reader may go away; and it exits with codes of its own.
        if let Command::Up(args) = &self.command {
            return up::run(args);
        }
        shell::end_at_a_closed_pipe();
        let insecure = std::env::var_os("RON_INSECURE_LOOPBACK").is_some_and(|set| set == "1");
        net::allow(self.insecure_loopback || insecure, self.peer_uid);
        let own = self.client_cert.zip(self.client_key);
        if let Some(Err(why)) = self.ca.map(|ca| net::trust(ca, own)) {
            return shell::failed(why);
        }
        let result = match self.command {
            Command::Up(_) => Ok(()), // done above
            Command::Init(args) => init::run(&args),
            Command::Demo(args) => demo::run(&args),
            Command::Doctor(args) => doctor::run(&args),
            Command::Token(args) => token::run(args),
            Command::Client(args) => client::run(&args),
            Command::Policy(args) => policy::run(args),
            Command::Issuer(args) => issuer::run(&args),
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
}
