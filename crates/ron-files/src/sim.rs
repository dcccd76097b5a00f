//! A disk in memory for tests and simulation, with a fault model.
//!
//! Fault model: written bytes are visible at once but durable only after `sync_data` of their file;
//! names are durable only after `sync_dir`. A crash drops everything that is not durable, or keeps
//! all of it, or keeps all but tears the last write, or decides for each write by itself. A failed sync leaves the bytes readable and
//! marks them clean, so that a later sync does not save them (as Linux does). The n-th changing
//! operation can fail with EIO or ENOSPC (after a part of a write), or cut the power: from then on
//! all operations fail until [`SimDisk::crash`]. A process that is killed loses nothing
//! ([`SimDisk::kill`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_kernel::RankedMutex;
use ron_kernel::topology::LockSpec;

use crate::disk::{Disk, DiskFile, DiskLock};
use crate::draws::Draws;
use crate::memory::names_in;

mod inode;

use inode::{Change, Content, Inode, survives};

static LOCK: LockSpec = LockSpec {
    name: "sim_disk",
    rank: u16::MAX,
    guards: "the simulated disk's whole state",
};

/// The effect of a failing operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A device error; a write leaves nothing, a sync loses the bytes that it should have saved.
    Io,
    /// No space; a write leaves its first half.
    NoSpace,
    /// The power fails: this operation is not done (a write leaves its bytes unsynced), all later
    /// ones fail.
    PowerOff,
}

/// A fault at the n-th changing operation from now on (1 is the next one).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The operation's number, as counted by [`SimDisk::operations`].
    pub at: u64,
    pub kind: FaultKind,
}

/// What a crash leaves of the changes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashMode {
    LoseAll,
    /// Everything: the cache happened to be written out.
    KeepAll,
    /// Everything except the end of the last write, of which this many bytes stay.
    TearLast(usize),
    /// Everything, but 512 bytes of the last write, from this offset on, stay what they were, which is zero
    /// where the file was shorter: sectors reached the disk out of order.
    HoleInLast(usize),
    /// Each write is lost, kept or torn by itself, and the new names of each directory are lost or kept
    /// together, as this number draws.
    Each(u64),
}

#[derive(Debug, Default)]
struct State {
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    locks: BTreeMap<PathBuf, u64>,
    boot: u64,
    operations: u64,
    syncs: u64,
    last_write: Option<u64>,
    faults: Vec<Fault>,
    powered_off: bool,
}

/// The simulated disk. Clones share the same state.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<RankedMutex<State>>);

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

fn power_is_off() -> io::Error {
    io::Error::other("the simulated power is off")
}

impl State {
    /// Counts a changing operation and returns its fault, if one is planned.
    fn step(&mut self) -> io::Result<Option<FaultKind>> {
        if self.powered_off {
            return Err(power_is_off());
        }
        self.operations += 1;
        let now = self.operations;
        let fault = self.faults.iter().find(|f| f.at == now).map(|f| f.kind);
        if fault == Some(FaultKind::PowerOff) {
            self.powered_off = true;
        }
        Ok(fault)
    }

    /// A step that either happens or fails without any effect.
    fn step_whole(&mut self) -> io::Result<()> {
        match self.step()? {
            None => Ok(()),
            Some(FaultKind::PowerOff) => Err(power_is_off()),
            Some(FaultKind::Io) => Err(io::Error::from_raw_os_error(5)),
            Some(FaultKind::NoSpace) => Err(io::Error::from_raw_os_error(28)),
        }
    }

    fn find(&self, path: &Path) -> io::Result<u64> {
        if self.powered_off {
            return Err(power_is_off());
        }
        self.names
            .get(path)
            .copied()
            .ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn add(&mut self, file: Inode) -> u64 {
        let inode = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(inode, file);
        inode
    }

    fn change(&mut self, inode: u64, change: Change) {
        let file = self
            .inodes
            .get_mut(&inode)
            .expect("an open file has its inode");
        change.apply(&mut file.visible);
        file.pending.push(change);
    }

    fn write(&mut self, inode: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let fault = self.step()?;
        let kept = match fault {
            None | Some(FaultKind::PowerOff) => bytes,
            Some(FaultKind::NoSpace) => &bytes[..bytes.len() / 2],
            Some(FaultKind::Io) => &[],
        };
        self.change(
            inode,
            Change::Write {
                offset,
                bytes: kept.to_vec(),
            },
        );
        self.last_write = Some(inode);
        match fault {
            None => Ok(()),
            Some(FaultKind::PowerOff) => Err(power_is_off()),
            Some(FaultKind::NoSpace) => Err(io::Error::from_raw_os_error(28)),
            Some(FaultKind::Io) => Err(io::Error::from_raw_os_error(5)),
        }
    }

    fn sync(&mut self, inode: u64) -> io::Result<()> {
        self.syncs += 1;
        let fault = self.step()?;
        let file = self
            .inodes
            .get_mut(&inode)
            .expect("an open file has its inode");
        match fault {
            None => {
                for change in file.pending.drain(..) {
                    change.apply(&mut file.durable);
                }
                Ok(())
            }
            Some(FaultKind::PowerOff) => Err(power_is_off()),
            Some(_) => {
                // As on Linux: the pages count as clean, so the next sync saves nothing of them.
                file.pending.clear();
                Err(io::Error::from_raw_os_error(5))
            }
        }
    }

    /// Shortens the newest pending write, which is the last before the crash, or takes a part out of
    /// it: those bytes stay what they were before, or zero where the file was shorter.
    fn damage_last(&mut self, mode: CrashMode) {
        let Some(file) = self.last_write.and_then(|i| self.inodes.get_mut(&i)) else {
            return;
        };
        let Some((Change::Write { offset, bytes }, earlier)) = file.pending.split_last_mut() else {
            return;
        };
        match mode {
            CrashMode::TearLast(kept) => bytes.truncate(kept),
            CrashMode::HoleInLast(from) => {
                let mut before = file.durable.clone();
                for change in earlier.iter() {
                    change.apply(&mut before);
                }
                for at in from..bytes.len().min(from + 512) {
                    let was = before.bytes.get(*offset as usize + at);
                    bytes[at] = was.copied().unwrap_or(0);
                }
            }
            CrashMode::LoseAll | CrashMode::KeepAll | CrashMode::Each(_) => {}
        }
    }

    fn crash(&mut self, mode: CrashMode) {
        self.damage_last(mode);
        let mut draws = match mode {
            CrashMode::Each(seed) => Some(Draws::of(seed)),
            _ => None,
        };
        let all = mode != CrashMode::LoseAll;
        for file in self.inodes.values_mut() {
            let pending = std::mem::take(&mut file.pending);
            for mut change in pending {
                let each = |draws| survives(&mut change, draws);
                if draws.as_mut().map_or(all, each) {
                    change.apply(&mut file.durable);
                }
            }
            file.visible = file.durable.clone();
        }
        let paths = self.names.keys().chain(self.durable_names.keys());
        let dirs: BTreeSet<PathBuf> = paths
            .filter_map(|path| path.parent().map(Path::to_owned))
            .collect();
        for dir in dirs {
            if draws.as_mut().map_or(all, |draws| draws.below(2) == 0) {
                self.make_durable(&dir);
            }
        }
        self.names = self.durable_names.clone();
        self.forget_process();
        let live: Vec<u64> = self.names.values().copied().collect();
        self.inodes.retain(|inode, _| live.contains(inode));
        self.last_write = None;
        self.powered_off = false;
    }

    /// The process that used the disk is gone.
    fn forget_process(&mut self) {
        self.locks.clear();
        self.faults.clear();
        self.boot += 1;
    }

    /// Makes the names in a directory durable.
    fn make_durable(&mut self, dir: &Path) {
        let is_here = |path: &Path| path.parent() == Some(dir);
        self.durable_names.retain(|path, _| !is_here(path));
        let here = self.names.iter().filter(|(path, _)| is_here(path));
        self.durable_names
            .extend(here.map(|(path, inode)| (path.clone(), *inode)));
    }
}

impl SimDisk {
    pub fn new() -> Self {
        Self(Arc::new(RankedMutex::new(&LOCK, State::default())))
    }

    /// Changing operations so far: writes, syncs, creates, renames, removes, cuts.
    pub fn operations(&self) -> u64 {
        self.0.lock().operations
    }

    /// File syncs so far.
    pub fn syncs(&self) -> u64 {
        self.0.lock().syncs
    }

    /// Bytes of the last write that a crash may tear; 0 when it is durable. Tearing it after more
    /// bytes is the same as [`CrashMode::KeepAll`].
    pub fn torn_max(&self) -> usize {
        let state = self.0.lock();
        let file = state.last_write.and_then(|i| state.inodes.get(&i));
        match file.and_then(|file| file.pending.last()) {
            Some(Change::Write { bytes, .. }) => bytes.len(),
            _ => 0,
        }
    }

    /// Plans a fault at the `after`-th changing operation from now (1 is the next).
    pub fn fail_after(&self, after: u64, kind: FaultKind) {
        let mut state = self.0.lock();
        let at = state.operations + after;
        state.faults.push(Fault { at, kind });
    }

    /// Whether the power was cut and the machine not restarted yet.
    pub fn is_off(&self) -> bool {
        self.0.lock().powered_off
    }

    /// Restarts the machine: changes that were not durable are lost or kept as `mode` says, planned
    /// faults are cleared, files that were open before fail, locks are free.
    pub fn crash(&self, mode: CrashMode) {
        self.0.lock().crash(mode);
    }

    /// The process is killed, and the machine stays: files that were open fail, locks are free, planned faults are cleared,
    /// and nothing is lost that a crash does not lose later.
    pub fn kill(&self) {
        self.0.lock().forget_process();
    }

    /// A separate disk with the same files and pending changes, to try one crash in several modes.
    pub fn fork(&self) -> Self {
        let state = self.0.lock();
        Self(Arc::new(RankedMutex::new(
            &LOCK,
            State {
                inodes: state.inodes.clone(),
                next_inode: state.next_inode,
                names: state.names.clone(),
                durable_names: state.durable_names.clone(),
                last_write: state.last_write,
                powered_off: state.powered_off,
                ..State::default()
            },
        )))
    }

    /// The visible contents of a file, for tests.
    pub fn peek(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.0.lock();
        let inode = state.names.get(path)?;
        Some(state.inodes[inode].visible.bytes.clone())
    }

    /// Replaces (or removes) a file durably behind its owner's back, as an intruder or bit rot would.
    pub fn poke(&self, path: &Path, bytes: Option<Vec<u8>>) {
        let mut state = self.0.lock();
        let Some(bytes) = bytes else {
            state.names.remove(path);
            state.durable_names.remove(path);
            return;
        };
        let content = Content {
            bytes,
            modified_ms: 0,
        };
        let inode = state.add(Inode {
            visible: content.clone(),
            durable: content,
            pending: Vec::new(),
        });
        state.names.insert(path.to_owned(), inode);
        state.durable_names.insert(path.to_owned(), inode);
    }

    /// Turns a bit over, on the disk and for open files, as bit rot does. `at` is below the file's length.
    pub fn flip(&self, path: &Path, at: u64, bit: u32) {
        let mut state = self.0.lock();
        let inode = state.names.get(path).copied();
        let Some(file) = inode.and_then(|inode| state.inodes.get_mut(&inode)) else {
            return;
        };
        for content in [&mut file.visible, &mut file.durable] {
            if let Some(byte) = content.bytes.get_mut(at as usize) {
                *byte ^= 1 << bit;
            }
        }
    }

    fn handle(&self, inode: u64, boot: u64) -> Arc<dyn DiskFile> {
        Arc::new(SimFile {
            disk: self.clone(),
            inode,
            boot,
        })
    }
}

impl Disk for SimDisk {
    fn create_dir_all(&self, _dir: &Path) -> io::Result<()> {
        Ok(()) // directories are implied by the names in them
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.0.lock();
        if state.powered_off {
            return Err(power_is_off());
        }
        Ok(names_in(dir, state.names.keys()))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.0.lock();
        Ok(self.handle(state.find(path)?, state.boot))
    }

    fn open_write(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.open_read(path)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.0.lock();
        state.step_whole()?;
        let boot = state.boot;
        if let Ok(inode) = state.find(path) {
            state.change(inode, Change::Length(0));
            return Ok(self.handle(inode, boot));
        }
        let inode = state.add(Inode::default());
        state.names.insert(path.to_owned(), inode);
        Ok(self.handle(inode, boot))
    }

    fn open_or_create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        match self.open_write(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => self.create(path),
            opened => opened,
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step_whole()?;
        let inode = state.find(from)?;
        state.names.remove(from);
        state.names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step_whole()?;
        let inode = state.find(from)?;
        if state.names.contains_key(to) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        state.names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step_whole()?;
        state.find(path)?;
        state.names.remove(path);
        Ok(())
    }

    fn unnamed(&self, _dir: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.0.lock();
        state.step_whole()?;
        let inode = state.add(Inode::default());
        Ok(self.handle(inode, state.boot))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step_whole()?;
        state.make_durable(dir);
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DiskLock>>> {
        let mut state = self.0.lock();
        let boot = state.boot;
        if state.locks.contains_key(path) {
            return Ok(None);
        }
        state.locks.insert(path.to_owned(), boot);
        Ok(Some(Box::new(SimLock {
            disk: self.clone(),
            path: path.to_owned(),
            boot,
        })))
    }
}

#[derive(Debug)]
struct SimLock {
    disk: SimDisk,
    path: PathBuf,
    boot: u64,
}

impl DiskLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.disk.0.lock();
        if state.locks.get(&self.path) == Some(&self.boot) {
            state.locks.remove(&self.path);
        }
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: u64,
    boot: u64,
}

impl SimFile {
    fn with<R>(&self, act: impl FnOnce(&mut State) -> io::Result<R>) -> io::Result<R> {
        let mut state = self.disk.0.lock();
        if state.powered_off || state.boot != self.boot {
            return Err(power_is_off());
        }
        act(&mut state)
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.with(|s| Ok(s.inodes[&self.inode].visible.bytes.len() as u64))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.with(|s| {
            let data = &s.inodes[&self.inode].visible.bytes;
            let from = (offset as usize).min(data.len());
            let n = buf.len().min(data.len() - from);
            buf[..n].copy_from_slice(&data[from..from + n]);
            Ok(n)
        })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.with(|s| s.write(self.inode, offset, bytes))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|s| {
            s.step_whole()?;
            s.change(self.inode, Change::Length(len));
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|s| s.sync(self.inode))
    }

    fn modified_ms(&self) -> io::Result<u64> {
        self.with(|s| Ok(s.inodes[&self.inode].visible.modified_ms))
    }

    fn set_modified_ms(&self, ms: u64) -> io::Result<()> {
        self.with(|s| {
            s.step_whole()?;
            s.change(self.inode, Change::Modified(ms));
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
