//! Key material, and the pure rules about it: formats, payload policies, counted uses.

pub mod derive;
pub mod envelope;
mod input;
mod jwt;
mod material;
pub mod note;
mod parameters;
pub mod payload;
mod symmetric;
mod use_numbers;
#[cfg(test)]
mod use_numbers_model;
pub mod wrapping;

/// The atomics of [`use_numbers`]; its model replaces them with those of a checker.
mod atomics {
    pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

pub use input::{DeviceInput, Input, padding_of, sha2_of};
pub use jwt::Head;
pub(crate) use material::shown;
pub use material::{PublicKey, SecretKey};
pub use parameters::{curve_of, group_of, kem_of, oaep_size_of};
pub(crate) use parameters::{public_len, size_of};
pub use symmetric::{SymmetricKey, UseNumbers, aead_of, mac_of, symmetric_len};
