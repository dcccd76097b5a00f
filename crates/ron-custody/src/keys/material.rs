//! Key material: private keys, which sign and are never shown, and public keys, which verify.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ron_crypto::hash::sha256;
use ron_crypto::hpke::{HpkeKey, Kem};
use ron_crypto::mldsa::verify_mldsa;
use ron_crypto::secret::{Secret32, SecretBytes};
use ron_crypto::sign::{Ed25519Key, P256Key, verify_ed25519_strict, verify_p256_fixed};
use ron_crypto::{MlDsaKey, MlDsaSet, jwk, pem};
use ron_kernel::Random;
use ron_proto::kms::{Bytes, Jwk, Signature};
use ron_proto::values::Alg;

use super::jwt::jws_alg;
use super::symmetric::SymmetricKey;

/// A private key in memory. Never printed, and serialised only sealed.
pub enum SecretKey {
    Ed25519(Ed25519Key),
    /// A key on P-256.
    P256(P256Key),
    MlDsa(MlDsaKey),
    /// Two keys that are made, rotated and used together.
    Hybrid(Ed25519Key, MlDsaKey),
    /// A symmetric key of this algorithm.
    Symmetric(Alg, SymmetricKey),
    /// An HPKE key: callers encrypt to its public half.
    Kem(HpkeKey),
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

/// The parameter set of an ML-DSA algorithm.
const fn mldsa_set(alg: Alg) -> Option<MlDsaSet> {
    match alg {
        Alg::MlDsa44 => Some(MlDsaSet::L44),
        Alg::MlDsa65 => Some(MlDsaSet::L65),
        Alg::MlDsa87 => Some(MlDsaSet::L87),
        _ => None,
    }
}

const fn alg_of(set: MlDsaSet) -> Alg {
    match set {
        MlDsaSet::L44 => Alg::MlDsa44,
        MlDsaSet::L65 => Alg::MlDsa65,
        MlDsaSet::L87 => Alg::MlDsa87,
    }
}

/// The KEM of an HPKE algorithm.
pub const fn kem_of(alg: Alg) -> Option<Kem> {
    match alg {
        Alg::X25519HkdfAes256Gcm => Some(Kem::X25519),
        Alg::X25519MlKem768 => Some(Kem::XWing),
        _ => None,
    }
}

const fn alg_of_kem(kem: Kem) -> Alg {
    match kem {
        Kem::X25519 => Alg::X25519HkdfAes256Gcm,
        Kem::XWing => Alg::X25519MlKem768,
    }
}

/// Bytes of a public key of `alg`, 0 for symmetric keys; `None` when none is offered here.
pub const fn public_len(alg: Alg) -> Option<usize> {
    match alg {
        Alg::Ed25519 => Some(32),
        Alg::EcdsaP256 => Some(65),
        Alg::Ed25519MlDsa65 => Some(32 + MlDsaSet::L65.public_len()),
        Alg::Aes256Gcm | Alg::Aes256Kwp | Alg::HmacSha256 => Some(0),
        Alg::X25519HkdfAes256Gcm => Some(Kem::X25519.public_len()),
        Alg::X25519MlKem768 => Some(Kem::XWing.public_len()),
        _ => match mldsa_set(alg) {
            Some(set) => Some(set.public_len()),
            None => None,
        },
    }
}

/// Bytes of a signature of `alg`, which must not be a hybrid.
fn signature_len(alg: Alg) -> usize {
    mldsa_set(alg).map_or(64, MlDsaSet::signature_len)
}

impl SecretKey {
    /// A new key and the bytes to seal.
    pub fn generate(alg: Alg, random: &dyn Random) -> (Self, SecretBytes) {
        let length = match alg {
            Alg::EcdsaP256 => {
                // Not from `random`: the library generates P-256 keys from the system's randomness.
                let (key, pkcs8) = P256Key::generate();
                return (Self::P256(key), pkcs8);
            }
            Alg::X25519HkdfAes256Gcm | Alg::X25519MlKem768 => {
                let kem = kem_of(alg).expect("the algorithm is one of HPKE");
                let key = HpkeKey::generate(kem, random);
                let secret = key.to_bytes();
                return (Self::Kem(key), secret);
            }
            Alg::Ed25519MlDsa65 => 64,
            Alg::Ed25519
            | Alg::MlDsa44
            | Alg::MlDsa65
            | Alg::MlDsa87
            | Alg::Aes256Gcm
            | Alg::Aes256Kwp
            | Alg::HmacSha256 => 32,
        };
        let mut secret = SecretBytes::zeroed(length);
        random.fill(secret.expose_mut());
        let key = Self::from_secret(alg, &secret).expect("seeds of this length are keys");
        (key, secret)
    }

    /// The key from its unsealed bytes (seeds, or PKCS#8 for P-256); `None` when they are not a
    /// key of `alg`.
    pub fn from_secret(alg: Alg, secret: &SecretBytes) -> Option<Self> {
        let raw = secret.expose();
        let ed25519 = |seed: &[u8]| Some(Ed25519Key::from_seed(seed.try_into().ok()?));
        let mldsa = |set, seed: &[u8]| {
            let seed = Secret32::from_slice(seed.try_into().ok()?);
            Some(MlDsaKey::from_seed(set, &seed))
        };
        match alg {
            Alg::Ed25519 => ed25519(raw).map(Self::Ed25519),
            Alg::EcdsaP256 => P256Key::from_pkcs8(raw).ok().map(Self::P256),
            Alg::Ed25519MlDsa65 => {
                let (one, two) = raw.split_at_checked(32)?;
                Some(Self::Hybrid(ed25519(one)?, mldsa(MlDsaSet::L65, two)?))
            }
            Alg::Aes256Gcm | Alg::Aes256Kwp | Alg::HmacSha256 => {
                SymmetricKey::from_secret(secret).map(|key| Self::Symmetric(alg, key))
            }
            Alg::X25519HkdfAes256Gcm | Alg::X25519MlKem768 => {
                HpkeKey::from_bytes(kem_of(alg)?, secret)
                    .ok()
                    .map(Self::Kem)
            }
            _ => mldsa(mldsa_set(alg)?, raw).map(Self::MlDsa),
        }
    }

    /// The symmetric key, if it is one.
    pub fn symmetric(&self) -> Option<&SymmetricKey> {
        match self {
            Self::Symmetric(_, key) => Some(key),
            _ => None,
        }
    }

    pub fn public(&self) -> PublicKey {
        match self {
            Self::Ed25519(key) => PublicKey::Ed25519(key.public()),
            Self::P256(key) => PublicKey::P256(key.public_sec1_uncompressed()),
            Self::MlDsa(key) => PublicKey::MlDsa(key.set(), key.public().into()),
            Self::Hybrid(one, two) => {
                PublicKey::Hybrid([&one.public()[..], &two.public()].concat().into())
            }
            Self::Symmetric(alg, _) => PublicKey::Hidden(*alg),
            Self::Kem(key) => PublicKey::Kem(key.kem(), key.public().into()),
        }
    }

    /// Signs `message`, once with each algorithm of the key: Ed25519 and ML-DSA over the message,
    /// P-256 over its SHA-256 as `r || s`. Empty for keys that do not sign.
    pub fn sign(&self, message: &[u8]) -> Vec<Signature> {
        let one = |alg, signature: Vec<u8>| Signature {
            alg,
            signature: Bytes(signature),
        };
        match self {
            Self::Ed25519(key) => vec![one(Alg::Ed25519, key.sign(message).to_vec())],
            Self::P256(key) => vec![one(Alg::EcdsaP256, key.sign_fixed(message).to_vec())],
            Self::MlDsa(key) => vec![one(alg_of(key.set()), key.sign(message))],
            Self::Hybrid(first, second) => vec![
                one(Alg::Ed25519, first.sign(message).to_vec()),
                one(Alg::MlDsa65, second.sign(message)),
            ],
            Self::Symmetric(..) | Self::Kem(_) => Vec::new(),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PublicKey {
    /// 32 bytes.
    Ed25519([u8; 32]),
    /// 65 bytes: 4, x, y.
    P256([u8; 65]),
    /// As FIPS 204 encodes it.
    MlDsa(MlDsaSet, Arc<[u8]>),
    /// Ed25519, then ML-DSA-65.
    Hybrid(Arc<[u8]>),
    /// X25519; or ML-KEM-768, then X25519.
    Kem(Kem, Arc<[u8]>),
    /// A symmetric key has no public half.
    Hidden(Alg),
}

impl PublicKey {
    /// From its raw bytes.
    pub fn from_raw(alg: Alg, raw: &[u8]) -> Option<Self> {
        if public_len(alg)? != raw.len() {
            return None;
        }
        match alg {
            Alg::Ed25519 => raw.try_into().ok().map(Self::Ed25519),
            Alg::EcdsaP256 => raw.try_into().ok().map(Self::P256),
            Alg::Ed25519MlDsa65 => Some(Self::Hybrid(raw.into())),
            Alg::Aes256Gcm | Alg::Aes256Kwp | Alg::HmacSha256 => Some(Self::Hidden(alg)),
            Alg::X25519HkdfAes256Gcm | Alg::X25519MlKem768 => {
                Some(Self::Kem(kem_of(alg)?, raw.into()))
            }
            _ => Some(Self::MlDsa(mldsa_set(alg)?, raw.into())),
        }
    }

    pub fn raw(&self) -> &[u8] {
        match self {
            Self::Ed25519(raw) => raw,
            Self::P256(raw) => raw,
            Self::MlDsa(_, raw) | Self::Hybrid(raw) | Self::Kem(_, raw) => raw,
            Self::Hidden(_) => &[],
        }
    }

    pub fn alg(&self) -> Alg {
        match self {
            Self::Ed25519(_) => Alg::Ed25519,
            Self::P256(_) => Alg::EcdsaP256,
            Self::MlDsa(set, _) => alg_of(*set),
            Self::Hybrid(_) => Alg::Ed25519MlDsa65,
            Self::Kem(kem, _) => alg_of_kem(*kem),
            Self::Hidden(alg) => *alg,
        }
    }

    /// The component keys: two for a hybrid, otherwise the key itself.
    pub fn parts(&self) -> Vec<Self> {
        match self {
            Self::Hybrid(raw) => {
                let (one, two) = raw.split_at(32);
                let one = one.try_into().expect("32 bytes in front");
                vec![Self::Ed25519(one), Self::MlDsa(MlDsaSet::L65, two.into())]
            }
            other => vec![other.clone()],
        }
    }

    /// `SubjectPublicKeyInfo` in PEM, one block per part; empty for keys that have no such encoding.
    pub fn pem(&self) -> String {
        match self {
            Self::Ed25519(raw) => pem::spki_pem_ed25519(raw),
            Self::P256(raw) => pem::spki_pem_p256(raw),
            Self::MlDsa(set, raw) => pem::spki_pem_mldsa(*set, raw),
            Self::Hybrid(_) => self.parts().iter().map(Self::pem).collect(),
            Self::Kem(Kem::X25519, raw) => raw[..]
                .try_into()
                .map_or_else(|_| String::new(), pem::spki_pem_x25519),
            Self::Kem(Kem::XWing, _) | Self::Hidden(_) => String::new(),
        }
    }

    /// RFC 7638 thumbprint, base64url of SHA-256; of the raw bytes for a hybrid, which has no JWK.
    pub fn thumbprint(&self) -> String {
        match self {
            Self::Ed25519(raw) => jwk::thumbprint_okp(raw),
            Self::P256(raw) => {
                let (x, y) = coordinates(raw);
                jwk::thumbprint_ec(x, y)
            }
            Self::MlDsa(_, raw) => {
                jwk::thumbprint_akp(jws_alg(self.alg()).unwrap_or_default(), raw)
            }
            Self::Hybrid(raw) | Self::Kem(_, raw) => URL_SAFE_NO_PAD.encode(sha256(raw)),
            Self::Hidden(_) => String::new(),
        }
    }

    /// The key as a JWK with its thumbprint as `kid`; `None` for hybrids and for keys that do not sign.
    pub fn jwk(&self) -> Option<Jwk> {
        let mut jwk = Jwk {
            kty: String::new(),
            crv: String::new(),
            x: String::new(),
            y: None,
            public: None,
            kid: self.thumbprint(),
            alg: jws_alg(self.alg())?.into(),
            usage: "sig".into(),
        };
        match self {
            Self::Ed25519(raw) => {
                (jwk.kty, jwk.crv) = ("OKP".into(), "Ed25519".into());
                jwk.x = URL_SAFE_NO_PAD.encode(raw);
            }
            Self::P256(raw) => {
                let (x, y) = coordinates(raw);
                (jwk.kty, jwk.crv) = ("EC".into(), "P-256".into());
                jwk.x = URL_SAFE_NO_PAD.encode(x);
                jwk.y = Some(URL_SAFE_NO_PAD.encode(y));
            }
            Self::MlDsa(_, raw) => {
                jwk.kty = "AKP".into();
                jwk.public = Some(URL_SAFE_NO_PAD.encode(raw));
            }
            Self::Hybrid(_) | Self::Kem(..) | Self::Hidden(_) => return None,
        }
        Some(jwk)
    }

    /// Whether `signature` over `message` is valid for this key, which must not be a hybrid (see
    /// [`PublicKey::parts`]). Ed25519 strictly: small-order and non-canonical points are refused.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Ed25519(raw) => signature
                .try_into()
                .is_ok_and(|signature| verify_ed25519_strict(raw, message, signature)),
            Self::P256(raw) => signature.len() == 64 && verify_p256_fixed(raw, message, signature),
            Self::MlDsa(set, raw) => verify_mldsa(*set, raw, message, signature),
            Self::Hybrid(_) | Self::Kem(..) | Self::Hidden(_) => false,
        }
    }

    /// Whether the signature has the length of this key's signatures; the key must not be a hybrid.
    pub fn fits(&self, signature: &[u8]) -> bool {
        signature.len() == signature_len(self.alg())
    }
}

fn coordinates(raw: &[u8; 65]) -> (&[u8; 32], &[u8; 32]) {
    let x = raw[1..33].try_into().expect("32 of 65 bytes");
    let y = raw[33..].try_into().expect("32 of 65 bytes");
    (x, y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_kernel::SeededRandom;

    #[test]
    fn a_sealed_secret_gives_the_same_key_back() {
        for alg in Alg::ALL.into_iter().filter(|alg| alg.signs()) {
            let (key, secret) = SecretKey::generate(alg, &SeededRandom::new(7));
            let again = SecretKey::from_secret(alg, &secret).expect("same bytes");
            let public = key.public();
            assert_eq!(public, again.public());
            assert_eq!(public_len(alg), Some(public.raw().len()), "{alg}");
            let signatures = again.sign(b"message");
            let parts = public.parts();
            assert_eq!(signatures.len(), parts.len());
            for (part, signature) in parts.iter().zip(&signatures) {
                let raw = signature.signature.as_slice();
                assert_eq!(part.alg(), signature.alg);
                assert!(part.fits(raw) && part.verify(b"message", raw), "{alg}");
                assert!(!part.verify(b"massage", raw), "{alg}");
            }
            assert_eq!(
                public.pem().matches("-----BEGIN PUBLIC KEY-----\n").count(),
                parts.len()
            );
            if let Some(jwk) = public.jwk() {
                assert_eq!(jwk.kid, public.thumbprint());
            }
            assert_eq!(public.jwk().is_none(), parts.len() == 2, "{alg}");
            assert_eq!(public.thumbprint().len(), 43);
            assert_eq!(PublicKey::from_raw(alg, public.raw()), Some(public));
        }
    }

    #[test]
    fn keys_that_do_not_sign_come_back_too_and_sign_nothing() {
        for alg in Alg::ALL.into_iter().filter(|alg| !alg.signs()) {
            let (key, secret) = SecretKey::generate(alg, &SeededRandom::new(7));
            let again = SecretKey::from_secret(alg, &secret).expect("same bytes");
            let public = key.public();
            assert_eq!(public, again.public());
            assert_eq!(public.alg(), alg);
            assert_eq!(public_len(alg), Some(public.raw().len()), "{alg}");
            assert_eq!(PublicKey::from_raw(alg, public.raw()), Some(public.clone()));
            assert!(again.sign(b"message").is_empty());
            assert!(!public.verify(b"message", b""));
            assert_eq!(public.jwk(), None);
            let pem = public.pem();
            assert_eq!(pem.is_empty(), alg != Alg::X25519HkdfAes256Gcm, "{alg}");
            let short = SecretBytes::from_slice(&secret.expose()[1..]);
            assert!(SecretKey::from_secret(alg, &short).is_none(), "{alg}");
        }
    }
}
