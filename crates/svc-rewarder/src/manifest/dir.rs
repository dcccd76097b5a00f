//! The artifact directory of a run. It holds a run exactly if it holds a manifest.
//!
//! Files: `run.json` (manifest), `payouts.bin` with `payouts.tree`, `snapshot.bin`, `policy.json`
//! with `policy.json.sig`, for an epoch with claims `claims.tree` and `run.claims.json`, for a
//! correction `correction.bin`, for an epoch that pays several assets a directory `asset-<name>` with the same
//! files for each further one, and, added when they exist, `run.sig.json` and `ledger.json`. The manifest is the last file that is written
//! and the first that is removed: beside it the other files are whole and durable. Later files are
//! added whole, one by one.

use std::io;

use ron_files::Dir;
use ron_proto::jcs;
use ron_proto::values::{Asset, ContentId, EpochId, Tenant};
use ron_service::signed_policy;

use super::Computed;
use super::claims_file::{self, FILE_PAYEES_MAX};
use super::table::Table;
use crate::inputs::policy::VerifiedPolicy;
use crate::inputs::snapshot::Sealed;
use crate::inputs::source::{READABLE, Source, Target, put};

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
/// The claim tree, which readers use as a shortcut; only of an epoch with claims.
pub const CLAIMS_TREE: &str = "claims.tree";
/// The claim tree as OpenZeppelin's package reads it; only of an epoch with claims and not too many
/// payees.
pub const CLAIMS: &str = "run.claims.json";
/// What is due to every account and what was paid before; only of a correction.
pub const CORRECTION: &str = "correction.bin";
/// Balance and position of the ledger, as recorded before settlement.
pub const LEDGER: &str = "ledger.json";

/// Prefix of the directories of further assets, in that of a run.
pub const ASSET: &str = "asset-";
/// Prefix of the directories of dry runs.
pub const DRY: &str = "dry-";

/// The directory of a run under `root`; `dry_run` is the run key of a dry run. The prefixes make names
/// such as `..` harmless and keep dry runs apart.
pub fn of(root: &Dir, tenant: &Tenant, epoch: &EpochId, dry_run: Option<&ContentId>) -> Dir {
    let name = match dry_run {
        None => format!("epoch-{epoch}"),
        Some(run_key) => format!("{DRY}{epoch}.{}", run_key.hex()),
    };
    root.join(&format!("tenant-{tenant}")).join(&name)
}

/// The directory of a further asset in that of its run.
pub fn further(run: &Dir, asset: &Asset) -> Dir {
    run.join(&format!("{ASSET}{asset}"))
}

/// Writes a run's artifacts to `target`, replacing those of an earlier run with other inputs.
/// Returns when everything is durable. After a crash the directory may be incomplete; the run is
/// still `queued` in the database then, and is computed again.
pub fn write(
    target: &Dir,
    computed: &Computed,
    snapshot: &Sealed,
    policy: &VerifiedPolicy,
) -> io::Result<()> {
    let signature = signed_policy::signature_bytes(&policy.signature).map_err(io::Error::other)?;
    let manifest = to_json(&computed.manifest)?;
    let disk = &**target.disk();
    target.create()?;
    clear(target)?;
    #[cfg(mutant = "unproven")] // the manifest is there before what it is of
    if ron_kernel::mutant("unproven") {
        add(target, RUN, &manifest)?;
    }
    snapshot.source().place(disk, &target.file(SNAPSHOT))?;
    put(disk, &target.file(POLICY), &policy.canonical)?;
    put(disk, &target.file(POLICY_SIG), &signature)?;
    if let Some(table) = &computed.table {
        table.source().place(disk, &target.file(PAYOUTS))?;
    }
    if let Some(accounts) = &computed.accounts {
        accounts.source().place(disk, &target.file(CORRECTION))?;
    }
    if let Some(tree) = &computed.tree {
        put(disk, &target.file(TREE), &tree.to_bytes())?;
    }
    if let (Some(table), Some(_)) = (&computed.table, &computed.manifest.claims) {
        write_claims(target, table)?;
    }
    for also in &computed.also {
        let dir = further(target, &also.manifest.asset);
        write(&dir, also, snapshot, policy)?;
    }
    target.sync()?;
    add(target, RUN, &manifest)
}

/// The tree is made again from the table: results that wait for this thread hold none, so only one
/// tree is in memory here.
fn write_claims(target: &Dir, table: &Table) -> io::Result<()> {
    let tree = claims_file::tree_of(table).map_err(io::Error::other)?;
    let file = |name: &str| Target::file(&**target.disk(), &target.file(name));
    let mut stored = file(CLAIMS_TREE)?;
    tree.each_stored(|piece| stored.append(piece))?;
    stored.finish(&[])?;
    if table.len() <= FILE_PAYEES_MAX {
        let mut json = file(CLAIMS)?;
        claims_file::each_json(&tree, table, |piece| json.append(piece))?;
        json.finish(&[])?;
    }
    Ok(())
}

/// Removes the files of an earlier run, its manifest first: no crash leaves a manifest beside the
/// artifacts of another run.
fn clear(dir: &Dir) -> io::Result<()> {
    remove_manifest(dir)?;
    for name in dir.list()? {
        if name.starts_with(ASSET) {
            dir.join(&name).remove_all()?;
        } else {
            dir.remove(&name)?;
        }
    }
    Ok(())
}

fn remove_manifest(dir: &Dir) -> io::Result<()> {
    if dir.exists(RUN)? {
        dir.remove(RUN)?;
        dir.sync()?;
    }
    Ok(())
}

/// Removes a run's directory, its manifest first; not found when there is none.
pub fn remove(dir: &Dir) -> io::Result<()> {
    remove_manifest(dir)?;
    dir.remove_all()
}

/// Adds or replaces one file, durably and whole.
pub fn add(dir: &Dir, name: &str, bytes: &[u8]) -> io::Result<()> {
    dir.write_with_mode(name, bytes, READABLE)
}

/// Creates a file that must not exist yet, whole; false if it existed already. It is durable in both cases.
/// `temp_tag` keeps the temporary names of concurrent writers apart.
pub fn add_once(dir: &Dir, name: &str, source: &Source, temp_tag: &str) -> io::Result<bool> {
    let disk = &**dir.disk();
    let temp = dir.file(&format!(".new.{temp_tag}.{name}"));
    match disk.remove(&temp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    source.place(disk, &temp)?;
    // A link fails if the target exists; a rename would replace it.
    let linked = disk.link(&temp, &dir.file(name));
    disk.remove(&temp)?;
    let is_new = match linked {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(error),
    };
    dir.sync()?;
    Ok(is_new)
}

/// Canonical JSON, as stored in run directories.
pub fn to_json<T: serde::Serialize>(document: &T) -> io::Result<Vec<u8>> {
    jcs::to_vec(document).map_err(io::Error::other)
}

#[cfg(test)]
#[path = "dir_tests.rs"]
mod tests;
