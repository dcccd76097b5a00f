//! Key material: private keys, which sign and are never shown, and public keys, which verify.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ron_crypto::ecdsa::verify_ecdsa_hash;
use ron_crypto::hash::sha256;
use ron_crypto::hpke::{HpkeKey, Kem};
use ron_crypto::mldsa::verify_mldsa;
use ron_crypto::secret::{Secret32, SecretBytes};
use ron_crypto::sign::{Ed25519Key, verify_ed25519_strict};
use ron_crypto::{
    Curve, EcKey, EcdhGroup, EcdhKey, MlDsaKey, MlDsaSet, OaepKey, RsaKey, RsaPublic, RsaSize, jwk,
    pem,
};
use ron_kernel::Random;
use ron_proto::kms::{Bytes, Jwk, Scheme, Signature};
use ron_proto::values::Alg;

use super::input::{DeviceInput, Input, hash_of, padding_of};
use super::jwt::jws_alg;
use super::parameters::{
    alg_of, alg_of_curve, alg_of_group, alg_of_kem, alg_of_oaep, alg_of_size, curve_of, group_of,
    kem_of, mldsa_set, oaep_size_of, public_len, size_of,
};
use super::symmetric::{SymmetricKey, symmetric_len};

/// A private key in memory. Never printed, and serialised only sealed.
pub enum SecretKey {
    Ed25519(Ed25519Key),
    Ec(EcKey),
    Rsa(RsaKey),
    MlDsa(MlDsaKey),
    /// Two keys that are made, rotated and used together.
    Hybrid(Ed25519Key, MlDsaKey),
    /// A symmetric key of this algorithm.
    Symmetric(Alg, SymmetricKey),
    /// An HPKE key: callers encrypt to its public half.
    Kem(HpkeKey),
    /// An RSA key that decrypts and does not sign.
    Oaep(OaepKey),
    /// A key that agrees with another on a shared secret.
    Ecdh(EcdhKey),
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

impl SecretKey {
    /// A new key and the bytes to seal. An RSA key takes up to several seconds.
    pub fn generate(alg: Alg, random: &dyn Random) -> (Self, SecretBytes) {
        let length = match alg {
            // Not from `random`: the library generates these keys from the system's randomness.
            Alg::EcdsaP256 | Alg::EcdsaP384 | Alg::EcdsaSecp256k1 => {
                let (key, pkcs8) = EcKey::generate(curve_of(alg).expect("it has a curve"));
                return (Self::Ec(key), pkcs8);
            }
            Alg::Rsa2048 | Alg::Rsa3072 | Alg::Rsa4096 => {
                let (key, pkcs8) = RsaKey::generate(size_of(alg).expect("it has a size"));
                return (Self::Rsa(key), pkcs8);
            }
            Alg::RsaOaep2048 | Alg::RsaOaep3072 | Alg::RsaOaep4096 => {
                let (key, pkcs8) = OaepKey::generate(oaep_size_of(alg).expect("it has a size"));
                return (Self::Oaep(key), pkcs8);
            }
            Alg::X25519HkdfAes256Gcm | Alg::X25519MlKem768 => {
                let kem = kem_of(alg).expect("the algorithm is one of HPKE");
                let key = HpkeKey::generate(kem, random);
                let secret = key.to_bytes();
                return (Self::Kem(key), secret);
            }
            Alg::EcdhP256 | Alg::EcdhP384 | Alg::EcdhX25519 => {
                let group = group_of(alg).expect("it has a group");
                let (key, secret) = EcdhKey::generate(group, random);
                return (Self::Ecdh(key), secret);
            }
            Alg::Ed25519MlDsa65 => 64,
            Alg::Ed25519 | Alg::MlDsa44 | Alg::MlDsa65 | Alg::MlDsa87 => 32,
            Alg::Aes128Gcm
            | Alg::Aes256Gcm
            | Alg::ChaCha20Poly1305
            | Alg::Aes256Kwp
            | Alg::HmacSha256
            | Alg::HmacSha384
            | Alg::HmacSha512
            | Alg::HkdfSha256 => symmetric_len(alg).expect("it is symmetric"),
        };
        let mut secret = SecretBytes::zeroed(length);
        random.fill(secret.expose_mut());
        let key = Self::from_secret(alg, &secret).expect("seeds of this length are keys");
        (key, secret)
    }

    /// The key from its unsealed bytes (seeds and scalars, or PKCS#8 for RSA and on NIST's curves); `None` when they are not
    /// a key of `alg`.
    pub fn from_secret(alg: Alg, secret: &SecretBytes) -> Option<Self> {
        let raw = secret.expose();
        let ed25519 = |seed: &[u8]| Some(Ed25519Key::from_seed(seed.try_into().ok()?));
        let mldsa = |set, seed: &[u8]| {
            let seed = Secret32::from_slice(seed.try_into().ok()?);
            Some(MlDsaKey::from_seed(set, &seed))
        };
        match alg {
            Alg::Ed25519 => ed25519(raw).map(Self::Ed25519),
            Alg::EcdsaP256 | Alg::EcdsaP384 | Alg::EcdsaSecp256k1 => {
                EcKey::from_pkcs8(curve_of(alg)?, raw).ok().map(Self::Ec)
            }
            Alg::Rsa2048 | Alg::Rsa3072 | Alg::Rsa4096 => {
                RsaKey::from_pkcs8(size_of(alg)?, raw).ok().map(Self::Rsa)
            }
            Alg::RsaOaep2048 | Alg::RsaOaep3072 | Alg::RsaOaep4096 => {
                OaepKey::from_pkcs8(oaep_size_of(alg)?, raw)
                    .ok()
                    .map(Self::Oaep)
            }
            Alg::Ed25519MlDsa65 => {
                let (one, two) = raw.split_at_checked(32)?;
                Some(Self::Hybrid(ed25519(one)?, mldsa(MlDsaSet::L65, two)?))
            }
            _ if symmetric_len(alg).is_some() => {
                SymmetricKey::from_secret(alg, secret).map(|key| Self::Symmetric(alg, key))
            }
            Alg::X25519HkdfAes256Gcm | Alg::X25519MlKem768 => {
                HpkeKey::from_bytes(kem_of(alg)?, secret)
                    .ok()
                    .map(Self::Kem)
            }
            Alg::EcdhP256 | Alg::EcdhP384 | Alg::EcdhX25519 => {
                EcdhKey::from_secret(group_of(alg)?, raw)
                    .ok()
                    .map(Self::Ecdh)
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
            Self::Ec(key) => PublicKey::Ec(key.curve(), key.public().into()),
            Self::Rsa(key) => PublicKey::Rsa(key.size(), key.public().into()),
            Self::MlDsa(key) => PublicKey::MlDsa(key.set(), key.public().into()),
            Self::Hybrid(one, two) => {
                PublicKey::Hybrid([&one.public()[..], &two.public()].concat().into())
            }
            Self::Symmetric(alg, _) => PublicKey::Hidden(*alg),
            Self::Kem(key) => PublicKey::Kem(key.kem(), key.public().into()),
            Self::Oaep(key) => PublicKey::Oaep(key.size(), key.public().into()),
            Self::Ecdh(key) => PublicKey::Ecdh(key.group(), key.public().into()),
        }
    }

    /// Signs, once with each algorithm of the key: Ed25519 and ML-DSA a message, ECDSA and RSA its hash under `scheme`, which is
    /// the usual one when absent. Empty for keys that do not sign this input.
    pub fn sign(&self, input: Input<'_>, scheme: Option<Scheme>) -> Vec<Signature> {
        let one = |alg, signature: Vec<u8>| Signature {
            alg,
            scheme: shown(alg, scheme),
            signature: Bytes(signature),
        };
        match (self, input) {
            (Self::Ec(key), input) => {
                let alg = alg_of_curve(key.curve());
                vec![one(alg, key.sign_hash(&hash_of(alg, input, scheme)))]
            }
            (Self::Rsa(key), input) => {
                let alg = alg_of_size(key.size());
                let hash = hash_of(alg, input, scheme);
                vec![one(alg, key.sign_hash(padding_of(scheme), &hash))]
            }
            (Self::Ed25519(key), Input::Message(message)) => {
                vec![one(Alg::Ed25519, key.sign(message).to_vec())]
            }
            (Self::MlDsa(key), Input::Message(message)) => {
                vec![one(alg_of(key.set()), key.sign(message))]
            }
            (Self::Hybrid(first, second), Input::Message(message)) => vec![
                one(Alg::Ed25519, first.sign(message).to_vec()),
                one(Alg::MlDsa65, second.sign(message)),
            ],
            _ => Vec::new(),
        }
    }
}

/// The scheme that a signature names: every one of RSA, and of ECDSA one that is not usual.
pub(crate) fn shown(alg: Alg, scheme: Option<Scheme>) -> Option<Scheme> {
    let usual = Scheme::usual(alg);
    scheme
        .or(usual)
        .filter(|scheme| alg.is_rsa() || Some(*scheme) != usual)
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PublicKey {
    /// 32 bytes.
    Ed25519([u8; 32]),
    /// 4, x, y.
    Ec(Curve, Arc<[u8]>),
    /// `RSAPublicKey` in DER; the exponent is 65537.
    Rsa(RsaSize, Arc<[u8]>),
    /// As FIPS 204 encodes it.
    MlDsa(MlDsaSet, Arc<[u8]>),
    /// Ed25519, then ML-DSA-65.
    Hybrid(Arc<[u8]>),
    /// X25519; or ML-KEM-768, then X25519.
    Kem(Kem, Arc<[u8]>),
    /// `RSAPublicKey` in DER, of a key that decrypts.
    Oaep(RsaSize, Arc<[u8]>),
    /// 4, x, y; or the coordinate of X25519.
    Ecdh(EcdhGroup, Arc<[u8]>),
    /// A symmetric key has no public half.
    Hidden(Alg),
}

impl PublicKey {
    /// From its raw bytes.
    pub fn from_raw(alg: Alg, raw: &[u8]) -> Option<Self> {
        if public_len(alg) != raw.len() {
            return None;
        }
        match alg {
            Alg::Ed25519 => raw.try_into().ok().map(Self::Ed25519),
            Alg::EcdsaP256 | Alg::EcdsaP384 | Alg::EcdsaSecp256k1 => {
                Some(Self::Ec(curve_of(alg)?, raw.into()))
            }
            Alg::Rsa2048 | Alg::Rsa3072 | Alg::Rsa4096 => {
                let size = RsaPublic::read(raw)?.size()?;
                (alg_of_size(size) == alg).then(|| Self::Rsa(size, raw.into()))
            }
            Alg::RsaOaep2048 | Alg::RsaOaep3072 | Alg::RsaOaep4096 => {
                let size = RsaPublic::read(raw)?.size()?;
                (alg_of_oaep(size) == alg).then(|| Self::Oaep(size, raw.into()))
            }
            Alg::Ed25519MlDsa65 => Some(Self::Hybrid(raw.into())),
            _ if symmetric_len(alg).is_some() => Some(Self::Hidden(alg)),
            Alg::X25519HkdfAes256Gcm | Alg::X25519MlKem768 => {
                Some(Self::Kem(kem_of(alg)?, raw.into()))
            }
            Alg::EcdhP256 | Alg::EcdhP384 | Alg::EcdhX25519 => {
                Some(Self::Ecdh(group_of(alg)?, raw.into()))
            }
            _ => Some(Self::MlDsa(mldsa_set(alg)?, raw.into())),
        }
    }

    pub fn raw(&self) -> &[u8] {
        match self {
            Self::Ed25519(raw) => raw,
            Self::Ec(_, raw)
            | Self::Rsa(_, raw)
            | Self::MlDsa(_, raw)
            | Self::Hybrid(raw)
            | Self::Kem(_, raw)
            | Self::Oaep(_, raw)
            | Self::Ecdh(_, raw) => raw,
            Self::Hidden(_) => &[],
        }
    }

    pub fn alg(&self) -> Alg {
        match self {
            Self::Ed25519(_) => Alg::Ed25519,
            Self::Ec(curve, _) => alg_of_curve(*curve),
            Self::Rsa(size, _) => alg_of_size(*size),
            Self::MlDsa(set, _) => alg_of(*set),
            Self::Hybrid(_) => Alg::Ed25519MlDsa65,
            Self::Kem(kem, _) => alg_of_kem(*kem),
            Self::Oaep(size, _) => alg_of_oaep(*size),
            Self::Ecdh(group, _) => alg_of_group(*group),
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
            Self::Ec(curve, raw) => pem::spki_pem_ec(*curve, raw),
            Self::Rsa(_, raw) | Self::Oaep(_, raw) => pem::spki_pem_rsa(raw),
            Self::MlDsa(set, raw) => pem::spki_pem_mldsa(*set, raw),
            Self::Hybrid(_) => self.parts().iter().map(Self::pem).collect(),
            Self::Kem(Kem::X25519, raw) => pem::spki_pem_x25519(coordinate(raw)),
            Self::Ecdh(group, raw) => match group.curve() {
                Some(curve) => pem::spki_pem_ec(curve, raw),
                None => pem::spki_pem_x25519(coordinate(raw)),
            },
            Self::Kem(Kem::XWing, _) | Self::Hidden(_) => String::new(),
        }
    }

    /// RFC 7638 thumbprint, base64url of SHA-256; of the raw bytes for a hybrid, which has no JWK.
    pub fn thumbprint(&self) -> String {
        match self {
            Self::Ed25519(raw) => jwk::thumbprint_okp(raw),
            Self::Ec(curve, raw) => jwk::thumbprint_ec(*curve, raw),
            Self::Rsa(_, raw) | Self::Oaep(_, raw) => jwk::thumbprint_rsa(rsa_parts(raw)),
            Self::MlDsa(_, raw) => {
                jwk::thumbprint_akp(jws_alg(self.alg(), None).unwrap_or_default(), raw)
            }
            Self::Ecdh(group, raw) => match group.curve() {
                Some(curve) => jwk::thumbprint_ec(curve, raw),
                None => jwk::thumbprint_x25519(coordinate(raw)),
            },
            Self::Hybrid(raw) | Self::Kem(_, raw) => URL_SAFE_NO_PAD.encode(sha256(raw)),
            Self::Hidden(_) => String::new(),
        }
    }

    /// The key as a JWK with its thumbprint as `kid`; `None` for hybrids and for keys that neither sign nor agree. One of RSA
    /// names no `alg`, because it signs in several ways, and one for agreement none, because JOSE derives in other ways.
    pub fn jwk(&self) -> Option<Jwk> {
        let mut jwk = Jwk {
            kty: String::new(),
            crv: String::new(),
            x: String::new(),
            y: None,
            n: None,
            e: None,
            public: None,
            kid: self.thumbprint(),
            alg: jws_alg(self.alg(), None).unwrap_or_default().into(),
            usage: "sig".into(),
        };
        match self {
            Self::Ed25519(raw) => {
                (jwk.kty, jwk.crv) = ("OKP".into(), "Ed25519".into());
                jwk.x = URL_SAFE_NO_PAD.encode(raw);
            }
            Self::Ec(curve, raw) => point(&mut jwk, *curve, raw),
            Self::Ecdh(group, raw) => {
                jwk.usage = "enc".into();
                if let Some(curve) = group.curve() {
                    point(&mut jwk, curve, raw);
                } else {
                    (jwk.kty, jwk.crv) = ("OKP".into(), "X25519".into());
                    jwk.x = URL_SAFE_NO_PAD.encode(raw);
                }
            }
            Self::Rsa(_, raw) => {
                let RsaPublic { n, e } = rsa_parts(raw);
                (jwk.kty, jwk.alg) = ("RSA".into(), String::new());
                jwk.n = Some(URL_SAFE_NO_PAD.encode(n));
                jwk.e = Some(URL_SAFE_NO_PAD.encode(e));
            }
            Self::MlDsa(_, raw) => {
                jwk.kty = "AKP".into();
                jwk.public = Some(URL_SAFE_NO_PAD.encode(raw));
            }
            Self::Hybrid(_) | Self::Kem(..) | Self::Oaep(..) | Self::Hidden(_) => return None,
        }
        Some(jwk)
    }

    /// Whether `signature` is valid for this key, which must not be a hybrid (see [`PublicKey::parts`]); `scheme` as in
    /// [`SecretKey::sign`]. Ed25519 strictly: small-order and non-canonical points are refused.
    pub fn verify(&self, input: Input<'_>, scheme: Option<Scheme>, signature: &[u8]) -> bool {
        let hash = |input| hash_of(self.alg(), input, scheme);
        match (self, input) {
            (Self::Ec(curve, raw), input) => {
                self.fits(signature) && verify_ecdsa_hash(*curve, raw, &hash(input), signature)
            }
            (Self::Rsa(_, raw), input) => {
                rsa_parts(raw).verify_hash(padding_of(scheme), &hash(input), signature)
            }
            (Self::Ed25519(raw), Input::Message(message)) => signature
                .try_into()
                .is_ok_and(|signature| verify_ed25519_strict(raw, message, signature)),
            (Self::MlDsa(set, raw), Input::Message(message)) => {
                verify_mldsa(*set, raw, message, signature)
            }
            _ => false,
        }
    }

    /// Whether the signature has the length of this key's signatures; the key must not be a hybrid.
    pub fn fits(&self, signature: &[u8]) -> bool {
        let length = match self {
            Self::Ec(curve, _) => 2 * curve.size(),
            Self::Rsa(size, _) => size.modulus_len(),
            Self::MlDsa(set, _) => set.signature_len(),
            _ => 64,
        };
        signature.len() == length
    }

    /// What a device has to sign.
    pub fn for_device(&self, input: Input<'_>, scheme: Option<Scheme>) -> DeviceInput {
        let scheme = scheme.or_else(|| Scheme::usual(self.alg()));
        let bytes = match (self, input) {
            (Self::Ec(curve, _), input) => curve.input(&hash_of(self.alg(), input, scheme)),
            (Self::Rsa(..), input) => hash_of(self.alg(), input, scheme).as_bytes().to_vec(),
            (_, Input::Message(message)) => message.to_vec(),
            (_, Input::Hash(hash)) => hash.as_bytes().to_vec(),
        };
        DeviceInput { bytes, scheme }
    }
}

/// The coordinate of an X25519 key, whose length was checked when it was read.
fn coordinate(raw: &[u8]) -> &[u8; 32] {
    raw.try_into().expect("X25519 keys have 32 bytes")
}

/// The members of a JWK that hold a point.
fn point(jwk: &mut Jwk, curve: Curve, raw: &[u8]) {
    let (x, y) = jwk::coordinates(curve, raw);
    (jwk.kty, jwk.crv) = ("EC".into(), curve.jwk_name().into());
    jwk.x = URL_SAFE_NO_PAD.encode(x);
    jwk.y = Some(URL_SAFE_NO_PAD.encode(y));
}

/// Modulus and exponent of a key that [`PublicKey::from_raw`] has read or the library made.
fn rsa_parts(raw: &[u8]) -> RsaPublic<'_> {
    RsaPublic::read(raw).expect("it was read before")
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
            assert_eq!(public_len(alg), public.raw().len(), "{alg}");
            let signatures = again.sign(Input::Message(b"message"), None);
            let parts = public.parts();
            assert_eq!(signatures.len(), parts.len());
            for (part, signature) in parts.iter().zip(&signatures) {
                let raw = signature.signature.as_slice();
                assert_eq!(part.alg(), signature.alg);
                let holds = |text| part.verify(Input::Message(text), signature.scheme, raw);
                assert!(part.fits(raw) && holds(b"message"), "{alg}");
                assert!(!holds(b"massage"), "{alg}");
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
            assert_eq!(public_len(alg), public.raw().len(), "{alg}");
            assert_eq!(PublicKey::from_raw(alg, public.raw()), Some(public.clone()));
            let message = Input::Message(b"message");
            assert!(again.sign(message, None).is_empty());
            assert!(!public.verify(message, None, b""));
            let jwk = public.jwk();
            assert_eq!(jwk.is_some(), alg.is_ecdh(), "{alg}");
            let shown = jwk.map(|jwk| (jwk.kid, jwk.usage));
            let wanted = (public.thumbprint(), "enc".to_owned());
            assert!(shown.is_none_or(|shown| shown == wanted), "{alg}");
            let pem = public.pem();
            let has_form = alg == Alg::X25519HkdfAes256Gcm || alg.is_oaep() || alg.is_ecdh();
            assert_eq!(pem.is_empty(), !has_form, "{alg}");
            // A secret to derive from may be shorter than those that are made here.
            let cut = if alg == Alg::HkdfSha256 { 17 } else { 1 };
            let short = SecretBytes::from_slice(&secret.expose()[cut..]);
            assert!(SecretKey::from_secret(alg, &short).is_none(), "{alg}");
        }
    }
}
