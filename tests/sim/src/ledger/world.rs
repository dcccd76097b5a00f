//! A ledger on a simulated disk over several starts: callers, an auditor who only reads, faults of the disk, power cuts,
//! kills, drains at any moment. After each start all that is known is compared.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ron_files::{CrashMode, Disk, DiskRoom, FaultKind, SimDisk};
use ron_kernel::{
    Deadline, KernelMetrics, Registry, SeededRandom, Shutdown, Supervisor, SystemClock,
};
use ron_ledger::Ledger;
use ron_ledger::engine::{Atomicity, Engine, EngineError, EngineOptions, Opened};
use ron_ledger::health::NoHealth;
use ron_ledger::metrics::Metrics;
use ron_ledger::topology::TOPOLOGY;
use ron_ledger::writer::{Notifications, WriterParts, spawn};
use ron_proto::Timestamp;
use ron_sim::{Group, ensure, fault, time};

use super::book::Book;
use super::caller::{Caller, Weather, accounts, asset};
use super::draws::Draws;
use crate::explore::Operations;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Entries of a log segment, the fewest that a log takes.
const SEGMENT: u64 = 256;

/// What may happen in a world.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// EIO, ENOSPC and power cuts.
    pub faults: bool,
    /// The process is killed at any moment, once.
    pub kills: bool,
    /// A fault at this operation of the disk, counted from the start, instead of at drawn ones.
    pub fault_at: Option<(u64, FaultKind)>,
}

/// A ledger that runs.
struct Running {
    ledger: Ledger,
    sup: Supervisor,
    opened: Opened,
    _notifications: Notifications,
}

/// How a start of the ledger ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Drained,
    Killed,
    /// It did not start, because the disk failed.
    NotOpened,
}

pub struct World {
    plan: Plan,
    disk: SimDisk,
    book: Book,
    /// Seed of what the program draws.
    seed: u64,
    boot: u64,
    snapshot_every: u64,
    operations: Operations,
}

impl World {
    pub fn new(plan: Plan, operations: &Operations) -> Self {
        Self {
            plan,
            disk: SimDisk::new(),
            book: Book::default(),
            seed: fault::random(),
            boot: 0,
            snapshot_every: 4 + fault::choose(60),
            operations: operations.clone(),
        }
    }

    fn open(&self) -> Result<Engine, EngineError> {
        let mut options = EngineOptions::new("sim/ledger");
        options.segment_entries = SEGMENT;
        options.snapshot_every = self.snapshot_every;
        options.random = Arc::new(SeededRandom::new(self.seed ^ self.boot));
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let now = Timestamp(SystemClock::shared().unix_ms());
        Engine::open(disk, Path::new("/ledger"), options, now)
    }

    fn start(&self) -> Result<Running, EngineError> {
        let engine = self.open()?;
        let opened = engine.opened().clone();
        let registry = Registry::new("ron-ledger");
        let km = KernelMetrics::new(&registry);
        let sup = Supervisor::new(&TOPOLOGY, km.clone(), SystemClock::shared());
        let parts = WriterParts {
            sup: sup.clone(),
            km,
            clock: SystemClock::shared(),
            metrics: Metrics::new(&registry),
            health: Arc::new(NoHealth),
            room: DiskRoom::unlimited(),
            commits: 64,
        };
        let (ledger, notifications) = spawn(engine, parts);
        Ok(Running {
            ledger,
            sup,
            opened,
            _notifications: notifications,
        })
    }

    /// Several starts under load, then one without, in which all is compared once more.
    pub fn live(&mut self) {
        let boots = 1 + fault::choose(3);
        let killed = self.plan.kills.then(|| fault::choose(boots));
        for boot in 0..boots {
            self.boot += 1;
            let end = self.under_load(killed == Some(boot));
            self.stop_machine(end);
            time::sleep(ms(fault::choose(1_500)));
        }
        self.boot += 1;
        let running = self
            .start()
            .unwrap_or_else(|e| panic!("the last start: {e}"));
        self.compare(&running);
        self.drain(&running);
    }

    fn compare(&self, running: &Running) {
        // Nothing damages files in these worlds, and a snapshot is written whole before the log goes on.
        let skipped = &running.opened.skipped;
        assert_eq!(*skipped, Vec::<String>::new(), "snapshots are not used");
        if let Err(why) = self.book.compare(&running.ledger) {
            panic!("{why}");
        }
    }

    fn drain(&self, running: &Running) {
        let report = running.sup.drain(ms(10_000));
        assert_eq!(report.stragglers, Vec::<String>::new());
        assert_eq!(running.sup.fatal(), None);
    }

    /// Plans a fault of the disk, mostly soon.
    fn plan_fault(&self) -> bool {
        if let Some((at, kind)) = self.plan.fault_at {
            let now = self.disk.operations();
            if at > now {
                self.disk.fail_after(at - now, kind);
            }
            return true;
        }
        if !self.plan.faults || fault::choose(4) == 0 {
            return false;
        }
        let kind = match fault::choose(3) {
            0 => FaultKind::PowerOff,
            1 => FaultKind::Io,
            _ => FaultKind::NoSpace,
        };
        let far = [20, 100, 400][fault::choose(3) as usize];
        self.disk.fail_after(1 + fault::choose(far), kind);
        true
    }

    /// One start of the ledger, with callers.
    fn under_load(&mut self, kill: bool) -> End {
        let mut faults = fault::choose(4) == 0 && self.plan_fault();
        let running = match self.start() {
            Ok(running) => running,
            Err(e) => {
                assert!(faults, "the start fails without a fault: {e}");
                return End::NotOpened;
            }
        };
        self.compare(&running);
        if self.boot == 1 {
            self.fill(&running);
        }
        faults = faults || self.plan_fault();
        let weather = Weather {
            faults,
            stopping: Arc::default(),
        };
        let group = Group::new("ledger");
        let (begin, begun) = Shutdown::pair();
        let load = Load {
            weather: weather.clone(),
            done: Arc::default(),
            last: fault::choose(160),
            begin: Arc::new(begin),
            operations: self.operations.clone(),
        };
        let callers = 2 + fault::choose(7);
        let each = 4 + fault::choose(40);
        let mut threads = Vec::new();
        for n in 0..callers {
            let caller = self.caller(&running, &weather, n);
            let load = load.clone();
            let body = move || load.call(caller, each);
            threads.push(group.spawn(&format!("caller-{n}"), body).expect("a thread"));
        }
        let auditor = self.auditor(&running, &weather);
        let auditor = group.spawn("auditor", auditor).expect("a thread");
        // The end of the callers, or any moment before.
        begun.wait(Deadline::within(ms(20_000)));
        if kill {
            return End::Killed;
        }
        weather.stopping.store(true, Ordering::SeqCst);
        self.drain(&running);
        for thread in threads {
            thread.join().expect("callers are not killed");
        }
        auditor.join().expect("the auditor is not killed");
        if !self.disk_is_off() {
            let compared = self.book.compare(&running.ledger);
            compared.unwrap_or_else(|why| panic!("before the restart: {why}"));
        }
        End::Drained
    }

    /// Brings the log near the end of a segment, or anywhere else.
    fn fill(&self, running: &Running) {
        let mut caller = self.caller(running, &Weather::default(), 99);
        let entries = (0..fault::choose(SEGMENT))
            .map(|_| caller.filler())
            .collect();
        caller.send(entries, Atomicity::Independent);
    }

    fn caller(&self, running: &Running, weather: &Weather, n: u64) -> Caller {
        Caller {
            ledger: running.ledger.clone(),
            book: self.book.clone(),
            weather: weather.clone(),
            draws: Draws::new(self.seed ^ self.boot << 8 ^ n),
            name: format!("c{n}-{}", self.boot),
            made: 0,
        }
    }

    fn disk_is_off(&self) -> bool {
        self.disk.list(Path::new("/ledger")).is_err()
    }

    /// Reads accounts and totals; what it sees must be a state of the log.
    fn auditor(&self, running: &Running, weather: &Weather) -> impl FnOnce() + Send + 'static {
        let (ledger, book) = (running.ledger.clone(), self.book.clone());
        let (weather, mut draws) = (weather.clone(), Draws::new(self.seed ^ 77));
        move || {
            let names = accounts();
            while !weather.stopping.load(Ordering::SeqCst) {
                let name = draws.pick(&names).expect("there are accounts");
                let doc = ledger.account(name);
                let seq = doc.seq;
                book.lock().accounts.push(doc);
                is_found(&ledger, seq, weather.faults);
                if let Some(totals) = ledger.trial_balance(&asset(draws.below(2))) {
                    book.lock().totals.push(totals);
                }
                time::sleep(Duration::from_micros(50 << draws.below(8)));
            }
        }
    }

    /// What happens to the disk between two starts.
    fn stop_machine(&self, end: End) {
        let torn = self.disk.torn_max().max(1) as u64;
        let mode = match fault::choose(5) {
            0 if end == End::Drained && !self.disk_is_off() => return,
            0 | 1 => CrashMode::KeepAll,
            2 => CrashMode::TearLast(fault::choose(torn) as usize),
            3 => CrashMode::HoleInLast(512 * fault::choose(1 + torn / 512) as usize),
            _ => CrashMode::LoseAll,
        };
        self.disk.crash(mode);
    }
}

/// An entry that the state has is in the log, and its key leads to it.
fn is_found(ledger: &Ledger, seq: u64, faults: bool) {
    if seq == 0 {
        return;
    }
    let event = match ledger.event(seq) {
        Ok(Some(event)) => event,
        Ok(None) => return ensure(false, &format!("the state has {seq}, the log does not")),
        Err(e) => return ensure(faults, &format!("{seq} cannot be read: {e}")),
    };
    let Some(key) = event.entry.request_key() else {
        return;
    };
    match ledger.by_key(key) {
        Ok(Some(found)) => ensure(found.seq == seq, "a key leads to its entry"),
        Ok(None) => ensure(
            false,
            &format!("the state has {seq}, its key leads nowhere"),
        ),
        Err(e) => ensure(faults, &format!("the key of {seq} cannot be read: {e}")),
    }
}

/// The callers of one start, which count their requests together.
#[derive(Clone)]
struct Load {
    weather: Weather,
    done: Arc<AtomicU64>,
    /// The drain begins beside the request with this number.
    last: u64,
    begin: Arc<ron_kernel::ShutdownTrigger>,
    operations: Operations,
}

impl Load {
    fn call(&self, mut caller: Caller, each: u64) {
        for _ in 0..each {
            if self.weather.stopping.load(Ordering::SeqCst) {
                break;
            }
            if self.done.fetch_add(1, Ordering::SeqCst) >= self.last {
                self.begin.fire();
            }
            self.operations.add();
            caller.step();
            if caller.draws.below(4) == 0 {
                time::sleep(ms(caller.draws.below(30)));
            }
        }
        self.begin.fire();
    }
}
