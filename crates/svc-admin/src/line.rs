//! One line of the timeline: an event of a service, or a state that a node came into.

use ron_proto::Timestamp;
use ron_proto::admin::{NodeState, TimelineEntry};
use ron_proto::events::{EventKind, ServiceEvent, Severity};
use serde::{Deserialize, Serialize};

/// A line with what a restart of the console has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Without the cause and the incident, which readers get ([`crate::incidents`]).
    pub entry: TimelineEntry,
    /// The node's service, if it has said so.
    pub service: Option<String>,
    /// Run and number of the service's event; none for a state that the console has decided.
    pub event: Option<(String, u64)>,
}

impl Line {
    /// A node came into a state, for reasons in words.
    pub fn of_state(
        node: &str,
        service: Option<String>,
        at: Timestamp,
        state: NodeState,
        reasons: &str,
    ) -> Self {
        let severity = match state {
            NodeState::Down => Severity::Error,
            NodeState::Degraded => Severity::Warn,
            NodeState::Healthy | NodeState::Unknown => Severity::Info,
        };
        let detail = Some(reasons.to_owned()).filter(|text| !text.is_empty());
        Self::by_console(node, service, at, (state.as_str(), severity, detail))
    }

    /// The console no longer watches a node.
    pub fn of_removal(node: &str, at: Timestamp) -> Self {
        Self::by_console(node, None, at, ("removed", Severity::Info, None))
    }

    fn by_console(
        node: &str,
        service: Option<String>,
        at: Timestamp,
        (reason, severity, detail): (&str, Severity, Option<String>),
    ) -> Self {
        Self {
            entry: TimelineEntry {
                seq: 0,
                at,
                node: node.to_owned(),
                kind: EventKind::NodeState.as_str().to_owned(),
                severity,
                reason: Some(reason.to_owned()),
                number: None,
                detail,
                because: None,
                incident: None,
            },
            service,
            event: None,
        }
    }

    /// A service has published an event.
    pub fn of_event(node: &str, service: Option<String>, event: ServiceEvent) -> Self {
        Self {
            entry: TimelineEntry {
                seq: 0,
                at: event.at,
                node: node.to_owned(),
                kind: event.kind.as_str().to_owned(),
                severity: event.severity,
                reason: event.reason,
                number: event.number,
                detail: None,
                because: None,
                incident: None,
            },
            service,
            event: Some((event.boot, event.seq)),
        }
    }

    /// The state that the node came into; none for an event, and for a node that is no longer watched.
    pub fn state(&self) -> Option<NodeState> {
        let said = self
            .entry
            .reason
            .as_deref()
            .filter(|_| self.is_by_console())?;
        NodeState::ALL
            .into_iter()
            .find(|state| state.as_str() == said)
    }

    /// Whether it is the console's own word on a node, and no event of a service.
    pub fn is_by_console(&self) -> bool {
        self.event.is_none()
    }
}
