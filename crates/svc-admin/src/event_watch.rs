//! The reader of the timeline: it reads the events of nodes, notes the states that they come into, and publishes both.
//!
//! **Invariants:** a node that hangs is not asked: the samplers find that out. An event is one line, also after a restart of the
//! console.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ron_http::{Call, HttpClient};
use ron_kernel::{Deadline, SharedClock, ThreadCtx};
use ron_proto::Timestamp;
use ron_proto::admin::{NodeState, TimelineEntry, UnreadNode};
use ron_proto::events::{EventKind, EventPage, Severity};

use crate::audit::SharedAudit;
use crate::fleet::Fleet;
use crate::node::{Node, NodeView};
use crate::state::{Verdict, judge};
use crate::timeline::{KEPT, Line, Lines, Timeline};

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
        for line in lines.lines.iter() {
            let node = line.entry.node.clone();
            watch.last = watch.last.max(line.entry.seq);
            if let Some((boot, after)) = line.event.clone() {
                watch.cursors.insert(node, Cursor { boot, after });
            } else if let Some(state) = state_of(line) {
                watch.states.insert(node, state);
            }
        }
        watch
    }

    /// The body of the thread.
    pub fn run(mut self, fleet: &Fleet, timeline: &Timeline, ctx: &ThreadCtx) {
        while !ctx.shutdown.wait(Deadline::within(PACE)) {
            self.tick(fleet, timeline);
        }
    }

    pub fn tick(&mut self, fleet: &Fleet, timeline: &Timeline) {
        let now = self.clock.unix_ms();
        let roster = fleet.roster();
        let (mut new, mut unread) = (Vec::new(), Vec::new());
        for node in &roster.nodes {
            let view = node.view();
            new.extend(self.state(node, &view, now));
            // Nodes that do not answer the samplers are not asked, and others have no such page.
            let is_ours = view.status.service.as_deref().is_some_and(is_ours);
            if is_ours && view.facts.failures == 0 {
                match self.read(node, &view) {
                    Ok(lines) => new.extend(lines),
                    Err(problem) => unread.push(UnreadNode {
                        node: node.spec.id.clone(),
                        problem,
                    }),
                }
            }
        }
        self.cursors.retain(|id, _| fleet.node(id).is_some());
        self.states.retain(|id, _| fleet.node(id).is_some());
        new.sort_by_key(|line| line.entry.at);
        for line in &mut new {
            self.last += 1;
            line.entry.seq = self.last;
        }
        self.publish(new, unread, now, timeline);
    }

    fn publish(&self, new: Vec<Line>, unread: Vec<UnreadNode>, now: u64, timeline: &Timeline) {
        let mut lines = timeline.load().lines.clone();
        if !new.is_empty() {
            let mut all = VecDeque::clone(&lines);
            all.extend(new.iter().cloned().map(Arc::new));
            all.drain(..all.len().saturating_sub(KEPT));
            lines = Arc::new(all);
            self.audit.keep_lines(new);
        }
        timeline.store(Lines {
            as_of: now,
            lines,
            unread,
        });
    }

    /// A line if the node has come into another state.
    fn state(&mut self, node: &Node, view: &NodeView, now: u64) -> Option<Line> {
        let Verdict { state, reasons } = judge(&view.facts, now);
        let id = &node.spec.id;
        let known = self.states.get(id).copied();
        if known.unwrap_or(NodeState::Unknown) == state {
            return None;
        }
        self.states.insert(id.clone(), state);
        let reasons: Vec<&str> = reasons.iter().map(|reason| reason.text.as_str()).collect();
        Some(Line {
            entry: TimelineEntry {
                seq: 0,
                at: Timestamp(now),
                node: id.clone(),
                kind: EventKind::NodeState.as_str().to_owned(),
                severity: match state {
                    NodeState::Down => Severity::Error,
                    NodeState::Degraded => Severity::Warn,
                    NodeState::Healthy | NodeState::Unknown => Severity::Info,
                },
                reason: Some(state.as_str().to_owned()),
                number: None,
                detail: Some(reasons.join("; ")).filter(|text| !text.is_empty()),
                because: None,
            },
            service: view.status.service.clone(),
            event: None,
        })
    }

    /// The events of a node that were not read yet.
    fn read(&mut self, node: &Node, view: &NodeView) -> Result<Vec<Line>, String> {
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
        let line = |event: ron_proto::events::ServiceEvent| Line {
            entry: TimelineEntry {
                seq: 0,
                at: event.at,
                node: id.clone(),
                kind: event.kind.as_str().to_owned(),
                severity: event.severity,
                reason: event.reason,
                number: event.number,
                detail: None,
                because: None,
            },
            service: view.status.service.clone(),
            event: Some((event.boot, event.seq)),
        };
        Ok(events.map(line).collect())
    }
}

fn state_of(line: &Line) -> Option<NodeState> {
    let all = [
        NodeState::Healthy,
        NodeState::Degraded,
        NodeState::Down,
        NodeState::Unknown,
    ];
    let said = line.entry.reason.as_deref()?;
    all.into_iter().find(|state| state.as_str() == said)
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
