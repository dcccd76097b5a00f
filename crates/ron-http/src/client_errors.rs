//! What an error of the HTTP library means for the caller: whether the request may have been
//! executed.

use crate::client::{CallError, Failure};
use crate::uds::ForeignServer;

/// Maps an error before the answer's body. The text is our own: the library's may contain a URL.
pub(crate) fn call_error(error: &ureq::Error) -> CallError {
    use std::io::ErrorKind as Io;
    let not_sent = |detail: &str| CallError::new(Failure::NotSent, detail);
    match error {
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => not_sent("the URL is not valid"),
        ureq::Error::HostNotFound => not_sent("the peer's name does not resolve"),
        ureq::Error::ConnectionFailed => not_sent("the peer cannot be connected to"),
        ureq::Error::Tls(why) => not_sent(why),
        ureq::Error::Other(cause) if cause.is::<ForeignServer>() => {
            CallError::new(Failure::Withheld, cause.to_string())
        }
        ureq::Error::TlsRequired | ureq::Error::RequireHttpsOnly(_) => not_sent(
            "https needs a file of trusted authorities: tls.peer_ca_path of a service, --ca of a command",
        ),
        ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => {
            not_sent("the peer did not accept the connection in time")
        }
        ureq::Error::Timeout(_) => {
            CallError::new(Failure::Unknown, "no answer within the deadline")
        }
        ureq::Error::Io(error) => match error.kind() {
            Io::ConnectionRefused => not_sent("the peer refused the connection"),
            Io::NotConnected => not_sent("the client is shut down"),
            Io::HostUnreachable | Io::NetworkUnreachable | Io::AddrNotAvailable => {
                not_sent("the peer cannot be reached")
            }
            kind => CallError::new(Failure::Unknown, format!("the connection failed: {kind}")),
        },
        ureq::Error::LargeResponseHeader(..) | ureq::Error::BodyExceedsLimit(_) => {
            CallError::new(Failure::TooLarge, "the answer is above the client's bound")
        }
        _ => CallError::new(
            Failure::Unknown,
            "the peer's answer is not HTTP as expected",
        ),
    }
}

/// Maps an error within the answer's body: half an answer does not say whether the request was
/// executed.
pub(crate) fn body_error(error: &ureq::Error) -> CallError {
    match error {
        ureq::Error::BodyExceedsLimit(_) => {
            CallError::new(Failure::TooLarge, "the answer is above the client's bound")
        }
        ureq::Error::Timeout(_) => CallError::new(
            Failure::Unknown,
            "the answer was not complete within the deadline",
        ),
        _ => CallError::new(Failure::Unknown, "the connection failed within the answer"),
    }
}
