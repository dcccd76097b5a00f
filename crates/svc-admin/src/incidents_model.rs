//! The story of all lines told in one go, with sets of lines where [`super::Story`] keeps sums: what the latter is compared with.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ron_proto::admin::{Incident, NodeState};
use ron_proto::events::Severity;

use super::super::{AGAIN_MS, TOGETHER_MS, explains, incident_of, is_bad, note};
use crate::line::Line;

/// The cause and the incident of each line.
pub type Relations = Vec<(Option<String>, Option<Incident>)>;

pub fn relate(lines: &VecDeque<Arc<Line>>) -> Relations {
    let mut relater = Relater {
        lines,
        because: vec![None; lines.len()],
        part_of: vec![None; lines.len()],
        unwell: BTreeMap::new(),
        drafts: Vec::new(),
        last: BTreeMap::new(),
    };
    for at in 0..lines.len() {
        relater.take(at);
    }
    relater.story()
}

/// An incident while its lines are read.
#[derive(Default)]
struct Draft<'a> {
    lines: BTreeSet<usize>,
    unwell: BTreeSet<&'a str>,
    until: Option<u64>,
}

struct Relater<'a> {
    lines: &'a VecDeque<Arc<Line>>,
    /// By line: the node that explains it.
    because: Vec<Option<&'a str>>,
    /// By line: its draft.
    part_of: Vec<Option<usize>>,
    /// Service and state of the nodes that are not well.
    unwell: BTreeMap<&'a str, (Option<&'a str>, NodeState)>,
    drafts: Vec<Draft<'a>>,
    /// The last draft of each node.
    last: BTreeMap<&'a str, usize>,
}

impl Relater<'_> {
    fn take(&mut self, at: usize) {
        let line = &self.lines[at];
        let node = line.entry.node.as_str();
        let current = self.last.get(node).copied();
        let current = current.filter(|draft| self.drafts[*draft].unwell.contains(node));
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
            self.unwell.remove(node);
            let now = self.at_ms(at);
            if let Some(draft) = current.map(|draft| &mut self.drafts[draft]) {
                draft.unwell.remove(node);
                draft.until = Some(now).filter(|_| draft.unwell.is_empty());
            }
        }
    }

    fn worsen(&mut self, at: usize, state: NodeState) {
        let (line, now) = (&self.lines[at], self.at_ms(at));
        let (node, service) = (line.entry.node.as_str(), line.service.as_deref());
        let others = self.unwell.iter().filter(|(other, _)| **other != node);
        let causes = others.filter(|(_, cause)| explains(**cause, (service, state)));
        let cause = causes.max_by_key(|(_, (_, state))| *state);
        let cause = cause.map(|(node, _)| *node);
        self.because[at] = cause;
        let mut together = self.explain_recent(at, state);
        together.extend(cause.and_then(|node| self.last.get(node)));
        let goes_on = |draft: &usize| {
            let until = self.drafts[*draft].until;
            until.is_none_or(|until| now.saturating_sub(until) <= AGAIN_MS)
        };
        together.extend(self.last.get(node).copied().filter(goes_on));
        let home = self.merged(together);
        let draft = &mut self.drafts[home];
        draft.until = None;
        let is_new = draft.unwell.insert(node);
        self.last.insert(node, home);
        self.unwell.insert(node, (service, state));
        self.join(at, Some(home));
        if is_new {
            self.join_warnings(at, home);
        }
    }

    /// Puts states shortly before this one down to it; returns the drafts that they are in.
    fn explain_recent(&mut self, at: usize, state: NodeState) -> BTreeSet<usize> {
        let line = &self.lines[at];
        let (node, service) = (line.entry.node.as_str(), line.service.as_deref());
        let mut found = BTreeSet::new();
        for before in self.recent(at) {
            let other = &self.lines[before];
            let Some(effect) = is_bad(other.state()) else {
                continue;
            };
            let is_worse = self.because[before].is_none_or(|known| {
                let known = self.unwell.get(known);
                known.is_some_and(|(_, known)| state > *known)
            });
            let effect = (other.service.as_deref(), effect);
            if other.entry.node != node && is_worse && explains((service, state), effect) {
                self.because[before] = Some(node);
                found.extend(self.part_of[before]);
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
            self.drafts.push(Draft::default());
            return self.drafts.len() - 1;
        };
        for other in drafts {
            let other = std::mem::take(&mut self.drafts[other]);
            for line in &other.lines {
                self.part_of[*line] = Some(home);
            }
            for draft in self.last.values_mut() {
                if self.drafts[*draft].lines.is_empty() {
                    *draft = home;
                }
            }
            let home = &mut self.drafts[home];
            home.lines.extend(other.lines);
            home.unwell.extend(other.unwell);
        }
        home
    }

    fn join(&mut self, at: usize, draft: Option<usize>) {
        if let Some(draft) = draft {
            self.part_of[at] = Some(draft);
            self.drafts[draft].lines.insert(at);
        }
    }

    /// What a node has said shortly before it was seen to be unwell belongs to that.
    fn join_warnings(&mut self, at: usize, draft: usize) {
        for before in self.recent(at) {
            let entry = &self.lines[before].entry;
            let said = entry.node == self.lines[at].entry.node && entry.severity >= Severity::Warn;
            if said && self.part_of[before].is_none() {
                self.join(before, Some(draft));
            }
        }
    }

    fn at_ms(&self, at: usize) -> u64 {
        self.lines[at].entry.at.unix_ms()
    }

    fn story(self) -> Relations {
        let drafts = self.drafts.iter();
        let incidents: Vec<Option<Incident>> = drafts.map(|draft| self.incident(draft)).collect();
        let relations = self.because.iter().zip(&self.part_of);
        let relations = relations.map(|(because, draft)| {
            let incident = draft.and_then(|draft| incidents[draft].clone());
            (because.map(str::to_owned), incident)
        });
        relations.collect()
    }

    fn incident(&self, draft: &Draft<'_>) -> Option<Incident> {
        let first = &self.lines[*draft.lines.first()?];
        let mut nodes = Vec::new();
        for at in &draft.lines {
            note(&mut nodes, &self.lines[*at], self.because[*at]);
        }
        incident_of(first, nodes, draft.until, draft.lines.len() as u64)
    }
}
