//! What the revoker does when other nodes record events too: what another has recorded first is taken in, and what was decided is
//! decided again.

use std::time::Duration;

use ron_auth::RevocationView;
use ron_kernel::Deadline;
use ron_proto::passport::{RevocationEvent, RevocationPage, RevokeAnswer, Revoked};
use ron_proto::{Problem, Timestamp};
use ron_service::events::{Event, EventKind};
use ron_service::log_host::asker::Published;

use super::draft::Draft;
#[cfg(mutant = "acknowledged")]
use super::ours;
use super::shared::SharedTimes;
use super::store::StoreFailed;
use super::{Loan, READ_CAUSE, Revocation, Revoker};

/// Why events were not recorded.
enum NotRecorded {
    /// Another node was first: what was decided has to be decided again.
    Moved,
    Failed(Problem),
}

impl Revoker {
    /// Makes revocations durable together and answers them; true if there are new events.
    pub(super) fn revoke(&self, mut revocations: Vec<Revocation>) -> bool {
        let by = self.turns();
        let mut came = false;
        loop {
            let accepted = self.accepted(revocations);
            if accepted.is_empty() {
                return came;
            }
            #[cfg(mutant = "acknowledged")] // answered before it is durable
            if ron_kernel::mutant("acknowledged") {
                for (revocation, current_epoch) in accepted {
                    let (what, reason) = (revocation.revoked.clone(), revocation.reason.clone());
                    let event = self.view.load().after() + 1;
                    revocation.answer(Ok(RevokeAnswer {
                        current_epoch,
                        event,
                    }));
                    let _ = self.record(&[ours(&what, &reason)]);
                }
                return true;
            }
            let drafts: Vec<Draft<'_>> = accepted
                .iter()
                .map(|(revocation, _)| Draft {
                    revoked: &revocation.revoked,
                    reason: &revocation.reason,
                    actor: &revocation.actor,
                })
                .collect();
            let recorded = match self.record(&drafts) {
                Ok(numbers) => Ok(numbers),
                Err(NotRecorded::Failed(problem)) => Err(problem),
                Err(NotRecorded::Moved) => match self.next_turn(by) {
                    Ok(new) => {
                        came |= new;
                        revocations = accepted.into_iter().map(|(one, _)| one).collect();
                        continue;
                    }
                    Err(problem) => Err(problem),
                },
            };
            let changed = recorded.is_ok() || came;
            self.answer_all(accepted, recorded);
            return changed;
        }
    }

    /// The revocations that have an effect, each with the epoch after it; the others are answered.
    fn accepted(&self, revocations: Vec<Revocation>) -> Vec<(Revocation, u64)> {
        let mut epoch = self.view.load().epoch();
        let mut accepted = Vec::new();
        for revocation in revocations {
            match &revocation.revoked {
                Revoked::Epoch { epoch: wanted } if *wanted <= epoch => {
                    revocation.answer(Err(stale_epoch(epoch)));
                    continue;
                }
                Revoked::Epoch { epoch: wanted } => epoch = *wanted,
                _ => {}
            }
            accepted.push((revocation, epoch));
        }
        accepted
    }

    fn answer_all(
        &self,
        accepted: Vec<(Revocation, u64)>,
        recorded: Result<std::ops::Range<u64>, Problem>,
    ) {
        let mut numbers = recorded.as_ref().ok().cloned().unwrap_or(0..0);
        for (revocation, current_epoch) in accepted {
            let answer = match (&recorded, numbers.next()) {
                (Ok(_), Some(event)) => {
                    let kind = revocation.revoked.kind();
                    self.metrics.revocations.with_label_values(&[kind]).inc();
                    // Single tokens are revoked in the ordinary course of things.
                    if !matches!(revocation.revoked, Revoked::Jti { .. }) {
                        let revoked = Event::warn(EventKind::Revoked).reason(kind);
                        self.ready.events().publish(revoked);
                    }
                    Ok(RevokeAnswer {
                        current_epoch,
                        event,
                    })
                }
                (Ok(_), None) => Err(Problem::internal("fewer events than revocations")),
                (Err(problem), _) => Err(problem.clone()),
            };
            revocation.answer(answer);
        }
    }

    /// Until when other nodes may be first.
    fn turns(&self) -> Deadline {
        Deadline::within(self.shared.as_ref().map_or(Duration::ZERO, |t| t.within))
    }

    /// Takes in what another node has recorded first; true if there are new events.
    fn next_turn(&self, by: Deadline) -> Result<bool, Problem> {
        if by.expired() {
            return Err(StoreFailed::Moved.problem());
        }
        self.follow()
    }

    /// Records an event that the service causes itself; it stands whatever other nodes have recorded.
    pub(super) fn record_ours(&self, draft: &Draft<'_>) -> Result<(), Problem> {
        let by = self.turns();
        loop {
            match self.record(std::slice::from_ref(draft)) {
                Ok(_) => return Ok(()),
                Err(NotRecorded::Failed(problem)) => return Err(problem),
                Err(NotRecorded::Moved) => {
                    self.next_turn(by)?;
                }
            }
        }
    }

    /// Makes events durable, then visible. Returns their numbers.
    fn record(&self, drafts: &[Draft<'_>]) -> Result<std::ops::Range<u64>, NotRecorded> {
        let after = self.view.load().after();
        let now_ms = self.clock.unix_ms();
        // Durable and covered by a checkpoint before it is visible: no reader may see an event that a crash could take
        // back, or that the log does not vouch for.
        let mut moved = false;
        let recorded = self.stored(|register| {
            let recorded = register.record(drafts, now_ms, after);
            moved = matches!(recorded, Err(StoreFailed::Moved));
            match recorded {
                Err(StoreFailed::Moved) => Ok(Vec::new()),
                recorded => recorded,
            }
        });
        if moved {
            return Err(NotRecorded::Moved);
        }
        let events = recorded.map_err(NotRecorded::Failed)?;
        let next = self.show(events).map_err(NotRecorded::Failed)?;
        Ok(after + 1..next + 1)
    }

    /// Puts events in force that are durable. Returns the number of the last.
    fn show(&self, events: Vec<RevocationEvent>) -> Result<u64, Problem> {
        let view = self.view.load();
        let epochs = events.iter().filter_map(|event| match event.revoked {
            Revoked::Epoch { epoch } => Some(epoch),
            _ => None,
        });
        let epoch = epochs.fold(view.epoch(), u64::max);
        let page = RevocationPage {
            next: view.after() + events.len() as u64,
            events,
            current_epoch: epoch,
            checkpoint: String::new(),
        };
        let mut next = RevocationView::clone(&view);
        next.apply(&page, true, self.clock.unix_ms() / 1000)
            .map_err(|_| {
                Problem::internal("the revocation feed is out of step; restart the service")
            })?;
        self.view.store(next);
        self.metrics.epoch.set(epoch as i64);
        if let Some(witness) = &self.witness {
            let _ = witness.try_send(Published); // full: a wake-up is already pending
        }
        Ok(page.next)
    }

    /// Reads what other nodes have recorded, and puts it in force; true if there are new events.
    pub(super) fn follow(&self) -> Result<bool, Problem> {
        let Some(SharedTimes {
            head, shown: node, ..
        }) = &self.shared
        else {
            return Ok(false);
        };
        let (synced, after) = self.view.with(|view| (view.synced(), view.after()));
        // The end of the log as it is now or later.
        let asked = head.now();
        let read = {
            let mut loan = Loan::of(&self.register);
            loan.register()?.follow(after)
        };
        let shown = match read {
            Ok(events) if events.is_empty() && synced => Ok(false),
            Ok(events) => {
                let came = !events.is_empty();
                self.show(events).map(|_| came).map_err(|p| p.detail)
            }
            Err(failed) => Err(failed.to_string()),
        };
        // Not before: a token that is issued in between would be judged by what was in force.
        if shown.is_ok() {
            head.in_force(asked);
        }
        let fresh = head.check();
        match &fresh {
            Ok(()) => node.shares(Timestamp(self.clock.unix_ms())),
            Err(_) => node.stopped(),
        }
        match (&shown, fresh) {
            (_, Ok(())) => self.ready.present(READ_CAUSE),
            (Err(why), Err(age)) => self.ready.missing(READ_CAUSE, format!("{age}: {why}")),
            (Ok(_), Err(age)) => self.ready.missing(READ_CAUSE, age),
        }
        shown.map_err(|why| {
            let why = format!("the log of revocations cannot be read: {why}; nothing was changed");
            Problem::unavailable(why, 1)
        })
    }
}

fn stale_epoch(current: u64) -> Problem {
    Problem::new(
        409,
        "stale_epoch",
        "Epoch must grow",
        "the epoch must be greater than the current one",
    )
    .with_details(serde_json::json!({ "current_epoch": current }))
}
