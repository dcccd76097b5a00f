//! How a key signs whose algorithm leaves a choice, and hashes that callers make.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::values::{Alg, ValueError};

/// Hash function of signatures by ECDSA and RSA.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum HashAlg {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl HashAlg {
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// Bytes of a hash.
    pub const fn size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }
}

/// The hash of data of any size, made by the caller. A key with the payload policy `prehash` signs it as it is: the
/// signature is the one over the data.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prehash {
    /// Hash function.
    pub alg: HashAlg,
    /// The hash: 64, 96 or 128 lower-case hex digits, as `alg` has.
    #[schemars(regex(pattern = r"^[0-9a-f]{64}([0-9a-f]{32}){0,2}$"))]
    pub value: String,
}

impl Prehash {
    /// A hash from its raw bytes.
    pub fn new(alg: HashAlg, raw: &[u8]) -> Self {
        Self {
            alg,
            value: hex::encode(raw),
        }
    }

    /// The raw bytes; `None` unless the value is exactly the lower-case hex digits of such a hash.
    pub fn raw(&self) -> Option<Vec<u8>> {
        let is_lower = !self.value.bytes().any(|byte| byte.is_ascii_uppercase());
        let raw = hex::decode(&self.value).ok().filter(|_| is_lower)?;
        (raw.len() == self.alg.size()).then_some(raw)
    }
}

/// A signature scheme: the hash function, and the padding of RSA. The salt of `rsa-pss-...` is as long as the hash.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// ECDSA over SHA-256; on P-256 and secp256k1 when none is named.
    EcdsaSha256,
    /// ECDSA over SHA-384; on P-384 when none is named.
    EcdsaSha384,
    /// ECDSA over SHA-512.
    EcdsaSha512,
    /// RSASSA-PSS over SHA-256; of RSA keys when none is named.
    RsaPssSha256,
    /// RSASSA-PSS over SHA-384.
    RsaPssSha384,
    /// RSASSA-PSS over SHA-512.
    RsaPssSha512,
    /// RSASSA-PKCS1-v1_5 over SHA-256.
    RsaPkcs1Sha256,
    /// RSASSA-PKCS1-v1_5 over SHA-384.
    RsaPkcs1Sha384,
    /// RSASSA-PKCS1-v1_5 over SHA-512.
    RsaPkcs1Sha512,
}

impl Scheme {
    pub const ALL: [Self; 9] = [
        Self::EcdsaSha256,
        Self::EcdsaSha384,
        Self::EcdsaSha512,
        Self::RsaPssSha256,
        Self::RsaPssSha384,
        Self::RsaPssSha512,
        Self::RsaPkcs1Sha256,
        Self::RsaPkcs1Sha384,
        Self::RsaPkcs1Sha512,
    ];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EcdsaSha256 => "ecdsa-sha256",
            Self::EcdsaSha384 => "ecdsa-sha384",
            Self::EcdsaSha512 => "ecdsa-sha512",
            Self::RsaPssSha256 => "rsa-pss-sha256",
            Self::RsaPssSha384 => "rsa-pss-sha384",
            Self::RsaPssSha512 => "rsa-pss-sha512",
            Self::RsaPkcs1Sha256 => "rsa-pkcs1-sha256",
            Self::RsaPkcs1Sha384 => "rsa-pkcs1-sha384",
            Self::RsaPkcs1Sha512 => "rsa-pkcs1-sha512",
        }
    }

    /// The scheme of `alg` over hashes of `hash`: of RSA the one with PSS. `None` for algorithms without a choice.
    pub const fn over(alg: Alg, hash: HashAlg) -> Option<Self> {
        if alg.is_ecdsa() {
            return Some(match hash {
                HashAlg::Sha256 => Self::EcdsaSha256,
                HashAlg::Sha384 => Self::EcdsaSha384,
                HashAlg::Sha512 => Self::EcdsaSha512,
            });
        }
        if !alg.is_rsa() {
            return None;
        }
        Some(match hash {
            HashAlg::Sha256 => Self::RsaPssSha256,
            HashAlg::Sha384 => Self::RsaPssSha384,
            HashAlg::Sha512 => Self::RsaPssSha512,
        })
    }

    /// The scheme of `alg` when none is named; `None` for algorithms without a choice.
    pub const fn usual(alg: Alg) -> Option<Self> {
        let hash = match alg {
            Alg::EcdsaP384 => HashAlg::Sha384,
            _ => HashAlg::Sha256,
        };
        Self::over(alg, hash)
    }

    /// Whether keys of `alg` sign in this way.
    pub const fn fits(self, alg: Alg) -> bool {
        match self {
            Self::EcdsaSha256 | Self::EcdsaSha384 | Self::EcdsaSha512 => alg.is_ecdsa(),
            _ => alg.is_rsa(),
        }
    }

    /// Its hash function.
    pub const fn hash(self) -> HashAlg {
        match self {
            Self::EcdsaSha256 | Self::RsaPssSha256 | Self::RsaPkcs1Sha256 => HashAlg::Sha256,
            Self::EcdsaSha384 | Self::RsaPssSha384 | Self::RsaPkcs1Sha384 => HashAlg::Sha384,
            Self::EcdsaSha512 | Self::RsaPssSha512 | Self::RsaPkcs1Sha512 => HashAlg::Sha512,
        }
    }
}

impl FromStr for Scheme {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let found = Self::ALL.into_iter().find(|scheme| scheme.as_str() == text);
        found.ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|scheme| scheme.as_str()).collect();
            ValueError::new(
                "signature scheme",
                format!("known are {}", known.join(", ")),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_everywhere() {
        for scheme in Scheme::ALL {
            let name = scheme.as_str();
            assert_eq!(serde_json::to_value(scheme).expect("a name"), name);
            assert_eq!(name.parse(), Ok(scheme));
            let algs = Alg::ALL.into_iter().filter(|alg| scheme.fits(*alg));
            assert_eq!(algs.count(), 3, "{name}");
        }
        for hash in HashAlg::ALL {
            assert_eq!(serde_json::to_value(hash).expect("a name"), hash.as_str());
        }
        assert!("rsa-pss".parse::<Scheme>().is_err());
    }

    #[test]
    fn the_usual_scheme_fits() {
        for alg in Alg::ALL {
            let usual = Scheme::usual(alg);
            assert_eq!(usual.is_some(), alg.is_ecdsa() || alg.is_rsa(), "{alg}");
            assert!(usual.is_none_or(|scheme| scheme.fits(alg)));
        }
    }

    #[test]
    fn a_prehash_is_lower_hex_of_its_length() {
        for hash in HashAlg::ALL {
            let good = Prehash::new(hash, &vec![0xab; hash.size()]);
            assert_eq!(good.raw(), Some(vec![0xab; hash.size()]));
            for value in [
                good.value.to_uppercase(),
                good.value[2..].to_owned(),
                good.value.replace('a', "g"),
            ] {
                assert_eq!(
                    Prehash {
                        value,
                        ..good.clone()
                    }
                    .raw(),
                    None
                );
            }
        }
    }
}
