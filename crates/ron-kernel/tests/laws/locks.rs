//! Law 9: the golden rule and the order of locks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ron_kernel::queue::bare_queue;
use ron_kernel::{
    Clock, Credits, ManualClock, RankedMutex, RankedRwLock, Ring, Shutdown, SystemClock, Ticker,
    reply,
};

use crate::{HIGH, LOW, OLDEST, WAIT, ms, rig};

fn ignore<T>(_: T) {}

fn broken(what: &str, law: impl FnOnce()) {
    let panic = catch_unwind(AssertUnwindSafe(law)).expect_err(what);
    let text = panic.downcast_ref::<String>().expect("a message");
    assert!(text.contains("`low` held over"), "{what}: {text}");
}

/// Law 9, the golden rule: no lock is held over a send, a wait or a drain, in any build.
#[test]
fn law_9_no_lock_is_held_over_a_send_or_a_wait() {
    let rig = rig();
    let mutex = RankedMutex::new(&LOW, ());
    let rw = RankedRwLock::new(&LOW, ());
    let (_trigger, token) = Shutdown::pair();
    let (tx, rx) = bare_queue::<u8>(&WAIT, 4);
    let ring = Ring::<u8>::bare(&OLDEST, 1);
    let subscriber = ring.subscribe();
    let credits = Credits::new(1);
    let clock = ManualClock::at(0);
    let pool = rig.hang_pool(1);
    let cases: [(&str, &dyn Fn()); 13] = [
        ("try_send", &|| ignore(tx.try_send(1))),
        ("send", &|| ignore(tx.send(1, ms(1)))),
        ("recv", &|| ignore(rx.recv(&token, ms(1)))),
        ("publish", &|| ring.publish(&1)),
        ("subscriber", &|| ignore(subscriber.recv(&token, ms(1)))),
        ("reply", &|| {
            let _ = reply::<u8>().1.wait(ms(1));
        }),
        ("credit", &|| ignore(credits.acquire(ms(1)))),
        ("shutdown", &|| {
            let _ = token.wait(ms(1));
        }),
        ("clock", &|| {
            let _ = clock.wait(&token, ms(1));
        }),
        ("sleepers", &|| {
            ignore(clock.until_sleepers(1, ms(1)));
        }),
        ("ticker", &|| {
            let mut ticker = Ticker::new(SystemClock::shared(), Duration::from_millis(1));
            let _ = ticker.wait(&token);
        }),
        ("hang pool", &|| ignore(pool.call("op", ms(1), |()| ()))),
        ("drain", &|| ignore(rig.sup.drain(Duration::ZERO))),
    ];
    for (what, wait) in cases {
        broken(what, || {
            let _guard = mutex.lock();
            wait();
        });
        broken(what, || {
            let _guard = rw.read();
            wait();
        });
        broken(what, || {
            let _guard = rw.write();
            wait();
        });
    }
    ron_kernel::assert_no_locks("the end of the test");
    rig.sup.drain(Duration::from_secs(20));
}

/// Law 9: locks are taken in ascending rank only.
#[test]
fn law_9_locks_are_taken_in_ascending_rank() {
    let low = RankedMutex::new(&LOW, ());
    let high = RankedMutex::new(&HIGH, ());
    let other = RankedMutex::new(&HIGH, ());
    {
        let _first = low.lock();
        let _second = high.lock();
    }
    for (what, law) in [
        (
            "descending",
            &(|| {
                let _b = high.lock();
                let _a = low.lock();
            }) as &dyn Fn(),
        ),
        ("twice", &|| {
            let _a = high.lock();
            let _b = other.lock();
        }),
    ] {
        let panic = catch_unwind(AssertUnwindSafe(law)).expect_err(what);
        let text = panic.downcast_ref::<String>().expect("a message");
        assert!(text.contains("ascending rank"), "{text}");
    }
}
