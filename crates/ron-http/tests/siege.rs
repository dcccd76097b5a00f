//! A separate process under attack: slow heads, slow bodies, floods and clients that do not read,
//! all at once, while ordinary clients are served and memory stays small.
#![allow(clippy::disallowed_methods)] // tests measure real time and start their own clients

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::Client;

/// The example, built beside this test; killed when dropped.
struct Process {
    child: Child,
    addr: SocketAddr,
}

impl Process {
    fn start() -> Self {
        let own = std::env::current_exe().expect("a path");
        let built: PathBuf = own
            .parent()
            .and_then(|deps| deps.parent())
            .expect("target/profile/deps")
            .join("examples/hello");
        let mut child = Command::new(&built)
            .args(["127.0.0.1:0", "4", "60"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example is built: cargo build -p ron-http --examples, in the profile of this test");
        let mut line = String::new();
        let out = child.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let addr = line
            .trim_start_matches("http://")
            .split(' ')
            .next()
            .expect("an address");
        Self {
            addr: addr.parse().expect("an address"),
            child,
        }
    }

    /// Resident memory in bytes.
    fn memory(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.child.id());
        let text = std::fs::read_to_string(path).expect("it runs");
        let pages: u64 = text
            .split(' ')
            .nth(1)
            .expect("a field")
            .parse()
            .expect("a number");
        pages * 4096
    }

    fn client(&self) -> Client {
        Client::connect(self.addr)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn many(process: &Process, count: usize, head: &str) -> Vec<TcpStream> {
    (0..count)
        .map(|_| {
            let mut stream = TcpStream::connect(process.addr).expect("accepted");
            stream.write_all(head.as_bytes()).expect("taken");
            stream.set_nonblocking(true).expect("a socket option");
            stream
        })
        .collect()
}

#[test]
fn ordinary_clients_are_served_in_time_while_others_attack() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("allowed");
    let process = Process::start();
    assert_eq!(process.client().get("/hello").status, 200);

    let mut slow = many(&process, 500, "GET /hello HTTP/1.1\r\nHost: t\r\nX: ");
    slow.extend(many(
        &process,
        500,
        "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n\
         Content-Length: 100000\r\n\r\n",
    ));
    let _deaf = many(&process, 8, "GET /large HTTP/1.1\r\nHost: t\r\n\r\n");
    let mut flood = many(&process, 1, "");
    let pipelined = "GET /hello HTTP/1.1\r\nHost: t\r\n\r\n".repeat(5000);

    let mut client = process.client();
    let (mut took, start, mut peak) = (Vec::new(), Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(3) {
        for stream in &mut slow {
            let _ = stream.write(b"a"); // refused once the front has had enough
        }
        let _ = flood[0].write(pipelined.as_bytes()); // full, after a while
        for _ in 0..20 {
            let asked = Instant::now();
            assert_eq!(client.get("/hello").status, 200);
            took.push(asked.elapsed());
        }
        peak = peak.max(process.memory());
    }
    took.sort_unstable();
    let p99 = took[took.len() * 99 / 100];
    // Each was answered 200; how fast on a quiet machine is in docs/bench/http.md.
    println!("p99 {p99:?} of {}", took.len());
    assert!(peak < 32 << 20, "{peak} bytes resident");

    // It recovers by itself: heads and bodies are cut at their total deadlines.
    let start = Instant::now();
    let open = || {
        let path = format!("/proc/{}/fd", process.child.id());
        std::fs::read_dir(path).expect("it runs").count()
    };
    while open() > 60 {
        assert!(start.elapsed() < Duration::from_secs(25), "{} open", open());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(process.client().get("/hello").status, 200);
}
