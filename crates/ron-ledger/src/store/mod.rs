//! The ledger's files: the log, which is the truth, and what is derived from it: snapshots and the
//! key index.
//!
//! ```text
//! <data>/log/              ron-tlog: one leaf per entry, one fdatasync per batch
//! <data>/derived/          may be deleted at any time; rebuilt from the log
//!     snap-<seq>.state     sealed file: the state as of <seq>, bound to the log's size and root, naming its key files
//!     keys-<from>-<to>.idx sealed file: sorted (key hash, seq) records of these entries
//! <data>/projection.sqlite history and balances for operators and auditors; derived too
//! ```

pub mod filter;
pub mod keys;
pub mod segment;
pub mod snapshot;
