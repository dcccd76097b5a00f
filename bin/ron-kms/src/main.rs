//! The ron-kms process: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ron_service::main_with(&ron_kms::config::TABLE, ron_kms::start)
}
