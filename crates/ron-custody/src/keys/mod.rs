//! Key material, and the pure rules about it: formats, payload policies, counted uses.

pub mod envelope;
pub mod jwt;
pub mod lane;
#[cfg(test)]
mod lane_model;
pub mod material;
pub mod note;
pub mod payload;
pub mod symmetric;
pub mod wrapping;

/// The atomics of [`lane`]; its model replaces them with those of a checker.
mod atomics {
    pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

pub use material::{PublicKey, SecretKey};
