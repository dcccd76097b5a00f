//! The date of a machine, which an operator, a time server or an attacker sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ron_kernel::{DateSource, Dates, GuardedClock, SharedClock};
use ron_sim::{fault, time};

use crate::chance::below;

const DAY_MS: i64 = 24 * 3_600_000;

/// The date of one machine. Clones are of the same machine.
#[derive(Clone, Debug, Default)]
pub struct Date {
    /// By how much it is ahead, in milliseconds.
    ahead: Arc<AtomicI64>,
}

impl Date {
    /// The clock of a service that starts on this machine.
    pub fn clock(&self) -> SharedClock {
        Arc::new(GuardedClock::over(
            self.clone(),
            Duration::from_secs(86_400),
        ))
    }

    /// It is wrong from now on, by more than a service follows and by more than it believes at a start. (After half a minute without
    /// an entry it would believe a start that is half a minute early.)
    pub fn jump(&self) {
        let ahead = match below(3) {
            0 => 8 * DAY_MS,
            1 => 3_650 * DAY_MS,
            _ => -DAY_MS / 24,
        };
        fault::happened("a date jumps");
        ron_sim::note(&format!("a date is {ahead} ms ahead"));
        self.ahead.store(ahead, Ordering::SeqCst);
    }

    pub fn be_right(&self) {
        self.ahead.store(0, Ordering::SeqCst);
    }
}

impl DateSource for Date {
    fn dates(&self) -> Dates {
        let ms = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        Dates {
            boot: ms(time::elapsed()),
            wall: ms(time::date()) + self.ahead.load(Ordering::SeqCst),
        }
    }
}
