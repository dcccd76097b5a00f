//! `POST /verify/raw`: the strict verification of this service for any public key.

use std::sync::Arc;

use ron_custody::keys::PublicKey;
use ron_custody::{Cause, Refusal};
use ron_http::{Method, Need, Request, Response, Route, sync};
use ron_proto::kms::{MESSAGE_BYTES_MAX, VerifyRawAnswer, VerifyRawRequest};
use ron_proto::problem::Problem;
use ron_proto::scope;

use crate::audit::leaf::{NO_MATCH, OK};
use crate::work::Kms;

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 1] {
    let kms = kms.clone();
    let answer = move |request: &Request| {
        let body: VerifyRawRequest = request.json()?;
        let since = kms.clock.now();
        let alg = body.alg.as_str();
        let result = verify(&body);
        let label = match &result {
            Ok(true) => OK,
            Ok(false) => NO_MATCH,
            Err(refusal) => refusal.cause.code(),
        };
        let took = kms.clock.now().saturating_duration_since(since);
        let metrics = &kms.metrics;
        let labels = ["verify_raw", alg, label];
        metrics.ops.with_label_values(&labels).inc();
        let seconds = metrics.op_seconds.with_label_values(&labels[..2]);
        seconds.observe(took.as_secs_f64());
        result
            .map(|ok| Response::json(200, &VerifyRawAnswer { ok }))
            .map_err(Problem::from)
    };
    [Route::new(
        Method::POST,
        "/v1/kms/verify/raw",
        Need::Scope(scope::KMS_VERIFY),
        sync(answer),
    )
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
    Ok(key.fits(&body.signature.0) && key.verify(&body.message.0, &body.signature.0))
}
