//! Panics of simulated threads are kept for the report instead of printed: a supervisor may catch them, and the
//! standard message contains the number of a thread of the machine.

use std::cell::{Cell, RefCell};
use std::panic;
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// From now on panics of this thread of the machine are kept.
pub fn quiet_here() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if QUIET.try_with(Cell::get) != Ok(true) {
                others(info);
                return;
            }
            let text = info.payload_as_str().unwrap_or("a value that is not text");
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let _ = LAST.try_with(|last| *last.borrow_mut() = format!("{text} at {place}"));
        }));
    });
    QUIET.set(true);
}

/// The last panic of this thread: its message and place.
pub fn last() -> String {
    LAST.with_borrow(Clone::clone)
}
