//! The rows that the chassis adds to every service's topology table, and lookups of rows.

use ron_auth::AuthThreads;
use ron_kernel::{Count, LockSpec, Overflow, QueueSpec, Stage, ThreadSpec};

/// Builds a service's [`Topology`]: the chassis rows with this thread name prefix, then the
/// service's own.
///
/// ```
/// use ron_kernel::{Count, Stage, ThreadSpec, Topology};
/// static TOPOLOGY: Topology = ron_service::topology! {
///     service: "ron-kms",
///     prefix: "kms",
///     threads: [ThreadSpec { name: "kms-audit", count: Count::One, stage: Stage::Write, critical: true, job: "appends" }],
///     queues: [],
///     locks: [],
/// };
/// assert!(TOPOLOGY.threads.iter().any(|row| row.name == "kms-http-poll"));
/// ```
#[macro_export]
macro_rules! topology {
    (
        service: $service:expr,
        prefix: $prefix:literal,
        threads: [$($thread:expr),* $(,)?],
        queues: [$($own_queue:expr),* $(,)?],
        locks: [$($lock:expr),* $(,)?] $(,)?
    ) => {
        $crate::topology::Topology {
            service: $service,
            threads: &[
                $crate::topology::http_poll(concat!($prefix, "-http-poll")),
                $crate::topology::http_workers(concat!($prefix, "-http-")),
                $crate::topology::ops_poll(concat!($prefix, "-ops-poll")),
                $crate::topology::ops_workers(concat!($prefix, "-ops-")),
                $crate::topology::ops_events(concat!($prefix, "-ops-events")),
                $crate::topology::ops_log(concat!($prefix, "-ops-log")),
                $crate::topology::ops_spans(concat!($prefix, "-ops-spans")),
                $crate::topology::auth_keys(concat!($prefix, "-auth-keys")),
                $crate::topology::auth_feed(concat!($prefix, "-auth-feed")),
                $crate::topology::date(concat!($prefix, "-date")),
                $($thread),*
            ],
            queues: &[
                $crate::topology::HTTP_QUEUE,
                $crate::topology::OPS_QUEUE,
                $crate::topology::EVENTS_RING,
                $crate::topology::EVENT_POLLS,
                $crate::topology::SPANS_QUEUE,
                $crate::topology::REFRESH_QUEUE,
                $($own_queue),*
            ],
            locks: &[
                $($lock,)*
                $crate::topology::CLIENT_LOCK,
                $crate::topology::FRONT_LOCKS[0],
                $crate::topology::FRONT_LOCKS[1],
                $crate::topology::FRONT_LOCKS[2],
                $crate::topology::CACHE_LOCK,
                $crate::topology::METER_LOCK,
                $crate::topology::NOTE_LOCK,
                $crate::topology::READY_LOCK,
                $crate::topology::HOOKS_LOCK,
                $crate::topology::CHECKPOINT_LOCK,
            ],
        }
    };
}

pub use crate::log_host::CHECKPOINT_LOCK;
pub use crate::ready::READY_LOCK;
#[doc(hidden)]
pub use crate::{event_feed::EVENT_POLLS, events::EVENTS_RING};
#[doc(hidden)]
pub use ron_auth::{CACHE_LOCK, METER_LOCK, NOTE_LOCK, REFRESH_QUEUE};
#[doc(hidden)]
pub use ron_http::{CLIENT_LOCK, FRONT_LOCKS};
#[doc(hidden)]
pub use ron_kernel::Topology;

#[doc(hidden)]
pub const HOOKS_LOCK: LockSpec = LockSpec {
    name: "chassis.hooks",
    rank: 912,
    guards: "hooks of reload and drain",
};

#[doc(hidden)]
pub const fn http_poll(name: &'static str) -> ThreadSpec {
    ThreadSpec {
        name,
        count: Count::One,
        stage: Stage::Front,
        critical: true,
        job: "accepts API connections, watches their time limits, and polls them while all workers are busy",
    }
}
#[doc(hidden)]
pub const fn http_workers(name: &'static str) -> ThreadSpec {
    ThreadSpec {
        name,
        count: Count::Pool("http.workers"),
        stage: Stage::Front,
        critical: false,
        job: "reads API requests, runs handlers, writes responses",
    }
}
#[doc(hidden)]
pub const fn ops_poll(name: &'static str) -> ThreadSpec {
    ThreadSpec {
        name,
        count: Count::One,
        stage: Stage::Front,
        critical: true,
        job: "accepts health and metrics connections",
    }
}
#[doc(hidden)]
pub const fn ops_workers(name: &'static str) -> ThreadSpec {
    ThreadSpec {
        name,
        count: Count::Pool("ops.workers"),
        stage: Stage::Front,
        critical: false,
        job: "answers health, metrics, status and actions",
    }
}
#[doc(hidden)]
pub const fn ops_events(name: &'static str) -> ThreadSpec {
    ThreadSpec {
        name,
        count: Count::One,
        stage: Stage::Front,
        critical: false,
        job: "watches readiness, keeps the newest events, answers requests for them",
    }
}
#[doc(hidden)]
pub const fn ops_log(name: &'static str) -> ThreadSpec {
    ThreadSpec {
        name,
        count: Count::One,
        stage: Stage::Front,
        critical: false,
        job: "writes events to the log",
    }
}
#[doc(hidden)]
pub const fn ops_spans(name: &'static str) -> ThreadSpec {
    ThreadSpec {
        name,
        count: Count::One,
        stage: Stage::Front,
        critical: false,
        job: "sends spans of requests to the collector at `otlp.url`",
    }
}
#[doc(hidden)]
pub const fn auth_keys(name: &'static str) -> ThreadSpec {
    ThreadSpec {
        name,
        count: Count::One,
        stage: Stage::Intake,
        critical: false,
        job: "reads the issuer's keys at an interval",
    }
}
#[doc(hidden)]
pub const fn auth_feed(name: &'static str) -> ThreadSpec {
    ThreadSpec {
        name,
        count: Count::One,
        stage: Stage::Intake,
        critical: false,
        job: "follows the issuer's revocations",
    }
}

#[doc(hidden)]
pub const fn date(name: &'static str) -> ThreadSpec {
    ThreadSpec {
        name,
        count: Count::One,
        stage: Stage::Intake,
        critical: false,
        job: "keeps the date on disk, so that the next start notices a wrong one",
    }
}

/// From the API's poll thread to its workers.
pub const HTTP_QUEUE: QueueSpec = QueueSpec {
    name: "http",
    capacity: 2176,
    overflow: Overflow::RejectNew,
    from: "http-poll, http workers",
    to: "http workers",
    when_full: "cannot happen: it holds connections and is larger than max_conns",
};
/// From the workers of the API to the thread that sends.
pub const SPANS_QUEUE: QueueSpec = QueueSpec {
    name: "spans",
    capacity: 2048,
    overflow: Overflow::DropOldest,
    from: "http workers",
    to: "ops-spans",
    when_full: "the oldest span is lost and counted in `queue_dropped_total`",
};
/// From the health port's poll thread to its workers.
pub const OPS_QUEUE: QueueSpec = QueueSpec {
    name: "ops",
    capacity: 256,
    overflow: Overflow::RejectNew,
    from: "ops-poll",
    to: "ops workers",
    when_full: "cannot happen: it holds connections and is larger than their maximum number",
};

/// The row with this name.
///
/// # Panics
/// When there is none; tables are constants, so the first start shows it.
pub fn topology_thread(topology: &'static Topology, name: &str) -> &'static ThreadSpec {
    let found = topology.threads.iter().find(|row| row.name == name);
    found.unwrap_or_else(|| panic!("no thread {name} in the topology of {}", topology.service))
}

/// Like [`topology_thread`], for queues.
///
/// # Panics
/// When there is none.
pub fn topology_queue(topology: &'static Topology, name: &str) -> &'static QueueSpec {
    let found = topology.queues.iter().find(|row| row.name == name);
    found.unwrap_or_else(|| panic!("no queue {name} in the topology of {}", topology.service))
}

/// Like [`topology_thread`], for locks.
///
/// # Panics
/// When there is none.
pub fn topology_lock(topology: &'static Topology, name: &str) -> &'static LockSpec {
    let found = topology.locks.iter().find(|row| row.name == name);
    found.unwrap_or_else(|| panic!("no lock {name} in the topology of {}", topology.service))
}

/// The rows that [`topology!`](crate::topology!) adds.
#[derive(Clone, Copy)]
pub(crate) struct ChassisThreads {
    pub http_poll: &'static ThreadSpec,
    pub http_workers: &'static ThreadSpec,
    pub ops_poll: &'static ThreadSpec,
    pub ops_workers: &'static ThreadSpec,
    pub ops_events: &'static ThreadSpec,
    pub ops_log: &'static ThreadSpec,
    pub ops_spans: &'static ThreadSpec,
    pub auth: AuthThreads,
    pub date: &'static ThreadSpec,
}

impl ChassisThreads {
    /// The rows of a table. Evaluated in a constant, so a table without them does not compile.
    pub const fn of(topology: &'static Topology) -> Self {
        Self {
            http_poll: row_ending(topology, "-http-poll"),
            http_workers: row_ending(topology, "-http-"),
            ops_poll: row_ending(topology, "-ops-poll"),
            ops_workers: row_ending(topology, "-ops-"),
            ops_events: row_ending(topology, "-ops-events"),
            ops_log: row_ending(topology, "-ops-log"),
            ops_spans: row_ending(topology, "-ops-spans"),
            auth: AuthThreads {
                keys: row_ending(topology, "-auth-keys"),
                feed: row_ending(topology, "-auth-feed"),
            },
            date: row_ending(topology, "-date"),
        }
    }
}

const fn row_ending(topology: &'static Topology, suffix: &str) -> &'static ThreadSpec {
    let mut at = 0;
    while at < topology.threads.len() {
        let row = &topology.threads[at];
        let name = row.name.as_bytes();
        if let Some(from) = name.len().checked_sub(suffix.len())
            && equal(name.split_at(from).1, suffix.as_bytes())
        {
            return row;
        }
        at += 1;
    }
    panic!("a row of the chassis is missing; make the table with ron_service::topology!")
}

/// `==` is not yet available in constants.
const fn equal(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// Checks a table: names that are too long, duplicate names, duplicate ranks. For the services'
/// tests; empty when there is no fault.
pub fn topology_faults(topology: &Topology) -> Vec<String> {
    let mut faults = Vec::new();
    let mut twice = |what: &str, mut names: Vec<String>| {
        names.sort();
        for pair in names.windows(2).filter(|pair| pair[0] == pair[1]) {
            faults.push(format!("{what} {} is listed twice", pair[0]));
        }
    };
    twice(
        "thread",
        topology
            .threads
            .iter()
            .map(|row| row.name.to_owned())
            .collect(),
    );
    twice(
        "queue",
        topology
            .queues
            .iter()
            .map(|row| row.name.to_owned())
            .collect(),
    );
    twice(
        "lock",
        topology
            .locks
            .iter()
            .map(|row| row.name.to_owned())
            .collect(),
    );
    twice(
        "rank",
        topology
            .locks
            .iter()
            .map(|row| row.rank.to_string())
            .collect(),
    );
    for row in topology.threads {
        // Pool members carry up to two digits.
        let digits = if matches!(row.count, Count::One) {
            0
        } else {
            2
        };
        if row.name.len() + digits > 15 {
            faults.push(format!(
                "thread {} is longer than Linux shows (15 bytes)",
                row.name
            ));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    static SAMPLE: Topology = crate::topology! {
        service: "svc-sample", prefix: "pass",
        threads: [ThreadSpec { name: "pass-work-", count: Count::Pool("workers"), stage: Stage::Work, critical: false, job: "works" }],
        queues: [QueueSpec { name: "work", capacity: 4, overflow: Overflow::RejectNew, from: "http", to: "work", when_full: "429" }],
        locks: [LockSpec { name: "sample", rank: 10, guards: "nothing" }],
    };

    #[test]
    fn the_macro_joins_chassis_rows_and_own_rows_without_a_fault() {
        assert_eq!(topology_faults(&SAMPLE), Vec::<String>::new());
        assert_eq!(topology_thread(&SAMPLE, "pass-work-").job, "works");
        assert_eq!(topology_queue(&SAMPLE, "work").capacity, 4);
        assert_eq!(topology_lock(&SAMPLE, "sample").rank, 10);
        let rows = const { ChassisThreads::of(&SAMPLE) };
        assert_eq!(rows.http_workers.name, "pass-http-");
        assert_eq!(rows.auth.feed.name, "pass-auth-feed");
    }
}
