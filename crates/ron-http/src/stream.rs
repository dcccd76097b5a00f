//! The byte stream under a connection: a socket, or TLS over one.

use std::io::{self, ErrorKind, Read, Write};

use ron_kernel::net::{Connection, Half, SharedConnection};
use rustls::ServerConnection;

use crate::head::ClientCert;

/// The byte stream under a connection. Nothing here ever blocks.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(Plain),
    Tls(Box<TlsStream>),
}

impl Stream {
    pub(crate) fn new(socket: SharedConnection) -> Self {
        Self::Plain(Plain {
            socket,
            more: false,
        })
    }

    /// TLS over a socket; the handshake is part of the first reads.
    pub(crate) fn tls(socket: SharedConnection, session: ServerConnection) -> Self {
        Self::Tls(Box::new(TlsStream {
            socket,
            session,
            more: false,
        }))
    }

    /// The socket, to be registered for events. A clone keeps its descriptor from being reused
    /// meanwhile.
    pub(crate) fn socket(&self) -> &SharedConnection {
        match self {
            Self::Plain(plain) => &plain.socket,
            Self::Tls(tls) => &tls.socket,
        }
    }

    /// Reads the bytes that have arrived: `Some(0)` at the end of the stream, `None` when there are
    /// none now.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self {
            Self::Plain(plain) => {
                let got = plain.socket.read(into)?;
                // A short read means an empty socket, so the next bytes cause a new edge.
                plain.more = got == Some(into.len());
                Ok(got)
            }
            Self::Tls(tls) => tls.read(into),
        }
    }

    /// Writes as much as fits now; `None` when nothing does. `more` says that other bytes follow at
    /// once.
    pub(crate) fn write(&mut self, bytes: &[u8], more: bool) -> io::Result<Option<usize>> {
        match self {
            Self::Plain(plain) => plain.socket.write(bytes, more),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    /// Sends the bytes that [`Stream::write`] took and still buffers; true when none are left.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(_) => Ok(true),
            Self::Tls(tls) => tls.push(),
        }
    }

    /// Ends the sending half; the other end can still be read.
    pub(crate) fn finish(&mut self) {
        if let Self::Tls(tls) = self {
            tls.session.send_close_notify();
            let _ = tls.push(); // best effort: the shutdown below ends the stream too
        }
        self.socket().shutdown(Half::Write);
    }

    /// True while a TLS handshake is not complete.
    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.session.is_handshaking())
    }

    /// True when another read may return bytes for which no further event will be reported.
    pub(crate) fn has_more(&self) -> bool {
        match self {
            Self::Plain(plain) => plain.more,
            Self::Tls(tls) => tls.more,
        }
    }

    /// True when TLS records of the session wait for room in the socket.
    pub(crate) fn wants_write(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.session.wants_write())
    }

    /// The client's verified certificate, if it sent one.
    pub(crate) fn client_cert(&self) -> Option<ClientCert> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(tls) => {
                let chain = tls.session.peer_certificates()?;
                Some(crate::tls::client_cert(chain.first()?))
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Plain {
    socket: SharedConnection,
    /// The last read ended for want of buffer space, not of bytes.
    more: bool,
}

/// A server's TLS session over a socket; between requests it holds a few KiB.
#[derive(Debug)]
pub(crate) struct TlsStream {
    socket: SharedConnection,
    session: ServerConnection,
    /// The last read ended for want of buffer space, not of bytes.
    more: bool,
}

/// Maximum number of socket reads in one call; a peer that sends empty records cannot hold a worker
/// longer.
const READS_MAX: usize = 64;
/// Maximum number of bytes encrypted before they are offered to the socket.
const WRITE_MAX: usize = 32 << 10;

impl TlsStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        self.push()?;
        let mut got = 0;
        self.more = false;
        // Decrypted bytes first, then the socket, until the buffer is full or the socket empty.
        for _ in 0..READS_MAX {
            let ended = self.take(into, &mut got)?;
            if ended || got == into.len() {
                self.more = !ended;
                return Ok(Some(got));
            }
            match self.session.read_tls(&mut Wire(&*self.socket)) {
                Ok(0) => return Ok(Some(got)),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok((got > 0).then_some(got));
                }
                Err(error) => return Err(error),
            }
            if let Err(error) = self.session.process_new_packets() {
                let _ = self.push(); // sends the alert with the reason
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
            self.push()?;
        }
        self.more = true; // the socket may not be empty: no edge would follow
        Ok((got > 0).then_some(got))
    }

    /// Moves decrypted bytes; true at the end of the stream.
    fn take(&mut self, into: &mut [u8], got: &mut usize) -> io::Result<bool> {
        while *got < into.len() {
            match self.session.reader().read(&mut into[*got..]) {
                Ok(0) => return Ok(true),
                Ok(count) => *got += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        // Records of earlier bytes first: the session must not buffer without a bound.
        if !self.push()? {
            return Ok(None);
        }
        let part = &bytes[..bytes.len().min(WRITE_MAX)];
        let taken = self.session.writer().write(part)?;
        self.push()?;
        Ok(Some(taken))
    }

    /// Sends the session's pending records; false when the socket takes no more now.
    fn push(&mut self) -> io::Result<bool> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Wire(&*self.socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        self.session.send_close_notify();
        let _ = self.push(); // best effort: a drop cannot wait for room
    }
}

/// The socket with the traits that the TLS session needs.
struct Wire<'a>(&'a dyn Connection);

impl Read for Wire<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0
            .read(into)?
            .ok_or_else(|| ErrorKind::WouldBlock.into())
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .write(bytes, false)?
            .ok_or_else(|| ErrorKind::WouldBlock.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection and its other end, a blocking socket of the standard library.
#[cfg(test)]
pub(crate) fn pair() -> (SharedConnection, std::os::unix::net::UnixStream) {
    use ron_kernel::net::{Address, Net as _, OsNet};
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("s");
    let listener = OsNet.bind(&Address::Unix(path.clone())).expect("bound");
    listener.listen(1).expect("listening");
    let theirs = std::os::unix::net::UnixStream::connect(path).expect("it listens");
    let (ours, _) = listener.accept().expect("a connection waits");
    (ours, theirs)
}
