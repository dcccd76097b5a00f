//! The listening sockets: TCP, with TLS or without, and Unix sockets.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use ron_kernel::net::{
    AcceptError, OsNet, SharedConnection, SharedListener, SharedNet, SharedPoller, SocketId,
};

use crate::head::Transport;
use crate::stream::Stream;
use crate::tls::ServerTls;
use crate::uds::{BACKLOG, UnixEndpoint};

/// Maximum number of sockets of one front.
pub(crate) const SOCKETS_MAX: usize = 8;

/// The sockets of a front, one to eight, all of one network.
#[derive(Debug)]
pub struct Listen {
    net: SharedNet,
    sockets: Vec<Kind>,
}

#[derive(Debug)]
enum Kind {
    Tcp(SharedListener, Option<Arc<ServerTls>>),
    Unix(UnixEndpoint),
}

impl Listen {
    /// A front without sockets yet, of this network.
    pub const fn on(net: SharedNet) -> Self {
        Self {
            net,
            sockets: Vec::new(),
        }
    }

    /// A TCP socket; with `tls`, connections must begin with a handshake.
    pub fn tcp(mut self, socket: SharedListener, tls: Option<Arc<ServerTls>>) -> Self {
        self.sockets.push(Kind::Tcp(socket, tls));
        self
    }

    pub fn unix(mut self, socket: UnixEndpoint) -> Self {
        self.sockets.push(Kind::Unix(socket));
        self
    }

    pub(crate) fn poller(&self) -> io::Result<SharedPoller> {
        self.net.poller()
    }

    /// Opens them with the backlog of a front.
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

/// A TCP socket of the operating system.
impl From<SharedListener> for Listen {
    fn from(socket: SharedListener) -> Self {
        Self::on(OsNet::shared()).tcp(socket, None)
    }
}

/// An open listening socket.
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
            Kind::Tcp(socket, _) => socket.listen(BACKLOG)?, // a shorter backlog was set at the bind
            Kind::Unix(_) => {}                              // listens from its bind on
        }
        Ok(Self(kind))
    }

    /// The address of a TCP socket.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Tcp(socket, _) => socket.local_addr(),
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

    pub(crate) fn id(&self) -> SocketId<'_> {
        self.socket().id()
    }

    fn socket(&self) -> &SharedListener {
        match &self.0 {
            Kind::Tcp(socket, _) => socket,
            Kind::Unix(endpoint) => endpoint.socket(),
        }
    }

    /// Takes one connection off the backlog.
    pub(crate) fn accept(&self) -> Accepted {
        match (self.socket().accept(), &self.0) {
            (Ok((socket, Some(peer))), Kind::Tcp(_, tls)) => {
                tcp_accepted(socket, peer, tls.as_deref())
            }
            (Ok((socket, _)), Kind::Unix(endpoint)) => unix_accepted(socket, endpoint),
            (Err(AcceptError::Empty), _) => Accepted::Empty,
            (Err(AcceptError::Exhausted), _) => Accepted::Exhausted,
            (Err(AcceptError::Gone) | Ok((_, None)), _) => Accepted::Gone,
        }
    }
}

fn tcp_accepted(socket: SharedConnection, peer: SocketAddr, tls: Option<&ServerTls>) -> Accepted {
    let Some(tls) = tls else {
        return Accepted::Conn(Stream::new(socket), peer, Transport::Tcp);
    };
    match tls.session() {
        Some(session) => Accepted::Conn(Stream::tls(socket, session), peer, Transport::Tls),
        None => Accepted::Gone,
    }
}

fn unix_accepted(socket: SharedConnection, endpoint: &UnixEndpoint) -> Accepted {
    let Ok(uid) = socket.peer_uid() else {
        return Accepted::Forbidden;
    };
    if !endpoint.allows(uid) {
        return Accepted::Forbidden;
    }
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    Accepted::Conn(Stream::new(socket), nowhere, endpoint.transport(uid))
}
