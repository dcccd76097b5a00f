//! What the two threads share that keep an authorizer's snapshots current, and the one that reads the
//! issuer's keys, at an interval or at once when an unknown key appears; `feed` follows its revocations.
//! Neither is ever in a request's path.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ron_http::{Call, ClientConfig, HttpClient};
use ron_kernel::loops::{NextRead, read_again};
use ron_kernel::{
    Backoff, ClosedCounter, Deadline, KernelMetrics, Overflow, QueueSpec, Receiver, Registry,
    Sender, Shutdown, Snapshot, ThreadCtx,
};

use crate::authorizer::RonAuthorizer;
use crate::feed::LogAlarm;
use crate::jwks::{JwksError, JwksSnapshot, PqRule};
use crate::policy_note::{Ignored, NoteRefused, PolicyNote};
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
/// Minimum time between two reads that unknown keys trigger.
const KICK_GAP: Duration = Duration::from_secs(5);
/// Consecutive failures after which the service reports that it is degraded.
const DEGRADED_AFTER_FAILURES: u32 = 3;

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
            breaker: false,
            ..peers
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

    fn is_degraded(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= DEGRADED_AFTER_FAILURES
    }

    /// `: why`, to append to a sentence.
    fn reason(&self) -> String {
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
    kicks: Receiver<()>,
    pub metrics: KernelMetrics,
    reads: ClosedCounter,
    ignored: ClosedCounter,
    alarms: ClosedCounter,
    alarm: Snapshot<Option<LogAlarm>>,
    keys_failed: Failures,
    pub feed_failed: Failures,
    report: OnceLock<Report>,
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

    pub fn get(&self, url: &str, within: Duration) -> Result<Vec<u8>, String> {
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

    /// Counts the ignored keys. A key that the note does not list is a failed read, which is
    /// repeated soon: either the note lags behind the keys, or a third party serves them.
    fn ignored(&self, keys: &Ignored, all: bool) -> Result<(), String> {
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

impl RonAuthorizer {
    /// Why passports cannot be fully checked now; `None` when they can.
    pub fn degraded(&self) -> Option<String> {
        self.config.load().issuer.as_ref()?;
        if let Some(alarm) = &*self.refresher.alarm.load() {
            return Some(format!(
                "the issuer's revocation log cannot be trusted, known revocations stay in force: {alarm}"
            ));
        }
        let (keys, feed) = (&self.refresher.keys_failed, &self.refresher.feed_failed);
        let (what, failures) = if self.keys_now().is_empty() {
            (
                "the issuer's keys have not been read yet; passports get 503",
                keys,
            )
        } else if !self.revoked_now().synced() {
            (
                "the issuer's revocations have not been read yet; passports get 503",
                feed,
            )
        } else if keys.is_degraded() {
            (
                "the issuer's keys cannot be refreshed; the last good ones are in use",
                keys,
            )
        } else if feed.is_degraded() {
            (
                "the issuer's revocations cannot be read; recent ones may be missing",
                feed,
            )
        } else {
            return None;
        };
        Some(format!("{what}{}", failures.reason()))
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
                    self.refresher.retried();
                    let next = pause.next_pause();
                    (next, next.min(KICK_GAP))
                }
            };
            self.report_state();
            NextRead { after, floor }
        };
        read_again(&self.refresher.kicks, &ctx.shutdown, &*self.clock, again);
    }

    /// Reads the keys once. `None` without an issuer, else the pause until the next read.
    pub fn refresh_keys_once(&self) -> Option<Result<Duration, String>> {
        let config = self.config.load();
        let issuer = config.issuer.as_ref()?;
        let reading = self.keys.begin(issuer.clone());
        let outcome = self.read_keys(issuer).and_then(|(keys, ignored)| {
            let none = keys.is_empty();
            if !none {
                // A reload may have configured another issuer in the meantime; then no lookup will
                // match this source.
                self.keys.finish(&reading, keys);
            }
            self.refresher.ignored(&ignored, none)
        });
        self.refresher
            .note("keys", &self.refresher.keys_failed, &outcome);
        Some(outcome.map(|()| issuer.refresh))
    }

    /// Reads both key sets or fails: with half of a hybrid's keys the rule would be weaker than
    /// configured. Then reads the policy note, which says which of these keys the issuer vouches
    /// for.
    fn read_keys(&self, issuer: &IssuerConfig) -> Result<(JwksSnapshot, Ignored), String> {
        let parsed = |read: Result<JwksSnapshot, JwksError>| {
            read.map_err(|error| {
                let errors = &self.refresher.metrics.parse_errors;
                errors.with_label_values(&["jwks"]).inc();
                error.to_string()
            })
        };
        let bytes = self.refresher.get(&issuer.jwks_url, FETCH_DEADLINE)?;
        let mut keys = parsed(JwksSnapshot::parse(&bytes))?;
        if issuer.pq != PqRule::Off {
            let bytes = self.refresher.get(&issuer.pq_jwks_url, FETCH_DEADLINE)?;
            keys = parsed(keys.with_pq(&bytes, issuer.pq))?;
        }
        if issuer.note_keys.is_empty() {
            return Ok((keys, Ignored::default())); // auth.unpinned
        }
        // The note is read after the keys: a key published between the two reads is then only in
        // the note, and comes with the next read. In the other order it would look like a third
        // party's key.
        let note = self.read_note(issuer)?;
        let ignored = note.narrow(&mut keys, self.now_s());
        Ok((keys, ignored))
    }

    /// The note that is served now; its version and the key of the revocation log are durable when
    /// this returns.
    pub(crate) fn read_note(&self, issuer: &IssuerConfig) -> Result<PolicyNote, String> {
        // Looked up before the request: another read may raise it while this response is in flight.
        let kept = self.seen.of(&issuer.issuer).note;
        let bytes = self
            .refresher
            .get(&issuer.note_url, FETCH_DEADLINE)
            .map_err(|why| format!("the policy note cannot be read: {why}"))?;
        let opened = PolicyNote::open(&bytes, &issuer.issuer, &issuer.note_keys);
        let got = opened.and_then(|note| match note.version {
            got if got < kept => Err(NoteRefused::RolledBack { got, kept }),
            _ => Ok(note),
        });
        let note = got.map_err(|refused| {
            let errors = &self.refresher.metrics.parse_errors;
            errors.with_label_values(&["policy_note"]).inc();
            refused.to_string()
        })?;
        self.seen.record(&issuer.issuer, |seen| {
            if note.version >= seen.note {
                seen.note = note.version;
                seen.log_key = note.log_key.as_ref().map(ToString::to_string);
            }
        })?;
        Ok(note)
    }
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
