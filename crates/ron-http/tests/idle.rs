//! Many idle connections; alone in its process because it measures memory.
#![allow(clippy::disallowed_methods)] // tests measure real time and start their own clients

mod support;

use ron_http::{Limits, Need, Response, Route};
use support::{Client, router, serve};

#[test]
fn a_thousand_idle_connections_cost_no_buffers_and_do_no_harm() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("allowed");
    let limits = Limits {
        max_conns: 4096, // all come from one address, which has half of them to itself
        ..Limits::default()
    };
    let hello = Route::get("/hello", Need::Public, |_| Ok(Response::text(200, "hello")));
    let served = serve(router().add(hello), limits, 4);
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/statm").expect("procfs");
        let pages = status.split(' ').nth(1).expect("a field").parse::<u64>();
        pages.expect("a number") * 4096
    };
    served.client().get("/hello");
    let before = resident();
    let idle: Vec<Client> = (0..1000)
        .map(|_| {
            let mut client = served.client();
            assert_eq!(client.get("/hello").status, 200);
            client
        })
        .collect();
    let grown = resident().saturating_sub(before);
    // Both ends are in this process; one buffer for each would be 64 MiB.
    assert!(grown < 16 << 20, "{grown} bytes for 1000 idle connections");
    let mut client = served.client();
    for _ in 0..100 {
        assert_eq!(client.get("/hello").status, 200);
    }
    assert!(served.metric("t_http_connections") >= 1000);
    drop(idle);
    served.until("all closed", |s| s.front.connections() <= 1);
}
