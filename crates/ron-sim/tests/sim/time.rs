//! The virtual clock: it jumps when all threads wait, and deadlines end in their order.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ron_sim::sync::Mutex;
use ron_sim::{Schedule, Sim, thread, time};

use crate::{join_all, passes};

#[test]
fn a_year_of_sleep_takes_no_time_and_the_date_goes_on() {
    let sim = Sim {
        time_max: Duration::from_secs(1_000 * 86_400),
        ..Sim::new(3)
    };
    let real = Instant::now();
    let outcome = passes(&sim, || {
        let (date, start) = (time::date(), time::now());
        for _ in 0..365 {
            time::sleep(Duration::from_secs(86_400));
        }
        let year = Duration::from_secs(365 * 86_400);
        assert!(time::date() >= date + year && time::elapsed() >= year);
        assert!(time::now() - start < year + Duration::from_secs(1));
    });
    assert!(outcome.time >= Duration::from_secs(365 * 86_400));
    assert!(real.elapsed() < Duration::from_secs(60));
}

#[test]
fn deadlines_end_in_their_order_and_equal_ones_in_the_order_of_threads() {
    let order: Arc<Mutex<Vec<u64>>> = Arc::default();
    let seen = order.clone();
    let sim = Sim {
        schedule: Some(Schedule::default()),
        ..Sim::new(1)
    };
    passes(&sim, move || {
        let at = time::now();
        let threads: Vec<_> = [30, 10, 20, 10, 10]
            .into_iter()
            .enumerate()
            .map(|(n, ms)| {
                let seen = seen.clone();
                thread::spawn(move || {
                    time::sleep((at + Duration::from_millis(ms)) - time::now());
                    seen.lock().push(ms * 10 + n as u64);
                })
            })
            .collect();
        join_all(threads);
    });
    let order = order.lock();
    assert!(order.iter().map(|n| n / 10).is_sorted(), "{order:?}");
}

#[test]
fn a_loop_that_watches_the_clock_ends() {
    Sim::new(0).check(0..20, || {
        let until = time::now() + Duration::from_micros(50);
        while time::now() < until {}
    });
}

#[test]
fn the_clocks_of_the_standard_library_are_virtual_in_a_run_and_real_outside() {
    let real = (Instant::now(), SystemTime::now());
    passes(&Sim::new(2), || {
        let (instant, date) = (Instant::now(), SystemTime::now());
        time::sleep(Duration::from_secs(86_400));
        let day = Duration::from_secs(86_400)..Duration::from_secs(86_401);
        assert!(day.contains(&instant.elapsed()) && day.contains(&date.elapsed().unwrap()));
        assert!(time::now() >= instant && time::date().as_secs() >= 1_767_225_600 + 86_400);
    });
    let outside = Duration::ZERO..Duration::from_secs(3_600);
    assert!(outside.contains(&real.0.elapsed()) && outside.contains(&real.1.elapsed().unwrap()));
    assert!(real.0.elapsed() > Duration::ZERO);
}
