//! Who owns a connection. Each has a slot; its phase says whether it is parked here, or leased to
//! a thread. Ownership moves under the slot's lock, I/O happens only while leased, never locked.
//!
//! ```text
//!            park            ready             lease
//!   leased ───────> Armed ─────────> Queued ──────────> leased (worker)
//!     │                                                    │ await_answer
//!     │            answer / expire                         ▼
//!   leased <──────────────────────────────────────────  Waiting(seq)
//! ```
//!
//! The kernel tells each change of a socket once (edge-triggered), whatever the phase. News for a
//! connection that is not parked for it is kept here until it parks, and then it goes to the queue
//! at once. So nothing is lost as long as whoever parks for input has read all there was
//! ([`crate::stream::Stream::has_more`] is false), and for output has met a full socket.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use ron_kernel::{Gauge, LockSpec, RankedMutex};

use crate::conn::{Conn, Share, Step};
use crate::peer::Peer;
use crate::responder::{Hook, Ticket};
use crate::response::Response;
use crate::room::Room;
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
    /// Someone holds the lease.
    Leased,
    /// Parked until the socket has what it wants.
    Armed(Readiness),
    /// Its token is in the workers' queue.
    Queued,
    /// A handler has the request; `inside` while the handler's call has not returned.
    Waiting {
        seq: u32,
        inside: bool,
        long_poll: bool,
    },
}

/// What a socket has, or what somebody waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    /// Bytes, or the end of them.
    pub input: bool,
    /// Room to send.
    pub output: bool,
    /// The other end sends no more: input is ready from now on.
    pub ended: bool,
}

impl Readiness {
    const fn meets(self, wanted: Self) -> bool {
        (wanted.input && (self.input || self.ended)) || (wanted.output && self.output)
    }

    /// Also what `more` has.
    fn add(&mut self, more: Self) {
        self.input |= more.input;
        self.output |= more.output;
        self.ended |= more.ended;
    }

    /// What is left once somebody uses what was wanted.
    fn use_up(&mut self, wanted: Self) {
        self.input &= !wanted.input;
        self.output &= !wanted.output;
    }
}

#[derive(Debug)]
struct State {
    generation: u32,
    phase: Phase,
    /// News that came while nobody waited for it.
    seen: Readiness,
    conn: Option<Box<Conn>>,
    /// An answer given while its handler was still running.
    answer: Option<Response>,
}

impl State {
    /// True while the request has had no answer and its connection is there.
    fn waits_for(&self, ticket: Ticket) -> bool {
        matches!(self.phase, Phase::Waiting { seq, .. } if seq == ticket.seq)
            && self.answer.is_none()
    }
}

#[derive(Debug)]
struct Slot {
    state: RankedMutex<State>,
    /// When the sweeper has to look, in timer ticks; 0 for never.
    due: AtomicU64,
}

/// All slots of a front.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    pub room: Room,
    pub timer: Timer,
    connections: Gauge,
    /// Set when the front is told to end: then every closed connection wakes the poll thread.
    pub ending: AtomicBool,
}

/// The exclusive right to use a connection. Dropped, it closes the connection.
#[derive(Debug)]
pub(crate) struct Lease<'a> {
    slots: &'a Slots,
    pub token: u64,
    conn: Option<Box<Conn>>,
}

/// Where an answer went.
#[derive(Debug)]
pub(crate) enum Answered<'a> {
    /// To the worker that is still inside the handler.
    Deposited,
    /// To the caller, who now has to send it.
    Yours(Lease<'a>, Response),
    /// Nowhere: the client has had another answer, or is gone.
    Late,
}

/// What a connection was doing when its time was up, or when the drain looked.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Was {
    Armed,
    Queued,
    Waiting,
}

impl Slots {
    pub(crate) fn new(count: usize, timer: Timer, connections: Gauge) -> Self {
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
            room: Room::new(count),
            timer,
            connections,
            ending: AtomicBool::new(false),
        }
    }

    /// Takes in a new connection; gives it back when no slot is free.
    pub(crate) fn insert(&self, conn: Conn) -> Result<Lease<'_>, Conn> {
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

    /// The slot of a token, with its state, if it still is that connection's.
    fn with<R>(&self, token: u64, change: impl FnOnce(&Slot, &mut State) -> R) -> Option<R> {
        let slot = self.slots.get((token & 0xffff_ffff) as usize)?;
        let mut state = slot.state.lock();
        if u64::from(state.generation) != token >> 32 {
            return None;
        }
        Some(change(slot, &mut state))
    }

    fn lease(&self, token: u64, state: &mut State, slot: &Slot) -> Option<Lease<'_>> {
        let conn = state.conn.take()?;
        state.phase = Phase::Leased;
        slot.due.store(0, Ordering::Relaxed);
        Some(Lease {
            slots: self,
            token,
            conn: Some(conn),
        })
    }

    /// News of a socket. True when its connection was parked for it and is queued now; otherwise
    /// the news is kept.
    pub(crate) fn ready(&self, token: u64, news: Readiness, due: Instant) -> bool {
        let due = self.timer.tick(due);
        let moved = self.with(token, |slot, state| {
            state.seen.add(news);
            let Phase::Armed(wanted) = state.phase else {
                return false;
            };
            let met = state.seen.meets(wanted);
            if met {
                state.seen.use_up(wanted);
                state.phase = Phase::Queued;
                slot.due.store(due, Ordering::SeqCst);
            }
            met
        });
        self.timer.note(due);
        moved == Some(true)
    }

    /// A worker takes what was queued.
    pub(crate) fn take_queued(&self, token: u64) -> Option<Lease<'_>> {
        self.with(token, |slot, state| {
            (state.phase == Phase::Queued)
                .then(|| self.lease(token, state, slot))
                .flatten()
        })?
    }

    /// The handler's call has returned: the answer it left, or nothing while somebody else still
    /// owes it (or has given it already).
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

    /// Takes the connection of a long poll whose client is gone: an answer would reach nobody. The
    /// end of its input counts as the end of the client; who waits for news keeps its end open.
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

    /// True when the request does not wait for its answer any more.
    pub(crate) fn is_over(&self, ticket: Ticket) -> bool {
        let waits = self.with(ticket.token, |_, state| state.waits_for(ticket));
        waits != Some(true)
    }

    /// Keeps the hook for the moment the client goes away; gives it back when it is gone.
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

    /// Takes a request away from whoever owes its answer; the answer will be late.
    pub(crate) fn let_go(&self, ticket: Ticket) -> Option<Lease<'_>> {
        self.with(ticket.token, |slot, state| match state.phase {
            Phase::Waiting { seq, .. } if seq == ticket.seq && state.answer.is_none() => {
                self.lease(ticket.token, state, slot)
            }
            _ => None,
        })?
    }

    /// Brings an answer to its request.
    pub(crate) fn answer(&self, ticket: Ticket, response: Response) -> Answered<'_> {
        self.with(ticket.token, |slot, state| match state.phase {
            Phase::Waiting {
                seq, inside: true, ..
            } if seq == ticket.seq => {
                state.answer = Some(response);
                Answered::Deposited
            }
            Phase::Waiting {
                seq, inside: false, ..
            } if seq == ticket.seq => match self.lease(ticket.token, state, slot) {
                Some(lease) => Answered::Yours(lease, response),
                None => Answered::Late,
            },
            _ => Answered::Late,
        })
        .unwrap_or(Answered::Late)
    }

    /// Calls `expired` with every connection whose time is up, and notes when the next is.
    pub(crate) fn sweep(
        &self,
        now: Instant,
        mut expired: impl FnMut(Lease<'_>, Was, Option<Response>),
    ) {
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
            } else if let Some((lease, was, answer)) =
                self.seize(index, |slot, _, _| slot.due.load(Ordering::SeqCst) <= now)
            {
                expired(lease, was, answer);
            }
        }
        self.timer.end_scan(next);
    }

    /// Calls `found` with every parked connection that `wanted` chooses: by what it was doing and,
    /// when it waits for an answer, whether that is a long poll.
    pub(crate) fn seize_all(
        &self,
        wanted: impl Fn(&Conn, Was, bool) -> bool,
        mut found: impl FnMut(Lease<'_>, Was, Option<Response>),
    ) {
        for index in 0..self.slots.len() {
            let chosen = self.seize(index, |_, state, was| {
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
                    .is_some_and(|conn| wanted(conn, was, long_poll))
            });
            if let Some((lease, was, answer)) = chosen {
                found(lease, was, answer);
            }
        }
    }

    fn seize(
        &self,
        index: usize,
        wanted: impl FnOnce(&Slot, &State, Was) -> bool,
    ) -> Option<(Lease<'_>, Was, Option<Response>)> {
        let slot = &self.slots[index];
        let mut state = slot.state.lock();
        let was = match state.phase {
            Phase::Armed(_) => Was::Armed,
            Phase::Queued => Was::Queued,
            Phase::Waiting { .. } => Was::Waiting,
            Phase::Free | Phase::Leased => return None,
        };
        if !wanted(slot, &state, was) {
            return None;
        }
        let token = u64::from(state.generation) << 32 | index as u64;
        let answer = state.answer.take();
        Some((self.lease(token, &mut state, slot)?, was, answer))
    }

    /// Takes an idle connection of the peer: of the next few after the last one taken the one that
    /// is idle longest, which is the least likely to be used in this moment. Looking at a few is
    /// enough for that, and keeps a flood of connections from costing a scan each.
    pub(crate) fn seize_idle(&self, peer: Peer, hand: &mut usize) -> Option<Lease<'_>> {
        const CANDIDATES: usize = 8;
        let idle = |state: &State, was| {
            let of_peer = |conn: &Conn| conn.step == Step::Idle && conn.share == Share::Peer(peer);
            was == Was::Armed && state.conn.as_deref().is_some_and(of_peer)
        };
        let mut found: [Option<(u64, usize)>; CANDIDATES] = [None; CANDIDATES];
        let mut count = 0;
        for _ in 0..self.slots.len() {
            *hand = (*hand + 1) % self.slots.len();
            let index = *hand;
            self.seize(index, |slot, state, was| {
                if idle(state, was) {
                    found[count] = Some((slot.due.load(Ordering::SeqCst), index));
                    count += 1;
                }
                false
            });
            if count == CANDIDATES {
                break;
            }
        }
        found.sort_unstable();
        let mut oldest = found.iter().flatten();
        oldest.find_map(|(_, index)| {
            let taken = self.seize(*index, |_, state, was| idle(state, was))?;
            Some(taken.0)
        })
    }

    fn release(&self, token: u64, share: Share) {
        let index = (token & 0xffff_ffff) as u32;
        let slot = &self.slots[index as usize];
        let mut state = slot.state.lock();
        state.generation = state.generation.wrapping_add(1);
        state.phase = Phase::Free;
        state.seen = Readiness::default();
        state.answer = None;
        slot.due.store(0, Ordering::Relaxed);
        drop(state);
        self.room.give(index, share);
        self.connections.dec();
        self.wake_if_ending();
    }

    /// The drain looks again: a connection was closed or parked after it looked.
    fn wake_if_ending(&self) {
        if self.ending.load(Ordering::SeqCst) {
            self.timer.waker.wake();
        }
    }
}

impl Lease<'_> {
    /// Parks the connection until its socket has what is `wanted`, until `due`. True when it has
    /// it already: then the connection is queued, until `queue_due`, and the caller queues its
    /// token.
    pub(crate) fn park_armed(self, wanted: Readiness, due: Instant, queue_due: Instant) -> bool {
        let slots = self.slots;
        let phase = self.park(|state| {
            if !state.seen.meets(wanted) {
                return (Phase::Armed(wanted), due);
            }
            state.seen.use_up(wanted);
            (Phase::Queued, queue_due)
        });
        slots.wake_if_ending();
        phase == Some(Phase::Queued)
    }

    /// Parks the connection for a worker; the caller queues its token afterwards.
    pub(crate) fn park_queued(self, due: Instant) {
        self.park(|_| (Phase::Queued, due));
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

    /// Gives the connection back to its slot, in the phase and until the moment that `choose` says.
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
        timer.note(due);
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
