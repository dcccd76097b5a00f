//! What time brings: rotations that were ordered to repeat, and destructions whose delay is over.
//! This thread only looks; the store thread decides again and does it.

use std::time::Duration;

use ron_kernel::{ThreadCtx, Ticker};
use ron_proto::values::Timestamp;

use super::lifecycle::plan::{Schedule, due};
use super::{Kms, StoreJob};

/// How often it looks.
const PERIOD: Duration = Duration::from_secs(1);
/// Jobs in the store's queue above which it waits for the next tick, so that people come first.
const QUEUED_MAX: usize = 8;

/// The loop of the thread.
pub fn run(kms: &Kms, ctx: &ThreadCtx) {
    let mut ticker = Ticker::new(kms.clock.clone(), PERIOD);
    while ticker.wait(&ctx.shutdown).is_some() {
        kms.submit_due();
    }
}

impl Kms {
    /// Hands what is due to the store thread, as much as fits beside the work of callers. What
    /// does not fit is still due at the next tick.
    pub fn submit_due(&self) {
        let now = Timestamp(self.clock.unix_ms());
        if !self.health.is_ok() {
            return;
        }
        let index = self.index.load();
        for key in index.keys.values() {
            if due(&Schedule::from(&**key), &self.settings.lifecycle, now).is_none() {
                continue;
            }
            let job = StoreJob::Due(key.kid.clone());
            if self.store_tx.len() >= QUEUED_MAX || self.store_tx.try_send(job).is_err() {
                return;
            }
        }
    }
}
