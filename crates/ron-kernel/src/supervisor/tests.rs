//! The supervisor on its own: restarts, budget, stages, drain, and the table it is built from.

use std::sync::atomic::AtomicUsize;

use crossbeam_channel::bounded;

use super::*;
use crate::deadline::Deadline;
use crate::exit;
use crate::metrics::Registry;
use crate::queue::{bare_queue, queue};
use crate::ring::Ring;
use crate::sync::{Selected, chan};
use crate::time::SystemClock;
use crate::topology::{Overflow, QueueSpec};

static LOOP: ThreadSpec = row("t-loop", Count::One, Stage::Work, false);
static POOL: ThreadSpec = row("t-pool-", Count::Pool("n"), Stage::Work, false);
static WRITER: ThreadSpec = row("t-writer", Count::One, Stage::Write, true);
static TOPOLOGY: Topology = Topology {
    service: "test",
    threads: &[LOOP, POOL, WRITER],
    queues: &[JOBS, EVENTS],
    locks: &[],
};
static JOBS: QueueSpec = queue_row("jobs", Overflow::RejectNew);
static EVENTS: QueueSpec = queue_row("events", Overflow::DropOldest);
static UNLISTED: QueueSpec = queue_row("unlisted", Overflow::RejectNew);
static OTHER_POLICY: QueueSpec = queue_row("jobs", Overflow::WaitDeadline);

const fn queue_row(name: &'static str, overflow: Overflow) -> QueueSpec {
    QueueSpec {
        name,
        capacity: 4,
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

fn supervisor() -> (Registry, Supervisor) {
    let registry = Registry::new("t");
    let sup = Supervisor::new(
        &TOPOLOGY,
        KernelMetrics::new(&registry),
        SystemClock::shared(),
    );
    (registry, sup)
}

fn until(what: &str, mut ok: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !ok() {
        assert!(Instant::now() < deadline, "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn wait(ctx: &ThreadCtx) {
    while !ctx.shutdown.wait(Deadline::within(Duration::from_secs(60))) {}
}

/// What an owner thread saw: the states it was given, in order.
type Numbers = Arc<Mutex<Vec<u32>>>;

fn owner(
    sup: &Supervisor,
    seen: &Numbers,
    on_lost: impl Fn() -> Option<u32> + Send + Sync + 'static,
) {
    let seen = seen.clone();
    sup.spawn_owner(
        &LOOP,
        1,
        move |state, ctx| {
            seen.lock().push(state);
            assert!(state > 1, "the first state is lost");
            ctx.wait_for_shutdown();
        },
        on_lost,
    );
}

#[test]
fn an_owner_that_panics_continues_with_the_state_it_is_given_next() {
    let (_registry, sup) = supervisor();
    let seen = Numbers::new(Mutex::new(Vec::new()));
    owner(&sup, &seen, || Some(2));
    until("the second state", || *seen.lock() == [1, 2]);
    assert!(sup.drain(Duration::from_secs(5)).stragglers.is_empty());
}

#[test]
fn a_thread_works_for_the_service_of_its_supervisor() {
    let (_registry, sup) = supervisor();
    let seen = Arc::new(Mutex::new(None));
    let shown = seen.clone();
    sup.spawn(&LOOP, move |ctx| {
        *shown.lock() = ServiceScope::current();
        wait(ctx);
    });
    until("the thread's service", || *seen.lock() == Some("test"));
    assert_eq!(ServiceScope::current(), None, "the test's own thread");
    sup.drain(Duration::from_secs(5));
}

#[test]
fn an_owner_without_a_state_waits_for_its_shutdown() {
    let (_registry, sup) = supervisor();
    let (seen, handle) = (Numbers::new(Mutex::new(Vec::new())), sup.clone());
    owner(&sup, &seen, move || {
        handle.set_fatal("the state is lost");
        None
    });
    until("the loss", || sup.fatal().is_some());
    assert!(sup.drain(Duration::from_secs(5)).stragglers.is_empty());
    assert_eq!(*seen.lock(), [1], "run again without a state");
}

#[test]
fn a_panicking_worker_is_back_within_100_ms_and_the_pool_says_so() {
    let (registry, sup) = supervisor();
    let restarts = |n: u32| format!("t_service_restarts_total{{kind=\"t-pool-\"}} {n}");
    let runs = Arc::new(AtomicUsize::new(0));
    let back = Arc::new(Mutex::new(None));
    let (r, b) = (runs.clone(), back.clone());
    let started = Instant::now();
    sup.spawn_pool(&POOL, 2, move |ctx| {
        assert!(r.fetch_add(1, Ordering::SeqCst) > 0, "first run");
        b.lock().get_or_insert_with(|| started.elapsed());
        wait(ctx);
    });
    until("restart", || runs.load(Ordering::SeqCst) == 3);
    until("both live", || sup.planes()[0].live == 2);
    println!("back after {:?}", back.lock().unwrap());
    let plane = &sup.planes()[0];
    assert_eq!((plane.total, plane.restarts), (2, 1));
    assert!(plane.reason.as_ref().unwrap().contains("first run"));
    assert!(registry.render().contains(&restarts(1)));
    sup.spawn(&LOOP, wait);
    let calm = "t_service_restarts_total{kind=\"t-loop\"} 0";
    assert!(registry.render().contains(calm), "before the first");
    assert_eq!(
        sup.drain(Duration::from_secs(1)).stragglers,
        Vec::<String>::new()
    );
}

#[test]
fn a_flapping_critical_thread_is_fatal_after_its_budget() {
    let (_registry, sup) = supervisor();
    // Use up the budget without waiting through the pauses: ten crashes are already recorded.
    sup.group(&WRITER)
        .recent
        .lock()
        .extend(vec![Instant::now(); BUDGET]);
    sup.spawn(&WRITER, |_| panic!("disk gone"));
    until("fatal", || sup.fatal().is_some());
    assert!(sup.fatal_token().is_set());
    let why = sup.fatal().unwrap();
    assert!(
        why.contains("t-writer") && why.contains("disk gone"),
        "{why}"
    );
    sup.drain(Duration::from_secs(1));
}

#[test]
fn stages_stop_in_order_and_stragglers_are_named() {
    let (registry, sup) = supervisor();
    let order = Arc::new(Mutex::new(Vec::new()));
    for spec in [&WRITER, &LOOP] {
        let order = order.clone();
        sup.spawn(spec, move |ctx| {
            wait(ctx);
            order.lock().push(spec.name);
        });
    }
    let report = sup.drain(Duration::from_secs(5));
    assert_eq!(report.stragglers, Vec::<String>::new());
    assert_eq!(*order.lock(), ["t-loop", "t-writer"]);
    let ended = "t_tasks_canceled_total{kind=\"t-writer\"} 1";
    assert!(registry.render().contains(ended), "{}", registry.render());

    let (registry, sup) = supervisor();
    let (free, held) = bounded::<()>(0);
    sup.spawn(&LOOP, move |_| {
        let _ = held.recv();
    });
    let report = sup.drain(Duration::from_millis(30));
    assert_eq!(report.stragglers, ["t-loop"]);
    let left = "t_tasks_aborted_total{kind=\"t-loop\"} 1";
    assert!(registry.render().contains(left), "{}", registry.render());
    drop(free);
}

#[test]
fn every_loop_sees_shutdown_within_100_ms() {
    let took = |_| {
        let (_registry, sup) = supervisor();
        sup.spawn_pool(&POOL, 4, wait);
        let report = sup.drain(Duration::from_secs(5));
        assert!(sup.draining());
        report.took
    };
    // The best of twenty: a busy machine may be late in any single round.
    let best = (0..20).map(took).min().expect("twenty");
    assert!(best < Duration::from_millis(100), "{best:?}");
}

#[test]
fn past_the_budget_threads_are_lost_for_good_and_the_verdict_gets_worse() {
    let (_registry, sup) = supervisor();
    let (poison, bitten) = bounded::<()>(8);
    sup.spawn_pool(&POOL, 2, move |ctx| {
        let hour = Deadline::within(Duration::from_hours(1));
        if let Selected::First(()) = chan::recv_or(&bitten, ctx.shutdown.gate(), hour.at()) {
            panic!("bitten");
        }
    });
    assert_eq!(sup.verdict(), Verdict::Whole);
    // The row's budget is used up: each further crash costs a thread.
    let book = sup.group(&POOL);
    book.recent.lock().extend(vec![Instant::now(); BUDGET]);
    poison.send(()).unwrap();
    until("one lost", || {
        sup.verdict() == Verdict::Degraded(vec!["t-pool"])
    });
    poison.send(()).unwrap();
    until("both lost", || {
        sup.verdict() == Verdict::NotReady(vec!["t-pool"])
    });
    let plane = &sup.planes()[0];
    assert_eq!((plane.lost, plane.live, plane.restarts), (2, 0, 0));
    assert!(
        plane
            .reason
            .as_ref()
            .unwrap()
            .contains("budget of 10 a minute")
    );
    assert_eq!(sup.fatal(), None, "only critical rows end the process");
    let report = sup.drain(Duration::from_secs(1));
    assert_eq!(sup.exit_code(&report), exit::OK);
}

#[test]
fn the_exit_code_says_how_it_ended() {
    let (_registry, sup) = supervisor();
    let (free, held) = bounded::<()>(0);
    sup.spawn(&LOOP, move |_| {
        let _ = held.recv();
    });
    let report = sup.drain(Duration::from_millis(20));
    assert_eq!(sup.exit_code(&report), exit::STRAGGLERS);
    sup.set_fatal("disk gone");
    assert_eq!(sup.exit_code(&report), exit::FATAL);
    drop(free);
}

#[test]
fn nothing_is_started_in_a_stage_that_is_drained() {
    let (_registry, sup) = supervisor();
    sup.drain(Duration::from_secs(1));
    sup.spawn(&LOOP, |_| panic!("never run"));
    assert!(sup.topology().threads.is_empty());
    assert_eq!(sup.planes()[0].total, 0);
}

fn refused(make: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(make));
    let panic = panic.expect_err("it was not refused");
    panic.downcast_ref::<String>().expect("a message").clone()
}

#[test]
fn a_thread_or_queue_outside_the_table_is_refused() {
    static GHOST: ThreadSpec = row("t-ghost", Count::One, Stage::Work, false);
    let (registry, sup) = supervisor();
    let km = sup.metrics().clone();
    let why = refused(|| sup.spawn(&GHOST, |_| {}));
    assert!(
        why.contains("`t-ghost` is not in the topology of test"),
        "{why}"
    );
    let why = refused(|| sup.spawn(&POOL, |_| {}));
    assert!(why.contains("is a pool"), "{why}");
    let why = refused(|| drop(queue::<u8>(&UNLISTED, 1, &km)));
    assert!(
        why.contains("`unlisted` (reject new) is not in the topology"),
        "{why}"
    );
    let why = refused(|| drop(queue::<u8>(&OTHER_POLICY, 1, &km)));
    assert!(why.contains("`jobs` (wait until deadline)"), "{why}");
    let why = refused(|| drop(Ring::<u8>::new(&JOBS, 1, &km)));
    assert!(why.contains("drop-oldest"), "{why}");
    drop(queue::<u8>(&JOBS, 1, &km));
    assert_eq!(km.built_queues().len(), 1);
    drop(registry);

    // Also when the queue was built before the supervisor.
    let registry = Registry::new("t");
    let km = KernelMetrics::new(&registry);
    drop(queue::<u8>(&UNLISTED, 1, &km));
    let clock = SystemClock::shared();
    let why = refused(|| drop(Supervisor::new(&TOPOLOGY, km, clock)));
    assert!(why.contains("`unlisted`"), "{why}");
    drop(bare_queue::<u8>(&UNLISTED, 1)); // without metrics there is no table; for tests only
}

#[test]
fn the_running_service_is_compared_with_the_table() {
    let (_registry, sup) = supervisor();
    let none = os_thread_names().unwrap();
    let found = sup.differences(&none);
    assert_eq!(
        found.len(),
        5,
        "three thread rows and two queue rows: {found:?}"
    );
    sup.spawn(&LOOP, wait);
    sup.spawn_pool(&POOL, 2, wait);
    sup.spawn(&WRITER, wait);
    drop(queue::<u8>(&JOBS, 7, sup.metrics()));
    let _ring = Ring::<u8>::new(&EVENTS, 2, sup.metrics());
    // A new thread sets its own name, a moment after it was started.
    until("no difference", || {
        sup.differences(&os_thread_names().unwrap()).is_empty()
    });
    assert_eq!(sup.topology().queues[0].built, [7]);
    let found = sup.differences(&[]);
    assert!(
        found.len() == 4 && found[0].contains("operating system"),
        "{found:?}"
    );
    sup.drain(Duration::from_secs(1));
}

#[test]
fn live_names_are_what_the_kernel_shows() {
    let (_registry, sup) = supervisor();
    sup.spawn(&LOOP, wait);
    sup.spawn_pool(&POOL, 2, wait);
    let mut names: Vec<_> = sup.topology().threads.into_iter().map(|t| t.name).collect();
    names.sort();
    assert_eq!(names, ["t-loop", "t-pool-0", "t-pool-1"]);
    sup.drain(Duration::from_secs(1));
}
