//! The status of each cause of a refusal.

use ron_custody::{Cause, Refusal};
use ron_proto::kms::ItemError;
use ron_proto::problem::Problem;
use serde_json::json;

/// The refusal as the answer of a request.
pub fn problem(refusal: Refusal) -> Problem {
    let Refusal {
        cause,
        detail,
        head,
        retry_after_s,
    } = refusal;
    let own = |status, title| Problem::new(status, cause.code(), title, detail.clone());
    let unavailable = |title| own(503, title).with_retry_after(retry_after_s);
    let problem = match cause {
        Cause::BadRequest => Problem::bad_request(detail),
        Cause::TooLarge => Problem::too_large(detail),
        Cause::Unsupported => own(400, "No backend offers this"),
        Cause::Forbidden => Problem::forbidden(detail),
        Cause::ApprovalMissing => own(403, "Approvals are missing"),
        Cause::ApprovalRefused => own(403, "The approval does not count"),
        Cause::KeyPolicyDenied => own(403, "The key's policy does not allow this"),
        Cause::NotFound => Problem::not_found(detail),
        Cause::PayloadRefused => own(403, "The key's payload policy refuses this"),
        Cause::PolicyRefused => own(409, "The policy does not come into force"),
        Cause::CheckpointRefused => own(409, "The checkpoint does not extend the last one signed"),
        Cause::CiphertextRefused => own(400, "The ciphertext does not open"),
        Cause::UsesExhausted => own(409, "The version has reached its limit of uses"),
        Cause::VersionNotHead => own(409, "The pinned version is not the head"),
        Cause::StaleHead => own(409, "The expected head is not the head"),
        Cause::StaleAlias => own(409, "The alias names another key"),
        Cause::KeyNotActive => own(409, "The key is not active"),
        Cause::ExportForbidden => own(403, "The key may not be exported"),
        Cause::WrappedRefused => own(400, "The wrapped key does not open"),
        Cause::OpIdMismatch => Problem::idempotency_mismatch(detail),
        Cause::InFlight => Problem::in_flight(detail),
        Cause::AnswersLost => own(503, "Remembered answers are lost").retryable(false),
        Cause::Busy => Problem::busy(retry_after_s),
        Cause::AuditUnavailable => unavailable("The audit log is not available"),
        Cause::AuditTampered => own(503, "The audit log was changed").retryable(false),
        Cause::StoreUnavailable => unavailable("The key store is not available"),
        Cause::Quarantined => own(503, "The stored record is damaged").retryable(false),
        Cause::KeyMissing => own(503, "The device no longer has the key").retryable(false),
        Cause::AttestationMissing => unavailable("The key has no recent attestation"),
        Cause::DeadlineExceeded => Problem::deadline_exceeded(detail),
        Cause::Draining => Problem::draining(retry_after_s),
        Cause::Internal => Problem::internal(detail),
    };
    match head {
        Some(head) => problem.with_details(json!({ "head": head })),
        None => problem,
    }
}

/// The refusal as the error of one item of a batch.
pub fn item_error(refusal: Refusal) -> ItemError {
    let problem = problem(refusal);
    ItemError {
        status: problem.status,
        code: problem.code.to_owned(),
        detail: problem.detail,
        retryable: problem.retryable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_keeps_its_code() {
        for &cause in Cause::ALL {
            let problem = problem(Refusal::new(cause, "d"));
            assert_eq!(problem.code, cause.code());
            assert!((400..600).contains(&problem.status));
            assert_eq!(
                problem.retryable,
                match cause {
                    Cause::InFlight => true,
                    Cause::AnswersLost
                    | Cause::AuditTampered
                    | Cause::Quarantined
                    | Cause::KeyMissing => false,
                    _ => matches!(problem.status, 429 | 503 | 504),
                }
            );
        }
    }
}
