//! Threads, queues and locks of the rewarder: what runs is built from this table.
//!
//! ```text
//! http -> imports -> rew-import (snapshots)
//! http -> work_req -> rew-sched -> work -> rew-work -> results -> rew-artifact
//!                        ^  |                |                        |
//!                        +------ updates ----+------------------------+
//!                        |  +-> intents -> rew-emit
//!                        +------ updates -----+
//! ```

use ron_kernel::{Count, LockSpec, Overflow, QueueSpec, Stage, ThreadSpec, Topology};

const fn one(name: &'static str, stage: Stage, critical: bool, job: &'static str) -> ThreadSpec {
    ThreadSpec {
        name,
        count: Count::One,
        stage,
        critical,
        job,
    }
}

const fn pool(
    name: &'static str,
    key: &'static str,
    stage: Stage,
    job: &'static str,
) -> ThreadSpec {
    ThreadSpec {
        name,
        count: Count::Pool(key),
        stage,
        critical: false,
        job,
    }
}

pub static IMPORT: ThreadSpec = pool(
    "rew-import-",
    "concurrency.imports",
    Stage::Work,
    "seals uploaded usage and stores it",
);
pub static SCHED: ThreadSpec = one(
    "rew-sched",
    Stage::Write,
    true,
    "owns the run table: admits one run per epoch, makes it durable, feeds the stages, retries what is held",
);
pub static WORK: ThreadSpec = pool(
    "rew-work-",
    "concurrency.jobs",
    Stage::Work,
    "takes an epoch and computes it, on the rew-calc pool if there is one",
);
pub static CALC: ThreadSpec = pool(
    "rew-calc-",
    "concurrency.compute_workers",
    Stage::Write,
    "splits one epoch's rows (data-parallel; ends when the last rew-work does); none with one compute worker",
);
pub static ARTIFACT: ThreadSpec = one(
    "rew-artifact",
    Stage::Write,
    false,
    "makes artifact directories durable",
);
pub static EMIT: ThreadSpec = one(
    "rew-emit",
    Stage::Write,
    false,
    "has manifests signed and writes settlement entries to the ledger",
);

const fn row(
    name: &'static str,
    overflow: Overflow,
    from: &'static str,
    to: &'static str,
    when_full: &'static str,
) -> QueueSpec {
    QueueSpec {
        name,
        capacity: 512,
        overflow,
        from,
        to,
        when_full,
    }
}

pub static Q_IMPORTS: QueueSpec = QueueSpec {
    name: "imports",
    capacity: 16,
    overflow: Overflow::RejectNew,
    from: "rew-http-",
    to: "rew-import-",
    when_full: "429 busy",
};
pub static Q_WORK_REQ: QueueSpec = row(
    "work_req",
    Overflow::RejectNew,
    "rew-http-",
    "rew-sched",
    "429 busy",
);
pub static Q_WORK: QueueSpec = row(
    "work",
    Overflow::RejectNew,
    "rew-sched",
    "rew-work-",
    "one retry after 100 ms, then 429 busy and the run is failed (send it again)",
);
pub static Q_RESULTS: QueueSpec = row(
    "results",
    Overflow::WaitDeadline,
    "rew-work-",
    "rew-artifact",
    "the worker waits",
);
pub static Q_INTENTS: QueueSpec = row(
    "intents",
    Overflow::RejectNew,
    "rew-sched",
    "rew-emit",
    "the scheduler tries again on its next tick",
);
pub static Q_UPDATES: QueueSpec = QueueSpec {
    name: "updates",
    capacity: 1024,
    overflow: Overflow::WaitDeadline,
    from: "rew-work-, rew-artifact, rew-emit",
    to: "rew-sched",
    when_full: "the stage waits",
};

pub static L_RUNS: LockSpec = LockSpec {
    name: "run_registry",
    rank: 20,
    guards: "the state of every run, for readers of the API",
};
pub static L_CALC: LockSpec = LockSpec {
    name: "calc_start",
    rank: 30,
    guards: "rayon thread starters until a rew-calc thread takes one",
};

pub static L_EXPLAINED: LockSpec = LockSpec {
    name: "explained",
    rank: 40,
    guards: "the epochs that were planned again lately, for explanations",
};

pub static TOPOLOGY: Topology = ron_service::topology! {
    service: "svc-rewarder",
    prefix: "rew",
    threads: [IMPORT, SCHED, WORK, CALC, ARTIFACT, EMIT],
    queues: [Q_IMPORTS, Q_WORK_REQ, Q_WORK, Q_RESULTS, Q_INTENTS, Q_UPDATES],
    locks: [L_RUNS, L_CALC, L_EXPLAINED],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_keeps_its_own_rules() {
        assert_eq!(
            ron_service::topology_faults(&TOPOLOGY),
            Vec::<String>::new()
        );
    }
}
