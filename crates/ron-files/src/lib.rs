//! ron-files: files that survive crashes.
//!
//! ```text
//!  disk     Disk: what a file system promises; OsDisk; atomic replacement of small files
//!  sim      SimDisk: a disk in memory that loses, tears and refuses writes, for tests and amnesia mode
//! ```

mod disk;
mod sim;

pub use disk::{Disk, DiskFile, DiskLock, OsDisk, read_small, write_atomic};
pub use sim::{CrashMode, Fault, FaultKind, SimDisk};
