//! The request parser, free of I/O: bytes in, heads and bodies or one typed refusal out.
//!
//! Framing is strict where leniency would let two readers disagree about the end of a request:
//! bytes that can be read in two ways are refused and the connection is closed.

use std::mem::MaybeUninit;
use std::net::Ipv6Addr;
use std::ops::Range;

use memchr::memchr3;

use crate::head::{Field, Method};

/// Maximum number of header fields of any head; [`crate::Limits::max_fields`] can only lower it.
pub const FIELDS_MAX: usize = 128;

/// Size bounds of a request head.
#[derive(Clone, Copy, Debug)]
pub struct HeadCaps {
    /// Longest request line, bytes without its CRLF.
    pub request_line: usize,
    /// Largest header block, bytes after the request line.
    pub block: usize,
    pub fields: usize,
}

/// Why the bytes of a connection are not a request that is served. After any of these the rest of
/// the bytes cannot be trusted, so the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A CR that no LF follows.
    BareCr,
    /// An LF that no CR precedes.
    BareLf,
    /// A NUL byte in the head.
    Nul,
    /// A header line that continues the one before (obs-fold).
    ObsFold,
    /// The request line or a header line breaks the grammar.
    Malformed,
    /// The request target is neither a path nor an absolute http URL.
    BadTarget,
    /// The request line is above its cap.
    LineTooLong,
    /// The header block is above its cap.
    HeadTooLarge,
    /// More header fields than the cap.
    TooManyFields,
    /// Both `Content-Length` and `Transfer-Encoding`.
    LengthAndChunked,
    /// Several `Content-Length` fields or values.
    SeveralLengths,
    /// A `Content-Length` that is not a plain decimal number.
    BadLength,
    /// A transfer coding other than `chunked`.
    UnknownCoding,
    /// Several `Transfer-Encoding` fields, or one in an HTTP/1.0 request.
    BadCoding,
    /// An HTTP/1.1 request without `Host`.
    NoHost,
    SeveralHosts,
    /// A `Host` that is not a host.
    BadHost,
    /// A version other than 1.0 and 1.1.
    Version,
    /// A method that this server does not implement.
    Method,
    /// An `Expect` other than `100-continue`.
    Expectation,
    /// The body is above its cap.
    BodyTooLarge,
    /// The chunked body breaks its grammar.
    BadChunk,
    /// The trailer fields after a chunked body break their grammar, or the trailer fields and chunk
    /// extensions are above their limit.
    Trailers,
}

impl Refusal {
    /// The value of the metrics label `reason`.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::BareCr => "bare_cr",
            Self::BareLf => "bare_lf",
            Self::Nul => "nul",
            Self::ObsFold => "obs_fold",
            Self::Malformed => "malformed",
            Self::BadTarget => "target",
            Self::LineTooLong => "request_line",
            Self::HeadTooLarge => "head_size",
            Self::TooManyFields => "head_fields",
            Self::LengthAndChunked => "length_and_coding",
            Self::SeveralLengths => "several_lengths",
            Self::BadLength => "length",
            Self::UnknownCoding => "coding_unknown",
            Self::BadCoding => "coding",
            Self::NoHost => "host_missing",
            Self::SeveralHosts => "several_hosts",
            Self::BadHost => "host",
            Self::Version => "version",
            Self::Method => "method",
            Self::Expectation => "expectation",
            Self::BodyTooLarge => "body_size",
            Self::BadChunk => "chunk",
            Self::Trailers => "trailers",
        }
    }

    /// The status of the answer.
    pub const fn status(self) -> u16 {
        match self {
            Self::LineTooLong => 414,
            Self::HeadTooLarge | Self::TooManyFields => 431,
            Self::UnknownCoding | Self::Method => 501,
            Self::Version => 505,
            Self::Expectation => 417,
            Self::BodyTooLarge => 413,
            _ => 400,
        }
    }

    /// What the client did, and what it should do, for the problem's detail.
    pub const fn detail(self) -> &'static str {
        match self {
            Self::BareCr => "a CR without LF in the request head",
            Self::BareLf => "a line of the request head ends in LF without CR",
            Self::Nul => "a NUL byte in the request head",
            Self::ObsFold => "a header line starts with white space; folded headers are not read",
            Self::Malformed => "the request line or a header line breaks the HTTP/1.1 grammar",
            Self::BadTarget => "the request target must be a path that starts with /",
            Self::LineTooLong => "the request line is above the limit",
            Self::HeadTooLarge => "the header block is above the limit",
            Self::TooManyFields => "too many header fields",
            Self::LengthAndChunked => "both Content-Length and Transfer-Encoding were sent",
            Self::SeveralLengths => "several Content-Length values were sent",
            Self::BadLength => "Content-Length must be a decimal number without sign",
            Self::UnknownCoding => "the only transfer coding understood is chunked",
            Self::BadCoding => "Transfer-Encoding must appear once, in HTTP/1.1 requests only",
            Self::NoHost => "the Host header is missing",
            Self::SeveralHosts => "several Host headers were sent",
            Self::BadHost => "the Host header is not a host name or address",
            Self::Version => "only HTTP/1.1 and HTTP/1.0 are spoken here",
            Self::Method => "the method is not one this server implements",
            Self::Expectation => "only Expect: 100-continue is understood",
            Self::BodyTooLarge => "the request body is above the limit of this route",
            Self::BadChunk => "the chunked body breaks its grammar",
            Self::Trailers => {
                "the trailer fields or chunk extensions of the body are malformed or too long"
            }
        }
    }
}

/// Finds the end of a head as its bytes arrive, scanning each byte once, and refuses a bad head
/// before it is complete where it can.
#[derive(Clone, Debug, Default)]
pub struct HeadScanner {
    /// Where the search continues.
    pos: usize,
    /// Where the line under the cursor starts.
    line_start: usize,
    /// Lines seen: the request line counts as the first.
    lines: usize,
    /// Length of the request line with its CRLF, once seen.
    request_line_end: usize,
}

impl HeadScanner {
    /// Scans `bytes`, the head so far from its first byte. Returns the length of the whole head
    /// with its empty line, or `None` when more bytes are needed.
    pub fn advance(&mut self, bytes: &[u8], caps: &HeadCaps) -> Result<Option<usize>, Refusal> {
        // Only these three bytes matter before the head is complete; `parse_head` checks all
        // others.
        while let Some(found) = memchr3(b'\r', b'\n', 0, &bytes[self.pos..]) {
            let at = self.pos + found;
            match bytes[at] {
                0 => return Err(Refusal::Nul),
                b'\n' => return Err(Refusal::BareLf),
                _ => {}
            }
            let Some(next) = bytes.get(at + 1) else {
                self.pos = at; // the CR again, once the byte after it has arrived
                return self.partial(bytes, caps);
            };
            if *next != b'\n' {
                return Err(Refusal::BareCr);
            }
            self.pos = at + 2;
            if self.line(&bytes[self.line_start..at], caps)? {
                return Ok(Some(self.pos));
            }
            self.line_start = self.pos;
        }
        self.pos = bytes.len();
        self.partial(bytes, caps)
    }

    /// One complete line; true when it is the empty line that ends the head.
    fn line(&mut self, line: &[u8], caps: &HeadCaps) -> Result<bool, Refusal> {
        if self.lines == 0 {
            if line.is_empty() {
                return Err(Refusal::Malformed);
            }
            if line.len() > caps.request_line {
                return Err(Refusal::LineTooLong);
            }
            self.request_line_end = self.pos;
        // The two bytes are the CRLF of the empty line, which is not part of the block.
        } else if self.pos - self.request_line_end > caps.block + 2 {
            return Err(Refusal::HeadTooLarge);
        } else if line.is_empty() {
            return Ok(true);
        } else if matches!(line[0], b' ' | b'\t') {
            return Err(Refusal::ObsFold);
        } else if self.lines > caps.fields {
            return Err(Refusal::TooManyFields);
        }
        self.lines += 1;
        Ok(false)
    }

    /// Applies the size caps to a head that is not complete, so that no client fills memory with
    /// one endless line.
    fn partial(&self, bytes: &[u8], caps: &HeadCaps) -> Result<Option<usize>, Refusal> {
        if self.lines == 0 {
            if bytes.len() > caps.request_line + 1 {
                return Err(Refusal::LineTooLong);
            }
        } else if bytes.len() - self.request_line_end > caps.block + 2 {
            return Err(Refusal::HeadTooLarge);
        }
        Ok(None)
    }
}

/// How the body of a request is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Empty,
    Length(u64),
    Chunked,
}

/// A complete head, as positions in the bytes it was parsed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub method: Method,
    /// The path and query, as sent; for `OPTIONS *` the asterisk.
    pub target: Range<usize>,
    /// True for HTTP/1.1, false for 1.0.
    pub http11: bool,
    /// The header fields in order.
    pub fields: Vec<Field>,
    pub framing: Framing,
    /// True when the connection may carry another request.
    pub keep_alive: bool,
    /// True when the client waits for `100 Continue`.
    pub expects_continue: bool,
}

/// Parses a complete head, `head` ending with its empty line.
pub fn parse_head(head: &[u8], caps: &HeadCaps) -> Result<Head, Refusal> {
    // Uninitialised: clearing 128 fields would write 4 KiB for every request.
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(head, &mut fields) {
        // Scanner and parser must agree on the end of the head: a difference would leave bytes that
        // are read as another request.
        Ok(httparse::Status::Complete(length)) if length == head.len() => {}
        Ok(_) => return Err(Refusal::Malformed),
        Err(httparse::Error::TooManyHeaders) => return Err(Refusal::TooManyFields),
        Err(httparse::Error::Version) => return Err(Refusal::Version),
        Err(_) => return Err(Refusal::Malformed),
    }
    if request.headers.len() > caps.fields {
        return Err(Refusal::TooManyFields);
    }
    let http11 = request.version == Some(1);
    let method = Method::parse(request.method.unwrap_or("")).ok_or(Refusal::Method)?;
    let path = request.path.unwrap_or("");
    let target = target(path, method, offset(head, path.as_bytes()))?;
    let framed = frame(request.headers, http11)?;
    let fields = request
        .headers
        .iter()
        .map(|header| Field {
            name: offset(head, header.name.as_bytes()) as u32,
            name_len: header.name.len() as u32,
            value: offset(head, header.value) as u32,
            value_len: header.value.len() as u32,
        })
        .collect();
    Ok(Head {
        method,
        target,
        http11,
        fields,
        framing: framed.framing,
        keep_alive: http11 && !framed.close,
        expects_continue: http11 && framed.expects_continue,
    })
}

/// Where `part`, a slice of `whole`, starts in it.
fn offset(whole: &[u8], part: &[u8]) -> usize {
    // An empty slice need not point into `whole`.
    if part.is_empty() {
        return 0;
    }
    part.as_ptr().addr() - whole.as_ptr().addr()
}

/// The path and query of a request target that starts at `start`.
fn target(path: &str, method: Method, start: usize) -> Result<Range<usize>, Refusal> {
    let end = start + path.len();
    if !path
        .bytes()
        .all(|byte| (0x21..0x7f).contains(&byte) && byte != b'#')
    {
        return Err(Refusal::BadTarget);
    }
    if path.starts_with('/') || (path == "*" && method == Method::OPTIONS) {
        return Ok(start..end);
    }
    // The absolute form must be accepted (RFC 9112, section 3.2.2); its authority is checked and
    // dropped.
    let lower = path.as_bytes().get(..8).map(<[u8]>::to_ascii_lowercase);
    let scheme = match lower.as_deref() {
        Some(b"https://") => 8,
        Some(prefix) if prefix.starts_with(b"http://") => 7,
        _ => return Err(Refusal::BadTarget),
    };
    match path[scheme..].split_once('/') {
        Some((authority, _)) if check_host(authority.as_bytes()).is_ok() => {
            Ok(start + scheme + authority.len()..end)
        }
        _ => Err(Refusal::BadTarget),
    }
}

struct Framed {
    framing: Framing,
    close: bool,
    expects_continue: bool,
}

/// Reads the fields that say where the request ends and what becomes of the connection.
fn frame(headers: &[httparse::Header<'_>], http11: bool) -> Result<Framed, Refusal> {
    let (mut length, mut coding, mut host) = (None, None, None);
    let mut framed = Framed {
        framing: Framing::Empty,
        close: false,
        expects_continue: false,
    };
    for header in headers {
        if header
            .value
            .iter()
            .any(|byte| matches!(byte, 0..=8 | 10..=31 | 127))
        {
            return Err(Refusal::Malformed);
        }
        // By length first: most fields need no comparison of names.
        match header.name.len() {
            4 if header.name.eq_ignore_ascii_case("host")
                && host.replace(header.value).is_some() =>
            {
                return Err(Refusal::SeveralHosts);
            }
            6 if header.name.eq_ignore_ascii_case("expect") => {
                if !header.value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(Refusal::Expectation);
                }
                framed.expects_continue = true;
            }
            10 if header.name.eq_ignore_ascii_case("connection") => {
                framed.close |= has_token(header.value, b"close");
            }
            14 if header.name.eq_ignore_ascii_case("content-length")
                && length.replace(header.value).is_some() =>
            {
                return Err(Refusal::SeveralLengths);
            }
            17 if header.name.eq_ignore_ascii_case("transfer-encoding")
                && coding.replace(header.value).is_some() =>
            {
                return Err(Refusal::BadCoding);
            }
            _ => {}
        }
    }
    match host {
        Some(host) => check_host(host)?,
        None if http11 => return Err(Refusal::NoHost),
        None => {}
    }
    framed.framing = match (length, coding) {
        // Two framings mean two ends of the request, the basis of request smuggling (RFC 9112,
        // 6.3).
        (Some(_), Some(_)) => return Err(Refusal::LengthAndChunked),
        (None, Some(_)) if !http11 => return Err(Refusal::BadCoding),
        (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
        (None, Some(_)) => return Err(Refusal::UnknownCoding),
        (Some(length), None) => Framing::Length(parse_length(length)?),
        (None, None) => Framing::Empty,
    };
    Ok(framed)
}

/// True when a comma-separated list holds the token, whatever its case.
pub(crate) fn has_token(list: &[u8], token: &[u8]) -> bool {
    list.split(|byte| *byte == b',')
        .any(|item| item.trim_ascii().eq_ignore_ascii_case(token))
}

fn parse_length(value: &[u8]) -> Result<u64, Refusal> {
    // RFC 9110, section 8.6 allows a list of equal values to be refused, and refusing is safe.
    if value.contains(&b',') {
        return Err(Refusal::SeveralLengths);
    }
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(Refusal::BadLength);
    }
    let digits = std::str::from_utf8(value).map_err(|_| Refusal::BadLength)?;
    digits.parse().map_err(|_| Refusal::BadLength)
}

/// A name or address, possibly with a port: what two readers could resolve differently is refused.
fn check_host(host: &[u8]) -> Result<(), Refusal> {
    let text = std::str::from_utf8(host).map_err(|_| Refusal::BadHost)?;
    let (name_is_good, port) = if let Some(literal) = text.strip_prefix('[') {
        let (address, port) = literal.split_once(']').ok_or(Refusal::BadHost)?;
        (address.parse::<Ipv6Addr>().is_ok(), port)
    } else {
        let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        (is_host_name(name.as_bytes()), port)
    };
    let port_is_good = match port.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|b| b.is_ascii_digit()) && digits.len() <= 5,
        None => port.is_empty(),
    };
    if !name_is_good || !port_is_good || host.len() > 255 {
        return Err(Refusal::BadHost);
    }
    Ok(())
}

/// Letters, digits, `.`, `-`, `_`, `~` and percent-encoded bytes.
fn is_host_name(mut name: &[u8]) -> bool {
    let mut is_good = !name.is_empty();
    while is_good && let Some((first, rest)) = name.split_first() {
        name = rest;
        is_good = match first {
            b'%' => match rest.split_at_checked(2) {
                Some((digits, rest)) => {
                    name = rest;
                    digits.iter().all(u8::is_ascii_hexdigit)
                }
                None => false,
            },
            byte => byte.is_ascii_alphanumeric() || b".-_~".contains(byte),
        };
    }
    is_good
}

#[cfg(test)]
mod tests;
