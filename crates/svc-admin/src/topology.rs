//! The threads, queues and locks of svc-admin, as constants that the running service is built from.

use ron_kernel::{Count, LockSpec, Overflow, QueueSpec, Stage, ThreadSpec, Topology};

use crate::sessions::SESSIONS_LOCK;

pub const SCHEDULER: ThreadSpec = ThreadSpec {
    name: "adm-sched",
    count: Count::One,
    stage: Stage::Intake,
    critical: false,
    job: "schedules the polls of all nodes, takes refresh requests",
};

/// As many as there are nodes, up to the limit; beyond it nodes share threads.
pub const SAMPLERS: ThreadSpec = ThreadSpec {
    name: "adm-samp-",
    count: Count::Pool("sampler.max_threads"),
    stage: Stage::Intake,
    critical: false,
    job: "polls nodes and keeps their samples",
};

pub const VIEW: ThreadSpec = ThreadSpec {
    name: "adm-view",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "decides the state of all nodes, builds the overview, notes a history of figures",
};

pub const LOG_HEADS: ThreadSpec = ThreadSpec {
    name: "adm-logs",
    count: Count::One,
    stage: Stage::Intake,
    critical: false,
    job: "reads and checks the heads of the fleet's logs, reads the keys of key services and issuers",
};

pub const EPOCHS: ThreadSpec = ThreadSpec {
    name: "adm-epochs",
    count: Count::One,
    stage: Stage::Intake,
    critical: false,
    job: "reads the epochs of the fleet's rewarders",
};

pub const EVENTS: ThreadSpec = ThreadSpec {
    name: "adm-events",
    count: Count::One,
    stage: Stage::Intake,
    critical: false,
    job: "reads the events of nodes and notes the states they come into",
};

/// The only thread that decides which nodes are watched.
pub const DISCOVERY: ThreadSpec = ThreadSpec {
    name: "adm-files",
    count: Count::One,
    stage: Stage::Intake,
    critical: false,
    job: "updates the fleet from the configuration and the discovery files",
};

pub const ACTIONS: ThreadSpec = ThreadSpec {
    name: "adm-act",
    count: Count::One,
    stage: Stage::Work,
    critical: false,
    job: "has nodes reload or shut down, one at a time, each between two lines of the audit",
};

pub const SESSIONS: ThreadSpec = ThreadSpec {
    name: "adm-sess",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "ends sessions of browsers that were idle, lasted too long, or whose passports are revoked",
};

pub const AUDIT: ThreadSpec = ThreadSpec {
    name: "adm-audit",
    count: Count::One,
    stage: Stage::Write,
    critical: true,
    job: "makes the lines of audit and timeline, heads of logs and the history durable",
};

/// Refresh requests for the scheduler, and finished polls.
pub static METRICS_CMD: QueueSpec = METRICS_CMD_ROW;
const METRICS_CMD_ROW: QueueSpec = QueueSpec {
    name: "metrics_cmd",
    capacity: 256,
    overflow: Overflow::RejectNew,
    from: "API, adm-samp",
    to: "adm-sched",
    when_full: "429 for a refresh request; samplers wait and try again",
};

/// Nodes that are due.
pub static POLLS: QueueSpec = POLLS_ROW;
const POLLS_ROW: QueueSpec = QueueSpec {
    name: "polls",
    capacity: 128,
    overflow: Overflow::RejectNew,
    from: "adm-sched",
    to: "adm-samp",
    when_full: "the node stays due",
};

pub static ACTIONS_QUEUE: QueueSpec = ACTIONS_ROW;
const ACTIONS_ROW: QueueSpec = QueueSpec {
    name: "actions",
    capacity: 16,
    overflow: Overflow::RejectNew,
    from: "API",
    to: "adm-act",
    when_full: "429, nothing was done",
};

pub static AUDIT_QUEUE: QueueSpec = AUDIT_ROW;
const AUDIT_ROW: QueueSpec = QueueSpec {
    name: "audit",
    capacity: 256,
    overflow: Overflow::RejectNew,
    from: "API, adm-act, adm-logs, adm-events, adm-view",
    to: "adm-audit",
    when_full: "a denial goes to the log alone and is counted; an action is refused; lines of the timeline and minutes of the history are in memory alone",
};

/// One lock per node; a thread never holds two of them.
pub const NODE_LOCK: LockSpec = LockSpec {
    name: "node.rings",
    rank: 100,
    guards: "one node's samples and last answers",
};

pub static TOPOLOGY: Topology = ron_service::topology! {
    service: "svc-admin",
    prefix: "adm",
    threads: [SCHEDULER, SAMPLERS, VIEW, LOG_HEADS, EPOCHS, EVENTS, DISCOVERY, ACTIONS, SESSIONS, AUDIT],
    queues: [METRICS_CMD_ROW, POLLS_ROW, ACTIONS_ROW, AUDIT_ROW],
    locks: [NODE_LOCK, SESSIONS_LOCK],
};

/// The lock's row in the form that the locks need.
pub static NODE_LOCK_ROW: LockSpec = NODE_LOCK;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        assert_eq!(
            ron_service::topology::topology_faults(&TOPOLOGY),
            [] as [String; 0]
        );
    }
}
