//! The laws of threads, each with a test that fails when it is broken. (The laws about overload,
//! durability and mutation outcomes are tested where requests are served.)

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // tests of the crate that wraps them

mod bounds;
mod locks;
mod process;
mod restarts;
mod stops;

use std::time::{Duration, Instant};

use ron_kernel::{
    Count, Deadline, HangPool, HangSpec, KernelMetrics, LockSpec, Overflow, QueueSpec, Registry,
    Stage, Supervisor, SystemClock, ThreadSpec, Topology,
};

static REJECT: QueueSpec = queue_row("reject", Overflow::RejectNew);
static OLDEST: QueueSpec = queue_row("oldest", Overflow::DropOldest);
static WAIT: QueueSpec = queue_row("wait", Overflow::WaitDeadline);
static JOBS: QueueSpec = queue_row("jobs", Overflow::RejectNew);
static RESULTS: QueueSpec = queue_row("results", Overflow::WaitDeadline);
static CALLS: QueueSpec = queue_row("calls", Overflow::RejectNew);

static INTAKE: ThreadSpec = row("l-intake", Count::One, Stage::Intake, false);
static WORKERS: ThreadSpec = row("l-work-", Count::Pool("n"), Stage::Work, false);
static HANGING: ThreadSpec = row("l-hang-", Count::Pool("n"), Stage::Work, false);
static WRITER: ThreadSpec = row("l-writer", Count::One, Stage::Write, true);

static TOPOLOGY: Topology = Topology {
    service: "laws",
    threads: &[INTAKE, WORKERS, HANGING, WRITER],
    queues: &[REJECT, OLDEST, WAIT, JOBS, RESULTS, CALLS],
    locks: &[LOW, HIGH],
};

static LOW: LockSpec = LockSpec {
    name: "low",
    rank: 1,
    guards: "test",
};
static HIGH: LockSpec = LockSpec {
    name: "high",
    rank: 2,
    guards: "test",
};

const fn queue_row(name: &'static str, overflow: Overflow) -> QueueSpec {
    QueueSpec {
        name,
        capacity: 2,
        overflow,
        from: "test",
        to: "test",
        when_full: "",
    }
}

const fn row(name: &'static str, count: Count, stage: Stage, critical: bool) -> ThreadSpec {
    ThreadSpec {
        name,
        count,
        stage,
        critical,
        job: "test",
    }
}

struct Rig {
    pub registry: Registry,
    pub km: KernelMetrics,
    pub sup: Supervisor,
}

fn rig() -> Rig {
    let registry = Registry::new("t");
    let km = KernelMetrics::new(&registry);
    let sup = Supervisor::new(&TOPOLOGY, km.clone(), SystemClock::shared());
    Rig { registry, km, sup }
}

impl Rig {
    pub fn metric(&self, line: &str) {
        let text = self.registry.render();
        assert!(text.lines().any(|l| l == line), "{line} missing in\n{text}");
    }

    pub fn hang_pool(&self, size: usize) -> HangPool<()> {
        let spec = HangSpec {
            threads: &HANGING,
            queue: &CALLS,
            size,
            capacity: 2,
            aside_max: 1,
            ops: &["op"],
        };
        HangPool::start(&self.sup, spec, |_| Ok(()))
    }
}

fn ms(n: u64) -> Deadline {
    Deadline::within(Duration::from_millis(n))
}

/// A deadline that a test reaches only when a law is broken.
fn far() -> Deadline {
    ms(60_000)
}

fn until(what: &str, mut ok: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !ok() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "too late: {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    start.elapsed()
}
