//! Clients that call the front in every manner, and what must be true of each call.

use std::time::{Duration, Instant};

use ron_http::{Call, CallError, HttpClient, Method, Reply};
use ron_kernel::Deadline;
use ron_sim::{ensure, fault, time};

use super::server::{LARGE, Server};
use crate::chance::{below, ms};
use crate::hosts::{self, REQUEST};
use crate::net::Host;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Now,
    Slow,
    Later,
    Poll,
    Large,
    Never,
    Drops,
    Panics,
}

impl Kind {
    const ALL: [(Self, &'static str); 8] = [
        (Self::Now, "/now"),
        (Self::Slow, "/slow"),
        (Self::Later, "/later"),
        (Self::Poll, "/poll?wait=1"),
        (Self::Large, "/large"),
        (Self::Never, "/never"),
        (Self::Drops, "/drops"),
        (Self::Panics, "/panics"),
    ];

    /// The statuses that a handler of this kind leads to, when its answer comes in time.
    const fn status(self) -> u16 {
        match self {
            Self::Never => 504,
            Self::Drops | Self::Panics => 500,
            _ => 200,
        }
    }
}

/// A call that was made, and its end.
pub struct Asked {
    kind: Kind,
    number: u64,
    idempotent: bool,
    /// The client's limit, the one that it asked the front for, and the time that its handler takes.
    limit: Duration,
    asked_for: Option<Duration>,
    wait: Duration,
    began: Instant,
    ended: Instant,
    outcome: Result<Reply, CallError>,
}

/// Beyond a deadline and its tenth: for the threads that a seed does not let run.
const SLACK: Duration = Duration::from_millis(20);

impl Asked {
    pub fn answer(&self) -> Option<u16> {
        self.outcome.as_ref().ok().map(|reply| reply.status)
    }

    fn text(&self) -> String {
        let (kind, number, wait, limit) = (self.kind, self.number, self.wait, self.limit);
        let asked = self.asked_for;
        let took = self.ended - self.began;
        let end = match &self.outcome {
            Ok(reply) => format!("{} {}", reply.status, String::from_utf8_lossy(&reply.body)),
            Err(error) => format!("{:?} {error}", error.kind),
        };
        format!(
            "{kind:?} {number} (takes {wait:?}, limit {limit:?}, of the front {asked:?}) after {took:?}: {}",
            end.trim_end()
        )
    }

    /// True in any weather.
    pub fn check(&self, server: &Server) {
        let text = self.text();
        let seen = server.seen(self.number);
        let took = self.ended - self.began;
        ensure(
            took <= self.limit + self.limit / 10 + SLACK,
            &format!("in time: {text}"),
        );
        ensure(
            self.idempotent || seen <= 1,
            &format!("executed {seen} times: {text}"),
        );
        match &self.outcome {
            Ok(reply) if reply.status == 200 => {
                let body = String::from_utf8_lossy(&reply.body);
                ensure(
                    body.trim_end() == self.number.to_string(),
                    &format!("the own answer: {text}"),
                );
                ensure(
                    self.kind != Kind::Large || reply.body.len() == LARGE,
                    &format!("whole: {text}"),
                );
                ensure(
                    seen >= 1 && self.kind.status() == 200,
                    &format!("from its handler: {text}"),
                );
            }
            Ok(reply) => {
                let known = [500, 503, 504, 429, 408].contains(&reply.status);
                ensure(known, &format!("a known answer: {text}"));
            }
            Err(error) if error.nothing_done() => {
                ensure(
                    seen == 0,
                    &format!("nothing was done, but a handler saw it: {text}"),
                );
            }
            Err(_) => {}
        }
    }

    /// True on a network without faults: a request that a handler saw is answered.
    pub fn check_answered(&self, server: &Server) {
        let text = self.text();
        let seen = server.seen(self.number);
        // Other clients' slow handlers may come first.
        let limit = self.asked_for.unwrap_or(self.limit).min(REQUEST);
        let in_time = self.wait + ms(300) < limit && self.kind != Kind::Never;
        if seen > 0 && in_time && self.kind != Kind::Poll {
            ensure(
                self.answer() == Some(self.kind.status()),
                &format!("answered: {text}"),
            );
        }
        // A front that answers late answers nobody: the client's own limit is twice as long.
        let asked_for = self.asked_for.filter(|limit| seen > 0 && *limit > ms(300));
        if let Some(limit) = asked_for {
            let took = self.ended - self.began;
            ensure(self.outcome.is_ok(), &format!("answered: {text}"));
            ensure(
                took <= limit + limit / 10 + SLACK,
                &format!("by its deadline: {text}"),
            );
        }
        if seen == 0
            && let Ok(reply) = &self.outcome
        {
            ensure(
                [503, 504, 429].contains(&reply.status),
                &format!("refused: {text}"),
            );
        }
    }
}

pub struct Client {
    http: HttpClient,
    number: u8,
    calls: u64,
}

impl Client {
    pub fn new(host: Host, number: u8) -> Self {
        Self {
            http: hosts::client(host, number.into()),
            number,
            calls: 0,
        }
    }

    /// One call with this limit, to a handler that takes `wait`.
    pub fn ask(&mut self, server: &Server, kind: Kind, limit: u64, wait: u64) -> Asked {
        self.calls += 1;
        let number = u64::from(self.number) * 1_000 + self.calls;
        let (_, path) = Kind::ALL[kind as usize];
        let url = format!("http://{}{path}", server.addr);
        let idempotent = fault::random() & 1 == 1;
        let began = time::now();
        let asked_for = (below(2) == 0).then_some(limit / 2);
        let limit = ms(limit);
        let header = asked_for.unwrap_or(0).to_string();
        let headers = [("x-request-deadline-ms", header.as_str())];
        let call = Call {
            method: Method::POST,
            body: Some(format!("{number} {wait}").into_bytes()),
            content_type: Some("text/plain"),
            idempotent,
            headers: if asked_for.is_some() { &headers } else { &[] },
            ..Call::get(&url, Deadline::within(limit))
        };
        let outcome = self.http.call(call);
        let asked = Asked {
            kind,
            number,
            idempotent,
            limit,
            asked_for: asked_for.map(ms),
            wait: ms(wait),
            began,
            ended: time::now(),
            outcome,
        };
        ron_sim::note(&asked.text());
        asked
    }
}

/// A client's calls, one after the other.
pub fn ask(host: Host, server: &Server, number: u8, calls: usize) -> Vec<Asked> {
    let mut client = Client::new(host, number);
    let one = |_| {
        let kind = Kind::ALL[below(8) as usize].0;
        let (limit, wait) = (100 + below(1_500), below(400));
        let asked = client.ask(server, kind, limit, wait);
        time::sleep(ms(below(50)));
        asked
    };
    (0..calls).map(one).collect()
}
