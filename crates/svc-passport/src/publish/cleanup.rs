//! Deletes the records of issued tokens that need not be kept any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_kernel::{ClosedCounter, SharedClock};

use super::holders::Holders;
use super::origins::Origins;
use crate::trail::Trail;

/// Minimum time between two rounds: each looks at every file of the trail.
const EVERY: Duration = Duration::from_secs(60);

/// Runs on the publishing thread, so that no token waits for a directory to be read.
pub struct Cleanup {
    holders: Arc<Holders>,
    origins: Arc<Origins>,
    trail: Arc<Trail>,
    clock: SharedClock,
    io_errors: ClosedCounter,
    due: Option<Instant>,
}

impl Cleanup {
    pub fn new(
        (holders, origins, trail): (Arc<Holders>, Arc<Origins>, Arc<Trail>),
        clock: SharedClock,
        io_errors: ClosedCounter,
    ) -> Self {
        Self {
            holders,
            origins,
            trail,
            clock,
            io_errors,
            due: None,
        }
    }

    /// Deletes what is too old, if the last round was long enough ago. What could not be deleted is tried again in the next round.
    pub fn tick(&mut self) {
        let now = self.clock.now();
        if self.due.is_some_and(|due| now < due) {
            return;
        }
        self.due = Some(now + EVERY);
        let now_s = self.clock.unix_ms() / 1000;
        for (kind, done) in [
            ("holders", self.holders.forget(now_s)),
            ("origins", self.origins.forget(now_s)),
            ("trail", self.trail.forget(now_s)),
        ] {
            if let Err(why) = done {
                self.io_errors.with_label_values(&[kind]).inc();
                tracing::error!(service = "svc-passport", event = "records_not_deleted", kind, %why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ron_files::OsDisk;
    use ron_kernel::{ManualClock, Registry, Snapshot};

    use super::*;
    use crate::lists::{LIST_AGE_S, LIST_KEPT_S};
    use crate::metrics::Metrics;
    use crate::trail::{Grants, Retention};

    #[test]
    fn old_records_go_once_a_minute_and_one_that_stays_is_counted_and_hinders_no_other() {
        let home = tempfile::tempdir().unwrap();
        let retention = Retention {
            s: 0,
            bytes_max: u64::MAX,
        };
        let disk = Arc::new(OsDisk);
        let at = |name: &str| home.path().join(name);
        let holders = Arc::new(Holders::open(disk.clone(), at("holders")).unwrap());
        let origins = Arc::new(Origins::open(disk.clone(), at("origins")).unwrap());
        let grants = Arc::new(Snapshot::new(Grants::default()));
        let trail = Arc::new(Trail::open(disk, at("issued"), grants, retention).unwrap());
        let clock = ManualClock::at((LIST_KEPT_S + LIST_AGE_S + 1_000) * 1000);
        let metrics = Metrics::new(&Registry::new("svc_passport"));
        let errors = metrics.io_errors.clone();
        let mut cleanup = Cleanup::new((holders, origins, trail), clock.clone(), errors.clone());
        let records = [at("holders/7"), at("origins/7.0"), at("issued/7")];
        let put = || {
            for file in &records {
                std::fs::write(file, "").unwrap();
            }
        };
        let there = || records.iter().filter(|file| Path::exists(file)).count();
        put();
        cleanup.tick();
        assert_eq!(there(), 0);
        put();
        clock.advance(Duration::from_secs(59));
        cleanup.tick();
        assert_eq!(there(), 3, "not yet");
        // A directory cannot be deleted as a file.
        let stuck = [at("holders/8"), at("origins/8.0"), at("issued/8")];
        for dir in &stuck {
            std::fs::create_dir(dir).unwrap();
        }
        clock.advance(Duration::from_secs(1));
        cleanup.tick();
        assert_eq!(there(), 0);
        for kind in ["holders", "origins", "trail"] {
            assert_eq!(errors.with_label_values(&[kind]).get(), 1, "{kind}");
        }
    }
}
