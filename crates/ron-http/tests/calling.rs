//! The client against our front and against peers that misbehave.
#![allow(clippy::disallowed_methods)] // tests measure real time and start their own peers

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ron_http::{
    BreakerHook, Call, ClientConfig, Failure, HttpClient, Limits, Need, Request, Response, Route,
};
use ron_kernel::{Deadline, Turn};
use ron_proto::Problem;
use support::{Served, router, serve};

fn client() -> HttpClient {
    HttpClient::new(ClientConfig {
        max_response_bytes: 1 << 20,
        ..ClientConfig::default()
    })
}

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(5))
}

fn served() -> Served {
    let routes = router()
        .add(Route::get("/hello", Need::Public, |_| {
            Ok(Response::text(200, "hello"))
        }))
        .add(Route::get("/busy", Need::Public, |_| Err(Problem::busy(3))))
        .add(Route::get("/large", Need::Public, |_| {
            Ok(Response::bytes(200, "x/y", vec![1; 2 << 20]))
        }))
        .add(Route::get("/moved", Need::Public, |_| {
            Ok(Response::empty(302).header("location", "/hello"))
        }))
        .add(
            Route::post("/echo", Need::Public, |request: &Request| {
                let id = request.header("x-request-id").unwrap_or("-").to_owned();
                Ok(
                    Response::bytes(201, "application/json", request.body.clone())
                        .header("x-saw", id),
                )
            })
            .body::<serde_json::Value>(),
        );
    serve(routes, Limits::default(), 4)
}

/// A peer that runs `act` on each connection, and the number of its connections.
fn peer(
    act: impl Fn(std::net::TcpStream) + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = listener.local_addr().expect("bound");
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            seen.fetch_add(1, Ordering::SeqCst);
            act(stream);
        }
    });
    (addr, count)
}

#[test]
fn answers_of_any_status_are_answers() {
    let served = served();
    let client = client();
    let url = |path: &str| format!("http://{}{path}", served.addr());
    let hello = client
        .call(Call::get(&url("/hello"), soon()))
        .expect("an answer");
    assert_eq!(
        (hello.status, hello.body.as_slice()),
        (200, b"hello".as_slice())
    );
    assert!(hello.is_success() && hello.header("x-request-id").is_some());
    let busy = client
        .call(Call::get(&url("/busy"), soon()))
        .expect("an answer");
    assert_eq!((busy.status, busy.retry_after_s()), (429, Some(3)));
    assert_eq!(busy.problem().expect("a problem").code, "busy");
    let moved = client
        .call(Call::get(&url("/moved"), soon()))
        .expect("an answer");
    assert_eq!(moved.status, 302, "redirects are not followed");
    let body = br#"{"a":[1,2]}"#.to_vec();
    let to = url("/echo");
    let call = Call::post_json(&to, body, soon()).headers(&[("x-request-id", "abc")]);
    let echo = client.call(call).expect("an answer");
    assert_eq!((echo.status, echo.header("x-saw")), (201, Some("abc")));
    assert_eq!(echo.json::<serde_json::Value>().expect("JSON")["a"][1], 2);
    assert_eq!(
        served.metric("t_http_connections"),
        1,
        "one connection served them all"
    );
}

#[test]
fn localhost_and_ipv4_literals_need_no_lookup() {
    let served = served();
    let url = format!("http://localhost:{}/hello", served.addr().port());
    assert_eq!(
        client()
            .call(Call::get(&url, soon()))
            .expect("an answer")
            .status,
        200
    );
}

#[test]
fn failures_say_whether_anything_was_done() {
    let refused = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("bound")
    };
    let (silent, _) = peer(std::mem::forget);
    let (rude, _) = peer(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
    });
    let (odd, _) = peer(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"what?\r\n\r\n");
    });
    let (half, _) = peer(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc");
    });
    let served = served();
    let check = |url: String, kind: Failure, done_nothing: bool| {
        let deadline = Deadline::within(Duration::from_millis(300));
        let call = Call::post_json(&url, b"{}".to_vec(), deadline);
        let start = Instant::now();
        let error = client().call(call).expect_err("no answer");
        assert_eq!(
            (error.kind, error.nothing_done()),
            (kind, done_nothing),
            "{url}: {error}"
        );
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{url}: {:?}",
            start.elapsed()
        );
    };
    check(format!("http://{refused}/"), Failure::NotSent, true);
    check("not a url".to_owned(), Failure::NotSent, true);
    check("https://127.0.0.1:1/".to_owned(), Failure::NotSent, true);
    check(format!("http://{silent}/"), Failure::Unknown, false);
    check(format!("http://{rude}/"), Failure::Unknown, false);
    check(format!("http://{odd}/"), Failure::Unknown, false);
    check(format!("http://{half}/"), Failure::Unknown, false);
    let large = format!("http://{}/large", served.addr());
    let error = client()
        .call(Call::get(&large, soon()))
        .expect_err("too large");
    assert_eq!(error.kind, Failure::TooLarge);
    let past = Deadline::within(Duration::ZERO);
    let error = client()
        .call(Call::get(&large, past))
        .expect_err("too late");
    assert_eq!(error.kind, Failure::NotSent);
}

#[test]
fn only_idempotent_calls_are_sent_again() {
    let (rude, count) = peer(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
    });
    let url = format!("http://{rude}/");
    let client = client();
    let call = Call::post_json(&url, b"{}".to_vec(), soon());
    assert!(client.call(call.clone()).is_err());
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert!(client.call(call.idempotent(true)).is_err());
    assert_eq!(count.load(Ordering::SeqCst), 4, "three tries");
}

#[test]
fn tries_are_as_far_apart_as_configured() {
    let closed = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/", closed.local_addr().expect("bound"));
    drop(closed);
    let base = Duration::from_millis(100);
    let client = HttpClient::new(ClientConfig {
        retry_base: base,
        retry_cap: base,
        ..ClientConfig::default()
    });
    let start = Instant::now();
    assert!(client.call(Call::get(&url, soon())).is_err());
    assert!(start.elapsed() >= 2 * base, "two pauses");
}

#[test]
fn a_peer_that_keeps_failing_is_left_alone() {
    let (rude, count) = peer(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
    });
    let url = format!("http://{rude}/");
    let (turns, seen) = std::sync::mpsc::channel();
    let client = HttpClient::new(ClientConfig {
        on_breaker: BreakerHook::new(move |peer, turn| {
            turns.send((peer.to_owned(), turn)).expect("a receiver");
        }),
        ..ClientConfig::default()
    });
    for _ in 0..30 {
        let _ = client.call(Call::post_json(&url, b"{}".to_vec(), soon()));
    }
    assert_eq!(count.load(Ordering::SeqCst), 20);
    let error = client
        .call(Call::get(&url, soon()))
        .expect_err("the breaker is open");
    assert_eq!(error.kind, Failure::BreakerOpen);
    let turns: Vec<_> = seen.try_iter().collect();
    assert_eq!(turns, [(rude.to_string(), Turn::Opened)]);
}

#[test]
fn shutdown_ends_running_calls_and_refuses_new_ones() {
    let (silent, _) = peer(std::mem::forget);
    let url = format!("http://{silent}/");
    let client = Arc::new(client());
    let calling = client.clone();
    let at = url.clone();
    let running = std::thread::spawn(move || {
        let start = Instant::now();
        let outcome = calling.call(Call::get(&at, soon()));
        (outcome.is_err(), start.elapsed())
    });
    std::thread::sleep(Duration::from_millis(100));
    client.shutdown();
    let (failed, took) = running.join().expect("the caller ends");
    assert!(failed && took < Duration::from_secs(1), "{took:?}");
    let error = client.call(Call::get(&url, soon())).expect_err("shut down");
    assert_eq!(error.kind, Failure::NotSent);
}

#[test]
fn a_try_that_may_have_been_carried_out_is_not_forgotten() {
    // The peer takes one request and ends; later attempts find no listener.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = listener.local_addr().expect("bound");
    let once = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a call");
        drop(listener);
        let _ = stream.read(&mut [0; 1024]);
    });
    let url = format!("http://{addr}/");
    let call = Call::post_json(&url, b"{}".to_vec(), soon()).idempotent(true);
    let error = client().call(call).expect_err("no answer");
    once.join().expect("the peer ends");
    assert_eq!(error.kind, Failure::Unknown, "{error}");
    let error = client().call(Call::get(&url, soon())).expect_err("nobody");
    assert_eq!(error.kind, Failure::NotSent, "no try was taken: {error}");
}

#[test]
fn service_tokens_stay_off_plain_tcp() {
    let (addr, count) = peer(|_| {});
    let ask = |insecure_loopback: bool, url: &str, headers: &[(&str, &str)]| {
        let client = HttpClient::new(ClientConfig {
            insecure_loopback,
            ..ClientConfig::default()
        });
        let error = client
            .call(Call::get(url, soon()).headers(headers))
            .expect_err("the peer answers nothing");
        (error.kind, error.detail)
    };
    let near = format!("http://{addr}/x");
    let tokens = [
        ("authorization", "Bearer ron_svc-wallet_AAAA"),
        ("Authorization", "bearer  ron_svc-wallet_AAAA"),
        ("X-Vault-Token", "ron_svc-wallet_AAAA"),
    ];
    for token in tokens {
        let (kind, detail) = ask(false, &near, &[("x", "y"), token]);
        assert_eq!(kind, Failure::Withheld);
        assert!(detail.contains("unix:/run/ron"), "{detail}");
        let (kind, detail) = ask(true, "http://ron.invalid:1/x", &[token]);
        assert_eq!(kind, Failure::Withheld);
        assert!(detail.contains("loopback only"), "{detail}");
    }
    assert_eq!(count.load(Ordering::SeqCst), 0, "no connection was made");
    // A passport is valid for one audience and a few minutes; it is sent.
    let passport = ("authorization", "Bearer eyJhbGciOiJFZERTQSJ9.e30.c2ln");
    assert_eq!(ask(false, &near, &[passport]).0, Failure::Unknown);
    assert_eq!(ask(true, &near, &[tokens[0]]).0, Failure::Unknown);
    assert!(count.load(Ordering::SeqCst) >= 2);
    let (kind, detail) = ask(false, "https://127.0.0.1:1/x", &[tokens[0]]);
    assert_eq!(kind, Failure::NotSent);
    assert!(!detail.contains("plain TCP"), "{detail}");
    let file = std::fs::File::open("/dev/null").expect("there");
    let url = format!("http://{addr}/x");
    let headers = [tokens[0]];
    let call = Call::get(&url, soon()).headers(&headers);
    let client = HttpClient::new(ClientConfig::default());
    let error = client.send_file(&call, &file).expect_err("refused");
    assert_eq!(error.kind, Failure::Withheld);
}
