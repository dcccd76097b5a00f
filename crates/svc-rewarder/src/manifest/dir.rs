//! The artifact directory of a run: written whole or not at all.
//!
//! Files: `run.json` (manifest), `payouts.bin` with `payouts.tree`, `snapshot.bin`, `policy.json`
//! with `policy.json.sig`, and, added when they exist, `run.sig.json` and `ledger.json`. A
//! directory is filled under a temporary name, every file and the directory are fsynced, and a
//! rename puts it in place. Files added later are written in the same way one by one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use ron_proto::jcs;
use ron_proto::values::{EpochId, Tenant};
use ron_service::signed_policy;

use super::Computed;
use crate::inputs::policy::VerifiedPolicy;
use crate::inputs::snapshot::Sealed;
use crate::inputs::source::{Source, put};

pub const RUN: &str = "run.json";
pub const RUN_SIG: &str = "run.sig.json";
/// The payout table; absent for a quarantined run.
pub const PAYOUTS: &str = "payouts.bin";
/// The upper part of the payouts' tree, which readers use as a shortcut.
pub const TREE: &str = "payouts.tree";
pub const SNAPSHOT: &str = "snapshot.bin";
/// The policy's canonical bytes.
pub const POLICY: &str = "policy.json";
pub const POLICY_SIG: &str = "policy.json.sig";
/// Balance and position of the ledger, as recorded before settlement.
pub const LEDGER: &str = "ledger.json";

/// Path of a run's directory under `root`. The prefixes make names such as `..` harmless and keep
/// dry runs apart.
pub fn path(root: &Path, tenant: &Tenant, epoch: &EpochId, dry_run: bool) -> PathBuf {
    let kind = if dry_run { "dry" } else { "epoch" };
    root.join(format!("tenant-{tenant}"))
        .join(format!("{kind}-{epoch}"))
}

/// Writes a run's artifacts to `target`, replacing those of an earlier run with other inputs.
/// Returns when everything is durable.
pub fn write(
    target: &Path,
    computed: &Computed,
    snapshot: &Sealed,
    policy: &VerifiedPolicy,
) -> io::Result<()> {
    let parent = target
        .parent()
        .ok_or_else(|| io::Error::other("a run directory has a parent"))?;
    let name = target
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    create_dirs(parent)?;
    let temp = parent.join(format!(".new.{name}"));
    remove_dir(&temp)?;
    fs::create_dir(&temp)?;
    let signature = signed_policy::signature_bytes(&policy.signature).map_err(io::Error::other)?;
    let manifest = to_json(&computed.manifest)?;
    snapshot.source().place(&temp.join(SNAPSHOT))?;
    put(&temp.join(POLICY), &policy.canonical)?;
    put(&temp.join(POLICY_SIG), &signature)?;
    if let Some(table) = &computed.table {
        table.source().place(&temp.join(PAYOUTS))?;
    }
    if let Some(tree) = &computed.tree {
        put(&temp.join(TREE), &tree.to_bytes())?;
    }
    put(&temp.join(RUN), &manifest)?;
    sync_dir(&temp)?;
    if target.exists() {
        // A rename cannot replace a directory that is not empty, so it takes two. After a crash
        // between them the run is still `queued` in the database, and is computed again.
        let old = parent.join(format!(".old.{name}"));
        remove_dir(&old)?;
        fs::rename(target, &old)?;
        fs::rename(&temp, target)?;
        sync_dir(parent)?;
        return remove_dir(&old);
    }
    fs::rename(&temp, target)?;
    sync_dir(parent)
}

/// Adds or replaces one file, durably and whole.
pub fn add(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temp = dir.join(format!(".new.{name}"));
    put(&temp, bytes)?;
    fs::rename(&temp, dir.join(name))?;
    sync_dir(dir)
}

/// Creates a file that must not exist yet, durably and whole; false if it existed already.
/// `temp_tag` keeps the temporary names of concurrent writers apart.
pub fn add_once(dir: &Path, name: &str, bytes: &[u8], temp_tag: &str) -> io::Result<bool> {
    let temp = dir.join(format!(".new.{temp_tag}.{name}"));
    put(&temp, bytes)?;
    // A hard link fails if the target exists; a rename would replace it.
    let linked = fs::hard_link(&temp, dir.join(name));
    fs::remove_file(&temp)?;
    match linked {
        Ok(()) => sync_dir(dir).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// The same for bytes of any size.
pub fn place_once(source: &Source, target: &Path, temp_tag: &str) -> io::Result<bool> {
    let (Some(dir), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(io::Error::other("a file has a directory and a name"));
    };
    let temp = dir.join(format!(".new.{temp_tag}.{}", name.to_string_lossy()));
    remove_file(&temp)?;
    source.place(&temp)?;
    let linked = fs::hard_link(&temp, target);
    fs::remove_file(&temp)?;
    match linked {
        Ok(()) => sync_dir(dir).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Canonical JSON, as stored in run directories.
pub fn to_json<T: serde::Serialize>(document: &T) -> io::Result<Vec<u8>> {
    jcs::to_vec(document).map_err(io::Error::other)
}

/// Creates a directory and its parents, durably.
pub fn create_dirs(dir: &Path) -> io::Result<()> {
    // The parent of a relative path of one name is empty: it means the working directory, which
    // exists.
    if dir.as_os_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        create_dirs(parent)?;
    }
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    dir.parent().map_or(Ok(()), sync_dir)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    })?
    .sync_all()
}

fn remove_dir(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
