//! A reply slot: one answer from the thread that finishes a job to the thread that waits for it.
//!
//! The sender answers once or is dropped once; the waiter sees which, or its deadline passes.

use crate::deadline::Deadline;
use crate::locks::assert_no_locks;
use crate::sync::{Arc, Condvar, Mutex};

#[derive(Debug)]
enum State<T> {
    Empty,
    Answered(T),
    /// The sender was dropped without an answer.
    Dropped,
    /// The waiter took the answer or gave up.
    Closed,
}

#[derive(Debug)]
struct Slot<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

/// The answering half. Dropping it unanswered wakes the waiter with [`WaitError::Dropped`].
#[derive(Debug)]
pub struct ReplySender<T>(Option<Arc<Slot<T>>>);

#[derive(Debug)]
pub struct ReplyWaiter<T>(Arc<Slot<T>>);

/// Why no answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The deadline passed; the outcome is unknown to the waiter.
    #[error("no answer before the deadline")]
    Timeout,
    /// The worker died or refused the job without an answer.
    #[error("the worker dropped the job without an answer")]
    Dropped,
}

/// A connected sender and waiter.
pub fn reply<T>() -> (ReplySender<T>, ReplyWaiter<T>) {
    let slot = Arc::new(Slot {
        state: Mutex::new(State::Empty),
        changed: Condvar::new(),
    });
    (ReplySender(Some(slot.clone())), ReplyWaiter(slot))
}

impl<T> ReplySender<T> {
    /// Answers. Returns the answer as an error when the waiter has given up, so that the caller can
    /// count it as late.
    pub fn send(mut self, answer: T) -> Result<(), T> {
        let slot = self.0.take().expect("present until send or drop");
        let mut state = slot.state.lock();
        if matches!(*state, State::Closed) {
            return Err(answer);
        }
        *state = State::Answered(answer);
        drop(state); // the woken waiter needs the lock at once
        #[cfg(mutant = "reply")] // forgets to wake the waiter
        if crate::sync::mutant("reply") {
            return Ok(());
        }
        slot.changed.notify_one();
        Ok(())
    }

    /// True when the waiter has given up, so that work on the job can be skipped.
    pub fn is_abandoned(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|s| matches!(*s.state.lock(), State::Closed))
    }
}

impl<T> Drop for ReplySender<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            let mut state = slot.state.lock();
            // `Closed` stays: the waiter is gone and needs no notice.
            if matches!(*state, State::Empty) {
                *state = State::Dropped;
            }
            drop(state);
            slot.changed.notify_one();
        }
    }
}

impl<T> ReplyWaiter<T> {
    /// Waits for the answer until the deadline. After a time-out the waiter has given up.
    pub fn wait(self, deadline: Deadline) -> Result<T, WaitError> {
        self.wait_or(deadline, || State::Closed)
    }

    /// As [`ReplyWaiter::wait`], and after a time-out the answer may be waited for again.
    pub fn wait_again(&self, deadline: Deadline) -> Result<T, WaitError> {
        self.wait_or(deadline, || State::Empty)
    }

    /// `late` is the state after a time-out, set under the lock: an answer is taken here, or goes back to the sender.
    fn wait_or(&self, deadline: Deadline, late: fn() -> State<T>) -> Result<T, WaitError> {
        assert_no_locks("a wait for a reply");
        let mut state = self.0.state.lock();
        loop {
            // `Closed` stands for a waiter that is gone; before this one waits, `Empty` is
            // restored.
            match std::mem::replace(&mut *state, State::Closed) {
                State::Answered(answer) => return Ok(answer),
                State::Dropped => return Err(WaitError::Dropped),
                State::Empty | State::Closed => *state = State::Empty,
            }
            if self
                .0
                .changed
                .wait_until(&mut state, deadline.at())
                .timed_out()
                // An answer that arrived just as the wait timed out is still taken.
                && matches!(*state, State::Empty)
            {
                *state = late();
                return Err(WaitError::Timeout);
            }
        }
    }
}

impl<T> Drop for ReplyWaiter<T> {
    fn drop(&mut self) {
        *self.0.state.lock() = State::Closed;
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_waiter_distinguishes_answer_drop_and_timeout() {
        let (tx, rx) = reply();
        assert_eq!(tx.send(7), Ok(()));
        assert_eq!(rx.wait(Deadline::within(Duration::from_secs(1))), Ok(7));

        let (tx, rx) = reply::<u8>();
        drop(tx);
        assert_eq!(
            rx.wait(Deadline::within(Duration::from_secs(1))),
            Err(WaitError::Dropped)
        );

        let (tx, rx) = reply();
        assert_eq!(
            rx.wait(Deadline::within(Duration::from_millis(5))),
            Err(WaitError::Timeout)
        );
        assert!(tx.is_abandoned());
        assert_eq!(tx.send(7), Err(7));

        let (tx, rx) = reply();
        let soon = || Deadline::within(Duration::from_millis(5));
        assert_eq!(rx.wait_again(soon()), Err(WaitError::Timeout));
        assert!(!tx.is_abandoned(), "the answer is still wanted");
        assert_eq!(tx.send(7), Ok(()));
        assert_eq!(rx.wait_again(soon()), Ok(7));
    }
}
