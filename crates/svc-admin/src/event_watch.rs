//! The reader of the timeline: it reads the events of nodes, notes the states that they come into, and publishes both.
//!
//! **Invariants:** a node that hangs is not asked: the samplers find that out. An event is one line, also after a restart of the
//! console.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ron_http::{Call, HttpClient};
use ron_kernel::{Deadline, SharedClock, ThreadCtx};
use ron_proto::Timestamp;
use ron_proto::admin::{NodeState, NodeSummary, UnreadNode};
use ron_proto::events::{EventKind, EventPage};

use crate::audit::SharedAudit;
use crate::fleet::Fleet;
use crate::line::Line;
use crate::node::Node;
use crate::timeline::{Lines, Timeline};
use crate::view::Board;

/// Time between two readings of the fleet: as between two polls of a node by default.
const PACE: Duration = Duration::from_secs(5);
/// Deadline of one page.
const READ: Duration = Duration::from_secs(2);

/// What a node's feed was read up to.
#[derive(Clone, Debug, Default)]
struct Cursor {
    boot: String,
    after: u64,
}

/// The reader of the adm-events thread.
pub struct EventWatch {
    client: Arc<HttpClient>,
    clock: SharedClock,
    audit: SharedAudit,
    cursors: BTreeMap<String, Cursor>,
    states: BTreeMap<String, NodeState>,
    last: u64,
}

impl EventWatch {
    /// Goes on after these lines.
    pub fn new(
        client: Arc<HttpClient>,
        clock: SharedClock,
        audit: SharedAudit,
        lines: &Lines,
    ) -> Self {
        let mut watch = Self {
            client,
            clock,
            audit,
            cursors: BTreeMap::new(),
            states: BTreeMap::new(),
            last: 0,
        };
        for line in lines.iter() {
            let node = line.entry.node.clone();
            watch.last = watch.last.max(line.entry.seq);
            if let Some((boot, after)) = line.event.clone() {
                watch.cursors.insert(node, Cursor { boot, after });
            } else if let Some(state) = line.state() {
                watch.states.insert(node, state);
            } else {
                watch.states.remove(&node);
            }
        }
        watch
    }

    /// The body of the thread.
    pub fn run(mut self, fleet: &Fleet, board: &Board, timeline: &Timeline, ctx: &ThreadCtx) {
        while !ctx.shutdown.wait(Deadline::within(PACE)) {
            self.tick(fleet, board, timeline);
        }
    }

    pub fn tick(&mut self, fleet: &Fleet, board: &Board, timeline: &Timeline) {
        let now = self.clock.unix_ms();
        let (roster, board) = (fleet.roster(), board.load());
        let (mut new, mut unread) = (Vec::new(), Vec::new());
        for node in &roster.nodes {
            let id = &node.spec.id;
            new.extend(board.summary(id).and_then(|summary| self.state(summary)));
            let view = node.view();
            // Nodes that do not answer the samplers are not asked, and others have no such page.
            let service = view.status.service.as_deref();
            if service.is_some_and(is_ours) && view.facts.failures == 0 {
                match self.read(node, service) {
                    Ok(lines) => new.extend(lines),
                    Err(problem) => unread.push(UnreadNode {
                        node: id.clone(),
                        problem,
                    }),
                }
            }
        }
        new.extend(self.removed(fleet, now));
        new.sort_by_key(|line| line.entry.at);
        for line in &mut new {
            self.last += 1;
            line.entry.seq = self.last;
        }
        timeline.store(timeline.load().with(new.clone(), now, unread));
        if !new.is_empty() {
            self.audit.keep_lines(new);
        }
    }

    /// A line if the node has come into another state.
    fn state(&mut self, summary: &NodeSummary) -> Option<Line> {
        let (id, state) = (&summary.id, summary.state);
        let known = self.states.get(id).copied();
        if known.unwrap_or(NodeState::Unknown) == state {
            return None;
        }
        self.states.insert(id.clone(), state);
        let reasons = summary.reasons.iter();
        let reasons: Vec<&str> = reasons.map(|reason| reason.text.as_str()).collect();
        let service = summary.service.clone();
        let reasons = reasons.join("; ");
        Some(Line::of_state(id, service, summary.since, state, &reasons))
    }

    /// Forgets nodes that are no longer watched; a line for each whose state was known.
    fn removed(&mut self, fleet: &Fleet, now: u64) -> Vec<Line> {
        self.cursors.retain(|id, _| fleet.node(id).is_some());
        let gone = |id: &String, _: &mut NodeState| fleet.node(id).is_none();
        let gone = self.states.extract_if(.., gone);
        gone.map(|(id, _)| Line::of_removal(&id, Timestamp(now)))
            .collect()
    }

    /// The events of a node that were not read yet.
    fn read(&mut self, node: &Node, service: Option<&str>) -> Result<Vec<Line>, String> {
        let id = &node.spec.id;
        let cursor = self.cursors.get(id).cloned().unwrap_or_default();
        let Cursor { boot, after } = &cursor;
        let url = format!(
            "{}/api/v1/events?after={after}&boot={boot}",
            node.spec.health_url
        );
        let reply = self.client.call(Call::get(&url, Deadline::within(READ)));
        let reply = reply.map_err(|error| error.detail)?;
        if !reply.is_success() {
            return Err(format!("/api/v1/events answered {}", reply.status));
        }
        let page: EventPage = reply.json().map_err(|error| error.detail)?;
        let after = page.next;
        let boot = page.boot.clone();
        self.cursors.insert(id.clone(), Cursor { boot, after });
        // A console's own words on the states of nodes are in the timeline already.
        let events = page
            .events
            .into_iter()
            .filter(|event| event.kind != EventKind::NodeState);
        let service = service.map(str::to_owned);
        let lines = events.map(|event| Line::of_event(id, service.clone(), event));
        Ok(lines.collect())
    }
}

/// Services that publish events.
fn is_ours(service: &str) -> bool {
    [
        "ron-kms",
        "svc-passport",
        "ron-ledger",
        "svc-wallet",
        "svc-rewarder",
        "svc-admin",
    ]
    .contains(&service)
}
