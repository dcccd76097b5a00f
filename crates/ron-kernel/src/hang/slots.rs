//! The seats of a hang pool, the jobs their workers run, and the threads that were set aside. One
//! small mutex guards all of it; it is never held over a call, a send or the start of a thread.

use std::sync::Arc;
use std::time::Instant;

use crate::sync::{AtomicU32, Mutex, Ordering};

const WAITING: u32 = 0;
const STARTED: u32 = 1;
const CANCELED: u32 = 2;

/// The state of one job, shared by its worker and its waiter. It changes only under the lock of
/// [`Slots`], and only once: to started or to canceled.
#[derive(Debug, Clone)]
pub struct Ticket(Arc<AtomicU32>);

impl Ticket {
    pub fn new() -> Self {
        Self(Arc::new(AtomicU32::new(WAITING)))
    }

    /// No worker has begun the job. Final once the job is dropped from the queue.
    pub fn never_started(&self) -> bool {
        // Read without the lock: a sequentially consistent load sees the store of a `begin` that
        // came before the event which made the caller ask.
        self.0.load(Ordering::SeqCst) != STARTED
    }

    fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A worker's seat in the pool and the number in its thread's name. The pair tells a worker from
/// its replacement, which has the same slot and another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    pub slot: usize,
    pub number: usize,
}

#[derive(Debug)]
struct Running {
    ticket: Ticket,
    op: &'static str,
    until: Instant,
}

#[derive(Debug)]
struct Worker {
    number: usize,
    running: Option<Running>,
}

#[derive(Debug)]
struct State {
    /// `None` where a worker was set aside and may not be replaced yet.
    workers: Vec<Option<Worker>>,
    /// Numbers of the threads that hang, each with its call.
    aside: Vec<(usize, &'static str)>,
}

/// The table of seats.
#[derive(Debug)]
pub struct Slots {
    state: Mutex<State>,
    aside_max: usize,
}

/// A worker that was just set aside.
#[derive(Debug, PartialEq, Eq)]
pub struct SetAside {
    pub number: usize,
    pub op: &'static str,
    /// The seat in which the caller must start a new thread.
    pub refill: Option<Seat>,
}

/// The state of a job whose deadline has passed.
#[derive(Debug, PartialEq, Eq)]
pub enum Overdue {
    /// No worker has begun the job; it is canceled now, so none will.
    NotStarted,
    /// Its worker hangs in it and was set aside by this call.
    Hangs(SetAside),
    /// The call has returned, or its worker was set aside before.
    Over,
}

/// What a worker must do after a call.
#[derive(Debug, PartialEq, Eq)]
pub enum After {
    /// It keeps its seat.
    Stay,
    /// It was set aside and must end; a new thread takes the seat, if one is given.
    Leave(Option<Seat>),
}

impl Slots {
    /// `size` seats (at least one), all taken; at most `aside_max` of the threads that were set
    /// aside are replaced at any time.
    pub fn new(size: usize, aside_max: usize) -> Self {
        let worker = |number| {
            Some(Worker {
                number,
                running: None,
            })
        };
        Self {
            state: Mutex::new(State {
                workers: (0..size.max(1)).map(worker).collect(),
                aside: Vec::new(),
            }),
            aside_max,
        }
    }

    /// The worker begins a job; false when the job was canceled and must not be run.
    pub fn begin(&self, seat: Seat, ticket: &Ticket, op: &'static str, until: Instant) -> bool {
        let mut state = self.state.lock();
        if ticket.0.load(Ordering::SeqCst) != WAITING {
            return false;
        }
        let Some(worker) = state.worker(seat) else {
            return false;
        };
        worker.running = Some(Running {
            ticket: ticket.clone(),
            op,
            until,
        });
        ticket.0.store(STARTED, Ordering::SeqCst);
        true
    }

    /// The worker's call has returned.
    pub fn finish(&self, seat: Seat) -> After {
        let mut state = self.state.lock();
        #[cfg(mutant = "hang")] // a thread that was set aside keeps working
        if crate::sync::mutant("hang") {
            return After::Stay;
        }
        if let Some(worker) = state.worker(seat) {
            worker.running = None;
            return After::Stay;
        }
        // Set aside: one hanging thread less, which may allow the replacement of another.
        state.aside.retain(|(number, _)| *number != seat.number);
        After::Leave(state.refill(self.aside_max))
    }

    /// The deadline of a job has passed without an answer.
    pub fn overdue(&self, ticket: &Ticket) -> Overdue {
        let mut state = self.state.lock();
        if ticket.never_started() {
            ticket.0.store(CANCELED, Ordering::SeqCst);
            return Overdue::NotStarted;
        }
        let ours = |r: &Running| r.ticket.same(ticket);
        match state.set_aside(ours, self.aside_max) {
            Some(aside) => Overdue::Hangs(aside),
            None => Overdue::Over,
        }
    }

    /// Sets aside one worker whose call is past its deadline, whether or not a caller waits for it;
    /// to be called until it returns `None`.
    pub fn sweep(&self, now: Instant) -> Option<SetAside> {
        let mut state = self.state.lock();
        state.set_aside(|r| r.until <= now, self.aside_max)
    }

    /// Empties a seat whose thread could not be started.
    pub fn vacate(&self, seat: Seat) {
        let mut state = self.state.lock();
        if state.worker(seat).is_some() {
            state.workers[seat.slot] = None;
        }
    }

    /// Workers in their seats.
    pub fn seated(&self) -> usize {
        self.state.lock().workers.iter().flatten().count()
    }

    /// Numbers of the threads that were set aside and still hang, each with its call.
    pub fn aside(&self) -> Vec<(usize, &'static str)> {
        self.state.lock().aside.clone()
    }
}

impl State {
    /// The worker in a seat, unless a replacement has taken it.
    fn worker(&mut self, seat: Seat) -> Option<&mut Worker> {
        let worker = self.workers.get_mut(seat.slot)?.as_mut();
        worker.filter(|w| w.number == seat.number)
    }

    fn set_aside(&mut self, which: impl Fn(&Running) -> bool, max: usize) -> Option<SetAside> {
        let hangs = |w: &Option<Worker>| {
            let running = w.as_ref().and_then(|w| w.running.as_ref());
            running.is_some_and(&which)
        };
        let slot = self.workers.iter().position(hangs)?;
        let worker = self.workers[slot].take()?;
        let op = worker.running.map_or("", |r| r.op);
        self.aside.push((worker.number, op));
        Some(SetAside {
            number: worker.number,
            op,
            refill: self.refill(max),
        })
    }

    /// Takes an empty seat for a new thread, when more seats are empty than there are threads aside
    /// that may not be replaced.
    fn refill(&mut self, max: usize) -> Option<Seat> {
        // Of the threads aside, all beyond `max` keep a seat empty: `size + max` threads at most.
        let empty = self.workers.iter().filter(|w| w.is_none()).count();
        if empty <= self.aside.len().saturating_sub(max) {
            return None;
        }
        let slot = self.workers.iter().position(Option::is_none)?;
        let taken = |n: &usize| {
            self.workers.iter().flatten().any(|w| w.number == *n)
                || self.aside.iter().any(|(number, _)| number == n)
        };
        // The smallest free number, because a thread's name has room for 15 bytes.
        let number = (0..=self.workers.len() + self.aside.len()).find(|n| !taken(n))?;
        self.workers[slot] = Some(Worker {
            number,
            running: None,
        });
        Some(Seat { slot, number })
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    use super::*;

    fn seat(slot: usize, number: usize) -> Seat {
        Seat { slot, number }
    }

    /// Begins a job in each seat and lets its deadline pass.
    fn hang(slots: &Slots, at: Seat) -> SetAside {
        let ticket = Ticket::new();
        assert!(slots.begin(at, &ticket, "sign", Instant::now()));
        match slots.overdue(&ticket) {
            Overdue::Hangs(aside) => aside,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn seats_are_refilled_up_to_the_bound_and_again_when_a_call_comes_back() {
        let slots = Slots::new(2, 1);
        assert_eq!(hang(&slots, seat(0, 0)).refill, Some(seat(0, 2)));
        assert_eq!(hang(&slots, seat(0, 2)).refill, None, "one hangs already");
        assert_eq!(slots.seated(), 1);
        assert_eq!(hang(&slots, seat(1, 1)).refill, None);
        assert_eq!((slots.seated(), slots.aside().len()), (0, 3));
        let next = seat(0, 0);
        assert_eq!(
            slots.finish(seat(0, 0)),
            After::Leave(Some(next)),
            "two still hang, of which one may be replaced"
        );
        assert_eq!(slots.finish(seat(0, 2)), After::Leave(Some(seat(1, 2))));
        assert_eq!(slots.finish(seat(1, 1)), After::Leave(None));
        assert_eq!((slots.seated(), slots.aside().len()), (2, 0));
        assert_eq!(slots.finish(next), After::Stay);
    }

    #[test]
    fn no_seat_is_lost_however_many_hang_at_once() {
        for max in 0..5 {
            let slots = Slots::new(4, max);
            let mut hung: Vec<Seat> = (0..4).map(|n| seat(n, n)).collect();
            let refilled = hung.iter().filter(|at| hang(&slots, **at).refill.is_some());
            assert_eq!(refilled.count(), max.min(4));
            while let Some(at) = hung.pop() {
                assert!(matches!(slots.finish(at), After::Leave(_)));
                let missing = slots.aside().len().saturating_sub(max);
                assert_eq!(slots.seated(), 4 - missing, "{max} may be replaced");
            }
        }
    }

    #[test]
    fn a_job_is_started_or_canceled_never_both() {
        let slots = Slots::new(1, 1);
        let ticket = Ticket::new();
        assert_eq!(slots.overdue(&ticket), Overdue::NotStarted);
        assert!(!slots.begin(seat(0, 0), &ticket, "sign", Instant::now()));
        let ticket = Ticket::new();
        assert!(slots.begin(seat(0, 0), &ticket, "sign", Instant::now()));
        assert_eq!(slots.finish(seat(0, 0)), After::Stay);
        assert_eq!(slots.overdue(&ticket), Overdue::Over);
        assert_eq!(slots.sweep(Instant::now()), None);
    }
}
