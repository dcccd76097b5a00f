//! The virtual clock: it jumps when all threads wait, and deadlines end in their order.

use std::sync::Arc;
use std::time::{Duration, Instant};

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
