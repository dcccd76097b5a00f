//! Law 4: every loop observes shutdown; a drain stops stages in order and loses no accepted work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ron_kernel::queue::bare_queue;
use ron_kernel::{
    Clock, Deadline, ManualClock, Recv, RecvEither, Ring, Shutdown, SystemClock, Ticker, exit,
    queue,
};

use crate::{INTAKE, JOBS, OLDEST, REJECT, RESULTS, WORKERS, WRITER, far, rig, until};

/// Law 4: a loop in any of the kernel's waits observes shutdown within 100 ms although its own
/// deadline is a minute away. The best of a few rounds counts: the machine may be busy.
#[test]
fn law_4_every_wait_observes_shutdown_at_once() {
    type Loop = fn(&Shutdown);
    let loops: [(&str, Loop); 6] = [
        ("shutdown", |s| assert!(s.wait(far()))),
        ("recv", |s| {
            let (_tx, rx) = bare_queue::<u8>(&REJECT, 1);
            assert_eq!(rx.recv(s, far()), Recv::Shutdown);
        }),
        ("ring", |s| {
            let ring = Ring::<u8>::bare(&OLDEST, 1);
            assert_eq!(ring.subscribe().recv(s, far()), Recv::Shutdown);
        }),
        ("ticker", |s| {
            let mut ticker = Ticker::new(SystemClock::shared(), Duration::from_secs(60));
            assert_eq!(ticker.wait(s), None);
        }),
        ("virtual clock", |s| {
            let clock = ManualClock::at(0);
            let until = Deadline::after(clock.as_ref(), Duration::from_secs(60));
            assert!(clock.wait(s, until));
        }),
        ("two queues", |s| {
            let (_tx, rx) = bare_queue::<u8>(&REJECT, 1);
            let (_tx2, rx2) = bare_queue::<u8>(&REJECT, 1);
            assert_eq!(rx.recv_either(&rx2, s, far()), RecvEither::Shutdown);
        }),
    ];
    for (name, body) in loops {
        let round = || {
            let (trigger, token) = Shutdown::pair();
            std::thread::scope(|s| {
                let waiting = s.spawn(|| body(&token));
                std::thread::sleep(Duration::from_millis(10));
                let start = Instant::now();
                trigger.fire();
                waiting.join().unwrap();
                start.elapsed()
            })
        };
        let best = (0..20).map(|_| round()).min().unwrap();
        assert!(best < Duration::from_millis(100), "{name} after {best:?}");
    }
}

/// Law 4, the order of a drain under load: intake stops, workers finish their jobs, the writer
/// makes the results durable, threads are joined, exit code 0; no accepted job is lost.
#[test]
fn law_4_a_drain_under_load_loses_nothing() {
    let rig = rig();
    let (jobs_tx, jobs) = queue::<u64>(&JOBS, 16, &rig.km);
    let (results_tx, results) = queue::<u64>(&RESULTS, 2, &rig.km);
    let accepted = Arc::new(AtomicU64::new(0));
    let written = Arc::new(AtomicU64::new(0));
    let count = written.clone();
    rig.sup.spawn(&WRITER, move |ctx| {
        while let Recv::Item(_) | Recv::Timeout = match results.recv(&ctx.shutdown, far()) {
            Recv::Item(i) => {
                count.fetch_add(1, Ordering::SeqCst);
                Recv::Item(i)
            }
            other => other,
        } {}
        while results.try_recv().is_some() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    rig.sup.spawn_pool(&WORKERS, 3, move |ctx| {
        let hand_on = |i| {
            results_tx
                .send(i, far())
                .expect("the writer outlives the workers");
        };
        while let Recv::Item(i) = jobs.recv(&ctx.shutdown, far()) {
            hand_on(i);
        }
        // Its last jobs take a while; the writer must still run then.
        std::thread::sleep(Duration::from_millis(50));
        while let Some(i) = jobs.try_recv() {
            hand_on(i);
        }
    });
    let counted = accepted.clone();
    rig.sup.spawn(&INTAKE, move |ctx| {
        while !ctx.shutdown.is_set() {
            let sent = jobs_tx.try_send(1).is_ok();
            counted.fetch_add(u64::from(sent), Ordering::SeqCst);
        }
    });
    until("load", || accepted.load(Ordering::SeqCst) > 1_000);
    let report = rig.sup.drain(Duration::from_secs(20));
    assert_eq!(report.stragglers, Vec::<String>::new());
    assert_eq!(rig.sup.exit_code(&report), exit::OK);
    assert_eq!(
        written.load(Ordering::SeqCst),
        accepted.load(Ordering::SeqCst)
    );
    rig.metric("t_shutdown_drains_total{result=\"clean\"} 1");
    assert!(rig.sup.topology().threads.is_empty(), "all joined");
}

/// Law 4: a thread that does not stop is counted, named and left behind, and the exit code says so;
/// the stages after it are still stopped and joined, in a share of the time kept for them.
#[test]
fn law_4_stragglers_are_counted_and_named() {
    let rig = rig();
    let stop = Arc::new(AtomicBool::new(false));
    let (stuck, flushed) = (stop.clone(), Arc::new(AtomicBool::new(false)));
    rig.sup.spawn_pool(&WORKERS, 1, move |_| {
        while !stuck.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1)); // ignores the token
        }
    });
    let done = flushed.clone();
    rig.sup.spawn(&WRITER, move |ctx| {
        assert!(ctx.shutdown.wait(far()));
        done.store(true, Ordering::SeqCst);
    });
    let report = rig.sup.drain(Duration::from_millis(1_000));
    assert_eq!(report.stragglers, ["l-work-0"]);
    assert_eq!(rig.sup.exit_code(&report), exit::STRAGGLERS);
    rig.metric("t_tasks_aborted_total{kind=\"l-work-\"} 1");
    rig.metric("t_shutdown_drains_total{result=\"stragglers\"} 1");
    assert!(flushed.load(Ordering::SeqCst), "the writer flushed");
    assert!(report.took < Duration::from_secs(20), "{report:?}");
    stop.store(true, Ordering::SeqCst);
}
