//! Calls without an answer: whether the request may have been executed, and what happened on the way.

use crate::uds::ForeignServer;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request never reached the peer: nothing was done.
    NotSent,
    /// The peer's breaker is open: nothing was sent.
    BreakerOpen,
    /// Nothing was sent, because the peer may be an impostor: a socket's server that runs as
    /// another user, or plain TCP for a service token.
    Withheld,
    /// The request was or may have been sent, and no answer came: the outcome is unknown.
    Unknown,
    /// The peer's answer is above the size bound: the outcome is unknown.
    TooLarge,
    /// The peer's answer could not be understood: the outcome is unknown.
    BadAnswer,
}

/// What happened on the way, as far as callers treat it differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The peer refused the connection: most likely it is not running.
    Refused,
    /// A deadline passed, also that of connecting.
    Timeout,
    /// The answer is above [`crate::ClientConfig::max_response_bytes`].
    TooLarge,
    /// Anything else; the detail says it.
    Other,
}

/// A call without an answer. The detail contains no header and no byte of a body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct CallError {
    pub kind: Failure,
    pub cause: Cause,
    pub detail: String,
}

impl CallError {
    pub(crate) fn new(kind: Failure, detail: impl Into<String>) -> Self {
        Self {
            kind,
            cause: Cause::Other,
            detail: detail.into(),
        }
    }

    pub(crate) fn because(self, cause: Cause) -> Self {
        Self { cause, ..self }
    }

    /// True when the peer certainly did not execute the request.
    pub fn nothing_done(&self) -> bool {
        matches!(
            self.kind,
            Failure::NotSent | Failure::BreakerOpen | Failure::Withheld
        )
    }
}

/// Maps an error before the answer's body. The text is our own: the library's may contain a URL.
pub(crate) fn call_error(error: &ureq::Error) -> CallError {
    use std::io::ErrorKind as Io;
    let not_sent = |detail: &str| CallError::new(Failure::NotSent, detail);
    match error {
        #[cfg(mutant = "unsent")] // a request that was sent counts as one that was not
        ureq::Error::Io(_) if ron_kernel::mutant("unsent") => not_sent("the connection failed"),
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => not_sent("the URL is not valid"),
        ureq::Error::HostNotFound => not_sent("the peer's name does not resolve"),
        ureq::Error::ConnectionFailed => {
            not_sent("the peer cannot be connected to").because(Cause::Refused)
        }
        ureq::Error::Tls(why) => not_sent(why),
        ureq::Error::Other(cause) if cause.is::<ForeignServer>() => {
            CallError::new(Failure::Withheld, cause.to_string())
        }
        ureq::Error::TlsRequired | ureq::Error::RequireHttpsOnly(_) => not_sent(
            "https needs a file of trusted authorities: tls.peer_ca_path of a service, --ca of a command",
        ),
        ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => {
            not_sent("the peer did not accept the connection in time").because(Cause::Timeout)
        }
        ureq::Error::Timeout(_) => {
            CallError::new(Failure::Unknown, "no answer within the deadline")
                .because(Cause::Timeout)
        }
        ureq::Error::Io(error) => match error.kind() {
            Io::ConnectionRefused => {
                not_sent("the peer refused the connection").because(Cause::Refused)
            }
            Io::NotConnected => not_sent("the client is shut down"),
            Io::HostUnreachable | Io::NetworkUnreachable | Io::AddrNotAvailable => {
                not_sent("the peer cannot be reached")
            }
            kind => CallError::new(Failure::Unknown, format!("the connection failed: {kind}")),
        },
        ureq::Error::LargeResponseHeader(..) | ureq::Error::BodyExceedsLimit(_) => too_large(),
        _ => CallError::new(
            Failure::Unknown,
            "the peer's answer is not HTTP as expected",
        ),
    }
}

fn too_large() -> CallError {
    CallError::new(Failure::TooLarge, "the answer is above the client's bound")
        .because(Cause::TooLarge)
}

/// Maps an error within the answer's body: half an answer does not say whether the request was
/// executed.
pub(crate) fn body_error(error: &ureq::Error) -> CallError {
    match error {
        ureq::Error::BodyExceedsLimit(_) => too_large(),
        ureq::Error::Timeout(_) => CallError::new(
            Failure::Unknown,
            "the answer was not complete within the deadline",
        )
        .because(Cause::Timeout),
        _ => CallError::new(Failure::Unknown, "the connection failed within the answer"),
    }
}
