//! State followed from an issuer, each value with the source it was read from: two threads read, a
//! reload may configure another issuer at any moment, and requests are decided by it. Pure but for
//! the kernel's snapshot.
//!
//! **Invariants:** a reader never gets a value from another source than the one it asks for; a read
//! that began earlier never replaces one that began later, whichever ends first. Where the source numbers its versions,
//! they decide: the read that began later may have been answered earlier.

use std::sync::Arc;

use ron_kernel::Snapshot;

/// The latest value of one kind, with its source.
#[derive(Debug)]
pub struct Followed<S, T> {
    held: Snapshot<Latest<S, T>>,
}

#[derive(Debug)]
struct Latest<S, T> {
    /// Number of reads begun so far.
    begun: u64,
    /// Number of the read that gave this value.
    of_read: u64,
    /// The source's own version of it; 0 where it has none.
    version: u64,
    what: Option<(Arc<S>, Arc<T>)>,
}

/// A read in progress.
#[derive(Debug)]
pub struct Reading<S> {
    number: u64,
    source: Arc<S>,
}

impl<S, T> Default for Followed<S, T> {
    fn default() -> Self {
        Self {
            held: Snapshot::new(Latest {
                begun: 0,
                of_read: 0,
                version: 0,
                what: None,
            }),
        }
    }
}

impl<S: PartialEq, T> Followed<S, T> {
    /// Begins a read of `source`.
    pub fn begin(&self, source: S) -> Reading<S> {
        let now = self.held.update(|held| Latest {
            begun: held.begun + 1,
            of_read: held.of_read,
            version: held.version,
            what: held.what.clone(),
        });
        Reading {
            number: now.begun,
            source: Arc::new(source),
        }
    }

    /// Stores the result of a read, unless a read that began later has already finished. Returns
    /// whether it was stored.
    pub fn finish(&self, reading: &Reading<S>, value: T) -> bool {
        self.finish_version(reading, 0, value)
    }

    /// The same for a value that its source has numbered: a lower version never replaces a higher one.
    pub fn finish_version(&self, reading: &Reading<S>, version: u64, value: T) -> bool {
        let value = Arc::new(value);
        let kept = self.held.try_update(|held| {
            let same = held
                .what
                .as_ref()
                .is_some_and(|(from, _)| **from == *reading.source);
            let late = if same && held.version != version {
                held.version > version
            } else {
                held.of_read > reading.number
            };
            #[cfg(mutant = "older")] // the read that ends last wins, however old it is
            let late = late && !ron_kernel::mutant("older");
            if late {
                return Err(());
            }
            Ok(Latest {
                begun: held.begun,
                of_read: reading.number,
                version,
                what: Some((reading.source.clone(), value.clone())),
            })
        });
        kept.is_ok()
    }

    /// Accepts any version next: an operator has accepted an older one.
    pub fn forget_version(&self) {
        self.held.update(|held| Latest {
            begun: held.begun,
            of_read: held.of_read,
            version: 0,
            what: held.what.clone(),
        });
    }

    /// The latest value, if it came from the requested source.
    pub fn of(&self, is: impl FnOnce(&S) -> bool) -> Option<Arc<T>> {
        let held = self.held.load();
        let (from, value) = held.what.as_ref()?;
        let same = is(from);
        #[cfg(mutant = "source")] // the value of the previous issuer still counts
        let same = same || ron_kernel::mutant("source");
        same.then(|| value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_read_stays_and_other_sources_are_not_heard() {
        let keys: Followed<&str, u32> = Followed::default();
        let of = |source: &str| keys.of(|from| *from == source);
        let (early, late) = (keys.begin("a"), keys.begin("a"));
        assert_eq!(of("a"), None);
        assert!(keys.finish(&late, 2));
        assert!(!keys.finish(&early, 1), "it began before");
        assert_eq!(of("a").as_deref(), Some(&2));
        assert_eq!(of("b"), None);
        let moved = keys.begin("b");
        assert_eq!(of("a").as_deref(), Some(&2), "until it is read");
        assert!(keys.finish(&moved, 3));
        assert_eq!((of("a"), of("b").as_deref()), (None, Some(&3)));
    }
}
