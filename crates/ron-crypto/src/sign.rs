//! Ed25519 signatures.

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

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
    let (r, _s) = signature.split_first_chunk().expect("64 bytes");
    // The library refuses an `s` that is too large, and compares `R` with the canonical encoding of the point it must be.
    canonical_y(public)
        && !small_order(public)
        && !small_order(r)
        && UnparsedPublicKey::new(&ED25519, public)
            .verify(message, signature)
            .is_ok()
}

/// Canonical y coordinates of the points whose order divides 8, least significant byte first.
const SMALL_ORDER: [[u8; 32]; 5] = [
    *b"\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    *b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    *b"\xec\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    *b"\x26\xe8\x95\x8f\xc2\xb2\x27\xb0\x45\xc3\xf4\x89\xf2\xef\x98\xf0\xd5\xdf\xac\x05\xd3\xc6\x33\x39\xb1\x38\x02\x88\x6d\x53\xfc\x05",
    *b"\xc7\x17\x6a\x70\x3d\x4d\xd8\x4f\xba\x3c\x0b\x76\x0d\x10\x67\x0f\x2a\x20\x53\xfa\x2c\x39\xcc\xc6\x4e\xc7\xfd\x77\x92\xac\x03\x7a",
];

/// True for an encoded point, whatever its sign, under which signatures verify that no key holder made.
fn small_order(point: &[u8; 32]) -> bool {
    let mut y = *point;
    y[31] &= 0x7f;
    SMALL_ORDER.contains(&y)
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

    use curve25519_dalek::constants::EIGHT_TORSION;
    use curve25519_dalek::edwards::EdwardsPoint;
    use curve25519_dalek::scalar::{Scalar, clamp_integer};
    use ed25519_dalek::{Signature, Verifier, VerifyingKey};

    use super::*;
    use crate::hash::sha512;
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
            // 0 and 1 again, as p and p + 1.
            "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        ];
        let mut accepted_by_the_loose_rule = 0;
        for public in small_order {
            // R is s times the base point: true for A of order 1, and for the others whenever the hash is a multiple of
            // the order. R is the identity for s = 0, and a point of large order for s = 1.
            for (s, message) in (0..2).flat_map(|s| (0..64_u8).map(move |message| (s, message))) {
                let mut signature = [0; 64];
                signature[32] = s;
                let r = EdwardsPoint::mul_base(&Scalar::from(s)).compress();
                signature[..32].copy_from_slice(r.as_bytes());
                assert!(!verify_ed25519_strict(
                    &bytes(public),
                    &[message],
                    &signature
                ));
                let loose = VerifyingKey::from_bytes(&bytes(public)).is_ok_and(|key| {
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

    /// The number that the equation multiplies the public key by.
    fn challenge(r: &[u8; 32], public: &[u8; 32], message: &[u8]) -> Scalar {
        Scalar::from_bytes_mod_order_wide(&sha512(&[r.as_slice(), public, message].concat()))
    }

    /// The number behind the public key of a seed.
    fn secret_scalar(seed: &[u8; 32]) -> Scalar {
        let hash = sha512(seed);
        let (low, _) = hash.split_first_chunk().expect("64 bytes");
        Scalar::from_bytes_mod_order(clamp_integer(*low))
    }

    #[test]
    fn a_small_order_r_is_refused_under_a_good_key() {
        let seed = [7; 32];
        let public = Ed25519Key::from_seed(&seed).public();
        let identity = SMALL_ORDER[0];
        let s = challenge(&identity, &public, b"message") * secret_scalar(&seed);
        let signature: [u8; 64] = [identity, s.to_bytes()].concat().try_into().expect("64");
        let key = VerifyingKey::from_bytes(&public).expect("a point");
        let loose = key.verify(b"message", &Signature::from_bytes(&signature));
        assert!(
            loose.is_ok(),
            "the test must show a case that the rule prevents"
        );
        assert!(!verify_ed25519_strict(&public, b"message", &signature));
    }

    /// The rule multiplies nothing by the cofactor: under a key with a part of small order, some messages verify.
    #[test]
    fn keys_of_mixed_order_verify_as_another_strict_verifier_says() {
        let seed = [7; 32];
        let secret = secret_scalar(&seed);
        let mut accepted = 0;
        for torsion in EIGHT_TORSION {
            let point = EdwardsPoint::mul_base(&secret) + torsion;
            let public = point.compress().to_bytes();
            for message in 0..32_u8 {
                let nonce = Scalar::from(u64::from(message) + 1);
                let r = EdwardsPoint::mul_base(&nonce).compress().to_bytes();
                let s = nonce + challenge(&r, &public, &[message]) * secret;
                let signature: [u8; 64] = [r, s.to_bytes()].concat().try_into().expect("64");
                let key = VerifyingKey::from_bytes(&public).expect("a point");
                let expected = key.verify_strict(&[message], &Signature::from_bytes(&signature));
                let found = verify_ed25519_strict(&public, &[message], &signature);
                assert_eq!(found, expected.is_ok(), "{torsion:?} {message}");
                accepted += usize::from(found);
            }
        }
        assert!((33..8 * 32).contains(&accepted), "{accepted}");
    }

    #[test]
    fn the_small_orders_are_those_of_the_curve() {
        for torsion in EIGHT_TORSION {
            assert!(small_order(&torsion.compress().to_bytes()));
        }
        assert!(!small_order(&Ed25519Key::from_seed(&[7; 32]).public()));
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
