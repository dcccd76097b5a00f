//! Epochs that were planned again to explain their payouts: the last few are kept, because a plan takes
//! as long as half of a computation, and an explanation from it three reads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ron_files::Dir;
use ron_kernel::RankedMutex;
use ron_proto::values::ContentId;

use crate::manifest::explain::Explainer;
use crate::manifest::verify::VerifyError;
use crate::topology::L_EXPLAINED;

/// Plans that are kept. Each is small, and has the files of its run open.
const KEPT: usize = 4;

/// The plans, by the commitments of their manifests.
pub struct Explained {
    kept: RankedMutex<VecDeque<(ContentId, Arc<Explainer>)>>,
    /// One plan is made at a time, so that questions about large epochs leave workers for others.
    planning: AtomicBool,
}

/// Why there is no plan.
pub enum NoPlan {
    /// Another epoch is being planned.
    Busy,
    /// The artifacts are damaged.
    Damaged(VerifyError),
}

/// Ends the planning also when it panics.
struct Planning<'a>(&'a AtomicBool);

impl Drop for Planning<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Default for Explained {
    fn default() -> Self {
        Self {
            kept: RankedMutex::new(&L_EXPLAINED, VecDeque::with_capacity(KEPT + 1)),
            planning: AtomicBool::new(false),
        }
    }
}

impl Explained {
    /// The plan of the run in `dir`, whose manifest has this commitment. It is made whatever the caller's
    /// deadline, so that the next question finds it.
    pub fn plan(&self, dir: &Dir, commitment: ContentId) -> Result<Arc<Explainer>, NoPlan> {
        if let Some(plan) = self.find(commitment) {
            return Ok(plan);
        }
        if self.planning.swap(true, Ordering::SeqCst) {
            return Err(NoPlan::Busy);
        }
        let _planning = Planning(&self.planning);
        // Another thread may have made it since.
        if let Some(plan) = self.find(commitment) {
            return Ok(plan);
        }
        let plan = Arc::new(Explainer::open(dir, &()).map_err(NoPlan::Damaged)?);
        let oldest = {
            let mut kept = self.kept.lock();
            kept.push_front((commitment, Arc::clone(&plan)));
            (kept.len() > KEPT).then(|| kept.pop_back())
        };
        // Its files are closed outside the lock.
        drop(oldest);
        Ok(plan)
    }

    fn find(&self, commitment: ContentId) -> Option<Arc<Explainer>> {
        let kept = self.kept.lock();
        let found = kept.iter().find(|(of, _)| *of == commitment);
        found.map(|(_, plan)| Arc::clone(plan))
    }
}
