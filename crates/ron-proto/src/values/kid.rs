//! Key names: `<tenant>/<purpose>/<alg>/<uuid>`, a version as `...#vN`.

use std::{fmt, str::FromStr};

use uuid::Uuid;

use super::{Purpose, Tenant, ValueError, string_value};

const WHAT: &str = "key name";

/// Every algorithm a key may have; which of them a service supports is determined at run time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Alg {
    /// Ed25519 signatures (RFC 8032).
    Ed25519,
    /// ECDSA on P-256, signatures as `r || s`.
    EcdsaP256,
    /// ECDSA on P-384, signatures as `r || s`.
    EcdsaP384,
    /// ECDSA on secp256k1, signatures as `r || s`.
    EcdsaSecp256k1,
    /// RSA signatures with a modulus of 2048 bits.
    Rsa2048,
    /// RSA signatures with a modulus of 3072 bits.
    Rsa3072,
    /// RSA signatures with a modulus of 4096 bits.
    Rsa4096,
    /// ML-DSA-44 signatures (FIPS 204).
    MlDsa44,
    /// ML-DSA-65 signatures (FIPS 204).
    MlDsa65,
    /// ML-DSA-87 signatures (FIPS 204).
    MlDsa87,
    /// Ed25519 and ML-DSA-65 as one key with two signatures.
    Ed25519MlDsa65,
    /// AES-128-GCM, for wrapping.
    Aes128Gcm,
    /// AES-256-GCM, for wrapping.
    Aes256Gcm,
    /// ChaCha20-Poly1305, for wrapping.
    ChaCha20Poly1305,
    /// AES-256 key wrap with padding (RFC 5649).
    Aes256Kwp,
    /// X25519, HKDF and AES-256-GCM, for wrapping to a public key.
    X25519HkdfAes256Gcm,
    /// X25519 and ML-KEM-768 as one hybrid key encapsulation mechanism.
    X25519MlKem768,
    /// HMAC with SHA-256.
    HmacSha256,
    /// HMAC with SHA-384.
    HmacSha384,
    /// HMAC with SHA-512.
    HmacSha512,
    /// RSA-OAEP with SHA-256 and a modulus of 2048 bits, for wrapping to a public key.
    RsaOaep2048,
    /// The same with 3072 bits.
    RsaOaep3072,
    /// The same with 4096 bits.
    RsaOaep4096,
    /// Key agreement on P-256, from which secrets are derived.
    EcdhP256,
    /// Key agreement on P-384.
    EcdhP384,
    /// Key agreement on X25519 (RFC 7748).
    EcdhX25519,
    /// A secret from which others are derived with HKDF-SHA-256 (RFC 5869).
    HkdfSha256,
}

impl Alg {
    /// Every algorithm. A sealed record names its algorithm by its place here: new ones are added at the end.
    pub const ALL: [Self; 27] = [
        Self::Ed25519,
        Self::EcdsaP256,
        Self::EcdsaP384,
        Self::EcdsaSecp256k1,
        Self::Rsa2048,
        Self::Rsa3072,
        Self::Rsa4096,
        Self::MlDsa44,
        Self::MlDsa65,
        Self::MlDsa87,
        Self::Ed25519MlDsa65,
        Self::Aes128Gcm,
        Self::Aes256Gcm,
        Self::ChaCha20Poly1305,
        Self::Aes256Kwp,
        Self::X25519HkdfAes256Gcm,
        Self::X25519MlKem768,
        Self::HmacSha256,
        Self::HmacSha384,
        Self::HmacSha512,
        Self::RsaOaep2048,
        Self::RsaOaep3072,
        Self::RsaOaep4096,
        Self::EcdhP256,
        Self::EcdhP384,
        Self::EcdhX25519,
        Self::HkdfSha256,
    ];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ed25519 => "ed25519",
            Self::EcdsaP256 => "ecdsa-p256",
            Self::EcdsaP384 => "ecdsa-p384",
            Self::EcdsaSecp256k1 => "ecdsa-secp256k1",
            Self::Rsa2048 => "rsa-2048",
            Self::Rsa3072 => "rsa-3072",
            Self::Rsa4096 => "rsa-4096",
            Self::MlDsa44 => "ml-dsa-44",
            Self::MlDsa65 => "ml-dsa-65",
            Self::MlDsa87 => "ml-dsa-87",
            Self::Ed25519MlDsa65 => "ed25519+ml-dsa-65",
            Self::Aes128Gcm => "aes128-gcm",
            Self::Aes256Gcm => "aes256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
            Self::Aes256Kwp => "aes256-kwp",
            Self::X25519HkdfAes256Gcm => "x25519-hkdf-aes256-gcm",
            Self::X25519MlKem768 => "x25519+ml-kem-768",
            Self::HmacSha256 => "hmac-sha256",
            Self::HmacSha384 => "hmac-sha384",
            Self::HmacSha512 => "hmac-sha512",
            Self::RsaOaep2048 => "rsa-oaep-2048",
            Self::RsaOaep3072 => "rsa-oaep-3072",
            Self::RsaOaep4096 => "rsa-oaep-4096",
            Self::EcdhP256 => "ecdh-p256",
            Self::EcdhP384 => "ecdh-p384",
            Self::EcdhX25519 => "ecdh-x25519",
            Self::HkdfSha256 => "hkdf-sha256",
        }
    }

    /// True for signature algorithms, verified with a public key.
    pub const fn signs(self) -> bool {
        matches!(
            self,
            Self::Ed25519
                | Self::EcdsaP256
                | Self::EcdsaP384
                | Self::EcdsaSecp256k1
                | Self::Rsa2048
                | Self::Rsa3072
                | Self::Rsa4096
                | Self::MlDsa44
                | Self::MlDsa65
                | Self::MlDsa87
                | Self::Ed25519MlDsa65
        )
    }

    /// True for RSA signatures.
    pub const fn is_rsa(self) -> bool {
        matches!(self, Self::Rsa2048 | Self::Rsa3072 | Self::Rsa4096)
    }

    /// True for encryption to an RSA key.
    pub const fn is_oaep(self) -> bool {
        matches!(
            self,
            Self::RsaOaep2048 | Self::RsaOaep3072 | Self::RsaOaep4096
        )
    }

    /// True for ECDSA.
    pub const fn is_ecdsa(self) -> bool {
        matches!(
            self,
            Self::EcdsaP256 | Self::EcdsaP384 | Self::EcdsaSecp256k1
        )
    }

    /// True for algorithms that wrap and unwrap.
    pub const fn wraps(self) -> bool {
        matches!(
            self,
            Self::Aes128Gcm
                | Self::Aes256Gcm
                | Self::ChaCha20Poly1305
                | Self::Aes256Kwp
                | Self::X25519HkdfAes256Gcm
                | Self::X25519MlKem768
        ) || self.is_oaep()
    }

    /// True for key agreement.
    pub const fn is_ecdh(self) -> bool {
        matches!(self, Self::EcdhP256 | Self::EcdhP384 | Self::EcdhX25519)
    }

    /// True for algorithms of keys from which secrets are derived.
    pub const fn derives(self) -> bool {
        self.is_ecdh() || matches!(self, Self::HkdfSha256)
    }

    /// True for algorithms that make MACs.
    pub const fn is_mac(self) -> bool {
        matches!(self, Self::HmacSha256 | Self::HmacSha384 | Self::HmacSha512)
    }
}

impl FromStr for Alg {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        Self::ALL
            .into_iter()
            .find(|alg| alg.as_str() == text)
            .ok_or_else(|| {
                let known: Vec<_> = Self::ALL.iter().map(|alg| alg.as_str()).collect();
                ValueError::new("algorithm", format!("known are {}", known.join(", ")))
            })
    }
}

impl fmt::Display for Alg {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.as_str())
    }
}

impl fmt::Debug for Alg {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

string_value!(Alg, "algorithm", {
    "type": "string",
    "enum": [
        "ed25519", "ecdsa-p256", "ecdsa-p384", "ecdsa-secp256k1", "rsa-2048", "rsa-3072", "rsa-4096",
        "ml-dsa-44", "ml-dsa-65", "ml-dsa-87", "ed25519+ml-dsa-65",
        "aes128-gcm", "aes256-gcm", "chacha20-poly1305", "aes256-kwp", "x25519-hkdf-aes256-gcm", "x25519+ml-kem-768",
        "hmac-sha256", "hmac-sha384", "hmac-sha512", "rsa-oaep-2048", "rsa-oaep-3072", "rsa-oaep-4096",
        "ecdh-p256", "ecdh-p384", "ecdh-x25519", "hkdf-sha256"
    ]
});

/// The name of a key. Each key has one spelling: lower case only, the UUID in hyphenated form.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kid {
    /// Tenant that owns the key.
    pub tenant: Tenant,
    /// Purpose of the key.
    pub purpose: Purpose,
    /// Algorithm of the key.
    pub alg: Alg,
    /// Unique id of the key.
    pub id: Uuid,
}

impl Kid {
    /// The smallest name of a tenant's keys with this purpose, where a range of them begins.
    pub fn first(tenant: &Tenant, purpose: Purpose) -> Self {
        Self {
            tenant: tenant.clone(),
            purpose,
            alg: Alg::ALL[0],
            id: Uuid::nil(),
        }
    }

    /// Version `version` of this key (from 1).
    pub fn at(&self, version: u32) -> KidVersion {
        KidVersion {
            kid: self.clone(),
            version,
        }
    }

    /// The four parts as URL path segments; `+` needs no encoding there.
    pub fn path(&self) -> String {
        self.to_string()
    }
}

/// A UUID in the one form used in key names.
fn strict_uuid(text: &str) -> Option<Uuid> {
    let lower = text.len() == 36 && !text.bytes().any(|byte| byte.is_ascii_uppercase());
    lower.then(|| Uuid::try_parse(text).ok()).flatten()
}

impl FromStr for Kid {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut parts = text.split('/');
        let (Some(tenant), Some(purpose), Some(alg), Some(id), None) = (
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
        ) else {
            return Err(ValueError::new(
                WHAT,
                "it has four parts: tenant/purpose/alg/uuid",
            ));
        };
        let within = |error: ValueError| ValueError::new(WHAT, error.to_string());
        Ok(Self {
            tenant: tenant.parse().map_err(within)?,
            purpose: purpose.parse().map_err(within)?,
            alg: alg.parse().map_err(within)?,
            id: strict_uuid(id)
                .ok_or_else(|| ValueError::new(WHAT, "its last part is a lower-case UUID"))?,
        })
    }
}

impl fmt::Display for Kid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tenant,
            purpose,
            alg,
            id,
        } = self;
        write!(out, "{tenant}/{purpose}/{alg}/{}", id.as_hyphenated())
    }
}

impl fmt::Debug for Kid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

string_value!(Kid, "a key name tenant/purpose/alg/uuid", {
    "type": "string",
    "maxLength": 189,
    "pattern": "^[a-z0-9._-]{1,64}/[a-z0-9._-]{1,64}/[a-z0-9+-]{1,22}/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
});

/// One version of a key, written `<kid>#vN` with N from 1.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KidVersion {
    /// Name of the key.
    pub kid: Kid,
    /// Number of the version, from 1.
    pub version: u32,
}

impl FromStr for KidVersion {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refuse = || ValueError::new("key version", "it ends in #vN, N from 1, no leading zero");
        let (kid, number) = text.split_once("#v").ok_or_else(refuse)?;
        let plain = number.bytes().all(|byte| byte.is_ascii_digit()) && !number.starts_with('0');
        let version = if plain {
            number.parse().map_err(|_| refuse())?
        } else {
            return Err(refuse());
        };
        Ok(Self {
            kid: kid.parse()?,
            version,
        })
    }
}

impl fmt::Display for KidVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}#v{}", self.kid, self.version)
    }
}

impl fmt::Debug for KidVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

string_value!(KidVersion, "a key version tenant/purpose/alg/uuid#vN", {
    "type": "string",
    "maxLength": 201,
    "pattern": "^[a-z0-9._-]{1,64}/[a-z0-9._-]{1,64}/[a-z0-9+-]{1,22}/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}#v[1-9][0-9]{0,9}$"
});
