//! Measurements by `load`, the load generator of `benches/`, and by servers of other authors beside ours.

use std::path::PathBuf;

use crate::cmd::{Cmd, require};
use crate::files::{self, Removed};
use crate::task::{Args, Outcome};

/// What a task builds: with the profile of its arguments, or for release.
pub fn build(profile: &str, what: &str) -> Outcome {
    Cmd::cargo(&format!("build --profile {profile} --locked {what}")).run()
}

/// The directory of the programs of a profile.
pub fn built(profile: &str) -> PathBuf {
    files::target().join(files::profile_dir(profile))
}

/// Empty directories below the one to measure, removed when the task ends.
pub fn places(dir: &std::path::Path, names: &[&str]) -> Outcome<Vec<Removed>> {
    files::create_dir(dir)?;
    let place = |name: &&str| {
        let place = dir.join(name);
        files::remove_dir(&place)?;
        Ok(Removed(place))
    };
    names.iter().map(place).collect()
}

/// The fleet over HTTP, then its parts in process.
pub fn fleet(args: &Args) -> Outcome {
    let dir = args.path("dir")?;
    let _places = places(&dir, &["fleet", "log", "ledger"])?;
    build("release", "--workspace --bins --examples")?;
    build(
        "release",
        "-p svc-rewarder -p ron-ledger -p ron-tlog --examples",
    )?;
    let bin = built("release");
    println!("## Fleet over HTTP");
    Cmd::new(bin.join("load"))
        .args(["fleet", "--seconds", args.text("seconds"), "--dir"])
        .arg(dir.join("fleet"))
        .run()?;
    println!("\n## Log: durable appends in process");
    Cmd::new(bin.join("examples/append_rate"))
        .arg(dir.join("log"))
        .run()?;
    println!("\n## Ledger: durable commits in process");
    Cmd::new(bin.join("examples/commits"))
        .arg(dir.join("ledger"))
        .run()?;
    println!("\n## Reward calculus");
    Cmd::new(bin.join("examples/compute_time"))
        .arg("1000000")
        .run()
}

/// The console under its stated load: 100 nodes of 500 series, then the same beside 100 nodes that hang.
pub fn console(args: &Args) -> Outcome {
    build("release", "-p svc-admin-bin -p ron-benches")?;
    Cmd::with_descriptors(4096, &built("release").join("load"))
        .args(["console", "--seconds", args.text("seconds")])
        .run()
}

/// Proofs from a log of many leaves.
pub fn proofs(args: &Args) -> Outcome {
    build("release", "--workspace --bins --examples")?;
    let dir = args.path("dir")?;
    Cmd::new(built("release").join("load"))
        .args(["proofs", "--leaves", args.text("leaves"), "--dir"])
        .arg(dir)
        .run()
}

/// Appends to a log in PostgreSQL, with a standby; then the fleet on files, and on such a database.
pub fn ha(args: &Args) -> Outcome {
    let profile = args.text("profile");
    build(
        profile,
        "-p ron-ha -p ron -p ron-benches --features ron/postgres,ron-ha/postgres --bins",
    )?;
    let (load, seconds) = (built(profile).join("load"), args.text("seconds"));
    let fleet = ["--clients", "1,64,1000", "--only", "sign,token,transfer"];
    Cmd::with_descriptors(8192, &load)
        .args(["fleet", "--seconds", seconds])
        .args(fleet)
        .run()?;
    Cmd::with_descriptors(8192, &built(profile).join("ha-rates"))
        .arg(seconds)
        .arg(&load)
        .args(["--seconds", seconds])
        .args(fleet)
        .run()
}

/// Our HTTP front beside axum and tiny_http, loaded with wrk at 16, 128 and 1,000 connections; prints medians.
pub fn rivals(args: &Args) -> Outcome {
    require(&["wrk"], "apt-get install wrk")?;
    let target = files::target().join("rivals");
    Cmd::cargo("build --release --manifest-path benches/rivals/Cargo.toml --target-dir")
        .arg(&target)
        .run()?;
    Cmd::with_descriptors(8192, "python3".as_ref())
        .arg("benches/rivals/measure.py")
        .arg(target.join("release"))
        .args([args.text("seconds"), args.text("rounds")])
        .run()
}

/// Issuing and verifying passports over HTTP beside npm oidc-provider.
pub fn passport(args: &Args) -> Outcome {
    require(&["wrk"], "apt-get install wrk")?;
    let ron = if args.is_set("ron") {
        args.path("ron")?
    } else {
        build("release", "--bin ron")?;
        built("release").join("ron")
    };
    Cmd::new("npm")
        .args(["ci", "--no-audit", "--no-fund", "--silent"])
        .dir(&files::root().join("benches/rivals/oidc"))
        .run()?;
    Cmd::with_descriptors(8192, "python3".as_ref())
        .arg("benches/rivals/oidc/measure.py")
        .arg(ron)
        .args(["seconds", "rounds", "processes"].map(|name| args.text(name)))
        .arg(args.path("out")?)
        .run()
}

/// Epochs of 1, 10 and (streamed) 50 million accounts with peak memory, beside DuckDB and Polars in the same run, and
/// payouts a second into the real ledger.
pub fn rewarder(args: &Args) -> Outcome {
    let profile = args.text("profile");
    let venv = match args.text("venv") {
        "" => files::target().join("rivals-venv"),
        _ => args.path("venv")?,
    };
    build(profile, "-p ron")?;
    build(profile, "-p svc-rewarder --example compute_time")?;
    let python = venv.join("bin/python");
    if !python.exists() {
        Cmd::new("python3").args(["-m", "venv"]).arg(&venv).run()?;
    }
    let there = Cmd::new(&python).args(["-c", "import duckdb, polars"]);
    if !there.silent().status()?.success() {
        Cmd::new(venv.join("bin/pip"))
            .args(["install", "-q", "--disable-pip-version-check"])
            .args(["duckdb==2.0.0", "polars==2.1.0"])
            .run()?;
    }
    let place = Removed(args.path("dir")?);
    files::fresh_dir(&place.0)?;
    let threads = match args.text("threads") {
        "" => Cmd::new("nproc").output()?,
        set => set.to_owned(),
    };
    Cmd::new("python3")
        .args(["benches/rewarder/measure.py", "--bin"])
        .arg(built(profile))
        .arg("--dir")
        .arg(&place.0)
        .arg("--python")
        .arg(&python)
        .arg("--out")
        .arg(args.path("out")?)
        .args(["--sizes", args.text("sizes")])
        .args(["--streamed", args.text("streamed")])
        .args(["--settle", args.text("settle")])
        .args(["--threads", &threads])
        .run()
}
