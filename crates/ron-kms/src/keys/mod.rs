//! Keys: material, access rules, payload policies, and the snapshot from which every signature takes its key,
//! version and public key at once.

pub mod envelope;
pub mod index;
pub mod jwt;
pub mod lane;
pub mod material;
pub mod note;
pub mod payload;
pub mod symmetric;
pub mod wrapping;

/// The atomics of [`lane`]; its model replaces them with those of a checker.
mod atomics {
    pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

pub use index::{Key, KeyIndex, Version};
pub use material::{PublicKey, SecretKey};
