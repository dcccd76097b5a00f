//! The memory budget of request bodies, unfinished heads and unsent answers, counted over all
//! fronts of the process: six services in one process share one budget.
//!
//! The first [`FREE`] bytes of each buffer are not counted: the limit on connections bounds them,
//! small requests touch no shared counter, and small requests are still served when large ones have
//! used up the budget.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes taken now, by all fronts of the process. Relaxed everywhere: the counter guards no other
/// memory, and each update is one atomic step, so that the bound holds.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Bytes of one buffer that are not counted.
pub(crate) const FREE: usize = 4 << 10;

/// The budget has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// A share of the budget, given back when dropped.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HeldBytes(usize);

impl HeldBytes {
    /// Raises the share to that of a buffer of this many bytes; refused, with nothing changed, when
    /// the process would hold more than `most`. For a smaller buffer than before the share stays.
    pub(crate) fn grow_to(&mut self, bytes: usize, most: usize) -> Result<(), Full> {
        let wanted = bytes.saturating_sub(FREE);
        let Some(more) = wanted.checked_sub(self.0).filter(|more| *more > 0) else {
            return Ok(());
        };
        let taken = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            taken.checked_add(more).filter(|all| *all <= most)
        });
        taken.map_err(|_| Full)?;
        self.0 = wanted;
        Ok(())
    }

    /// Lowers the share to that of a buffer of this many bytes.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let wanted = bytes.saturating_sub(FREE);
        if let Some(less) = self.0.checked_sub(wanted) {
            TAKEN.fetch_sub(less, Ordering::Relaxed);
            self.0 = wanted;
        }
    }
}

/// A cloned request takes its share again; cloning is never refused.
impl Clone for HeldBytes {
    fn clone(&self) -> Self {
        TAKEN.fetch_add(self.0, Ordering::Relaxed);
        Self(self.0)
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        if self.0 > 0 {
            TAKEN.fetch_sub(self.0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bound that other tests of this process cannot reach, and shares that only this one has.
    const HUGE: usize = usize::MAX / 4;

    #[test]
    fn a_share_is_counted_once_refused_above_the_bound_and_given_back() {
        let mut small = HeldBytes::default();
        assert_eq!(small.grow_to(FREE, 0), Ok(()), "not counted");
        let mut held = HeldBytes::default();
        assert_eq!(held.grow_to(HUGE + FREE, HUGE - 1), Err(Full));
        assert_eq!(held, HeldBytes::default(), "a refusal takes nothing");
        assert_eq!(held.grow_to(HUGE / 2 + FREE, HUGE), Ok(()));
        assert_eq!(
            held.grow_to(HUGE / 4, 0),
            Ok(()),
            "the share is large enough already"
        );
        let copy = held.clone();
        let mut other = HeldBytes::default();
        assert_eq!(other.grow_to(HUGE / 4 + FREE, HUGE), Err(Full));
        drop(copy);
        held.shrink_to(HUGE / 4);
        assert_eq!(other.grow_to(HUGE / 4 + FREE, HUGE), Ok(()));
    }
}
