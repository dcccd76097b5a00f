//! Bounded channels in the shape of crossbeam's, and a wait for one of several sources.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::fault;
use crate::time;
use crate::world::{Object, wait_for};

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    senders: usize,
    receivers: usize,
}

#[derive(Debug)]
struct Shared<T> {
    capacity: usize,
    /// Receivers wait for it, senders for `room`.
    items: Object,
    room: Object,
    /// Never held over an operation, so no thread waits for it.
    state: Mutex<State<T>>,
}

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending half; clones share the channel.
#[derive(Debug)]
pub struct Sender<T>(Arc<Shared<T>>);

/// The receiving half; clones compete for items.
#[derive(Debug)]
pub struct Receiver<T>(Arc<Shared<T>>);

/// Why nothing was sent at once; holds the item.
#[derive(Debug, PartialEq, Eq)]
pub enum TrySendError<T> {
    Full(T),
    Disconnected(T),
}

/// Why nothing was sent by the deadline; holds the item.
#[derive(Debug, PartialEq, Eq)]
pub enum SendTimeoutError<T> {
    Timeout(T),
    Disconnected(T),
}

/// No receiver is left; holds the item.
#[derive(Debug, PartialEq, Eq)]
pub struct SendError<T>(pub T);

/// Why nothing was received at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    Empty,
    Disconnected,
}

/// Why nothing was received by the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvTimeoutError {
    Timeout,
    Disconnected,
}

/// The channel is empty and no sender is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvError;

/// A channel with room for `capacity` items.
///
/// # Panics
/// When `capacity` is 0: meetings of a sender and a receiver are not simulated.
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    named("", capacity)
}

/// As [`bounded`], with a name for traces and reports.
///
/// # Panics
/// As [`bounded`].
pub fn named<T>(name: &'static str, capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a channel has room for one item at least");
    let shared = Arc::new(Shared {
        capacity,
        items: Object::new("channel", name),
        room: Object::new("room of channel", name),
        state: Mutex::new(State {
            items: VecDeque::new(),
            senders: 1,
            receivers: 1,
        }),
    });
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    /// Sends if there is room.
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        self.0.items.point("sends to");
        self.push(item)
    }

    /// Waits for room until the deadline.
    pub fn send_deadline(&self, item: T, at: Instant) -> Result<(), SendTimeoutError<T>> {
        self.send_ns(item, Some(time::virtual_ns(at)))
    }

    /// Waits for room as long as a receiver is left.
    pub fn send(&self, item: T) -> Result<(), SendError<T>> {
        self.send_ns(item, None).map_err(|error| match error {
            SendTimeoutError::Timeout(item) | SendTimeoutError::Disconnected(item) => {
                SendError(item)
            }
        })
    }

    fn send_ns(&self, mut item: T, at: Option<u64>) -> Result<(), SendTimeoutError<T>> {
        self.0.items.point("sends to");
        let mut in_time = true;
        loop {
            item = match self.push(item) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(item)) => {
                    return Err(SendTimeoutError::Disconnected(item));
                }
                Err(TrySendError::Full(item)) if !in_time => {
                    return Err(SendTimeoutError::Timeout(item));
                }
                Err(TrySendError::Full(item)) => item,
            };
            in_time = wait_for("waits for", &[&self.0.room], at);
        }
    }

    fn push(&self, item: T) -> Result<(), TrySendError<T>> {
        let mut state = self.0.state();
        if state.receivers == 0 {
            return Err(TrySendError::Disconnected(item));
        }
        if state.items.len() >= self.0.capacity {
            return Err(TrySendError::Full(item));
        }
        state.items.push_back(item);
        drop(state);
        self.0.items.wake_all();
        Ok(())
    }

    /// Number of items now. No point: it may be called under locks of the machine, by metrics for instance.
    pub fn len(&self) -> usize {
        self.0.state().items.len()
    }

    /// True when no item waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Receiver<T> {
    /// Takes an item if one waits.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.0.items.point("receives from");
        self.take()
    }

    /// Waits for an item until the deadline.
    pub fn recv_deadline(&self, at: Instant) -> Result<T, RecvTimeoutError> {
        match select(&[self], Some(at)) {
            None => Err(RecvTimeoutError::Timeout),
            Some(_) => self.take().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    /// Waits for an item.
    pub fn recv(&self) -> Result<T, RecvError> {
        select(&[self], None);
        self.take().map_err(|_| RecvError)
    }

    /// Takes an item if one waits, without a point: after [`select`] has chosen this receiver, no other thread can have
    /// taken the item.
    pub fn take(&self) -> Result<T, TryRecvError> {
        let mut state = self.0.state();
        match state.items.pop_front() {
            Some(item) => {
                drop(state);
                self.0.room.wake_all();
                Ok(item)
            }
            None if state.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    /// As [`Sender::len`].
    pub fn len(&self) -> usize {
        self.0.state().items.len()
    }

    /// True when no item waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state().senders += 1;
        Self(self.0.clone())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.0.state().receivers += 1;
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.senders -= 1;
        if state.senders > 0 {
            return;
        }
        drop(state);
        self.0.items.point("was the last to send to");
        self.0.items.wake_all();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.receivers -= 1;
        if state.receivers > 0 {
            return;
        }
        // As in crossbeam: the last receiver drops the items that are left.
        let left = std::mem::take(&mut state.items);
        drop(state);
        self.0.room.point("was the last to receive from");
        self.0.room.wake_all();
        drop(left); // outside of the lock: their destructors may use the simulator
    }
}

/// Something that [`select`] waits for. A program can add sources of its own.
pub trait Source {
    /// The object whose notification says that this source may be ready.
    fn object(&self) -> &Object;
    /// Whether its event has happened. Asked without a point.
    fn is_ready(&self) -> bool;
}

impl fmt::Debug for dyn Source + '_ {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.object().fmt(out)
    }
}

impl<T> Source for Receiver<T> {
    fn object(&self) -> &Object {
        &self.0.items
    }

    /// An item waits, or no sender is left.
    fn is_ready(&self) -> bool {
        let state = self.0.state();
        !state.items.is_empty() || state.senders == 0
    }
}

/// Waits until a source is ready, or until the deadline (`None`). When several are ready, the seed decides. Until its
/// next operation no other thread runs, so the caller finds the source ready.
///
/// # Panics
/// Outside of a run, when it would wait.
pub fn select(sources: &[&dyn Source], at: Option<Instant>) -> Option<usize> {
    let at = at.map(time::virtual_ns);
    let objects: Vec<&Object> = sources.iter().map(|source| source.object()).collect();
    if let Some(first) = objects.first() {
        first.point("polls");
    }
    let mut in_time = true;
    loop {
        let ready = sources.iter().enumerate().filter(|(_, s)| s.is_ready());
        let ready: Vec<usize> = ready.map(|(at, _)| at).collect();
        match ready.len() {
            0 if !in_time => return None,
            0 => {}
            1 => return Some(ready[0]),
            n => return Some(ready[fault::choose(n as u64) as usize]), // the first, outside of a run
        }
        in_time = wait_for("waits for", &objects, at);
    }
}
