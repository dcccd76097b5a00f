//! Snapshots: one value replaced while others read it.
#![cfg(test)]

use super::{explore, size, thread};
use crate::snapshot::Snapshot;

/// Readers see whole values and never an older one after a newer one; no writer's update is lost,
/// and a refused update changes nothing. Mutant `snapshot`.
#[test]
fn readers_see_whole_values_in_order_and_no_update_is_lost() {
    const WRITERS: u64 = size(2, 4) as u64;
    const READERS: usize = size(1, 4);
    const EACH: u64 = size(1, 4) as u64;
    explore(|| {
        // A configuration of two fields that belong together.
        let config = std::sync::Arc::new(Snapshot::new((0u64, 0u64)));
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let config = config.clone();
                thread::spawn(move || {
                    let mut last = 0;
                    for _ in 0..2 {
                        let seen = config.load();
                        assert_eq!(seen.1, seen.0 * 10, "torn");
                        assert!(seen.0 >= last, "older after newer");
                        last = seen.0;
                    }
                })
            })
            .collect();
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| {
                let config = config.clone();
                thread::spawn(move || {
                    for _ in 0..EACH {
                        config.update(|(a, b)| (a + 1, b + 10));
                    }
                    let refused = config.try_update(|_| Err::<(u64, u64), _>("invalid"));
                    assert_eq!(refused, Err("invalid"));
                })
            })
            .collect();
        for t in readers.into_iter().chain(writers) {
            t.join().unwrap();
        }
        assert_eq!(*config.load(), (WRITERS * EACH, WRITERS * EACH * 10));
    });
}
