//! Errors on the wire: RFC 9457 problems with a stable code from a closed list, and the table of
//! the codes that all services share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{CaveatError, ValueError, strict::StrictError};

/// One row of the table of codes; the documentation is generated from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProblemKind {
    /// The stable name in snake case.
    pub code: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// A short text for people, always the same for a code.
    pub title: &'static str,
    /// True when the same request may succeed later.
    pub retryable: bool,
    /// What happened and what the caller can do.
    pub meaning: &'static str,
}

const fn kind(
    code: &'static str,
    status: u16,
    title: &'static str,
    retryable: bool,
    meaning: &'static str,
) -> ProblemKind {
    ProblemKind {
        code,
        status,
        title,
        retryable,
        meaning,
    }
}

macro_rules! common {
    ($($name:ident = $kind:expr;)*) => {
        mod kinds {
            use super::{ProblemKind, kind};
            $(pub(super) const $name: ProblemKind = $kind;)*
        }

        /// The codes with the same meaning in every service.
        pub const COMMON: &[ProblemKind] = &[$(kinds::$name),*];
    };
}

common! {
    BAD_REQUEST = kind("bad_request", 400, "The request is malformed", false,
        "The request violates the rule named in the detail and must be changed.");
    UNAUTHORIZED = kind("unauthorized", 401, "No valid credential", false,
        "The credential is missing, malformed, expired, revoked or not for this service.");
    FORBIDDEN = kind("forbidden", 403, "Not allowed", false,
        "The credential is valid, but its scopes, tenant or caveats do not permit this request.");
    NOT_FOUND = kind("not_found", 404, "Not found", false,
        "The resource does not exist, or the caller may not see it.");
    METHOD_NOT_ALLOWED = kind("method_not_allowed", 405, "Method not allowed", false,
        "The path exists; the Allow header lists its methods.");
    REQUEST_TIMEOUT = kind("request_timeout", 408, "The request arrived too slowly", true,
        "The head or body was not complete in time; nothing was done.");
    CONFLICT = kind("conflict", 409, "Conflict with the current state", false,
        "The request conflicts with the current state; read the state again before retrying.");
    IN_FLIGHT = kind("in_flight", 409, "The same operation is still running", true,
        "An operation with this id has not finished; retry the request to get its outcome.");
    TOO_LARGE = kind("too_large", 413, "Too large", false,
        "The body exceeds its size limit, compressed or decompressed.");
    URI_TOO_LONG = kind("uri_too_long", 414, "Request line too long", false,
        "The request line exceeds its size limit.");
    UNSUPPORTED_MEDIA_TYPE = kind("unsupported_media_type", 415, "Unsupported media type", false,
        "The route does not accept this content type or encoding.");
    EXPECTATION_FAILED = kind("expectation_failed", 417, "Expectation failed", false,
        "Only Expect: 100-continue is supported.");
    IDEMPOTENCY_MISMATCH = kind("idempotency_mismatch", 422,
        "The operation id was used with another body", false,
        "The id was used for a different request; use a new one.");
    BUSY = kind("busy", 429, "Busy", true,
        "A bounded queue is full, or what follows the writes is far behind; nothing was done. Wait Retry-After seconds.");
    RATE_LIMITED = kind("rate_limited", 429, "Too many requests", true,
        "The caller's rate limit is exceeded; nothing was done. Wait Retry-After seconds.");
    HEADERS_TOO_LARGE = kind("headers_too_large", 431, "Header block too large", false,
        "The header block exceeds its size limit or has too many fields.");
    INTERNAL = kind("internal", 500, "Internal error", false,
        "The service failed; the request id identifies the failure in its log.");
    NOT_IMPLEMENTED = kind("not_implemented", 501, "Not implemented", false,
        "The service, or this build of it, does not support the operation.");
    UPSTREAM_ERROR = kind("upstream_error", 502, "An upstream service failed", true,
        "A service this one depends on failed or returned an invalid response.");
    UNAVAILABLE = kind("unavailable", 503, "Unavailable", true,
        "The service cannot process the request now; the detail says what is missing.");
    DRAINING = kind("draining", 503, "Shutting down", true,
        "The service is shutting down and accepts no new requests.");
    DEADLINE_EXCEEDED = kind("deadline_exceeded", 504, "Deadline exceeded", true,
        "The deadline passed. The outcome of a mutation is unknown: repeat it with the same id.");
}

/// An error response. Contains no secrets and no parts of the request.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// The stable code, snake case.
    pub code: &'static str,
    /// A short text for people.
    pub title: &'static str,
    /// What happened and what to do about it.
    pub detail: String,
    /// True when the same request may succeed later.
    pub retryable: bool,
    /// Further data for programs.
    pub details: Option<Box<Value>>,
    /// Value of the `Retry-After` header, in seconds.
    pub retry_after_s: Option<u32>,
    /// The header that belongs to the answer, by [`Problem::with_location`] or
    /// [`Problem::with_challenge`]: name and value.
    pub header: Option<Box<(&'static str, String)>>,
    /// The RFC 6749 error code, on OAuth endpoints only.
    pub oauth: Option<&'static str>,
}

macro_rules! with_detail {
    ($($(#[$doc:meta])* $name:ident = $kind:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(detail: impl Into<String>) -> Self {
            Self::of(&kinds::$kind, detail)
        })*
    };
}

impl Problem {
    /// A problem with a service's own code. `retryable` follows from the status (true for 429 and
    /// 503); [`Problem::retryable`] overrides it.
    pub fn new(
        status: u16,
        code: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            status,
            code,
            title,
            detail: detail.into(),
            retryable: matches!(status, 429 | 503),
            details: None,
            retry_after_s: None,
            header: None,
            oauth: None,
        }
    }

    /// A problem of one row of the table.
    pub fn of(kind: &ProblemKind, detail: impl Into<String>) -> Self {
        Self {
            retryable: kind.retryable,
            ..Self::new(kind.status, kind.code, kind.title, detail)
        }
    }

    with_detail! {
        /// 400: the detail names the violated rule.
        bad_request = BAD_REQUEST;
        /// 401: no valid credential.
        unauthorized = UNAUTHORIZED;
        /// 403: the credential does not permit this.
        forbidden = FORBIDDEN;
        /// 404: no such resource.
        not_found = NOT_FOUND;
        /// 405: the path supports other methods only.
        method_not_allowed = METHOD_NOT_ALLOWED;
        /// 408: head or body arrived too slowly.
        request_timeout = REQUEST_TIMEOUT;
        /// 409: conflicts with the current state.
        conflict = CONFLICT;
        /// 413: exceeds a size limit.
        too_large = TOO_LARGE;
        /// 414: the request line exceeds its size limit.
        uri_too_long = URI_TOO_LONG;
        /// 415: content type or encoding not supported.
        unsupported_media_type = UNSUPPORTED_MEDIA_TYPE;
        /// 417: an expectation other than 100-continue.
        expectation_failed = EXPECTATION_FAILED;
        /// 422: the operation id was used with another body.
        idempotency_mismatch = IDEMPOTENCY_MISMATCH;
        /// 431: the header block exceeds its limit.
        headers_too_large = HEADERS_TOO_LARGE;
        /// 500: a failure of the service.
        internal = INTERNAL;
        /// 501: not supported by this service.
        not_implemented = NOT_IMPLEMENTED;
        /// 502: an upstream service failed or returned an invalid response.
        upstream_error = UPSTREAM_ERROR;
        /// 504: the deadline passed; the outcome of a mutation is unknown.
        deadline_exceeded = DEADLINE_EXCEEDED;
    }

    /// 409: an operation with this id has not finished; retry after a second.
    pub fn in_flight(detail: impl Into<String>) -> Self {
        Self::of(&kinds::IN_FLIGHT, detail).with_retry_after(1)
    }

    /// 429: a bounded queue is full.
    pub fn busy(retry_after_s: u32) -> Self {
        Self::of(&kinds::BUSY, "a queue is full; nothing was done").with_retry_after(retry_after_s)
    }

    /// 429: the caller's rate limit is exceeded.
    pub fn rate_limited(retry_after_s: u32) -> Self {
        Self::of(
            &kinds::RATE_LIMITED,
            "the caller's rate limit is exceeded; nothing was done",
        )
        .with_retry_after(retry_after_s)
    }

    /// 503: cannot be processed now; the detail says what is missing.
    pub fn unavailable(detail: impl Into<String>, retry_after_s: u32) -> Self {
        Self::of(&kinds::UNAVAILABLE, detail).with_retry_after(retry_after_s)
    }

    /// 503: the service is shutting down.
    pub fn draining(retry_after_s: u32) -> Self {
        Self::of(
            &kinds::DRAINING,
            "the service is shutting down and accepts no new requests",
        )
        .with_retry_after(retry_after_s)
    }

    /// Sets `details` for programs.
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// Sets the `Location` header.
    pub fn with_location(mut self, location: impl Into<String>) -> Self {
        self.header = Some(Box::new(("location", location.into())));
        self
    }

    /// Sets the `Retry-After` header, in seconds.
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Sets whether the same request may succeed later.
    pub fn retryable(mut self, retryable: bool) -> Self {
        self.retryable = retryable;
        self
    }

    /// Sets the `WWW-Authenticate` header of a 401 or 403 (RFC 6750 section 3, RFC 9449 section 7.1); a 401
    /// without one names the scheme alone.
    pub fn with_challenge(mut self, challenge: impl Into<String>) -> Self {
        self.header = Some(Box::new(("www-authenticate", challenge.into())));
        self
    }

    /// Converts to an OAuth error (RFC 6749) with this `error` code.
    pub fn with_oauth(mut self, error: &'static str) -> Self {
        self.oauth = Some(error);
        self
    }

    /// The content type of [`Problem::to_json`].
    pub fn content_type(&self) -> &'static str {
        if self.oauth.is_some() {
            "application/json"
        } else {
            "application/problem+json"
        }
    }

    /// The body: a problem document, or the OAuth form after [`Problem::with_oauth`].
    pub fn to_json(&self, request_id: &str) -> Vec<u8> {
        if let Some(error) = self.oauth {
            let body = json!({
                "error": error,
                "error_description": self.detail,
                "code": self.code,
                "request_id": request_id,
            });
            return body.to_string().into_bytes();
        }
        let mut body = json!({
            "type": format!("urn:ron:error:{}", self.code),
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "retryable": self.retryable,
            "request_id": request_id,
        });
        if let Some(details) = &self.details {
            body["details"] = (**details).clone();
        }
        body.to_string().into_bytes()
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {}: {}", self.status, self.code, self.detail)
    }
}

impl std::error::Error for Problem {}

impl From<ValueError> for Problem {
    fn from(error: ValueError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<StrictError> for Problem {
    fn from(error: StrictError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<CaveatError> for Problem {
    fn from(error: CaveatError) -> Self {
        Self::new(400, error.code, "Invalid caveat", error.detail)
    }
}

/// A problem as a client reads it; unknown members are ignored, as RFC 9457 requires.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct ProblemBody {
    /// `urn:ron:error:<code>`.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// A short text for people.
    #[serde(default)]
    pub title: String,
    /// The HTTP status of the response.
    #[serde(default)]
    pub status: u16,
    /// What happened and what to do about it; `error_description` in the OAuth form.
    #[serde(default, alias = "error_description")]
    pub detail: String,
    /// The stable code in snake case.
    #[serde(default)]
    pub code: String,
    /// True when the same request may succeed later.
    #[serde(default)]
    pub retryable: bool,
    /// Identifies the request in the service's log.
    #[serde(default)]
    pub request_id: String,
    /// Further data for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_well_formed() {
        let codes: std::collections::BTreeSet<_> = COMMON.iter().map(|kind| kind.code).collect();
        assert_eq!(codes.len(), COMMON.len(), "one name, one meaning");
        for kind in COMMON {
            assert!((400..600).contains(&kind.status), "{}", kind.code);
            assert!(
                kind.code
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
            );
            assert!(
                !kind.title.is_empty() && kind.meaning.ends_with('.'),
                "{}",
                kind.code
            );
            if matches!(kind.status, 429 | 503 | 504) {
                assert!(kind.retryable, "{} can succeed later", kind.code);
            }
        }
    }

    fn body(problem: &Problem) -> Value {
        serde_json::from_slice(&problem.to_json("req-1")).expect("problems are JSON")
    }

    #[test]
    fn a_problem_is_an_rfc_9457_document() {
        let problem = Problem::busy(7).with_details(json!({"queue": "sign"}));
        assert_eq!(problem.content_type(), "application/problem+json");
        assert_eq!(problem.retry_after_s, Some(7));
        let expected = json!({
            "type": "urn:ron:error:busy",
            "title": "Busy",
            "status": 429,
            "detail": "a queue is full; nothing was done",
            "code": "busy",
            "retryable": true,
            "request_id": "req-1",
            "details": {"queue": "sign"},
        });
        assert_eq!(body(&problem), expected);
        let read: ProblemBody = serde_json::from_value(expected.clone()).expect("clients read it");
        assert_eq!(read.code, "busy");
        assert_eq!(serde_json::to_value(&read).expect("it writes"), expected);
    }

    #[test]
    fn oauth_problems_have_their_own_form() {
        let problem = Problem::unauthorized("wrong secret").with_oauth("invalid_client");
        assert_eq!(problem.content_type(), "application/json");
        assert_eq!(body(&problem)["error"], "invalid_client");
        assert_eq!(body(&problem)["error_description"], "wrong secret");
        let read: ProblemBody = serde_json::from_value(body(&problem)).expect("clients read it");
        let told = (read.code.as_str(), read.detail.as_str());
        assert_eq!(told, ("unauthorized", "wrong secret"));
    }

    #[test]
    fn clients_read_problems_of_others() {
        let foreign = r#"{"title": "x", "status": 500, "extra": {"a": 1}}"#;
        let read: ProblemBody = serde_json::from_str(foreign).expect("unknown members are fine");
        assert_eq!((read.status, read.code.as_str()), (500, ""));
    }

    #[test]
    fn constructors_keep_to_the_table() {
        let check = |problem: Problem| {
            let kind = COMMON
                .iter()
                .find(|kind| kind.code == problem.code)
                .expect("in the table");
            assert_eq!(
                (problem.status, problem.title, problem.retryable),
                (kind.status, kind.title, kind.retryable)
            );
            let wants_wait = matches!(problem.status, 429 | 503) || problem.code == "in_flight";
            assert_eq!(
                problem.retry_after_s.is_some(),
                wants_wait,
                "{}",
                problem.code
            );
        };
        let with_detail: [fn(&'static str) -> Problem; 18] = [
            Problem::bad_request,
            Problem::unauthorized,
            Problem::forbidden,
            Problem::not_found,
            Problem::method_not_allowed,
            Problem::request_timeout,
            Problem::conflict,
            Problem::in_flight,
            Problem::too_large,
            Problem::uri_too_long,
            Problem::unsupported_media_type,
            Problem::expectation_failed,
            Problem::idempotency_mismatch,
            Problem::headers_too_large,
            Problem::internal,
            Problem::not_implemented,
            Problem::upstream_error,
            Problem::deadline_exceeded,
        ];
        for make in with_detail {
            check(make("why"));
        }
        check(Problem::busy(1));
        check(Problem::rate_limited(1));
        check(Problem::unavailable("why", 1));
        check(Problem::draining(1));
        assert_eq!(with_detail.len() + 4, COMMON.len());
    }

    /// A larger error would make every `Result` larger.
    #[test]
    fn a_problem_is_small() {
        assert!(size_of::<Problem>() <= 120, "{}", size_of::<Problem>());
    }

    #[test]
    fn errors_of_this_crate_become_problems() {
        let value = "x y".parse::<crate::Account>().unwrap_err();
        assert_eq!(Problem::from(value).code, "bad_request");
        let caveat = "nonsense=1".parse::<crate::Caveat>().unwrap_err();
        let problem = Problem::from(caveat);
        assert_eq!((problem.status, problem.code), (400, "unknown_caveat"));
        let strict = crate::strict::from_slice::<Value>(b"{").unwrap_err();
        assert_eq!(Problem::from(strict).status, 400);
    }
}
