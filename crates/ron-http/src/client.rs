//! The client side: one call with one deadline, a bounded answer, retries where they are safe, a
//! breaker per peer, and an outcome that says whether the request may have been carried out.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ron_kernel::{
    Backoff, Breaker, BreakerLimits, Clock, Deadline, LockSpec, OsNet, OsRandom, RankedMutex,
    SharedNet, SharedRandom, Shutdown, ShutdownTrigger, SystemClock, Turn, assert_no_locks,
};
use ron_proto::ProblemBody;
use serde::de::DeserializeOwned;
use ureq::http::{self, HeaderName, HeaderValue, Uri};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use crate::client_errors::{CallError, Cause, Failure, body_error, call_error};
use crate::dial::{Dial, internal_url, unix_path};
use crate::head::Method;
use crate::tls::ClientTls;
use crate::trace::continue_in;
use crate::uds::own_or;

/// The row of the lock table that a client adds to its service's topology.
pub const CLIENT_LOCK: LockSpec = LockSpec {
    name: "http_breakers",
    rank: 898,
    guards: "the breakers of a client, one per peer",
};
static BREAKERS: LockSpec = CLIENT_LOCK;

/// Maximum number of peers with a breaker; further peers are called without one.
const PEERS_MAX: usize = 64;
/// Attempts of an idempotent call, the first included.
const TRIES: u32 = 3;

/// What is called when a breaker opens or closes; nothing by default. It runs on the calling thread and must not wait.
#[derive(Clone, Default)]
pub struct BreakerHook(Option<OnTurn>);

type OnTurn = Arc<dyn Fn(&str, Turn) + Send + Sync>;

impl BreakerHook {
    pub fn new(hook: impl Fn(&str, Turn) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }
}

impl std::fmt::Debug for BreakerHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BreakerHook")
            .field(&self.0.is_some())
            .finish()
    }
}

/// Configuration of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    pub user_agent: String,
    /// Idle connections kept per peer; set it to the number of calling threads.
    pub max_idle_per_host: usize,
    /// Largest answer body in bytes.
    pub max_response_bytes: u64,
    /// Longest time to connect; the call's deadline may be earlier.
    pub connect_timeout: Duration,
    /// Pause before the second attempt; it doubles with each further one. Up to the same amount is
    /// added to every pause at random.
    pub retry_base: Duration,
    /// Upper bound of the doubling.
    pub retry_cap: Duration,
    /// The breaker that each peer has, as calls made for a request need. `None` for a loop that
    /// paces its own attempts and must see at once that a peer has recovered.
    pub breaker: Option<BreakerLimits>,
    /// Called when the breaker of a peer, given as `host:port` or socket, opens or closes.
    pub on_breaker: BreakerHook,
    /// How long a typed client retries a call that was refused for the moment (429, 503). Zero for
    /// a service: its own callers get the refusal and decide.
    pub patience: Duration,
    /// TLS settings; without them, https URLs are refused.
    pub tls: Option<ClientTls>,
    /// User ids that the servers of Unix sockets may run as; empty means the client's own. Checked
    /// with the kernel for every connection before a byte is written.
    pub peer_uids: Vec<u32>,
    /// Send service tokens to plain `http://` URLs on loopback too. Any local process that takes
    /// the port of a service that is down then gets them.
    pub insecure_loopback: bool,
    /// For the pauses between attempts.
    pub random: SharedRandom,
    pub net: SharedNet,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            user_agent: concat!("ron/", env!("CARGO_PKG_VERSION")).to_owned(),
            max_idle_per_host: 16,
            max_response_bytes: 4 << 20,
            connect_timeout: Duration::from_secs(2),
            retry_base: Duration::from_millis(50),
            retry_cap: Duration::from_millis(400),
            breaker: Some(BreakerLimits::default()),
            on_breaker: BreakerHook::default(),
            patience: Duration::ZERO,
            tls: None,
            peer_uids: Vec::new(),
            insecure_loopback: false,
            random: OsRandom::shared(),
            net: OsNet::shared(),
        }
    }
}

#[derive(Clone)]
pub struct Call<'a> {
    pub method: Method,
    /// The absolute URL: `http`, `https`, or a Unix socket as `unix:/run/x.sock:/path` or
    /// `http+unix://%2Frun%2Fx.sock/path`.
    pub url: &'a str,
    /// Headers; the values are never logged.
    pub headers: &'a [(&'a str, &'a str)],
    pub body: Option<Vec<u8>>,
    pub content_type: Option<&'a str>,
    /// Deadline of the whole call: connecting, sending and reading included.
    pub deadline: Deadline,
    /// True when executing the call twice has the effect of once: such calls are retried.
    pub idempotent: bool,
}

impl<'a> Call<'a> {
    pub fn get(url: &'a str, deadline: Deadline) -> Self {
        Self {
            method: Method::GET,
            url,
            headers: &[],
            body: None,
            content_type: None,
            deadline,
            idempotent: true,
        }
    }

    /// A POST of JSON; set `idempotent` when it carries an operation id.
    pub fn post_json(url: &'a str, body: Vec<u8>, deadline: Deadline) -> Self {
        Self {
            method: Method::POST,
            body: Some(body),
            content_type: Some("application/json"),
            idempotent: false,
            ..Self::get(url, deadline)
        }
    }

    pub fn headers(self, headers: &'a [(&'a str, &'a str)]) -> Self {
        Self { headers, ..self }
    }

    /// Sets whether the call may be sent again.
    pub fn idempotent(self, idempotent: bool) -> Self {
        Self { idempotent, ..self }
    }
}

/// An answer, whatever its status.
#[derive(Clone)]
pub struct Reply {
    pub status: u16,
    /// Headers whose values are text; names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    /// True for 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The body as JSON, read strictly.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, CallError> {
        ron_proto::strict::from_slice(&self.body).map_err(|error| {
            CallError::new(
                Failure::BadAnswer,
                format!("the answer is not what was expected: {error}"),
            )
        })
    }

    /// The problem document of an error answer, if it is one.
    pub fn problem(&self) -> Option<ProblemBody> {
        serde_json::from_slice(&self.body).ok()
    }

    /// `Retry-After` in seconds.
    pub fn retry_after_s(&self) -> Option<u32> {
        self.header("retry-after")?.parse().ok()
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Reply({}, {} bytes)", self.status, self.body.len())
    }
}

/// A client with its connection pool; share it by `Arc`.
pub struct HttpClient {
    agent: ureq::Agent,
    config: ClientConfig,
    breakers: RankedMutex<BTreeMap<String, Arc<Breaker>>>,
    seed: AtomicU64,
    repeats: AtomicU64,
    stop: ShutdownTrigger,
    stopped: Shutdown,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "HttpClient({})", self.config.user_agent)
    }
}

impl HttpClient {
    /// A client without connections. It follows no redirects and uses no proxy.
    pub fn new(config: ClientConfig) -> Self {
        let settings = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(config.user_agent.as_str())
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .max_idle_connections(config.max_idle_per_host * 8)
            .max_idle_connections_per_host(config.max_idle_per_host)
            .max_idle_age(Duration::from_secs(30)) // below the servers' idle timeout
            .no_delay(true)
            .build();
        let dial = Dial::new(
            config.net.clone(),
            config.tls.clone(),
            own_or(&config.peer_uids),
        );
        let agent = ureq::Agent::with_parts(settings, dial, Literal::default());
        let (stop, stopped) = Shutdown::pair();
        Self {
            agent,
            seed: AtomicU64::new(config.random.u64()),
            config,
            breakers: RankedMutex::new(&BREAKERS, BTreeMap::new()),
            repeats: AtomicU64::new(0),
            stop,
            stopped,
        }
    }

    /// How long a typed client, which knows what a refusal means, retries a call that was refused
    /// for the moment.
    pub fn patience(&self) -> Duration {
        self.config.patience
    }

    /// The seed of the next call's pauses, without a system call.
    pub fn seed(&self) -> u64 {
        self.seed
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }

    /// Counts a retry of a call that was refused for the moment.
    pub fn count_repeat(&self) {
        self.repeats.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of such retries, of all typed clients on top of this one.
    pub fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
    }

    /// Calls, and waits for the whole answer. An answer of any status is `Ok`. Without an answer,
    /// idempotent calls are retried up to two times within the deadline; other calls only when
    /// nothing was sent.
    pub fn call(&self, call: Call<'_>) -> Result<Reply, CallError> {
        let uri = self.target(&call)?;
        let breaker = self.breaker(&uri);
        let (base, cap) = (self.config.retry_base, self.config.retry_cap);
        let mut backoff = Backoff::new(base, cap, base, self.seed());
        // The attempt that may have been executed; a later attempt that was not sent does not
        // change that, so this error is the one to return.
        let mut open: Option<CallError> = None;
        loop {
            let error = match self.guarded(breaker.as_deref(), &uri, || self.once(&call, &uri)) {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let safe = call.idempotent || error.kind == Failure::NotSent;
            let again = matches!(error.kind, Failure::NotSent | Failure::Unknown);
            let error = match open.take() {
                Some(earlier) if error.nothing_done() => earlier,
                _ => error,
            };
            if !safe || !again || backoff.steps() + 1 >= TRIES {
                return Err(error);
            }
            let pause = backoff.next_pause();
            if pause >= call.deadline.remaining() || self.stopped.wait(Deadline::within(pause)) {
                return Err(error);
            }
            open = Some(error).filter(|error| !error.nothing_done());
        }
    }

    /// Sends a file, from its current position, as the body of a call. The file is not read into
    /// memory, and the call is not retried. The call's own body must be empty.
    pub fn send_file(&self, call: &Call<'_>, file: &File) -> Result<Reply, CallError> {
        let uri = self.target(call)?;
        let breaker = self.breaker(&uri);
        self.guarded(breaker.as_deref(), &uri, || {
            let left = self.time_left(call)?;
            self.run(call, &uri, left, file)
        })
    }

    /// The target of the call; an error when its credentials must not be sent there.
    fn target(&self, call: &Call<'_>) -> Result<Uri, CallError> {
        assert_no_locks("an HTTP call");
        let withheld = |detail: &str| CallError::new(Failure::Withheld, detail);
        let uri = internal_url(call.url)
            .ok_or_else(|| CallError::new(Failure::NotSent, "the URL is not valid"))?;
        let plain_tcp = uri.scheme_str() != Some("https") && unix_path(&uri).is_none();
        if plain_tcp && call.headers.iter().any(holds_service_token) {
            if !self.config.insecure_loopback {
                return Err(withheld(
                    "a service token is not sent over plain TCP, where any user of the host can take \
                     the port of a service that is down; use the service's Unix socket, as in \
                     unix:/run/ron/ron-kms/api.sock, or https (or set insecure_loopback = true)",
                ));
            }
            if !is_loopback(&uri) {
                return Err(withheld(
                    "a service token is sent over plain TCP on loopback only; use https",
                ));
            }
        }
        Ok(uri)
    }

    /// Ends running calls and refuses new ones: part of the drain.
    pub fn shutdown(&self) {
        self.stop.fire();
        self.agent.clone().shutdown();
    }

    /// Makes the call if the breaker allows it, and records the result.
    fn guarded(
        &self,
        breaker: Option<&Breaker>,
        uri: &Uri,
        act: impl FnOnce() -> Result<Reply, CallError>,
    ) -> Result<Reply, CallError> {
        let Some(breaker) = breaker else { return act() };
        if let Err(wait) = breaker.allow(SystemClock.now()) {
            let ms = wait.as_millis();
            let detail = format!("the peer failed too often; next try in {ms} ms");
            return Err(CallError::new(Failure::BreakerOpen, detail));
        }
        let outcome = act();
        // Too large or not understood: the peer did answer, so it is not down.
        let ours = outcome
            .as_ref()
            .is_err_and(|e| matches!(e.kind, Failure::TooLarge | Failure::BadAnswer));
        let turn = breaker.record(SystemClock.now(), outcome.is_ok() || ours);
        if let (Some(turn), Some(hook)) = (turn, &self.config.on_breaker.0) {
            hook(uri.authority().map_or("", |peer| peer.as_str()), turn);
        }
        outcome
    }

    fn breaker(&self, uri: &Uri) -> Option<Arc<Breaker>> {
        let limits = self.config.breaker?;
        let peer = uri.authority()?.as_str();
        let mut breakers = self.breakers.lock();
        if let Some(breaker) = breakers.get(peer) {
            return Some(breaker.clone());
        }
        // The map stays bounded; a peer without a breaker is only less protected.
        if breakers.len() >= PEERS_MAX {
            return None;
        }
        let new = || Arc::new(Breaker::new(limits));
        Some(breakers.entry(peer.to_owned()).or_insert_with(new).clone())
    }

    fn once(&self, call: &Call<'_>, uri: &Uri) -> Result<Reply, CallError> {
        let left = self.time_left(call)?;
        match &call.body {
            Some(body) => self.run(call, uri, left, body.as_slice()),
            None => self.run(call, uri, left, ()),
        }
    }

    fn time_left(&self, call: &Call<'_>) -> Result<Duration, CallError> {
        if self.stopped.is_set() {
            return Err(CallError::new(Failure::NotSent, "the client is shut down"));
        }
        let left = call.deadline.remaining();
        if left.is_zero() {
            return Err(CallError::new(
                Failure::NotSent,
                "the deadline had passed before the call",
            )
            .because(Cause::Timeout));
        }
        Ok(left)
    }

    fn run(
        &self,
        call: &Call<'_>,
        uri: &Uri,
        left: Duration,
        body: impl ureq::AsSendBody,
    ) -> Result<Reply, CallError> {
        let mut request = http::Request::builder()
            .method(call.method.as_str())
            .uri(uri)
            .body(body)
            .map_err(|_| CallError::new(Failure::NotSent, "the request cannot be built"))?;
        for (name, value) in call.headers.iter().copied().chain(
            call.content_type
                .map(|content_type| ("content-type", content_type)),
        ) {
            let pair = (
                HeaderName::from_bytes(name.as_bytes()),
                HeaderValue::from_str(value),
            );
            let (Ok(name), Ok(mut value)) = pair else {
                return Err(CallError::new(Failure::NotSent, "a header is not valid"));
            };
            // Keeps the credential out of debug output of the library.
            value.set_sensitive(name == http::header::AUTHORIZATION);
            request.headers_mut().append(name, value);
        }
        if unix_path(uri).is_some() {
            // The internal host name that encodes the socket's path must not leave the process.
            let host = HeaderValue::from_static("localhost");
            request.headers_mut().insert(http::header::HOST, host);
        }
        continue_in(request.headers_mut());
        let request = self
            .agent
            .configure_request(request)
            .timeout_global(Some(left))
            .timeout_connect(Some(left.min(self.config.connect_timeout)))
            .build();
        let mut response = self
            .agent
            .run(request)
            .map_err(|error| call_error(&error))?;
        let body = response
            .body_mut()
            .with_config()
            .limit(self.config.max_response_bytes)
            .read_to_vec()
            .map_err(|error| body_error(&error))?;
        let text = |(name, value): (&HeaderName, &HeaderValue)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        };
        Ok(Reply {
            status: response.status().as_u16(),
            headers: response.headers().iter().filter_map(text).collect(),
            body,
        })
    }
}

/// Whether a header carries a service token (`ron_...`), which is valid for any bearer and never
/// expires.
fn holds_service_token((name, value): &(&str, &str)) -> bool {
    let credential = ["authorization", "x-vault-token"];
    credential.iter().any(|one| name.eq_ignore_ascii_case(one))
        && value.split(' ').any(|word| word.starts_with("ron_"))
}

fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or("");
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host
            .parse()
            .is_ok_and(|ip: std::net::IpAddr| ip.to_canonical().is_loopback())
}

/// Resolves addresses and `localhost` itself; the system's resolver, which costs a thread per
/// lookup, gets only other names.
#[derive(Debug, Default)]
struct Literal {
    names: DefaultResolver,
}

impl Resolver for Literal {
    fn resolve(
        &self,
        uri: &Uri,
        config: &ureq::config::Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let host = uri
            .host()
            .unwrap_or("")
            .trim_start_matches('[')
            .trim_end_matches(']');
        let host = if host.eq_ignore_ascii_case("localhost") {
            "127.0.0.1"
        } else {
            host
        };
        let host = if unix_path(uri).is_some() {
            "127.0.0.1" // never connected to
        } else {
            host
        };
        let Ok(ip) = host.parse() else {
            return self.names.resolve(uri, config, timeout);
        };
        let default = if uri.scheme_str() == Some("https") {
            443
        } else {
            80
        };
        let mut addrs = self.empty();
        addrs.push(std::net::SocketAddr::new(
            ip,
            uri.port_u16().unwrap_or(default),
        ));
        Ok(addrs)
    }
}
