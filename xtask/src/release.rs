//! What is published beside the source: Debian packages, the bill of materials, the check for known vulnerabilities.

use std::path::{Path, PathBuf};

use crate::cmd::{Cmd, source_date};
use crate::files;
use crate::task::{Args, Failure, Outcome};

/// All programs that are shipped: each has a directory of its own in `bin/`.
pub fn programs() -> Outcome<Vec<String>> {
    let dirs = files::entries(&files::root().join("bin"))?;
    let names = dirs.iter().filter_map(|dir| dir.file_name()?.to_str());
    Ok(names.map(str::to_owned).collect())
}

/// The library for programs that speak PKCS#11, a package beside those of the programs.
const MODULE: &str = "ron-pkcs11";
const MODULE_FILE: &str = "libron_pkcs11.so";

/// Debian packages from programs that are built already, into target/package.
pub fn package(args: &Args) -> Outcome {
    let profile = args.text("profile");
    let bin = files::target().join(files::profile_dir(profile));
    let programs = programs()?;
    for name in programs.iter().map(String::as_str).chain([MODULE_FILE]) {
        if !bin.join(name).exists() {
            return Err(Failure(format!(
                "{} is missing: cargo build --release --workspace --bins --lib",
                bin.join(name).display()
            )));
        }
    }
    // The manifests name this directory, wherever the programs are built.
    let made = files::root().join("target/package");
    files::fresh_dir(&made)?;
    describe(&bin, &made, &programs)?;
    let date = source_date();
    let of = |name: &String| match name.as_str() {
        "ron" => name.clone(),
        service => format!("{service}-bin"),
    };
    for package in programs.iter().map(of).chain([MODULE.to_owned()]) {
        let mut deb = Cmd::new("cargo-deb")
            .args(["deb", "--no-build", "--locked", "--quiet", "--strip"])
            .args(["--profile", profile, "--package", &package, "--output"])
            .arg(format!("{}/", made.display()))
            .env("CARGO_TARGET_DIR", files::target())
            .env("SOURCE_DATE_EPOCH", &date)
            .hint("scripts/setup.sh installs cargo-deb");
        if args.is_set("fast") {
            deb = deb.arg("--fast");
        }
        deb.run()?;
    }
    Cmd::sh("ls -l \"$1\"/*.deb").arg(made).run()
}

/// Manual pages and completions, which the command lines themselves print.
fn describe(bin: &Path, made: &Path, programs: &[String]) -> Outcome {
    let ron = bin.join("ron");
    files::create_dir(&made.join("completions"))?;
    Cmd::new(&ron)
        .args(["man", "--dir"])
        .arg(made.join("man"))
        .run()?;
    for name in programs {
        for shell in ["bash", "zsh", "fish"] {
            let text = Cmd::new(&ron)
                .args(["completions", shell, "--of", name])
                .output()?;
            let path = made.join(format!("completions/{name}.{shell}"));
            files::write(&path, &format!("{text}\n"))?;
        }
    }
    Ok(())
}

/// The bill of materials, on standard output or into the named file.
pub fn sbom(args: &Args) -> Outcome {
    let text = Cmd::new("python3")
        .arg("xtask/sbom.py")
        .env("SOURCE_DATE_EPOCH", source_date())
        .env("FEATURES", args.text("features"))
        .output()?;
    if !args.is_set("file") {
        println!("{text}");
        return Ok(());
    }
    let path = args.path("file")?;
    // A reader of the file never sees half of it.
    let new = PathBuf::from(format!("{}.new", path.display()));
    files::write(&new, &format!("{text}\n"))?;
    files::rename(&new, &path)
}

/// Known vulnerabilities of the crates in Cargo.lock, by a copy of the RustSec advisory database. Nothing is fetched: a
/// check that depends on what is new today is no part of the tests.
pub fn advisories(args: &Args) -> Outcome {
    if !args.is_set("database") {
        println!(
            "advisories: not checked (name the path of an advisory database: cargo xtask advisories PATH)"
        );
        return Ok(());
    }
    let database = args.path("database")?;
    let crates = database.join("crates");
    if !crates.is_dir() {
        return Err(Failure(format!(
            "{} holds no advisory database (there is no {}); run: git clone https://github.com/rustsec/advisory-db",
            database.display(),
            crates.display()
        )));
    }
    let work = files::scratch("advisories")?;
    check_out(&database, work.path())?;
    let config = work.path().join("deny.toml");
    let own = files::read(&files::root().join("deny.toml"))?;
    let place = work.path().join("db");
    let place = place.display();
    files::write(
        &config,
        &format!("{own}\n[advisories]\ndb-path = \"{place}\"\nyanked = \"allow\"\n"),
    )?;
    Cmd::new("cargo-deny")
        .args(["--all-features", "--offline", "--config"])
        .arg(config)
        .args(["check", "advisories"])
        .hint("scripts/setup.sh installs cargo-deny; replace a vulnerable crate, or ignore the advisory in deny.toml with the reason")
        .run()?;
    let count = files::below(&crates, ".md")?.len();
    let database = database.display();
    println!("advisories: checked against {database}, {count} advisories");
    Ok(())
}

/// Puts the database where cargo-deny looks: a git checkout below db-path, under the name that it gives to RustSec's own
/// address.
fn check_out(database: &Path, work: &Path) -> Outcome {
    let checkout = work.join("db/advisory-db-3157b0e258782691");
    files::create_dir(&work.join("db"))?;
    if database.join(".git").is_dir() {
        return Cmd::new("git")
            .args(["clone", "--quiet"])
            .arg(database)
            .arg(checkout)
            .run();
    }
    Cmd::new("cp")
        .arg("-r")
        .arg(database)
        .arg(&checkout)
        .run()?;
    Cmd::sh(
        "git init --quiet; git add --all; \
         git -c user.name=ron -c user.email=ron@localhost commit --quiet --message 'as given'",
    )
    .dir(&checkout)
    .run()
}
