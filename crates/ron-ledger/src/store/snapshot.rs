//! The state in a file, bound to the log: recovery loads it and replays only the entries after it.
//!
//! ```text
//! sealed file of kind SNAP: size u64 | root 32 | key files u32, each: from u64, to u64, hash 32 | image
//! ```
//! A snapshot is valid only if the log had exactly this root at this size; otherwise an older one,
//! or the whole log, is used.

use std::io;
use std::path::Path;

use ron_files::{Disk, FileError, Kind, Sealed, SealedWriter};
use ron_tlog::Hash;

use super::keys::leftovers;
use super::segment::SegmentId;
use crate::core::{Frozen, State};

const KIND: Kind = Kind {
    name: b"SNAP",
    version: 4,
};
const SEGMENT_ID: usize = 48;

/// A snapshot that was read back.
#[derive(Debug)]
pub struct Loaded {
    pub state: State,
    /// Number of leaves and root of the log when it was taken.
    pub size: u64,
    pub root: Hash,
    pub keys: Vec<SegmentId>,
}

fn name(seq: u64) -> String {
    format!("snap-{seq:016}.state")
}

/// Writes a snapshot of `frozen`, taken when the log had `size` leaves and `root`, then removes
/// files of older snapshots that it does not need.
pub fn write(
    disk: &dyn Disk,
    dir: &Path,
    frozen: &Frozen,
    size: u64,
    root: &Hash,
    keys: &[SegmentId],
) -> io::Result<()> {
    let this = name(frozen.seq());
    let mut out = SealedWriter::create(disk, dir, &this, KIND)?;
    out.put(&size.to_be_bytes())?;
    out.put(root)?;
    out.put(&(keys.len() as u32).to_be_bytes())?;
    for k in keys {
        out.put(&k.from.to_be_bytes())?;
        out.put(&k.to.to_be_bytes())?;
        out.put(&k.hash)?;
    }
    frozen.encode(|piece| out.put(piece))?;
    out.finish()?;
    let mut keep: Vec<String> = keys.iter().map(SegmentId::file_name).collect();
    keep.push(this);
    for path in leftovers(disk, dir, &keep)? {
        disk.remove(&path)?;
    }
    Ok(())
}

/// The names of the snapshots in `dir`, newest first.
pub fn list(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<String>> {
    let mut names = disk.list(dir)?;
    names.retain(|n| n.starts_with("snap-") && n.ends_with(".state"));
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names)
}

/// Reads a snapshot and checks everything that can be checked without the log.
pub fn load(disk: &dyn Disk, dir: &Path, name: &str) -> Result<Loaded, FileError> {
    let sealed = Sealed::read(disk, &dir.join(name), KIND)?;
    let content = sealed.content();
    let mut rest = content;
    let mut take = |n: usize| match rest.split_at_checked(n) {
        Some((a, b)) => {
            rest = b;
            Ok(a)
        }
        None => Err(sealed.damaged(content.len() - rest.len(), "it ends too early")),
    };
    let size = number(take(8)?);
    let root = hash(take(32)?);
    let count = take(4)?
        .iter()
        .fold(0usize, |n, b| (n << 8) | usize::from(*b));
    let mut keys = Vec::new();
    for _ in 0..count {
        let b = take(SEGMENT_ID)?;
        keys.push(SegmentId {
            from: number(&b[..8]),
            to: number(&b[8..16]),
            hash: hash(&b[16..]),
        });
    }
    let image = content.len() - rest.len();
    let state = State::from_image(rest).map_err(|e| sealed.damaged(image, e.to_string()))?;
    if state.seq() + 1 != size {
        let why = format!(
            "its state is of entry {}, its log has {size} leaves",
            state.seq()
        );
        return Err(sealed.damaged(0, why));
    }
    Ok(Loaded {
        state,
        size,
        root,
        keys,
    })
}

fn number(b: &[u8]) -> u64 {
    b.iter().fold(0, |n, b| (n << 8) | u64::from(*b))
}

fn hash(b: &[u8]) -> Hash {
    let mut out = [0; 32];
    out.copy_from_slice(b);
    out
}
