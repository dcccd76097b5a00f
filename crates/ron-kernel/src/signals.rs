//! Signals as events. Only the binaries install them; a library never does.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crossbeam_channel::{Receiver, bounded};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::time::Deadline;

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

/// The receiving end of the signals.
#[derive(Debug)]
pub struct SignalEvents(Receiver<Signal>);

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
        let (tx, rx) = bounded(8);
        // Detached on purpose: the thread waits in the operating system for the life of the
        // process.
        std::thread::Builder::new()
            .name("ron-signals".to_owned())
            .spawn(move || {
                for signal in incoming.forever() {
                    let event = if signal == SIGHUP {
                        Signal::Reload
                    } else {
                        Signal::Terminate
                    };
                    // Dropped only when eight signals wait already.
                    let _ = tx.try_send(event);
                }
            })?;
        Ok(SignalEvents(rx))
    }
}

impl SignalEvents {
    /// The next signal, or none before the deadline.
    pub fn recv(&self, deadline: Deadline) -> Option<Signal> {
        self.0.recv_deadline(deadline.at()).ok()
    }
}
