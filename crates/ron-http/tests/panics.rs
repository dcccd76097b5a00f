//! Workers that panic: no other request is lost, and the pool is complete again at once.
#![allow(clippy::disallowed_methods)] // tests measure real time and start their own clients

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ron_http::{Authorizer, Limits, Need, Principal, RequestHead, Response, Route};
use ron_proto::Problem;
use support::{free_port, router, serve_as};

/// Panics in the authorizer, outside the `catch_unwind` around handlers.
struct Trap;

impl Authorizer for Trap {
    fn authorize(&self, head: &RequestHead, _need: &Need) -> Result<Principal, Problem> {
        assert!(head.header("x-trap").is_none(), "on purpose");
        Ok(Principal::public())
    }
}

#[test]
fn a_worker_that_panics_under_load_is_restarted_at_once_and_loses_no_other_request() {
    let done = Arc::new(AtomicUsize::new(0));
    let counter = done.clone();
    let count = Route::post("/count", Need::Identity, move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(Response::text(200, "counted"))
    });
    let routes = router().add(count.body_bytes(&[]));
    let served = serve_as(free_port(), routes, Limits::default(), 2, Arc::new(Trap));
    let stop = AtomicBool::new(false);
    let acknowledged = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = served.client();
                while !stop.load(Ordering::SeqCst) {
                    assert_eq!(client.post("/count", "", "").text(), "counted");
                    acknowledged.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let restarts = || {
            let planes = served.sup.planes();
            planes.iter().map(|plane| plane.restarts).sum::<u32>()
        };
        for turn in 1..=4 {
            let mut trapped = served.client();
            trapped
                .send("POST /count HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\nX-Trap: 1\r\n\r\n");
            assert!(trapped.try_answer(false).is_none(), "its connection ends");
            served.until("restarted", |_| restarts() >= turn);
            let before = acknowledged.load(Ordering::SeqCst);
            served.until("the load goes on", |_| {
                acknowledged.load(Ordering::SeqCst) > before + 20
            });
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(
        done.load(Ordering::SeqCst),
        acknowledged.load(Ordering::SeqCst)
    );
    assert_eq!(served.front.in_flight(), 0);
}
