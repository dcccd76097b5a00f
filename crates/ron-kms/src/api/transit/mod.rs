//! `/v1/transit/...`: the part of HashiCorp Vault's Transit API that its clients use, over the same
//! keys, rights, limits and audit log. `docs/vault-transit.md` lists what works and what does not.
//!
//! `vault.mount` serves these routes elsewhere. Their names remain those of the default mount, and only the names are compared
//! here, in rights and by [`VaultTokens`].
//!
//! A key named `N` in this API is the key of the caller's tenant with purpose `transit.N`; so a credential limited to
//! `tenant/transit.N/` sees only that key. Requests become jobs of the native API, and their answers are converted
//! into Vault's format before they are sent ([`Responder::map`]).
//!
//! ```text
//! vault:v3:<base64 of nonce | ciphertext | tag>      the native ciphertext without its header
//! vault:v3:<base64 of signature or MAC>
//! ```

mod backup;
mod crypt;
mod form;
mod import;
mod keys;
mod sign;
mod token;
mod tools;

use std::sync::Arc;
use std::time::Duration;

use ron_custody::index::{Key, KeyIndex};
use ron_custody::rights::may_use;
use ron_custody::{Cause, Refusal};
use ron_http::{Body, Method, Need, Principal, Request, Responder, Response, Route};
use ron_proto::values::{Alias, Kid, OpId, Purpose};
use schemars::JsonSchema;
use serde_json::Value;

use super::which_op::makes_key;
use super::{Action, call_context, may_do_at, peer_of};
use crate::errors::problem;
use crate::vault_mount::VaultMount;
use crate::work::{Kms, Purposes, StoreJob};

pub use token::VaultTokens;

/// Prefixes of the purposes of the keys that this API sees: names as they are, and names with upper case, in which `_` stands
/// before a letter in place of its upper case, and `__` for itself. A purpose has no upper case.
const PLAIN: &str = "transit.";
const MIXED: &str = "transit-.";
/// Why keys never encrypt convergently.
const CONVERGENT: &str = "convergent_encryption is not offered, because it would use nonces again: leave it and nonce out";
const ERRORS: &[u16] = &[400, 403, 404, 413, 415, 429, 500, 503, 504];

/// The routes of this API.
pub fn routes(kms: &Arc<Kms>) -> Vec<Route> {
    let mut routes = Vec::new();
    routes.extend(keys::routes(kms));
    routes.extend(backup::routes(kms));
    routes.extend(crypt::routes(kms));
    routes.extend(import::routes(kms));
    routes.extend(sign::routes(kms));
    routes.extend(tools::routes(kms));
    let to = kms.settings.load().keys.vault_mount.path();
    let moved = |route: Route| route.moved(VaultMount::DEFAULT_PATH, &to);
    routes.into_iter().map(moved).collect()
}

/// The same under POST and PUT, which Vault does not tell apart, with a body of this type.
fn writes<T: JsonSchema>(
    kms: &Arc<Kms>,
    path: &'static str,
    scope: &'static str,
    summary: &'static str,
    handler: fn(&Kms, &Request) -> Result<Action, Refusal>,
) -> [Route; 2] {
    [Method::POST, Method::PUT].map(|method| {
        route(kms, (method, path), scope, handler)
            .summary(summary)
            .body::<T>()
    })
}

/// A route of one handler; problems and key documents are converted into Vault's format.
fn route(
    kms: &Arc<Kms>,
    at: (Method, &'static str),
    scope: &'static str,
    handler: fn(&Kms, &Request) -> Result<Action, Refusal>,
) -> Route {
    route_shown(kms, at, scope, handler, keys::show_changed)
}

/// Converts an answer of the store thread into Vault's format; the text is the name in the path.
type Show = fn(&Kms, &str, Response) -> Response;

/// As [`route`], with another conversion of the store thread's answer.
fn route_shown(
    kms: &Arc<Kms>,
    (method, path): (Method, &'static str),
    scope: &'static str,
    handler: fn(&Kms, &Request) -> Result<Action, Refusal>,
    show: Show,
) -> Route {
    let kms = kms.clone();
    // A key that is made has its name from then on, not before.
    let makes_key = makes_key(method, path);
    let handle = move |request: Request, responder: Responder| {
        let wait = wait(&request);
        if let Err(refusal) = may_do_at(&request) {
            return responder.send(problem(refusal));
        }
        match wait.and_then(|wait| Ok((wait, handler(&kms, &request)?))) {
            Ok((wait, action @ Action::Store(_))) => {
                let action = match named_by(&kms, &request) {
                    Some(alias) if !makes_key => action.named_by(alias),
                    _ => action,
                };
                let name = request.param_if_any("name").unwrap_or_default().to_owned();
                let shared = kms.clone();
                let shown = move |answer| show(&shared, &name, answer);
                let responder = responder.map(shown);
                action.perform(&kms, request, wait, responder);
            }
            Ok((wait, action)) => {
                let action = match named_by(&kms, &request) {
                    Some(alias) => action.named_by(alias),
                    None => action,
                };
                action.perform(&kms, request, wait, responder);
            }
            Err(refusal) => responder.send(problem(refusal)),
        }
    };
    let route = Route::new(method, path, Need::Scope(scope), handle);
    form::vaults(route.returns::<Value>(200), ERRORS)
}

/// As [`route`], for requests that make the key that they name when there is none and the caller may make keys.
fn upsert_route(
    kms: &Arc<Kms>,
    (method, path): (Method, &'static str),
    scope: &'static str,
    handler: fn(&Kms, &Request) -> Result<Action, Refusal>,
) -> Route {
    let kms = kms.clone();
    let handle = move |request: Request, responder: Responder| {
        let wait = match wait(&request) {
            Ok(wait) => wait,
            Err(refusal) => return responder.send(problem(refusal)),
        };
        if let Err(refusal) = may_do_at(&request) {
            return responder.send(problem(refusal));
        }
        let go_on =
            move |kms: &Kms, request: Request, responder: Responder| match handler(kms, &request) {
                Ok(action) => {
                    let action = match named_by(kms, &request) {
                        Some(alias) => action.named_by(alias),
                        None => action,
                    };
                    action.perform(kms, request, wait, responder);
                }
                Err(refusal) => responder.send(problem(refusal)),
            };
        let made = match keys::to_make(&kms, &request) {
            Ok(None) => return go_on(&kms, request, responder),
            Ok(Some(made)) => made,
            Err(refusal) => return responder.send(problem(refusal)),
        };
        let caller = request.principal.clone();
        let by = (peer_of(&request), request.deadline, caller);
        let shared = kms.clone();
        let next = move |answer: Response, responder: Responder| {
            if json_of(&answer).is_none() {
                return responder.send(answer);
            }
            go_on(&shared, request, responder);
        };
        let call = call_context(&kms, by, None, responder.then(next));
        kms.submit_store(StoreJob::Create(call, made, Purposes::Single));
    };
    let route = Route::new(method, path, Need::Scope(scope), handle);
    form::vaults(route.returns::<Value>(200), ERRORS)
}

/// What every request of this API is checked for, and how long it waits for the log's checkpoint.
fn wait(request: &Request) -> Result<Option<Duration>, Refusal> {
    namespace(request)?;
    // Vault answers with a token for the answer, which a client that asks for it expects in place of the content.
    if request.headers.contains("x-vault-wrap-ttl") {
        return Err(unsupported(
            "response wrapping is not offered: leave X-Vault-Wrap-TTL out",
        ));
    }
    request.wait().map_err(|problem| bad(problem.detail))
}

/// A namespace is the caller's tenant, or none.
fn namespace(request: &Request) -> Result<(), Refusal> {
    let named = request.headers.get("x-vault-namespace").unwrap_or_default();
    match named.trim_matches('/') {
        "" | "root" => Ok(()),
        name if name == request.principal.tenant.as_str() => Ok(()),
        _ => Err(Refusal::new(
            Cause::Forbidden,
            "the namespace of a caller is its tenant: leave X-Vault-Namespace out",
        )),
    }
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
    let text = if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        let escaped = name.chars().flat_map(|c| match c {
            'A'..='Z' => [Some('_'), Some(c.to_ascii_lowercase())],
            '_' => [Some('_'), Some('_')],
            _ => [Some(c), None],
        });
        escaped.flatten().fold(MIXED.to_owned(), |text, c| {
            text + c.encode_utf8(&mut [0; 4])
        })
    } else {
        format!("{PLAIN}{name}")
    };
    let purpose = text.parse().ok().filter(|_| !name.is_empty());
    purpose.ok_or_else(|| {
        bad("a key name is 1..=56 of A-Z a-z 0-9 . _ - here, and fewer with upper case: it becomes the purpose of a key")
    })
}

/// The name in this API of a key of this purpose; `None` for a purpose that [`purpose`] does not make.
fn name_of(purpose: &str) -> Option<String> {
    if let Some(name) = purpose.strip_prefix(PLAIN) {
        return Some(name.to_owned());
    }
    let mut name = String::new();
    let mut chars = purpose.strip_prefix(MIXED)?.chars();
    while let Some(c) = chars.next() {
        name.push(match c {
            '_' => match chars.next()? {
                '_' => '_',
                letter @ 'a'..='z' => letter.to_ascii_uppercase(),
                _ => return None,
            },
            other => other,
        });
    }
    name.bytes()
        .any(|byte| byte.is_ascii_uppercase())
        .then_some(name)
}

/// The names, in this API, of the keys that the caller may use, in order.
fn names(index: &KeyIndex, caller: &Principal) -> Vec<String> {
    let below = |prefix: &'static str| {
        let purpose = prefix.parse().expect("a constant, valid purpose");
        let keys = index.keys.range(Kid::first(&caller.tenant, purpose)..);
        keys.take_while(move |(kid, _)| {
            kid.tenant == caller.tenant && kid.purpose.as_str().starts_with(prefix)
        })
    };
    let mut names: Vec<String> = below(MIXED)
        .chain(below(PLAIN))
        .filter(|(kid, key)| key.state.is_kept() && may_use(caller, kid, Some(&key.labels)).is_ok())
        .filter_map(|(kid, _)| name_of(kid.purpose.as_str()))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The keys that are or were called `name` in this API, also those that were deleted.
fn called<'a>(
    index: &'a KeyIndex,
    caller: &'a Principal,
    name: &str,
) -> Result<impl Iterator<Item = &'a Arc<Key>>, Refusal> {
    let keys = index.of_purpose(&caller.tenant, purpose(name)?);
    Ok(keys.filter(|key| may_use(caller, &key.kid, Some(&key.labels)).is_ok()))
}

/// The key that is called `name` in this API: the oldest, if the native API was used to make several; otherwise the one with this
/// alias. One whose destruction is ordered is deleted to Vault's clients.
fn find(index: &KeyIndex, caller: &Principal, name: &str) -> Result<Arc<Key>, Refusal> {
    let none = || Refusal::new(Cause::NotFound, "there is no key of this name");
    if let Some(key) = find_own(index, caller, name)? {
        return Ok(key);
    }
    let kid = alias_of(name).and_then(|alias| index.named(&caller.tenant, &alias).ok());
    let key = kid.and_then(|kid| index.keys.get(kid));
    let usable = |key: &&Arc<Key>| {
        key.state.is_kept() && may_use(caller, &key.kid, Some(&key.labels)).is_ok()
    };
    key.filter(usable).cloned().ok_or_else(none)
}

/// The key that this API or another client made under `name`.
fn find_own(index: &KeyIndex, caller: &Principal, name: &str) -> Result<Option<Arc<Key>>, Refusal> {
    let keys = called(index, caller, name)?.filter(|key| key.state.is_kept());
    Ok(keys.min_by_key(|key| (key.created, key.kid.id)).cloned())
}

/// The alias that `name` is in this API.
fn alias_of(name: &str) -> Option<Alias> {
    name.parse().ok()
}

/// The alias by which a request names its key, where no key has that name itself.
fn named_by(kms: &Kms, request: &Request) -> Option<Alias> {
    let name = request.param_if_any("name")?;
    let own = find_own(&kms.index.load(), &request.principal, name);
    alias_of(name).filter(|_| matches!(own, Ok(None)))
}

/// As [`find`], for operations: for a missing key, Vault answers these with 400.
fn key_for_use(kms: &Kms, request: &Request) -> Result<Arc<Key>, Refusal> {
    let found = find(&kms.index.load(), &request.principal, request.param("name"));
    found.map_err(|refusal| match refusal.cause {
        Cause::NotFound => bad(refusal.detail),
        _ => refusal,
    })
}

/// An operation id for a request that is never sent again.
fn fresh(kms: &Kms) -> OpId {
    let mut random = [0; 16];
    kms.random.fill(&mut random);
    OpId::from_random(random)
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

/// Standard base64 with padding, as Vault reads it: the examples of its documentation end in bits that count for nothing.
fn base64(what: &str, text: &str) -> Result<Vec<u8>, Refusal> {
    let decoded = ron_proto::b64::from_std_with_trailing_bits(text);
    decoded.map_err(|_| bad(format!("failed to base64-decode {what}")))
}

/// Whether an option of Vault is given: clients also send empty texts.
fn given(text: Option<&String>) -> bool {
    text.is_some_and(|text| !text.is_empty())
}

/// The required version; 0 means none.
fn pinned(version: Option<u32>) -> Option<u32> {
    version.filter(|version| *version != 0)
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
        let check = |name: &str, want: &str| {
            let made = purpose(name).expect("good");
            assert_eq!(made.as_str(), want);
            assert_eq!(name_of(want).as_deref(), Some(name));
        };
        check("my-key", "transit.my-key");
        check("my_key", "transit.my_key");
        check("My-Key", "transit-._my-_key");
        check("A_b", "transit-._a__b");
        check("A__B", "transit-._a_____b");
        for bad in ["", "a/b", "a b", "\u{c4}", &"x".repeat(57), &"X".repeat(28)] {
            assert!(purpose(bad).is_err(), "{bad}");
        }
        for other in [
            "transit",
            "transit-.",
            "transit-.a",
            "transit-._",
            "transit-._1A",
            "transit-x",
        ] {
            assert_eq!(name_of(other), None, "{other}");
        }
    }
}
