//! What shells and terminals ask of a command line: completions, a manual page, a quiet end at a closed pipe.

use std::process::ExitCode;

use clap::Command;

/// Prints a completion script.
#[allow(clippy::unnecessary_wraps)] // the shape of a subcommand
pub fn completions(shell: clap_complete::Shell, mut command: Command) -> Result<(), String> {
    clap_complete::generate(shell, &mut command, "ron", &mut std::io::stdout());
    Ok(())
}

/// Says why a subcommand failed.
#[allow(clippy::needless_pass_by_value)] // the shape of an error's handler
pub fn failed(why: String) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::from(1)
}

/// Prints the manual page.
pub fn man(command: Command) -> Result<(), String> {
    clap_mangen::Man::new(command)
        .render(&mut std::io::stdout())
        .map_err(|e| e.to_string())
}

/// `ron ... | head` is no failure: who prints to a closed pipe ends, as other programs do.
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
