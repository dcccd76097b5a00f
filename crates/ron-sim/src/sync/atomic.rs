//! Atomics whose every access is a point at which another thread may run. All accesses are sequentially consistent,
//! whatever ordering they name: weak memory is for other checkers.

use std::sync::atomic::Ordering;

use crate::world::Object;

macro_rules! atomic {
    ($name:ident, $value:ty, $($arithmetic:ident),*) => {
        #[derive(Debug)]
        pub struct $name {
            object: Object,
            value: std::sync::atomic::$name,
        }

        impl $name {
            pub const fn new(value: $value) -> Self {
                Self::named("", value)
            }

            /// As `new`, with a name for traces and reports.
            pub const fn named(name: &'static str, value: $value) -> Self {
                Self {
                    object: Object::new("atomic", name),
                    value: std::sync::atomic::$name::new(value),
                }
            }

            pub fn load(&self, _order: Ordering) -> $value {
                self.object.point("loads");
                self.value.load(Ordering::SeqCst)
            }

            pub fn store(&self, value: $value, _order: Ordering) {
                self.object.point("stores");
                self.value.store(value, Ordering::SeqCst);
            }

            pub fn swap(&self, value: $value, _order: Ordering) -> $value {
                self.object.point("swaps");
                self.value.swap(value, Ordering::SeqCst)
            }

            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                _success: Ordering,
                _failure: Ordering,
            ) -> Result<$value, $value> {
                self.object.point("compares and exchanges");
                self.value
                    .compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
            }

            $(pub fn $arithmetic(&self, value: $value, _order: Ordering) -> $value {
                self.object.point("changes");
                self.value.$arithmetic(value, Ordering::SeqCst)
            })*
        }
    };
}

atomic!(AtomicBool, bool, fetch_and, fetch_or);
atomic!(AtomicU32, u32, fetch_add, fetch_sub, fetch_max, fetch_min);
atomic!(AtomicU64, u64, fetch_add, fetch_sub, fetch_max, fetch_min);
atomic!(
    AtomicUsize,
    usize,
    fetch_add,
    fetch_sub,
    fetch_max,
    fetch_min
);
