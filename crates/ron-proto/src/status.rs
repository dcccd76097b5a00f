//! What every service reports on its health port: status, readiness, topology.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Health of a service or of a part of it.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Works normally.
    Healthy,
    /// Works, but a dependency or function named in the reason is impaired.
    Degraded,
    /// Does not work.
    Down,
}

/// Response of `GET /api/v1/status`; the console relies on it for every service.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceStatus {
    /// Name of the binary, such as `ron-kms`.
    pub service: String,
    /// Identifies the instance: host and port, or a configured name.
    pub instance: String,
    /// Version of the build.
    pub version: String,
    /// `durable` or `amnesia`, or a configured profile.
    pub profile: String,
    /// Seconds since start.
    pub uptime_seconds: u64,
    /// As in [`Readiness`].
    pub ready: bool,
    /// The worst health of its planes; `down` when not ready.
    pub health: Health,
    /// True when nothing is written to disk.
    pub amnesia: bool,
    /// Its threads and pools, and other parts that can fail on their own.
    pub planes: Vec<Plane>,
    /// Functions available in this build and configuration, sorted.
    pub capabilities: Vec<String>,
    /// How it answered lately.
    #[serde(default)]
    pub recent: RecentAnswers,
    /// Its part in a log that several nodes share; absent where the log is in files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogNodeDoc>,
}

/// Share of server errors among recent answers above which a service is degraded.
pub const ERRORS_DEGRADED_ABOVE: f64 = 0.01;
/// Recent answers below which that share is not evaluated.
pub const ERRORS_LEAST_REQUESTS: u64 = 20;

/// The answers of a service's API within the last five minutes, as far as it was ready.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecentAnswers {
    /// Number of answers.
    pub requests: u64,
    /// Those with a status from 500 on.
    pub server_errors: u64,
}

impl RecentAnswers {
    /// The share of server errors, if there are so many that the service is degraded.
    pub fn failing(&self) -> Option<f64> {
        let share = self.server_errors as f64 / self.requests as f64;
        let counts = self.requests >= ERRORS_LEAST_REQUESTS;
        Some(share).filter(|share| counts && *share > ERRORS_DEGRADED_ABOVE)
    }
}

/// A node's part in a log whose nodes share an engine.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LogNodeDoc {
    /// URL under which clients reach this node; of a key service, the name of its audit log.
    pub node: String,
    /// True when this node writes; of a log that all nodes write, as that of issuers, when its end was read lately.
    pub active: bool,
    /// The newest epoch that the node has seen; each takeover raises it by one. 0 for a log that all nodes write.
    pub epoch: u64,
    /// URL of the node that writes, if there is one and it is known.
    pub holder: Option<String>,
    /// Number of entries that this node has.
    pub entries: u64,
    /// Number of entries that the engine had beyond these when it was last asked; 0 for the active node.
    pub behind: u64,
    /// When this node became active, in milliseconds since 1970; null for a standby.
    pub active_since_ms: Option<u64>,
    /// What the engine says of itself; null until it was asked.
    pub engine: Option<EngineDoc>,
}

/// The engine of a log, as a node has seen it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EngineDoc {
    /// When it was asked, in milliseconds since 1970.
    pub seen_ms: u64,
    /// Address of the server that takes writes.
    pub server: String,
    /// Servers that follow it.
    pub standbys: Vec<EngineStandbyDoc>,
    /// Number of transactions since the oldest that the server still has to tell apart; it stops before 2^31.
    pub oldest_transaction: u64,
    /// Number of partitions that are ready beyond the one in use.
    pub partitions_ahead: u32,
}

/// A server that follows the engine's.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EngineStandbyDoc {
    /// Name by which the server knows it.
    pub name: String,
    /// True when writes wait for it.
    pub synchronous: bool,
    /// Bytes that it has not made durable; null when the node may not see that.
    pub behind_bytes: Option<u64>,
}

/// One part of a service that can fail and be restarted on its own.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plane {
    /// Name of the plane in the topology.
    pub name: String,
    /// Health of the plane.
    pub health: Health,
    /// True while the plane does its work.
    pub ready: bool,
    /// Number of restarts since the service started.
    pub restart_count: u64,
    /// Reason when it is not healthy; null otherwise.
    pub reason: Option<String>,
}

/// Cause in [`Readiness::degraded`] of a node that waits to take over from another: it takes no writes, and nothing is wrong with it.
pub const STANDBY: &str = "standby";

/// Response of `GET /readyz`: status 200 when ready, 503 otherwise.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Readiness {
    /// True when writes can be served.
    pub ready: bool,
    /// Conditions that impair the service without stopping it, sorted.
    pub degraded: Vec<String>,
    /// Conditions that stop it, sorted; empty when ready.
    pub missing: Vec<String>,
    /// Suggested retry delay in seconds; null when ready.
    pub retry_after: Option<u32>,
}

/// Response of `GET /api/v1/topology`: the table the service was built from, with current figures.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TopologyDoc {
    /// Name of the binary.
    pub service: String,
    /// One row per thread or pool.
    pub threads: Vec<ThreadDoc>,
    /// One row per queue.
    pub queues: Vec<QueueDoc>,
    /// One row per lock, in rank order.
    pub locks: Vec<LockDoc>,
}

/// A thread or a pool of threads.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ThreadDoc {
    /// Name of the thread; members of a pool add their index.
    pub name: String,
    /// Number of threads started.
    pub count: u32,
    /// Number of threads running now.
    pub live: u32,
    /// Stage of the shutdown in which it stops: `front`, `intake`, `background`, `work` or `write`.
    pub stage: String,
    /// True when repeated failure of the thread ends the process.
    pub critical: bool,
    /// Purpose of the thread.
    pub job: String,
}

/// A bounded queue.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueueDoc {
    /// Name of the queue, also its metric label.
    pub name: String,
    /// Maximum number of items.
    pub capacity: u64,
    /// Current number of items.
    pub depth: u64,
    /// Behaviour when full: `reject_new`, `drop_oldest` or `wait_deadline`.
    pub overflow: String,
    /// Threads that put items in.
    pub from: String,
    /// Threads that take items out.
    pub to: String,
    /// What callers observe when it is full.
    pub when_full: String,
}

/// A lock.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LockDoc {
    /// Name of the lock.
    pub name: String,
    /// Rank; locks are acquired in ascending rank only.
    pub rank: u16,
    /// Data the lock protects.
    pub guards: String,
}
