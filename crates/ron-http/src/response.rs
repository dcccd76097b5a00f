//! Answers: the response that handlers build, and its encoding.

use std::borrow::Cow;
use std::io::Write as _;
use std::sync::Arc;

use ron_proto::Problem;
use serde::Serialize;

use crate::date::push_http_date;
use crate::source::{Sending, Source};

/// The bytes of an answer.
#[derive(Clone, Debug)]
pub enum Body {
    Empty,
    /// Bytes of this answer only.
    Owned(Vec<u8>),
    /// Bytes shared with other answers, such as a tile in a cache.
    Shared(Arc<[u8]>),
    /// Bytes compiled into the program.
    Static(&'static [u8]),
    /// A problem; its document is made when the request id is known.
    Problem(Box<Problem>),
    /// Read while it is sent, as fast as the client reads.
    Stream(Streamed),
}

/// A source of bytes as a body.
#[derive(Clone)]
pub struct Streamed(pub(crate) Arc<dyn Source>);

impl std::fmt::Debug for Streamed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Streamed({:?} bytes)", self.0.len())
    }
}

impl Body {
    /// The bytes in memory; a problem has none yet, a stream never has.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Empty | Self::Problem(_) | Self::Stream(_) => &[],
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => bytes,
            Self::Static(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Owned(bytes)
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self::Owned(text.into_bytes())
    }
}

impl From<Arc<[u8]>> for Body {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self::Shared(bytes)
    }
}

impl From<&'static [u8]> for Body {
    fn from(bytes: &'static [u8]) -> Self {
        Self::Static(bytes)
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Self::Static(text.as_bytes())
    }
}

/// A header name or value.
pub type HeaderText = Cow<'static, str>;

#[derive(Clone, Debug)]
pub struct Response {
    /// The status, 200..=599.
    pub status: u16,
    /// Headers in addition to those of the front: `Date`, `Content-Length`, `Connection`,
    /// `X-Request-Id`, `X-Content-Type-Options` and, unless given here, `Cache-Control: no-store`.
    pub headers: Vec<(HeaderText, HeaderText)>,
    pub body: Body,
}

impl Response {
    /// An answer without a body.
    pub fn empty(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Body::Empty,
        }
    }

    /// A JSON answer; 500 when the value cannot be written as JSON.
    pub fn json<T: Serialize + ?Sized>(status: u16, value: &T) -> Self {
        match serde_json::to_vec(value) {
            Ok(bytes) => Self::bytes(status, crate::request::JSON, bytes),
            Err(_) => Problem::internal("the answer could not be written as JSON").into(),
        }
    }

    /// Bytes of a content type.
    pub fn bytes(status: u16, content_type: impl Into<HeaderText>, body: impl Into<Body>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
        }
        .header("content-type", content_type)
    }

    /// Bytes of a content type that are read while they are sent, without a total deadline but at
    /// the minimum rate. When the source fails, the connection closes before the end.
    pub fn stream(
        status: u16,
        content_type: impl Into<HeaderText>,
        source: impl Source + 'static,
    ) -> Self {
        let body = Body::Stream(Streamed(Arc::new(source)));
        Self::bytes(status, content_type, body)
    }

    /// Plain text in UTF-8.
    pub fn text(status: u16, text: impl Into<Body>) -> Self {
        Self::bytes(status, "text/plain; charset=utf-8", text)
    }

    /// Adds a header. A header that would break the framing of the answer (control characters, a
    /// name that is not a token) is left out and logged.
    pub fn header(mut self, name: impl Into<HeaderText>, value: impl Into<HeaderText>) -> Self {
        let (name, value) = (name.into(), value.into());
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let good_name = !name.is_empty() && name.bytes().all(token);
        let good_value = value
            .bytes()
            .all(|byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f));
        if good_name && good_value {
            self.headers.push((name, value));
        } else {
            tracing::error!(event = "response_header_refused", status = self.status);
        }
        self
    }

    /// Sets the entity tag, given without quotes; the front answers 304 when a GET or HEAD names it
    /// in `If-None-Match`.
    pub fn etag(self, tag: &str) -> Self {
        self.header("etag", format!("\"{tag}\""))
    }

    /// Sets `Cache-Control`.
    pub fn cache(self, directive: &'static str) -> Self {
        self.header("cache-control", directive)
    }

    /// The value of a header that was set here.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_ref())
    }

    /// Turns a problem body into its document, and adds the headers that belong to it.
    fn render_problem(&mut self, request_id: &str) {
        if let Body::Problem(problem) = &self.body {
            self.body = Body::Owned(problem.to_json(request_id));
        }
    }
}

impl From<Problem> for Response {
    fn from(problem: Problem) -> Self {
        let mut response =
            Self::empty(problem.status).header("content-type", problem.content_type());
        if let Some(seconds) = problem.retry_after_s {
            response = response.header("retry-after", seconds.to_string());
        }
        if let Some((name, value)) = problem.header.as_deref() {
            response = response.header(*name, value.clone());
        } else if problem.status == 401 {
            let scheme = if problem.oauth.is_some() {
                "Basic realm=\"ron\""
            } else {
                "Bearer"
            };
            response = response.header("www-authenticate", scheme);
        }
        response.body = Body::Problem(Box::new(problem));
        response
    }
}

impl<T: Into<Response>, E: Into<Response>> From<Result<T, E>> for Response {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(good) => good.into(),
            Err(bad) => bad.into(),
        }
    }
}

/// The parts of a request that determine the encoding of its answer.
#[derive(Debug)]
pub(crate) struct Form<'a> {
    pub request_id: &'a str,
    /// A HEAD request: headers only.
    pub head_only: bool,
    /// GET or HEAD with `If-None-Match`.
    pub if_none_match: Option<&'a str>,
    /// The client uses HTTP/1.1 and so understands chunks.
    pub http11: bool,
    /// The connection closes after this answer.
    pub close: bool,
    /// Wall-clock time in milliseconds.
    pub unix_ms: u64,
}

/// Bodies up to this many bytes are copied behind their head, so that one write sends both.
const COPY_MAX: usize = 16 << 10;

/// The part of the body that follows the encoded bytes.
#[derive(Debug)]
pub(crate) enum Rest {
    Nothing,
    Body(Body),
    Source(Sending),
}

/// How the end of an answer's body is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Bytes(u64),
    Chunked,
    /// By closing the connection.
    Close,
}

fn length_of(body: &Body, form: &Form<'_>) -> Length {
    match body {
        Body::Stream(stream) => match stream.0.len() {
            Some(length) => Length::Bytes(length),
            None if form.http11 => Length::Chunked,
            None => Length::Close,
        },
        other => Length::Bytes(other.as_bytes().len() as u64),
    }
}

/// Writes the answer to `out`; the returned rest of the body must be sent after it.
pub(crate) fn encode(mut response: Response, form: &Form<'_>, out: &mut Vec<u8>) -> Rest {
    response.render_problem(form.request_id);
    if not_modified(&response, form) {
        response.status = 304;
        response.body = Body::Empty;
        // A 304 has no body to describe.
        response.headers.retain(|(name, _)| {
            !name.eq_ignore_ascii_case("content-type")
                && !name.eq_ignore_ascii_case("content-length")
        });
    }
    // These statuses have no body, and a 204 must not even state a length (RFC 9110, 8.6).
    let bodiless = matches!(response.status, 204 | 304);
    let length = length_of(&response.body, form);
    let ready = response.body.as_bytes().len();
    let inline = !form.head_only && !bodiless && ready <= COPY_MAX;
    out.reserve(256 + if inline { ready } else { 0 });
    out.extend_from_slice(b"HTTP/1.1 ");
    push_number(out, u64::from(response.status));
    out.push(b' ');
    out.extend_from_slice(reason(response.status).as_bytes());
    out.extend_from_slice(b"\r\ndate: ");
    push_http_date(out, form.unix_ms / 1000);
    match length {
        _ if bodiless => {}
        Length::Bytes(length) => {
            out.extend_from_slice(b"\r\ncontent-length: ");
            push_number(out, length);
        }
        Length::Chunked => out.extend_from_slice(b"\r\ntransfer-encoding: chunked"),
        Length::Close => {}
    }
    let mut cached = false;
    for (name, value) in &response.headers {
        cached |= name.eq_ignore_ascii_case("cache-control");
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
    }
    // Answers may contain secrets, so caching is opt-in.
    if !cached {
        out.extend_from_slice(b"\r\ncache-control: no-store");
    }
    if form.close {
        out.extend_from_slice(b"\r\nconnection: close");
    }
    out.extend_from_slice(b"\r\nx-content-type-options: nosniff\r\nx-request-id: ");
    out.extend_from_slice(form.request_id.as_bytes());
    out.extend_from_slice(b"\r\n\r\n");
    follow(response.body, length, form.head_only || bodiless, out)
}

/// Copies a small body behind its head; a large body is returned.
fn follow(body: Body, length: Length, bodiless: bool, out: &mut Vec<u8>) -> Rest {
    let left = match length {
        Length::Bytes(left) => Some(left),
        Length::Chunked | Length::Close => None,
    };
    match body {
        _ if bodiless || left == Some(0) => Rest::Nothing,
        Body::Stream(stream) => Rest::Source(Sending::new(stream.0, left, length == Length::Close)),
        body if body.as_bytes().len() <= COPY_MAX => {
            out.extend_from_slice(body.as_bytes());
            Rest::Nothing
        }
        body => Rest::Body(body),
    }
}

/// True when the client already has the answer's entity tag.
fn not_modified(response: &Response, form: &Form<'_>) -> bool {
    let (Some(known), 200) = (form.if_none_match, response.status) else {
        return false;
    };
    let Some(tag) = response.get("etag") else {
        return false;
    };
    known
        .split(',')
        .map(str::trim)
        // If-None-Match compares weakly (RFC 9110, section 13.1.2).
        .any(|item| item == "*" || item.strip_prefix("W/").unwrap_or(item) == tag)
}

fn push_number(out: &mut Vec<u8>, number: u64) {
    write!(out, "{number}").expect("writing to a Vec cannot fail");
}

/// The reason phrase; empty for statuses that no service uses.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        423 => "Locked",
        425 => "Too Early",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(response: Response, if_none_match: Option<&str>, head_only: bool) -> String {
        let form = Form {
            request_id: "rid",
            head_only,
            if_none_match,
            http11: true,
            close: false,
            unix_ms: 784_111_777_000,
        };
        let mut out = Vec::new();
        let rest = encode(response, &form, &mut out);
        if let Rest::Body(body) = rest {
            out.extend_from_slice(body.as_bytes());
        }
        String::from_utf8(out).expect("answers in these tests are text")
    }

    #[test]
    fn an_answer_has_its_length_id_and_date() {
        let text = written(Response::text(200, "hi"), None, false);
        assert_eq!(
            text,
            "HTTP/1.1 200 OK\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\ncontent-length: 2\r\n\
             content-type: text/plain; charset=utf-8\r\ncache-control: no-store\r\n\
             x-content-type-options: nosniff\r\nx-request-id: rid\r\n\r\nhi"
        );
        let head = written(Response::text(200, "hi"), None, true);
        assert_eq!(head, text[..text.len() - 2]);
    }

    #[test]
    fn a_large_body_is_not_copied_behind_its_head() {
        let mut out = Vec::new();
        let form = Form {
            request_id: "r",
            head_only: false,
            if_none_match: None,
            http11: true,
            close: true,
            unix_ms: 0,
        };
        let rest = encode(
            Response::text(200, vec![b'x'; COPY_MAX + 1]),
            &form,
            &mut out,
        );
        assert!(out.ends_with(b"\r\n\r\n"));
        match rest {
            Rest::Body(body) => assert_eq!(body.as_bytes().len(), COPY_MAX + 1),
            other => panic!("the body follows, not {other:?}"),
        }
    }

    #[test]
    fn entity_tags_save_the_body() {
        let check = |known: Option<&str>, saved: bool| {
            let text = written(Response::text(200, "hi").etag("t"), known, false);
            assert_eq!(text.starts_with("HTTP/1.1 304 "), saved, "{known:?}");
            assert_eq!(!text.ends_with("hi"), saved, "{known:?}");
        };
        check(None, false);
        check(Some("\"x\""), false);
        check(Some("\"x\", \"t\""), true);
        check(Some("W/\"t\""), true);
        check(Some("*"), true);
    }

    #[test]
    fn problems_carry_id_and_headers() {
        let problem = Problem::busy(7);
        let text = written(problem.into(), None, false);
        assert!(text.starts_with("HTTP/1.1 429 "), "{text}");
        assert!(text.contains("\r\nretry-after: 7\r\n"), "{text}");
        assert!(
            text.contains("\r\ncontent-type: application/problem+json\r\n"),
            "{text}"
        );
        assert!(text.contains("\"request_id\":\"rid\""), "{text}");
        let text = written(Problem::unauthorized("no token").into(), None, false);
        assert!(text.contains("\r\nwww-authenticate: Bearer\r\n"), "{text}");
    }

    #[test]
    fn a_header_cannot_split_an_answer() {
        let response = Response::empty(200)
            .header("x-a", "1\r\nx-b: 2")
            .header("x c", "3")
            .header("x-d", "4");
        assert_eq!(response.headers.len(), 1);
    }
}
