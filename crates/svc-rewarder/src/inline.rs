//! Work of rayon on a thread of no pool. rayon would start a pool of its own for it, whose threads have no row in the
//! topology.

use std::cell::OnceCell;
use std::sync::Arc;

use rayon::{ThreadPool, ThreadPoolBuilder};

thread_local! {
    static HERE: OnceCell<Option<ThreadPool>> = const { OnceCell::new() };
}

/// From now on the calling thread does itself what it gives to rayon. Nothing changes for a thread that belongs to a pool.
pub fn here() {
    HERE.with(|pool| {
        pool.get_or_init(|| {
            let alone = ThreadPoolBuilder::new().num_threads(1).use_current_thread();
            // An error says that the thread has a pool.
            alone.build().ok()
        });
    });
}

/// The threads that compute an epoch together: a pool, or the calling thread alone.
#[derive(Clone)]
pub enum Calc {
    Pool(Arc<ThreadPool>),
    Here,
}

impl Calc {
    /// Runs `work`, whose rayon iterators run on these threads.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match self {
            Self::Pool(pool) => pool.install(work),
            Self::Here => {
                here();
                work()
            }
        }
    }
}
