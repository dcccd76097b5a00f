//! The `Authorization` header of a request.

use ron_http::{Headers, RequestHead};

use crate::reject::AuthReject;

/// The scheme under which a token is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Bearer,
    /// For tokens that are bound to a key (RFC 9449).
    Dpop,
}

/// Scheme and credential of the `Authorization` header, which must be present exactly once.
pub fn authorization(headers: &Headers) -> Result<(Scheme, &str), AuthReject> {
    let header = match headers.count("authorization") {
        0 => return Err(AuthReject::Missing),
        1 => headers.get("authorization").ok_or(AuthReject::Scheme)?,
        _ => return Err(AuthReject::Scheme),
    };
    let (scheme, token) = header.split_once(' ').ok_or(AuthReject::Scheme)?;
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        "bearer" => Scheme::Bearer,
        "dpop" => Scheme::Dpop,
        _ => return Err(AuthReject::Scheme),
    };
    Ok((scheme, token.trim_matches(' ')))
}

/// The same, of a request whose credential is one word.
pub(crate) fn credential(head: &RequestHead) -> Result<(Scheme, &str), AuthReject> {
    let (scheme, token) = authorization(&head.headers)?;
    let odd = |byte: u8| byte.is_ascii_whitespace() || byte == b',';
    if token.is_empty() || token.bytes().any(odd) {
        return Err(AuthReject::Scheme);
    }
    Ok((scheme, token))
}
