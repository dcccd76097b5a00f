//! Signed public documents: status lists and the policy note. No authentication.

use std::sync::Arc;

use ron_http::{Method, Need, Responder, Route};
use ron_kernel::SendError;
use ron_proto::Problem;

use super::Api;
use crate::publish::PublishEvent;

pub fn routes(api: &Arc<Api>) -> [Route; 3] {
    let (lists, notes, keys) = (api.clone(), api.clone(), api.clone());
    [
        Route::new(
            Method::GET,
            "/v1/passport/status/{list}",
            Need::Public,
            move |req, responder| match number(req.param("list")) {
                Some(list) => send(&lists, PublishEvent::Status { list, responder }),
                None => responder.send(Problem::not_found("a status list has a number")),
            },
        )
        .summary("A status list: one bit per token, set when it is revoked (Token Status List).")
        .returns_bytes(200, "application/statuslist+jwt")
        .errors(&[404, 429, 502, 503])
        .while_draining(),
        Route::new(
            Method::GET,
            "/v1/passport/policy",
            Need::Public,
            move |_, responder| send(&notes, PublishEvent::Note(responder)),
        )
        .summary("The policy note: keys, epoch and revocation state for verifiers, as a C2SP signed note; refuse a lower version than one seen before.")
        .returns_bytes(200, "text/plain; charset=utf-8")
        .errors(&[429, 502, 503])
        .while_draining(),
        Route::new(
            Method::GET,
            "/v1/passport/policy/vkey",
            Need::Public,
            move |_, responder| send(&keys, PublishEvent::NoteKey(responder)),
        )
        .summary("The verifier key of the policy note, as a C2SP vkey line.")
        .returns_bytes(200, "text/plain; charset=utf-8")
        .errors(&[429, 502, 503])
        .while_draining(),
    ]
}

/// Plain digits without leading zeros: one URL per list.
fn number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    plain.then(|| text.parse().ok()).flatten()
}

/// Queues a request for the publisher, or answers 429.
pub(super) fn send(api: &Api, event: PublishEvent) {
    let busy = |responder: Responder| {
        responder.send(Problem::busy(api.publish.retry_after_s()));
    };
    match api.publish.try_send(event) {
        Ok(()) => {}
        Err(SendError::Full(event) | SendError::Closed(event)) => match event {
            PublishEvent::Status { responder, .. }
            | PublishEvent::Note(responder)
            | PublishEvent::NoteKey(responder)
            | PublishEvent::Issued { responder, .. } => busy(responder),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn a_list_has_one_name() {
        assert_eq!(number("1763756000"), Some(1_763_756_000));
        for bad in ["", "0", "01", "+1", "1x", "99999999999999999999"] {
            assert_eq!(number(bad), None, "{bad}");
        }
    }
}
