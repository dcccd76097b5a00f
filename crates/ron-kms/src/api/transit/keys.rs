//! `keys`: create, list, read, rotate, configure.

use std::fmt::Write as _;
use std::sync::Arc;

use ron_crypto::Curve;
use ron_crypto::hash::sha256;
use ron_custody::index::{Key, Version};
use ron_custody::keys::{aead_of, curve_of};
use ron_custody::rights::may_do;
use ron_custody::{Cause, Refusal};
use ron_http::{Method, Request, Response, Route};
use ron_proto::kms::transit::{Configure, Create, Nothing, Period, Trim};
use ron_proto::kms::{
    CreateKey, DestroyKey, KeyOp, KeyState, PayloadPolicy, RotateRequest, UpdateKey,
};
use ron_proto::problem::Problem;
use ron_proto::scope;
use ron_proto::values::{Alg, Kid, OpId};
use serde_json::{Map, Value, json};

use super::crypt::wanted;
use super::{
    CONVERGENT, bad, body, called, find, form, json_of, key_for_use, names, purpose, route,
    unsupported, writes,
};
use crate::api::Action;
use crate::work::key_request::KeyRequest;
use crate::work::{Kms, Purposes, StoreJob};

const EXPORT: &str = "/v1/transit/export/{kind}/{name}";

/// Maximum versions in an answer, which Vault's format does not page.
const SHOWN_MAX: usize = 500;

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> Vec<Route> {
    const KEYS: &str = "/v1/transit/keys";
    const KEY: &str = "/v1/transit/keys/{name}";
    let mut routes = vec![
        route(kms, (Method::GET, KEYS), scope::KMS_READ, list)
            .query("list", true, "true")
            .summary("Vault: names of the keys; also under the method LIST"),
        route(kms, (Method::LIST, KEYS), scope::KMS_READ, list),
        route(kms, (Method::GET, KEY), scope::KMS_READ, read_key)
            .summary("Vault: a key and its public halves"),
    ];
    let made = "Vault: make a key; an existing key stays unchanged";
    routes.extend(writes::<Create>(kms, KEY, scope::KMS_CREATE, made, create));
    let path = "/v1/transit/keys/{name}/rotate";
    let rotated = "Vault: make a new version";
    routes.extend(writes::<Nothing>(
        kms,
        path,
        scope::KMS_ROTATE,
        rotated,
        rotate,
    ));
    let path = "/v1/transit/keys/{name}/config";
    let about = "Vault: minimum versions, automatic rotation, and whether the key may be deleted";
    routes.extend(writes::<Configure>(
        kms,
        path,
        scope::KMS_ADMIN,
        about,
        configure,
    ));
    let deleted = route(kms, (Method::DELETE, KEY), scope::KMS_ADMIN, delete);
    let about = "Vault: delete a key whose deletion_allowed is set; it is destroyed after the delay of the native API";
    routes.push(deleted.summary(about).returns_nothing(204));
    routes.extend(writes::<Trim>(
        kms,
        "/v1/transit/keys/{name}/trim",
        scope::KMS_ADMIN,
        "Vault: destroy old versions, after the delay of the native API",
        trim,
    ));
    for path in [EXPORT, "/v1/transit/export/{kind}/{name}/{version}"] {
        let route = route(kms, (Method::GET, path), scope::KMS_READ, export);
        routes.push(route.summary("Vault: public keys; private keys are not exportable"));
    }
    routes
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
pub fn alg_of(request: &Create) -> Result<Alg, Refusal> {
    let set = request
        .parameter_set
        .as_deref()
        .filter(|set| !set.is_empty());
    let alg = match request.kind.as_deref() {
        None | Some("" | "aes256-gcm96") => Alg::Aes256Gcm,
        Some("aes128-gcm96") => Alg::Aes128Gcm,
        Some("chacha20-poly1305") => Alg::ChaCha20Poly1305,
        Some("ed25519") => Alg::Ed25519,
        Some("ecdsa-p256") => Alg::EcdsaP256,
        Some("ecdsa-p384") => Alg::EcdsaP384,
        Some("rsa-2048") => Alg::Rsa2048,
        Some("rsa-3072") => Alg::Rsa3072,
        Some("rsa-4096") => Alg::Rsa4096,
        Some("rsa-oaep-2048") => Alg::RsaOaep2048,
        Some("rsa-oaep-3072") => Alg::RsaOaep3072,
        Some("rsa-oaep-4096") => Alg::RsaOaep4096,
        Some("hmac") => Alg::HmacSha256,
        Some("ml-dsa") => match set {
            Some("44") => Alg::MlDsa44,
            None | Some("65") => Alg::MlDsa65,
            Some("87") => Alg::MlDsa87,
            Some(_) => return Err(bad("parameter_set must be 44, 65 or 87")),
        },
        Some(_) => {
            return Err(unsupported(
                "offered types are aes128-gcm96, aes256-gcm96, chacha20-poly1305, ed25519, ecdsa-p256, ecdsa-p384, rsa-2048, rsa-3072, rsa-4096, rsa-oaep-2048, rsa-oaep-3072, rsa-oaep-4096, ml-dsa and hmac",
            ));
        }
    };
    if request.key_size.is_some_and(|size| size != 0 && size != 32) {
        return Err(unsupported("key_size: keys of type hmac have 32 bytes"));
    }
    Ok(alg)
}

/// Converts a period of Vault (seconds or Go's `1h30m`) into the native format; `never` for 0.
fn period(given: &Period) -> Result<String, Refusal> {
    let seconds = match given {
        Period::Seconds(seconds) => Some(*seconds),
        Period::Text(text) => text.parse().ok().or_else(|| seconds_of(text)),
    };
    match seconds {
        None => Err(bad(
            "auto_rotate_period must be whole seconds, numbers with units such as 1h30m, or 0",
        )),
        Some(0) => Ok("never".to_owned()),
        Some(seconds) => Ok(format!("{seconds}s")),
    }
}

/// The whole seconds of numbers with units, one after the other.
fn seconds_of(text: &str) -> Option<u64> {
    let (mut rest, mut sum) = (text, 0_u64);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let unit = match rest[digits..].chars().next()? {
            's' => 1,
            'm' if rest[digits..].starts_with("ms") => return None,
            'm' => 60,
            'h' => 3_600,
            'd' => 86_400,
            _ => return None,
        };
        sum = sum.checked_add(number.checked_mul(unit)?)?;
        rest = &rest[digits + 1..];
    }
    (!text.is_empty()).then_some(sum)
}

fn create(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let name = request.param("name");
    let wanted: Create = body(request)?;
    let yes = |flag: Option<bool>| flag == Some(true);
    if yes(wanted.convergent_encryption) {
        return Err(unsupported(CONVERGENT));
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
    let body = Box::new(CreateKey {
        derived: derived(&wanted, alg)?,
        ..new_key(kms, request, alg, wanted.auto_rotate_period.as_ref())?
    });
    Ok(Action::store(|call| {
        StoreJob::Create(call, body, Purposes::Single)
    }))
}

/// The key that a request to encrypt makes first; `None` when it is there, or the caller may not make keys.
pub fn to_make(kms: &Kms, request: &Request) -> Result<Option<Box<CreateKey>>, Refusal> {
    let (caller, name) = (&request.principal, request.param("name"));
    match find(&kms.index.load(), caller, name) {
        Err(refusal)
            if refusal.cause == Cause::NotFound
                && caller.has_scope(scope::KMS_CREATE)
                && may_do(caller, KeyOp::Create).is_ok() => {}
        _ => return Ok(None),
    }
    let wanted = wanted(request)?;
    if wanted.convergent_encryption == Some(true) {
        return Err(unsupported(CONVERGENT));
    }
    let alg = alg_of(&wanted)?;
    if !alg.wraps() {
        return Err(bad("type: keys of this type do not encrypt"));
    }
    Ok(Some(Box::new(CreateKey {
        derived: derived(&wanted, alg)?,
        ..new_key(kms, request, alg, None)?
    })))
}

/// Whether a new key is derived, which its type must allow.
fn derived(wanted: &Create, alg: Alg) -> Result<bool, Refusal> {
    let derived = wanted.derived == Some(true);
    if derived && aead_of(alg).is_none() {
        return Err(unsupported(
            "key derivation is offered for keys of type aes128-gcm96, aes256-gcm96 and chacha20-poly1305: leave derived and context out",
        ));
    }
    Ok(derived)
}

/// The native request for a key of the name in the path.
pub fn new_key(
    kms: &Kms,
    request: &Request,
    alg: Alg,
    every: Option<&Period>,
) -> Result<CreateKey, Refusal> {
    let (caller, name) = (&request.principal, request.param("name"));
    let index = kms.index.load();
    let mut before = 0;
    for key in called(&index, caller, name)? {
        if let (KeyState::PendingDestruction, Some(at)) = (key.state, key.destroy_at) {
            return Err(bad(format!(
                "the key of this name was deleted and is destroyed at {at}; until then the name is taken, and `ron kms cancel {}` brings the key back",
                key.kid
            )));
        }
        before += 1;
    }
    let tenant = caller.tenant.clone();
    let mut body = json!({
        "tenant": tenant,
        "purpose": purpose(name)?,
        "alg": alg,
        "op_id": op_id(tenant.as_str(), name, before),
    });
    // Vault's clients may ask such a key for a message's signature and for one of a hash.
    if alg.is_ecdsa() || alg.is_rsa() {
        body["payload"] = json!(PayloadPolicy::Prehash);
    }
    if let Some(every) = every {
        body["rotate_every"] = period(every)?.into();
    }
    serde_json::from_value(body).map_err(|e| bad(format!("auto_rotate_period: {e}")))
}

/// One operation id per name, so that two concurrent requests for the same name make one key. `before` counts the keys
/// of this name that were destroyed: after them, the name is free again.
pub fn op_id(tenant: &str, name: &str, before: usize) -> OpId {
    let mut text = format!("ron-kms/v1/transit\0{tenant}\0{name}");
    if before > 0 {
        let _ = write!(text, "\0{before}"); // a text takes everything
    }
    let hash = sha256(text.as_bytes());
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
    if document["state"] == "pending_destruction" {
        return Response::empty(204);
    }
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

/// Orders the destruction of the key, after the delay that the native API has too.
fn delete(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let key = find(&kms.index.load(), &request.principal, request.param("name"));
    let key = match key {
        Ok(key) => key,
        // Deleted before, or never made: to Vault the same.
        Err(refusal) if refusal.cause == Cause::NotFound => {
            return Ok(Action::Respond(Response::empty(204)));
        }
        Err(refusal) => return Err(refusal),
    };
    if !key.deletion_allowed {
        return Err(bad(
            "deletion is not allowed for this key: set deletion_allowed with keys/NAME/config first",
        ));
    }
    let (kid, ask) = (key.kid.clone(), KeyRequest::Destroy(DestroyKey::default()));
    Ok(Action::store(|call| StoreJob::Change(call, kid, ask)))
}

/// Orders the destruction of old versions, after the same delay.
fn trim(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let key = key_for_use(kms, request)?;
    let wanted: Trim = body(request)?;
    let below = wanted
        .min_available_version
        .ok_or_else(|| bad("missing min_available_version"))?;
    if key.min_wrap == 0 {
        return Err(bad(
            "min_encryption_version must be set before a trim, as must min_decryption_version: set both with keys/NAME/config",
        ));
    }
    if below > key.min_wrap || below > key.min_verify {
        return Err(bad(
            "min_available_version may be at most min_decryption_version and min_encryption_version",
        ));
    }
    if below <= key.min_available.max(1) {
        return Err(bad(
            "min_available_version must be above the oldest version that there is",
        ));
    }
    let ask = KeyRequest::Destroy(DestroyKey {
        below_version: Some(below),
        ..DestroyKey::default()
    });
    let kid = key.kid.clone();
    Ok(Action::store(|call| StoreJob::Change(call, kid, ask)))
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
    if yes(wanted.exportable) || yes(wanted.allow_plaintext_backup) {
        return Err(unsupported(
            "exportable and allow_plaintext_backup stay false here; the native API exports keys wrapped, and backups are sealed",
        ));
    }
    let least = wanted.min_encryption_version.unwrap_or(key.min_wrap);
    let oldest = wanted.min_decryption_version.filter(|v| *v != 0);
    if least != 0 && least < oldest.unwrap_or(key.min_verify) {
        return Err(bad(
            "min_encryption_version must be 0 or at least min_decryption_version",
        ));
    }
    let mut update = UpdateKey {
        min_verify_version: oldest,
        min_wrap_version: wanted.min_encryption_version.filter(|v| *v != key.min_wrap),
        deletion_allowed: wanted
            .deletion_allowed
            .filter(|flag| *flag != key.deletion_allowed),
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
        Alg::Aes128Gcm => "aes128-gcm96",
        Alg::Aes256Gcm => "aes256-gcm96",
        Alg::HmacSha256 => "hmac",
        Alg::MlDsa44 | Alg::MlDsa65 | Alg::MlDsa87 => "ml-dsa",
        other => other.as_str(),
    }
}

/// The public halves of a key's versions, or of one version.
fn export(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    match request.param("kind") {
        "public-key" => {}
        "encryption-key" | "signing-key" | "hmac-key" | "certificate-chain" => {
            return Err(Refusal::new(
                Cause::ExportForbidden,
                "private key material is not exportable; the native API exports keys wrapped",
            ));
        }
        _ => return Err(bad("the path must name public-key")),
    }
    let key = find(&kms.index.load(), &request.principal, request.param("name"))?;
    if key
        .versions
        .iter()
        .all(|version| version.public.raw().is_empty())
    {
        return Err(unsupported("a key of this type has no public half"));
    }
    let wanted = match request.param_if_any("version") {
        None => None,
        Some("latest") => Some(key.head),
        Some(text) => Some(
            text.parse()
                .map_err(|_| bad("the version must be a number or latest"))?,
        ),
    };
    let below = key.versions.len().saturating_sub(SHOWN_MAX);
    let shown: Map<String, Value> = key.versions[below..]
        .iter()
        .filter(|version| wanted.is_none_or(|wanted| version.number == wanted))
        .map(|version| {
            (
                version.number.to_string(),
                public_text(key.kid.alg, version).into(),
            )
        })
        .collect();
    if shown.is_empty() {
        return Err(bad("the key has no such version"));
    }
    let name = request.param("name");
    let data = json!({ "name": name, "keys": shown, "type": kind_of(key.kid.alg) });
    Ok(Action::Respond(form::data(&data)))
}

/// A public key as Vault writes it: PEM for ECDSA and RSA, base64 for others.
fn public_text(alg: Alg, version: &Version) -> String {
    match alg {
        _ if alg.is_ecdsa() || alg.is_rsa() || alg.is_oaep() => version.public.pem(),
        _ => ron_proto::b64::std(version.public.raw()),
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
            _ => json!({
                "creation_time": created, "public_key": public_text(alg, version),
                "name": curve_of(alg).map_or(kind_of(alg), Curve::jwk_name),
            }),
        };
        versions.insert(version.number.to_string(), entry);
    }
    let mut shown = json!({
        "name": name,
        "type": kind_of(alg),
        "keys": versions,
        "latest_version": key.head,
        "min_available_version": key.min_available,
        "min_decryption_version": key.min_verify,
        "min_encryption_version": key.min_wrap,
        "deletion_allowed": key.deletion_allowed,
        "derived": key.derived,
        "exportable": false,
        "allow_plaintext_backup": false,
        "imported_key": key.imported,
        "supports_encryption": alg.wraps(),
        "supports_decryption": alg.wraps(),
        "supports_signing": alg.signs(),
        "supports_derivation": aead_of(alg).is_some(),
        "ron_key": key.kid,
    });
    if key.derived {
        shown["kdf"] = "hkdf_sha256".into();
        shown["convergent_encryption"] = false.into();
    }
    shown
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
        check(json!("24h"), Some("86400s"));
        check(json!("1h30m"), Some("5400s"));
        check(json!("1d2h3m4s"), Some("93784s"));
        check(json!("720h0m0s"), Some("2592000s"));
        check(json!(""), None);
        check(json!("1h30"), None);
        check(json!("500ms"), None);
        check(json!("9999999999999999999d"), None);
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
        check(Some("rsa-2048"), None, Some(Alg::Rsa2048));
        check(Some("ecdsa-p521"), None, None);
        assert_eq!(kind_of(Alg::Ed25519), "ed25519");
    }
}
