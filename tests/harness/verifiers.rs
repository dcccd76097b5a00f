//! Programs of third parties that check proofs of our logs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::workspace;

/// Writes a file; returns its path.
pub fn file(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).expect("written");
    path
}

/// Go's own implementation of notes and trees, on a vkey, a proof and its leaf.
pub fn go(dir: &Path, vkey: &str, proof: &str, leaf: &[u8]) -> Output {
    let files = [
        file(dir, "vkey", vkey.as_bytes()),
        file(dir, "proof", proof.as_bytes()),
        file(dir, "leaf", leaf),
    ];
    Command::new("go")
        .args(["run", "check.go"])
        .args(files)
        .current_dir(workspace().join("tests/tlog/go"))
        .env("GO111MODULE", "off")
        .env("GOPATH", "/usr/share/gocode")
        .env("GOCACHE", std::env::temp_dir().join("ron-go-cache"))
        .output()
        .expect("go runs: scripts/setup.sh installs golang-go and golang-golang-x-mod-dev")
}

/// A program from PyPI that reads the same formats, if `scripts/setup.sh` found a Python of 3.12 or later.
pub fn from_pypi(program: &str) -> Option<PathBuf> {
    let set = std::env::var_os("RON_TEST_WITNESS_VENV").map(PathBuf::from);
    let venv = set.unwrap_or_else(|| workspace().join("target/witness-venv"));
    let path = venv.join("bin").join(program);
    path.exists().then_some(path)
}
