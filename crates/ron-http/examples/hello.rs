//! A front with three small routes, to be loaded by a benchmark tool:
//! `cargo run --release -p ron-http --example hello -- 127.0.0.1:8080 16 20`
//! (address, workers, seconds to run).
//!
//! `GET /hello` answers from the worker, `POST /echo` parses and writes JSON, `GET /deferred`
//! answers from another thread, `GET /large` answers 32 MB.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{
    ApiInfo, DenyAll, FRONT_LOCKS, Front, FrontSpec, Limits, Method, Need, Request, Responder,
    Response, Route, Router,
};
use ron_kernel::net::Address;
use ron_kernel::{
    Count, Deadline, KernelMetrics, Net as _, OsNet, OsRandom, Overflow, QueueSpec, Recv, Registry,
    SendError, Shutdown, Stage, Supervisor, SystemClock, ThreadSpec, Topology, queue,
};
use ron_proto::Problem;

static POLL: ThreadSpec = ThreadSpec {
    name: "hello-poll",
    count: Count::One,
    stage: Stage::Front,
    critical: true,
    job: "accepts and watches connections",
};
static WORKERS: ThreadSpec = ThreadSpec {
    name: "hello-http-",
    count: Count::Pool("workers"),
    stage: Stage::Front,
    critical: false,
    job: "serves requests",
};
static LATER: ThreadSpec = ThreadSpec {
    name: "hello-later",
    count: Count::One,
    stage: Stage::Work,
    critical: false,
    job: "answers deferred requests",
};
static CONNS: QueueSpec = QueueSpec {
    name: "http",
    capacity: 1024,
    overflow: Overflow::RejectNew,
    from: "hello-poll",
    to: "hello-http-*",
    when_full: "the connection is closed",
};
static JOBS: QueueSpec = QueueSpec {
    name: "jobs",
    capacity: 1024,
    overflow: Overflow::RejectNew,
    from: "hello-http-*",
    to: "hello-later",
    when_full: "429 with Retry-After",
};
static TOPOLOGY: Topology = Topology {
    service: "hello",
    threads: &[POLL, WORKERS, LATER],
    queues: &[CONNS, JOBS],
    locks: &FRONT_LOCKS,
};

/// Part of the program: costs no memory until it is sent.
static LARGE: &[u8] = &[0; 32_000_000];

fn echo(request: &Request) -> Result<Response, Problem> {
    let value: serde_json::Value = request.json()?;
    Ok(Response::json(200, &value))
}

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let addr = args.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let mut number = |default| {
        args.next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let (workers, seconds) = (number(16), number(20));

    let registry = Registry::new("hello");
    let km = KernelMetrics::new(&registry);
    let clock = SystemClock::shared();
    let sup = Supervisor::new(&TOPOLOGY, km.clone(), clock.clone());
    let (jobs, todo) = queue::<Responder>(&JOBS, JOBS.capacity, &km);
    sup.spawn(&LATER, move |ctx| {
        loop {
            match todo.recv(&ctx.shutdown, Deadline::within(Duration::from_secs(10))) {
                Recv::Item(responder) => responder.send(Response::text(200, "later")),
                Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => return,
            }
        }
    });
    let info = ApiInfo {
        title: "hello",
        version: "1",
        description: "For measuring.",
    };
    let deferred = move |_, responder| {
        if let Err(SendError::Full(back) | SendError::Closed(back)) = jobs.try_send(responder) {
            back.send(Problem::busy(jobs.retry_after_s()));
        }
    };
    let router = Router::new(info)
        .add(Route::get("/hello", Need::Public, |_| {
            Ok(Response::bytes(
                200,
                "application/json",
                &br#"{"message":"hello, world"}"#[..],
            ))
        }))
        .add(Route::post("/echo", Need::Public, echo).body::<serde_json::Value>())
        .add(Route::get("/large", Need::Public, |_| {
            Ok(Response::bytes(200, "application/octet-stream", LARGE))
        }))
        .add(Route::new(Method::GET, "/deferred", Need::Public, deferred));
    let spec = FrontSpec {
        poll: &POLL,
        workers: &WORKERS,
        queue: &CONNS,
        spans: None,
    };
    let limits = Limits {
        max_conns: 4096,
        max_in_flight: 4096,
        ..Limits::default()
    };
    let front = Front::start(
        &spec,
        OsNet.bind(&Address::Tcp(addr.parse().map_err(std::io::Error::other)?))?,
        router,
        Arc::new(DenyAll),
        limits,
        workers,
        &sup,
        &registry,
        &km,
        clock,
        &OsRandom,
    )?;
    println!(
        "http://{} with {workers} workers for {seconds} s",
        front.addr()
    );
    let (_keep, never) = Shutdown::pair();
    never.wait(Deadline::within(Duration::from_secs(seconds as u64)));
    front.stop_intake();
    let report = sup.drain(Duration::from_secs(5));
    println!(
        "drained in {:?}, stragglers {:?}",
        report.took, report.stragglers
    );
    Ok(())
}
