//! Two loops that services share: jobs worked off one at a time with a report each, and a document that is read again
//! by interval or when somebody asks.

use std::time::Duration;

use crate::queue::{Receiver, Recv, SendError, Sender};
use crate::shutdown::Shutdown;
use crate::time::{Clock, Deadline};

/// A worker without jobs looks this often whether anybody can still give it one.
const IDLE: Duration = Duration::from_secs(60);
/// Pause before a report is offered again to a full queue.
const REPORT_PAUSE: Duration = Duration::from_millis(20);

/// Takes jobs until shutdown and hands the outcome of each to whoever plans the next. No report is lost while the
/// service runs: a full queue is waited for.
pub fn work_and_report<J, R>(
    jobs: &Receiver<J>,
    reports: &Sender<R>,
    shutdown: &Shutdown,
    mut work: impl FnMut(J) -> R,
) where
    J: Send + 'static,
    R: Send + 'static,
{
    loop {
        let job = match jobs.recv(shutdown, Deadline::within(IDLE)) {
            Recv::Item(job) => job,
            Recv::Timeout => continue,
            Recv::Shutdown | Recv::Closed => return,
        };
        let mut report = work(job);
        while let Err(SendError::Full(back)) = reports.try_send(report) {
            #[cfg(mutant = "report")] // gives up on a full queue: the job is never planned again
            if crate::sync::mutant("report") {
                break;
            }
            report = back;
            if shutdown.pause(Deadline::within(REPORT_PAUSE)) {
                return;
            }
        }
    }
}

/// When a document is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextRead {
    /// After this long, if nobody asks.
    pub after: Duration,
    /// Not before this long since the last read began, though somebody asks.
    pub floor: Duration,
}

/// Reads at once, then by interval or when asked, until shutdown. Who asks while a read runs gets another one that
/// begins after the question; several questions are answered by one read.
pub fn read_again(
    asked: &Receiver<()>,
    shutdown: &Shutdown,
    clock: &dyn Clock,
    mut read: impl FnMut() -> NextRead,
) {
    while !shutdown.is_set() {
        let began = clock.now();
        let next = read();
        #[cfg(mutant = "asked")] // forgets who asked while it read
        if crate::sync::mutant("asked") {
            while asked.try_recv().is_some() {}
        }
        match asked.recv(shutdown, Deadline::within(next.after)) {
            Recv::Item(()) => {
                let since = clock.now().saturating_duration_since(began);
                if shutdown.wait(Deadline::within(next.floor.saturating_sub(since))) {
                    return;
                }
                while asked.try_recv().is_some() {} // answered by the read that follows
            }
            Recv::Timeout => {}
            // Nobody can ask any more; the interval still holds.
            Recv::Closed => {
                shutdown.wait(Deadline::within(next.after));
            }
            Recv::Shutdown => return,
        }
    }
}
