//! The timeline of the fleet.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// A word by kind, as in `/api/v1/events`; for `node_state` the state.
    pub reason: Option<String>,
    /// A figure by kind, as in `/api/v1/events`.
    pub number: Option<u64>,
    /// The reasons of a `node_state`, in words.
    pub detail: Option<String>,
    /// The node whose state explains a `node_state`: it is of a service that the node's service calls, and was worse off at the
    /// time.
    pub because: Option<String>,
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
    /// Value of `before` for the next page; `null` on the last one.
    pub next: Option<u64>,
    /// Nodes that answer, but not with their events.
    pub unread: Vec<UnreadNode>,
}
