//! From a complete head to an admitted request: route, drain, identity, media type, size, in this
//! order, all before the first byte of the body is parsed.

use std::sync::atomic::Ordering;
use std::time::Instant;

use ron_proto::{Problem, Tenant};

use crate::auth::{Need, Principal};
use crate::body::BodyDecoder;
use crate::conn::{After, Exchange, Reading};
use crate::head::{Headers, Method, RequestHead};
use crate::ids::ShortId;
use crate::memory::HeldBytes;
use crate::pace::Pace;
use crate::parse::{Framing, Head, Refusal, parse_head};
use crate::request::parse_query;
use crate::response::Response;
use crate::router::Match;
use crate::shared::Shared;
use crate::slots::Lease;
use crate::spool::{Place, Spool};
use crate::trace::{TRACEPARENT, TRACESTATE, Trace};
use crate::unpack::{ACCEPTED, Coding};

/// The decision on a request with a complete head.
pub(crate) enum Admission {
    /// Its body is read next.
    Reading(Box<Reading>),
    /// It is answered at once.
    Answer(Response),
}

impl Shared {
    /// Consumes the head from the connection's input and decides on it. An error means that the
    /// framing cannot be trusted and the connection must close.
    pub(crate) fn admit(
        &self,
        lease: &mut Lease<'_>,
        length: usize,
        now: Instant,
    ) -> Result<Admission, Refusal> {
        let bytes = &lease.input.bytes()[..length];
        let head = parse_head(bytes, &self.limits.head_caps())?;
        let target = std::str::from_utf8(&bytes[head.target.clone()])
            .map_err(|_| Refusal::BadTarget)?
            .to_owned();
        let headers = Headers::new(bytes.to_vec(), head.fields.clone());
        lease.input.consume(length);
        let id = headers
            .raw("x-request-id")
            .and_then(ShortId::parse)
            .unwrap_or_else(|| self.ids.fresh(self.clock.unix_ms()));
        // In several fields it would have to be joined; a context may lose its state.
        let state = headers
            .get(TRACESTATE)
            .filter(|_| headers.count(TRACESTATE) == 1);
        let trace = Trace::of(id, headers.get(TRACEPARENT), state, self.spans.as_deref());
        // For other methods a matching tag would mean 412 (RFC 9110, section 13.1.2), which no
        // route needs.
        let conditional = matches!(head.method, Method::GET | Method::HEAD);
        let if_none_match = headers
            .get("if-none-match")
            .filter(|_| conditional)
            .map(Box::from);
        lease.exchange = Some(Exchange {
            trace: trace.clone(),
            route: None,
            method: head.method,
            http11: head.http11,
            if_none_match,
            started: now,
        });
        if !head.keep_alive {
            lease.after = After::Close;
        }
        match self.check(lease, &head, headers, &target, trace) {
            Ok(reading) => {
                if head.expects_continue && lease.input.is_empty() {
                    // Best effort: a client that gets no 100 sends its body anyway, after a while.
                    let _ = lease.stream.write(b"HTTP/1.1 100 Continue\r\n\r\n", false);
                }
                Ok(Admission::Reading(reading))
            }
            Err(answer) => {
                skip_body(lease, head.framing);
                Ok(Admission::Answer(*answer))
            }
        }
    }

    fn check(
        &self,
        lease: &mut Lease<'_>,
        head: &Head,
        headers: Headers,
        target: &str,
        trace: Trace,
    ) -> Result<Box<Reading>, Box<Response>> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (route, values) = self.find(head.method, path)?;
        let pattern = self.router.routes[route].pattern;
        if let Some(exchange) = &mut lease.exchange {
            exchange.route = Some(route);
        }
        if self.draining() && !self.router.routes[route].while_draining {
            self.metrics.reject("draining");
            return Err(Box::new(self.draining_answer()));
        }
        let Some(params) = self.router.params(route, &values) else {
            return refuse(Problem::bad_request(
                "a path segment is not valid percent-encoding",
            ));
        };
        let Some(query) = parse_query(query) else {
            return refuse(Problem::bad_request(
                "the query is not valid percent-encoded text",
            ));
        };
        let head_info = RequestHead {
            method: head.method,
            path: path.to_owned(),
            route: pattern,
            headers,
            peer: lease.peer,
            transport: lease.transport,
            client_cert: lease.client_cert.clone(),
            trace,
        };
        // Identity before everything that depends on the body: an unknown caller learns nothing of
        // the route's limits and costs no file.
        let principal = self.authorize(route, &head_info)?;
        let (decoder, body_cap) = self.check_body(route, head.framing, &head_info)?;
        let coding = self.check_coding(route, &head_info)?;
        let deadline_ms = deadline_header(&head_info)?;
        let spool = self.spool(route, &principal.tenant)?;
        self.set_body_limit(lease, route);
        Ok(Box::new(Reading {
            head: head_info,
            route,
            params,
            query,
            principal,
            deadline_ms,
            decoder,
            body_cap,
            body: Vec::new(),
            held: HeldBytes::default(),
            memory: match self.router.routes[route].need {
                Need::Public => self.limits.anonymous_memory(),
                Need::Identity | Need::Scope(_) => self.limits.body_memory,
            },
            coding,
            spool,
        }))
    }

    /// The route, or the answer to a path or method without one.
    fn find<'p>(
        &self,
        method: Method,
        path: &'p str,
    ) -> Result<(usize, Vec<&'p str>), Box<Response>> {
        if path == "*" {
            let all = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT";
            return Err(Box::new(Response::empty(204).header("allow", all)));
        }
        match self.router.find(method, path) {
            Match::Route(route, values) => Ok((route, values)),
            Match::Nothing => refuse(Problem::not_found("no such path; see /openapi.json")),
            Match::OtherMethods(allow) if method == Method::OPTIONS => {
                Err(Box::new(Response::empty(204).header("allow", allow)))
            }
            Match::OtherMethods(allow) => {
                let detail = format!("this path answers to {allow}");
                let response = Response::from(Problem::method_not_allowed(detail));
                Err(Box::new(response.header("allow", allow)))
            }
        }
    }

    fn authorize(&self, route: usize, head: &RequestHead) -> Result<Principal, Box<Response>> {
        let need = &self.router.routes[route].need;
        if *need == Need::Public {
            return Ok(self.public.clone());
        }
        self.authorize_as(need, head)
    }

    fn authorize_as(&self, need: &Need, head: &RequestHead) -> Result<Principal, Box<Response>> {
        let now = self.clock.now();
        let peer = || {
            let proxies = &self.limits.trusted_proxies;
            proxies.client(head.peer, head.transport, &head.headers)
        };
        // Before the credentials are checked: checking signatures is what a flood would cost.
        if let Some(wait) = self.failures.wait(peer, now) {
            self.metrics.reject("auth_failures");
            let seconds = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX);
            return refuse(Problem::rate_limited(seconds.saturating_add(1)));
        }
        self.authorizer.authorize(head, need).or_else(|problem| {
            if problem.status == 401 {
                self.failures.count(peer(), now);
            }
            self.metrics.reject(match problem.status {
                401 => "unauthorized",
                403 => "forbidden",
                _ => "auth_unavailable",
            });
            refuse(problem)
        })
    }

    /// Checks the media type of the body and, if the head states it, the length.
    fn check_body(
        &self,
        route: usize,
        framing: Framing,
        head: &RequestHead,
    ) -> Result<(BodyDecoder, u64), Box<Response>> {
        let cap = self.body_cap(route, framing, head);
        let route = &self.router.routes[route];
        if let Err(problem) = route.check_content_type(head.header("content-type")) {
            self.metrics.reject("content_type");
            return refuse(problem);
        }
        match BodyDecoder::new(framing, cap) {
            Ok(decoder) => Ok((decoder, cap)),
            Err(refusal) => {
                self.metrics.reject(refusal.reason());
                refuse(Problem::too_large(format!("the body is above {cap} bytes")))
            }
        }
    }

    /// The largest body that is read. On public routes the cap for anonymous callers is small; only
    /// when a request announces a larger body are its credentials checked.
    fn body_cap(&self, route: usize, framing: Framing, head: &RequestHead) -> u64 {
        let route = &self.router.routes[route];
        let limits = &self.limits;
        let cap = route.cap(limits.max_body_bytes);
        if route.need != Need::Public || route.has_own_cap() {
            return cap;
        }
        let small = cap.min(limits.public_body_bytes as u64);
        let larger = matches!(framing, Framing::Length(length) if length > small && length <= cap);
        let known = larger
            && head.headers.contains("authorization")
            && self.authorize_as(&Need::Identity, head).is_ok();
        if known { cap } else { small }
    }

    /// The content coding of the body; 415 for one that this route does not decode.
    fn check_coding(
        &self,
        route: usize,
        head: &RequestHead,
    ) -> Result<Option<Coding>, Box<Response>> {
        let streamed = self.router.routes[route].spool.is_some();
        match Coding::of(&head.headers) {
            Ok(coding) if coding.is_none() || !streamed => Ok(coding),
            _ => {
                self.metrics.reject("content_encoding");
                let accepted = if streamed { "identity" } else { ACCEPTED };
                let problem = Problem::unsupported_media_type(format!(
                    "the body must have one content coding at most, of: {accepted}"
                ));
                let response = Response::from(problem);
                Err(Box::new(response.header("accept-encoding", accepted)))
            }
        }
    }

    /// The file for a body that is streamed to disk.
    fn spool(&self, route: usize, tenant: &Tenant) -> Result<Option<Spool>, Box<Response>> {
        let Some(to) = &self.router.routes[route].spool else {
            return Ok(None);
        };
        let (room, most) = (&self.slots.room, self.limits.max_uploads);
        let Some(place) = Place::take(room, tenant, most) else {
            self.metrics.reject("uploads");
            return refuse(Problem::busy(
                self.limits.rate_window.as_secs().max(1) as u32
            ));
        };
        match Spool::open(&to.dir, to.disk.clone(), place) {
            Ok(spool) => Ok(Some(spool)),
            Err(error) => {
                self.metrics.reject("spool");
                tracing::error!(event = "upload_not_opened", kind = %error.kind());
                refuse(crate::spool::problem_of(&error))
            }
        }
    }

    /// Sets the time limit of the body: a fixed time, or the minimum rate on routes for large
    /// transfers.
    fn set_body_limit(&self, lease: &mut Lease<'_>, route: usize) {
        let route = &self.router.routes[route];
        let now = self.clock.now();
        let idle = self.limits.body_timeout;
        lease.pace = route
            .bulk
            .then(|| Pace::new(self.limits.rule(idle, route.min_rate), now));
        lease.due = Some(lease.pace.as_ref().map_or(now + idle, Pace::due));
    }

    /// Number of requests whose clients wait for a handler's answer.
    pub(crate) fn unanswered(&self) -> usize {
        let polls = if self.draining() {
            0 // they are answered when the drain begins
        } else {
            self.slots.room.polls()
        };
        self.in_flight.load(Ordering::Acquire) + polls
    }

    /// The answer to a request that arrives, or would begin to wait, after the drain began.
    pub(crate) fn draining_answer(&self) -> Response {
        Problem::draining(self.limits.drain_retry_after_s).into()
    }
}

/// Discards the body after an early answer. A body that has arrived whole is skipped; otherwise the
/// connection closes, with time for the client to read the answer.
fn skip_body(lease: &mut Lease<'_>, framing: Framing) {
    match framing {
        Framing::Empty => {}
        // The next request of the pipeline begins behind it.
        Framing::Length(length) if length <= lease.input.bytes().len() as u64 => {
            lease.input.consume(length as usize);
        }
        Framing::Length(_) | Framing::Chunked => lease.after = After::Linger,
    }
}

fn refuse<T>(problem: Problem) -> Result<T, Box<Response>> {
    Err(Box::new(problem.into()))
}

/// `X-Request-Deadline-Ms`, if sent; at most nine digits, which is eleven days.
fn deadline_header(head: &RequestHead) -> Result<Option<u64>, Box<Response>> {
    let Some(text) = head.headers.raw("x-request-deadline-ms") else {
        return Ok(None);
    };
    let good = !text.is_empty() && text.len() <= 9 && text.iter().all(u8::is_ascii_digit);
    match std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
    {
        Some(ms) if good => Ok(Some(ms)),
        _ => refuse(Problem::bad_request(
            "X-Request-Deadline-Ms must be a whole number of milliseconds",
        )),
    }
}
