//! The shutdown token: fired once, seen by every loop at once, without polling.

use std::fmt;

#[cfg(not(loom))]
pub use real::*;

#[cfg(not(loom))]
mod real {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use crossbeam_channel::{Receiver, Sender, bounded};
    use parking_lot::Mutex;

    use super::fmt;
    use crate::locks::assert_no_locks;
    use crate::time::Deadline;

    /// Nothing is ever sent: the channel is closed instead, which wakes all receivers.
    #[derive(Debug)]
    pub enum Never {}

    type Hook = Box<dyn FnOnce() + Send>;

    struct Inner {
        fired: AtomicBool,
        keep: Mutex<Option<Sender<Never>>>,
        hooks: Mutex<Vec<Hook>>,
    }

    /// The seeing half; cheap to clone.
    #[derive(Clone)]
    pub struct Shutdown {
        inner: Arc<Inner>,
        closed: Receiver<Never>,
    }

    /// The firing half.
    #[derive(Clone)]
    pub struct ShutdownTrigger(Arc<Inner>);

    impl fmt::Debug for Shutdown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "Shutdown({})", self.is_set())
        }
    }

    impl fmt::Debug for ShutdownTrigger {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("ShutdownTrigger")
        }
    }

    impl Shutdown {
        /// A connected pair.
        pub fn pair() -> (ShutdownTrigger, Self) {
            let (tx, rx) = bounded(0);
            let inner = Arc::new(Inner {
                fired: AtomicBool::new(false),
                keep: Mutex::new(Some(tx)),
                hooks: Mutex::new(Vec::new()),
            });
            (ShutdownTrigger(inner.clone()), Self { inner, closed: rx })
        }

        /// True once fired.
        pub fn is_set(&self) -> bool {
            self.inner.fired.load(Ordering::SeqCst)
        }

        /// Waits until fired or the deadline; true when fired. This is how a loop sleeps.
        pub fn wait(&self, deadline: Deadline) -> bool {
            assert_no_locks("a wait for shutdown");
            let _ = self.closed.recv_deadline(deadline.at());
            self.is_set()
        }

        /// For `select!`: this receiver becomes ready (closed) when fired.
        pub fn raw(&self) -> &Receiver<Never> {
            &self.closed
        }

        /// Runs `hook` when fired (at once if it already was): for threads that wait in the
        /// operating system and need another way to be woken. Must not block.
        pub fn on_fire(&self, hook: impl FnOnce() + Send + 'static) {
            let mut hooks = self.inner.hooks.lock();
            if self.is_set() {
                drop(hooks);
                hook();
            } else {
                hooks.push(Box::new(hook));
            }
        }
    }

    impl ShutdownTrigger {
        /// Fires; the second time does nothing.
        pub fn fire(&self) {
            let hooks = {
                let mut hooks = self.0.hooks.lock();
                if self.0.fired.swap(true, Ordering::SeqCst) {
                    return;
                }
                std::mem::take(&mut *hooks)
            };
            drop(self.0.keep.lock().take());
            for hook in hooks {
                hook();
            }
        }
    }
}

#[cfg(loom)]
pub use model::*;

#[cfg(loom)]
mod model {
    //! The same token for models: hooks wake whoever waits, exactly as in the real one.
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::sync::{Arc, Mutex};

    use super::fmt;

    type Hook = Box<dyn FnOnce() + Send>;

    struct Inner {
        fired: AtomicBool,
        hooks: Mutex<Vec<Hook>>,
    }

    #[derive(Clone)]
    pub struct Shutdown(Arc<Inner>);
    #[derive(Clone)]
    pub struct ShutdownTrigger(Arc<Inner>);

    impl fmt::Debug for Shutdown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Shutdown")
        }
    }

    impl fmt::Debug for ShutdownTrigger {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("ShutdownTrigger")
        }
    }

    impl Shutdown {
        pub fn pair() -> (ShutdownTrigger, Self) {
            let inner = Arc::new(Inner {
                fired: AtomicBool::new(false),
                hooks: Mutex::new(Vec::new()),
            });
            (ShutdownTrigger(inner.clone()), Self(inner))
        }

        pub fn is_set(&self) -> bool {
            self.0.fired.load(Ordering::SeqCst)
        }

        pub fn wait(&self, _deadline: crate::time::Deadline) -> bool {
            while !self.is_set() {
                loom::thread::yield_now();
            }
            true
        }

        pub fn on_fire(&self, hook: impl FnOnce() + Send + 'static) {
            let mut hooks = self.0.hooks.lock().expect("models do not poison");
            if self.is_set() {
                drop(hooks);
                hook();
            } else {
                hooks.push(Box::new(hook));
            }
        }
    }

    impl ShutdownTrigger {
        pub fn fire(&self) {
            let hooks = {
                let mut hooks = self.0.hooks.lock().expect("models do not poison");
                if self.0.fired.swap(true, Ordering::SeqCst) {
                    return;
                }
                std::mem::take(&mut *hooks)
            };
            for hook in hooks {
                hook();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::time::Deadline;

    #[test]
    fn firing_wakes_every_waiter_and_runs_hooks_once() {
        let (trigger, token) = Shutdown::pair();
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = calls.clone();
        token.on_fire(move || {
            seen.fetch_add(1, Ordering::SeqCst);
        });
        assert!(!token.wait(Deadline::within(Duration::from_millis(1))));
        let start = Instant::now();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| assert!(token.wait(Deadline::within(Duration::from_secs(5)))));
            }
            trigger.fire();
            trigger.fire();
        });
        assert!(start.elapsed() < Duration::from_secs(1));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        token.on_fire({
            let calls = calls.clone();
            move || {
                calls.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }
}
