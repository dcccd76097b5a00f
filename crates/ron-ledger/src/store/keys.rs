//! The index from (principal, key) to the entry: recent keys in memory, older ones in sorted files.
//!
//! A key in memory costs 29 to 57 bytes (24 and one control byte, at a load of 7/16 to 7/8); a key
//! in a file costs 24 bytes on disk and about 1.6 bytes of memory. Each snapshot moves the keys in
//! memory to a file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_files::Disk;
use ron_kernel::{LockSpec, RankedRwLock, Snapshot};

use super::segment::{Segment, SegmentId};
use crate::core::KeyHash;
use crate::replay::Keys;

/// The last files are merged when there are so many of similar size: none has so many times the keys of the newest. A key is so
/// written again once for each power of this number, not each time that a newer file has become a fraction of its own.
const MERGED: usize = 4;

#[derive(Debug, Default)]
struct Recent {
    now: Keys,
    /// Keys that are being written to a file; lookups still find them here.
    spilling: Option<Arc<Keys>>,
}

/// The index. One thread inserts; any thread looks up.
#[derive(Debug)]
pub struct KeyIndex {
    recent: RankedRwLock<Recent>,
    segments: Snapshot<Vec<Arc<Segment>>>,
}

impl KeyIndex {
    /// Starts with the files of a snapshot and the keys of the entries after it.
    pub fn new(lock: &'static LockSpec, segments: Vec<Arc<Segment>>, tail: Keys) -> Self {
        Self {
            recent: RankedRwLock::new(
                lock,
                Recent {
                    now: tail,
                    spilling: None,
                },
            ),
            segments: Snapshot::new(segments),
        }
    }

    /// The sequences of many keys at once (`None` in, `None` out).
    pub fn resolve(&self, keys: &[Option<KeyHash>]) -> io::Result<Vec<Option<u64>>> {
        // Memory first: a key leaves memory only after the file that has it is published.
        let mut found: Vec<Option<u64>> = {
            let recent = self.recent.read();
            let find = |k: &KeyHash| {
                recent
                    .now
                    .get(k)
                    .or_else(|| recent.spilling.as_ref().and_then(|s| s.get(k)))
                    .copied()
            };
            keys.iter().map(|k| k.as_ref().and_then(find)).collect()
        };
        let segments = self.segments.load();
        for (key, slot) in keys.iter().zip(&mut found) {
            let (Some(key), None) = (key, &slot) else {
                continue;
            };
            for s in segments.iter().rev() {
                *slot = s.find(key)?;
                if slot.is_some() {
                    break;
                }
            }
        }
        Ok(found)
    }

    pub fn find(&self, key: KeyHash) -> io::Result<Option<u64>> {
        Ok(self.resolve(&[Some(key)])?[0])
    }

    /// Adds the keys of durable entries.
    pub fn insert(&self, keys: &[(KeyHash, u64)]) {
        let mut recent = self.recent.write();
        recent.now.reserve(keys.len());
        for (key, seq) in keys {
            recent.now.insert(*key, *seq);
        }
    }

    /// Number of keys in memory, number of keys in files, bytes of memory that the files use.
    pub fn sizes(&self) -> (usize, usize, usize) {
        let memory = {
            let r = self.recent.read();
            r.now.len() + r.spilling.as_ref().map_or(0, |s| s.len())
        };
        let segments = self.segments.load();
        (
            memory,
            segments.iter().map(|s| s.len()).sum(),
            segments.iter().map(|s| s.memory()).sum(),
        )
    }

    /// Sets the keys in memory aside for writing; `None` while an earlier set is still being
    /// written.
    pub fn begin_spill(&self) -> Option<Arc<Keys>> {
        let mut recent = self.recent.write();
        if recent.spilling.is_some() {
            return None;
        }
        let set_aside = Arc::new(std::mem::take(&mut recent.now));
        recent.spilling = Some(Arc::clone(&set_aside));
        Some(set_aside)
    }

    /// Writes the keys that were set aside, those of entries `from..=to`, and merges files of
    /// similar size. Returns the current files. After an error the keys stay in memory and nothing
    /// is lost.
    pub fn spill(
        &self,
        disk: &dyn Disk,
        dir: &Path,
        keys: &Keys,
        from: u64,
        to: u64,
    ) -> io::Result<Vec<SegmentId>> {
        let mut list: Vec<Arc<Segment>> = self.segments.load().to_vec();
        if !keys.is_empty() {
            list.push(Arc::new(Segment::write(
                disk,
                dir,
                from,
                to,
                &keys.sorted(),
            )?));
        }
        // Publish the file before the keys leave memory, so that a concurrent lookup finds them in
        // one of the two.
        self.segments.store(list.clone());
        self.recent.write().spilling = None;
        while let Some(similar) = similar(&list) {
            let merged = Arc::new(Segment::merge(disk, dir, similar)?);
            list.truncate(list.len() - MERGED);
            list.push(merged);
        }
        self.segments.store(list.clone());
        Ok(list.iter().map(|s| s.id()).collect())
    }

    /// Returns the keys that were set aside to memory after a failed spill.
    pub fn undo_spill(&self) {
        let mut recent = self.recent.write();
        #[cfg(mutant = "undo")] // they are in no file and no longer in memory
        if ron_kernel::mutant("undo") {
            recent.spilling = None;
        }
        if let Some(back) = recent.spilling.take() {
            for (key, seq) in back.sorted() {
                recent.now.insert(key, seq);
            }
        }
    }
}

/// The last files, if they are to be merged.
fn similar(list: &[Arc<Segment>]) -> Option<&[Arc<Segment>]> {
    let last = list.split_at_checked(list.len().checked_sub(MERGED)?)?.1;
    let newest = last.last()?.len();
    let alike = last.iter().all(|s| s.len() < newest * MERGED);
    alike.then_some(last)
}

/// The files in `dir` that hold keys or snapshots and are not in `keep`.
pub(crate) fn leftovers(disk: &dyn Disk, dir: &Path, keep: &[String]) -> io::Result<Vec<PathBuf>> {
    let ours = |n: &str| n.ends_with(".tmp") || n.starts_with("keys-") || n.starts_with("snap-");
    Ok(disk
        .list(dir)?
        .into_iter()
        .filter(|n| ours(n) && !keep.contains(n))
        .map(|n| dir.join(n))
        .collect())
}
