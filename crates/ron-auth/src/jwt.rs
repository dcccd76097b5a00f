//! Verifies a passport: a compact JWS JWT of one closed profile (RFC 9068 under the rules of RFC 8725). Pure: the
//! time, the keys and what is expected all come in as arguments.
//!
//! **Invariants:** the algorithm comes from the key, the header only has to agree; nothing of a token is believed
//! before its signature is; whatever the profile does not name is refused in the header and ignored in the claims.

use crate::jwks::{JwksSnapshot, JwsAlg};
use crate::jws::Jws;
use crate::reject::AuthReject;
use ron_proto::passport::{TOKEN_BYTES_MAX, TTL_S_MAX};
use ron_proto::{Caveat, Tenant, b64, caveat};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Clock difference that is forgiven, in seconds.
pub const SKEW_S: u64 = 60;
/// Longest `iss`, `sub`, `jti` and `client_id`, in bytes.
const TEXT_BYTES_MAX: usize = 256;
/// Most audiences a token may list.
const AUDIENCES_MAX: usize = 8;

/// What a verifier insists on.
#[derive(Clone, Debug)]
pub struct Expect<'a> {
    pub issuer: &'a str,
    /// This service's own name, as in `svc-wallet`.
    pub audience: &'a str,
    /// Unix seconds.
    pub now_s: u64,
}

/// The believed content of a token.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims {
    pub iss: String,
    pub sub: String,
    /// Unix seconds.
    pub iat: u64,
    pub nbf: u64,
    pub exp: u64,
    pub jti: String,
    pub client_id: Option<String>,
    pub tenant: Tenant,
    pub scopes: Vec<String>,
    pub epoch: u64,
    pub caveats: Vec<Caveat>,
    /// The key that signed it.
    pub kid: String,
    /// Thumbprint of the key that its user must prove (RFC 9449). Whoever verifies tokens by [`verify_jwt`] alone
    /// must ask for that proof, see [`crate::dpop`].
    pub jkt: Option<String>,
}

impl Claims {
    /// The time checks, which have to be made on every use.
    pub fn check_time(&self, now_s: u64) -> Result<(), AuthReject> {
        if now_s >= self.exp.saturating_add(SKEW_S) {
            return Err(AuthReject::Expired);
        }
        if now_s.saturating_add(SKEW_S) < self.nbf.max(self.iat) {
            return Err(AuthReject::NotYet);
        }
        Ok(())
    }
}

/// Verifies signature, header, `iss`, `aud`, times and shape. Epoch, revocation and caveats are left to the caller,
/// because they change during a token's life.
pub fn verify_jwt(
    token: &str,
    keys: &JwksSnapshot,
    expect: &Expect<'_>,
) -> Result<Claims, AuthReject> {
    let jws = Jws::split(token, TOKEN_BYTES_MAX)?;
    let (kid, alg) = read_header(&jws)?;
    let key = keys.find(&kid).ok_or(AuthReject::UnknownKid)?;
    jws.verified_by(key, alg)?;
    let claims = read_claims(&jws, kid, expect)?;
    claims.check_time(expect.now_s)?;
    Ok(claims)
}

/// The `kid` of a token whose header is well formed, believed or not: to decide whether a refresh could help.
pub fn unverified_kid(token: &str) -> Option<String> {
    read_header(&Jws::split(token, TOKEN_BYTES_MAX).ok()?)
        .ok()
        .map(|(kid, _)| kid)
}

/// Exactly `alg`, `kid` and `typ`; anything else (`crit`, `b64`, `jwk`, `jku`, `x5u`, `zip`, ...) would change how
/// the token is to be read, so it is refused rather than ignored.
fn read_header(jws: &Jws<'_>) -> Result<(String, JwsAlg), AuthReject> {
    let header = jws.header(&["alg", "kid", "typ"])?;
    let text = |name: &str| header.get(name).and_then(Value::as_str);
    let alg = text("alg").and_then(JwsAlg::parse).ok_or(AuthReject::Alg)?;
    // RFC 9068 allows the media type with or without its tree, in any case.
    let typ = text("typ").unwrap_or_default().to_ascii_lowercase();
    if typ != "at+jwt" && typ != "application/at+jwt" {
        return Err(AuthReject::Typ);
    }
    let kid = text("kid")
        .filter(|kid| !kid.is_empty())
        .ok_or(AuthReject::UnknownKid)?;
    Ok((kid.to_owned(), alg))
}

#[derive(Deserialize)]
struct RawClaims {
    iss: String,
    sub: String,
    aud: Audience,
    iat: u64,
    nbf: Option<u64>,
    exp: u64,
    jti: String,
    client_id: Option<String>,
    tenant: Option<Tenant>,
    #[serde(default)]
    scope: String,
    ron_epoch: u64,
    #[serde(default)]
    authorization_details: Vec<Value>,
    cnf: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Audience {
    fn holds(&self, name: &str) -> bool {
        match self {
            Self::One(audience) => audience == name,
            Self::Many(audiences) => {
                audiences.len() <= AUDIENCES_MAX
                    && audiences.iter().any(|audience| audience == name)
            }
        }
    }
}

fn read_claims(jws: &Jws<'_>, kid: String, expect: &Expect<'_>) -> Result<Claims, AuthReject> {
    let raw: RawClaims =
        serde_json::from_value(Value::Object(jws.claims()?)).map_err(|_| AuthReject::Claims)?;
    if raw.iss != expect.issuer {
        return Err(AuthReject::Issuer);
    }
    if !raw.aud.holds(expect.audience) {
        return Err(AuthReject::Audience);
    }
    let jkt = raw.cnf.as_ref().map(confirmation).transpose()?;
    let texts = [Some(&raw.sub), Some(&raw.jti), raw.client_id.as_ref()];
    if texts
        .into_iter()
        .flatten()
        .any(|text| text.is_empty() || text.len() > TEXT_BYTES_MAX)
    {
        return Err(AuthReject::Claims);
    }
    // The issuer never exceeds the maximum; revocations are remembered for that long.
    if raw.exp <= raw.iat || raw.exp - raw.iat > TTL_S_MAX {
        return Err(AuthReject::Claims);
    }
    let caveats = read_caveats(&raw.authorization_details)?;
    Ok(Claims {
        nbf: raw.nbf.unwrap_or(raw.iat),
        iss: raw.iss,
        sub: raw.sub,
        iat: raw.iat,
        exp: raw.exp,
        jti: raw.jti,
        client_id: raw.client_id,
        tenant: match raw.tenant {
            Some(tenant) => tenant,
            None => "default".parse().map_err(|_| AuthReject::Claims)?,
        },
        scopes: raw
            .scope
            .split(' ')
            .filter(|scope| !scope.is_empty())
            .map(str::to_owned)
            .collect(),
        epoch: raw.ron_epoch,
        caveats,
        kid,
        jkt,
    })
}

/// A DPoP key and nothing else: a binding of a kind that is not known could not be checked.
fn confirmation(cnf: &Value) -> Result<String, AuthReject> {
    let members = cnf.as_object().map_or(0, Map::len);
    match cnf.get("jkt").and_then(Value::as_str) {
        Some(jkt) if members == 1 && b64::from_url_array::<32>(jkt).is_ok() => Ok(jkt.to_owned()),
        _ => Err(AuthReject::Binding),
    }
}

/// Reads `{"type": "ron", "caveats": ["key=value", ...]}` and `{"type": "ron", key: value, ...}`. A member that is
/// not understood may be a limit, so it refuses the token.
fn read_caveats(details: &[Value]) -> Result<Vec<Caveat>, AuthReject> {
    let mut caveats = Vec::new();
    for detail in details {
        let Some(list) = detail.get("caveats") else {
            caveats.extend(caveat::from_detail(detail).map_err(|_| AuthReject::CaveatUnsupported)?);
            continue;
        };
        let members = detail.as_object().map_or(0, Map::len);
        if members != 2 || detail.get("type").and_then(Value::as_str) != Some("ron") {
            return Err(AuthReject::CaveatUnsupported);
        }
        for item in list.as_array().ok_or(AuthReject::Claims)? {
            let text = item.as_str().ok_or(AuthReject::Claims)?;
            caveats.push(text.parse().map_err(|_| AuthReject::CaveatUnsupported)?);
        }
    }
    if caveats.len() > caveat::MAX_CAVEATS {
        return Err(AuthReject::CaveatUnsupported);
    }
    Ok(caveats)
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
