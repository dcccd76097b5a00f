//! The two threads that keep an authorizer's snapshots fresh: the issuer's keys by interval (or at once when an
//! unknown key turns up), its revocations by long poll. Neither is ever in a request's path.

use crate::authorizer::RonAuthorizer;
use crate::jwks::{JwksError, JwksSnapshot, PqRule};
use crate::revocation::RevocationView;
use crate::settings::IssuerConfig;
use ron_http::{Call, ClientConfig, ClientTls, HttpClient};
use ron_kernel::loops::{NextRead, read_again};
use ron_kernel::{
    Backoff, CounterVec, Deadline, KernelMetrics, Overflow, QueueSpec, Receiver, Registry, Sender,
    Shutdown, ThreadCtx,
};
use ron_proto::passport::RevocationPage;
use ron_proto::strict;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Carries "look again now" from request threads to the key thread; one is enough.
pub const REFRESH_QUEUE: QueueSpec = QueueSpec {
    name: "auth_refresh",
    capacity: 1,
    overflow: Overflow::DropOldest,
    from: "request handlers",
    to: "auth-keys",
    when_full: "a refresh is already asked for; nothing is lost",
};
pub(crate) static REFRESH_QUEUE_SPEC: QueueSpec = REFRESH_QUEUE;

/// One read of keys or events, connect included.
const FETCH_DEADLINE: Duration = Duration::from_secs(3);
/// Unknown keys trigger at most one read in this time.
const KICK_GAP: Duration = Duration::from_secs(5);
/// How long the issuer may hold a poll open; a drain cuts it short by closing the client.
const POLL_WAIT_S: u64 = 20;
/// Least time between two polls.
const FEED_GAP: Duration = Duration::from_millis(250);
/// Events in a full page; a shorter page is the last.
const PAGE_EVENTS: usize = 1000;
/// Failures in a row after which the service says that it is degraded.
const FAILURES_TOLD: u32 = 3;

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchError {
    Timeout,
    /// What happened, without secrets.
    Failed(String),
}

/// Reads one small document.
pub trait Fetch: Send + Sync {
    fn get(&self, url: &str, deadline: Deadline) -> Result<Vec<u8>, FetchError>;
    /// Gives up what is being read and refuses from now on.
    fn close(&self);
}

/// Over HTTP, with a client of its own so that closing it disturbs nobody.
pub(crate) struct HttpFetch(HttpClient);

impl HttpFetch {
    pub fn new(service: &str, tls: Option<ClientTls>) -> Self {
        Self(HttpClient::new(ClientConfig {
            user_agent: format!("{service}/auth"),
            max_response_bytes: 1 << 20,
            // The threads pace themselves; an open breaker would keep revocations away for 5 s more.
            breaker: false,
            tls,
            ..ClientConfig::default()
        }))
    }
}

impl Fetch for HttpFetch {
    fn get(&self, url: &str, deadline: Deadline) -> Result<Vec<u8>, FetchError> {
        let reply = self.0.call(Call::get(url, deadline)).map_err(|error| {
            if deadline.expired() {
                FetchError::Timeout
            } else {
                FetchError::Failed(error.detail)
            }
        })?;
        if reply.status == 200 {
            Ok(reply.body)
        } else {
            Err(FetchError::Failed(format!("status {}", reply.status)))
        }
    }

    fn close(&self) {
        self.0.shutdown();
    }
}

type Report = Box<dyn Fn(Option<String>) + Send + Sync>;

/// What the refresh threads share with the request threads.
pub(crate) struct Refresher {
    fetch: Arc<dyn Fetch>,
    kick: Sender<()>,
    kicks: Receiver<()>,
    metrics: KernelMetrics,
    reads: CounterVec,
    keys_failed: AtomicU32,
    feed_failed: AtomicU32,
    report: OnceLock<Report>,
}

impl Refresher {
    pub fn new(
        fetch: Arc<dyn Fetch>,
        (kick, kicks): (Sender<()>, Receiver<()>),
        metrics: KernelMetrics,
        registry: &Registry,
    ) -> Self {
        let reads = registry.counter_vec(
            "auth_refreshes_total",
            "Reads of issuer keys and revocations.",
            &["what", "result"],
        );
        Self {
            fetch,
            kick,
            kicks,
            metrics,
            reads,
            keys_failed: AtomicU32::new(0),
            feed_failed: AtomicU32::new(0),
            report: OnceLock::new(),
        }
    }

    /// Asks for a read of the keys; never waits.
    pub fn kick(&self) {
        let _ = self.kick.try_send(()); // drop-oldest: a pending request is as good as this one
    }

    pub fn on_state(&self, report: Report) {
        let _ = self.report.set(report);
    }

    /// Lets the drain cut a poll short.
    pub fn close_with(&self, stop: Shutdown) {
        let fetch = self.fetch.clone();
        stop.on_fire(move || fetch.close());
    }

    fn get(&self, url: &str, within: Duration) -> Result<Vec<u8>, String> {
        self.fetch
            .get(url, Deadline::within(within))
            .map_err(|error| match error {
                FetchError::Timeout => {
                    self.metrics
                        .io_timeouts
                        .with_label_values(&["auth_refresh"])
                        .inc();
                    "no answer in time".to_owned()
                }
                FetchError::Failed(why) => {
                    self.metrics
                        .upstream_fail
                        .with_label_values(&["svc-passport"])
                        .inc();
                    why
                }
            })
    }

    /// Counts the outcome and says whether it differs from the one before.
    fn note(&self, what: &str, failed: &AtomicU32, outcome: &Result<(), String>) {
        let result = if outcome.is_ok() { "ok" } else { "failed" };
        self.reads.with_label_values(&[what, result]).inc();
        match outcome {
            Ok(()) => {
                if failed.swap(0, Ordering::Relaxed) > 0 {
                    tracing::info!(event = "auth_refresh_recovered", what);
                }
            }
            Err(why) => {
                // One failure is what every start of two services at once looks like.
                match failed.fetch_add(1, Ordering::Relaxed) + 1 {
                    1 => tracing::info!(event = "auth_refresh_failed", what, reason = %why),
                    FAILURES_TOLD => {
                        tracing::warn!(event = "auth_refresh_failed", what, reason = %why);
                    }
                    _ => {}
                }
            }
        }
    }
}

impl RonAuthorizer {
    /// Why passports cannot be fully judged now; `None` when they can.
    pub fn degraded(&self) -> Option<String> {
        self.config.load().issuer.as_ref()?;
        let failing = |count: &AtomicU32| count.load(Ordering::Relaxed) >= FAILURES_TOLD;
        if self.keys_now().is_empty() {
            Some("the issuer's keys have not been read yet; passports get 503".into())
        } else if !self.revoked_now().synced() {
            Some("the issuer's revocations have not been read yet; passports get 503".into())
        } else if failing(&self.refresher.keys_failed) {
            Some("the issuer's keys cannot be read again; the last good ones are in use".into())
        } else if failing(&self.refresher.feed_failed) {
            Some("the issuer's revocations cannot be read; recent ones may be missing".into())
        } else {
            None
        }
    }

    pub(crate) fn report_state(&self) {
        self.refusals.flush();
        if let Some(report) = self.refresher.report.get() {
            report(self.degraded());
        }
    }

    /// Body of the key thread.
    pub(crate) fn keys_body(&self, ctx: &ThreadCtx) {
        let mut pause = retry_pauses(self.clock.unix_ms());
        let again = || {
            let (after, floor) = match self.refresh_keys_once() {
                None => (Duration::from_secs(60), Duration::ZERO),
                Some(Ok(interval)) => {
                    pause.reset();
                    (interval, KICK_GAP)
                }
                Some(Err(_)) => {
                    let next = pause.next_pause();
                    (next, next.min(KICK_GAP))
                }
            };
            self.report_state();
            NextRead { after, floor }
        };
        read_again(&self.refresher.kicks, &ctx.shutdown, &*self.clock, again);
    }

    /// Reads the keys once. `None` when no issuer is configured, else the pause until the next read.
    pub fn refresh_keys_once(&self) -> Option<Result<Duration, String>> {
        let config = self.config.load();
        let issuer = config.issuer.as_ref()?;
        let reading = self.keys.begin(issuer.clone());
        let read = self.read_keys(issuer);
        // A reload may have named another issuer while we read: then nobody will ask for what is kept here.
        let outcome = read.map(|keys| {
            self.keys.finish(&reading, keys);
        });
        self.refresher
            .note("keys", &self.refresher.keys_failed, &outcome);
        Some(outcome.map(|()| issuer.refresh))
    }

    /// Both key sets, or none: half of a hybrid's keys would let the rule be judged on less than it says.
    fn read_keys(&self, issuer: &IssuerConfig) -> Result<JwksSnapshot, String> {
        let parsed = |read: Result<JwksSnapshot, JwksError>| {
            read.map_err(|error| {
                let errors = &self.refresher.metrics.parse_errors;
                errors.with_label_values(&["jwks"]).inc();
                error.to_string()
            })
        };
        let bytes = self.refresher.get(&issuer.jwks_url, FETCH_DEADLINE)?;
        let keys = parsed(JwksSnapshot::parse(&bytes))?;
        if issuer.pq == PqRule::Off {
            return Ok(keys);
        }
        let bytes = self.refresher.get(&issuer.pq_jwks_url, FETCH_DEADLINE)?;
        parsed(keys.with_pq(&bytes, issuer.pq))
    }

    /// Body of the feed thread.
    pub(crate) fn feed_body(&self, ctx: &ThreadCtx) {
        let mut pause = retry_pauses(self.clock.unix_ms() ^ 1);
        while !ctx.shutdown.is_set() {
            let started = self.clock.now();
            let pause = match self.read_feed_once(POLL_WAIT_S) {
                None => Duration::from_secs(1),
                Some(Ok(())) => {
                    pause.reset();
                    // An issuer that does not hold polls open must not be asked in a tight loop.
                    FEED_GAP.saturating_sub(self.clock.now().saturating_duration_since(started))
                }
                Some(Err(_)) => pause.next_pause(),
            };
            self.report_state();
            if !pause.is_zero() && ctx.shutdown.wait(Deadline::within(pause)) {
                return;
            }
        }
    }

    /// Reads the feed up to its end; the last request may wait `wait_s` at the issuer for something new. `None`
    /// when no issuer is configured.
    pub fn read_feed_once(&self, wait_s: u64) -> Option<Result<(), String>> {
        let config = self.config.load();
        let issuer = config.issuer.as_ref()?;
        // After an outage the issuer may have come back with another history that is as long: read all of it anew,
        // while the present view stays in force.
        let after_outage = self.refresher.feed_failed.load(Ordering::Relaxed) > 0;
        let reading = self.revoked.begin(issuer.clone());
        let old = self.revoked_of(issuer).unwrap_or_default();
        let mut view = if after_outage {
            RevocationView::default()
        } else {
            (*old).clone()
        };
        let outcome = self.follow_feed(&issuer.events_url, &mut view, wait_s);
        if outcome.is_ok() {
            view.absorb(&old);
            let new_keys = view.key_changes() != old.key_changes();
            self.revoked.finish(&reading, view);
            if new_keys {
                // The issuer holds its next signatures back until those who follow the feed have the new key. At the
                // first read too: the keys may have been read before the change that it tells of.
                let _ = self.refresh_keys_once(); // noted by itself; the interval tries again
            }
        }
        self.refresher
            .note("events", &self.refresher.feed_failed, &outcome);
        Some(outcome)
    }

    fn follow_feed(&self, url: &str, view: &mut RevocationView, wait_s: u64) -> Result<(), String> {
        let mut restarted = false;
        loop {
            // The first read must not wait: passports are refused until it is done.
            let wait_s = if view.synced() { wait_s } else { 0 };
            let url = format!("{url}?after={}&wait={wait_s}", view.after());
            let bytes = self
                .refresher
                .get(&url, FETCH_DEADLINE + Duration::from_secs(wait_s))?;
            let page: RevocationPage = strict::from_slice(&bytes).map_err(|error| {
                self.refresher
                    .metrics
                    .parse_errors
                    .with_label_values(&["revocations"])
                    .inc();
                error.to_string()
            })?;
            let last = page.events.len() < PAGE_EVENTS;
            if let Err(gap) = view.apply(&page, last, self.now_s()) {
                if std::mem::replace(&mut restarted, true) {
                    return Err(gap.to_string());
                }
                // Start over beside the present view, which stays in force until the new one is complete.
                tracing::warn!(event = "auth_feed_restarted", after = gap.after);
                *view = RevocationView::default();
                continue;
            }
            if last {
                return Ok(());
            }
        }
    }
}

/// 25 ms doubling to 1 s: an issuer that starts with us is found within a fraction of a second, and one that is back
/// within a deadline and a pause, so that what was revoked meanwhile acts within five seconds.
fn retry_pauses(seed: u64) -> Backoff {
    Backoff::new(
        Duration::from_millis(25),
        Duration::from_secs(1),
        Duration::from_millis(25),
        seed,
    )
}
