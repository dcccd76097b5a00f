//! The clock of a service: it does not follow jumps of the machine's date.
//!
//! Time stamps, validity times and schedules need the date, and the machine's date can be wrong: an
//! operator or a time server sets it, or an attacker who wants deadlines to pass. [`GuardedClock`]
//! keeps a date of its own: an anchor plus the time since the machine was booted, which nobody sets.
//!
//! | the machine's date differs by | what happens |
//! |---|---|
//! | at most 2 s | it is followed at once: so time services correct a clock |
//! | at most 1 h, for 60 s | it is followed then |
//! | more | it is followed when it comes back, or when an operator accepts it |
//!
//! Many small steps are no way around this: within a day the date is moved by at most one hour.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::sync;
use crate::time::{Clock, ClockAlarm, SharedClock};

/// Difference that is followed at once, in milliseconds.
const FOLLOWED_MS: i64 = 2_000;
/// Difference that is followed after [`STAYS_MS`].
const STEP_MS: i64 = 3_600_000;
/// Time within which the date is moved by at most [`STEP_MS`] in all.
const BUDGET_MS: i64 = 86_400_000;
/// How long a step must stay before it is followed: longer than a wrong answer of a time server.
const STAYS_MS: i64 = 60_000;

/// What the machine says about time, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Dates {
    /// Since the machine was booted, suspended time included. Nobody can set it.
    pub boot: i64,
    /// The wall clock, since 1970-01-01 UTC.
    pub wall: i64,
}

/// Reads [`Dates`]; tests have their own.
pub trait DateSource: fmt::Debug + Send + Sync + 'static {
    fn dates(&self) -> Dates;
}

/// The dates of the operating system.
#[derive(Debug)]
struct OsDates;

impl DateSource for OsDates {
    fn dates(&self) -> Dates {
        let ms = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        Dates {
            boot: ms(sync::uptime()),
            wall: ms(sync::date()),
        }
    }
}

/// See the module's page.
#[derive(Debug)]
pub struct GuardedClock {
    source: Box<dyn DateSource>,
    /// Longest time between the newest entry and a start, in milliseconds.
    gap_max: i64,
    /// The believed date minus the time since boot.
    offset: AtomicI64,
    /// What `offset` was when the present day's steps began to count.
    day_offset: AtomicI64,
    /// When they began to count, as time since boot.
    day_since: AtomicI64,
    /// Whether `doubt` has a value, so that most calls take no lock.
    doubted: AtomicBool,
    doubt: Mutex<Option<Doubt>>,
}

/// A date of the machine that is not believed.
#[derive(Clone, Debug)]
struct Doubt {
    /// The machine's date minus the time since boot.
    offset: i64,
    /// Since when it has been so, as time since boot.
    since: i64,
    /// Dates that would be believed at once, when the date was wrong at the start.
    start: Option<(i64, i64)>,
}

/// What a reading of the machine's date changed.
enum Change {
    Nothing,
    Doubted(ClockAlarm),
    Followed(&'static str),
}

impl GuardedClock {
    /// The guarded clock of the machine, ready to share. A start more than `gap_max` after the
    /// newest entry needs an operator's word.
    pub fn shared(gap_max: Duration) -> SharedClock {
        std::sync::Arc::new(Self::over(OsDates, gap_max))
    }

    /// Believes the source's first date.
    pub fn over(source: impl DateSource, gap_max: Duration) -> Self {
        let Dates { boot, wall } = source.dates();
        Self {
            source: Box::new(source),
            gap_max: i64::try_from(gap_max.as_millis()).unwrap_or(i64::MAX),
            offset: AtomicI64::new(wall - boot),
            day_offset: AtomicI64::new(wall - boot),
            day_since: AtomicI64::new(boot),
            doubted: AtomicBool::new(false),
            doubt: Mutex::new(None),
        }
    }

    /// The believed date now, after a reading of the machine's.
    fn read(&self) -> i64 {
        #[cfg(mutant = "date")] // follows every date at once
        if sync::mutant("date") {
            return self.source.dates().wall;
        }
        let dates = self.source.dates();
        let offset = dates.wall - dates.boot;
        let believed = self.offset.load(Ordering::Relaxed);
        if !self.doubted.load(Ordering::Relaxed)
            && (offset - believed).abs() <= FOLLOWED_MS
            && (offset - self.day_offset.load(Ordering::Relaxed)).abs() <= STEP_MS
        {
            if offset != believed {
                self.offset.store(offset, Ordering::Relaxed);
            }
            return dates.wall;
        }
        let (now, change) = {
            let mut doubt = self.doubt.lock();
            // Read again: between the two dates of the first reading this thread may have stood still.
            let dates = self.source.dates();
            let change = self.judge(&mut doubt, dates);
            self.doubted.store(doubt.is_some(), Ordering::Relaxed);
            (dates.boot + self.offset.load(Ordering::Relaxed), change)
        };
        match change {
            Change::Nothing => {}
            Change::Doubted(alarm) => {
                tracing::error!(event = "clock_doubted", why = %alarm, hint = ClockAlarm::HINT);
            }
            Change::Followed(why) => tracing::warn!(event = "clock_followed", why),
        }
        now
    }

    /// Believes a date from now on, whatever was moved before.
    fn anchor(&self, boot: i64, offset: i64) {
        self.offset.store(offset, Ordering::Relaxed);
        self.day_offset.store(offset, Ordering::Relaxed);
        self.day_since.store(boot, Ordering::Relaxed);
    }

    /// Whether following the offset moves the date by at most an hour within a day. Called with the
    /// lock of `doubt`.
    fn in_budget(&self, boot: i64, offset: i64) -> bool {
        if (offset - self.day_offset.load(Ordering::Relaxed)).abs() <= STEP_MS {
            return true;
        }
        if boot - self.day_since.load(Ordering::Relaxed) < BUDGET_MS {
            return false;
        }
        // The day is over: the next one begins at the believed date.
        let believed = self.offset.load(Ordering::Relaxed);
        self.anchor(boot, believed);
        (offset - believed).abs() <= STEP_MS
    }

    fn judge(&self, doubt: &mut Option<Doubt>, Dates { boot, wall }: Dates) -> Change {
        let offset = wall - boot;
        let by = offset - self.offset.load(Ordering::Relaxed);
        let start = doubt.as_ref().and_then(|doubt| doubt.start);
        let known = doubt
            .as_ref()
            .filter(|doubt| (offset - doubt.offset).abs() <= FOLLOWED_MS);
        let stayed = known.is_some_and(|doubt| boot - doubt.since >= STAYS_MS);
        let back = start.is_none() && by.abs() <= FOLLOWED_MS;
        let step = stayed && by.abs() <= STEP_MS;
        let followed = if start.is_some_and(|(from, to)| (from..=to).contains(&wall)) {
            self.anchor(boot, offset);
            Some("it is not before the newest entry any more, nor too far after it")
        } else if !(back || step) || !self.in_budget(boot, offset) {
            None
        } else if back {
            Some("it came back")
        } else {
            Some("a step of at most one hour has stayed for a minute")
        };
        if let Some(why) = followed {
            self.offset.store(offset, Ordering::Relaxed);
            return match doubt.take() {
                Some(_) => Change::Followed(why),
                None => Change::Nothing,
            };
        }
        if known.is_some() {
            return Change::Nothing;
        }
        *doubt = Some(Doubt {
            offset,
            since: boot,
            start,
        });
        Change::Doubted(ClockAlarm {
            ahead_ms: by,
            at_start: start.is_some(),
        })
    }
}

impl Clock for GuardedClock {
    fn now(&self) -> Instant {
        sync::now()
    }

    fn unix_ms(&self) -> u64 {
        u64::try_from(self.read()).unwrap_or(0)
    }

    fn alarm(&self) -> Option<ClockAlarm> {
        if !self.doubted.load(Ordering::Relaxed) {
            return None;
        }
        let believed = self.read();
        let at_start = self.doubt.lock().as_ref()?.start.is_some();
        Some(ClockAlarm {
            ahead_ms: self.source.dates().wall - believed,
            at_start,
        })
    }

    fn accept_date(&self) {
        let mut doubt = self.doubt.lock();
        let dates = self.source.dates();
        self.anchor(dates.boot, dates.wall - dates.boot);
        *doubt = None;
        self.doubted.store(false, Ordering::Relaxed);
    }

    fn resume_after(&self, newest_ms: u64) {
        if newest_ms == 0 {
            return;
        }
        let newest = i64::try_from(newest_ms).unwrap_or(i64::MAX);
        let (from, to) = (newest, newest.saturating_add(self.gap_max));
        let mut doubt = self.doubt.lock();
        // Of several records the newest counts; an earlier call has given a newer one.
        let known = doubt.as_ref().and_then(|doubt| doubt.start);
        if known.is_some_and(|(from, _)| from >= newest) {
            return;
        }
        let dates = self.source.dates();
        // A clock that was corrected by less than what is followed at once is no reason to stop.
        if (from - FOLLOWED_MS..=to).contains(&dates.wall) {
            // The believed date may be another one: the machine's may have been corrected since this clock was made.
            self.anchor(dates.boot, dates.wall - dates.boot);
            self.doubted.store(false, Ordering::Relaxed);
            let doubted = doubt.take();
            drop(doubt);
            if doubted.is_some() {
                let why = "it fits the newest entry";
                tracing::warn!(event = "clock_followed", why);
            }
            return;
        }
        self.anchor(dates.boot, newest - dates.boot);
        // Judged, and reported, at the next reading: its offset is none that the machine can have.
        *doubt = Some(Doubt {
            offset: i64::MIN / 2,
            since: dates.boot,
            start: Some((from, to)),
        });
        self.doubted.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const DAY: i64 = 86_400_000;
    const NOW: i64 = 1_800_000_000_000;

    /// Dates that a test sets.
    #[derive(Clone, Debug)]
    struct Set(Arc<(AtomicI64, AtomicI64)>);

    impl DateSource for Set {
        fn dates(&self) -> Dates {
            let (boot, ahead) = &*self.0;
            let boot = boot.load(Ordering::Relaxed);
            Dates {
                boot,
                wall: NOW + boot + ahead.load(Ordering::Relaxed),
            }
        }
    }

    impl Set {
        fn new() -> (Self, GuardedClock) {
            let set = Self(Arc::default());
            let gap = Duration::from_hours(30 * 24);
            (set.clone(), GuardedClock::over(set, gap))
        }
        fn pass(&self, ms: i64) {
            self.0.0.fetch_add(ms, Ordering::Relaxed);
        }
        /// Sets the machine's date ahead of the right one.
        fn ahead(&self, ms: i64) {
            self.0.1.store(ms, Ordering::Relaxed);
        }
    }

    fn unix(clock: &GuardedClock) -> i64 {
        i64::try_from(clock.unix_ms()).expect("a date")
    }

    #[test]
    fn small_differences_are_followed_at_once() {
        let (set, clock) = Set::new();
        for step in [1, -1, 1_999, 0, -2_000, -3_999, -2_500] {
            set.ahead(step);
            set.pass(10);
            assert_eq!(unix(&clock), NOW + set.dates().boot + step);
            assert_eq!(clock.alarm(), None, "{step}");
        }
    }

    #[test]
    fn jumps_are_not_followed_and_end_when_the_date_comes_back() {
        for jump in [8 * DAY, 3_650 * DAY, -3_600_000, 2_001, -2_001, -NOW] {
            let (set, clock) = Set::new();
            set.ahead(jump);
            for _ in 0..3 {
                set.pass(1_000);
                assert_eq!(unix(&clock), NOW + set.dates().boot, "{jump}");
            }
            let alarm = clock.alarm().expect("a jump");
            assert_eq!((alarm.ahead_ms, alarm.at_start), (jump, false));
            set.ahead(3);
            set.pass(1_000);
            assert_eq!(unix(&clock), NOW + set.dates().boot + 3);
            assert_eq!(clock.alarm(), None);
        }
    }

    #[test]
    fn a_step_of_an_hour_is_followed_when_it_stays() {
        for (step, follows) in [(3_600_000, true), (-3_600_000, true), (3_600_001, false)] {
            let (set, clock) = Set::new();
            set.ahead(step);
            assert_eq!(unix(&clock), NOW);
            set.pass(59_999);
            assert_eq!(unix(&clock), NOW + 59_999);
            set.pass(1);
            let expected = NOW + 60_000 + if follows { step } else { 0 };
            assert_eq!(unix(&clock), expected, "{step}");
            assert_eq!(clock.alarm().is_none(), follows);
        }
        // Another step in between counts from its own beginning.
        let (set, clock) = Set::new();
        set.ahead(60_000);
        let _ = clock.unix_ms();
        set.pass(59_000);
        set.ahead(120_000);
        let _ = clock.unix_ms();
        set.pass(59_000);
        assert_eq!(unix(&clock), NOW + 118_000);
        set.pass(1_000);
        assert_eq!(unix(&clock), NOW + 119_000 + 120_000);
    }

    #[test]
    fn many_small_steps_move_the_date_by_an_hour_a_day_at_most() {
        // In steps that are followed at once, and in steps that are followed after a minute.
        for (step, every) in [(FOLLOWED_MS, 10), (STEP_MS / 2, STAYS_MS + 1)] {
            let (set, clock) = Set::new();
            let mut ahead = 0;
            let mut passed = 0;
            while passed < 3 * DAY {
                ahead += step;
                set.ahead(ahead);
                // Noticed, and read again when it has stayed.
                let _ = clock.unix_ms();
                set.pass(every);
                passed += every;
                let _ = clock.unix_ms();
                let moved = unix(&clock) - (NOW + passed);
                let days = passed / DAY + 1;
                assert!(moved <= (days + 1) * STEP_MS, "{moved} ms in {passed} ms");
                if clock.alarm().is_some() {
                    // The steps begin again at the service's own date.
                    ahead = moved;
                    set.pass(STAYS_MS);
                    passed += STAYS_MS;
                }
            }
            assert!(clock.unix_ms() > 0);
        }
    }

    #[test]
    fn the_newest_of_several_records_counts_at_a_start() {
        let (_set, clock) = Set::new();
        clock.resume_after((NOW + 3 * DAY) as u64);
        clock.resume_after((NOW + DAY) as u64);
        assert_eq!(unix(&clock), NOW + 3 * DAY);
        clock.resume_after((NOW + 5 * DAY) as u64);
        assert_eq!(unix(&clock), NOW + 5 * DAY);
        assert!(clock.alarm().is_some_and(|alarm| alarm.at_start));
    }

    #[test]
    fn a_date_that_is_corrected_before_the_records_are_read_is_believed() {
        for wrong in [3_650 * DAY, -DAY] {
            let (set, _) = Set::new();
            set.ahead(wrong);
            let clock = GuardedClock::over(set.clone(), Duration::from_hours(24));
            set.ahead(0);
            // Whether a reading has met the correction or not.
            if wrong < 0 {
                let _ = clock.unix_ms();
            }
            clock.resume_after((NOW - 1_000) as u64);
            assert_eq!((unix(&clock), clock.alarm()), (NOW, None), "{wrong}");
        }
    }

    #[test]
    fn an_operator_can_accept_any_date() {
        let (set, clock) = Set::new();
        set.ahead(40 * DAY);
        assert_eq!(unix(&clock), NOW);
        clock.accept_date();
        assert_eq!((unix(&clock), clock.alarm()), (NOW + 40 * DAY, None));
    }

    #[test]
    fn a_start_before_the_newest_entry_or_long_after_it_is_doubted() {
        let newest = |ms: i64| u64::try_from(NOW + ms).expect("a date");
        for right in [-NOW, 0, -29 * DAY, 1_999] {
            let (_, clock) = Set::new();
            clock.resume_after(newest(right));
            assert_eq!((clock.alarm(), unix(&clock)), (None, NOW), "{right}");
        }
        for wrong in [-31 * DAY, 10 * DAY] {
            let (set, clock) = Set::new();
            clock.resume_after(newest(wrong));
            let alarm = clock.alarm().expect("doubted");
            assert_eq!((alarm.ahead_ms, alarm.at_start), (-wrong, true));
            assert_eq!(unix(&clock), NOW + wrong, "time goes on at the entry");
            set.pass(5);
            assert_eq!(unix(&clock), NOW + wrong + 5);
            set.ahead(wrong + DAY);
            assert_eq!(unix(&clock), NOW + 5 + wrong + DAY, "corrected");
            assert_eq!(clock.alarm(), None);
        }
        // Ten minutes before the entry: believed when they have passed, or after a minute as a step.
        let (set, clock) = Set::new();
        clock.resume_after(newest(600_000));
        assert!(clock.alarm().is_some());
        set.pass(60_000);
        assert_eq!((clock.alarm(), unix(&clock)), (None, NOW + 60_000));
    }
}
