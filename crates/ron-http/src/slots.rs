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

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use ron_kernel::{Gauge, LockSpec, RankedMutex};

use crate::conn::Conn;
use crate::responder::Ticket;
use crate::response::Response;
use crate::timer::Timer;

/// The lock of one slot: held for a few instructions.
pub(crate) const SLOT_ROW: LockSpec = LockSpec {
    name: "http_slot",
    rank: 900,
    guards: "who owns one connection",
};
static SLOT_LOCK: LockSpec = SLOT_ROW;

/// The lock of the list of free slots.
pub(crate) const FREE_ROW: LockSpec = LockSpec {
    name: "http_free",
    rank: 901,
    guards: "the free connection slots",
};
static FREE_LOCK: LockSpec = FREE_ROW;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    /// Someone holds the lease.
    Leased,
    /// Parked until the socket is ready.
    Armed,
    /// Its token is in the workers' queue.
    Queued,
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
    conn: Option<Box<Conn>>,
    /// An answer given while its handler was still running.
    answer: Option<Response>,
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
    free: RankedMutex<Vec<u32>>,
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
                    conn: None,
                    answer: None,
                },
            ),
            due: AtomicU64::new(0),
        };
        let slots: Box<[Slot]> = (0..count).map(slot).collect();
        let free = RankedMutex::new(&FREE_LOCK, (0..count as u32).rev().collect());
        Self {
            slots,
            free,
            timer,
            connections,
            ending: AtomicBool::new(false),
        }
    }

    /// Connections there are.
    pub(crate) fn used(&self) -> usize {
        self.slots.len() - self.free.lock().len()
    }

    /// Takes in a new connection; gives it back when no slot is free.
    pub(crate) fn insert(&self, conn: Conn) -> Result<Lease<'_>, Conn> {
        let Some(index) = self.free.lock().pop() else {
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

    /// The socket is ready: from parked to queued. False when the connection is elsewhere.
    pub(crate) fn ready(&self, token: u64, due: Instant) -> bool {
        let due = self.timer.tick(due);
        let moved = self.with(token, |slot, state| {
            let armed = state.phase == Phase::Armed;
            if armed {
                state.phase = Phase::Queued;
                slot.due.store(due, Ordering::SeqCst);
            }
            armed
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
            Phase::Armed => Was::Armed,
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

    fn release(&self, token: u64) {
        let index = (token & 0xffff_ffff) as u32;
        let slot = &self.slots[index as usize];
        let mut state = slot.state.lock();
        state.generation = state.generation.wrapping_add(1);
        state.phase = Phase::Free;
        state.answer = None;
        slot.due.store(0, Ordering::Relaxed);
        drop(state);
        self.free.lock().push(index);
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
    /// Parks the connection until its socket is ready; the caller arms it afterwards.
    pub(crate) fn park_armed(self, due: Instant) {
        let slots = self.slots;
        self.park(Phase::Armed, due);
        slots.wake_if_ending();
    }

    /// Parks the connection for a worker; the caller queues its token afterwards.
    pub(crate) fn park_queued(self, due: Instant) {
        self.park(Phase::Queued, due);
    }

    /// Parks the connection until its request is answered.
    pub(crate) fn await_answer(mut self, due: Instant, long_poll: bool) -> Ticket {
        self.seq = self.seq.wrapping_add(1);
        let ticket = Ticket {
            token: self.token,
            seq: self.seq,
        };
        self.park(
            Phase::Waiting {
                seq: ticket.seq,
                inside: true,
                long_poll,
            },
            due,
        );
        ticket
    }

    fn park(mut self, phase: Phase, due: Instant) {
        let due = self.slots.timer.tick(due);
        let conn = self.conn.take();
        self.slots.with(self.token, |slot, state| {
            state.conn = conn;
            state.phase = phase;
            state.answer = None;
            slot.due.store(due, Ordering::SeqCst);
        });
        self.slots.timer.note(due);
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
            drop(conn); // closes the socket before the slot can be taken again
            self.slots.release(self.token);
        }
    }
}
