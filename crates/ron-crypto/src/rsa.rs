//! RSA signatures over SHA-2, in both paddings. The salt of a PSS signature is as long as its hash.

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512,
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RSA_PSS_SHA256,
    RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair, RsaParameters, RsaPublicKeyComponents,
};

use crate::der;
use crate::hash::{Hashed, Sha2};
use crate::secret::SecretBytes;
use crate::sign::KeyError;

/// Bytes of a modulus: 2048 to 4096 bits. A longer one only costs the verifier time.
const MODULUS_BYTES: std::ops::RangeInclusive<usize> = 256..=512;
/// Maximum bytes of a public exponent; 65537 has three.
const EXPONENT_BYTES_MAX: usize = 4;
/// The public exponent of keys of ours: 65537.
const EXPONENT: [u8; 3] = [1, 0, 1];

/// How the hash is encoded before the RSA operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RsaPadding {
    /// RSASSA-PKCS1-v1_5: `RS256` and its siblings.
    Pkcs1,
    /// RSASSA-PSS with a salt as long as the hash: `PS256` and its siblings.
    Pss,
}

impl RsaPadding {
    fn signing(self, by: Sha2) -> &'static dyn RsaEncoding {
        match (self, by) {
            (Self::Pkcs1, Sha2::Sha256) => &RSA_PKCS1_SHA256,
            (Self::Pkcs1, Sha2::Sha384) => &RSA_PKCS1_SHA384,
            (Self::Pkcs1, Sha2::Sha512) => &RSA_PKCS1_SHA512,
            (Self::Pss, Sha2::Sha256) => &RSA_PSS_SHA256,
            (Self::Pss, Sha2::Sha384) => &RSA_PSS_SHA384,
            (Self::Pss, Sha2::Sha512) => &RSA_PSS_SHA512,
        }
    }

    fn verification(self, by: Sha2) -> &'static RsaParameters {
        match (self, by) {
            (Self::Pkcs1, Sha2::Sha256) => &RSA_PKCS1_2048_8192_SHA256,
            (Self::Pkcs1, Sha2::Sha384) => &RSA_PKCS1_2048_8192_SHA384,
            (Self::Pkcs1, Sha2::Sha512) => &RSA_PKCS1_2048_8192_SHA512,
            (Self::Pss, Sha2::Sha256) => &RSA_PSS_2048_8192_SHA256,
            (Self::Pss, Sha2::Sha384) => &RSA_PSS_2048_8192_SHA384,
            (Self::Pss, Sha2::Sha512) => &RSA_PSS_2048_8192_SHA512,
        }
    }
}

/// The `DigestInfo` of a hash in DER (RFC 8017, A.2.4): what PKCS#1 v1.5 pads.
#[must_use]
pub fn digest_info(hash: &Hashed) -> Vec<u8> {
    let arc = match hash.by() {
        Sha2::Sha256 => 1,
        Sha2::Sha384 => 2,
        Sha2::Sha512 => 3,
    };
    let oid = der::tagged(
        der::OBJECT_ID,
        &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, arc],
    );
    let algorithm = der::sequence(&[oid, der::NULL.to_vec()]);
    let bytes = der::tagged(der::OCTET_STRING, hash.as_bytes());
    der::sequence(&[algorithm, bytes])
}

/// The length of a modulus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RsaSize {
    Bits2048,
    Bits3072,
    Bits4096,
}

impl RsaSize {
    /// Bytes of the modulus, and of a signature.
    #[must_use]
    pub const fn modulus_len(self) -> usize {
        match self {
            Self::Bits2048 => 256,
            Self::Bits3072 => 384,
            Self::Bits4096 => 512,
        }
    }

    /// Bytes of a public key, as [`RsaPublic`] reads it.
    #[must_use]
    pub const fn public_len(self) -> usize {
        // Modulus and exponent as numbers, in a sequence; the modulus has a zero in front because its first bit is set.
        4 + (4 + 1 + self.modulus_len()) + (2 + EXPONENT.len())
    }

    pub(crate) const fn key_size(self) -> KeySize {
        match self {
            Self::Bits2048 => KeySize::Rsa2048,
            Self::Bits3072 => KeySize::Rsa3072,
            Self::Bits4096 => KeySize::Rsa4096,
        }
    }
}

/// A private key of one size with the exponent 65537; PKCS#8 when it is stored.
pub struct RsaKey {
    pair: RsaKeyPair,
    size: RsaSize,
}

impl RsaKey {
    /// A new key from the operating system's randomness, and its PKCS#8 form for sealing. Takes from a tenth of a second to
    /// several seconds, by size and by luck.
    pub fn generate(size: RsaSize) -> (Self, SecretBytes) {
        let pair = RsaKeyPair::generate(size.key_size())
            .expect("key generation fails only without system randomness");
        let document = pair.as_der().expect("the library writes what it made");
        let pkcs8 = SecretBytes::from_slice(document.as_ref());
        (Self { pair, size }, pkcs8)
    }

    /// Reads a PKCS#8 document of a key of this size with the exponent 65537.
    pub fn from_pkcs8(size: RsaSize, pkcs8: &[u8]) -> Result<Self, KeyError> {
        let pair = RsaKeyPair::from_pkcs8(pkcs8).map_err(|_| KeyError)?;
        let key = Self { pair, size };
        match RsaPublic::read(key.public()) {
            Some(public) if public.size() == Some(size) => Ok(key),
            _ => Err(KeyError),
        }
    }

    pub fn size(&self) -> RsaSize {
        self.size
    }

    /// The public key as `RSAPublicKey` in DER (RFC 8017, A.1.1).
    pub fn public(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    /// The signature over a hash.
    pub fn sign_hash(&self, padding: RsaPadding, hash: &Hashed) -> Vec<u8> {
        let mut signature = vec![0; self.size.modulus_len()];
        self.pair
            .sign_digest(padding.signing(hash.by()), &hash.imported(), &mut signature)
            .expect("a key of these sizes signs hashes of these lengths");
        signature
    }
}

impl std::fmt::Debug for RsaKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("RsaKey([secret])")
    }
}

/// A public key: modulus and exponent, big-endian without leading zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RsaPublic<'a> {
    pub n: &'a [u8],
    pub e: &'a [u8],
}

impl<'a> RsaPublic<'a> {
    /// Reads an `RSAPublicKey` in DER.
    #[must_use]
    pub fn read(text: &'a [u8]) -> Option<Self> {
        let body = der::only(der::SEQUENCE, text)?;
        let (n, rest) = der::read_unsigned(body)?;
        let (e, rest) = der::read_unsigned(rest)?;
        rest.is_empty().then_some(Self { n, e })
    }

    /// The size of a key of ours; `None` for another length or exponent.
    #[must_use]
    pub fn size(self) -> Option<RsaSize> {
        let sizes = [RsaSize::Bits2048, RsaSize::Bits3072, RsaSize::Bits4096];
        let mut sizes = sizes.into_iter();
        let is_whole = self.e == EXPONENT && self.n.first().is_some_and(|byte| *byte >= 0x80);
        sizes.find(|size| is_whole && size.modulus_len() == self.n.len())
    }

    /// Whether [`RsaPublic::verify_hash`] uses the key, which may be of a third party.
    #[must_use]
    pub fn is_usable(self) -> bool {
        let minimal = |bytes: &[u8]| bytes.first().is_some_and(|byte| *byte != 0);
        MODULUS_BYTES.contains(&self.n.len())
            && self.e.len() <= EXPONENT_BYTES_MAX
            && minimal(self.n)
            && minimal(self.e)
    }

    /// Verifies a signature over a hash.
    #[must_use]
    pub fn verify_hash(self, padding: RsaPadding, hash: &Hashed, signature: &[u8]) -> bool {
        let Self { n, e } = self;
        let parsed = || {
            RsaPublicKeyComponents { n, e }
                .to_parsed_public_key(padding.verification(hash.by()))
                .ok()
        };
        self.is_usable()
            && parsed()
                .is_some_and(|key| key.verify_digest_sig(&hash.imported(), signature).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASHES: [Sha2; 3] = [Sha2::Sha256, Sha2::Sha384, Sha2::Sha512];
    const PADDINGS: [RsaPadding; 2] = [RsaPadding::Pkcs1, RsaPadding::Pss];

    #[test]
    fn a_signature_counts_in_its_own_form_under_its_own_key() {
        let (key, pkcs8) = RsaKey::generate(RsaSize::Bits2048);
        let public = RsaPublic::read(key.public()).expect("the library's form");
        assert_eq!(key.public().len(), RsaSize::Bits2048.public_len());
        let again = RsaKey::from_pkcs8(RsaSize::Bits2048, pkcs8.expose()).expect("it reads back");
        assert_eq!(again.public(), key.public());
        let forms = || {
            PADDINGS
                .iter()
                .flat_map(|p| HASHES.iter().map(move |h| (*p, *h)))
        };
        for (padding, by) in forms() {
            let signature = again.sign_hash(padding, &Hashed::of(by, b"m"));
            for (other, hash) in forms() {
                let holds =
                    |text: &[u8]| public.verify_hash(other, &Hashed::of(hash, text), &signature);
                assert_eq!(holds(b"m"), (other, hash) == (padding, by));
                assert!(!holds(b"n"));
            }
            let mut other = public.n.to_vec();
            other[9] ^= 1;
            let other = RsaPublic {
                n: &other,
                ..public
            };
            assert!(!other.verify_hash(padding, &Hashed::of(by, b"m"), &signature));
        }
        assert_eq!(format!("{key:?}"), "RsaKey([secret])");
    }

    #[test]
    fn a_public_key_has_one_encoding_and_none_is_short_or_costly() {
        let n = [0xff; 256];
        let padded = [&[0][..], &n].concat();
        for (n, e) in [
            (&padded[..], &EXPONENT[..]),
            (&n[..128], &EXPONENT),
            (&n, &[0, 1, 0, 1]),
            (&n, &[1; 5]),
            (&n, &[]),
        ] {
            assert!(!RsaPublic { n, e }.is_usable());
        }
        let foreign = RsaPublic { n: &n, e: &[3] };
        assert!(foreign.is_usable() && foreign.size().is_none());
        assert!(RsaPublic::read(&[0x30, 0]).is_none());
    }

    #[test]
    fn digest_info_is_as_published() {
        // RFC 8017, section 9.2, note 1.
        let heads = [
            "3031300d060960864801650304020105000420",
            "3041300d060960864801650304020205000430",
            "3051300d060960864801650304020305000440",
        ];
        for (by, head) in HASHES.into_iter().zip(heads) {
            let hash = Hashed::of(by, b"m");
            let whole = [hex::decode(head).unwrap(), hash.as_bytes().to_vec()].concat();
            assert_eq!(digest_info(&hash), whole);
        }
    }

    #[test]
    fn a_key_is_of_its_own_size() {
        let (_, pkcs8) = RsaKey::generate(RsaSize::Bits3072);
        assert!(RsaKey::from_pkcs8(RsaSize::Bits3072, pkcs8.expose()).is_ok());
        for size in [RsaSize::Bits2048, RsaSize::Bits4096] {
            assert!(RsaKey::from_pkcs8(size, pkcs8.expose()).is_err());
        }
        assert!(RsaKey::from_pkcs8(RsaSize::Bits2048, b"not a key").is_err());
    }
}
