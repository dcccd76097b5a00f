//! Two loops that services share: a worker that processes jobs one at a time and reports each, and
//! a reader that fetches a document at an interval or on request.

use std::time::Duration;

use crate::deadline::Deadline;
use crate::queue::{Receiver, Recv, SendError, Sender};
use crate::shutdown::Shutdown;
use crate::time::Clock;

/// Longest single wait of an idle worker.
const IDLE: Duration = Duration::from_secs(60);
/// Pause before a report is offered again to a full queue.
const REPORT_PAUSE: Duration = Duration::from_millis(20);

/// Takes jobs until shutdown and sends the outcome of each to the thread that plans the next. No
/// report is lost while the service runs: the worker waits while the report queue is full.
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

/// When the reader fetches its document next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextRead {
    /// Interval, when there is no request.
    pub after: Duration,
    /// Minimum time between the start of two reads, also when there are requests.
    pub floor: Duration,
}

/// Reads at once, then at the interval or on request, until shutdown. A request that arrives during
/// a read causes another read that begins after it; several requests are served by one read.
pub fn read_again(
    asked: &Receiver<()>,
    shutdown: &Shutdown,
    clock: &dyn Clock,
    mut read: impl FnMut() -> NextRead,
) {
    while !shutdown.is_set() {
        let began = clock.now();
        let next = read();
        #[cfg(mutant = "asked")] // loses the requests that arrived during the read
        if crate::sync::mutant("asked") {
            while asked.try_recv().is_some() {}
        }
        match asked.recv(shutdown, Deadline::within(next.after)) {
            Recv::Item(()) => {
                let since = clock.now().saturating_duration_since(began);
                if shutdown.wait(Deadline::within(next.floor.saturating_sub(since))) {
                    return;
                }
                while asked.try_recv().is_some() {} // the read that follows serves them all
            }
            Recv::Timeout => {}
            // All requesters are gone; the interval still applies.
            Recv::Closed => {
                shutdown.wait(Deadline::within(next.after));
            }
            Recv::Shutdown => return,
        }
    }
}
