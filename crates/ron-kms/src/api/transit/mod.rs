//! `/v1/transit/...`: the part of HashiCorp Vault's Transit API that its clients use, over the same
//! keys, rights, limits and audit log. `docs/vault-transit.md` lists what works and what does not.
//!
//! A key named `N` in this API is the key of the caller's tenant with purpose `transit.N`; so a credential limited to
//! `tenant/transit.N/` sees only that key. Requests become jobs of the native API, and their answers are converted
//! into Vault's format before they are sent ([`Responder::map`]).
//!
//! ```text
//! vault:v3:<base64 of nonce | ciphertext | tag>      the native ciphertext without its header
//! vault:v3:<base64 of signature or MAC>
//! ```

mod crypt;
mod der;
mod form;
mod keys;
mod sign;
mod token;

use std::sync::Arc;

use ron_custody::index::{Key, KeyIndex, may_use};
use ron_custody::{Cause, Refusal};
use ron_http::{Body, Method, Need, Principal, Request, Responder, Response, Route};
use ron_proto::values::{Alg, Kid, Purpose};
use serde_json::{Value, json};
use uuid::Uuid;

use super::Action;
use crate::errors::problem;
use crate::work::Kms;

pub use token::VaultTokens;

/// Prefix of the purposes of the keys that this API sees.
const PURPOSE: &str = "transit.";
const ERRORS: &[u16] = &[400, 403, 404, 413, 415, 429, 500, 503, 504];

/// The routes of this API.
pub fn routes(kms: &Arc<Kms>) -> Vec<Route> {
    let mut routes = Vec::new();
    routes.extend(keys::routes(kms));
    routes.extend(crypt::routes(kms));
    routes.extend(sign::routes(kms));
    routes.push(
        Route::get("/v1/auth/token/lookup-self", Need::Identity, |request| {
            Ok(whoami(&request.principal))
        })
        .summary(
            "Vault: the identity of the token; clients call it to check whether they are logged in",
        )
        .returns::<Value>(200)
        .errors(ERRORS),
    );
    routes
}

/// A route of one handler; problems and key documents are converted into Vault's format.
fn route(
    kms: &Arc<Kms>,
    (method, path): (Method, &'static str),
    scope: &'static str,
    handler: fn(&Kms, &Request) -> Result<Action, Refusal>,
) -> Route {
    let kms = kms.clone();
    let handle = move |request: Request, responder: Responder| {
        let responder = responder.map(form::errors_only);
        let wait = request.wait().map_err(|problem| bad(problem.detail));
        match wait.and_then(|wait| Ok((wait, handler(&kms, &request)?))) {
            // The store thread answers with key documents.
            Ok((wait, action @ Action::Store(_))) => {
                let (name, shared) = (request.param("name").to_owned(), kms.clone());
                let shown = move |answer| keys::show_changed(&shared, &name, answer);
                let responder = responder.map(shown);
                action.perform(&kms, request, wait, responder);
            }
            Ok((wait, action)) => action.perform(&kms, request, wait, responder),
            Err(refusal) => responder.send(problem(refusal)),
        }
    };
    let route = Route::new(method, path, Need::Scope(scope), handle);
    form::refuses(route.returns::<Value>(200), ERRORS)
}

/// Parses the body. An empty body counts as `{}`: Vault's clients send none when there are no parameters.
fn body<T: serde::de::DeserializeOwned>(request: &Request) -> Result<T, Refusal> {
    let text: &[u8] = if request.body.is_empty() {
        b"{}"
    } else {
        &request.body
    };
    ron_proto::strict::from_slice(text)
        .map_err(|e| Refusal::new(Cause::BadRequest, format!("{e}; see docs/vault-transit.md")))
}

fn bad(detail: impl Into<String>) -> Refusal {
    Refusal::new(Cause::BadRequest, detail)
}

fn unsupported(detail: impl Into<String>) -> Refusal {
    Refusal::new(Cause::Unsupported, detail)
}

/// The native purpose of the key that is called `name` in this API.
fn purpose(name: &str) -> Result<Purpose, Refusal> {
    let purpose = format!("{PURPOSE}{name}").parse();
    let purpose = purpose.ok().filter(|_| !name.is_empty());
    purpose.ok_or_else(|| {
        bad("a key name is 1..=56 of a-z 0-9 . _ - here: it becomes the purpose of a key")
    })
}

/// The smallest name that a key of this purpose can have, the start of a range scan.
fn first(caller: &Principal, purpose: Purpose) -> Kid {
    Kid {
        tenant: caller.tenant.clone(),
        purpose,
        alg: Alg::ALL[0],
        id: Uuid::nil(),
    }
}

/// The names, in this API, of the keys that the caller may use, in order.
fn names(index: &KeyIndex, caller: &Principal) -> Vec<String> {
    let from = first(caller, PURPOSE.parse().expect("a constant, valid purpose"));
    let mut names: Vec<String> = index
        .keys
        .range(from..)
        .take_while(|(kid, _)| kid.tenant == caller.tenant)
        .map_while(|(kid, _)| Some((kid.purpose.as_str().strip_prefix(PURPOSE)?, kid)))
        .filter(|(_, kid)| may_use(caller, kid).is_ok())
        .map(|(name, _)| name.to_owned())
        .collect();
    names.dedup();
    names
}

/// The key that is called `name` in this API: the oldest, if the native API was used to make several.
fn find(index: &KeyIndex, caller: &Principal, name: &str) -> Result<Arc<Key>, Refusal> {
    let purpose = purpose(name)?;
    let from = first(caller, purpose.clone());
    index
        .keys
        .range(from..)
        .take_while(|(kid, _)| kid.tenant == caller.tenant && kid.purpose == purpose)
        .filter(|(kid, _)| may_use(caller, kid).is_ok())
        .map(|(_, key)| key)
        .min_by_key(|key| (key.created, key.kid.id))
        .cloned()
        .ok_or_else(|| Refusal::new(Cause::NotFound, "there is no key of this name"))
}

/// As [`find`], for operations: for a missing key, Vault answers these with 400.
fn key_for_use(kms: &Kms, request: &Request) -> Result<Arc<Key>, Refusal> {
    let found = find(&kms.index.load(), &request.principal, request.param("name"));
    found.map_err(|refusal| match refusal.cause {
        Cause::NotFound => bad(refusal.detail),
        _ => refusal,
    })
}

/// `vault:vN:` and base64.
fn tagged(version: u32, raw: &[u8]) -> String {
    format!("vault:v{version}:{}", ron_proto::b64::std(raw))
}

/// Version and bytes of `vault:vN:<base64>`.
fn untagged(what: &str, text: &str) -> Result<(u32, Vec<u8>), Refusal> {
    let refuse = || {
        bad(format!(
            "invalid {what}: it must be vault:vN: followed by base64"
        ))
    };
    let (version, raw) = text
        .strip_prefix("vault:v")
        .and_then(|rest| rest.split_once(':'))
        .ok_or_else(refuse)?;
    let plain = !version.starts_with('0') && version.bytes().all(|b| b.is_ascii_digit());
    let version: u32 = version.parse().ok().filter(|_| plain).ok_or_else(refuse)?;
    Ok((
        version,
        ron_proto::b64::from_std(raw).map_err(|_| refuse())?,
    ))
}

/// Standard base64 with padding.
fn base64(what: &str, text: &str) -> Result<Vec<u8>, Refusal> {
    ron_proto::b64::from_std(text).map_err(|_| bad(format!("failed to base64-decode {what}")))
}

/// Whether an option of Vault is given: clients also send empty texts.
fn given(text: Option<&String>) -> bool {
    text.is_some_and(|text| !text.is_empty())
}

/// The required version; 0 means none.
fn pinned(version: Option<u32>) -> Option<u32> {
    version.filter(|version| *version != 0)
}

fn whoami(caller: &Principal) -> Response {
    form::data(&json!({
        "display_name": caller.name,
        "entity_id": "",
        "explicit_max_ttl": 0,
        "id": "",
        "meta": { "tenant": caller.tenant.as_str() },
        "num_uses": 0,
        "orphan": true,
        "path": "auth/token/lookup-self",
        "policies": caller.scopes.to_vec(),
        "renewable": false,
        "ttl": 0,
        "type": "service",
    }))
}

/// The JSON of an answer of the native API; `None` for problems and for other content.
fn json_of(response: &Response) -> Option<Value> {
    match &response.body {
        Body::Problem(_) => None,
        body if response.status < 300 => serde_json::from_slice(body.as_bytes()).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_strict() {
        let check = |text: &str, want: Option<(u32, &[u8])>| {
            let got = untagged("ciphertext", text).ok();
            assert_eq!(
                got.as_ref().map(|(v, raw)| (*v, raw.as_slice())),
                want,
                "{text}"
            );
        };
        check("vault:v1:AQI=", Some((1, &[1, 2])));
        check("vault:v12:", Some((12, &[])));
        check("vault:v0:AQI=", None);
        check("vault:v01:AQI=", None);
        check("vault:v+1:AQI=", None);
        check("vault:v1:AQI", None);
        check("vault:1:AQI=", None);
        check("v1:AQI=", None);
        check("vault:v4294967296:AQI=", None);
        assert_eq!(tagged(3, &[1, 2]), "vault:v3:AQI=");
    }

    #[test]
    fn names_become_purposes() {
        assert_eq!(purpose("my-key").expect("good").as_str(), "transit.my-key");
        for bad in ["", "My-Key", "a/b", "a b", &"x".repeat(57)] {
            assert!(purpose(bad).is_err(), "{bad}");
        }
    }
}
