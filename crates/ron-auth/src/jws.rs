//! Parses compact JWS: the common form of tokens, DPoP proofs, narrowing statements and client
//! assertions. Pure.
//!
//! **Invariant:** no part of a JWS is trusted before [`Jws::verified_by`] succeeds.

use std::borrow::Cow;

use ron_crypto::sign::Ed25519Key;
use ron_proto::{b64, strict};
use serde_json::{Map, Value};

use crate::jwks::{JwsAlg, VerifyKey};
use crate::reject::AuthReject;

/// A decoded compact JWS: the signing input and the three parts.
#[derive(Debug)]
pub struct Jws<'a> {
    /// `header.payload` as sent: the bytes that the signature covers.
    signed: Cow<'a, [u8]>,
    pub(crate) header: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    signature: Vec<u8>,
}

impl<'a> Jws<'a> {
    /// Splits and decodes. Refuses anything but three non-empty base64url parts with a total of at
    /// most `bytes_max` bytes.
    pub fn split(text: &'a str, bytes_max: usize) -> Result<Self, AuthReject> {
        if text.len() > bytes_max {
            return Err(AuthReject::Oversize);
        }
        let (signed, signature) = text.rsplit_once('.').ok_or(AuthReject::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(AuthReject::Malformed)?;
        if header.is_empty() || payload.is_empty() || payload.contains('.') {
            return Err(AuthReject::Malformed);
        }
        let decode = |part: &str| b64::from_url(part).map_err(|_| AuthReject::Malformed);
        Ok(Self {
            signed: Cow::Borrowed(signed.as_bytes()),
            header: decode(header)?,
            payload: decode(payload)?,
            signature: decode(signature)?,
        })
    }

    /// One signature of a JSON serialization, from its parts in base64url.
    pub(crate) fn of_parts(
        protected: &str,
        payload: &str,
        signature: &str,
    ) -> Result<Jws<'static>, AuthReject> {
        let decode = |part: &str| b64::from_url(part).map_err(|_| AuthReject::Malformed);
        Ok(Jws {
            header: decode(protected)?,
            payload: decode(payload)?,
            signature: decode(signature)?,
            signed: Cow::Owned(format!("{protected}.{payload}").into_bytes()),
        })
    }

    /// The header: a strict JSON object with these members and no others (`crit`, `b64`, `jku`,
    /// `x5u`, `zip` and the like would change how it must be read).
    pub fn header(&self, names: &[&str]) -> Result<Map<String, Value>, AuthReject> {
        let header = object(&self.header)?;
        if header.keys().any(|name| !names.contains(&name.as_str())) {
            return Err(AuthReject::HeaderMember);
        }
        Ok(header)
    }

    /// The header of another issuer's token: unknown members mean nothing (RFC 7515 section 4.1), but `crit`, and what
    /// would change how the token is read, is refused.
    pub fn foreign_header(&self) -> Result<Map<String, Value>, AuthReject> {
        let header = object(&self.header)?;
        if ["crit", "b64", "zip", "enc"]
            .iter()
            .any(|name| header.contains_key(*name))
        {
            return Err(AuthReject::HeaderMember);
        }
        Ok(header)
    }

    /// The claims: a strict JSON object.
    pub fn claims(&self) -> Result<Map<String, Value>, AuthReject> {
        object(&self.payload)
    }

    /// Checks that `key` made the signature and that the header's `alg` is the algorithm of such a
    /// key.
    pub fn verified_by(&self, key: &VerifyKey, alg: JwsAlg) -> Result<(), AuthReject> {
        if !key.takes(alg) {
            return Err(AuthReject::Alg);
        }
        if key.verifies(alg, &self.signed, &self.signature) {
            Ok(())
        } else {
            Err(AuthReject::Signature)
        }
    }
}

/// A holder's key, which signs a JWS with its public half in the header.
pub struct Holder(Ed25519Key);

impl std::fmt::Debug for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Holder(..)")
    }
}

impl Holder {
    pub const fn new(key: Ed25519Key) -> Self {
        Self(key)
    }

    /// RFC 7638 thumbprint of the public key: the value of `cnf.jkt` and `proof.bind`.
    pub fn thumbprint(&self) -> String {
        ron_crypto::jwk::thumbprint_okp(&self.0.public())
    }

    pub(crate) fn sign(&self, typ: &str, claims: &Value) -> String {
        let jwk = serde_json::json!({
            "kty": "OKP", "crv": "Ed25519", "x": b64::url(&self.0.public()),
        });
        let header = serde_json::json!({ "alg": "EdDSA", "typ": typ, "jwk": jwk });
        let part = |value: &Value| b64::url(value.to_string().as_bytes());
        let signed = format!("{}.{}", part(&header), part(claims));
        let signature = self.0.sign(signed.as_bytes());
        format!("{signed}.{}", b64::url(&signature))
    }
}

/// Verifies a JWS whose header carries the signer's public key: checks `typ`, algorithm and
/// signature. Returns the key's thumbprint and the claims; the caller must check that the
/// thumbprint is the expected one.
pub(crate) fn self_signed(
    text: &str,
    typ: &str,
    bytes_max: usize,
) -> Result<(String, Map<String, Value>), AuthReject> {
    let jws = Jws::split(text, bytes_max)?;
    let header = jws.header(&["alg", "typ", "jwk"])?;
    if header.get("typ").and_then(Value::as_str) != Some(typ) {
        return Err(AuthReject::Typ);
    }
    let alg = header.get("alg").and_then(Value::as_str);
    let alg = alg.and_then(JwsAlg::of_client).ok_or(AuthReject::Alg)?;
    let jwk = header.get("jwk").ok_or(AuthReject::HeaderMember)?;
    let key = VerifyKey::from_jwk(jwk).map_err(|_| AuthReject::HeaderMember)?;
    jws.verified_by(&key, alg)?;
    Ok((key.thumbprint(), jws.claims()?))
}

/// Parses a strict JSON object: one value per name at every depth.
pub(crate) fn object(bytes: &[u8]) -> Result<Map<String, Value>, AuthReject> {
    match strict::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        // A separate reason, so that a probe with duplicate members is visible as such.
        Err(_) if serde_json::from_slice::<Value>(bytes).is_ok() => Err(AuthReject::NotStrict),
        Ok(_) | Err(_) => Err(AuthReject::Malformed),
    }
}
