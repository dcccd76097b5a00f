//! The front over real sockets, as ordinary clients see it.
#![allow(clippy::disallowed_methods)] // tests measure real time and start their own clients

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use ron_http::{Limits, Method, Need, Request, Responder, Response, Route};
use ron_kernel::Deadline;
use ron_proto::Problem;
use support::{Client, Served, router, serve};

#[derive(serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Note {
    text: String,
}

fn echo(request: &Request) -> Result<Response, Problem> {
    let note: Note = request.json()?;
    Ok(Response::json(200, &note))
}

fn routes() -> ron_http::Router {
    router()
        .add(Route::get("/hello", Need::Public, |_| {
            Ok(Response::text(200, "hello"))
        }))
        .add(Route::get("/things/{id}", Need::Public, |request| {
            let after = request.query_one("after")?.unwrap_or("-");
            Ok(Response::text(
                200,
                format!("{} {after}", request.param("id")),
            ))
        }))
        .add(
            Route::post("/echo", Need::Public, echo)
                .body::<Note>()
                .returns::<Note>(200),
        )
        .add(Route::get("/secret", Need::Scope("t:read"), |request| {
            Ok(Response::text(200, request.principal.name.clone()))
        }))
        .add(Route::post("/write", Need::Scope("t:write"), |_| {
            Ok(Response::empty(204))
        }))
        .add(Route::get("/tagged", Need::Public, |_| {
            Ok(Response::text(200, "tagged").etag("v1"))
        }))
        .add(Route::get("/panic", Need::Public, |_| panic!("on purpose")))
        .add(Route::new(
            Method::GET,
            "/dropped",
            Need::Public,
            |_, responder| drop(responder),
        ))
        .add(Route::get("/large", Need::Public, |_| {
            Ok(Response::bytes(200, "x/y", vec![7; 5 << 20]))
        }))
}

fn started() -> Served {
    serve(routes(), Limits::default(), 4)
}

const JSON: &str = "Content-Type: application/json\r\n";

#[test]
fn one_connection_serves_many_requests() {
    let served = started();
    let mut client = served.client();
    for _ in 0..100 {
        let answer = client.get("/hello");
        assert_eq!((answer.status, answer.text()), (200, "hello"));
    }
    assert_eq!(client.get("/things/a%2Fb?after=x%20y").text(), "a/b x y");
    assert_eq!(
        client.post("/echo", JSON, r#"{"text":"hi"}"#).text(),
        r#"{"text":"hi"}"#
    );
    let large = client.get("/large");
    assert_eq!(large.body.len(), 5 << 20);
    assert_eq!(client.get("/hello").text(), "hello");
    let series = "t_http_requests_total{method=\"GET\",route=\"/hello\",status=\"200\"}";
    assert_eq!(served.metric(series), 101);
    assert_eq!(served.metric("t_http_connections"), 1);
}

#[test]
fn request_ids_are_accepted_or_made_and_always_returned() {
    let served = started();
    let mut client = served.client();
    let with = |id: &str| format!("GET /hello HTTP/1.1\r\nHost: t\r\nX-Request-Id: {id}\r\n\r\n");
    assert_eq!(
        client.send(with("my-id.7")).answer().header("x-request-id"),
        Some("my-id.7")
    );
    let made = client.send(with("not/good")).answer();
    let id = made.header("x-request-id").expect("an id").to_owned();
    assert_eq!(id.as_bytes()[14], b'7', "{id}");
    let problem = client.get("/nowhere");
    let body: serde_json::Value = serde_json::from_slice(&problem.body).expect("JSON");
    assert_eq!(body["request_id"].as_str(), problem.header("x-request-id"));
    assert_eq!(body["type"], "urn:ron:error:not_found");
    assert_eq!(
        problem.header("content-type"),
        Some("application/problem+json")
    );
}

#[test]
fn paths_methods_head_and_options() {
    let served = started();
    let mut client = served.client();
    assert_eq!(client.get("/nowhere").status, 404);
    let wrong = client.post("/hello", "", "");
    assert_eq!(
        (wrong.status, wrong.header("allow")),
        (405, Some("GET, HEAD, OPTIONS"))
    );
    let head = client
        .send("HEAD /hello HTTP/1.1\r\nHost: t\r\n\r\n")
        .head_answer();
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("5"))
    );
    let options = client
        .send("OPTIONS /echo HTTP/1.1\r\nHost: t\r\n\r\n")
        .answer();
    assert_eq!(
        (options.status, options.header("allow")),
        (204, Some("OPTIONS, POST"))
    );
    assert_eq!(
        client
            .send("OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n")
            .answer()
            .status,
        204
    );
    let absolute = client
        .send("GET http://t/hello HTTP/1.1\r\nHost: t\r\n\r\n")
        .answer();
    assert_eq!(absolute.status, 200);
    let fresh = "GET /tagged HTTP/1.1\r\nHost: t\r\nIf-None-Match: \"v1\"\r\n\r\n";
    let saved = client.send(fresh).answer();
    assert_eq!((saved.status, saved.body.len()), (304, 0));
    let document: serde_json::Value =
        serde_json::from_slice(&client.get("/openapi.json").body).expect("JSON");
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["paths"]["/echo"]["post"]["responses"]["415"].is_object());
}

#[test]
fn identity_is_checked_before_the_body() {
    let served = started();
    let refused = |headers: &str| {
        // The body is announced and never sent: the answer must not wait for it.
        let mut client = served.client();
        client.send(format!(
            "POST /write HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n{headers}\r\n"
        ));
        client.answer()
    };
    let missing = refused("");
    assert_eq!(
        (missing.status, missing.code().as_str()),
        (401, "unauthorized")
    );
    assert_eq!(missing.header("www-authenticate"), Some("Bearer"));
    assert_eq!(refused("Authorization: Bearer bad\r\n").status, 401);
    assert_eq!(refused("Authorization: Bearer good\r\n").status, 403);
    let mut client = served.client();
    let good = "GET /secret HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer good\r\n\r\n";
    assert_eq!(client.send(good).answer().text(), "tester");
    assert_eq!(
        served.metric("t_http_rejects_total{reason=\"unauthorized\"}"),
        2
    );
    assert_eq!(
        served.metric("t_http_rejects_total{reason=\"forbidden\"}"),
        1
    );
}

#[test]
fn bodies_are_checked() {
    let served = started();
    let check = |headers: &str, body: &str, status: u16| {
        let answer = served.client().post("/echo", headers, body);
        assert_eq!(answer.status, status, "{headers} {body}: {}", answer.text());
    };
    check(JSON, r#"{"text":"a"}"#, 200);
    check(
        "Content-Type: application/json; charset=utf-8\r\n",
        r#"{"text":"a"}"#,
        200,
    );
    check(JSON, r#"{"text":"a","more":1}"#, 400);
    check(JSON, r#"{"text":"a","text":"b"}"#, 400);
    check(JSON, r#"{"text":1}"#, 400);
    check(JSON, "{", 400);
    check(JSON, "", 400);
    check("Content-Type: text/plain\r\n", "{}", 415);
    check("", "{}", 415);
    check(
        "Content-Type: application/json\r\nContent-Encoding: br\r\n",
        "{}",
        415,
    );
    check(
        "Content-Type: application/json\r\nContent-Encoding: gzip\r\n",
        "{}",
        400,
    );
    check(
        "Content-Type: application/json\r\nContent-Encoding: identity\r\n",
        r#"{"text":"a"}"#,
        200,
    );
}

#[test]
fn chunked_bodies_and_expect_continue() {
    let served = started();
    let mut client = served.client();
    let head =
        format!("POST /echo HTTP/1.1\r\nHost: t\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n");
    client.send(format!(
        "{head}4\r\n{{\"te\r\n9;x=y\r\nxt\":\"hi\"}}\r\n0\r\n\r\n"
    ));
    assert_eq!(client.answer().text(), r#"{"text":"hi"}"#);
    let expecting = format!(
        "POST /echo HTTP/1.1\r\nHost: t\r\n{JSON}Content-Length: 12\r\nExpect: 100-continue\r\n\r\n"
    );
    assert_eq!(client.send(expecting).answer().status, 100);
    assert_eq!(client.send(r#"{"text":"x"}"#).answer().status, 200);
    let other = "GET /hello HTTP/1.1\r\nHost: t\r\nExpect: magic\r\n\r\n";
    assert_eq!(client.send(other).answer().status, 417);
}

#[test]
fn closing_follows_version_and_wish() {
    let served = started();
    let closes = |request: &str| {
        let mut client = served.client();
        let answer = client.send(request).answer();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(client.is_closed());
    };
    closes("GET /hello HTTP/1.0\r\n\r\n");
    closes("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    closes("GET /hello HTTP/1.1\r\nHost: t\r\nConnection: x, Close\r\n\r\n");
    let mut half = served.client();
    half.send("GET /hello HTTP/1.1\r\nHost: t\r\n\r\n");
    half.stream
        .shutdown(std::net::Shutdown::Write)
        .expect("the socket is open");
    assert_eq!(half.answer().status, 200);
    assert!(half.is_closed());
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let served = started();
    let mut client = served.client();
    let many: String = (0..100)
        .map(|i| format!("GET /things/{i} HTTP/1.1\r\nHost: t\r\n\r\n"))
        .collect::<Vec<_>>()
        .concat();
    client.send(many);
    for i in 0..100 {
        assert_eq!(client.answer().text(), format!("{i} -"));
    }
}

#[test]
fn a_handler_that_panics_or_drops_its_responder_answers_500_and_the_workers_live() {
    let served = serve(routes(), Limits::default(), 1);
    let mut client = served.client();
    for _ in 0..3 {
        let answer = client.get("/panic");
        assert_eq!((answer.status, answer.code().as_str()), (500, "internal"));
        assert_eq!(client.get("/dropped").status, 500);
        assert_eq!(client.get("/hello").status, 200);
    }
    assert_eq!(served.metric("t_http_handler_panics_total"), 3);
    assert_eq!(served.metric("t_http_dropped_responders_total"), 6);
    assert_eq!(
        served
            .sup
            .planes()
            .iter()
            .map(|plane| plane.restarts)
            .sum::<u32>(),
        0
    );
    assert_eq!(served.front.in_flight(), 0);
}

/// A route that passes its responder to the test.
fn deferred() -> (ron_http::Router, mpsc::Receiver<Responder>) {
    let (to, from) = mpsc::sync_channel(64);
    let routes = routes()
        .add(Route::new(Method::GET, "/later", Need::Public, {
            let to = to.clone();
            move |_, responder| to.send(responder).expect("the test listens")
        }))
        .add(
            Route::new(Method::GET, "/poll", Need::Public, move |_, responder| {
                to.send(responder).expect("the test listens");
            })
            .long_poll(),
        );
    (routes, from)
}

#[test]
fn a_responder_answers_from_another_thread_and_the_connection_continues() {
    let (routes, jobs) = deferred();
    let served = serve(routes, Limits::default(), 1);
    let mut client = served.client();
    let two = "GET /later HTTP/1.1\r\nHost: t\r\n\r\nGET /hello HTTP/1.1\r\nHost: t\r\n\r\n";
    for _ in 0..20 {
        client.send(two);
        let responder = jobs.recv().expect("the job arrives");
        // The only worker is free meanwhile.
        assert_eq!(served.client().get("/hello").status, 200);
        std::thread::spawn(move || responder.send(Response::text(200, "later")));
        assert_eq!(client.answer().text(), "later");
        assert_eq!(client.answer().text(), "hello");
    }
    served.until("all answered", |s| s.front.in_flight() == 0);
}

#[test]
fn the_deadline_answers_504_and_the_late_answer_is_discarded() {
    let (routes, jobs) = deferred();
    let served = serve(routes, Limits::default(), 1);
    let mut client = served.client();
    let start = Instant::now();
    client.send("GET /later HTTP/1.1\r\nHost: t\r\nX-Request-Deadline-Ms: 200\r\n\r\n");
    let responder = jobs.recv().expect("the job arrives");
    assert!(responder.deadline().remaining() <= Duration::from_millis(200));
    let answer = client.answer();
    let took = start.elapsed();
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (504, "deadline_exceeded")
    );
    assert!(
        took >= Duration::from_millis(200) && took < Duration::from_secs(4),
        "{took:?}" // the service's own deadline is 5 s
    );
    responder.send(Response::text(200, "too late"));
    assert_eq!(client.get("/hello").text(), "hello");
    assert_eq!(served.metric("t_http_late_answers_total"), 1);
    let zero = "GET /hello HTTP/1.1\r\nHost: t\r\nX-Request-Deadline-Ms: 0\r\n\r\n";
    assert_eq!(client.send(zero).answer().status, 504);
    let bad = "GET /hello HTTP/1.1\r\nHost: t\r\nX-Request-Deadline-Ms: -1\r\n\r\n";
    assert_eq!(client.send(bad).answer().status, 400);
}

#[test]
fn a_handler_lowers_the_deadline_and_cannot_raise_it() {
    let (routes, jobs) = deferred();
    let served = serve(routes, Limits::default(), 1);
    let take = || jobs.recv().expect("the job arrives");
    let mut client = served.client();
    let start = Instant::now();
    client.send("GET /later HTTP/1.1\r\nHost: t\r\n\r\n");
    let responder = take().by(Deadline::within(Duration::from_millis(200)));
    assert_eq!(client.answer().status, 504);
    let took = start.elapsed();
    assert!(
        took >= Duration::from_millis(200) && took < Duration::from_secs(4),
        "{took:?}" // the front's own deadline is 5 s
    );
    responder.send(Response::text(200, "too late"));
    client.send("GET /later HTTP/1.1\r\nHost: t\r\nX-Request-Deadline-Ms: 200\r\n\r\n");
    let responder = take().by(Deadline::within(Duration::from_hours(1)));
    assert_eq!(client.answer().status, 504);
    drop(responder);
    client.send("GET /later HTTP/1.1\r\nHost: t\r\n\r\n");
    let responder = take().by(Deadline::within(Duration::from_secs(4)));
    responder.send(Response::text(200, "in time"));
    assert_eq!(client.answer().text(), "in time");
}

#[test]
fn the_deadline_holds_while_a_handler_blocks_its_worker() {
    let routes = routes().add(Route::get("/stuck", Need::Public, |_| {
        std::thread::sleep(Duration::from_secs(2));
        Ok(Response::text(200, "at last"))
    }));
    let served = serve(routes, Limits::default(), 1);
    let mut client = served.client();
    client.send("GET /stuck HTTP/1.1\r\nHost: t\r\nX-Request-Deadline-Ms: 100\r\n\r\n");
    let start = Instant::now();
    assert_eq!(client.answer().status, 504);
    assert!(start.elapsed() < Duration::from_millis(1_500));
    assert_eq!(client.get("/hello").text(), "hello");
    assert_eq!(served.metric("t_http_late_answers_total"), 1);
}

#[test]
fn the_wait_for_a_worker_counts_for_the_deadline() {
    let gate = Arc::new(Barrier::new(2));
    let closed = Arc::clone(&gate);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let routes = router()
        .add(Route::get("/stuck", Need::Public, move |_| {
            closed.wait();
            Ok(Response::text(200, "at last"))
        }))
        .add(Route::get("/counted", Need::Public, move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(Response::text(200, "counted"))
        }));
    let served = serve(routes, Limits::default(), 1);
    let mut first = served.client();
    let mut second = served.client();
    first.send("GET /stuck HTTP/1.1\r\nHost: t\r\n\r\n");
    served.until("the worker is busy", |s| s.front.in_flight() == 1);
    second.send("GET /counted HTTP/1.1\r\nHost: t\r\nX-Request-Deadline-Ms: 100\r\n\r\n");
    std::thread::sleep(Duration::from_secs(2)); // far longer than the front takes to see the request
    gate.wait();
    assert_eq!(first.answer().text(), "at last");
    assert_eq!(second.answer().status, 504);
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert_eq!(second.get("/counted").text(), "counted", "a new deadline");
}

#[test]
fn a_long_poll_extends_the_deadline_by_its_wait() {
    let (routes, jobs) = deferred();
    let limits = Limits {
        request_deadline: Duration::from_millis(900),
        ..Limits::default()
    };
    let served = serve(routes, limits, 1);
    let check = |request: &str, at_least_ms: u64| {
        let mut client = served.client();
        client.send(request);
        let responder = jobs.recv().expect("the job arrives");
        let left = responder.deadline().remaining();
        assert!(
            left > Duration::from_millis(at_least_ms),
            "{request}: {left:?}"
        );
        assert!(
            left <= Duration::from_millis(at_least_ms + 900),
            "{request}: {left:?}"
        );
        responder.send(Response::text(200, ""));
        assert_eq!(client.answer().status, 200);
    };
    check("GET /poll?wait=2 HTTP/1.1\r\nHost: t\r\n\r\n", 2000);
    check(
        "GET /poll HTTP/1.1\r\nHost: t\r\nPrefer: wait=3\r\n\r\n",
        3000,
    );
    check("GET /poll?wait=30 HTTP/1.1\r\nHost: t\r\n\r\n", 30_000);
    check("GET /poll?wait=31 HTTP/1.1\r\nHost: t\r\n\r\n", 0);
    check("GET /later?wait=2 HTTP/1.1\r\nHost: t\r\n\r\n", 0);
}

#[test]
fn sixty_four_clients_at_once_are_all_answered() {
    let served = started();
    for _ in 0..4 {
        let answered = AtomicUsize::new(0);
        let barrier = std::sync::Barrier::new(64);
        std::thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    barrier.wait();
                    let mut client = Client::connect(served.addr());
                    for _ in 0..5 {
                        assert_eq!(client.get("/hello").status, 200);
                    }
                    answered.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(answered.load(Ordering::SeqCst), 64);
    }
}

#[test]
fn draining_refuses_new_work_finishes_old_and_closes() {
    let (routes, jobs) = deferred();
    let routes = routes.add(
        Route::get("/state", Need::Public, |_| {
            Ok(Response::text(200, "draining"))
        })
        .while_draining(),
    );
    let served = serve(routes, Limits::default(), 2);
    let (mut waiting, mut polling) = (served.client(), served.client());
    waiting.send("GET /later HTTP/1.1\r\nHost: t\r\n\r\n");
    let later = jobs.recv().expect("the job arrives");
    polling.send("GET /poll?wait=30 HTTP/1.1\r\nHost: t\r\n\r\n");
    let poll = jobs.recv().expect("the poll arrives");
    let (mut idle, mut reader) = (served.client(), served.client());
    assert_eq!(idle.get("/hello").status, 200);
    assert_eq!(reader.get("/hello").status, 200);

    served.front.stop_intake();
    let let_go = polling.answer();
    assert_eq!((let_go.status, let_go.code().as_str()), (503, "draining"));
    assert_eq!(
        served.front.in_flight(),
        1,
        "a drain does not wait for the poll"
    );
    drop(poll);
    let refused = idle.get("/hello");
    assert_eq!((refused.status, refused.code().as_str()), (503, "draining"));
    assert!(refused.header("retry-after").is_some());
    assert!(idle.is_closed());
    assert_eq!(reader.get("/state").text(), "draining");
    assert!(reader.is_closed());
    served.until("the listener is closed", |s| {
        std::net::TcpStream::connect(s.addr()).is_err()
    });
    later.send(Response::text(200, "done"));
    assert_eq!(waiting.answer().text(), "done");
    assert!(waiting.is_closed());
    served.until("all closed", |s| s.front.connections() == 0);
}

#[test]
fn a_poll_that_begins_to_wait_after_the_drain_began_is_answered() {
    let (to, jobs) = std::sync::mpsc::sync_channel(8);
    let keep = move |_, responder| to.send(responder).expect("the test listens");
    let poll = Route::new(ron_http::Method::POST, "/watch", Need::Public, keep).long_poll();
    let served = serve(router().add(poll), Limits::default(), 2);
    let mut client = served.client();
    // Admitted with its head; the handler runs when the body has arrived.
    client.send("POST /watch?wait=30 HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{");
    served.until("the head is read", |s| s.front.connections() == 1);
    std::thread::sleep(Duration::from_millis(100));
    served.front.stop_intake();
    served.until("the listener is closed", |s| {
        std::net::TcpStream::connect(s.addr()).is_err()
    });
    client.send("}");
    let answer = client.answer();
    assert_eq!((answer.status, answer.code().as_str()), (503, "draining"));
    let kept = jobs.recv().expect("the handler ran");
    assert_eq!(served.front.in_flight(), 0);
    drop(kept);
}

#[test]
fn ending_waits_for_open_requests_but_not_for_idle_connections() {
    let (routes, jobs) = deferred();
    let served = serve(routes, Limits::default(), 2);
    let mut idle = served.client();
    assert_eq!(idle.get("/hello").status, 200);
    let mut waiting = served.client();
    waiting.send("GET /later HTTP/1.1\r\nHost: t\r\n\r\n");
    let later = jobs.recv().expect("the job arrives");
    let answered = Arc::new(AtomicUsize::new(0));
    let seen = answered.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        seen.store(1, Ordering::SeqCst);
        later.send(Response::text(200, "done"));
    });
    let report = served.sup.drain(Duration::from_secs(5));
    assert_eq!(report.stragglers, Vec::<String>::new());
    assert_eq!(answered.load(Ordering::SeqCst), 1);
    assert!(
        report.took < Duration::from_millis(4_500),
        "{:?}",
        report.took
    );
    assert_eq!(waiting.answer().text(), "done");
    assert!(idle.is_closed());
}

#[test]
fn an_idle_front_ends_at_once() {
    // Repeated: the drain may begin while the worker still parks the connection it has just
    // answered.
    for _ in 0..50 {
        let served = started();
        let mut idle = served.client();
        assert_eq!(idle.get("/hello").status, 200);
        let report = served.sup.drain(Duration::from_secs(5));
        assert!(report.took < Duration::from_secs(4), "{:?}", report.took);
    }
}
