//! Views of the supervisor: the state of each row, the verdict on the service, and the running
//! threads beside the table they were built from.

use std::sync::Arc;

use serde::Serialize;

use super::{Entry, Group, Supervisor};
use crate::sync::Ordering;
use crate::topology::{LockSpec, QueueSpec};

/// The state of one row, for status pages and readiness.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub struct PlaneState {
    pub name: &'static str,
    pub live: u32,
    /// Threads that should run.
    pub total: u32,
    /// Restarts since the start.
    pub restarts: u32,
    /// The latest crash or quarantine, if there was one.
    pub reason: Option<String>,
    /// The loss of the row ends the process.
    pub critical: bool,
    /// Threads that ended for good because the row used up its restarts.
    pub lost: u32,
}

/// The state of the service by its threads alone; each variant is worse than the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Every thread of every row runs.
    Whole,
    /// These pools have lost some of their threads but not all; requests are still served.
    Degraded(Vec<&'static str>),
    /// These rows have no thread left.
    NotReady(Vec<&'static str>),
    /// The process must end, for this reason.
    Fatal(String),
}

/// The running threads and the table they were built from; `/api/v1/topology` serves it as JSON.
#[derive(Debug, Clone, Serialize)]
pub struct TopologyLive {
    pub service: &'static str,
    pub threads: Vec<LiveThread>,
    /// Queues of the table.
    pub queues: Vec<LiveQueue>,
    /// Locks of the table.
    pub locks: Vec<LiveLock>,
}

#[derive(Debug, Clone, Serialize)]
pub struct LiveThread {
    /// Name as in `/proc/<pid>/task/<tid>/comm`.
    pub name: String,
    /// Name of its row.
    pub row: &'static str,
    pub stage: &'static str,
    /// The loss of the row ends the process.
    pub critical: bool,
    pub job: &'static str,
    /// False once it has ended or used up its restarts.
    pub running: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct LiveQueue {
    pub name: &'static str,
    pub capacity: usize,
    /// Capacities of the queues built from the row, as configured; one row may describe several.
    pub built: Vec<usize>,
    pub overflow: &'static str,
    pub from: &'static str,
    pub to: &'static str,
    /// The answer that a refused caller gets.
    pub when_full: &'static str,
}

#[derive(Debug, Clone, Serialize)]
pub struct LiveLock {
    pub name: &'static str,
    pub rank: u16,
    pub guards: &'static str,
}

impl Supervisor {
    /// One state per row that has threads.
    pub fn planes(&self) -> Vec<PlaneState> {
        let groups: Vec<Arc<Group>> = self.0.groups.lock().values().cloned().collect();
        let plane = |g: &Arc<Group>| PlaneState {
            name: g.spec.name.trim_end_matches('-'),
            live: g.live.load(Ordering::SeqCst),
            total: g.total.load(Ordering::SeqCst),
            restarts: g.restarts.load(Ordering::SeqCst),
            reason: g.reason.lock().clone(),
            critical: g.spec.critical,
            lost: g.lost.load(Ordering::SeqCst),
        };
        groups.iter().map(plane).collect()
    }

    /// The worst state that holds: whole, degraded, not ready or fatal.
    pub fn verdict(&self) -> Verdict {
        if let Some(why) = self.fatal() {
            return Verdict::Fatal(why);
        }
        let planes = self.planes();
        // The worst state first: a service with a dead row is not merely degraded.
        let down = planes.iter().filter(|p| p.live == 0 && p.total > 0);
        let down: Vec<_> = down.map(|p| p.name).collect();
        if !down.is_empty() {
            return Verdict::NotReady(down);
        }
        let short = planes.iter().filter(|p| p.live < p.total);
        let short: Vec<_> = short.map(|p| p.name).collect();
        if short.is_empty() {
            Verdict::Whole
        } else {
            Verdict::Degraded(short)
        }
    }

    /// The running threads and the tables they were built from.
    pub fn topology(&self) -> TopologyLive {
        let threads: Vec<LiveThread> = {
            let threads = self.0.threads.lock();
            threads.entries.iter().map(live_thread).collect()
        };
        let t = self.0.topology;
        let built = self.0.metrics.built_queues();
        let queue = |row: &'static QueueSpec| LiveQueue {
            name: row.name,
            capacity: row.capacity,
            built: built
                .iter()
                .filter(|q| q.spec.name == row.name)
                .map(|q| q.capacity)
                .collect(),
            overflow: row.overflow.as_str(),
            from: row.from,
            to: row.to,
            when_full: row.when_full,
        };
        let lock = |row: &LockSpec| LiveLock {
            name: row.name,
            rank: row.rank,
            guards: row.guards,
        };
        TopologyLive {
            service: t.service,
            threads,
            queues: t.queues.iter().map(queue).collect(),
            locks: t.locks.iter().map(lock).collect(),
        }
    }

    /// Differences between the running service and the table: rows without a thread, rows without a
    /// queue, and threads that the operating system (`os_names`, see [`os_thread_names`]) does not
    /// show. Threads and queues outside the table cannot exist: they are refused when they are
    /// made.
    pub fn differences(&self, os_names: &[String]) -> Vec<String> {
        let live = self.topology();
        let mut found = Vec::new();
        for row in self.0.topology.threads {
            let mut ours = live.threads.iter().filter(|t| t.row == row.name);
            if !ours.any(|t| t.running) {
                found.push(format!("thread row `{}` has no running thread", row.name));
            }
        }
        let missing = |t: &&LiveThread| t.running && !os_names.contains(&t.name);
        for thread in live.threads.iter().filter(missing) {
            found.push(format!(
                "thread `{}` is not known to the operating system",
                thread.name
            ));
        }
        for queue in live.queues.iter().filter(|q| q.built.is_empty()) {
            found.push(format!("queue row `{}` was not built", queue.name));
        }
        found
    }
}

/// Names of all threads of this process as the operating system shows them (Linux).
pub fn os_thread_names() -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for task in std::fs::read_dir("/proc/self/task")? {
        // A thread may end between the listing and the reading.
        if let Ok(name) = std::fs::read_to_string(task?.path().join("comm")) {
            names.push(name.trim_end().to_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn live_thread(e: &Entry) -> LiveThread {
    LiveThread {
        name: e.name.clone(),
        row: e.spec.name,
        stage: e.spec.stage.as_str(),
        critical: e.spec.critical,
        job: e.spec.job,
        running: e.running.load(Ordering::SeqCst),
    }
}
