//! A worker: takes a connection that has something to read or send, parses what is there, admits
//! requests, runs their handlers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ron_kernel::{Deadline, Receiver, Recv, Shutdown, ThreadCtx};
use ron_proto::Problem;
use rustix::event::epoll;

use crate::admit::Admitted;
use crate::conn::{After, Input, Reading, Step};
use crate::parse::Refusal;
use crate::request::{Method, Request};
use crate::responder::Responder;
use crate::response::Response;
use crate::route::Route;
use crate::settle::Shared;
use crate::slots::Lease;
use crate::spool::Spool;
use crate::unpack::Fault;

/// News taken in one look; a worker that finds more leaves them to the others.
const EVENTS: usize = 32;
/// How long a worker waits before it looks whether its front still lives.
const LOOK: Duration = Duration::from_secs(10);

/// The body of a worker thread: serves until the front is done.
pub(crate) fn work(shared: &Arc<Shared>, queue: &Receiver<u64>, done: &Shutdown, ctx: &ThreadCtx) {
    let mut worker = Worker {
        shared,
        lent: Input::default(),
        events: Vec::with_capacity(EVENTS),
    };
    loop {
        if let Some(token) = queue.try_recv().or_else(|| worker.look()) {
            worker.serve(token);
            continue;
        }
        match queue.recv(done, Deadline::within(LOOK)) {
            Recv::Item(token) => worker.serve(token),
            Recv::Shutdown | Recv::Closed => return,
            Recv::Timeout if ctx.shutdown.is_set() => return,
            Recv::Timeout => {}
        }
    }
}

struct Worker<'a> {
    shared: &'a Arc<Shared>,
    /// The read buffer, lent to the connection under service.
    lent: Input,
    events: Vec<epoll::Event>,
}

/// What the bytes of a connection amount to.
enum Next {
    /// More bytes are needed.
    Starved,
    /// An answer without a handler.
    Answer(Response),
    /// A complete request.
    Call(Box<Reading>),
}

impl<'a> Worker<'a> {
    /// Looks for news before going to sleep: under load the next requests are here already, and
    /// then nobody has to be woken for them. The first is for this worker, the others for the
    /// queue. The poll thread waits for the same news, so that it is seen also while all workers
    /// are in handlers.
    fn look(&mut self) -> Option<u64> {
        crate::front::wait(self.shared, &mut self.events, Duration::ZERO);
        let mut first = None;
        for event in self.events.drain(..) {
            let token = event.data.u64();
            if token < crate::front::WAKE && self.shared.news(token, event.flags) {
                match first {
                    None => first = Some(token),
                    Some(_) => self.shared.push(token),
                }
            }
        }
        first
    }

    fn serve(&mut self, token: u64) {
        let Some(mut lease) = self.shared.slots.take_queued(token) else {
            return;
        };
        match lease.step {
            Step::Write => {
                if let Some(lease) = self.shared.settle(lease) {
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
                        self.reclaim(&mut lease);
                    }
                    Err(_) if conn.step == Step::Handshake => {
                        self.shared.metrics.reject("tls_handshake");
                        self.reclaim(&mut lease);
                    }
                    Ok(Some(0)) | Err(_) => self.reclaim(&mut lease),
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

    /// Gives the connection this worker's buffer, with what it had read before in front.
    fn lend(&mut self, lease: &mut Lease<'_>) {
        let caps = &self.shared.limits;
        let size = (caps.max_head_bytes + caps.max_request_line_bytes + 8192).max(64 << 10);
        if self.lent.size() < size {
            self.lent = Input::with_size(size);
        }
        if lease.input.size() >= size {
            return; // it kept one from an earlier turn
        }
        self.lent.load(lease.input.bytes());
        lease.input = std::mem::take(&mut self.lent);
    }

    /// Takes the buffer back; what is not parsed yet moves to one of its own size.
    fn reclaim(&mut self, lease: &mut Lease<'_>) {
        let rest = if lease.input.is_empty() {
            Input::default()
        } else {
            Input::holding(lease.input.bytes())
        };
        let mut buffer = std::mem::replace(&mut lease.input, rest);
        buffer.consume(buffer.bytes().len());
        if buffer.size() > self.lent.size() {
            self.lent = buffer;
        }
    }

    /// Serves the requests whose bytes are here, until bytes, output room or its turn run out.
    fn advance(&mut self, mut lease: Lease<'a>) {
        for _ in 0..self.shared.limits.pipeline_depth.max(1) {
            let now = self.shared.clock.now();
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
                self.reclaim(&mut lease);
            }
            match self.shared.settle(lease) {
                Some(more) => lease = more,
                None => return,
            }
        }
        self.shared.enqueue(lease); // others get a turn
    }

    /// Parks a connection that needs more bytes, under the limit of what it is sending.
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
        // A body got its limit with its head; the rest of a head keeps the limit of its first byte.
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
        self.reclaim(&mut lease);
        if lease.stream.has_more() {
            return self.shared.requeue(lease); // decrypted already: no readiness will come for it
        }
        self.shared.arm(lease, due);
    }

    /// Reads and forgets what a refused client still sends.
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
                        Ok(Admitted::Reading(reading)) => lease.reading = Some(reading),
                        Ok(Admitted::Answer(response)) => return Next::Answer(response),
                        Err(refusal) => return self.refuse(lease, refusal),
                    }
                }
            }
        }
        let conn = &mut **lease;
        let Some(reading) = conn.reading.as_mut() else {
            return Next::Starved;
        };
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
            Some(reading) => self.complete(reading),
            None => Next::Starved,
        }
    }

    /// A body that is all here: unpacked, if it is packed.
    fn complete(&self, mut reading: Box<Reading>) -> Next {
        let Some(coding) = reading.coding else {
            return Next::Call(reading);
        };
        let ratio = self.shared.limits.decompress_ratio;
        let most = usize::try_from(reading.body_cap).unwrap_or(usize::MAX);
        let cap = reading.body.len().saturating_mul(ratio).min(most);
        match coding.unpack(&reading.body, cap) {
            Ok(body) => {
                reading.body = body;
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

    /// The answer to a body that cannot be written to disk.
    fn not_kept(&self, lease: &mut Lease<'_>, error: &std::io::Error) -> Next {
        self.shared.metrics.reject("spool");
        tracing::error!(event = "upload_not_kept", kind = %error.kind());
        lease.after = After::Linger;
        lease.reading = None;
        Next::Answer(crate::spool::problem_of(error).into())
    }

    /// The answer to bytes that cannot be trusted any further.
    fn refuse(&self, lease: &mut Lease<'_>, refusal: Refusal) -> Next {
        self.shared.metrics.reject(refusal.reason());
        lease.after = After::Linger;
        lease.reading = None;
        Next::Answer(problem_of(refusal).into())
    }

    /// Runs the handler of a complete request. The connection waits in its slot meanwhile, so that
    /// the deadline holds even when the handler does not return.
    fn call(
        &mut self,
        mut lease: Lease<'a>,
        reading: Box<Reading>,
        now: Instant,
    ) -> Option<(Lease<'a>, Response)> {
        let shared = self.shared;
        let route = &shared.router.routes[reading.route];
        let deadline = deadline_of(shared, &reading, now);
        let refused = if deadline.at() <= now {
            shared.metrics.reject("deadline");
            Some(Problem::deadline_exceeded(
                "the deadline had passed on arrival",
            ))
        } else if shared.in_flight.fetch_add(1, Ordering::AcqRel)
            >= shared.limits.in_flight_for(is_read(&reading, route))
        {
            let before = shared.in_flight.fetch_sub(1, Ordering::AcqRel);
            shared.metrics.reject("in_flight");
            Some(Problem::busy(shared.answered.seconds_for(before - 1)))
        } else {
            None
        };
        if let Some(problem) = refused {
            return Some((lease, problem.into()));
        }
        shared.metrics.in_flight.inc();
        if route.long_poll {
            shared.polls.fetch_add(1, Ordering::AcqRel);
        }
        if lease.input.is_empty() {
            self.reclaim(&mut lease);
        }
        let id = lease.exchange.as_ref().map(|exchange| exchange.id);
        let ticket = lease.await_answer(deadline.at(), route.long_poll);
        let id = id.unwrap_or_else(|| shared.ids.fresh(shared.clock.unix_ms()));
        let responder = Responder::new(shared.clone(), ticket, deadline, id);
        let request = request_of(*reading, deadline);
        if catch_unwind(AssertUnwindSafe(|| (route.handler)(request, responder))).is_err() {
            shared.metrics.panics.inc();
            tracing::error!(
                event = "handler_panicked",
                route = route.pattern,
                request_id = id.as_str()
            );
        }
        if let Some(answered) = shared.slots.handler_returned(ticket) {
            return Some(answered);
        }
        if route.long_poll && shared.draining() {
            // It began to wait after the poll thread had let the others go.
            let lease = shared.slots.let_go(ticket)?;
            return Some((lease, shared.draining_now()));
        }
        None
    }
}

/// A request that the places kept for reads are for.
fn is_read(reading: &Reading, route: &Route) -> bool {
    matches!(reading.head.method, Method::GET | Method::HEAD) && !route.long_poll
}

/// The problem that tells a client why its bytes were refused.
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

/// When the client is told 504: the route's or the front's deadline, lowered by the client's
/// wish, lengthened by what a long poll waits.
fn deadline_of(shared: &Shared, reading: &Reading, now: Instant) -> Deadline {
    let route = &shared.router.routes[reading.route];
    let mut limit = route.deadline.unwrap_or(shared.limits.request_deadline);
    if route.long_poll {
        let query = reading
            .query
            .iter()
            .find(|(key, _)| key == "wait")
            .map(|(_, v)| v.as_str());
        let wait = crate::request::wait_of(query, reading.head.header("prefer"));
        limit += wait.unwrap_or_default().min(shared.limits.max_wait);
    }
    if let Some(wish) = reading.deadline_ms {
        limit = limit.min(Duration::from_millis(wish));
    }
    Deadline::at_instant(now + limit)
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
        upload: reading.spool.map(Spool::done),
        principal: reading.principal,
        request_id: head.request_id,
        traceparent: head.traceparent,
        deadline,
        peer: head.peer,
        transport: head.transport,
        client_cert: head.client_cert,
        route: head.route,
    }
}
