//! The command line's arguments, and the module that runs each command.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{
    audience, backup, check, client, clock, console, demo, doctor, events, ha, init, issuer, kms,
    ledger, login, net, policy, receipt, revocations, rewarder, shell, status, token, trace, up,
    wallet, witness,
};

/// A trust-and-value plane: keys, tokens, money, payouts, verifiable by third parties.
#[derive(Parser)]
#[command(
    version,
    about,
    propagate_version = true,
    after_help = "Environment:\n  RON_DATA_DIR    data directory where --data-dir is absent\n  RON_URL         address of ron-kms where `ron kms` has no --url\n  RON_TOKEN_FILE  file with a passport where `ron kms` has no --token-file"
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Certificate authorities (PEM) that certificates of https services must chain to.
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Client certificate (PEM) to present to services that request one.
    #[arg(long, global = true, value_name = "FILE", requires_all = ["ca", "client_key"])]
    client_cert: Option<PathBuf>,
    /// Private key (PEM) of the client certificate, readable by its owner only.
    #[arg(long, global = true, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
    /// User id that the server of a Unix socket given with --url may run as; may be repeated. Your
    /// own when absent. Not needed for the services of a data directory.
    #[arg(long, global = true, value_name = "UID")]
    peer_uid: Vec<u32>,
    /// Send service tokens and client secrets over plain http on loopback too. If a service is
    /// down, any user of the host who takes its port receives them. Same as
    /// RON_INSECURE_LOOPBACK=1.
    #[arg(long, global = true)]
    insecure_loopback: bool,
}

#[derive(Subcommand)]
enum Command {
    Up(up::UpArgs),
    Init(init::InitArgs),
    Demo(demo::DemoArgs),
    Doctor(doctor::DoctorArgs),
    Status(status::StatusArgs),
    Events(events::EventsArgs),
    Trace(trace::TraceArgs),
    Backup(backup::BackupArgs),
    Restore(backup::restore::RestoreArgs),
    Login(Box<login::LoginArgs>),
    Logout(login::LogoutArgs),
    Console(console::ConsoleArgs),
    Token(token::TokenArgs),
    Client(client::ClientArgs),
    Audience(audience::AudienceArgs),
    Policy(policy::PolicyArgs),
    Issuer(issuer::IssuerArgs),
    Clock(clock::ClockArgs),
    Audit(check::audit::AuditArgs),
    Kms(kms::KmsArgs),
    Ledger(ledger::LedgerArgs),
    Ha(ha::HaArgs),
    Revocations(revocations::RevocationsArgs),
    Wallet(wallet::WalletArgs),
    Receipt(receipt::ReceiptArgs),
    Witness(witness::WitnessArgs),
    Rewarder(rewarder::RewarderArgs),
    Completions(shell::CompletionArgs),
    Man(shell::ManArgs),
}

impl Cli {
    /// Runs the selected command.
    pub fn run(self) -> ExitCode {
        // `ron up` is a service: its standard output is a log, whose reader may go away, and it has
        // exit codes of its own.
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
            Command::Status(args) => status::run(&args),
            Command::Events(args) => events::run(&args),
            Command::Trace(args) => trace::run(&args),
            Command::Backup(args) => backup::run(&args),
            Command::Restore(args) => backup::restore::run(&args),
            Command::Login(args) => login::login(&args),
            Command::Logout(args) => login::logout(&args),
            Command::Console(args) => console::run(&args),
            Command::Token(args) => token::run(args),
            Command::Client(args) => client::run(&args),
            Command::Audience(args) => audience::run(args),
            Command::Policy(args) => policy::run(args),
            Command::Issuer(args) => issuer::run(&args),
            Command::Clock(args) => clock::run(&args),
            Command::Ha(args) => ha::run(&args),
            Command::Audit(args) => check::audit::run(args),
            Command::Kms(args) => kms::run(args),
            Command::Ledger(args) => ledger::run(args),
            Command::Revocations(args) => revocations::run(args),
            Command::Wallet(args) => wallet::run(args),
            Command::Receipt(args) => receipt::run(args),
            Command::Witness(args) => witness::run(&args),
            Command::Rewarder(args) => rewarder::run(args),
            Command::Completions(args) => shell::completions(&args),
            Command::Man(args) => shell::man(&args),
        };
        result.map_or_else(shell::failed, |()| ExitCode::SUCCESS)
    }
}
