//! Fuzzing without cargo-fuzz: libFuzzer is linked in, and the stable compiler instruments the code.

use std::path::Path;

use crate::cmd::Cmd;
use crate::files;
use crate::task::{Args, Failure, Outcome};

const TARGETS: [&str; 14] = [
    "request",
    "chunked",
    "routing",
    "json",
    "unpack",
    "metrics",
    "ledger",
    "token",
    "assertion",
    "form",
    "kms",
    "transit",
    "columns",
    "usage",
];

/// The flags that cargo-fuzz would give, without the address sanitizer: our code has no unsafe.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions=on";

pub fn fuzz(args: &Args) -> Outcome {
    let seconds = args.number("seconds")?;
    let out = files::target().join("fuzz");
    let version = Cmd::new("rustc").arg("-vV").output()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or_else(|| Failure("`rustc -vV` names no host".to_owned()))?;
    Cmd::cargo("build --release --manifest-path fuzz/Cargo.toml --target")
        .arg(host)
        .arg("--target-dir")
        .arg(&out)
        .env("RUSTFLAGS", FLAGS)
        // As `cargo fuzz` needs it on the stable compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        .run()?;
    let named = args.many("targets").iter().map(String::as_str);
    let mut targets: Vec<&str> = named.collect();
    if targets.is_empty() {
        targets.extend(TARGETS);
    }
    let programs = out.join(host).join("release");
    targets
        .into_iter()
        .try_for_each(|target| one(&programs, &out, target, seconds))
}

fn one(programs: &Path, out: &Path, target: &str, seconds: u64) -> Outcome {
    let (corpus, artifacts) = (
        out.join("corpus").join(target),
        out.join("artifacts").join(target),
    );
    files::create_dir(&corpus)?;
    files::create_dir(&artifacts)?;
    println!("== {target}");
    // libFuzzer reports on standard error.
    let mut run = Cmd::sh("exec \"$@\" 2>&1")
        .arg(programs.join(target))
        .arg(&corpus)
        .arg(format!("fuzz/corpus/{target}"))
        .arg(format!("-max_total_time={seconds}"))
        .args(["-max_len=4096", "-timeout=5", "-rss_limit_mb=1024"])
        .args(["-verbosity=0", "-print_final_stats=1"])
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .hint("the input is in target/fuzz/artifacts");
    let dict = format!("fuzz/{target}.dict");
    if files::root().join(&dict).exists() {
        run = run.arg(format!("-dict={dict}"));
    }
    let noise = [
        "stat::new_units",
        "stat::slowest",
        "stat::peak",
        "\"",
        "###",
    ];
    run.lines(|line| !noise.iter().any(|start| line.starts_with(start)))
        .map(|_| ())
}
