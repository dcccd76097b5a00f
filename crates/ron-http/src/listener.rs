//! The listening sockets: TCP, with TLS or without, and Unix sockets.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::head::Transport;
use crate::stream::Stream;
use crate::tls::ServerTls;
use crate::uds::{BACKLOG, UnixEndpoint};

/// Maximum number of sockets of one front.
pub(crate) const SOCKETS_MAX: usize = 8;

/// The sockets of a front, one to eight.
#[derive(Debug, Default)]
pub struct Listen {
    sockets: Vec<Kind>,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener, Option<Arc<ServerTls>>),
    Unix(UnixEndpoint),
}

impl Listen {
    /// A TCP socket; with `tls`, connections must begin with a handshake.
    pub fn tcp(mut self, socket: TcpListener, tls: Option<Arc<ServerTls>>) -> Self {
        self.sockets.push(Kind::Tcp(socket, tls));
        self
    }

    pub fn unix(mut self, socket: UnixEndpoint) -> Self {
        self.sockets.push(Kind::Unix(socket));
        self
    }

    /// Opens them as non-blocking listeners.
    pub(crate) fn open(self) -> io::Result<Vec<Listener>> {
        if self.sockets.is_empty() || self.sockets.len() > SOCKETS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a front listens on one to eight sockets",
            ));
        }
        self.sockets.into_iter().map(Listener::new).collect()
    }
}

impl From<TcpListener> for Listen {
    fn from(socket: TcpListener) -> Self {
        Self::default().tcp(socket, None)
    }
}

/// A non-blocking listening socket.
#[derive(Debug)]
pub(crate) struct Listener(Kind);

#[derive(Debug)]
pub(crate) enum Accepted {
    Conn(Stream, SocketAddr, Transport),
    /// The backlog is empty.
    Empty,
    /// A connection that was closed before it was accepted.
    Gone,
    /// A Unix peer whose user id is not in the list.
    Forbidden,
    /// No descriptors or memory: the connection stays in the backlog, to be accepted later.
    Exhausted,
}

impl Listener {
    fn new(kind: Kind) -> io::Result<Self> {
        match &kind {
            Kind::Tcp(socket, _) => {
                socket.set_nonblocking(true)?;
                rustix::net::listen(socket, BACKLOG)?; // the standard library asks for 128
            }
            Kind::Unix(_) => {} // made non-blocking and listening
        }
        Ok(Self(kind))
    }

    /// The address of a TCP socket.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Tcp(socket, _) => socket.local_addr().ok(),
            Kind::Unix(_) => None,
        }
    }

    /// The path of a Unix socket.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.0 {
            Kind::Tcp(..) => None,
            Kind::Unix(socket) => Some(socket.path()),
        }
    }

    /// Takes one connection off the backlog.
    pub(crate) fn accept(&self) -> Accepted {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match rustix::net::acceptfrom_with(self, flags) {
            Ok((socket, peer)) => match &self.0 {
                Kind::Tcp(_, tls) => {
                    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                    peer.map_or(Accepted::Gone, |peer| {
                        tcp_accepted(socket, peer, tls.as_deref())
                    })
                }
                Kind::Unix(endpoint) => unix_accepted(socket, endpoint),
            },
            Err(Errno::AGAIN) => Accepted::Empty,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Accepted::Exhausted,
            Err(_) => Accepted::Gone,
        }
    }
}

fn tcp_accepted(socket: OwnedFd, peer: SocketAddr, tls: Option<&ServerTls>) -> Accepted {
    // Without TCP_NODELAY small answers wait for the peer's delayed acknowledgement; a socket that
    // refuses the option still works.
    let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
    let Some(tls) = tls else {
        return Accepted::Conn(Stream::new(socket), peer, Transport::Tcp);
    };
    match tls.session() {
        Some(session) => Accepted::Conn(Stream::tls(socket, session), peer, Transport::Tls),
        None => Accepted::Gone,
    }
}

fn unix_accepted(socket: OwnedFd, endpoint: &UnixEndpoint) -> Accepted {
    let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) else {
        return Accepted::Forbidden;
    };
    let uid = peer.uid.as_raw();
    if !endpoint.allows(uid) {
        return Accepted::Forbidden;
    }
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    Accepted::Conn(Stream::new(socket), nowhere, endpoint.transport(uid))
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Tcp(socket, _) => socket.as_fd(),
            Kind::Unix(socket) => socket.as_fd(),
        }
    }
}
