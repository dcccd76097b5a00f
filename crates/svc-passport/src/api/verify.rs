//! `POST /v1/passport/verify` and `/verify_batch`: whether a token is valid now. No authentication.

use std::sync::Arc;

use ron_http::{Need, Request, Response, Route};
use ron_proto::Problem;
use ron_proto::passport::{
    VERIFY_BATCH_MAX, VerifyBatchAnswer, VerifyToken, VerifyTokenBatch, VerifyVerdict,
};

use super::{Api, judge};

pub fn routes(api: &Arc<Api>) -> [Route; 2] {
    let one = api.clone();
    let many = api.clone();
    [
        Route::post("/v1/passport/verify", Need::Public, move |req| {
            let body: VerifyToken = req.json()?;
            Ok(Response::json(200, &verdict(&one, req, &body.token)?).cache("no-store"))
        })
        .summary("Verify one token; a bad token is an answer, not an error.")
        .body::<VerifyToken>()
        .returns::<VerifyVerdict>(200)
        .errors(&[400, 429])
        .while_draining(),
        Route::post("/v1/passport/verify_batch", Need::Public, move |req| {
            let body: VerifyTokenBatch = req.json()?;
            if body.tokens.is_empty() || body.tokens.len() > VERIFY_BATCH_MAX {
                return Err(Problem::bad_request(format!(
                    "tokens must hold 1..{VERIFY_BATCH_MAX} items"
                )));
            }
            let results = body.tokens.iter().map(|t| verdict(&many, req, t));
            let results = results.collect::<Result<_, _>>()?;
            Ok(Response::json(200, &VerifyBatchAnswer { results }).cache("no-store"))
        })
        .summary("Verify up to 512 tokens, with one result each.")
        .body::<VerifyTokenBatch>()
        .returns::<VerifyBatchAnswer>(200)
        .errors(&[400, 429])
        .while_draining(),
    ]
}

fn verdict(api: &Api, request: &Request, token: &str) -> Result<VerifyVerdict, Problem> {
    let timer = api.clock.now();
    let judged = judge::judge_for(api, token, || api.charge(request))?;
    let took = api.clock.now().saturating_duration_since(timer);
    let result = if judged.is_ok() { "ok" } else { "refused" };
    api.metrics
        .verify_seconds
        .with_label_values(&[result])
        .observe(took.as_secs_f64());
    Ok(match judged {
        Ok(good) => VerifyVerdict {
            ok: true,
            reason: None,
            parsed: Some(good.shown.clone()),
        },
        Err(refused) => VerifyVerdict {
            ok: false,
            reason: Some(refused.reject.reason().to_owned()),
            parsed: refused.shown,
        },
    })
}
