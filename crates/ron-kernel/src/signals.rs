//! Signals as events. Only the binaries install them; a library never does.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crossbeam_channel::{Receiver, Sender, bounded, select};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::deadline::Deadline;
use crate::shutdown::{Shutdown, ShutdownTrigger};

/// A request of the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT or SIGTERM: drain and end.
    Terminate,
    /// SIGHUP: read the configuration again.
    Reload,
}

/// Installs the signal handlers of the process.
#[derive(Debug)]
pub struct Signals;

/// The receiving end of the signals. It keeps one event of each kind: reloads that wait are one
/// reload, and they never take the place of a termination.
#[derive(Debug)]
pub struct SignalEvents {
    terminate: Receiver<()>,
    reload: Receiver<()>,
    terminated: Shutdown,
}

/// The end that the handler thread holds.
struct Raised {
    terminate: Sender<()>,
    reload: Sender<()>,
    terminated: ShutdownTrigger,
}

impl Raised {
    fn pair() -> (Self, SignalEvents) {
        let (terminate, terminations) = bounded(1);
        let (reload, reloads) = bounded(1);
        let (trigger, terminated) = Shutdown::pair();
        let events = SignalEvents {
            terminate: terminations,
            reload: reloads,
            terminated,
        };
        let raised = Self {
            terminate,
            reload,
            terminated: trigger,
        };
        (raised, events)
    }

    fn raise(&self, signal: Signal) {
        let to = match signal {
            Signal::Terminate => &self.terminate,
            Signal::Reload => &self.reload,
        };
        // When it is full, the same event waits already; when it is closed, the process ends.
        let _ = to.try_send(());
        if signal == Signal::Terminate {
            self.terminated.fire();
        }
    }
}

impl Signals {
    /// From now on SIGINT and SIGTERM arrive as [`Signal::Terminate`] and SIGHUP as
    /// [`Signal::Reload`]. A second SIGINT or SIGTERM ends the process at once with code 130, also
    /// when no thread is able to run any more.
    pub fn install() -> std::io::Result<SignalEvents> {
        let seen = Arc::new(AtomicBool::new(false));
        // The order of the two registrations matters: the shutdown handler runs first and finds
        // the flag unset for the first signal, set for the second.
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, seen.clone())?;
            signal_hook::flag::register(signal, seen.clone())?;
        }
        let mut incoming = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let (raised, events) = Raised::pair();
        // Detached on purpose: the thread waits in the operating system for the life of the
        // process.
        std::thread::Builder::new()
            .name("ron-signals".to_owned())
            .spawn(move || {
                for signal in incoming.forever() {
                    raised.raise(if signal == SIGHUP {
                        Signal::Reload
                    } else {
                        Signal::Terminate
                    });
                }
            })?;
        Ok(events)
    }
}

impl SignalEvents {
    /// Fires with the first [`Signal::Terminate`]: for what runs before the events are received.
    pub fn terminated(&self) -> Shutdown {
        self.terminated.clone()
    }

    /// The next signal, or none before the deadline. A termination comes before a reload.
    pub fn recv(&self, deadline: Deadline) -> Option<Signal> {
        if self.terminate.try_recv().is_ok() {
            return Some(Signal::Terminate);
        }
        select! {
            recv(self.terminate) -> event => event.ok().map(|()| Signal::Terminate),
            recv(self.reload) -> event => event.ok().map(|()| Signal::Reload),
            default(deadline.remaining()) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn pending_reloads_do_not_displace_a_termination() {
        let (raised, events) = Raised::pair();
        for _ in 0..20 {
            raised.raise(Signal::Reload);
        }
        assert!(!events.terminated().is_set());
        raised.raise(Signal::Terminate);
        assert!(events.terminated().is_set());
        let next = || events.recv(Deadline::within(Duration::from_millis(5)));
        assert_eq!(next(), Some(Signal::Terminate));
        assert_eq!(next(), Some(Signal::Reload), "twenty reloads are one");
        assert_eq!(next(), None);
    }
}
