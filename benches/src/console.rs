//! The console under its specified load: many nodes with many series, a steady stream of overview
//! requests, and then the same with as many nodes that hang. Prints the table of
//! docs/bench/admin.md.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;

use crate::client::{Connection, request};
use crate::machine;

/// Connections that share the stream of requests.
const CONNECTIONS: u32 = 4;
/// Maximum time until the console has polled every node.
const WARM: Duration = Duration::from_secs(60);

#[derive(Args)]
pub struct ConsoleArgs {
    /// Seconds per figure.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Number of nodes that respond; as many hang in the second half.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    nodes: u64,
    /// Series per node.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    series: u64,
    /// Overview requests per second.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Path of the `svc-admin` binary; the one beside this program when absent.
    #[arg(long)]
    svc_admin: Option<PathBuf>,
}

pub fn run(args: &ConsoleArgs) -> Result<(), String> {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("svc-admin"));
    let binary = args.svc_admin.clone().or_else(beside);
    let binary = binary.ok_or("where is svc-admin?")?;
    let page: Arc<[u8]> = page(args.series).into_bytes().into();
    let mut ports = Vec::new();
    for _ in 0..args.nodes {
        ports.push(node(page.clone()).map_err(|e| e.to_string())?);
    }
    let mut hung = Vec::new();
    for _ in 0..args.nodes {
        hung.push(TcpListener::bind("127.0.0.1:0").map_err(|e| e.to_string())?);
    }
    let silent = hung
        .iter()
        .filter_map(|l| Some(l.local_addr().ok()?.port()));
    println!(
        "| nodes | CPU of one core | the same at {} requests/s | resident | threads | overview p50 ms | p99 ms | max ms | oldest poll of a good node | drain |",
        args.rate
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let what = format!("{} with {} series each, every 5 s", args.nodes, args.series);
    row(args, &binary, &ports, &what)?;
    let good = ports.len();
    ports.extend(silent);
    row(
        args,
        &binary,
        &ports,
        &format!("the same, and {} that hang", ports.len() - good),
    )
}

/// One console from start to drain.
fn row(args: &ConsoleArgs, binary: &Path, ports: &[u16], what: &str) -> Result<(), String> {
    let time = Duration::from_secs(args.seconds);
    let console = Console::start(binary, ports)?;
    console.warm(args.nodes as usize)?;
    let pid = console.child.id();
    let share = |before: f64| -> Result<f64, String> {
        Ok((machine::cpu_seconds(pid)? - before) * 100.0 / time.as_secs_f64())
    };
    let before = machine::cpu_seconds(pid)?;
    std::thread::sleep(time);
    let idle = share(before)?;
    let before = machine::cpu_seconds(pid)?;
    let micros = stream(&console.host, args.rate, time)?;
    let busy = share(before)?;
    let oldest = console.oldest_s(args.nodes as usize)?;
    let at = |share: usize| f64::from(micros[(micros.len() - 1) * share / 100]) / 1000.0;
    let (memory, threads) = (
        machine::status(pid, "VmHWM")?,
        machine::status(pid, "Threads")?,
    );
    let (p50, p99, max) = (at(50), at(99), at(100));
    let drain = console.drain()?;
    println!(
        "| {what} | {idle:.1} % | {busy:.1} % | {:.1} MiB | {threads} | {p50:.2} | {p99:.2} | {max:.2} | {oldest:.1} s | {} ms |",
        memory as f64 / 1024.0,
        drain.as_millis()
    );
    Ok(())
}

/// A metrics page as the services write it: request counters and histograms by route.
fn page(series: u64) -> String {
    let mut text = String::new();
    for n in 0..series {
        let _ = match n % 10 {
            0 => writeln!(
                text,
                "app_http_requests_total{{route=\"/v1/r{n}\",method=\"GET\",status=\"200\"}} {}",
                n * 7
            ),
            9 => writeln!(text, "app_queue_depth{{queue=\"q{n}\"}} 3"),
            k => writeln!(
                text,
                "app_http_request_duration_seconds_bucket{{route=\"/v1/r{n}\",method=\"GET\",le=\"0.{k}\"}} {n}"
            ),
        };
    }
    text
}

/// A node on a port of its own, for as long as this program runs.
fn node(page: Arc<[u8]>) -> std::io::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let page = page.clone();
            // An error means that the console has closed the connection.
            std::thread::spawn(move || drop(serve(stream, &page)));
        }
    });
    Ok(port)
}

fn serve(mut stream: TcpStream, page: &[u8]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = [0; 4096];
    loop {
        let mut filled = 0;
        while !buffer[..filled].ends_with(b"\r\n\r\n") {
            match stream.read(&mut buffer[filled..])? {
                0 => return Ok(()),
                n => filled += n,
            }
        }
        let (status, body): (u16, &[u8]) = if buffer.starts_with(b"GET /metrics ") {
            (200, page)
        } else if buffer.starts_with(b"GET /readyz ") {
            (200, b"{\"ready\":true}")
        } else {
            (404, b"")
        };
        let head = format!(
            "HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat())?;
    }
}

/// Requests at an even pace, timed from when each was due; microseconds, sorted.
fn stream(host: &str, rate: u32, time: Duration) -> Result<Vec<u32>, String> {
    let begin = Instant::now();
    let one = |first: u32| -> Result<Vec<u32>, String> {
        let mut connection = Connection::open(host)?;
        let bytes = request("GET", host, "/api/overview", &[], "");
        let mut micros = Vec::new();
        let mut n = first;
        loop {
            let due = begin + Duration::from_secs(1) * n / rate;
            if due >= begin + time {
                return Ok(micros);
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let answer = connection.call(&bytes)?;
            if answer.status != 200 {
                return Err(format!("the overview answered {}", answer.status));
            }
            micros.push(due.elapsed().as_micros() as u32);
            n += CONNECTIONS;
        }
    };
    let parts: Vec<Result<Vec<u32>, String>> = std::thread::scope(|scope| {
        let one = &one;
        // All are spawned before the first is joined.
        #[allow(clippy::needless_collect)]
        let running: Vec<_> = (0..CONNECTIONS)
            .map(|first| scope.spawn(move || one(first)))
            .collect();
        running
            .into_iter()
            .map(|c| c.join().expect("a client does not panic"))
            .collect()
    });
    let mut micros = Vec::new();
    for part in parts {
        micros.extend(part?);
    }
    micros.sort_unstable();
    if micros.is_empty() {
        Err("no request fits into the time".to_owned())
    } else {
        Ok(micros)
    }
}

/// The console in its own process, killed on drop.
struct Console {
    child: Child,
    host: String,
    _dir: tempfile::TempDir,
}

impl Console {
    fn start(binary: &Path, ports: &[u16]) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let free = || -> Result<u16, String> {
            let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| e.to_string())?;
            Ok(listener.local_addr().map_err(|e| e.to_string())?.port())
        };
        let (api, health) = (free()?, free()?);
        let mut text = format!(
            "bind_addr = \"127.0.0.1:{api}\"\nhealth_addr = \"127.0.0.1:{health}\"\n[log]\nlevel = \"error\"\n"
        );
        for (n, port) in ports.iter().enumerate() {
            let _ = writeln!(
                text,
                "[[nodes]]\nid = \"n{n}\"\nhealth_url = \"http://127.0.0.1:{port}\""
            );
        }
        let path = dir.path().join("config.toml");
        std::fs::write(&path, text).map_err(|e| e.to_string())?;
        let child = Command::new(binary)
            .arg("--config")
            .arg(&path)
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", binary.display()))?;
        Ok(Self {
            child,
            host: format!("127.0.0.1:{api}"),
            _dir: dir,
        })
    }

    fn overview(&self) -> Result<serde_json::Value, String> {
        let bytes = request("GET", &self.host, "/api/overview", &[], "");
        let answer = Connection::open(&self.host)?.call(&bytes)?;
        serde_json::from_slice(&answer.body).map_err(|e| e.to_string())
    }

    /// Waits until every good node is healthy and the others are known to be down.
    fn warm(&self, good: usize) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            if let Ok(overview) = self.overview() {
                let counts = &overview["counts"];
                let unknown = counts["unknown"].as_u64();
                if counts["healthy"].as_u64() == Some(good as u64) && unknown == Some(0) {
                    return Ok(());
                }
            }
            if begin.elapsed() > WARM {
                return Err("the console does not find its nodes healthy".to_owned());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Seconds since the poll of the good node that waits longest.
    fn oldest_s(&self, good: usize) -> Result<f64, String> {
        let overview = self.overview()?;
        let ms = |value: &serde_json::Value| -> Option<f64> {
            // Both times are of the same day or the next, so the time of day is enough.
            let text = value.as_str()?.split('T').nth(1)?.trim_end_matches('Z');
            let mut parts = text.split(':').map(|p| p.parse::<f64>().ok());
            Some((parts.next()?? * 60.0 + parts.next()??) * 60.0 + parts.next()??)
        };
        let now = ms(&overview["asOf"]).ok_or("no asOf")?;
        let rows = overview["nodes"].as_array().ok_or("no nodes")?;
        let healthy = rows.iter().filter(|r| r["summary"]["state"] == "healthy");
        let ages: Vec<f64> = healthy
            .filter_map(|r| Some((now - ms(&r["summary"]["polledAt"])?).rem_euclid(86_400.0)))
            .collect();
        if ages.len() < good {
            return Err(format!("only {} nodes are healthy", ages.len()));
        }
        Ok(ages.into_iter().fold(0.0, f64::max))
    }

    /// SIGTERM; returns the time until a clean exit.
    fn drain(mut self) -> Result<Duration, String> {
        let pid = self.child.id().to_string();
        let begin = Instant::now();
        let told = Command::new("kill").args(["-TERM", &pid]).status();
        told.map_err(|e| e.to_string())?;
        let status = self.child.wait().map_err(|e| e.to_string())?;
        if status.success() {
            Ok(begin.elapsed())
        } else {
            Err(format!("it ended with {status}"))
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
