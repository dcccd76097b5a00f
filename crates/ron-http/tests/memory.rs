//! The memory budget of requests. It is one per process, so this test has a process of its own.
#![allow(clippy::disallowed_methods)] // tests measure real time and start their own clients

mod support;

use std::sync::mpsc;
use std::time::Duration;

use ron_http::{Limits, Method, Need, Request, Response, Route};
use support::{Client, Served, router, serve};

const KIB: usize = 1 << 10;

fn rejected(served: &Served) -> i64 {
    served.metric("t_http_rejects_total{reason=\"body_memory\"}")
}

fn refused(client: &mut Client) {
    let answer = client.answer();
    assert_eq!((answer.status, answer.code().as_str()), (429, "busy"));
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(client.is_closed(), "the rest of the body is not read");
}

/// Sends the first `sent` bytes of a body of `whole` bytes.
fn begin(served: &Served, whole: usize, sent: usize) -> Client {
    let mut client = served.client();
    let head = "POST /keep HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer good\r\n";
    client
        .send(format!("{head}Content-Length: {whole}\r\n\r\n"))
        .send("x".repeat(sent));
    client
}

#[test]
fn bodies_heads_and_requests_in_hand_share_one_budget() {
    let (to, kept) = mpsc::sync_channel::<(Request, _)>(64);
    let keep = Route::new(
        Method::POST,
        "/keep",
        Need::Identity,
        move |request, responder| {
            to.send((request, responder)).expect("the test listens");
        },
    );
    let limits = Limits {
        body_memory: 256 * KIB, // of which anonymous callers have a quarter
        body_timeout: Duration::from_secs(60),
        request_deadline: Duration::from_secs(60),
        ..Limits::default()
    };
    let start = |limits: &Limits| {
        let now = Route::get("/now", Need::Public, |_| Ok(Response::text(200, "now")));
        let routes = router().add(keep.clone().body_bytes(&[])).add(now);
        serve(routes, limits.clone(), 2)
    };
    // Two fronts of one process, as two services of `ron up`.
    let (first, second) = (start(&limits), start(&limits));

    // Announced bytes take nothing from the budget, received bytes do.
    let announced: Vec<Client> = (0..50).map(|_| begin(&first, 900 * KIB, 1)).collect();
    let mut one = begin(&first, 100 * KIB, 99 * KIB);
    let mut two = begin(&second, 100 * KIB, 100 * KIB);
    let request = kept.recv().expect("a whole body");
    first.until("both are kept", |s| {
        let mut probe = begin(s, 200 * KIB, 190 * KIB);
        probe
            .try_answer(false)
            .is_some_and(|answer| answer.status == 429)
    });
    assert!(rejected(&first) >= 1);
    refused(&mut begin(&second, 200 * KIB, 190 * KIB));

    // An unfinished head counts as well; small requests are always served.
    let mut heads = Vec::new();
    while rejected(&second) < 2 {
        assert!(heads.len() < 50, "heads are never refused");
        let mut client = second.client();
        client.send(format!(
            "GET /now HTTP/1.1\r\nHost: t\r\nX: {}",
            "y".repeat(30 * KIB)
        ));
        heads.push(client);
        second.until("seen", |s| {
            s.front.connections() >= heads.len() || rejected(s) > 1
        });
    }
    for served in [&first, &second] {
        assert_eq!(served.client().get("/now").text(), "now");
        let mut small = begin(served, 4 * KIB, 4 * KIB);
        let (_, responder) = kept.recv().expect("a small one");
        responder.send(Response::text(200, "small"));
        assert_eq!(small.answer().text(), "small");
    }

    // All of it is freed: at the end of a connection, and when a handler drops its request.
    drop((heads, announced));
    one.send("x".repeat(KIB));
    for (request, responder) in [request, kept.recv().expect("the other one")] {
        assert_eq!(request.body.len(), 100 * KIB);
        drop(request);
        responder.send(Response::text(200, "done"));
    }
    for client in [&mut one, &mut two] {
        assert_eq!(client.answer().text(), "done");
    }
    second.until("there is room for one that takes nearly all", |s| {
        let _client = begin(s, 250 * KIB, 250 * KIB);
        kept.recv_timeout(Duration::from_millis(200)).is_ok()
    });
}
