//! The timeline of the fleet.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NodeState;
use crate::events::Severity;
use crate::values::Timestamp;

/// One line of the timeline.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TimelineEntry {
    /// Grows in the order in which the console has learnt of what happened.
    pub seq: u64,
    /// When it happened: by the clock of the service, for `node_state` by that of the console.
    pub at: Timestamp,
    pub node: String,
    /// A kind as in `/api/v1/events` of the services; `node_state` for a state that the console has decided.
    pub kind: String,
    pub severity: Severity,
    /// A word by kind, as in `/api/v1/events`; for `node_state` the state, or `removed` when the console no longer watches the node.
    pub reason: Option<String>,
    /// A figure by kind, as in `/api/v1/events`.
    pub number: Option<u64>,
    /// The reasons of a `node_state`, in words.
    pub detail: Option<String>,
    /// The node whose state explains a `node_state`: it is of a service that the node's service calls, and was worse off at the
    /// time.
    pub because: Option<String>,
    /// The incident that the line belongs to.
    pub incident: Option<u64>,
}

/// Nodes that were not well at the same time, each because of another one of them or the cause of another.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Incident {
    /// Number of its first line.
    pub id: u64,
    pub since: Timestamp,
    /// When the last of its nodes was well again; `null` while one is not.
    pub until: Option<Timestamp>,
    /// The cause first, as far as the console knows who calls whom; the others in the order in which they were affected.
    pub nodes: Vec<IncidentNode>,
    /// Number of its lines.
    pub lines: u64,
}

/// A node in an incident.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IncidentNode {
    pub node: String,
    /// The worst state that it came into.
    pub worst: NodeState,
    /// The reasons of that state, in words.
    pub detail: Option<String>,
    /// The node whose state explains its own.
    pub because: Option<String>,
    pub since: Timestamp,
    /// When it was well again, or no longer watched; `null` while it is not well.
    pub until: Option<Timestamp>,
}

/// A node whose events could not be read.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UnreadNode {
    pub node: String,
    pub problem: String,
}

/// `GET /api/timeline`: what happened in the fleet, newest first.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TimelineList {
    pub as_of: Timestamp,
    pub entries: Vec<TimelineEntry>,
    /// The incidents that entries of this page belong to, newest first.
    pub incidents: Vec<Incident>,
    /// Value of `before` for the next page; `null` on the last one.
    pub next: Option<u64>,
    /// Nodes that answer, but not with their events.
    pub unread: Vec<UnreadNode>,
}
