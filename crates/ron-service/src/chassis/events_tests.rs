//! Events of a running service over its health port.

#![allow(clippy::disallowed_methods)] // readers are threads outside of the service

use std::thread;

use ron_proto::events::{EventKind, EventPage, ServiceEvent};

use super::tests::{client, config, get, started};
use super::*;
use ron_http::{Call, Reply};
use ron_kernel::Deadline;

const PATIENCE: Duration = Duration::from_secs(40);

fn ask(url: &str) -> Reply {
    let call = Call::get(url, Deadline::within(PATIENCE));
    client().call(call).unwrap()
}

fn page(running: &Running) -> EventPage {
    let url = format!("{}/api/v1/events", running.health_url());
    get(&client(), &url).json().unwrap()
}

/// The events once the last of them is `ready`.
fn ready(running: &Running) -> EventPage {
    loop {
        let page = page(running);
        if page.events.last().map(|event| event.kind) == Some(EventKind::Ready) {
            return page;
        }
        ask(&next(running, &page, 30));
    }
}

/// Where the event after a page is waited for.
fn next(running: &Running, page: &EventPage, wait: u64) -> String {
    let (after, boot) = (page.next, &page.boot);
    let health = running.health_url();
    format!("{health}/api/v1/events?after={after}&boot={boot}&wait={wait}")
}

/// Eight readers that wait for the event after a page, and the answer to the ninth, which is refused.
fn eight_wait(running: &Running, seen: &EventPage) -> (Vec<thread::JoinHandle<Reply>>, Reply) {
    let reader = |_| {
        let url = next(running, seen, 30);
        // The ninth may be earlier than one of the eight, and all may wait longer than one request does.
        thread::spawn(move || {
            loop {
                let reply = ask(&url);
                let empty = |reply: &Reply| reply.json::<EventPage>().unwrap().events.is_empty();
                if reply.status != 429 && !(reply.status == 200 && empty(&reply)) {
                    return reply;
                }
            }
        })
    };
    let readers = (0..8).map(reader).collect();
    // Until all eight wait, another one waits for a second at most.
    loop {
        let reply = ask(&next(running, seen, 1));
        if reply.status != 200 {
            return (readers, reply);
        }
    }
}

#[test]
fn a_start_and_a_reload_are_events_and_eight_readers_wait_for_them() {
    let running = started(&[]);
    let seen = ready(&running);
    let kinds: Vec<EventKind> = seen.events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Started, EventKind::Ready]);
    assert_eq!((&*seen.service, seen.reset), ("svc-sample", false));
    assert!(seen.events.iter().all(|event| event.boot == seen.boot));

    let (readers, refused) = eight_wait(&running, &seen);
    assert_eq!(refused.status, 429);
    assert!(refused.header("retry-after").is_some());
    // They hold nothing that other requests need.
    let health = running.health_url();
    for path in ["/readyz", "/metrics", "/api/v1/status", "/api/v1/events"] {
        assert_eq!(get(&client(), &format!("{health}{path}")).status, 200);
    }
    running.reload(config(&[("batch", "9")])).unwrap();
    for reader in readers {
        let page: EventPage = reader.join().unwrap().json().unwrap();
        assert!(!page.reset);
        let [event] = &*page.events else {
            panic!("one event: {page:?}")
        };
        assert_eq!(event.kind, EventKind::Reloaded);
        assert_eq!(event.reason.as_deref(), Some("changed"));
        assert_eq!((event.number, event.seq), (Some(1), seen.next + 1));
    }
    let error = running.reload(config(&[("max_conns", "5")])).unwrap_err();
    let refused = ask(&next(&running, &page(&running), 0)).json::<EventPage>();
    assert!(refused.unwrap().events.is_empty(), "{error}");
    let last = page(&running).events.pop().unwrap();
    assert_eq!(last.kind, EventKind::ReloadRefused);
    assert_eq!(last.reason.as_deref(), Some("needs_restart"));
}

#[test]
fn a_drain_ends_the_polls_with_its_event() {
    let mut running = started(&[]);
    let seen = ready(&running);
    // All of them wait when the drain begins.
    let (readers, _) = eight_wait(&running, &seen);
    let report = running.drain(Duration::from_secs(20));
    assert_eq!(report.stragglers, Vec::<String>::new());
    assert!(report.took < Duration::from_secs(20));
    for reader in readers {
        let reply = reader.join().unwrap();
        // The front ends waiting requests itself when it comes before the feed.
        if reply.status == 200 {
            let page: EventPage = reply.json().unwrap();
            assert_eq!(page.events[0].kind, EventKind::Draining);
        } else {
            assert_eq!(reply.status, 503);
        }
    }
}

#[test]
fn a_question_that_is_not_understood_is_refused() {
    let running = started(&[]);
    let health = running.health_url();
    for query in ["after=-1", "after=x", "wait=31", "since=1"] {
        let url = format!("{health}/api/v1/events?{query}");
        assert_eq!(get(&client(), &url).status, 400, "{query}");
    }
}

#[test]
fn a_thread_that_crashes_is_an_event() {
    let running = started(&[]);
    let seen = ready(&running);
    let crashes = AtomicBool::new(true);
    let spec = crate::topology_thread(running.shared.topology, "smp-date");
    running.supervisor().spawn(spec, move |ctx| {
        assert!(
            !crashes.swap(false, std::sync::atomic::Ordering::SeqCst),
            "once"
        );
        ctx.wait_for_shutdown();
    });
    // Readiness may notice first that it is missing.
    let mut page = seen;
    loop {
        page = ask(&next(&running, &page, 30)).json().unwrap();
        let found = |event: &&ServiceEvent| event.kind == EventKind::ThreadRestarted;
        if let Some(event) = page.events.iter().find(found) {
            assert_eq!(event.reason.as_deref(), Some("smp-date"));
            return;
        }
    }
}
