//! The ledger's threads, queues and locks. The supervisor refuses anything that is not in these
//! tables.

use ron_kernel::{Count, LockSpec, Overflow, QueueSpec, Stage, ThreadSpec, Topology};

/// Decides and makes durable; the only thread that changes state.
pub static WRITER: ThreadSpec = ThreadSpec {
    name: "led-writer",
    count: Count::One,
    stage: Stage::Write,
    critical: true,
    job: "drains the commit queue, decides a batch, makes it durable with one flush, applies it, passes the decisions on",
};
/// Makes answers from decisions.
pub static ANSWER: ThreadSpec = ThreadSpec {
    name: "led-answer",
    count: Count::One,
    stage: Stage::Front,
    critical: false,
    job: "makes receipts and answers from durable decisions, so that the writer does not wait for it",
};
pub static EVENTS: ThreadSpec = ThreadSpec {
    name: "led-events",
    count: Count::One,
    stage: Stage::Write,
    critical: false,
    job: "answers long polls of the event feed when entries become durable or their wait ends",
};
pub static SNAPSHOT: ThreadSpec = ThreadSpec {
    name: "led-snapshot",
    count: Count::One,
    stage: Stage::Write,
    critical: false,
    job: "writes snapshots of the state and moves keys from memory to files",
};
pub static PROJECT: ThreadSpec = ThreadSpec {
    name: "led-project",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "writes the SQLite projection after the acknowledgement",
};
pub static CHECKPOINT: ThreadSpec = ThreadSpec {
    name: "led-checkpt",
    count: Count::One,
    stage: Stage::Write,
    critical: false,
    job: "signs and publishes the log's checkpoint every second or 5,000 entries",
};

pub static WITNESS: ThreadSpec = ThreadSpec {
    name: "led-witness",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "has checkpoints cosigned by the witnesses of witness.policy_file",
};

pub static BEAT: ThreadSpec = ThreadSpec {
    name: "led-beat",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "gives the sign of life of the node that writes a shared log, or watches for it",
};
pub static UPKEEP: ThreadSpec = ThreadSpec {
    name: "led-upkeep",
    count: Count::One,
    stage: Stage::Background,
    critical: false,
    job: "makes the tables and partitions of a shared log ahead of need",
};

/// Commits on their way to the writer.
pub static COMMITS: QueueSpec = QueueSpec {
    name: "commits",
    capacity: 1_024,
    overflow: Overflow::RejectNew,
    from: "http workers, embedders",
    to: "led-writer",
    when_full: "429 busy",
};
/// Decided batches on their way to their callers.
pub static ANSWERS: QueueSpec = QueueSpec {
    name: "answers",
    capacity: 64,
    overflow: Overflow::WaitDeadline,
    from: "led-writer",
    to: "led-answer",
    when_full: "the writer waits up to 1 s, then answers itself",
};
pub static POLLS: QueueSpec = QueueSpec {
    name: "event_polls",
    capacity: 256,
    overflow: Overflow::RejectNew,
    from: "http workers",
    to: "led-events",
    when_full: "429 busy",
};
/// "There are new entries", for the event feed.
pub static NOTIFY_EVENTS: QueueSpec = QueueSpec {
    name: "notify_events",
    capacity: 1,
    overflow: Overflow::DropOldest,
    from: "led-writer",
    to: "led-events",
    when_full: "one pending notification is enough",
};
/// "There are new entries", for the projection.
pub static NOTIFY_PROJECT: QueueSpec = QueueSpec {
    name: "notify_project",
    capacity: 1,
    overflow: Overflow::DropOldest,
    from: "led-writer",
    to: "led-project",
    when_full: "one pending notification is enough",
};
/// "The node that writes is silent", for the writer of a standby.
pub static CLAIMS: QueueSpec = QueueSpec {
    name: "claims",
    capacity: 1,
    overflow: Overflow::RejectNew,
    from: "led-beat",
    to: "led-writer",
    when_full: "nothing: a claim is already wanted",
};
pub static SNAPSHOTS: QueueSpec = QueueSpec {
    name: "snapshots",
    capacity: 1,
    overflow: Overflow::RejectNew,
    from: "led-writer",
    to: "led-snapshot",
    when_full: "cannot happen: only one is taken at a time",
};

/// "There is a new checkpoint", for the witness thread.
pub static WITNESS_WAKES: QueueSpec = QueueSpec {
    name: "witness",
    capacity: 2,
    overflow: Overflow::RejectNew,
    from: "led-checkpt",
    to: "led-witness",
    when_full: "nothing: a wake is already waiting",
};
pub static COSIGNED: QueueSpec = QueueSpec {
    name: "cosigned",
    capacity: 4,
    overflow: Overflow::RejectNew,
    from: "led-witness",
    to: "led-checkpt",
    when_full: "they are not stored; the next checkpoint is submitted to the witnesses again",
};

pub static STATE_LOCK: LockSpec = LockSpec {
    name: "state",
    rank: 10,
    guards: "accounts, holds, epochs; written by led-writer after each flush",
};
pub static KEYS_LOCK: LockSpec = LockSpec {
    name: "recent_keys",
    rank: 20,
    guards: "keys not yet in a key file",
};

pub static TOPOLOGY: Topology = ron_service::topology! {
    service: "ron-ledger",
    prefix: "led",
    threads: [WRITER, ANSWER, EVENTS, SNAPSHOT, PROJECT, CHECKPOINT, WITNESS, BEAT, UPKEEP],
    queues: [COMMITS, ANSWERS, POLLS, NOTIFY_EVENTS, NOTIFY_PROJECT, CLAIMS, SNAPSHOTS, WITNESS_WAKES, COSIGNED],
    locks: [STATE_LOCK, KEYS_LOCK],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        assert_eq!(
            ron_service::topology_faults(&TOPOLOGY),
            Vec::<String>::new()
        );
    }
}
