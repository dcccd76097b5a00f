//! One watched node: its samples, its last answers, and the view of it that others read.
//!
//! Only the sampler writes. It polls without holding the lock, passes the outcome to
//! [`Node::absorb`], and publishes a fresh [`NodeView`]; readers take the view, or read the rings
//! under the lock.

use std::collections::VecDeque;
use std::sync::Arc;

use ron_kernel::Published;
use ron_proto::admin::{Facet, NodePlane, NodeQueue, NodeRates, NodeState, PollingStats};
use ron_proto::status::STANDBY;

use crate::derive;
use crate::dialect::{Status, TopologyFacts};
use crate::promtext::{Item, Reader};
use crate::rings::{Rings, Role};
use crate::settings::{NodeSpec, Sampling};
use crate::state::{Facts, PollFailure, Ready, is_unreachable};
use crate::topology::NODE_LOCK_ROW;

/// The outcome of one poll.
#[derive(Clone, Debug)]
pub enum Outcome {
    Answered(Box<Answers>),
    Failed {
        failure: PollFailure,
        detail: String,
    },
}

/// The answers of a node to one poll.
#[derive(Clone, Debug)]
pub struct Answers {
    /// `None`: the node has no such page.
    pub status: Option<Status>,
    pub ready: Option<Ready>,
    /// The body of `/metrics`, or why there is none.
    pub metrics: Result<Vec<u8>, String>,
    /// `None`: not requested in this poll.
    pub topology: Option<TopologyFacts>,
    /// Seconds the whole poll took.
    pub took_s: f64,
}

/// The figures of one poll.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub time_ms: u64,
    pub rates: NodeRates,
}

/// The published view of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeView {
    pub facts: Facts,
    /// The last status of the node; its identity outlives an outage.
    pub status: Status,
    pub topology: TopologyFacts,
    pub queues: Vec<NodeQueue>,
    /// Of the last poll; empty when it brought no answer.
    pub rates: NodeRates,
    pub points: Arc<[Point]>,
    pub polling: PollingStats,
    /// The routes at the last answer, while the node does not answer; otherwise empty.
    pub last_routes: Arc<[Facet]>,
}

/// A node with its samples and its view.
#[derive(Debug)]
pub struct Node {
    pub spec: NodeSpec,
    kept: Published<Memory, NodeView>,
}

impl Node {
    /// A node that was not polled yet.
    pub fn new(spec: NodeSpec, sampling: Sampling) -> Self {
        let view = NodeView {
            facts: Facts {
                interval_ms: sampling.interval.as_millis() as u64,
                ..Facts::default()
            },
            ..NodeView::default()
        };
        let memory = Memory {
            rings: Rings::new(sampling.slots(), sampling.max_series),
            points: VecDeque::new(),
            restarts: VecDeque::new(),
            outcomes: VecDeque::new(),
            was_ready: false,
            view: view.clone(),
            sampling,
        };
        Self {
            spec,
            kept: Published::new(&NODE_LOCK_ROW, memory, view),
        }
    }

    pub fn view(&self) -> Arc<NodeView> {
        self.kept.view()
    }

    /// Reads the samples under the lock: `read` must not wait.
    pub fn with_rings<R>(&self, read: impl FnOnce(&Rings) -> R) -> R {
        self.kept.with(|memory| read(&memory.rings))
    }

    /// Applies the outcome of a poll at `now_ms` and publishes the new view. `interval_ms` is the
    /// time to the next poll.
    pub fn absorb(&self, outcome: Outcome, now_ms: u64, interval_ms: u64) {
        self.kept
            .change(|memory| memory.absorb(outcome, now_ms, interval_ms));
    }
}

#[derive(Clone, Debug)]
struct Memory {
    rings: Rings,
    points: VecDeque<Point>,
    /// Times at which the process was found to have restarted, in unix milliseconds; within the
    /// window.
    restarts: VecDeque<u64>,
    /// Per poll: its time, and the requests and server errors since the poll before. Only polls
    /// where the node was ready at both.
    outcomes: VecDeque<(u64, u64, u64)>,
    was_ready: bool,
    view: NodeView,
    sampling: Sampling,
}

impl Memory {
    fn absorb(&mut self, outcome: Outcome, now_ms: u64, interval_ms: u64) -> NodeView {
        let view = &mut self.view;
        view.polling.polls += 1;
        view.facts.polled_at = Some(now_ms);
        view.facts.interval_ms = interval_ms;
        match outcome {
            Outcome::Failed { failure, detail } => {
                if view.facts.failures == 0 {
                    let from = now_ms.saturating_sub(self.sampling.window.as_millis() as u64);
                    view.last_routes = derive::facets(&self.rings, from).into();
                }
                self.rings.gap(now_ms);
                view.facts.failures = view.facts.failures.saturating_add(1);
                view.facts.failure = Some(failure);
                view.polling.failures += 1;
                view.polling.last_error = Some(detail);
            }
            Outcome::Answered(answers) => self.answered(*answers, now_ms),
        }
        self.figures(now_ms);
        self.view.clone()
    }

    fn answered(&mut self, answers: Answers, now_ms: u64) {
        self.note_restart(&answers, now_ms);
        let view = &mut self.view;
        view.last_routes = Arc::default();
        view.facts.failures = 0;
        view.facts.failure = None;
        view.facts.answered_at = Some(now_ms);
        view.facts.ready = answers.ready;
        view.facts.own_health = answers.status.as_ref().and_then(|s| s.health);
        view.facts.planes = answers
            .status
            .as_ref()
            .map_or_else(Vec::new, |s| s.planes.clone());
        view.polling.last_poll_seconds = Some(derive::short(answers.took_s));
        if let Some(status) = answers.status {
            view.status = status;
        }
        if let Some(topology) = answers.topology {
            view.facts.critical.clone_from(&topology.critical);
            view.topology = topology;
        }
        match answers.metrics {
            Ok(body) => {
                let mut reader = Reader::new(&body);
                self.rings.open(now_ms);
                for item in reader.by_ref() {
                    if let Item::Sample(sample) = item {
                        self.rings.put(&sample);
                    }
                }
                view.polling.lines_skipped = reader.skipped();
            }
            Err(why) => {
                self.rings.gap(now_ms);
                view.polling.last_error = Some(format!("/metrics: {why}"));
            }
        }
    }

    /// Detects a restart: the process has been up for less time than has passed since its last
    /// answer, or for less than it reported then.
    fn note_restart(&mut self, answers: &Answers, now_ms: u64) {
        let up = |status: &Status| status.uptime_seconds;
        let (Some(before), Some(now), Some(at)) = (
            up(&self.view.status),
            answers.status.as_ref().and_then(up),
            self.view.facts.answered_at,
        ) else {
            return;
        };
        let apart = now_ms.saturating_sub(at) / 1000;
        // Uptimes are whole seconds on both sides, and a poll takes time, hence the margin.
        let lost = now + 2 <= before + apart && now <= apart;
        if now < before || lost {
            self.restarts.push_back(now_ms);
        }
    }

    /// Updates everything that is derived from the rings.
    fn figures(&mut self, now_ms: u64) {
        let from = now_ms.saturating_sub(self.sampling.window.as_millis() as u64);
        let rings = &self.rings;
        let view = &mut self.view;
        view.rates = shortened(&derive::rates(rings));
        while self.points.len() >= self.sampling.slots() {
            self.points.pop_front();
        }
        self.points.push_back(Point {
            time_ms: now_ms,
            rates: view.rates.clone(),
        });
        view.points = self.points.iter().cloned().collect();
        while self.restarts.front().is_some_and(|at| *at < from) {
            self.restarts.pop_front();
        }
        view.facts.process_restarts_in_window = self.restarts.len() as u64;
        // A node that is not ready says so itself; errors it returns meanwhile are expected, most
        // of all after a start. Those of a standby are too.
        let serves = |ready: &Ready| ready.ready && !ready.degraded.iter().any(|c| c == STANDBY);
        let ready = view.facts.failures == 0 && view.facts.ready.as_ref().is_none_or(serves);
        if ready && self.was_ready {
            let (all, failed) = derive::outcomes_since(rings, now_ms);
            self.outcomes.push_back((now_ms, all, failed));
        }
        self.was_ready = ready;
        while self.outcomes.front().is_some_and(|(at, ..)| *at < from) {
            self.outcomes.pop_front();
        }
        view.facts.requests_in_window = self.outcomes.iter().map(|(_, all, _)| all).sum();
        view.facts.server_errors_in_window = self.outcomes.iter().map(|(.., failed)| failed).sum();
        view.facts.restarts_in_window = derive::events_since(rings, Role::Restarts, from);
        view.facts.late_checkpoints_in_window =
            derive::events_since(rings, Role::LateCheckpoints, from);
        view.polling.consecutive_failures = view.facts.failures;
        view.polling.series = rings.len() as u64;
        view.polling.series_refused = rings.refused();
        view.queues = queues(rings, &view.topology);
    }
}

fn shortened(rates: &NodeRates) -> NodeRates {
    let short = |v: Option<f64>| v.map(derive::short);
    NodeRates {
        request_rate: short(rates.request_rate),
        error_ratio: short(rates.error_ratio),
        p50_seconds: short(rates.p50_seconds),
        p95_seconds: short(rates.p95_seconds),
        p99_seconds: short(rates.p99_seconds),
    }
}

/// The queues of the topology with their latest figures; queues that only the metrics contain
/// follow.
fn queues(rings: &Rings, topology: &TopologyFacts) -> Vec<NodeQueue> {
    let [depth, dropped, rejected] = [Role::QueueDepth, Role::QueueDropped, Role::QueueRejected]
        .map(|role| derive::latest_by(rings, role, "queue"));
    let mut out = topology.queues.clone();
    for name in depth.keys() {
        if !out.iter().any(|q| q.name == *name) {
            out.push(NodeQueue {
                name: name.clone(),
                capacity: None,
                overflow: None,
                from: None,
                to: None,
                depth: None,
                dropped: None,
                rejected: None,
            });
        }
    }
    for queue in &mut out {
        queue.depth = depth.get(&queue.name).copied();
        queue.dropped = dropped.get(&queue.name).copied();
        queue.rejected = rejected.get(&queue.name).copied();
    }
    out
}

/// The restarts of a node's threads since it started, and of its process within the window.
pub fn restarts(view: &NodeView) -> u64 {
    let planes = view.facts.planes.iter();
    let threads: u64 = planes.map(|plane| plane.restart_count).sum();
    threads.max(view.facts.restarts_in_window) + view.facts.process_restarts_in_window
}

/// The planes to show at `now_ms`; those of a node that does not answer are unknown.
pub fn planes(view: &NodeView, now_ms: u64) -> Vec<NodePlane> {
    let mut planes = view.facts.planes.clone();
    if is_unreachable(&view.facts, now_ms) {
        for plane in &mut planes {
            plane.health = NodeState::Unknown;
            plane.ready = false;
        }
    }
    planes
}

/// True if, in this state, the last answer no longer describes the node.
pub fn is_gone(state: NodeState) -> bool {
    matches!(state, NodeState::Unknown | NodeState::Down)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::state::judge;
    use std::time::Duration;

    pub(crate) fn sampling() -> Sampling {
        Sampling {
            interval: Duration::from_secs(5),
            window: Duration::from_secs(60),
            poll_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(2),
            max_body_bytes: 1 << 20,
            max_threads: 4,
            max_series: 100,
        }
    }

    pub(crate) fn node(id: &str) -> Node {
        let spec = NodeSpec {
            id: id.into(),
            display_name: id.into(),
            health_url: "http://127.0.0.1:1".into(),
            api_url: None,
            environment: "dev".into(),
            log: None,
            credential: None,
            metrics_path: "/metrics".into(),
        };
        Node::new(spec, sampling())
    }

    pub(crate) fn answer(metrics: &str) -> Outcome {
        Outcome::Answered(Box::new(Answers {
            status: Some(Status {
                service: Some("x".into()),
                health: Some(NodeState::Healthy),
                ..Status::default()
            }),
            ready: Some(Ready {
                ready: true,
                ..Ready::default()
            }),
            metrics: Ok(metrics.as_bytes().to_vec()),
            topology: None,
            took_s: 0.002,
        }))
    }

    fn requests(n: u32) -> String {
        format!(
            "x_http_requests_total{{route=\"/v1/a\",method=\"GET\",status=\"200\"}} {n}\nx_queue_depth{{queue=\"q\"}} 3\n"
        )
    }

    #[test]
    fn an_outage_leaves_a_hole_and_the_identity() {
        let node = node("a");
        assert_eq!(judge(&node.view().facts, 0).state, NodeState::Unknown);
        node.absorb(answer(&requests(10)), 5_000, 5_000);
        node.absorb(answer(&requests(60)), 10_000, 5_000);
        assert_eq!(node.view().rates.request_rate, Some(10.0));
        assert_eq!(node.view().queues[0].depth, Some(3.0));
        assert_eq!(judge(&node.view().facts, 10_000).state, NodeState::Healthy);
        node.absorb(refused(), 15_000, 5_000);
        let view = node.view();
        assert_eq!(judge(&view.facts, 15_000).state, NodeState::Down);
        assert_eq!(view.rates, NodeRates::default(), "nothing is carried on");
        assert_eq!(view.status.service.as_deref(), Some("x"));
        assert_eq!(view.queues, [], "a dead node has no depth");
        node.absorb(answer(&requests(5)), 20_000, 5_000);
        assert_eq!(
            node.view().rates.request_rate,
            None,
            "the first poll after an outage has no rate"
        );
        node.absorb(answer(&requests(10)), 25_000, 5_000);
        let rates: Vec<_> = node
            .view()
            .points
            .iter()
            .map(|p| p.rates.request_rate)
            .collect();
        assert_eq!(rates, [None, Some(10.0), None, None, Some(1.0)]);
        assert_eq!(
            (node.view().polling.polls, node.view().polling.failures),
            (5, 1)
        );
    }

    #[test]
    fn restarts_degrade_within_the_window_only() {
        let node = node("a");
        let body = |n: u32| format!("x_service_restarts_total{{kind=\"t\"}} {n}\n");
        node.absorb(answer(&body(0)), 5_000, 5_000);
        node.absorb(answer(&body(1)), 10_000, 5_000);
        assert_eq!(judge(&node.view().facts, 10_000).state, NodeState::Degraded);
        for at in (15_000..=75_000).step_by(5_000) {
            node.absorb(answer(&body(1)), at, 5_000);
        }
        assert_eq!(judge(&node.view().facts, 75_000).state, NodeState::Healthy);
    }

    fn up_for(seconds: u64) -> Outcome {
        let Outcome::Answered(mut answers) = answer("up 1\n") else {
            unreachable!("it answers")
        };
        let status = answers.status.as_mut().expect("a status");
        status.uptime_seconds = Some(seconds);
        status.planes = vec![NodePlane {
            name: "http".into(),
            health: NodeState::Healthy,
            ready: true,
            restart_count: 0,
            reason: None,
        }];
        Outcome::Answered(answers)
    }

    fn refused() -> Outcome {
        Outcome::Failed {
            failure: PollFailure::Refused,
            detail: "refused".into(),
        }
    }

    #[test]
    fn a_restarted_process_is_reported_for_a_window() {
        let node = node("a");
        node.absorb(up_for(100), 5_000, 5_000);
        node.absorb(up_for(105), 10_000, 5_000);
        node.absorb(up_for(109), 15_000, 5_000);
        assert_eq!(node.view().facts.process_restarts_in_window, 0);
        node.absorb(up_for(3), 20_000, 5_000);
        let told = judge(&node.view().facts, 20_000);
        assert_eq!(told.reasons[0].code, "process_restarted", "{told:?}");
        assert_eq!(restarts(&node.view()), 1);
        // Gone for a while and back: it may have been up for longer than before it went.
        node.absorb(refused(), 25_000, 5_000);
        node.absorb(up_for(15), 45_000, 5_000);
        assert_eq!(node.view().facts.process_restarts_in_window, 2);
        // Not polled for a while, but the same process.
        node.absorb(up_for(40), 70_000, 5_000);
        assert_eq!(node.view().facts.process_restarts_in_window, 2);
        for at in (75_000..=110_000).step_by(5_000) {
            node.absorb(up_for(at / 1000 - 30), at, 5_000);
        }
        assert_eq!(judge(&node.view().facts, 110_000).state, NodeState::Healthy);
    }

    #[test]
    fn of_a_node_that_does_not_answer_nothing_is_healthy_and_its_routes_are_kept() {
        let node = node("a");
        node.absorb(answer(&requests(10)), 5_000, 5_000);
        node.absorb(up_for(10), 10_000, 5_000);
        assert_eq!(planes(&node.view(), 10_000)[0].health, NodeState::Healthy);
        node.absorb(answer(&requests(60)), 15_000, 5_000);
        node.absorb(up_for(20), 20_000, 5_000);
        node.absorb(refused(), 25_000, 5_000);
        let view = node.view();
        let plane = &planes(&view, 25_000)[0];
        assert_eq!((plane.health, plane.ready), (NodeState::Unknown, false));
        assert_eq!(view.last_routes[0].facet, "GET /v1/a");
        node.absorb(refused(), 30_000, 5_000);
        assert_eq!(node.view().last_routes.len(), 1, "kept");
        node.absorb(up_for(40), 40_000, 5_000);
        assert!(node.view().last_routes.is_empty());
        assert_eq!(planes(&node.view(), 40_000)[0].health, NodeState::Healthy);
    }

    #[test]
    fn failing_requests_degrade_a_node_that_says_it_is_well() {
        let node = node("a");
        let body = |good: u32, bad: u32| {
            format!(
                "x_http_requests_total{{route=\"/v1/a\",method=\"GET\",status=\"200\"}} {good}\n\
                 x_http_requests_total{{route=\"/v1/a\",method=\"GET\",status=\"503\"}} {bad}\n\
                 x_http_requests_total{{route=\"/readyz\",method=\"GET\",status=\"503\"}} {bad}\n"
            )
        };
        node.absorb(answer(&body(0, 0)), 5_000, 5_000);
        node.absorb(answer(&body(30, 10)), 10_000, 5_000);
        let told = judge(&node.view().facts, 10_000);
        let words = "25 % of answers within the window are server errors";
        assert_eq!(told.reasons[0].text, words, "{told:?}");
    }

    #[test]
    fn points_are_bounded() {
        let node = node("a");
        for at in 1..100 {
            node.absorb(answer(&requests(1)), at * 1000, 5_000);
        }
        assert_eq!(node.view().points.len(), sampling().slots());
    }
}
