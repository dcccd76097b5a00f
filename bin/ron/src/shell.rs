//! Integration with shells and terminals: completions, manual pages, a quiet end at a closed pipe.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, Command};
use clap_mangen::Man;

use ron_services::NAMES;

/// The program itself and the services, whose command lines this program knows too.
fn programs() -> impl Iterator<Item = &'static str> {
    std::iter::once("ron").chain(NAMES)
}

/// Print a completion script for a shell.
#[derive(Args)]
pub struct CompletionArgs {
    /// Shell to print the script for: bash, zsh, fish, elvish or powershell.
    shell: clap_complete::Shell,
    /// Program that the script completes.
    #[arg(long, default_value = "ron", value_parser = PossibleValuesParser::new(programs()))]
    of: String,
}

/// Print the manual page of `ron`, or write all of them.
#[derive(Args)]
pub struct ManArgs {
    /// Write the pages of `ron` and of the services below this directory, into man1 and man8.
    #[arg(long)]
    dir: Option<PathBuf>,
}

fn command_of(program: &str) -> Command {
    match ron_services::find(program) {
        Some(service) => ron_service::command(service.table),
        None => crate::examples::command(),
    }
}

#[allow(clippy::unnecessary_wraps)] // the shape of a subcommand
pub fn completions(args: &CompletionArgs) -> Result<(), String> {
    let mut command = command_of(&args.of);
    clap_complete::generate(args.shell, &mut command, &args.of, &mut std::io::stdout());
    Ok(())
}

/// Prints the manual page, or writes all of them.
pub fn man(args: &ManArgs) -> Result<(), String> {
    let Some(dir) = &args.dir else {
        let page = Man::new(crate::examples::command());
        return page
            .render(&mut std::io::stdout())
            .map_err(|e| e.to_string());
    };
    for program in programs() {
        let section = if program == "ron" { "1" } else { "8" };
        let place = dir.join(format!("man{section}"));
        let cannot = |e: std::io::Error| format!("cannot write into {}: {e}", place.display());
        std::fs::create_dir_all(&place).map_err(cannot)?;
        let mut command = command_of(program).disable_help_subcommand(true);
        command.build();
        pages(&command, section, &place).map_err(cannot)?;
    }
    Ok(())
}

/// Writes the page of a command, and those of its subcommands.
fn pages(command: &Command, section: &str, dir: &Path) -> std::io::Result<()> {
    for sub in command.get_subcommands() {
        pages(sub, section, dir)?;
    }
    // `ron kms` and the service `ron-kms` have pages of the same name; their sections keep them
    // apart.
    Man::new(command.clone())
        .section(section)
        .source(format!("ron {}", env!("CARGO_PKG_VERSION")))
        .manual("ron")
        .generate_to(dir)?;
    Ok(())
}

/// Prints why a subcommand failed.
#[allow(clippy::needless_pass_by_value)] // the shape of an error's handler
pub fn failed(why: String) -> ExitCode {
    eprintln!("error: {why}");
    if let Some(hint) = hint(&why) {
        eprintln!("hint: {hint}");
    }
    ExitCode::from(1)
}

/// Advice for errors that many commands share: no service is listening, or there is no data
/// directory.
fn hint(why: &str) -> Option<&'static str> {
    let has = |signs: &[&str]| signs.iter().any(|sign| why.contains(sign));
    if has(&["is not sent over plain TCP"]) {
        return Some(
            "with a data directory the sockets are found by themselves: leave --url out, or give \
             unix:<data directory>/run/<service>/api.sock; --insecure-loopback sends it nevertheless",
        );
    }
    if has(&[
        "not reached",
        "refused the connection",
        "cannot be connected to",
    ]) {
        return Some(
            "is the service running? `ron up` starts all of them; with a --data-dir, name the same one here",
        );
    }
    let made = [
        "bootstrap.json",
        "verifiers.json",
        "clients/operator",
        "config.toml",
    ];
    (has(&["No such file"]) && has(&made) && !has(&["ron init"])).then_some(
        "`ron init` and `ron up` make a data directory; --data-dir names an existing one",
    )
}

/// `ron ... | head` is not a failure: a program that prints to a closed pipe ends quietly, as other
/// programs do.
pub fn end_at_a_closed_pipe() {
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
