//! ECDSA on P-256, P-384 and secp256k1, over a message or over its hash. Signatures are `r || s`; [`to_der`] and [`from_der`]
//! convert.

use aws_lc_rs::digest;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P256K1_SHA256_FIXED,
    ECDSA_P256K1_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED, ECDSA_P384_SHA384_FIXED_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, EcdsaVerificationAlgorithm, KeyPair, UnparsedPublicKey,
};

use crate::der;
use crate::hash::{Hashed, Sha2};
use crate::secret::SecretBytes;
use crate::sign::{KeyError, Signer};

/// A curve that keys are offered on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Curve {
    P256,
    P384,
    Secp256k1,
}

impl Curve {
    /// Bytes of a coordinate, and of each half of a signature.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::P256 | Self::Secp256k1 => 32,
            Self::P384 => 48,
        }
    }

    /// Bytes of a public key, `04 || x || y`.
    #[must_use]
    pub const fn public_len(self) -> usize {
        1 + 2 * self.size()
    }

    /// The hash function that is used with the curve when none is named.
    #[must_use]
    pub const fn hash(self) -> Sha2 {
        match self {
            Self::P256 | Self::Secp256k1 => Sha2::Sha256,
            Self::P384 => Sha2::Sha384,
        }
    }

    /// The name of the curve in a JWK (RFC 7518, RFC 8812).
    #[must_use]
    pub const fn jwk_name(self) -> &'static str {
        match self {
            Self::P256 => "P-256",
            Self::P384 => "P-384",
            Self::Secp256k1 => "secp256k1",
        }
    }

    fn signing(self) -> &'static EcdsaSigningAlgorithm {
        match self {
            Self::P256 => &ECDSA_P256_SHA256_FIXED_SIGNING,
            Self::P384 => &ECDSA_P384_SHA384_FIXED_SIGNING,
            Self::Secp256k1 => &ECDSA_P256K1_SHA256_FIXED_SIGNING,
        }
    }

    fn verification(self) -> &'static EcdsaVerificationAlgorithm {
        match self {
            Self::P256 => &ECDSA_P256_SHA256_FIXED,
            Self::P384 => &ECDSA_P384_SHA384_FIXED,
            Self::Secp256k1 => &ECDSA_P256K1_SHA256_FIXED,
        }
    }

    /// The number that ECDSA computes from a hash (FIPS 186-5, 6.4.1), in as many bytes as a coordinate has: the first bytes
    /// of a longer hash, and a shorter one behind zeros. Every curve here has an order of that many whole bytes.
    #[must_use]
    pub fn input(self, hash: &Hashed) -> Vec<u8> {
        let (bytes, length) = (hash.as_bytes(), self.size());
        let zeros = length.saturating_sub(bytes.len());
        [&vec![0; zeros][..], &bytes[..bytes.len().min(length)]].concat()
    }

    /// That number as the library takes it, which pairs each curve with one hash function of the same length.
    fn imported(self, hash: &Hashed) -> digest::Digest {
        digest::Digest::import_less_safe(&self.input(hash), self.hash().algorithm())
            .expect("the hash function of a curve is as long as its coordinates")
    }
}

/// A private key on one curve; PKCS#8 when it is stored.
pub struct EcKey {
    curve: Curve,
    pair: EcdsaKeyPair,
}

impl EcKey {
    /// A new key from the operating system's randomness, and its PKCS#8 form for sealing.
    pub fn generate(curve: Curve) -> (Self, SecretBytes) {
        let document = EcdsaKeyPair::generate_pkcs8(curve.signing(), &SystemRandom::new())
            .expect("key generation fails only without system randomness");
        let pkcs8 = SecretBytes::from_slice(document.as_ref());
        let key = Self::from_pkcs8(curve, pkcs8.expose()).expect("the library reads what it wrote");
        (key, pkcs8)
    }

    /// Reads a PKCS#8 document of this curve.
    pub fn from_pkcs8(curve: Curve, pkcs8: &[u8]) -> Result<Self, KeyError> {
        EcdsaKeyPair::from_pkcs8(curve.signing(), pkcs8)
            .map(|pair| Self { curve, pair })
            .map_err(|_| KeyError)
    }

    pub fn curve(&self) -> Curve {
        self.curve
    }

    /// The public key as an uncompressed point, `04 || x || y`.
    pub fn public(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    /// The signature over a hash, `r || s`.
    pub fn sign_hash(&self, hash: &Hashed) -> Vec<u8> {
        self.pair
            .sign_digest(&self.curve.imported(hash))
            .expect("signing fails only without system randomness")
            .as_ref()
            .to_vec()
    }
}

impl Signer for EcKey {
    /// The signature over the message's hash by the curve's own function.
    fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.sign_hash(&Hashed::of(self.curve.hash(), message))
    }
}

impl std::fmt::Debug for EcKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("EcKey([secret])")
    }
}

/// Verifies a signature `r || s` over a hash under an uncompressed public point.
#[must_use]
pub fn verify_ecdsa_hash(curve: Curve, public: &[u8], hash: &Hashed, signature: &[u8]) -> bool {
    // Only one encoding per key; the library would accept compressed points as well.
    let uncompressed = public.len() == curve.public_len() && public[0] == 4;
    uncompressed
        && UnparsedPublicKey::new(curve.verification(), public)
            .verify_digest(&curve.imported(hash), signature)
            .is_ok()
}

/// Verifies a signature `r || s` over the message's hash by the curve's own function.
#[must_use]
pub fn verify_ecdsa(curve: Curve, public: &[u8], message: &[u8], signature: &[u8]) -> bool {
    verify_ecdsa_hash(curve, public, &Hashed::of(curve.hash(), message), signature)
}

/// The DER (RFC 3279) of a signature `r || s`.
#[must_use]
pub fn to_der(signature: &[u8]) -> Vec<u8> {
    let (r, s) = signature.split_at(signature.len() / 2);
    der::sequence(&[der::unsigned(r), der::unsigned(s)])
}

/// The `r || s` of a DER signature. Strict: every signature has exactly one accepted encoding.
#[must_use]
pub fn from_der(curve: Curve, text: &[u8]) -> Option<Vec<u8>> {
    let body = der::only(der::SEQUENCE, text)?;
    let (r, rest) = der::read_unsigned(body)?;
    let (s, rest) = der::read_unsigned(rest)?;
    let mut raw = vec![0; 2 * curve.size()];
    let (high, low) = raw.split_at_mut(curve.size());
    for (half, number) in [(high, r), (low, s)] {
        half[curve.size().checked_sub(number.len())?..].copy_from_slice(number);
    }
    rest.is_empty().then_some(raw)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CURVES: [Curve; 3] = [Curve::P256, Curve::P384, Curve::Secp256k1];

    /// RFC 6979 A.2.5 and A.2.6 give signatures to verify, also with hash functions of other lengths; ours are random and
    /// differ each time.
    #[test]
    fn published_signatures_verify() {
        let p256 = "0460fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6\
                    7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299";
        let p384 = "04ec3a4e415b4e19a4568618029f427fa5da9a8bc4ae92e02e06aae5286b300c64\
                    def8f0ea9055866064a254515480bc138015d9b72d7d57244ea8ef9ac0c6218967\
                    08a59367f9dfb9f54ca84b3f1c9db1288b231c3ae0d4fe7344fd2533264720";
        for (curve, public, by, signature) in [
            (
                Curve::P256,
                p256,
                Sha2::Sha256,
                "efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716\
                 f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8",
            ),
            (
                Curve::P256,
                p256,
                Sha2::Sha512,
                "8496a60b5e9b47c825488827e0495b0e3fa109ec4568fd3f8d1097678eb97f00\
                 2362ab1adbe2b8adf9cb9edab740ea6049c028114f2460f96554f61fae3302fe",
            ),
            (
                Curve::P384,
                p384,
                Sha2::Sha256,
                "21b13d1e013c7fa1392d03c5f99af8b30c570c6f98d4ea8e354b63a21d3daa33\
                 bde1e888e63355d92fa2b3c36d8fb2cdf3aa443fb107745bf4bd77cb3891674632\
                 068a10ca67e3d45db2266fa7d1feebefdc63eccd1ac42ec0cb8668a4fa0ab0",
            ),
            (
                Curve::P384,
                p384,
                Sha2::Sha384,
                "94edbb92a5ecb8aad4736e56c691916b3f88140666ce9fa73d64c4ea95ad133c\
                 81a648152e44acf96e36dd1e80fabe4699ef4aeb15f178cea1fe40db2603138f\
                 130e740a19624526203b6351d0a3a94fa329c145786e679e7b82c71a38628ac8",
            ),
        ] {
            let [public, signature] = [public, signature].map(|text| hex::decode(text).unwrap());
            let holds = |public: &[u8], text: &[u8], signature: &[u8]| {
                verify_ecdsa_hash(curve, public, &Hashed::of(by, text), signature)
            };
            assert!(holds(&public, b"sample", &signature), "{curve:?} {by:?}");
            assert!(!holds(&public, b"simple", &signature));
            assert!(!holds(&public, b"sample", &vec![0; signature.len()]));
            assert!(!holds(&[], b"sample", &signature));
            let mut compressed = public[..=curve.size()].to_vec();
            compressed[0] = 2 + (public[2 * curve.size()] & 1);
            assert!(!holds(&compressed, b"sample", &signature));
        }
    }

    #[test]
    fn keys_round_trip_through_pkcs8() {
        for curve in CURVES {
            let (key, pkcs8) = EcKey::generate(curve);
            let again = EcKey::from_pkcs8(curve, pkcs8.expose()).expect("it reads back");
            assert_eq!(key.public(), again.public());
            assert_eq!(key.public().len(), curve.public_len());
            assert!(verify_ecdsa(curve, key.public(), b"m", &again.sign(b"m")));
            let mut bent = pkcs8.expose().to_vec();
            bent[40] ^= 1;
            assert!(
                EcKey::from_pkcs8(curve, &bent).is_err(),
                "private and public half disagree"
            );
            assert!(EcKey::from_pkcs8(curve, b"not a key").is_err());
            for other in CURVES.into_iter().filter(|other| *other != curve) {
                assert!(EcKey::from_pkcs8(other, pkcs8.expose()).is_err());
            }
            assert_eq!(format!("{key:?}"), "EcKey([secret])");
        }
    }

    #[test]
    fn der_has_one_form() {
        let mut raw = [0_u8; 64];
        (raw[0], raw[31], raw[63]) = (0x80, 1, 5);
        let text = to_der(&raw);
        assert_eq!(
            text[..5],
            [0x30, 38, 2, 33, 0],
            "a high first bit needs a zero in front"
        );
        assert_eq!(text[37..], [2, 1, 5], "leading zeros go");
        let from_der = |text: &[u8]| from_der(Curve::P256, text);
        assert_eq!(from_der(&text), Some(raw.to_vec()));
        assert_eq!(from_der(&to_der(&[0; 64])), Some(vec![0; 64]));
        for at in 0..text.len() {
            assert!(from_der(&text[..at]).is_none(), "cut at {at}");
        }
        let mut long = text.clone();
        long.push(0);
        assert!(from_der(&long).is_none());
        // The same numbers with a zero more in front.
        let padded = [&[0x30, 39, 2, 33, 0][..], &raw[..32], &[2, 2, 0, 5]].concat();
        assert!(from_der(&padded).is_none());
        assert!(super::from_der(Curve::P256, &to_der(&[0xff; 96])).is_none());
        assert!(super::from_der(Curve::P384, &to_der(&[0xff; 96])).is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn one_changed_bit_fails(
            message in proptest::collection::vec(any::<u8>(), 1..100),
            flip in any::<prop::sample::Index>(),
            curve in prop::sample::select(&CURVES[..]),
            by in prop::sample::select(&[Sha2::Sha256, Sha2::Sha384, Sha2::Sha512][..]),
        ) {
            let (key, _) = EcKey::generate(curve);
            let holds = |message: &[u8], signature: &[u8]| {
                verify_ecdsa_hash(curve, key.public(), &Hashed::of(by, message), signature)
            };
            let signature = key.sign_hash(&Hashed::of(by, &message));
            prop_assert!(holds(&message, &signature));
            prop_assert_eq!(from_der(curve, &to_der(&signature)), Some(signature.clone()));
            let bit = flip.index(message.len() * 8);
            let mut other = message.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!holds(&other, &signature));
            let bit = flip.index(signature.len() * 8);
            let mut bent = signature;
            bent[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!holds(&message, &bent));
        }
    }
}
