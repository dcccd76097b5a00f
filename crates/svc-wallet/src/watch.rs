//! The watchdog: while the ledger is silent, or a call to it hangs, the service is not ready and takes no new writes;
//! writes whose time is over are answered with what is known about them.
//!
//! **One rule for both**: the service is ready exactly while it takes new writes. A slow disk alone ends neither,
//! because the ledger goes on answering the probe; a stopped ledger does within `silent_after`, a hanging call within
//! `hangs_after`, a ledger that says it is closed (its disk is full) at the next probe, other refusals by the breaker.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{HttpClient, Responder};
use ron_kernel::{Deadline, SharedClock, Supervisor, ThreadCtx};
use ron_proto::Problem;
use ron_service::ReadyBoard;

use crate::flights::{Flights, Late, MARGIN};
use crate::metrics::Metrics;
use crate::pins::Pinned;
use crate::upstream::SharedUpstream;

/// Pause between two looks.
const EVERY: Duration = Duration::from_millis(20);
/// Readiness cause.
pub const NO_WRITES: &str = "ledger_writes";

/// What the watch looks at.
#[derive(Debug)]
pub struct Watch {
    /// The ledger.
    pub upstream: SharedUpstream,
    /// Writes under way.
    pub flights: Arc<Flights>,
    /// Keys whose outcome is unknown.
    pub pinned: Arc<Pinned>,
    /// Readiness.
    pub ready: ReadyBoard,
    /// Monotonic clock.
    pub clock: SharedClock,
    /// Metrics.
    pub metrics: Metrics,
    /// Told when the drain begins.
    pub sup: Supervisor,
    /// The feed's connections, closed when the drain begins so that its long poll ends.
    pub feed_http: Arc<HttpClient>,
}

impl Watch {
    /// The thread's body.
    pub fn run(&self, ctx: &ThreadCtx) {
        let (mut off, mut closed) = (false, false);
        loop {
            let trouble = self.upstream.trouble();
            if trouble.is_some() != off {
                off = !off;
                match trouble {
                    Some(why) => self.ready.missing(NO_WRITES, why.detail),
                    None => self.ready.present(NO_WRITES),
                }
            }
            for late in self.flights.late(self.clock.now(), MARGIN) {
                self.answer(late);
            }
            if self.sup.draining() && !closed {
                closed = true;
                self.feed_http.shutdown();
            }
            if ctx.shutdown.wait(Deadline::within(EVERY)) {
                return;
            }
        }
    }

    fn answer(&self, late: Late) {
        let Late {
            key,
            waiter,
            led,
            sent,
        } = late;
        self.metrics.landed(waiter.op, waiter.since, &self.clock);
        let caller: Responder = waiter.responder;
        if !sent {
            caller.send(retry_later(
                "the write waited for its turn until its deadline; nothing was done",
            ));
        } else if led {
            self.pinned.pin(&key, vec![caller]);
        } else {
            caller.send(in_flight());
        }
    }
}

/// 503: nothing was done, the same request may succeed soon.
pub fn retry_later(detail: impl Into<String>) -> Problem {
    Problem::new(503, "retry_later", "Retry later", detail).with_retry_after(1)
}

/// 409: the first request with this key has no answer yet.
pub fn in_flight() -> Problem {
    Problem::in_flight(
        "the first request with this key has no answer yet; send it again or ask at /v1/ops/{key}",
    )
}
