//! A service with its log or records in PostgreSQL as a process of its own, as its program starts it: for tests that kill it.

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::var("RON_HA_SERVICE").as_deref() {
        Ok("ron-kms") => ron_service::main_with::<ron_kms::RonKms>(),
        Ok("ron-ledger") => ron_service::main_with::<ron_ledger::RonLedger>(),
        Ok("svc-wallet") => ron_service::main_with::<svc_wallet::SvcWallet>(),
        _ => {
            eprintln!("RON_HA_SERVICE is ron-kms, ron-ledger or svc-wallet");
            ExitCode::FAILURE
        }
    }
}
