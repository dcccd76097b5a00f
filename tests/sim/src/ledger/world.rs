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
use ron_proto::ledger::Event;
use ron_sim::{Group, ensure, fault, time};

use super::book::{Book, Difference, all_events};
use super::caller::{Caller, Weather};
use super::draws::Draws;
use super::names::{accounts, asset};
use crate::chance::ms;
use crate::explore::Operations;

/// Entries of a log segment, the fewest that a log takes.
const SEGMENT: u64 = 256;

/// What may happen in a world.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// EIO, ENOSPC and power cuts.
    pub faults: bool,
    /// The process is killed at any moment, once.
    pub kills: bool,
    /// A fault at this operation of the disk, counted from the first of all, instead of at drawn ones.
    pub fault_at: Option<(u64, FaultKind)>,
}

/// A ledger that runs.
struct Running {
    ledger: Ledger,
    sup: Supervisor,
    opened: Opened,
    _notifications: Notifications,
}

/// What a start of the ledger needs.
#[derive(Clone)]
struct Starter {
    disk: SimDisk,
    snapshot_every: u64,
    /// Seed of the salts; differs in each start.
    salts: u64,
}

impl Starter {
    fn open(&self) -> Result<Engine, EngineError> {
        let mut options = EngineOptions::new("sim/ledger");
        options.segment_entries = SEGMENT;
        options.snapshot_every = self.snapshot_every;
        options.random = Arc::new(SeededRandom::new(self.salts));
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
            node: None,
            archive: None,
        };
        let (ledger, notifications) = spawn(engine, parts);
        Ok(Running {
            ledger,
            sup,
            opened,
            _notifications: notifications,
        })
    }
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
    /// Whether a fault was planned since the last start of the machine.
    is_planned: bool,
    /// Faults of the disk by the number of its operation.
    planned: Vec<(u64, FaultKind)>,
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
            is_planned: false,
            planned: Vec::new(),
        }
    }

    fn start(&self, group: Group) -> Result<Running, EngineError> {
        let starter = Starter {
            disk: self.disk.clone(),
            snapshot_every: self.snapshot_every,
            salts: self.seed ^ self.boot,
        };
        // Its threads are of the group in which it starts.
        let started = group.spawn("start", move || starter.start());
        let started = started.expect("a thread").join();
        started.expect("nothing is killed while it starts")
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
            .start(Group::new("ledger"))
            .unwrap_or_else(|e| panic!("the last start: {e}"));
        self.compare(&running);
        self.drain(&running);
    }

    fn compare(&self, running: &Running) {
        // Nothing damages files in these worlds, and a snapshot is written whole before the log goes on.
        let skipped = &running.opened.skipped;
        assert_eq!(*skipped, Vec::<String>::new(), "snapshots are not used");
        match self.book.compare(&running.ledger) {
            // A fault that was planned before the start may come now.
            Err(Difference::Unreadable(_)) if self.is_planned => {}
            compared => {
                compared.unwrap_or_else(|why| panic!("after the start: {why}"));
            }
        }
    }

    fn drain(&self, running: &Running) {
        let report = running.sup.drain(ms(10_000));
        assert_eq!(report.stragglers, Vec::<String>::new());
        assert_eq!(running.sup.fatal(), None);
    }

    /// Plans a fault of the disk, mostly soon.
    fn plan_fault(&mut self) -> bool {
        self.is_planned = self.fault_is_planned();
        self.is_planned
    }

    fn fail_after(&mut self, left: u64, kind: FaultKind) {
        self.planned.push((self.disk.operations() + left, kind));
        self.disk.fail_after(left, kind);
    }

    fn fault_is_planned(&mut self) -> bool {
        if let Some((at, kind)) = self.plan.fault_at {
            let left = at.checked_sub(self.disk.operations());
            let left = left.filter(|left| *left > 0);
            if let Some(left) = left {
                self.fail_after(left, kind);
            }
            return left.is_some();
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
        self.fail_after(1 + fault::choose(far), kind);
        true
    }

    /// One start of the ledger, with callers.
    fn under_load(&mut self, kill: bool) -> End {
        let early = self.plan.fault_at.is_some() || fault::choose(4) == 0;
        let mut faults = early && self.plan_fault();
        let group = Group::new("ledger");
        let running = match self.start(group) {
            Ok(running) => running,
            Err(e) => {
                assert!(faults, "the start fails without a fault: {e}");
                return End::NotOpened;
            }
        };
        self.compare(&running);
        if self.boot == 1 {
            self.fill(&running, faults);
        }
        faults = faults || (self.plan.fault_at.is_none() && self.plan_fault());
        let weather = Weather {
            faults,
            stopping: Arc::default(),
        };
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
            fault::happened("the ledger is killed");
            group.kill();
            // Its locks stay taken by threads that never run again.
            std::mem::forget(running);
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
    fn fill(&self, running: &Running, faults: bool) {
        let weather = Weather {
            faults,
            ..Weather::default()
        };
        let mut caller = self.caller(running, &weather, 99);
        let entries = (0..fault::choose(SEGMENT))
            .map(|_| caller.filler())
            .collect::<Vec<_>>();
        if !entries.is_empty() {
            caller.send(entries, Atomicity::Independent);
        }
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
                time::sleep(Duration::from_micros(50 << draws.below(12)));
            }
        }
    }

    /// A start, and then a bit of a file that is another one: while the ledger reads, or before its next start. It is
    /// noticed, or it stands where nothing is read.
    pub fn with_rot(&mut self) {
        self.boot += 1;
        assert_eq!(self.under_load(false), End::Drained);
        self.boot += 1;
        let group = Group::new("ledger");
        let running = self.start(group).unwrap_or_else(|e| panic!("{e}"));
        let before = self.book.lock().log();
        if fault::choose(2) == 0 {
            self.drain(&running);
            drop(running);
            self.rot();
            self.boot += 1;
            match self.start(group) {
                Ok(running) if is_cut(&running.ledger, &before) => self.drain(&running),
                Ok(running) => self.is_right_or_noticed(&running, &before),
                Err(_noticed) => {}
            }
        } else {
            self.rot();
            self.is_right_or_noticed(&running, &before);
        }
    }

    fn is_right_or_noticed(&self, running: &Running, before: &[Event]) {
        let after = match all_events(&running.ledger) {
            Ok(after) => after,
            Err(_noticed) => return,
        };
        assert!(after.starts_with(before), "the log is another one");
        match self.book.compare(&running.ledger) {
            Ok(_) | Err(Difference::Unreadable(_)) => {}
            Err(Difference::Other(why)) => panic!("{why}"),
        }
        self.drain(running);
    }

    /// Counts the planned faults of the disk that have come.
    fn note_faults(&mut self) {
        let now = self.disk.operations();
        for (_, kind) in self.planned.extract_if(.., |(at, _)| *at <= now) {
            fault::happened(match kind {
                FaultKind::Io => "the disk fails",
                FaultKind::NoSpace => "the disk is full",
                FaultKind::PowerOff => "the power is cut",
            });
        }
        self.planned.clear();
    }

    fn rot(&self) {
        let dirs = ["/ledger/log", "/ledger/derived"];
        let dir = Path::new(dirs[fault::choose(2) as usize]);
        let names = self.disk.list(dir).expect("the disk is on");
        let Some(name) = names.get(fault::choose(names.len() as u64) as usize) else {
            return;
        };
        let path = dir.join(name);
        let bytes = self.disk.peek(&path).map_or(0, |bytes| bytes.len() as u64);
        if bytes > 0 {
            fault::happened("a bit turns over");
            self.disk
                .flip(&path, fault::choose(bytes), fault::choose(8) as u32);
        }
    }

    /// What happens to the disk between two starts.
    fn stop_machine(&mut self, end: End) {
        let torn = self.disk.torn_max().max(1) as u64;
        let mode = match fault::choose(6) {
            // The machine goes on; a fault that was planned would come later.
            0 if end == End::Drained && !self.is_planned => return,
            0 | 1 => CrashMode::KeepAll,
            2 => CrashMode::TearLast(fault::choose(torn) as usize),
            3 => CrashMode::HoleInLast(512 * fault::choose(1 + torn / 512) as usize),
            4 => CrashMode::Each(fault::random()),
            _ => CrashMode::LoseAll,
        };
        fault::happened(match mode {
            CrashMode::LoseAll => "unsynced writes are lost",
            CrashMode::KeepAll => "unsynced writes are kept",
            CrashMode::TearLast(_) => "the last write is torn",
            CrashMode::HoleInLast(_) => "a sector of the last write is missing",
            CrashMode::Each(_) => "some unsynced writes are kept",
        });
        self.note_faults();
        self.disk.crash(mode);
        self.is_planned = false;
    }
}

/// Whether the log lacks its last batch, and nothing else: while no checkpoint covers it, its damage cannot be told from
/// a write that the power cut (docs/formats/tlog.md). All entries of a batch have one time. What follows by now is the ledger's own:
/// holds that have ended.
fn is_cut(ledger: &Ledger, before: &[Event]) -> bool {
    let Ok(after) = all_events(ledger) else {
        return false;
    };
    let same = before.iter().zip(&after).take_while(|(was, is)| was == is);
    let kept = same.count();
    let (lost, new) = (&before[kept..], &after[kept..]);
    let is_one_batch = lost.iter().all(|event| event.ts == lost[0].ts);
    let is_own = new.iter().all(|event| event.entry.request_key().is_none());
    !lost.is_empty() && is_one_batch && is_own
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
            if caller.draws.below(2) == 0 {
                let seen = caller.ledger.account(&accounts()[0]).seq;
                is_found(&caller.ledger, seen, self.weather.faults);
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
