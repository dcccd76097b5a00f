//! Which run of an epoch may take the place of another, and which may be withdrawn.

use ron_proto::problem::Problem;
use ron_proto::rewarder::RunState;
use ron_proto::values::ContentId;
use serde_json::json;

use super::registry::Entry;
use super::{DRY_RUNS_MAX, Run, RunEvent, RunId};
use crate::errors;

/// Decides whether a request may replace the run of its epoch. `Ok(false)`: it is the same run.
///
/// Only runs that can never have paid are replaced: failed runs, and quarantined or withdrawn runs (by
/// other inputs). Payments from before this database began are known to the ledger alone, which
/// refuses a second manifest.
pub(super) fn may_replace(run: &Run, run_key: &ContentId) -> Result<bool, Box<Problem>> {
    let same = run.run_key == *run_key;
    match run.state {
        // The ledger's refusal is permanent, so the same inputs cannot succeed.
        RunState::Failed
            if same
                && ["epoch_conflict", "usage_paid", "epoch_void"]
                    .iter()
                    .any(|code| has_code(run, code)) =>
        {
            return Err(Box::new(errors::failed(run.reason.as_ref())));
        }
        RunState::Quarantined if same => {
            return Err(Box::new(errors::quarantined(run.reason.as_ref())));
        }
        // The same inputs have the same manifest, which never pays.
        RunState::Withdrawn if same => return Err(Box::new(errors::withdrawn())),
        RunState::Failed | RunState::Quarantined | RunState::Withdrawn => return Ok(true),
        _ => {}
    }
    if same {
        return Ok(false);
    }
    Err(Box::new(errors::epoch_conflict(json!({
        "snapshot": run.snapshot, "policy_id": run.policy_id, "policy_hash": run.policy_hash,
        "run_key": run.run_key, "state": run.state,
    }))))
}

/// The dry run that gives its place to a further one of its epoch, of which these are all; `None` while
/// there is room.
pub(super) fn outdated(dry_runs: &[Entry]) -> Result<Option<RunId>, Box<Problem>> {
    if dry_runs.len() < DRY_RUNS_MAX {
        return Ok(None);
    }
    // The newest are first.
    let mut resting = dry_runs.iter().rev().filter(|entry| entry.run.at_rest());
    match resting.next() {
        Some(oldest) => Ok(Some(oldest.run.id())),
        None => Err(Box::new(Problem::in_flight(format!(
            "{DRY_RUNS_MAX} dry runs of this epoch are still being computed; retry when one is done"
        )))),
    }
}

/// Refuses to withdraw a run that [`may_change`] refuses, or that the ledger has opened as far as this
/// service knows.
pub(super) fn may_withdraw(run: &Run, commitment: &ContentId) -> Result<(), Box<Problem>> {
    match run.state {
        RunState::Withdrawing | RunState::Withdrawn if run.commitment == Some(*commitment) => {
            Ok(())
        }
        _ => {
            may_change(run, commitment)?;
            if run.seqs.open_seq.is_some() {
                return Err(Box::new(errors::epoch_opened()));
            }
            Ok(())
        }
    }
}

/// Refuses a decision about a manifest that the run does not have, or that pays nothing anyway.
pub(super) fn may_change(run: &Run, commitment: &ContentId) -> Result<(), Box<Problem>> {
    let refuse = |problem| Err(Box::new(problem));
    if run.dry_run {
        return refuse(Problem::conflict(
            "a dry run pays nothing; compute the epoch live",
        ));
    }
    let Some(of_run) = &run.commitment else {
        return match run.state {
            RunState::Failed => refuse(errors::failed(run.reason.as_ref())),
            _ => refuse(Problem::in_flight(
                "the epoch is still being computed; retry when it is sealed",
            )),
        };
    };
    if of_run != commitment {
        return refuse(errors::other_manifest(of_run));
    }
    match run.state {
        RunState::Quarantined => refuse(errors::quarantined(run.reason.as_ref())),
        RunState::Failed => refuse(errors::failed(run.reason.as_ref())),
        RunState::Withdrawing | RunState::Withdrawn => refuse(errors::withdrawn()),
        _ => Ok(()),
    }
}

/// Whether the ledger has decided about a withdrawal when a stage reports this.
pub(super) const fn ends_withdrawal(event: &RunEvent) -> bool {
    matches!(
        event,
        RunEvent::Withdrawn { .. }
            | RunEvent::Opened
            | RunEvent::Settling { .. }
            | RunEvent::Settled { .. }
    )
}

fn has_code(run: &Run, code: &str) -> bool {
    run.reason
        .as_ref()
        .is_some_and(|reason| reason.code == code)
}
