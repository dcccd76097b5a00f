//! The console's page: built from its sources, or compared with what is committed.

use crate::cmd::Cmd;
use crate::files;
use crate::task::{Args, Failure, Outcome};

pub fn ui(args: &Args) -> Outcome {
    let dir = files::root().join("crates/svc-admin/ui");
    let here = |program: &str| Cmd::new(program).dir(&dir);
    let action = args.text("action");
    if !["build", "check"].contains(&action) {
        return Err(Failure(format!("say `build` or `check`, not `{action}`")));
    }
    if !dir.join("node_modules/.bin/vite").exists() {
        here("npm")
            .args(["ci", "--no-audit", "--no-fund", "--silent"])
            .hint("run scripts/setup.sh, which installs Node and npm")
            .run()?;
    }
    if action == "build" {
        return here("npm").args(["run", "--silent", "build"]).run();
    }
    check(here)
}

fn check(here: impl Fn(&str) -> Cmd) -> Outcome {
    let out = files::scratch("ui")?;
    let program = |name: &str| {
        let path = files::root().join("crates/svc-admin/ui/node_modules/.bin");
        here(&path.join(name).to_string_lossy())
    };
    here("npm").args(["run", "--silent", "test"]).run()?;
    program("tsc").arg("--noEmit").run()?;
    program("vite")
        .args(["build", "--logLevel", "warn", "--emptyOutDir", "--outDir"])
        .arg(out.path())
        .run()?;
    here("diff")
        .arg("-r")
        .arg(out.path())
        .arg("dist")
        .hint("ui/dist is not what the sources give: run cargo xtask ui build")
        .run()?;
    println!("ui/dist is what the sources give");
    Ok(())
}
