//! A worker thread: takes a connection that has bytes to read or to send, parses the bytes, admits
//! requests, runs their handlers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_kernel::atomic::Ordering;
use ron_kernel::net::Event;
use ron_kernel::{Deadline, Receiver, Shutdown, ThreadCtx};
use ron_proto::Problem;

use crate::admit::Admission;
use crate::conn::{After, Input, Reading, Step};
use crate::head::Method;
use crate::memory::Full;
use crate::parse::Refusal;
use crate::peer::Peer;
use crate::request::Request;
use crate::responder::Responder;
use crate::response::Response;
use crate::shared::Shared;
use crate::slots::Lease;
use crate::spool::Spool;
use crate::trace::TraceScope;
use crate::unpack::Fault;

/// Events that one poll of a worker takes; more are left to other threads.
const EVENTS: usize = 32;
/// `Retry-After` when memory for requests is used up: the requests that hold it end within seconds.
const MEMORY_RETRY_S: u32 = 1;
/// The same when too many long polls wait.
const POLL_RETRY_S: u32 = 2;
/// Longest wait of an idle worker before it checks that its front still runs.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// The body of a worker thread: serves until the front is done.
pub(crate) fn work(shared: &Arc<Shared>, queue: &Receiver<u64>, done: &Shutdown, ctx: &ThreadCtx) {
    let mut worker = Worker {
        shared,
        queue,
        lent: Input::default(),
        events: Vec::with_capacity(EVENTS),
    };
    loop {
        if let Some(token) = queue.try_recv().or_else(|| worker.poll_sockets()) {
            worker.serve(token);
            continue;
        }
        let limit = Deadline::within(IDLE_MAX);
        if let Some(token) = worker.wait(done) {
            worker.serve(token);
        } else if done.is_set() || (limit.expired() && ctx.shutdown.is_set()) {
            break;
        }
    }
    shared.idle.sockets.wake(); // the other workers end too
}

struct Worker<'a> {
    shared: &'a Arc<Shared>,
    queue: &'a Receiver<u64>,
    /// The read buffer, lent to the connection that is being served.
    lent: Input,
    events: Vec<Event>,
}

/// The next step of a connection, after its bytes were parsed.
enum Next {
    /// More bytes are needed.
    Starved,
    /// An answer without a handler.
    Answer(Response),
    Call(Box<Reading>),
}

impl<'a> Worker<'a> {
    /// Polls the sockets before this worker is idle: under load the next requests have arrived
    /// already and are served without waking a thread.
    fn poll_sockets(&mut self) -> Option<u64> {
        self.shared.idle.sockets.poll(&mut self.events);
        self.take_events()
    }

    /// Waits for a request, or for a token in the queue.
    fn wait(&mut self, done: &Shutdown) -> Option<u64> {
        let has_work = || !self.queue.is_empty() || done.is_set();
        if self.shared.idle.wait(&mut self.events, IDLE_MAX, has_work) {
            self.shared.poller().wake();
        }
        self.take_events().or_else(|| self.queue.try_recv())
    }

    /// This worker serves the first of the connections that have events, the others go to the queue.
    fn take_events(&mut self) -> Option<u64> {
        let mut first = None;
        for event in self.events.drain(..) {
            if self.shared.socket_event(event) {
                match first {
                    None => first = Some(event.token),
                    Some(_) => self.shared.push(event.token),
                }
            }
        }
        first
    }

    fn serve(&mut self, token: u64) {
        if !self.queue.is_empty() {
            self.shared.idle.wake_one(); // this one's handler may block
        }
        let Some(mut lease) = self.shared.slots.take_queued(token) else {
            return; // closed or timed out while its token was queued
        };
        match lease.step {
            Step::Write => {
                if let Some(lease) = self.shared.send_answer(lease) {
                    self.shared.enqueue(lease);
                }
            }
            Step::Linger => self.drain(lease),
            Step::Ready => self.advance(lease),
            Step::Handshake | Step::Idle | Step::Head | Step::Body => {
                self.lend(&mut lease);
                let conn = &mut *lease;
                let read = conn.stream.read(conn.input.room());
                match read {
                    Ok(Some(0)) if !conn.input.is_empty() || conn.reading.is_some() => {
                        self.shared.metrics.reject("closed_early");
                        self.reclaim_all(&mut lease);
                    }
                    Err(_) if conn.step == Step::Handshake => {
                        self.shared.metrics.reject("tls_handshake");
                        self.reclaim_all(&mut lease);
                    }
                    Ok(Some(0)) | Err(_) => self.reclaim_all(&mut lease),
                    Ok(None) => {
                        conn.greet();
                        self.starve(lease);
                    }
                    Ok(Some(count)) => {
                        conn.greet();
                        if let Some(pace) = &mut conn.pace {
                            pace.add(count as u64, self.shared.clock.now());
                        }
                        conn.input.filled(count);
                        self.advance(lease);
                    }
                }
            }
        }
    }

    /// Lends the connection this worker's buffer, with its unparsed bytes at the front. Idle
    /// connections so hold no buffer, and there is one large buffer per worker.
    fn lend(&mut self, lease: &mut Lease<'_>) {
        let caps = &self.shared.limits;
        let size = (caps.max_head_bytes + caps.max_request_line_bytes + 8192).max(64 << 10);
        if self.lent.size() < size {
            self.lent = Input::with_size(size);
        }
        if lease.input.size() >= size {
            return; // it still has one from an earlier turn
        }
        self.lent.load(lease.input.bytes());
        lease.input = std::mem::take(&mut self.lent);
    }

    /// Takes the buffer back and moves unparsed bytes to a buffer of just their size. When the
    /// memory budget has no room for that, the bytes are lost and the connection must close.
    fn reclaim(&mut self, lease: &mut Lease<'_>) -> Result<(), Full> {
        if lease.input.is_empty() {
            self.reclaim_all(lease);
            return Ok(());
        }
        let rest = Input::holding(lease.input.bytes(), self.shared.limits.anonymous_memory());
        self.reclaim_all(lease);
        lease.input = rest?;
        Ok(())
    }

    /// Takes the buffer back and discards its bytes.
    fn reclaim_all(&mut self, lease: &mut Lease<'_>) {
        let mut buffer = std::mem::take(&mut lease.input);
        buffer.consume(buffer.bytes().len());
        if buffer.size() > self.lent.size() {
            self.lent = buffer;
        }
    }

    /// Serves the requests whose bytes have arrived, until the bytes, the room in the socket or the
    /// connection's turn (`pipeline_depth`) run out.
    fn advance(&mut self, mut lease: Lease<'a>) {
        for request in 0..self.shared.limits.pipeline_depth.max(1) {
            let now = self.shared.clock.now();
            if request > 0 {
                lease.arrived = now; // its turn came with the answer to the one before
            }
            match self.next(&mut lease, now) {
                Next::Starved => return self.starve(lease),
                Next::Answer(response) => self.shared.put_answer(&mut lease, response),
                Next::Call(reading) => match self.call(lease, reading, now) {
                    Some((answered, response)) => {
                        lease = answered;
                        self.shared.put_answer(&mut lease, response);
                    }
                    None => return,
                },
            }
            if lease.input.is_empty() {
                self.reclaim_all(&mut lease);
            }
            match self.shared.send_answer(lease) {
                Some(more) => lease = more,
                None => return,
            }
        }
        if lease.input.lent && self.reclaim(&mut lease).is_err() {
            return self.out_of_memory(lease);
        }
        self.shared.enqueue(lease); // behind the other connections
    }

    /// Answers 429 on a connection whose bytes do not fit the memory budget, and closes it.
    fn out_of_memory(&self, mut lease: Lease<'_>) {
        self.shared.metrics.reject("body_memory");
        lease.after = After::Linger;
        lease.reading = None;
        self.shared
            .finish(lease, Problem::busy(MEMORY_RETRY_S).into());
    }

    /// Parks a connection that needs more bytes, with the time limit of the part it is sending.
    fn starve(&mut self, mut lease: Lease<'_>) {
        let limits = &self.shared.limits;
        let now = self.shared.clock.now();
        let (step, limit) = if lease.stream.is_handshaking() {
            (Step::Handshake, limits.read_timeout)
        } else if lease.reading.is_some() {
            (Step::Body, limits.body_timeout)
        } else if lease.input.is_empty() {
            (Step::Idle, limits.idle_timeout)
        } else {
            (Step::Head, limits.read_timeout)
        };
        // A body has its limit since its head was complete; a head keeps the limit of its first
        // byte. A client that sends byte by byte gains no time.
        let running = match step {
            Step::Body => true,
            Step::Head | Step::Handshake => lease.step == step,
            _ => false,
        };
        let due = match (step, &lease.pace) {
            (Step::Body, Some(pace)) => pace.due(),
            _ => lease.due.filter(|_| running).unwrap_or(now + limit),
        };
        lease.step = step;
        lease.due = Some(due);
        if self.reclaim(&mut lease).is_err() {
            return self.out_of_memory(lease);
        }
        if lease.stream.has_more() {
            return self.shared.requeue(lease); // bytes already read from the socket: no event follows
        }
        self.shared.arm(lease, due);
    }

    /// Reads and discards the bytes that a refused client still sends.
    fn drain(&mut self, mut lease: Lease<'_>) {
        if self.lent.size() == 0 {
            self.lent = Input::with_size(64 << 10);
        }
        while lease.linger_left > 0 {
            match lease.stream.read(self.lent.room()) {
                Ok(Some(count)) if count > 0 => {
                    lease.linger_left = lease.linger_left.saturating_sub(count);
                }
                Ok(None) => {
                    let due = lease.due.unwrap_or_else(|| self.shared.clock.now());
                    return self.shared.arm(lease, due);
                }
                _ => return,
            }
        }
    }

    fn next(&mut self, lease: &mut Lease<'_>, now: Instant) -> Next {
        if lease.reading.is_none() {
            let caps = self.shared.limits.head_caps();
            let conn = &mut **lease;
            match conn.scan.advance(conn.input.bytes(), &caps) {
                Ok(None) => return Next::Starved,
                Err(refusal) => return self.refuse(lease, refusal),
                Ok(Some(length)) => {
                    conn.scan = crate::parse::HeadScanner::default();
                    conn.due = None;
                    match self.shared.admit(lease, length, now) {
                        Ok(Admission::Reading(reading)) => lease.reading = Some(reading),
                        Ok(Admission::Answer(response)) => return Next::Answer(response),
                        Err(refusal) => return self.refuse(lease, refusal),
                    }
                }
            }
        }
        let conn = &mut **lease;
        let Some(reading) = conn.reading.as_mut() else {
            return Next::Starved;
        };
        let came = conn.input.bytes().len();
        // The budget is asked before the buffer grows, not after.
        if reading.reserve(came).is_err() {
            return self.no_room(lease);
        }
        let room = reading.room();
        let fed = reading
            .decoder
            .feed(conn.input.bytes(), &mut reading.body, room);
        let decoded = match fed {
            Err(refusal) => return self.refuse(lease, refusal),
            Ok(decoded) => decoded,
        };
        if let Some(spool) = &mut reading.spool {
            if let Err(error) = spool.write(&reading.body) {
                return self.not_kept(lease, &error);
            }
            reading.body.clear();
        }
        conn.input.consume(decoded.used);
        if !decoded.done {
            return Next::Starved;
        }
        (conn.due, conn.pace) = (None, None);
        match conn.reading.take() {
            Some(reading) => self.complete(lease, reading),
            None => Next::Starved,
        }
    }

    /// A complete body: decompressed, if it has a content coding.
    fn complete(&self, lease: &mut Lease<'_>, mut reading: Box<Reading>) -> Next {
        let Some(coding) = reading.coding else {
            return Next::Call(reading);
        };
        let ratio = self.shared.limits.decompress_ratio;
        let most = usize::try_from(reading.body_cap).unwrap_or(usize::MAX);
        let cap = reading.body.len().saturating_mul(ratio).min(most);
        // While it is unpacked, the packed and the unpacked body exist at once.
        let both = reading.body.capacity().saturating_add(cap);
        if reading.held.grow_to(both, reading.memory).is_err() {
            return self.no_room(lease);
        }
        match coding.unpack(&reading.body, cap) {
            Ok(body) => {
                reading.body = body;
                reading.held.shrink_to(reading.body.capacity());
                Next::Call(reading)
            }
            Err(fault) => {
                let (reason, problem) = match fault {
                    Fault::TooLarge => (
                        "unpacked_size",
                        Problem::too_large(format!(
                            "the body unpacks to more than {most} bytes or {ratio} times what was sent"
                        )),
                    ),
                    Fault::Damaged => (
                        "unpacked_damaged",
                        Problem::bad_request("the body is not valid in its content coding"),
                    ),
                };
                self.shared.metrics.reject(reason);
                Next::Answer(problem.into())
            }
        }
    }

    /// The answer to a body for which there is no memory.
    fn no_room(&self, lease: &mut Lease<'_>) -> Next {
        self.shared.metrics.reject("body_memory");
        lease.after = After::Linger;
        lease.reading = None;
        Next::Answer(Problem::busy(MEMORY_RETRY_S).into())
    }

    /// The answer to a body that cannot be written to disk.
    fn not_kept(&self, lease: &mut Lease<'_>, error: &std::io::Error) -> Next {
        self.shared.metrics.reject("spool");
        tracing::error!(event = "upload_not_kept", kind = %error.kind());
        lease.after = After::Linger;
        lease.reading = None;
        Next::Answer(crate::spool::problem_of(error).into())
    }

    /// The answer to bytes whose framing cannot be trusted any further.
    fn refuse(&self, lease: &mut Lease<'_>, refusal: Refusal) -> Next {
        self.shared.metrics.reject(refusal.reason());
        lease.after = After::Linger;
        lease.reading = None;
        Next::Answer(problem_of(refusal).into())
    }

    /// Takes a place for the request among those in flight, or among the long polls, which wait
    /// long but hold no resource that others need. Returns the peer whose share of the long polls
    /// it uses.
    fn place(
        &self,
        lease: &Lease<'_>,
        reading: &Reading,
        deadline: Deadline,
        now: Instant,
    ) -> Result<Option<Peer>, Problem> {
        let shared = self.shared;
        let limits = &shared.limits;
        if deadline.at() <= now {
            shared.metrics.reject("deadline");
            return Err(Problem::deadline_exceeded(
                "the deadline had passed before the request was served",
            ));
        }
        if !wait_of(shared, reading).is_zero() {
            let proxies = &limits.trusted_proxies;
            let peer = proxies.client(lease.peer, lease.transport, &reading.head.headers);
            let (most, share) = (limits.long_polls, limits.long_polls_per_peer);
            if shared.slots.room.take_poll(peer, most, share) {
                return Ok(Some(peer));
            }
            shared.metrics.reject("long_polls");
            return Err(Problem::busy(POLL_RETRY_S));
        }
        // Added first and taken back on refusal: two requests that race for the last place cannot
        // both get it.
        let before = shared.in_flight.fetch_add(1, Ordering::AcqRel);
        if before < limits.in_flight_for(is_read(reading)) {
            return Ok(None);
        }
        let before = shared.in_flight.fetch_sub(1, Ordering::AcqRel);
        shared.metrics.reject("in_flight");
        Err(Problem::busy(shared.answered.seconds_for(before - 1)))
    }

    /// Runs the handler of a complete request. The connection waits in its slot meanwhile, so that
    /// the deadline holds even when the handler does not return. Returns the lease when the answer
    /// is there and this worker must send it.
    fn call(
        &mut self,
        mut lease: Lease<'a>,
        reading: Box<Reading>,
        now: Instant,
    ) -> Option<(Lease<'a>, Response)> {
        let shared = self.shared;
        let route = &shared.router.routes[reading.route];
        let deadline = deadline_of(shared, &reading, lease.arrived);
        let poll = match self.place(&lease, &reading, deadline, now) {
            Ok(poll) => poll,
            Err(problem) => return Some((lease, problem.into())),
        };
        shared.metrics.in_flight.inc();
        if (lease.input.is_empty() || lease.input.lent) && self.reclaim(&mut lease).is_err() {
            lease.after = After::Linger; // the bytes behind this request are lost
        }
        // From here on the connection belongs to its slot: the responder may answer from any
        // thread, and the sweep may answer 504, before the handler returns.
        let ticket = lease.await_answer(deadline.at(), route.long_poll, poll);
        let trace = reading.head.trace.clone();
        let scope = TraceScope::enter(Some(trace.clone()));
        let responder = Responder::new(shared.clone(), ticket, deadline, Some(trace));
        let request = request_of(*reading, deadline);
        if catch_unwind(AssertUnwindSafe(|| (route.handler)(request, responder))).is_err() {
            shared.metrics.panics.inc();
            tracing::error!(event = "handler_panicked", route = route.pattern);
        }
        drop(scope);
        if let Some(answered) = shared.slots.handler_returned(ticket) {
            return Some(answered);
        }
        if route.long_poll {
            shared.hang_up(ticket.token); // its client may have gone while the handler ran
        }
        if route.long_poll && shared.draining() {
            // It began to wait after the poll thread had answered the other long polls.
            let lease = shared.slots.withdraw(ticket)?;
            return Some((lease, shared.draining_answer()));
        }
        None
    }
}

/// True for a request that may use the places kept for reads.
fn is_read(reading: &Reading) -> bool {
    matches!(reading.head.method, Method::GET | Method::HEAD)
}

/// Maximum time that a long poll waits for an event.
fn wait_of(shared: &Shared, reading: &Reading) -> Duration {
    if !shared.router.routes[reading.route].long_poll {
        return Duration::ZERO;
    }
    let asked = reading.query.iter().find(|(key, _)| key == "wait");
    let asked = asked.map(|(_, value)| value.as_str());
    let wait = crate::request::wait_of(asked, reading.head.header("prefer"));
    // The handler refuses a wait that is not valid, and needs no longer deadline for it.
    wait.ok().flatten().unwrap_or_default()
}

/// The problem document for bytes that were refused.
fn problem_of(refusal: Refusal) -> Problem {
    let detail = refusal.detail();
    match refusal.status() {
        413 => Problem::too_large(detail),
        414 => Problem::uri_too_long(detail),
        417 => Problem::expectation_failed(detail),
        431 => Problem::headers_too_large(detail),
        501 => Problem::not_implemented(detail),
        505 => Problem::new(505, "http_version", "HTTP version not supported", detail),
        _ => Problem::bad_request(detail),
    }
}

/// When the client is answered 504: the route's or the front's deadline, lengthened by the wait of
/// a long poll, lowered by the client's `X-Request-Deadline-Ms`. The time in which the request
/// waited for a worker counts.
fn deadline_of(shared: &Shared, reading: &Reading, arrived: Instant) -> Deadline {
    let route = &shared.router.routes[reading.route];
    let mut limit = route.deadline.unwrap_or(shared.limits.request_deadline);
    limit += wait_of(shared, reading);
    if let Some(wish) = reading.deadline_ms {
        limit = limit.min(Duration::from_millis(wish));
    }
    Deadline::at_instant(arrived + limit)
}

fn request_of(reading: Reading, deadline: Deadline) -> Request {
    let head = reading.head;
    Request {
        method: head.method,
        path: head.path,
        params: reading.params,
        query: reading.query,
        headers: head.headers,
        body: reading.body,
        memory: reading.held,
        upload: reading.spool.map(Spool::done),
        principal: reading.principal,
        trace: head.trace,
        deadline,
        peer: head.peer,
        transport: head.transport,
        client_cert: head.client_cert,
        route: head.route,
    }
}
