//! `backup` and `restore`: the sealed text of the native API, which means nothing to a client.

use std::sync::Arc;

use ron_custody::Refusal;
use ron_http::{Body, Method, Request, Response, Route};
use ron_proto::kms::transit::Restore;
use ron_proto::kms::{BackupKey, RestoreKey};
use ron_proto::scope;
use serde_json::json;

use super::{bad, body, find, form, fresh, json_of, purpose, route_shown};
use crate::api::Action;
use crate::work::{Kms, Purposes, StoreJob};

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> Vec<Route> {
    let at = (Method::GET, "/v1/transit/backup/{name}");
    let about = "Vault: the key with its versions as a sealed text";
    let mut routes =
        vec![route_shown(kms, at, scope::KMS_ADMIN, backup, show_backup).summary(about)];
    let about = "Vault: make a key from a backup, under its name or another one that is free";
    for method in [Method::POST, Method::PUT] {
        for path in ["/v1/transit/restore", "/v1/transit/restore/{name}"] {
            let at = (method, path);
            let route = route_shown(kms, at, scope::KMS_ADMIN, restore, show_nothing);
            let route = route.summary(about).body::<Restore>().returns_nothing(204);
            routes.push(route.body_cap(BODY_CAP));
        }
    }
    routes
}

/// Maximum bytes of a body with a backup: more than the longest backup in base64.
const BODY_CAP: usize = 1024 * 1024;

fn backup(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let key = find(&kms.index.load(), &request.principal, request.param("name"))?;
    let kid = key.kid.clone();
    Ok(Action::store(|call| {
        StoreJob::Backup(call, kid, BackupKey::default())
    }))
}

fn show_backup(_: &Kms, _: &str, response: Response) -> Response {
    match json_of(&response) {
        Some(answer) => form::data(&json!({ "backup": answer["backup"] })),
        None => response,
    }
}

fn restore(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let wanted: Restore = body(request)?;
    let backup = wanted.backup.ok_or_else(|| bad("missing backup"))?;
    let purpose = request.param_if_any("name").map(purpose).transpose()?;
    let ask = Box::new(RestoreKey {
        tenant: request.principal.tenant.clone(),
        purpose,
        backup,
        op_id: fresh(kms),
    });
    Ok(Action::store(|call| {
        StoreJob::Restore(call, ask, Purposes::Single)
    }))
}

/// Vault answers a restore without content.
fn show_nothing(_: &Kms, _: &str, response: Response) -> Response {
    match &response.body {
        Body::Problem(_) => response,
        _ => Response::empty(204),
    }
}
