//! The issuer's public keys, parsed once per refresh. Pure.

use ron_proto::{b64, strict};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Most keys in one set; an issuer that rotates has two or three.
const KEYS_MAX: usize = 64;
/// Longest key id, in bytes.
const KID_BYTES_MAX: usize = 128;

/// How a key signs. There are no others, so `none` and the HMAC family cannot be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JwsAlg {
    EdDsa,
    Es256,
}

impl JwsAlg {
    /// The header's `alg`, exactly.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "EdDSA" => Some(Self::EdDsa),
            "ES256" => Some(Self::Es256),
            _ => None,
        }
    }
}

/// A key for verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerifyKey {
    /// Ed25519, 32 bytes.
    Ed25519([u8; 32]),
    /// P-256, uncompressed SEC1: 0x04, x, y.
    P256([u8; 65]),
}

impl VerifyKey {
    pub const fn alg(&self) -> JwsAlg {
        match self {
            Self::Ed25519(_) => JwsAlg::EdDsa,
            Self::P256(_) => JwsAlg::Es256,
        }
    }

    /// A public JWK in JSON, as in the header of a proof: a signature key of one of our kinds, nothing private.
    pub fn from_jwk(jwk: &serde_json::Value) -> Result<Self, JwksError> {
        let jwk: Jwk = serde_json::from_value(jwk.clone())
            .map_err(|_| JwksError::Key("it is not a JWK object"))?;
        if jwk.d.is_some() || jwk.k.is_some() {
            return Err(JwksError::Private);
        }
        jwk.key()?.ok_or(JwksError::Key(
            "it is not an Ed25519 or P-256 signature key",
        ))
    }

    /// RFC 7638 SHA-256 thumbprint.
    pub fn thumbprint(&self) -> String {
        match self {
            Self::Ed25519(x) => ron_crypto::jwk::thumbprint_okp(x),
            Self::P256(sec1) => {
                let (mut x, mut y) = ([0; 32], [0; 32]);
                x.copy_from_slice(&sec1[1..33]);
                y.copy_from_slice(&sec1[33..]);
                ron_crypto::jwk::thumbprint_ec(&x, &y)
            }
        }
    }

    /// Strict verification of a JWS signature over `message`.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let Ok(signature) = <&[u8; 64]>::try_from(signature) else {
            return false;
        };
        match self {
            Self::Ed25519(key) => ron_crypto::sign::verify_ed25519_strict(key, message, signature),
            Self::P256(key) => ron_crypto::sign::verify_p256_fixed(key, message, signature),
        }
    }
}

/// The keys of one refresh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JwksSnapshot {
    keys: BTreeMap<String, VerifyKey>,
}

/// Why a document is no key set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwksError {
    #[error("the key set is not strict JSON of the form {{\"keys\": [...]}}: {0}")]
    Json(String),
    #[error("the key set holds {0} keys; at most 64 are read")]
    TooMany(usize),
    #[error("the key set names one kid twice")]
    DuplicateKid,
    #[error("the key set holds private or symmetric key material; it must not be published")]
    Private,
    #[error("a key of the set is malformed: {0}")]
    Key(&'static str),
    #[error("the key set holds no key that this service can use (Ed25519 or P-256 with a kid)")]
    Empty,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    kid: Option<String>,
    crv: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    x: Option<String>,
    y: Option<String>,
    // Seen only so that they can be refused.
    d: Option<serde::de::IgnoredAny>,
    k: Option<serde::de::IgnoredAny>,
}

impl JwksSnapshot {
    /// Reads a JWK set (RFC 7517). Keys of other kinds are passed over, as the RFC asks; a set that leaks private
    /// material, repeats a kid or holds a broken key of ours is refused whole, so that the last good one stays.
    pub fn parse(bytes: &[u8]) -> Result<Self, JwksError> {
        let document: Document =
            strict::from_slice(bytes).map_err(|error| JwksError::Json(error.to_string()))?;
        if document.keys.len() > KEYS_MAX {
            return Err(JwksError::TooMany(document.keys.len()));
        }
        let mut keys = BTreeMap::new();
        for jwk in document.keys {
            if jwk.d.is_some() || jwk.k.is_some() {
                return Err(JwksError::Private);
            }
            let Some(key) = jwk.key()? else { continue };
            let Some(kid) = jwk.kid.filter(|kid| !kid.is_empty()) else {
                continue;
            };
            if kid.len() > KID_BYTES_MAX {
                return Err(JwksError::Key("its kid is longer than 128 bytes"));
            }
            if keys.insert(kid, key).is_some() {
                return Err(JwksError::DuplicateKid);
            }
        }
        if keys.is_empty() {
            Err(JwksError::Empty)
        } else {
            Ok(Self { keys })
        }
    }

    pub fn find(&self, kid: &str) -> Option<&VerifyKey> {
        self.keys.get(kid)
    }
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
    pub fn len(&self) -> usize {
        self.keys.len()
    }
    /// Whether a token signed with this exact key would still find it here.
    pub fn still_holds(&self, kid: &str, key: &VerifyKey) -> bool {
        self.keys.get(kid) == Some(key)
    }
}

impl Jwk {
    /// `None` when the key is for something else.
    fn key(&self) -> Result<Option<VerifyKey>, JwksError> {
        if self.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return Ok(None);
        }
        let coordinate = |text: &Option<String>| -> Result<[u8; 32], JwksError> {
            let text = text
                .as_deref()
                .ok_or(JwksError::Key("a coordinate is missing"))?;
            b64::from_url_array(text)
                .map_err(|_| JwksError::Key("a coordinate is not 32 base64url bytes"))
        };
        match (self.kty.as_str(), self.crv.as_deref(), self.alg.as_deref()) {
            ("OKP", Some("Ed25519"), None | Some("EdDSA")) => {
                Ok(Some(VerifyKey::Ed25519(coordinate(&self.x)?)))
            }
            ("EC", Some("P-256"), None | Some("ES256")) => {
                let mut sec1 = [4u8; 65];
                sec1[1..33].copy_from_slice(&coordinate(&self.x)?);
                sec1[33..].copy_from_slice(&coordinate(&self.y)?);
                Ok(Some(VerifyKey::P256(sec1)))
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

    fn parse(text: &str) -> Result<JwksSnapshot, JwksError> {
        JwksSnapshot::parse(text.as_bytes())
    }

    #[test]
    fn keys_of_other_kinds_are_passed_over() {
        let set = parse(&format!(
            r#"{{"keys":[{{"kty":"AKP","alg":"ML-DSA-65","kid":"pq","pub":"AA"}},{{"kty":"RSA","kid":"r","n":"AA","e":"AQAB"}},
               {{"kty":"OKP","crv":"X25519","kid":"x","x":"{X}"}},{{"kty":"OKP","crv":"Ed25519","use":"enc","kid":"e","x":"{X}"}},
               {{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","use":"sig","kid":"a","x":"{X}"}},
               {{"kty":"EC","crv":"P-256","kid":"b","x":"{X}","y":"{X}"}}]}}"#
        ))
        .expect("two of our kinds");
        assert_eq!(set.len(), 2);
        assert_eq!(set.find("a").map(VerifyKey::alg), Some(JwsAlg::EdDsa));
        assert_eq!(set.find("b").map(VerifyKey::alg), Some(JwsAlg::Es256));
    }

    #[test]
    fn bad_sets_are_refused_whole() {
        let good = format!(r#"{{"kty":"OKP","crv":"Ed25519","kid":"a","x":"{X}"}}"#);
        let check = |keys: &str, wanted: fn(&JwksError) -> bool| {
            let error = parse(&format!(r#"{{"keys":[{keys}]}}"#)).expect_err(keys);
            assert!(wanted(&error), "{keys}: {error}");
        };
        check(&format!("{good},{good}"), |e| *e == JwksError::DuplicateKid);
        check(
            &format!(r#"{good},{{"kty":"oct","kid":"h","k":"AAAA"}}"#),
            |e| *e == JwksError::Private,
        );
        check(
            &format!(r#"{{"kty":"OKP","crv":"Ed25519","kid":"a","x":"{X}","d":"{X}"}}"#),
            |e| *e == JwksError::Private,
        );
        check(
            r#"{"kty":"OKP","crv":"Ed25519","kid":"a","x":"AAAA"}"#,
            |e| matches!(e, JwksError::Key(_)),
        );
        check(r#"{"kty":"OKP","crv":"Ed25519","kid":"a"}"#, |e| {
            matches!(e, JwksError::Key(_))
        });
        check(
            &format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{X}"}}"#),
            |e| *e == JwksError::Empty,
        );
        check(r#"{"kty":"OKP","kty":"EC"}"#, |e| {
            matches!(e, JwksError::Json(_))
        });
        check("", |e| *e == JwksError::Empty);
        let many = vec![r#"{"kty":"RSA"}"#; 65].join(",");
        check(&many, |e| *e == JwksError::TooMany(65));
        assert!(matches!(parse("<html>"), Err(JwksError::Json(_))));
    }
}
