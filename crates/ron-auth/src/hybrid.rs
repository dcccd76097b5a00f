//! Tokens with two signatures: a JWS JSON serialization (RFC 7515 section 7.2.1) with one classical
//! and one ML-DSA signature over the same payload. A credential in `Authorization` cannot contain
//! JSON, so it travels as the base64url of that JSON; without dots it cannot be mistaken for a
//! compact JWS. In a body the JSON itself is accepted too. Pure.
//!
//! **Invariant:** all signatures cover the same payload; members that no signature protects are
//! refused.

use ron_proto::{b64, strict};
use serde::{Deserialize, Serialize};

use crate::jws::Jws;
use crate::reject::AuthReject;

/// The JSON serialization. Unprotected headers (`header`) are refused as unknown members.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct General {
    payload: String,
    signatures: Vec<Signature>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signature {
    protected: String,
    signature: String,
}

/// The signatures of a token, one or two, each with the payload that it covers.
pub(crate) fn split(token: &str, bytes_max: usize) -> Result<Vec<Jws<'_>>, AuthReject> {
    if token.len() > bytes_max {
        return Err(AuthReject::Oversize);
    }
    match general(token)? {
        None => Ok(vec![Jws::split(token, bytes_max)?]),
        Some(general) => general
            .signatures
            .iter()
            .map(|one| Jws::of_parts(&one.protected, &general.payload, &one.signature))
            .collect(),
    }
}

/// The payload of a token in either form, not verified.
pub fn payload(token: &str) -> Result<Vec<u8>, AuthReject> {
    let text = match general(token)? {
        Some(general) => general.payload,
        None => token
            .split('.')
            .nth(1)
            .ok_or(AuthReject::Malformed)?
            .to_owned(),
    };
    b64::from_url(&text).map_err(|_| AuthReject::Malformed)
}

/// The header of each signature of a token in either form, not verified.
pub fn headers(token: &str) -> Result<Vec<Vec<u8>>, AuthReject> {
    let decode = |text: &str| b64::from_url(text).map_err(|_| AuthReject::Malformed);
    match general(token)? {
        Some(general) => {
            let all = general.signatures.iter();
            all.map(|one| decode(&one.protected)).collect()
        }
        None => Ok(vec![decode(token.split('.').next().unwrap_or_default())?]),
    }
}

/// Assembles a token from `(protected, signature)` pairs over one payload, all in base64url.
pub fn join(payload: &str, signatures: impl IntoIterator<Item = (String, String)>) -> String {
    let general = General {
        payload: payload.to_owned(),
        signatures: signatures
            .into_iter()
            .map(|(protected, signature)| Signature {
                protected,
                signature,
            })
            .collect(),
    };
    let json = serde_json::to_vec(&general).expect("strings and lists are always JSON");
    b64::url(&json)
}

/// The JSON serialization, if the token has that form; it must have exactly two signatures.
fn general(token: &str) -> Result<Option<General>, AuthReject> {
    let general: General = if token.starts_with('{') {
        strict::from_slice(token.as_bytes()).map_err(|_| AuthReject::Malformed)?
    } else if token.contains('.') {
        return Ok(None);
    } else {
        let json = b64::from_url(token).map_err(|_| AuthReject::Malformed)?;
        strict::from_slice(&json).map_err(|_| AuthReject::Malformed)?
    };
    if general.signatures.len() == 2 && !general.payload.is_empty() {
        Ok(Some(general))
    } else {
        Err(AuthReject::Malformed)
    }
}

#[cfg(test)]
#[path = "hybrid_tests.rs"]
mod tests;
