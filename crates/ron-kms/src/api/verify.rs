//! `POST /verify`.

use std::sync::Arc;

use ron_http::{Method, Need, Response, Route, sync};
use ron_proto::kms::{VerifyAnswer, VerifyRequest};
use ron_proto::problem::Problem;
use ron_proto::scope;

use crate::work::Kms;

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 1] {
    let kms = kms.clone();
    let answer = move |request: &ron_http::Request| {
        let body: VerifyRequest = request.json()?;
        let since = kms.clock.now();
        let alg = body.key.alg.as_str();
        let result = kms.verify(&request.principal, body);
        let label = match &result {
            Ok(VerifyAnswer { ok: true, .. }) => "ok",
            Ok(_) => "no_match",
            Err(refusal) => refusal.why.code(),
        };
        let took = kms.clock.now().saturating_duration_since(since);
        kms.metrics
            .ops
            .with_label_values(&["verify", alg, label])
            .inc();
        kms.metrics
            .op_seconds
            .with_label_values(&["verify", alg])
            .observe(took.as_secs_f64());
        result
            .map(|answer| Response::json(200, &answer))
            .map_err(Problem::from)
    };
    [Route::new(
        Method::POST,
        "/v1/kms/verify",
        Need::Scope(scope::KMS_VERIFY),
        sync(answer),
    )
    .summary("Verify signatures; a wrong one is ok: false, not an error")
    .body::<VerifyRequest>()
    .returns::<VerifyAnswer>(200)
    .errors(&[400, 401, 403, 404, 413, 415, 429, 500, 503, 504])]
}
