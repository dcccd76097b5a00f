//! Webhooks: messages about the entries of accounts, as Standard Webhooks defines them. Each endpoint
//! has a thread that follows the ledger from a durable cursor, so that a receiver that hangs or fails
//! delays its own messages only. A message is sent again until the receiver accepts it: it arrives at
//! least once, and in the order of the ledger.

mod endpoint;
mod progress;
mod sign;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ron_client::{ClientError, LedgerClient};
use ron_http::{Call, HttpClient};
use ron_kernel::{
    Backoff, ClosedCounter, ClosedGauge, Deadline, RankedMutex, Receiver, Recv, Registry,
    SharedClock, ThreadCtx,
};
use ron_proto::Timestamp;
use ron_proto::ledger::{Event, EventPage};
use ron_proto::wallet::{ResumeWebhook, WebhookDoc, WebhookMessage, WebhookState};
use ron_service::ReadyBoard;

pub use endpoint::{Endpoint, WebhookKeys, check};
pub use progress::{Progress, ProgressFile};

use crate::render::{Texts, code_of, history_entry, texts};
use crate::topology::PROGRESS;

/// How long the ledger holds the long poll open, and the maximum time of the call.
const WAIT: Duration = Duration::from_secs(5);
const CALL: Duration = Duration::from_secs(7);
/// Pause after a failed call to the ledger.
const LEDGER_PAUSE: Duration = Duration::from_secs(1);
/// First pause after a failed delivery; it doubles up to `webhook.retry_cap`.
const RETRY_BASE: Duration = Duration::from_secs(1);
/// Entries without a message that are passed before the cursor is written again.
const UNWRITTEN_MAX: u64 = 10_000;
/// How often a disabled endpoint's thread wakes without a request to resume.
const IDLE: Duration = Duration::from_secs(60);

/// How messages are sent.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Maximum time of one delivery.
    pub deadline: Duration,
    /// Longest pause between two attempts.
    pub retry_cap: Duration,
    /// How long a message is tried before the endpoint is disabled.
    pub give_up_after: Duration,
}

#[derive(Debug, Clone)]
pub struct WebhookMetrics {
    /// Attempts to deliver, by endpoint and result.
    pub attempts: ClosedCounter,
    /// Ledger entries that the endpoint has yet to look at.
    pub behind: ClosedGauge,
}

/// Values of `webhook_attempts_total{result}`.
const ACCEPTED: &str = "accepted";
const FAILED: &str = "failed";

impl WebhookMetrics {
    pub fn new(r: &Registry, endpoints: &[Endpoint]) -> Self {
        let names: Vec<&str> = endpoints.iter().map(|e| e.name.as_str()).collect();
        Self {
            attempts: r.counter_closed(
                "webhook_attempts_total",
                "Attempts to deliver a message to a webhook endpoint.",
                &[("endpoint", &names), ("result", &[ACCEPTED, FAILED])],
            ),
            behind: r.gauge_closed(
                "webhook_behind_entries",
                "Ledger entries that a webhook endpoint has yet to look at.",
                &[("endpoint", &names)],
            ),
        }
    }
}

/// One endpoint, shared by its thread and the API.
pub struct Webhook {
    pub endpoint: Endpoint,
    /// Written by the endpoint's thread only.
    shown: RankedMutex<Shown>,
    file: ProgressFile,
    /// The ledger, over connections that close when the service drains.
    ledger: LedgerClient,
    /// To the receiver; likewise.
    http: Arc<HttpClient>,
    timing: Timing,
    clock: SharedClock,
    ready: ReadyBoard,
    metrics: WebhookMetrics,
}

/// What `/v1/webhooks` shows of an endpoint.
#[derive(Debug, Clone, Default)]
struct Shown {
    progress: Progress,
    behind: u64,
    failure: Option<String>,
}

/// Parts of the service that webhooks use.
#[derive(Clone)]
pub struct WebhookParts {
    pub ledger: LedgerClient,
    pub http: Arc<HttpClient>,
    pub timing: Timing,
    pub clock: SharedClock,
    pub ready: ReadyBoard,
    pub metrics: WebhookMetrics,
}

/// Why a message was not delivered.
struct Undelivered {
    why: String,
    /// The receiver's `Retry-After`.
    after: Option<Duration>,
    /// The receiver wants no further messages (410).
    gone: bool,
}

/// The work of an endpoint's thread: the entries of the newest page that concern the endpoint.
struct Work {
    progress: Progress,
    pending: VecDeque<Event>,
    /// Last sequence of the page.
    page_end: u64,
    /// The last cursor on disk.
    written: u64,
    backoff: Backoff,
}

impl Webhook {
    pub fn new(endpoint: Endpoint, file: ProgressFile, parts: WebhookParts) -> Self {
        Self {
            endpoint,
            shown: RankedMutex::new(&PROGRESS, Shown::default()),
            file,
            ledger: parts.ledger,
            http: parts.http,
            timing: parts.timing,
            clock: parts.clock,
            ready: parts.ready,
            metrics: parts.metrics,
        }
    }

    /// The endpoint as the API shows it.
    pub fn doc(&self) -> WebhookDoc {
        let shown = self.shown.lock().clone();
        let progress = shown.progress;
        let state = match (progress.disabled, progress.failing_since) {
            (true, _) => WebhookState::Disabled,
            (false, Some(_)) => WebhookState::Failing,
            (false, None) => WebhookState::Active,
        };
        WebhookDoc {
            name: self.endpoint.name.clone(),
            url: self.endpoint.url.clone(),
            accounts: self.endpoint.accounts.clone(),
            state,
            after: progress.after,
            behind: shown.behind,
            failing_since: progress.failing_since,
            failure: shown.failure,
        }
    }

    /// The thread's body. After a panic it goes on from the cursor on disk.
    pub fn run(&self, ctx: &ThreadCtx, resumes: &Receiver<ResumeWebhook>) {
        let Some(progress) = self.start(ctx) else {
            return;
        };
        let seed = progress.after ^ self.clock.unix_ms();
        let mut work = Work {
            page_end: progress.after,
            written: progress.after,
            progress,
            pending: VecDeque::new(),
            backoff: Backoff::new(RETRY_BASE, self.timing.retry_cap, RETRY_BASE, seed),
        };
        self.show(&work, None);
        if work.progress.disabled {
            self.degrade();
        }
        loop {
            let pause = if work.progress.disabled {
                IDLE
            } else {
                self.step(ctx, &mut work)
            };
            match resumes.recv(&ctx.shutdown, Deadline::within(pause)) {
                Recv::Item(resume) => self.resume(&mut work, resume),
                Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => break,
            }
        }
        self.write(&mut work);
    }

    /// The cursor on disk. A new endpoint starts at the ledger's head: it gets what happens from now
    /// on. `None` at a shutdown.
    fn start(&self, ctx: &ThreadCtx) -> Option<Progress> {
        loop {
            let found = match self.file.read() {
                Ok(Some(progress)) => return Some(progress),
                Ok(None) => self.ledger.head(Deadline::within(CALL)),
                Err(why) => {
                    self.ready.degrade(self.endpoint.cause, why);
                    if ctx.shutdown.wait(Deadline::within(IDLE)) {
                        return None;
                    }
                    continue;
                }
            };
            if let Ok(head) = found {
                let progress = Progress {
                    after: head.seq,
                    ..Progress::default()
                };
                match self.file.write(&progress) {
                    Ok(()) => return Some(progress),
                    Err(why) => self.not_written(&why),
                }
            }
            if ctx.shutdown.wait(Deadline::within(LEDGER_PAUSE)) {
                return None;
            }
        }
    }

    /// Sends one message, or reads the next entries; returns how long to pause.
    fn step(&self, ctx: &ThreadCtx, work: &mut Work) -> Duration {
        let Some(event) = work.pending.front() else {
            return match self.read(work) {
                Ok(()) => Duration::ZERO,
                // The drain closes the connection.
                Err(_) if ctx.shutdown.is_set() => Duration::ZERO,
                Err(why) => {
                    tracing::debug!(event = "webhook_feed_interrupted", reason = %why);
                    LEDGER_PAUSE
                }
            };
        };
        let seq = event.seq;
        #[cfg(mutant = "answered")] // the cursor is written before the receiver has answered
        if ron_kernel::mutant("answered") {
            let progress = Progress {
                after: seq,
                ..work.progress.clone()
            };
            let _ = self.file.write(&progress);
        }
        match self.deliver(event) {
            Ok(()) => {
                self.count(ACCEPTED);
                work.pending.pop_front();
                work.backoff.reset();
                work.progress = Progress {
                    after: seq,
                    ..Progress::default()
                };
                if work.pending.is_empty() {
                    work.progress.after = work.page_end;
                }
                // Before the next message: after a crash only one is sent again.
                self.write(work);
                self.show(work, None);
                Duration::ZERO
            }
            Err(failed) => {
                self.count(FAILED);
                self.failed(work, failed)
            }
        }
    }

    fn read(&self, work: &mut Work) -> Result<(), ClientError> {
        let after = work.progress.after;
        let page: EventPage = self.ledger.events(after, WAIT, Deadline::within(CALL))?;
        if page.head < after {
            let found = self.ledger.active_head(Deadline::within(CALL))?.head;
            // It came from a standby that is behind; another node is asked now, or the same one later.
            if found.is_of_standby() || found.seq >= after {
                let detail = "a standby of the ledger is behind".to_owned();
                return Err(ClientError::NotSent { detail });
            }
            tracing::error!(
                event = "webhook_cursor_ahead",
                endpoint = self.endpoint.name,
                after,
                head = page.head,
                "the ledger was restored to an earlier state; going on from its head"
            );
            work.progress.after = page.head;
            self.write(work);
            return Ok(());
        }
        work.page_end = page.next;
        let concerns =
            |event: &Event| code_of(&event.answer).is_none() && self.endpoint.gets(event);
        work.pending = page.events.into_iter().filter(concerns).collect();
        if work.pending.is_empty() {
            work.progress.after = page.next;
            if page.next - work.written >= UNWRITTEN_MAX {
                self.write(work);
            }
        }
        let behind = page.head - work.progress.after;
        let gauge = [self.endpoint.name.as_str()];
        let gauge = self.metrics.behind.with_label_values(&gauge);
        gauge.set(i64::try_from(behind).unwrap_or(i64::MAX));
        self.shown.lock().behind = behind;
        self.show(work, None);
        Ok(())
    }

    /// An endpoint sees the texts of its tenant's entries that debit one of its accounts.
    fn texts(&self, event: &Event) -> Texts {
        let tenant = &self.endpoint.tenant;
        texts(event, tenant, None, |payer| self.endpoint.has(payer))
    }

    fn deliver(&self, event: &Event) -> Result<(), Undelivered> {
        let unsent = |why: String| Undelivered {
            why,
            after: None,
            gone: false,
        };
        let message = WebhookMessage {
            kind: format!("entry.{}", event.entry.kind().as_str()),
            timestamp: event.ts,
            data: history_entry(event.clone(), self.texts(event)),
        };
        let body = serde_json::to_vec(&message).map_err(|e| unsent(e.to_string()))?;
        let id = sign::message_id(&self.endpoint.name, event);
        let now_s = (self.clock.unix_ms() / 1000).to_string();
        let signature = sign::signatures(&self.endpoint.secrets, &id, &now_s, &body);
        let headers = [
            ("webhook-id", id.as_str()),
            ("webhook-timestamp", now_s.as_str()),
            ("webhook-signature", signature.as_str()),
        ];
        let by = Deadline::within(self.timing.deadline);
        let call = Call::post_json(&self.endpoint.url, body, by).headers(&headers);
        let reply = self.http.call(call).map_err(|e| unsent(e.to_string()))?;
        if reply.is_success() {
            return Ok(());
        }
        let status = reply.status;
        let hint = match status {
            300..=399 => "; redirects are not followed",
            410 => ": the receiver wants no further messages",
            _ => "",
        };
        Err(Undelivered {
            why: format!("the receiver answered {status}{hint}"),
            after: reply
                .retry_after_s()
                .map(|s| Duration::from_secs(s.into()).min(self.timing.retry_cap)),
            gone: status == 410,
        })
    }

    /// Records a failed delivery; returns the pause before the next.
    fn failed(&self, work: &mut Work, failed: Undelivered) -> Duration {
        let now = self.clock.unix_ms();
        let first = work.progress.failing_since.is_none();
        let since = work.progress.failing_since.get_or_insert(Timestamp(now)).0;
        let lasted = Duration::from_millis(now.saturating_sub(since));
        let endpoint = self.endpoint.name.as_str();
        tracing::warn!(event = "webhook_failed", endpoint, reason = failed.why);
        if failed.gone || lasted >= self.timing.give_up_after {
            work.progress.disabled = true;
            tracing::error!(event = "webhook_disabled", endpoint, reason = failed.why);
            self.degrade();
        }
        if first || work.progress.disabled {
            self.write(work);
        }
        self.show(work, Some(failed.why));
        failed.after.unwrap_or_else(|| work.backoff.next_pause())
    }

    fn resume(&self, work: &mut Work, resume: ResumeWebhook) {
        let after = resume.after.unwrap_or(work.progress.after);
        tracing::info!(
            event = "webhook_resumed",
            endpoint = self.endpoint.name,
            after
        );
        work.progress = Progress {
            after,
            ..Progress::default()
        };
        work.pending.clear();
        work.backoff.reset();
        self.write(work);
        self.show(work, None);
        self.ready.clear(self.endpoint.cause);
    }

    fn write(&self, work: &mut Work) {
        match self.file.write(&work.progress) {
            Ok(()) => work.written = work.progress.after,
            Err(why) => self.not_written(&why),
        }
    }

    fn not_written(&self, why: &str) {
        let endpoint = self.endpoint.name.as_str();
        tracing::error!(event = "webhook_cursor_not_written", endpoint, reason = why);
        let why = format!("the cursor of {endpoint} cannot be written: {why}");
        self.ready.degrade(self.endpoint.cause, why);
    }

    fn degrade(&self) {
        let name = &self.endpoint.name;
        let why = format!("{name} is disabled; resume it by POST /v1/webhooks/{name}/resume");
        self.ready.degrade(self.endpoint.cause, why);
    }

    fn show(&self, work: &Work, failure: Option<String>) {
        let mut shown = self.shown.lock();
        shown.progress = work.progress.clone();
        if failure.is_some() || work.progress.failing_since.is_none() {
            shown.failure = failure;
        }
    }

    fn count(&self, result: &'static str) {
        let labels = [self.endpoint.name.as_str(), result];
        self.metrics.attempts.with_label_values(&labels).inc();
    }
}
