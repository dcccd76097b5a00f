//! What an operator wants on a timeline: starts, lost readiness, restarts of threads, reloads, changes of keys and policies.
//!
//! ```text
//!  any thread ── publish ──> ring (drop-oldest) ──> *-ops-log     writes the log line
//!                               │
//!                               └─────────────────> *-ops-events  numbers and keeps events, answers GET /api/v1/events
//! ```
//!
//! **Invariants:** publishing never waits. What is served holds words of closed lists and figures; the text with names
//! ([`Event::why`]) goes to the log alone.

use std::fmt::Display;
use std::sync::Arc;

use ron_http::BreakerHook;
use ron_kernel::{
    Deadline, Incident, KernelMetrics, Overflow, QueueSpec, Recv, Ring, SharedClock, Subscriber,
    Supervisor, ThreadCtx, Turn,
};
use ron_proto::Timestamp;
pub use ron_proto::events::EventKind;
use ron_proto::events::Severity;

/// From all threads to the two that read it.
pub const EVENTS_RING: QueueSpec = QueueSpec {
    name: "events",
    capacity: 1024,
    overflow: Overflow::DropOldest,
    from: "all threads",
    to: "ops-events, ops-log (a ring each)",
    when_full: "the oldest event is lost to this reader and counted in `bus_lagged_total`",
};
static EVENTS_RING_SPEC: QueueSpec = EVENTS_RING;

/// Longest wait of the idle log thread.
const IDLE: std::time::Duration = std::time::Duration::from_secs(60);

/// An event, before it is numbered.
#[derive(Clone, Debug)]
pub struct Event {
    pub(crate) at: Timestamp,
    pub(crate) kind: EventKind,
    pub(crate) severity: Severity,
    /// The log has it as a warning, whatever the severity in the feed.
    pub(crate) ends_warning: bool,
    pub(crate) reason: Option<&'static str>,
    pub(crate) number: Option<u64>,
    why: Option<Arc<str>>,
}

impl Event {
    /// An event that is as expected.
    pub const fn info(kind: EventKind) -> Self {
        Self {
            at: Timestamp(0),
            kind,
            severity: Severity::Info,
            ends_warning: false,
            reason: None,
            number: None,
            why: None,
        }
    }

    /// An event that somebody should know of.
    pub const fn warn(kind: EventKind) -> Self {
        let mut event = Self::info(kind);
        event.severity = Severity::Warn;
        event
    }

    /// An event after which somebody must act.
    pub const fn error(kind: EventKind) -> Self {
        let mut event = Self::info(kind);
        event.severity = Severity::Error;
        event
    }

    /// The end of what the log warned of.
    #[must_use]
    pub(crate) const fn logged_as_warning(mut self) -> Self {
        self.ends_warning = true;
        self
    }

    /// A word of the closed list that belongs to the kind.
    #[must_use]
    pub const fn reason(mut self, word: &'static str) -> Self {
        self.reason = Some(word);
        self
    }

    #[must_use]
    pub const fn number(mut self, number: u64) -> Self {
        self.number = Some(number);
        self
    }

    /// A sentence for the log, which may have names; it is not served.
    #[must_use]
    pub fn why(mut self, text: impl Display) -> Self {
        self.why = Some(text.to_string().into());
        self
    }

    fn log(&self) {
        let (event, why) = (self.kind.as_str(), self.why.as_deref());
        let (reason, number) = (self.reason, self.number);
        match self.severity {
            Severity::Info if !self.ends_warning => tracing::info!(event, reason, number, why),
            Severity::Info | Severity::Warn => tracing::warn!(event, reason, number, why),
            Severity::Error => tracing::error!(event, reason, number, why),
        }
    }
}

#[derive(Debug)]
struct Bus {
    ring: Ring<Event>,
    clock: SharedClock,
}

/// Where the threads of a service publish its events; clones are the same. Without a service, as in programs that embed a
/// part of one, events are log lines and nothing else.
#[derive(Clone, Debug, Default)]
pub struct Events(Option<Arc<Bus>>);

impl Events {
    pub(crate) fn new(metrics: &KernelMetrics, clock: SharedClock) -> Self {
        let ring = Ring::new(&EVENTS_RING_SPEC, EVENTS_RING_SPEC.capacity, metrics);
        Self(Some(Arc::new(Bus { ring, clock })))
    }

    /// Publishes an event; called without a lock.
    pub fn publish(&self, mut event: Event) {
        let Some(bus) = &self.0 else {
            return event.log();
        };
        event.at = Timestamp(bus.clock.unix_ms());
        bus.ring.publish(&event);
    }

    /// The events from now on; none without a service.
    pub(crate) fn subscribe(&self) -> Subscriber<Event> {
        match &self.0 {
            Some(bus) => bus.ring.subscribe(),
            None => Ring::bare(&EVENTS_RING_SPEC, 1).subscribe(),
        }
    }

    /// Publishes what happens to the threads of a service.
    pub(crate) fn follow(&self, sup: &Supervisor) {
        let events = self.clone();
        sup.report_to(move |incident| {
            events.publish(match incident {
                Incident::Restarted { row, thread, why } => {
                    Event::error(EventKind::ThreadRestarted)
                        .reason(row)
                        .why(format_args!("{thread} {why}"))
                }
                Incident::Lost { row, thread, why } => Event::error(EventKind::ThreadLost)
                    .reason(row)
                    .why(format_args!("{thread} {why}")),
                Incident::Fatal { why } => Event::error(EventKind::Fatal).why(why),
            });
        });
    }

    /// Publishes what happens to the breakers of the service's clients.
    pub(crate) fn of_breakers(&self) -> BreakerHook {
        let events = self.clone();
        BreakerHook::new(move |peer, turn| {
            events.publish(match turn {
                Turn::Opened => Event::warn(EventKind::BreakerOpened).why(peer),
                Turn::Closed => Event::info(EventKind::BreakerClosed).why(peer),
            });
        })
    }

    /// Starts the thread that writes the log lines.
    pub(crate) fn spawn_log(&self, sup: &Supervisor, row: &'static ron_kernel::ThreadSpec) {
        let events = self.clone();
        let first = self.subscribe();
        sup.spawn_owner(row, first, run_log, move || Some(events.subscribe()));
    }
}

/// The body of the thread that writes the log lines. At a shutdown it writes what is left.
fn run_log(events: Subscriber<Event>, ctx: &ThreadCtx) {
    loop {
        match events.recv(&ctx.shutdown, Deadline::within(IDLE)) {
            Recv::Item(event) => event.log(),
            Recv::Timeout => {}
            Recv::Shutdown | Recv::Closed => break,
        }
    }
    while let Some(event) = events.try_recv() {
        event.log();
    }
    ctx.wait_for_shutdown();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_service_events_are_log_lines() {
        let events = Events::default();
        events.publish(Event::error(EventKind::Fatal).why("for a test"));
        assert!(events.subscribe().try_recv().is_none());
    }
}
