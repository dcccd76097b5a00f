//! What callers are told of a signature that the KMS refuses.

use ron_proto::Problem;

/// The caller's problem for an item that the KMS refused with this code.
pub(super) fn refusal(code: &str) -> Problem {
    match code {
        // The keys were read again before this attempt, without success.
        "version_not_head" => Problem::unavailable(
            "the signing key was rotated, and its new version cannot be used yet: the issuer's /readyz says why",
            2,
        ),
        "key_not_active" => Problem::unavailable(
            "the signing key is retired, or its destruction is scheduled: the operator should look at it (`ron kms show`) and \
             rotate it or cancel its destruction; then tokens are issued again",
            10,
        ),
        "busy" | "deadline_exceeded" | "draining" | "in_flight" | "rate_limited" | "unavailable" => {
            Problem::unavailable(format!("the KMS does not sign now: {code}"), 2)
        }
        // A retry cannot help: only the operator can change this.
        _ => Problem::new(
            500,
            "sign_refused",
            "Signing refused",
            format!(
                "the KMS refuses to sign this token ({code}), and will again: the operator should look at the payload policy \
                 and the state of the issuer key (`ron kms show`), and at the issuer policy that is in force in the KMS"
            ),
        )
        .with_oauth("server_error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_that_cannot_be_followed_is_distinguished_from_a_refusal() {
        let rotated = refusal("version_not_head");
        assert_eq!(
            (rotated.code, rotated.retry_after_s),
            ("unavailable", Some(2))
        );
        assert!(rotated.detail.contains("/readyz"), "{}", rotated.detail);
        let refused = refusal("payload_refused");
        assert_eq!((refused.status, refused.retryable), (500, false));
        assert_eq!(refused.oauth, Some("server_error"));
        for word in ["payload_refused", "ron kms show"] {
            assert!(refused.detail.contains(word), "{}", refused.detail);
        }
        assert!(refusal("unavailable").retryable);
        let inactive = refusal("key_not_active");
        assert_eq!((inactive.status, inactive.retryable), (503, true));
        assert!(inactive.detail.contains("ron kms show"), "{inactive:?}");
    }
}
