//! Mutation testing (cargo-mutants) of what decides about money and of what makes a request happen once: the ledger's
//! core, its replay and key index, the wallet's in-flight requests, unresolved keys and copy of answers.
//!
//! Each mutant is one changed expression; the unit tests of its crate must fail. Survivors are listed in
//! OUT/mutants.out/missed.txt. A sample k/n is every n-th mutant in the order of the sources, from the k-th: the same
//! each time and spread over all files. A mutant costs one build of its crate in the dev profile and some seconds of
//! tests. Two passes: the first leaves out the exhaustive generator, which is the slowest test; the second gives those
//! that survived all tests and twenty times the cases.

use std::path::Path;

use crate::cmd::Cmd;
use crate::files;
use crate::task::{Args, Failure, Outcome};

const FILES: &[(&str, &[&str])] = &[
    (
        "crates/ron-ledger/src/core",
        &[
            "codec", "decide", "delta", "image", "leaf", "limits", "op", "op_codec", "rules",
            "state",
        ],
    ),
    ("crates/ron-ledger/src", &["answers", "replay"]),
    ("crates/ron-ledger/src/store", &["keys"]),
    ("crates/svc-wallet/src", &["inflight", "unresolved"]),
    (
        "crates/svc-wallet/src/answers",
        &["mod", "index", "segments"],
    ),
];

pub fn mutants(args: &Args) -> Outcome {
    if Cmd::sh("command -v cargo-mutants").output().is_err() {
        Cmd::cargo("install --quiet --locked --root target/tools --version 27.1.0 cargo-mutants")
            .run()?;
    }
    let (out, cases) = (args.path("out")?, args.number("cases")?);
    files::create_dir(&out)?;
    pass(
        args,
        &out,
        cases,
        &[],
        &["--lib", "--", "--skip", "exhaustive"],
    )?;
    score(args, &out)?;
    pass(args, &out, 20 * cases, &["--iterate"], &["--lib"])?;
    score(args, &out)
}

fn pass(args: &Args, out: &Path, cases: u64, options: &[&str], tests: &[&str]) -> Outcome {
    let mut run = Cmd::new("nice")
        .args(["-n", "19", "cargo", "mutants"])
        .args(["--package", "ron-ledger", "--package", "svc-wallet"])
        .args(["--jobs", "1", "--sharding", "round-robin", "--shard"])
        .arg(args.text("sample"))
        .arg("--output")
        .arg(out)
        .args(["--timeout", "120", "--baseline", "skip", "--no-shuffle"])
        .args(["--colors", "never"]);
    for (dir, names) in FILES {
        for name in *names {
            let file = format!("{dir}/{name}.rs");
            if !files::root().join(&file).exists() {
                return Err(Failure(format!(
                    "{file} does not exist; correct FILES in xtask/src/mutation.rs"
                )));
            }
            run = run.arg("--file").arg(file);
        }
    }
    let run = run.args(options).args(args.many("options")).arg("--");
    let run = run.args(tests).env("RON_LEDGER_CASES", cases.to_string());
    // cargo-mutants ends with 2 when some survive, with 3 on timeouts.
    let status = run.status()?;
    match status.code() {
        Some(0 | 2 | 3) => Ok(()),
        _ => Err(Failure(format!("cargo mutants: {status}"))),
    }
}

fn score(args: &Args, out: &Path) -> Outcome {
    let count = |name: &str| -> Outcome<usize> {
        let path = out.join("mutants.out").join(name);
        Ok(files::read(&path)?.lines().count())
    };
    let before = count("previously_caught.txt").unwrap_or(0);
    let killed = count("caught.txt")? + before + count("timeout.txt")?;
    let missed = count("missed.txt")?;
    let share = 100 * killed / (killed + missed).max(1);
    let sample = args.text("sample");
    println!("sample {sample}: {killed} killed, {missed} survived: {share} %");
    Ok(())
}
