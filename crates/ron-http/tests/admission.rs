//! Overload is refused early, reads keep their share, and `Retry-After` follows the measured rate.
#![allow(clippy::disallowed_methods)] // tests measure real time and start their own clients

mod support;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use ron_http::{Limits, Method, Need, Responder, Response, Route};
use support::{Client, Served, free_port, router, serve, serve_on};

/// Routes that pass their responder to the test, and one that answers at once.
fn deferred(limits: Limits) -> (Served, mpsc::Receiver<Responder>) {
    let (to, jobs) = mpsc::sync_channel(256);
    let route = |method, path| {
        let to = to.clone();
        Route::new(method, path, Need::Public, move |_, responder| {
            to.send(responder).expect("the test listens");
        })
    };
    let routes = router()
        .add(route(Method::GET, "/read"))
        .add(route(Method::POST, "/write").body_bytes(&[]))
        .add(route(Method::GET, "/poll").long_poll())
        .add(Route::get("/now", Need::Public, |_| {
            Ok(Response::text(200, "now"))
        }));
    (serve(routes, limits, 2), jobs)
}

const WRITE: &str = "POST /write HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n";
const POLL: &str = "GET /poll?wait=20 HTTP/1.1\r\nHost: t\r\n\r\n";
const READ: &str = "GET /read HTTP/1.1\r\nHost: t\r\n\r\n";

/// Sends the request on this many connections and collects the responders.
fn fill(
    served: &Served,
    jobs: &mpsc::Receiver<Responder>,
    request: &str,
    count: usize,
) -> (Vec<Client>, Vec<Responder>) {
    let mut clients: Vec<Client> = (0..count).map(|_| served.client()).collect();
    for client in &mut clients {
        client.send(request);
    }
    let held = (0..count).map(|_| jobs.recv().expect("admitted")).collect();
    (clients, held)
}

#[test]
fn writes_leave_an_eighth_to_reads_and_long_polls_all() {
    let limits = Limits {
        max_in_flight: 16,
        ..Limits::default()
    };
    let (served, jobs) = deferred(limits);
    let (mut clients, held) = fill(&served, &jobs, WRITE, 14);
    let answer = served.client().send(WRITE).answer();
    assert_eq!((answer.status, answer.code().as_str()), (429, "busy"));
    assert!(answer.header("retry-after").is_some());
    let (_polling, polls) = fill(&served, &jobs, POLL, 20);
    assert_eq!(served.client().get("/now").text(), "now");
    let (mut readers, reads) = fill(&served, &jobs, READ, 2);
    assert_eq!(
        served.client().get("/now").status,
        429,
        "reads are bounded too"
    );
    for responder in held.into_iter().chain(reads).chain(polls) {
        responder.send(Response::text(200, "done"));
    }
    for client in clients.iter_mut().chain(&mut readers) {
        assert_eq!(client.answer().text(), "done");
    }
    served.until("all answered", |s| s.front.in_flight() == 0);
    assert_eq!(served.client().get("/now").text(), "now");
}

/// `Retry-After` of a front with 21 writes in flight that has answered this many lately.
fn retry_after(answered: usize) -> u32 {
    let limits = Limits {
        max_in_flight: 24,
        ..Limits::default()
    };
    let (served, jobs) = deferred(limits);
    let mut client = served.client();
    for _ in 0..answered {
        assert_eq!(client.get("/now").status, 200);
    }
    let (_clients, held) = fill(&served, &jobs, WRITE, 21);
    let refused = served.client().send(WRITE).answer();
    assert_eq!(refused.status, 429);
    let seconds = refused.header("retry-after").expect("a time");
    drop(held);
    seconds.parse().expect("whole seconds")
}

#[test]
fn retry_after_follows_the_measured_rate_of_answers() {
    // 21 in flight and N answers in the last five seconds: 105 / N, rounded up.
    let (slow, fast) = (retry_after(7), retry_after(200));
    assert_eq!((slow, fast), (15, 1));
}

#[test]
fn connections_that_end_before_they_are_accepted_do_no_harm() {
    let listener = free_port();
    let addr = listener.local_addr().expect("a TCP socket");
    // These connections end in the backlog, half of them with a reset, before the front exists.
    for turn in 0..60 {
        let mut stream = TcpStream::connect(addr).expect("room in the backlog");
        if turn % 2 == 0 {
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))
                .expect("a socket option");
            let _ = stream.write_all(b"GET /now HTTP/1.1\r\n");
        }
        drop(stream);
    }
    let now = Route::get("/now", Need::Public, |_| Ok(Response::text(200, "now")));
    let served = serve_on(listener, router().add(now), Limits::default(), 1);
    for _ in 0..5 {
        assert_eq!(served.client().get("/now").text(), "now");
    }
    served.until("all gone", |s| s.front.connections() == 0);
}

#[test]
fn a_pipelining_client_yields_after_sixteen_requests() {
    let limits = Limits::default();
    assert_eq!(limits.pipeline_depth, 16);
    let now = Route::get("/now", Need::Public, |_| {
        std::thread::sleep(Duration::from_millis(5));
        Ok(Response::text(200, "now"))
    });
    let served = serve(router().add(now), limits, 1);
    let mut greedy = TcpStream::connect(served.addr()).expect("accepted");
    let many = "GET /now HTTP/1.1\r\nHost: t\r\n\r\n".repeat(200);
    greedy.write_all(many.as_bytes()).expect("taken");
    // 200 requests keep the only worker busy for a second; another client waits for a turn of
    // sixteen at most, not for all of them.
    std::thread::sleep(Duration::from_millis(50));
    let mut other = served.client();
    assert_eq!(other.get("/now").text(), "now");
    let series = "t_http_requests_total{method=\"GET\",route=\"/now\",status=\"200\"}";
    let done = served.metric(series);
    assert!(done < 150, "{done} requests were answered first");
    greedy.shutdown(Shutdown::Write).expect("open");
    let mut all = Vec::new();
    greedy.read_to_end(&mut all).expect("answers");
    let answers = all.windows(15).filter(|w| *w == b"HTTP/1.1 200 OK").count();
    assert_eq!(answers, 200);
}
