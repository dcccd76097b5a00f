//! States of runs as events of the service.

use ron_service::events::{Event, EventKind, Events};

use super::{Run, RunState};

/// Publishes that a run is in a state that an operator has to know of; which run it is, is for the log.
pub(super) fn report(events: &Events, run: &Run) {
    let event = match run.state {
        RunState::Settled | RunState::Withdrawn => Event::info(EventKind::EpochState),
        RunState::Review | RunState::Held => Event::warn(EventKind::EpochState),
        RunState::Quarantined | RunState::Failed => Event::error(EventKind::EpochState),
        RunState::Queued
        | RunState::Computing
        | RunState::Sealed
        | RunState::Settling
        | RunState::Withdrawing => return,
    };
    let event = event.reason(run.state.as_str());
    events.publish(event.why(format_args!("{} {}", run.tenant, run.epoch)));
}
