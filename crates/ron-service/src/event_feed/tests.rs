//! The feed without its thread, and the thread under a real supervisor.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{Responder, Response};
use ron_kernel::{
    KernelMetrics, Registry, ReplyWaiter, SeededRandom, SharedClock, Supervisor, SystemClock,
    Topology,
};
use ron_proto::events::{EventPage, Severity};

use super::*;
use crate::events::EventKind;
use crate::ready::ReadyBoard;

static TOPOLOGY: Topology = crate::topology! {
    service: "svc-sample", prefix: "evt", threads: [], queues: [], locks: [],
};

struct Rig {
    events: Events,
    board: ReadyBoard,
    sup: Supervisor,
    registry: Registry,
    source: FeedSource,
}

fn rig() -> Rig {
    let registry = Registry::new("svc_sample");
    let km = KernelMetrics::new(&registry);
    let clock: SharedClock = Arc::new(SystemClock);
    let sup = Supervisor::new(&TOPOLOGY, km.clone(), clock.clone());
    let events = Events::new(&km, clock);
    let room = ron_files::DiskRoom::unlimited();
    let board = ReadyBoard::starting(&registry, &TOPOLOGY, room, events.clone());
    let source = FeedSource {
        events: events.clone(),
        ready: board.clone(),
        sup: sup.clone(),
        service: "svc-sample",
        instance: "sample-1".into(),
        random: Arc::new(SeededRandom::new(7)),
    };
    Rig {
        events,
        board,
        sup,
        registry,
        source,
    }
}

fn poll(after: u64, boot: Option<&str>, wait: Duration) -> (Poll, ReplyWaiter<Response>) {
    let until = Deadline::within(wait);
    let (responder, answer) = Responder::detached(Deadline::within(Duration::from_secs(60)));
    let boot = boot.map(str::to_owned);
    let poll = Poll {
        after,
        boot,
        until,
        responder,
    };
    (poll, answer)
}

fn page(answer: &ReplyWaiter<Response>) -> Option<EventPage> {
    let response = answer.wait_again(Deadline::within(Duration::ZERO)).ok()?;
    Some(serde_json::from_slice(response.body.as_bytes()).expect("a page"))
}

const HOUR: Duration = Duration::from_secs(3600);

/// A turn of the feed's thread with a request.
fn turn(feed: &mut Feed, ask: Poll) {
    feed.hear(FeedMessage::Poll(ask));
    feed.tick();
}

/// A request that does not wait.
fn read(feed: &mut Feed, after: u64, boot: Option<&str>) -> EventPage {
    let (ask, answer) = poll(after, boot, Duration::ZERO);
    turn(feed, ask);
    page(&answer).expect("answered at once")
}

fn kinds(page: &EventPage) -> Vec<(&'static str, Option<&str>)> {
    let events = page.events.iter();
    events
        .map(|event| (event.kind.as_str(), event.reason.as_deref()))
        .collect()
}

#[test]
fn a_reader_gets_each_event_once_and_waits_for_the_next() {
    let rig = rig();
    let mut feed = rig.source.feed(false);
    rig.events.publish(
        Event::warn(EventKind::Degraded)
            .reason("kms")
            .why("no answer of key x"),
    );
    rig.events
        .publish(Event::info(EventKind::Reloaded).number(2));
    feed.tick();
    let first = read(&mut feed, 0, None);
    assert!(!first.reset);
    assert_eq!(first.next, 2);
    assert_eq!(
        kinds(&first),
        [("degraded", Some("kms")), ("reloaded", None)]
    );
    assert_eq!(first.events[0].severity, Severity::Warn);
    assert_eq!(first.events[1].number, Some(2));
    let served = serde_json::to_string(&first).unwrap();
    assert!(
        !served.contains("key x"),
        "what has names is not served: {served}"
    );
    let (ask, answer) = poll(2, Some(&first.boot), HOUR);
    turn(&mut feed, ask);
    assert!(page(&answer).is_none(), "there is nothing new");
    rig.events
        .publish(Event::info(EventKind::DegradedCleared).reason("kms"));
    feed.tick();
    let next = page(&answer).expect("the poll is answered");
    assert_eq!(kinds(&next), [("degraded_cleared", Some("kms"))]);
    assert_eq!((next.next, next.reset), (3, false));
}

#[test]
fn another_run_a_gap_and_a_number_from_the_future_answer_reset_at_once() {
    let rig = rig();
    let mut feed = rig.source.feed(false);
    let boot = read(&mut feed, 0, None).boot;
    rig.events.publish(Event::info(EventKind::Draining));
    feed.tick();
    for (after, run, reset) in [
        (0, None, false),
        (0, Some(&*boot), false),
        (1, Some(&*boot), false),
        (1, None, false),
        (0, Some("another"), true),
        (1, Some("another"), true),
        (2, Some(&*boot), true),
        (u64::MAX, None, true),
    ] {
        let (ask, answer) = poll(after, run, if reset { HOUR } else { Duration::ZERO });
        turn(&mut feed, ask);
        let page = page(&answer).expect("at once");
        assert_eq!(page.reset, reset, "after {after} of {run:?}");
        let seen = if reset { 0 } else { after };
        assert_eq!(page.events.len() as u64, 1 - seen, "after {after}");
    }
    for _ in 0..1024 {
        rig.events.publish(Event::info(EventKind::Draining));
        feed.tick();
    }
    let gap = read(&mut feed, 0, Some(&boot));
    assert!(gap.reset, "event 1 is not kept");
    assert_eq!(
        (gap.events.len(), gap.events[0].seq, gap.next),
        (1024, 2, 1025)
    );
    assert!(
        !read(&mut feed, 0, None).reset,
        "a new reader loses nothing"
    );
    assert!(!read(&mut feed, 1, Some(&boot)).reset);
}

#[test]
fn a_feed_that_is_slow_counts_what_it_lost_and_shows_the_gap() {
    let rig = rig();
    let mut feed = rig.source.feed(false);
    rig.events.publish(Event::info(EventKind::Started));
    feed.tick();
    let boot = read(&mut feed, 0, None).boot;
    for _ in 0..1030 {
        rig.events.publish(Event::info(EventKind::Draining));
    }
    feed.tick();
    let page = read(&mut feed, 1, Some(&boot));
    assert!(page.reset);
    assert_eq!((page.events[0].seq, page.next), (8, 1031));
    let lagged = "svc_sample_bus_lagged_total{bus=\"events\"} 6";
    assert!(rig.registry.render().contains(lagged));
}

#[test]
fn a_request_is_answered_with_what_was_published_before_it() {
    let rig = rig();
    let mut feed = rig.source.feed(false);
    rig.events.publish(Event::info(EventKind::Reloaded));
    // The thread may take the request first.
    assert_eq!(kinds(&read(&mut feed, 0, None)), [("reloaded", None)]);
}

#[test]
fn ready_follows_started_also_when_the_feed_is_between_them() {
    let rig = rig();
    let mut feed = rig.source.feed(false);
    rig.board.started();
    assert_eq!(read(&mut feed, 0, None).events, []);
    rig.events.publish(Event::info(EventKind::Started));
    let page = read(&mut feed, 0, None);
    assert_eq!(kinds(&page), [("started", None), ("ready", None)]);
    // After a crash of its thread.
    let mut feed = rig.source.feed(true);
    assert_eq!(kinds(&read(&mut feed, 0, None)), [("ready", None)]);
}

#[test]
fn readiness_is_published_with_its_causes_and_flaps_are_not_missed() {
    let rig = rig();
    let mut feed = rig.source.feed(false);
    rig.board.declare(&["kms"]);
    rig.board.missing("kms", "not asked yet");
    rig.board.present("kms");
    rig.board.started();
    rig.events.publish(Event::info(EventKind::Started));
    feed.tick();
    let page = read(&mut feed, 0, None);
    assert_eq!(
        kinds(&page),
        [
            ("not_ready", Some("kms")),
            ("not_ready_cleared", Some("kms")),
            ("started", None),
            ("ready", None)
        ]
    );
    assert_eq!(
        page.events[0].severity,
        Severity::Info,
        "a start is no alarm"
    );
    rig.board.missing("kms", "gone");
    rig.board.missing("kms", "still gone");
    rig.board.present("kms");
    feed.tick();
    let flap = read(&mut feed, page.next, Some(&page.boot));
    assert_eq!(
        kinds(&flap),
        [
            ("not_ready", Some("kms")),
            ("not_ready_cleared", Some("kms")),
            ("ready", None)
        ]
    );
    assert_eq!(flap.events[0].severity, Severity::Warn);
    feed.tick();
    assert_eq!(read(&mut feed, flap.next, None).events, []);
}

#[test]
fn a_drain_answers_the_polls_that_wait() {
    let rig = rig();
    let threads = const { crate::topology::ChassisThreads::of(&TOPOLOGY) };
    let polls = rig.source.spawn(threads.ops_events, rig.sup.metrics());
    rig.board.started();
    let (ask, answer) = poll(0, None, HOUR);
    rig.events.publish(Event::info(EventKind::Started));
    polls
        .try_send(FeedMessage::Poll(ask))
        .map_err(drop)
        .unwrap();
    let first = answer
        .wait(Deadline::within(Duration::from_secs(10)))
        .unwrap();
    let first: EventPage = serde_json::from_slice(first.body.as_bytes()).unwrap();
    // `ready` follows `started`: the last event there is.
    let (ask, answer) = poll(2, Some(&first.boot), HOUR);
    polls
        .try_send(FeedMessage::Poll(ask))
        .map_err(drop)
        .unwrap();
    let report = rig.sup.drain(Duration::from_secs(10));
    assert_eq!(report.stragglers, Vec::<String>::new());
    assert!(answer.wait(Deadline::within(Duration::ZERO)).is_ok());
}
