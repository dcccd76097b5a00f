//! Ownership of connections. Each connection has a slot, whose phase says whether the connection is
//! parked here or leased to a thread. Ownership moves under the slot's lock; I/O happens only while
//! leased and never under the lock.
//!
//! ```text
//!            park            ready             lease
//!   leased ───────> Armed ─────────> Queued ──────────> leased (worker)
//!     │                                                    │ await_answer
//!     │            answer / expire                         ▼
//!   leased <──────────────────────────────────────────  Waiting(seq)
//! ```
//!
//! The poller reports each change of a socket once (edge-triggered), whatever the phase. An event
//! for a connection that is not parked for it is kept in `seen` until the connection parks, which
//! then queues it at once. No event is lost as long as a thread that parks a connection for input
//! has read all there was ([`crate::stream::Stream::has_more`] is false), and a thread that parks
//! one for output has met a full socket.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_kernel::atomic::{AtomicBool, AtomicU64, Ordering};
use ron_kernel::net::Readiness;
use ron_kernel::{Gauge, LockSpec, RankedMutex};

use crate::conn::{Conn, Step};
use crate::peer::Peer;
use crate::responder::{Hook, Ticket};
use crate::response::Response;
use crate::room::{Room, Share};
use crate::timer::Timer;

/// The lock of one slot: held for a few instructions.
pub(crate) const SLOT_ROW: LockSpec = LockSpec {
    name: "http_slot",
    rank: 900,
    guards: "who owns one connection",
};
static SLOT_LOCK: LockSpec = SLOT_ROW;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    /// A thread holds the lease.
    Leased,
    /// Parked until the socket has this readiness.
    Armed(Readiness),
    /// Its token is in the workers' queue.
    Queued {
        since: Instant,
    },
    /// A handler has the request; `inside` while the handler's call has not returned.
    Waiting {
        seq: u32,
        inside: bool,
        long_poll: bool,
    },
}

#[derive(Debug)]
struct State {
    generation: u32,
    phase: Phase,
    /// Readiness that was reported while the connection was not parked for it.
    seen: Readiness,
    conn: Option<Box<Conn>>,
    /// An answer given while its handler was still running.
    answer: Option<Response>,
}

impl State {
    /// True while the request has no answer and its connection is open.
    fn waits_for(&self, ticket: Ticket) -> bool {
        matches!(self.phase, Phase::Waiting { seq, .. } if seq == ticket.seq)
            && self.answer.is_none()
    }
}

#[derive(Debug)]
struct Slot {
    state: RankedMutex<State>,
    /// Time limit in timer ticks, for the sweep; 0 for none. Written under the lock of `state`,
    /// read by the sweep without it, which checks again under the lock before it acts.
    due: AtomicU64,
}

/// All slots of a front.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    pub room: Arc<Room>,
    pub timer: Timer,
    /// How long a connection may wait for a worker.
    queue_max: Duration,
    connections: Gauge,
    /// Set once the front's stage stops: from then on every closed connection wakes the poll
    /// thread.
    pub ending: AtomicBool,
}

/// The exclusive right to use a connection. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Lease<'a> {
    slots: &'a Slots,
    pub token: u64,
    conn: Option<Box<Conn>>,
}

/// The way that an answer takes.
#[derive(Debug)]
pub(crate) enum Delivery<'a> {
    /// Left in the slot for the worker that is still inside the handler.
    ToWorker,
    /// The calling thread has the lease and must send it.
    ToCaller(Lease<'a>, Response),
    /// Discarded: the client has had another answer, or is gone.
    Late,
}

/// The phase of a parked connection at the time a sweep or the drain took it.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum ParkedAs {
    Armed,
    Queued,
    Waiting,
}

impl Slots {
    pub(crate) fn new(count: usize, timer: Timer, queue_max: Duration, connections: Gauge) -> Self {
        let slot = |_| Slot {
            state: RankedMutex::new(
                &SLOT_LOCK,
                State {
                    generation: 0,
                    phase: Phase::Free,
                    seen: Readiness::default(),
                    conn: None,
                    answer: None,
                },
            ),
            due: AtomicU64::new(0),
        };
        let slots: Box<[Slot]> = (0..count).map(slot).collect();
        Self {
            slots,
            room: Arc::new(Room::new(count)),
            timer,
            queue_max,
            connections,
            ending: AtomicBool::new(false),
        }
    }

    /// Gives a new connection a slot; returns the connection when none is free.
    pub(crate) fn insert(&self, conn: Conn) -> Result<Lease<'_>, Conn> {
        // From here on this thread alone uses the slot, because no token of its generation exists
        // yet.
        let Some(index) = self.room.take(conn.share) else {
            return Err(conn);
        };
        let mut state = self.slots[index as usize].state.lock();
        state.phase = Phase::Leased;
        let token = u64::from(state.generation) << 32 | u64::from(index);
        drop(state);
        self.connections.inc();
        Ok(Lease {
            slots: self,
            token,
            conn: Some(Box::new(conn)),
        })
    }

    /// Runs `change` on the slot of a token, under its lock, if the slot still is that
    /// connection's.
    fn with<R>(&self, token: u64, change: impl FnOnce(&Slot, &mut State) -> R) -> Option<R> {
        let slot = self.slots.get((token & 0xffff_ffff) as usize)?;
        let mut state = slot.state.lock();
        if u64::from(state.generation) != token >> 32 {
            return None; // the connection has closed; another may have the slot
        }
        Some(change(slot, &mut state))
    }

    fn lease(&self, token: u64, state: &mut State, slot: &Slot) -> Option<Lease<'_>> {
        let conn = state.conn.take()?;
        state.phase = Phase::Leased;
        // Relaxed: a sweep that still reads the old limit finds no parked connection under the
        // lock.
        slot.due.store(0, Ordering::Relaxed);
        Some(Lease {
            slots: self,
            token,
            conn: Some(conn),
        })
    }

    /// An event of a socket. True when its connection was parked for it and is queued now; the
    /// caller then pushes the token. Otherwise the event is kept.
    pub(crate) fn ready(&self, token: u64, event: Readiness, now: Instant) -> bool {
        let due = self.timer.tick(now + self.queue_max);
        let moved = self.with(token, |slot, state| {
            state.seen.add(event);
            let Phase::Armed(wanted) = state.phase else {
                return false;
            };
            let met = state.seen.meets(wanted);
            if met {
                state.seen.use_up(wanted);
                state.phase = Phase::Queued { since: now };
                slot.due.store(due, Ordering::SeqCst);
            }
            met
        });
        self.timer.note(due);
        moved == Some(true)
    }

    /// A worker takes a queued connection; `None` when it was closed or swept meanwhile.
    pub(crate) fn take_queued(&self, token: u64) -> Option<Lease<'_>> {
        self.with(token, |slot, state| {
            let Phase::Queued { since } = state.phase else {
                return None;
            };
            let mut lease = self.lease(token, state, slot)?;
            lease.arrived = since;
            Some(lease)
        })?
    }

    /// The handler's call has returned: its connection and the answer that was left in the slot, or
    /// `None` when the answer is still due (or was sent already, after a time-out).
    pub(crate) fn handler_returned(&self, ticket: Ticket) -> Option<(Lease<'_>, Response)> {
        self.with(ticket.token, |slot, state| {
            let Phase::Waiting { seq, inside, .. } = &mut state.phase else {
                return None;
            };
            if *seq != ticket.seq {
                return None;
            }
            *inside = false;
            let answer = state.answer.take()?;
            Some((self.lease(ticket.token, state, slot)?, answer))
        })?
    }

    /// Takes the connection of a long poll whose client is gone. The end of its input counts as the
    /// end of the client: a client that still waits keeps its sending half open.
    pub(crate) fn abandoned(&self, token: u64) -> Option<Lease<'_>> {
        self.with(token, |slot, state| match state.phase {
            Phase::Waiting {
                inside: false,
                long_poll: true,
                ..
            } if state.seen.ended && state.answer.is_none() => self.lease(token, state, slot),
            _ => None,
        })?
    }

    /// True when the request no longer waits for its answer.
    pub(crate) fn is_over(&self, ticket: Ticket) -> bool {
        let waits = self.with(ticket.token, |_, state| state.waits_for(ticket));
        waits != Some(true)
    }

    /// Keeps the hook for the moment the client disconnects; returns it when the client is gone.
    pub(crate) fn watch(&self, ticket: Ticket, hook: Hook) -> Option<Hook> {
        let mut hook = Some(hook);
        self.with(ticket.token, |_, state| {
            if state.waits_for(ticket)
                && let Some(conn) = &mut state.conn
            {
                conn.gone = hook.take();
            }
        });
        hook
    }

    /// Lowers the time limit of a waiting request.
    pub(crate) fn answer_by(&self, ticket: Ticket, at: Instant) {
        let due = self.timer.tick(at);
        self.with(ticket.token, |slot, state| {
            if state.waits_for(ticket) {
                slot.due.fetch_min(due, Ordering::SeqCst);
            }
        });
        self.timer.note(due);
    }

    /// Takes the connection of a waiting request; an answer that follows is late.
    pub(crate) fn withdraw(&self, ticket: Ticket) -> Option<Lease<'_>> {
        self.with(ticket.token, |slot, state| match state.phase {
            Phase::Waiting { seq, .. } if seq == ticket.seq && state.answer.is_none() => {
                self.lease(ticket.token, state, slot)
            }
            _ => None,
        })?
    }

    /// Matches an answer with its request. While the handler still runs, the answer is only left in
    /// the slot: the worker has the rest of the connection's input to serve afterwards.
    pub(crate) fn answer(&self, ticket: Ticket, response: Response) -> Delivery<'_> {
        #[cfg(mutant = "seq")] // a late answer counts as that of the connection's present request
        let ticket = match self.with(ticket.token, |_, state| state.phase) {
            Some(Phase::Waiting { seq, .. }) if ron_kernel::mutant("seq") => {
                Ticket { seq, ..ticket }
            }
            _ => ticket,
        };
        self.with(ticket.token, |slot, state| match state.phase {
            Phase::Waiting {
                seq, inside: true, ..
            } if seq == ticket.seq => {
                state.answer = Some(response);
                Delivery::ToWorker
            }
            Phase::Waiting {
                seq, inside: false, ..
            } if seq == ticket.seq => match self.lease(ticket.token, state, slot) {
                Some(lease) => Delivery::ToCaller(lease, response),
                None => Delivery::Late,
            },
            _ => Delivery::Late,
        })
        .unwrap_or(Delivery::Late)
    }

    /// Calls `expired` with every connection whose time limit has passed, and records the next
    /// limit.
    pub(crate) fn sweep(
        &self,
        now: Instant,
        mut expired: impl FnMut(Lease<'_>, ParkedAs, Option<Response>),
    ) {
        // The scan is announced first: a limit that is set while it runs lowers the timer again.
        let now = self.timer.passed(now);
        self.timer.start_scan();
        let mut next = u64::MAX;
        for index in 0..self.slots.len() {
            let due = self.slots[index].due.load(Ordering::SeqCst);
            if due == 0 {
                continue;
            }
            if due > now {
                next = next.min(due);
            } else if let Some((lease, parked, answer)) =
                // Again under the lock: the connection may have got a later limit meanwhile.
                self.seize(index, |slot, _, _| slot.due.load(Ordering::SeqCst) <= now)
            {
                expired(lease, parked, answer);
            }
        }
        self.timer.end_scan(next);
    }

    /// Calls `found` with every parked connection that `wanted` selects: by its phase and, when it
    /// waits for an answer, whether that is a long poll.
    pub(crate) fn seize_all(
        &self,
        wanted: impl Fn(&Conn, ParkedAs, bool) -> bool,
        mut found: impl FnMut(Lease<'_>, ParkedAs, Option<Response>),
    ) {
        for index in 0..self.slots.len() {
            let chosen = self.seize(index, |_, state, parked| {
                let long_poll = matches!(
                    state.phase,
                    Phase::Waiting {
                        long_poll: true,
                        ..
                    }
                );
                state
                    .conn
                    .as_ref()
                    .is_some_and(|conn| wanted(conn, parked, long_poll))
            });
            if let Some((lease, parked, answer)) = chosen {
                found(lease, parked, answer);
            }
        }
    }

    fn seize(
        &self,
        index: usize,
        wanted: impl FnOnce(&Slot, &State, ParkedAs) -> bool,
    ) -> Option<(Lease<'_>, ParkedAs, Option<Response>)> {
        let slot = &self.slots[index];
        let mut state = slot.state.lock();
        let parked = match state.phase {
            Phase::Armed(_) => ParkedAs::Armed,
            Phase::Queued { .. } => ParkedAs::Queued,
            Phase::Waiting { .. } => ParkedAs::Waiting,
            Phase::Free | Phase::Leased => return None,
        };
        if !wanted(slot, &state, parked) {
            return None;
        }
        let token = u64::from(state.generation) << 32 | index as u64;
        let answer = state.answer.take();
        Some((self.lease(token, &mut state, slot)?, parked, answer))
    }

    /// Takes an idle connection of the peer: of the next few after `hand`, the one that has been
    /// idle longest and is therefore least likely to be used now. A few candidates are enough for
    /// that, and a flood of connections does not cost a full scan each.
    pub(crate) fn seize_idle(&self, peer: Peer, hand: &mut usize) -> Option<Lease<'_>> {
        const CANDIDATES: usize = 8;
        let idle = |state: &State, parked| {
            let of_peer = |conn: &Conn| conn.step == Step::Idle && conn.share == Share::Peer(peer);
            parked == ParkedAs::Armed && state.conn.as_deref().is_some_and(of_peer)
        };
        let mut found: [Option<(u64, usize)>; CANDIDATES] = [None; CANDIDATES];
        let mut count = 0;
        for _ in 0..self.slots.len() {
            *hand = (*hand + 1) % self.slots.len();
            let index = *hand;
            self.seize(index, |slot, state, parked| {
                if idle(state, parked) {
                    found[count] = Some((slot.due.load(Ordering::SeqCst), index));
                    count += 1;
                }
                false // only recorded; taken below, when the oldest is known
            });
            if count == CANDIDATES {
                break;
            }
        }
        found.sort_unstable();
        let mut oldest = found.iter().flatten();
        // A candidate may have received bytes since; then the next oldest is tried.
        oldest.find_map(|(_, index)| {
            let taken = self.seize(*index, |_, state, parked| idle(state, parked))?;
            Some(taken.0)
        })
    }

    fn release(&self, token: u64, share: Share) {
        let index = (token & 0xffff_ffff) as u32;
        let slot = &self.slots[index as usize];
        let mut state = slot.state.lock();
        // From here on tokens of this connection are invalid, in the queue and in responders.
        state.generation = state.generation.wrapping_add(1);
        state.phase = Phase::Free;
        state.seen = Readiness::default();
        state.answer = None;
        slot.due.store(0, Ordering::Relaxed);
        drop(state);
        // The slot is offered again only after its generation has changed.
        self.room.give(index, share);
        self.connections.dec();
        self.wake_if_ending();
    }

    /// Makes the drain check again: a connection was closed or parked after its last check.
    fn wake_if_ending(&self) {
        if self.ending.load(Ordering::SeqCst) {
            self.timer.poller.wake();
        }
    }
}

impl Lease<'_> {
    /// Parks the connection until its socket has the `wanted` readiness, at most until `due`. True
    /// when that was reported already: then the connection is parked as queued, and the caller must
    /// push its token.
    pub(crate) fn park_armed(self, wanted: Readiness, due: Instant, now: Instant) -> bool {
        let slots = self.slots;
        let phase = self.park(|state| {
            if !state.seen.meets(wanted) {
                return (Phase::Armed(wanted), due);
            }
            state.seen.use_up(wanted);
            (Phase::Queued { since: now }, now + slots.queue_max)
        });
        slots.wake_if_ending();
        matches!(phase, Some(Phase::Queued { .. }))
    }

    /// Parks the connection for a worker; the caller pushes its token afterwards.
    pub(crate) fn park_queued(self, now: Instant) {
        let due = now + self.slots.queue_max;
        self.park(|_| (Phase::Queued { since: now }, due));
    }

    /// Parks the connection until its request is answered.
    pub(crate) fn await_answer(
        mut self,
        due: Instant,
        long_poll: bool,
        poll: Option<Peer>,
    ) -> Ticket {
        self.seq = self.seq.wrapping_add(1);
        let ticket = Ticket {
            token: self.token,
            seq: self.seq,
            poll,
        };
        let phase = Phase::Waiting {
            seq: ticket.seq,
            inside: true,
            long_poll,
        };
        self.park(|_| (phase, due));
        ticket
    }

    /// Returns the connection to its slot, with the phase and time limit that `choose` decides
    /// under the slot's lock.
    fn park(mut self, choose: impl FnOnce(&mut State) -> (Phase, Instant)) -> Option<Phase> {
        let timer = &self.slots.timer;
        let conn = self.conn.take();
        let (phase, due) = self.slots.with(self.token, |slot, state| {
            let (phase, due) = choose(state);
            let due = timer.tick(due);
            state.conn = conn;
            state.phase = phase;
            state.answer = None;
            slot.due.store(due, Ordering::SeqCst);
            (phase, due)
        })?;
        timer.note(due); // after the slot has its limit: a scan that misses the note reads the slot
        Some(phase)
    }
}

impl Deref for Lease<'_> {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        self.conn
            .as_ref()
            .expect("a lease has its connection until it is parked")
    }
}

impl DerefMut for Lease<'_> {
    fn deref_mut(&mut self) -> &mut Conn {
        self.conn
            .as_mut()
            .expect("a lease has its connection until it is parked")
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            let share = conn.share;
            drop(conn); // closes the socket before the slot can be taken again
            self.slots.release(self.token, share);
        }
    }
}

#[cfg(test)]
mod tests;
