//! Keys: what they are made of, who may use them, what they may sign, and the snapshot of all of
//! them from which every signature takes key, version and public key at once.

pub mod envelope;
pub mod index;
pub mod jwt;
pub mod lane;
pub mod material;
pub mod note;
pub mod payload;
pub mod symmetric;
pub mod wrapping;

/// What [`lane`] counts with; its model puts a checker's in their place.
mod atomics {
    pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

pub use index::{Key, KeyIndex, Version};
pub use material::{PublicKey, SecretKey};
