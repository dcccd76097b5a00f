//! The log on disk: one writer with group commit, readers on snapshots, recovery, and the offline
//! check.
//!
//! ```text
//! <dir>/log.meta            origin, salt, entries per segment               written once
//! <dir>/checkpoint          the last signed checkpoint, a C2SP note         replaced as a whole
//! <dir>/00000000.seg        batches, until they are 65,536 entries or more  the data; appended, then never changed
//! <dir>/00000000.idx        leaf hashes and offsets of entries 0..65536     derived; written once when all are there
//! <archive>/<salt>/00000000.seg.zst    a segment in the archive; what is left in <dir> stands for it
//! <dir>/lock                held by the writer
//! ```
//!
//! **Invariant:** the writer issues one write and one fdatasync per batch, and a batch lies in one segment: all of it or nothing.
//! **Invariant:** after the first failed write or sync nothing more is written; reads continue.
//! **Invariant:** memory grows by 32 bytes per 256 entries and not per entry, except for the block of an index file that is not full yet.

mod archived;
mod archiver;
mod build;
mod checkpointer;
mod engine_log;
mod errors;
mod frame;
mod layout;
mod leaves;
mod log;
mod meta;
mod migrate;
mod open;
mod pick;
mod reader;
mod rewrite;
mod scan;
mod segments;
mod shared_log;
mod source;
mod state;
mod verify;
mod window;
mod witness_store;

pub use archiver::{
    ArchivedSegment, Archiver, archive_of, archived_files, check_archived, forget_archive,
};
pub use checkpointer::Checkpointer;
pub use engine_log::{EngineError, EngineLog, OnceAppended};
pub use errors::{
    AppendError, ArchiveError, CheckpointError, OpenError, ProofError, ReadError, VerifyError,
    WriteFailure,
};
pub use leaves::LeafFiles;
pub use log::{Log, LogOptions, Record, Recovery};
pub use migrate::{
    Back, Fill, MakePrivate, MigrateError, Migrated, clear_copy, finish_tombstone, from_copy,
    is_copy, refuse_copy, to_files,
};
pub use pick::pick;
pub use reader::{LogReader, TreeHead};
pub use rewrite::rewrite_private;
pub use shared_log::SharedLog;
pub use verify::{Verified, Visited, verify_dir, verify_on, verify_present};
pub use witness_store::{CosignError, Cosigned, WitnessStore, origin_hash};
