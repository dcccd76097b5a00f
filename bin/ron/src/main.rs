//! The `ron` command line: the whole system in one process, and the tools of operators and
//! auditors. One file per subcommand.

mod check;
mod demo;
mod fleet;
mod init;
mod layout;
mod policy;
mod rewarder;
mod token;
mod up;
mod verifiers;
mod witness;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// A trust-and-value plane: keys, tokens, money, payouts, verifiable by strangers.
#[derive(Parser)]
#[command(version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(up::UpArgs),
    Init(init::InitArgs),
    Demo(demo::DemoArgs),
    Token(token::TokenArgs),
    Policy(policy::PolicyArgs),
    Audit(check::audit::AuditArgs),
    /// Verify the ledger offline.
    Ledger(check::LogArgs),
    Witness(witness::WitnessArgs),
    Rewarder(rewarder::RewarderArgs),
    /// Print a completion script for a shell.
    Completions {
        /// bash, zsh, fish, elvish or powershell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page.
    Man,
}

/// `ron ... | head` is no failure: who prints to a closed pipe ends, as other programs do.
fn end_at_a_closed_pipe() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let printing =
            |text: &str| text.starts_with("failed printing to std") && text.contains("Broken pipe");
        if info.payload_as_str().is_some_and(printing) {
            std::process::exit(128 + 13); // what a shell shows for SIGPIPE
        }
        usual(info);
    }));
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    if !matches!(command, Command::Up(_)) {
        end_at_a_closed_pipe();
    }
    let result = match command {
        Command::Up(args) => match up::run(&args) {
            Ok(code) => return ExitCode::from(code),
            Err(failed) => {
                eprintln!("error: {}", failed.why);
                return ExitCode::from(failed.code);
            }
        },
        Command::Init(args) => init::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Token(args) => token::run(args),
        Command::Policy(args) => policy::run(args),
        Command::Audit(args) => check::audit::run(args),
        Command::Ledger(args) => check::ledger(args),
        Command::Witness(args) => witness::run(&args),
        Command::Rewarder(args) => rewarder::run(args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "ron", &mut std::io::stdout());
            Ok(())
        }
        Command::Man => clap_mangen::Man::new(Cli::command())
            .render(&mut std::io::stdout())
            .map_err(|e| e.to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(1)
        }
    }
}
