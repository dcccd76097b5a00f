//! The highest version of each issuer's policy note that this service has accepted, in one small
//! file of its data directory. An older note is refused even if it is correctly signed, also after
//! a restart.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ron_files::{OsDisk, read_small, write_atomic};
use ron_kernel::{LockSpec, RankedMutex};
use ron_proto::strict;
use serde::{Deserialize, Serialize};

/// Name of the file in a data directory.
pub const VERSIONS_FILE: &str = "issuer-notes.json";
/// Format version of the file.
const FORMAT: u32 = 1;
/// Maximum issuers in the file; a service has one at a time.
const ISSUERS_MAX: usize = 64;
/// Maximum size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Not held while the file is read or written: a writer claims the file first ([`State::writing`]).
pub const NOTE_LOCK: LockSpec = LockSpec {
    name: "auth.note",
    rank: 904,
    guards: "the highest policy note version by issuer, and the claim to write its file; only *-auth-keys, *-auth-feed and a reload take it",
};
static NOTE_LOCK_SPEC: LockSpec = NOTE_LOCK;

type Versions = BTreeMap<String, u64>;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u32,
    versions: Versions,
}

/// Only the format, so that a newer file is distinguished from a damaged one.
#[derive(Deserialize)]
struct Formatted {
    format: u32,
}

/// The versions, in memory and in the file.
pub(crate) struct NoteVersions {
    /// `None` in amnesia mode.
    dir: Option<PathBuf>,
    seen: RankedMutex<State>,
}

struct State {
    versions: Versions,
    /// A thread is writing the file; no other may write at the same time.
    writing: bool,
}

impl NoteVersions {
    /// Loads the versions of a data directory; without one they are kept in memory only.
    pub fn open(dir: Option<&Path>) -> Result<Self, String> {
        let versions = dir.map_or_else(|| Ok(Versions::new()), read_versions)?;
        let seen = State {
            versions,
            writing: false,
        };
        Ok(Self {
            dir: dir.map(Path::to_owned),
            seen: RankedMutex::new(&NOTE_LOCK_SPEC, seen),
        })
    }

    /// The highest version accepted from this issuer; 0 if there is none.
    pub fn known(&self, issuer: &str) -> u64 {
        let seen = self.seen.lock();
        seen.versions.get(issuer).copied().unwrap_or(0)
    }

    /// Records a version, durably when this returns; a version that is not higher changes nothing.
    /// Fails while another thread records one: the caller reads the note again soon.
    pub fn raise(&self, issuer: &str, version: u64) -> Result<(), String> {
        let Some(next) = self.claim(issuer, version)? else {
            return Ok(());
        };
        let written = match &self.dir {
            Some(dir) => write_versions(dir, &next),
            None => Ok(()),
        };
        let mut seen = self.seen.lock();
        seen.writing = false;
        if written.is_ok() {
            seen.versions = next;
        }
        written
    }

    /// The versions including this one, and the claim to write them; `None` when it is already
    /// recorded.
    fn claim(&self, issuer: &str, version: u64) -> Result<Option<Versions>, String> {
        let mut seen = self.seen.lock();
        let known = seen.versions.get(issuer);
        if known.is_some_and(|known| *known >= version) {
            return Ok(None);
        }
        if seen.writing {
            return Err(format!("{VERSIONS_FILE} is being written"));
        }
        let mut next = seen.versions.clone();
        next.insert(issuer.to_owned(), version);
        if next.len() > ISSUERS_MAX {
            return Err(format!(
                "{VERSIONS_FILE} names {ISSUERS_MAX} issuers; remove those that are configured no more"
            ));
        }
        seen.writing = true;
        Ok(Some(next))
    }

    /// Reloads the file: an operator may have lowered a version (`ron issuer trust`).
    pub fn read_again(&self) -> Result<(), String> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let versions = read_versions(dir)?;
        let mut seen = self.seen.lock();
        if seen.writing {
            return Err(format!("{VERSIONS_FILE} is being written; reload again"));
        }
        seen.versions = versions;
        Ok(())
    }
}

/// The versions in a data directory, by issuer; empty if there is no file.
pub fn read_versions(dir: &Path) -> Result<Versions, String> {
    let path = dir.join(VERSIONS_FILE);
    let fail = |why: String| format!("{}: {why}", path.display());
    let read = read_small(&OsDisk, &path, FILE_BYTES_MAX);
    let read = read.map_err(|e| fail(format!("cannot be read: {e}")))?;
    let Some(bytes) = read else {
        return Ok(Versions::new());
    };
    let damaged = |e: &dyn std::fmt::Display| {
        fail(format!(
            "is damaged: {e}; `ron issuer trust` rewrites it, after showing the issuer's current note"
        ))
    };
    let format = serde_json::from_slice::<Formatted>(&bytes).map_err(|e| damaged(&e))?;
    if format.format != FORMAT {
        return Err(fail(format!(
            "is of format {}, this program knows {FORMAT}; use a newer program",
            format.format
        )));
    }
    let document: Document = strict::from_slice(&bytes).map_err(|e| damaged(&e))?;
    Ok(document.versions)
}

/// Replaces the file atomically; durable on return.
pub fn write_versions(dir: &Path, versions: &Versions) -> Result<(), String> {
    let document = Document {
        format: FORMAT,
        versions: versions.clone(),
    };
    let mut bytes = serde_json::to_vec(&document).map_err(|e| e.to_string())?;
    bytes.push(b'\n');
    write_atomic(&OsDisk, dir, VERSIONS_FILE, &bytes).map_err(|e| {
        format!(
            "{} cannot be written: {e}",
            dir.join(VERSIONS_FILE).display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_only_grow_also_over_a_restart_and_are_kept_by_issuer() {
        let dir = tempfile::tempdir().unwrap();
        let open = || NoteVersions::open(Some(dir.path())).unwrap();
        let versions = open();
        assert_eq!(versions.known("a"), 0);
        versions.raise("a", 7).unwrap();
        versions.raise("a", 5).unwrap();
        versions.raise("b", 1).unwrap();
        for versions in [versions, open()] {
            assert_eq!((versions.known("a"), versions.known("b")), (7, 1));
        }
        let running = open();
        write_versions(dir.path(), &Versions::from([("a".to_owned(), 3)])).unwrap();
        assert_eq!(running.known("a"), 7);
        running.read_again().unwrap();
        assert_eq!((running.known("a"), running.known("b")), (3, 0));
    }

    #[test]
    fn without_a_directory_they_are_kept_in_memory_and_one_that_is_gone_is_an_error() {
        let memory = NoteVersions::open(None).unwrap();
        memory.raise("a", 7).unwrap();
        memory.read_again().unwrap();
        assert_eq!(memory.known("a"), 7);
        let gone = NoteVersions::open(Some(Path::new("/nowhere/at/all"))).unwrap();
        assert!(gone.raise("a", 7).is_err());
        assert_eq!(gone.known("a"), 0, "what is not durable does not count");
    }

    #[test]
    fn a_damaged_file_and_a_newer_format_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |text: &str, wanted: &str| {
            std::fs::write(dir.path().join(VERSIONS_FILE), text).unwrap();
            let error = read_versions(dir.path()).expect_err(text);
            let named = error.contains(VERSIONS_FILE) && error.contains(wanted);
            assert!(named, "{error}");
        };
        refused("", "damaged");
        refused("{\"format\":1,\"versions\":{\"a\":-1}}", "damaged");
        refused("{\"format\":1,\"versions\":{},\"more\":1}", "damaged");
        refused("{\"format\":2,\"versions\":[]}", "format 2");
        refused(&" ".repeat(FILE_BYTES_MAX as usize + 1), "longer");
    }

    #[test]
    fn a_service_remembers_a_bounded_number_of_issuers() {
        let versions = NoteVersions::open(None).unwrap();
        for n in 0..ISSUERS_MAX {
            versions.raise(&n.to_string(), 1).unwrap();
        }
        assert!(versions.raise("one more", 1).is_err());
        versions.raise("0", 2).unwrap();
    }
}
