//! The answers of the two issuing endpoints.

use ron_http::Response;
use ron_proto::passport::{ACCESS_TOKEN_TYPE, IssueAnswer, TokenAnswer};
use ron_proto::receipt::LogReceipt;

use super::Form;
use crate::policy::Grant;
use crate::token::SigningKey;

/// The answer of `/v1/passport/issue`.
pub fn passport_answer(
    grant: &Grant,
    token: String,
    exp: u64,
    (keys, epoch, receipt): (&[SigningKey], u64, LogReceipt),
) -> Response {
    let answer = IssueAnswer {
        token,
        kid: keys
            .first()
            .map_or_else(String::new, |key| key.jwk.kid.clone()),
        alg: grant.alg.to_owned(),
        exp,
        caveats: grant.caveats.iter().map(ToString::to_string).collect(),
        epoch,
        receipt,
    };
    Response::json(200, &answer)
}

/// The answer of the token endpoint.
pub fn oauth_answer(grant: &Grant, token: String, form: Form) -> Response {
    let kind = if grant.jkt.is_some() {
        "DPoP"
    } else {
        "Bearer"
    };
    let answer = TokenAnswer {
        access_token: token,
        token_type: kind.to_owned(),
        expires_in: grant.ttl_s,
        scope: grant.scope.clone(),
        issued_token_type: (form == Form::Exchange).then(|| ACCESS_TOKEN_TYPE.to_owned()),
    };
    Response::json(200, &answer).header("Pragma", "no-cache")
}
