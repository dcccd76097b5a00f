//! `wrapping_key`, `import` and `import_version`: keys from elsewhere, wrapped as Vault and AWS have it.
//!
//! Vault's wrapping key is here a key of the caller's tenant with purpose `transit-wrapping`, which the first request makes.

use std::sync::Arc;

use ron_custody::index::Key;
use ron_custody::{Cause, Refusal};
use ron_http::{Method, Request, Response, Route};
use ron_proto::kms::transit::{Create, Import};
use ron_proto::kms::{Bytes, CreateKey, ImportKey, KeyState, PayloadPolicy};
use ron_proto::scope;
use ron_proto::values::Alg;
use serde_json::json;

use super::keys::{alg_of, new_key, op_id};
use super::{
    bad, base64, body, find, form, fresh, json_of, key_for_use, route_shown, unsupported, writes,
};
use crate::api::Action;
use crate::work::{Kms, Purposes, StoreJob};

/// Purpose of the wrapping keys; no name of this API becomes it.
const PURPOSE: &str = "transit-wrapping";
/// Of 128 bits of security, like what it wraps; longer ones take many seconds to make.
const ALG: Alg = Alg::RsaOaep3072;

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> Vec<Route> {
    let need = scope::KMS_ADMIN;
    let at = (Method::GET, "/v1/transit/wrapping_key");
    let about = "Vault: the RSA key that keys to import are wrapped to";
    let mut routes = vec![route_shown(kms, at, need, wrapping_key, show_wrapping).summary(about)];
    let path = "/v1/transit/keys/{name}/import";
    let about = "Vault: import a key that is wrapped to the wrapping key";
    routes.extend(writes::<Import>(kms, path, need, about, import));
    let path = "/v1/transit/keys/{name}/import_version";
    let about = "Vault: import the next version of an imported key";
    routes.extend(writes::<Import>(kms, path, need, about, import_version));
    routes
}

/// The wrapping keys that the caller's tenant has had.
fn wrapping_keys(kms: &Kms, request: &Request) -> Vec<Arc<Key>> {
    let purpose = PURPOSE.parse().expect("a constant, valid purpose");
    let index = kms.index.load();
    let keys = index.of_purpose(&request.principal.tenant, purpose);
    keys.filter(|key| key.kid.alg == ALG).cloned().collect()
}

/// That of them which is in use.
fn in_use(keys: &[Arc<Key>]) -> Option<&Key> {
    let mut keys = keys.iter().map(Arc::as_ref);
    keys.find(|key| key.state == KeyState::Active)
}

#[allow(clippy::unnecessary_wraps)] // a handler, which may fail
fn wrapping_key(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let keys = wrapping_keys(kms, request);
    if let Some(key) = in_use(&keys) {
        return Ok(Action::Respond(public_of(&key.head().public.pem())));
    }
    let tenant = &request.principal.tenant;
    let body = Box::new(CreateKey {
        tenant: tenant.clone(),
        purpose: PURPOSE.parse().expect("a constant, valid purpose"),
        alg: ALG,
        backend: None,
        payload: PayloadPolicy::Any,
        exportable: false,
        derived: false,
        rotate_every: None,
        token: None,
        op_id: op_id(tenant.as_str(), "\0wrapping", keys.len()),
    });
    Ok(Action::store(|call| {
        StoreJob::Create(call, body, Purposes::Shared)
    }))
}

fn public_of(pem: &str) -> Response {
    form::data(&json!({ "public_key": pem }))
}

fn show_wrapping(_: &Kms, _: &str, response: Response) -> Response {
    let doc = json_of(&response);
    let pem = doc
        .as_ref()
        .and_then(|doc| doc["versions"][0]["public_key_pem"].as_str());
    match pem {
        Some(pem) => public_of(pem),
        None => response,
    }
}

fn import(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let wanted: Import = body(request)?;
    let yes = |flag: Option<bool>| flag == Some(true);
    if yes(wanted.derived) || yes(wanted.exportable) || yes(wanted.allow_plaintext_backup) {
        return Err(unsupported(
            "derived, exportable and allow_plaintext_backup are not offered: leave them out",
        ));
    }
    match find(&kms.index.load(), &request.principal, request.param("name")) {
        Ok(_) => return Err(bad("a key of this name exists: import_version adds to it")),
        Err(refusal) if refusal.cause == Cause::NotFound => {}
        Err(refusal) => return Err(refusal),
    }
    let alg = alg_of(&Create {
        kind: wanted.kind.clone(),
        ..Create::default()
    })?;
    let like = new_key(kms, request, alg, wanted.auto_rotate_period.as_ref())?;
    let ask = ImportKey {
        tenant: like.tenant,
        purpose: like.purpose,
        alg,
        payload: like.payload,
        exportable: false,
        rotate_every: like.rotate_every,
        into: None,
        wrapping_key: wrapping_name(kms, request)?,
        wrapped: ciphertext(
            wanted.ciphertext.as_deref(),
            wanted.hash_function.as_deref(),
        )?,
        op_id: fresh(kms),
    };
    Ok(Action::store(|call| {
        StoreJob::Import(call, Box::new(ask), Purposes::Single)
    }))
}

fn import_version(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let wanted: Import = body(request)?;
    let key = key_for_use(kms, request)?;
    let ask = ImportKey {
        tenant: key.kid.tenant.clone(),
        purpose: key.kid.purpose.clone(),
        alg: key.kid.alg,
        payload: key.payload.clone(),
        exportable: false,
        rotate_every: None,
        into: Some(key.kid.clone()),
        wrapping_key: wrapping_name(kms, request)?,
        wrapped: ciphertext(
            wanted.ciphertext.as_deref(),
            wanted.hash_function.as_deref(),
        )?,
        op_id: fresh(kms),
    };
    Ok(Action::store(|call| {
        StoreJob::Import(call, Box::new(ask), Purposes::Shared)
    }))
}

fn wrapping_name(kms: &Kms, request: &Request) -> Result<String, Refusal> {
    let keys = wrapping_keys(kms, request);
    let key = in_use(&keys)
        .ok_or_else(|| bad("there is no wrapping key yet: read wrapping_key first"))?;
    Ok(key.kid.to_string())
}

fn ciphertext(text: Option<&str>, hash: Option<&str>) -> Result<Bytes, Refusal> {
    if !matches!(hash, None | Some("" | "SHA256")) {
        return Err(unsupported(
            "hash_function: the wrapping key opens OAEP with SHA256 alone",
        ));
    }
    let text = text.ok_or_else(|| bad("missing ciphertext"))?;
    base64("ciphertext", text).map(Bytes)
}
