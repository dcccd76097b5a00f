//! The holders of the tokens of each status list, so that the lists can show the revocation of a subject: eight bytes per
//! token, in one file per list (in memory with amnesia on), written before the token leaves.
//!
//! An entry holds no name: 48 bits of a hash of list and subject, and the second in which the token was issued. Entries
//! survive a kill of the process. They are not flushed, so a power failure may lose some; the events and the revoker's
//! store still have the revocation.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ron_auth::RevocationView;
use ron_kernel::RankedMutex;

use crate::lists::{LIST_KEPT_S, LIST_TOKENS, Places};
use crate::topology::HOLDERS;

/// Bytes of an entry.
const ENTRY: usize = 8;

/// The recorded holders of each list's tokens.
#[derive(Debug)]
pub struct Holders {
    /// Directory of the files; `None` keeps them in memory.
    dir: Option<PathBuf>,
    memory: RankedMutex<BTreeMap<u64, Vec<u64>>>,
}

impl Holders {
    /// Opens the record in a directory, which is created if needed, or in memory.
    pub fn open(dir: Option<PathBuf>) -> io::Result<Self> {
        if let Some(dir) = &dir {
            let mut private = std::fs::DirBuilder::new();
            private.mode(0o700).recursive(true).create(dir)?;
        }
        Ok(Self {
            dir,
            memory: RankedMutex::new(&HOLDERS, BTreeMap::new()),
        })
    }

    /// Records the subjects of a batch's tokens, from the first of its positions on.
    pub fn note<'a>(
        &self,
        places: &Places,
        subjects: impl Iterator<Item = &'a str>,
        iat: u64,
    ) -> io::Result<()> {
        let entries = subjects.map(|subject| entry(places, subject, iat));
        let Some(dir) = &self.dir else {
            let mut memory = self.memory.lock();
            let list = memory.entry(places.list).or_default();
            for (entry, at) in entries.zip(places.first as usize..) {
                if list.len() <= at {
                    list.resize(at + 1, 0);
                }
                list[at] = entry;
            }
            return Ok(());
        };
        let bytes: Vec<u8> = entries.flat_map(u64::to_le_bytes).collect();
        let mut options = std::fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path(dir, places.list))?;
        file.write_all_at(&bytes, u64::from(places.first) * ENTRY as u64)
    }

    /// The positions of a list whose subject is revoked.
    pub fn revoked(&self, list: u64, opened_s: u64, view: &RevocationView) -> io::Result<Vec<u32>> {
        let until: BTreeMap<u64, u64> = view
            .subjects()
            .map(|(subject, until)| (name(list, subject), until))
            .collect();
        if until.is_empty() {
            return Ok(Vec::new());
        }
        let void = |(entry, at): (u64, u32)| {
            // A zero entry is a position without a token.
            let second = (entry & 0xffff).checked_sub(1)?;
            let until = until.get(&(entry >> 16))?;
            (opened_s + second <= *until).then_some(at)
        };
        Ok(self
            .read(list)?
            .into_iter()
            .zip(0..)
            .filter_map(void)
            .collect())
    }

    /// Deletes the records of lists that no valid token refers to; `now_s` in unix seconds. A list's number is never smaller
    /// than the second in which it was opened, so the number alone decides.
    pub fn forget(&self, now_s: u64) -> io::Result<()> {
        let oldest = now_s.saturating_sub(LIST_KEPT_S);
        self.memory.lock().retain(|list, _| *list >= oldest);
        let Some(dir) = &self.dir else { return Ok(()) };
        for file in std::fs::read_dir(dir)? {
            let file = file?;
            let list = file
                .file_name()
                .to_str()
                .and_then(|n| n.parse::<u64>().ok());
            if list.is_some_and(|list| list < oldest) {
                std::fs::remove_file(file.path())?;
            }
        }
        Ok(())
    }

    fn read(&self, list: u64) -> io::Result<Vec<u64>> {
        let Some(dir) = &self.dir else {
            return Ok(self.memory.lock().get(&list).cloned().unwrap_or_default());
        };
        let bytes = match std::fs::read(path(dir, list)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read?,
        };
        let entries = bytes.chunks_exact(ENTRY).take(LIST_TOKENS as usize);
        let entry =
            |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("chunks are of eight bytes"));
        Ok(entries.map(entry).collect())
    }
}

fn path(dir: &Path, list: u64) -> PathBuf {
    dir.join(list.to_string())
}

fn entry(places: &Places, subject: &str, iat: u64) -> u64 {
    // One more, because zero marks a position without a token.
    let second = (iat.saturating_sub(places.opened_s) + 1).min(0xffff);
    name(places.list, subject) << 16 | second
}

/// 48 bits of a hash over list and subject: entries of two lists cannot be linked to one holder without guessing the name.
fn name(list: u64, subject: &str) -> u64 {
    let hash = ron_crypto::hash::blake3(&[&list.to_le_bytes(), subject.as_bytes()].concat());
    let mut bytes = [0; 8];
    bytes[..6].copy_from_slice(&hash[..6]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use ron_proto::Timestamp;
    use ron_proto::passport::{RevocationEvent, RevocationPage, Revoked};

    use super::*;

    fn view(subject: &str, issued_until: u64) -> RevocationView {
        let mut view = RevocationView::unchecked();
        let event = RevocationEvent {
            seq: 1,
            ts: Timestamp(0),
            revoked: Revoked::Subject {
                subject_ref: subject.to_owned(),
                issued_until,
            },
        };
        let page = RevocationPage {
            events: vec![event],
            next: 1,
            current_epoch: 1,
        };
        view.apply(&page, true, issued_until).unwrap();
        view
    }

    #[test]
    fn a_subjects_tokens_up_to_its_revocation_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        for place in [None, Some(dir.path().join("holders"))] {
            let holders = Holders::open(place.clone()).unwrap();
            let at = |first| Places {
                list: 10_007,
                opened_s: 10_000,
                first,
            };
            holders
                .note(&at(0), ["alice", "bob", "alice"].into_iter(), 10_000)
                .unwrap();
            holders.note(&at(3), ["alice"].into_iter(), 10_050).unwrap();
            holders.note(&at(9), ["alice"].into_iter(), 10_051).unwrap();
            let of = |holders: &Holders, list, subject, until| {
                holders
                    .revoked(list, 10_000, &view(subject, until))
                    .unwrap()
            };
            assert_eq!(of(&holders, 10_007, "alice", 10_050), [0, 2, 3]);
            assert_eq!(of(&holders, 10_007, "bob", 99_999), [1]);
            assert_eq!(of(&holders, 10_007, "carol", 99_999), [0; 0]);
            assert_eq!(
                of(&holders, 10_008, "alice", 99_999),
                [0; 0],
                "another list"
            );
            if place.is_some() {
                let again = Holders::open(place).unwrap();
                assert_eq!(of(&again, 10_007, "alice", 99_999), [0, 2, 3, 9], "kept");
            }
            holders.forget(10_007 + LIST_KEPT_S).unwrap();
            assert_eq!(of(&holders, 10_007, "bob", 99_999), [1]);
            holders.forget(10_008 + LIST_KEPT_S).unwrap();
            assert_eq!(of(&holders, 10_007, "bob", 99_999), [0; 0], "forgotten");
        }
    }
}
