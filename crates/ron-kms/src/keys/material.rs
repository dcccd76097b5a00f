//! Key material: the secret half that signs and is never shown, the public half that verifies.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ron_crypto::rand::Random;
use ron_crypto::secret::SecretBytes;
use ron_crypto::sign::{Ed25519Key, P256Key, verify_ed25519_strict, verify_p256_fixed};
use ron_crypto::{jwk, pem};
use ron_proto::kms::Jwk;
use ron_proto::values::Alg;

use super::jwt::jws_alg;

/// The algorithms that the file and memory backends offer.
pub const SUPPORTED: [Alg; 2] = [Alg::Ed25519, Alg::EcdsaP256];

/// Length of every signature made here, in bytes.
pub const SIGNATURE_BYTES: usize = 64;

/// A private key in memory. Never printed, never serialised but sealed.
pub enum SecretKey {
    /// An Ed25519 key.
    Ed25519(Ed25519Key),
    /// A key on P-256.
    P256(P256Key),
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

impl SecretKey {
    /// A fresh key and the bytes to seal. `None` when `alg` is not in [`SUPPORTED`].
    pub fn generate(alg: Alg, random: &dyn Random) -> Option<(Self, SecretBytes)> {
        match alg {
            Alg::Ed25519 => {
                let key = Ed25519Key::generate(random);
                let secret = SecretBytes::from_slice(key.seed().expose());
                Some((Self::Ed25519(key), secret))
            }
            Alg::EcdsaP256 => {
                let (key, pkcs8) = P256Key::generate();
                Some((Self::P256(key), pkcs8))
            }
            _ => None,
        }
    }

    /// The key from what was sealed; `None` when the bytes are not a key of `alg`.
    pub fn from_secret(alg: Alg, secret: &SecretBytes) -> Option<Self> {
        match alg {
            Alg::Ed25519 => {
                let seed: &[u8; 32] = secret.expose().try_into().ok()?;
                Some(Self::Ed25519(Ed25519Key::from_seed(seed)))
            }
            Alg::EcdsaP256 => P256Key::from_pkcs8(secret.expose()).ok().map(Self::P256),
            _ => None,
        }
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        match self {
            Self::Ed25519(key) => PublicKey::Ed25519(key.public()),
            Self::P256(key) => PublicKey::P256(key.public_sec1_uncompressed()),
        }
    }

    /// Signs `message`: Ed25519 over the message, P-256 over its SHA-256 as `r || s`.
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_BYTES] {
        match self {
            Self::Ed25519(key) => key.sign(message),
            Self::P256(key) => key.sign_fixed(message),
        }
    }
}

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublicKey {
    /// 32 bytes.
    Ed25519([u8; 32]),
    /// 65 bytes: 4, x, y.
    P256([u8; 65]),
}

impl PublicKey {
    /// From its raw bytes.
    pub fn from_raw(alg: Alg, raw: &[u8]) -> Option<Self> {
        match alg {
            Alg::Ed25519 => raw.try_into().ok().map(Self::Ed25519),
            Alg::EcdsaP256 => raw.try_into().ok().map(Self::P256),
            _ => None,
        }
    }

    /// The raw bytes.
    pub fn raw(&self) -> &[u8] {
        match self {
            Self::Ed25519(raw) => raw,
            Self::P256(raw) => raw,
        }
    }

    /// Its algorithm.
    pub fn alg(&self) -> Alg {
        match self {
            Self::Ed25519(_) => Alg::Ed25519,
            Self::P256(_) => Alg::EcdsaP256,
        }
    }

    /// `SubjectPublicKeyInfo` in PEM.
    pub fn pem(&self) -> String {
        match self {
            Self::Ed25519(raw) => pem::spki_pem_ed25519(raw),
            Self::P256(raw) => pem::spki_pem_p256(raw),
        }
    }

    /// RFC 7638 thumbprint, base64url of SHA-256.
    pub fn thumbprint(&self) -> String {
        match self {
            Self::Ed25519(raw) => jwk::thumbprint_okp(raw),
            Self::P256(raw) => {
                let (x, y) = coordinates(raw);
                jwk::thumbprint_ec(x, y)
            }
        }
    }

    /// As a JWK with its thumbprint as `kid`.
    pub fn jwk(&self) -> Jwk {
        let (kty, crv, x, y): (_, _, &[u8], Option<&[u8]>) = match self {
            Self::Ed25519(raw) => ("OKP", "Ed25519", raw, None),
            Self::P256(raw) => {
                let (x, y) = coordinates(raw);
                ("EC", "P-256", x, Some(y))
            }
        };
        Jwk {
            kty: kty.into(),
            crv: crv.into(),
            x: URL_SAFE_NO_PAD.encode(x),
            y: y.map(|y| URL_SAFE_NO_PAD.encode(y)),
            kid: self.thumbprint(),
            alg: jws_alg(self.alg())
                .expect("every supported algorithm has a JWS name")
                .into(),
            usage: "sig".into(),
        }
    }

    /// Whether `signature` over `message` is by this key. Ed25519 strictly: small-order and
    /// non-canonical points are refused.
    pub fn verify(&self, message: &[u8], signature: &[u8; SIGNATURE_BYTES]) -> bool {
        match self {
            Self::Ed25519(raw) => verify_ed25519_strict(raw, message, signature),
            Self::P256(raw) => verify_p256_fixed(raw, message, signature),
        }
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
    use ron_crypto::rand::SeededRandom;

    #[test]
    fn a_sealed_secret_gives_the_same_key_back() {
        for alg in SUPPORTED {
            let (key, secret) = SecretKey::generate(alg, &SeededRandom::new(7)).expect("supported");
            let again = SecretKey::from_secret(alg, &secret).expect("same bytes");
            assert_eq!(key.public(), again.public());
            let signature = again.sign(b"message");
            assert!(key.public().verify(b"message", &signature), "{alg}");
            assert!(!key.public().verify(b"massage", &signature), "{alg}");
            let jwk = key.public().jwk();
            assert_eq!(jwk.kid, key.public().thumbprint());
            assert_eq!(jwk.kid.len(), 43);
            assert!(
                key.public()
                    .pem()
                    .starts_with("-----BEGIN PUBLIC KEY-----\n")
            );
            assert_eq!(
                PublicKey::from_raw(alg, key.public().raw()),
                Some(key.public())
            );
        }
        assert!(SecretKey::generate(Alg::MlDsa65, &SeededRandom::new(7)).is_none());
    }
}
