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
    if let Some(hint) = hint(&why) {
        eprintln!("hint: {hint}");
    }
    ExitCode::from(1)
}

/// What to do about what many commands meet: nobody there to answer, or no data directory.
fn hint(why: &str) -> Option<&'static str> {
    let has = |signs: &[&str]| signs.iter().any(|sign| why.contains(sign));
    if has(&["not reached", "refused the connection"]) {
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
        "`ron init` and `ron up` make a data directory; --data-dir names one that is there",
    )
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
