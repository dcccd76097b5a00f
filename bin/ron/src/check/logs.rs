//! `ron audit logs`: the audit logs of all nodes of a key service. Each log names the others with the keys that verify them, so that
//! the key of one is enough to check all, and a log that is left out is noticed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::VerifierKey;

use super::audit::{Checked, Keep, read_dir};
use crate::layout::Layout;
use crate::table::Table;
use crate::verifiers;

#[derive(Args)]
pub struct LogsArgs {
    /// Directories with the logs of all nodes; copies will do. The key verifies the first.
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
    /// Data directory whose verifiers.json has the key of the first log.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Verifier key of the first log (name+id+key), instead of the one in verifiers.json.
    #[arg(long)]
    vkey: Option<String>,
}

/// A log that another one names.
struct Named {
    key: VerifierKey,
    by: String,
}

pub fn run(args: LogsArgs) -> Result<(), String> {
    let vkey = match args.vkey {
        Some(vkey) => vkey,
        None => verifiers::read(&Layout::new(args.data_dir.as_deref())?)?.audit_vkey,
    };
    let pin = VerifierKey::parse(&vkey).map_err(|e| format!("the verifier key: {e}"))?;
    for line in verify_all(&args.dirs, &pin)?.lines() {
        println!("{line}");
    }
    Ok(())
}

/// Verifies the first log with `pin`, and the others with the keys by which they are named.
fn verify_all(dirs: &[PathBuf], pin: &VerifierKey) -> Result<Table, String> {
    let [first, others @ ..] = dirs else {
        return Err("name the directory of at least one log".into());
    };
    let others = others.iter().map(|dir| Ok((origin_of(dir)?, &**dir)));
    let others: BTreeMap<String, &Path> = others.collect::<Result<_, String>>()?;
    let mut table = Table::new(&["log", "leaves", "signatures", "named by"]);
    let (mut named, mut verified) = (BTreeMap::new(), Vec::new());
    let checked = read_dir(first, pin, Keep::default())?;
    follow(&checked, &mut named);
    table.row(cells(&checked, ""));
    verified.push(checked.origin().to_owned());
    // A log may be named by one that is itself only named.
    while let Some((origin, log)) = named.iter().find(|(origin, _)| !verified.contains(origin)) {
        let Some(dir) = others.get(origin) else {
            return Err(format!(
                "the log {origin} is missing: {} names it with the key {}; add its directory",
                log.by, log.key
            ));
        };
        let checked = read_dir(dir, &log.key, Keep::default())?;
        table.row(cells(&checked, &log.by));
        verified.push(origin.clone());
        follow(&checked, &mut named);
    }
    if let Some((origin, dir)) = others.iter().find(|(origin, _)| !verified.contains(origin)) {
        return Err(format!(
            "{}: no other log names the log {origin}, so that it is not of these nodes, or its node has never started while another one ran",
            dir.display()
        ));
    }
    Ok(table)
}

/// The name of the log in a directory, as its checkpoint states it; nothing is verified.
fn origin_of(dir: &Path) -> Result<String, String> {
    let path = dir.join("checkpoint");
    let note = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let checkpoint = Checkpoint::read_unverified(&note, None);
    checkpoint
        .map(|checkpoint| checkpoint.origin)
        .map_err(|e| format!("{}: {e}", path.display()))
}

/// Adds the logs that a verified log names; the first that names one counts.
fn follow(checked: &Checked, named: &mut BTreeMap<String, Named>) {
    for (origin, key) in &checked.report().peer_logs {
        let (key, by) = (key.clone(), checked.origin().to_owned());
        named.entry(origin.clone()).or_insert(Named { key, by });
    }
}

fn cells(checked: &Checked, by: &str) -> [String; 4] {
    let report = checked.report();
    [
        checked.origin().to_owned(),
        report.size.to_string(),
        report.signatures().to_string(),
        by.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ron_crypto::sign::Ed25519Key;
    use ron_files::OsDisk;
    use ron_tlog::Ed25519NoteSigner;
    use ron_tlog::append::{Log, LogOptions};

    use super::*;

    fn signer(name: &str) -> Ed25519NoteSigner {
        let seed = [name.as_bytes()[0]; 32];
        Ed25519NoteSigner::new(&origin(name), Ed25519Key::from_seed(&seed)).expect("a name")
    }

    fn origin(name: &str) -> String {
        format!("kms.example/{name}")
    }

    /// The directory of a log that names `others`.
    fn log(top: &Path, name: &str, others: &[&str]) -> PathBuf {
        log_by(&signer(name), top, name, others)
    }

    fn log_by(by: &Ed25519NoteSigner, top: &Path, name: &str, others: &[&str]) -> PathBuf {
        let dir = top.join(name);
        let options = LogOptions::new(origin(name)).verified_by(by.verifier().clone());
        let mut log = Log::open(Arc::new(OsDisk), &dir, options).expect("a log");
        let leaf = |op: &str, context: &str| {
            format!(
                r#"{{"actor":"ron-kms","context":"{context}","op":"{op}","prev_store_version":1,"result":"ok","tenant":"ron","ts":1,"v":1}}"#
            )
        };
        let mut leaves = vec![leaf("start", "version")];
        let named = |other: &&str| leaf("peer_log", &signer(other).verifier().to_string());
        leaves.extend(others.iter().map(named));
        log.append(&leaves).expect("leaves");
        log.publish_checkpoint(by).expect("a checkpoint");
        dir
    }

    #[test]
    fn the_key_of_one_log_verifies_all_that_it_leads_to() {
        let top = tempfile::tempdir().expect("a directory");
        let a = log(top.path(), "a", &["b"]);
        let b = log(top.path(), "b", &["a", "c"]);
        let c = log(top.path(), "c", &[]);
        let all = [a.clone(), c.clone(), b.clone()];
        let table = verify_all(&all, signer("a").verifier()).expect("three logs");
        assert_eq!(
            table.rows,
            [
                ["kms.example/a", "2", "0", ""],
                ["kms.example/b", "3", "0", "kms.example/a"],
                ["kms.example/c", "1", "0", "kms.example/b"],
            ]
        );
        let missing = verify_all(&[a.clone(), b], signer("a").verifier());
        let why = missing.err().expect("c is missing");
        assert!(
            why.contains("the log kms.example/c is missing: kms.example/b names it"),
            "{why}"
        );
        let d = log(top.path(), "d", &["a"]);
        let foreign = verify_all(&[c, d], signer("c").verifier());
        let why = foreign.err().expect("nobody names d");
        assert!(
            why.contains("no other log names the log kms.example/d"),
            "{why}"
        );
    }

    #[test]
    fn a_log_with_the_name_of_another_is_refused() {
        let top = tempfile::tempdir().expect("a directory");
        let a = log(top.path(), "a", &["b"]);
        let other = Ed25519NoteSigner::new(&origin("b"), Ed25519Key::from_seed(&[9; 32]));
        let b = log_by(&other.expect("a name"), top.path(), "b", &[]);
        let why = verify_all(&[a, b], signer("a").verifier());
        assert!(
            why.is_err(),
            "its checkpoint is signed by no key that a names"
        );
    }
}
