//! What every service says about itself on its health port: status, readiness, topology.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How well something works.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// As it should.
    Healthy,
    /// It serves, but something named in a reason is missing.
    Degraded,
    /// It does not serve.
    Down,
}

/// The answer of `GET /api/v1/status`; the one contract the console reads from all services.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceStatus {
    /// The binary's name, as in `ron-kms`.
    pub service: String,
    /// Which of several: host and port, or a configured name.
    pub instance: String,
    /// The version of the build.
    pub version: String,
    /// `durable` or `amnesia`, or a configured profile.
    pub profile: String,
    /// Seconds since start.
    pub uptime_seconds: u64,
    /// The same as in [`Readiness`].
    pub ready: bool,
    /// The worst health of its planes, `down` when not ready.
    pub health: Health,
    /// True when nothing is written to disk.
    pub amnesia: bool,
    /// Its threads and pools, and what else may fail apart.
    pub planes: Vec<Plane>,
    /// What this build and configuration can do, sorted.
    pub capabilities: Vec<String>,
}

/// One part of a service that can fail and be restarted on its own.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plane {
    /// Its name in the topology.
    pub name: String,
    /// How it is.
    pub health: Health,
    /// True while it does its job.
    pub ready: bool,
    /// Restarts since the service started.
    pub restart_count: u64,
    /// Why it is not healthy; null when it is.
    pub reason: Option<String>,
}

/// The body of `GET /readyz`: 503 when not ready, else 200.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Readiness {
    /// True when writes can be served.
    pub ready: bool,
    /// Causes that weaken the service without stopping it, sorted.
    pub degraded: Vec<String>,
    /// Causes that stop it, sorted; empty when ready.
    pub missing: Vec<String>,
    /// Seconds after which asking again makes sense; null when ready.
    pub retry_after: Option<u32>,
}

/// The answer of `GET /api/v1/topology`: the table the service was built from, with live figures.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TopologyDoc {
    /// The binary's name.
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
    /// The thread's name; members of a pool add their index.
    pub name: String,
    /// How many were started.
    pub count: u32,
    /// How many run now.
    pub live: u32,
    /// When it stops in a drain: `intake`, `background`, `work` or `write`.
    pub stage: String,
    /// True when its flapping ends the process.
    pub critical: bool,
    /// What it does.
    pub job: String,
}

/// A bounded queue.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueueDoc {
    /// The queue's name, also its metric label.
    pub name: String,
    /// Most items it holds.
    pub capacity: u64,
    /// Items in it now.
    pub depth: u64,
    /// `reject_new`, `drop_oldest` or `wait_deadline`.
    pub overflow: String,
    /// Who puts in.
    pub from: String,
    /// Who takes out.
    pub to: String,
    /// What the outside sees when it is full.
    pub when_full: String,
}

/// A lock.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LockDoc {
    /// The lock's name.
    pub name: String,
    /// Locks are taken in ascending rank only.
    pub rank: u16,
    /// What it guards.
    pub guards: String,
}
