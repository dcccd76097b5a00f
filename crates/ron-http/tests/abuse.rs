//! The front against clients that are slow, greedy, broken or many.
#![allow(clippy::disallowed_methods)] // tests measure real time and start their own clients

mod support;

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_http::{Limits, Need, Response, Route};
use support::{Client, Served, router, serve};

fn started(limits: Limits) -> Served {
    let limits = Limits {
        public_body_bytes: limits.max_body_bytes,
        ..limits
    };
    let large: Arc<[u8]> = Arc::from(vec![7; 32 << 20]);
    let routes = router()
        .add(Route::get("/hello", Need::Public, |_| {
            Ok(Response::text(200, "hello"))
        }))
        .add(Route::get("/large", Need::Public, move |_| {
            Ok(Response::bytes(200, "x/y", large.clone()))
        }))
        .add(
            Route::post("/in", Need::Public, |request| {
                Ok(Response::text(200, request.body.len().to_string()))
            })
            .body_bytes(&[]),
        );
    serve(routes, limits, 2)
}

fn quick() -> Limits {
    Limits {
        read_timeout: Duration::from_millis(400),
        body_timeout: Duration::from_millis(400),
        write_timeout: Duration::from_millis(400),
        idle_timeout: Duration::from_millis(400),
        linger_timeout: Duration::from_millis(300),
        ..Limits::default()
    }
}

#[test]
fn smuggling_attempts_get_one_answer_and_a_closed_connection() {
    let served = started(Limits::default());
    let check = |status: u16, request: &str| {
        let mut client = served.client();
        client
            .send(request)
            .send("GET /hello HTTP/1.1\r\nHost: t\r\n\r\n");
        let answer = client.answer();
        assert_eq!(answer.status, status, "{request:?}: {}", answer.text());
        assert_eq!(answer.header("connection"), Some("close"), "{request:?}");
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json")
        );
        assert!(client.is_closed(), "{request:?} left the connection open");
    };
    let post =
        |headers: &str| format!("POST /in HTTP/1.1\r\nHost: t\r\n{headers}\r\n\r\n0\r\n\r\n");
    check(
        400,
        &post("Content-Length: 5\r\nTransfer-Encoding: chunked"),
    );
    check(400, &post("Content-Length: 5\r\nContent-Length: 5"));
    check(400, &post("Content-Length: 5\r\nContent-Length: 6"));
    check(400, &post("Content-Length: +3"));
    check(400, &post("Content-Length: x"));
    check(400, &post("Content-Length: 3x"));
    check(400, &post("Content-Length: 99999999999999999999"));
    check(501, &post("Transfer-Encoding: xchunked"));
    check(501, &post("Transfer-Encoding: gzip, chunked"));
    check(
        400,
        &post("Transfer-Encoding: chunked\r\n Content-Length: 3"),
    );
    check(400, "GET /hello HTTP/1.1\nHost: t\n\n");
    check(400, "GET /hello HTTP/1.1\r\nHost: t\r\nX: a\rb\r\n\r\n");
    check(400, "GET /hello HTTP/1.1\r\nHost: t\r\nX: a\0b\r\n\r\n");
    check(400, "GET /hello HTTP/1.1\r\n\r\n");
    check(400, "GET /hello HTTP/1.1\r\nHost: t\r\nHost: t\r\n\r\n");
    check(505, "GET /hello HTTP/2.0\r\nHost: t\r\n\r\n");
    check(501, "BREW /hello HTTP/1.1\r\nHost: t\r\n\r\n");
    check(
        400,
        &post("Transfer-Encoding: chunked").replace("0\r\n\r\n", "zz\r\n"),
    );
    assert_eq!(served.metric("t_http_rejects_total{reason=\"length\"}"), 4);
    assert_eq!(served.client().get("/hello").status, 200);
}

#[test]
fn oversize_heads_lines_and_bodies_get_the_reason() {
    let served = started(Limits::default());
    let check = |status: u16, request: &str| {
        let mut client = served.client();
        client.send(request);
        assert_eq!(client.answer().status, status);
        assert!(client.is_closed());
    };
    check(
        414,
        &format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "a".repeat(9000)),
    );
    let head = "GET /hello HTTP/1.1\r\nHost: t\r\n";
    check(431, &format!("{head}X: {}\r\n\r\n", "a".repeat(33 << 10)));
    check(431, &format!("{head}{}\r\n", "X: y\r\n".repeat(101)));
    // A client that sends all of its two megabytes before it reads still gets the answer.
    let mut client = served.client();
    let length = 2 << 20;
    client.send(format!(
        "POST /in HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n"
    ));
    client.send(vec![b'x'; length]);
    let answer = client.answer();
    assert_eq!((answer.status, answer.code().as_str()), (413, "too_large"));
    assert!(client.is_closed());
    // The same without a length, and the largest body that is allowed.
    let mut chunked = served.client();
    chunked.send("POST /in HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..32 {
        chunked
            .send("10000\r\n")
            .send(vec![b'x'; 65536])
            .send("\r\n");
    }
    assert_eq!(chunked.answer().status, 413);
    let body = "x".repeat(1 << 20);
    assert_eq!(
        served.client().post("/in", "", &body).text(),
        (1 << 20).to_string()
    );
}

#[test]
fn a_header_of_two_hundred_megabytes_is_cut_off_early() {
    let served = started(Limits::default());
    let mut client = served.client();
    client.send("GET /hello HTTP/1.1\r\nHost: t\r\nX: ");
    let piece = vec![b'a'; 1 << 20];
    let taken = (0..200)
        .take_while(|_| client.stream.write_all(&piece).is_ok())
        .count();
    assert!(taken < 100, "{taken} MB were read");
    assert_eq!(
        served.metric("t_http_rejects_total{reason=\"head_size\"}"),
        1
    );
}

/// Many clients that send a byte now and then; all get 408 at the total deadline, and other clients
/// are served meanwhile.
fn loris(head: &str, reason: &str) {
    let served = started(quick());
    let mut slow: Vec<Client> = (0..100).map(|_| served.client()).collect();
    let start = Instant::now();
    for client in &mut slow {
        client.send(head);
    }
    while start.elapsed() < Duration::from_millis(350) {
        for client in &mut slow {
            let _ = client.stream.write(b"a"); // the deadline may have passed on a slow machine
        }
        assert_eq!(served.client().get("/hello").status, 200);
        std::thread::sleep(Duration::from_millis(50));
    }
    for client in &mut slow {
        let answer = client.answer();
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (408, "request_timeout")
        );
        assert!(client.is_closed());
    }
    assert_eq!(
        served.metric(&format!("t_http_rejects_total{{reason=\"{reason}\"}}")),
        100
    );
}

#[test]
fn slow_heads_end_at_their_total_deadline() {
    loris("GET /hello HTTP/1.1\r\nHost: t\r\nX: ", "head_timeout");
}

#[test]
fn slow_bodies_end_at_their_total_deadline() {
    loris(
        "POST /in HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n",
        "body_timeout",
    );
}

#[test]
fn clients_that_do_not_read_lose_their_connection_and_hold_no_worker() {
    let served = started(quick());
    let mut deaf: Vec<Client> = (0..16).map(|_| served.client()).collect();
    for client in &mut deaf {
        client.send("GET /large HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    assert_eq!(served.client().get("/hello").status, 200);
    drop(deaf);
    served.until("all closed", |s| s.front.connections() <= 1);
}

#[test]
fn an_answer_that_is_not_read_times_out() {
    let limits = Limits {
        min_rate_bytes_per_s: 1 << 30,
        ..quick()
    };
    let served = started(limits);
    let mut deaf = served.client();
    deaf.send("GET /large HTTP/1.1\r\nHost: t\r\n\r\n");
    served.until("given up", |s| {
        s.metric("t_http_rejects_total{reason=\"write_timeout\"}") == 1
    });
    served.until("closed", |s| s.front.connections() == 0);
}

#[test]
fn a_pipelining_flood_that_reads_nothing_is_held_back() {
    let served = started(quick());
    let mut flood = served.client();
    flood.stream.set_nonblocking(true).expect("a socket option");
    let many = "GET /hello HTTP/1.1\r\nHost: t\r\n\r\n".repeat(2000);
    let (mut sent, start) = (0_usize, Instant::now());
    // Until the front takes no more bytes for a while, or cuts the connection.
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_millis(250) {
        match flood.stream.write(many.as_bytes()) {
            Ok(count) => {
                sent += count;
                last = Instant::now();
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) => break,
        }
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{sent} bytes and still reading"
        );
    }
    assert_eq!(served.client().get("/hello").status, 200);
    served.until("the flood is cut off", |s| {
        s.metric("t_http_rejects_total{reason=\"write_timeout\"}") == 1
    });
}

#[test]
fn idle_connections_are_closed() {
    let served = started(quick());
    let mut client = served.client();
    // Measured from before the answer: this thread may be delayed after it.
    let start = Instant::now();
    assert_eq!(client.get("/hello").status, 200);
    assert!(client.is_closed());
    let idle = start.elapsed();
    assert!(
        idle > Duration::from_millis(350) && idle < Duration::from_secs(30),
        "{idle:?}"
    );
}

#[test]
fn the_connection_above_the_bound_gets_503() {
    let served = started(Limits {
        max_conns: 3,
        ..Limits::default()
    });
    // From three addresses, and in the middle of a request: none of them is idle.
    let mut kept: Vec<Client> = (1..4).map(|n| served.client_from([127, 0, 0, n])).collect();
    for client in &mut kept {
        client.send("GET /hello HTTP/1.1\r\n");
    }
    served.until("all are taken in", |s| s.front.connections() == 3);
    let mut extra = served.client();
    let answer = extra.answer();
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (503, "unavailable")
    );
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(extra.is_closed());
    drop(kept.pop());
    served.until("room again", |s| s.front.connections() < 3);
    let mut next = served.client_from([127, 0, 0, 4]);
    assert_eq!(next.get("/hello").status, 200);
}

#[test]
fn clients_that_reconnect_at_once_find_room() {
    let served = started(Limits {
        max_conns: 256, // some rounds fit into the half that one address has to itself
        ..Limits::default()
    });
    for round in 0..200 {
        // The workers may not have closed the last round's connections yet.
        let mut clients: Vec<Client> = (0..24).map(|_| served.client()).collect();
        for client in &mut clients {
            assert_eq!(client.get("/hello").status, 200, "round {round}");
        }
    }
}

#[test]
fn requests_above_the_in_flight_bound_get_429() {
    let (to, jobs) = std::sync::mpsc::sync_channel(8);
    let later = Route::new(
        ron_http::Method::GET,
        "/later",
        Need::Public,
        move |_, responder| {
            to.send(responder).expect("the test listens");
        },
    );
    let served = serve(
        router().add(later),
        Limits {
            max_in_flight: 2,
            ..Limits::default()
        },
        1,
    );
    let mut clients: Vec<Client> = (0..3).map(|_| served.client()).collect();
    for client in &mut clients {
        client.send("GET /later HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    let held: Vec<_> = (0..2)
        .map(|_| jobs.recv().expect("two get through"))
        .collect();
    served.until("the third is refused", |s| {
        s.metric("t_http_rejects_total{reason=\"in_flight\"}") == 1
    });
    for responder in held {
        responder.send(Response::text(200, "ok"));
    }
    let mut statuses: Vec<u16> = clients.iter_mut().map(|c| c.answer().status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn a_client_that_vanishes_costs_nothing() {
    let served = started(Limits::default());
    for request in [
        "",
        "GET /he",
        "POST /in HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nab",
    ] {
        let mut client = served.client();
        client.send(request);
        drop(client);
    }
    served.until("both seen", |s| {
        s.metric("t_http_rejects_total{reason=\"closed_early\"}") == 2
    });
    served.until("all closed", |s| s.front.connections() == 0);
}

#[test]
fn bytes_one_at_a_time_are_one_request() {
    let served = started(Limits::default());
    let mut client = served.client();
    for byte in b"POST /in HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc" {
        client.send([*byte]);
    }
    assert_eq!(client.answer().text(), "3");
    let mut rest = [0; 1];
    client
        .stream
        .set_read_timeout(Some(Duration::from_millis(50)))
        .expect("a socket option");
    assert!(
        client.stream.read(&mut rest).is_err(),
        "nothing more was sent"
    );
}
