//! Reads of the wallet in a ledger with many entries, and workers that debit one account; writes docs/bench/reads.md.

use crate::bench::{build, built};
use crate::cmd::Cmd;
use crate::files::{self, Removed};
use crate::task::{Args, Outcome};

pub fn reads(args: &Args) -> Outcome {
    let profile = args.text("profile");
    build(profile, "--workspace --bins --examples")?;
    let place = Removed(args.path("dir")?);
    files::fresh_dir(&place.0)?;
    let load = |more: &[&str], dir: &str| {
        Cmd::with_descriptors(8192, &built(profile).join("load"))
            .args(more)
            .args(["--seconds", args.text("seconds")])
            .arg("--dir")
            .arg(place.0.join(dir))
            .measured()
    };
    let reads = load(&["reads", "--entries", args.text("entries")], "reads")?;
    files::remove_dir(&place.0.join("reads"))?;
    let workers = args.text("workers");
    let one = load(&["wallet", "--one-account", "--clients", workers], "one")?;
    let out = args.path("out")?;
    files::write(&out, &page(args, &reads, &one)?)?;
    println!("wrote {}", out.display());
    Ok(())
}

fn page(args: &Args, reads: &str, one: &str) -> Outcome<String> {
    let (seconds, entries) = (args.text("seconds"), args.text("entries"));
    let profile = args.text("profile");
    let date = Cmd::new("date").args(["-u", "+%F"]).output()?;
    let note = match args.text("note") {
        "" => String::new(),
        note => format!("{note}\n\n"),
    };
    let (reads, one) = (reads.trim(), one.trim());
    Ok(format!(
        "# Reads of the wallet

Written by `cargo xtask bench-reads {seconds} {entries}` on {date}, {profile} profile. The load generator runs on the same cores as the services.

{note}One client sends the next read when the last one is answered; nothing is written meanwhile.

{reads}

## Workers that debit one account

Every worker has principals of its own, and its transfers have keys and no nonces.

{one}
"
    ))
}
