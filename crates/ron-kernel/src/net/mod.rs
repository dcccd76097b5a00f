//! Sockets as values: a process passes [`OsNet`], a simulation connections in memory. No crate above
//! this one names a socket of the operating system.
//!
//! ```text
//!  Net ── bind ────> ListeningSocket ── accept ──> Connection   read and write never block;
//!   │                                                  ▲        Connection::wait blocks one caller
//!   ├── connect ───────────────────────────────────────┘
//!   └── poller ────> Poller   reports readiness of many sockets by token; any thread can wake it
//! ```

mod os;

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use os::OsNet;

/// Where a socket listens, or a connection goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

pub type SharedNet = Arc<dyn Net>;
pub type SharedListener = Arc<dyn ListeningSocket>;
pub type SharedConnection = Arc<dyn Connection>;
pub type SharedPoller = Arc<dyn Poller>;

/// Makes sockets. A service receives it from outside, like its [`crate::Clock`].
pub trait Net: Send + Sync + Debug + 'static {
    /// A TCP socket listens at once; a Unix socket from [`ListeningSocket::listen`] on, so that the
    /// mode of its file can be set before.
    fn bind(&self, address: &Address) -> io::Result<SharedListener>;

    /// Waits at most `limit` for the connection (then: [`io::ErrorKind::TimedOut`]).
    fn connect(&self, address: &Address, limit: Option<Duration>) -> io::Result<SharedConnection>;

    fn poller(&self) -> io::Result<SharedPoller>;
}

/// By what a [`Poller`] knows a socket.
#[derive(Clone, Copy, Debug)]
pub enum SocketId<'a> {
    /// A descriptor of the operating system.
    Descriptor(BorrowedFd<'a>),
    /// A number that the implementation of [`Net`] chose, unique among its sockets.
    Number(u64),
}

/// A bound socket that takes connections.
pub trait ListeningSocket: Send + Sync + Debug {
    fn id(&self) -> SocketId<'_>;

    /// The address of a TCP socket, with the port that was chosen for port 0.
    fn local_addr(&self) -> Option<SocketAddr>;

    /// Sets the maximum number of connections that wait to be accepted.
    fn listen(&self, backlog: u32) -> io::Result<()>;

    /// Takes a waiting connection; does not wait for one.
    fn accept(&self) -> Result<(SharedConnection, Option<SocketAddr>), AcceptError>;
}

/// Why no connection was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    #[error("no connection waits")]
    Empty,
    #[error("the connection was closed before it was accepted")]
    Gone,
    /// The connection stays in the backlog, to be accepted later.
    #[error("no descriptors or memory")]
    Exhausted,
}

/// A connected stream of bytes.
pub trait Connection: Send + Sync + Debug {
    fn id(&self) -> SocketId<'_>;

    /// Reads the bytes that have arrived: `Some(0)` at the end of the stream, `None` when there are
    /// none now. A read shorter than `into` has emptied the socket.
    fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>>;

    /// Writes as much as fits now; `None` when nothing does. `more` says that other bytes follow at
    /// once.
    fn write(&self, bytes: &[u8], more: bool) -> io::Result<Option<usize>>;

    /// Blocks until a read or a write can make progress, at most for `limit`; false when it passed.
    fn wait(&self, direction: Direction, limit: Option<Duration>) -> io::Result<bool>;

    /// Ends the sending half, or both. A stream that is gone already stays so.
    fn shutdown(&self, half: Half);

    /// The user id of the peer's process, on a Unix socket: as it connected, or began to listen.
    fn peer_uid(&self) -> io::Result<u32>;
}

/// For what [`Connection::wait`] waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
}

/// What [`Connection::shutdown`] ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    Write,
    Both,
}

/// The readiness of a socket, or that for which something waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Bytes to read, or the end of the stream.
    pub input: bool,
    pub output: bool,
    /// The other end sends no more, or the connection is broken. It never resets: input is ready
    /// from then on.
    pub ended: bool,
}

impl Readiness {
    /// True when this is enough for a thread that waits for `wanted`.
    pub const fn meets(self, wanted: Self) -> bool {
        (wanted.input && (self.input || self.ended)) || (wanted.output && self.output)
    }

    pub fn add(&mut self, more: Self) {
        self.input |= more.input;
        self.output |= more.output;
        self.ended |= more.ended;
    }

    /// Clears what a woken thread is about to use; the next change sets it again.
    pub fn use_up(&mut self, wanted: Self) {
        self.input &= !wanted.input;
        self.output &= !wanted.output;
    }
}

/// Readiness of the socket that was added under this token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub token: u64,
    pub readiness: Readiness,
}

/// Which events of a socket a [`Poller`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Each change of readiness, once: for connections. Room to send is reported with `output` only, because that of a Unix
    /// socket changes with each message that the other end reads.
    Changes {
        output: bool,
    },
    /// Input, as long as there is some: for listeners.
    Input,
    Nothing,
}

impl Watch {
    /// What of a change of readiness is reported; `None` for nothing, and of a watch that reports no changes.
    pub const fn of_change(self, mut change: Readiness) -> Option<Readiness> {
        let Self::Changes { output } = self else {
            return None;
        };
        change.output &= output;
        if change.input || change.output || change.ended {
            Some(change)
        } else {
            None
        }
    }
}

/// Reports the readiness of sockets to any number of threads, each event to one of them.
pub trait Poller: Send + Sync + Debug {
    /// Watches a socket. `u64::MAX` is no token.
    fn add(&self, socket: SocketId<'_>, token: u64, watch: Watch) -> io::Result<()>;

    /// Changes what is watched of a socket that was added. Its present readiness counts as a change.
    fn modify(&self, socket: SocketId<'_>, token: u64, watch: Watch) -> io::Result<()>;

    fn remove(&self, socket: SocketId<'_>);

    /// Appends events up to the capacity of `events`. Waits at most `limit` for the first, or until
    /// [`Poller::wake`]; may return none at any time.
    fn wait(&self, events: &mut Vec<Event>, limit: Duration);

    /// Like [`Poller::wait`] without waiting; leaves a wake-up to the thread that waits.
    fn poll(&self, events: &mut Vec<Event>);

    /// Ends one wait: the present or the next.
    fn wake(&self);
}
