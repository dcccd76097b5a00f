//! One computation in two halves: a producer on a thread of its own beside its consumer.

use std::io;

use crate::sync;

/// Runs `make` on a thread of its own, at most `ahead` items before `take`, and returns the results
/// of both. Its argument passes an item on, and returns false once nothing takes any more; `make`
/// then has to end. `take` gets the items in order until `make` has ended.
///
/// # Errors
/// The thread cannot be started.
pub fn beside<T: Send, A: Send, B>(
    name: &str,
    ahead: usize,
    make: impl FnOnce(&mut dyn FnMut(T) -> bool) -> A + Send,
    take: impl FnOnce(&mut dyn Iterator<Item = T>) -> B,
) -> io::Result<(A, B)> {
    sync::beside(name, ahead, make, take)
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    use super::*;

    #[test]
    fn items_arrive_in_order_and_both_results_are_returned() {
        let make = |push: &mut dyn FnMut(u32) -> bool| (0..1_000).all(push);
        let (made, taken) = beside("maker", 3, make, |items| items.collect::<Vec<u32>>()).unwrap();
        assert!(made);
        assert!(taken.into_iter().eq(0..1_000));
    }

    #[test]
    fn a_producer_ends_when_nothing_takes_any_more() {
        let make = |push: &mut dyn FnMut(u32) -> bool| (0..u32::MAX).find(|n| !push(*n));
        let (made, taken) = beside("maker", 2, make, |items| items.next()).unwrap();
        assert_eq!(taken, Some(0));
        assert!(made.is_some_and(|last| last <= 4), "{made:?}");
    }

    #[test]
    fn panics_of_both_sides_arrive() {
        let caught = |f: fn()| std::panic::catch_unwind(f).is_err();
        assert!(caught(|| {
            let _ = beside(
                "maker",
                1,
                |_| panic!("producer"),
                |i: &mut dyn Iterator<Item = u8>| i.count(),
            );
        }));
        assert!(caught(|| {
            let make = |push: &mut dyn FnMut(u8) -> bool| while push(1) {};
            let _: io::Result<((), ())> = beside("maker", 1, make, |_| panic!("consumer"));
        }));
    }
}
