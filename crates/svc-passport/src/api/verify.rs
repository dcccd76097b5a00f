//! `POST /v1/passport/verify` and `/verify_batch`: what a token is worth now. Public.

use std::sync::Arc;

use ron_auth::jwt::{Expect, verify_jwt};
use ron_http::{Need, Response, Route};
use ron_proto::passport::{
    TokenClaims, VERIFY_BATCH_MAX, VerifyBatchAnswer, VerifyToken, VerifyTokenBatch, VerifyVerdict,
};
use ron_proto::{Problem, b64};

use super::Api;

pub fn routes(api: &Arc<Api>) -> [Route; 2] {
    let one = api.clone();
    let many = api.clone();
    [
        Route::post("/v1/passport/verify", Need::Public, move |req| {
            let body: VerifyToken = req.json()?;
            Ok(Response::json(200, &judge(&one, &body.token)).cache("no-store"))
        })
        .summary("Judge one token; a bad token is an answer, not an error.")
        .body::<VerifyToken>()
        .returns::<VerifyVerdict>(200)
        .errors(&[400])
        .while_draining(),
        Route::post("/v1/passport/verify_batch", Need::Public, move |req| {
            let body: VerifyTokenBatch = req.json()?;
            if body.tokens.is_empty() || body.tokens.len() > VERIFY_BATCH_MAX {
                return Err(Problem::bad_request(format!(
                    "tokens must hold 1..{VERIFY_BATCH_MAX} items"
                )));
            }
            let results = body.tokens.iter().map(|t| judge(&many, t)).collect();
            Ok(Response::json(200, &VerifyBatchAnswer { results }).cache("no-store"))
        })
        .summary("Judge up to 512 tokens, each on its own.")
        .body::<VerifyTokenBatch>()
        .returns::<VerifyBatchAnswer>(200)
        .errors(&[400])
        .while_draining(),
    ]
}

fn judge(api: &Api, token: &str) -> VerifyVerdict {
    let timer = api.clock.now();
    let verdict = verdict(api, token);
    let took = api.clock.now().saturating_duration_since(timer);
    let result = if verdict.ok { "ok" } else { "refused" };
    api.metrics
        .verify_seconds
        .with_label_values(&[result])
        .observe(took.as_secs_f64());
    verdict
}

fn verdict(api: &Api, token: &str) -> VerifyVerdict {
    let refused = |reason: &str, parsed| VerifyVerdict {
        ok: false,
        reason: Some(reason.to_owned()),
        parsed,
    };
    // Read without trust to learn the audience; everything in it is checked right after.
    let Some(claims) = claims(token) else {
        return refused("malformed", None);
    };
    let keys = api.keys.published();
    let expect = Expect {
        issuer: &api.issuer_url,
        audience: &claims.aud,
        now_s: api.clock.unix_ms() / 1000,
    };
    match verify_jwt(token, &keys.verify, &expect) {
        Err(reject) => refused(reject.reason(), None),
        Ok(checked) => match api.view.with(|view| view.check(&checked)) {
            Err(reject) => refused(reject.reason(), Some(claims)),
            Ok(()) => VerifyVerdict {
                ok: true,
                reason: None,
                parsed: Some(claims),
            },
        },
    }
}

fn claims(token: &str) -> Option<TokenClaims> {
    if token.len() > ron_proto::passport::TOKEN_BYTES_MAX {
        return None;
    }
    let payload = b64::from_url(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&payload).ok()
}
