//! The svc-rewarder binary: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ron_service::main_with(&svc_rewarder::config::TABLE, svc_rewarder::start)
}
