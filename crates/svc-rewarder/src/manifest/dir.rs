//! The artifact directory of a run. It holds a run exactly if it holds a manifest.
//!
//! Files: `run.json` (manifest), `payouts.bin` with `payouts.tree`, `snapshot.bin`, `policy.json`
//! with `policy.json.sig`, and, added when they exist, `run.sig.json` and `ledger.json`. The
//! manifest is the last file that is written and the first that is removed: beside it the other
//! files are whole and durable. Later files are added whole, one by one.

use std::io;
use std::path::{Path, PathBuf};

use ron_files::{Disk, write_atomic_with_mode};
use ron_proto::jcs;
use ron_proto::values::{EpochId, Tenant};
use ron_service::signed_policy;

use super::Computed;
use crate::inputs::policy::VerifiedPolicy;
use crate::inputs::snapshot::Sealed;
use crate::inputs::source::{READABLE, Source, put};

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
/// Returns when everything is durable. After a crash the directory may be incomplete; the run is
/// still `queued` in the database then, and is computed again.
pub fn write(
    disk: &dyn Disk,
    target: &Path,
    computed: &Computed,
    snapshot: &Sealed,
    policy: &VerifiedPolicy,
) -> io::Result<()> {
    let signature = signed_policy::signature_bytes(&policy.signature).map_err(io::Error::other)?;
    let manifest = to_json(&computed.manifest)?;
    disk.create_dir_all(target)?;
    clear(disk, target)?;
    #[cfg(mutant = "unproven")] // the manifest is there before what it is of
    if ron_kernel::mutant("unproven") {
        add(disk, target, RUN, &manifest)?;
    }
    snapshot.source().place(disk, &target.join(SNAPSHOT))?;
    put(disk, &target.join(POLICY), &policy.canonical)?;
    put(disk, &target.join(POLICY_SIG), &signature)?;
    if let Some(table) = &computed.table {
        table.source().place(disk, &target.join(PAYOUTS))?;
    }
    if let Some(tree) = &computed.tree {
        put(disk, &target.join(TREE), &tree.to_bytes())?;
    }
    disk.sync_dir(target)?;
    add(disk, target, RUN, &manifest)
}

/// Removes the files of an earlier run, its manifest first: no crash leaves a manifest beside the
/// artifacts of another run.
fn clear(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    let names = disk.list(dir)?;
    if names.iter().any(|name| name == RUN) {
        disk.remove(&dir.join(RUN))?;
        disk.sync_dir(dir)?;
    }
    let mut others = names.iter().filter(|name| *name != RUN);
    others.try_for_each(|name| disk.remove(&dir.join(name)))
}

/// Adds or replaces one file, durably and whole.
pub fn add(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    write_atomic_with_mode(disk, dir, name, bytes, READABLE)
}

/// Creates a file that must not exist yet, durably and whole; false if it existed already.
/// `temp_tag` keeps the temporary names of concurrent writers apart.
pub fn add_once(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    source: &Source,
    temp_tag: &str,
) -> io::Result<bool> {
    let temp = dir.join(format!(".new.{temp_tag}.{name}"));
    match disk.remove(&temp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    source.place(disk, &temp)?;
    // A link fails if the target exists; a rename would replace it.
    let linked = disk.link(&temp, &dir.join(name));
    disk.remove(&temp)?;
    match linked {
        Ok(()) => disk.sync_dir(dir).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Canonical JSON, as stored in run directories.
pub fn to_json<T: serde::Serialize>(document: &T) -> io::Result<Vec<u8>> {
    jcs::to_vec(document).map_err(io::Error::other)
}

#[cfg(test)]
#[path = "dir_tests.rs"]
mod tests;
