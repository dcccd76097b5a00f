//! One call: URL, credential, JSON both ways, and the meaning of its outcome.
//!
//! Reads are retried by the HTTP client itself. Mutations that carry their own operation id are
//! retried here, because a retry changes the meaning of later answers: once an attempt may have
//! been carried out, a "busy" answer says nothing about that attempt, and the outcome stays unknown
//! until a definite answer arrives.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ron_http::{Call, CallError, Cause, HttpClient, Method, Reply};
use ron_kernel::{Backoff, Deadline, Shutdown, ShutdownTrigger};
use ron_proto::ProblemBody;
use ron_proto::ledger::NOT_ACTIVE;
use serde::Serialize;
use serde::de::DeserializeOwned;

use ron_http::Credential;

/// Attempts of a mutation that may be repeated, including the first; a client with patience makes
/// more.
const TRIES: u32 = 3;
/// Pauses between attempts: 25 to 50 ms, then 50 to 75 ms; a client with patience makes longer ones
/// after these. Short, because a client that is shut down notices it only at the next attempt.
const PAUSE: Duration = Duration::from_millis(25);
const PAUSE_CAP: Duration = Duration::from_millis(400);
/// Pause after a refusal that does not say how long to wait.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// A call that was not carried out, or whose outcome is unknown.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientError {
    /// The service refused: nothing changed.
    Refused {
        status: u16,
        problem: Box<ProblemBody>,
        /// Seconds to wait, from `Retry-After`.
        retry_after_s: Option<u32>,
    },
    /// The request was or may have been carried out.
    Unknown { cause: Cause, detail: String },
    /// The request never reached the service: nothing changed.
    NotSent { detail: String },
}

impl ClientError {
    /// The stable code of a refusal.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { problem, .. } => Some(&problem.code),
            Self::Unknown { .. } | Self::NotSent { .. } => None,
        }
    }

    /// The status of a refusal.
    pub const fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Unknown { .. } | Self::NotSent { .. } => None,
        }
    }

    /// Whether the same request can succeed later.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Refused { problem, .. } => problem.retryable,
            Self::Unknown { .. } | Self::NotSent { .. } => true,
        }
    }

    /// URL of the node that does what this one refused because it is a standby.
    fn active(&self) -> Option<&str> {
        match self {
            Self::Refused { problem, .. } if problem.code == NOT_ACTIVE => {
                problem.details.as_ref()?.get("active")?.as_str()
            }
            _ => None,
        }
    }

    /// How long to wait before the same request, if it was refused only for the moment: the service
    /// is busy or not ready, and nothing was done.
    fn wait_for(&self) -> Option<Duration> {
        match self {
            Self::Refused {
                status: 429 | 503,
                problem,
                retry_after_s,
            } if problem.retryable => {
                let wait = Duration::from_secs(retry_after_s.unwrap_or(0).into());
                Some(wait.max(REFUSED_PAUSE))
            }
            _ => None,
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused {
                status, problem, ..
            } => {
                write!(
                    f,
                    "refused with {status} {}: {}",
                    problem.code, problem.detail
                )
            }
            Self::Unknown { detail, .. } => write!(f, "outcome unknown: {detail}"),
            Self::NotSent { detail } => write!(f, "not reached: {detail}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// The nodes of a service, and which of them calls go to.
#[derive(Debug)]
struct Nodes {
    bases: Vec<String>,
    at: AtomicUsize,
}

impl Nodes {
    fn new(bases: &str) -> Self {
        Self {
            bases: bases.split(',').map(|base| base_url(base.trim())).collect(),
            at: AtomicUsize::new(0),
        }
    }

    fn at(&self) -> usize {
        self.at.load(Ordering::Relaxed)
    }

    /// Calls go from the node `from` to the active one, if it is of these nodes, else to the next.
    /// Nothing changes when another call has left that node before.
    fn leave(&self, from: usize, active: Option<&str>) {
        let active = active.map(base_url);
        let known = |base: &String| Some(base) == active.as_ref();
        // A credential goes to no URL that only an answer has named.
        let to = self.bases.iter().position(known).filter(|to| *to != from);
        let to = to.unwrap_or((from + 1) % self.bases.len());
        let (seen, done) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = self.at.compare_exchange(from, to, done, seen);
    }
}

/// The URLs and the credential of a service; every typed client is built on it.
#[derive(Debug, Clone)]
pub struct Caller {
    nodes: Arc<Nodes>,
    credential: Arc<Credential>,
    http: Arc<HttpClient>,
    /// Never fired; only its timed wait is used.
    idle: Arc<(ShutdownTrigger, Shutdown)>,
}

/// One request before it is sent.
pub struct Outgoing<'a> {
    pub method: Method,
    /// Path and query, from the slash on.
    pub path: &'a str,
    /// Body and its content type.
    pub body: Option<(Vec<u8>, &'a str)>,
    pub headers: &'a [(&'a str, &'a str)],
    /// Safe to send twice.
    pub idempotent: bool,
    pub deadline: Deadline,
}

impl Caller {
    /// A caller of the service at `base`, for example `http://127.0.0.1:7440`,
    /// `https://kms.example` or, for a Unix socket, `unix:/run/ron/kms.sock`; the URLs of several
    /// nodes of one service have commas between them.
    pub fn new(base: &str, credential: Credential, http: Arc<HttpClient>) -> Self {
        Self {
            nodes: Arc::new(Nodes::new(base)),
            credential: Arc::new(credential),
            http,
            idle: Arc::new(Shutdown::pair()),
        }
    }

    /// URLs of the service's nodes.
    pub fn nodes(&self) -> &[String] {
        &self.nodes.bases
    }

    /// The node that calls go to, as an index of [`Caller::nodes`].
    pub fn node(&self) -> usize {
        self.nodes.at()
    }

    /// Sends calls to the node at `active`, if it is of this service, else to the next one, because
    /// the node `from` does not do what is asked.
    pub fn leave(&self, from: usize, active: Option<&str>) {
        self.nodes.leave(from, active);
    }

    pub fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        deadline: Deadline,
    ) -> Result<T, ClientError> {
        read(&self.send(&Outgoing::get(path, deadline))?)
    }

    pub fn get_text(&self, path: &str, deadline: Deadline) -> Result<String, ClientError> {
        let reply = self.send(&Outgoing::get(path, deadline))?;
        String::from_utf8(reply.body).map_err(|_| bad_answer("the answer is not text"))
    }

    /// POST with JSON body and answer. `idempotent` means that it is safe to send twice.
    pub fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        idempotent: bool,
        deadline: Deadline,
    ) -> Result<T, ClientError> {
        self.with_body(Method::POST, path, body, idempotent, deadline)
    }

    /// Any method with JSON body and answer.
    pub fn with_body<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &B,
        idempotent: bool,
        deadline: Deadline,
    ) -> Result<T, ClientError> {
        let json = serde_json::to_vec(body).map_err(|e| ClientError::NotSent {
            detail: format!("the request cannot be written: {e}"),
        })?;
        read(&self.send(&Outgoing {
            method,
            body: Some((json, "application/json")),
            idempotent,
            ..Outgoing::get(path, deadline)
        })?)
    }

    /// Sends the request; any status but 2xx is an error. A mutation that may be repeated is
    /// repeated while its outcome is unknown and attempts and time are left. A request that is
    /// refused only for the moment by every node is repeated within the client's patience
    /// ([`ron_http::ClientConfig`]), and so is one whose outcome is unknown.
    pub fn send(&self, out: &Outgoing<'_>) -> Result<Reply, ClientError> {
        let patience = Deadline::within(self.http.patience().min(out.deadline.remaining()));
        let mut backoff = Backoff::new(PAUSE, PAUSE_CAP, PAUSE, self.http.seed());
        let mut open: Option<ClientError> = None;
        let mut asked = 0;
        loop {
            let at = self.nodes.at();
            let (error, done_nothing, leaves) = match judge(self.once(at, out)) {
                Verdict::Done(reply) => return Ok(reply),
                Verdict::Settled(error) => return Err(error),
                Verdict::Nothing(error) => {
                    // A node that limits its clients is not left for that.
                    let leaves = matches!(error.status(), None | Some(503));
                    (error, true, leaves)
                }
                Verdict::Open(error) => (error, false, true),
                Verdict::Running(error) => (error, false, false),
            };
            if leaves {
                self.nodes.leave(at, error.active());
                asked += 1;
                let is_last = asked % self.nodes.bases.len() == 0;
                let may_repeat = done_nothing || out.idempotent;
                if !is_last && may_repeat && !out.deadline.expired() {
                    open = open.or((!done_nothing).then_some(error));
                    continue;
                }
            }
            // What an earlier attempt may have done is not ruled out by a refusal of this one.
            let unknown = match (done_nothing, open.take()) {
                (true, None) => match self.pause_of(&error) {
                    Some(pause) if pause < patience.remaining() => {
                        self.http.count_repeat();
                        self.idle.1.wait(Deadline::within(pause));
                        continue;
                    }
                    _ => return Err(error),
                },
                (true, Some(earlier)) => earlier,
                (false, _) => error,
            };
            let pause = backoff.next_pause();
            let may = out.idempotent && out.method != Method::GET;
            let impatient = backoff.steps() >= TRIES && pause >= patience.remaining();
            if !may || impatient || pause >= out.deadline.remaining() {
                return Err(unknown);
            }
            self.idle.1.wait(Deadline::within(pause));
            open = Some(unknown);
        }
    }

    /// How long to wait before all nodes are asked again that have done nothing. The only node of a
    /// service is not waited for when it cannot be reached: the HTTP client has tried it again.
    fn pause_of(&self, error: &ClientError) -> Option<Duration> {
        match error {
            ClientError::NotSent { .. } if self.nodes.bases.len() > 1 => Some(REFUSED_PAUSE),
            _ => error.wait_for(),
        }
    }

    /// Sends a file as the body, once, without holding it in memory. `out` has no body of its own.
    pub fn send_file(
        &self,
        out: &Outgoing<'_>,
        content_type: &str,
        file: &std::fs::File,
    ) -> Result<Reply, ClientError> {
        let url = format!("{}{}", self.nodes.bases[self.nodes.at()], out.path);
        let mut headers = out.headers.to_vec();
        if let Some(value) = self.credential.header() {
            headers.push(("Authorization", value));
        }
        let call = Call {
            method: out.method,
            url: &url,
            headers: &headers,
            body: None,
            content_type: Some(content_type),
            deadline: out.deadline,
            idempotent: false,
        };
        match judge(self.http.send_file(&call, file)) {
            Verdict::Done(reply) => Ok(reply),
            Verdict::Settled(error)
            | Verdict::Nothing(error)
            | Verdict::Open(error)
            | Verdict::Running(error) => Err(error),
        }
    }

    fn once(&self, node: usize, out: &Outgoing<'_>) -> Result<Reply, CallError> {
        let url = format!("{}{}", self.nodes.bases[node], out.path);
        let deadline_ms = out.deadline.remaining().as_millis().max(1).to_string();
        let mut headers = out.headers.to_vec();
        headers.push(("X-Request-Deadline-Ms", &deadline_ms));
        if let Some(value) = self.credential.header() {
            headers.push(("Authorization", value));
        }
        let (body, content_type) = match &out.body {
            Some((bytes, kind)) => (Some(bytes.clone()), Some(*kind)),
            None => (None, None),
        };
        self.http.call(Call {
            method: out.method,
            url: &url,
            headers: &headers,
            body,
            content_type,
            deadline: out.deadline,
            idempotent: out.idempotent && out.method == Method::GET,
        })
    }
}

impl<'a> Outgoing<'a> {
    pub const fn get(path: &'a str, deadline: Deadline) -> Self {
        Self {
            method: Method::GET,
            path,
            body: None,
            headers: &[],
            idempotent: true,
            deadline,
        }
    }
}

pub fn read<T: DeserializeOwned>(reply: &Reply) -> Result<T, ClientError> {
    reply.json().map_err(|e| failed(&e))
}

fn failed(error: &CallError) -> ClientError {
    let detail = error.detail.clone();
    if error.nothing_done() {
        ClientError::NotSent { detail }
    } else {
        ClientError::Unknown {
            cause: error.cause,
            detail,
        }
    }
}

fn bad_answer(detail: &str) -> ClientError {
    ClientError::Unknown {
        cause: Cause::Other,
        detail: detail.to_owned(),
    }
}

/// What one attempt means for the operation.
#[derive(Debug)]
enum Verdict {
    Done(Reply),
    /// Refused, whatever happened to earlier attempts: with one operation id they are one
    /// operation.
    Settled(ClientError),
    /// This attempt did nothing, for a temporary reason; earlier attempts may have done something.
    Nothing(ClientError),
    /// This attempt may have been carried out.
    Open(ClientError),
    /// The operation is under way at this node.
    Running(ClientError),
}

fn judge(outcome: Result<Reply, CallError>) -> Verdict {
    let reply = match outcome {
        Ok(reply) if reply.is_success() => return Verdict::Done(reply),
        Ok(reply) => reply,
        Err(error) if error.nothing_done() => return Verdict::Nothing(failed(&error)),
        Err(error) => return Verdict::Open(failed(&error)),
    };
    let problem = reply.problem().unwrap_or_else(|| ProblemBody {
        kind: String::new(),
        title: String::new(),
        status: reply.status,
        detail: "no problem document came with the answer".to_owned(),
        code: String::new(),
        retryable: reply.status >= 500,
        request_id: String::new(),
        details: None,
    });
    // 500, 502 and 504 leave open what was done, and so does an operation that is still running;
    // every other error guarantees that this request changed nothing.
    let is_running = problem.code == "in_flight";
    if is_running || matches!(reply.status, 500 | 502 | 504) {
        let verdict = if is_running {
            Verdict::Running
        } else {
            Verdict::Open
        };
        return verdict(ClientError::Unknown {
            cause: Cause::Other,
            detail: format!("{} {}: {}", reply.status, problem.code, problem.detail),
        });
    }
    let refused = ClientError::Refused {
        status: reply.status,
        problem: Box::new(problem),
        retry_after_s: reply.retry_after_s(),
    };
    match reply.status {
        401 | 403 | 408 | 429 | 503 => Verdict::Nothing(refused),
        _ => Verdict::Settled(refused),
    }
}

/// The prefix of all request URLs.
fn base_url(base: &str) -> String {
    match base.strip_prefix("unix:") {
        // A colon ends the socket's path in such a URL.
        Some(socket) if !socket.contains(':') => format!("{base}:"),
        _ => base.trim_end_matches('/').to_owned(),
    }
}

/// Everything but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Percent-encodes one path segment or query value.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// A path with a query of these names and values.
pub fn with_query(path: &str, query: &[(&str, String)]) -> String {
    let parts = query
        .iter()
        .map(|(name, value)| format!("{name}={}", encode(value)));
    let parts: Vec<String> = parts.collect();
    format!("{path}?{}", parts.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_percent_encoded() {
        let query = [("account", "a:b/c".to_owned()), ("limit", "7".to_owned())];
        assert_eq!(with_query("/x", &query), "/x?account=a%3Ab%2Fc&limit=7");
    }

    #[test]
    fn bases_take_a_path_behind_them() {
        let check = |base: &str, want: &str| assert_eq!(base_url(base), want);
        check("http://127.0.0.1:7440", "http://127.0.0.1:7440");
        check("https://kms.example/", "https://kms.example");
        check("unix:/run/ron/kms.sock", "unix:/run/ron/kms.sock:");
        check("unix:/run/ron/kms.sock:", "unix:/run/ron/kms.sock:");
        check("unix:/run/kms.sock:/under/", "unix:/run/kms.sock:/under");
        check(
            "http+unix://%2Frun%2Fk.sock/",
            "http+unix://%2Frun%2Fk.sock",
        );
    }

    #[test]
    fn calls_leave_a_node_for_the_active_one_or_the_next() {
        let nodes = Nodes::new("http://a/, http://b,unix:/run/c.sock");
        assert_eq!(nodes.bases, ["http://a", "http://b", "unix:/run/c.sock:"]);
        let check = |from: usize, active: Option<&str>, at: usize| {
            nodes.leave(from, active);
            assert_eq!(nodes.at(), at, "from {from} to {active:?}");
        };
        check(0, None, 1);
        check(0, None, 1); // another call has left it before
        check(1, Some("http://a/"), 0);
        check(0, Some("unix:/run/c.sock"), 2);
        check(2, Some("http://elsewhere"), 0);
        check(0, Some("http://a"), 1); // it does not do what it says
    }

    #[test]
    fn segments_are_encoded() {
        assert_eq!(encode("eth:0xab/c d"), "eth%3A0xab%2Fc%20d");
        assert_eq!(encode("a-b._~9"), "a-b._~9");
        assert_eq!(encode("\u{e9}\n%"), "%C3%A9%0A%25");
    }

    fn reply(status: u16, body: &str) -> Reply {
        Reply {
            status,
            headers: Vec::new(),
            body: body.as_bytes().to_vec(),
        }
    }

    #[test]
    fn statuses_say_whether_anything_was_done() {
        let check = |status: u16, body: &str, meaning: &str| {
            let found = match judge(Ok(reply(status, body))) {
                Verdict::Done(_) => "done",
                Verdict::Settled(ClientError::Refused { .. }) => "settled",
                Verdict::Nothing(ClientError::Refused { .. }) => "nothing",
                Verdict::Open(ClientError::Unknown { .. }) => "open",
                Verdict::Running(ClientError::Unknown { .. }) => "running",
                other => panic!("{status} became {other:?}"),
            };
            assert_eq!(found, meaning, "{status} {body}");
        };
        for status in [200, 201, 202, 204] {
            check(status, "", "done");
        }
        for status in [400, 404, 409, 413, 415, 422] {
            check(status, "{}", "settled");
        }
        for status in [401, 403, 408, 429, 503] {
            check(status, "{}", "nothing");
        }
        for status in [500, 502, 504] {
            check(status, "not even JSON", "open");
        }
        check(409, r#"{"code":"in_flight"}"#, "running");
        check(409, r#"{"code":"conflict"}"#, "settled");
    }
}
