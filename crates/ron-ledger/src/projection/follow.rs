//! The thread that adds new entries to the projection.

use std::time::Duration;

use ron_kernel::{Deadline, Receiver, ThreadCtx};
use ron_service::lag::{FollowerLag, follower_pause};

use super::{Projection, ProjectionError};
use crate::feed::wait_new_entries;
use crate::ledger::Ledger;

/// Shortest and longest pause after a transaction, so that following leaves the CPU to the writer.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// Pause for each entry that the last transaction added: from 5,000 entries a second on the pauses
/// grow to the longest, because larger transactions cost less for each entry.
const PAUSE_PER_ENTRY: Duration = Duration::from_micros(200);

/// Pause after a transaction that added `added` entries when `left` are not in the file yet.
pub fn pause_after(added: u64, left: u64) -> Duration {
    let (shortest, longest) = PAUSES;
    let added = u32::try_from(added).unwrap_or(u32::MAX);
    let grown = PAUSE_PER_ENTRY.saturating_mul(added);
    follower_pause(grown.clamp(shortest, longest), left)
}

/// The thread's body: adds new entries until shutdown. `Err` when the file has to be reopened.
pub fn run(
    ctx: &ThreadCtx,
    mut p: Projection,
    notifications: &Receiver<()>,
    ledger: &Ledger,
    lag: &FollowerLag,
) -> Result<(), ProjectionError> {
    loop {
        if ledger.head_seq() > p.applied() {
            lag.begun();
        }
        let before = p.applied();
        let newest = p.advance(&ledger.shared)?;
        let left = ledger.head_seq().saturating_sub(p.applied());
        lag.applied(newest, left);
        let stop = if newest.is_none() {
            wait_new_entries(ctx, notifications, Duration::from_secs(1))
        } else {
            let pause = pause_after(p.applied() - before, left);
            ctx.shutdown.wait(Deadline::within(pause))
        };
        if stop {
            return Ok(());
        }
    }
}
