//! The client's connections: TCP, TLS over TCP, or a Unix socket.
//!
//! A Unix socket is named by a URL, `unix:/run/x.sock:/path` or `http+unix://%2Frun%2Fx.sock/path`;
//! where its name ends in `.sock`, the colon behind it may be left out. Inside the client the
//! socket's path is encoded in a host name that callers cannot use.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ron_kernel::{Clock as _, SystemClock};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use ureq::Timeout;
use ureq::http::Uri;
use ureq::unversioned::transport::time::Duration as Limit;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, ShutdownHandle, TcpConnector,
    Transport, TransportAdapter,
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
    tcp: TcpConnector,
    tls: Option<ClientTls>,
    /// User ids that servers of Unix sockets may run as.
    peer_uids: Vec<u32>,
}

impl Dial {
    pub(crate) fn new(tls: Option<ClientTls>, peer_uids: Vec<u32>) -> Self {
        Self {
            tcp: TcpConnector::default(),
            tls,
            peer_uids,
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
        if let Some(path) = unix_path(details.uri) {
            return UnixTransport::connect(details, &path, &self.peer_uids)
                .map(|transport| Some(Box::new(transport) as Self::Out));
        }
        let Some(tcp) = Connector::<()>::connect(&self.tcp, details, None)? else {
            return Ok(None);
        };
        let tcp: Self::Out = Box::new(tcp);
        if details.needs_tls() {
            self.secure(details, tcp).map(Some)
        } else {
            Ok(Some(tcp))
        }
    }
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
struct Socket(UnixStream);

impl ShutdownHandle for Socket {
    fn shutdown(&self) {
        // An error means that it is closed already.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

/// A connection over a Unix socket.
#[derive(Debug)]
struct UnixTransport {
    socket: Arc<Socket>,
    buffers: LazyBuffers,
}

impl UnixTransport {
    fn connect(
        details: &ConnectionDetails<'_>,
        path: &Path,
        peer_uids: &[u32],
    ) -> Result<Self, ureq::Error> {
        let limit = left(details.timeout).map_err(|_| ureq::Error::Timeout(Timeout::Connect))?;
        let socket = match crate::uds::dial(path, limit) {
            Ok(stream) => Arc::new(Socket(stream)),
            Err(error) => {
                return Err(match error.kind() {
                    // The backlog was full for the whole time limit.
                    io::ErrorKind::WouldBlock => ureq::Error::Timeout(Timeout::Connect),
                    io::ErrorKind::ConnectionRefused => error.into(),
                    _ => ureq::Error::ConnectionFailed, // no such file, not allowed
                });
            }
        };
        // Before any byte is written: a request may carry a credential.
        match crate::uds::check_server(&socket.0, path, peer_uids) {
            Ok(Ok(())) => {}
            Ok(Err(foreign)) => return Err(ureq::Error::Other(Box::new(foreign))),
            Err(_) => return Err(ureq::Error::ConnectionFailed),
        }
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

/// Repeats `attempt` until it succeeds or the limit has passed; an interruption by a signal does
/// not count as a failure.
fn within<T>(
    timeout: NextTimeout,
    mut attempt: impl FnMut(Option<Duration>) -> io::Result<T>,
) -> Result<T, ureq::Error> {
    let late = || ureq::Error::Timeout(timeout.reason);
    let mut limit = left(timeout)?;
    let until = limit.map(|limit| SystemClock.now() + limit);
    loop {
        match attempt(limit) {
            Ok(done) => return Ok(done),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Err(late()),
                io::ErrorKind::Interrupted => {}
                _ => return Err(error.into()),
            },
        }
        if let Some(until) = until {
            let rest = until.saturating_duration_since(SystemClock.now());
            if rest.is_zero() {
                return Err(late());
            }
            limit = Some(rest);
        }
    }
}

impl Transport for UnixTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let output = &self.buffers.output()[..amount];
        let mut sent = 0;
        let mut stream = &self.socket.0;
        within(timeout.for_write(), |limit| {
            stream.set_write_timeout(limit)?;
            while sent < output.len() {
                match stream.write(&output[sent..])? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    count => sent += count,
                }
            }
            Ok(())
        })
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let room = self.buffers.input_append_buf();
        let mut stream = &self.socket.0;
        let amount = within(timeout.for_read(), |limit| {
            stream.set_read_timeout(limit)?;
            stream.read(room)
        })?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        let stream = &self.socket.0;
        let quiet = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        // A reusable connection has nothing to read: neither its end nor unsolicited bytes.
        matches!(
            rustix::net::recv(stream, &mut [0; 1], quiet),
            Err(rustix::io::Errno::AGAIN)
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
