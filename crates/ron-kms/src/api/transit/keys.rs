//! `keys`: create, list, read, rotate, configure.

use std::sync::Arc;

use ron_crypto::hash::sha256;
use ron_custody::index::Key;
use ron_custody::{Cause, Refusal};
use ron_http::{Method, Request, Response, Route};
use ron_proto::kms::transit::{Configure, Create, Period};
use ron_proto::kms::{CreateKey, RotateRequest, UpdateKey};
use ron_proto::problem::Problem;
use ron_proto::scope;
use ron_proto::values::{Alg, Kid, OpId};
use serde_json::{Map, Value, json};

use super::{bad, body, find, form, json_of, key_for_use, names, purpose, route, unsupported};
use crate::api::Action;
use crate::work::key_request::KeyRequest;
use crate::work::{Kms, StoreJob};

/// Maximum versions in an answer, which Vault's format does not page.
const SHOWN_MAX: usize = 500;

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> Vec<Route> {
    const KEYS: &str = "/v1/transit/keys";
    const KEY: &str = "/v1/transit/keys/{name}";
    vec![
        route(kms, (Method::GET, KEYS), scope::KMS_READ, list)
            .query("list", true, "true")
            .summary("Vault: names of the keys; also under the method LIST"),
        route(kms, (Method::LIST, KEYS), scope::KMS_READ, list),
        route(kms, (Method::GET, KEY), scope::KMS_READ, read_key)
            .summary("Vault: a key and its public halves"),
        route(kms, (Method::POST, KEY), scope::KMS_CREATE, create)
            .summary("Vault: make a key; an existing key stays unchanged")
            .body::<Create>(),
        route(
            kms,
            (Method::POST, "/v1/transit/keys/{name}/rotate"),
            scope::KMS_ROTATE,
            rotate,
        )
        .summary("Vault: make a new version"),
        route(
            kms,
            (Method::POST, "/v1/transit/keys/{name}/config"),
            scope::KMS_ADMIN,
            configure,
        )
        .summary("Vault: minimum version and automatic rotation")
        .body::<Configure>(),
    ]
}

fn list(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let names = names(&kms.index.load(), &request.principal);
    if names.is_empty() {
        return Err(Refusal::new(Cause::NotFound, "there are no keys"));
    }
    Ok(Action::Respond(form::data(&json!({ "keys": names }))))
}

fn read_key(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let key = find(&kms.index.load(), &request.principal, request.param("name"))?;
    Ok(answer(request, &key))
}

/// The key as it is.
fn answer(request: &Request, key: &Key) -> Action {
    Action::Respond(form::data(&shown(request.param("name"), key)))
}

/// The native algorithm of a Vault key type.
fn alg_of(request: &Create) -> Result<Alg, Refusal> {
    let set = request
        .parameter_set
        .as_deref()
        .filter(|set| !set.is_empty());
    let alg = match request.kind.as_deref() {
        None | Some("" | "aes256-gcm96") => Alg::Aes256Gcm,
        Some("ed25519") => Alg::Ed25519,
        Some("ecdsa-p256") => Alg::EcdsaP256,
        Some("hmac") => Alg::HmacSha256,
        Some("ml-dsa") => match set {
            Some("44") => Alg::MlDsa44,
            None | Some("65") => Alg::MlDsa65,
            Some("87") => Alg::MlDsa87,
            Some(_) => return Err(bad("parameter_set must be 44, 65 or 87")),
        },
        Some(_) => {
            return Err(unsupported(
                "offered types are aes256-gcm96, ed25519, ecdsa-p256, ml-dsa and hmac",
            ));
        }
    };
    if request.key_size.is_some_and(|size| size != 0 && size != 32) {
        return Err(unsupported("key_size: keys of type hmac have 32 bytes"));
    }
    Ok(alg)
}

/// Converts a period of Vault (seconds or Go's `24h`) into the native format; `never` for 0.
fn period(given: &Period) -> Result<String, Refusal> {
    let refuse = || bad("auto_rotate_period must be a whole number with unit s, m, h or d, or 0");
    match given {
        Period::Seconds(0) => Ok("never".to_owned()),
        Period::Seconds(seconds) => Ok(format!("{seconds}s")),
        Period::Text(text) => {
            let digits = text.trim_end_matches(['s', 'm', 'h', 'd']);
            let number: u64 = digits.parse().map_err(|_| refuse())?;
            match (number, &text[digits.len()..]) {
                (0, _) => Ok("never".to_owned()),
                (n, "") => Ok(format!("{n}s")),
                (n, unit @ ("s" | "m" | "h" | "d")) => Ok(format!("{n}{unit}")),
                _ => Err(refuse()),
            }
        }
    }
}

fn create(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let name = request.param("name");
    let wanted: Create = body(request)?;
    let yes = |flag: Option<bool>| flag == Some(true);
    if yes(wanted.derived) || yes(wanted.convergent_encryption) {
        return Err(unsupported(
            "derived keys and convergent encryption are not offered",
        ));
    }
    if yes(wanted.exportable) || yes(wanted.allow_plaintext_backup) {
        return Err(unsupported(
            "keys are never exported in plaintext; see the native API for wrapped export",
        ));
    }
    let alg = alg_of(&wanted)?;
    match find(&kms.index.load(), &request.principal, name) {
        Ok(key) => return Ok(answer(request, &key)),
        Err(refusal) if refusal.cause == Cause::NotFound => {}
        Err(refusal) => return Err(refusal),
    }
    let tenant = request.principal.tenant.clone();
    let mut body = json!({
        "tenant": tenant,
        "purpose": purpose(name)?,
        "alg": alg,
        "op_id": op_id(tenant.as_str(), name),
    });
    if let Some(period_given) = &wanted.auto_rotate_period {
        body["rotate_every"] = period(period_given)?.into();
    }
    let body: CreateKey =
        serde_json::from_value(body).map_err(|e| bad(format!("auto_rotate_period: {e}")))?;
    Ok(Action::store(|call| StoreJob::Create(call, Box::new(body))))
}

/// One operation id per name, so that two concurrent requests for the same name make one key.
fn op_id(tenant: &str, name: &str) -> OpId {
    let hash = sha256(format!("ron-kms/v1/transit\0{tenant}\0{name}").as_bytes());
    OpId::from_random(hash[..16].try_into().expect("16 of 32 bytes"))
}

/// The key that a native answer is about, alone or inside the answer of a change, in Vault's format.
pub fn show_changed(kms: &Kms, name: &str, response: Response) -> Response {
    let Some(value) = json_of(&response) else {
        return response;
    };
    let document = value.get("document").unwrap_or(&value);
    let kid = document["key"].as_str().map(str::parse::<Kid>);
    let index = kms.index.load();
    match kid.and_then(|kid| index.keys.get(&kid.ok()?)) {
        Some(key) => form::data(&shown(name, key)),
        None => Problem::internal("the key document is not readable").into(),
    }
}

fn rotate(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let kid = key_for_use(kms, request)?.kid.clone();
    let rotate = KeyRequest::Rotate(RotateRequest::default());
    Ok(Action::store(|call| StoreJob::Change(call, kid, rotate)))
}

fn configure(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let key = key_for_use(kms, request)?;
    let Some(update) = update(&key, request)? else {
        return Ok(answer(request, &key));
    };
    let (kid, update) = (key.kid.clone(), KeyRequest::Update(update));
    Ok(Action::store(|call| StoreJob::Change(call, kid, update)))
}

/// The update that a configuration asks for; `None` when it changes nothing.
fn update(key: &Key, request: &Request) -> Result<Option<UpdateKey>, Refusal> {
    let wanted: Configure = body(request)?;
    let yes = |flag: Option<bool>| flag == Some(true);
    if yes(wanted.deletion_allowed) || yes(wanted.exportable) || yes(wanted.allow_plaintext_backup)
    {
        return Err(unsupported(
            "deletion_allowed, exportable and allow_plaintext_backup stay false here; the native API destroys and exports",
        ));
    }
    let head = key.head().number;
    if wanted
        .min_encryption_version
        .is_some_and(|v| v != 0 && v != head)
    {
        return Err(unsupported(
            "min_encryption_version: only the newest version encrypts and signs here",
        ));
    }
    let mut update = UpdateKey {
        min_verify_version: wanted.min_decryption_version.filter(|v| *v != 0),
        ..UpdateKey::default()
    };
    if let Some(given) = &wanted.auto_rotate_period {
        let every = serde_json::from_value(period(given)?.into());
        update.rotate_every = Some(every.map_err(|e| bad(format!("auto_rotate_period: {e}")))?);
    }
    Ok((update != UpdateKey::default()).then_some(update))
}

/// The Vault key type of a native algorithm.
fn kind_of(alg: Alg) -> &'static str {
    match alg {
        Alg::Aes256Gcm => "aes256-gcm96",
        Alg::HmacSha256 => "hmac",
        Alg::MlDsa44 | Alg::MlDsa65 | Alg::MlDsa87 => "ml-dsa",
        other => other.as_str(),
    }
}

/// A key in Vault's format, with the versions that verify or decrypt, as Vault shows them: the newest `SHOWN_MAX`.
fn shown(name: &str, key: &Key) -> Value {
    let alg = key.kid.alg;
    let mut versions = Map::new();
    let below = (key.versions.len().saturating_sub(SHOWN_MAX)).max(key.min_verify as usize - 1);
    for version in &key.versions[below..] {
        let (created, public) = (version.created, &version.public);
        let entry = match alg {
            _ if public.raw().is_empty() => json!(created.0 / 1000),
            Alg::EcdsaP256 => json!({
                "creation_time": created, "name": "P-256", "public_key": public.pem(),
            }),
            _ => json!({
                "creation_time": created, "name": kind_of(alg),
                "public_key": ron_proto::b64::std(public.raw()),
            }),
        };
        versions.insert(version.number.to_string(), entry);
    }
    json!({
        "name": name,
        "type": kind_of(alg),
        "keys": versions,
        "latest_version": key.head,
        "min_available_version": 0,
        "min_decryption_version": key.min_verify,
        "min_encryption_version": 0,
        "deletion_allowed": false,
        "derived": false,
        "exportable": false,
        "allow_plaintext_backup": false,
        "imported_key": false,
        "supports_encryption": alg.wraps(),
        "supports_decryption": alg.wraps(),
        "supports_signing": alg.signs(),
        "supports_derivation": false,
        "ron_key": key.kid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_read_as_vault_writes_them() {
        let check = |value: Value, want: Option<&str>| {
            let read = serde_json::from_value(value.clone());
            let found = read.ok().and_then(|given| period(&given).ok());
            assert_eq!(found.as_deref(), want, "{value}");
        };
        check(json!(0), Some("never"));
        check(json!("0"), Some("never"));
        check(json!("0s"), Some("never"));
        check(json!(3600), Some("3600s"));
        check(json!("3600"), Some("3600s"));
        check(json!("24h"), Some("24h"));
        check(json!("1h30m"), None);
        check(json!("-1h"), None);
        check(json!(1.5), None);
        check(json!(1e30), None);
        check(json!("h"), None);
    }

    #[test]
    fn types_become_algorithms_and_back() {
        let check = |kind: Option<&str>, set: Option<&str>, want: Option<Alg>| {
            let request = Create {
                kind: kind.map(str::to_owned),
                parameter_set: set.map(str::to_owned),
                ..Create::default()
            };
            assert_eq!(alg_of(&request).ok(), want, "{kind:?}");
        };
        check(None, None, Some(Alg::Aes256Gcm));
        check(Some("ecdsa-p256"), None, Some(Alg::EcdsaP256));
        check(Some("ml-dsa"), Some("87"), Some(Alg::MlDsa87));
        check(Some("ml-dsa"), Some("66"), None);
        check(Some("rsa-2048"), None, None);
        assert_eq!(kind_of(Alg::Ed25519), "ed25519");
    }
}
