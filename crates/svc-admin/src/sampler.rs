//! The samplers: threads that poll each node at an even pace, each poll with a deadline.
//!
//! A hung node costs its own thread at most one poll timeout and delays no other node; after
//! repeated timeouts it is polled less often. A node that refuses connections is cheap to poll and
//! probably being restarted, so at first it is polled more often.

use std::time::Duration;

use ron_http::{Call, CallError, Cause, Failure};
use ron_kernel::loops::work_and_report;
use ron_kernel::{Deadline, Receiver, ThreadCtx};

use crate::dialect;
use crate::fleet::{DuePoll, Event, Fleet};
use crate::node::{Answers, Node, Outcome};
use crate::state::PollFailure;

/// Number of early polls after a refused connection.
const EAGER_POLLS: u32 = 3;
const EAGER_PAUSE: Duration = Duration::from_secs(1);
/// Timeouts after which a node is polled less often, and by which factor.
const SLOW_AFTER: u32 = 5;
const SLOW_FACTOR: u32 = 3;

impl Fleet {
    /// The body of one sampler thread: polls the nodes that the scheduler sends, until shutdown.
    pub fn sampler(&self, due: &Receiver<DuePoll>, ctx: &ThreadCtx) {
        // `work_and_report` waits for room in the scheduler's queue: a flood of refresh events must
        // not lose a node.
        work_and_report(due, &self.events, &ctx.shutdown, |due| {
            let pause = self.poll(&due.node, due.with_topology);
            Event::Polled {
                node: due.node,
                pause,
            }
        });
    }

    /// Polls one node, applies the outcome, and returns the pause before the next poll.
    pub fn poll(&self, node: &Node, with_topology: bool) -> Duration {
        let started = self.clock.now();
        let deadline = Deadline::within(self.sampling.poll_timeout);
        let mut outcome = self.ask(
            node,
            deadline,
            with_topology || node.view().topology.threads.is_empty(),
        );
        match &mut outcome {
            Outcome::Answered(answers) => {
                answers.took_s = self
                    .clock
                    .now()
                    .saturating_duration_since(started)
                    .as_secs_f64();
            }
            Outcome::Failed { failure, .. } => self.count(*failure),
        }
        let (failures, failure) = match &outcome {
            Outcome::Answered(_) => (0, None),
            Outcome::Failed { failure, .. } => {
                (node.view().facts.failures.saturating_add(1), Some(*failure))
            }
        };
        let pause = pause_after(self.sampling.interval, failures, failure);
        // A poll that ran into its timeout took all of it, and the next one probably will too.
        let poll_time = match failure {
            Some(PollFailure::Timeout) => self.sampling.poll_timeout,
            _ => Duration::ZERO,
        };
        // The longer of the two, so that an early poll never makes the view stale sooner.
        let interval_ms = (pause + poll_time).max(self.sampling.interval).as_millis() as u64;
        node.absorb(outcome, self.clock.unix_ms(), interval_ms);
        pause
    }

    fn count(&self, failure: PollFailure) {
        if failure == PollFailure::Timeout {
            self.metrics.io_timeouts.with_label_values(&["poll"]).inc();
        }
        if matches!(failure, PollFailure::Refused | PollFailure::Broken) {
            let errors = &self.metrics.io_errors;
            errors.with_label_values(&["connect"]).inc();
        }
        self.metrics
            .upstream_fail
            .with_label_values(&["node"])
            .inc();
    }

    fn ask(&self, node: &Node, deadline: Deadline, with_topology: bool) -> Outcome {
        match self.ask_all(node, deadline, with_topology) {
            Ok(answers) => Outcome::Answered(Box::new(answers)),
            Err((failure, detail)) => Outcome::Failed { failure, detail },
        }
    }

    fn ask_all(
        &self,
        node: &Node,
        deadline: Deadline,
        with_topology: bool,
    ) -> Result<Answers, (PollFailure, String)> {
        let get = |path: &str| {
            let url = format!("{}{path}", node.spec.health_url);
            self.client.call(Call::get(&url, deadline))
        };
        let failed = |error: CallError| (poll_failure(&error, deadline), error.detail);
        let status = get("/api/v1/status").map_err(failed)?;
        let ready = get("/readyz").map_err(failed)?;
        let metrics = match get(&node.spec.metrics_path) {
            Ok(reply) if reply.is_success() => Ok(reply.body),
            Ok(reply) => Err(format!("answered {}", reply.status)),
            Err(error) => Err(error.detail),
        };
        let answers = Answers {
            status: if status.is_success() {
                dialect::read_status(&status.body)
            } else {
                None
            },
            ready: dialect::read_ready(ready.status, &ready.body),
            topology: if with_topology && status.is_success() {
                self.ask_topology(&get)
            } else {
                None
            },
            metrics,
            took_s: 0.0,
        };
        if answers.status.is_none() && answers.ready.is_none() && answers.metrics.is_err() {
            return Err((
                PollFailure::Foreign,
                format!(
                    "/api/v1/status answered {}, /readyz {}",
                    status.status, ready.status
                ),
            ));
        }
        Ok(answers)
    }

    fn ask_topology(
        &self,
        get: &dyn Fn(&str) -> Result<ron_http::Reply, CallError>,
    ) -> Option<dialect::TopologyFacts> {
        let reply = get("/api/v1/topology")
            .ok()
            .filter(ron_http::Reply::is_success)?;
        let facts = dialect::read_topology(&reply.body);
        if facts.is_none() {
            self.metrics
                .parse_errors
                .with_label_values(&["topology"])
                .inc();
        }
        facts
    }
}

/// The pause after a poll with this result.
fn pause_after(interval: Duration, failures: u32, failure: Option<PollFailure>) -> Duration {
    match failure {
        Some(PollFailure::Refused) if failures <= EAGER_POLLS => interval.min(EAGER_PAUSE),
        Some(PollFailure::Timeout) if failures >= SLOW_AFTER => interval * SLOW_FACTOR,
        _ => interval,
    }
}

/// Classifies a call without an answer.
fn poll_failure(error: &CallError, deadline: Deadline) -> PollFailure {
    match error.cause {
        Cause::Refused => PollFailure::Refused,
        Cause::Timeout => PollFailure::Timeout,
        Cause::TooLarge | Cause::Other if deadline.expired() => PollFailure::Timeout,
        Cause::TooLarge | Cause::Other if error.kind == Failure::BadAnswer => PollFailure::Foreign,
        Cause::TooLarge | Cause::Other => PollFailure::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::{node, sampling};
    use crate::settings::Sampling;
    use crate::state::judge;
    use ron_http::{ClientConfig, HttpClient};
    use ron_kernel::{KernelMetrics, Registry, SystemClock};
    use ron_proto::admin::NodeState;
    use std::net::TcpListener;
    use std::sync::Arc;

    fn fleet(node: Node, poll_timeout: Duration) -> Fleet {
        let sampling = Sampling {
            poll_timeout,
            ..sampling()
        };
        let client = Arc::new(HttpClient::new(ClientConfig {
            connect_timeout: poll_timeout,
            ..ClientConfig::default()
        }));
        let metrics = KernelMetrics::new(&Registry::new("t"));
        let (fleet, _events) = Fleet::new(sampling, client, SystemClock::shared(), metrics);
        fleet.adopt(vec![Arc::new(node)]);
        fleet
    }

    fn node_at(listener: &TcpListener) -> Node {
        let mut spec = node("n").spec;
        spec.health_url = format!("http://{}", listener.local_addr().expect("bound"));
        Node::new(spec, sampling())
    }

    #[test]
    fn a_closed_port_is_refused_and_down_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let closed = node_at(&listener);
        drop(listener);
        let fleet = fleet(closed, Duration::from_secs(3));
        let node = fleet.node("n").expect("adopted");
        let pause = fleet.poll(&node, true);
        let view = node.view();
        assert_eq!(
            view.facts.failure,
            Some(PollFailure::Refused),
            "{:?}",
            view.polling.last_error
        );
        assert_eq!(
            judge(&view.facts, fleet.clock.unix_ms()).state,
            NodeState::Down
        );
        assert_eq!(pause, EAGER_PAUSE, "it is probably being restarted");
    }

    #[test]
    fn a_hung_port_times_out_within_the_poll_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let fleet = fleet(node_at(&listener), Duration::from_millis(150));
        let node = fleet.node("n").expect("adopted");
        let started = fleet.clock.now();
        fleet.poll(&node, true);
        let took = fleet.clock.now() - started;
        assert!(took < Duration::from_secs(20), "{took:?}");
        let facts = &node.view().facts;
        assert_eq!(
            facts.failure,
            Some(PollFailure::Timeout),
            "{:?}",
            node.view().polling.last_error
        );
        assert_eq!(
            judge(facts, fleet.clock.unix_ms()).state,
            NodeState::Unknown,
            "one poll is not enough to say down"
        );
        let pause = fleet.poll(&node, true);
        let facts = &node.view().facts;
        // Two polls that run into their timeout are this far apart; the view is not stale before
        // three of these.
        let apart = pause + Duration::from_millis(150);
        let ended = facts.polled_at.expect("polled");
        let told = judge(facts, ended + 3 * apart.as_millis() as u64);
        assert_eq!(told.state, NodeState::Down, "{told:?}");
    }

    #[test]
    fn pauses() {
        let five = Duration::from_secs(5);
        let check = |failures, failure, s| {
            assert_eq!(pause_after(five, failures, failure), Duration::from_secs(s));
        };
        check(0, None, 5);
        check(1, Some(PollFailure::Refused), 1);
        check(4, Some(PollFailure::Refused), 5);
        check(4, Some(PollFailure::Timeout), 5);
        check(5, Some(PollFailure::Timeout), 15);
        assert_eq!(
            pause_after(Duration::from_millis(250), 1, Some(PollFailure::Refused)),
            Duration::from_millis(250)
        );
    }
}
