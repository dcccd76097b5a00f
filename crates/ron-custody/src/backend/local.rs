//! The file and memory backends: keys are generated in this process, used in its memory, and stored only sealed
//! by the key store. The memory backend stores nothing.

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

/// A new key and the bytes to seal; `None` when the local backends do not offer `alg`.
pub fn make(alg: Alg, random: &dyn Random) -> Option<(SecretKey, SecretBytes)> {
    SecretKey::generate(alg, random)
}
