//! The two routes on ron-http: two workers, or the number in the second argument, and one thread
//! behind the queue.

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
use ron_rivals::{HELLO, Hello, Order, QUEUE, address};

static POLL: ThreadSpec = ThreadSpec {
    name: "riv-poll",
    count: Count::One,
    stage: Stage::Front,
    critical: true,
    job: "accepts and watches connections",
};
static WORKERS: ThreadSpec = ThreadSpec {
    name: "riv-http-",
    count: Count::Pool("workers"),
    stage: Stage::Front,
    critical: false,
    job: "serves requests",
};
static ECHO: ThreadSpec = ThreadSpec {
    name: "riv-echo",
    count: Count::One,
    stage: Stage::Work,
    critical: false,
    job: "answers what came through the queue",
};
static CONNS: QueueSpec = QueueSpec {
    name: "http",
    capacity: 8192,
    overflow: Overflow::RejectNew,
    from: "riv-poll",
    to: "riv-http-*",
    when_full: "the connection is closed",
};
static JOBS: QueueSpec = QueueSpec {
    name: "jobs",
    capacity: QUEUE,
    overflow: Overflow::RejectNew,
    from: "riv-http-*",
    to: "riv-echo",
    when_full: "429 with Retry-After",
};
static TOPOLOGY: Topology = Topology {
    service: "rival",
    threads: &[POLL, WORKERS, ECHO],
    queues: &[CONNS, JOBS],
    locks: &FRONT_LOCKS,
};

fn main() -> std::io::Result<()> {
    let workers = std::env::args().nth(2).and_then(|n| n.parse().ok());
    let registry = Registry::new("rival");
    let km = KernelMetrics::new(&registry);
    let clock = SystemClock::shared();
    let sup = Supervisor::new(&TOPOLOGY, km.clone(), clock.clone());
    let (jobs, todo) = queue::<(Order, Responder)>(&JOBS, JOBS.capacity, &km);
    sup.spawn(&ECHO, move |ctx| {
        loop {
            match todo.recv(&ctx.shutdown, Deadline::within(Duration::from_secs(10))) {
                Recv::Item((order, responder)) => responder.send(Response::json(200, &order)),
                Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => return,
            }
        }
    });
    let echo = move |request: Request, responder: Responder| {
        let order = match request.json::<Order>() {
            Ok(order) => order,
            Err(problem) => return responder.send(problem),
        };
        if let Err(SendError::Full(back) | SendError::Closed(back)) =
            jobs.try_send((order, responder))
        {
            back.1.send(Problem::busy(jobs.retry_after_s()));
        }
    };
    let info = ApiInfo {
        title: "rival",
        version: "1",
        description: "For measuring.",
    };
    let hello = Route::get("/hello", Need::Public, |_| Ok(Response::json(200, &HELLO)))
        .returns::<Hello>(200);
    let echo = Route::new(Method::POST, "/echo", Need::Public, echo)
        .body::<Order>()
        .returns::<Order>(200);
    let router = Router::new(info).add(hello).add(echo);
    let limits = Limits {
        max_conns: 4096,
        max_in_flight: 4096,
        ..Limits::default()
    };
    let spec = FrontSpec {
        poll: &POLL,
        workers: &WORKERS,
        queue: &CONNS,
        spans: None,
    };
    let front = Front::start(
        &spec,
        OsNet.bind(&Address::Tcp(address().parse().map_err(std::io::Error::other)?))?,
        router,
        Arc::new(DenyAll),
        limits,
        workers.unwrap_or(2),
        &sup,
        &registry,
        &km,
        clock,
        &OsRandom,
    )?;
    println!("{}", front.addr());
    let (_keep, never) = Shutdown::pair();
    never.wait(Deadline::within(Duration::from_hours(24))); // ended by its process id
    Ok(())
}
