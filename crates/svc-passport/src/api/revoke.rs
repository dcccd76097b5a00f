//! `POST /v1/passport/revoke`.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Responder, Route};
use ron_kernel::Clock;
use ron_proto::passport::{
    REASON_BYTES_MAX, RevokeAnswer, RevokeRequest, Revoked, SKEW_S, SUBJECT_BYTES_MAX, TTL_S_MAX,
};
use ron_proto::values::is_control;
use ron_proto::{Problem, scope};
use ron_service::DATE_KEPT_EVERY;

use super::Api;
use crate::revoke::{Answer, Revocation};

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::new(
        Method::POST,
        "/v1/passport/revoke",
        Need::Scope(scope::PASSPORT_ADMIN),
        move |req, responder| handle(&api, &req, responder),
    )
    .summary("Revoke a token, a subject, a key, or every older epoch, of all tenants; durable when answered.")
    .body::<RevokeRequest>()
    .returns::<RevokeAnswer>(200)
    .errors(&[400, 409, 429, 503])
}

/// Seconds by which the clocks of two issuers may differ.
const CLOCKS_APART_S: u64 = 5;

fn handle(api: &Api, req: &Request, responder: Responder) {
    let body = match req.json::<RevokeRequest>() {
        Ok(body) => body,
        Err(problem) => return responder.send(problem),
    };
    // Another node may issue to the subject until it has read the revocation, and dates the token by its own clock; such a token is
    // void too.
    let others_s = api
        .others_max_age
        .map_or(0, |age| age.as_secs() + 1 + CLOCKS_APART_S);
    let revoked = match revoked(&body, at_latest(&*api.clock) + others_s) {
        Ok(revoked) => revoked,
        Err(problem) => return responder.send(problem),
    };
    api.send_revocation(Revocation {
        revoked,
        reason: body.reason,
        actor: req.principal.name.clone(),
        form: Answer::Passport,
        responder,
    });
}

/// The present in Unix seconds, or a time after it. While the date is in doubt since the start, the service's own date is
/// behind: it goes on from one that was kept at most [`DATE_KEPT_EVERY`] before the service stopped.
fn at_latest(clock: &dyn Clock) -> u64 {
    let behind_s = clock
        .date_unknown()
        .map_or(0, |_| DATE_KEPT_EVERY.as_secs());
    clock.unix_ms() / 1000 + behind_s
}

fn revoked(body: &RevokeRequest, now_s: u64) -> Result<Revoked, Problem> {
    let bad = |why: &str| Err(Problem::bad_request(why));
    if body.reason.is_empty()
        || body.reason.len() > REASON_BYTES_MAX
        || body.reason.chars().any(is_control)
    {
        return bad(
            "reason must be 1..256 bytes without control characters, bidirectional ones included",
        );
    }
    let named = |text: &str| {
        !text.is_empty()
            && text.len() <= SUBJECT_BYTES_MAX
            && text.bytes().all(|b| b.is_ascii_graphic())
    };
    match (&body.jti, &body.subject_ref, &body.kid, body.epoch) {
        (Some(jti), None, None, None) if named(jti) => Ok(Revoked::Jti {
            jti: jti.clone(),
            until: now_s + TTL_S_MAX + SKEW_S,
        }),
        (None, Some(subject), None, None) if named(subject) => Ok(Revoked::Subject {
            subject_ref: subject.clone(),
            issued_until: now_s,
        }),
        (None, None, Some(kid), None) if named(kid) => Ok(Revoked::Kid { kid: kid.clone() }),
        (None, None, None, Some(epoch)) if i64::try_from(epoch).is_ok() => {
            Ok(Revoked::Epoch { epoch })
        }
        _ => bad(
            "give exactly one of jti, subject_ref, kid, epoch; texts are 1..256 printable ASCII characters",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_target_and_a_reason() {
        let base = RevokeRequest {
            reason: "leaked".to_owned(),
            ..RevokeRequest::default()
        };
        let check =
            |body: RevokeRequest, ok: bool| assert_eq!(revoked(&body, 10).is_ok(), ok, "{body:?}");
        check(base.clone(), false);
        check(
            RevokeRequest {
                jti: Some("j".to_owned()),
                ..base.clone()
            },
            true,
        );
        check(
            RevokeRequest {
                epoch: Some(2),
                ..base.clone()
            },
            true,
        );
        check(
            RevokeRequest {
                epoch: Some(u64::MAX),
                ..base.clone()
            },
            false,
        );
        check(
            RevokeRequest {
                jti: Some("j".to_owned()),
                epoch: Some(2),
                ..base.clone()
            },
            false,
        );
        check(
            RevokeRequest {
                jti: Some("a b".to_owned()),
                ..base
            },
            false,
        );
    }

    #[test]
    fn a_reason_shows_what_it_holds() {
        let check = |reason: &str, ok: bool| {
            let body = RevokeRequest {
                jti: Some("j".to_owned()),
                reason: reason.to_owned(),
                ..RevokeRequest::default()
            };
            assert_eq!(revoked(&body, 10).is_ok(), ok, "{reason:?}");
        };
        check("gestohlen: Gerät 7", true);
        check(&"x".repeat(REASON_BYTES_MAX), true);
        check(&"x".repeat(REASON_BYTES_MAX + 1), false);
        check("", false);
        for hidden in [
            '\0', '\n', '\u{7f}', '\u{85}', '\u{200e}', '\u{202e}', '\u{2066}', '\u{2069}',
        ] {
            check(&format!("a{hidden}b"), false);
        }
    }
}
