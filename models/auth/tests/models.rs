//! Models of key refresh against verification: loom runs every interleaving of a few threads,
//! shuttle samples those of more (`cargo xtask loom`). Each names the mutants, deliberately faulty
//! versions, that it must catch.
#![cfg(any(loom, shuttle))]
#![allow(missing_docs, clippy::pedantic, clippy::needless_collect)]

use std::sync::Arc;
use std::time::Duration;

#[cfg(loom)]
use loom::thread;
#[cfg(shuttle)]
use shuttle::thread;

use ron_auth_models::trust::Followed;
use ron_kernel::loops::{NextRead, read_again};
use ron_kernel::queue::bare_queue;
use ron_kernel::{Overflow, QueueSpec, Shutdown, Snapshot, SystemClock};

static ASKED: QueueSpec = QueueSpec {
    name: "asked",
    capacity: 1,
    overflow: Overflow::DropOldest,
    from: "model",
    to: "model",
    when_full: "model",
};

const fn size(loom: usize, shuttle: usize) -> usize {
    if cfg!(loom) { loom } else { shuttle }
}

#[cfg(loom)]
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(2);
    builder.max_branches = 20_000;
    builder.check(model);
}

#[cfg(shuttle)]
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let asked = std::env::var("SHUTTLE_ITERATIONS");
    let iterations = asked.map_or(4_000, |n| n.parse().unwrap());
    let model = Arc::new(model);
    let again = model.clone();
    shuttle::check_random(move || model(), iterations / 2);
    shuttle::check_pct(move || again(), iterations / 2, 3);
}

/// An issuer's key set as a verifier sees it: its issuer and the number of its rotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Keys {
    issuer: u64,
    rotation: u64,
}

/// A verifier: the configured issuer, the keys read from it, and the issuer's present rotation.
struct Verifier {
    configured: Snapshot<u64>,
    keys: Followed<u64, Keys>,
    rotation: Snapshot<u64>,
}

impl Verifier {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            configured: Snapshot::new(0),
            keys: Followed::default(),
            rotation: Snapshot::new(0),
        })
    }

    /// One read of the key set, as both refresh threads do it. Returns the keys that it read.
    fn read(&self) -> Keys {
        let issuer = *self.configured.load();
        let reading = self.keys.begin(issuer);
        let rotation = *self.rotation.load();
        let keys = Keys { issuer, rotation };
        self.keys.finish(&reading, keys);
        keys
    }

    /// The keys that verify a request.
    fn judge(&self) -> Option<Keys> {
        let issuer = *self.configured.load();
        let keys = self.keys.of(|read| *read == issuer)?;
        assert_eq!(keys.issuer, issuer, "judged by another issuer's keys");
        Some(*keys)
    }
}

/// Requests are verified while two threads read the keys and the issuer rotates: no request is
/// verified by another issuer's keys; while the issuer stays the same, keys never get older; and
/// once all reads have ended, the keys are at least as new as the rotation before the last read
/// request. Mutants `older`, `source`.
#[test]
fn requests_are_judged_by_the_keys_of_their_issuer_and_never_by_older_ones() {
    const REQUESTS: usize = size(2, 4);
    explore(|| {
        let v = Verifier::new();
        let (stop, shutdown) = Shutdown::pair();
        let (ask, asked) = bare_queue::<()>(&ASKED, 1);
        assert_eq!(ask.try_send(()), Ok(()), "an unknown key turned up");
        let by_interval = {
            let v = v.clone();
            thread::spawn(move || {
                let mut reads = 0;
                read_again(&asked, &shutdown, &SystemClock, || {
                    v.read();
                    reads += 1;
                    if reads == 2 {
                        stop.fire();
                    }
                    NextRead {
                        after: Duration::from_secs(36_000),
                        floor: Duration::ZERO,
                    }
                });
            })
        };
        let by_feed = {
            let v = v.clone();
            // The feed says that the keys have changed, then the feed thread reads them.
            thread::spawn(move || {
                v.rotation.store(1);
                v.read()
            })
        };
        let mut seen = 0;
        for _ in 0..REQUESTS {
            if let Some(keys) = v.judge() {
                assert!(keys.rotation >= seen, "older keys after newer ones");
                seen = keys.rotation;
            }
        }
        let told = by_feed.join().unwrap();
        by_interval.join().unwrap();
        let stays = v.judge().expect("both have read");
        assert!(stays.rotation >= told.rotation, "an older read won");
    });
}

/// A reload names another issuer while the keys of the previous one are being read: the previous
/// keys are never used again, whichever ends first. Mutant `source`.
#[test]
fn a_reload_keeps_nothing_of_the_previous_issuer() {
    explore(|| {
        let v = Verifier::new();
        v.read();
        let reader = {
            let v = v.clone();
            thread::spawn(move || v.read())
        };
        let reload = {
            let v = v.clone();
            thread::spawn(move || v.configured.store(1))
        };
        v.judge();
        reload.join().unwrap();
        v.judge();
        reader.join().unwrap();
        v.judge();
        let now = v.read();
        assert_eq!((now.issuer, v.judge()), (1, Some(now)));
    });
}
