//! Reads the small files of a run's directory, and says which of them is at fault.

use ron_files::Dir;
use ron_proto::rewarder::{MANIFEST_VERSION, ManifestSig, RunManifest};
use ron_proto::strict;
use serde::de::DeserializeOwned;

use super::{commitment, dir};

/// A fault, and the file it was found in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {why}")]
pub struct VerifyError {
    /// The file's name in the run directory.
    pub file: &'static str,
    pub why: String,
}

pub(crate) fn wrong(file: &'static str, why: &dyn std::fmt::Display) -> VerifyError {
    VerifyError {
        file,
        why: why.to_string(),
    }
}

/// Reads `run.json` and checks its own consistency.
pub fn read_manifest(dir: &Dir) -> Result<RunManifest, VerifyError> {
    let bytes = must_read(dir, dir::RUN)?;
    not_newer(&bytes)?;
    let manifest: RunManifest = parse(dir::RUN, &bytes)?;
    if dir::to_json(&manifest).map_err(|error| wrong(dir::RUN, &error))? != bytes {
        return Err(wrong(dir::RUN, &"its bytes are not canonical JSON"));
    }
    if commitment(&manifest) != manifest.commitment {
        return Err(wrong(
            dir::RUN,
            &"its commitment is not the hash of its fields",
        ));
    }
    Ok(manifest)
}

/// A manifest of a later version may hold anything, so the version is checked before everything
/// else.
fn not_newer(manifest: &[u8]) -> Result<(), VerifyError> {
    let peeked = serde_json::from_slice::<serde_json::Value>(manifest);
    let version = peeked.ok().and_then(|m| m.get("version")?.as_u64());
    match version {
        Some(found) if found > u64::from(MANIFEST_VERSION) => {
            let why = format!(
                "it is of format {found}, this program knows up to {MANIFEST_VERSION}; use a newer program"
            );
            Err(wrong(dir::RUN, &why))
        }
        _ => Ok(()),
    }
}

/// The signatures beside a manifest, unchecked; none until it is signed.
pub fn read_signatures(dir: &Dir) -> Result<Vec<ManifestSig>, VerifyError> {
    let stored = read(dir, dir::RUN_SIG)?;
    let stored = stored.map(|bytes| parse(dir::RUN_SIG, &bytes));
    Ok(stored.transpose()?.into_iter().collect())
}

pub(super) fn parse<T: DeserializeOwned>(
    file: &'static str,
    bytes: &[u8],
) -> Result<T, VerifyError> {
    strict::from_slice(bytes).map_err(|error| wrong(file, &error))
}

pub(super) fn must_read(dir: &Dir, file: &'static str) -> Result<Vec<u8>, VerifyError> {
    read(dir, file)?.ok_or_else(|| wrong(file, &"it is missing"))
}

pub(super) fn read(dir: &Dir, file: &'static str) -> Result<Option<Vec<u8>>, VerifyError> {
    dir.read(file).map_err(|error| wrong(file, &error))
}
