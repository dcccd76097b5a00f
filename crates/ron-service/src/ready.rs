//! Readiness: named causes that stop a service (`missing`) or weaken it (`degraded`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use ron_files::DiskRoom;
use ron_kernel::{
    ClockAlarm, ClosedGauge, Gauge, LockSpec, RankedMutex, Registry, Supervisor, Topology,
};
use ron_proto::status::{Health, Readiness, STANDBY};

use crate::events::{Event, EventKind, Events};
use crate::recent::Recent;
use crate::vitals::Certificates;

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
/// A certificate in use has expired.
pub(crate) const CERTIFICATE: &str = "certificate";
/// The last reload was refused.
pub(crate) const RELOAD: &str = "reload";
/// The process is kept from running.
pub(crate) const STALLS: &str = "stalls";

/// Seconds after which a retry makes sense while not ready.
const RETRY_AFTER_S: u32 = 2;

/// What a cause does to its service.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Degrades,
    /// Nothing can be written.
    Stops,
}

impl Effect {
    const fn stopping_if(stops: bool) -> Self {
        if stops { Self::Stops } else { Self::Degrades }
    }

    /// Events of its beginning and of its end.
    pub const fn kinds(self) -> (EventKind, EventKind) {
        match self {
            Self::Degrades => (EventKind::Degraded, EventKind::DegradedCleared),
            Self::Stops => (EventKind::NotReady, EventKind::NotReadyCleared),
        }
    }
}

struct Cause {
    why: String,
    /// The log warned of it.
    is_warned: bool,
}

#[derive(Default)]
struct Causes {
    degraded: BTreeMap<&'static str, Cause>,
    missing: BTreeMap<&'static str, Cause>,
}

impl Causes {
    const fn of(&mut self, effect: Effect) -> &mut BTreeMap<&'static str, Cause> {
        match effect {
            Effect::Degrades => &mut self.degraded,
            Effect::Stops => &mut self.missing,
        }
    }

    /// Adds a cause, or replaces the reason of a known one; the event of a new one. Before the service has started, a cause is
    /// as expected.
    fn begin(&mut self, effect: Effect, cause: &'static str, why: String) -> Option<Event> {
        let is_warned = !self.missing.contains_key(STARTING);
        match self.of(effect).entry(cause) {
            Entry::Occupied(mut known) => {
                known.get_mut().why = why;
                None
            }
            Entry::Vacant(free) => {
                let (kind, _) = effect.kinds();
                let event = if is_warned {
                    Event::warn(kind)
                } else {
                    Event::info(kind)
                };
                let event = event.reason(cause).why(&why);
                free.insert(Cause { why, is_warned });
                Some(event)
            }
        }
    }

    /// Removes a cause; the event of its end. A log of warnings alone has to show that a warning is over.
    fn end(&mut self, effect: Effect, cause: &'static str) -> Option<Event> {
        let gone = self.of(effect).remove(cause)?;
        let event = Event::info(effect.kinds().1).reason(cause);
        Some(if gone.is_warned {
            event.logged_as_warning()
        } else {
            event
        })
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
    certificates: Certificates,
    recent: Recent,
    events: Events,
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
                &[
                    STARTING,
                    DRAINING,
                    FATAL,
                    CLOCK,
                    DISK,
                    DISK_FULL,
                    CERTIFICATE,
                    RELOAD,
                    STALLS,
                ],
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
            certificates: Certificates::default(),
            recent: Recent::default(),
            events: Events::default(),
        }
    }

    /// The board of a service that writes to a disk.
    pub fn with_room(self, room: DiskRoom) -> Self {
        Self { room, ..self }
    }

    /// The board of a service that uses these certificates.
    pub(crate) fn with_certificates(self, certificates: Certificates) -> Self {
        Self {
            certificates,
            ..self
        }
    }

    /// The certificates in use.
    pub(crate) fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// How the API has answered lately.
    pub(crate) fn recent(&self) -> &Recent {
        &self.recent
    }

    /// Where the modules that have the board publish what else happens.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Declares possible causes: `readyz_degraded{cause}` exports them as 0 until they occur.
    pub fn declare(&self, causes: &[&str]) {
        self.gauge.declare(causes.iter().copied());
    }

    /// The board of a service that is starting. Threads that may fail are causes, under the names
    /// of their planes.
    pub(crate) fn starting(
        registry: &Registry,
        topology: &Topology,
        room: DiskRoom,
        events: Events,
    ) -> Self {
        let board = Self {
            events,
            ..Self::new(registry).with_room(room)
        };
        for row in topology.threads {
            board.declare(&[row.name.trim_end_matches('-')]);
        }
        // Without an event: `started` is the end of it.
        let starting = Cause {
            why: "the service is starting".to_owned(),
            is_warned: false,
        };
        board.causes.lock().missing.insert(STARTING, starting);
        board.gauge.with_label_values(&[STARTING]).set(1);
        board
    }

    /// The service has started.
    pub(crate) fn started(&self) {
        self.causes.lock().missing.remove(STARTING);
        self.gauge.with_label_values(&[STARTING]).set(0);
    }

    /// Adds a cause of weakness; the service stays ready.
    pub fn degrade(&self, cause: &'static str, why: impl Into<String>) {
        self.begin(Effect::Degrades, cause, why.into());
    }

    /// Removes a cause of weakness.
    pub fn clear(&self, cause: &'static str) {
        self.end(Effect::Degrades, cause);
    }

    /// Adds a cause that stops the service: `/readyz` answers 503 until [`ReadyBoard::present`].
    pub fn missing(&self, cause: &'static str, why: impl Into<String>) {
        self.begin(Effect::Stops, cause, why.into());
    }

    /// Removes a cause that stops the service.
    pub fn present(&self, cause: &'static str) {
        self.end(Effect::Stops, cause);
    }

    fn begin(&self, effect: Effect, cause: &'static str, why: String) {
        let event = self.causes.lock().begin(effect, cause, why);
        self.gauge.with_label_values(&[cause]).set(1);
        if let Some(event) = event {
            self.events.publish(event);
        }
    }

    fn end(&self, effect: Effect, cause: &'static str) {
        let event = self.causes.lock().end(effect, cause);
        if let Some(event) = event {
            self.gauge.with_label_values(&[cause]).set(0);
            self.events.publish(event);
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
        let names = |map: &BTreeMap<&'static str, Cause>| {
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
            .map(|(name, cause)| (*name, Health::Down, cause.why.clone()));
        let degraded = causes.degraded.iter().map(|(name, cause)| match *name {
            STANDBY => (*name, Health::Healthy, cause.why.clone()),
            name => (name, Health::Degraded, cause.why.clone()),
        });
        missing.chain(degraded).collect()
    }
}

/// A cause that is not on the board.
pub(crate) struct Observed {
    pub name: &'static str,
    pub effect: Effect,
    pub why: String,
}

/// Causes of threads, clock, certificates and disk.
pub(crate) fn observed(board: &ReadyBoard, supervisor: &Supervisor) -> Vec<Observed> {
    let mut found = surroundings(board, supervisor);
    if !supervisor.draining() {
        let planes = supervisor.planes().into_iter();
        found.extend(
            planes
                .filter(|plane| plane.live < plane.total)
                .map(|plane| Observed {
                    name: plane.name,
                    effect: Effect::stopping_if(plane.live == 0),
                    why: plane.reason.unwrap_or_default(),
                }),
        );
    }
    found
}

/// Causes of clock, certificates and disk.
pub(crate) fn surroundings(board: &ReadyBoard, supervisor: &Supervisor) -> Vec<Observed> {
    let mut found = Vec::new();
    found.extend(supervisor.clock().alarm().map(|alarm| Observed {
        name: CLOCK,
        effect: Effect::stopping_if(alarm.at_start),
        why: format!("{alarm}; {}", ClockAlarm::HINT),
    }));
    let expired = board.certificates.expired(supervisor.clock().unix_ms());
    found.extend(expired.map(|why| Observed {
        name: CERTIFICATE,
        effect: Effect::Degrades,
        why,
    }));
    found.extend(disk_problem(board, supervisor).map(|(name, why)| Observed {
        name,
        effect: Effect::Stops,
        why,
    }));
    found
}

/// The body of `/readyz`: the board, the threads, the clock, the disk, and whether the service is draining.
pub fn readiness(board: &ReadyBoard, supervisor: &Supervisor) -> Readiness {
    let mut readiness = board.snapshot();
    for cause in observed(board, supervisor) {
        let causes = match cause.effect {
            Effect::Stops => &mut readiness.missing,
            Effect::Degrades => &mut readiness.degraded,
        };
        causes.push(cause.name.to_owned());
    }
    if supervisor.draining() {
        readiness.missing.push(DRAINING.to_owned());
    }
    if supervisor.fatal().is_some() {
        readiness.missing.push(FATAL.to_owned());
    }
    readiness.missing.sort();
    readiness.degraded.sort();
    readiness.ready = readiness.missing.is_empty();
    readiness.retry_after = (!readiness.ready).then_some(RETRY_AFTER_S);
    readiness
}

/// Why nothing can be written to the disk: it hangs, or it is full.
fn disk_problem(board: &ReadyBoard, supervisor: &Supervisor) -> Option<(&'static str, String)> {
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
    for cause in names.chain([DRAINING, FATAL, CLOCK, DISK, DISK_FULL, CERTIFICATE]) {
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
        board.declare(&[STANDBY]);
        board.degrade(STANDBY, "of another node");
        let healths: Vec<_> = board.causes().iter().map(|one| (one.0, one.1)).collect();
        let wanted = [("kms", Health::Degraded), (STANDBY, Health::Healthy)];
        assert_eq!(healths, wanted, "nothing is wrong with a standby");
    }

    #[test]
    fn the_end_of_a_warning_is_in_the_log_as_the_warning_was() {
        let mut causes = Causes::default();
        let mut end_is_warned = |starting: bool, effect| {
            if starting {
                causes.begin(Effect::Stops, STARTING, String::new());
            }
            causes.begin(effect, "kms", String::new()).expect("new");
            causes.missing.remove(STARTING);
            causes.end(effect, "kms").expect("known").ends_warning
        };
        for effect in [Effect::Stops, Effect::Degrades] {
            assert!(!end_is_warned(true, effect), "it began as information");
            assert!(end_is_warned(false, effect));
        }
    }
}
