//! What the two threads share that keep an authorizer's snapshots current: how they read a document, and
//! what they count and log of it. `keys` reads the issuer's keys, `feed` follows its revocations.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ron_http::{Call, ClientConfig, Credential, Failure, HttpClient};
use ron_kernel::{
    Backoff, ClosedCounter, Deadline, KernelMetrics, Overflow, QueueSpec, Receiver, Registry,
    Sender, Shutdown, Snapshot,
};

use crate::policy_note::Ignored;
use crate::revocation::LogAlarm;
use crate::settings::IssuerConfig;

/// Carries "read the keys now" from request threads to the key thread; one pending request is
/// enough.
pub const REFRESH_QUEUE: QueueSpec = QueueSpec {
    name: "auth_refresh",
    capacity: 1,
    overflow: Overflow::DropOldest,
    from: "request handlers",
    to: "auth-keys",
    when_full: "a refresh is already pending; nothing is lost",
};
pub(crate) static REFRESH_QUEUE_SPEC: QueueSpec = REFRESH_QUEUE;

/// Maximum time of one read of keys or events, including the connect.
pub(crate) const FETCH_DEADLINE: Duration = Duration::from_secs(3);
/// Consecutive failures after which the service reports that it is degraded.
const DEGRADED_AFTER_FAILURES: u32 = 3;

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    #[error("no answer in time")]
    Timeout,
    /// The server wants another credential: 401 or 403.
    #[error("status {0}")]
    Denied(u16),
    /// What happened, without secrets.
    #[error("{0}")]
    Failed(String),
}

/// Reads one small document.
pub trait Fetch: Send + Sync {
    fn get(
        &self,
        url: &str,
        credential: &Credential,
        deadline: Deadline,
    ) -> Result<Vec<u8>, FetchError>;
    /// Aborts the read in progress and refuses all later ones.
    fn close(&self);
}

/// Reads over HTTP, with its own client, so that closing it affects nothing else.
pub(crate) struct HttpFetch(HttpClient);

impl HttpFetch {
    pub fn new(service: &str, peers: ClientConfig) -> Self {
        Self(HttpClient::new(ClientConfig {
            user_agent: format!("{service}/auth"),
            max_response_bytes: 1 << 20,
            // The threads pace themselves; an open breaker would delay revocations by 5 s more.
            breaker: None,
            ..peers
        }))
    }
}

impl Fetch for HttpFetch {
    fn get(
        &self,
        url: &str,
        credential: &Credential,
        deadline: Deadline,
    ) -> Result<Vec<u8>, FetchError> {
        let header = credential.header().map(|value| ("Authorization", value));
        let call = Call {
            headers: header.as_slice(),
            ..Call::get(url, deadline)
        };
        let reply = self.0.call(call).map_err(|error| {
            if deadline.expired() {
                FetchError::Timeout
            } else if error.kind == Failure::Withheld {
                FetchError::Failed(format!("auth.jwks_url: {}", error.detail))
            } else {
                FetchError::Failed(error.detail)
            }
        })?;
        match reply.status {
            200 => Ok(reply.body),
            status @ (401 | 403) => Err(FetchError::Denied(status)),
            status => Err(FetchError::Failed(format!("status {status}"))),
        }
    }

    fn close(&self) {
        self.0.shutdown();
    }
}

/// Consecutive failed reads, and the reason of the last one.
pub(crate) struct Failures {
    count: AtomicU32,
    why: Snapshot<Option<String>>,
}

impl Failures {
    fn none() -> Self {
        Self {
            count: AtomicU32::new(0),
            why: Snapshot::new(None),
        }
    }

    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    pub fn is_degraded(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= DEGRADED_AFTER_FAILURES
    }

    /// `: why`, to append to a sentence.
    pub fn reason(&self) -> String {
        let why = self.why.load();
        why.as_ref()
            .as_ref()
            .map_or_else(String::new, |why| format!(": {why}"))
    }
}

type Report = Box<dyn Fn(Option<String>) + Send + Sync>;

/// State shared by the refresh threads and the request threads.
pub(crate) struct Refresher {
    fetch: Arc<dyn Fetch>,
    kick: Sender<()>,
    pub kicks: Receiver<()>,
    pub metrics: KernelMetrics,
    reads: ClosedCounter,
    ignored: ClosedCounter,
    alarms: ClosedCounter,
    pub alarm: Snapshot<Option<LogAlarm>>,
    /// Whether the last read of the feed was refused for its credential.
    denied: AtomicBool,
    pub keys_failed: Failures,
    pub feed_failed: Failures,
    pub report: OnceLock<Report>,
}

impl Refresher {
    pub fn new(
        fetch: Arc<dyn Fetch>,
        (kick, kicks): (Sender<()>, Receiver<()>),
        metrics: KernelMetrics,
        registry: &Registry,
    ) -> Self {
        let reads = registry.counter_closed(
            "auth_refreshes_total",
            "Reads of the issuer's keys and revocations, by result.",
            &[("what", &["keys", "events"]), ("result", &["ok", "failed"])],
        );
        let ignored = registry.counter_closed(
            "auth_keys_ignored_total",
            "Keys of the issuer's set that were ignored because its policy note does not vouch for them, by reason.",
            &[("reason", &["unlisted", "revoked", "ended"])],
        );
        let alarms = registry.counter_closed(
            "auth_revocation_log_alarms_total",
            "Reads of the issuer's revocations that were no faithful continuation of its log, by reason.",
            &[("reason", &LogAlarm::REASONS)],
        );
        metrics.io_timeouts.declare(["auth_refresh"]);
        metrics.backoff_retries.declare(["auth_refresh"]);
        metrics.upstream_fail.declare(["svc-passport"]);
        metrics
            .parse_errors
            .declare(["jwks", "policy_note", "revocations"]);
        Self {
            fetch,
            kick,
            kicks,
            metrics,
            reads,
            ignored,
            alarms,
            alarm: Snapshot::new(None),
            denied: AtomicBool::new(false),
            keys_failed: Failures::none(),
            feed_failed: Failures::none(),
            report: OnceLock::new(),
        }
    }

    /// Requests a read of the keys; never waits.
    pub fn kick(&self) {
        let _ = self.kick.try_send(()); // drop-oldest: a pending request is sufficient
    }

    pub fn on_state(&self, report: Report) {
        let _ = self.report.set(report);
    }

    /// Lets the drain cut a poll short.
    pub fn close_with(&self, stop: Shutdown) {
        let fetch = self.fetch.clone();
        stop.on_fire(move || fetch.close());
    }

    /// Reads a public document.
    pub fn get(&self, url: &str, within: Duration) -> Result<Vec<u8>, String> {
        let read = self.fetch(&Credential::none(), url, within);
        read.map_err(|error| error.to_string())
    }

    /// Reads a page of the feed, with the service token that the issuer knows this service by.
    pub fn get_events(
        &self,
        issuer: &IssuerConfig,
        url: &str,
        within: Duration,
    ) -> Result<Vec<u8>, String> {
        // Read each time, so that a new token counts without a reload.
        let credential = match &issuer.token_file {
            Some(path) => {
                Credential::from_file(path).map_err(|e| format!("auth.token_file: {e}"))?
            }
            None => Credential::none(),
        };
        let read = self.fetch(&credential, url, within);
        let Err(FetchError::Denied(status)) = read else {
            self.denied.store(false, Ordering::Relaxed);
            return read.map_err(|error| error.to_string());
        };
        let why = denied_because(status, issuer.token_file.is_some());
        // Unlike an outage, this does not end by itself.
        if !self.denied.swap(true, Ordering::Relaxed) {
            tracing::warn!(event = "auth_feed_denied", status, reason = %why);
        }
        Err(why)
    }

    /// Reads a document, and counts a failure.
    fn fetch(
        &self,
        credential: &Credential,
        url: &str,
        within: Duration,
    ) -> Result<Vec<u8>, FetchError> {
        let read = self.fetch.get(url, credential, Deadline::within(within));
        match &read {
            Ok(_) => {}
            Err(FetchError::Timeout) => {
                let timeouts = &self.metrics.io_timeouts;
                timeouts.with_label_values(&["auth_refresh"]).inc();
            }
            Err(FetchError::Denied(_) | FetchError::Failed(_)) => {
                let failures = &self.metrics.upstream_fail;
                failures.with_label_values(&["svc-passport"]).inc();
            }
        }
        read
    }

    /// Counts the ignored keys. A key that the note does not list is a failed read, which is
    /// repeated soon: either the note lags behind the keys, or a third party serves them.
    pub fn ignored(&self, keys: &Ignored, all: bool) -> Result<(), String> {
        let all_reasons = [
            ("unlisted", keys.unlisted),
            ("revoked", keys.revoked),
            ("ended", keys.ended),
        ];
        for (reason, count) in all_reasons {
            self.ignored.with_label_values(&[reason]).inc_by(count);
        }
        match keys.unlisted {
            0 if all => Err("the policy note vouches for no key of the key set".into()),
            0 => Ok(()),
            n => Err(format!(
                "{n} keys of the key set are not in the policy note, and were ignored"
            )),
        }
    }

    /// Counts a retry after a failure.
    pub fn retried(&self) {
        let retries = &self.metrics.backoff_retries;
        retries.with_label_values(&["auth_refresh"]).inc();
    }

    /// Counts the alarm, and logs it when it is another one; `None` ends it.
    pub fn raise(&self, alarm: Option<LogAlarm>) {
        let before = self.alarm.load();
        if let Some(alarm) = &alarm {
            let reason = alarm.reason();
            self.alarms.with_label_values(&[reason]).inc();
            if before.as_ref().as_ref() != Some(alarm) {
                tracing::error!(event = "revocation_log_alarm", reason, why = %alarm);
            }
        } else if before.is_some() {
            tracing::info!(event = "revocation_log_accepted");
        }
        if *before != alarm {
            self.alarm.store(alarm);
        }
    }

    /// Counts the outcome, and logs it when it changes.
    pub fn note(&self, what: &str, failures: &Failures, outcome: &Result<(), String>) {
        let result = if outcome.is_ok() { "ok" } else { "failed" };
        self.reads.with_label_values(&[what, result]).inc();
        let failed = &failures.count;
        failures.why.store(outcome.clone().err());
        match outcome {
            Ok(()) => {
                if failed.swap(0, Ordering::Relaxed) > 0 {
                    tracing::info!(event = "auth_refresh_recovered", what);
                }
            }
            Err(why) => {
                // A single failure is normal when two services start at the same time.
                match failed.fetch_add(1, Ordering::Relaxed) + 1 {
                    1 => tracing::info!(event = "auth_refresh_failed", what, reason = %why),
                    DEGRADED_AFTER_FAILURES => {
                        tracing::warn!(event = "auth_refresh_failed", what, reason = %why);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// What an operator has to change so that the issuer shows its feed to this service.
fn denied_because(status: u16, has_token: bool) -> String {
    let what = match (status, has_token) {
        (403, _) => {
            "the issuer knows this service, but does not show it its revocations: add the scope passport:introspect \
             to the service's block of auth.principals in the issuer's configuration"
        }
        (_, true) => {
            "the issuer does not accept the token of auth.token_file: give that file the service token that \
             auth.principals in the issuer's configuration lists for this service, and reach the issuer through its \
             Unix socket or over https"
        }
        (_, false) => {
            "the issuer shows its revocations only to callers that it knows: set auth.token_file to a file with a \
             service token, and list the token in auth.principals of the issuer's configuration with the scope \
             passport:introspect"
        }
    };
    format!("status {status}: {what}")
}

/// 25 ms doubling to 1 s: an issuer that starts at the same time is found within a fraction of a
/// second, and one that returns within a deadline and a pause, so that revocations made in between
/// take effect within five seconds.
pub(crate) fn retry_pauses(seed: u64) -> Backoff {
    Backoff::new(
        Duration::from_millis(25),
        Duration::from_secs(1),
        Duration::from_millis(25),
        seed,
    )
}

#[cfg(test)]
#[path = "refresh_tests.rs"]
mod tests;
