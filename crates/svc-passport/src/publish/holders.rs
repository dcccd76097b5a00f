//! The holders of the tokens of each status list, so that the lists can show the revocation of a subject: one slot per
//! token, in one slot file per list, written before the token leaves.
//!
//! A slot holds no name: 48 bits of a hash of list and subject, and the second in which the token was issued. Slots
//! survive a kill of the process. They are not flushed, so a power failure may lose or tear some; the events and the
//! revoker's store still have the revocation.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_auth::RevocationView;
use ron_files::{Disk, FileError, Kind, Slot, SlotFile};

use crate::lists::{LIST_KEPT_S, LIST_TOKENS, Places, opened_at};

/// Bytes of a slot's content.
const ENTRY: usize = 8;
/// The files; their id is the number of the list.
const KIND: Kind = Kind {
    name: b"HOLD",
    version: 1,
};

/// The recorded holders of each list's tokens.
#[derive(Debug)]
pub struct Holders {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl Holders {
    /// Opens the record in a directory, which is created if needed.
    pub fn open(disk: Arc<dyn Disk>, dir: PathBuf) -> io::Result<Self> {
        disk.create_dir_all(&dir)?;
        Ok(Self { disk, dir })
    }

    /// Records the subjects of a batch's tokens, from the first of its positions on.
    pub fn note<'a>(
        &self,
        places: &Places,
        subjects: impl Iterator<Item = &'a str>,
        iat: u64,
    ) -> Result<(), FileError> {
        let path = path(&self.dir, places.list);
        let file = SlotFile::open_or_create(&*self.disk, &path, KIND, places.list)?;
        let entries = subjects.map(|subject| entry(places, subject, iat).to_be_bytes());
        file.write(u64::from(places.first), entries)
    }

    /// The positions of a list whose subject is revoked.
    pub fn revoked(
        &self,
        list: u64,
        opened_s: u64,
        view: &RevocationView,
    ) -> Result<Vec<u32>, FileError> {
        let until: BTreeMap<u64, u64> = view
            .subjects()
            .map(|(subject, until)| (name(list, subject), until))
            .collect();
        if until.is_empty() {
            return Ok(Vec::new());
        }
        let path = path(&self.dir, list);
        let Some(file) = SlotFile::<ENTRY>::open(&*self.disk, &path, KIND, list)? else {
            return Ok(Vec::new());
        };
        let (mut void, mut lost) = (Vec::new(), Vec::new());
        for (slot, at) in file.all()?.into_iter().take(LIST_TOKENS as usize).zip(0..) {
            let entry = match slot {
                Slot::Empty => continue,
                Slot::Damaged => {
                    // As after a power failure: this token's holder is unknown, and the other slots are still right.
                    lost.push(u64::from(at));
                    continue;
                }
                Slot::Sound(entry) => u64::from_be_bytes(entry),
            };
            let issued_s = opened_s + (entry & 0xffff);
            if until
                .get(&(entry >> 16))
                .is_some_and(|until| issued_s <= *until)
            {
                void.push(at);
            }
        }
        if let Some(first) = lost.first() {
            let (slots, why) = (lost.len(), file.damaged(*first));
            tracing::error!(service = "svc-passport", event = "holder_lost", slots, %why);
        }
        Ok(void)
    }

    /// Deletes the records of lists that no valid token refers to; `now_s` in unix seconds.
    pub fn forget(&self, now_s: u64) -> io::Result<()> {
        forget(&*self.disk, &self.dir, now_s, |file| file.parse().ok())
    }
}

/// Deletes the files of lists that no valid token refers to; `list_of` reads a list's number from the name of a file. The
/// part of the number that counts is never smaller than the second in which the list was opened, so the number alone
/// decides.
pub(super) fn forget(
    disk: &dyn Disk,
    dir: &Path,
    now_s: u64,
    list_of: impl Fn(&str) -> Option<u64>,
) -> io::Result<()> {
    let oldest = now_s.saturating_sub(LIST_KEPT_S);
    let mut done = Ok(());
    for file in disk.list(dir)? {
        if list_of(&file).is_some_and(|list| opened_at(list) < oldest) {
            // A file that cannot be deleted keeps no other.
            done = done.and(disk.remove(&dir.join(file)));
        }
    }
    done
}

fn path(dir: &Path, list: u64) -> PathBuf {
    dir.join(list.to_string())
}

fn entry(places: &Places, subject: &str, iat: u64) -> u64 {
    let second = iat.saturating_sub(places.opened_s).min(0xffff);
    name(places.list, subject) << 16 | second
}

/// 48 bits of a hash over list and subject: entries of two lists cannot be linked to one holder without guessing the name.
pub(super) fn name(list: u64, subject: &str) -> u64 {
    let hash = ron_crypto::hash::blake3(&[&list.to_le_bytes(), subject.as_bytes()].concat());
    let mut bytes = [0; 8];
    bytes[..6].copy_from_slice(&hash[..6]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use ron_files::{CrashMode, MemoryDisk, OsDisk, SimDisk};
    use ron_proto::passport::Revoked;

    use super::*;
    use crate::samples;

    fn view(subject: &str, issued_until: u64) -> RevocationView {
        let revoked = Revoked::Subject {
            subject_ref: subject.to_owned(),
            issued_until,
        };
        samples::view(&[revoked], 1, issued_until)
    }

    fn at(first: u32) -> Places {
        Places {
            list: 10_007,
            opened_s: 10_000,
            first,
        }
    }

    fn of(holders: &Holders, list: u64, subject: &str, until: u64) -> Vec<u32> {
        holders
            .revoked(list, 10_000, &view(subject, until))
            .unwrap()
    }

    #[test]
    fn a_subjects_tokens_up_to_its_revocation_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let disks: [Arc<dyn Disk>; 2] = [Arc::new(OsDisk), Arc::new(MemoryDisk::new())];
        for disk in disks {
            let open = || Holders::open(disk.clone(), dir.path().join("holders")).unwrap();
            let holders = open();
            holders
                .note(&at(0), ["alice", "bob", "alice"].into_iter(), 10_000)
                .unwrap();
            holders.note(&at(3), ["alice"].into_iter(), 10_050).unwrap();
            holders.note(&at(9), ["alice"].into_iter(), 10_051).unwrap();
            assert_eq!(of(&holders, 10_007, "alice", 10_050), [0, 2, 3]);
            assert_eq!(of(&holders, 10_007, "bob", 99_999), [1]);
            assert_eq!(of(&holders, 10_007, "carol", 99_999), [0; 0]);
            assert_eq!(
                of(&holders, 10_008, "alice", 99_999),
                [0; 0],
                "another list"
            );
            let again = open();
            assert_eq!(of(&again, 10_007, "alice", 99_999), [0, 2, 3, 9], "kept");
            holders.forget(10_007 + LIST_KEPT_S).unwrap();
            assert_eq!(of(&holders, 10_007, "bob", 99_999), [1]);
            holders.forget(10_008 + LIST_KEPT_S).unwrap();
            assert_eq!(of(&holders, 10_007, "bob", 99_999), [0; 0], "forgotten");
        }
    }

    #[test]
    fn a_damaged_or_torn_slot_hides_its_own_token_alone() {
        let disk = SimDisk::new();
        let holders = Holders::open(Arc::new(disk.clone()), "/holders".into()).unwrap();
        holders
            .note(&at(0), ["alice"; 5].into_iter(), 10_000)
            .unwrap();
        let path = Path::new("/holders/10007");
        let good = disk.peek(path).unwrap();
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 1;
            disk.poke(path, Some(bad));
            let rest: Vec<u32> = (0..5).filter(|slot| *slot as usize != byte / 12).collect();
            assert_eq!(of(&holders, 10_007, "alice", 10_000), rest, "{byte}");
        }
        for torn in 0..=good.len() {
            let disk = SimDisk::new();
            let holders = Holders::open(Arc::new(disk.clone()), "/holders".into()).unwrap();
            holders
                .note(&at(0), ["alice"; 5].into_iter(), 10_000)
                .unwrap();
            disk.crash(CrashMode::TearLast(torn));
            let holders = Holders::open(Arc::new(disk), "/holders".into()).unwrap();
            let left: Vec<u32> = (0..torn as u32 / 12).collect();
            assert_eq!(of(&holders, 10_007, "alice", 10_000), left, "{torn}");
            holders.note(&at(5), ["alice"].into_iter(), 10_000).unwrap();
            assert!(of(&holders, 10_007, "alice", 10_000).contains(&5));
        }
    }
}
