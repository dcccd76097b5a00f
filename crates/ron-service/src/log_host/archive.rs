//! The archive of a log: its configuration keys, and the step that a maintenance thread of the service takes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ron_kernel::time::Instant;
use ron_kernel::{Counter, Registry, SharedClock, Shutdown, Snapshot};
use ron_tlog::append::Archiver;

use crate::config::{Config, ConfigProblem};
use crate::ready::ReadyBoard;

/// Pause after which a log without a segment that is old enough, or whose archive failed, is looked at again.
pub const ARCHIVE_EVERY: Duration = Duration::from_secs(60);

/// Readiness cause: an archived segment cannot be read, or the last attempt to archive one failed.
const CAUSE: &str = "archive";

crate::settings! {
    /// The configuration keys of a log's archive.
    pub struct ArchiveKeys {
        /// Directory to which closed segments of the log are moved, compressed, after archive_after; logs may share it. They are
        /// read and verified there, so it must stay readable. Empty leaves all segments in data_dir.
        "archive_dir" => dir: Option<PathBuf>, restart(Files);
        /// Age of a segment of the log, from its last entry, at which it is moved to archive_dir.
        "archive_after" => after: Duration = "168h", range("0s", "87600h"), reloadable;
    }
}

/// What a service has beside its log.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveParts<'a> {
    pub clock: &'a SharedClock,
    pub ready: &'a ReadyBoard,
    pub registry: &'a Registry,
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

    /// What archives the segments of a log; `None` of a log without an archive.
    pub fn of(&self, archiver: Archiver, parts: ArchiveParts<'_>) -> Option<LogArchive> {
        let ArchiveParts {
            clock,
            ready,
            registry,
        } = parts;
        ready.declare(&[CAUSE]);
        if self.dir.is_none() && !archiver.has_archive() {
            return None;
        }
        let counter = |name: &str, help: &str| registry.counter(name, help);
        Some(LogArchive {
            archiver,
            is_checked: false,
            moves: self.dir.is_some(),
            after: ArchiveAfter(Arc::new(Snapshot::new(self.after))),
            due: clock.now(),
            clock: clock.clone(),
            ready: ready.clone(),
            segments: counter(
                "log_archived_segments_total",
                "Segments of the log that were moved to its archive.",
            ),
            bytes: counter(
                "log_archived_bytes_total",
                "Bytes of the compressed files of these segments.",
            ),
            failures: counter(
                "log_archive_failures_total",
                "Attempts to archive a segment that failed, and looks for archived segments that found one missing or unreadable.",
            ),
        })
    }
}

/// The setting `archive_after` in force, which a reload changes.
#[derive(Clone, Debug)]
pub struct ArchiveAfter(Arc<Snapshot<Duration>>);

impl ArchiveAfter {
    /// For the next step.
    pub fn change(&self, keys: &ArchiveKeys) {
        self.0.store(keys.after);
    }
}

/// Archives the segments of a log, one per step.
#[derive(Clone, Debug)]
pub struct LogArchive {
    archiver: Archiver,
    /// All segments that are archived were there, once.
    is_checked: bool,
    /// False of a log with archived segments whose `archive_dir` is no longer set: they are only looked for.
    moves: bool,
    after: ArchiveAfter,
    /// When it looks at the log again.
    due: Instant,
    clock: SharedClock,
    ready: ReadyBoard,
    segments: Counter,
    bytes: Counter,
    failures: Counter,
}

impl LogArchive {
    pub fn after(&self) -> ArchiveAfter {
        self.after.clone()
    }

    /// Whether all archived segments were there, so that the next step archives.
    pub const fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// Looks whether all archived segments are there; once they were, archives the next one that is old enough. Returns the pause until
    /// the next step; one that comes before that does nothing. A failure is logged, counted and degrades the service.
    pub fn step(&mut self, shutdown: &Shutdown) -> Duration {
        let early = self.due.saturating_duration_since(self.clock.now());
        if !early.is_zero() {
            return early;
        }
        let pause = if self.is_checked {
            self.archive(shutdown)
        } else {
            self.check()
        };
        self.due = self.clock.now() + pause;
        pause
    }

    fn check(&mut self) -> Duration {
        match self.archiver.check() {
            Ok(segments) => {
                tracing::info!(event = "archive_found", segments);
                self.ready.clear(CAUSE);
                self.is_checked = true;
                Duration::ZERO
            }
            Err(error) => {
                tracing::error!(event = "archive_unreadable", %error);
                self.failed(format!("entries of the log cannot be read: {error}"))
            }
        }
    }

    fn archive(&mut self, shutdown: &Shutdown) -> Duration {
        if !self.moves {
            return ARCHIVE_EVERY;
        }
        let stop = || shutdown.is_set();
        let (after, now_ms) = (self.after.0.with(|after| *after), self.clock.unix_ms());
        match self.archiver.step(after, now_ms, &stop) {
            Ok(None) => {
                self.ready.clear(CAUSE);
                ARCHIVE_EVERY
            }
            Ok(Some(done)) => {
                self.ready.clear(CAUSE);
                self.segments.inc();
                self.bytes.inc_by(done.archived_bytes);
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
                self.failed(format!("a segment of the log was not archived: {error}"))
            }
        }
    }

    fn failed(&self, why: String) -> Duration {
        self.failures.inc();
        self.ready.degrade(CAUSE, why);
        ARCHIVE_EVERY
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ron_crypto::sign::Ed25519Key;
    use ron_files::{Disk as _, MemoryDisk};
    use ron_kernel::ManualClock;
    use ron_tlog::append::{Log, LogOptions, archived_files};
    use ron_tlog::note::Ed25519NoteSigner;

    use super::*;

    /// Time of the tests, in milliseconds since 1970, when files of a disk in memory are from.
    const NOW_MS: u64 = 10_000_000;

    struct Rig {
        disk: Arc<MemoryDisk>,
        log: Log,
        clock: Arc<ManualClock>,
        registry: Registry,
        ready: ReadyBoard,
    }

    impl Rig {
        /// A log with `full` full segments, of which the last is never archived.
        fn new(full: usize) -> Self {
            let disk = Arc::new(MemoryDisk::new());
            let options = LogOptions {
                archive_dir: Some("/archive".into()),
                segment_entries: 256,
                ..LogOptions::new("log.example")
            };
            let mut log = Log::open(disk.clone(), dir(), options).expect("a new log");
            let key = Ed25519Key::from_seed(&[1; 32]);
            let signer = Ed25519NoteSigner::new("log.example", key).expect("a good name");
            for _ in 0..full {
                let entries: Vec<Vec<u8>> = (0..=255_u8).map(|n| vec![n; 40]).collect();
                log.append(&entries).expect("appended");
                log.publish_checkpoint(&signer).expect("published");
            }
            let registry = Registry::new("t");
            Self {
                disk,
                log,
                clock: ManualClock::at(NOW_MS),
                ready: ReadyBoard::new(&registry),
                registry,
            }
        }

        fn archive(&self, dir: Option<&str>, after: Duration) -> Option<LogArchive> {
            let keys = ArchiveKeys {
                dir: dir.map(PathBuf::from),
                after,
            };
            let clock: SharedClock = self.clock.clone();
            let parts = ArchiveParts {
                clock: &clock,
                ready: &self.ready,
                registry: &self.registry,
            };
            keys.of(self.log.archiver(), parts)
        }

        fn counted(&self, name: &str) -> u64 {
            let text = self.registry.render();
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(&format!("t_log_{name} ")));
            value.and_then(|n| n.parse().ok()).expect("is exported")
        }

        fn why(&self) -> Option<String> {
            self.ready.causes().pop().map(|(_, _, why)| why)
        }
    }

    fn dir() -> &'static Path {
        Path::new("/log")
    }

    #[test]
    fn a_log_is_looked_at_once_a_minute_however_often_it_is_asked_for() {
        let rig = Rig::new(0);
        let mut archive = rig.archive(Some("/archive"), Duration::ZERO).expect("set");
        let (_trigger, shutdown) = Shutdown::pair();
        assert_eq!(archive.step(&shutdown), Duration::ZERO, "it is looked for");
        assert_eq!(archive.step(&shutdown), ARCHIVE_EVERY);
        rig.clock.advance(Duration::from_secs(10));
        assert_eq!(archive.step(&shutdown), Duration::from_secs(50));
        rig.clock.advance(Duration::from_secs(50));
        assert_eq!(archive.step(&shutdown), ARCHIVE_EVERY);
    }

    #[test]
    fn segments_are_archived_when_the_setting_in_force_says_so() {
        let rig = Rig::new(3);
        let day = Duration::from_secs(86_400);
        let mut archive = rig.archive(Some("/archive"), day).expect("set");
        let after = archive.after();
        let (_trigger, shutdown) = Shutdown::pair();
        assert_eq!(archive.step(&shutdown), Duration::ZERO);
        assert_eq!(archive.step(&shutdown), ARCHIVE_EVERY, "none is a day old");
        after.change(&ArchiveKeys {
            dir: None,
            after: Duration::ZERO,
        });
        rig.clock.advance(ARCHIVE_EVERY);
        assert_eq!(archive.step(&shutdown), Duration::ZERO);
        assert_eq!(archive.step(&shutdown), Duration::ZERO);
        assert_eq!(archive.step(&shutdown), ARCHIVE_EVERY);
        assert_eq!(rig.counted("archived_segments_total"), 2);
        let files = archived_files(&*rig.disk, dir()).expect("listed");
        let bytes = files.iter().map(|path| {
            let file = rig.disk.open_read(path).expect("there");
            file.len().expect("known")
        });
        assert_eq!(rig.counted("archived_bytes_total"), bytes.sum::<u64>());
        assert_eq!(rig.counted("archive_failures_total"), 0);
        assert_eq!(rig.why(), None);
    }

    #[test]
    fn a_missing_file_is_named_until_it_is_back_also_when_nothing_more_is_archived() {
        let rig = Rig::new(2);
        let (_trigger, shutdown) = Shutdown::pair();
        let mut first = rig.archive(Some("/archive"), Duration::ZERO).expect("set");
        assert_eq!(first.step(&shutdown), Duration::ZERO);
        assert_eq!(first.step(&shutdown), Duration::ZERO);
        let [path] = &archived_files(&*rig.disk, dir()).expect("listed")[..] else {
            panic!("one is archived");
        };
        let moved = Path::new("/moved");
        rig.disk.rename(path, moved).expect("moved");
        let mut later = rig
            .archive(None, Duration::ZERO)
            .expect("it has an archive");
        assert_eq!(later.step(&shutdown), ARCHIVE_EVERY);
        assert_eq!(rig.counted("archive_failures_total"), 1);
        let why = rig.why().expect("degraded");
        for words in [
            "00000000.seg is archived, and /archive/",
            "mount the archive",
        ] {
            assert!(why.contains(words), "{why}");
        }
        rig.disk.rename(moved, path).expect("moved back");
        rig.clock.advance(ARCHIVE_EVERY);
        assert_eq!(later.step(&shutdown), Duration::ZERO);
        assert_eq!(later.step(&shutdown), ARCHIVE_EVERY);
        assert_eq!(rig.why(), None);
    }

    #[test]
    fn a_log_without_an_archive_needs_nothing() {
        let disk = Arc::new(MemoryDisk::new());
        let log = Log::open(disk, dir(), LogOptions::new("log.example")).expect("a new log");
        let rig = Rig { log, ..Rig::new(0) };
        assert!(rig.archive(None, Duration::ZERO).is_none());
    }
}
