//! Keys inside another key service, which wraps and unwraps for this one: another ron-kms, or a Vault Transit
//! endpoint. Only the name of such a key is stored here.
//!
//! ```text
//!  wrap ──> SessionPool (session threads, keeper) ──> Session { credential } ──HTTP──> the other service
//!             this service's header | the other service's ciphertext
//! ```
//!
//! Each version of a key here is a separate key there, made under an operation id that is derived from its name, so
//! that a repeated request makes one key. The other service chooses the nonces.
//!
//! **Invariants.** A call ends within its deadline by itself, so no thread is ever abandoned. No wrapping is retried.
//! The credential is read for every new session, so that a replaced file is used after the next reconnection or
//! reload.

mod dialect;

use ron_proto::kms::KeyBackend;
use std::sync::Arc;
use std::time::Duration;

use ron_crypto::secret::SecretBytes;
use ron_http::{Call, CallError, Failure, HttpClient, Method, Reply};
use ron_kernel::Deadline;
use ron_proto::values::{Alg, Purpose, Tenant};
use ron_service::config::secret_from_env_or_file;
use zeroize::Zeroizing;

use super::session_pool::{Fault, Session, TEST_MESSAGE, check_unwrapped};
use super::{Handle, NewKey, Wrapping};
use crate::keys::PublicKey;
use dialect::Dialect;

/// A call times out a seventh of its time before the caller does, so that its thread is free in time: the kernel
/// rounds the time-outs of sockets up by as much as an eighth.
const MARGIN_PART: u32 = 7;
/// Maximum time of a probe's call; less than the pool allows, so that the call times out first.
const PROBE: Duration = Duration::from_millis(900);

/// The other service and how to call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSettings {
    /// Base URL; for Vault with the mount's path, such as `https://vault:8200/v1/transit`.
    pub url: String,
    /// Path of the credential's file, or `env:NAME`.
    pub token: String,
    pub api: Api,
    /// Tenant of the keys made there (ron-kms only).
    pub tenant: Tenant,
    /// Purpose of the keys made there (ron-kms only).
    pub purpose: Purpose,
    pub sessions: usize,
}

ron_service::choice! {
    /// The API of the other service.
    pub enum Api {
        Ron = "ron",
        /// HashiCorp Vault's Transit engine, or a compatible service.
        VaultTransit = "vault-transit",
    }
}

pub struct Remote {
    http: Arc<HttpClient>,
    settings: RemoteSettings,
}

impl Remote {
    /// Stores the settings; makes no call.
    pub fn new(http: Arc<HttpClient>, settings: RemoteSettings) -> Self {
        Self { http, settings }
    }

    /// A session with the present content of the credential's file or variable.
    pub fn connect(&self) -> Result<RemoteSession, Fault> {
        let settings = &self.settings;
        let token = secret_from_env_or_file(&settings.token, &|name| std::env::var(name).ok())
            .map_err(|why| Fault::Denied(format!("remote.token: {why}")))?;
        let text = std::str::from_utf8(token.expose())
            .map_err(|_| Fault::Denied("remote.token: it is not text".into()))?;
        Ok(RemoteSession {
            link: Link {
                http: self.http.clone(),
                base: settings.url.clone(),
                credential: Zeroizing::new(match settings.api {
                    Api::Ron => format!("Bearer {}", text.trim()),
                    Api::VaultTransit => text.trim().to_owned(),
                }),
                header: match settings.api {
                    Api::Ron => "Authorization",
                    Api::VaultTransit => "X-Vault-Token",
                },
            },
            dialect: Dialect::of(settings),
        })
    }
}

/// The HTTP connection of a session.
pub(super) struct Link {
    http: Arc<HttpClient>,
    base: String,
    header: &'static str,
    credential: Zeroizing<String>,
}

impl Link {
    /// One call, which times out before its caller does. `repeatable` lets the client retry; set only for idempotent
    /// requests.
    fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        repeatable: bool,
        deadline: Deadline,
    ) -> Result<Reply, Fault> {
        let url = format!("{}{path}", self.base);
        let left = deadline.remaining();
        let left = left.saturating_sub(left / MARGIN_PART);
        let left_ms = left.as_millis().max(1).to_string();
        let headers = [
            (self.header, self.credential.as_str()),
            ("X-Request-Deadline-Ms", &left_ms),
        ];
        let content_type = body.as_ref().map(|_| "application/json");
        let reply = self.http.call(Call {
            method,
            url: &url,
            headers: &headers,
            body,
            content_type,
            deadline: Deadline::within(left),
            idempotent: repeatable,
        });
        judged(reply)
    }
}

/// Turns failures of the service, as opposed to refusals of the request, into faults.
fn judged(reply: Result<Reply, CallError>) -> Result<Reply, Fault> {
    let reply = reply.map_err(|error| match error.kind {
        Failure::NotSent | Failure::BreakerOpen | Failure::Withheld => Fault::Gone(error.detail),
        // The request may have been carried out, so the outcome is unknown.
        Failure::Unknown => Fault::TimedOut,
        _ => Fault::Refused(error.detail),
    })?;
    match reply.status {
        401 => Err(Fault::Denied(
            "it does not accept the credential (remote.token)".into(),
        )),
        429 => Err(Fault::Busy {
            retry_after_s: reply.retry_after_s().unwrap_or(1),
        }),
        502 | 503 => Err(Fault::Gone(format!("it answers {}", reply.status))),
        504 => Err(Fault::TimedOut),
        _ => Ok(reply),
    }
}

/// A refusal as status and code only: the detail might repeat parts of the request.
fn refused(reply: &Reply) -> Fault {
    let code = reply.problem().map(|p| p.code).unwrap_or_default();
    Fault::Refused(format!("it answers {} {code}", reply.status))
}

/// A session with the other service, owned by one thread.
pub struct RemoteSession {
    link: Link,
    dialect: Dialect,
}

impl Session for RemoteSession {
    const KIND: KeyBackend = KeyBackend::Remote;
    const OPS: &'static [&'static str] = &[
        "probe",
        "remote_make",
        "remote_destroy",
        "remote_wrap",
        "remote_unwrap",
    ];

    fn probe(&mut self) -> Result<(), Fault> {
        self.dialect.probe(&self.link, Deadline::within(PROBE))
    }

    fn make(
        &mut self,
        alg: Alg,
        _: [u8; 16],
        name: &str,
        deadline: Deadline,
    ) -> Result<NewKey, Fault> {
        let name = self.dialect.make(&self.link, alg, name, deadline)?;
        let handle = Handle(name.into_bytes());
        let how = Wrapping {
            alg,
            nonce: None,
            aad: Vec::new(),
        };
        let wrapped = self.wrap(&handle, &how, TEST_MESSAGE, deadline)?;
        check_unwrapped(&self.unwrap(&handle, &how, &wrapped, deadline)?)?;
        let public = PublicKey::Hidden(alg);
        Ok(NewKey { handle, public })
    }

    fn destroy(&mut self, handle: &Handle, deadline: Deadline) -> Result<(), Fault> {
        self.dialect.destroy(&self.link, name_of(handle)?, deadline)
    }

    fn wrap(
        &mut self,
        handle: &Handle,
        how: &Wrapping,
        plaintext: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>, Fault> {
        let name = name_of(handle)?;
        self.dialect
            .wrap(&self.link, name, &how.aad, plaintext, deadline)
    }

    fn unwrap(
        &mut self,
        handle: &Handle,
        how: &Wrapping,
        wrapped: &[u8],
        deadline: Deadline,
    ) -> Result<SecretBytes, Fault> {
        let name = name_of(handle)?;
        self.dialect
            .unwrap(&self.link, name, &how.aad, wrapped, deadline)
    }
}

/// The key's name in the other service.
fn name_of(handle: &Handle) -> Result<&str, Fault> {
    std::str::from_utf8(&handle.0).map_err(|_| Fault::Refused("the key's name is damaged".into()))
}
