//! What the tokens of each status list were exchanged from, so that the lists show the revocation of an earlier token: one
//! slot per exchanged token and earlier token, written before the token leaves.
//!
//! The first earlier tokens of a list's tokens are in one slot file, the second ones in another, and so on: a token that was
//! exchanged once takes one slot. Slots are kept as those of the holders are ([`super::holders`]): a kill loses none, a power
//! failure may lose the newest.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_auth::{Claims, RevocationView};
use ron_files::{Disk, FileError, Kind, Slot, SlotFile};
use ron_proto::passport::ANCESTORS_MAX;

use super::holders::{forget, name};
use crate::lists::{LIST_TOKENS, place};

/// Bytes of a slot's content: list and position of the earlier token, 48 bits of a hash for each of its keys.
const ENTRY: usize = 8 + 4 + 2 * NAME;
const NAME: usize = 6;
/// The files; their id is the number of the list.
const KIND: Kind = Kind {
    name: b"FROM",
    version: 1,
};

/// The recorded earlier tokens of each list's tokens.
#[derive(Debug)]
pub struct Origins {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl Origins {
    /// Opens the record in a directory, which is created if needed.
    pub fn open(disk: Arc<dyn Disk>, dir: PathBuf) -> io::Result<Self> {
        disk.create_dir_all(&dir)?;
        Ok(Self { disk, dir })
    }

    /// Records that the token at this position was exchanged from `origin`, and so from all that this one was exchanged from.
    pub fn note(&self, list: u64, at: u32, origin: &Claims) -> Result<(), FileError> {
        let before = origin.ancestors.iter();
        let before = before.map(|one| entry(list, &one.jti, one.kids.iter()));
        let kids = std::iter::once(&origin.kid).chain(origin.pq_kid.as_ref());
        let itself = entry(list, &origin.jti, kids);
        for (depth, entry) in before.chain([itself]).enumerate() {
            let path = path(&self.dir, list, depth);
            let file = SlotFile::open_or_create(&*self.disk, &path, KIND, list)?;
            file.write(u64::from(at), std::iter::once(entry))?;
        }
        Ok(())
    }

    /// The positions of a list whose token was exchanged from a revoked one.
    pub fn revoked(&self, list: u64, view: &RevocationView) -> Result<Vec<u32>, FileError> {
        let kids: BTreeSet<[u8; NAME]> = view.kids().map(|kid| short(list, kid)).collect();
        let (mut void, mut lost) = (Vec::new(), 0_usize);
        for depth in 0..=ANCESTORS_MAX {
            let path = path(&self.dir, list, depth);
            let Some(file) = SlotFile::<ENTRY>::open(&*self.disk, &path, KIND, list)? else {
                break;
            };
            for (slot, at) in file.all()?.into_iter().take(LIST_TOKENS as usize).zip(0..) {
                match slot {
                    Slot::Empty => {}
                    // As after a power failure; the other slots are still right, and the feed has the revocation.
                    Slot::Damaged => lost += 1,
                    Slot::Sound(entry) if is_void(&entry, view, &kids) => void.push(at),
                    Slot::Sound(_) => {}
                }
            }
        }
        if lost > 0 {
            tracing::error!(
                service = "svc-passport",
                event = "origin_lost",
                list,
                slots = lost
            );
        }
        Ok(void)
    }

    /// Deletes the records of lists that no valid token refers to; `now_s` in unix seconds.
    pub fn forget(&self, now_s: u64) -> io::Result<()> {
        forget(&*self.disk, &self.dir, now_s, |file| {
            file.split_once('.')?.0.parse().ok()
        })
    }
}

fn path(dir: &Path, list: u64, depth: usize) -> PathBuf {
    dir.join(format!("{list}.{depth}"))
}

/// The slot for an earlier token; the list is the one that the slot belongs to.
fn entry<'a>(list: u64, jti: &str, kids: impl Iterator<Item = &'a String>) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    // The issuer made the id, so it names a place.
    let (of, at) = place(jti).unwrap_or_default();
    bytes[..8].copy_from_slice(&of.to_be_bytes());
    bytes[8..12].copy_from_slice(&at.to_be_bytes());
    for (kid, slot) in kids.zip(bytes[12..].chunks_mut(NAME)) {
        slot.copy_from_slice(&short(list, kid));
    }
    bytes
}

fn is_void(entry: &[u8; ENTRY], view: &RevocationView, kids: &BTreeSet<[u8; NAME]>) -> bool {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    let (list, at) = (number(&entry[..8]), number(&entry[8..12]));
    let prefix = format!("{list:x}.{at:x}.");
    let mut signed_by = entry[12..].chunks(NAME);
    view.jtis_of(&prefix).next().is_some() || signed_by.any(|kid| kids.contains(kid))
}

fn short(list: u64, kid: &str) -> [u8; NAME] {
    let mut bytes = [0; NAME];
    bytes.copy_from_slice(&name(list, kid).to_be_bytes()[8 - NAME..]);
    bytes
}

#[cfg(test)]
mod tests {
    use ron_auth::Ancestor;
    use ron_files::{MemoryDisk, OsDisk, SimDisk};
    use ron_proto::passport::Revoked;

    use super::*;
    use crate::lists::{LIST_KEPT_S, jti};
    use crate::samples::{claims, view};

    const LIST: u64 = 10_007;

    fn id(list: u64, at: u32) -> String {
        jti(list, at, &[at as u8; 16])
    }

    fn of_jti(jti: &str) -> Revoked {
        Revoked::Jti {
            jti: jti.to_owned(),
            until: u64::MAX,
        }
    }

    fn of_kid(kid: &str) -> Revoked {
        Revoked::Kid {
            kid: kid.to_owned(),
        }
    }

    /// A token at this place, exchanged from these.
    fn token(at: u32, kid: &str, before: &[&Claims]) -> Claims {
        let ancestor = |one: &&Claims| Ancestor {
            jti: one.jti.clone(),
            exp: one.exp,
            kids: vec![one.kid.clone()],
            counted: Vec::new(),
        };
        Claims {
            jti: id(LIST, at),
            kid: kid.to_owned(),
            ancestors: before.iter().map(ancestor).collect(),
            ..claims()
        }
    }

    #[test]
    fn the_tokens_that_came_from_a_revoked_one_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let disks: [Arc<dyn Disk>; 2] = [Arc::new(OsDisk), Arc::new(MemoryDisk::new())];
        for disk in disks {
            let open = || Origins::open(disk.clone(), dir.path().join("origins")).expect("opens");
            let origins = open();
            // 5 and 7 come from 1, and 6 from 5; 1 was signed by another key than 5.
            let first = token(1, "old", &[]);
            let second = token(5, "new", &[&first]);
            origins.note(LIST, 5, &first).expect("written");
            origins.note(LIST, 6, &second).expect("written");
            origins.note(LIST, 7, &first).expect("written");
            let void = |all: &[Revoked]| {
                let mut void = open().revoked(LIST, &view(all, 1, 0)).expect("read");
                void.sort_unstable();
                void.dedup();
                void
            };
            assert_eq!(void(&[]), [0; 0]);
            assert_eq!(void(&[of_jti(&first.jti)]), [5, 6, 7]);
            assert_eq!(void(&[of_jti(&second.jti)]), [6]);
            assert_eq!(void(&[of_jti(&id(LIST, 6))]), [0; 0], "its own bit");
            assert_eq!(void(&[of_jti(&id(LIST + 1, 1))]), [0; 0], "another list");
            assert_eq!(void(&[of_kid("old")]), [5, 6, 7]);
            assert_eq!(void(&[of_kid("new")]), [6]);
            assert_eq!(void(&[of_kid("other")]), [0; 0]);
            let other = open().revoked(LIST + 1, &view(&[of_jti(&first.jti)], 1, 0));
            assert_eq!(other.expect("read"), [0; 0]);
            origins.forget(LIST + LIST_KEPT_S).expect("looked");
            assert_eq!(void(&[of_jti(&first.jti)]), [5, 6, 7], "kept");
            origins.forget(LIST + 1 + LIST_KEPT_S).expect("deleted");
            assert_eq!(void(&[of_jti(&first.jti)]), [0; 0]);
        }
    }

    #[test]
    fn a_damaged_slot_hides_its_own_token_alone() {
        let disk = SimDisk::new();
        let origins = Origins::open(Arc::new(disk.clone()), "/origins".into()).expect("opens");
        let first = token(1, "k", &[]);
        for at in 2..5 {
            origins.note(LIST, at, &first).expect("written");
        }
        let file = Path::new("/origins/10007.0");
        let good = disk.peek(file).expect("is there");
        let slot = SlotFile::<ENTRY>::SLOT;
        for byte in 2 * slot..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 1;
            disk.poke(file, Some(bad));
            let rest: Vec<u32> = (2..5).filter(|at| *at as usize != byte / slot).collect();
            let void = origins.revoked(LIST, &view(&[of_jti(&first.jti)], 1, 0));
            assert_eq!(void.expect("read"), rest, "{byte}");
        }
    }
}
