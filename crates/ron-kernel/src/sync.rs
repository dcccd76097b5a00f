//! The one place that swaps the machine's primitives for loom's, so that the models run the real
//! protocol code. Shapes follow parking_lot (guards by reference, no poisoning).

#[cfg(not(loom))]
mod real {
    pub use std::sync::Arc;
    pub use std::sync::atomic::{AtomicU64, Ordering};

    pub use parking_lot::{Condvar, Mutex};
}

#[cfg(loom)]
mod model {
    //! parking_lot-shaped wrappers over loom. Fault model: timed waits never time out.
    use std::ops::{Deref, DerefMut};

    pub use loom::sync::Arc;
    pub use loom::sync::atomic::{AtomicU64, Ordering};

    #[derive(Debug)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> Guard<'_, T> {
            Guard(Some(self.0.lock().expect("models do not poison")))
        }
    }

    #[derive(Debug)]
    pub struct Guard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Deref for Guard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("taken only inside wait")
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("taken only inside wait")
        }
    }

    #[derive(Debug)]
    pub struct Condvar(loom::sync::Condvar);

    pub struct TimedOut;

    impl TimedOut {
        pub fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        pub fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        pub fn wait_until<T>(&self, guard: &mut Guard<'_, T>, _at: std::time::Instant) -> TimedOut {
            let inner = guard.0.take().expect("present outside wait");
            guard.0 = Some(self.0.wait(inner).expect("models do not poison"));
            TimedOut
        }

        pub fn notify_one(&self) {
            self.0.notify_one();
        }
    }
}

#[cfg(loom)]
pub use model::*;
#[cfg(not(loom))]
pub use real::*;

#[cfg(not(loom))]
pub mod chan {
    //! The bounded channel under every queue.
    pub use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
}

#[cfg(loom)]
pub mod chan {
    //! A bounded channel for models: same shape as crossbeam's, with a select over shutdown.
    use std::collections::VecDeque;

    use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

    use crate::queue::Recv;
    use crate::shutdown::Shutdown;

    #[derive(Debug)]
    struct State<T> {
        items: VecDeque<T>,
        capacity: usize,
        senders: usize,
        receivers: usize,
    }

    #[derive(Debug)]
    struct Shared<T> {
        state: Mutex<State<T>>,
        changed: Condvar,
    }

    impl<T> Shared<T> {
        fn lock(&self) -> MutexGuard<'_, State<T>> {
            self.state.lock().expect("models do not poison")
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
            }),
            changed: Condvar::new(),
        });
        (Sender(shared.clone()), Receiver(shared))
    }

    impl<T> Sender<T> {
        pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
            let mut s = self.0.lock();
            if s.receivers == 0 {
                return Err(TrySendError::Disconnected(item));
            }
            if s.items.len() >= s.capacity {
                return Err(TrySendError::Full(item));
            }
            s.items.push_back(item);
            drop(s);
            self.0.changed.notify_one();
            Ok(())
        }

        pub fn len(&self) -> usize {
            self.0.lock().items.len()
        }
    }

    impl<T> Receiver<T> {
        pub fn try_recv(&self) -> Result<T, TryRecvError> {
            let mut s = self.0.lock();
            match s.items.pop_front() {
                Some(item) => Ok(item),
                None if s.senders == 0 => Err(TryRecvError::Disconnected),
                None => Err(TryRecvError::Empty),
            }
        }

        pub fn len(&self) -> usize {
            self.0.lock().items.len()
        }
    }

    impl<T: Send + 'static> Receiver<T> {
        /// Waits for an item, the last sender leaving, or shutdown.
        pub fn recv_or(&self, shutdown: &Shutdown) -> Recv<T> {
            let shared = self.0.clone();
            shutdown.on_fire(move || {
                drop(shared.lock()); // a waiter between its check and its wait holds the lock
                shared.changed.notify_all();
            });
            let mut s = self.0.lock();
            loop {
                if let Some(item) = s.items.pop_front() {
                    return Recv::Item(item);
                }
                if s.senders == 0 {
                    return Recv::Closed;
                }
                if shutdown.is_set() {
                    return Recv::Shutdown;
                }
                s = self.0.changed.wait(s).expect("models do not poison");
            }
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
            self.0.lock().receivers -= 1;
        }
    }
}
