//! Laws 1 and 2: bounded queues, waits with deadlines.

use std::time::{Duration, Instant};

use ron_kernel::queue::bare_queue;
use ron_kernel::{
    Credits, Deadline, Expires, HangError, ManualClock, Overflow, Recv, Ring, SendError, Sender,
    Shutdown, WaitError, exit, queue, reply,
};

use crate::{JOBS, OLDEST, REJECT, WAIT, far, ms, rig};

/// Law 1: every queue is bounded and, when full, follows the policy of its row for every way to
/// send.
#[test]
fn law_1_a_full_queue_does_what_its_row_says() {
    type Send = fn(&Sender<u32>, u32) -> Result<(), SendError<u32>>;
    let now: Send = |tx, i| tx.try_send(i);
    let waiting: Send = |tx, i| tx.send(i, ms(40));
    let full = |i| Err(SendError::Full(i));
    for (spec, send, third, waits, left) in [
        (&REJECT, now, full(3), false, [1, 2]),
        (&REJECT, waiting, full(3), false, [1, 2]),
        (&WAIT, now, full(3), false, [1, 2]),
        (&WAIT, waiting, full(3), true, [1, 2]),
        (&OLDEST, now, Ok(()), false, [2, 3]),
        (&OLDEST, waiting, Ok(()), false, [2, 3]),
    ] {
        let rig = rig();
        let (tx, rx) = queue(spec, 2, &rig.km);
        assert_eq!((send(&tx, 1), send(&tx, 2)), (Ok(()), Ok(())));
        let start = Instant::now();
        assert_eq!(send(&tx, 3), third, "{}", spec.name);
        // No upper bound: a busy machine may delay a sender that does not wait.
        let took = start.elapsed();
        let long_enough = took >= Duration::from_millis(40) || !waits;
        assert!(long_enough, "{} took {took:?}", spec.name);
        assert_eq!((tx.len(), rx.len()), (2, 2), "bounded");
        let mut rest = Vec::new();
        rx.drain_into(&mut rest, 9);
        assert_eq!(rest, left, "{}", spec.name);
        let name = spec.name;
        match spec.overflow {
            Overflow::DropOldest => {
                rig.metric(&format!("t_queue_dropped_total{{queue=\"{name}\"}} 1"));
            }
            _ => rig.metric(&format!("t_busy_rejections_total{{queue=\"{name}\"}} 1")),
        }
    }
}

/// Law 1: a sender on a wait-until-deadline queue gets room that becomes free in time.
#[test]
fn law_1_a_waiting_sender_gets_the_room_that_comes_free() {
    let (tx, rx) = bare_queue(&WAIT, 1);
    tx.try_send(1).unwrap();
    std::thread::scope(|s| {
        let waiting = s.spawn(|| tx.send(2, far()));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(rx.try_recv(), Some(1));
        assert_eq!(waiting.join().unwrap(), Ok(()));
    });
    assert_eq!(rx.try_recv(), Some(2));
}

/// Law 1: a broadcast ring never delays its publisher, and each subscriber can read how much it
/// lost.
#[test]
fn law_1_a_slow_subscriber_never_holds_up_the_publisher() {
    let rig = rig();
    let ring = Ring::new(&OLDEST, 2, &rig.km);
    let slow = ring.subscribe();
    (0..1_000).for_each(|i| ring.publish(&i));
    assert_eq!((slow.lagged(), slow.try_recv()), (998, Some(998)));
    rig.metric("t_bus_lagged_total{bus=\"oldest\"} 998");
}

/// Law 2: every wait ends at its deadline, not before, and its result says so by type.
#[test]
fn law_2_every_wait_has_a_deadline() {
    let rig = rig();
    let (_trigger, token) = Shutdown::pair();
    let (tx, rx) = bare_queue::<u8>(&WAIT, 1);
    let (_tx2, empty) = bare_queue::<u8>(&REJECT, 1);
    tx.try_send(0).unwrap();
    let ring = Ring::<u8>::bare(&OLDEST, 1);
    let subscriber = ring.subscribe();
    let credits = Credits::new(1);
    let _taken = credits.try_acquire();
    let clock = ManualClock::at(0);
    let pool = rig.hang_pool(1);
    let (free, held) = std::sync::mpsc::sync_channel::<()>(1);
    let held = std::sync::Mutex::new(held);
    let waits: [(&str, &dyn Fn(Deadline)); 8] = [
        ("send", &|d| {
            assert_eq!(tx.send(1, d), Err(SendError::Full(1)));
        }),
        ("recv", &|d| {
            assert_eq!(empty.recv(&token, d), Recv::Timeout);
        }),
        ("ring", &|d| {
            assert_eq!(subscriber.recv(&token, d), Recv::Timeout);
        }),
        ("reply", &|d| {
            let (_open, answer) = reply::<u8>();
            assert_eq!(answer.wait(d), Err(WaitError::Timeout));
        }),
        ("credit", &|d| assert!(credits.acquire(d).is_none())),
        ("shutdown", &|d| assert!(!token.wait(d))),
        ("sleepers", &|d| assert!(!clock.until_sleepers(1, d))),
        ("hang", &|d| {
            let held = std::mem::replace(
                &mut *held.lock().unwrap(),
                std::sync::mpsc::sync_channel(0).1,
            );
            let out = pool.call("op", d, move |()| held.recv().is_ok());
            assert_eq!(out, Err(HangError::Hung));
        }),
    ];
    for (name, wait) in waits {
        let start = Instant::now();
        wait(ms(60));
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(60), "{name} after {took:?}");
        assert!(took < Duration::from_secs(20), "{name} after {took:?}");
    }
    drop(free);
    drop(rx);
    let report = rig.sup.drain(Duration::from_secs(20));
    assert_eq!(report.exit_code(), exit::OK);
}

struct Timed(u8, Deadline);

impl Expires for Timed {
    fn deadline(&self) -> Deadline {
        self.1
    }
}

/// Law 2: a job carries its absolute deadline; an expired job is dropped before work is done on it.
#[test]
fn law_2_an_expired_job_is_dropped_before_any_work() {
    let rig = rig();
    let (_trigger, token) = Shutdown::pair();
    let (tx, rx) = queue(&JOBS, 8, &rig.km);
    for (i, deadline) in [(1, ms(0)), (2, far()), (3, ms(0)), (4, ms(0))] {
        assert!(tx.try_send(Timed(i, deadline)).is_ok());
    }
    match rx.recv_fresh(&token, far()) {
        Recv::Item(Timed(i, _)) => assert_eq!(i, 2),
        _ => panic!("the second is fresh"),
    }
    assert!(rx.try_recv_fresh().is_none());
    rig.metric("t_io_timeouts_total{op=\"jobs\"} 3");
}

/// Laws 2 and 4, on the kernel's own source: no wait without a deadline, no sleep to poll.
#[test]
fn law_2_and_4_the_source_has_no_wait_without_end() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut dirs = vec![root];
    let mut files = 0;
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.display().to_string();
            if path.is_dir() {
                if !name.ends_with("/models") {
                    dirs.push(path);
                }
                continue;
            }
            if name.ends_with("tests.rs") || name.contains("/sync/model") {
                continue;
            }
            files += 1;
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(all(test").next().unwrap();
            let code = code.split("#[cfg(test)]").next().unwrap();
            for line in code.lines().filter(|l| !l.trim_start().starts_with("//")) {
                for word in [
                    ".recv()",
                    "sleep(",
                    ".wait(&mut",
                    "park()",
                    "spin_loop",
                    "unbounded(",
                ] {
                    assert!(!line.contains(word), "{name}: `{word}` in {line}");
                }
            }
        }
    }
    assert!(files > 20, "{files} files");
}
