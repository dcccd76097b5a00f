//! An HTTP/1.1 client with little overhead, and the loop that measures with it: each client is a
//! connection that sends the next request when the last one is answered. Two threads serve all clients,
//! because a thread for each would take the processor from the services that are measured.

use std::fmt::Write as _;
use std::net::ToSocketAddrs as _;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use ron_kernel::Net as _;
use ron_kernel::net::{Address, Direction, Event, OsNet, SharedConnection, SharedPoller, Watch};

/// Makes the requests of one client.
pub type Maker = Box<dyn FnMut() -> Vec<u8> + Send>;

/// Head of the table that [`Figure::row`] adds to.
pub const HEADER: &str = "| figure | clients | per second | p50 ms | p99 ms | max ms | refused |\n|---|--:|--:|--:|--:|--:|--:|";

/// Timeout of one response.
const ANSWER: Duration = Duration::from_secs(30);
/// Interval at which clients that wait are looked at.
pub const LOOK: Duration = Duration::from_millis(10);

/// The result of a load.
pub struct Figure {
    micros: Vec<u32>,
    seconds: f64,
    refused: u64,
    /// The first response that was not a success.
    refusal: Option<String>,
}

impl Figure {
    const fn new(time: Duration) -> Self {
        Self {
            micros: Vec::new(),
            seconds: time.as_secs_f64(),
            refused: 0,
            refusal: None,
        }
    }

    fn refuse(&mut self, answer: &Answer) {
        self.refused += 1;
        self.refusal.get_or_insert_with(|| answer.start());
    }

    /// One row; each response counts for `per` operations.
    pub fn row(&self, name: &str, clients: usize, per: usize) -> String {
        let at = |share: usize| {
            let index = self.micros.len().saturating_sub(1) * share / 100;
            f64::from(self.micros.get(index).copied().unwrap_or(0)) / 1000.0
        };
        let rate = self.rate() * per as f64;
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

    pub fn rate(&self) -> f64 {
        self.answers() as f64 / self.seconds
    }

    pub const fn refused(&self) -> u64 {
        self.refused
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

impl Answer {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Its status and the start of its body.
    pub fn start(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        let start: String = text.chars().take(120).collect();
        format!("{} {start}", self.status)
    }

    /// The response at the start of these bytes; `None` while a part of it is missing.
    fn read(bytes: &[u8]) -> Result<Option<Self>, String> {
        let Some(head) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
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
        let body = bytes.get(head + 4..head + 4 + length);
        Ok(body.map(|body| Self {
            status,
            retry_after: number("retry-after:"),
            body: body.to_vec(),
        }))
    }
}

/// A connection with at most one request at a time.
pub struct Connection {
    stream: SharedConnection,
    /// What is not sent yet of the request.
    unsent: Vec<u8>,
    /// What has arrived of the response.
    buffer: Vec<u8>,
}

impl Connection {
    /// To `host:port`, or `unix:PATH`.
    pub fn open(host: &str) -> Result<Self, String> {
        let failed = |e: std::io::Error| format!("{host}: {e}");
        let address = if let Some(path) = host.strip_prefix("unix:") {
            Address::Unix(path.into())
        } else {
            let mut addresses = host.to_socket_addrs().map_err(failed)?;
            Address::Tcp(addresses.next().ok_or("a name without an address")?)
        };
        let stream = OsNet.connect(&address, Some(ANSWER));
        Ok(Self {
            stream: stream.map_err(failed)?,
            unsent: Vec::new(),
            buffer: Vec::with_capacity(64 * 1024),
        })
    }

    /// Sends a request and waits for its response.
    pub fn call(&mut self, request: &[u8]) -> Result<Answer, String> {
        self.begin(request)?;
        loop {
            if let Some(answer) = self.advance()? {
                return Ok(answer);
            }
            let direction = if self.unsent.is_empty() {
                Direction::Read
            } else {
                Direction::Write
            };
            match self.stream.wait(direction, Some(ANSWER)) {
                Ok(true) => {}
                Ok(false) => return Err("no answer in time".to_owned()),
                Err(e) => return Err(format!("waiting: {e}")),
            }
        }
    }

    /// Sends what fits now of a request.
    fn begin(&mut self, request: &[u8]) -> Result<(), String> {
        self.buffer.clear();
        self.unsent.extend_from_slice(request);
        self.send()
    }

    fn send(&mut self) -> Result<(), String> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent, false) {
                Ok(Some(n)) => drop(self.unsent.drain(..n)),
                Ok(None) => break,
                Err(e) => return Err(format!("sending: {e}")),
            }
        }
        Ok(())
    }

    /// Sends and reads what is possible now; returns the response when it is complete.
    fn advance(&mut self) -> Result<Option<Answer>, String> {
        self.send()?;
        let mut part = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut part) {
                Ok(Some(0)) => return Err("the connection was closed".to_owned()),
                Ok(Some(n)) => {
                    self.buffer.extend_from_slice(&part[..n]);
                    if n < part.len() {
                        return Answer::read(&self.buffer);
                    }
                }
                Ok(None) => return Answer::read(&self.buffer),
                Err(e) => return Err(format!("reading: {e}")),
            }
        }
    }
}

/// Maximum number of threads that serve the clients of a load.
const DRIVERS: usize = 2;

/// The makers of the clients of each thread.
pub fn shares(clients: usize, maker: impl Fn(usize) -> Maker) -> Vec<Vec<Maker>> {
    let drivers = DRIVERS.min(clients);
    let mut makers: Vec<Vec<Maker>> = (0..drivers).map(|_| Vec::new()).collect();
    for n in 0..clients {
        makers[n % drivers].push(maker(n));
    }
    makers
}

/// Lets `clients` call `host` for `time`; `maker` makes the requests of client n.
pub fn load(
    host: &str,
    clients: usize,
    time: Duration,
    maker: impl Fn(usize) -> Maker,
) -> Result<Figure, String> {
    let makers = shares(clients, maker);
    let start = Barrier::new(makers.len());
    let parts: Vec<Result<Figure, String>> = std::thread::scope(|scope| {
        let start = &start;
        let running: Vec<_> = makers
            .into_iter()
            .map(|makers| scope.spawn(move || drive(host, time, makers, start)))
            .collect();
        running
            .into_iter()
            .map(|driver| driver.join().expect("a driver does not panic"))
            .collect()
    });
    let mut sum = Figure::new(time);
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

/// A client of a load. One that is told to retry waits as long as told and repeats the request.
pub struct Client {
    connection: Connection,
    next: Maker,
    request: Vec<u8>,
    /// When the latency of the request counts from.
    pub since: Instant,
    /// When the request is to be repeated.
    repeat: Option<Instant>,
}

impl Client {
    /// Sends the next request; its latency counts from `since`.
    pub fn send(&mut self, since: Instant) -> Result<(), String> {
        (self.request, self.since) = ((self.next)(), since);
        self.connection.begin(&self.request)
    }

    /// The response, if it is there; the client is free then, unless it repeats the request.
    pub fn take(&mut self) -> Result<Option<Answer>, String> {
        let answer = self.connection.advance()?;
        if let Some(answer) = &answer {
            self.connection.buffer.clear();
            let told = answer.retry_after.map(Duration::from_secs);
            self.repeat = told.map(|wait| Instant::now() + wait);
        }
        Ok(answer)
    }

    pub const fn repeats(&self) -> bool {
        self.repeat.is_some()
    }

    /// Repeats the request when its time has come.
    pub fn repeat(&mut self, now: Instant) -> Result<(), String> {
        if self.repeat.is_none_or(|at| at > now) {
            return Ok(());
        }
        self.repeat = None;
        self.connection.begin(&self.request)
    }
}

/// Opens the connections of the clients of one thread. The token of an event is the client's index.
pub fn open(host: &str, makers: Vec<Maker>) -> Result<(SharedPoller, Vec<Client>), String> {
    let poller = OsNet.poller().map_err(|e| e.to_string())?;
    let mut clients = Vec::new();
    for (token, next) in makers.into_iter().enumerate() {
        let client = Client {
            connection: Connection::open(host)?,
            next,
            request: Vec::new(),
            since: Instant::now(),
            repeat: None,
        };
        let id = client.connection.stream.id();
        let added = poller.add(id, token as u64, Watch::Changes { output: true });
        added.map_err(|e| e.to_string())?;
        clients.push(client);
    }
    Ok((poller, clients))
}

fn drive(
    host: &str,
    time: Duration,
    makers: Vec<Maker>,
    start: &Barrier,
) -> Result<Figure, String> {
    let opened = open(host, makers);
    start.wait();
    let (poller, mut clients) = opened?;
    let mut figure = Figure::new(Duration::ZERO);
    let begin = Instant::now();
    for client in &mut clients {
        client.send(Instant::now())?;
    }
    let mut events: Vec<Event> = Vec::with_capacity(clients.len());
    let mut looked = begin;
    while begin.elapsed() < time {
        events.clear();
        poller.wait(&mut events, LOOK);
        for event in &events {
            let client = &mut clients[event.token as usize];
            let Some(answer) = client.take()? else {
                continue;
            };
            if answer.is_success() {
                figure
                    .micros
                    .push(client.since.elapsed().as_micros() as u32);
            } else {
                figure.refuse(&answer);
            }
            if !client.repeats() {
                client.send(Instant::now())?;
            }
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            for client in &mut clients {
                client.repeat(looked)?;
            }
        }
    }
    figure.seconds = begin.elapsed().as_secs_f64();
    Ok(figure)
}
