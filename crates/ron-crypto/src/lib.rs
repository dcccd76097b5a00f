//! Cryptographic primitives behind one interface, and memory for secrets.
//!
//! The primitives are libraries: hashes, MACs, key derivation, AEAD, key agreement and signing are
//! aws-lc-rs (strict Ed25519 verification with checks before it), BLAKE3 and Argon2id are their own
//! crates. Composed here from those: HPKE with the X-Wing combiner (`hpke.rs`) and the key blob
//! (`keyblob.rs`).
//!
//! **Invariants:** no private key leaves its type except for sealing into a store; secrets live in
//! [`secret`] memory, are erased on drop and never printed; secrets are compared in constant time.

pub mod aead;
pub mod ct;
pub mod der;
pub mod ecdh;
pub mod ecdsa;
pub mod hash;
pub mod hpke;
pub mod jwk;
pub mod kdf;
pub mod keyblob;
pub mod mldsa;
pub mod oaep;
pub mod pem;
pub mod rsa;
pub mod secret;
pub mod sign;
pub mod wrap;

pub use ecdh::{EcdhGroup, EcdhKey};
pub use ecdsa::{Curve, EcKey};
pub use hash::{Hashed, Sha2};
pub use mldsa::{MlDsaKey, MlDsaSet};
pub use oaep::OaepKey;
pub use rsa::{RsaKey, RsaPadding, RsaPublic, RsaSize};
pub use secret::{Secret32, SecretBytes, process_hardening};
pub use sign::{Ed25519Key, Signer};
