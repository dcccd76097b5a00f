//! The audit log: no signature leaves before its leaf is durable.
//!
//! ```text
//! job -> credit (room for its leaf) -> work -> Entry -> kms-audit: leaves, one append + fdatasync
//!                                                          -> answers of the whole batch
//!                                              kms-ckpt:  signed checkpoint, copy in anchor_dir
//!                                              kms-witness: cosignatures of others, kept with it
//!                                              kms-proof: answers that wait for their proof
//!                                              kms-scrub: verifies the whole log periodically
//! ```
//!
//! **Invariants.** The appender alone writes leaves, so counters and store versions in them only
//! grow. After a failed append nothing is signed or changed until a restart; verification goes on.

pub mod appender;
pub mod checkpoint;
pub mod engine_appender;
pub mod engine_writer;
pub mod entry;
pub mod health;
pub mod leaf;
pub mod proofs;
pub mod ring;
pub mod scrub;
pub mod verify;
pub mod witness;
pub mod writer;

pub use health::AuditHealth;
pub use ring::LogRing;

/// Directory of the log in the data directory.
pub const DIR: &str = "audit";
