//! The project's rules, checked on the parsed source tree: layers, circles, purity, words that only the kernel may
//! use, sizes, comments, dependencies. Each failure says why the rule is there.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test may panic and run processes

mod comments;
mod dependencies;
mod keys;
mod language;
mod modules;
mod sizes;
mod tree;
mod words;

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests live in the workspace")
        .to_owned()
}

/// Fails when something was found, with the rule, its reason and every place.
fn report(rule: &str, why: &str, found: &[String]) {
    assert!(
        found.is_empty(),
        "{rule}\nwhy: {why}\n  {}\n",
        found.join("\n  ")
    );
}
