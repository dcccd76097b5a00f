//! The archive of a log: its configuration keys, and the step that a maintenance thread of the service takes.

use std::path::PathBuf;
use std::time::Duration;

use ron_kernel::{SharedClock, Shutdown};
use ron_tlog::append::Archiver;

use crate::config::{Config, ConfigProblem};

/// How often a thread looks for segments that are old enough.
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
            clock,
        })
    }
}

/// Archives the segments of a log, one per step.
#[derive(Clone, Debug)]
pub struct LogArchive {
    archiver: Archiver,
    after: Duration,
    clock: SharedClock,
}

impl LogArchive {
    /// Archives the next segment that is old enough. True when another one may be; after a failure, which is logged, the caller looks
    /// again in [`ARCHIVE_EVERY`].
    pub fn step(&mut self, shutdown: &Shutdown) -> bool {
        let stop = || shutdown.is_set();
        match self.archiver.step(self.after, self.clock.unix_ms(), &stop) {
            Ok(None) => false,
            Ok(Some(done)) => {
                tracing::info!(
                    event = "segment_archived",
                    segment = done.number,
                    bytes = done.bytes,
                    archived_bytes = done.archived_bytes,
                );
                true
            }
            Err(error) => {
                tracing::error!(event = "segment_not_archived", %error);
                false
            }
        }
    }
}
