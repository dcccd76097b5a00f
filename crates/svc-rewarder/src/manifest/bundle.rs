//! Bundles: a run as a directory of plain files that needs no service, with the proof of every payee.
//!
//! A bundle has the files of a run's directory, so everything that reads one reads the other, and
//! beside them `bundle.json` (its files with lengths and content ids), `payees.csv`, one file for each
//! payee's proof, and the page that verifies it.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use ron_files::{Dir, Disk};
use ron_proto::rewarder::{Payout, PayoutProof};
use ron_proto::strict;
use ron_proto::values::{Account, ContentId};
use serde::{Deserialize, Serialize};

use super::assets;
use super::dir;
use super::files::{VerifyError, read_manifest, wrong};
use super::reader::Reader;
use crate::inputs::source::{READABLE, Source, Target, put};

/// What the bundle consists of; written last.
pub const BUNDLE: &str = "bundle.json";
/// Account, amount and proof file of every payee.
pub const PAYEES: &str = "payees.csv";
/// The page that verifies a proof in a browser.
pub const PAGE: &str = "index.html";
/// Directory of the proofs.
pub const PROOFS: &str = "proofs";
/// Most payees whose proofs are written as files.
pub const PROOFS_MAX: u64 = 1_000_000;
/// Bytes of `payees.csv` written at a time.
const LINES: usize = 1 << 20;
const FORMAT: u32 = 1;

/// `bundle.json`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// Format version, 1.
    pub format: u32,
    /// Commitment of the manifest.
    pub commitment: ContentId,
    /// Number of proofs in files; 0 for a bundle without them.
    pub proofs: u64,
    /// The files of the run, but for the proofs.
    pub files: Vec<BundleFile>,
}

/// A file of a bundle.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct BundleFile {
    /// One of [`Bundle::FILES`].
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Content id of the file.
    pub id: ContentId,
}

impl Bundle {
    /// Every file of a run that a bundle may have, in the order in which it lists them.
    pub const FILES: [&'static str; 11] = [
        dir::RUN,
        dir::RUN_SIG,
        dir::POLICY,
        dir::POLICY_SIG,
        dir::SNAPSHOT,
        dir::PAYOUTS,
        dir::TREE,
        dir::CLAIMS_TREE,
        dir::CLAIMS,
        dir::CORRECTION,
        dir::LEDGER,
    ];

    /// Reads `bundle.json`. Nothing in it is trusted: names are of the known files alone, each once,
    /// and what it says of them is checked against the manifest by whoever reads them.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let found: Self = strict::from_slice(bytes).map_err(|e| format!("{BUNDLE}: {e}"))?;
        if found.format != FORMAT {
            let format = found.format;
            return Err(format!(
                "{BUNDLE} is of format {format}, this program knows {FORMAT}; use a newer program"
            ));
        }
        let names: Vec<_> = found.files.iter().map(|file| file.name.as_str()).collect();
        let known: Vec<_> = Self::FILES
            .into_iter()
            .filter(|name| names.contains(name))
            .collect();
        if known == names {
            Ok(found)
        } else {
            Err(format!(
                "{BUNDLE} names files that no bundle has, or not in their order"
            ))
        }
    }
}

/// Where the proof of an account is, relative to the bundle: below the content id of its name, because
/// accounts have characters that not every disk and server takes in a name.
pub fn proof_path(account: &Account) -> String {
    let hex = ContentId::of(account.as_str().as_bytes()).hex();
    format!("{PROOFS}/{}/{}.json", &hex[..2], &hex[2..])
}

/// The content id and the length of a file.
pub fn content_of(disk: &dyn Disk, path: &Path) -> io::Result<(ContentId, u64)> {
    let (source, mut hasher) = (Source::open(disk, path)?, blake3::Hasher::new());
    source.each(0, |piece| {
        hasher.update(piece);
    })?;
    Ok((ContentId(*hasher.finalize().as_bytes()), source.len()))
}

/// What [`write`] takes beside the run.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// Copy the usage; without it, the manifest has its content id alone.
    pub usage: bool,
    /// Write a proof for every payee.
    pub proofs: bool,
    /// The page that verifies proofs.
    pub page: &'a [u8],
}

/// Writes the bundle of a run to `target`, an empty directory on the same disk; `done` is called with
/// numbers of payees. Each further asset of the run has a bundle of its own in it, whose directory has the
/// name that it has in the run. The caller gives the directory its name afterwards.
pub fn write(
    run: &Dir,
    target: &Dir,
    contents: Contents<'_>,
    done: &dyn Fn(u64),
) -> Result<Bundle, String> {
    let reader = Reader::open(run).map_err(|error| error.to_string())?;
    if contents.proofs && reader.len() > PROOFS_MAX {
        return Err(format!(
            "the run has more than {PROOFS_MAX} payees; leave the proofs out with --no-proofs: `ron rewarder \
             prove` makes each of them from the bundle"
        ));
    }
    let files = copy_files(run, target, contents.usage)?;
    let disk = &**target.disk();
    let cannot = |name: &str, error: &io::Error| format!("{name} cannot be written: {error}");
    for also in &reader.manifest.also {
        let further = assets::further(target, &also.asset);
        further
            .create()
            .map_err(|e| cannot(also.asset.as_str(), &e))?;
        write(&assets::further(run, &also.asset), &further, contents, done)?;
    }
    put(disk, &target.file(PAGE), contents.page).map_err(|e| cannot(PAGE, &e))?;
    let proofs = write_payees(&reader, target, contents.proofs, done)?;
    let bundle = Bundle {
        format: FORMAT,
        commitment: reader.manifest.commitment,
        proofs,
        files,
    };
    let text = dir::to_json(&bundle).map_err(|e| cannot(BUNDLE, &e))?;
    put(disk, &target.file(BUNDLE), &text).map_err(|e| cannot(BUNDLE, &e))?;
    disk.sync_dir(target.path())
        .map_err(|e| cannot(BUNDLE, &e))?;
    Ok(bundle)
}

fn copy_files(run: &Dir, target: &Dir, usage: bool) -> Result<Vec<BundleFile>, String> {
    let disk = &**target.disk();
    let mut files = Vec::new();
    for name in Bundle::FILES {
        let cannot = |e: io::Error| format!("{name} cannot be copied: {e}");
        let left_out = name == dir::SNAPSHOT && !usage;
        if left_out || !run.exists(name).map_err(cannot)? {
            continue;
        }
        let to = target.file(name);
        // Not a link: a bundle is kept, sent and changed apart from its run.
        disk.copy(&run.file(name), &to, READABLE).map_err(cannot)?;
        let (id, bytes) = content_of(disk, &to).map_err(cannot)?;
        files.push(BundleFile {
            name: name.to_owned(),
            bytes,
            id,
        });
    }
    Ok(files)
}

/// Writes `payees.csv` and, with `proofs`, their files; returns the number of those.
fn write_payees(
    reader: &Reader,
    target: &Dir,
    proofs: bool,
    done: &dyn Fn(u64),
) -> Result<u64, String> {
    let disk = &**target.disk();
    let cannot = |e: io::Error| format!("{PAYEES} cannot be written: {e}");
    let mut csv = Target::file(disk, &target.file(PAYEES)).map_err(cannot)?;
    let mut lines = String::from("index,account,amount_minor,proof\n");
    let second = reader.second_record().map_err(|e| e.to_string())?;
    let mut written = 0;
    if proofs {
        for first in 0..=u8::MAX {
            let made = target.join(PROOFS).join(&format!("{first:02x}")).create();
            made.map_err(|e| format!("{PROOFS} cannot be made: {e}"))?;
        }
    }
    reader.each_proof(|proof| {
        let Payout {
            index,
            account,
            amount_minor,
        } = &proof.payout;
        let mut name = String::new();
        if proofs && second != Some(*index) {
            name = proof_path(account);
            // Not flushed one by one, which would take a minute for each few thousand: after a crash
            // `verify` names a proof that is not whole, and the table makes it again.
            let file = disk.create_with_mode(&target.file(&name), READABLE);
            let bytes = proof_bytes(proof)?;
            file.and_then(|file| file.write_at(0, &bytes))
                .map_err(|e| format!("{name} cannot be written: {e}"))?;
            written += 1;
        }
        // Accounts contain no character that CSV would quote.
        let line = writeln!(lines, "{index},{account},{amount_minor},{name}");
        line.map_err(|e| e.to_string())?;
        if lines.len() >= LINES {
            csv.append(lines.as_bytes()).map_err(cannot)?;
            lines.clear();
        }
        done(1);
        Ok(())
    })?;
    csv.append(lines.as_bytes()).map_err(cannot)?;
    csv.finish(&[]).map_err(cannot)?;
    Ok(written)
}

fn proof_bytes(proof: &PayoutProof) -> Result<Vec<u8>, String> {
    dir::to_json(proof).map_err(|e| e.to_string())
}

/// What [`check`] found of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// It is a run's directory without a bundle's files.
    NoBundle,
    /// Its files are those of `bundle.json`, and so many proofs hold.
    Bundle { proofs: u64 },
}

/// Checks the files of a bundle against `bundle.json`, and every proof against the run, whose own
/// files were verified already; the bundles of further assets with it.
pub fn check(run: &Dir) -> Result<Checked, VerifyError> {
    let mut all = check_asset(run)?;
    for also in read_manifest(run)?.also {
        let further = check_asset(&assets::further(run, &also.asset))?;
        all = match (all, further) {
            (Checked::NoBundle, Checked::NoBundle) => Checked::NoBundle,
            (Checked::Bundle { proofs }, Checked::Bundle { proofs: more }) => Checked::Bundle {
                proofs: proofs + more,
            },
            _ => {
                let why = format!("it is there for some assets only; {} differs", also.asset);
                return Err(wrong(BUNDLE, &why));
            }
        };
    }
    Ok(all)
}

fn check_asset(run: &Dir) -> Result<Checked, VerifyError> {
    let bad = |why: &dyn std::fmt::Display| wrong(BUNDLE, why);
    let Some(bytes) = run.read(BUNDLE).map_err(|e| bad(&e))? else {
        return Ok(Checked::NoBundle);
    };
    let bundle = Bundle::read(&bytes).map_err(|e| bad(&e))?;
    for file in &bundle.files {
        let found = content_of(&**run.disk(), &run.file(&file.name));
        let found = found.map_err(|e| bad(&format!("{}: {e}", file.name)))?;
        if found != (file.id, file.bytes) {
            return Err(bad(&format!("{} is another file than it says", file.name)));
        }
    }
    let reader = Reader::open(run)?;
    if bundle.commitment != reader.manifest.commitment {
        return Err(bad(&"it is the bundle of another manifest"));
    }
    if bundle.proofs == 0 {
        return Ok(Checked::Bundle { proofs: 0 });
    }
    let (second, mut held) = (reader.second_record()?, 0);
    let checked = reader.each_proof(|proof| {
        if second == Some(proof.payout.index) {
            return Ok(());
        }
        held += 1;
        let name = proof_path(&proof.payout.account);
        let stored = run.read(&name).map_err(|e| format!("{name}: {e}"))?;
        if stored == Some(proof_bytes(proof)?) {
            Ok(())
        } else {
            Err(format!(
                "{name} is another proof than that of {}",
                proof.payout.account
            ))
        }
    });
    checked.map_err(|why| bad(&why))?;
    match bundle.proofs {
        proofs if proofs == held => Ok(Checked::Bundle { proofs }),
        _ => Err(bad(&"its number of proofs is not that of the payees")),
    }
}

#[cfg(test)]
#[path = "bundle_tests.rs"]
mod tests;
