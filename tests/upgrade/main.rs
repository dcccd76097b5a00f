//! Upgrade safety: data directories of earlier programs are opened, read and continued; files of a
//! newer program are refused, by name and number, and left unchanged.
//!
//! The directories are in `tests/fixtures/formats`, made by `tests/fixtures/make.sh`.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod newer;
mod older;

use std::path::{Path, PathBuf};
use std::process::Command;

use ron_tests::workspace;

/// The fixtures, oldest first.
pub fn fixtures() -> Vec<PathBuf> {
    let dir = workspace().join("tests/fixtures/formats");
    let mut found: Vec<PathBuf> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "gz"))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "no fixture in {}", dir.display());
    found
}

/// Unpacks a fixture: its data directory goes to `data`, the recorded responses to `answers`.
pub fn unpack(fixture: &Path, data: &Path, answers: &Path) {
    for (what, into) in [("data", data), ("answers", answers)] {
        let status = Command::new("tar")
            .args(["--no-same-owner", "--strip-components=1", "-xpzf"])
            .arg(fixture)
            .arg("-C")
            .arg(into)
            .arg(what)
            .status()
            .unwrap();
        assert!(status.success(), "{}", fixture.display());
    }
}
