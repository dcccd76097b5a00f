//! The listening socket. A Unix socket would be a second kind here, with its peer's user id.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::conn::Stream;
use crate::request::Transport;

/// A listening socket that does not block.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
}

/// What accepting brought.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// A connection.
    Conn(Stream, SocketAddr, Transport),
    /// Nobody waits.
    Nobody,
    /// A connection that was gone before it was taken.
    Gone,
    /// No descriptors or memory: to be tried again later, the connection stays in the backlog.
    Exhausted,
}

impl Listener {
    pub(crate) fn new(socket: TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket })
    }

    pub(crate) fn addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Takes one connection off the backlog.
    pub(crate) fn accept(&self) -> Accepted {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match rustix::net::acceptfrom_with(&self.socket, flags) {
            Ok((socket, Some(peer))) => match SocketAddr::try_from(peer) {
                Ok(peer) => Self::accepted(socket, peer),
                Err(_) => Accepted::Gone,
            },
            Ok((_, None)) => Accepted::Gone,
            Err(Errno::AGAIN) => Accepted::Nobody,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Accepted::Exhausted,
            Err(_) => Accepted::Gone,
        }
    }

    fn accepted(socket: OwnedFd, peer: SocketAddr) -> Accepted {
        // Without it small answers wait for the peer's delayed acknowledgement; a socket that
        // refuses the option still works.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
        Accepted::Conn(Stream::new(socket), peer, Transport::Tcp)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
