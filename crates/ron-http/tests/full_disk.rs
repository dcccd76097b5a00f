//! A disk that is full while a body arrives; alone in its process because it bounds file sizes.
#![allow(clippy::disallowed_methods)] // tests measure real time and start their own clients

mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ron_files::Dir;
use ron_http::{Limits, Method, Need, Response, Route, sync};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{router, serve};

#[test]
fn a_body_that_finds_no_room_gets_507_and_leaves_nothing() {
    // Without a handler the signal would end the process.
    signal_hook::flag::register(25, Arc::new(AtomicBool::new(false))).expect("SIGXFSZ");
    let before = getrlimit(Resource::Fsize);
    let tight = Rlimit {
        current: Some(1 << 20),
        ..before
    };
    setrlimit(Resource::Fsize, tight).expect("a lower limit is allowed");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let route = Route::new(
        Method::PUT,
        "/upload",
        Need::Public,
        sync(|request| {
            let upload = request.upload.as_ref().expect("this route streams");
            Ok(Response::text(200, upload.len().to_string()))
        }),
    );
    let routes = router().add(
        route
            .body_bytes(&[])
            .streaming(Dir::os(dir.path()), 1 << 30),
    );
    let served = serve(routes, Limits::default(), 1);
    let put = |length: usize| {
        let mut client = served.client();
        client.send(format!(
            "PUT /upload HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n"
        ));
        client.send(vec![7; length]).answer()
    };
    assert_eq!(put(1 << 20).text(), (1 << 20).to_string());
    let full = put(3 << 20);
    assert_eq!(full.status, 507);
    assert_eq!(full.code(), "insufficient_storage");
    assert_eq!(put(10).text(), "10", "the next one is served");
    assert_eq!(served.metric("t_http_rejects_total{reason=\"spool\"}"), 1);
    assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 0);
    setrlimit(Resource::Fsize, before).expect("the old limit is allowed");
}
