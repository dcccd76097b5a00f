//! `ron restore`: a data directory from a backup, at any path. It is an older state than the one that was lost, so it is never
//! taken for that: see [`super::Recovery`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use ron_files::{Disk as _, OsDisk, SharedDisk, rename_durably};
use ron_kernel::{Clock as _, OsRandom, SystemClock};
use ron_kms::migrate::KeyService;
use ron_kms::recover::Restored;
use ron_proto::{Timestamp, b64};
use ron_service::log_host::archive::ArchiveKeys;
use ron_services::NAMES;
use ron_tlog::append::forget_archive;
use svc_passport::IssuerService;
use svc_passport::recover::end_passports;

use super::manifest::{self, Manifest};
use super::{Recoveries, Recovery, verdicts};
use crate::fleet;
use crate::init;
use crate::layout::{
    Bootstrap, LOGS, Layout, Place, make_dir, read_json, socket_url, write_atomic, write_json,
};
use crate::verifiers;

/// Make a data directory of a backup, at any path, and mark that as a recovery.
///
/// Logs and files are verified first. The key service begins another audit log, whose first leaf names the one before; all tokens
/// end; what else is not as before is printed, and kept in recoveries.json.
#[derive(Args)]
pub struct RestoreArgs {
    /// A backup, or a directory of backups, of which the newest is taken.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// The most leaves of the audit log that a witness or a copy of its checkpoint shows; it is recorded in the new log.
    #[arg(long, value_name = "SIZE")]
    witnessed: Option<u64>,
    /// The seal key of ron-kms, where the backup has none: packages keep it outside of the data directory.
    #[arg(long, value_name = "FILE")]
    seal_key: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

pub fn run(args: &RestoreArgs) -> Result<(), String> {
    let layout = args.place.layout()?;
    refuse_data(&layout)?;
    let (backup, manifest) = manifest::find(&args.from)?;
    manifest.check(&backup)?;
    // All of it is made beside its place, and gets its name when it is complete.
    let mut name = layout.root.clone().into_os_string();
    name.push(".restoring");
    let coming = Layout { root: name.into() };
    let failed = |e: std::io::Error| format!("{}: {e}", coming.root.display());
    if coming.root.exists() {
        OsDisk.remove_dir_all(&coming.root).map_err(failed)?;
    }
    copy_back(&manifest, &backup, &coming)?;
    if let Some(key) = &args.seal_key {
        let target = coming.data("ron-kms").join("seal.key");
        OsDisk
            .copy(key, &target, 0o600)
            .map_err(|e| format!("cannot copy {}: {e}", key.display()))?;
    }
    for verdict in verdicts(&coming, &backup)? {
        println!("{verdict}");
    }
    relocate(&coming, &manifest.root, &coming.root)?;
    let archives = leave_archives(&coming)?;
    let recovery = recover(&coming, &manifest, args.witnessed)?;
    relocate(&coming, &coming.root, &layout.root)?;
    if layout.root.exists() {
        std::fs::remove_dir(&layout.root).map_err(failed)?; // empty
    }
    rename_durably(&OsDisk, &coming.root, &layout.root).map_err(failed)?;
    let root = layout.root.display();
    println!("restored: {root}\n{}", recovery.shown(&layout));
    for (service, dir) in archives {
        println!(
            "- what {service} had archived in {} is in its data directory now, and archive_dir is unset, so that the archive of the fleet \
             that was backed up stays as it is; set archive_dir again to a directory of this one",
            dir.display()
        );
    }
    println!(
        "next:\n  copy {} to where logs are verified, and tell the operators of witnesses the new key of the audit log\n  \
         ron doctor --data-dir {root}\n  ron up --data-dir {root}",
        verifiers::path(&layout).display()
    );
    Ok(())
}

/// What is there is never overwritten.
fn refuse_data(layout: &Layout) -> Result<(), String> {
    let root = &layout.root;
    match std::fs::read_dir(root).map(|mut entries| entries.next().is_none()) {
        Ok(false) => Err(format!(
            "{} has files: move them away, or restore to another --data-dir",
            root.display()
        )),
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot read {}: {e}", root.display()))
        }
        _ => match root.parent() {
            Some(parent) => make_dir(parent),
            None => Ok(()),
        },
    }
}

fn copy_back(manifest: &Manifest, backup: &Path, to: &Layout) -> Result<(), String> {
    init::make_dirs(to)?;
    for (name, entry) in &manifest.files {
        let target = to.root.join(name);
        if let Some(parent) = target.parent() {
            make_dir(parent)?;
        }
        OsDisk
            .copy(&backup.join(name), &target, entry.mode)
            .map_err(|e| format!("cannot copy to {}: {e}", target.display()))?;
    }
    Ok(())
}

/// Marks the recovery in the services' data and in `recoveries.json`.
fn recover(
    layout: &Layout,
    manifest: &Manifest,
    witnessed: Option<u64>,
) -> Result<Recovery, String> {
    let disk: SharedDisk = Arc::new(OsDisk);
    let (random, clock) = (OsRandom::shared(), SystemClock::shared());
    let config = fleet::load(layout, "ron-kms", &[])?;
    let service = KeyService::of(&config, disk.clone()).map_err(fleet::lines)?;
    let restored = Restored {
        taken: manifest.taken,
        witnessed,
        service: &service,
        random: random.clone(),
        clock: clock.clone(),
    };
    let kms = restored.recover().map_err(|e| format!("ron-kms: {e}"))?;
    let config = fleet::load(layout, "svc-passport", &[])?;
    let issuer = IssuerService::of(&config, disk).map_err(fleet::lines)?;
    let reason = format!("restored from the backup of {}", manifest.taken);
    let ended = end_passports(&issuer, &reason, &random, &clock);
    let ended = ended.map_err(|e| format!("svc-passport: {e}"))?;
    let recovery = Recovery {
        at: Timestamp(SystemClock.unix_ms()),
        backup: manifest.taken,
        audit_vkey_before: verifiers::read(layout)?.audit_vkey,
        audit_size_before: kms.before.size,
        audit_root_before: b64::std(&kms.before.root),
        audit_kept_in: format!("ron-kms/data/{}", kms.kept_in),
        audit_vkey: kms.vkey.to_string(),
        revocations_before: ended.leaves,
        epoch: ended.epoch,
        closed_for_wrapping: kms.closed.iter().map(ToString::to_string).collect(),
        lost_answers: kms.lost,
    };
    name_new_log(layout, &recovery, kms.vkey.name())?;
    let mut all = Recoveries::of(layout)?;
    all.recoveries.push(recovery);
    all.write(layout)?;
    all.recoveries.pop().ok_or_else(|| "no recovery".to_owned())
}

/// Has the key service, the console and the auditors' file name the new audit log.
fn name_new_log(layout: &Layout, recovery: &Recovery, origin: &str) -> Result<(), String> {
    change(layout, "ron-kms", |text| {
        let mut doc: toml_edit::DocumentMut = text.parse().map_err(|e| format!("{e}"))?;
        doc["audit"]["origin"] = toml_edit::value(origin);
        Ok(doc.to_string())
    })?;
    let (old, new) = (&recovery.audit_vkey_before, &recovery.audit_vkey);
    change(layout, "svc-admin", |text| {
        Ok(text.replace(old.as_str(), new))
    })?;
    let mut keys = verifiers::read(layout)?;
    keys.audit_vkey.clone_from(new);
    write_json(&verifiers::path(layout), &keys, 0o644)?;
    let mut bootstrap: Bootstrap = read_json(&layout.bootstrap())?;
    bootstrap.audit_vkey.clone_from(new);
    write_json(&layout.bootstrap(), &bootstrap, 0o600)
}

/// Separates the logs from the archives of the fleet that was backed up: a copy of a log writes files of the same names there. Returns the
/// services that had an archive outside of their data directory, and where.
fn leave_archives(layout: &Layout) -> Result<Vec<(&'static str, PathBuf)>, String> {
    let mut left = Vec::new();
    for (service, log) in LOGS {
        forget_archive(&OsDisk, &layout.data(service).join(log)).map_err(|e| e.to_string())?;
        let config = fleet::load(layout, service, &[])?;
        let keys: ArchiveKeys = config.read().map_err(|e| e.to_string())?;
        let Some(dir) = keys.dir.filter(|dir| !dir.starts_with(&layout.root)) else {
            continue;
        };
        change(layout, service, |text| {
            let mut doc: toml_edit::DocumentMut = text.parse().map_err(|e| format!("{e}"))?;
            doc.remove(ArchiveKeys::dir);
            Ok(doc.to_string())
        })?;
        left.push((service, dir));
    }
    Ok(left)
}

/// Has the configurations name their files and sockets below another directory.
fn relocate(layout: &Layout, from: &Path, to: &Path) -> Result<(), String> {
    for service in NAMES {
        change(layout, service, |text| Ok(relocated(text, from, to)))?;
    }
    Ok(())
}

fn change(
    layout: &Layout,
    service: &str,
    how: impl FnOnce(&str) -> Result<String, String>,
) -> Result<(), String> {
    let file = layout.config(service);
    let text = std::fs::read_to_string(&file);
    let text = text.map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    let changed = how(&text).map_err(|e| format!("{}: {e}", file.display()))?;
    write_atomic(&file, changed.as_bytes(), 0o600)
}

/// The text with every quoted path below `from`, and every URL of a socket there, below `to`.
fn relocated(text: &str, from: &Path, to: &Path) -> String {
    let shown = |path: &Path| path.display().to_string();
    let (plain, other) = (shown(from) + "/", shown(to) + "/");
    let mut out = String::with_capacity(text.len());
    for (at, part) in text.split('"').enumerate() {
        if at > 0 {
            out.push('"');
        }
        // Every second part is between quotes: no path here has one.
        if at % 2 == 0 {
            out.push_str(part);
        } else if let Some(rest) = part.strip_prefix(&plain) {
            out += &(other.clone() + rest);
        } else {
            out += &relocated_url(part, from, to).unwrap_or_else(|| part.to_owned());
        }
    }
    out
}

/// The same of the URL of a socket, and what follows the socket in it.
fn relocated_url(url: &str, from: &Path, to: &Path) -> Option<String> {
    const ENDS: &str = ".sock";
    let encoded = |path: &Path| ron_client::encode(&format!("{}/", path.display()));
    let (below, rest) = if let Some(rest) = url.strip_prefix("http+unix://") {
        let below = rest.strip_prefix(&encoded(from))?;
        let (below, rest) = below.split_at(below.find(ENDS)? + ENDS.len());
        (below.replace("%2F", "/"), rest)
    } else {
        let below = url
            .strip_prefix("unix:")?
            .strip_prefix(&format!("{}/", from.display()))?;
        let (below, rest) = below.split_at(below.find(ENDS)? + ENDS.len());
        (below.to_owned(), rest)
    };
    Some(socket_url(&to.join(below)) + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_sockets_of_a_configuration_move() {
        let text = "data_dir = \"/srv/ron/ron-kms/data\"\nurl = \"unix:/srv/ron/run/ron-kms/api.sock\"\n\
                    jwks_url = \"unix:/srv/ron/run/svc-passport/api.sock/.well-known/jwks.json\"\n\
                    other = \"/srv/ronny/x\"\ncert_path = \"/etc/ssl/ron.pem\"\n";
        let moved = |to: &str| relocated(text, Path::new("/srv/ron"), Path::new(to));
        let there = text.replace("/srv/ron/", "/mnt/new/");
        assert_eq!(moved("/mnt/new"), there);
        assert_eq!(
            relocated(&there, Path::new("/mnt/new"), Path::new("/srv/ron")),
            text
        );
        // A path that has to be encoded in URLs.
        let odd = moved("/a b");
        assert!(
            odd.contains("\"http+unix://%2Fa%20b%2Frun%2Fron-kms%2Fapi.sock\""),
            "{odd}"
        );
        assert!(odd.contains("api.sock/.well-known/jwks.json\""), "{odd}");
        assert_eq!(
            relocated(&odd, Path::new("/a b"), Path::new("/srv/ron")),
            text
        );
    }
}
