//! `POST /verify/raw`: the strict verification of this service for any public key.

use std::sync::Arc;

use ron_custody::keys::{Input, PublicKey};
use ron_custody::{Cause, Refusal};
use ron_http::{Method, Response, Route};
use ron_proto::kms::{MESSAGE_BYTES_MAX, VerifyRawAnswer, VerifyRawRequest};
use ron_proto::scope;

use super::verify::counted;
use super::{Action, route};
use crate::errors::problem;
use crate::work::Kms;

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 1] {
    let at = (Method::POST, "/v1/kms/verify/raw");
    [route(kms, at, scope::KMS_VERIFY, |kms, request| {
        let body: VerifyRawRequest = request.json()?;
        let ok = counted(
            kms,
            ("verify_raw", body.alg),
            |ok: &bool| *ok,
            || verify(&body),
        );
        let ok = ok.map_err(problem)?;
        Ok(Action::Respond(Response::json(
            200,
            &VerifyRawAnswer { ok },
        )))
    })
    .summary("Verify one signature with a public key given by value, as strictly as /verify")
    .body::<VerifyRawRequest>()
    .returns::<VerifyRawAnswer>(200)
    .errors(&[400, 401, 403, 413, 415, 429, 500, 503, 504])]
}

fn verify(body: &VerifyRawRequest) -> Result<bool, Refusal> {
    if !body.alg.signs() {
        return Err(crate::work::verify::signs_not());
    }
    if body.message.0.len() > MESSAGE_BYTES_MAX {
        let detail = format!("`message` may have at most {MESSAGE_BYTES_MAX} bytes");
        return Err(Refusal::new(Cause::TooLarge, detail));
    }
    let key = PublicKey::from_raw(body.alg, &body.public_key.0)
        .filter(|key| !matches!(key, PublicKey::Hybrid(_)))
        .ok_or_else(|| {
            let detail =
                "`public_key` is not a public key of `alg`; verify the two keys of a hybrid separately";
            Refusal::new(Cause::BadRequest, detail)
        })?;
    if let Some(scheme) = body.scheme.filter(|scheme| !scheme.fits(body.alg)) {
        let (alg, name) = (body.alg, scheme.as_str());
        let detail = format!("keys of {alg} do not sign with `scheme` {name}");
        return Err(Refusal::new(Cause::BadRequest, detail));
    }
    let message = Input::Message(&body.message.0);
    let signature = &body.signature.0;
    Ok(key.fits(signature) && key.verify(message, body.scheme, signature))
}
