//! Groups of threads that are paused or killed together, like the processes that they stand for. A thread starts its
//! threads in its own group.

use std::io;
use std::time::Duration;

use crate::thread::{JoinHandle, spawn_in};
use crate::world::with_me;

/// A group of the current run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(u32);

impl Group {
    /// A new, empty group.
    ///
    /// # Panics
    /// Outside of a run.
    pub fn new(name: &str) -> Self {
        let added = with_me(|me| me.world.state().add_group(name.to_owned()));
        Self(added.expect("a group is part of a run"))
    }

    /// Starts a thread in this group.
    pub fn spawn<T: Send + 'static>(
        self,
        name: &str,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let killed = with_me(|me| me.world.state().groups[self.0 as usize].killed);
        if killed == Some(true) {
            return Err(io::Error::other("the group was killed; make a new one"));
        }
        spawn_in(Some(name.to_owned()), Some(self.0), body)
    }

    /// None of its threads runs for this long.
    pub fn pause(self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        with_me(|me| me.pause(self.0, ns));
    }

    /// Its threads stop where they are, for ever: nothing is unwound, locks that they hold stay taken, what they own is
    /// never dropped.
    pub fn kill(self) {
        with_me(|me| me.kill(self.0));
    }
}
