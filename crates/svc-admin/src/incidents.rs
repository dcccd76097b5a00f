//! What belongs together in the timeline: the node whose state explains that of another, and the incidents of nodes that were not
//! well at the same time for one cause.
//!
//! A pure function of the lines, computed when lines are added and not when they are read. What is added costs as much as itself:
//! of the lines before it, those of the last seconds are looked at, and those of an incident that turns out to be one with another.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ron_proto::Timestamp;
use ron_proto::admin::{Incident, IncidentNode, NodeState};
use ron_proto::events::Severity;

use crate::line::Line;

/// A state is put down to that of another node which came into its own so much later, in milliseconds: nodes are polled one after
/// the other.
const TOGETHER_MS: u64 = 15_000;
/// A node that is not well again so soon after an incident is in the same one, in milliseconds.
const AGAIN_MS: u64 = 60_000;

/// Which services a service calls. Their state may explain its own.
const CALLS: [(&str, &[&str]); 4] = [
    ("svc-wallet", &["ron-ledger", "svc-passport"]),
    ("svc-rewarder", &["ron-ledger", "ron-kms", "svc-passport"]),
    ("svc-passport", &["ron-kms"]),
    ("ron-ledger", &["svc-passport"]),
];

/// What is known of the lines beside their own content. It goes on with lines that are added at the end; when lines go at the
/// beginning, it is told again by [`relate`].
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// By line: the node that explains it.
    because: Vec<Option<Arc<str>>>,
    /// By line: its draft.
    part_of: Vec<Option<usize>>,
    /// Service and state of the nodes that are not well.
    unwell: BTreeMap<Arc<str>, (Option<Arc<str>>, NodeState)>,
    /// One that was merged into another has no lines.
    drafts: Vec<Arc<Draft>>,
    /// The last draft of each node.
    last: BTreeMap<Arc<str>, usize>,
}

/// The story of the lines, which are oldest first.
pub fn relate(lines: &VecDeque<Arc<Line>>) -> Story {
    let mut story = Story::default();
    story.extend(lines);
    story
}

impl Story {
    /// Goes on with the lines after those that the story is of already.
    pub fn extend(&mut self, lines: &VecDeque<Arc<Line>>) {
        let known = self.because.len();
        self.because.resize(lines.len(), None);
        self.part_of.resize(lines.len(), None);
        let mut relater = Relater {
            lines,
            story: self,
            touched: BTreeSet::new(),
        };
        for at in known..lines.len() {
            relater.take(at);
        }
        for draft in std::mem::take(&mut relater.touched) {
            let incident = relater.incident(draft);
            relater.draft(draft).incident = incident;
        }
    }

    /// The node that explains the line at this place.
    pub fn because(&self, at: usize) -> Option<&str> {
        self.because[at].as_deref()
    }

    /// The incident that the line at this place belongs to.
    pub fn incident(&self, at: usize) -> Option<&Incident> {
        self.drafts[self.part_of[at]?].incident.as_ref()
    }
}

/// Whether the state of a node of the service `cause` explains that of one of the service `effect`: it is called, and a degraded
/// node does not explain that another is down.
fn explains(cause: (Option<&str>, NodeState), effect: (Option<&str>, NodeState)) -> bool {
    let (Some(called), Some(caller)) = (cause.0, effect.0) else {
        return false;
    };
    let mut calls = CALLS.iter().filter(|(service, _)| *service == caller);
    calls.any(|(_, services)| services.contains(&called))
        && (cause.1 == NodeState::Down || effect.1 == NodeState::Degraded)
}

fn is_bad(state: Option<NodeState>) -> Option<NodeState> {
    state.filter(|state| matches!(state, NodeState::Degraded | NodeState::Down))
}

/// An incident, to which lines may be added.
#[derive(Clone, Debug, Default)]
struct Draft {
    first: usize,
    /// Number of its lines.
    lines: u64,
    unwell: BTreeSet<Arc<str>>,
    until: Option<u64>,
    /// In the order in which they were not well.
    nodes: Vec<IncidentNode>,
    /// As it is read.
    incident: Option<Incident>,
}

/// Adds lines to a story.
struct Relater<'a> {
    lines: &'a VecDeque<Arc<Line>>,
    story: &'a mut Story,
    /// Drafts whose incident is no longer what it was.
    touched: BTreeSet<usize>,
}

impl Relater<'_> {
    fn take(&mut self, at: usize) {
        let line = &self.lines[at];
        let node = line.entry.node.as_str();
        let current = self.story.last.get(node).copied();
        let current = current.filter(|draft| self.story.drafts[*draft].unwell.contains(node));
        if !line.is_by_console() {
            self.join(at, current);
            return;
        }
        let state = line.state();
        if let Some(state) = is_bad(state) {
            self.worsen(at, state);
            return;
        }
        self.join(at, current);
        // A node of which nothing is known is not known to be well again.
        if state != Some(NodeState::Unknown) {
            self.story.unwell.remove(node);
            let now = self.at_ms(at);
            if let Some(draft) = current.map(|draft| self.draft(draft)) {
                draft.unwell.remove(node);
                draft.until = Some(now).filter(|_| draft.unwell.is_empty());
            }
        }
    }

    fn worsen(&mut self, at: usize, state: NodeState) {
        let (line, now) = (&self.lines[at], self.at_ms(at));
        let service = line.service.as_deref();
        let node: Arc<str> = line.entry.node.as_str().into();
        let others = self.story.unwell.iter();
        let others = others.filter(|(other, _)| **other != node);
        let causes = others
            .filter(|(_, (called, cause))| explains((called.as_deref(), *cause), (service, state)));
        let cause = causes.max_by_key(|(_, (_, state))| *state);
        let cause = cause.map(|(node, _)| node.clone());
        let mut together = self.explain_recent(at, &node, state);
        let mut gather = !together.is_empty();
        together.extend(cause.as_ref().and_then(|node| self.story.last.get(node)));
        let goes_on = |draft: &usize| {
            let until = self.story.drafts[*draft].until;
            until.is_none_or(|until| now.saturating_sub(until) <= AGAIN_MS)
        };
        let own = self.story.last.get(&node).copied();
        together.extend(own.filter(goes_on));
        gather |= together.len() > 1;
        let home = self.merged(together);
        self.story.because[at] = cause;
        let draft = self.draft(home);
        draft.until = None;
        let is_new = draft.unwell.insert(node.clone());
        self.story.last.insert(node.clone(), home);
        let state = (service.map(Arc::from), state);
        self.story.unwell.insert(node, state);
        self.join(at, Some(home));
        if is_new {
            self.join_warnings(at, home);
        }
        if gather {
            self.gather(home);
        }
    }

    /// Puts states shortly before this one down to it; returns the drafts that they are in.
    fn explain_recent(&mut self, at: usize, node: &Arc<str>, state: NodeState) -> BTreeSet<usize> {
        let service = self.lines[at].service.as_deref();
        let mut found = BTreeSet::new();
        for before in self.recent(at) {
            let other = &self.lines[before];
            let Some(effect) = is_bad(other.state()) else {
                continue;
            };
            let is_worse = self.story.because[before].as_ref().is_none_or(|known| {
                let known = self.story.unwell.get(known);
                known.is_some_and(|(_, known)| state > *known)
            });
            let effect = (other.service.as_deref(), effect);
            if *other.entry.node != **node && is_worse && explains((service, state), effect) {
                self.story.because[before] = Some(node.clone());
                found.extend(self.story.part_of[before]);
            }
        }
        found
    }

    /// The lines shortly before this one, newest first.
    fn recent(&self, at: usize) -> Vec<usize> {
        let now = self.at_ms(at);
        let soon = |before: &usize| self.at_ms(*before) + TOGETHER_MS >= now;
        (0..at).rev().take_while(soon).collect()
    }

    /// The oldest of the drafts with the lines of all, or a new one.
    fn merged(&mut self, drafts: BTreeSet<usize>) -> usize {
        let mut drafts = drafts.into_iter();
        let Some(home) = drafts.next() else {
            self.story.drafts.push(Arc::default());
            return self.story.drafts.len() - 1;
        };
        for from in drafts {
            let other = std::mem::take(self.draft(from));
            let places = self.story.part_of[other.first..].iter_mut();
            let places = places.flatten().chain(self.story.last.values_mut());
            places
                .filter(|draft| **draft == from)
                .for_each(|draft| *draft = home);
            let home = self.draft(home);
            home.first = home.first.min(other.first);
            home.lines += other.lines;
            home.unwell.extend(other.unwell);
        }
        home
    }

    fn join(&mut self, at: usize, draft: Option<usize>) {
        let Some(place) = draft else { return };
        self.story.part_of[at] = draft;
        let because = self.story.because[at].clone();
        let line = &self.lines[at];
        let draft = self.draft(place);
        draft.first = if draft.lines == 0 {
            at
        } else {
            draft.first.min(at)
        };
        draft.lines += 1;
        note(&mut draft.nodes, line, because.as_deref());
    }

    /// What a node has said shortly before it was seen to be unwell belongs to that.
    fn join_warnings(&mut self, at: usize, draft: usize) {
        for before in self.recent(at) {
            let entry = &self.lines[before].entry;
            let said = entry.node == self.lines[at].entry.node && entry.severity >= Severity::Warn;
            if said && self.story.part_of[before].is_none() {
                self.join(before, Some(draft));
            }
        }
    }

    /// Reads the nodes of a draft again, because lines in the midst of it are new or have another cause.
    fn gather(&mut self, draft: usize) {
        let mut nodes = Vec::new();
        for at in self.story.drafts[draft].first..self.lines.len() {
            if self.story.part_of[at] == Some(draft) {
                note(&mut nodes, &self.lines[at], self.story.because(at));
            }
        }
        self.draft(draft).nodes = nodes;
    }

    /// A draft that is going to be changed.
    fn draft(&mut self, at: usize) -> &mut Draft {
        self.touched.insert(at);
        Arc::make_mut(&mut self.story.drafts[at])
    }

    fn at_ms(&self, at: usize) -> u64 {
        self.lines[at].entry.at.unix_ms()
    }

    fn incident(&self, draft: usize) -> Option<Incident> {
        let draft = &self.story.drafts[draft];
        let first = &self.lines[draft.first];
        incident_of(first, draft.nodes.clone(), draft.until, draft.lines)
    }
}

/// The incident of these nodes, which are in the order in which they were not well: the one that explains the others comes first.
fn incident_of(
    first: &Line,
    mut nodes: Vec<IncidentNode>,
    until: Option<u64>,
    lines: u64,
) -> Option<Incident> {
    let blamed = |node: &IncidentNode| {
        let by = nodes
            .iter()
            .filter(|other| other.because.as_ref() == Some(&node.node));
        (node.because.is_none(), by.count())
    };
    let ranks = nodes.iter().enumerate();
    let cause = ranks.max_by_key(|(at, node)| (blamed(node), std::cmp::Reverse(*at)));
    if let Some((cause, _)) = cause {
        nodes[..=cause].rotate_right(1);
    }
    Some(Incident {
        id: first.entry.seq,
        since: nodes.iter().map(|node| node.since).min()?,
        until: until.map(Timestamp),
        nodes,
        lines,
    })
}

/// Adds a state to the nodes of its incident.
fn note(nodes: &mut Vec<IncidentNode>, line: &Line, because: Option<&str>) {
    if !line.is_by_console() {
        return;
    }
    let entry = &line.entry;
    let known = nodes.iter_mut().find(|known| known.node == entry.node);
    match (is_bad(line.state()), known) {
        (Some(state), None) => nodes.push(IncidentNode {
            node: entry.node.clone(),
            worst: state,
            detail: entry.detail.clone(),
            because: because.map(str::to_owned),
            since: entry.at,
            until: None,
        }),
        (Some(state), Some(known)) => {
            if state > known.worst {
                known.worst = state;
                known.detail.clone_from(&entry.detail);
            }
            let because = because.map(str::to_owned);
            known.because = known.because.take().or(because);
            known.until = None;
        }
        (None, Some(known)) if line.state() != Some(NodeState::Unknown) => {
            known.until = Some(entry.at);
        }
        (None, _) => {}
    }
}

#[cfg(test)]
#[path = "incidents_tests.rs"]
mod tests;
