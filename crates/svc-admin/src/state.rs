//! The only place that decides whether a node is healthy, degraded, down or unknown, and for which
//! reasons.
//!
//! A pure function of the observations: no clock, no I/O, no memory. The same facts always give the
//! same state and the same words, so the page can be checked by hand.

use ron_proto::admin::{NodePlane, NodeState, Reason};
use ron_proto::status::{ERRORS_DEGRADED_ABOVE, ERRORS_LEAST_REQUESTS};

/// A poll older than this many sampling intervals does not count.
pub const STALE_INTERVALS: u64 = 3;
/// Unanswered polls after which a node counts as down.
pub const LOST_POLLS: u32 = 2;
/// Share of server errors within the window above which a node is down.
pub const ERRORS_DOWN_ABOVE: f64 = 0.5;

/// Why a poll brought no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollFailure {
    /// No listener at this address.
    Refused,
    /// The poll ran into its timeout.
    Timeout,
    /// The connection broke, or the name or route to the node does not exist.
    Broken,
    /// The response is not that of a node.
    Foreign,
}

impl PollFailure {
    /// Code and text of the reason.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Refused => ("connection_refused", "connection refused"),
            Self::Timeout => ("timeout", "no answer in time"),
            Self::Broken => ("connection_failed", "connection failed"),
            Self::Foreign => ("not_understood", "answer not understood"),
        }
    }
}

/// The content of `/readyz`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    pub ready: bool,
    pub draining: bool,
    pub missing: Vec<String>,
    pub degraded: Vec<String>,
}

/// Everything that the state of a node depends on. Times in unix milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// When the node was last polled.
    pub polled_at: Option<u64>,
    pub answered_at: Option<u64>,
    /// The current time between polls.
    pub interval_ms: u64,
    /// Unanswered polls since the last answer.
    pub failures: u32,
    pub failure: Option<PollFailure>,
    /// `None`: the node has no `/readyz`.
    pub ready: Option<Ready>,
    /// The node's own health word; `None` when it reports none.
    pub own_health: Option<NodeState>,
    pub planes: Vec<NodePlane>,
    /// Planes without which the node cannot work, from its topology; empty when it publishes none.
    pub critical: Vec<String>,
    /// Thread restarts within the sampling window.
    pub restarts_in_window: u64,
    /// Process restarts within the sampling window.
    pub process_restarts_in_window: u64,
    /// Requests within the sampling window while the node was ready, without those of monitoring,
    /// and how many of them failed with a 5xx.
    pub requests_in_window: u64,
    pub server_errors_in_window: u64,
    /// Late checkpoints within the sampling window.
    pub late_checkpoints_in_window: u64,
}

/// A state and its reasons, worst first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub state: NodeState,
    pub reasons: Vec<Reason>,
}

/// The state of a node at `now_ms`.
pub fn judge(facts: &Facts, now_ms: u64) -> Verdict {
    if let Some(verdict) = judge_reach(facts, now_ms) {
        return verdict;
    }
    let mut found = Findings::default();
    judge_readiness(facts, &mut found);
    judge_planes(facts, &mut found);
    judge_history(facts, &mut found);
    if let (true, Some(own)) = (found.reasons.is_empty(), facts.own_health)
        && matches!(own, NodeState::Degraded | NodeState::Down)
    {
        found.add(
            own,
            "self_reported",
            format!("the node calls itself {} without a reason", own.as_str()),
        );
    }
    found.verdict()
}

/// True when the last answer is too old to be shown as current.
pub fn is_stale(facts: &Facts, now_ms: u64) -> bool {
    facts
        .answered_at
        .is_some_and(|at| now_ms.saturating_sub(at) > stale_after(facts))
}

fn stale_after(facts: &Facts) -> u64 {
    facts.interval_ms.saturating_mul(STALE_INTERVALS)
}

/// True when the node does not answer, or has not answered for so long that its last answer is out
/// of date.
pub fn is_unreachable(facts: &Facts, now_ms: u64) -> bool {
    facts.answered_at.is_none()
        || is_stale(facts, now_ms)
        || judge_reach(facts, now_ms).is_some_and(|verdict| verdict.state == NodeState::Down)
}

/// Decides what does not depend on the content of the last answer.
fn judge_reach(facts: &Facts, now_ms: u64) -> Option<Verdict> {
    let Some(polled_at) = facts.polled_at else {
        return Some(one(
            NodeState::Unknown,
            "not_polled",
            "not polled yet".to_owned(),
        ));
    };
    #[cfg(mutant = "lost")] // the last answer counts for ever
    if ron_kernel::mutant("lost") {
        return None;
    }
    let poll_age = now_ms.saturating_sub(polled_at);
    if poll_age > stale_after(facts) {
        return Some(one(
            NodeState::Unknown,
            "look_too_old",
            format!("last polled {} ago", span(poll_age)),
        ));
    }
    if facts.failures == 0 {
        return None;
    }
    let (code, words) = facts.failure.map_or(
        ("connection_failed", "connection failed"),
        PollFailure::words,
    );
    if facts.failures >= LOST_POLLS || facts.failure == Some(PollFailure::Refused) {
        let since = facts.answered_at.map_or_else(String::new, |at| {
            format!(", last answer {} ago", span(now_ms.saturating_sub(at)))
        });
        let polls = if facts.failures == 1 {
            String::new()
        } else {
            format!(" for {} polls", facts.failures)
        };
        return Some(one(NodeState::Down, code, format!("{words}{polls}{since}")));
    }
    if facts.answered_at.is_none() {
        return Some(one(
            NodeState::Unknown,
            code,
            format!("first poll: {words}"),
        ));
    }
    None
}

fn judge_readiness(facts: &Facts, found: &mut Findings) {
    let Some(ready) = &facts.ready else { return };
    if ready.draining {
        found.add(
            NodeState::Down,
            "draining",
            "draining: finishing requests in flight, accepting no new ones".to_owned(),
        );
    } else if !ready.ready {
        let missing = if ready.missing.is_empty() {
            String::new()
        } else {
            format!(": {} missing", ready.missing.join(", "))
        };
        found.add(
            NodeState::Degraded,
            "not_ready",
            format!("not ready{missing}"),
        );
    }
    for cause in &ready.degraded {
        // The plane of that name says more: also that nothing is wrong, as with a node that waits to take over.
        if facts.planes.iter().any(|plane| plane.name == *cause) {
            continue;
        }
        found.add(NodeState::Degraded, "cause", cause.clone());
    }
}

fn judge_planes(facts: &Facts, found: &mut Findings) {
    // Without a topology the node's own health word decides: the node knows which of its planes are
    // critical.
    let node_down = facts.critical.is_empty() && facts.own_health == Some(NodeState::Down);
    for plane in &facts.planes {
        let (state, code, word) = match plane.health {
            NodeState::Down if node_down || facts.critical.contains(&plane.name) => {
                (NodeState::Down, "plane_down", "down")
            }
            NodeState::Down => (NodeState::Degraded, "plane_down", "down"),
            NodeState::Degraded => (NodeState::Degraded, "plane_degraded", "degraded"),
            NodeState::Healthy | NodeState::Unknown if !plane.ready => {
                (NodeState::Degraded, "plane_not_ready", "not ready")
            }
            NodeState::Healthy | NodeState::Unknown => continue,
        };
        let why = plane
            .reason
            .as_deref()
            .filter(|r| !r.is_empty())
            .map_or_else(String::new, |r| format!(": {r}"));
        found.add(state, code, format!("{} {word}{why}", plane.name));
    }
}

fn judge_history(facts: &Facts, found: &mut Findings) {
    judge_errors(facts, found);
    match facts.process_restarts_in_window {
        0 => {}
        1 => found.add(
            NodeState::Degraded,
            "process_restarted",
            "the process was restarted within the window".to_owned(),
        ),
        n => found.add(
            NodeState::Degraded,
            "process_restarted",
            format!("the process was restarted {n} times within the window"),
        ),
    }
    if facts.restarts_in_window > 0 {
        found.add(
            NodeState::Degraded,
            "restarts",
            format!(
                "{} restarted within the window",
                count(facts.restarts_in_window, "thread")
            ),
        );
    }
    if facts.late_checkpoints_in_window > 0 {
        found.add(
            NodeState::Degraded,
            "stale_checkpoint",
            format!(
                "{} late within the window",
                count(facts.late_checkpoints_in_window, "log checkpoint")
            ),
        );
    }
}

fn judge_errors(facts: &Facts, found: &mut Findings) {
    let (all, failed) = (facts.requests_in_window, facts.server_errors_in_window);
    if all < ERRORS_LEAST_REQUESTS {
        return;
    }
    let share = failed as f64 / all as f64;
    if share > ERRORS_DEGRADED_ABOVE {
        let percent = match share * 100.0 {
            few @ 0.0..10.0 => format!("{few:.1}"),
            many => format!("{many:.0}"),
        };
        let state = if share > ERRORS_DOWN_ABOVE {
            NodeState::Down
        } else {
            NodeState::Degraded
        };
        found.add(
            state,
            "server_errors",
            format!("{percent} % of answers within the window are server errors"),
        );
    }
}

fn one(state: NodeState, code: &str, text: String) -> Verdict {
    Verdict {
        state,
        reasons: vec![Reason {
            code: code.to_owned(),
            text,
        }],
    }
}

#[derive(Default)]
struct Findings {
    reasons: Vec<(NodeState, Reason)>,
}

impl Findings {
    fn add(&mut self, state: NodeState, code: &str, text: String) {
        if !self.reasons.iter().any(|(_, known)| known.text == text) {
            self.reasons.push((
                state,
                Reason {
                    code: code.to_owned(),
                    text,
                },
            ));
        }
    }

    fn verdict(mut self) -> Verdict {
        self.reasons
            .sort_by_key(|(state, _)| std::cmp::Reverse(*state));
        let state = self
            .reasons
            .first()
            .map_or(NodeState::Healthy, |(state, _)| *state);
        Verdict {
            state,
            reasons: self.reasons.into_iter().map(|(_, reason)| reason).collect(),
        }
    }
}

fn count(n: u64, what: &str) -> String {
    if n == 1 {
        format!("1 {what}")
    } else {
        format!("{n} {what}s")
    }
}

/// A duration in words: `4 s`, `12 min`, `3 h`.
fn span(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..=119 => format!("{s} s"),
        120..=7199 => format!("{} min", s / 60),
        _ => format!("{} h", s / 3600),
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
