//! The thread that numbers and keeps the newest events, and answers `GET /api/v1/events`.

mod watch;

use std::collections::VecDeque;
use std::time::Duration;

use ron_http::{Method, Need, Request, Responder, Response, Route};
use ron_kernel::{
    Deadline, KernelMetrics, Overflow, QueueSpec, Receiver, RecvEither, SendError, Sender,
    SharedRandom, Subscriber, Supervisor, ThreadCtx, ThreadSpec, queue,
};
use ron_proto::Problem;
use ron_proto::events::{EventPage, ServiceEvent};

use self::watch::Watch;
use crate::events::{EVENTS_RING, Event, Events};
use crate::ready::ReadyBoard;

/// Maximum long polls that wait at once, of all clients; the next gets 429.
pub(crate) const EVENT_POLLS_MAX: usize = 8;
/// How often threads, clock and disk are compared while nothing happens; the board publishes its causes at once.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// From the workers of the health port to the feed.
pub const EVENT_POLLS: QueueSpec = QueueSpec {
    name: "ops_events",
    capacity: 64,
    overflow: Overflow::RejectNew,
    from: "ops workers",
    to: "ops-events",
    when_full: "429 with Retry-After",
};

static EVENT_POLLS_SPEC: QueueSpec = EVENT_POLLS;

/// A message to the feed.
pub(crate) enum FeedMessage {
    Poll(Poll),
    /// The client of a waiting poll has disconnected.
    Gone,
}

/// A request for events.
pub(crate) struct Poll {
    pub after: u64,
    pub boot: Option<String>,
    /// When to answer with an empty page.
    pub until: Deadline,
    pub responder: Responder,
}

/// Which run of which service the events belong to.
#[derive(Clone, Debug)]
struct Run {
    service: &'static str,
    instance: String,
    boot: String,
}

/// What the feed of a service is made from, also again after a panic of its thread.
pub(crate) struct FeedSource {
    pub events: Events,
    pub ready: ReadyBoard,
    pub sup: Supervisor,
    pub service: &'static str,
    pub instance: String,
    pub random: SharedRandom,
}

impl FeedSource {
    /// Starts the thread; requests are sent to the queue that is returned.
    pub fn spawn(self, row: &'static ThreadSpec, metrics: &KernelMetrics) -> Sender<FeedMessage> {
        let (sender, polls) = queue(&EVENT_POLLS_SPEC, EVENT_POLLS_SPEC.capacity, metrics);
        let sup = self.sup.clone();
        let run = move |feed: Feed, ctx: &ThreadCtx| feed.run(ctx, &polls);
        let first = self.feed(false);
        sup.spawn_owner(row, first, run, move || Some(self.feed(true)));
        sender
    }

    /// A feed without events, of a run of its own. `started`: the event `started` came before it.
    fn feed(&self, started: bool) -> Feed {
        let run = Run {
            service: self.service,
            instance: self.instance.clone(),
            boot: hex::encode(self.random.bytes::<8>()),
        };
        let (events, ready, sup) = (self.events.clone(), self.ready.clone(), self.sup.clone());
        let watch = Watch::new(events, ready, sup, started);
        Feed::new(run, self.events.subscribe(), watch)
    }
}

/// The newest events, and the polls that wait for the next.
pub(crate) struct Feed {
    run: Run,
    source: Subscriber<Event>,
    lagged: u64,
    kept: VecDeque<ServiceEvent>,
    last: u64,
    polls: Vec<Poll>,
    watch: Watch,
}

pub(crate) fn route(polls: Sender<FeedMessage>) -> Route {
    Route::new(Method::GET, "/api/v1/events", Need::Public, move |req, res| {
        ask(&polls, &req, res);
    })
    .summary("What happened in the service, oldest first: ask again with `after` and `boot` from the answer before")
    .query_as::<u64>("after", false, "Number of the last event seen; 0 or absent for all that the service has")
    .query_as::<String>("boot", false, "The run that `after` belongs to, from the answer before; another run answers with `reset`")
    .query_as::<u64>("wait", false, "Maximum seconds to wait for an event, up to 30; 0 by default. At most 8 requests wait at once")
    .returns::<EventPage>(200)
    .errors(&[400, 429, 503])
    .long_poll()
    .while_draining()
}

fn ask(polls: &Sender<FeedMessage>, req: &Request, responder: Responder) {
    let asked = req.query_only(&["after", "boot", "wait"]).and_then(|()| {
        let after = req.query_as::<u64>("after")?.unwrap_or(0);
        Ok((after, req.query_as::<String>("boot")?, req.wait()?))
    });
    let (after, boot, wait) = match asked {
        Ok(asked) => asked,
        Err(problem) => return responder.send(problem),
    };
    let wake = polls.clone();
    responder.on_gone(move || {
        let _ = wake.try_send(FeedMessage::Gone); // full: the next message finds it
    });
    let poll = Poll {
        after,
        boot,
        until: Deadline::within(wait.unwrap_or_default()),
        responder,
    };
    match polls.try_send(FeedMessage::Poll(poll)) {
        Err(SendError::Full(FeedMessage::Poll(poll))) => {
            poll.responder.send(Problem::busy(polls.retry_after_s()));
        }
        Err(SendError::Closed(FeedMessage::Poll(poll))) => {
            poll.responder.send(Problem::draining(1));
        }
        _ => {}
    }
}

impl Feed {
    fn new(run: Run, source: Subscriber<Event>, watch: Watch) -> Self {
        Self {
            run,
            source,
            lagged: 0,
            kept: VecDeque::new(),
            last: 0,
            polls: Vec::new(),
            watch,
        }
    }

    /// The thread's body. At a shutdown every waiting poll is answered.
    pub fn run(mut self, ctx: &ThreadCtx, polls: &Receiver<FeedMessage>) {
        while !ctx.shutdown.is_set() {
            let until = self.next_due();
            match self.source.recv_either(polls, &ctx.shutdown, until) {
                RecvEither::First(event) => self.take(event),
                RecvEither::Second(message) => self.hear(message),
                RecvEither::Timeout => {}
                RecvEither::Shutdown | RecvEither::Closed => break,
            }
            self.hear_all(polls);
            self.tick();
        }
        self.hear_all(polls);
        self.tick();
        for poll in std::mem::take(&mut self.polls) {
            self.answer(poll);
        }
        ctx.wait_for_shutdown();
    }

    /// Takes what is there, compares the readiness, and answers the polls that are due.
    fn tick(&mut self) {
        self.take_all();
        self.watch.publish_changes();
        self.take_all();
        for poll in std::mem::take(&mut self.polls) {
            self.answer_or_keep(poll);
        }
    }

    fn take_all(&mut self) {
        while let Some(event) = self.source.try_recv() {
            self.take(event);
        }
    }

    fn take(&mut self, event: Event) {
        self.watch.see(event.kind);
        let lagged = self.source.lagged();
        if lagged > self.lagged {
            // The lost events have numbers too, so readers see the gap, and what lies before it is not served any more.
            self.last += lagged - self.lagged;
            self.lagged = lagged;
            self.kept.clear();
        }
        self.last += 1;
        if self.kept.len() == EVENTS_RING.capacity {
            self.kept.pop_front();
        }
        self.kept.push_back(ServiceEvent {
            boot: self.run.boot.clone(),
            seq: self.last,
            at: event.at,
            kind: event.kind,
            severity: event.severity,
            reason: event.reason.map(str::to_owned),
            number: event.number,
        });
    }

    fn hear_all(&mut self, polls: &Receiver<FeedMessage>) {
        while let Some(message) = polls.try_recv() {
            self.hear(message);
        }
    }

    /// Polls are answered by [`Feed::tick`], with the events that were published before them.
    fn hear(&mut self, message: FeedMessage) {
        if let FeedMessage::Poll(poll) = message {
            self.polls.push(poll);
        } // `tick` drops those whose clients have disconnected
    }

    fn answer_or_keep(&mut self, poll: Poll) {
        let waits = !self.is_lost(&poll) && poll.after == self.last && !poll.until.expired();
        if !waits {
            self.answer(poll);
        } else if !poll.responder.is_gone() {
            self.polls.push(poll);
        }
    }

    fn answer(&self, poll: Poll) {
        let page = self.page(&poll);
        poll.responder.send(Response::json(200, &page));
    }

    /// Whether events after the last one that the reader has seen are gone. A reader that has seen none loses none.
    fn is_lost(&self, poll: &Poll) -> bool {
        let oldest = self.kept.front().map_or(self.last + 1, |event| event.seq);
        let is_new = poll.after == 0 && poll.boot.is_none();
        let other = poll
            .boot
            .as_ref()
            .is_some_and(|boot| *boot != self.run.boot);
        other || poll.after > self.last || (!is_new && poll.after + 1 < oldest)
    }

    fn page(&self, poll: &Poll) -> EventPage {
        let reset = self.is_lost(poll);
        let after = if reset { 0 } else { poll.after };
        let events = self.kept.iter().filter(|event| event.seq > after);
        EventPage {
            service: self.run.service.to_owned(),
            instance: self.run.instance.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            boot: self.run.boot.clone(),
            reset,
            events: events.cloned().collect(),
            next: self.last,
        }
    }

    fn next_due(&self) -> Deadline {
        let watch = Deadline::within(WATCH_EVERY);
        let untils = self.polls.iter().map(|poll| poll.until);
        untils.fold(watch, Deadline::earlier)
    }
}

#[cfg(test)]
mod tests;
