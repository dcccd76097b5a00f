//! A bounded channel for models: the interface of crossbeam's, with a wait that another event ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::model::{Condvar, Guard, Mutex};

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    capacity: usize,
    senders: usize,
    receivers: usize,
    /// The waker was handed out: one event ends the waits on a channel of a model.
    watched: bool,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

impl<T> Shared<T> {
    fn lock(&self) -> Guard<'_, State<T>> {
        self.state.lock()
    }
}

#[derive(Debug)]
pub struct Sender<T>(Arc<Shared<T>>);
#[derive(Debug)]
pub struct Receiver<T>(Arc<Shared<T>>);

pub enum TrySendError<T> {
    Full(T),
    Disconnected(T),
}

pub enum SendTimeoutError<T> {
    Timeout(T),
    Disconnected(T),
}

pub enum TryRecvError {
    Empty,
    Disconnected,
}

pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            items: VecDeque::new(),
            capacity,
            senders: 1,
            receivers: 1,
            watched: false,
        }),
        changed: Condvar::new(),
    });
    (Sender(shared.clone()), Receiver(shared))
}

/// The name is for the simulator.
pub fn named<T>(_name: &'static str, capacity: usize) -> (Sender<T>, Receiver<T>) {
    bounded(capacity)
}

impl<T> Sender<T> {
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        match self.send_deadline(item, Instant::now()) {
            Ok(()) => Ok(()),
            Err(SendTimeoutError::Timeout(item)) => Err(TrySendError::Full(item)),
            Err(SendTimeoutError::Disconnected(item)) => Err(TrySendError::Disconnected(item)),
        }
    }

    pub fn send_deadline(&self, item: T, at: Instant) -> Result<(), SendTimeoutError<T>> {
        let mut s = self.0.lock();
        loop {
            if s.receivers == 0 {
                return Err(SendTimeoutError::Disconnected(item));
            }
            if s.items.len() < s.capacity {
                s.items.push_back(item);
                drop(s);
                self.0.changed.notify_all();
                return Ok(());
            }
            if self.0.changed.wait_until(&mut s, at).timed_out() {
                return Err(SendTimeoutError::Timeout(item));
            }
        }
    }

    pub fn len(&self) -> usize {
        self.0.lock().items.len()
    }
}

impl<T> Receiver<T> {
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut s = self.0.lock();
        match s.items.pop_front() {
            Some(item) => {
                drop(s);
                self.0.changed.notify_all();
                Ok(item)
            }
            None if s.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    pub fn len(&self) -> usize {
        self.0.lock().items.len()
    }
}

/// Result of [`Receiver::recv_unless`].
pub enum Received<T> {
    Item(T),
    Disconnected,
    Ended,
    TimedOut,
}

impl<T: Send + 'static> Receiver<T> {
    /// Waits for an item, the drop of the last sender, the time `at`, or until `ended` is true. The
    /// event that makes it true must call [`Receiver::waker`].
    pub fn recv_unless(&self, ended: impl Fn() -> bool, at: Instant) -> Received<T> {
        let mut s = self.0.lock();
        let mut waited = false;
        loop {
            // A select takes any of the events that are ready. Here a thread that has waited sees
            // the end first; the order in which it sees the item first is covered by the
            // interleavings in which it runs between the two events.
            if waited && ended() {
                return Received::Ended;
            }
            if let Some(item) = s.items.pop_front() {
                drop(s);
                self.0.changed.notify_all();
                return Received::Item(item);
            }
            if s.senders == 0 {
                return Received::Disconnected;
            }
            if ended() {
                return Received::Ended;
            }
            if self.0.changed.wait_until(&mut s, at).timed_out() {
                return Received::TimedOut;
            }
            waited = true;
        }
    }

    /// Wakes the waiting receivers. `None` after the first call: one waker is enough.
    pub fn waker(&self) -> Option<impl FnOnce() + Send + 'static> {
        if std::mem::replace(&mut self.0.lock().watched, true) {
            return None;
        }
        let shared = self.0.clone();
        Some(move || {
            // A waiter between its check and its wait holds the lock: after this it is waiting.
            drop(shared.lock());
            shared.changed.notify_all();
        })
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(self.0.clone())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.0.lock().receivers += 1;
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().senders -= 1;
        self.0.changed.notify_all();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut s = self.0.lock();
        s.receivers -= 1;
        // As in crossbeam: the last receiver drops the items that are left.
        let left = if s.receivers == 0 {
            std::mem::take(&mut s.items)
        } else {
            VecDeque::new()
        };
        drop(s);
        self.0.changed.notify_all();
        drop(left);
    }
}
