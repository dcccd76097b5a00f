//! Requests that let a computed run pay, or stop it. The scheduler's thread carries them out.

use std::time::Duration;

use ron_kernel::{Backoff, Deadline};
use ron_proto::problem::Problem;
use ron_proto::rewarder::{Approval, RunState, Withdrawal};
use ron_proto::values::{ContentId, Timestamp};

use super::registry::Entry;
use super::replace::{may_change, may_withdraw};
use super::scheduler::{Memory, Scheduler};
use super::{RunEvent, RunId};
use crate::errors;

impl Scheduler {
    pub(super) fn retry_later(&self, memory: &mut Memory, id: RunId) {
        let backoff = memory.backoffs.entry(id.clone()).or_insert_with(|| {
            let (base, cap) = (Duration::from_millis(250), Duration::from_secs(30));
            Backoff::new(base, cap, Duration::from_millis(250), self.clock.unix_ms())
        });
        let at = Deadline::within(backoff.next_pause());
        memory.to_settle.insert(id, at);
    }

    /// Records an approval; the last one that is needed lets the run pay.
    pub(super) fn want_approval(
        &self,
        memory: &mut Memory,
        id: &RunId,
        commitment: &ContentId,
        by: &str,
    ) -> Result<(), Box<Problem>> {
        let refuse = |problem| Err(Box::new(problem));
        let Some(entry) = self.registry.current(&id.tenant, &id.epoch) else {
            return refuse(Problem::not_found("there is no run of this epoch"));
        };
        let mut run = (*entry.run).clone();
        may_change(&run, commitment)?;
        let Some(release) = run.release.as_mut() else {
            return refuse(Problem::conflict("the run needs no approval"));
        };
        if release.approvals.iter().any(|given| given.by == by) {
            return Ok(());
        }
        if release.never_pays() {
            return refuse(errors::never_pays());
        }
        if release.is_approved() {
            return refuse(Problem::conflict(
                "the run needs no further approval; its state says what it does",
            ));
        }
        if run.asked_by == by {
            return refuse(errors::own_run(by));
        }
        if !self.can_settle {
            return refuse(not_configured());
        }
        self.has_room()?;
        let now = Timestamp(self.clock.unix_ms());
        release.approvals.push(Approval {
            by: by.to_owned(),
            commitment: *commitment,
            at: now,
        });
        if release.is_approved() {
            run.settle = true;
            run.rest();
        }
        run.updated_at = now;
        let entry = entry.with(run);
        self.save(memory, &entry)?;
        tracing::info!(event = "run_approved", tenant = %id.tenant, epoch = %id.epoch, by, %commitment, "a manifest was approved");
        if entry.run.settle {
            self.emit(memory, &entry.run);
        }
        Ok(())
    }

    pub(super) fn want_settlement(
        &self,
        memory: &mut Memory,
        id: &RunId,
    ) -> Result<(), Box<Problem>> {
        let Some(entry) = self.registry.current(&id.tenant, &id.epoch) else {
            return Err(Box::new(Problem::not_found(
                "there is no run of this epoch; compute it first",
            )));
        };
        if !self.can_settle {
            return Err(Box::new(not_configured()));
        }
        let run = &*entry.run;
        match run.state {
            _ if run.dry_run => {
                return Err(Box::new(Problem::conflict(
                    "a dry run is never settled; compute it live",
                )));
            }
            RunState::Quarantined => {
                return Err(Box::new(errors::quarantined(run.reason.as_ref())));
            }
            RunState::Failed => return Err(Box::new(errors::failed(run.reason.as_ref()))),
            RunState::Withdrawing | RunState::Withdrawn => {
                return Err(Box::new(errors::withdrawn()));
            }
            RunState::Settled => return Ok(()),
            _ => {}
        }
        if let Some(release) = run
            .release
            .as_ref()
            .filter(|release| !release.is_approved())
        {
            return Err(Box::new(errors::approvals_missing(release)));
        }
        if !run.settle {
            self.has_room()?;
            let mut run = run.clone();
            run.settle = true;
            run.updated_at = Timestamp(self.clock.unix_ms());
            self.save(memory, &entry.with(run))?;
        }
        if matches!(run.state, RunState::Sealed | RunState::Held) {
            self.emit(memory, run);
        }
        Ok(())
    }

    /// Records that the run is to be withdrawn. The ledger decides whether the withdrawal or an
    /// opening that is on its way comes first; the emitter asks it.
    pub(super) fn want_withdrawal(
        &self,
        memory: &mut Memory,
        id: &RunId,
        commitment: &ContentId,
        (reason, by): (&str, &str),
    ) -> Result<(), Box<Problem>> {
        let Some(entry) = self.registry.current(&id.tenant, &id.epoch) else {
            return Err(Box::new(Problem::not_found(
                "there is no run of this epoch",
            )));
        };
        let run = &*entry.run;
        may_withdraw(run, commitment)?;
        if !self.can_settle {
            return Err(Box::new(not_configured()));
        }
        if matches!(run.state, RunState::Withdrawing | RunState::Withdrawn) {
            return Ok(());
        }
        let mut run = run.clone();
        let now = Timestamp(self.clock.unix_ms());
        run.state = RunState::Withdrawing;
        run.reason = None;
        run.withdrawal = Some(Withdrawal {
            by: by.to_owned(),
            reason: reason.to_owned(),
            at: now,
        });
        run.updated_at = now;
        let entry = entry.with(run);
        self.save(memory, &entry)?;
        memory.backoffs.remove(id);
        self.emit(memory, &entry.run);
        Ok(())
    }

    /// A report that does not end a withdrawal, of the withdrawal itself or of an attempt to settle
    /// that was on its way when the withdrawal was asked for: the withdrawal is tried again.
    pub(super) fn keep_withdrawing(&self, memory: &mut Memory, entry: &Entry, event: &RunEvent) {
        let RunEvent::Held(reason) = event else {
            return; // the intent to withdraw is on its way
        };
        let mut run = (*entry.run).clone();
        run.reason = Some(reason.clone());
        run.updated_at = Timestamp(self.clock.unix_ms());
        let id = run.id();
        // If the store fails, readiness reports it; the reason is for people.
        let _ = self.save(memory, &entry.with(run));
        self.retry_later(memory, id);
    }
}

/// Payments and withdrawals are entries of a ledger.
fn not_configured() -> Problem {
    Problem::not_implemented(
        "settlement is not configured; set ledger.url, kms.url and manifest.key",
    )
}
