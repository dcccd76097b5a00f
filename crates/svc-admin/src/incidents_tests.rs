//! Causes and incidents of small fleets.

use super::*;
use NodeState::{Degraded, Down, Healthy, Unknown};
use ron_proto::events::{EventKind, ServiceEvent};

/// Second, service and state; the node is named after the service.
type Report<'a> = (u64, &'a str, NodeState);

fn lines(said: &[Report<'_>]) -> VecDeque<Arc<Line>> {
    let line = |(at, service, state): &Report<'_>| {
        let (node, at) = (format!("the-{service}"), Timestamp(at * 1_000));
        let detail = format!("{service} is {}", state.as_str());
        Line::of_state(&node, Some((*service).to_owned()), at, *state, &detail)
    };
    number(said.iter().map(line).collect())
}

fn number(mut lines: Vec<Line>) -> VecDeque<Arc<Line>> {
    for (line, seq) in lines.iter_mut().zip(1..) {
        line.entry.seq = seq;
    }
    lines.into_iter().map(Arc::new).collect()
}

fn because(said: &[Report<'_>]) -> Vec<Option<String>> {
    let relations = relate(&lines(said)).relations.into_iter();
    relations.map(|of_line| of_line.because).collect()
}

/// Number, seconds from and to, nodes, lines.
type Summary = (u64, u64, Option<u64>, Vec<String>, u64);

fn incidents(lines: &VecDeque<Arc<Line>>) -> Vec<Summary> {
    let seconds = |at: Timestamp| at.unix_ms() / 1_000;
    let story = relate(lines);
    let seen = story.incidents.into_values().map(|incident| {
        let nodes = incident.nodes.into_iter().map(|node| node.node);
        (
            incident.id,
            seconds(incident.since),
            incident.until.map(seconds),
            nodes.collect(),
            incident.lines,
        )
    });
    seen.collect()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("the-{name}")).collect()
}

#[test]
fn a_state_is_put_down_to_a_called_service_that_was_worse_off_at_the_time() {
    let ledger = Some("the-ron-ledger".to_owned());
    // The ledger is known to be down before the wallet is, or at the next poll.
    assert_eq!(
        because(&[(1, "ron-ledger", Down), (3, "svc-wallet", Degraded)])[1],
        ledger
    );
    assert_eq!(
        because(&[(1, "svc-wallet", Degraded), (9, "ron-ledger", Down)])[0],
        ledger
    );
    assert_eq!(
        because(&[
            (1, "ron-ledger", Down),
            (3, "svc-wallet", Degraded),
            (4, "ron-ledger", Healthy)
        ])[1],
        ledger,
        "it was down at the time"
    );
    // What is down explains more than what is degraded, also when it is seen later.
    assert_eq!(
        because(&[
            (1, "svc-passport", Degraded),
            (2, "svc-wallet", Degraded),
            (3, "ron-ledger", Down)
        ])[1],
        ledger
    );
    // Not what came right before, comes much later, is not called, or is better off.
    let none: [&[Report<'_>]; 5] = [
        &[
            (1, "ron-ledger", Down),
            (2, "ron-ledger", Healthy),
            (3, "svc-wallet", Degraded),
        ],
        &[(3, "svc-wallet", Degraded), (60, "ron-ledger", Down)],
        &[(1, "svc-rewarder", Down), (3, "svc-wallet", Degraded)],
        &[(1, "ron-ledger", Degraded), (3, "svc-wallet", Down)],
        &[(1, "ron-ledger", Down), (3, "svc-wallet", Healthy)],
    ];
    for said in none {
        let causes = because(said);
        assert!(causes.iter().all(Option::is_none), "{said:?}: {causes:?}");
    }
}

#[test]
fn an_outage_over_several_services_is_one_incident_with_its_cause_first() {
    let all = lines(&[
        (10, "svc-wallet", Degraded),
        (14, "ron-ledger", Down),
        (15, "svc-rewarder", Degraded),
        (40, "ron-ledger", Degraded),
        (44, "svc-wallet", Healthy),
        (45, "svc-rewarder", Healthy),
        (90, "ron-ledger", Healthy),
    ]);
    let nodes = names(&["ron-ledger", "svc-wallet", "svc-rewarder"]);
    assert_eq!(incidents(&all), [(1, 10, Some(90), nodes, 7)]);
    let story = relate(&all);
    let [ledger, wallet, _] = &story.incidents[&1].nodes[..] else {
        panic!("{:?}", story.incidents);
    };
    assert_eq!(ledger.worst, Down);
    assert_eq!(ledger.detail.as_deref(), Some("ron-ledger is down"));
    assert_eq!(ledger.because, None);
    assert_eq!(wallet.because.as_deref(), Some("the-ron-ledger"));
    assert_eq!(wallet.until, Some(Timestamp(44_000)));
    assert!(
        story
            .relations
            .iter()
            .all(|of_line| of_line.incident == Some(1))
    );
}

#[test]
fn what_is_not_related_is_another_incident_and_one_that_lasts_has_no_end() {
    let all = lines(&[
        (10, "ron-kms", Down),
        (11, "svc-wallet", Down),
        (30, "ron-kms", Healthy),
    ]);
    assert_eq!(
        incidents(&all),
        [
            (1, 10, Some(30), names(&["ron-kms"]), 2),
            (2, 11, None, names(&["svc-wallet"]), 1)
        ]
    );
}

#[test]
fn incidents_that_turn_out_to_have_one_cause_become_one() {
    // Wallet and rewarder are degraded before the ledger is seen to be down.
    let all = lines(&[
        (10, "svc-wallet", Degraded),
        (12, "svc-rewarder", Degraded),
        (14, "ron-ledger", Down),
        (20, "svc-wallet", Healthy),
    ]);
    let nodes = names(&["ron-ledger", "svc-wallet", "svc-rewarder"]);
    assert_eq!(incidents(&all), [(1, 10, None, nodes, 4)]);
}

#[test]
fn a_node_that_flaps_is_in_one_incident_and_one_that_fails_again_later_in_another() {
    let all = lines(&[
        (10, "ron-kms", Down),
        (20, "ron-kms", Healthy),
        (50, "ron-kms", Down),
        (60, "ron-kms", Healthy),
        (500, "ron-kms", Down),
        (501, "ron-kms", Unknown),
    ]);
    let kms = || names(&["ron-kms"]);
    assert_eq!(
        incidents(&all),
        [(1, 10, Some(60), kms(), 4), (5, 500, None, kms(), 2)],
        "of a node that is unknown it is not known that it is well"
    );
}

#[test]
fn events_of_a_node_belong_to_its_incident_and_a_removed_node_ends_it() {
    let event = |at: u64, node: &str, severity| {
        let event = ServiceEvent {
            seq: at,
            boot: "b".to_owned(),
            at: Timestamp(at * 1_000),
            kind: EventKind::NotReady,
            severity,
            reason: None,
            number: None,
        };
        Line::of_event(node, None, event)
    };
    let state = |at: u64, state| Line::of_state("a", None, Timestamp(at * 1_000), state, "");
    let all = number(vec![
        event(1, "a", Severity::Warn),
        event(8, "a", Severity::Info),
        event(9, "a", Severity::Warn),
        event(9, "b", Severity::Warn),
        state(20, Down),
        event(30, "a", Severity::Info),
        event(31, "b", Severity::Error),
        Line::of_removal("a", Timestamp(40_000)),
        event(41, "a", Severity::Error),
    ]);
    let story = relate(&all);
    let part: Vec<bool> = story
        .relations
        .iter()
        .map(|t| t.incident == Some(3))
        .collect();
    assert_eq!(
        part,
        [false, false, true, false, true, true, false, true, false]
    );
    assert_eq!(
        incidents(&all),
        [(3, 20, Some(40), vec!["a".to_owned()], 4)]
    );
}
