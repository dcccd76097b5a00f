//! The program behind `cargo xtask`.

use std::process::ExitCode;

fn main() -> ExitCode {
    xtask::watch_signals();
    match xtask::run(&xtask::command().get_matches()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}
