//! ron-tlog: the verifiable log. Entries become leaves of an RFC 6962 Merkle tree; signed
//! checkpoints commit to all of them; a holder of the verifier key can check offline that an entry
//! is in the log and that no entry was changed or lost.
//!
//! ```text
//!              pure, no I/O                                       I/O
//!  tree   hashing, frontier, proofs                    append  Log: one writer, one write + one fdatasync per batch
//!  note   C2SP signed notes, verifier keys                     LogReader: snapshots, tiles, bundles, proofs
//!  checkpoint  origin, size, root as a signed note             Checkpointer: signs and stores the tree head
//!  tile   tile names, entry bundles                            verify_dir: offline check of a directory
//!  proof  c2sp.org/tlog-proof@v1                               WitnessStore: the last checkpoint a witness cosigned, per log
//!  cosignature  timestamped signatures of witnesses
//!  policy  the witnesses that must have cosigned
//!  rotation  statements by which a log changes its key
//!  witness the rules of add-checkpoint             store   LogStore: the contract of an engine that keeps batches on two hosts
//! ```
//!
//! **Invariant:** the pure modules import no file, thread, network or clock.
//! **Invariant:** acknowledged entries are on disk; an entry that a checkpoint covers is never changed or dropped, and a
//! directory in which that happened is refused by [`append::Log::open`] and by
//! [`append::verify_dir`], naming the index.
//! **Invariant:** one thread writes (`&mut Log`), readers never block it.
//!
//! Files are read and written through `ron_files::Disk`. File and wire formats: `docs/formats/tlog.md`.

#![allow(clippy::needless_for_each, clippy::type_complexity)] // visitor types are spelled out in signatures

pub mod append;
pub mod checkpoint;
pub mod cosignature;
pub mod note;
pub mod policy;
pub mod proof;
pub mod rotation;
pub mod store;
pub mod tile;
pub mod tree;
pub mod witness;

pub use append::{
    AppendError, CheckpointError, Checkpointer, Log, LogOptions, LogReader, OpenError, ProofError,
    ReadError, Record, Recovery, Verified, VerifyError, WriteFailure, verify_dir,
};
pub use checkpoint::Checkpoint;
pub use cosignature::{Cosigner, CosignerKey};
pub use note::{Ed25519NoteSigner, Note, NoteSigner, SignFailed, VerifierKey};
pub use policy::Policy;
pub use proof::TlogProof;
pub use rotation::{KeyChain, Rotation};
pub use tree::Hash;
