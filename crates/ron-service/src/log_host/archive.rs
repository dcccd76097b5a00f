//! The archive of a log: its configuration keys, and the step that a maintenance thread of the service takes.

use std::path::PathBuf;
use std::time::Duration;

use ron_kernel::time::Instant;
use ron_kernel::{SharedClock, Shutdown};
use ron_tlog::append::Archiver;

use crate::config::{Config, ConfigProblem};

/// Pause after which a log without a segment that is old enough, or whose archive failed, is looked at again.
pub const ARCHIVE_EVERY: Duration = Duration::from_secs(60);

crate::settings! {
    /// The configuration keys of a log's archive.
    pub struct ArchiveKeys {
        /// Directory to which closed segments of the log are moved, compressed, after archive_after; logs may share it. They are
        /// read and verified there, so it must stay readable. Empty leaves all segments in data_dir.
        "archive_dir" => dir: Option<PathBuf>, restart(Files);
        /// Age of a segment of the log, from its last entry, at which it is moved to archive_dir.
        "archive_after" => after: Duration = "168h", range("0s", "87600h"), restart(Files);
    }
}

impl ArchiveKeys {
    /// Why the keys do not agree with the rest of the configuration.
    pub fn problem(&self, config: &Config) -> Option<ConfigProblem> {
        let clash = self.dir.is_some() && config.chassis().amnesia;
        clash.then(|| {
            let why = "is set, but amnesia = true uses nothing on disk; drop one of the two";
            config.problem(Self::dir, why)
        })
    }

    /// What archives the segments of a log; `None` without a directory.
    pub fn of(&self, archiver: Archiver, clock: SharedClock) -> Option<LogArchive> {
        self.dir.as_ref()?;
        Some(LogArchive {
            archiver,
            after: self.after,
            due: clock.now(),
            clock,
        })
    }
}

/// Archives the segments of a log, one per step.
#[derive(Clone, Debug)]
pub struct LogArchive {
    archiver: Archiver,
    after: Duration,
    /// When it looks at the log again.
    due: Instant,
    clock: SharedClock,
}

impl LogArchive {
    /// Archives the next segment that is old enough, and returns the pause until the next step; one that comes before that does nothing.
    /// A failure is logged.
    pub fn step(&mut self, shutdown: &Shutdown) -> Duration {
        let early = self.due.saturating_duration_since(self.clock.now());
        if !early.is_zero() {
            return early;
        }
        let stop = || shutdown.is_set();
        let pause = match self.archiver.step(self.after, self.clock.unix_ms(), &stop) {
            Ok(None) => ARCHIVE_EVERY,
            Ok(Some(done)) => {
                tracing::info!(
                    event = "segment_archived",
                    segment = done.number,
                    bytes = done.bytes,
                    archived_bytes = done.archived_bytes,
                );
                Duration::ZERO
            }
            Err(error) => {
                tracing::error!(event = "segment_not_archived", %error);
                ARCHIVE_EVERY
            }
        };
        self.due = self.clock.now() + pause;
        pause
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use ron_files::MemoryDisk;
    use ron_kernel::ManualClock;
    use ron_tlog::append::{Log, LogOptions};

    use super::*;

    #[test]
    fn a_log_is_looked_at_once_a_minute_however_often_it_is_asked_for() {
        let disk = Arc::new(MemoryDisk::new());
        let options = LogOptions {
            archive_dir: Some("/archive".into()),
            ..LogOptions::new("log.example")
        };
        let log = Log::open(disk, Path::new("/log"), options).expect("a new log");
        let clock = ManualClock::at(1_000_000);
        let keys = ArchiveKeys {
            dir: Some("/archive".into()),
            after: Duration::ZERO,
        };
        let archive = keys.of(log.archiver(), clock.clone());
        let mut archive = archive.expect("a directory is set");
        let (_trigger, shutdown) = Shutdown::pair();
        assert_eq!(archive.step(&shutdown), ARCHIVE_EVERY);
        clock.advance(Duration::from_secs(10));
        assert_eq!(archive.step(&shutdown), Duration::from_secs(50));
        clock.advance(Duration::from_secs(50));
        assert_eq!(archive.step(&shutdown), ARCHIVE_EVERY);
    }
}
