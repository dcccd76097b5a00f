//! The wallet's own problems, beside those that every service shares.

use ron_proto::Problem;
use ron_proto::ledger::EntryKey;

/// 503: nothing was committed; the same request may succeed soon.
pub fn retry_later(detail: impl Into<String>) -> Problem {
    Problem::new(503, "retry_later", "Retry later", detail).with_retry_after(1)
}

/// 409: the first request with this key is not answered yet.
pub fn in_flight() -> Problem {
    Problem::in_flight(
        "the first request with this key has no answer yet; send it again or read /v1/ops/{key}",
    )
}

/// 504: the outcome is not known, nor will this wallet know of the key after a restart.
pub fn unknown_and_not_recorded() -> Problem {
    Problem::deadline_exceeded(
        "the outcome is not known yet, and the wallet could not record the key: send the same request with the same key again",
    )
}

/// 504: the outcome is not known yet. The Location is that of the operation.
pub fn unknown(key: &EntryKey) -> Problem {
    Problem::deadline_exceeded(
        "the outcome is not known yet: send the same request with the same key again, read the outcome at the Location, or give it up with POST <Location>/abandon",
    )
    .with_location(format!("/v1/ops/{}", key.as_str()))
}
