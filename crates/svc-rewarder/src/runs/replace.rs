//! Which run of an epoch may take the place of another.

use ron_proto::problem::Problem;
use ron_proto::rewarder::RunState;
use ron_proto::values::ContentId;
use serde_json::json;

use super::Run;
use crate::errors;

/// Decides whether a request may replace the run of its epoch. `Ok(false)`: it is the same run.
///
/// Only runs that can never have paid are replaced: dry runs at rest, failed runs, and quarantined
/// runs (by other inputs). Payments from before this database began are known to the ledger alone,
/// which refuses a second manifest.
pub(super) fn may_replace(
    run: &Run,
    run_key: &ContentId,
    dry_run: bool,
) -> Result<bool, Box<Problem>> {
    let same = run.run_key == *run_key;
    match run.state {
        // The ledger's refusal is permanent, so the same inputs cannot succeed.
        RunState::Failed
            if same && (has_code(run, "epoch_conflict") || has_code(run, "usage_paid")) =>
        {
            return Err(Box::new(errors::failed(run.reason.as_ref())));
        }
        RunState::Quarantined if same => {
            return Err(Box::new(errors::quarantined(run.reason.as_ref())));
        }
        RunState::Failed | RunState::Quarantined => return Ok(true),
        _ => {}
    }
    if same && (dry_run || !run.dry_run) {
        return Ok(false);
    }
    if !run.dry_run {
        return Err(Box::new(errors::epoch_conflict(json!({
            "snapshot": run.snapshot, "policy_id": run.policy_id, "policy_hash": run.policy_hash,
            "run_key": run.run_key, "state": run.state,
        }))));
    }
    if run.at_rest() {
        Ok(true)
    } else {
        let detail = "a dry run of this epoch is still being computed; retry when it is done";
        Err(Box::new(Problem::in_flight(detail)))
    }
}

fn has_code(run: &Run, code: &str) -> bool {
    run.reason
        .as_ref()
        .is_some_and(|reason| reason.code == code)
}
