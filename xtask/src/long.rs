//! Tasks that are tests of the workspace with a knob turned up.

use crate::cmd::Cmd;
use crate::files;
use crate::task::{Args, Failure, Outcome};

const SEED: &str = "the failed run printed its seed; RON_SEED=SEED repeats it";

/// The programs that the tests of `ron-tests` start.
fn build_programs() -> Outcome {
    Cmd::cargo("build --release --locked --workspace --bins").run()
}

/// Tests of some package, with the task's arguments as variables.
fn crate_test(args: &Args, test: &str) -> Outcome {
    Cmd::cargo(&format!("test --release --locked {test}"))
        .envs(args.variables())
        .hint(SEED)
        .run()
}

/// Tests of `ron-tests`, which start the programs of the workspace.
fn fleet_test(args: &Args, test: &str) -> Outcome {
    build_programs()?;
    crate_test(args, &format!("-p ron-tests {test}"))
}

pub fn soak(args: &Args) -> Outcome {
    if args.number("minutes")? == 0 {
        return Err(Failure("a soak takes at least one minute".to_owned()));
    }
    fleet_test(args, "--test soak -- --nocapture")
}

/// Crash images of the log and of record files on a simulated disk, then `kill -9` of the real KMS.
pub fn crash(args: &Args) -> Outcome {
    let release = match args.text("profile") {
        "dev" => "",
        _ => " --release",
    };
    let tests = |which: &str| {
        Cmd::cargo(&format!("test --quiet --locked{release} {which}"))
            .envs(args.variables())
            .hint(SEED)
            .run()
    };
    Cmd::cargo(&format!(
        "build --quiet --locked{release} --workspace --bins"
    ))
    .run()?;
    tests("-p ron-tlog --test crash -- --nocapture")?;
    tests("-p ron-files --test records -- --nocapture")?;
    tests("-p ron-tests --test tlog -- kill --nocapture")
}

pub fn fleet_kills(args: &Args) -> Outcome {
    fleet_test(args, "--test crash kill::")
}

pub fn wallet_kills(args: &Args) -> Outcome {
    fleet_test(args, "--test e2e wallet_faults::killed_at")
}

pub fn wallet_rounds(args: &Args) -> Outcome {
    fleet_test(args, "--test e2e wallet::")
}

pub fn stage_kills(args: &Args) -> Outcome {
    fleet_test(args, "--test crash stages::")
}

pub fn nonces(args: &Args) -> Outcome {
    fleet_test(args, "--test crash nonces::")
}

pub fn kms_replays(args: &Args) -> Outcome {
    fleet_test(args, "--test e2e kms_custody::remembered")
}

pub fn kms_stress(args: &Args) -> Outcome {
    crate_test(args, "-p ron-kms --lib race")
}

pub fn run_histories(args: &Args) -> Outcome {
    crate_test(args, "-p svc-rewarder --lib chaos")
}

pub fn revocations(args: &Args) -> Outcome {
    fleet_test(args, "--test e2e passport_spread -- --nocapture")
}

pub fn issuer_chaos(args: &Args) -> Outcome {
    build_programs()?;
    Cmd::cargo("test --release --locked -p ron-tests --test e2e passport_chaos")
        .envs(args.variables())
        .env("RON_QUIET", "1")
        .hint(SEED)
        .run()
}

/// Every order of four operations, then random histories against the model.
pub fn ledger_exhaustive(args: &Args) -> Outcome {
    Cmd::cargo("test --release --locked -p ron-ledger")
        .env("RON_LEDGER_EXHAUSTIVE", "1")
        .run()?;
    crate_test(args, "-p ron-ledger --lib")
}

pub fn flood(args: &Args) -> Outcome {
    fleet_test(args, "--test http a_flood")
}

/// Nothing but the libraries is built with these features.
pub fn devices(args: &Args) -> Outcome {
    crate_test(
        args,
        "-p ron-custody -p ron-kms --features pkcs11,tpm --lib -- tests::devices backend:: --test-threads 2",
    )
}

/// Nothing but the library is built with this feature.
pub fn columns(args: &Args) -> Outcome {
    let test = "-p svc-rewarder --features parquet --lib -- columns thrift parquet";
    crate_test(args, test)
}

/// schemathesis against the `/openapi.json` of real services.
pub fn api_fuzz(args: &Args) -> Outcome {
    let or = |name: &str, default: &str| match args.text(name) {
        "" => files::root().join(default),
        set => set.into(),
    };
    let ron = match args.text("ron") {
        "" => files::target().join("release/ron"),
        _ => args.path("ron")?,
    };
    Cmd::new("python3")
        .arg("tests/api/fuzz.py")
        .arg(ron)
        .arg(or("schemathesis", "target/fuzz-venv/bin/schemathesis"))
        .args(args.many("services"))
        .envs(args.variables())
        .run()
}
