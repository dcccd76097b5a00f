//! Import, export, backup and restore of keys, wrapped only.

use std::sync::Arc;

use ron_http::{Method, Request, Response, Route};
use ron_proto::kms::{
    BackupAnswer, ExportAnswer, ExportKey, ImportKey, KeyDoc, RestoreKey, WrappingKeyDoc,
};
use ron_proto::problem::Problem;
use ron_proto::scope;
use ron_proto::values::Alg;

use super::{Action, change_route, route, store_route};
use crate::work::{Kms, Purposes, StoreJob};

const BACKUP: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/backup";
const EXPORT: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/export";

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 5] {
    let need = scope::KMS_ADMIN;
    let at = (Method::GET, "/v1/kms/wrapping_key");
    [
        route(kms, at, need, wrapping_key)
            .summary("The public key to wrap an imported key to; valid until the service stops")
            .query(
                "alg",
                false,
                "x25519+ml-kem-768 (the default) or x25519-hkdf-aes256-gcm",
            )
            .returns::<WrappingKeyDoc>(200)
            .errors(&[400, 401, 403, 429, 500, 503, 504]),
        store_route(kms, "/v1/kms/keys/import", need, |call, body: ImportKey| {
            StoreJob::Import(call, Box::new(body), Purposes::Shared)
        })
        .summary("Import a wrapped key; idempotent by op_id for 24 hours")
        .returns::<KeyDoc>(201),
        change_route(
            kms,
            (Method::POST, EXPORT),
            need,
            |call, kid, body: ExportKey| StoreJob::Export(call, kid, Box::new(body)),
        )
        .summary("Export a version of an exportable key, wrapped to a recipient's public key")
        .returns::<ExportAnswer>(200),
        change_route(kms, (Method::POST, BACKUP), need, StoreJob::Backup)
            .summary("The key with all its versions as a text that only a store with the same seal key opens")
            .returns::<BackupAnswer>(200),
        store_route(kms, "/v1/kms/keys/restore", need, |call, body: RestoreKey| {
            StoreJob::Restore(call, Box::new(body), Purposes::Shared)
        })
        .summary("Make a key from a backup, with all its versions; idempotent by op_id for 24 hours")
        .returns::<KeyDoc>(201),
    ]
}

fn wrapping_key(kms: &Kms, request: &Request) -> Result<Action, Problem> {
    request.query_only(&["alg"])?;
    let alg = request
        .query_as::<Alg>("alg")?
        .unwrap_or(Alg::X25519MlKem768);
    let doc = kms.wrapping.doc(alg).ok_or_else(|| {
        Problem::bad_request("`alg` must be x25519+ml-kem-768 or x25519-hkdf-aes256-gcm")
    })?;
    Ok(Action::Respond(Response::json(200, doc)))
}
