//! Whole builds elsewhere: with the oldest dependencies, and twice to compare the bytes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cmd::{Cmd, write_commit};
use crate::files;
use crate::release::programs;
use crate::task::{Args, Failure, Outcome};

/// Resolves every direct dependency to the oldest version that Cargo.toml admits, in a copy, and compiles it.
pub fn minimal_versions(args: &Args) -> Outcome {
    let work = files::scratch("minimal")?;
    write_commit(work.path())?;
    let before = versions(&work.path().join("Cargo.lock"))?;
    // The resolver's flag is one of nightly compilers; only the resolver runs with it, never the compiler.
    Cmd::cargo("update --quiet -Z")
        .arg(args.text("mode"))
        .env("RUSTC_BOOTSTRAP", "1")
        .dir(work.path())
        .run()?;
    println!("oldest versions resolved; those that differ from Cargo.lock:");
    for version in versions(&work.path().join("Cargo.lock"))?.difference(&before) {
        println!("> {version}");
    }
    let target = match args.text("target") {
        "" => work.path().join("target"),
        _ => args.path("target")?,
    };
    Cmd::cargo("check --quiet --locked --workspace --all-targets")
        .env("CARGO_TARGET_DIR", target)
        .dir(work.path())
        .hint("raise the lower bound in Cargo.toml of the crate that does not compile")
        .run()?;
    println!("minimal versions: the workspace compiles with them");
    Ok(())
}

/// Name and version of every package in a lock file.
fn versions(lock: &Path) -> Outcome<BTreeSet<String>> {
    let text = files::read(lock)?;
    let mut name = "";
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if let Some(of) = line.strip_prefix("name = ") {
            name = of;
        } else if let Some(version) = line.strip_prefix("version = \"") {
            found.insert(format!("{name} \"{version}"));
        }
    }
    Ok(found)
}

/// Two names of different length, so that a path in a program shows.
const PLACES: [&str; 2] = ["one", "another-place-with-a-longer-name"];

/// Builds the last commit twice, in two directories, and compares the programs byte by byte.
pub fn reproducible(args: &Args) -> Outcome {
    let work = files::scratch("reproducible")?;
    let named = match args.text("bin") {
        "" => programs()?,
        one => vec![one.to_owned()],
    };
    let bins: Vec<&str> = named.iter().map(String::as_str).collect();
    for place in PLACES {
        build_in(args, work.path(), place, &bins)?;
    }
    let mut same = true;
    for bin in bins {
        let [one, other] = PLACES.map(|place| built(work.path(), place, bin));
        if Cmd::new("cmp").arg(&one).arg(other).status()?.success() {
            let sum = Cmd::new("sha256sum").arg(one).output()?;
            println!("{}  {bin}", sum.split(' ').next().unwrap_or(""));
        } else {
            same = false;
        }
    }
    if !same {
        return Err(Failure(
            "not reproducible; docs/supply-chain.md lists what the result depends on".to_owned(),
        ));
    }
    println!("reproducible: the binaries of both places are the same");
    Ok(())
}

fn built(work: &Path, place: &str, bin: &str) -> PathBuf {
    work.join(format!("{place}.{bin}"))
}

fn build_in(args: &Args, work: &Path, place: &str, bins: &[&str]) -> Outcome {
    let (dir, profile) = (work.join(place), args.text("profile"));
    write_commit(&dir)?;
    println!("building in {}", dir.display());
    let map = format!("{}=/ron", dir.display());
    let cargo_map = format!("{}=/cargo", cargo_home().display());
    let build = Cmd::cargo("build --locked --quiet --profile").arg(profile);
    let build = match args.text("package") {
        "" => build.args(["--workspace", "--bins"]),
        package => build.args(["--package", package]),
    };
    build
        .env("SOURCE_DATE_EPOCH", "0")
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_TARGET_DIR", dir.join("target"))
        .env(
            "RUSTFLAGS",
            format!("--remap-path-prefix={map} --remap-path-prefix={cargo_map}"),
        )
        .env(
            "CFLAGS",
            format!("-ffile-prefix-map={map} -ffile-prefix-map={cargo_map}"),
        )
        .dir(&dir)
        .run()?;
    let out = dir.join("target").join(files::profile_dir(profile));
    for bin in bins {
        files::copy(&out.join(bin), &built(work, place, bin))?;
    }
    files::remove_dir(&dir)
}

/// Where cargo keeps the sources of dependencies.
pub fn cargo_home() -> PathBuf {
    let set = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = set.unwrap_or_else(|| {
        let home = std::env::var_os("HOME").unwrap_or_default();
        PathBuf::from(home).join(".cargo")
    });
    fs::canonicalize(&home).unwrap_or(home)
}
