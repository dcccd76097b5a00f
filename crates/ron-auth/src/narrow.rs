//! Offline attenuation: the holder of a bound token signs a statement that narrows it and hands
//! both to a party with fewer rights, without contacting the issuer. Pure.
//!
//! A presented token is `token~statement~statement...`. Each statement is a JWS by the key to which
//! the preceding part is bound, with `parent` (the hash of the preceding part), `iat` and any of
//! `scope` (a subset of the scopes), `caveats` (additional ones), `exp` (earlier) and `jkt` (the
//! next holder). An unknown member refuses the whole token. The final holder proves the last key
//! with DPoP.
//!
//! **Invariant:** the rights of a chain are a subset of the rights of each of its prefixes.

use ron_proto::passport::SKEW_S;
use ron_proto::{Caveat, caveat};
use serde_json::{Value, json};

use crate::dpop::token_hash;
use crate::jws::{Holder, self_signed};
use crate::jwt::Claims;
use crate::reject::AuthReject;
use crate::spending;

/// Separates a token from its statements.
pub const SEPARATOR: char = '~';
/// Header `typ` of a statement.
pub const STATEMENT_TYP: &str = "ron-narrow+jwt";
/// Maximum statements on one token.
pub const STATEMENTS_MAX: usize = 8;

/// The restrictions of a statement; the default restricts nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Narrow {
    /// Keep only these scopes.
    pub scope: Option<String>,
    pub caveats: Vec<Caveat>,
    /// Expire at this time (Unix seconds).
    pub exp: Option<u64>,
    /// Bind to this key instead: only its holder can use or narrow the result.
    pub jkt: Option<String>,
}

/// Narrows a presented token. Verifiers refuse the result unless the token is bound to the key of
/// `holder`.
pub fn attenuate(presented: &str, holder: &Holder, narrow: &Narrow, iat: u64) -> String {
    let mut claims = json!({ "parent": token_hash(presented), "iat": iat });
    if let Some(scope) = &narrow.scope {
        claims["scope"] = scope.as_str().into();
    }
    if !narrow.caveats.is_empty() {
        let texts: Vec<String> = narrow.caveats.iter().map(ToString::to_string).collect();
        claims["caveats"] = texts.into();
    }
    if let Some(exp) = narrow.exp {
        claims["exp"] = exp.into();
    }
    if let Some(jkt) = &narrow.jkt {
        claims["jkt"] = jkt.as_str().into();
    }
    format!(
        "{presented}{SEPARATOR}{}",
        holder.sign(STATEMENT_TYP, &claims)
    )
}

/// The issuer's token at the start of a presented one.
pub fn root(presented: &str) -> &str {
    presented.split(SEPARATOR).next().unwrap_or_default()
}

/// Applies the statements of `presented` to the claims of its root.
pub fn apply(presented: &str, mut claims: Claims, now_s: u64) -> Result<Claims, AuthReject> {
    let mut end = root(presented).len();
    let mut count = 0;
    while end < presented.len() {
        let rest = &presented[end + SEPARATOR.len_utf8()..];
        let statement = rest.split(SEPARATOR).next().unwrap_or_default();
        count += 1;
        if count > STATEMENTS_MAX {
            return Err(AuthReject::Narrowing);
        }
        apply_statement(&presented[..end], statement, &mut claims, now_s)?;
        end += SEPARATOR.len_utf8() + statement.len();
    }
    Ok(claims)
}

fn apply_statement(
    before: &str,
    statement: &str,
    claims: &mut Claims,
    now_s: u64,
) -> Result<(), AuthReject> {
    let refuse = AuthReject::Narrowing;
    let (signer, members) =
        self_signed(statement, STATEMENT_TYP, statement.len()).map_err(|_| refuse)?;
    if claims.jkt.as_deref() != Some(signer.as_str()) {
        return Err(refuse);
    }
    let parent = token_hash(before);
    let mut bound = false;
    let mut dated = false;
    let mut added = Vec::new();
    for (name, value) in &members {
        match (name.as_str(), value) {
            ("parent", Value::String(hash)) if *hash == parent => bound = true,
            ("iat", value) => {
                let iat = value.as_u64().ok_or(refuse)?;
                if iat > now_s.saturating_add(SKEW_S) {
                    return Err(AuthReject::NotYet);
                }
                dated = true;
            }
            ("exp", value) => {
                let exp = value.as_u64().ok_or(refuse)?;
                if exp > claims.exp {
                    return Err(refuse);
                }
                claims.exp = exp;
            }
            ("scope", Value::String(scope)) => {
                claims.scopes = narrow_scopes(&claims.scopes, scope)?;
            }
            ("caveats", Value::Array(list)) => added = add_caveats(&mut claims.caveats, list)?,
            ("jkt", Value::String(jkt)) if ron_proto::b64::from_url_array::<32>(jkt).is_ok() => {
                claims.jkt = Some(jkt.clone());
            }
            _ => return Err(refuse),
        }
    }
    // A budget of its own: what the giver spends besides does not count against it.
    let name = token_hash(&format!("{before}{SEPARATOR}{statement}"));
    let own = spending::budget(&name, &added, claims.exp);
    claims.budgets.extend(own);
    if bound && dated { Ok(()) } else { Err(refuse) }
}

/// The requested scopes, all of which must be held.
fn narrow_scopes(held: &[String], scope: &str) -> Result<Vec<String>, AuthReject> {
    let asked: Vec<String> = scope
        .split(' ')
        .filter(|s| !s.is_empty())
        .map(str::to_owned)
        .collect();
    if asked.iter().all(|s| held.contains(s)) {
        Ok(asked)
    } else {
        Err(AuthReject::Narrowing)
    }
}

/// Adds the caveats of a statement and returns them.
fn add_caveats(caveats: &mut Vec<Caveat>, list: &[Value]) -> Result<Vec<Caveat>, AuthReject> {
    let before = caveats.len();
    for item in list {
        let text = item.as_str().ok_or(AuthReject::Narrowing)?;
        let caveat: Caveat = text.parse().map_err(|_| AuthReject::CaveatUnsupported)?;
        if caveat.issuer_only() {
            return Err(AuthReject::Narrowing);
        }
        caveats.push(caveat);
    }
    if caveats.len() > caveat::MAX_CAVEATS {
        return Err(AuthReject::CaveatUnsupported);
    }
    Ok(caveats[before..].to_vec())
}

#[cfg(test)]
#[path = "narrow_tests.rs"]
mod tests;
