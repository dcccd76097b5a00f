//! Law 6: a panicking worker is restarted, within a budget; past it the service is degraded or
//! ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ron_kernel::{
    Count, KernelMetrics, Receiver, Recv, Registry, ReplySender, SendError, Shutdown, Stage,
    Supervisor, SystemClock, ThreadSpec, Topology, Verdict, WaitError, exit, queue, reply,
};

use crate::{JOBS, WORKERS, far, rig, row, until};

enum Job {
    Double(u64, ReplySender<u64>),
    Kill(ReplySender<u64>),
}

fn work(jobs: &Receiver<Job>, shutdown: &Shutdown) {
    let run = |job| match job {
        Job::Double(n, reply) => drop(reply.send(n * 2)),
        Job::Kill(_reply) => panic!("injected"),
    };
    while let Recv::Item(job) = jobs.recv(shutdown, far()) {
        run(job);
    }
    while let Some(job) = jobs.try_recv() {
        run(job);
    }
}

/// Law 6: killing any worker of a pool under load loses no accepted job: each is answered, and the
/// waiter of the killed worker's job sees that it was dropped. The pool is whole again within 200
/// ms (the median of the kills, because the machine may be busy).
#[test]
fn law_6_killing_workers_loses_no_accepted_job() {
    const KILLS: usize = 9;
    let rig = rig();
    let (tx, jobs) = queue::<Job>(&JOBS, 64, &rig.km);
    rig.sup
        .spawn_pool(&WORKERS, 4, move |ctx| work(&jobs, &ctx.shutdown));
    let stop = AtomicBool::new(false);
    let mut back = std::thread::scope(|s| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                s.spawn(|| {
                    let mut answered = 0;
                    while !stop.load(Ordering::SeqCst) {
                        let (slot, answer) = reply();
                        if tx.try_send(Job::Double(answered, slot)).is_ok() {
                            assert_eq!(answer.wait(far()), Ok(answered * 2), "lost");
                            answered += 1;
                        }
                    }
                    answered
                })
            })
            .collect();
        let kill = |n: usize| {
            let (slot, answer) = reply();
            let mut job = Job::Kill(slot);
            while let Err(SendError::Full(again)) = tx.try_send(job) {
                job = again;
            }
            assert_eq!(
                answer.wait(far()),
                Err(WaitError::Dropped),
                "typed, not silent"
            );
            let restarts = || rig.sup.planes()[0].restarts as usize;
            until("restarted", || {
                restarts() == n && rig.sup.verdict() == Verdict::Whole
            })
        };
        let back: Vec<_> = (1..=KILLS).map(kill).collect();
        stop.store(true, Ordering::SeqCst);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
        back
    });
    back.sort();
    assert!(back[KILLS / 2] < Duration::from_millis(200), "{back:?}");
    rig.metric("t_service_restarts_total{kind=\"l-work-\"} 9");
    assert_eq!(rig.sup.drain(Duration::from_secs(20)).exit_code(), exit::OK);
}

/// Law 6: at most ten restarts a minute in one row. Eleven workers that crash once each give ten
/// restarts and one loss; while others live the service is degraded and stays ready.
#[test]
fn law_6_the_eleventh_crash_in_a_minute_is_not_restarted() {
    let rig = rig();
    let crashes = Arc::new(AtomicUsize::new(0));
    let seen = crashes.clone();
    rig.sup.spawn_pool(&WORKERS, 11, move |ctx| {
        assert!(seen.fetch_add(1, Ordering::SeqCst) >= 11, "first run");
        ctx.shutdown.wait(far());
    });
    let plane = || rig.sup.planes()[0].clone();
    until("the rest is back", || {
        plane().live == 10 && plane().lost == 1
    });
    assert_eq!(plane().restarts, 10);
    assert_eq!(rig.sup.verdict(), Verdict::Degraded(vec!["l-work"]));
    assert_eq!(rig.sup.fatal(), None);
    rig.sup.drain(Duration::from_secs(20));
}

/// Law 6: a critical thread that keeps crashing ends the process, with its own exit code.
#[test]
fn law_6_a_flapping_critical_thread_is_fatal() {
    static POOL: ThreadSpec = row("l-crit-", Count::Pool("n"), Stage::Write, true);
    static TABLE: Topology = Topology {
        service: "laws",
        threads: &[POOL],
        queues: &[],
        locks: &[],
    };
    let registry = Registry::new("t");
    let km = KernelMetrics::new(&registry);
    let sup = Supervisor::new(&TABLE, km, SystemClock::shared());
    sup.spawn_pool(&POOL, 11, |_| panic!("disk gone"));
    assert!(sup.fatal_token().wait(far()));
    let Verdict::Fatal(why) = sup.verdict() else {
        panic!("not fatal");
    };
    assert!(
        why.contains("l-crit-") && why.contains("disk gone"),
        "{why}"
    );
    let report = sup.drain(Duration::from_secs(20));
    assert_eq!(sup.exit_code(&report), exit::FATAL);
}
