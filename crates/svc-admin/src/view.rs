//! The view builder: decides the state of all nodes twice a second and keeps the page's responses
//! ready.
//!
//! Handlers never assemble a fleet; they send prepared bytes. A body is replaced only when its
//! content changed, so its entity tag stays valid until then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ron_crypto::hash::blake3;
use ron_kernel::{Deadline, Snapshot, ThreadCtx};
use ron_proto::Timestamp;
use ron_proto::admin::{
    NodeList, NodeRates, NodeState, NodeSummary, Overview, OverviewNode, StateCounts, TinySeries,
};
use ron_service::events::{Event, EventKind, Events};

use crate::derive::{Fold, on_grid, short};
use crate::fleet::{Fleet, Roster};
use crate::node::{Node, NodeView, is_gone, planes, restarts};
use crate::recorder::Recorder;
use crate::state::{Verdict, is_stale, judge};

/// Time between two builds.
const PACE: Duration = Duration::from_millis(500);
/// Cells of the small charts.
const CELLS: usize = 30;

#[derive(Clone, Debug)]
pub struct Doc {
    pub body: Arc<[u8]>,
    pub etag: String,
}

impl Doc {
    fn empty() -> Self {
        Self {
            body: Arc::from(&b"{}"[..]),
            etag: String::new(),
        }
    }
}

/// The builder's published result.
#[derive(Clone, Debug)]
pub struct Published {
    pub overview: Doc,
    /// In the order of the configuration.
    pub summaries: Vec<NodeSummary>,
    /// Positions in `summaries` by id.
    pub places: BTreeMap<String, usize>,
    /// Generation of the roster it was built from.
    pub generation: u64,
    /// When it was built, in unix milliseconds.
    pub built_ms: u64,
}

impl Published {
    /// The summary of one node.
    pub fn summary(&self, id: &str) -> Option<&NodeSummary> {
        self.places.get(id).map(|at| &self.summaries[*at])
    }

    /// The list of nodes, problems first.
    pub fn node_list(&self) -> NodeList {
        let mut nodes = self.summaries.clone();
        nodes.sort_by(problems_first);
        NodeList {
            as_of: Timestamp(self.built_ms),
            nodes,
        }
    }
}

/// The latest published build.
pub type Board = Snapshot<Published>;

/// A board before the first build.
pub fn empty_board() -> Board {
    Snapshot::new(Published {
        overview: Doc::empty(),
        summaries: Vec::new(),
        places: BTreeMap::new(),
        generation: 0,
        built_ms: 0,
    })
}

/// The builder's memory: since when each node is in its state.
#[derive(Debug, Default)]
pub struct Builder {
    since: BTreeMap<String, (NodeState, u64)>,
    events: Events,
}

impl Builder {
    /// A builder that publishes when a node comes into another state.
    pub fn of(events: Events) -> Self {
        Self {
            events,
            ..Self::default()
        }
    }

    /// The body of the builder's thread.
    pub fn run(mut self, fleet: &Fleet, board: &Board, mut recorder: Recorder, ctx: &ThreadCtx) {
        while !ctx.shutdown.wait(Deadline::within(PACE)) {
            self.tick(fleet, board);
            recorder.tick(fleet);
        }
    }

    pub fn tick(&mut self, fleet: &Fleet, board: &Board) {
        let now = fleet.clock.unix_ms();
        let roster = fleet.roster();
        if !has_changed(&roster, &board.load(), now) {
            return;
        }
        if self.since.len() > roster.nodes.len() {
            self.since.retain(|id, _| fleet.node(id).is_some());
        }
        let rows: Vec<OverviewNode> = roster
            .nodes
            .iter()
            .map(|node| self.row(node, now, fleet))
            .collect();
        let summaries: Vec<NodeSummary> = rows.iter().map(|row| row.summary.clone()).collect();
        let places = summaries.iter().enumerate();
        let places = places.map(|(at, s)| (s.id.clone(), at)).collect();
        board.store(Published {
            overview: doc(&overview(rows, now, fleet)),
            summaries,
            places,
            generation: roster.generation,
            built_ms: now,
        });
    }

    fn row(&mut self, node: &Node, now: u64, fleet: &Fleet) -> OverviewNode {
        let view = node.view();
        let verdict = judge(&view.facts, now);
        let id = &node.spec.id;
        let known = self.since.get(id).copied();
        let (from, since) = known.unwrap_or((NodeState::Unknown, now));
        let since = if from == verdict.state { since } else { now };
        self.since.insert(id.clone(), (verdict.state, since));
        if from != verdict.state {
            self.report(id, &verdict);
        }
        row(node, &view, verdict, since, now, fleet)
    }
}

impl Builder {
    /// Publishes the new state of a node; which node it is, and why, is for the log.
    fn report(&self, id: &str, verdict: &Verdict) {
        let state = verdict.state;
        let alike = self.since.values().filter(|(known, _)| *known == state);
        let why = verdict.reasons.first().map_or("", |r| r.code.as_str());
        let event = match state {
            NodeState::Down => Event::error(EventKind::NodeState),
            NodeState::Degraded => Event::warn(EventKind::NodeState),
            NodeState::Healthy | NodeState::Unknown => Event::info(EventKind::NodeState),
        };
        let event = event.reason(state.as_str()).number(alike.count() as u64);
        self.events.publish(event.why(format_args!("{id} {why}")));
    }
}

/// True if a node was polled since the last build, or a node's state, reasons or staleness changed
/// with time alone.
fn has_changed(roster: &Roster, last: &Published, now: u64) -> bool {
    let same = |node: &Node, said: &NodeSummary| {
        let facts = &node.view().facts;
        let verdict = judge(facts, now);
        facts.polled_at == said.polled_at.map(Timestamp::unix_ms)
            && verdict.state == said.state
            && verdict.reasons == said.reasons
            && is_stale(facts, now) == said.stale
    };
    let built = !last.overview.etag.is_empty() && last.generation == roster.generation;
    !(built
        && roster
            .nodes
            .iter()
            .zip(&last.summaries)
            .all(|(node, said)| same(node, said)))
}

fn row(
    node: &Node,
    view: &NodeView,
    verdict: Verdict,
    since: u64,
    now: u64,
    fleet: &Fleet,
) -> OverviewNode {
    let gone = is_gone(verdict.state);
    let status = &view.status;
    let summary = NodeSummary {
        id: node.spec.id.clone(),
        display_name: node.spec.display_name.clone(),
        environment: node.spec.environment.clone(),
        service: status.service.clone(),
        instance: status.instance.clone(),
        version: status.version.clone(),
        profile: status.profile.clone(),
        amnesia: status.amnesia,
        uptime_seconds: status.uptime_seconds.filter(|_| !gone),
        state: verdict.state,
        reasons: verdict.reasons,
        since: Timestamp(since),
        sampled_at: view.facts.answered_at.map(Timestamp),
        polled_at: view.facts.polled_at.map(Timestamp),
        stale: is_stale(&view.facts, now),
        restarts: restarts(view),
    };
    #[cfg(mutant = "carried")] // as if nothing had happened since
    let gone = gone && !ron_kernel::mutant("carried");
    let rates = if gone {
        NodeRates::default()
    } else {
        view.rates.clone()
    };
    OverviewNode {
        summary,
        planes: planes(view, now),
        rates,
        series: tiny(view, now, fleet),
    }
}

fn tiny(view: &NodeView, now: u64, fleet: &Fleet) -> TinySeries {
    let window = fleet.sampling.window.as_millis() as u64;
    // At least two polls per cell, or jitter would leave empty cells.
    let step_ms = (window / CELLS as u64)
        .max(fleet.sampling.interval.as_millis() as u64 * 2)
        .max(1);
    let cells = (window / step_ms).max(1) as usize;
    let end_ms = now.div_ceil(step_ms) * step_ms;
    let points = |pick: fn(&NodeRates) -> Option<f64>| {
        view.points.iter().map(move |p| (p.time_ms, pick(&p.rates)))
    };
    TinySeries {
        end_ms,
        step_ms,
        request_rate: on_grid(
            points(|r| r.request_rate),
            end_ms,
            step_ms,
            cells,
            Fold::Mean,
        ),
        p99_seconds: on_grid(
            points(|r| r.p99_seconds),
            end_ms,
            step_ms,
            cells,
            Fold::Worst,
        ),
    }
}

fn overview(mut rows: Vec<OverviewNode>, now: u64, fleet: &Fleet) -> Overview {
    let mut counts = StateCounts::default();
    for row in &rows {
        let count = match row.summary.state {
            NodeState::Healthy => &mut counts.healthy,
            NodeState::Degraded => &mut counts.degraded,
            NodeState::Down => &mut counts.down,
            NodeState::Unknown => &mut counts.unknown,
        };
        *count += 1;
    }
    rows.sort_by(|a, b| problems_first(&a.summary, &b.summary));
    let known = rows.iter().filter_map(|row| row.rates.request_rate);
    Overview {
        as_of: Timestamp(now),
        state: rows
            .iter()
            .map(|row| row.summary.state)
            .max()
            .unwrap_or(NodeState::Unknown),
        counts,
        request_rate: known
            .fold(None, |sum, rate| Some(sum.unwrap_or(0.0) + rate))
            .map(short),
        interval_seconds: fleet.sampling.interval.as_secs_f64(),
        window_seconds: fleet.sampling.window.as_secs_f64(),
        nodes: rows,
    }
}

fn problems_first(a: &NodeSummary, b: &NodeSummary) -> std::cmp::Ordering {
    b.state
        .cmp(&a.state)
        .then_with(|| a.display_name.cmp(&b.display_name))
        .then_with(|| a.id.cmp(&b.id))
}

/// Serialises a value and tags it with a hash of the content without its time: `asOf` is the first
/// member.
pub fn doc<T: serde::Serialize>(value: &T) -> Doc {
    // The API types hold strings, numbers and lists and always serialise. An empty body would be
    // noticed at once.
    let body = serde_json::to_vec(value).unwrap_or_default();
    let timeless = body.iter().position(|byte| *byte == b',').unwrap_or(0);
    Doc {
        etag: tag(&body[timeless..]),
        body: body.into(),
    }
}

pub fn tag(bytes: &[u8]) -> String {
    blake3(bytes)[..12]
        .iter()
        .fold(String::with_capacity(24), |mut out, byte| {
            use std::fmt::Write as _;
            let _ = write!(out, "{byte:02x}");
            out
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::{answer, node, sampling};
    use ron_http::{ClientConfig, HttpClient};
    use ron_kernel::{KernelMetrics, ManualClock, Registry};

    fn fleet(ids: &[&str]) -> (Fleet, Arc<ManualClock>) {
        let clock = ManualClock::at(1_000_000);
        let client = Arc::new(HttpClient::new(ClientConfig::default()));
        let metrics = KernelMetrics::new(&Registry::new("t"));
        let (fleet, _) = Fleet::new(sampling(), client, clock.clone(), metrics);
        fleet.adopt(ids.iter().map(|id| Arc::new(node(id))).collect());
        (fleet, clock)
    }

    fn read(board: &Board) -> Overview {
        serde_json::from_slice(&board.load().overview.body).expect("an overview")
    }

    #[test]
    fn problems_come_first_and_since_is_kept() {
        let (fleet, clock) = fleet(&["a", "b", "c"]);
        let (board, mut builder) = (empty_board(), Builder::default());
        fleet.roster().nodes[0].absorb(answer("up 1\n"), 1_000_000, 5_000);
        fleet.roster().nodes[2].absorb(
            crate::node::Outcome::Failed {
                failure: crate::state::PollFailure::Refused,
                detail: String::new(),
            },
            1_000_000,
            5_000,
        );
        builder.tick(&fleet, &board);
        let got = read(&board);
        assert_eq!(
            got.nodes
                .iter()
                .map(|n| n.summary.id.as_str())
                .collect::<Vec<_>>(),
            ["c", "b", "a"]
        );
        assert_eq!(got.state, NodeState::Down);
        assert_eq!(
            got.counts,
            StateCounts {
                healthy: 1,
                degraded: 0,
                down: 1,
                unknown: 1
            }
        );
        clock.advance(Duration::from_secs(2));
        builder.tick(&fleet, &board);
        assert_eq!(read(&board).nodes[0].summary.since, Timestamp(1_000_000));
    }

    #[test]
    fn the_tag_changes_exactly_with_the_content() {
        let (fleet, clock) = fleet(&["a"]);
        let (board, mut builder) = (empty_board(), Builder::default());
        fleet.roster().nodes[0].absorb(answer("up 1\n"), 1_000_000, 5_000);
        builder.tick(&fleet, &board);
        let first = board.load().overview.etag.clone();
        clock.advance(Duration::from_millis(300));
        builder.tick(&fleet, &board);
        assert_eq!(board.load().overview.etag, first, "nothing new");
        fleet.roster().nodes[0].absorb(answer("up 1\n"), 1_005_000, 5_000);
        builder.tick(&fleet, &board);
        assert_ne!(board.load().overview.etag, first, "a new sample");
    }

    #[test]
    fn missing_polls_turn_unknown_and_stale_by_time_alone() {
        let (fleet, clock) = fleet(&["a"]);
        let (board, mut builder) = (empty_board(), Builder::default());
        fleet.roster().nodes[0].absorb(answer("up 1\n"), 1_000_000, 5_000);
        builder.tick(&fleet, &board);
        assert_eq!(read(&board).nodes[0].summary.state, NodeState::Healthy);
        clock.advance(Duration::from_millis(15_001));
        builder.tick(&fleet, &board);
        let row = &read(&board).nodes[0];
        assert_eq!(
            (row.summary.state, row.summary.stale),
            (NodeState::Unknown, true)
        );
        assert_eq!(row.rates, NodeRates::default());
    }

    #[test]
    fn small_series_have_their_cells() {
        let (fleet, _) = fleet(&["a"]);
        let (board, mut builder) = (empty_board(), Builder::default());
        builder.tick(&fleet, &board);
        let series = &read(&board).nodes[0].series;
        assert_eq!((series.step_ms, series.request_rate.len()), (10_000, 6));
        assert_eq!(series.end_ms % series.step_ms, 0);
    }
}
