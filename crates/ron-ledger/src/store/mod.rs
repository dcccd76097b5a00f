//! The ledger's files: the log, which is the truth, and what is derived from it: snapshots and the
//! key index.
//!
//! ```text
//! <data>/log/              ron-tlog: one leaf per entry, one fdatasync per batch
//! <data>/derived/          may be deleted at any time; rebuilt from the log
//!     snap-<seq>.state     the state as of <seq>, bound to the log's size and root, naming its key files
//!     keys-<from>-<to>.idx sorted (key hash, seq) records of these entries
//! <data>/projection.sqlite history and balances for operators and auditors; derived too
//! ```

pub mod filter;
pub mod keys;
pub mod segment;
pub mod snapshot;

use std::io;
use std::path::Path;
use std::sync::Arc;

use ron_files::{Disk, DiskFile};

/// Bytes written or read at once.
pub(crate) const PIECE: usize = 1 << 18;

/// Writes a file sequentially through a buffer and hashes its content.
pub(crate) struct FileWriter {
    file: Arc<dyn DiskFile>,
    at: u64,
    buffer: Vec<u8>,
    hash: ron_crypto::hash::Sha256,
}

impl FileWriter {
    pub(crate) fn create(disk: &dyn Disk, path: &Path) -> io::Result<Self> {
        let file = disk.create(path)?;
        Ok(Self {
            file,
            at: 0,
            buffer: Vec::with_capacity(PIECE),
            hash: ron_crypto::hash::Sha256::new(),
        })
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hash.update(&self.buffer);
        self.file.write_at(self.at, &self.buffer)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Appends the hash of all content, makes the file durable and returns the hash.
    pub(crate) fn seal(mut self) -> io::Result<[u8; 32]> {
        self.flush()?;
        let hash = self.hash.finish();
        self.file.write_at(self.at, &hash)?;
        self.file.sync_data()?;
        Ok(hash)
    }
}

/// Reads a sealed file and checks its hash; returns the content without the hash, and the hash.
pub(crate) fn read_sealed(disk: &dyn Disk, path: &Path) -> io::Result<(Vec<u8>, [u8; 32])> {
    let damaged = |why: &str| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}: {why}", path.display()),
        )
    };
    let file = disk.open_read(path)?;
    let len = usize::try_from(file.len()?).map_err(|_| damaged("too large"))?;
    let Some(body) = len.checked_sub(32) else {
        return Err(damaged("too short"));
    };
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match file.read_at(done as u64, &mut bytes[done..])? {
            0 => return Err(damaged("it ends too early")),
            n => done += n,
        }
    }
    let hash = ron_crypto::hash::sha256(&bytes[..body]);
    if bytes[body..] != hash {
        return Err(damaged("its hash is not that of its content"));
    }
    bytes.truncate(body);
    Ok((bytes, hash))
}

/// Renames a finished temporary file to its final name, durably.
pub(crate) fn place(disk: &dyn Disk, dir: &Path, tmp: &Path, name: &str) -> io::Result<()> {
    disk.rename(tmp, &dir.join(name))?;
    disk.sync_dir(dir)
}
