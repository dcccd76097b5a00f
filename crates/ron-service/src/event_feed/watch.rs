//! Readiness as events, and the answers of ready times. The board publishes its own causes; threads, clock and disk are compared here.

use std::collections::BTreeMap;

use ron_kernel::Supervisor;
use ron_proto::status::STANDBY;

use crate::events::{Event, EventKind, Events};
use crate::ready::{Effect, ReadyBoard, observed, readiness};
use crate::recent::Window;

/// What is known of the readiness of a service.
pub(crate) struct Watch {
    events: Events,
    board: ReadyBoard,
    sup: Supervisor,
    /// Causes that were published.
    causes: BTreeMap<&'static str, Effect>,
    /// The event `started` was published. The board is ready before that, but `ready` follows it.
    started: bool,
    /// The event `ready` was published, and nothing since then that contradicts it.
    ready: bool,
    answers: Window,
}

impl Watch {
    pub fn new(events: Events, board: ReadyBoard, sup: Supervisor, started: bool) -> Self {
        Self {
            answers: Window::new(board.recent().clone()),
            events,
            board,
            sup,
            causes: BTreeMap::new(),
            started,
            ready: false,
        }
    }

    /// Takes note of an event of any thread.
    pub fn see(&mut self, kind: EventKind) {
        match kind {
            EventKind::Started => self.started = true,
            // The next comparison finds the service ready again, however short it was.
            EventKind::NotReady => self.ready = false,
            _ => {}
        }
    }

    /// Publishes what has changed. During a drain nothing has to be ready.
    pub fn publish_changes(&mut self) {
        if self.sup.draining() {
            return;
        }
        let now = observed(&self.board, &self.sup);
        for cause in &now {
            if self.causes.insert(cause.name, cause.effect) != Some(cause.effect) {
                let (kind, _) = cause.effect.kinds();
                let event = Event::warn(kind).reason(cause.name).why(&cause.why);
                self.events.publish(event);
            }
        }
        let events = &self.events;
        self.causes.retain(|name, effect| {
            let stays = now.iter().any(|cause| cause.name == *name);
            if !stays {
                let cleared = Event::info(effect.kinds().1).reason(name);
                events.publish(cleared.logged_as_warning());
            }
            stays
        });
        let readiness = readiness(&self.board, &self.sup);
        let ready = readiness.ready && self.started;
        // What a standby refuses is no failure: another node does it.
        let serves = ready && !readiness.degraded.iter().any(|cause| cause == STANDBY);
        self.answers.sample(self.sup.clock().now(), serves);
        if ready && !self.ready {
            self.events.publish(Event::info(EventKind::Ready));
        }
        self.ready = ready;
    }
}
