//! The watchdog: while the ledger is silent, or a call to it hangs, the service is not ready and
//! takes no new writes. Writes whose deadline is reached are answered with what is known about
//! them.
//!
//! **One rule for both**: the service is ready exactly while it takes new writes. A slow disk alone
//! ends neither, because the ledger still answers the probe. A stopped ledger ends both
//! `silent_after` after the next call or probe has begun, a hanging call within `hangs_after`, a ledger that reports itself closed (its
//! disk is full) at the next probe, other refusals through the breaker.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{HttpClient, Responder};
use ron_kernel::{Deadline, SharedClock, Supervisor, ThreadCtx};
use ron_service::ReadyBoard;

use crate::errors::{in_flight, retry_later};
use crate::inflight::{InFlightTable, LateWaiter, MARGIN};
use crate::metrics::Metrics;
use crate::unresolved::UnresolvedKeys;
use crate::upstream::SharedUpstream;

/// Pause between two checks while a write is in flight or the ledger takes none.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// Pause between two checks of an idle wallet; shorter when a call to the ledger has to be answered before that. A request that
/// begins in such a pause and asks for an answer within less than the pause and [`MARGIN`] is answered by the HTTP front.
const IDLE_PAUSE: Duration = Duration::from_millis(100);
pub const NO_WRITES: &str = "ledger_writes";

/// State of the watch thread.
#[derive(Debug)]
pub struct Watch {
    pub upstream: SharedUpstream,
    pub in_flight: Arc<InFlightTable>,
    pub unresolved: Arc<UnresolvedKeys>,
    pub ready: ReadyBoard,
    pub clock: SharedClock,
    pub metrics: Metrics,
    /// Knows when the drain begins.
    pub sup: Supervisor,
    /// Connections of the feed and the webhooks, closed when the drain begins so that their calls
    /// end.
    pub followers: [Arc<HttpClient>; 2],
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
            for late in self.in_flight.late(self.clock.now(), MARGIN) {
                self.answer(late);
            }
            if self.sup.draining() && !closed {
                closed = true;
                self.followers.iter().for_each(|http| http.shutdown());
            }
            let busy = off || self.in_flight.has_any();
            let pause = if busy { BUSY_PAUSE } else { IDLE_PAUSE };
            let pause = pause.min(self.upstream.stalls_within()).max(BUSY_PAUSE);
            if ctx.shutdown.wait(Deadline::within(pause)) {
                return;
            }
        }
    }

    fn answer(&self, late: LateWaiter) {
        let LateWaiter {
            key,
            waiter,
            led,
            sent,
        } = late;
        self.metrics
            .observe_answer(waiter.op, waiter.since, &self.clock);
        let caller: Responder = waiter.responder;
        if !sent {
            caller.send(retry_later(
                "the write waited in its queue until its deadline; nothing was done",
            ));
        } else if led {
            self.unresolved.add(&key, vec![caller]);
        } else {
            caller.send(in_flight());
        }
    }
}
