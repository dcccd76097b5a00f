//! The SDKs of `sdk/`: their types and tests, and the verification page, built from its sources or compared with what is
//! committed.

use std::path::PathBuf;

use crate::cmd::Cmd;
use crate::files;
use crate::task::{Args, Failure, Outcome};

pub fn sdk(args: &Args) -> Outcome {
    let action = args.text("action");
    if !["build", "check"].contains(&action) {
        return Err(Failure(format!("say `build` or `check`, not `{action}`")));
    }
    let dir = files::root().join("sdk/typescript");
    let npm = |line: &[&str]| Cmd::new("npm").dir(&dir).args(line);
    if !dir.join("node_modules/.bin/tsc").exists() {
        npm(&["ci", "--no-audit", "--no-fund", "--silent"])
            .hint("run scripts/setup.sh, which installs Node and npm")
            .run()?;
    }
    let page = files::root().join("sdk/verify-page");
    let build = || Cmd::new("node").dir(&page).arg("build.mjs");
    if action == "build" {
        return build().run();
    }
    npm(&["run", "--silent", "check"]).run()?;
    npm(&["run", "--silent", "test"]).run()?;
    let python = || {
        let python = Cmd::new(python()).dir(&files::root().join("sdk/python"));
        python
            .env("PYTHONPATH", "src")
            .hint("run scripts/setup.sh, which makes target/test-venv")
    };
    python().args(["-m", "mypy"]).run()?;
    python().args(["-m", "unittest", "-q"]).run()?;
    let out = files::scratch("verify-page")?;
    let built = out.path().join("verify.html");
    build().arg(&built).run()?;
    Cmd::new("diff")
        .arg(&built)
        .arg(page.join("verify.html"))
        .hint("sdk/verify-page/verify.html is not what the sources give: run cargo xtask sdk build")
        .run()?;
    println!("sdk/verify-page/verify.html is what the sources give");
    Ok(())
}

/// The Python of the tests.
fn python() -> PathBuf {
    let set = std::env::var_os("RON_TEST_PYTHON").map(PathBuf::from);
    set.unwrap_or_else(|| files::root().join("target/test-venv/bin/python"))
}
