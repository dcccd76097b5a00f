//! One connection: its socket, the bytes read and not parsed, the bytes written and not sent.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ron_kernel::net::Watch;

use crate::auth::Principal;
use crate::body::BodyDecoder;
use crate::head::{ClientCert, Method, RequestHead, Transport};
use crate::memory::{Full, HeldBytes};
use crate::pace::Pace;
use crate::parse::HeadScanner;
use crate::responder::Hook;
use crate::response::Body;
use crate::room::Share;
use crate::source::Sending;
use crate::spool::Spool;
use crate::stream::Stream;
use crate::trace::Trace;
use crate::unpack::Coding;

/// Bytes read and not parsed yet. An empty input owns no memory; a worker lends its own buffer
/// while it serves a connection.
#[derive(Debug, Default)]
pub(crate) struct Input {
    data: Vec<u8>,
    start: usize,
    end: usize,
    /// The buffer belongs to a worker, which takes it back before the connection is parked.
    pub lent: bool,
    _held: HeldBytes,
}

impl Input {
    /// A worker's buffer of this many bytes.
    pub(crate) fn with_size(size: usize) -> Self {
        Self {
            data: vec![0; size],
            lent: true,
            ..Self::default()
        }
    }

    /// A buffer that holds just these bytes; refused when the process would hold more than `most`.
    pub(crate) fn holding(bytes: &[u8], most: usize) -> Result<Self, Full> {
        let mut held = HeldBytes::default();
        held.grow_to(bytes.len(), most)?;
        Ok(Self {
            data: bytes.to_vec(),
            start: 0,
            end: bytes.len(),
            lent: false,
            _held: held,
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data[self.start..self.end]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Replaces the content by `bytes`, which must fit.
    pub(crate) fn load(&mut self, bytes: &[u8]) {
        self.data[..bytes.len()].copy_from_slice(bytes);
        (self.start, self.end) = (0, bytes.len());
    }

    /// Free space for the next read; moves unparsed bytes to the front first.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.data.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.data[self.end..]
    }

    pub(crate) fn filled(&mut self, count: usize) {
        self.end += count;
    }

    pub(crate) fn size(&self) -> usize {
        self.data.len()
    }
}

/// Bytes of one answer that are not sent yet.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Head, and a small body behind it.
    pub bytes: Vec<u8>,
    sent: usize,
    /// A large body that follows.
    pub body: Option<Body>,
    body_sent: usize,
    /// A body that is read piece by piece into `bytes`.
    pub source: Option<Sending>,
    /// Bytes that the stream has taken so far.
    pub total: u64,
    held: HeldBytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    All,
    /// The socket takes no more now.
    Full,
    /// The connection has had its turn; the socket could take more.
    Turn,
}

/// Bytes of a source that one turn sends, so that a fast reader does not occupy a worker.
const TURN: u64 = 512 << 10;

impl Output {
    /// Unsent bytes in memory; a source's further bytes are not counted.
    pub(crate) fn len(&self) -> usize {
        let body = self.body.as_ref().map_or(0, |body| body.as_bytes().len());
        self.bytes.len() - self.sent + body - self.body_sent
    }

    /// Counts the unsent answer in the memory budget, at most up to `most` bytes.
    pub(crate) fn keep(&mut self, most: usize) -> Result<(), Full> {
        let body = match &self.body {
            Some(Body::Owned(bytes)) => bytes.capacity(),
            _ => 0,
        };
        self.held.grow_to(self.bytes.capacity() + body, most)
    }

    /// Sends what fits now; frees all memory once everything is sent.
    pub(crate) fn flush(&mut self, stream: &mut Stream) -> io::Result<Flushed> {
        let turn = self.total + TURN;
        loop {
            // The kernel may hold back a short head for the body that follows (MSG_MORE).
            let follows = self.body.is_some() || self.source.is_some();
            while self.sent < self.bytes.len() {
                match stream.write(&self.bytes[self.sent..], follows)? {
                    Some(count) => {
                        self.sent += count;
                        self.total += count as u64;
                    }
                    None => return Ok(Flushed::Full),
                }
            }
            let Some(source) = &mut self.source else {
                break;
            };
            if self.total >= turn {
                return Ok(Flushed::Turn);
            }
            // The piece in `bytes` is sent; the next one replaces it.
            self.sent = 0;
            if !source.next(&mut self.bytes)? {
                self.source = None;
            }
        }
        if let Some(body) = &self.body {
            let bytes = body.as_bytes();
            while self.body_sent < bytes.len() {
                match stream.write(&bytes[self.body_sent..], false)? {
                    Some(count) => {
                        self.body_sent += count;
                        self.total += count as u64;
                    }
                    None => return Ok(Flushed::Full),
                }
            }
        }
        if !stream.flush()? {
            return Ok(Flushed::Full);
        }
        // Also frees the share of the memory budget.
        *self = Self::default();
        Ok(Flushed::All)
    }
}

/// The step in which a connection is parked, which gives its time limit a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The end of a TLS handshake.
    Handshake,
    /// The first byte of a request.
    Idle,
    /// The rest of a head.
    Head,
    /// The rest of a body.
    Body,
    Write,
    /// The end of the bytes that the client still sends after a refusal.
    Linger,
    /// Waits for a worker: bytes of the next request have arrived.
    Ready,
}

/// What happens to the connection after the answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It serves the next request.
    Keep,
    Close,
    /// Closed once the client has had time to read the answer.
    Linger,
}

/// The parts of a request that its answer needs.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub trace: Trace,
    pub route: Option<usize>,
    pub method: Method,
    pub http11: bool,
    pub if_none_match: Option<Box<str>>,
    pub started: Instant,
}

/// A request whose head is accepted and whose body is not complete.
#[derive(Debug)]
pub(crate) struct Reading {
    pub head: RequestHead,
    pub route: usize,
    pub params: Vec<(&'static str, String)>,
    pub query: Vec<(String, String)>,
    pub principal: Principal,
    /// The client's own time limit in milliseconds (`X-Request-Deadline-Ms`).
    pub deadline_ms: Option<u64>,
    pub decoder: BodyDecoder,
    pub body_cap: u64,
    /// The body so far; for a body that goes to disk, the bytes not written yet.
    pub body: Vec<u8>,
    /// Its share of the process's memory budget.
    pub held: HeldBytes,
    /// The share may grow while the whole process holds at most this many bytes.
    pub memory: usize,
    /// Content coding of the body.
    pub coding: Option<Coding>,
    /// The file of a body that is streamed to disk.
    pub spool: Option<Spool>,
}

impl Reading {
    /// Number of bytes by which the body may still grow.
    pub(crate) fn room(&self) -> u64 {
        let spooled = self.spool.as_ref().map_or(0, Spool::len);
        self.body_cap - spooled - self.body.len() as u64
    }

    /// Makes room for `came` more bytes. The buffer doubles, up to the size that the body can have
    /// at most. Refused when the memory budget has no room.
    pub(crate) fn reserve(&mut self, came: usize) -> Result<(), Full> {
        // Bounded by the cap and the announced length: doubling must not reserve bytes that cannot
        // come.
        let can = usize::try_from(self.room().min(self.decoder.missing())).unwrap_or(usize::MAX);
        let needed = self.body.len() + came.min(can);
        if needed <= self.body.capacity() {
            return Ok(());
        }
        let whole = self.body.len().saturating_add(can);
        let size = self
            .body
            .capacity()
            .saturating_mul(2)
            .max(needed)
            .min(whole);
        self.held.grow_to(size, self.memory)?;
        self.body.reserve_exact(size - self.body.len());
        Ok(())
    }
}

/// A connection. The holder of its lease owns it; only the owner touches the socket.
#[derive(Debug)]
pub(crate) struct Conn {
    pub stream: Stream,
    pub peer: SocketAddr,
    pub transport: Transport,
    pub share: Share,
    /// Called when the client disconnects while its request waits.
    pub gone: Option<Hook>,
    /// The client's certificate, after a TLS handshake with one.
    pub client_cert: Option<Arc<ClientCert>>,
    pub input: Input,
    pub scan: HeadScanner,
    pub reading: Option<Box<Reading>>,
    pub output: Output,
    pub exchange: Option<Exchange>,
    pub step: Step,
    pub after: After,
    /// Number of the current request; an answer with another number is late.
    pub seq: u32,
    /// When the bytes came that a worker serves now, or the last answer was sent, if that is later.
    pub arrived: Instant,
    /// Time limit of the current step.
    pub due: Option<Instant>,
    /// The minimum rate of a large transfer, while one runs.
    pub pace: Option<Pace>,
    /// How many bytes may still be drained.
    pub linger_left: usize,
    /// What is watched of the socket, once anything is.
    pub watched: Option<Watch>,
}

impl Conn {
    pub(crate) fn new(
        stream: Stream,
        peer: SocketAddr,
        transport: Transport,
        share: Share,
        now: Instant,
    ) -> Self {
        let step = match stream {
            Stream::Plain(_) => Step::Idle,
            Stream::Tls(_) => Step::Handshake,
        };
        Self {
            stream,
            peer,
            transport,
            share,
            gone: None,
            client_cert: None,
            input: Input::default(),
            scan: HeadScanner::default(),
            reading: None,
            output: Output::default(),
            exchange: None,
            step,
            after: After::Keep,
            seq: 0,
            arrived: now,
            due: None,
            pace: None,
            linger_left: 0,
            watched: None,
        }
    }

    /// Records the client's certificate once a TLS handshake is complete.
    pub(crate) fn greet(&mut self) {
        if self.step == Step::Handshake && !self.stream.is_handshaking() {
            self.client_cert = self.stream.client_cert().map(Arc::new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_keeps_its_bytes_in_order_through_reads_and_consumption() {
        let mut input = Input::with_size(8);
        input.room()[..5].copy_from_slice(b"abcde");
        input.filled(5);
        input.consume(3);
        assert_eq!(input.bytes(), b"de");
        let room = input.room();
        assert_eq!(room.len(), 6);
        room[..2].copy_from_slice(b"fg");
        input.filled(2);
        assert_eq!(input.bytes(), b"defg");
        input.consume(4);
        assert!(input.is_empty());
        assert_eq!(Input::default().size(), 0);
        let held = Input::holding(b"xy", 0).expect("small ones are not counted");
        assert_eq!(held.bytes(), b"xy");
        let large = vec![0; 2 * crate::memory::FREE];
        assert!(Input::holding(&large, 0).is_err());
    }

    #[test]
    fn output_is_sent_in_pieces_as_the_peer_reads() {
        let (ours, mut theirs) = crate::stream::pair();
        let mut stream = Stream::new(ours);
        let body: Vec<u8> = (0..3_000_000_u32).map(|i| i as u8).collect();
        let mut output = Output {
            bytes: b"head".to_vec(),
            body: Some(Body::Owned(body.clone())),
            ..Output::default()
        };
        assert_eq!(output.len(), 4 + body.len());
        let reader = std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut all = Vec::new();
                std::io::Read::read_to_end(&mut theirs, &mut all).expect("the peer reads");
                all
            });
            let mut partial = 0;
            while output.flush(&mut stream).expect("the peer is there") != Flushed::All {
                partial += 1;
                std::thread::yield_now();
            }
            assert!(partial > 0, "three megabytes do not fit a socket at once");
            drop(stream);
            reader.join().expect("the reader ends")
        });
        assert_eq!(&reader[..4], b"head");
        assert!(reader[4..] == body[..]);
        assert_eq!(output.len(), 0);
    }
}
