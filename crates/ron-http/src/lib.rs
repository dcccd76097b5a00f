//! ron-http: the HTTP/1.1 front of every service, and the client with which services call each
//! other.
//!
//! ```text
//!              readiness, by edge
//!  sockets ────────────────────────────────────────────────────────> fixed workers: read, parse, authorise,
//!  TCP, TLS,     while all of them are busy       bounded queue      run the handler (serve.rs)
//!  Unix    └───> poll thread (front.rs) ────────> tokens ──────────>    │ Responder
//!                 │ accepts, sweeps deadlines                           │
//!                 └──────────── slots.rs: connection ownership  <───────┘ answers from any
//!                                                                         thread (shared.rs)
//!  bytes in:  stream.rs (TLS or not) ─> parse.rs ─> body.rs (chunks) ─> unpack.rs, or spool.rs (disk)
//!  bytes out: response.rs ─> conn.rs ─> stream.rs; large ones from source.rs, rate checked by pace.rs
//! ```
//!
//! **Invariants**: a connection has one owner at a time, and only the owner touches its socket; no
//! lock is held over I/O; an idle connection holds no buffer; authorisation runs after the head and
//! before the body; a request is handed to a handler at most once and answered exactly once; every
//! buffer has a limit in [`Limits`], and all buffers together stay within the process's budget
//! (memory.rs); no peer (peer.rs) can take all of a resource that peers share. This crate knows no
//! service.

mod admit;
mod auth;
mod body;
mod cert_time;
mod client;
mod client_errors;
mod conn;
mod credential;
mod date;
mod dial;
mod failures;
mod front;
#[doc(hidden)]
pub mod fuzzing;
mod head;
mod ids;
mod limits;
mod listener;
mod memory;
mod metrics;
mod openapi;
mod pace;
mod parse;
mod peer;
mod request;
mod responder;
mod response;
mod room;
mod route;
mod router;
mod serve;
mod shared;
mod slots;
mod source;
mod spans;
mod spool;
mod stream;
mod timer;
mod tls;
mod trace;
mod uds;
mod unpack;

pub use auth::{Authorizer, DenyAll, Need, Principal, PrincipalKind};
pub use client::{BreakerHook, CLIENT_LOCK, Call, ClientConfig, HttpClient, Reply};
pub use client_errors::{CallError, Cause, Failure};
pub use credential::Credential;
pub use dial::url_origin;
pub use front::{FRONT_LOCKS, Front, FrontHandle, FrontSpec};
pub use head::{ClientCert, Headers, Method, RequestHead, Transport};
pub use limits::{Limits, WAIT_MAX_S};
pub use listener::Listen;
pub use memory::HeldBytes;
pub use metrics::AnswerCounts;
pub use openapi::ApiInfo;
pub use parse::FIELDS_MAX;
pub use peer::{Peer, Proxies};
pub use request::{Request, form_decode, form_fields};
pub use responder::Responder;
pub use response::{Body, HeaderText, Response, Streamed};
pub use route::{Handler, Route, sync};
pub use router::Router;
pub use source::Source;
pub use spans::{EndedSpan, Span, Spans};
pub use spool::{Upload, UploadReader};
pub use tls::{
    ClientTls, ClientTlsFiles, ServerTls, ServerTlsFiles, TlsError, TlsIdentity, certificate_ends,
    certificate_is_for, certificate_print, reload_tls,
};
pub use trace::{JointCalls, Trace, TraceScope};
pub use uds::{UNIX_PATH_MAX, UnixEndpoint, UnixError};
