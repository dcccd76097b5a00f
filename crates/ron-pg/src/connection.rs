//! One session with a server. No call waits in libpq; each ends at its deadline, or when the server is
//! silent after the token has fired.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ron_kernel::net::{SharedPoller, SocketId, Watch};
use ron_kernel::{Deadline, Net, Shutdown};

use crate::hosts::each_host;
pub use crate::sys::Notice;
use crate::sys::{Conn, Progress, RawParam, ResultSet};

/// Under TLS, bytes that have arrived may be in the TLS library and no more in the socket, where some
/// versions of libpq leave them. No event reports them, so they are asked for at this interval.
const TLS_POLL: Duration = Duration::from_millis(20);

/// After a call has waited in vain for the whole grace, the next ones wait for this part of it.
const PROBE_PART: u32 = 4;

/// Type numbers of PostgreSQL's catalogue, which never change.
mod oid {
    pub const ANY: u32 = 0; // the server infers it
    pub const BOOL: u32 = 16;
    pub const BYTES: u32 = 17;
    pub const INT8: u32 = 20;
    pub const INT2: u32 = 21;
    pub const INT4: u32 = 23;
    pub const TEXT: u32 = 25;
    pub const BYTES_ARRAY: u32 = 1001;
    pub const TEXT_ARRAY: u32 = 1009;
}

/// Why a connection could not be made, or a query was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PgError {
    /// No session was made; nothing was sent.
    #[error("connecting failed: {0}")]
    Connect(String),
    /// The deadline passed. The query goes on at the server: call [`Connection::finish`] again, or
    /// drop the connection.
    #[error("the server did not answer in time")]
    TimedOut,
    #[error("the service is stopping")]
    Stopping,
    /// The connection broke. What was sent may be carried out or not.
    #[error("the connection to the server is lost: {0}")]
    Lost(String),
    /// The server refused. `fatal` means that it ended the session, so that a commit which it was
    /// waiting for may stand; otherwise the statement has changed nothing.
    #[error("the server refused ({sqlstate}): {message}")]
    Server {
        sqlstate: String,
        message: String,
        fatal: bool,
    },
    /// The session is not in a state for this call, or an answer has another form than asked for.
    #[error("{0}")]
    Misuse(&'static str),
}

impl PgError {
    /// Whether the session is of no use any more: it is lost, or in the middle of a query.
    pub fn ends_session(&self) -> bool {
        !matches!(self, Self::Server { fatal: false, .. })
    }
}

/// What the calls of one connection wait with; kept over reconnections, so that the token gets
/// one hook and not one for each connection. For one thread at a time.
#[derive(Debug)]
pub struct Waiter {
    poller: SharedPoller,
    /// When calls end that were under way as the token fired; empty before that.
    cut: Arc<OnceLock<Deadline>>,
    grace: Duration,
    made: Deadline,
    /// A call was cut: a drain has no time to wait for the same server again, so that calls end at once until this time, in
    /// microseconds from `made`. 0 after an answer.
    silent_until: AtomicU64,
}

/// When a call ends.
#[derive(Clone, Copy)]
struct CallEnd {
    deadline: Deadline,
    /// Not before this moment because of the token.
    least: Deadline,
}

impl Waiter {
    /// Once `shutdown` has fired, no call waits longer than `grace` for its answer. After one that has waited in vain, calls end at
    /// once for as long as it has waited, and then may wait for a quarter of `grace`, until the server answers one of them.
    pub fn new(net: &dyn Net, shutdown: &Shutdown, grace: Duration) -> io::Result<Arc<Self>> {
        let poller = net.poller()?;
        let cut = Arc::new(OnceLock::new());
        let (woken, fired) = (Arc::clone(&poller), Arc::clone(&cut));
        shutdown.on_fire(move || {
            fired.get_or_init(|| Deadline::within(grace));
            woken.wake();
        });
        Ok(Arc::new(Self {
            poller,
            cut,
            grace,
            made: Deadline::within(Duration::ZERO),
            silent_until: AtomicU64::new(0),
        }))
    }

    /// The end of the time in which calls do not wait, while the server is silent.
    fn silent_until(&self) -> Option<Deadline> {
        let until = self.silent_until.load(Ordering::Relaxed);
        (until > 0).then(|| self.made.extend(Duration::from_micros(until)))
    }

    fn was_silent(&self) {
        let until = Deadline::within(self.grace).at() - self.made.at();
        let until = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
        self.silent_until.store(until, Ordering::Relaxed);
    }

    fn has_answered(&self) {
        self.silent_until.store(0, Ordering::Relaxed);
    }

    /// Of a call that begins now.
    fn end_of_call(&self, deadline: Deadline) -> CallEnd {
        let wait = match self.silent_until() {
            Some(_) => self.grace / PROBE_PART,
            None => self.grace,
        };
        let least = Deadline::within(wait);
        CallEnd { deadline, least }
    }

    /// How long a call may still wait; an error when it has to end.
    fn remaining(&self, end: CallEnd) -> Result<Duration, PgError> {
        let cut = self.cut.get().map(|cut| end.least.max(*cut));
        if cut.is_some_and(Deadline::expired) {
            self.was_silent();
            return Err(PgError::Stopping);
        }
        if self.silent_until().is_some_and(|until| !until.expired()) {
            return Err(PgError::Stopping);
        }
        if end.deadline.expired() {
            return Err(PgError::TimedOut);
        }
        let by = cut.map_or(end.deadline, |cut| cut.earlier(end.deadline));
        Ok(by.remaining())
    }

    /// Waits until the socket of `conn` is ready, or may be.
    fn wait(&self, conn: &Conn, write: bool, end: CallEnd) -> Result<(), PgError> {
        self.wait_for_any(&[(conn, write)], end).map(|_| ())
    }

    /// Waits until a socket of these connections is ready, or may be; the places of those that are.
    fn wait_for_any(&self, conns: &[(&Conn, bool)], end: CallEnd) -> Result<Vec<usize>, PgError> {
        let remaining = self.remaining(end)?;
        let mut tokens = Vec::with_capacity(conns.len());
        for (conn, write) in conns {
            let socket = conn
                .socket()
                .ok_or_else(|| PgError::Lost("it has no socket".into()))?;
            // A descriptor as its own token: an event of another connection is not taken for one of these.
            let token = u64::from(socket.as_raw_fd().unsigned_abs());
            tokens.push(token);
            // Input as long as there is some: libpq may leave bytes in the socket, and a change is
            // reported once. Output only while bytes wait to be sent, since it is nearly always ready;
            // setting the watch again reports the present state.
            let watch = if *write {
                Watch::Changes { output: true }
            } else {
                Watch::Input
            };
            let socket = SocketId::Descriptor(socket);
            let failed = |e: io::Error| PgError::Lost(e.to_string());
            if self.poller.modify(socket, token, watch).is_err() {
                self.poller.add(socket, token, watch).map_err(failed)?; // the first wait on this socket
            }
        }
        let tls = |at: usize| conns[at].0.is_tls();
        let limit = if (0..conns.len()).any(tls) {
            TLS_POLL
        } else {
            Duration::MAX
        };
        let mut events = Vec::with_capacity(conns.len().max(4));
        self.poller.wait(&mut events, remaining.min(limit));
        let reported = |at: usize| events.iter().any(|event| event.token == tokens[at]);
        Ok((0..conns.len())
            .filter(|at| reported(*at) || tls(*at))
            .collect())
    }
}

/// A parameter of a query, sent in binary.
#[derive(Clone, Copy, Debug)]
pub enum Param<'a> {
    Null,
    Text(&'a str),
    Bytes(&'a [u8]),
    Int8(i64),
    Int4(i32),
    Texts(&'a [&'a str]),
    BytesList(&'a [&'a [u8]]),
}

impl Param<'_> {
    fn oid(&self) -> u32 {
        match self {
            Self::Null => oid::ANY,
            Self::Text(_) => oid::TEXT,
            Self::Bytes(_) => oid::BYTES,
            Self::Int8(_) => oid::INT8,
            Self::Int4(_) => oid::INT4,
            Self::Texts(_) => oid::TEXT_ARRAY,
            Self::BytesList(_) => oid::BYTES_ARRAY,
        }
    }

    /// The bytes, if they are not there already.
    fn encoded(&self) -> Vec<u8> {
        match self {
            Self::Null | Self::Text(_) | Self::Bytes(_) => Vec::new(),
            Self::Int8(number) => number.to_be_bytes().into(),
            Self::Int4(number) => number.to_be_bytes().into(),
            Self::Texts(items) => array(oid::TEXT, items.iter().map(|item| item.as_bytes())),
            Self::BytesList(items) => array(oid::BYTES, items.iter().copied()),
        }
    }
}

/// The binary form of an array: one dimension from 1, without NULL.
fn array<'a>(element: u32, items: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [1, 0, element, items.len() as u32, 1] {
        bytes.extend(word.to_be_bytes());
    }
    for item in items {
        bytes.extend((item.len() as u32).to_be_bytes());
        bytes.extend(item);
    }
    bytes
}

/// A value of an answer, with its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell<'a> {
    Null,
    /// Of any length, and 0 or 1 for a boolean.
    Int(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

/// What a query gave.
#[derive(Debug, Default)]
pub struct Rows {
    results: Option<ResultSet>,
    /// What the server says was done, such as `INSERT 0 1`.
    pub tag: String,
    /// Messages that came with it. With a commit they mean that it is unknown.
    pub notices: Vec<Notice>,
}

impl Rows {
    pub fn len(&self) -> usize {
        self.results.as_ref().map_or(0, |results| results.size().0)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows that an INSERT, UPDATE or DELETE has changed.
    pub fn changed(&self) -> u64 {
        let last = self.tag.rsplit(' ').next();
        last.and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// Columns of each row; 0 without an answer.
    pub fn width(&self) -> usize {
        self.results.as_ref().map_or(0, |results| results.size().1)
    }

    /// A value of any of the types that [`Cell`] has.
    pub fn cell(&self, row: usize, column: usize) -> Result<Cell<'_>, PgError> {
        let outside = PgError::Misuse("a value is missing in the answer");
        if row >= self.len() || column >= self.width() {
            return Err(outside);
        }
        let results = self.results.as_ref().ok_or(outside)?;
        let Some(bytes) = results.value(row, column) else {
            return Ok(Cell::Null);
        };
        let wrong = PgError::Misuse("a value of the answer has another length than its type");
        Ok(match results.column_type(column) {
            oid::BOOL => Cell::Int(i64::from(bytes == [1])),
            oid::INT2 => Cell::Int(i16::from_be_bytes(bytes.try_into().map_err(|_| wrong)?).into()),
            oid::INT4 => Cell::Int(self.int4(row, column)?.into()),
            oid::INT8 => Cell::Int(self.int8(row, column)?),
            oid::TEXT => Cell::Text(self.text(row, column)?),
            oid::BYTES => Cell::Bytes(bytes),
            _ => {
                let why = "a column is no integer, text or bytea: cast it in the statement";
                return Err(PgError::Misuse(why));
            }
        })
    }

    /// A value; an error for NULL and outside of the result.
    pub fn bytes(&self, row: usize, column: usize) -> Result<&[u8], PgError> {
        let results = self.results.as_ref();
        let results = results.filter(|results| row < results.size().0 && column < results.size().1);
        results
            .and_then(|results| results.value(row, column))
            .ok_or(PgError::Misuse("a value is missing in the answer"))
    }

    pub fn int8(&self, row: usize, column: usize) -> Result<i64, PgError> {
        let bytes = self.bytes(row, column)?.try_into();
        let wrong = PgError::Misuse("a value of the answer is no bigint");
        bytes.map(i64::from_be_bytes).map_err(|_| wrong)
    }

    /// A bigint that counts something.
    pub fn count(&self, row: usize, column: usize) -> Result<u64, PgError> {
        let wrong = PgError::Misuse("a number of the answer is negative");
        u64::try_from(self.int8(row, column)?).map_err(|_| wrong)
    }

    pub fn int4(&self, row: usize, column: usize) -> Result<i32, PgError> {
        let bytes = self.bytes(row, column)?.try_into();
        let wrong = PgError::Misuse("a value of the answer is no integer");
        bytes.map(i32::from_be_bytes).map_err(|_| wrong)
    }

    pub fn text(&self, row: usize, column: usize) -> Result<&str, PgError> {
        let wrong = PgError::Misuse("a value of the answer is no text");
        std::str::from_utf8(self.bytes(row, column)?).map_err(|_| wrong)
    }

    pub fn boolean(&self, row: usize, column: usize) -> Result<bool, PgError> {
        Ok(self.bytes(row, column)? == [1])
    }
}

/// A session. Dropping it closes the socket; the server may go on with what was sent.
#[derive(Debug)]
pub struct Connection {
    conn: Conn,
    waiter: Arc<Waiter>,
    /// The query whose results are being collected.
    pending: Option<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    last: Option<ResultSet>,
    failure: Option<PgError>,
}

impl Connection {
    /// Connects. Of several hosts in `conninfo` all are tried at once, and the first that fits stays: one that takes writes,
    /// unless `target_session_attrs` says another thing. A host name is resolved by the system's resolver, which does not know
    /// the deadline; with addresses nothing waits beyond it.
    pub fn connect(
        conninfo: &str,
        waiter: &Arc<Waiter>,
        deadline: Deadline,
    ) -> Result<Self, PgError> {
        let end = waiter.end_of_call(deadline);
        let each = each_host(conninfo).unwrap_or_else(|| vec![conninfo.to_owned()]);
        let mut failures = Vec::new();
        let mut attempts = Vec::new();
        for conninfo in each {
            let conn = Conn::start(&conninfo);
            let conn = conn.ok_or_else(|| PgError::Connect("conninfo has a zero byte".into()))?;
            attempts.push((conn, Progress::Write));
        }
        let mut conn = loop {
            attempts.retain(|(conn, progress)| {
                let failed = *progress == Progress::Failed || conn.is_bad();
                if failed {
                    failures.push(conn.error());
                }
                !failed
            });
            if attempts.is_empty() {
                return Err(PgError::Connect(failures.join("; ")));
            }
            let waits: Vec<(&Conn, bool)> = attempts
                .iter()
                .map(|(conn, progress)| (conn, *progress == Progress::Write))
                .collect();
            let ready = waiter.wait_for_any(&waits, end);
            let ready = ready.map_err(|error| match error {
                PgError::Stopping => error,
                error => {
                    failures.push(error.to_string());
                    PgError::Connect(failures.join("; "))
                }
            })?;
            for at in &ready {
                attempts[*at].1 = attempts[*at].0.connect_on();
            }
            let done = ready.iter().find(|at| attempts[**at].1 == Progress::Done);
            if let Some(at) = done {
                break attempts.swap_remove(*at).0;
            }
        };
        if !conn.set_nonblocking() {
            return Err(PgError::Connect(conn.error()));
        }
        conn.take_notices();
        waiter.has_answered();
        Ok(Self {
            conn,
            waiter: Arc::clone(waiter),
            pending: None,
        })
    }

    /// The server's process as it was announced when the connection was made. A pooler announces
    /// another one than `pg_backend_pid()` says.
    pub fn announced_pid(&self) -> i32 {
        self.conn.backend_pid()
    }

    /// One statement with its parameters, and its answer.
    pub fn query(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
        deadline: Deadline,
    ) -> Result<Rows, PgError> {
        self.send(sql, params)?;
        self.finish(deadline)
    }

    /// Begins a query. After [`PgError::Misuse`] nothing of it was sent; after another error it may be.
    pub fn send(&mut self, sql: &str, params: &[Param<'_>]) -> Result<(), PgError> {
        if self.pending.is_some() {
            return Err(PgError::Misuse("an earlier query is not finished"));
        }
        let sql = CString::new(sql).map_err(|_| PgError::Misuse("SQL has a zero byte"))?;
        let encoded: Vec<Vec<u8>> = params.iter().map(Param::encoded).collect();
        let raw: Vec<RawParam<'_>> = params
            .iter()
            .zip(&encoded)
            .map(|(param, encoded)| RawParam {
                oid: param.oid(),
                bytes: match param {
                    Param::Null => None,
                    Param::Text(text) => Some(text.as_bytes()),
                    Param::Bytes(bytes) => Some(bytes),
                    _ => Some(encoded),
                },
            })
            .collect();
        self.conn.take_notices();
        if !self.conn.send(&sql, &raw) {
            return Err(PgError::Lost(self.conn.error()));
        }
        self.pending = Some(Pending::default());
        Ok(())
    }

    /// Waits for the answer to the query that was sent. After [`PgError::TimedOut`] it may be
    /// called again; after any other error the query is over.
    pub fn finish(&mut self, deadline: Deadline) -> Result<Rows, PgError> {
        let end = self.waiter.end_of_call(deadline);
        while self.receive()? {
            let flushed = self.conn.flush();
            let Some(sent) = flushed else {
                return Err(self.lost());
            };
            self.waiter.wait(&self.conn, !sent, end)?;
            if !self.conn.consume() {
                return Err(self.lost());
            }
        }
        self.waiter.has_answered();
        let pending = self.pending.take().unwrap_or_default();
        if let Some(failure) = pending.failure {
            return Err(failure);
        }
        let tag = pending.last.as_ref().map(ResultSet::tag);
        Ok(Rows {
            tag: tag.unwrap_or_default(),
            results: pending.last,
            notices: self.conn.take_notices(),
        })
    }

    /// Collects the results that have arrived; true while there are more to come.
    fn receive(&mut self) -> Result<bool, PgError> {
        let pending = self.pending.as_mut();
        let pending = pending.ok_or(PgError::Misuse("no query was sent"))?;
        while !self.conn.is_busy() {
            let Some(result) = self.conn.result() else {
                return Ok(false);
            };
            if result.is_ok() {
                pending.last = Some(result);
            } else if pending.failure.is_none() {
                let sqlstate = result.error_field(b'C');
                pending.failure = Some(if sqlstate.is_empty() {
                    PgError::Lost(self.conn.error()) // the library's own error, not the server's
                } else {
                    PgError::Server {
                        sqlstate,
                        message: result.error_field(b'M'),
                        fatal: result.error_field(b'V') != "ERROR",
                    }
                });
            }
        }
        Ok(true)
    }

    fn lost(&mut self) -> PgError {
        // The server may have said why before it closed the connection.
        let said = self.conn.take_notices().pop().map(|notice| notice.message);
        self.pending = None;
        PgError::Lost(said.unwrap_or_else(|| self.conn.error()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_encoded_as_the_server_reads_them() {
        let texts = Param::Texts(&["ab", ""]).encoded();
        let head = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 25, 0, 0, 0, 2, 0, 0, 0, 1];
        assert_eq!(texts[..20], head);
        assert_eq!(texts[20..], [0, 0, 0, 2, b'a', b'b', 0, 0, 0, 0]);
    }
}
