//! Instructions that steps of the hot paths take, counted by Valgrind and compared with those of docs/bench/instructions.md.

use std::fmt::Write as _;
use std::fs;

use crate::bench::{build, built};
use crate::cmd::{Cmd, require};
use crate::files;
use crate::task::{Args, Failure, Outcome};

/// A command, to which the number of its steps is added, how many operations a step is, what the page calls one, and how many steps
/// are counted. `DIR` is a directory of its own.
const STEPS: [(&str, u64, &str, u64); 5] = [
    (
        "load steps sign --times",
        1,
        "an Ed25519 signature of 100 bytes, the library alone",
        500,
    ),
    (
        "load steps verify --times",
        1,
        "a passport verified, in no cache",
        500,
    ),
    (
        "load steps body --times",
        1,
        "the body of a transfer parsed as the wallet does",
        5_000,
    ),
    (
        "load steps commit --times",
        100,
        "an entry of a commit of 100 parsed as the ledger does",
        100,
    ),
    (
        "examples/commits DIR batches",
        64,
        "a transfer durable in the ledger in process, in batches of 64",
        60,
    ),
];
/// Percent above the page from which on the task fails. Versions of the C library, whose functions choose by the processor, differ by less.
const TOLERATED: f64 = 10.0;

pub fn instructions(args: &Args) -> Outcome {
    require(
        &["valgrind"],
        "apt-get install valgrind, or ./scripts/setup.sh",
    )?;
    // As the test command builds: other features would make other programs of the same sources.
    build(
        "release",
        "--workspace --all-features --bins --lib --examples",
    )?;
    let page = args.path("out")?;
    let known = fs::read_to_string(&page).unwrap_or_default();
    let (mut table, mut slower) = (String::new(), Vec::new());
    println!("| step | instructions | on the page |\n|---|--:|--:|");
    for (command, operations, shown, steps) in STEPS {
        let each = counted(command, steps)? / operations;
        let before = on_page(&known, shown);
        let change = before.map(|before| (each as f64 / before as f64 - 1.0) * 100.0);
        let compared = change.map_or_else(|| "-".to_owned(), |by| format!("{by:+.1} %"));
        println!("| {shown} | {each} | {compared} |");
        let _ = writeln!(table, "| {shown} | {each} |");
        if change.is_none_or(|by| by > TOLERATED) {
            slower.push(shown);
        }
    }
    if args.text("action") == "write" {
        files::write(&page, &text(&table)?)?;
        println!("wrote {}", page.display());
    } else if !slower.is_empty() {
        let what = slower.join("; ");
        return Err(Failure(format!(
            "more than {TOLERATED} % above docs/bench/instructions.md, or not there: {what}; if that is right, write the page: `cargo xtask instructions write`"
        )));
    }
    Ok(())
}

/// Instructions of one step: the difference of two runs that prepare the same.
fn counted(command: &str, steps: u64) -> Outcome<u64> {
    let run = |steps: u64| {
        let dir = files::scratch("instructions")?;
        let (program, words) = command.split_once(' ').unwrap_or((command, ""));
        let words = words.split(' ').map(|word| match word {
            "DIR" => dir.path().display().to_string(),
            word => word.to_owned(),
        });
        let printed = Cmd::new("valgrind")
            .args([
                "--tool=callgrind",
                "--callgrind-out-file=/dev/null",
                "--log-fd=1",
            ])
            .arg(built("release").join(program))
            .args(words)
            .arg(steps.to_string())
            .output()?;
        let line = printed
            .lines()
            .find_map(|line| line.split_once("Collected : "));
        let number = line.and_then(|(_, number)| number.trim().parse::<u64>().ok());
        number.ok_or_else(|| {
            Failure(format!(
                "valgrind printed no count of `{command}`: {printed}"
            ))
        })
    };
    let (few, many) = (run(steps)?, run(2 * steps)?);
    Ok(many.saturating_sub(few) / steps)
}

fn on_page(page: &str, shown: &str) -> Option<u64> {
    let begin = format!("| {shown} | ");
    let row = page.lines().find_map(|line| line.strip_prefix(&begin))?;
    row.trim_end_matches(" |").parse().ok()
}

fn text(table: &str) -> Outcome<String> {
    let date = Cmd::new("date").args(["-u", "+%F"]).output()?;
    let compiler = Cmd::new("rustc").arg("--version").output()?;
    Ok(format!(
        "# Instructions of the hot paths

Written by `cargo xtask instructions write` on {date}, {compiler}, x86-64. Callgrind counts the instructions of a thread that does a step (`load steps`, `commits DIR batches`), twice with
different numbers of steps; the difference is free of start and preparation. Such a count depends neither on the load of the machine nor on its clock: a change that makes a path slower is seen in
the test command, which fails when a row is more than {TOLERATED} % above this page. What it does not count: the kernel, waits for memory and disk, and waking threads, which are
most of what a request costs; see the pages of the services. Valgrind offers neither AVX-512 nor ADX nor the instructions
for SHA: libraries that choose by the processor, as for signatures, take other ways here than on a present processor, the same at each run.

| step | instructions |
|---|--:|
{table}"
    ))
}
