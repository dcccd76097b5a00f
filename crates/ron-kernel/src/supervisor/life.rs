//! One thread's life: body, panic, pause, body again, within its row's budget.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{BUDGET, BUDGET_WINDOW, Body, Exit, Group, Incident, Supervisor, ThreadCtx};
use crate::backoff::Backoff;
use crate::deadline::Deadline;
use crate::sync::{AtomicBool, Ordering, caught, now};

/// With its jitter of the same length, the first pause ends within 40 ms.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(5);

pub(super) struct Run {
    pub supervisor: Supervisor,
    pub group: Arc<Group>,
    pub ctx: ThreadCtx,
    pub id: u64,
    pub running: Arc<AtomicBool>,
}

impl Run {
    /// Runs the body until it is finished, its stage stops, or its row's budget is used up.
    pub fn run_to_end(&self, body: &Body) {
        let mut backoff = self.backoff();
        loop {
            let started = now();
            let outcome = caught(|| body(&self.ctx));
            // `set_aside` has subtracted a released thread from the live ones already.
            if matches!(outcome, Ok(Exit::Released)) {
                self.forget();
                break;
            }
            self.group.live.fetch_sub(1, Ordering::SeqCst);
            // A body that ran well for a whole window starts again with short pauses.
            if now() - started > BUDGET_WINDOW {
                backoff.reset();
            }
            if !self.should_restart(outcome.map(|_| ()), &mut backoff) {
                break;
            }
            self.group.live.fetch_add(1, Ordering::SeqCst);
        }
        self.running.store(false, Ordering::SeqCst);
    }

    /// Whether the body must run again; returns after the pause before it.
    fn should_restart(
        &self,
        outcome: Result<(), Box<dyn Any + Send>>,
        backoff: &mut Backoff,
    ) -> bool {
        #[cfg(mutant = "restart")] // restarts although the token has fired
        if crate::sync::mutant("restart") {
            return self.may_restart("mutant");
        }
        // During a drain a body that returns has finished: its senders ended before it.
        let finished = outcome.is_ok() && self.supervisor.draining();
        if finished || self.ctx.shutdown.is_set() {
            return false;
        }
        let why = match outcome {
            Ok(()) => "returned before shutdown".to_owned(),
            Err(panic) => format!("panicked: {}", panic_text(panic.as_ref())),
        };
        self.may_restart(&why)
            && !self
                .ctx
                .shutdown
                .pause(Deadline::within(backoff.next_pause()))
    }

    /// Records the crash in the row and says whether its restart budget allows another run. Past
    /// the budget the thread is lost: a critical row ends the process, any other row makes the
    /// service not ready once all its threads are lost.
    fn may_restart(&self, why: &str) -> bool {
        let within_budget = self.within_budget();
        let reason = if within_budget {
            why.to_owned()
        } else {
            format!("{why}; restart budget of {BUDGET} a minute used up")
        };
        *self.group.reason.lock() = Some(reason.clone());
        let (row, thread, why) = (self.group.spec.name, &*self.ctx.name, &*reason);
        if within_budget {
            self.supervisor
                .report(Incident::Restarted { row, thread, why });
            self.group.restarts.fetch_add(1, Ordering::SeqCst);
            let restarts = &self.supervisor.0.metrics.restarts;
            restarts.with_label_values(&[row]).inc();
        } else {
            self.supervisor.report(Incident::Lost { row, thread, why });
            self.group.lost.fetch_add(1, Ordering::SeqCst);
            if self.group.spec.critical {
                let why = format!("thread `{}` {reason}", self.ctx.name);
                self.supervisor.set_fatal(&why);
            }
        }
        within_budget
    }

    fn within_budget(&self) -> bool {
        let now = now();
        let mut recent = self.group.recent.lock();
        let old = |t: &Instant| now.duration_since(*t) > BUDGET_WINDOW;
        while recent.front().is_some_and(old) {
            recent.pop_front();
        }
        if recent.len() < BUDGET {
            recent.push_back(now);
            return true;
        }
        false
    }

    /// Removes a released thread from the list, which would grow with each replacement otherwise.
    fn forget(&self) {
        let gone = {
            let mut threads = self.supervisor.0.threads.lock();
            let at = threads.entries.iter().position(|e| e.id == self.id);
            at.map(|at| threads.entries.swap_remove(at))
        };
        drop(gone); // outside the lock: the entry holds the thread's own handle
    }

    fn backoff(&self) -> Backoff {
        // Seeded by the name, so that threads that crash together do not restart together.
        let name = self.ctx.name.bytes();
        let seed = name.fold(7, |a: u64, b| a.rotate_left(7) ^ u64::from(b));
        Backoff::new(FIRST_PAUSE, LAST_PAUSE, FIRST_PAUSE, seed)
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a value that is not text")
}
