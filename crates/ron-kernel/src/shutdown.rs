//! The shutdown token: fired once; every waiting loop wakes at once, without polling.

use std::fmt;
use std::sync::Arc;

use crate::deadline::Deadline;
use crate::locks::assert_no_locks;
use crate::sync::{AtomicBool, Gate, Mutex, Ordering};

type Hook = Box<dyn FnOnce() + Send>;

struct Inner {
    fired: AtomicBool,
    gate: Gate,
    hooks: Mutex<Vec<Hook>>,
}

/// The half that loops wait on; cheap to clone.
#[derive(Clone)]
pub struct Shutdown(Arc<Inner>);

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
    /// A trigger and the token it fires.
    pub fn pair() -> (ShutdownTrigger, Self) {
        let inner = Arc::new(Inner {
            fired: AtomicBool::new(false),
            gate: Gate::new(),
            hooks: Mutex::new(Vec::new()),
        });
        (ShutdownTrigger(inner.clone()), Self(inner))
    }

    pub fn is_set(&self) -> bool {
        // Sequentially consistent: `on_fire` and `fire` also agree through the lock on the hooks,
        // and this flag is read far less often than the work it ends.
        self.0.fired.load(Ordering::SeqCst)
    }

    /// Waits until fired or until the deadline; true when fired. Loops sleep with it.
    pub fn wait(&self, deadline: Deadline) -> bool {
        assert_no_locks("a wait for shutdown");
        self.0.gate.wait(deadline.at());
        self.is_set()
    }

    /// A pause that is expected to end by its deadline. In a model it ends at any moment, where
    /// [`Shutdown::wait`] lasts until the token is fired.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn pause(&self, deadline: Deadline) -> bool {
        self.wait(deadline)
    }

    #[cfg(any(loom, shuttle))]
    pub(crate) fn pause(&self, _deadline: Deadline) -> bool {
        crate::sync::thread::yield_now();
        self.is_set()
    }

    /// For the waits of this crate: opens when fired.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn gate(&self) -> &Gate {
        &self.0.gate
    }

    /// Runs `hook` when fired, on the firing thread, or at once when it already was: for threads
    /// that wait in the operating system and need another way to be woken. `hook` must not block.
    pub fn on_fire(&self, hook: impl FnOnce() + Send + 'static) {
        #[cfg(mutant = "hook")] // checks before it takes the lock: a hook may come too late to run
        if crate::sync::mutant("hook") {
            if self.is_set() {
                hook();
            } else {
                self.0.hooks.lock().push(Box::new(hook));
            }
            return;
        }
        // Checked under the lock that `fire` holds while it sets the flag and takes the hooks: a
        // hook is either in the list that `fire` takes or sees the flag here.
        let mut hooks = self.0.hooks.lock();
        if self.is_set() {
            drop(hooks); // a hook may take locks of its own
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
        // The flag is set before the gate opens, so a woken thread finds `is_set` true.
        self.0.gate.open();
        for hook in hooks {
            hook();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::deadline::Deadline;

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
        assert!(start.elapsed() < Duration::from_secs(20));
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
