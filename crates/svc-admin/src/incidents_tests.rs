//! Causes and incidents of small fleets.

#[path = "incidents_model.rs"]
mod model;

use super::*;
use NodeState::{Degraded, Down, Healthy, Unknown};
use proptest::prelude::*;
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
    let story = relate(&lines(said));
    let causes = (0..said.len()).map(|at| story.because(at).map(str::to_owned));
    causes.collect()
}

/// The incidents by number.
fn by_number(story: &Story) -> BTreeMap<u64, Incident> {
    let each = (0..story.part_of.len()).filter_map(|at| story.incident(at));
    each.map(|incident| (incident.id, incident.clone()))
        .collect()
}

fn numbers(story: &Story) -> Vec<Option<u64>> {
    let each = (0..story.part_of.len()).map(|at| story.incident(at));
    each.map(|incident| Some(incident?.id)).collect()
}

/// Number, seconds from and to, nodes, lines.
type Summary = (u64, u64, Option<u64>, Vec<String>, u64);

fn incidents(lines: &VecDeque<Arc<Line>>) -> Vec<Summary> {
    let seconds = |at: Timestamp| at.unix_ms() / 1_000;
    let seen = by_number(&relate(lines)).into_values().map(|incident| {
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
    let found = by_number(&story);
    let [ledger, wallet, _] = &found[&1].nodes[..] else {
        panic!("{found:?}");
    };
    assert_eq!(ledger.worst, Down);
    assert_eq!(ledger.detail.as_deref(), Some("ron-ledger is down"));
    assert_eq!(ledger.because, None);
    assert_eq!(wallet.because.as_deref(), Some("the-ron-ledger"));
    assert_eq!(wallet.until, Some(Timestamp(44_000)));
    assert_eq!(numbers(&story), [Some(1); 7]);
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
    let part = numbers(&relate(&all));
    let part: Vec<bool> = part.iter().map(|number| *number == Some(3)).collect();
    assert_eq!(
        part,
        [false, false, true, false, true, true, false, true, false]
    );
    assert_eq!(
        incidents(&all),
        [(3, 20, Some(40), vec!["a".to_owned()], 4)]
    );
}

/// A line of one of five nodes, some milliseconds after the one before, or before it: clocks of nodes differ.
fn any_line() -> impl Strategy<Value = (i64, Line)> {
    let node = prop::sample::select(vec![
        ("w", "svc-wallet"),
        ("r", "svc-rewarder"),
        ("l", "ron-ledger"),
        ("k", "ron-kms"),
        ("p", "svc-passport"),
    ]);
    let after = prop_oneof![4 => 0..9_000_i64, 2 => 9_000..20_000_i64, 1 => 50_000..90_000_i64, 1 => -3_000..0_i64];
    let state = prop::sample::select(vec![
        Some(Down),
        Some(Degraded),
        Some(Healthy),
        Some(Unknown),
        None,
    ]);
    let severity = prop::sample::select(vec![Severity::Info, Severity::Warn, Severity::Error]);
    let line = (node, state, severity, any::<bool>(), 0..3_u8);
    (after, line).prop_map(
        |(after, ((node, service), state, severity, is_event, detail))| {
            let at = Timestamp(0);
            let service = Some(service.to_owned());
            let line = match state {
                _ if is_event => {
                    let event = ServiceEvent {
                        seq: 1,
                        boot: "b".to_owned(),
                        at,
                        kind: EventKind::NotReady,
                        severity,
                        reason: None,
                        number: None,
                    };
                    Line::of_event(node, service, event)
                }
                Some(state) => {
                    Line::of_state(node, service, at, state, &format!("reason {detail}"))
                }
                None => Line::of_removal(node, at),
            };
            (after, line)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_story_that_goes_on_is_that_of_all_lines(
        said in prop::collection::vec(any_line(), 1..80),
        batches in prop::collection::vec(1..9_usize, 80),
    ) {
        let mut now = 1_000_000_i64;
        let said = said.into_iter().map(|(after, mut line)| {
            now += after;
            line.entry.at = Timestamp(now.cast_unsigned());
            line
        });
        let all = number(said.collect());
        let (mut story, mut lines) = (Story::default(), VecDeque::new());
        for size in batches {
            let from = lines.len();
            lines.extend(all.iter().skip(from).take(size).cloned());
            // As the timeline does it: the story before is still read.
            let before = story.clone();
            story.extend(&lines);
            let told = (0..lines.len()).map(|at| (story.because(at).map(str::to_owned), story.incident(at).cloned()));
            prop_assert_eq!(told.collect::<model::Relations>(), model::relate(&lines));
            drop(before);
        }
    }
}
