//! A blocking HTTP/1.1 client with little overhead, and the loop that measures with it: each client
//! is a thread with one connection that sends the next request when the last one is answered.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Makes the requests of one client.
pub type Maker = Box<dyn FnMut() -> Vec<u8> + Send>;

/// Head of the table that [`Figure::row`] adds to.
pub const HEADER: &str = "| figure | clients | per second | p50 ms | p99 ms | max ms | refused |\n|---|--:|--:|--:|--:|--:|--:|";

/// Timeout of one response.
const ANSWER: Duration = Duration::from_secs(30);

/// The result of a load.
pub struct Figure {
    micros: Vec<u32>,
    seconds: f64,
    refused: u64,
    /// The first response that was not a success.
    refusal: Option<String>,
}

impl Figure {
    fn refuse(&mut self, answer: &Answer) {
        self.refused += 1;
        self.refusal.get_or_insert_with(|| {
            let text = String::from_utf8_lossy(&answer.body);
            let start: String = text.chars().take(120).collect();
            format!("{} {start}", answer.status)
        });
    }

    /// One row; each response counts for `per` operations.
    pub fn row(&self, name: &str, clients: usize, per: usize) -> String {
        let at = |share: usize| {
            let index = self.micros.len().saturating_sub(1) * share / 100;
            f64::from(self.micros.get(index).copied().unwrap_or(0)) / 1000.0
        };
        let rate = (self.micros.len() * per) as f64 / self.seconds;
        let note = match &self.refusal {
            Some(text) => format!(" ({text})"),
            None => String::new(),
        };
        format!(
            "| {name} | {clients} | {rate:.0} | {:.2} | {:.2} | {:.2} | {}{note} |",
            at(50),
            at(99),
            at(100),
            self.refused
        )
    }
}

impl Figure {
    /// Answers that were a success.
    pub fn answers(&self) -> usize {
        self.micros.len()
    }

    /// A quantile of the response times, in milliseconds.
    pub fn quantile_ms(&self, share: usize) -> f64 {
        let index = self.micros.len().saturating_sub(1) * share / 100;
        f64::from(self.micros.get(index).copied().unwrap_or(0)) / 1000.0
    }
}

/// One request on a connection of its own: status and body of the response.
pub fn once(host: &str, request: &[u8]) -> Result<(u16, String), String> {
    let mut connection = Connection::open(host)?;
    let answer = connection.call(request)?;
    Ok((
        answer.status,
        String::from_utf8_lossy(&answer.body).into_owned(),
    ))
}

/// `http://host:port/path` as host and path.
pub fn split(url: &str) -> Result<(String, String), String> {
    let rest = url
        .strip_prefix("http://")
        .ok_or_else(|| format!("{url} does not begin with http://"))?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    Ok((host.to_owned(), format!("/{path}")))
}

/// The bytes of a request.
pub fn request(
    method: &str,
    host: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n");
    for (name, value) in headers {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    if !body.is_empty() {
        let length = body.len();
        let _ = write!(
            text,
            "Content-Type: application/json\r\nContent-Length: {length}\r\n"
        );
    }
    text.push_str("\r\n");
    text.push_str(body);
    text.into_bytes()
}

/// A response: status, its `Retry-After` in seconds, and body.
pub struct Answer {
    pub status: u16,
    pub retry_after: Option<u64>,
    pub body: Vec<u8>,
}

pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub fn open(host: &str) -> Result<Self, String> {
        let stream = TcpStream::connect(host).map_err(|e| format!("{host}: {e}"))?;
        let set = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(ANSWER)));
        set.map_err(|e| format!("{host}: {e}"))?;
        Ok(Self {
            stream,
            buffer: Vec::with_capacity(64 * 1024),
        })
    }

    /// Sends a request and reads its response.
    pub fn call(&mut self, request: &[u8]) -> Result<Answer, String> {
        self.stream
            .write_all(request)
            .map_err(|e| format!("sending: {e}"))?;
        self.buffer.clear();
        let head = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            self.more()?;
        };
        let text = String::from_utf8_lossy(&self.buffer[..head]).to_ascii_lowercase();
        let status = text
            .split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .ok_or("an answer without a status")?;
        let number = |name: &str| -> Option<u64> {
            let value = text.lines().find_map(|l| l.strip_prefix(name))?;
            value.trim().parse().ok()
        };
        let length = number("content-length:").ok_or("an answer without a length")? as usize;
        let retry_after = number("retry-after:");
        while self.buffer.len() < head + length {
            self.more()?;
        }
        Ok(Answer {
            status,
            retry_after,
            body: self.buffer[head..head + length].to_vec(),
        })
    }

    fn more(&mut self) -> Result<(), String> {
        let mut part = [0; 16 * 1024];
        match self.stream.read(&mut part) {
            Ok(0) => Err("the connection was closed".to_owned()),
            Ok(n) => {
                self.buffer.extend_from_slice(&part[..n]);
                Ok(())
            }
            Err(e) => Err(format!("reading: {e}")),
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|w| w == what)
}

/// Lets `clients` threads call `host` for `time`; `maker` makes the requests of client n.
pub fn load(
    host: &str,
    clients: usize,
    time: Duration,
    maker: impl Fn(usize) -> Maker,
) -> Result<Figure, String> {
    let makers: Vec<Maker> = (0..clients).map(maker).collect();
    let start = Barrier::new(clients);
    let parts: Vec<Result<Figure, String>> = std::thread::scope(|scope| {
        let start = &start;
        let running: Vec<_> = makers
            .into_iter()
            .map(|maker| scope.spawn(move || one(host, time, maker, start)))
            .collect();
        running
            .into_iter()
            .map(|client| client.join().expect("a client does not panic"))
            .collect()
    });
    let mut sum = Figure {
        micros: Vec::new(),
        seconds: time.as_secs_f64(),
        refused: 0,
        refusal: None,
    };
    for part in parts {
        let part = part?;
        sum.micros.extend(part.micros);
        sum.seconds = sum.seconds.max(part.seconds);
        sum.refused += part.refused;
        sum.refusal = sum.refusal.or(part.refusal);
    }
    sum.micros.sort_unstable();
    Ok(sum)
}

fn one(host: &str, time: Duration, mut next: Maker, start: &Barrier) -> Result<Figure, String> {
    let connection = Connection::open(host);
    start.wait();
    let mut connection = connection?;
    let mut figure = Figure {
        micros: Vec::new(),
        seconds: 0.0,
        refused: 0,
        refusal: None,
    };
    let begin = Instant::now();
    // A client that is told to retry waits as long as told and repeats the request; the time counts
    // from the first attempt.
    let (mut request, mut sent) = (next(), Instant::now());
    while begin.elapsed() < time {
        let answer = connection.call(&request)?;
        if (200..300).contains(&answer.status) {
            figure.micros.push(sent.elapsed().as_micros() as u32);
        } else {
            figure.refuse(&answer);
        }
        match answer.retry_after {
            Some(seconds) if answer.status == 429 => {
                std::thread::sleep(Duration::from_secs(seconds));
            }
            _ => (request, sent) = (next(), Instant::now()),
        }
    }
    figure.seconds = begin.elapsed().as_secs_f64();
    Ok(figure)
}
