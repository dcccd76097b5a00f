//! The fleet: the nodes that are watched, and the thread that schedules their polls.
//!
//! Nodes come and go with the configuration and the discovery files while the console runs. A node
//! that stays keeps its samples; the samples of a removed node are dropped. No node is polled twice
//! at the same time, and a node that hangs occupies one sampler thread and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ron_http::HttpClient;
use ron_kernel::time::Instant;
use ron_kernel::{
    Deadline, KernelMetrics, Receiver, Recv, Sender, SharedClock, Snapshot, ThreadCtx, queue,
};

use crate::node::Node;
use crate::settings::{NodeSpec, Sampling};
use crate::topology::METRICS_CMD;

/// Maximum time between the first polls of two nodes.
const FIRST_SPACING: Duration = Duration::from_millis(50);
/// Every how many polls the topology is read; it changes only when a node restarts.
const TOPOLOGY_EVERY: u64 = 6;
/// Longest single wait of the scheduler without nodes.
const IDLE: Duration = Duration::from_secs(60);
/// Pause when every sampler is busy.
const FULL_PAUSE: Duration = Duration::from_millis(50);

/// The nodes that are watched at one moment.
#[derive(Debug, Default)]
pub struct Roster {
    /// Grows with every change.
    pub generation: u64,
    /// In the order of the configuration, then of the discovery files.
    pub nodes: Vec<Arc<Node>>,
    places: BTreeMap<String, usize>,
}

/// An event for the scheduler.
#[derive(Debug)]
pub enum Event {
    /// A caller wants this node polled now.
    Refresh(String),
    /// A poll ended; the next one is due after the pause.
    Polled { node: Arc<Node>, pause: Duration },
    /// There is another roster.
    Roster,
}

/// A poll to be made: a node that is due.
#[derive(Debug)]
pub struct DuePoll {
    pub node: Arc<Node>,
    pub with_topology: bool,
}

/// State shared by samplers, builder and API.
#[derive(Debug)]
pub struct Fleet {
    roster: Snapshot<Roster>,
    pub sampling: Sampling,
    pub client: Arc<HttpClient>,
    pub clock: SharedClock,
    pub metrics: KernelMetrics,
    pub events: Sender<Event>,
}

impl Fleet {
    /// A fleet without nodes, and the receiver for its scheduler.
    pub fn new(
        sampling: Sampling,
        client: Arc<HttpClient>,
        clock: SharedClock,
        metrics: KernelMetrics,
    ) -> (Self, Receiver<Event>) {
        metrics.upstream_fail.declare(["node"]);
        metrics.io_timeouts.declare(["poll"]);
        metrics.io_errors.declare(["connect"]);
        metrics.parse_errors.declare(["topology"]);
        let (events, receiver) = queue(&METRICS_CMD, METRICS_CMD.capacity, &metrics);
        let fleet = Self {
            roster: Snapshot::new(Roster::default()),
            sampling,
            client,
            clock,
            metrics,
            events,
        };
        (fleet, receiver)
    }

    /// The nodes that are watched now.
    pub fn roster(&self) -> Arc<Roster> {
        self.roster.load()
    }

    /// The node with this id.
    pub fn node(&self, id: &str) -> Option<Arc<Node>> {
        let roster = self.roster.load();
        roster.places.get(id).map(|at| roster.nodes[*at].clone())
    }

    /// Number of sampler threads for so many nodes.
    pub fn threads_for(&self, nodes: usize) -> usize {
        nodes.clamp(1, self.sampling.max_threads)
    }

    /// Watches exactly these nodes from now on. Nodes that are watched already and did not change
    /// keep their samples. Returns the ids added and removed, or `None` when nothing changed. One
    /// caller at a time.
    pub fn watch(&self, specs: &[NodeSpec]) -> Option<(Vec<String>, Vec<String>)> {
        let old = self.roster.load();
        let same = old.nodes.len() == specs.len()
            && old.nodes.iter().zip(specs).all(|(n, spec)| n.spec == *spec);
        if same {
            return None;
        }
        let mut came = Vec::new();
        let nodes: Vec<Arc<Node>> = specs
            .iter()
            .map(|spec| {
                let known = old.places.get(&spec.id).map(|at| &old.nodes[*at]);
                known
                    // Only an unchanged node keeps its samples: after a change of its URL they
                    // would be those of another process.
                    .filter(|node| node.spec == *spec)
                    .cloned()
                    .unwrap_or_else(|| {
                        came.push(spec.id.clone());
                        Arc::new(Node::new(spec.clone(), self.sampling))
                    })
            })
            .collect();
        self.adopt(nodes);
        let new = self.roster.load();
        // Polls in progress still hold a removed node; its results are dropped with the last
        // reference.
        let gone = |node: &&Arc<Node>| !new.places.contains_key(&node.spec.id);
        let went = old.nodes.iter().filter(gone).map(|n| n.spec.id.clone());
        Some((came, went.collect()))
    }

    /// Publishes these nodes as the fleet.
    pub fn adopt(&self, nodes: Vec<Arc<Node>>) {
        let places = nodes.iter().enumerate();
        let places = places
            .map(|(at, node)| (node.spec.id.clone(), at))
            .collect();
        let generation = self.roster.load().generation + 1;
        self.roster.store(Roster {
            generation,
            nodes,
            places,
        });
        // A full queue: the scheduler reads the roster after each event.
        let _ = self.events.try_send(Event::Roster);
    }

    /// The body of the scheduler's thread.
    pub fn scheduler(&self, events: &Receiver<Event>, polls: &Sender<DuePoll>, ctx: &ThreadCtx) {
        let mut plan = Plan::default();
        loop {
            let now = self.clock.now();
            let roster = self.roster.load();
            if roster.generation != plan.generation {
                plan.follow(&roster, now, self.sampling.interval);
            }
            while let Some(due) = plan.take_due(now) {
                let id = due.node.spec.id.clone();
                if polls.try_send(due).is_err() {
                    plan.reschedule(&id, now + FULL_PAUSE);
                    break;
                }
            }
            let until = plan.next_due().unwrap_or(now + IDLE);
            match events.recv(&ctx.shutdown, Deadline::at_instant(until)) {
                Recv::Item(event) => plan.take(event, self.clock.now()),
                Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => return,
            }
        }
    }
}

/// When each node is due. Pure: callers pass the time.
#[derive(Debug, Default)]
pub struct Plan {
    generation: u64,
    slots: BTreeMap<String, Slot>,
    due: BTreeSet<(Instant, String)>,
}

#[derive(Debug)]
struct Slot {
    node: Arc<Node>,
    /// When the next poll is, or was, due.
    at: Instant,
    /// A sampler has the node.
    out: bool,
    /// A refresh was requested while a sampler had the node.
    again: bool,
    polls: u64,
}

impl Plan {
    /// Follows a new roster. New nodes are due soon, but spread over time.
    pub fn follow(&mut self, roster: &Roster, now: Instant, interval: Duration) {
        self.generation = roster.generation;
        let kept = |slot: &Slot| {
            let place = roster.places.get(&slot.node.spec.id);
            place.is_some_and(|at| Arc::ptr_eq(&roster.nodes[*at], &slot.node))
        };
        self.slots.retain(|_, slot| kept(slot));
        let slots = &self.slots;
        self.due.retain(|(_, id)| slots.contains_key(id));
        let even = interval / u32::try_from(roster.nodes.len().max(1)).unwrap_or(u32::MAX);
        let mut at = now;
        for node in &roster.nodes {
            let id = &node.spec.id;
            if self.slots.contains_key(id) {
                continue;
            }
            let slot = Slot {
                node: node.clone(),
                at,
                out: false,
                again: false,
                polls: 0,
            };
            self.slots.insert(id.clone(), slot);
            self.due.insert((at, id.clone()));
            at += even.min(FIRST_SPACING);
        }
    }

    /// When the next node is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes a node that is due off the plan; [`Event::Polled`] or [`Plan::reschedule`] adds it
    /// again.
    pub fn take_due(&mut self, now: Instant) -> Option<DuePoll> {
        self.next_due().filter(|at| *at <= now)?;
        let (_, id) = self.due.pop_first()?;
        let slot = self.slots.get_mut(&id)?;
        slot.out = true;
        slot.polls += 1;
        Some(DuePoll {
            node: slot.node.clone(),
            with_topology: (slot.polls - 1).is_multiple_of(TOPOLOGY_EVERY),
        })
    }

    /// Adds a node again that no sampler was free for.
    pub fn reschedule(&mut self, id: &str, at: Instant) {
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        slot.out = false;
        slot.polls -= 1;
        self.due.insert((at, id.to_owned()));
    }

    pub fn take(&mut self, event: Event, now: Instant) {
        match event {
            Event::Refresh(id) => {
                let Some(slot) = self.slots.get_mut(&id) else {
                    return;
                };
                if slot.out {
                    slot.again = true;
                    return;
                }
                self.due.remove(&(slot.at, id.clone()));
                slot.at = now;
                self.due.insert((now, id));
            }
            Event::Roster => {} // the scheduler reads it before each wait
            Event::Polled { node, pause } => {
                let id = &node.spec.id;
                // A node of an earlier roster is not planned again.
                let known = self.slots.get_mut(id);
                let Some(slot) = known.filter(|slot| Arc::ptr_eq(&slot.node, &node)) else {
                    return;
                };
                slot.out = false;
                // Polls missed during a stall are skipped, not made up for.
                slot.at = if slot.again {
                    now
                } else {
                    (slot.at + pause).max(now)
                };
                slot.again = false;
                self.due.insert((slot.at, id.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::{node, sampling};
    use ron_http::ClientConfig;
    use ron_kernel::{Registry, SystemClock};

    fn fleet() -> Fleet {
        let client = Arc::new(HttpClient::new(ClientConfig::default()));
        let metrics = KernelMetrics::new(&Registry::new("t"));
        Fleet::new(sampling(), client, SystemClock::shared(), metrics).0
    }

    fn specs(ids: &[&str]) -> Vec<NodeSpec> {
        ids.iter().map(|id| node(id).spec).collect()
    }

    #[test]
    fn a_reload_adds_and_removes_and_keeps_the_rest() {
        let fleet = fleet();
        assert_eq!(
            fleet.watch(&specs(&["a", "b"])),
            Some((vec!["a".into(), "b".into()], vec![]))
        );
        let a = fleet.node("a").expect("watched");
        assert_eq!(
            fleet.watch(&specs(&["a", "c"])),
            Some((vec!["c".into()], vec!["b".into()]))
        );
        assert!(Arc::ptr_eq(&a, &fleet.node("a").expect("still")), "kept");
        assert!(fleet.node("b").is_none());
        assert_eq!(fleet.watch(&specs(&["a", "c"])), None);
        let mut other = specs(&["a", "c"]);
        other[0].health_url = "http://elsewhere:1".into();
        assert_eq!(fleet.watch(&other), Some((vec!["a".into()], vec![])));
        assert_eq!(fleet.threads_for(10), 4, "bounded by max_threads");
    }

    #[test]
    fn nodes_are_planned_once_and_in_time() {
        let fleet = fleet();
        fleet.watch(&specs(&["a", "b"]));
        let now = fleet.clock.now();
        let five = Duration::from_secs(5);
        let mut plan = Plan::default();
        plan.follow(&fleet.roster(), now, five);
        let first = plan.take_due(now).expect("a is due");
        assert!(first.with_topology && first.node.spec.id == "a");
        assert!(plan.take_due(now).is_none(), "b comes a little later");
        assert_eq!(plan.next_due(), Some(now + FIRST_SPACING));
        let polled = |node: &Arc<Node>| Event::Polled {
            node: node.clone(),
            pause: five,
        };
        // Requested while a sampler has the node: polled once more at once, not twice.
        plan.take(Event::Refresh("a".into()), now);
        plan.take(Event::Refresh("a".into()), now);
        assert!(plan.take_due(now).is_none());
        plan.take(polled(&first.node), now);
        let again = plan.take_due(now).expect("refreshed");
        assert!(!again.with_topology);
        plan.take(polled(&again.node), now);
        assert!(
            plan.take_due(now + Duration::from_secs(4))
                .is_some_and(|l| l.node.spec.id == "b")
        );
        assert!(plan.take_due(now + Duration::from_secs(4)).is_none());
        assert!(plan.take_due(now + five).is_some());
        // Requested while the node waits: due now.
        plan.take(polled(&again.node), now + five);
        plan.take(Event::Refresh("a".into()), now + five);
        let due = plan.take_due(now + five).expect("due");
        plan.reschedule("a", now + Duration::from_secs(6));
        assert!(plan.take_due(now + five).is_none());
        // A node that is no longer watched is forgotten.
        fleet.watch(&specs(&["b"]));
        plan.follow(&fleet.roster(), now, five);
        plan.take(polled(&due.node), now);
        assert!(plan.slots.len() == 1 && plan.due.iter().all(|(_, id)| id == "b"));
    }
}
