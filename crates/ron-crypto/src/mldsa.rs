//! Post-quantum signatures: ML-DSA (FIPS 204), pure form, empty context.

use aws_lc_rs::signature::{
    KeyPair, ML_DSA_44, ML_DSA_44_SIGNING, ML_DSA_65, ML_DSA_65_SIGNING, ML_DSA_87,
    ML_DSA_87_SIGNING, PqdsaKeyPair, PqdsaSigningAlgorithm, PqdsaVerificationAlgorithm,
    UnparsedPublicKey,
};

use crate::secret::Secret32;
use crate::sign::Signer;
use ron_kernel::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MlDsaSet {
    /// ML-DSA-44, security category 2.
    L44,
    /// ML-DSA-65, security category 3.
    L65,
    /// ML-DSA-87, security category 5.
    L87,
}

impl MlDsaSet {
    const fn signing(self) -> &'static PqdsaSigningAlgorithm {
        match self {
            Self::L44 => &ML_DSA_44_SIGNING,
            Self::L65 => &ML_DSA_65_SIGNING,
            Self::L87 => &ML_DSA_87_SIGNING,
        }
    }

    const fn verifying(self) -> &'static PqdsaVerificationAlgorithm {
        match self {
            Self::L44 => &ML_DSA_44,
            Self::L65 => &ML_DSA_65,
            Self::L87 => &ML_DSA_87,
        }
    }

    /// Bytes of a public key.
    #[must_use]
    pub const fn public_len(self) -> usize {
        match self {
            Self::L44 => 1312,
            Self::L65 => 1952,
            Self::L87 => 2592,
        }
    }

    /// Bytes of a signature.
    #[must_use]
    pub const fn signature_len(self) -> usize {
        match self {
            Self::L44 => 2420,
            Self::L65 => 3309,
            Self::L87 => 4627,
        }
    }
}

/// An ML-DSA private key, derived from its 32-byte seed.
pub struct MlDsaKey {
    set: MlDsaSet,
    pair: PqdsaKeyPair,
    seed: Secret32,
}

impl MlDsaKey {
    pub fn generate(set: MlDsaSet, random: &dyn Random) -> Self {
        Self::from_seed(set, &Secret32::generate(random))
    }

    /// The key of a seed (`xi` of FIPS 204); every seed is valid.
    pub fn from_seed(set: MlDsaSet, seed: &Secret32) -> Self {
        let pair = PqdsaKeyPair::from_seed(set.signing(), seed.expose())
            .expect("every 32 byte seed is a key");
        Self {
            set,
            pair,
            seed: seed.duplicate(),
        }
    }

    pub fn set(&self) -> MlDsaSet {
        self.set
    }

    /// The seed, for sealing the key into a store.
    pub fn seed(&self) -> &Secret32 {
        &self.seed
    }

    /// The signature of a message, [`MlDsaSet::signature_len`] bytes.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        let mut signature = vec![0; self.set.signature_len()];
        let length = self
            .pair
            .sign(message, &mut signature)
            .expect("signing fails only without system randomness");
        signature.truncate(length);
        signature
    }

    /// The public key, [`MlDsaSet::public_len`] bytes.
    pub fn public(&self) -> Vec<u8> {
        self.pair.public_key().as_ref().to_vec()
    }
}

impl Signer for MlDsaKey {
    fn sign(&self, message: &[u8]) -> Vec<u8> {
        Self::sign(self, message)
    }
}

impl std::fmt::Debug for MlDsaKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "MlDsaKey({:?}, [secret])", self.set)
    }
}

/// Verifies an ML-DSA signature; keys and signatures of other lengths than the set's are refused.
#[must_use]
pub fn verify_mldsa(set: MlDsaSet, public: &[u8], message: &[u8], signature: &[u8]) -> bool {
    public.len() == set.public_len()
        && signature.len() == set.signature_len()
        && UnparsedPublicKey::new(set.verifying(), public)
            .verify(message, signature)
            .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_kernel::SeededRandom;

    #[test]
    fn keys_sign_and_only_the_exact_signature_verifies() {
        let random = SeededRandom::new(5);
        for set in [MlDsaSet::L44, MlDsaSet::L65, MlDsaSet::L87] {
            let key = MlDsaKey::generate(set, &random);
            let public = key.public();
            let signature = key.sign(b"message");
            assert_eq!(
                (public.len(), signature.len()),
                (set.public_len(), set.signature_len())
            );
            assert!(verify_mldsa(set, &public, b"message", &signature));
            assert!(!verify_mldsa(set, &public, b"messagf", &signature));
            for at in (0..signature.len()).step_by(97) {
                let mut bad = signature.clone();
                bad[at] ^= 1;
                assert!(!verify_mldsa(set, &public, b"message", &bad), "byte {at}");
            }
            assert!(!verify_mldsa(set, &public[1..], b"message", &signature));
            let again = MlDsaKey::from_seed(set, key.seed());
            assert_eq!(again.public(), public, "a seed is one key");
            assert_eq!(format!("{key:?}"), format!("MlDsaKey({set:?}, [secret])"));
        }
        let other = MlDsaKey::generate(MlDsaSet::L65, &random);
        let signature = other.sign(b"m");
        assert!(!verify_mldsa(
            MlDsaSet::L44,
            &other.public(),
            b"m",
            &signature
        ));
    }
}
