//! The samplers: threads that ask each node how it is, at even pace, each question with a deadline.
//!
//! A hung node costs its own thread at most one poll timeout and delays nobody else's; after repeated timeouts it
//! is asked less often. A node that refuses connections is cheap to ask, so at first it is asked more often: it is
//! probably being restarted.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{Call, CallError, Failure};
use ron_kernel::loops::work_and_report;
use ron_kernel::{Deadline, Receiver, ThreadCtx};

use crate::dialect;
use crate::fleet::{Event, Fleet};
use crate::node::{Answers, Node, Outcome};
use crate::state::Silence;

/// Looks after a refusal that come early.
const EAGER_LOOKS: u32 = 3;
const EAGER_PAUSE: Duration = Duration::from_secs(1);
/// Timeouts after which a node is asked less often, and how much less.
const SLOW_AFTER: u32 = 5;
const SLOW_FACTOR: u32 = 3;

/// A node that is due.
#[derive(Debug)]
pub struct Look {
    pub node: Arc<Node>,
    pub with_topology: bool,
}

impl Fleet {
    /// The body of one sampler thread: looks at the nodes that the scheduler hands out, until shutdown.
    pub fn sampler(&self, looks: &Receiver<Look>, ctx: &ThreadCtx) {
        // The scheduler empties its queue all the time; a flood of orders must not lose a node.
        work_and_report(looks, &self.events, &ctx.shutdown, |look| {
            let pause = self.look(&look.node, look.with_topology);
            Event::Looked {
                node: look.node,
                pause,
            }
        });
    }

    /// Asks one node, takes the outcome in, and says how long to wait before the next time.
    pub fn look(&self, node: &Node, with_topology: bool) -> Duration {
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
            Outcome::Silent { silence, .. } => self.count(*silence),
        }
        let (failures, silence) = match &outcome {
            Outcome::Answered(_) => (0, None),
            Outcome::Silent { silence, .. } => {
                (node.view().facts.failures.saturating_add(1), Some(*silence))
            }
        };
        let pause = pause_after(self.sampling.interval, failures, silence);
        // A look without an answer takes all of its time, the next one too.
        let look = match silence {
            Some(Silence::Timeout) => self.sampling.poll_timeout,
            _ => Duration::ZERO,
        };
        // Judged by the longer of the two, so that an early look never makes the picture old sooner.
        let interval_ms = (pause + look).max(self.sampling.interval).as_millis() as u64;
        node.absorb(outcome, self.clock.unix_ms(), interval_ms);
        pause
    }

    fn count(&self, silence: Silence) {
        if silence == Silence::Timeout {
            self.metrics.io_timeouts.with_label_values(&["poll"]).inc();
        }
        self.metrics
            .upstream_fail
            .with_label_values(&["node"])
            .inc();
    }

    fn ask(&self, node: &Node, deadline: Deadline, with_topology: bool) -> Outcome {
        match self.ask_all(node, deadline, with_topology) {
            Ok(answers) => Outcome::Answered(Box::new(answers)),
            Err((silence, detail)) => Outcome::Silent { silence, detail },
        }
    }

    fn ask_all(
        &self,
        node: &Node,
        deadline: Deadline,
        with_topology: bool,
    ) -> Result<Answers, (Silence, String)> {
        let get = |path: &str| {
            let url = format!("{}{path}", node.spec.health_url);
            self.client.call(Call::get(&url, deadline))
        };
        let silent = |error: CallError| {
            // The client's breaker says only that it was not asked: what was wrong before is still what is known.
            let known = node
                .view()
                .facts
                .silence
                .filter(|_| error.kind == Failure::BreakerOpen);
            (
                known.unwrap_or_else(|| silence_of(&error, deadline)),
                error.detail,
            )
        };
        let status = get("/api/v1/status").map_err(silent)?;
        let ready = get("/readyz").map_err(silent)?;
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
                Silence::Foreign,
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

/// How long to wait after a look that ended so.
fn pause_after(interval: Duration, failures: u32, silence: Option<Silence>) -> Duration {
    match silence {
        Some(Silence::Refused) if failures <= EAGER_LOOKS => interval.min(EAGER_PAUSE),
        Some(Silence::Timeout) if failures >= SLOW_AFTER => interval * SLOW_FACTOR,
        _ => interval,
    }
}

/// What a call without an answer says about the node.
fn silence_of(error: &CallError, deadline: Deadline) -> Silence {
    let says = |word: &str| error.detail.contains(word);
    if says("refused") || says("cannot be connected") {
        Silence::Refused
    } else if deadline.expired() || says("in time") || says("deadline") {
        Silence::Timeout
    } else if error.kind == Failure::BadAnswer {
        Silence::Foreign
    } else {
        Silence::Broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sampling;
    use crate::node::tests::{node, sampling};
    use crate::state::judge;
    use ron_http::{ClientConfig, HttpClient};
    use ron_kernel::{KernelMetrics, Registry, SystemClock};
    use ron_proto::admin::NodeState;
    use std::net::TcpListener;

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
        let pause = fleet.look(&node, true);
        let view = node.view();
        assert_eq!(
            view.facts.silence,
            Some(Silence::Refused),
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
        fleet.look(&node, true);
        let took = fleet.clock.now() - started;
        assert!(took < Duration::from_secs(20), "{took:?}");
        let facts = &node.view().facts;
        assert_eq!(
            facts.silence,
            Some(Silence::Timeout),
            "{:?}",
            node.view().polling.last_error
        );
        assert_eq!(
            judge(facts, fleet.clock.unix_ms()).state,
            NodeState::Unknown,
            "one poll is not enough to say down"
        );
        let pause = fleet.look(&node, true);
        let facts = &node.view().facts;
        // Two looks that take all of their time are this far apart; the picture is not too old before three of that.
        let apart = pause + Duration::from_millis(150);
        let ended = facts.polled_at.expect("polled");
        let told = judge(facts, ended + 3 * apart.as_millis() as u64);
        assert_eq!(told.state, NodeState::Down, "{told:?}");
    }

    #[test]
    fn pauses() {
        let five = Duration::from_secs(5);
        let check = |failures, silence, s| {
            assert_eq!(pause_after(five, failures, silence), Duration::from_secs(s));
        };
        check(0, None, 5);
        check(1, Some(Silence::Refused), 1);
        check(4, Some(Silence::Refused), 5);
        check(4, Some(Silence::Timeout), 5);
        check(5, Some(Silence::Timeout), 15);
        assert_eq!(
            pause_after(Duration::from_millis(250), 1, Some(Silence::Refused)),
            Duration::from_millis(250)
        );
    }
}
