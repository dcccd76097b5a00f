//! ron-files: files that survive crashes.
//!
//! ```text
//!  dir      Dir: a directory of a disk
//!  disk     Disk: what a file system promises; OsDisk
//!  draws    random draws of the simulated disk and of tests
//!  memory   MemoryDisk: a disk in memory, for amnesia mode
//!  replace  write_atomic, Replacement: files that appear when they are complete
//!  room     DiskRoom: refuses writes before the disk is full
//!  sim      SimDisk: a disk in memory that loses, tears and refuses writes, for tests
//!  kind     the first bytes of every file: kind and format version; FileError
//!  records  RecordFile: records appended in batches; a torn tail is cut, damage is refused
//!  sealed   SealedWriter, Sealed: files written once, under a hash
//!  trial    seeds, draws and numbers of rounds of tests
//!  slots    SlotFile: slots written by position and never flushed, for copies and hints
//!  watched  WatchedDisk: a disk whose calls are noticed when they hang
//! ```
//!
//! **Invariant:** a record whose commit returned is found at the next start, or the file is refused with
//! its name and the offset of the damage. Nothing is skipped silently.
//! **Invariant:** a record file or sealed file of a newer format is refused before anything is written. A slot
//! file has no start, so its owner keeps the version elsewhere and checks it first.
//! **Invariant:** after a failed write or flush a file takes nothing more until it is opened again.

mod dir;
mod disk;
mod draws;
mod kind;
mod memory;
mod records;
mod replace;
mod room;
mod sealed;
mod sim;
mod slots;
pub mod trial;
mod watched;

pub use dir::Dir;
pub use disk::{Disk, DiskFile, DiskLock, OsDisk, SharedDisk, read_small};
pub use kind::{FileError, Kind};
pub use memory::MemoryDisk;
pub use records::{Check, Opened, Place, RecordFile, Tail};
pub use replace::{Replacement, rename_durably, write_atomic, write_atomic_with_mode};
pub use room::{DiskRoom, NoRoom};
pub use sealed::{Sealed, SealedWriter};
pub use sim::{CrashMode, Fault, FaultKind, SimDisk};
pub use slots::{Slot, SlotFile};
pub use watched::WatchedDisk;
