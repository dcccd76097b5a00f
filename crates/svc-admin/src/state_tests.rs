//! Every rule of a node's state, and its words.

use super::*;

const NOW: u64 = 1_000_000;

fn facts() -> Facts {
    Facts {
        polled_at: Some(NOW - 1000),
        answered_at: Some(NOW - 1000),
        interval_ms: 5000,
        ready: Some(Ready {
            ready: true,
            ..Ready::default()
        }),
        own_health: Some(NodeState::Healthy),
        planes: vec![plane("http", NodeState::Healthy, None)],
        ..Facts::default()
    }
}

fn plane(name: &str, health: NodeState, reason: Option<&str>) -> NodePlane {
    NodePlane {
        name: name.to_owned(),
        health,
        ready: health != NodeState::Down,
        restart_count: 0,
        reason: reason.map(str::to_owned),
    }
}

fn check(change: impl FnOnce(&mut Facts), state: NodeState, codes: &[&str], words: &str) {
    let mut f = facts();
    change(&mut f);
    let got = judge(&f, NOW);
    assert_eq!(got.state, state, "{got:?}");
    assert_eq!(
        got.reasons
            .iter()
            .map(|r| r.code.as_str())
            .collect::<Vec<_>>(),
        codes,
        "{got:?}"
    );
    assert!(
        got.reasons.iter().any(|r| r.text.contains(words)) || words.is_empty(),
        "{words:?} in {got:?}"
    );
}

#[test]
fn reach_decides_first() {
    check(|_| {}, NodeState::Healthy, &[], "");
    check(
        |f| {
            *f = Facts {
                interval_ms: 5000,
                ..Facts::default()
            }
        },
        NodeState::Unknown,
        &["not_polled"],
        "not polled yet",
    );
    check(
        |f| f.polled_at = Some(NOW - 15_001),
        NodeState::Unknown,
        &["look_too_old"],
        "15 s ago",
    );
    check(
        |f| f.polled_at = Some(NOW - 15_000),
        NodeState::Healthy,
        &[],
        "",
    );
}

#[test]
fn a_node_is_down_after_two_failed_polls_or_one_refusal() {
    check(
        |f| {
            f.failures = 1;
            f.failure = Some(PollFailure::Refused);
        },
        NodeState::Down,
        &["connection_refused"],
        "last answer 1 s ago",
    );
    check(
        |f| {
            f.failures = 1;
            f.failure = Some(PollFailure::Timeout);
        },
        NodeState::Healthy,
        &[],
        "",
    );
    check(
        |f| {
            f.failures = 2;
            f.failure = Some(PollFailure::Timeout);
        },
        NodeState::Down,
        &["timeout"],
        "no answer in time for 2 polls",
    );
    check(
        |f| {
            f.failures = 1;
            f.failure = Some(PollFailure::Timeout);
            f.answered_at = None;
        },
        NodeState::Unknown,
        &["timeout"],
        "first poll",
    );
    check(
        |f| {
            f.failures = 3;
            f.failure = Some(PollFailure::Foreign);
            f.answered_at = None;
        },
        NodeState::Down,
        &["not_understood"],
        "for 3 polls",
    );
}

#[test]
fn readiness_decides_next() {
    let not_ready = Ready {
        missing: vec!["ledger".into()],
        ..Ready::default()
    };
    check(
        |f| f.ready = Some(not_ready.clone()),
        NodeState::Degraded,
        &["not_ready"],
        "not ready: ledger missing",
    );
    check(
        |f| {
            f.ready = Some(Ready {
                draining: true,
                ..not_ready.clone()
            });
        },
        NodeState::Down,
        &["draining"],
        "draining",
    );
    check(
        |f| {
            f.ready = Some(Ready {
                ready: true,
                degraded: vec!["jwks: no keys yet".into()],
                ..Ready::default()
            });
        },
        NodeState::Degraded,
        &["cause"],
        "jwks",
    );
    let standby = Ready {
        ready: true,
        degraded: vec!["standby".into()],
        ..Ready::default()
    };
    check(
        |f| {
            f.ready = Some(standby.clone());
            f.planes.push(plane(
                "standby",
                NodeState::Healthy,
                Some("of another node"),
            ));
        },
        NodeState::Healthy,
        &[],
        "",
    );
    check(|f| f.ready = None, NodeState::Healthy, &[], "");
}

#[test]
fn planes_and_history_are_reasons() {
    check(
        |f| {
            f.planes
                .push(plane("writer", NodeState::Down, Some("disk full")));
        },
        NodeState::Degraded,
        &["plane_down"],
        "writer down: disk full",
    );
    check(
        |f| {
            f.own_health = Some(NodeState::Down);
            f.planes.push(plane("writer", NodeState::Down, None));
            f.planes.insert(0, plane("pool", NodeState::Degraded, None));
        },
        NodeState::Down,
        &["plane_down", "plane_degraded"],
        "writer down",
    );
    check(
        |f| {
            f.own_health = Some(NodeState::Down);
            f.critical = vec!["audit".into()];
            f.planes.push(plane("store", NodeState::Down, None));
        },
        NodeState::Degraded,
        &["plane_down"],
        "store down",
    );
    check(
        |f| {
            f.critical = vec!["audit".into()];
            f.planes.push(plane("audit", NodeState::Down, None));
        },
        NodeState::Down,
        &["plane_down"],
        "audit down",
    );
}

#[test]
fn server_errors_and_restarts_of_the_process_speak() {
    let failing = |all, failed| {
        move |f: &mut Facts| {
            f.requests_in_window = all;
            f.server_errors_in_window = failed;
        }
    };
    let words = "98 % of answers within the window are server errors";
    check(
        failing(1_000, 977),
        NodeState::Down,
        &["server_errors"],
        words,
    );
    check(
        failing(1_000, 11),
        NodeState::Degraded,
        &["server_errors"],
        "1.1 %",
    );
    check(
        failing(1_000, 500),
        NodeState::Degraded,
        &["server_errors"],
        "50 %",
    );
    check(failing(1_000, 10), NodeState::Healthy, &[], "");
    check(
        failing(20, 20),
        NodeState::Down,
        &["server_errors"],
        "100 %",
    );
    check(failing(19, 19), NodeState::Healthy, &[], "");
    check(
        |f| f.process_restarts_in_window = 1,
        NodeState::Degraded,
        &["process_restarted"],
        "the process was restarted within the window",
    );
    check(
        |f| f.process_restarts_in_window = 3,
        NodeState::Degraded,
        &["process_restarted"],
        "3 times",
    );
}

#[test]
fn what_a_node_said_is_the_past_once_it_does_not_answer() {
    let mut f = facts();
    assert!(!is_unreachable(&f, NOW));
    f.failures = 1;
    f.failure = Some(PollFailure::Timeout);
    assert!(!is_unreachable(&f, NOW), "one timeout is not enough");
    f.failures = 2;
    assert!(is_unreachable(&f, NOW));
    f.failures = 0;
    assert!(is_unreachable(&f, NOW + 16_000), "stale");
    f.ready = Some(Ready {
        draining: true,
        ..Ready::default()
    });
    assert!(!is_unreachable(&f, NOW), "down, but it answers");
    assert!(is_unreachable(&Facts::default(), NOW));
}

#[test]
fn critical_planes_and_restarts_are_reasons() {
    check(
        |f| {
            f.ready = Some(Ready {
                ready: true,
                degraded: vec!["kms".into()],
                ..Ready::default()
            });
            f.planes
                .push(plane("kms", NodeState::Degraded, Some("no answer")));
        },
        NodeState::Degraded,
        &["plane_degraded"],
        "kms degraded: no answer",
    );
    check(
        |f| f.restarts_in_window = 2,
        NodeState::Degraded,
        &["restarts"],
        "2 threads restarted",
    );
    check(
        |f| f.late_checkpoints_in_window = 1,
        NodeState::Degraded,
        &["stale_checkpoint"],
        "1 log checkpoint late",
    );
    check(
        |f| f.own_health = Some(NodeState::Degraded),
        NodeState::Degraded,
        &["self_reported"],
        "calls itself degraded",
    );
    check(
        |f| {
            f.planes[0].ready = false;
        },
        NodeState::Degraded,
        &["plane_not_ready"],
        "http not ready",
    );
}

#[test]
fn every_state_but_healthy_has_a_reason() {
    for failures in 0..4 {
        for age in [0, 14_000, 16_000] {
            for failure in [
                PollFailure::Refused,
                PollFailure::Timeout,
                PollFailure::Broken,
                PollFailure::Foreign,
            ] {
                for own in [NodeState::Healthy, NodeState::Degraded, NodeState::Down] {
                    let f = Facts {
                        polled_at: Some(NOW - age),
                        failures,
                        failure: (failures > 0).then_some(failure),
                        own_health: Some(own),
                        ..facts()
                    };
                    let got = judge(&f, NOW);
                    assert_eq!(
                        got.state == NodeState::Healthy,
                        got.reasons.is_empty(),
                        "{f:?} {got:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn spans_are_short() {
    assert_eq!(
        [span(0), span(119_999), span(120_000), span(7_200_000)],
        ["0 s", "119 s", "2 min", "2 h"]
    );
}
