//! API types of svc-admin, the operator console. The only camelCase JSON of the system.
//!
//! Every response carries `asOf`, the time at which its content was assembled. A value that a node
//! does not report is `null`, never zero; the page then shows "not reported".

mod keys;
mod metrics;
mod session;
mod timeline;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::status::LogNodeDoc;
use crate::values::Timestamp;

pub use self::keys::{IssuerKey, IssuerView, KeyApproval, KeyOverview, KeySource, KeyView};
pub use self::metrics::{MetricName, MetricNames, QueryAnswer, QueryKind, QuerySeries};
pub use self::session::{SessionCode, SessionRequest};
pub use self::timeline::{Incident, IncidentNode, TimelineEntry, TimelineList, UnreadNode};

/// Health state of a node, ordered by severity: the greatest is the worst.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Ready, with no degraded plane.
    Healthy,
    /// Not polled yet, or the last successful poll is too old to be relied upon.
    Unknown,
    /// Responds, but a dependency or a plane is impaired.
    Degraded,
    /// Does not respond, is draining, or a critical plane is down.
    Down,
}

impl NodeState {
    pub const ALL: [Self; 4] = [Self::Healthy, Self::Unknown, Self::Degraded, Self::Down];

    /// The name on the wire and on the page.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Unknown => "unknown",
            Self::Degraded => "degraded",
            Self::Down => "down",
        }
    }
}

/// Why a node is in its state: a code from a closed list for programs and a text for people.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reason {
    /// One of a closed list, such as `connection_refused` or `not_ready`.
    pub code: String,
    /// A sentence fragment for people; names the plane or the cause where there is one.
    pub text: String,
}

/// One plane of a node (listener, worker pool, writer, ...) as the node reports it; for a node that
/// does not respond, the last known planes with health `unknown`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodePlane {
    pub name: String,
    pub health: NodeState,
    pub ready: bool,
    pub restart_count: u64,
    /// The explanation given by the node; `null` when there is none.
    pub reason: Option<String>,
}

/// The latest request figures of a node. Rates are over the last sampling interval.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeRates {
    /// Requests per second, excluding health checks and metric scrapes.
    pub request_rate: Option<f64>,
    /// Share of 5xx responses, 0 to 1; `null` when there were no requests.
    pub error_ratio: Option<f64>,
    /// Median request time in seconds; `null` when there were no requests. The same holds for the
    /// other quantiles.
    pub p50_seconds: Option<f64>,
    pub p95_seconds: Option<f64>,
    pub p99_seconds: Option<f64>,
}

/// A short series on an even grid for small charts, oldest first; `null` where there is no sample.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TinySeries {
    /// Unix time in milliseconds of the end of the last cell.
    pub end_ms: u64,
    /// Width of a cell in milliseconds.
    pub step_ms: u64,
    /// Requests per second, mean of each cell.
    pub request_rate: Vec<Option<f64>>,
    /// 99th percentile of request time in seconds, worst of each cell.
    pub p99_seconds: Vec<Option<f64>>,
}

/// One node as the list shows it: identity and state.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeSummary {
    pub id: String,
    pub display_name: String,
    /// As configured: `dev`, `staging`, `prod` or another word.
    pub environment: String,
    /// The service name the node reports; `null` before its first response.
    pub service: Option<String>,
    pub instance: Option<String>,
    pub version: Option<String>,
    pub profile: Option<String>,
    pub amnesia: Option<bool>,
    pub uptime_seconds: Option<u64>,
    pub state: NodeState,
    /// Never empty unless the node is healthy; worst first.
    pub reasons: Vec<Reason>,
    /// When the node entered this state.
    pub since: Timestamp,
    /// When the node last responded; `null` when it never did.
    pub sampled_at: Option<Timestamp>,
    /// When the node was last polled; `null` when it never was.
    pub polled_at: Option<Timestamp>,
    /// True when the figures are older than three sampling intervals.
    pub stale: bool,
    /// Thread restarts since the node started, plus process restarts within the window.
    pub restarts: u64,
}

/// `GET /api/nodes`: the configured nodes, problems first.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeList {
    pub as_of: Timestamp,
    pub nodes: Vec<NodeSummary>,
}

/// Number of nodes in each state.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StateCounts {
    pub healthy: u32,
    pub degraded: u32,
    pub down: u32,
    pub unknown: u32,
}

/// One row of the fleet view.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OverviewNode {
    pub summary: NodeSummary,
    pub planes: Vec<NodePlane>,
    pub rates: NodeRates,
    pub series: TinySeries,
}

/// `GET /api/overview`: the content of the fleet view in one response, problems first.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Overview {
    pub as_of: Timestamp,
    /// The worst state of any node; `unknown` when no node is configured.
    pub state: NodeState,
    pub counts: StateCounts,
    /// Sum of the known request rates of all nodes.
    pub request_rate: Option<f64>,
    pub interval_seconds: f64,
    pub window_seconds: f64,
    pub nodes: Vec<OverviewNode>,
}

/// One thread kind of a node, from its topology.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeThread {
    pub name: String,
    /// Threads running now.
    pub live: Option<u64>,
    /// Threads started.
    pub total: Option<u64>,
    pub restarts: Option<u64>,
    /// Purpose of the thread.
    pub job: Option<String>,
}

/// One bounded queue of a node: its topology row joined with its latest figures.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeQueue {
    pub name: String,
    /// Maximum number of items.
    pub capacity: Option<u64>,
    /// Behaviour when full: `reject_new`, `drop_oldest` or `wait_deadline`.
    pub overflow: Option<String>,
    /// Threads that put items in.
    pub from: Option<String>,
    /// Threads that take items out.
    pub to: Option<String>,
    /// Current number of items.
    pub depth: Option<f64>,
    /// Items dropped since the node started.
    pub dropped: Option<f64>,
    /// Requests rejected since the node started.
    pub rejected: Option<f64>,
}

/// `GET /api/nodes/{id}/status`: one node in full.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeStatus {
    pub as_of: Timestamp,
    pub summary: NodeSummary,
    pub health_url: String,
    pub api_url: Option<String>,
    pub ready: Option<bool>,
    /// Conditions that keep the node from being ready, as it reports them.
    pub missing: Vec<String>,
    /// Conditions that impair the node without stopping it, as it reports them.
    pub degraded: Vec<String>,
    pub planes: Vec<NodePlane>,
    pub capabilities: Vec<String>,
    /// Its part in a log that several nodes share; null where it has none.
    pub log: Option<LogNodeDoc>,
    pub queues: Vec<NodeQueue>,
    pub threads: Vec<NodeThread>,
    /// The console's polling of this node.
    pub polling: PollingStats,
}

/// Statistics of the sampler for one node, since the console started.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PollingStats {
    pub polls: u64,
    pub failures: u64,
    pub consecutive_failures: u32,
    /// Description of the last failed poll.
    pub last_error: Option<String>,
    /// Duration of the last successful poll, in seconds.
    pub last_poll_seconds: Option<f64>,
    /// Series stored for this node.
    pub series: u64,
    /// Series rejected because the node's limit was reached.
    pub series_refused: u64,
    /// Lines of the last scrape that were skipped because they could not be parsed.
    pub lines_skipped: u64,
}

/// `GET /api/nodes/{id}/metrics/summary`: the node's request figures over the window, oldest first.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetricsSummary {
    pub as_of: Timestamp,
    pub id: String,
    pub window_seconds: f64,
    pub current: NodeRates,
    /// Unix milliseconds of each poll; all series below have this length.
    pub times_ms: Vec<u64>,
    pub request_rate: Vec<Option<f64>>,
    pub error_ratio: Vec<Option<f64>>,
    pub p50_seconds: Vec<Option<f64>>,
    pub p95_seconds: Vec<Option<f64>>,
    pub p99_seconds: Vec<Option<f64>>,
}

/// One route of a node's API over the last sampling interval and the window.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Facet {
    /// Method and route pattern, such as `POST /v1/kms/sign`.
    pub facet: String,
    /// Requests per second over the window.
    pub request_rate: Option<f64>,
    /// Share of 5xx responses over the window, 0 to 1.
    pub error_ratio: Option<f64>,
    /// Share of 4xx responses over the window, 0 to 1.
    pub refused_ratio: Option<f64>,
    pub p50_seconds: Option<f64>,
    pub p95_seconds: Option<f64>,
    pub p99_seconds: Option<f64>,
    /// Requests since the node started.
    pub requests_total: f64,
}

/// `GET /api/nodes/{id}/metrics/facets`: the node's routes, busiest first; for a node that does not
/// respond, the figures of its last response.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FacetList {
    pub as_of: Timestamp,
    pub id: String,
    pub window_seconds: f64,
    pub facets: Vec<Facet>,
}

/// `GET /api/ui-config`: what the page needs before it can show anything. Public.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UiConfig {
    pub as_of: Timestamp,
    pub version: String,
    pub instance: String,
    /// `none`, `ingress` or `passport`.
    pub auth_mode: String,
    /// True when this caller may view the console; false when the page must request a passport
    /// first.
    pub signed_in: bool,
    /// True when no action is possible, whatever else is configured.
    pub read_only: bool,
    /// Actions allowed by the configuration (`reload`, `shutdown`); empty when read-only.
    pub actions: Vec<String>,
    pub interval_seconds: f64,
    pub window_seconds: f64,
    pub default_theme: String,
    pub themes: Vec<String>,
    pub default_language: String,
    pub languages: Vec<String>,
}

/// `GET /api/me`: the identity and roles the console derived from the caller's credential.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Me {
    pub as_of: Timestamp,
    pub subject: String,
    pub tenant: String,
    /// From `viewer`, `operator`, `admin`.
    pub roles: Vec<String>,
    pub auth_mode: String,
}

/// `POST /api/nodes/{id}/reload` and `/shutdown`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ActionRequest {
    /// The node's id again, which guards against acting on the wrong node.
    pub confirm: String,
}

/// The result of an action that the node accepted.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ActionAnswer {
    pub as_of: Timestamp,
    pub id: String,
    /// `reload` or `shutdown`.
    pub action: String,
    /// The result reported by the node: `reloaded`, `unchanged` or `stopping`; `accepted` when it
    /// reported none.
    pub result: String,
    /// What the reload changed, as the node reports it.
    pub changes: Vec<String>,
}

/// Response of `POST /api/nodes/{id}/refresh`: the node is polled next.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RefreshAnswer {
    pub as_of: Timestamp,
    pub id: String,
}

/// One record of the audit log: the caller, the action and its result.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuditEntry {
    /// Increases by one with each record.
    pub seq: u64,
    pub at: Timestamp,
    /// `reload`, `shutdown` or `session`.
    pub action: String,
    /// The node, for actions on a node.
    pub node: Option<String>,
    /// Subject of the caller. Refused callers without an identity have no record; they are counted
    /// and summed up in the service log.
    pub subject: String,
    pub roles: Vec<String>,
    /// `started`, `done`, `denied`, `failed` or `unknown`.
    pub result: String,
    /// Code from a closed list that says why the action was not performed.
    pub reason: Option<String>,
    /// The explanation given by the node or by the console's access check.
    pub detail: Option<String>,
    /// Correlates the records of one request with the logs of console and node.
    pub request_id: String,
    /// IP address of the caller, without port.
    pub peer: String,
}

/// `GET /api/audit`: the latest records, newest first.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuditList {
    pub as_of: Timestamp,
    /// True when the records survive a restart of the console.
    pub durable: bool,
    /// Records not stored because too many arrived at once; they are in the service log.
    pub dropped: u64,
    pub entries: Vec<AuditEntry>,
}

/// One reward epoch as its rewarder reports it. Amounts are decimal strings of minor units.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EpochView {
    /// The node that runs it.
    pub node: String,
    pub tenant: String,
    pub epoch: String,
    /// `queued`, `computing`, `sealed`, `settling`, `settled`, `held`, `quarantined` or `failed`.
    pub run_state: String,
    pub reason_code: Option<String>,
    pub reason: Option<String>,
    pub dry_run: bool,
    pub policy: String,
    /// What it pays, by asset; empty until it is computed.
    pub assets: Vec<EpochAsset>,
    pub rows_total: u64,
    pub shares_computed: u64,
    pub intents_total: u64,
    pub intents_settled: u64,
    /// Estimated milliseconds until settlement ends.
    pub eta_ms: Option<u64>,
    /// Number of settlement attempts.
    pub attempts: u32,
    pub commitment: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// The sums of one asset of an epoch.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EpochAsset {
    /// `null` for an epoch that an older rewarder has computed.
    pub asset: Option<String>,
    /// Amounts in minor units, as decimal strings.
    pub pool_minor: String,
    pub payout_minor: String,
    pub residual_minor: String,
    pub recipients: u64,
}

/// Result of reading the epochs of one node.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EpochSource {
    pub node: String,
    /// When they were last read; `null` when they never were.
    pub read_at: Option<Timestamp>,
    /// Why the last attempt to read them failed.
    pub problem: Option<String>,
    /// True when the node has more epochs than the console reads.
    pub truncated: bool,
}

/// `GET /api/epochs`: the epochs of every rewarder of the fleet, those that need attention first.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EpochList {
    pub as_of: Timestamp,
    pub sources: Vec<EpochSource>,
    pub epochs: Vec<EpochView>,
}

/// Result of checking a log's head against the key pinned by this console.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LogVerdict {
    /// The signature is by the pinned key.
    Verified,
    /// No key is pinned; the signature was not checked.
    Unverified,
    /// The signature is invalid, or the log shrank or forked since the previous check.
    Failed,
    /// The log could not be read.
    Unreachable,
}

/// Whether the current head is known to extend the one seen before.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LogConsistency {
    /// There is no earlier head to compare with.
    First,
    /// Size and root equal those of the previous check.
    Unchanged,
    /// The log's own tiles prove that it was only appended to.
    Proven,
    /// The log grew, but its tiles could not be read; nothing is proven yet.
    NotProven,
    /// Earlier entries of the log were changed.
    Broken,
}

/// A witness configured for a log.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LogWitness {
    pub name: String,
    /// True when the current head carries a valid signature of this witness.
    pub signed: bool,
}

/// The head of one verifiable log.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LogHead {
    /// The node that keeps the log.
    pub id: String,
    pub origin: Option<String>,
    pub size: Option<u64>,
    /// Root hash, base64 as in the checkpoint.
    pub root: Option<String>,
    pub verdict: LogVerdict,
    /// What the verdict is based on, in words.
    pub reason: String,
    /// When the head was last read; `null` when it never was.
    pub read_at: Option<Timestamp>,
    /// When this console first saw the current size and root: the age of the checkpoint.
    pub unchanged_since: Option<Timestamp>,
    pub consistency: LogConsistency,
    /// The earlier size that `consistency` refers to.
    pub compared_with: Option<u64>,
    /// Empty when no witness is configured.
    pub witnesses: Vec<LogWitness>,
}

/// `GET /api/log-heads`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LogHeads {
    pub as_of: Timestamp,
    pub logs: Vec<LogHead>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_order_by_attention_and_keep_their_words() {
        assert!(NodeState::ALL.is_sorted());
        for state in NodeState::ALL {
            let json = serde_json::to_string(&state).expect("a unit variant serialises");
            assert_eq!(json, format!("\"{}\"", state.as_str()));
        }
    }

    #[test]
    fn field_names_are_camel_case_and_unknown_ones_refused() {
        let rates = NodeRates {
            p99_seconds: Some(0.25),
            ..NodeRates::default()
        };
        let json = serde_json::to_value(&rates).expect("rates serialise");
        assert_eq!(json["p99Seconds"], 0.25);
        assert!(json["requestRate"].is_null());
        let odd = r#"{"requestRate":null,"errorRatio":null,"p50Seconds":null,"p95Seconds":null,"p99Seconds":null,"x":1}"#;
        assert!(serde_json::from_str::<NodeRates>(odd).is_err());
    }
}
