//! The threads, queues and locks of svc-admin, as constants that the running service is built from.

use ron_kernel::{Count, LockSpec, Stage, ThreadSpec, Topology};

/// One sampler per node up to the limit; beyond it nodes share.
pub const SAMPLERS: ThreadSpec = ThreadSpec {
    name: "adm-samp-",
    count: Count::Pool("sampler.max_threads"),
    stage: Stage::Intake,
    critical: false,
    job: "asks its nodes how they are, keeps their samples",
};

/// Builds what the page reads.
pub const VIEW: ThreadSpec = ThreadSpec {
    name: "adm-view",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "judges all nodes and builds the overview",
};

/// Reads the heads of the verifiable logs.
pub const LOG_HEADS: ThreadSpec = ThreadSpec {
    name: "adm-logs",
    count: Count::One,
    stage: Stage::Intake,
    critical: false,
    job: "reads and checks the heads of the fleet's logs",
};

/// One per node; a thread never holds two.
pub const NODE_LOCK: LockSpec = LockSpec {
    name: "node.rings",
    rank: 100,
    guards: "one node's samples and what it last said",
};

/// The whole table.
pub static TOPOLOGY: Topology = ron_service::topology! {
    service: "svc-admin",
    prefix: "adm",
    threads: [SAMPLERS, VIEW, LOG_HEADS],
    queues: [],
    locks: [NODE_LOCK],
};

/// The lock's row as the locks hold it.
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
