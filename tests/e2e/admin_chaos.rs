//! The console against nodes that hang, drip, flood, send garbage and flap: the page stays quick,
//! memory and threads stay bounded, healthy nodes are polled in time, and the drain ends while a
//! hundred nodes hang.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_http::{Call, HttpClient};
use ron_kernel::Deadline;
use ron_proto::Timestamp;
use ron_proto::admin::{NodeState, NodeStatus, Overview, OverviewNode};
use ron_tests::tools::{Process, service};
use ron_tests::{free_port, http_client, unhurried, until, workspace};

const HUNG: usize = 100;
const GOOD: usize = 8;
/// Number of nodes of each other kind.
const EACH: usize = 4;
const INTERVAL: Duration = Duration::from_secs(1);
/// Duration of the observation. The first polls, and two timeouts of 3 s, must fit.
const WATCHED: Duration = Duration::from_secs(12);
const MEMORY_KIB: u64 = 256 * 1024;

/// How a node treats a connection.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Good,
    /// Correct, with few metrics.
    Small,
    /// Sends one byte of its response at a time.
    Drip,
    /// Sends 100 MB of metrics.
    Flood,
    /// Sends bytes that are not HTTP.
    Garbage,
    /// Sends HTTP with bytes that are not metrics.
    Babble,
    /// Up for a second, down for a second.
    Flap,
}

/// Nodes simulated by this test. Their threads end with the test's process or, if they wait for a
/// connection, when this is dropped.
struct Nodes {
    over: Arc<AtomicBool>,
    ports: Vec<(String, u16)>,
    _hung: Vec<TcpListener>,
}

impl Nodes {
    fn start() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let mut ports = Vec::new();
        let mut hung = Vec::new();
        for n in 0..HUNG {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            ports.push((format!("hung-{n}"), listener.local_addr().unwrap().port()));
            hung.push(listener);
        }
        let others = [
            Kind::Drip,
            Kind::Flood,
            Kind::Garbage,
            Kind::Babble,
            Kind::Flap,
        ];
        let kinds = std::iter::repeat_n(Kind::Good, GOOD).chain(
            others
                .into_iter()
                .flat_map(|kind| std::iter::repeat_n(kind, EACH)),
        );
        for (n, kind) in kinds.enumerate() {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let name = format!("{kind:?}-{n}").to_lowercase();
            ports.push((name, listener.local_addr().unwrap().port()));
            let over = over.clone();
            std::thread::spawn(move || accept(&listener, kind, &over));
        }
        Self {
            over,
            ports,
            _hung: hung,
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        for (name, port) in &self.ports {
            if !name.starts_with("hung") {
                let _ = TcpStream::connect(("127.0.0.1", *port)); // wakes the accept
            }
        }
    }
}

fn accept(listener: &TcpListener, kind: Kind, over: &Arc<AtomicBool>) {
    let started = Instant::now();
    while let Ok((stream, _)) = listener.accept() {
        if over.load(Ordering::SeqCst) {
            return;
        }
        let up = !matches!(kind, Kind::Flap) || started.elapsed().as_secs().is_multiple_of(2);
        let over = over.clone();
        std::thread::spawn(move || {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            let _ = stream.set_write_timeout(Some(Duration::from_secs(10)));
            // An error means that the console has closed the connection, which is allowed.
            let _ = if up {
                serve(stream, kind, &over)
            } else {
                Ok(())
            };
        });
    }
}

fn serve(mut stream: TcpStream, kind: Kind, over: &AtomicBool) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0; 1];
    loop {
        head.clear();
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read(&mut byte)? == 0 {
                return Ok(());
            }
            head.push(byte[0]);
        }
        if matches!(kind, Kind::Garbage) {
            return stream.write_all(&[0xd7; 4096]);
        }
        let path = String::from_utf8_lossy(&head);
        let path = path.split(' ').nth(1).unwrap_or("").to_owned();
        match path.as_str() {
            "/readyz" => answer(&mut stream, 200, br#"{"ready":true}"#)?,
            "/metrics" => metrics(&mut stream, kind, over)?,
            _ => answer(&mut stream, 404, b"")?,
        }
    }
}

fn answer(stream: &mut TcpStream, status: u16, body: &[u8]) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())
}

fn metrics(stream: &mut TcpStream, kind: Kind, over: &AtomicBool) -> std::io::Result<()> {
    match kind {
        Kind::Drip => {
            let text = b"HTTP/1.1 200 x\r\nContent-Length: 1000\r\n\r\nup 1\n";
            for byte in text.iter().cycle() {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                stream.write_all(&[*byte])?;
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        }
        Kind::Flood => {
            stream.write_all(b"HTTP/1.1 200 x\r\nContent-Length: 104857600\r\n\r\n")?;
            let line = b"flood_total{a=\"b\"} 1\n".repeat(5_000);
            (0..1_000).try_for_each(|_| stream.write_all(&line))
        }
        Kind::Babble => answer(
            stream,
            200,
            &b"\xff{{{\"\n\x00a{b=\"\xc3\"} x\n".repeat(1_000),
        ),
        _ => {
            let mut body = String::new();
            for n in 0..if matches!(kind, Kind::Small) { 10 } else { 500 } {
                let _ = writeln!(
                    body,
                    "app_http_requests_total{{route=\"/r{n}\",status=\"200\"}} {n}"
                );
            }
            answer(stream, 200, body.as_bytes())
        }
    }
}

/// The real binary, killed on drop.
struct Console {
    child: Process,
    api: String,
    http: HttpClient,
    _dir: tempfile::TempDir,
}

impl Console {
    fn start(nodes: &[(String, u16)], interval: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (api, health) = (free_port(), free_port());
        let mut text = format!(
            "bind_addr = \"127.0.0.1:{api}\"\nhealth_addr = \"127.0.0.1:{health}\"\n[log]\nlevel = \"error\"\n\
             [sampler]\nmetrics_interval = \"{}s\"\nmetrics_window = \"60s\"\n",
            interval.as_secs()
        );
        for (name, port) in nodes {
            let _ = writeln!(
                text,
                "[[nodes]]\nid = \"{name}\"\nhealth_url = \"http://127.0.0.1:{port}\""
            );
        }
        let path = dir.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        let mut command = service("svc-admin", &path, [""; 0]);
        let console = Self {
            child: Process::start(unhurried(&mut command)),
            api: format!("http://127.0.0.1:{api}"),
            http: http_client(),
            _dir: dir,
        };
        until("it starts", || console.try_get("/api/overview").is_some());
        console
    }

    fn try_get(&self, path: &str) -> Option<Vec<u8>> {
        let url = format!("{}{path}", self.api);
        let call = Call::get(&url, Deadline::within(Duration::from_secs(5)));
        let reply = self.http.call(call).ok()?;
        (reply.status == 200).then_some(reply.body)
    }

    fn read<T: serde::de::DeserializeOwned>(&self, path: &str) -> T {
        let body = self.try_get(path).unwrap_or_else(|| panic!("{path}"));
        serde_json::from_slice(&body).unwrap()
    }

    /// A number of `/proc/<pid>/status`.
    fn proc(&self, key: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap()
            .split_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }
}

fn is(row: &OverviewNode, kind: &str) -> bool {
    row.summary.id.starts_with(kind)
}

#[test]
fn hostile_nodes_affect_only_themselves() {
    let nodes = Nodes::start();
    let mut console = Console::start(&nodes.ports, INTERVAL);
    let mut took = Vec::new();
    let started = Instant::now();
    let mut last: Overview = console.read("/api/overview");
    while started.elapsed() < WATCHED {
        let asked = Instant::now();
        let body = console.try_get("/api/overview").expect("it answers");
        took.push(asked.elapsed());
        last = serde_json::from_slice(&body).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    took.sort();
    let p99 = took[took.len() * 99 / 100];
    let (memory, threads) = (console.proc("VmHWM"), console.proc("Threads"));
    println!(
        "overview p50 {:?}, p99 {p99:?} of {}; {memory} KiB, {threads} threads",
        took[took.len() / 2],
        took.len()
    );
    assert!(memory <= MEMORY_KIB, "{memory} KiB");
    assert!(
        threads as usize <= nodes.ports.len() + 40,
        "{threads} threads"
    );
    // Whatever the other nodes do, every good node is polled at its interval.
    until("all good nodes are healthy and fresh", || {
        last = console.read("/api/overview");
        let mut good = last.nodes.iter().filter(|row| is(row, "good"));
        good.all(|row| {
            let polled = row.summary.polled_at.map_or(0, Timestamp::unix_ms);
            let age = Duration::from_millis(last.as_of.unix_ms().saturating_sub(polled));
            row.summary.state == NodeState::Healthy && age <= INTERVAL * 3
        })
    });
    said(&console, &last);
    drains(&mut console);
}

/// The console reports each kind of node correctly.
fn said(console: &Console, overview: &Overview) {
    assert_eq!(overview.nodes.len(), HUNG + GOOD + 5 * EACH);
    for row in &overview.nodes {
        let (state, code) = (
            row.summary.state,
            row.summary.reasons.first().map(|r| r.code.as_str()),
        );
        if is(row, "hung") {
            assert_eq!(
                (state, code),
                (NodeState::Down, Some("timeout")),
                "{}",
                row.summary.id
            );
        }
        if is(row, "garbage") {
            assert_eq!(state, NodeState::Down, "{:?}", row.summary.reasons);
        }
        if is(row, "flood") || is(row, "drip") {
            let status: NodeStatus = console.read(&format!("/api/nodes/{}/status", row.summary.id));
            let error = status.polling.last_error.unwrap_or_default();
            assert!(
                error.starts_with("/metrics: "),
                "{}: {error:?}",
                row.summary.id
            );
        }
        if is(row, "babble") {
            let status: NodeStatus = console.read(&format!("/api/nodes/{}/status", row.summary.id));
            assert!(status.polling.lines_skipped > 1_000, "{:?}", status.polling);
        }
    }
}

/// SIGTERM while every sampler is busy: all threads end by the drain's deadline; otherwise the exit
/// code differs.
fn drains(console: &mut Console) {
    let told = Instant::now();
    let code = console.child.stop();
    println!("drained in {:?}", told.elapsed());
    assert_eq!(code, Some(0), "a straggler");
}

/// A thousand nodes, every seventh down: the browser shows the problems first and stays quick.
#[test]
fn a_thousand_nodes_are_quick_in_a_real_browser() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let over = Arc::new(AtomicBool::new(false));
    let seen = over.clone();
    std::thread::spawn(move || accept(&listener, Kind::Small, &seen));
    let gone = free_port();
    let nodes: Vec<(String, u16)> = (0..1_000)
        .map(|n| (format!("n-{n:04}"), if n % 7 == 3 { gone } else { port }))
        .collect();
    let console = Console::start(&nodes, Duration::from_secs(10));
    let shots = workspace().join("target/test-artifacts");
    std::fs::create_dir_all(&shots).unwrap();
    let out = Command::new("node")
        .arg(workspace().join("tests/browser/thousand.mjs"))
        .args(["--url", &format!("{}/", console.api), "--shots"])
        .arg(&shots)
        .output()
        .expect("node is installed by scripts/setup.sh");
    println!("{}", String::from_utf8_lossy(&out.stdout));
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    over.store(true, Ordering::SeqCst);
    let _ = TcpStream::connect(("127.0.0.1", port));
}
