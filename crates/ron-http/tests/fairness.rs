//! No client exhausts a front with requests that are cheap for the client: closed and open long
//! polls, idle connections, failed authentications, large bodies of anonymous callers.
#![allow(clippy::disallowed_methods)] // tests measure real time and start their own clients

mod support;

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use ron_http::{Limits, Method, Need, Proxies, Responder, Response, Route};
use support::{Client, Served, router, serve};

/// A peer other than the ordinary clients, which come from 127.0.0.1.
const OTHER: [u8; 4] = [127, 0, 0, 2];

const POLL: &str = "GET /poll?wait=20 HTTP/1.1\r\nHost: t\r\n\r\n";

/// A long poll that passes its responder to the test, and a route that answers at once.
fn polled(limits: Limits) -> (Served, mpsc::Receiver<Responder>) {
    let (to, jobs) = mpsc::sync_channel(256);
    let poll = Route::new(Method::GET, "/poll", Need::Public, move |_, responder| {
        to.send(responder).expect("the test listens");
    });
    let routes = router()
        .add(poll.long_poll())
        .add(Route::get("/now", Need::Public, |_| {
            Ok(Response::text(200, "now"))
        }));
    (serve(routes, limits, 2), jobs)
}

fn rejects(served: &Served, reason: &str) -> i64 {
    served.metric(&format!("t_http_rejects_total{{reason=\"{reason}\"}}"))
}

#[test]
fn a_long_poll_ends_when_its_client_goes_away() {
    let (served, jobs) = polled(Limits::default());
    let told = Arc::new(AtomicUsize::new(0));
    let mut kept = Vec::new();
    for turn in 0..20 {
        let mut client = served.client();
        client.send(POLL);
        if turn % 2 == 0 {
            // The client may be gone before the handler registers its hook.
            client.stream.shutdown(Shutdown::Write).expect("connected");
        }
        let responder = jobs.recv().expect("admitted");
        let told = told.clone();
        responder.on_gone(move || {
            told.fetch_add(1, Ordering::SeqCst);
        });
        kept.push(responder);
        if turn % 2 == 1 {
            drop(client);
        } else {
            assert!(client.is_closed(), "turn {turn}");
        }
    }
    served.until("closed", |s| s.front.connections() == 0);
    served.until("told", |_| told.load(Ordering::SeqCst) == 20);
    assert!(kept.iter().all(Responder::is_gone));
    assert_eq!(rejects(&served, "poll_abandoned"), 20);
    assert_eq!(served.front.in_flight(), 20, "their keeper still has them");
    drop(kept);
    assert_eq!(served.front.in_flight(), 0);

    // A poll whose client stays is answered, and a hook that is registered too late is called at
    // once.
    let mut client = served.client();
    client.send(POLL);
    let responder = jobs.recv().expect("admitted");
    responder.on_gone(|| panic!("the client is there"));
    assert!(!responder.is_gone());
    responder.send(Response::text(200, "event"));
    assert_eq!(client.answer().text(), "event");
    client.send(POLL);
    let responder = jobs.recv().expect("admitted");
    drop(client);
    served.until("gone", |_| responder.is_gone());
    let told = Arc::new(AtomicUsize::new(0));
    let seen = told.clone();
    responder.on_gone(move || seen.store(1, Ordering::SeqCst));
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

#[test]
fn long_polls_have_places_of_their_own_and_each_peer_a_share() {
    let limits = Limits {
        max_in_flight: 1,
        long_polls: 4,
        long_polls_per_peer: 3,
        ..Limits::default()
    };
    let (served, jobs) = polled(limits);
    let mut waiting = Vec::new();
    let mut wait = |client: Client| {
        waiting.push(client);
        waiting.last_mut().expect("just pushed").send(POLL);
        jobs.recv().expect("admitted")
    };
    let mut held: Vec<Responder> = (0..3).map(|_| wait(served.client())).collect();
    let refused = |mut client: Client| {
        let answer = client.send(POLL).answer();
        assert_eq!((answer.status, answer.code().as_str()), (429, "busy"));
        assert!(answer.header("retry-after").is_some());
    };
    refused(served.client());
    held.push(wait(served.client_from(OTHER)));
    refused(served.client_from(OTHER));
    assert_eq!(rejects(&served, "long_polls"), 2);
    assert_eq!(served.client().get("/now").text(), "now");
    held.swap_remove(0).send(Response::text(200, "event"));
    held.push(wait(served.client_from(OTHER)));
    // Without a wait it is an ordinary request.
    let mut client = served.client();
    client.send("GET /poll HTTP/1.1\r\nHost: t\r\n\r\n");
    let now = jobs.recv().expect("admitted");
    now.send(Response::text(200, "nothing yet"));
    assert_eq!(client.answer().text(), "nothing yet");
    for responder in held {
        responder.send(Response::text(200, "event"));
    }
    for client in &mut waiting {
        assert_eq!(client.answer().text(), "event");
    }
}

#[test]
fn idle_connections_of_one_peer_block_no_other() {
    let limits = Limits {
        max_conns: 16,
        ..Limits::default()
    };
    let (served, _jobs) = polled(limits);
    // Many more than there is room for, and all are accepted: the oldest are closed.
    let mut idle: Vec<Client> = Vec::new();
    for turn in 0..40 {
        let mut client = served.client_from(OTHER);
        assert_eq!(client.get("/now").status, 200, "turn {turn}");
        idle.push(client);
        served.until("half at most", |s| s.front.connections() <= 8);
    }
    assert_eq!(rejects(&served, "idle_closed"), 32);
    // Others have the other half; beyond it, the peer with the most connections loses idle ones.
    let mut others: Vec<Client> = (0..8).map(|_| served.client()).collect();
    for client in &mut others {
        assert_eq!(client.get("/now").status, 200);
    }
    let mut third = served.client_from([127, 0, 0, 3]);
    assert_eq!(third.get("/now").status, 200);
    assert!(served.front.connections() <= 16);
    assert_eq!(rejects(&served, "max_conns"), 0);
    assert_eq!(rejects(&served, "peer_conns"), 0);
}

#[test]
fn a_peer_with_most_connections_gets_no_more_when_none_is_idle() {
    let limits = Limits {
        max_conns: 16,
        ..Limits::default()
    };
    let (served, jobs) = polled(limits);
    let busy = |source: [u8; 4]| {
        let mut client = served.client_from(source);
        client.send(POLL);
        (client, jobs.recv().expect("admitted"))
    };
    let mut kept: Vec<(Client, Responder)> = (0..8).map(|_| busy(OTHER)).collect();
    for _ in 0..100 {
        let mut extra = served.client_from(OTHER);
        if let Some(answer) = extra.try_answer(false) {
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (503, "unavailable")
            );
            assert_eq!(answer.header("retry-after"), Some("1"));
            assert!(extra.is_closed());
        } // otherwise there were so many refusals that it was closed at once
    }
    assert_eq!(rejects(&served, "peer_conns"), 100);
    for n in 3..11 {
        kept.push(busy([127, 0, 0, n])); // new peers are accepted as long as there is room
    }
    drop(kept.remove(0));
    served.until("room again", |s| s.front.connections() < 16);
    kept.push(busy([127, 0, 0, 11]));
}

#[test]
fn a_proxy_counts_for_no_peer_and_its_clients_count_each() {
    let limits = Limits {
        max_conns: 16,
        long_polls_per_peer: 1,
        trusted_proxies: Proxies::at(vec!["127.0.0.2".parse().expect("a block")]),
        ..Limits::default()
    };
    let (served, jobs) = polled(limits);
    let mut idle: Vec<Client> = (0..15).map(|_| served.client_from(OTHER)).collect();
    for client in &mut idle {
        assert_eq!(client.get("/now").status, 200);
    }
    let mut kept = Vec::new();
    let mut poll = |of: &str, client: &mut Client| {
        client.send(format!(
            "GET /poll?wait=20 HTTP/1.1\r\nHost: t\r\nX-Forwarded-For: {of}\r\n\r\n"
        ));
        if of == "198.51.100.2" && kept.len() > 1 {
            return client.answer().status;
        }
        kept.push(jobs.recv().expect("admitted"));
        0
    };
    poll("198.51.100.1", &mut idle[0]);
    poll("198.51.100.2", &mut idle[1]);
    assert_eq!(poll("198.51.100.2", &mut idle[2]), 429);
}

#[test]
fn a_peer_that_only_fails_to_authenticate_is_refused_unread() {
    let limits = Limits {
        auth_failures_per_second: 1,
        ..Limits::default()
    };
    let secret = Route::get("/secret", Need::Identity, |_| {
        Ok(Response::text(200, "secret"))
    });
    let open = Route::get("/open", Need::Public, |_| Ok(Response::text(200, "open")));
    let served = serve(router().add(secret).add(open), limits, 2);
    let mut bad = served.client_from(OTHER);
    let mut statuses = Vec::new();
    while statuses.last() != Some(&429) {
        assert!(statuses.len() < 1000, "it is never refused");
        statuses.push(bad.get("/secret").status);
    }
    assert!(statuses.len() >= 3 && statuses.starts_with(&[401, 401]));
    assert!(rejects(&served, "auth_failures") > 0);
    assert_eq!(bad.get("/open").text(), "open");
    let good = "GET /secret HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer good\r\n\r\n";
    assert_eq!(served.client().send(good).answer().text(), "secret");
}

#[test]
fn anonymous_callers_send_small_bodies_and_identified_ones_large_bodies() {
    let size =
        |request: &ron_http::Request| Ok(Response::text(200, request.body.len().to_string()));
    let routes = router()
        .add(Route::post("/in", Need::Public, size).body_bytes(&[]))
        .add(
            Route::post("/own", Need::Public, size)
                .body_bytes(&[])
                .body_cap(200 << 10),
        )
        .add(Route::post("/known", Need::Identity, size).body_bytes(&[]));
    let served = serve(routes, Limits::default(), 2);
    let check = |path: &str, headers: &str, length: usize, want: u16| {
        let body = "x".repeat(length);
        let answer = served.client().post(path, headers, &body);
        assert_eq!(answer.status, want, "{path} {headers:?} {length}");
        if want == 200 {
            assert_eq!(answer.text(), length.to_string());
        }
    };
    let [good, bad] = ["good", "bad"].map(|token| format!("Authorization: Bearer {token}\r\n"));
    check("/in", "", 64 << 10, 200);
    check("/in", "", (64 << 10) + 1, 413);
    check("/in", &bad, (64 << 10) + 1, 413);
    check("/in", &good, 1 << 20, 200);
    check("/in", &good, (1 << 20) + 1, 413);
    check("/own", "", 200 << 10, 200);
    check("/known", &good, 1 << 20, 200);
    let packed = "Transfer-Encoding: chunked";
    let mut client = served.client();
    client.send(format!(
        "POST /in HTTP/1.1\r\nHost: t\r\n{packed}\r\n\r\n10001\r\n"
    ));
    assert_eq!(client.answer().status, 413);
}
