//! What happened in the fleet, as readers get it: the events that services publish, and the states that nodes came into, with the
//! node that explains a state. Memory and file hold the newest lines alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ron_kernel::Snapshot;
use ron_proto::Timestamp;
use ron_proto::admin::{NodeState, TimelineEntry, TimelineList, UnreadNode};
use ron_proto::events::{EventKind, Severity};
use serde::{Deserialize, Serialize};

/// Lines in memory and in the file.
pub const KEPT: usize = 10_000;
/// How long the file keeps a line, in milliseconds.
pub const KEPT_MS: u64 = 7 * 24 * 3_600_000;
/// Lines of an answer.
const PAGE: usize = 200;
/// A state is put down to that of another node which came into its own so much later, in milliseconds: nodes are polled one after
/// the other.
const TOGETHER_MS: u64 = 15_000;

/// Which services a service calls. Their state may explain its own.
const CALLS: [(&str, &[&str]); 4] = [
    ("svc-wallet", &["ron-ledger", "svc-passport"]),
    ("svc-rewarder", &["ron-ledger", "ron-kms", "svc-passport"]),
    ("svc-passport", &["ron-kms"]),
    ("ron-ledger", &["svc-passport"]),
];

/// A line with what a restart of the console has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    pub entry: TimelineEntry,
    /// The node's service, if it has said so.
    pub service: Option<String>,
    /// Run and number of the service's event; none for a state that the console has decided.
    pub event: Option<(String, u64)>,
}

/// The published lines, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    pub as_of: u64,
    pub lines: Arc<VecDeque<Arc<Line>>>,
    pub unread: Vec<UnreadNode>,
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
        Self {
            as_of,
            lines: Arc::new(lines.into_iter().map(Arc::new).collect()),
            unread: Vec::new(),
        }
    }

    /// A page, newest first.
    pub fn page(&self, wanted: &Wanted<'_>) -> TimelineList {
        let fits = |entry: &TimelineEntry| {
            wanted.before.is_none_or(|before| entry.seq < before)
                && wanted.node.is_none_or(|node| entry.node == node)
                && wanted.least.is_none_or(|least| entry.severity >= least)
        };
        let newest_first = self.lines.iter().enumerate().rev();
        let mut found = newest_first.filter(|(_, line)| fits(&line.entry));
        let page: Vec<_> = found.by_ref().take(PAGE).collect();
        let next = found.next().and(page.last());
        TimelineList {
            as_of: Timestamp(self.as_of),
            next: next.map(|(_, line)| line.entry.seq),
            entries: page
                .into_iter()
                .map(|(at, line)| TimelineEntry {
                    because: self.because(at, line),
                    ..line.entry.clone()
                })
                .collect(),
            unread: self.unread.clone(),
        }
    }

    /// The node whose state explains that of the line: of a service that the line's service calls, not healthy when the line's
    /// node came into its state, or soon afterwards; the worst one.
    fn because(&self, at: usize, line: &Line) -> Option<String> {
        let state = bad_state(line)?;
        let service = line.service.as_deref()?;
        let (_, called) = CALLS.iter().find(|(caller, _)| *caller == service)?;
        let is_called = |other: &Line| {
            let service = other.service.as_deref();
            service.is_some_and(|service| called.contains(&service))
                && other.entry.node != line.entry.node
        };
        let until = line.entry.at.unix_ms() + TOGETHER_MS;
        let later = self.lines.iter().skip(at + 1);
        let later = later.take_while(|other| other.entry.at.unix_ms() <= until);
        let mut states: BTreeMap<&str, Option<NodeState>> = BTreeMap::new();
        for other in self.lines.iter().take(at).chain(later) {
            let (said, entry) = (bad_state(other), &other.entry);
            let known = states.get(entry.node.as_str()).copied().flatten();
            // What came right again only after the line does not count: it was wrong at the time.
            let keeps = said.is_none() && entry.seq > line.entry.seq && known.is_some();
            if is_called(other) && entry.kind == EventKind::NodeState.as_str() && !keeps {
                states.insert(&entry.node, said);
            }
        }
        let bad = states
            .into_iter()
            .filter_map(|(node, state)| Some((state?, node)));
        let (worst, node) = bad.max_by_key(|(state, _)| *state == NodeState::Down)?;
        // A degraded node does not explain that another is down.
        (worst == NodeState::Down || state == NodeState::Degraded).then(|| node.to_owned())
    }
}

/// The state that a line says its node came into, if that is not healthy.
fn bad_state(line: &Line) -> Option<NodeState> {
    if line.entry.kind != EventKind::NodeState.as_str() {
        return None;
    }
    [NodeState::Down, NodeState::Degraded]
        .into_iter()
        .find(|state| line.entry.reason.as_deref() == Some(state.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(seq: u64, at_s: u64, service: &str, state: NodeState) -> Line {
        Line {
            entry: TimelineEntry {
                seq,
                at: Timestamp(at_s * 1_000),
                node: format!("the-{service}"),
                kind: EventKind::NodeState.as_str().to_owned(),
                severity: Severity::Warn,
                reason: Some(state.as_str().to_owned()),
                number: None,
                detail: None,
                because: None,
            },
            service: Some(service.to_owned()),
            event: None,
        }
    }

    fn because(lines: Vec<Line>) -> Vec<Option<String>> {
        let page = Lines::of(lines, 0).page(&Wanted::default());
        page.entries
            .into_iter()
            .rev()
            .map(|entry| entry.because)
            .collect()
    }

    #[test]
    fn a_state_is_put_down_to_a_called_service_that_was_worse_off_at_the_time() {
        use NodeState::{Degraded, Down, Healthy};
        let ledger = Some("the-ron-ledger".to_owned());
        let of = |lines: &[(u64, &str, NodeState)]| {
            let numbered = lines.iter().zip(1..);
            because(
                numbered
                    .map(|((at, service, is), seq)| state(seq, *at, service, *is))
                    .collect(),
            )
        };
        // The ledger is known to be down before the wallet is, or at the next poll.
        assert_eq!(
            of(&[(1, "ron-ledger", Down), (3, "svc-wallet", Degraded)])[1],
            ledger
        );
        assert_eq!(
            of(&[(1, "svc-wallet", Degraded), (9, "ron-ledger", Down)])[0],
            ledger
        );
        assert_eq!(
            of(&[
                (1, "ron-ledger", Down),
                (3, "svc-wallet", Degraded),
                (4, "ron-ledger", Healthy)
            ])[1],
            ledger,
            "it was down at the time"
        );
        // Not what came right before, comes much later, is not called, or is better off.
        let none = [
            vec![
                (1, "ron-ledger", Down),
                (2, "ron-ledger", Healthy),
                (3, "svc-wallet", Degraded),
            ],
            vec![(3, "svc-wallet", Degraded), (60, "ron-ledger", Down)],
            vec![(1, "svc-rewarder", Down), (3, "svc-wallet", Degraded)],
            vec![(1, "ron-ledger", Degraded), (3, "svc-wallet", Down)],
            vec![(1, "ron-ledger", Down), (3, "svc-wallet", Healthy)],
        ];
        for lines in none {
            let told = of(&lines);
            assert!(told.iter().all(Option::is_none), "{lines:?}: {told:?}");
        }
    }

    #[test]
    fn pages_go_back_to_the_first_line_and_filter() {
        let mut lines: Vec<Line> = (1..=450)
            .map(|seq| {
                state(
                    seq,
                    seq,
                    if seq % 2 == 0 {
                        "ron-kms"
                    } else {
                        "svc-wallet"
                    },
                    NodeState::Healthy,
                )
            })
            .collect();
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
            node: Some("the-ron-kms"),
            ..Wanted::default()
        });
        assert!(of_kms.entries.iter().all(|e| e.seq % 2 == 0));
        assert_eq!(of_kms.next, Some(of_kms.entries[199].seq));
    }
}
