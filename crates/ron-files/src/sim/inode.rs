//! A file of the simulated disk: what is visible of it, what is durable, and the changes between the two.

use crate::draws::Draws;

#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    Length(u64),
    Modified(u64),
}

/// Bytes and date of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) modified_ms: u64,
}

impl Change {
    pub(super) fn apply(&self, content: &mut Content) {
        let data = &mut content.bytes;
        match self {
            Self::Modified(ms) => content.modified_ms = *ms,
            Self::Length(len) => data.resize(*len as usize, 0),
            Self::Write { offset, bytes } => {
                let (from, to) = (*offset as usize, *offset as usize + bytes.len());
                if data.len() < to {
                    data.resize(to, 0);
                }
                data[from..to].copy_from_slice(bytes);
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    pub(super) visible: Content,
    pub(super) durable: Content,
    pub(super) pending: Vec<Change>,
}

/// Whether a change reached the disk; a write may have in part.
pub(super) fn survives(change: &mut Change, draws: &mut Draws) -> bool {
    match (draws.below(4), change) {
        (0, _) => false,
        (1, Change::Write { bytes, .. }) => {
            let kept = draws.below(bytes.len() as u64 + 1);
            bytes.truncate(kept as usize);
            true
        }
        _ => true,
    }
}
