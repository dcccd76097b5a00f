//! ML-DSA-44 (FIPS 204), the signature that quantum computers are not expected to forge.

use aws_lc_rs::signature::{
    KeyPair as _, ML_DSA_44, ML_DSA_44_SIGNING, PqdsaKeyPair, UnparsedPublicKey,
};

use crate::secret::Secret32;
use crate::sign::KeyError;

/// Length of a public key in bytes.
pub const ML_DSA_44_PUBLIC: usize = 1312;
/// Length of a signature in bytes.
pub const ML_DSA_44_SIGNATURE: usize = 2420;

/// An ML-DSA-44 private key.
pub struct MlDsa44Key {
    pair: PqdsaKeyPair,
}

impl MlDsa44Key {
    /// The key of a 32 byte seed (FIPS 204, the input of `ML-DSA.KeyGen_internal`).
    pub fn from_seed(seed: &Secret32) -> Result<Self, KeyError> {
        PqdsaKeyPair::from_seed(&ML_DSA_44_SIGNING, seed.expose())
            .map(|pair| Self { pair })
            .map_err(|_| KeyError)
    }

    /// The public key.
    pub fn public(&self) -> [u8; ML_DSA_44_PUBLIC] {
        self.pair
            .public_key()
            .as_ref()
            .try_into()
            .expect("ML-DSA-44 public keys have 1312 bytes")
    }

    /// The signature of a message, with an empty context.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        let mut signature = vec![0; ML_DSA_44_SIGNATURE];
        self.pair
            .sign(message, &mut signature)
            .expect("signing fails only when the signature does not fit");
        signature
    }
}

impl std::fmt::Debug for MlDsa44Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("MlDsa44Key([secret])")
    }
}

/// Verifies an ML-DSA-44 signature with an empty context.
#[must_use]
pub fn verify_ml_dsa_44(public: &[u8], message: &[u8], signature: &[u8]) -> bool {
    public.len() == ML_DSA_44_PUBLIC
        && UnparsedPublicKey::new(&ML_DSA_44, public)
            .verify(message, signature)
            .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_holds_for_its_key_and_message_alone() {
        let key = |n| MlDsa44Key::from_seed(&Secret32::from_slice(&[n; 32])).expect("a key");
        let (one, two) = (key(1), key(2));
        assert_eq!(one.public(), key(1).public(), "the seed is the key");
        let signature = one.sign(b"text");
        assert_eq!(signature.len(), ML_DSA_44_SIGNATURE);
        assert!(verify_ml_dsa_44(&one.public(), b"text", &signature));
        assert!(!verify_ml_dsa_44(&one.public(), b"texd", &signature));
        assert!(!verify_ml_dsa_44(&two.public(), b"text", &signature));
        assert!(!verify_ml_dsa_44(&one.public()[1..], b"text", &signature));
        let mut wrong = signature;
        wrong[1000] ^= 1;
        assert!(!verify_ml_dsa_44(&one.public(), b"text", &wrong));
    }
}
