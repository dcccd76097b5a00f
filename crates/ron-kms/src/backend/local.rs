//! The file and memory backends: keys are made here, used in our own memory, and kept only sealed
//! (see [`crate::store::seal`]); in memory nothing is kept at all.

use ron_crypto::rand::Random;
use ron_crypto::secret::SecretBytes;
use ron_proto::values::Alg;

use super::{Attestation, Capabilities};
use crate::keys::SecretKey;
use crate::keys::material::OFFERED;

/// What the file and memory backends can do.
pub fn capabilities() -> Capabilities {
    Capabilities {
        algs: OFFERED.to_vec(),
        attestation: Attestation::None,
    }
}

/// A fresh key and the bytes to seal; `None` when keys of `alg` are not made here.
pub fn make(alg: Alg, random: &dyn Random) -> Option<(SecretKey, SecretBytes)> {
    SecretKey::generate(alg, random)
}
