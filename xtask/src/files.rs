//! Paths of the tree, and file operations whose errors name the file.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::task::{Failure, Outcome};

/// The root of the source tree.
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

/// Cargo's target directory, absolute.
pub fn target() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR").filter(|v| !v.is_empty());
    root().join(set.map_or_else(|| PathBuf::from("target"), PathBuf::from))
}

/// The directory inside a target directory in which a profile's programs are.
pub fn profile_dir(profile: &str) -> &str {
    if profile == "dev" { "debug" } else { profile }
}

/// Adds the path and what was attempted to an error of the operating system.
fn with_path<T>(result: std::io::Result<T>, attempt: &str, path: &Path) -> Outcome<T> {
    result.map_err(|e| Failure(format!("cannot {attempt} {}: {e}", path.display())))
}

pub fn read(path: &Path) -> Outcome<String> {
    with_path(fs::read_to_string(path), "read", path)
}

pub fn write(path: &Path, text: &str) -> Outcome {
    with_path(fs::write(path, text), "write", path)
}

/// Writes a program that others may run.
pub fn write_program(path: &Path, text: &str) -> Outcome {
    let new = path.with_extension("new");
    write(&new, text)?;
    let made = fs::set_permissions(&new, fs::Permissions::from_mode(0o755));
    with_path(made.and_then(|()| fs::rename(&new, path)), "make", path)
}

pub fn create_dir(path: &Path) -> Outcome {
    with_path(fs::create_dir_all(path), "create the directory", path)
}

/// Removes a directory with all that is in it; an absent one is no error.
pub fn remove_dir(path: &Path) -> Outcome {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => with_path(done, "remove", path),
    }
}

/// Makes an empty directory, whatever was there before.
pub fn fresh_dir(path: &Path) -> Outcome {
    remove_dir(path)?;
    create_dir(path)
}

pub fn copy(from: &Path, to: &Path) -> Outcome {
    with_path(fs::copy(from, to), "copy", from).map(|_| ())
}

pub fn rename(from: &Path, to: &Path) -> Outcome {
    with_path(fs::rename(from, to), "rename", from)
}

/// The files and directories in a directory, in the order of their names.
pub fn entries(dir: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = with_path(fs::read_dir(dir), "read the directory", dir)?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(with_path(entry, "read the directory", dir)?.path());
    }
    paths.sort();
    Ok(paths)
}

/// All files below a directory whose names end like this.
pub fn below(dir: &Path, ending: &str) -> Outcome<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in entries(dir)? {
        if path.is_dir() {
            found.append(&mut below(&path, ending)?);
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    Ok(found)
}

/// A directory that is removed when the task ends, also when it fails or is interrupted.
pub fn scratch(name: &str) -> Outcome<TempDir> {
    let made = tempfile::Builder::new()
        .prefix(&format!("{name}."))
        .tempdir();
    with_path(made, "make a directory in", &std::env::temp_dir())
}

/// A directory that is removed when the task ends; for a place that the caller chose.
pub struct Removed(pub PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        if let Err(failure) = remove_dir(&self.0) {
            eprintln!("xtask: {failure}");
        }
    }
}
