//! Verifies a passport: a compact JWS JWT of one closed profile (RFC 9068 under the rules of RFC
//! 8725). Pure: time, keys and expectations are arguments.
//!
//! **Invariants:** the key determines the algorithm, the header only has to agree; no claim is
//! trusted before the signature is verified; members that the profile does not name are refused in
//! the header and ignored in the claims.

use ron_proto::ledger::TokenBudget;
use ron_proto::passport::{
    ANCESTORS_MAX, PQ_TOKEN_BYTES_MAX, SKEW_S, TOKEN_BYTES_MAX, TTL_S_MAX, TokenAncestor,
};
use ron_proto::{Caveat, Tenant, b64, caveat};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::hybrid;
use crate::jwks::{JwksSnapshot, JwsAlg, PqRule, VerifyKey};
use crate::jws::Jws;
use crate::reject::AuthReject;
use crate::spending;

/// Maximum length of `iss`, `sub`, `jti` and `client_id`, in bytes.
const TEXT_BYTES_MAX: usize = 256;
/// Maximum audiences of a token.
const AUDIENCES_MAX: usize = 8;

/// The values that a token must match.
#[derive(Clone, Debug)]
pub struct Expect<'a> {
    /// One of these names is its `iss`.
    pub issuers: &'a [&'a str],
    /// This service's own name, for example `svc-wallet`.
    pub audience: &'a str,
    /// Unix seconds.
    pub now_s: u64,
}

/// The verified claims of a token.
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
    /// The key that signed it; for a hybrid the classical one.
    pub kid: String,
    /// The ML-DSA key of a hybrid.
    pub pq_kid: Option<String>,
    /// Thumbprint of the key that the user must prove possession of (RFC 9449). A caller that uses
    /// [`verify_jwt`] alone must check that proof itself, see [`crate::dpop`].
    pub jkt: Option<String>,
    /// Base64url of the SHA-256 of the client certificate that the user must present (RFC 8705);
    /// the caller must check it likewise.
    pub x5t: Option<String>,
    /// The tokens that it was exchanged from, the first one first.
    pub ancestors: Vec<Ancestor>,
    /// What it may spend; narrowing statements add to them.
    pub budgets: Vec<TokenBudget>,
}

/// A token that another was exchanged from.
#[derive(Clone, Debug, PartialEq)]
pub struct Ancestor {
    pub jti: String,
    /// Unix seconds.
    pub exp: u64,
    /// The keys that signed it.
    pub kids: Vec<String>,
    /// Its caveats that count.
    pub counted: Vec<Caveat>,
}

impl Claims {
    /// The time checks, which must be made on every use.
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

/// Verifies signature, header, `iss`, `aud`, times and shape. Epoch, revocation and caveats are
/// left to the caller, because they change during a token's life. [`JwksSnapshot::rule`] decides
/// which signatures must be valid.
pub fn verify_jwt(
    token: &str,
    keys: &JwksSnapshot,
    expect: &Expect<'_>,
) -> Result<Claims, AuthReject> {
    let parts = hybrid::split(token, keys.token_bytes_max())?;
    let signers = signers(token, &parts, keys)?;
    let claims = read_claims(&parts[0], signers, expect)?;
    if keys.rule() == PqRule::Require && !claims.post_quantum(keys) && !claims.fallback() {
        return Err(AuthReject::PostQuantum);
    }
    claims.check_time(expect.now_s)?;
    Ok(claims)
}

/// The keys that signed a token.
struct Signers {
    kid: String,
    pq_kid: Option<String>,
}

/// Checks the signatures under the rule.
fn signers(token: &str, parts: &[Jws<'_>], keys: &JwksSnapshot) -> Result<Signers, AuthReject> {
    let good = |(jws, (kid, alg)): (&Jws<'_>, &(String, JwsAlg))| {
        let key = keys.find(kid).ok_or(AuthReject::UnknownKid)?;
        jws.verified_by(key, *alg)
    };
    let headers: Vec<(String, JwsAlg)> = parts.iter().map(read_header).collect::<Result<_, _>>()?;
    let signed = |n: usize| good((&parts[n], &headers[n]));
    let rule = keys.rule();
    if let [(kid, alg)] = headers.as_slice() {
        if !alg.post_quantum() && token.len() > TOKEN_BYTES_MAX {
            return Err(AuthReject::Oversize);
        }
        if rule == PqRule::PqOnly && !alg.post_quantum() {
            return Err(AuthReject::PostQuantum);
        }
        signed(0)?;
        return Ok(Signers {
            kid: kid.clone(),
            pq_kid: None,
        });
    }
    // Exactly one of each kind: otherwise two classical signatures would pass for a hybrid.
    let (classical, pq) = match (headers[0].1.post_quantum(), headers[1].1.post_quantum()) {
        (false, true) => (0, 1),
        (true, false) => (1, 0),
        _ => return Err(AuthReject::Alg),
    };
    match rule {
        PqRule::Off => return Err(AuthReject::Alg),
        PqRule::Or => signed(classical).or_else(|_| signed(pq))?,
        PqRule::And | PqRule::Require => signed(classical).and_then(|()| signed(pq))?,
        PqRule::PqOnly => signed(pq)?,
    }
    Ok(Signers {
        kid: headers[classical].0.clone(),
        pq_kid: Some(headers[pq].0.clone()),
    })
}

impl Claims {
    /// Whether an ML-DSA key signed it.
    fn post_quantum(&self, keys: &JwksSnapshot) -> bool {
        let single = || {
            keys.find(&self.kid)
                .is_some_and(|key| matches!(key, VerifyKey::MlDsa(..)))
        };
        self.pq_kid.is_some() || single()
    }

    /// Whether the issuer states that it would have signed with ML-DSA but could not.
    fn fallback(&self) -> bool {
        self.caveats.contains(&Caveat::PqFallback(true))
    }
}

/// The unverified `kid` of a token with a well-formed header, to decide whether a refresh could
/// help.
pub fn unverified_kid(token: &str) -> Option<String> {
    let parts = hybrid::split(token, PQ_TOKEN_BYTES_MAX).ok()?;
    let (kid, _) = read_header(parts.first()?).ok()?;
    Some(kid)
}

/// Exactly `alg`, `kid` and `typ`. Any other member (`crit`, `b64`, `jwk`, `jku`, `x5u`, `zip`,
/// ...) would change how the token must be read, so it is refused and not ignored.
fn read_header(jws: &Jws<'_>) -> Result<(String, JwsAlg), AuthReject> {
    let header = jws.header(&["alg", "kid", "typ"])?;
    let text = |name: &str| header.get(name).and_then(Value::as_str);
    let alg = text("alg").and_then(JwsAlg::parse).ok_or(AuthReject::Alg)?;
    // RFC 9068 allows the media type with or without `application/`, in any case.
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
    #[serde(default)]
    ron_from: Vec<TokenAncestor>,
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

fn read_claims(jws: &Jws<'_>, signers: Signers, expect: &Expect<'_>) -> Result<Claims, AuthReject> {
    let raw: RawClaims =
        serde_json::from_value(Value::Object(jws.claims()?)).map_err(|_| AuthReject::Claims)?;
    if !expect.issuers.contains(&raw.iss.as_str()) {
        return Err(AuthReject::Issuer);
    }
    if !raw.aud.holds(expect.audience) {
        return Err(AuthReject::Audience);
    }
    let bound = raw.cnf.as_ref().map(confirmation).transpose()?;
    let (jkt, x5t) = bound.unwrap_or_default();
    let texts = [Some(&raw.sub), Some(&raw.jti), raw.client_id.as_ref()];
    if texts
        .into_iter()
        .flatten()
        .any(|text| text.is_empty() || text.len() > TEXT_BYTES_MAX)
    {
        return Err(AuthReject::Claims);
    }
    // The issuer never exceeds the maximum lifetime, and revocations are kept for that long.
    if raw.exp <= raw.iat || raw.exp - raw.iat > TTL_S_MAX {
        return Err(AuthReject::Claims);
    }
    let caveats = read_caveats(&raw.authorization_details)?;
    let ancestors = read_ancestors(raw.ron_from)?;
    let budgets = budgets(&raw.jti, &caveats, raw.exp, &ancestors);
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
        kid: signers.kid,
        pq_kid: signers.pq_kid,
        jkt,
        x5t,
        ancestors,
        budgets,
    })
}

/// The budgets of a token and of those that it was exchanged from.
fn budgets(jti: &str, caveats: &[Caveat], exp_s: u64, ancestors: &[Ancestor]) -> Vec<TokenBudget> {
    let before = ancestors
        .iter()
        .filter_map(|one| spending::budget(&one.jti, &one.counted, one.exp));
    before
        .chain(spending::budget(jti, caveats, exp_s))
        .collect()
}

fn read_ancestors(line: Vec<TokenAncestor>) -> Result<Vec<Ancestor>, AuthReject> {
    if line.len() > ANCESTORS_MAX {
        return Err(AuthReject::Claims);
    }
    let read = |one: TokenAncestor| {
        if one.jti.is_empty() || one.jti.len() > TEXT_BYTES_MAX {
            return Err(AuthReject::Claims);
        }
        let counted = one.counted.iter().map(|text| text.parse());
        Ok(Ancestor {
            jti: one.jti,
            exp: one.exp,
            kids: one.kids,
            counted: counted
                .collect::<Result<_, _>>()
                .map_err(|_| AuthReject::CaveatUnsupported)?,
        })
    };
    line.into_iter().map(read).collect()
}

/// A DPoP key, a certificate, or both, and nothing else: a binding of an unknown kind could not be
/// checked.
fn confirmation(cnf: &Value) -> Result<(Option<String>, Option<String>), AuthReject> {
    let members = cnf.as_object().map_or(0, Map::len);
    let hash = |name: &str| -> Result<Option<String>, AuthReject> {
        let Some(value) = cnf.get(name) else {
            return Ok(None);
        };
        let text = value.as_str().ok_or(AuthReject::Binding)?;
        b64::from_url_array::<32>(text).map_err(|_| AuthReject::Binding)?;
        Ok(Some(text.to_owned()))
    };
    let found = (hash("jkt")?, hash("x5t#S256")?);
    let known = usize::from(found.0.is_some()) + usize::from(found.1.is_some());
    if known == 0 || known != members {
        return Err(AuthReject::Binding);
    }
    Ok(found)
}

/// Reads `{"type": "ron", "caveats": ["key=value", ...]}` and `{"type": "ron", key: value, ...}`.
/// An unknown member may be a limit, so it refuses the token.
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
