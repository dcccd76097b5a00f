//! Import and export of keys, wrapped only.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Response, Route, sync};
use ron_proto::kms::{ExportAnswer, ExportKey, ImportKey, KeyDoc, WrappingKeyDoc};
use ron_proto::problem::Problem;
use ron_proto::scope;
use ron_proto::values::Alg;

use super::call_context;
use super::keys::{CHANGE_ERRORS, kid};
use crate::work::{Kms, StoreJob};

const EXPORT: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/export";

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 3] {
    let need = Need::Scope(scope::KMS_ADMIN);
    let (for_key, for_import, for_export) = (kms.clone(), kms.clone(), kms.clone());
    [
        Route::new(
            Method::GET,
            "/v1/kms/wrapping_key",
            need,
            sync(move |request| wrapping_key(&for_key, request)),
        )
        .summary("The public key to wrap an imported key to; valid until the service stops")
        .query(
            "alg",
            false,
            "x25519+ml-kem-768 (the default) or x25519-hkdf-aes256-gcm",
        )
        .returns::<WrappingKeyDoc>(200)
        .errors(&[400, 401, 403, 429, 500, 503, 504]),
        Route::new(
            Method::POST,
            "/v1/kms/keys/import",
            need,
            move |request, responder| match request.json::<ImportKey>() {
                Ok(body) => {
                    let call = call_context(&for_import, request, responder);
                    for_import.submit_store(StoreJob::Import(call, Box::new(body)));
                }
                Err(problem) => responder.send(problem),
            },
        )
        .summary("Import a wrapped key; idempotent by op_id for 24 hours")
        .body::<ImportKey>()
        .returns::<KeyDoc>(201)
        .errors(CHANGE_ERRORS),
        Route::new(
            Method::POST,
            EXPORT,
            need,
            move |request, responder| match kid(&request)
                .and_then(|kid| Ok((kid, request.json::<ExportKey>()?)))
            {
                Ok((kid, body)) => {
                    let call = call_context(&for_export, request, responder);
                    for_export.submit_store(StoreJob::Export(call, kid, Box::new(body)));
                }
                Err(problem) => responder.send(problem),
            },
        )
        .summary("Export a version of an exportable key, wrapped to a recipient's public key")
        .body::<ExportKey>()
        .returns::<ExportAnswer>(200)
        .errors(CHANGE_ERRORS),
    ]
}

fn wrapping_key(kms: &Kms, request: &Request) -> Result<Response, Problem> {
    request.query_only(&["alg"])?;
    let alg = request
        .query_as::<Alg>("alg")?
        .unwrap_or(Alg::X25519MlKem768);
    let doc = kms.wrapping.doc(alg).ok_or_else(|| {
        Problem::bad_request("`alg` must be x25519+ml-kem-768 or x25519-hkdf-aes256-gcm")
    })?;
    Ok(Response::json(200, doc))
}
