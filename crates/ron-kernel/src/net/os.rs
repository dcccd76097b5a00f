//! Sockets of the operating system: rustix, epoll, eventfd.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use super::{
    AcceptError, Address, Connection, Direction, Event, Half, ListeningSocket, Net, Poller,
    Readiness, SharedConnection, SharedListener, SharedNet, SharedPoller, SocketId, Watch,
};

/// The sockets of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsNet;

impl OsNet {
    pub fn shared() -> SharedNet {
        Arc::new(Self)
    }

    /// A listener that was made elsewhere: by the service manager, or a test.
    pub fn adopt(socket: TcpListener) -> io::Result<SharedListener> {
        socket.set_nonblocking(true)?;
        Ok(Arc::new(OsListener(socket.into())))
    }
}

impl Net for OsNet {
    fn bind(&self, address: &Address) -> io::Result<SharedListener> {
        match address {
            Address::Tcp(addr) => Self::adopt(TcpListener::bind(addr)?),
            Address::Unix(path) => {
                let socket = new_socket(AddressFamily::UNIX, SocketFlags::NONBLOCK)?;
                rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
                Ok(Arc::new(OsListener(socket)))
            }
        }
    }

    fn connect(&self, address: &Address, limit: Option<Duration>) -> io::Result<SharedConnection> {
        let socket = match address {
            Address::Tcp(addr) => connect_tcp(*addr, limit)?,
            Address::Unix(path) => connect_unix(path, limit)?,
        };
        Ok(Arc::new(OsConnection(socket)))
    }

    fn poller(&self) -> io::Result<SharedPoller> {
        Ok(Arc::new(OsPoller::new()?))
    }
}

fn new_socket(family: AddressFamily, flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
}

fn connect_tcp(addr: SocketAddr, limit: Option<Duration>) -> io::Result<OwnedFd> {
    let family = match addr {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = new_socket(family, SocketFlags::NONBLOCK)?;
    match rustix::net::connect(&socket, &addr) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            if !wait(&socket, PollFlags::OUT, limit)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    sockopt::set_tcp_nodelay(&socket, true)?;
    Ok(socket)
}

fn connect_unix(path: &Path, limit: Option<Duration>) -> io::Result<OwnedFd> {
    let at_once = limit.is_some_and(|limit| limit.is_zero());
    let flags = if at_once {
        SocketFlags::NONBLOCK
    } else {
        SocketFlags::empty()
    };
    let socket = new_socket(AddressFamily::UNIX, flags)?;
    if !at_once {
        // A full backlog cannot be polled for: the kernel waits for room in it under the send time-out.
        sockopt::set_socket_timeout(&socket, Timeout::Send, limit)?;
    }
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => {}
        Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
        Err(error) => return Err(error.into()),
    }
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// Waits until the socket is ready; false when the limit has passed.
fn wait(socket: &OwnedFd, flags: PollFlags, limit: Option<Duration>) -> io::Result<bool> {
    let until = limit.map(|limit| Instant::now() + limit);
    let mut left = limit;
    loop {
        let timeout = left.map(timespec);
        let mut sockets = [PollFd::new(socket, flags)];
        match rustix::event::poll(&mut sockets, timeout.as_ref()) {
            Ok(count) => return Ok(count > 0),
            // A signal does not lengthen the wait.
            Err(Errno::INTR) => {
                left = until.map(|until| until.saturating_duration_since(Instant::now()));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// A listening socket; non-blocking.
#[derive(Debug)]
struct OsListener(OwnedFd);

impl ListeningSocket for OsListener {
    fn id(&self) -> SocketId<'_> {
        SocketId::Descriptor(self.0.as_fd())
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        SocketAddr::try_from(rustix::net::getsockname(&self.0).ok()?).ok()
    }

    fn listen(&self, backlog: u32) -> io::Result<()> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        Ok(rustix::net::listen(&self.0, backlog)?)
    }

    fn accept(&self) -> Result<(SharedConnection, Option<SocketAddr>), AcceptError> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, peer) = match rustix::net::acceptfrom_with(&self.0, flags) {
            Ok(accepted) => accepted,
            Err(Errno::AGAIN) => return Err(AcceptError::Empty),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                return Err(AcceptError::Exhausted);
            }
            Err(_) => return Err(AcceptError::Gone),
        };
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        if peer.is_some() {
            // Without TCP_NODELAY small answers wait for the peer's delayed acknowledgement; a
            // socket that refuses the option still works.
            let _ = sockopt::set_tcp_nodelay(&socket, true);
        }
        Ok((Arc::new(OsConnection(socket)), peer))
    }
}

/// A connected socket; non-blocking.
#[derive(Debug)]
struct OsConnection(OwnedFd);

impl Connection for OsConnection {
    fn id(&self) -> SocketId<'_> {
        SocketId::Descriptor(self.0.as_fd())
    }

    fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::net::recv(&self.0, &mut *into, RecvFlags::empty()) {
                Ok((_, count)) => return Ok(Some(count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write(&self, bytes: &[u8], more: bool) -> io::Result<Option<usize>> {
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        loop {
            match rustix::net::send(&self.0, bytes, flags) {
                Ok(count) => return Ok(Some(count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn wait(&self, direction: Direction, limit: Option<Duration>) -> io::Result<bool> {
        let flags = match direction {
            Direction::Read => PollFlags::IN,
            Direction::Write => PollFlags::OUT,
        };
        wait(&self.0, flags, limit)
    }

    fn shutdown(&self, half: Half) {
        let how = match half {
            Half::Write => Shutdown::Write,
            Half::Both => Shutdown::Both,
        };
        let _ = rustix::net::shutdown(&self.0, how); // fails when the peer is gone already
    }

    fn peer_uid(&self) -> io::Result<u32> {
        Ok(sockopt::socket_peercred(&self.0)?.uid.as_raw())
    }
}

/// The token of the wake-up.
const WAKE: u64 = u64::MAX;
/// Maximum number of events that one call takes from the kernel.
const EVENTS_MAX: usize = 256;

#[derive(Debug)]
struct OsPoller {
    epoll: OwnedFd,
    wake: OwnedFd,
}

impl OsPoller {
    fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(
            &epoll,
            &wake,
            epoll::EventData::new_u64(WAKE),
            epoll::EventFlags::IN,
        )?;
        Ok(Self { epoll, wake })
    }

    /// Takes events; true when a wake-up is among what is ready.
    fn take(&self, events: &mut Vec<Event>, limit: Duration) -> bool {
        let mut space = [const { std::mem::MaybeUninit::uninit() }; EVENTS_MAX];
        let room = (events.capacity() - events.len()).clamp(1, EVENTS_MAX);
        // An interrupted wait has no events.
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut space[..room], Some(&timespec(limit)))
        else {
            return false;
        };
        let mut woken = false;
        for event in ready {
            match event.data.u64() {
                WAKE => woken = true,
                token => events.push(Event {
                    token,
                    readiness: readiness(event.flags),
                }),
            }
        }
        woken
    }
}

fn readiness(flags: epoll::EventFlags) -> Readiness {
    use epoll::EventFlags as Flags;
    let broken = Flags::HUP | Flags::ERR;
    Readiness {
        input: flags.intersects(Flags::IN | Flags::RDHUP | broken),
        output: flags.intersects(Flags::OUT | broken),
        ended: flags.intersects(Flags::RDHUP | broken),
    }
}

impl Poller for OsPoller {
    fn add(&self, socket: SocketId<'_>, token: u64, watch: Watch) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(
            &self.epoll,
            descriptor(socket)?,
            data,
            flags(watch),
        )?)
    }

    fn modify(&self, socket: SocketId<'_>, token: u64, watch: Watch) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::modify(
            &self.epoll,
            descriptor(socket)?,
            data,
            flags(watch),
        )?)
    }

    fn remove(&self, socket: SocketId<'_>) {
        if let SocketId::Descriptor(descriptor) = socket {
            let _ = epoll::delete(&self.epoll, descriptor); // fails when it was not added
        }
    }

    fn wait(&self, events: &mut Vec<Event>, limit: Duration) {
        if self.take(events, limit) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.wake, &mut count); // empty when another thread has read it
        }
    }

    fn poll(&self, events: &mut Vec<Event>) {
        let _ = self.take(events, Duration::ZERO); // the wake-up stays for the thread that waits
    }

    fn wake(&self) {
        // The write fails only when the counter is full, that is, after 2^64 unread wake-ups.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

fn descriptor(socket: SocketId<'_>) -> io::Result<BorrowedFd<'_>> {
    match socket {
        SocketId::Descriptor(descriptor) => Ok(descriptor),
        SocketId::Number(_) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a socket of the operating system",
        )),
    }
}

fn flags(watch: Watch) -> epoll::EventFlags {
    use epoll::EventFlags as Flags;
    match watch {
        Watch::Changes { output: false } => Flags::IN | Flags::RDHUP | Flags::ET,
        Watch::Changes { output: true } => Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET,
        Watch::Input => Flags::IN,
        Watch::Nothing => Flags::empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (SharedConnection, SharedConnection) {
        let any = Address::Tcp(([127, 0, 0, 1], 0).into());
        let listener = OsNet.bind(&any).expect("a free port");
        let addr = listener.local_addr().expect("a TCP socket");
        let client = OsNet
            .connect(&Address::Tcp(addr), Some(Duration::from_secs(5)))
            .expect("it listens");
        let (server, peer) = listener.accept().expect("a connection waits");
        assert!(peer.is_some());
        assert_eq!(listener.accept().err(), Some(AcceptError::Empty));
        (client, server)
    }

    #[test]
    fn bytes_readiness_and_the_end_arrive() {
        let (client, server) = pair();
        let poller = OsNet.poller().expect("a poller");
        poller
            .add(server.id(), 7, Watch::Changes { output: true })
            .expect("registered");
        let mut events = Vec::with_capacity(4);
        poller.wait(&mut events, Duration::from_secs(5));
        assert!(events.iter().all(|event| !event.readiness.input));
        events.clear();
        let mut into = [0; 8];
        assert_eq!(server.read(&mut into).expect("open"), None);
        assert_eq!(client.write(b"abc", false).expect("open"), Some(3));
        poller.wait(&mut events, Duration::from_secs(5));
        assert!(events.iter().any(|e| e.token == 7 && e.readiness.input));
        assert_eq!(server.read(&mut into).expect("open"), Some(3));
        let short = Some(Duration::from_millis(1));
        assert!(!server.wait(Direction::Read, short).expect("open"));
        client.shutdown(Half::Write);
        assert!(server.wait(Direction::Read, None).expect("open"));
        assert_eq!(server.read(&mut into).expect("open"), Some(0));
    }

    #[test]
    fn room_to_send_is_reported_only_when_asked_for() {
        let (_client, server) = pair();
        let poller = OsNet.poller().expect("a poller");
        let mut events = Vec::with_capacity(4);
        let watch = |output| Watch::Changes { output };
        poller.add(server.id(), 7, watch(false)).expect("new");
        poller.poll(&mut events);
        assert_eq!(events, []);
        poller.modify(server.id(), 7, watch(true)).expect("known");
        poller.poll(&mut events);
        let readiness = Readiness {
            output: true,
            ..Readiness::default()
        };
        assert_eq!(
            events,
            [Event {
                token: 7,
                readiness
            }]
        );
    }

    #[test]
    fn a_wake_up_ends_one_wait_and_is_left_alone_by_a_poll() {
        let poller = OsNet.poller().expect("a poller");
        let mut events = Vec::with_capacity(4);
        poller.wake();
        poller.poll(&mut events);
        let start = Instant::now();
        poller.wait(&mut events, Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30));
        poller.wait(&mut events, Duration::ZERO);
        assert!(events.is_empty());
        let other = poller.add(SocketId::Number(1), 1, Watch::Input);
        assert!(other.is_err(), "a socket of another network");
    }

    #[test]
    fn a_connection_that_cannot_be_made_says_why() {
        let closed = {
            let listener = OsNet
                .bind(&Address::Tcp(([127, 0, 0, 1], 0).into()))
                .expect("a free port");
            listener.local_addr().expect("a TCP socket")
        };
        let refused = OsNet.connect(&Address::Tcp(closed), Some(Duration::from_secs(5)));
        assert_eq!(
            refused.expect_err("nothing listens").kind(),
            io::ErrorKind::ConnectionRefused
        );
        let dir = tempfile::tempdir().expect("a directory");
        let path = Address::Unix(dir.path().join("s"));
        let missing = OsNet.connect(&path, None).expect_err("no such file");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let listener = OsNet.bind(&path).expect("bound");
        let early = OsNet.connect(&path, None).expect_err("it does not listen");
        assert_eq!(early.kind(), io::ErrorKind::ConnectionRefused);
        listener.listen(0).expect("listening");
        // A backlog of 0 has room for one connection; the next waits until its limit.
        let _first = OsNet.connect(&path, None).expect("it listens");
        for limit in [0, 20] {
            let limit = Some(Duration::from_millis(limit));
            let full = OsNet.connect(&path, limit).expect_err("a full backlog");
            assert_eq!(full.kind(), io::ErrorKind::TimedOut);
        }
        let (accepted, peer) = listener.accept().expect("the first");
        assert_eq!(peer, None);
        assert_eq!(
            accepted.peer_uid().expect("a Unix socket"),
            rustix::process::geteuid().as_raw()
        );
    }
}
