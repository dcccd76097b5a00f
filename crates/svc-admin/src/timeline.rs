//! What happened in the fleet, as readers get it: the events that services publish, and the states that nodes came into, with the
//! node that explains a state and the incident that they belong to. Memory and file hold the newest lines alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ron_kernel::Snapshot;
use ron_proto::Timestamp;
use ron_proto::admin::{Incident, TimelineEntry, TimelineList, UnreadNode};
use ron_proto::events::Severity;

use crate::incidents::{Story, relate};
use crate::line::Line;

/// Maximum lines in memory and in the file.
pub const KEPT: usize = 10_000;
/// Lines in memory that are left when there would be more: each time the oldest go, the story is told from the beginning.
const LEFT: usize = 9_000;
/// How long the file keeps a line, in milliseconds.
pub const KEPT_MS: u64 = 7 * 24 * 3_600_000;
/// Lines of an answer.
const PAGE: usize = 200;

/// The lines as requests see them, which a new batch replaces as a whole.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    pub as_of: u64,
    kept: Arc<Record>,
    pub unread: Vec<UnreadNode>,
}

#[derive(Debug, Default)]
struct Record {
    /// Oldest first, as in the file.
    lines: VecDeque<Arc<Line>>,
    story: Story,
}

pub type Timeline = Snapshot<Lines>;

/// Which lines a reader wants.
#[derive(Debug, Default)]
pub struct Wanted<'a> {
    /// Only lines before this number.
    pub before: Option<u64>,
    pub node: Option<&'a str>,
    /// Only lines that matter at least so much.
    pub least: Option<Severity>,
}

impl Lines {
    pub fn of(lines: Vec<Line>, as_of: u64) -> Self {
        Self::default().with(lines, as_of, Vec::new())
    }

    /// These lines and the next ones.
    #[must_use]
    pub fn with(&self, new: Vec<Line>, as_of: u64, unread: Vec<UnreadNode>) -> Self {
        let mut kept = self.kept.clone();
        if !new.is_empty() {
            let mut lines = kept.lines.clone();
            lines.extend(new.into_iter().map(Arc::new));
            let story = if lines.len() > KEPT {
                lines.drain(..lines.len() - LEFT);
                relate(&lines)
            } else {
                let mut story = kept.story.clone();
                story.extend(&lines);
                story
            };
            kept = Arc::new(Record { lines, story });
        }
        Self {
            as_of,
            kept,
            unread,
        }
    }

    /// All lines, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Line> {
        self.kept.lines.iter().map(Arc::as_ref)
    }

    /// A page, newest first.
    pub fn page(&self, wanted: &Wanted<'_>) -> TimelineList {
        let fits = |entry: &TimelineEntry| {
            wanted.before.is_none_or(|before| entry.seq < before)
                && wanted.node.is_none_or(|node| entry.node == node)
                && wanted.least.is_none_or(|least| entry.severity >= least)
        };
        let Record { lines, story } = &*self.kept;
        let newest_first = lines.iter().enumerate().rev();
        let mut found = newest_first.filter(|(_, line)| fits(&line.entry));
        let page: Vec<_> = found.by_ref().take(PAGE).collect();
        let next = found.next().and(page.last());
        let incidents = page.iter().filter_map(|(at, _)| story.incident(*at));
        let incidents: BTreeMap<u64, &Incident> =
            incidents.map(|incident| (incident.id, incident)).collect();
        TimelineList {
            as_of: Timestamp(self.as_of),
            next: next.map(|(_, line)| line.entry.seq),
            entries: page
                .into_iter()
                .map(|(at, line)| TimelineEntry {
                    because: story.because(at).map(str::to_owned),
                    incident: story.incident(at).map(|incident| incident.id),
                    ..line.entry.clone()
                })
                .collect(),
            incidents: incidents.into_values().rev().cloned().collect(),
            unread: self.unread.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_proto::admin::NodeState;

    #[test]
    fn pages_go_back_to_the_first_line_and_filter() {
        let line = |seq: u64| {
            let node = if seq.is_multiple_of(2) {
                "the-kms"
            } else {
                "the-wallet"
            };
            let mut line = Line::of_state(node, None, Timestamp(seq), NodeState::Healthy, "");
            line.entry.seq = seq;
            line
        };
        let mut lines: Vec<Line> = (1..=450).map(line).collect();
        lines[9].entry.severity = Severity::Error;
        let lines = Lines::of(lines, 7);
        let (mut seen, mut before) = (Vec::new(), None);
        loop {
            let page = lines.page(&Wanted {
                before,
                ..Wanted::default()
            });
            assert_eq!(page.as_of, Timestamp(7));
            seen.extend(page.entries.iter().map(|entry| entry.seq));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(seen, (1..=450).rev().collect::<Vec<_>>());
        let errors = lines.page(&Wanted {
            least: Some(Severity::Error),
            ..Wanted::default()
        });
        assert_eq!(
            errors.entries.iter().map(|e| e.seq).collect::<Vec<_>>(),
            [10]
        );
        let of_kms = lines.page(&Wanted {
            node: Some("the-kms"),
            ..Wanted::default()
        });
        assert!(of_kms.entries.iter().all(|e| e.seq.is_multiple_of(2)));
        assert_eq!(of_kms.next, Some(of_kms.entries[199].seq));
    }

    #[test]
    fn the_oldest_lines_go_and_an_incident_is_on_every_page_of_it() {
        let mut all = vec![Line::of_state(
            "a",
            None,
            Timestamp(1),
            NodeState::Down,
            "connection refused",
        )];
        for at in 2..=300 {
            all.push(Line::of_state(
                "a",
                None,
                Timestamp(at),
                NodeState::Down,
                "x",
            ));
        }
        for (line, seq) in all.iter_mut().zip(1..) {
            line.entry.seq = seq;
        }
        let lines = Lines::of(all.clone(), 0);
        let first = lines.page(&Wanted::default());
        let second = lines.page(&Wanted {
            before: first.next,
            ..Wanted::default()
        });
        assert_eq!(first.incidents, second.incidents);
        let [incident] = &first.incidents[..] else {
            panic!("{:?}", first.incidents);
        };
        assert_eq!((incident.id, incident.lines), (1, 300));
        let more = (0..KEPT as u64).map(|at| {
            let mut line = Line::of_state("b", None, Timestamp(at), NodeState::Healthy, "");
            line.entry.seq = 301 + at;
            line
        });
        let lines = lines.with(more.collect(), 0, Vec::new());
        assert_eq!(lines.iter().count(), LEFT);
        assert_eq!(lines.page(&Wanted::default()).incidents, []);
        let more = (0..(KEPT - LEFT) as u64).map(|at| {
            let mut line = Line::of_state("b", None, Timestamp(at), NodeState::Down, "");
            line.entry.seq = 20_000 + at;
            line
        });
        let lines = lines.with(more.collect(), 0, Vec::new());
        assert_eq!(lines.iter().count(), KEPT);
        let [incident] = &lines.page(&Wanted::default()).incidents[..] else {
            panic!("one incident");
        };
        assert_eq!(incident.id, 20_000);
    }
}
