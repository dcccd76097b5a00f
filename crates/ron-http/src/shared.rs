//! The state that all threads of a front share, and the second half of a request's life: the answer
//! is encoded, sent as far as the socket takes it, and the connection is parked, closed or served
//! again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_kernel::atomic::{AtomicBool, AtomicUsize, Ordering};
use ron_kernel::net::{Event, Poller, Readiness, Watch};
use ron_kernel::rate::{DrainMeter, LineBudget};
use ron_kernel::{
    Deadline, IdleWorkers, RankedMutex, SendError, Sender, SharedClock, ShutdownTrigger,
};
use ron_proto::Problem;

use crate::auth::{Authorizer, Principal};
use crate::conn::{After, Exchange, Flushed, Input, Output, Step};
use crate::failures::Failures;
use crate::head::Method;
use crate::ids::{Ids, ShortId};
use crate::limits::Limits;
use crate::listener::{Listener, SOCKETS_MAX};
use crate::memory::Full;
use crate::metrics::HttpMetrics;
use crate::pace::Pace;
use crate::responder::{Hook, Sink, Ticket};
use crate::response::{Body, Form, Response, Rest, encode};
use crate::router::Compiled;
use crate::slots::{Delivery, Lease, ParkedAs, Slots};
use crate::spans::{EndedSpan, Spans};

/// Tokens from here on are listeners'; the last number is no token.
pub(crate) const LISTENERS: u64 = u64::MAX - SOCKETS_MAX as u64;

/// Answers above this many bytes must keep a minimum rate instead of a total deadline.
const PACED_FROM: usize = 1 << 20;

/// Lines of the access log that are written at level info in a second: under load a sample.
const DONE_LINES_PER_S: u32 = 10;
/// The same for requests that failed.
const FAILED_LINES_PER_S: u32 = 100;

/// Which requests have their line in the log at level info; the others have it at level debug.
pub(crate) struct AccessLog {
    done: LineBudget,
    failed: LineBudget,
}

impl Default for AccessLog {
    fn default() -> Self {
        Self {
            done: LineBudget::new(DONE_LINES_PER_S),
            failed: LineBudget::new(FAILED_LINES_PER_S),
        }
    }
}

impl AccessLog {
    /// The lines of which a request's is one. None for reads that succeed, which services that follow others send all the
    /// time, and for routes that are not timed, which only monitors ask.
    fn of(&self, method: Method, timed: bool, status: u16) -> Option<&LineBudget> {
        let is_read = matches!(method, Method::GET | Method::HEAD);
        match status {
            _ if !timed => None,
            ..400 if is_read => None,
            ..400 => Some(&self.done),
            _ => Some(&self.failed),
        }
    }
}

/// What the threads of one front share.
pub(crate) struct Shared {
    pub router: Compiled,
    pub authorizer: Arc<dyn Authorizer>,
    /// The caller of public routes, made once.
    pub public: Principal,
    pub limits: Limits,
    pub clock: SharedClock,
    pub metrics: HttpMetrics,
    pub slots: Slots,
    pub queue: Sender<u64>,
    /// Where idle workers wait for the connections.
    pub idle: IdleWorkers,
    pub ids: Ids,
    /// Taken out by the poll thread when intake stops.
    pub listeners: RankedMutex<Option<Arc<Vec<Listener>>>>,
    /// Set when the drain begins: new requests are refused, except on routes served while draining.
    pub draining: AtomicBool,
    /// Requests that handlers have not answered yet, including those whose client was answered 504;
    /// waiting long polls are not counted.
    pub in_flight: AtomicUsize,
    pub failures: Failures,
    pub access: AccessLog,
    /// Where the spans of requests go; `None` if nobody collects them.
    pub spans: Option<Arc<Spans>>,
    /// Rate at which handlers answer, for `Retry-After`.
    pub answered: DrainMeter,
    /// True while the poll thread's body runs.
    pub polling: AtomicBool,
    /// Fired when the last connection has closed: the workers may end.
    pub done: ShutdownTrigger,
}

impl Shared {
    /// That of the poll thread: the listeners, and the wake-ups for its time limits.
    pub(crate) fn poller(&self) -> &dyn Poller {
        &*self.slots.timer.poller
    }

    /// Has the workers end: no connection is open any more.
    pub(crate) fn end(&self) {
        self.done.fire();
        self.idle.sockets.wake();
    }

    pub(crate) fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// A problem in the form of the route's API.
    fn with_form(&self, exchange: Option<&Exchange>, response: Response) -> Response {
        let route = exchange.and_then(|exchange| exchange.route);
        let change = route.and_then(|route| self.router.routes[route].problems);
        match change {
            Some(change) if matches!(response.body, Body::Problem(_)) => change(response),
            _ => response,
        }
    }

    /// Encodes the answer to the connection's request, or to bytes that were no request.
    pub(crate) fn put_answer(&self, lease: &mut Lease<'_>, response: Response) {
        let now = self.clock.now();
        let unix_ms = self.clock.unix_ms();
        let exchange = lease.exchange.take();
        let response = self.with_form(exchange.as_ref(), response);
        let status = response.status;
        lease.gone = None;
        let fresh = exchange.is_none().then(|| self.ids.fresh(unix_ms));
        let known = exchange.as_ref().map(|exchange| exchange.trace.id());
        let id = known.or(fresh.as_ref().map(ShortId::as_str));
        if self.draining() && lease.after == After::Keep {
            lease.after = After::Close;
        }
        let head_only = exchange.as_ref().is_some_and(|e| e.method == Method::HEAD);
        let http11 = exchange.as_ref().is_some_and(|e| e.http11);
        let form = Form {
            request_id: id.unwrap_or(""),
            head_only,
            if_none_match: exchange.as_ref().and_then(|e| e.if_none_match.as_deref()),
            http11,
            close: lease.after != After::Keep,
            unix_ms,
        };
        let mut output = Output::default();
        match encode(response, &form, &mut output.bytes) {
            Rest::Nothing => {}
            Rest::Body(body) => output.body = Some(body),
            Rest::Source(source) => output.source = Some(source),
        }
        let large = output.source.is_some() || output.len() > PACED_FROM;
        lease.pace = large.then(|| {
            let rate = exchange
                .as_ref()
                .and_then(|e| self.router.routes[e.route?].min_rate);
            Pace::new(self.limits.rule(self.limits.write_timeout, rate), now)
        });
        lease.output = output;
        lease.due = Some(now + self.limits.write_timeout);
        if let Some(exchange) = exchange {
            let took = now.saturating_duration_since(exchange.started);
            let (route, method) = (exchange.route, exchange.method);
            self.metrics.answered(route, method, status, took);
            self.report(&exchange, status, took, unix_ms);
        }
    }

    /// Writes the request's line of the access log, and ends its span.
    fn report(&self, exchange: &Exchange, status: u16, took: Duration, ended_unix_ms: u64) {
        let (method, request_id) = (exchange.method, exchange.trace.id());
        let took_us = took.as_micros() as u64;
        let route = exchange.route.map(|route| &self.router.routes[route]);
        let timed = route.is_none_or(|route| route.timed);
        let budget = self.access.of(method, timed, status);
        let route = route.map_or("unmatched", |route| route.pattern);
        if let (Some(spans), Some(span), true) = (&self.spans, exchange.trace.span(), timed) {
            spans.end(EndedSpan {
                span,
                request_id: request_id.to_owned(),
                method: method.as_str(),
                route,
                status,
                ended_unix_ms,
                took,
            });
        }
        if status == 500 {
            tracing::error!(
                event = "http_request", %method, route, status, request_id, took_us
            );
        } else if tracing::enabled!(tracing::Level::INFO) && budget.is_some_and(LineBudget::take) {
            tracing::info!(
                event = "http_request", %method, route, status, request_id, took_us
            );
        } else {
            tracing::debug!(
                event = "http_request", %method, route, status, request_id, took_us
            );
        }
    }

    /// Sends as much as the socket takes. Returns the lease when all is sent and bytes of the next
    /// request have arrived; otherwise the connection is parked or closed.
    pub(crate) fn send_answer<'a>(&'a self, mut lease: Lease<'a>) -> Option<Lease<'a>> {
        let before = lease.output.total;
        let sent = {
            let conn = &mut *lease;
            conn.output.flush(&mut conn.stream)
        };
        match sent {
            Err(_) => {
                // The peer is gone, or a source failed; the lease closes the connection.
                if lease.output.source.is_some() {
                    self.metrics.reject("stream_cut");
                }
                return None;
            }
            Ok(how @ (Flushed::Full | Flushed::Turn)) => {
                lease.step = Step::Write;
                if self.keep_unsent(&mut lease).is_err() {
                    self.metrics.reject("body_memory");
                    return None; // the client does not read, and there is no memory to keep the answer
                }
                let moved = lease.output.total.saturating_sub(before);
                let due = self.paced(&mut lease, moved);
                match how {
                    // The socket still has room, so no event would follow.
                    Flushed::Turn => self.requeue(lease),
                    _ => self.arm(lease, due),
                }
                return None;
            }
            Ok(Flushed::All) => (lease.due, lease.pace) = (None, None),
        }
        match lease.after {
            After::Close if lease.input.is_empty() && !lease.stream.has_more() => None,
            // Unread bytes in the socket would turn the close into a reset.
            After::Close | After::Linger => {
                self.linger(lease);
                None
            }
            After::Keep if !lease.input.is_empty() || lease.stream.has_more() => Some(lease),
            After::Keep => {
                lease.input = Input::default();
                lease.step = Step::Idle;
                let due = self.clock.now() + self.limits.idle_timeout;
                self.arm(lease, due);
                None
            }
        }
    }

    /// Counts the memory of an answer that the client has not read yet.
    fn keep_unsent(&self, lease: &mut Lease<'_>) -> Result<(), Full> {
        if lease.input.lent {
            let most = self.limits.anonymous_memory();
            lease.input = Input::holding(lease.input.bytes(), most)?;
        }
        lease.output.keep(self.limits.body_memory)
    }

    /// When the transfer is given up: by its pace, if it has one.
    pub(crate) fn paced(&self, lease: &mut Lease<'_>, moved: u64) -> Instant {
        let now = self.clock.now();
        if let Some(pace) = &mut lease.pace {
            pace.add(moved, now);
            lease.due = Some(pace.due());
        }
        lease.due.unwrap_or(now)
    }

    /// Ends the sending half and discards what the client still sends, for a while: a close with
    /// unread bytes sends a reset, which makes the client's kernel discard the answer.
    fn linger(&self, mut lease: Lease<'_>) {
        lease.stream.finish();
        lease.input = Input::default();
        lease.reading = None;
        lease.step = Step::Linger;
        lease.linger_left = self.limits.linger_bytes;
        let due = self.clock.now() + self.limits.linger_timeout;
        lease.due = Some(due);
        self.arm(lease, due);
    }

    /// Parks the connection until its socket is ready to read, or to write when output is left.
    /// The caller must have met a socket without bytes, or without room: only the next edge is
    /// reported. An edge that comes before it is parked is kept in its slot.
    pub(crate) fn arm(&self, mut lease: Lease<'_>, due: Instant) {
        let wanted = Readiness {
            input: lease.step != Step::Write,
            // The rest of a handshake also has to go out.
            output: lease.step == Step::Write || lease.stream.wants_write(),
            ended: false,
        };
        let token = lease.token;
        if self.watch(&mut lease, wanted.output).is_err() {
            return self.metrics.reject("accept_resources"); // no memory in the kernel: it is closed
        }
        if lease.park_armed(wanted, due, self.clock.now()) {
            self.push(token);
        }
    }

    /// Has the socket of the connection watched: from its first answer that does not fit the socket on also for room.
    fn watch(&self, lease: &mut Lease<'_>, output: bool) -> std::io::Result<()> {
        let watch = Watch::Changes { output };
        let id = lease.stream.socket().id();
        match lease.watched {
            None => self.idle.sockets.add(id, lease.token, watch)?,
            Some(Watch::Changes { output: false }) if output => {
                self.idle.sockets.modify(id, lease.token, watch)?;
            }
            Some(_) => return Ok(()),
        }
        lease.watched = Some(watch);
        Ok(())
    }

    /// Queues a connection with unparsed bytes for the workers.
    pub(crate) fn enqueue(&self, mut lease: Lease<'_>) {
        lease.step = Step::Ready;
        self.requeue(lease);
    }

    /// Queues a connection for the workers, in its present step.
    pub(crate) fn requeue(&self, lease: Lease<'_>) {
        let token = lease.token;
        // Parked before its token is pushed: a worker that pops the token must find it queued.
        lease.park_queued(self.clock.now());
        self.push(token);
    }

    /// Handles an event of a connection's socket. True when the connection was parked for it: the
    /// caller must then push its token.
    pub(crate) fn socket_event(&self, Event { token, readiness }: Event) -> bool {
        let queued = self.slots.ready(token, readiness, self.clock.now());
        if readiness.ended && !queued {
            self.hang_up(token);
        }
        queued
    }

    /// Ends a long poll whose client is gone. The connection closes now. The hook notifies the
    /// holder of the responder, which gives up the place among the long polls by dropping it.
    pub(crate) fn hang_up(&self, token: u64) {
        let Some(mut lease) = self.slots.abandoned(token) else {
            return;
        };
        self.metrics.reject("poll_abandoned");
        let hook = lease.gone.take();
        drop(lease); // before the hook, so that an answer it sends is late and not written
        if let Some(Hook(call)) = hook {
            call();
        }
    }

    /// Queues the token of a connection that is parked as queued.
    pub(crate) fn push(&self, token: u64) {
        match self.queue.try_send(token) {
            Ok(()) => self.idle.wake_one(),
            Err(SendError::Full(token) | SendError::Closed(token)) => {
                if let Some(lease) = self.slots.take_queued(token) {
                    self.metrics.reject("queue_full");
                    drop(lease);
                }
            }
        }
    }

    /// Sends an answer and parks the connection, from any thread.
    pub(crate) fn finish(&self, mut lease: Lease<'_>, response: Response) {
        self.put_answer(&mut lease, response);
        if let Some(lease) = self.send_answer(lease) {
            self.enqueue(lease);
        }
    }

    /// Answers, or just closes, a connection whose time limit has passed.
    pub(crate) fn expired(&self, mut lease: Lease<'_>, parked: ParkedAs, answer: Option<Response>) {
        if let Some(answer) = answer {
            return self.finish(lease, answer); // answered in time; only its handler still runs
        }
        if parked == ParkedAs::Waiting {
            self.metrics.reject("deadline");
            let problem = Problem::deadline_exceeded("no answer within the request deadline");
            return self.finish(lease, problem.into());
        }
        match lease.step {
            Step::Idle if parked == ParkedAs::Armed => {}
            Step::Handshake => self.metrics.reject("tls_timeout"),
            Step::Linger => {}
            Step::Write => self.metrics.reject("write_timeout"),
            Step::Head | Step::Body if parked == ParkedAs::Armed => {
                let (reason, detail) = match lease.step {
                    Step::Body if lease.pace.is_some() => (
                        "body_rate",
                        "the request body came more slowly than the minimum rate",
                    ),
                    Step::Head => ("head_timeout", "the request head was not complete in time"),
                    _ => ("body_timeout", "the request body was not complete in time"),
                };
                self.metrics.reject(reason);
                lease.after = After::Linger;
                self.finish(lease, Problem::request_timeout(detail).into());
            }
            Step::Idle | Step::Head | Step::Body | Step::Ready => {
                self.metrics.reject("queue_wait");
                lease.after = After::Linger;
                let wait = self.queue.retry_after_s();
                let problem = Problem::unavailable("no worker was free in time", wait);
                self.finish(lease, problem.into());
            }
        }
    }
}

impl Sink for Shared {
    fn answer(&self, ticket: Ticket, response: Response, dropped: bool) {
        // The place is freed before the answer is sent: a client that has its answer may send its
        // next request at once.
        match ticket.poll {
            Some(peer) => self.slots.room.give_poll(peer),
            #[cfg(mutant = "place")] // an answer that comes after the deadline gives no place back
            None if ron_kernel::mutant("place") && self.slots.is_over(ticket) => {}
            None => {
                self.in_flight.fetch_sub(1, Ordering::AcqRel);
            }
        }
        self.answered.count(1);
        self.metrics.in_flight.dec();
        if dropped {
            self.metrics.dropped.inc(); // no assertion in a drop: a panic may be unwinding
        } else {
            ron_kernel::assert_no_locks("an HTTP answer");
        }
        match self.slots.answer(ticket, response) {
            Delivery::ToWorker => {}
            Delivery::ToCaller(lease, response) => self.finish(lease, response),
            Delivery::Late => self.metrics.late_answers.inc(),
        }
    }

    fn is_gone(&self, ticket: Ticket) -> bool {
        self.slots.is_over(ticket)
    }

    fn on_gone(&self, ticket: Ticket, hook: Hook) {
        if let Some(Hook(call)) = self.slots.watch(ticket, hook) {
            call();
        }
    }

    fn answer_by(&self, ticket: Ticket, deadline: Deadline) {
        self.slots.answer_by(ticket, deadline.at());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_access_log_has_failures_and_changes_but_no_polls() {
        let lines = AccessLog::default();
        let written = |method, timed, status| {
            let budget = lines.of(method, timed, status);
            (0..200)
                .filter(|_| budget.is_some_and(LineBudget::take))
                .count()
        };
        assert_eq!(written(Method::GET, true, 200), 0);
        assert_eq!(written(Method::GET, false, 503), 0, "only monitors ask");
        // A second may begin in between, and has lines of its own.
        assert!((10..200).contains(&written(Method::POST, true, 200)));
        assert!(written(Method::GET, true, 404) >= 100);
    }
}
