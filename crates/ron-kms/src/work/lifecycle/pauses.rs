//! What the store thread does between jobs.

use std::time::Duration;

use super::Lifecycle;
use super::recover::POLL;

/// The longest wait for a job where no other node changes the keys.
const QUIET: Duration = Duration::from_secs(1);
/// Between two pages of [`Lifecycle::check_operations`], so that jobs go first.
const CHECK_PAUSE: Duration = Duration::from_millis(10);

/// The part of readiness that says which operations' rows are damaged.
pub(super) const OPERATIONS: &str = "operations";

impl Lifecycle {
    /// How long a job is waited for.
    pub(super) fn pause(&self) -> Duration {
        match (self.operations.goes_on(), self.kms.is_shared) {
            (true, _) => CHECK_PAUSE,
            (false, true) => POLL,
            (false, false) => QUIET,
        }
    }

    /// What is done when there is no job.
    pub(super) fn idle(&mut self) {
        if self.kms.is_shared && self.prepare().is_err() {
            return; // reported in readiness
        }
        if !self.operations.is_done() {
            self.check_operations();
        }
    }

    /// Compares the next rows of operations. Not at the start, which would take longer the more was changed that day.
    fn check_operations(&mut self) {
        if let Err(error) = self.store.check_ops(&mut self.operations) {
            tracing::warn!(event = "operations_unread", %error); // a later pause tries again
            return;
        }
        if !self.operations.is_done() || self.operations.damaged().is_empty() {
            return;
        }
        let operations = self.operations.damaged().join(", ");
        tracing::error!(event = "operation_records_damaged", %operations);
        self.ready.degrade(
            OPERATIONS,
            format!(
                "the stored records of the operations {operations} are damaged: a repetition is refused, or performed again where the damage is \
                 in the id; restore keys.db from a backup, or restart when they are a day old and forgotten"
            ),
        );
    }
}
