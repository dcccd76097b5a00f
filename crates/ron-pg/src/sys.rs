//! libpq as safe values. A connection and a result are freed when they are dropped.
#![allow(unsafe_code)] // libpq is a C library; each block says why it is sound

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::slice;

use pq_sys as pq;

/// Notices kept of one query; more say nothing new.
const NOTICES_MAX: usize = 64;

/// Formats of parameters and results: 0 is text, 1 is binary.
const BINARY: c_int = 1;

/// A message of the server that is no error of the query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Five characters, such as `01000`; empty for a notice of the library itself.
    pub sqlstate: String,
    pub message: String,
}

/// What a connection that is being made waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Read,
    Write,
    Done,
    Failed,
}

/// A PGconn, in one of its states. Used by one thread at a time.
#[derive(Debug)]
pub(crate) struct Conn {
    raw: NonNull<pq::PGconn>,
    /// Written by the notice receiver; owned by this value.
    notices: NonNull<Vec<Notice>>,
}

// SAFETY: libpq allows a PGconn to be used by any thread, one at a time; every method that calls
// into it takes `&mut self` or only reads, and `Conn` is not Sync. The notices are owned.
unsafe impl Send for Conn {}

/// A parameter as libpq takes it.
pub(crate) struct RawParam<'a> {
    /// 0 leaves the type to the server.
    pub oid: u32,
    /// `None` is NULL.
    pub bytes: Option<&'a [u8]>,
}

/// The text behind a pointer of libpq, empty for null.
///
/// # Safety
/// `text` is null or a string that ends with a zero and lives during the call.
unsafe fn copied(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: of the caller.
    unsafe { whole(text) }.trim_end().to_owned()
}

/// The text behind a pointer of libpq.
///
/// # Safety
/// `text` is a string that ends with a zero and lives during the call.
unsafe fn whole(text: *const c_char) -> String {
    // SAFETY: of the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

unsafe extern "C" fn receive(into: *mut c_void, result: *const pq::PGresult) {
    // SAFETY: `into` is the vector of the connection that calls; `Conn` holds no reference to it
    // while it is inside libpq. The result lives during the call.
    let (notices, sqlstate, message) = unsafe {
        (
            &mut *into.cast::<Vec<Notice>>(),
            copied(pq::PQresultErrorField(result, c_int::from(b'C'))),
            copied(pq::PQresultErrorField(result, c_int::from(b'M'))),
        )
    };
    if notices.len() < NOTICES_MAX {
        notices.push(Notice { sqlstate, message });
    }
}

/// The options that `conninfo` sets, a URL or pairs; `None` when it is not understood.
pub(crate) fn parse_options(conninfo: &str) -> Option<Vec<(String, String)>> {
    let conninfo = CString::new(conninfo).ok()?;
    // SAFETY: a C string that lives during the call; no message is asked for.
    let parsed = unsafe { pq::PQconninfoParse(conninfo.as_ptr(), ptr::null_mut()) };
    let parsed = NonNull::new(parsed)?;
    let mut options = Vec::new();
    let mut next = parsed.as_ptr();
    // SAFETY: an array of libpq that ends with an option without a name, whose texts live until it is freed, once.
    unsafe {
        while !(*next).keyword.is_null() {
            if !(*next).val.is_null() {
                options.push((whole((*next).keyword), whole((*next).val)));
            }
            next = next.add(1);
        }
        pq::PQconninfoFree(parsed.as_ptr());
    }
    Some(options)
}

impl Conn {
    /// Begins to connect. `None` when the text has a zero byte or memory is short. A host name in
    /// `conninfo` is resolved here, by the system's resolver.
    pub fn start(conninfo: &str) -> Option<Self> {
        let conninfo = CString::new(conninfo).ok()?;
        // SAFETY: a C string that lives during the call; libpq copies it.
        let raw = NonNull::new(unsafe { pq::PQconnectStart(conninfo.as_ptr()) })?;
        let notices = NonNull::from(Box::leak(Box::default()));
        let conn = Self { raw, notices };
        // SAFETY: a live connection, and a vector that lives as long (see `drop`).
        unsafe {
            pq::PQsetNoticeReceiver(raw.as_ptr(), Some(receive), notices.as_ptr().cast());
        }
        Some(conn)
    }

    /// True when it failed before anything was sent.
    pub fn is_bad(&self) -> bool {
        // SAFETY: a live connection.
        unsafe { pq::PQstatus(self.raw.as_ptr()) == pq::ConnStatusType::CONNECTION_BAD }
    }

    pub fn connect_on(&mut self) -> Progress {
        use pq::PostgresPollingStatusType as Status;
        // SAFETY: a live connection that no other thread uses (`&mut self`).
        match unsafe { pq::PQconnectPoll(self.raw.as_ptr()) } {
            Status::PGRES_POLLING_READING => Progress::Read,
            Status::PGRES_POLLING_WRITING => Progress::Write,
            Status::PGRES_POLLING_OK => Progress::Done,
            _ => Progress::Failed,
        }
    }

    /// False when it cannot be made non-blocking.
    pub fn set_nonblocking(&mut self) -> bool {
        // SAFETY: as in `connect_on`.
        unsafe { pq::PQsetnonblocking(self.raw.as_ptr(), 1) == 0 }
    }

    /// The socket, if there is one. Another one may follow while a connection is being made.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: a live connection; a descriptor that is not -1 is open until libpq is called
        // again, which needs `&mut self`.
        unsafe {
            let fd = pq::PQsocket(self.raw.as_ptr());
            (fd >= 0).then(|| BorrowedFd::borrow_raw(fd))
        }
    }

    pub fn is_tls(&self) -> bool {
        // SAFETY: a live connection.
        unsafe { pq::PQsslInUse(self.raw.as_ptr()) == 1 }
    }

    /// The process that the server said it is when the connection was made.
    pub fn backend_pid(&self) -> i32 {
        // SAFETY: a live connection.
        unsafe { pq::PQbackendPID(self.raw.as_ptr()) }
    }

    pub fn error(&self) -> String {
        // SAFETY: a live connection, whose message is copied at once.
        unsafe { copied(pq::PQerrorMessage(self.raw.as_ptr())) }
    }

    /// Hands a query to libpq, with binary parameters and results; false when it takes none.
    pub fn send(&mut self, sql: &CStr, params: &[RawParam<'_>]) -> bool {
        let oids: Vec<pq::Oid> = params.iter().map(|p| p.oid).collect();
        let values = params
            .iter()
            .map(|p| p.bytes.map_or(ptr::null(), <[u8]>::as_ptr));
        let values: Vec<*const c_char> = values.map(<*const u8>::cast).collect();
        let lengths = params.iter().map(|p| p.bytes.map_or(0, <[u8]>::len));
        let lengths: Option<Vec<c_int>> = lengths.map(|n| c_int::try_from(n).ok()).collect();
        let (Some(lengths), Ok(count)) = (lengths, c_int::try_from(params.len())) else {
            return false;
        };
        let formats = vec![BINARY; params.len()];
        // SAFETY: four arrays of `count` items whose pointers live during the call (a pointer of an
        // empty slice is not null, and its length is 0; a null pointer is NULL); libpq copies all of it.
        unsafe {
            pq::PQsendQueryParams(
                self.raw.as_ptr(),
                sql.as_ptr(),
                count,
                oids.as_ptr(),
                values.as_ptr(),
                lengths.as_ptr(),
                formats.as_ptr(),
                BINARY,
            ) == 1
        }
    }

    /// Sends what is buffered: `Some(true)` when all is sent, `None` when the connection is lost.
    pub fn flush(&mut self) -> Option<bool> {
        // SAFETY: as in `connect_on`.
        match unsafe { pq::PQflush(self.raw.as_ptr()) } {
            0 => Some(true),
            1 => Some(false),
            _ => None,
        }
    }

    /// Reads what has arrived; false when the connection is lost.
    pub fn consume(&mut self) -> bool {
        // SAFETY: as in `connect_on`.
        unsafe { pq::PQconsumeInput(self.raw.as_ptr()) == 1 }
    }

    /// True while the next result is not complete: [`Conn::result`] would block.
    pub fn is_busy(&mut self) -> bool {
        // SAFETY: as in `connect_on`.
        unsafe { pq::PQisBusy(self.raw.as_ptr()) == 1 }
    }

    /// The next result of the query; `None` after the last.
    pub fn result(&mut self) -> Option<ResultSet> {
        // SAFETY: as in `connect_on`; the result is ours to free.
        NonNull::new(unsafe { pq::PQgetResult(self.raw.as_ptr()) }).map(ResultSet)
    }

    pub fn take_notices(&mut self) -> Vec<Notice> {
        // SAFETY: the receiver runs only inside a call of libpq, which `&mut self` excludes.
        unsafe { std::mem::take(self.notices.as_mut()) }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        // SAFETY: both were made in `start` and are freed once; the connection, whose receiver
        // writes to the vector, first. In non-blocking mode PQfinish does not wait for the socket.
        unsafe {
            pq::PQfinish(self.raw.as_ptr());
            drop(Box::from_raw(self.notices.as_ptr()));
        }
    }
}

/// A result of a query, complete in memory.
#[derive(Debug)]
pub(crate) struct ResultSet(NonNull<pq::PGresult>);

// SAFETY: a complete PGresult is read-only and independent of its connection, and libpq allows it
// to be passed between threads.
unsafe impl Send for ResultSet {}

impl ResultSet {
    pub fn is_ok(&self) -> bool {
        use pq::ExecStatusType as Status;
        // SAFETY: a live result.
        let status = unsafe { pq::PQresultStatus(self.0.as_ptr()) };
        status == Status::PGRES_COMMAND_OK || status == Status::PGRES_TUPLES_OK
    }

    /// A field of the error: `C` the SQLSTATE, `M` the message, `V` the severity in English.
    pub fn error_field(&self, field: u8) -> String {
        // SAFETY: a live result; the text is copied at once.
        unsafe { copied(pq::PQresultErrorField(self.0.as_ptr(), c_int::from(field))) }
    }

    /// What was done, such as `INSERT 0 1` or `ROLLBACK`.
    pub fn tag(&self) -> String {
        // SAFETY: a live result, which PQcmdStatus does not change; the text is copied at once.
        unsafe { copied(pq::PQcmdStatus(self.0.as_ptr())) }
    }

    pub fn size(&self) -> (usize, usize) {
        // SAFETY: a live result.
        let (rows, columns) = unsafe {
            (
                pq::PQntuples(self.0.as_ptr()),
                pq::PQnfields(self.0.as_ptr()),
            )
        };
        (
            rows.unsigned_abs() as usize,
            columns.unsigned_abs() as usize,
        )
    }

    /// Type of a column, as a number of the catalogue. `column` is below [`ResultSet::size`].
    pub fn column_type(&self, column: usize) -> u32 {
        assert!(column < self.size().1, "outside of the result");
        // SAFETY: a live result, and a column of it.
        unsafe { pq::PQftype(self.0.as_ptr(), column as c_int) }
    }

    /// A value; `None` for NULL. `row` and `column` are below [`ResultSet::size`].
    pub fn value(&self, row: usize, column: usize) -> Option<&[u8]> {
        let (rows, columns) = self.size();
        assert!(row < rows && column < columns, "outside of the result");
        let (row, column) = (row as c_int, column as c_int);
        // SAFETY: the place is inside of the result; the bytes belong to it and live as long.
        unsafe {
            if pq::PQgetisnull(self.0.as_ptr(), row, column) == 1 {
                return None;
            }
            let length = pq::PQgetlength(self.0.as_ptr(), row, column);
            let start = pq::PQgetvalue(self.0.as_ptr(), row, column);
            if start.is_null() {
                return None;
            }
            Some(slice::from_raw_parts(
                start.cast(),
                length.unsigned_abs() as usize,
            ))
        }
    }
}

impl Drop for ResultSet {
    fn drop(&mut self) {
        // SAFETY: freed once.
        unsafe { pq::PQclear(self.0.as_ptr()) }
    }
}
