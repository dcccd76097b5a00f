//! The ron-kms binary: the service as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    ron_service::main_with::<ron_kms::RonKms>()
}
