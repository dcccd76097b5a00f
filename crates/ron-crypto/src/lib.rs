//! Primitives behind one face, and memory for secrets.
//!
//! Nothing here is home-made: hashes, MACs, key derivation, AEAD and signing are aws-lc-rs,
//! strict Ed25519 verification is ed25519-dalek, Argon2id is the argon2 crate.
//!
//! **Invariants:** no private key leaves its type; secrets live in [`secret`] memory, are erased
//! on drop and never printed; anything secret is compared in constant time.

pub mod aead;
pub mod ct;
pub mod hash;
pub mod hpke;
pub mod jwk;
pub mod kdf;
pub mod keyblob;
pub mod mldsa;
pub mod pem;
pub mod rand;
pub mod secret;
pub mod sign;
pub mod wrap;

pub use mldsa::{MlDsaKey, MlDsaSet};
pub use rand::{OsRandom, Random, SeededRandom};
pub use secret::{Secret32, SecretBytes, process_hardening};
pub use sign::{Ed25519Key, P256Key, Signer};
