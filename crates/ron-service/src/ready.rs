//! Readiness: named causes that stop a service (`missing`) or weaken it (`degraded`).

use std::collections::BTreeMap;
use std::sync::Arc;

use ron_files::DiskRoom;
use ron_kernel::{ClosedGauge, Gauge, LockSpec, RankedMutex, Registry, Supervisor, Topology};
use ron_proto::status::{Health, Readiness};

/// The board's lock; every service lists it in its topology.
pub const READY_LOCK: LockSpec = LockSpec {
    name: "ready.board",
    rank: 910,
    guards: "causes of not being ready",
};
static READY_LOCK_SPEC: LockSpec = READY_LOCK;

/// The cause that is present until a service has started. Other causes in that time are logged as
/// information, not as warnings.
pub(crate) const STARTING: &str = "starting";

const DRAINING: &str = "draining";
const FATAL: &str = "fatal";
/// The machine's date is not believed.
pub(crate) const CLOCK: &str = "clock";
/// A call to the disk does not return.
pub(crate) const DISK: &str = "disk";
/// The disk has less room than its reserve.
pub(crate) const DISK_FULL: &str = "disk_full";

/// Seconds after which a retry makes sense while not ready.
const RETRY_AFTER_S: u32 = 2;

#[derive(Default)]
struct Causes {
    degraded: BTreeMap<&'static str, String>,
    missing: BTreeMap<&'static str, String>,
}

/// How a new cause is logged.
enum LogLevel {
    None,
    Info,
    Warn,
}

impl Causes {
    fn log_level(&self, known: bool) -> LogLevel {
        if known {
            LogLevel::None
        } else if self.missing.contains_key(STARTING) {
            LogLevel::Info
        } else {
            LogLevel::Warn
        }
    }
}

/// Shared by all modules of a service; clones are the same board. Causes are words from a closed
/// set, such as `kms` or `store`; the reason of each is a sentence for operators.
#[derive(Clone)]
pub struct ReadyBoard {
    causes: Arc<RankedMutex<Causes>>,
    gauge: ClosedGauge,
    ready: Gauge,
    room: DiskRoom,
}

impl std::fmt::Debug for ReadyBoard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReadyBoard").field(&self.causes()).finish()
    }
}

impl ReadyBoard {
    pub fn new(registry: &Registry) -> Self {
        let gauge = registry.gauge_closed(
            "readyz_degraded",
            "1 for each cause that currently weakens or stops the service, else 0.",
            &[(
                "cause",
                &[STARTING, DRAINING, FATAL, CLOCK, DISK, DISK_FULL],
            )],
        );
        let ready = registry.gauge(
            "ready",
            "1 while the service serves writes (/readyz answers 200), else 0.",
        );
        Self {
            causes: Arc::new(RankedMutex::new(&READY_LOCK_SPEC, Causes::default())),
            gauge,
            ready,
            room: DiskRoom::unlimited(),
        }
    }

    /// The board of a service that writes to a disk.
    pub fn with_room(self, room: DiskRoom) -> Self {
        Self { room, ..self }
    }

    /// Declares possible causes: `readyz_degraded{cause}` exports them as 0 until they occur.
    pub fn declare(&self, causes: &[&str]) {
        self.gauge.declare(causes.iter().copied());
    }

    /// The board of a service that is starting. Threads that may fail are causes, under the names
    /// of their planes.
    pub(crate) fn starting(registry: &Registry, topology: &Topology, room: DiskRoom) -> Self {
        let board = Self::new(registry).with_room(room);
        for row in topology.threads {
            board.declare(&[row.name.trim_end_matches('-')]);
        }
        board.missing(STARTING, "the service is starting");
        board
    }

    /// Adds a cause of weakness; the service stays ready.
    pub fn degrade(&self, cause: &'static str, why: impl Into<String>) {
        let why = why.into();
        let level = {
            let mut causes = self.causes.lock();
            let known = causes.degraded.insert(cause, why.clone()).is_some();
            causes.log_level(known)
        };
        self.gauge.with_label_values(&[cause]).set(1);
        match level {
            LogLevel::None => {}
            LogLevel::Info => tracing::info!(event = "degraded", cause, why),
            LogLevel::Warn => tracing::warn!(event = "degraded", cause, why),
        }
    }

    /// Removes a cause of weakness.
    pub fn clear(&self, cause: &'static str) {
        let was = self.causes.lock().degraded.remove(cause).is_some();
        if was {
            self.gauge.with_label_values(&[cause]).set(0);
            tracing::info!(event = "degraded_cleared", cause);
        }
    }

    /// Adds a cause that stops the service: `/readyz` answers 503 until [`ReadyBoard::present`].
    pub fn missing(&self, cause: &'static str, why: impl Into<String>) {
        let why = why.into();
        let level = {
            let mut causes = self.causes.lock();
            let known = causes.missing.insert(cause, why.clone()).is_some();
            causes.log_level(known)
        };
        self.gauge.with_label_values(&[cause]).set(1);
        match level {
            LogLevel::None => {}
            LogLevel::Info => tracing::info!(event = "not_ready", cause, why),
            LogLevel::Warn => tracing::warn!(event = "not_ready", cause, why),
        }
    }

    /// Removes a cause that stops the service.
    pub fn present(&self, cause: &'static str) {
        let was = self.causes.lock().missing.remove(cause).is_some();
        if was {
            self.gauge.with_label_values(&[cause]).set(0);
            tracing::info!(event = "present", cause);
        }
    }

    /// A reporter for one cause of weakness: `Some(why)` degrades, `None` clears.
    pub fn hook(&self, cause: &'static str) -> impl Fn(Option<String>) + Send + Sync + 'static {
        self.declare(&[cause]);
        let board = self.clone();
        move |why| match why {
            Some(why) => board.degrade(cause, why),
            None => board.clear(cause),
        }
    }

    /// The board alone; [`readiness`] adds the state of the supervisor.
    pub fn snapshot(&self) -> Readiness {
        let causes = self.causes.lock();
        let names = |map: &BTreeMap<&'static str, String>| {
            map.keys().map(|name| (*name).to_owned()).collect()
        };
        let ready = causes.missing.is_empty();
        Readiness {
            ready,
            degraded: names(&causes.degraded),
            missing: names(&causes.missing),
            retry_after: (!ready).then_some(RETRY_AFTER_S),
        }
    }

    /// Every cause with its health and reason.
    pub fn causes(&self) -> Vec<(&'static str, Health, String)> {
        let causes = self.causes.lock();
        let missing = causes
            .missing
            .iter()
            .map(|(name, why)| (*name, Health::Down, why.clone()));
        let degraded = causes
            .degraded
            .iter()
            .map(|(name, why)| (*name, Health::Degraded, why.clone()));
        missing.chain(degraded).collect()
    }
}

/// The body of `/readyz`: the board, the threads, the clock, the disk, and whether the service is draining.
pub fn readiness(board: &ReadyBoard, supervisor: &Supervisor) -> Readiness {
    let mut readiness = board.snapshot();
    for plane in supervisor.planes() {
        if plane.live == 0 && plane.total > 0 && !supervisor.draining() {
            readiness.missing.push(plane.name.to_owned());
        } else if plane.live < plane.total && !supervisor.draining() {
            readiness.degraded.push(plane.name.to_owned());
        }
    }
    if supervisor.draining() {
        readiness.missing.push(DRAINING.to_owned());
    }
    if supervisor.fatal().is_some() {
        readiness.missing.push(FATAL.to_owned());
    }
    match supervisor.clock().alarm() {
        Some(alarm) if alarm.at_start => readiness.missing.push(CLOCK.to_owned()),
        Some(_) => readiness.degraded.push(CLOCK.to_owned()),
        None => {}
    }
    if let Some((cause, _)) = disk_problem(board, supervisor) {
        readiness.missing.push(cause.to_owned());
    }
    readiness.missing.sort();
    readiness.degraded.sort();
    readiness.ready = readiness.missing.is_empty();
    readiness.retry_after = (!readiness.ready).then_some(RETRY_AFTER_S);
    readiness
}

/// Why nothing can be written to the disk: it hangs, or it is full.
pub(crate) fn disk_problem(
    board: &ReadyBoard,
    supervisor: &Supervisor,
) -> Option<(&'static str, String)> {
    if let Some(hung) = supervisor.hung_disk() {
        // A disk that hangs is not asked for its room: it might not answer that either.
        return Some((DISK, hung.to_string()));
    }
    let full = board.room.check().err()?;
    Some((DISK_FULL, full.to_string()))
}

/// Exports [`readiness`] as metrics; called at each scrape, because threads start and stop at any
/// time.
pub(crate) fn show(board: &ReadyBoard, supervisor: &Supervisor) {
    let now = readiness(board, supervisor);
    board.ready.set(i64::from(now.ready));
    let planes = supervisor.planes();
    let names = planes.iter().map(|plane| plane.name);
    for cause in names.chain([DRAINING, FATAL, CLOCK, DISK, DISK_FULL]) {
        let has = |causes: &[String]| causes.iter().any(|known| known == cause);
        let on = has(&now.missing) || has(&now.degraded);
        board.gauge.with_label_values(&[cause]).set(i64::from(on));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_come_and_go() {
        let registry = Registry::new("t");
        let board = ReadyBoard::new(&registry);
        board.declare(&["kms", "store"]);
        let quiet = "t_readyz_degraded{cause=\"kms\"} 0";
        assert!(registry.render().contains(quiet), "{}", registry.render());
        assert!(board.snapshot().ready);
        board.degrade("kms", "no answer");
        board.missing("store", "disk full");
        board.missing("store", "disk still full");
        let snapshot = board.snapshot();
        assert_eq!((snapshot.ready, snapshot.retry_after), (false, Some(2)));
        assert_eq!(
            (snapshot.degraded, snapshot.missing),
            (vec!["kms".to_owned()], vec!["store".to_owned()])
        );
        assert_eq!(
            board.causes()[0],
            ("store", Health::Down, "disk still full".to_owned())
        );
        assert!(
            registry
                .render()
                .contains("t_readyz_degraded{cause=\"store\"} 1"),
            "{}",
            registry.render()
        );
        board.present("store");
        board.clear("never there");
        assert!(board.snapshot().ready);
        assert!(
            registry
                .render()
                .contains("t_readyz_degraded{cause=\"store\"} 0")
        );
        let hook = board.hook("auth");
        hook(Some("no keys".into()));
        assert_eq!(board.snapshot().degraded, ["auth", "kms"]);
        hook(None);
        assert_eq!(board.snapshot().degraded, ["kms"]);
    }
}
