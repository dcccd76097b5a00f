//! The right to answer one request, which may move to any thread.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ron_kernel::{Deadline, ReplyWaiter, reply};
use ron_proto::Problem;

use crate::peer::Peer;
use crate::response::Response;
use crate::trace::{Trace, TraceScope};

/// Identifies the request that an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The connection: slot and generation.
    pub token: u64,
    /// The request on it.
    pub seq: u32,
    /// Set for a long poll: the peer whose share it uses.
    pub poll: Option<Peer>,
}

/// Called when a client disconnects while its request waits.
pub(crate) struct Hook(pub Box<dyn FnOnce() + Send>);

impl fmt::Debug for Hook {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Hook")
    }
}

pub(crate) trait Sink: Send + Sync {
    /// Called exactly once per ticket. `dropped` is true when the responder was dropped unanswered.
    fn answer(&self, ticket: Ticket, response: Response, dropped: bool);

    /// True when an answer would not reach the client.
    fn is_gone(&self, ticket: Ticket) -> bool;

    /// Calls the hook when the client of a long poll is gone; at once when it is gone already.
    fn on_gone(&self, ticket: Ticket, hook: Hook);

    /// Lowers the time limit of the request.
    fn answer_by(&self, ticket: Ticket, deadline: Deadline);
}

/// Answers one request, from any thread: [`Responder::send`] writes to the socket without blocking.
/// A responder that is dropped unanswered answers 500 and is counted. An answer after the deadline
/// is discarded and counted; the client has been answered 504 by then.
pub struct Responder {
    sink: Option<Arc<dyn Sink>>,
    ticket: Ticket,
    deadline: Deadline,
    /// Of the request; none without a connection.
    trace: Option<Trace>,
    /// Applied to the answer before it is sent.
    change: Option<Change>,
}

type Change = Box<dyn FnOnce(Response) -> Response + Send>;

impl Responder {
    pub(crate) fn new(
        sink: Arc<dyn Sink>,
        ticket: Ticket,
        deadline: Deadline,
        trace: Option<Trace>,
    ) -> Self {
        Self {
            sink: Some(sink),
            ticket,
            deadline,
            trace,
            change: None,
        }
    }

    /// Passes the answer through `change` before it is sent: for an API in the format of another.
    /// May be called more than once; the last `change` sees the answer first.
    #[must_use]
    pub fn map(mut self, change: impl FnOnce(Response) -> Response + Send + 'static) -> Self {
        self.change = Some(match self.change.take() {
            None => Box::new(change),
            Some(outer) => Box::new(move |response| outer(change(response))),
        });
        self
    }

    fn changed(&mut self, response: Response) -> Response {
        match self.change.take() {
            Some(change) => change(response),
            None => response,
        }
    }

    /// A responder whose answer goes to `next`, with the right to answer the request, instead of to the client: for requests
    /// that are carried out in two steps. `next` runs on the thread that answers the first step and must not wait. When the
    /// first step is dropped unanswered, the client is answered as it would be without a second one.
    #[must_use]
    pub fn then(self, next: impl FnOnce(Response, Self) + Send + 'static) -> Self {
        let (ticket, deadline, trace) = (self.ticket, self.deadline, self.trace.clone());
        let to = self.sink.clone();
        let step = Step {
            responder: self,
            next: Box::new(next),
        };
        let sink = Then {
            to,
            step: ron_kernel::RankedMutex::new(&THEN, Some(step)),
        };
        Self::new(Arc::new(sink), ticket, deadline, trace)
    }

    /// A responder without a connection, and the waiter for its answer: for tests of handlers.
    pub fn detached(deadline: Deadline) -> (Self, ReplyWaiter<Response>) {
        let (to, from) = reply();
        let sink = Detached {
            done: AtomicBool::new(false),
            to: ron_kernel::RankedMutex::new(&DETACHED, Some(to)),
        };
        let ticket = Ticket {
            token: 0,
            seq: 0,
            poll: None,
        };
        (Self::new(Arc::new(sink), ticket, deadline, None), from)
    }

    pub fn send(mut self, response: impl Into<Response>) {
        if let Some(sink) = self.sink.take() {
            let response = self.changed(response.into());
            sink.answer(self.ticket, response, false);
        }
    }

    /// True when the answer would be discarded: the client of a long poll disconnected, or a
    /// deadline passed.
    pub fn is_gone(&self) -> bool {
        self.sink
            .as_ref()
            .is_none_or(|sink| sink.is_gone(self.ticket))
    }

    /// Calls `hook` when the client of a long poll disconnects before it is answered, so that the
    /// holder of this responder can drop it; at once when the client is gone already. The hook runs
    /// on a thread of the front and must not wait. Never called for other routes than long polls.
    pub fn on_gone(&self, hook: impl FnOnce() + Send + 'static) {
        if let Some(sink) = &self.sink {
            sink.on_gone(self.ticket, Hook(Box::new(hook)));
        }
    }

    /// Has the client answered 504 at this deadline, if it is before the front's.
    #[must_use]
    pub fn by(mut self, deadline: Deadline) -> Self {
        self.deadline = self.deadline.earlier(deadline);
        if let Some(sink) = &self.sink {
            sink.answer_by(self.ticket, self.deadline);
        }
        self
    }

    /// When the client is answered 504.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// The id and trace context of the request; `None` for a responder without a connection.
    pub const fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// The id of the request, for log lines of a thread that works for several.
    pub fn request_id(&self) -> &str {
        self.trace.as_ref().map_or("detached", Trace::id)
    }

    /// While the returned value lives, the current thread works for this request.
    pub fn enter(&self) -> TraceScope {
        TraceScope::enter(self.trace.clone())
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            let problem = Problem::internal("the request was given up; its outcome is unknown");
            let response = self.changed(problem.into());
            sink.answer(self.ticket, response, true);
        }
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Responder({})", self.request_id())
    }
}

static DETACHED: ron_kernel::LockSpec = ron_kernel::LockSpec {
    name: "http_detached",
    rank: 902,
    guards: "the reply slot of a responder without a connection (tests of handlers)",
};

static THEN: ron_kernel::LockSpec = ron_kernel::LockSpec {
    name: "http_then",
    rank: 903,
    guards: "the second step of a request that is carried out in two",
};

struct Step {
    responder: Responder,
    next: Box<dyn FnOnce(Response, Responder) + Send>,
}

/// Passes the answer of a first step to the second one.
struct Then {
    /// Where the request came from. Asked without the lock, because the front's own locks have lower ranks.
    to: Option<Arc<dyn Sink>>,
    step: ron_kernel::RankedMutex<Option<Step>>,
}

impl Sink for Then {
    fn answer(&self, _ticket: Ticket, response: Response, dropped: bool) {
        // Released before the second step runs, which may answer at once.
        let step = self.step.lock().take();
        match step {
            Some(step) if dropped => step.responder.send(response),
            Some(step) => {
                let _scope = step.responder.enter();
                (step.next)(response, step.responder);
            }
            None => {}
        }
    }

    fn is_gone(&self, ticket: Ticket) -> bool {
        self.to.as_ref().is_none_or(|to| to.is_gone(ticket))
    }

    fn on_gone(&self, ticket: Ticket, hook: Hook) {
        if let Some(to) = &self.to {
            to.on_gone(ticket, hook);
        }
    }

    fn answer_by(&self, ticket: Ticket, deadline: Deadline) {
        if let Some(to) = &self.to {
            to.answer_by(ticket, deadline);
        }
    }
}

struct Detached {
    done: AtomicBool,
    to: ron_kernel::RankedMutex<Option<ron_kernel::ReplySender<Response>>>,
}

impl Sink for Detached {
    fn answer(&self, _ticket: Ticket, response: Response, _dropped: bool) {
        if self.done.swap(true, Ordering::AcqRel) {
            return;
        }
        let to = self.to.lock().take();
        if let Some(to) = to {
            let _ = to.send(response); // without a waiter the test has ended
        }
    }

    fn is_gone(&self, _ticket: Ticket) -> bool {
        false
    }

    fn on_gone(&self, _ticket: Ticket, _hook: Hook) {}

    fn answer_by(&self, _ticket: Ticket, _deadline: Deadline) {}
}
