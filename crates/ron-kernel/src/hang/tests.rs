//! Calls that hang, against the real supervisor.

use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::bounded;

use super::*;
use crate::exit;
use crate::metrics::Registry;
use crate::supervisor::Verdict;
use crate::time::SystemClock;
use crate::topology::{Count, Overflow, Stage, Topology};

static WORKERS: ThreadSpec = ThreadSpec {
    name: "t-hsm-",
    count: Count::Pool("hsm.sessions"),
    stage: Stage::Work,
    critical: false,
    job: "test",
};
static CALLS: QueueSpec = QueueSpec {
    name: "hsm",
    capacity: 2,
    overflow: Overflow::RejectNew,
    from: "test",
    to: "t-hsm-",
    when_full: "429 busy",
};
static TOPOLOGY: Topology = Topology {
    service: "test",
    threads: &[WORKERS],
    queues: &[CALLS],
    locks: &[],
};

struct Rig {
    registry: Registry,
    sup: Supervisor,
    pool: HangPool<usize>,
    /// Handles made so far.
    made: Arc<AtomicUsize>,
}

fn rig(size: usize, aside_max: usize) -> Rig {
    let registry = Registry::new("t");
    let km = KernelMetrics::new(&registry);
    let sup = Supervisor::new(&TOPOLOGY, km, SystemClock::shared());
    let spec = HangSpec {
        threads: &WORKERS,
        queue: &CALLS,
        size,
        capacity: 2,
        aside_max,
        ops: &["sign"],
    };
    let made = Arc::new(AtomicUsize::new(0));
    let counter = made.clone();
    let pool = HangPool::start(&sup, spec, move |_| {
        Ok(counter.fetch_add(1, Ordering::SeqCst))
    });
    Rig {
        registry,
        sup,
        pool,
        made,
    }
}

fn ms(n: u64) -> Deadline {
    Deadline::within(Duration::from_millis(n))
}

fn until(what: &str, mut ok: impl FnMut() -> bool) {
    let deadline = ms(30_000);
    while !ok() {
        assert!(!deadline.expired(), "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Rig {
    /// A call that returns when the sender is dropped.
    fn hang(&self) -> crossbeam_channel::Sender<()> {
        let (free, held) = bounded::<()>(0);
        let start = Instant::now();
        // Long enough for the worker to begin on a busy machine.
        let out = self.pool.call("sign", ms(300), move |_| {
            let _ = held.recv();
        });
        assert_eq!(out, Err(HangError::Hung));
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(20), "{waited:?}");
        free
    }
}

#[test]
fn each_worker_owns_one_handle_and_answers() {
    let rig = rig(2, 1);
    for _ in 0..10 {
        let handle = rig.pool.call("sign", ms(5_000), |h| *h).unwrap();
        assert!(handle < 2);
    }
    assert!(rig.made.load(Ordering::SeqCst) <= 2, "made once a worker");
    assert_eq!(rig.sup.drain(Duration::from_secs(2)).exit_code(), exit::OK);
}

#[test]
fn a_hanging_call_is_counted_named_replaced_and_ends_when_it_returns() {
    let rig = rig(1, 1);
    let free = rig.hang();
    assert_eq!(rig.pool.hanging(), [("t-hsm-0".to_owned(), "sign")]);
    let text = rig.registry.render();
    for line in [
        "t_threads_quarantined_total{kind=\"t-hsm-\"} 1",
        "t_threads_quarantined{kind=\"t-hsm-\"} 1",
        "t_io_timeouts_total{op=\"sign\"} 1",
    ] {
        assert!(text.contains(line), "{line} missing in\n{text}");
    }
    let plane = &rig.sup.planes()[0];
    assert!(
        plane
            .reason
            .as_ref()
            .unwrap()
            .contains("`t-hsm-0` hangs in `sign`")
    );
    assert_eq!(rig.pool.call("sign", ms(5_000), |h| *h), Ok(1), "a new one");
    drop(free);
    until("the thread ends", || {
        let live = rig.sup.topology().threads;
        live.len() == 1 && live[0].name == "t-hsm-1"
    });
    assert!(rig.pool.hanging().is_empty());
    assert!(
        rig.registry
            .render()
            .contains("t_threads_quarantined{kind=\"t-hsm-\"} 0")
    );
    assert_eq!(rig.sup.verdict(), Verdict::Whole);
    let report = rig.sup.drain(Duration::from_secs(2));
    assert_eq!((report.exit_code(), report.stragglers.len()), (exit::OK, 0));
}

#[test]
fn past_the_bound_the_pool_shrinks_to_nothing_and_recovers_with_the_calls() {
    let rig = rig(2, 1);
    let held = [rig.hang(), rig.hang(), rig.hang()];
    assert_eq!((rig.pool.seated(), rig.pool.hanging().len()), (0, 3));
    assert_eq!(rig.sup.verdict(), Verdict::NotReady(vec!["t-hsm"]));
    let refused = rig.pool.call("sign", ms(5_000), |h| *h);
    assert_eq!(refused, Err(HangError::Unavailable));
    drop(held);
    until("two seats", || rig.pool.seated() == 2);
    assert!(rig.pool.call("sign", ms(5_000), |h| *h).is_ok());
    until("whole", || rig.sup.verdict() == Verdict::Whole);
    rig.sup.drain(Duration::from_secs(2));
}

/// Law 2: a job whose deadline has passed is dropped before any work is done on it.
#[test]
fn a_job_that_waited_too_long_is_never_begun() {
    let rig = rig(1, 0);
    let (free, held) = bounded::<()>(0);
    let slow = rig
        .pool
        .submit("sign", ms(5_000), move |_| held.recv().is_ok());
    let ran = Arc::new(AtomicUsize::new(0));
    let seen = ran.clone();
    let out = rig
        .pool
        .call("sign", ms(20), move |_| seen.fetch_add(1, Ordering::SeqCst));
    assert_eq!(out, Err(HangError::Expired));
    drop(free);
    assert_eq!(slow.unwrap().wait(), Ok(false));
    assert!(
        rig.pool.call("sign", ms(5_000), |_| ()).is_ok(),
        "the same worker goes on"
    );
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    rig.sup.drain(Duration::from_secs(2));
}

/// Law 1: a full queue does what its row says.
#[test]
fn a_full_queue_refuses_and_says_when_to_retry() {
    let rig = rig(1, 0);
    let (free, held) = bounded::<()>(0);
    let slow = rig
        .pool
        .submit("sign", ms(5_000), move |_| held.recv().is_ok());
    until("begun", || {
        let text = rig.registry.render();
        text.contains("t_worker_inflight{kind=\"t-hsm-\"} 1")
    });
    let waiting: Vec<_> = (0..2)
        .map(|_| rig.pool.submit("sign", ms(5_000), |_| ()))
        .collect();
    let refused = rig.pool.call("sign", ms(5_000), |_| ());
    assert!(matches!(
        refused,
        Err(HangError::Busy { retry_after_s: 1.. })
    ));
    drop(free);
    for pending in waiting {
        assert_eq!(pending.unwrap().wait(), Ok(()));
    }
    assert_eq!(slow.unwrap().wait(), Ok(false));
    rig.sup.drain(Duration::from_secs(2));
}

#[test]
fn a_panic_in_a_call_costs_that_call_and_its_handle_only() {
    let rig = rig(1, 1);
    let first = rig.pool.call("sign", ms(5_000), |h| *h).unwrap();
    let out = rig
        .pool
        .call("sign", ms(5_000), |_| -> () { panic!("driver bug") });
    assert_eq!(out, Err(HangError::Crashed));
    let next = rig.pool.call("sign", ms(5_000), |h| *h).unwrap();
    assert_eq!((first, next), (0, 1), "a panicked handle is not used again");
    assert_eq!(rig.sup.planes()[0].restarts, 1);
    rig.sup.drain(Duration::from_secs(2));
}

#[test]
fn a_handle_that_cannot_be_made_is_an_error_and_is_retried() {
    let registry = Registry::new("t");
    let km = KernelMetrics::new(&registry);
    let sup = Supervisor::new(&TOPOLOGY, km, SystemClock::shared());
    let spec = HangSpec {
        threads: &WORKERS,
        queue: &CALLS,
        size: 1,
        capacity: 2,
        aside_max: 0,
        ops: &["sign"],
    };
    let tries = AtomicUsize::new(0);
    let pool = HangPool::start(&sup, spec, move |_| {
        match tries.fetch_add(1, Ordering::SeqCst) {
            0 => Err("no token in the reader".to_owned()),
            _ => Ok(()),
        }
    });
    let out = pool.call("sign", ms(5_000), |()| 7);
    assert_eq!(
        out,
        Err(HangError::NoHandle("no token in the reader".into()))
    );
    assert_eq!(pool.call("sign", ms(5_000), |()| 7), Ok(7));
    sup.drain(Duration::from_secs(2));
}

#[test]
fn a_thread_that_hangs_at_the_end_of_a_drain_is_a_straggler_by_name() {
    let rig = rig(1, 1);
    let free = rig.hang();
    let report = rig.sup.drain(Duration::from_millis(50));
    assert_eq!(report.stragglers, ["t-hsm-0"]);
    assert_eq!(report.exit_code(), exit::STRAGGLERS);
    let text = rig.registry.render();
    assert!(
        text.contains("t_tasks_aborted_total{kind=\"t-hsm-\"} 1"),
        "{text}"
    );
    let refused = rig.pool.call("sign", ms(5_000), |_| ());
    assert_eq!(refused, Err(HangError::Unavailable));
    drop(free);
    until("it ends", || rig.pool.hanging().is_empty());
    assert_eq!(rig.pool.seated(), 1, "no thread is started after the drain");
}

#[test]
fn a_hanging_call_without_a_waiter_is_found_by_the_next_caller() {
    let rig = rig(1, 1);
    let (free, held) = bounded::<()>(0);
    let forgotten = rig
        .pool
        .submit("sign", ms(300), move |_| held.recv().is_ok());
    drop(forgotten.unwrap());
    std::thread::sleep(Duration::from_millis(400));
    assert!(rig.pool.call("sign", ms(5_000), |_| ()).is_ok());
    assert_eq!(rig.pool.hanging().len(), 1);
    drop(free);
    rig.sup.drain(Duration::from_secs(2));
}
