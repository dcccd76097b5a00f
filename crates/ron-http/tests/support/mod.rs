//! A front on loopback for tests, and a client that sends exactly the given bytes.
#![allow(dead_code)] // each test file uses its part
#![allow(clippy::disallowed_methods)] // tests measure real time and start their own clients

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_http::{
    ApiInfo, Authorizer, FRONT_LOCKS, Front, FrontHandle, FrontSpec, Limits, Listen, Need,
    Principal, PrincipalKind, RequestHead, Router,
};
use ron_kernel::net::{Address, SharedListener};
use ron_kernel::{
    Count, KernelMetrics, Net as _, OsNet, OsRandom, Overflow, QueueSpec, Registry, Stage,
    Supervisor, SystemClock, ThreadSpec, Topology,
};
use ron_proto::Problem;
use tempfile::TempDir;

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

/// A directory that only its owner can enter, as a Unix socket needs.
pub fn private() -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).expect("mode");
    dir
}

/// Accepts only `Bearer good`, with scope `t:read`.
struct OneToken;

impl Authorizer for OneToken {
    fn authorize(&self, head: &RequestHead, need: &Need) -> Result<Principal, Problem> {
        if head.bearer() != Some("good") {
            return Err(Problem::unauthorized("send a token"));
        }
        let principal = Principal {
            name: "tester".to_owned(),
            kind: PrincipalKind::Service,
            scopes: Arc::from(["t:read".to_owned()]),
            ..Principal::public()
        };
        match need {
            Need::Scope(scope) if !principal.has_scope(scope) => {
                Err(Problem::forbidden("the token lacks the scope"))
            }
            _ => Ok(principal),
        }
    }
}

/// A running front; drained when dropped.
pub struct Served {
    pub front: FrontHandle,
    pub sup: Supervisor,
    pub registry: Registry,
}

pub fn router() -> Router {
    Router::new(ApiInfo {
        title: "test",
        version: "1",
        description: "",
    })
}

/// A socket on a free port of loopback.
pub fn free_port() -> SharedListener {
    let any = Address::Tcp(([127, 0, 0, 1], 0).into());
    OsNet.bind(&any).expect("a free port")
}

pub fn serve(router: Router, limits: Limits, workers: usize) -> Served {
    serve_on(free_port(), router, limits, workers)
}

pub fn serve_on(
    listen: impl Into<Listen>,
    router: Router,
    limits: Limits,
    workers: usize,
) -> Served {
    serve_as(listen, router, limits, workers, Arc::new(OneToken))
}

pub fn serve_as(
    listen: impl Into<Listen>,
    router: Router,
    limits: Limits,
    workers: usize,
    authorizer: Arc<dyn Authorizer>,
) -> Served {
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
    let front = Front::start(
        &spec, listen, router, authorizer, limits, workers, &sup, &registry, &km, clock, &OsRandom,
    );
    Served {
        front: front.expect("the front starts"),
        sup,
        registry,
    }
}

impl Served {
    pub fn addr(&self) -> SocketAddr {
        self.front.addr()
    }

    pub fn client(&self) -> Client {
        Client::connect(self.addr())
    }

    /// A client that comes from another address of this host.
    pub fn client_from(&self, source: [u8; 4]) -> Client {
        Client::on(connect_from(source, self.addr()))
    }

    /// The value of one series, 0 when it does not exist.
    pub fn metric(&self, series: &str) -> i64 {
        let text = self.registry.render();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |value| value.trim().parse().expect("a whole number"))
    }

    /// Waits until the condition holds.
    pub fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "not within 30 s: {what}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let report = self.sup.drain(Duration::from_secs(10));
        if !std::thread::panicking() {
            assert_eq!(report.stragglers, Vec::<String>::new());
        }
    }
}

/// One answer, as read from the socket.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a text body")
    }

    pub fn code(&self) -> String {
        let body: serde_json::Value = serde_json::from_slice(&self.body).expect("a problem");
        body["code"].as_str().expect("a code").to_owned()
    }
}

/// A connection from an address of this host, any in 127.0.0.0/8.
pub fn connect_from(source: [u8; 4], to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
    let socket = socket.expect("a socket");
    bind(&socket, &SocketAddr::from((source, 0))).expect("an address of this host");
    connect(&socket, &to).expect("the front accepts");
    TcpStream::from(socket)
}

/// A blocking connection that gives up after ten seconds.
pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Self {
        Self::on(TcpStream::connect(addr).expect("the front accepts"))
    }

    pub fn on(stream: TcpStream) -> Self {
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a socket option");
        stream
            .set_write_timeout(Some(Duration::from_secs(10)))
            .expect("a socket option");
        stream.set_nodelay(true).expect("a socket option");
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.stream
            .write_all(bytes.as_ref())
            .expect("the front reads");
        self
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n"))
            .answer()
    }

    pub fn post(&mut self, path: &str, headers: &str, body: &str) -> Answer {
        let length = body.len();
        self.send(format!(
            "POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        ))
        .answer()
    }

    /// The next answer; panics when the connection ends before.
    pub fn answer(&mut self) -> Answer {
        self.try_answer(false)
            .expect("an answer before the end of the connection")
    }

    /// The next answer to a HEAD request.
    pub fn head_answer(&mut self) -> Answer {
        self.try_answer(true)
            .expect("an answer before the end of the connection")
    }

    pub fn try_answer(&mut self, bodiless: bool) -> Option<Answer> {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            if !self.fill() {
                return None;
            }
        };
        let head = String::from_utf8(self.buffer.drain(..end).collect()).expect("an ASCII head");
        let status = head[9..12].parse().expect("a status");
        let mut answer = Answer {
            status,
            head,
            body: Vec::new(),
        };
        let length = answer
            .header("content-length")
            .map_or(0, |v| v.parse().expect("a length"));
        let length: usize = if bodiless { 0 } else { length };
        while self.buffer.len() < length {
            if !self.fill() {
                return None;
            }
        }
        answer.body = self.buffer.drain(..length).collect();
        Some(answer)
    }

    fn fill(&mut self) -> bool {
        let mut piece = vec![0; 65536];
        match self.stream.read(&mut piece) {
            Ok(0) => false,
            Ok(count) => {
                self.buffer.extend_from_slice(&piece[..count]);
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// True when the front closes the connection without sending more.
    pub fn is_closed(&mut self) -> bool {
        self.buffer.is_empty() && !self.fill()
    }
}
