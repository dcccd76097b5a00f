//! Running out of descriptors; alone in its process because it lowers the process's limit.
#![allow(clippy::disallowed_methods)] // tests measure real time and start their own clients

mod support;

use std::time::{Duration, Instant};

use ron_http::{Limits, Need, Response, Route};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{Client, free_port, router, serve_on};

#[test]
fn accepting_resumes_after_descriptors_ran_out() {
    let listener = free_port();
    let addr = listener.local_addr().expect("a TCP socket");
    // These connections wait in the backlog until the front starts.
    let mut clients: Vec<Client> = (0..40).map(|_| Client::connect(addr)).collect();
    let open = std::fs::read_dir("/proc/self/fd").expect("procfs").count() as u64;
    let before = getrlimit(Resource::Nofile);
    let tight = Rlimit {
        current: Some(open + 12),
        ..before
    };
    setrlimit(Resource::Nofile, tight).expect("a lower limit is allowed");

    let hello = Route::get("/hello", Need::Public, |_| Ok(Response::text(200, "hello")));
    let served = serve_on(listener, router().add(hello), Limits::default(), 2);
    let exhausted = "t_http_rejects_total{reason=\"accept_resources\"}";
    served.until("descriptors ran out", |s| s.metric(exhausted) > 0);
    let waits = served.metric(exhausted);
    let began = Instant::now();
    std::thread::sleep(Duration::from_millis(500));
    let more = served.metric(exhausted) - waits;
    let most = i64::try_from(began.elapsed().as_millis()).expect("small") / 100 + 1;
    assert!(
        more <= most,
        "it tries again ten times a second, no more: {more} of {most}"
    );

    let waiting = clients.split_off(20);
    drop(clients);
    for mut client in waiting {
        assert_eq!(client.get("/hello").status, 200);
    }
    setrlimit(Resource::Nofile, before).expect("the old limit is allowed");
    assert_eq!(served.client().get("/hello").status, 200);
}
