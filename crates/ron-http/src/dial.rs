//! The client's connections: TCP, TLS over TCP, or a Unix socket.
//!
//! A Unix socket is named by a URL, `unix:/run/x.sock:/path` or `http+unix://%2Frun%2Fx.sock/path`;
//! where its name ends in `.sock`, the colon behind it may be left out. Inside the client the
//! socket's path is encoded in a host name that callers cannot use.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ron_kernel::net::{Address, Direction, Half, SharedConnection, SharedNet};
use ron_kernel::{Clock as _, SystemClock};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use ureq::Timeout;
use ureq::http::Uri;
use ureq::unversioned::transport::time::Duration as Limit;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, ShutdownHandle, Transport,
    TransportAdapter,
};

use crate::request::percent_decode;
use crate::tls::ClientTls;

/// Suffix of host names that stand for Unix sockets, under the reserved top-level domain
/// `.invalid`.
const UNIX_HOST: &str = ".unix-socket.invalid";
/// Longest path of a socket in a URL, in bytes.
const PATH_MAX: usize = 4096;

/// The URL in the form that the library needs; `None` when it is not valid.
pub(crate) fn internal_url(url: &str) -> Option<Uri> {
    let Some((socket, rest)) = unix_parts(url) else {
        let uri: Uri = url.parse().ok()?;
        // A caller's URL must not name a socket by the internal form: it would pass as plain http.
        let forged = unix_path(&uri).is_some();
        return (!forged).then_some(uri);
    };
    let socket = socket?;
    let bytes = socket.as_bytes();
    let good = bytes.first() == Some(&b'/') && bytes.len() <= PATH_MAX && !bytes.contains(&0);
    if !good {
        return None;
    }
    let mut text = "http://".to_owned();
    for byte in bytes {
        use std::fmt::Write as _;
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
    }
    text.push_str(UNIX_HOST);
    text.push_str(rest);
    text.parse().ok()
}

/// The socket's path, if it can be decoded, and the request path of a URL that names a Unix socket.
fn unix_parts(url: &str) -> Option<(Option<String>, &str)> {
    if let Some(rest) = url.strip_prefix("http+unix://") {
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        return Some((percent_decode(host, false).map(Into::into), path));
    }
    let rest = url.strip_prefix("unix:")?;
    let named = [".sock:", ".sock/"].iter().filter_map(|end| rest.find(end));
    let end = named.min().map(|at| at + ".sock".len());
    let (socket, path) = rest.split_at(end.or(rest.find(':')).unwrap_or(rest.len()));
    let path = path.strip_prefix(':').unwrap_or(path);
    Some((Some(socket.to_owned()), path))
}

/// The part of a URL before its path, as in `http://127.0.0.1:7450` or `unix:/run/x.sock:`, to
/// which another path can be appended; `None` when it is not a URL of http, https or a Unix socket.
pub fn url_origin(url: &str) -> Option<&str> {
    if let Some((socket, path)) = unix_parts(url) {
        let good = socket.is_some_and(|socket| socket.starts_with('/')) && path.starts_with('/');
        return good.then(|| &url[..url.len() - path.len()]);
    }
    let schemes = ["http://", "https://"];
    let host = schemes.iter().find_map(|scheme| url.strip_prefix(scheme))?;
    let host_bytes = host.find(['/', '?', '#']).unwrap_or(host.len());
    let good = host_bytes > 0 && !host[..host_bytes].contains(['@', ' ']);
    good.then(|| &url[..url.len() - host.len() + host_bytes])
}

/// The socket's path encoded in a host name by [`internal_url`].
pub(crate) fn unix_path(uri: &Uri) -> Option<PathBuf> {
    let hex = uri.host()?.strip_suffix(UNIX_HOST)?;
    let digit = |at: usize| char::from(hex.as_bytes()[at]).to_digit(16);
    let mut bytes = Vec::with_capacity(hex.len() / 2);
    for at in (0..hex.len() - hex.len() % 2).step_by(2) {
        bytes.push((digit(at)? * 16 + digit(at + 1)?) as u8);
    }
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(&bytes)))
}

/// Makes the connections of a client.
#[derive(Debug)]
pub(crate) struct Dial {
    net: SharedNet,
    tls: Option<ClientTls>,
    /// User ids that servers of Unix sockets may run as.
    peer_uids: Vec<u32>,
}

impl Dial {
    pub(crate) fn new(net: SharedNet, tls: Option<ClientTls>, peer_uids: Vec<u32>) -> Self {
        Self {
            net,
            tls,
            peer_uids,
        }
    }

    /// Connects to the first address that accepts. All but the last may use half of the time that
    /// is left, so that one silent address does not use up the time of the others.
    fn connect_tcp(
        &self,
        timeout: NextTimeout,
        addrs: &[SocketAddr],
    ) -> Result<SharedConnection, ureq::Error> {
        let start = SystemClock.now();
        let mut failed = ureq::Error::HostNotFound;
        for (at, addr) in addrs.iter().enumerate() {
            let mut limit = left(later(timeout, start)).map_err(connect_timeout)?;
            if at + 1 < addrs.len() {
                limit = limit.map(|limit| limit / 2);
            }
            failed = match self.net.connect(&Address::Tcp(*addr), limit) {
                Ok(connection) => return Ok(connection),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    ureq::Error::Timeout(Timeout::Connect)
                }
                Err(error) => error.into(),
            };
        }
        Err(failed)
    }

    fn connect_unix(
        &self,
        timeout: NextTimeout,
        path: &Path,
    ) -> Result<SharedConnection, ureq::Error> {
        let limit = left(timeout).map_err(connect_timeout)?;
        let connection =
            crate::uds::dial(&*self.net, path, limit).map_err(|error| match error.kind() {
                // The backlog was full for the whole time limit.
                io::ErrorKind::TimedOut => ureq::Error::Timeout(Timeout::Connect),
                io::ErrorKind::ConnectionRefused => error.into(),
                _ => ureq::Error::ConnectionFailed, // no such file, not allowed
            })?;
        // Before any byte is written: a request may carry a credential.
        match crate::uds::check_server(&*connection, path, &self.peer_uids) {
            Ok(Ok(())) => Ok(connection),
            Ok(Err(foreign)) => Err(ureq::Error::Other(Box::new(foreign))),
            Err(_) => Err(ureq::Error::ConnectionFailed),
        }
    }

    fn secure(
        &self,
        details: &ConnectionDetails<'_>,
        below: Box<dyn Transport>,
    ) -> Result<Box<dyn Transport>, ureq::Error> {
        let tls = self.tls.as_ref().ok_or(ureq::Error::TlsRequired)?;
        let host = details.uri.host().unwrap_or("");
        let name = ServerName::try_from(host.trim_start_matches('[').trim_end_matches(']'))
            .map_err(|_| ureq::Error::Tls("the peer's name cannot stand in a certificate"))?
            .to_owned();
        let mut session = ClientConnection::new(tls.config(), name)
            .map_err(|_| ureq::Error::Tls("a TLS session cannot be made"))?;
        let mut wire = TransportAdapter::new(below, details.current_time.clone());
        wire.set_timeout(details.timeout);
        session.complete_io(&mut wire).map_err(handshake_error)?;
        Ok(Box::new(TlsTransport {
            stream: StreamOwned::new(session, wire),
            buffers: buffers(details),
        }))
    }
}

impl Connector<()> for Dial {
    type Out = Box<dyn Transport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _chained: Option<()>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let connection = match unix_path(details.uri) {
            Some(path) => self.connect_unix(details.timeout, &path)?,
            None => self.connect_tcp(details.timeout, &details.addrs)?,
        };
        let socket: Self::Out = Box::new(SocketTransport::new(details, connection)?);
        if details.needs_tls() {
            self.secure(details, socket).map(Some)
        } else {
            Ok(Some(socket))
        }
    }
}

/// Whichever limit it was, it passed while connecting.
fn connect_timeout(_: ureq::Error) -> ureq::Error {
    ureq::Error::Timeout(Timeout::Connect)
}

fn buffers(details: &ConnectionDetails<'_>) -> LazyBuffers {
    let config = details.config;
    LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size())
}

/// Maps a failed handshake: whatever the reason, no request was sent.
fn handshake_error(error: io::Error) -> ureq::Error {
    let Some(cause) = error.get_ref().and_then(|e| e.downcast_ref()) else {
        return match ureq::Error::from(error) {
            // Whichever limit it was, it passed while connecting.
            ureq::Error::Timeout(_) => ureq::Error::Timeout(Timeout::Connect),
            _ => ureq::Error::Tls("the connection failed within the TLS handshake"),
        };
    };
    ureq::Error::Tls(match cause {
        rustls::Error::InvalidCertificate(_) => "the peer's certificate is not trusted",
        rustls::Error::AlertReceived(_) => "the peer refused the TLS handshake",
        _ => "the TLS handshake failed",
    })
}

/// Maps an error after the handshake. An alert about our certificate arrives after our half of the
/// handshake, in place of an answer; the peer has read no request then.
fn tls_error(error: io::Error) -> ureq::Error {
    use rustls::AlertDescription as Alert;
    match error.get_ref().and_then(|e| e.downcast_ref()) {
        Some(rustls::Error::AlertReceived(Alert::CertificateRequired)) => ureq::Error::Tls(
            "the peer asks for a certificate: tls.cert_path of a service, --client-cert of a command",
        ),
        Some(rustls::Error::AlertReceived(
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError,
        )) => ureq::Error::Tls("the peer does not accept our certificate"),
        _ => error.into(),
    }
}

/// Prefers the peer's alert to the error of a closed connection: a peer that refuses us sends an
/// alert and closes, and the close may be noticed first while the alert is still unread.
fn parting(stream: &mut Secured, error: io::Error) -> io::Error {
    let closed = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
    if !closed.contains(&error.kind()) {
        return error;
    }
    let (session, wire) = (&mut stream.conn, &mut stream.sock);
    let heard = session.read_tls(wire);
    match heard.map(|_| session.process_new_packets()) {
        Ok(Err(said)) => io::Error::new(io::ErrorKind::InvalidData, said),
        _ => error,
    }
}

type Secured = StreamOwned<ClientConnection, TransportAdapter<Box<dyn Transport>>>;

/// TLS over a connection.
struct TlsTransport {
    stream: Secured,
    buffers: LazyBuffers,
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.sock.set_timeout(timeout);
        let output = &self.buffers.output()[..amount];
        let sent = self.stream.write_all(output);
        sent.map_err(|error| tls_error(parting(&mut self.stream, error)))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.sock.set_timeout(timeout);
        let room = self.buffers.input_append_buf();
        let amount = self.stream.read(room);
        let amount = amount.map_err(|error| tls_error(parting(&mut self.stream, error)))?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

impl fmt::Debug for TlsTransport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("TlsTransport")
    }
}

/// The socket, shared with the handle that ends calls at shutdown.
#[derive(Debug)]
struct Socket(SharedConnection);

impl Socket {
    /// Waits until the socket is ready.
    fn wait(&self, direction: Direction, timeout: NextTimeout) -> Result<(), ureq::Error> {
        if self.0.wait(direction, left(timeout)?)? {
            Ok(())
        } else {
            Err(ureq::Error::Timeout(timeout.reason))
        }
    }
}

impl ShutdownHandle for Socket {
    fn shutdown(&self) {
        self.0.shutdown(Half::Both);
    }
}

/// A connection over a TCP or Unix socket.
#[derive(Debug)]
struct SocketTransport {
    socket: Arc<Socket>,
    buffers: LazyBuffers,
}

impl SocketTransport {
    fn new(
        details: &ConnectionDetails<'_>,
        connection: SharedConnection,
    ) -> Result<Self, ureq::Error> {
        let socket = Arc::new(Socket(connection));
        let handle: Arc<dyn ShutdownHandle> = socket.clone();
        let weak: Weak<dyn ShutdownHandle> = Arc::downgrade(&handle);
        (details.register_shutdown)(weak)?;
        Ok(Self {
            socket,
            buffers: buffers(details),
        })
    }
}

/// Time left of a limit; `None` means no limit.
fn left(timeout: NextTimeout) -> Result<Option<Duration>, ureq::Error> {
    match timeout.after {
        Limit::Exact(Duration::ZERO) => Err(ureq::Error::Timeout(timeout.reason)),
        Limit::Exact(after) => Ok(Some(after)),
        Limit::NotHappening => Ok(None),
    }
}

/// The same limit after some of its time has passed.
fn later(timeout: NextTimeout, since: Instant) -> NextTimeout {
    let after = match timeout.after {
        Limit::Exact(after) => {
            Limit::Exact(after.saturating_sub(SystemClock.now().saturating_duration_since(since)))
        }
        never @ Limit::NotHappening => never,
    };
    NextTimeout { after, ..timeout }
}

impl Transport for SocketTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let timeout = timeout.for_write();
        let start = SystemClock.now();
        let mut rest = &self.buffers.output()[..amount];
        while !rest.is_empty() {
            match self.socket.0.write(rest, false)? {
                Some(count) => rest = &rest[count..],
                None => self.socket.wait(Direction::Write, later(timeout, start))?,
            }
        }
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let timeout = timeout.for_read();
        let start = SystemClock.now();
        // The answer is hardly ever there at once: waiting first saves a vain read.
        self.socket.wait(Direction::Read, timeout)?;
        loop {
            let room = self.buffers.input_append_buf();
            if let Some(amount) = self.socket.0.read(room)? {
                self.buffers.input_appended(amount);
                return Ok(amount > 0);
            }
            self.socket.wait(Direction::Read, later(timeout, start))?;
        }
    }

    fn is_open(&mut self) -> bool {
        // A reusable connection has nothing to read: neither its end nor unsolicited bytes.
        let socket = &self.socket.0;
        matches!(
            socket.wait(Direction::Read, Some(Duration::ZERO)),
            Ok(false)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_path_fits_behind_an_origin() {
        let check = |url: &str, want: Option<&str>| assert_eq!(url_origin(url), want, "{url}");
        check("http://a:1/.well-known/jwks.json", Some("http://a:1"));
        check("https://a", Some("https://a"));
        check("unix:/run/k.sock:/jwks.json", Some("unix:/run/k.sock:"));
        check("unix:/run/k.sock/jwks.json", Some("unix:/run/k.sock"));
        check("unix:/run/k/s:/jwks.json", Some("unix:/run/k/s:"));
        check(
            "http+unix://%2Frun%2Fk.sock/x",
            Some("http+unix://%2Frun%2Fk.sock"),
        );
        check("unix:/run/k.sock", None);
        check("unix:k.sock:/x", None);
        check("ftp://x/", None);
        check("http:///x", None);
        check("http://u@h/x", None);
    }

    #[test]
    fn urls_name_unix_sockets_in_two_forms() {
        let check = |url: &str, want: Option<(&str, &str)>| {
            let uri = internal_url(url);
            let found = uri.as_ref().and_then(|uri| {
                let path = unix_path(uri)?.to_str()?.to_owned();
                Some((path, uri.path_and_query()?.as_str().to_owned()))
            });
            let want = want.map(|(socket, path)| (socket.to_owned(), path.to_owned()));
            assert_eq!(found, want, "{url}");
        };
        check(
            "unix:/run/k.sock:/v1/x?y=1",
            Some(("/run/k.sock", "/v1/x?y=1")),
        );
        check("unix:/run/k.sock", Some(("/run/k.sock", "/")));
        check(
            "http+unix://%2Frun%2Fk.sock/v1/x",
            Some(("/run/k.sock", "/v1/x")),
        );
        check(
            "unix:/run/k.sock/v1/x?y=1",
            Some(("/run/k.sock", "/v1/x?y=1")),
        );
        check("unix:/run/k/s", Some(("/run/k/s", "/")));
        check("unix:/run/k/s:/x", Some(("/run/k/s", "/x")));
        check("unix:/run/k.sock/a:b", Some(("/run/k.sock", "/a:b")));
        check("http+unix://%2Frun%2Fk.sock", Some(("/run/k.sock", "/")));
        check("http+unix://%2Frun%2/x", None);
        check("unix:relative.sock:/x", None);
        check("http+unix://run/x", None);
        check("http://127.0.0.1/x", None);
        assert!(internal_url("http://127.0.0.1/x").is_some());
        assert!(internal_url("http://2f72.unix-socket.invalid/x").is_none());
        assert!(internal_url(&format!("unix:/{}", "a".repeat(5000))).is_none());
    }
}
