//! The scheduler: finds scheduled rotations that are due and destructions whose delay has ended.
//! This thread only reads the snapshot; the store thread decides again and does the work.

use std::time::Duration;

use ron_kernel::{ThreadCtx, Ticker};
use ron_proto::values::Timestamp;

use super::lifecycle::plan::{Schedule, due};
use super::{Kms, StoreJob};

/// Interval between two scans of the keys.
const PERIOD: Duration = Duration::from_secs(1);
/// Length of the store queue from which the scheduler waits for the next tick, so that callers' requests go first.
const QUEUED_MAX: usize = 8;

/// The loop of the thread.
pub fn run(kms: &Kms, ctx: &ThreadCtx) {
    let mut ticker = Ticker::new(kms.clock.clone(), PERIOD);
    while ticker.wait(&ctx.shutdown).is_some() {
        kms.submit_due();
    }
}

impl Kms {
    /// Sends due keys to the store thread, as many as fit beside the callers' requests. The rest is still due at the
    /// next tick.
    pub fn submit_due(&self) {
        let now = Timestamp(self.clock.unix_ms());
        // Nothing is due by a date that may be wrong: a destroyed key never comes back.
        if !self.health.is_ok() || self.clock.alarm().is_some() {
            return;
        }
        let (index, settings) = (self.index.load(), self.settings.load());
        for key in index.keys.values() {
            if due(&Schedule::from(&**key), &settings.keys.lifecycle, now).is_none() {
                continue;
            }
            let job = StoreJob::Due(key.kid.clone());
            if self.store_tx.len() >= QUEUED_MAX || self.store_tx.try_send(job).is_err() {
                return;
            }
        }
    }
}
