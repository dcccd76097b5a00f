//! Hosts that a world brings along itself: clients, and servers that are no service of ron; and what happens to the network
//! between hosts.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ron_http::{
    ClientConfig, DenyAll, FRONT_LOCKS, Front, FrontHandle, FrontSpec, HttpClient, Limits, Listen,
    Router,
};
use ron_kernel::net::Address;
use ron_kernel::{
    Count, KernelMetrics, Net as _, Overflow, QueueSpec, Registry, SeededRandom, Stage, Supervisor,
    SystemClock, ThreadSpec, Topology,
};
use ron_sim::{fault, time};

use crate::chance::{below, ms};
use crate::net::{Host, SimNet};

static POLL: ThreadSpec = ThreadSpec {
    name: "t-http-poll",
    count: Count::One,
    stage: Stage::Front,
    critical: true,
    job: "accepts and watches",
};
static WORKERS: ThreadSpec = ThreadSpec {
    name: "t-http-",
    count: Count::Pool("http.workers"),
    stage: Stage::Front,
    critical: false,
    job: "serves",
};
static QUEUE: QueueSpec = QueueSpec {
    name: "http",
    capacity: 1024,
    overflow: Overflow::RejectNew,
    from: "t-http-poll",
    to: "t-http-*",
    when_full: "closed",
};
static TOPOLOGY: Topology = Topology {
    service: "test",
    threads: &[POLL, WORKERS],
    queues: &[QUEUE],
    locks: &FRONT_LOCKS,
};

/// Longest answer time of a front, unless a request asks for a shorter one.
pub const REQUEST: Duration = Duration::from_secs(3);

/// The address of a client's host.
pub fn client_ip(number: u8) -> IpAddr {
    IpAddr::from([127, 0, 2, number + 1])
}

/// A client of services on this host, whose random numbers follow from `seed`.
pub fn client(host: Host, seed: u64) -> HttpClient {
    HttpClient::new(ClientConfig {
        net: Arc::new(host),
        random: Arc::new(SeededRandom::new(seed)),
        // Every call is to reach the network.
        breaker: None,
        insecure_loopback: true,
        connect_timeout: ms(500),
        ..ClientConfig::default()
    })
}

/// Starts a front with these routes on port 80 of a host. Its threads belong to the process that calls.
pub fn front(host: Host, routes: Router, workers: usize) -> (FrontHandle, Supervisor) {
    let addr = SocketAddr::new(host.ip, 80);
    let listener = host.bind(&Address::Tcp(addr)).expect("a free port");
    let registry = Registry::new("t");
    let km = KernelMetrics::new(&registry);
    let clock = SystemClock::shared();
    let sup = Supervisor::new(&TOPOLOGY, km.clone(), clock.clone());
    let spec = FrontSpec {
        poll: &POLL,
        workers: &WORKERS,
        queue: &QUEUE,
        spans: None,
    };
    let limits = Limits {
        max_conns: 16,
        request_deadline: REQUEST,
        ..Limits::default()
    };
    let front = Front::start(
        &spec,
        Listen::on(Arc::new(host)).tcp(listener, None),
        routes,
        Arc::new(DenyAll),
        limits,
        workers,
        &sup,
        &registry,
        &km,
        clock,
        &SeededRandom::new(1),
    );
    (front.expect("the front starts"), sup)
}

/// Two hosts do not reach each other for a while, which is below `longest_ms`.
pub fn part(net: &SimNet, a: IpAddr, b: IpAddr, longest_ms: u64) {
    fault::happened("hosts are parted");
    net.part(a, b);
    time::sleep(ms(below(longest_ms)));
    net.join(a, b);
}
