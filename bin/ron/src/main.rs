//! The `ron` command line: the system in one process, and tools. One file per subcommand.

mod audience;
mod backup;
mod browser;
mod change;
mod check;
mod cli;
mod client;
mod clock;
mod console;
mod demo;
mod doctor;
#[cfg(test)]
mod documented;
mod events;
mod examples;
mod fleet;
mod ha;
mod in_force;
mod init;
mod issuer;
mod kms;
mod layout;
mod ledger;
mod log_files;
mod login;
mod markup;
mod migrate;
mod net;
mod policy;
mod receipt;
mod revocations;
mod rewarder;
mod shell;
mod status;
mod table;
mod token;
mod trace;
mod up;
mod verifiers;
mod wallet;
mod witness;

use std::process::ExitCode;

use clap::FromArgMatches;

fn main() -> ExitCode {
    let parsed = cli::Cli::from_arg_matches(&examples::command().get_matches());
    parsed.unwrap_or_else(|error| error.exit()).run()
}
