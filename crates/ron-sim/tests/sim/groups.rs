//! Groups: threads that are paused or killed together.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ron_sim::sync::{AtomicU64, Mutex};
use ron_sim::{Failure, Group, Sim, chan, time};

use crate::passes;

#[test]
fn a_killed_group_never_runs_again_and_keeps_its_locks() {
    Sim::new(0).check(0..100, || {
        let group = Group::new("service");
        let ticks = Arc::new(AtomicU64::new(0));
        let own = Arc::new(Mutex::named("own", 0));
        let (tx, rx) = chan::bounded::<u8>(1);
        let (count, lock) = (ticks.clone(), own.clone());
        let service = group.spawn("service", move || {
            let helper = ron_sim::thread::spawn(move || {
                let _kept = lock.lock();
                time::sleep(Duration::from_secs(3_600));
            });
            loop {
                count.fetch_add(1, Ordering::SeqCst);
                time::sleep(Duration::from_millis(10));
                if count.load(Ordering::SeqCst) > 1_000 {
                    drop(tx);
                    return helper.join().is_ok();
                }
            }
        });
        let service = service.unwrap();
        time::sleep(Duration::from_millis(105));
        group.kill();
        let before = ticks.load(Ordering::SeqCst);
        assert!(before > 0);
        assert!(service.join().is_err(), "a killed thread has no result");
        assert!(own.try_lock().is_none(), "the helper died with its lock");
        let silent = rx.recv_deadline(time::now() + Duration::from_secs(60));
        assert_eq!(
            silent,
            Err(chan::RecvTimeoutError::Timeout),
            "never dropped"
        );
        assert_eq!(ticks.load(Ordering::SeqCst), before);
        assert!(group.spawn("again", || ()).is_err());
        let again = Group::new("service");
        assert_eq!(again.spawn("service", || 7).unwrap().join(), Ok(7));
    });
}

#[test]
fn a_thread_can_kill_its_own_group() {
    let outcome = passes(&Sim::new(5), || {
        let group = Group::new("service");
        let service = group.spawn("service", move || {
            group.kill();
            unreachable!("killed threads do not come back");
        });
        assert!(service.unwrap().join().is_err());
    });
    assert_eq!(outcome.left.len(), 1, "{:?}", outcome.left);
    assert!(outcome.left[0].contains("killed"), "{:?}", outcome.left);
}

#[test]
fn a_paused_group_goes_on_after_its_pause() {
    Sim::new(0).check(0..50, || {
        let group = Group::new("service");
        let ticks = Arc::new(AtomicU64::new(0));
        let count = ticks.clone();
        let service = group.spawn("service", move || {
            for _ in 0..100 {
                time::sleep(Duration::from_millis(10));
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        time::sleep(Duration::from_millis(200));
        group.pause(Duration::from_secs(30));
        let before = ticks.load(Ordering::SeqCst);
        time::sleep(Duration::from_secs(29));
        assert_eq!(ticks.load(Ordering::SeqCst), before);
        service.unwrap().join().unwrap();
        assert!(time::elapsed() > Duration::from_secs(30));
        assert_eq!(ticks.load(Ordering::SeqCst), 100);
    });
}

#[test]
fn seeds_pause_groups_when_asked_and_only_then() {
    let longest = |pauses| {
        let runs = (0..200).map(|seed| {
            let sim = Sim {
                pauses,
                ..Sim::new(seed)
            };
            let outcome = passes(&sim, || {
                let group = Group::new("service");
                let service = group.spawn("service", || {
                    let lock = Mutex::new(());
                    (0..200).for_each(|_| drop(lock.lock()));
                });
                service.unwrap().join().unwrap();
            });
            outcome.time
        });
        runs.max().unwrap()
    };
    assert!(longest(false) < Duration::from_millis(100));
    assert!(
        longest(true) > Duration::from_secs(1),
        "{:?}",
        longest(true)
    );
}

#[test]
fn a_lock_of_a_killed_thread_is_named_when_others_wait_for_it() {
    let outcome = Sim::new(1).run(|| {
        let group = Group::new("service");
        let shared = Arc::new(Mutex::named("shared", 0));
        let lock = shared.clone();
        let service = group.spawn("holder", move || {
            let _kept = lock.lock();
            time::sleep(Duration::from_secs(3_600));
        });
        drop(service);
        time::sleep(Duration::from_secs(1));
        group.kill();
        drop(shared.lock());
    });
    let Some(Failure::Deadlock { threads }) = outcome.failure else {
        panic!("{outcome}");
    };
    let text = threads.join("\n");
    assert!(
        text.contains("`shared`") && text.contains("which `holder` holds"),
        "{text}"
    );
    assert!(text.contains("`holder` was killed"), "{text}");
}
