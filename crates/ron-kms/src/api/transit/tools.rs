//! What needs no key: `hash`, the caller's token, and the health that clients of Vault ask for.

use std::sync::Arc;

use ron_crypto::hash;
use ron_custody::Refusal;
use ron_http::{Method, Need, Principal, Request, Response, Route};
use ron_proto::kms::transit::{Hash, Nothing};
use ron_proto::{Problem, scope};
use serde_json::{Value, json};

use super::{ERRORS, bad, base64, body, form, namespace, unsupported, writes};
use crate::api::Action;
use crate::errors::problem;
use crate::work::Kms;

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> Vec<Route> {
    let hashes = ["/v1/transit/hash", "/v1/transit/hash/{algorithm}"];
    let hashes = hashes.map(|path| {
        let summary = "Vault: hash a message";
        writes::<Hash>(kms, path, scope::KMS_VERIFY, summary, hash)
    });
    let mut routes: Vec<Route> = hashes.into_iter().flatten().collect();
    let own = |method, path, summary, answer: fn(&Request) -> Response| {
        let handler = ron_http::sync(move |request| {
            namespace(request).map_err(problem)?;
            Ok(answer(request))
        });
        let route = Route::new(method, path, Need::Identity, handler).summary(summary);
        form::vaults(route.returns::<Value>(200), ERRORS)
    };
    routes.push(own(
        Method::GET,
        "/v1/auth/token/lookup-self",
        "Vault: the identity of the token; clients call it to check whether they are logged in",
        |request| whoami(&request.principal),
    ));
    for method in [Method::POST, Method::PUT] {
        let about = "Vault: refused, because a token has its end from its issuer";
        let path = "/v1/auth/token/renew-self";
        routes.push(own(method, path, about, |_| not_renewable()).body::<Nothing>());
    }
    let health = kms.clone();
    routes.push(
        Route::get("/v1/sys/health", Need::Public, move |_| {
            Ok(health_of(&health))
        })
        .summary("Vault: whether operations that change or sign are carried out")
        .returns::<Value>(200)
        .returns::<Value>(503)
        .while_draining(),
    );
    routes
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

fn not_renewable() -> Response {
    Problem::bad_request("the token is not renewable: get a new one from its issuer").into()
}

/// Vault's `sealed` says that a server is there and does nothing: so does a KMS whose log cannot be written.
fn health_of(kms: &Kms) -> Response {
    let sealed = kms.health.check().is_err();
    let body = json!({
        "initialized": true,
        "sealed": sealed,
        "standby": false,
        "performance_standby": false,
        "replication_performance_mode": "disabled",
        "replication_dr_mode": "disabled",
        "server_time_utc": kms.clock.unix_ms() / 1_000,
        "version": env!("CARGO_PKG_VERSION"),
        "cluster_name": "ron-kms",
        "cluster_id": "",
    });
    Response::json(if sealed { 503 } else { 200 }, &body)
}

fn hash(_: &Kms, request: &Request) -> Result<Action, Refusal> {
    let wanted: Hash = body(request)?;
    let named = request.param_if_any("algorithm");
    let of: fn(&[u8]) -> Vec<u8> = match named.or(wanted.algorithm.as_deref()) {
        None | Some("" | "sha2-256") => |input| hash::sha256(input).to_vec(),
        Some("sha2-384") => |input| hash::sha384(input).to_vec(),
        Some("sha2-512") => |input| hash::sha512(input).to_vec(),
        Some(_) => {
            return Err(unsupported(
                "the hash functions are sha2-256, sha2-384 and sha2-512",
            ));
        }
    };
    let input = wanted
        .input
        .as_deref()
        .ok_or_else(|| bad("missing input"))?;
    let sum = of(&base64("input", input)?);
    let sum = match wanted.format.as_deref() {
        None | Some("" | "hex") => hex::encode(sum),
        Some("base64") => ron_proto::b64::std(&sum),
        Some(_) => return Err(bad("format must be hex or base64")),
    };
    Ok(Action::Respond(form::data(&json!({ "sum": sum }))))
}
