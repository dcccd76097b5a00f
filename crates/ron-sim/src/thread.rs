//! Simulated threads, in the shape of the standard library's.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::world::{Me, with_me};

/// Waits for the end of a thread and takes its result.
#[derive(Debug)]
pub struct JoinHandle<T> {
    id: u32,
    result: Arc<Mutex<Option<T>>>,
}

/// The thread was killed with its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed;

impl<T> JoinHandle<T> {
    /// Waits for the end of the thread.
    ///
    /// # Panics
    /// Outside of a run.
    pub fn join(self) -> Result<T, Killed> {
        let ended = with_me(|me| me.join(self.id)).expect("a thread is joined inside of its run");
        let result = self
            .result
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // A panic would have ended the run, so a thread that ended has a result.
        result.filter(|_| ended).ok_or(Killed)
    }
}

/// Starts a thread in the group of the current one.
///
/// # Panics
/// Outside of a run, and when the operating system gives no thread.
pub fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    spawn_in(None, None, body).expect("the operating system gives a thread")
}

/// As [`spawn`], with a name.
pub fn spawn_named<T: Send + 'static>(
    name: String,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    spawn_in(Some(name), None, body)
}

/// Starts a thread, by default in the group of the current one.
pub(crate) fn spawn_in<T: Send + 'static>(
    name: Option<String>,
    group: Option<u32>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let result = Arc::new(Mutex::new(None));
    let place = result.clone();
    let body = Box::new(move || {
        let value = body();
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
    });
    let spawned = with_me(|me| {
        let group = group.unwrap_or_else(|| me.world.group_of(me.id));
        me.spawn(name, group, body)
    });
    let id = spawned.expect("a simulated thread is started by another one")?;
    Ok(JoinHandle { id, result })
}

/// Lets another ready thread run, if there is one.
pub fn yield_now() {
    with_me(Me::yield_now);
}
