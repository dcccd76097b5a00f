//! A raw HTTP/1.1 client for hostile tests: sends bytes unchanged, reads responses strictly, and
//! reports whether the connection ended after them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub struct Answer {
    /// 0 for a response without a head, as in HTTP/0.9.
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// How reading a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The server closed it, after complete responses.
    Closed,
    /// The server reset it, after complete responses.
    Reset,
    /// It is open and silent.
    Open,
}

/// The address in `http://host:port`.
pub fn addr_of(base: &str) -> SocketAddr {
    let text = base.trim_start_matches("http://");
    text.parse().expect("a socket address")
}

pub struct Wire {
    pub stream: TcpStream,
    read: Vec<u8>,
}

impl Wire {
    pub fn connect(addr: SocketAddr) -> Self {
        Self::try_connect(addr).expect("connects")
    }

    pub fn try_connect(addr: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        Ok(Self {
            stream,
            read: Vec::new(),
        })
    }

    /// A connection from another address of this host, any in 127.0.0.0/8.
    pub fn connect_from(source: [u8; 4], addr: SocketAddr) -> std::io::Result<Self> {
        use rustix::net::{
            AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt,
        };
        // Processes that other tests start meanwhile must not inherit hundreds of sockets.
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        // The ports of closed connections are reused: an address has only so many.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddr::from((source, 0)))?;
        connect(&socket, &addr)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        Ok(Self {
            stream,
            read: Vec::new(),
        })
    }

    /// Sends what the server accepts; a server that has closed already is noticed when reading.
    pub fn send(&mut self, bytes: &[u8]) -> &mut Self {
        let _ = self.stream.write_all(bytes);
        self
    }

    /// The next final response, within the time; interim responses (1xx) are skipped.
    pub fn answer(&mut self, within: Duration) -> Result<Answer, End> {
        let until = Instant::now() + within;
        loop {
            let headless = is_headless(&self.read);
            if !headless && let Some((answer, used)) = parse(&self.read) {
                self.read.drain(..used);
                if answer.status >= 200 {
                    return Ok(answer);
                }
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.ended(End::Open));
            }
            self.stream.set_read_timeout(Some(left)).expect("an option");
            let mut piece = [0; 16 << 10];
            match self.stream.read(&mut piece) {
                Ok(0) if headless => {
                    return Ok(Answer {
                        status: 0,
                        headers: Vec::new(),
                        body: std::mem::take(&mut self.read),
                    });
                }
                Ok(0) => return Err(self.ended(End::Closed)),
                Ok(count) => self.read.extend_from_slice(&piece[..count]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(self.ended(End::Reset)),
            }
        }
    }

    /// All responses until the connection ends, or is silent for a while, or `enough` returns true.
    pub fn answers(
        &mut self,
        silence: Duration,
        enough: impl Fn(&[Answer]) -> bool,
    ) -> (Vec<Answer>, End) {
        let mut all = Vec::new();
        loop {
            if enough(&all) {
                return (all, End::Open);
            }
            match self.answer(silence) {
                Ok(answer) => all.push(answer),
                Err(end) => return (all, end),
            }
        }
    }

    /// Nothing may be left over: half a response is an error of its own.
    fn ended(&self, end: End) -> End {
        let rest = String::from_utf8_lossy(&self.read);
        assert!(
            rest.is_empty(),
            "half an answer, then {end:?}: {rest:.200?}"
        );
        end
    }
}

/// True when the bytes cannot be the start of a status line.
fn is_headless(bytes: &[u8]) -> bool {
    let lead = bytes.len().min(7);
    bytes[..lead] != b"HTTP/1."[..lead]
}

/// A whole response at the front of the bytes, and its length.
fn parse(bytes: &[u8]) -> Option<(Answer, usize)> {
    let shown = || String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..end]).expect("an ASCII head");
    let mut lines = head.trim_end().split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let status: u16 = status.and_then(|s| s.parse().ok()).expect("a status");
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(':').expect("a header line"))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = if let Some((_, value)) = headers.iter().find(|(name, _)| name == "content-length")
    {
        value.parse().expect("a length")
    } else {
        let bodiless = status < 200 || status == 204 || status == 304;
        assert!(bodiless, "an answer without a length: {}", shown());
        0
    };
    let body = bytes.get(end..end + length)?.to_vec();
    let answer = Answer {
        status,
        headers,
        body,
    };
    Some((answer, end + length))
}
