//! The metrics of a node, by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::values::Timestamp;

/// How the points of a query were derived.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum QueryKind {
    /// The value as scraped.
    Value,
    /// Increase per second since the previous sample; counter resets are handled.
    Rate,
}

/// One series of a query result.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QuerySeries {
    /// The label block as scraped, without braces.
    pub labels: String,
    pub points: Vec<Option<f64>>,
}

/// `GET /api/nodes/{id}/metrics/names`: the series that are kept for seven days, then the metrics of the window by name.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetricNames {
    pub as_of: Timestamp,
    pub id: String,
    pub metrics: Vec<MetricName>,
}

/// A metric that can be queried.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetricName {
    pub name: String,
    /// Number of its series; 0 for one that the node does not have yet.
    pub series: u64,
    /// True for a series with one point a minute, kept for seven days and over restarts of the console; false for samples, kept
    /// for the window.
    pub kept: bool,
}

/// `GET /api/nodes/{id}/metrics/query`: the series of one metric.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueryAnswer {
    pub as_of: Timestamp,
    pub id: String,
    pub name: String,
    pub kind: QueryKind,
    /// Seconds between two points of a series that is kept for seven days: 60, or more for a long time, with the worst or the mean
    /// of the minutes in between; `null` for samples.
    pub step_seconds: Option<f64>,
    /// Unix milliseconds of each point: when it was sampled, or when its step begins.
    pub times_ms: Vec<u64>,
    pub series: Vec<QuerySeries>,
    /// True when more series matched than one response carries.
    pub truncated: bool,
}
