//! Tasks that are tests of the workspace with a knob turned up.

use crate::cmd::Cmd;
use crate::files;
use crate::task::{Args, Outcome};

/// Tests of some package, with the task's arguments as variables.
pub fn crate_tests(args: &Args, tests: &str) -> Outcome {
    Cmd::cargo(&format!("test --release --locked {tests}"))
        .envs(args.variables())
        .hint("the failed run printed its seed; RON_SEED=SEED repeats it")
        .run()
}

/// Tests of `ron-tests`, which start the programs of the workspace.
pub fn fleet_tests(args: &Args, tests: &str) -> Outcome {
    Cmd::cargo("build --release --locked --workspace --bins --lib").run()?;
    crate_tests(args, &format!("-p ron-tests {tests}"))
}

/// Crash images of the log and of record files on a simulated disk, then `kill -9` of the real KMS.
pub fn crash(args: &Args) -> Outcome {
    crate_tests(args, "-p ron-tlog --test crash -- --nocapture")?;
    crate_tests(args, "-p ron-files --test records -- --nocapture")?;
    fleet_tests(args, "--test tlog -- kill --nocapture")
}

/// The page about database hosts, with services that are built for PostgreSQL.
pub fn ha_pages(args: &Args) -> Outcome {
    let features = "ron-ledger-bin/postgres,svc-wallet-bin/postgres";
    Cmd::cargo("build --release --locked --workspace --bins --features")
        .arg(features)
        .run()?;
    crate_tests(
        args,
        "-p ron-ha --features ron-ha/postgres --test pages -- --ignored",
    )
}

/// Faults in a fleet of processes, and how long each takes to be named.
pub fn drill(args: &Args) -> Outcome {
    let profile = args.text("profile");
    Cmd::cargo(&format!(
        "build --profile {profile} --locked --workspace --all-features --bins"
    ))
    .run()?;
    let page = files::root().join("docs/ops/drill.md");
    let (bin, rules) = (
        files::target().join(files::profile_dir(profile)),
        files::root().join("docs/ops/alerts.yml"),
    );
    let drill = Cmd::new(files::target().join("test-venv/bin/python"))
        .arg("tests/drill/drill.py")
        .arg("--bin")
        .arg(bin)
        .arg("--rules")
        .arg(rules)
        .args(["--port", args.text("port"), "--faults", args.text("faults")]);
    match args.text("faults") {
        "" => drill.arg("--out").arg(page).run(),
        _ => drill.run(),
    }
}

/// Every order of four operations, then random histories against the model.
pub fn ledger_exhaustive(args: &Args) -> Outcome {
    Cmd::cargo("test --release --locked -p ron-ledger")
        .env("RON_LEDGER_EXHAUSTIVE", "1")
        .run()?;
    crate_tests(args, "-p ron-ledger --lib")
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
