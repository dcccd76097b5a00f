//! Work on all processors at one time.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::task::Outcome;

/// Does each piece of work, as many at a time as there are processors. The first failure ends it, once what runs has ended.
pub fn abreast<T: Sync>(work: &[T], each: impl Fn(&T) -> Outcome + Sync) -> Outcome {
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicUsize::new(0);
    let work_on = || -> Outcome {
        while let Some(piece) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            each(piece).inspect_err(|_| next.store(work.len(), Ordering::Relaxed))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        #[expect(
            clippy::needless_collect,
            reason = "all of them begin before one is waited for"
        )]
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work_on)).collect();
        let ends = workers.into_iter().map(|worker| match worker.join() {
            Ok(end) => end,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ends.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Failure;

    #[test]
    fn work_is_done_abreast_until_one_piece_fails() {
        let done = AtomicUsize::new(0);
        let add = |piece: &usize| {
            done.fetch_add(*piece, Ordering::Relaxed);
            Ok(())
        };
        abreast(&[1, 2, 4, 8, 16], add).unwrap();
        assert_eq!(done.load(Ordering::Relaxed), 31);
        let fails = |piece: &usize| match piece {
            0 => Err(Failure("the first".to_owned())),
            _ => Ok(()),
        };
        assert!(abreast(&[0, 1, 2], fails).is_err());
    }
}
