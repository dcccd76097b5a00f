//! Ed25519 signatures.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use ed25519_dalek::{Signature, VerifyingKey};

use crate::secret::Secret32;
use ron_kernel::Random;

/// Something that signs with one key.
pub trait Signer: Send + Sync {
    /// The signature of a message, in the algorithm's fixed form.
    fn sign(&self, message: &[u8]) -> Vec<u8>;
}

/// Stored bytes that are not a private key of the expected kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored private key is damaged or of another kind; restore it from a backup")]
pub struct KeyError;

/// An Ed25519 private key.
pub struct Ed25519Key {
    pair: Ed25519KeyPair,
    seed: Secret32,
}

impl Ed25519Key {
    pub fn generate(random: &dyn Random) -> Self {
        // Filled in place, so that no copy of the seed stays on the stack.
        let mut seed = Secret32::zeroed();
        random.fill(seed.expose_mut());
        Self::from_seed(seed.expose())
    }

    /// The key of a 32-byte seed (RFC 8032); every seed is valid.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).expect("every 32 byte seed is a key");
        Self {
            pair,
            seed: Secret32::from_slice(seed),
        }
    }

    /// The seed, for sealing the key into a store.
    pub fn seed(&self) -> &Secret32 {
        &self.seed
    }

    pub fn public(&self) -> [u8; 32] {
        self.pair
            .public_key()
            .as_ref()
            .try_into()
            .expect("Ed25519 public keys have 32 bytes")
    }

    /// The signature of a message.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.pair
            .sign(message)
            .as_ref()
            .try_into()
            .expect("Ed25519 signatures have 64 bytes")
    }
}

impl Signer for Ed25519Key {
    fn sign(&self, message: &[u8]) -> Vec<u8> {
        Self::sign(self, message).to_vec()
    }
}

impl std::fmt::Debug for Ed25519Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Ed25519Key([secret])")
    }
}

/// Verifies an Ed25519 signature by rules on which all strict verifiers agree: refuses public keys
/// that are not canonically encoded, small-order public keys and `R`, and an `s` not below the
/// group order.
#[must_use]
pub fn verify_ed25519_strict(public: &[u8; 32], message: &[u8], signature: &[u8; 64]) -> bool {
    if !canonical_y(public) {
        return false;
    }
    let Ok(key) = VerifyingKey::from_bytes(public) else {
        return false;
    };
    key.verify_strict(message, &Signature::from_bytes(signature))
        .is_ok()
}

/// True when the encoded y coordinate is below the field's prime 2^255 - 19. A decoder reduces
/// larger values, which would give one key two encodings.
fn canonical_y(public: &[u8; 32]) -> bool {
    let [low, middle @ .., high] = public;
    !(high & 0x7f == 0x7f && middle.iter().all(|byte| *byte == 0xff) && *low >= 0xed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use ron_kernel::{OsRandom, SeededRandom};

    fn bytes<const N: usize>(text: &str) -> [u8; N] {
        hex::decode(text)
            .expect("vectors are hex")
            .try_into()
            .expect("vectors have their length")
    }

    #[test]
    fn ed25519_rfc_8032_vectors() {
        let check = |seed: &str, public: &str, message: &str, signature: &str| {
            let key = Ed25519Key::from_seed(&bytes(seed));
            let message = hex::decode(message).unwrap();
            assert_eq!(hex::encode(key.public()), public);
            assert_eq!(hex::encode(key.sign(&message)), signature);
            assert!(verify_ed25519_strict(
                &bytes(public),
                &message,
                &bytes(signature)
            ));
        };
        check(
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155\
             5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        );
        check(
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da\
             085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        );
        check(
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac\
             18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        );
    }

    /// Under points whose order divides 8, signatures verify that no key holder made.
    #[test]
    fn small_order_keys_verify_nothing() {
        let small_order = [
            "0100000000000000000000000000000000000000000000000000000000000000",
            "0000000000000000000000000000000000000000000000000000000000000000",
            "0000000000000000000000000000000000000000000000000000000000000080",
            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        ];
        let mut accepted_by_the_loose_rule = 0;
        for public in small_order {
            // R is the identity and s is zero: true for A of order 1, and for the others
            // whenever the hash is a multiple of the order.
            let mut signature = [0; 64];
            signature[0] = 1;
            for message in 0..64_u8 {
                assert!(!verify_ed25519_strict(
                    &bytes(public),
                    &[message],
                    &signature
                ));
                let loose = VerifyingKey::from_bytes(&bytes(public)).is_ok_and(|key| {
                    use ed25519_dalek::Verifier;
                    key.verify(&[message], &Signature::from_bytes(&signature))
                        .is_ok()
                });
                accepted_by_the_loose_rule += usize::from(loose);
            }
        }
        assert!(
            accepted_by_the_loose_rule > 0,
            "the test must show a case that the rule prevents"
        );
    }

    #[test]
    fn non_canonical_encodings_are_refused() {
        let key = Ed25519Key::from_seed(&[7; 32]);
        let (public, signature) = (key.public(), key.sign(b"message"));
        assert!(verify_ed25519_strict(&public, b"message", &signature));
        // s + L has the same residue and so satisfies the equation.
        let order: [u8; 32] =
            bytes("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010");
        let mut bent = signature;
        let mut carry = 0_u16;
        for (byte, add) in bent[32..].iter_mut().zip(order) {
            carry += u16::from(*byte) + u16::from(add);
            *byte = carry as u8;
            carry >>= 8;
        }
        assert_ne!(bent, signature);
        assert!(!verify_ed25519_strict(&public, b"message", &bent));
        // y = p + 1 is another encoding of the identity, y = p + 3 a point of large order.
        for low in 0xed..=0xff_u8 {
            let mut key = [0xff; 32];
            (key[0], key[31]) = (low, 0x7f);
            assert!(!canonical_y(&key));
            key[31] = 0xff;
            assert!(!canonical_y(&key));
        }
        let mut largest = [0xff; 32];
        (largest[0], largest[31]) = (0xec, 0x7f);
        assert!(canonical_y(&largest));
    }

    #[test]
    fn seeds_round_trip_and_are_never_printed() {
        let key = Ed25519Key::generate(&SeededRandom::new(5));
        let again = Ed25519Key::from_seed(key.seed().expose());
        assert_eq!(key.public(), again.public());
        assert_ne!(key.public(), Ed25519Key::generate(&OsRandom).public());
        assert_eq!(format!("{key:?}"), "Ed25519Key([secret])");
        let signer: &dyn Signer = &key;
        assert_eq!(signer.sign(b"m"), key.sign(b"m"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn one_changed_bit_fails(
            seed in any::<[u8; 32]>(),
            message in proptest::collection::vec(any::<u8>(), 1..100),
            flip in any::<prop::sample::Index>(),
        ) {
            let ed = Ed25519Key::from_seed(&seed);
            let (ed_public, ed_signature) = (ed.public(), ed.sign(&message));
            prop_assert!(verify_ed25519_strict(&ed_public, &message, &ed_signature));

            let bit = flip.index(message.len() * 8);
            let mut other = message.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!verify_ed25519_strict(&ed_public, &other, &ed_signature));
            let bit = flip.index(512);
            let mut ed_bent = ed_signature;
            ed_bent[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!verify_ed25519_strict(&ed_public, &message, &ed_bent));
        }
    }
}
