//! Threads, queues and locks of a service as constants: the running service is built from them.

/// The step of a drain in which a thread is stopped. Stages stop in the order of the variants, each
/// joined before the next one is signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Threads that create work by themselves: samplers, pollers, refreshers, schedulers.
    Intake,
    /// Threads beside the request path: reporters, projections, sweepers.
    Background,
    /// Threads that process jobs: signers, issuers, committers, compute workers.
    Work,
    /// Threads that make results durable: appenders, writers, checkpointers.
    Write,
    /// HTTP threads; last, because answers still leave through them. New requests are refused from
    /// the start of the drain.
    Front,
}

impl Stage {
    /// All stages in drain order.
    pub const ALL: [Self; 5] = [
        Self::Intake,
        Self::Background,
        Self::Work,
        Self::Write,
        Self::Front,
    ];

    /// Lower-case name for tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Intake => "intake",
            Self::Background => "background",
            Self::Work => "work",
            Self::Write => "write",
            Self::Front => "front",
        }
    }
}

/// The policy of a full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The item is returned to the sender at once (429 at the edge).
    RejectNew,
    /// The oldest item is dropped and counted; the sender never waits.
    DropOldest,
    /// The sender waits until its deadline; then its item is returned.
    WaitDeadline,
}

impl Overflow {
    /// Lower-case name for tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RejectNew => "reject new",
            Self::DropOldest => "drop oldest",
            Self::WaitDeadline => "wait until deadline",
        }
    }
}

/// The number of threads of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Exactly one, named as the row.
    One,
    /// A pool whose size comes from this configuration key; members are named row name + index.
    Pool(&'static str),
}

/// One row of the thread table. Names are at most 15 bytes with their index, so that
/// `/proc/<pid>/task/*/comm` shows them whole.
#[derive(Clone, Copy, Debug)]
pub struct ThreadSpec {
    /// Thread name, or the stem of a pool's names.
    pub name: &'static str,
    /// One, or a pool.
    pub count: Count,
    /// The drain stage that stops it.
    pub stage: Stage,
    /// When its restart budget is used up, the process ends instead of becoming not ready.
    pub critical: bool,
    /// Its task, in one line.
    pub job: &'static str,
}

/// One row of the queue table.
#[derive(Clone, Copy, Debug)]
pub struct QueueSpec {
    /// Name, also the `queue` label of its metrics.
    pub name: &'static str,
    /// Default capacity in items.
    pub capacity: usize,
    /// Policy when it is full.
    pub overflow: Overflow,
    pub from: &'static str,
    pub to: &'static str,
    /// The answer that a caller at the edge gets when it is full.
    pub when_full: &'static str,
}

/// One row of the lock table. A thread takes locks in ascending rank only.
#[derive(Clone, Copy, Debug)]
pub struct LockSpec {
    /// Name for messages and tables.
    pub name: &'static str,
    /// Rank; unique within a service.
    pub rank: u16,
    pub guards: &'static str,
}

/// The whole table of one service.
#[derive(Clone, Copy, Debug)]
pub struct Topology {
    /// Service name as in its binary.
    pub service: &'static str,
    pub threads: &'static [ThreadSpec],
    pub queues: &'static [QueueSpec],
    pub locks: &'static [LockSpec],
}
