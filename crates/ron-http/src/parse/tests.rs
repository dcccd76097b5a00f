//! Framing cases as a table, and the property that the cutting of the bytes does not matter.

use proptest::prelude::*;

use super::*;
use crate::body::BodyDecoder;

const CAPS: HeadCaps = HeadCaps {
    request_line: 8 << 10,
    block: 32 << 10,
    fields: 100,
};
const BODY_CAP: usize = 1000;

/// The framing of one parsed request.
#[derive(Clone, Debug, PartialEq)]
struct Message {
    head: Head,
    body: Vec<u8>,
}

/// The parsed bytes of a connection: requests, then possibly a refusal or an unfinished rest.
#[derive(Debug, PartialEq)]
struct Parsed {
    messages: Vec<Message>,
    refusal: Option<Refusal>,
    finished: bool,
}

/// Parses pieces as the front does: scanner, head, body, and the next request.
fn parse(pieces: &[&[u8]]) -> Parsed {
    let mut buffer: Vec<u8> = Vec::new();
    let mut scan = HeadScanner::default();
    let mut reading: Option<(Head, BodyDecoder, Vec<u8>)> = None;
    let mut parsed = Parsed {
        messages: Vec::new(),
        refusal: None,
        finished: true,
    };
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let step = advance(&mut buffer, &mut scan, &mut reading);
            match step {
                Err(refusal) => {
                    parsed.refusal = Some(refusal);
                    parsed.finished = false;
                    return parsed;
                }
                Ok(Some(message)) => parsed.messages.push(message),
                Ok(None) => break,
            }
        }
    }
    parsed.finished = buffer.is_empty() && reading.is_none();
    parsed
}

fn advance(
    buffer: &mut Vec<u8>,
    scan: &mut HeadScanner,
    reading: &mut Option<(Head, BodyDecoder, Vec<u8>)>,
) -> Result<Option<Message>, Refusal> {
    if reading.is_none() {
        let Some(length) = scan.advance(buffer, &CAPS)? else {
            return Ok(None);
        };
        *scan = HeadScanner::default();
        let head = parse_head(&buffer[..length], &CAPS)?;
        buffer.drain(..length);
        let decoder = BodyDecoder::new(head.framing, BODY_CAP as u64)?;
        *reading = Some((head, decoder, Vec::new()));
    }
    let Some((head, mut decoder, mut body)) = reading.take() else {
        return Ok(None);
    };
    let room = (BODY_CAP - body.len()) as u64;
    let decoded = decoder.feed(buffer, &mut body, room)?;
    buffer.drain(..decoded.used);
    if decoded.done {
        return Ok(Some(Message { head, body }));
    }
    *reading = Some((head, decoder, body));
    Ok(None)
}

/// The outcome in a few words: `2 ok`, `refused length`, `1 ok, refused chunk`, `waits`.
fn outcome(bytes: &[u8]) -> String {
    let parsed = parse(&[bytes]);
    let mut words = Vec::new();
    if !parsed.messages.is_empty() {
        words.push(format!("{} ok", parsed.messages.len()));
    }
    match parsed.refusal {
        Some(refusal) => words.push(format!("refused {}", refusal.reason())),
        None if !parsed.finished => words.push("waits".to_owned()),
        None => {}
    }
    words.join(", ")
}

/// Requests and their outcomes. `H` stands for a valid Host line.
pub(crate) const CASES: &[(&str, &str)] = &[
    ("GET / HTTP/1.1\r\nH\r\n", "1 ok"),
    ("GET / HTTP/1.1\r\nH\r\nGET / HTTP/1.1\r\nH\r\n", "2 ok"),
    ("GET / HTTP/1.0\r\n\r\n", "1 ok"),
    ("OPTIONS * HTTP/1.1\r\nH\r\n", "1 ok"),
    ("GET http://h/x HTTP/1.1\r\nH\r\n", "1 ok"),
    ("GET / HTTP/1.1\r\nH", "waits"),
    ("POST / HTTP/1.1\r\nHContent-Length: 3\r\n\r\nabc", "1 ok"),
    ("POST / HTTP/1.1\r\nHContent-Length: 3\r\n\r\nab", "waits"),
    ("POST / HTTP/1.1\r\nHContent-Length: 0\r\n\r\n", "1 ok"),
    ("POST / HTTP/1.1\r\nHcontent-length:\t3 \r\n\r\nabc", "1 ok"),
    // Lengths that two parsers could read differently.
    (
        "POST / HTTP/1.1\r\nHContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        "refused several_lengths",
    ),
    (
        "POST / HTTP/1.1\r\nHContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        "refused several_lengths",
    ),
    (
        "POST / HTTP/1.1\r\nHContent-Length: 3, 3\r\n\r\nabc",
        "refused several_lengths",
    ),
    (
        "POST / HTTP/1.1\r\nHContent-Length: +3\r\n\r\nabc",
        "refused length",
    ),
    (
        "POST / HTTP/1.1\r\nHContent-Length: -3\r\n\r\nabc",
        "refused length",
    ),
    (
        "POST / HTTP/1.1\r\nHContent-Length: 3x\r\n\r\nabc",
        "refused length",
    ),
    (
        "POST / HTTP/1.1\r\nHContent-Length: x\r\n\r\nabc",
        "refused length",
    ),
    (
        "POST / HTTP/1.1\r\nHContent-Length: 0x3\r\n\r\nabc",
        "refused length",
    ),
    (
        "POST / HTTP/1.1\r\nHContent-Length: 3 3\r\n\r\nabc",
        "refused length",
    ),
    (
        "POST / HTTP/1.1\r\nHContent-Length:\r\n\r\nabc",
        "refused length",
    ),
    (
        "POST / HTTP/1.1\r\nHContent-Length: 99999999999999999999\r\n\r\n",
        "refused length",
    ),
    (
        "POST / HTTP/1.1\r\nHContent-Length: 1001\r\n\r\n",
        "refused body_size",
    ),
    // Transfer codings.
    (
        "POST / HTTP/1.1\r\nHContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        "refused length_and_coding",
    ),
    (
        "POST / HTTP/1.1\r\nHTransfer-Encoding: xchunked\r\n\r\n",
        "refused coding_unknown",
    ),
    (
        "POST / HTTP/1.1\r\nHTransfer-Encoding: gzip, chunked\r\n\r\n",
        "refused coding_unknown",
    ),
    (
        "POST / HTTP/1.1\r\nHTransfer-Encoding: identity\r\n\r\n",
        "refused coding_unknown",
    ),
    (
        "POST / HTTP/1.1\r\nHTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "refused coding",
    ),
    (
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "refused coding",
    ),
    (
        "POST / HTTP/1.1\r\nHTransfer-Encoding : chunked\r\n\r\n",
        "refused malformed",
    ),
    (
        "POST / HTTP/1.1\r\nHTransfer-Encoding: CHUNKED\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "1 ok",
    ),
    ("POST / HTTP/1.1\r\nC3;n=\"v\"\r\nabc\r\n00\r\n\r\n", "1 ok"),
    (
        "POST / HTTP/1.1\r\nC3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.1\r\nH\r\n",
        "2 ok",
    ),
    ("POST / HTTP/1.1\r\nC3\nabc\r\n0\r\n\r\n", "refused chunk"),
    (
        "POST / HTTP/1.1\r\nC3;x\ny\r\nabc\r\n0\r\n\r\n",
        "refused chunk",
    ),
    (
        "POST / HTTP/1.1\r\nC3\r\nabcd\r\n0\r\n\r\n",
        "refused chunk",
    ),
    (
        "POST / HTTP/1.1\r\nC 3\r\nabc\r\n0\r\n\r\n",
        "refused chunk",
    ),
    (
        "POST / HTTP/1.1\r\nC+3\r\nabc\r\n0\r\n\r\n",
        "refused chunk",
    ),
    (
        "POST / HTTP/1.1\r\nC0x3\r\nabc\r\n0\r\n\r\n",
        "refused chunk",
    ),
    ("POST / HTTP/1.1\r\nC\r\nabc\r\n0\r\n\r\n", "refused chunk"),
    ("POST / HTTP/1.1\r\nC3e9\r\n", "refused body_size"),
    (
        "POST / HTTP/1.1\r\nCffffffffffffffff\r\n",
        "refused body_size",
    ),
    ("POST / HTTP/1.1\r\nC3\r\nabc\r\n0\r\nX: y\r\n\r\n", "1 ok"),
    (
        "POST / HTTP/1.1\r\nC0\r\nX:\r\ncontent-length: 9\r\n\r\n",
        "1 ok",
    ),
    ("POST / HTTP/1.1\r\nC0\r\nX: y\r\n", "waits"),
    ("POST / HTTP/1.1\r\nC0\r\nX\r\n\r\n", "refused trailers"),
    ("POST / HTTP/1.1\r\nC0\r\n: y\r\n\r\n", "refused trailers"),
    ("POST / HTTP/1.1\r\nC0\r\n X: y\r\n\r\n", "refused trailers"),
    ("POST / HTTP/1.1\r\nC0\r\nX: y\n\r\n", "refused trailers"),
    (
        "POST / HTTP/1.1\r\nC0\r\nX: y\r\n z\r\n\r\n",
        "refused trailers",
    ),
    (
        "POST / HTTP/1.1\r\nC0\r\nX: \u{0}\r\n\r\n",
        "refused trailers",
    ),
    // Lines.
    ("GET / HTTP/1.1\nHost: h\n\n", "refused bare_lf"),
    ("GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n", "refused bare_lf"),
    ("GET / HTTP/1.1\r\nHX: a\rb\r\n\r\n", "refused bare_cr"),
    ("GET / HTTP/1.1\r\nHX: a\0b\r\n\r\n", "refused nul"),
    ("GET / HTTP/1.1\r\nHX: a\r\n b\r\n\r\n", "refused obs_fold"),
    ("GET / HTTP/1.1\r\nHX: a\r\n\tb\r\n\r\n", "refused obs_fold"),
    ("GET / HTTP/1.1\r\n Host: h\r\n\r\n", "refused obs_fold"),
    ("GET / HTTP/1.1\r\nHX y\r\n\r\n", "refused malformed"),
    ("GET / HTTP/1.1\r\nH: y\r\n\r\n", "refused malformed"),
    ("GET / HTTP/1.1\r\nHX: a\x01b\r\n\r\n", "refused malformed"),
    ("GET / HTTP/1.1\r\nHX: a\x7fb\r\n\r\n", "refused malformed"),
    ("\r\nGET / HTTP/1.1\r\nH\r\n", "refused malformed"),
    ("GET  / HTTP/1.1\r\nH\r\n", "refused malformed"),
    ("GET /\r\nH\r\n", "refused malformed"),
    // Hosts.
    ("GET / HTTP/1.1\r\n\r\n", "refused host_missing"),
    (
        "GET / HTTP/1.1\r\nHHost: h\r\n\r\n",
        "refused several_hosts",
    ),
    ("GET / HTTP/1.1\r\nHost:\r\n\r\n", "refused host"),
    ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "refused host"),
    ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "refused host"),
    ("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", "refused host"),
    ("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "1 ok"),
    ("GET / HTTP/1.1\r\nHost: a-b.c_d~1%2D:\r\n\r\n", "1 ok"),
    ("GET / HTTP/1.1\r\nHost: a:port\r\n\r\n", "refused host"),
    ("GET / HTTP/1.1\r\nHost: a:1:2\r\n\r\n", "refused host"),
    ("GET / HTTP/1.1\r\nHost: :80\r\n\r\n", "refused host"),
    ("GET / HTTP/1.1\r\nHost: ::1\r\n\r\n", "refused host"),
    ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", "refused host"),
    ("GET / HTTP/1.1\r\nHost: [::1]80\r\n\r\n", "refused host"),
    ("GET / HTTP/1.1\r\nHost: %2\r\n\r\n", "refused host"),
    ("GET http://[::1]:80/x HTTP/1.1\r\nH\r\n", "1 ok"),
    ("GET http://a@b/x HTTP/1.1\r\nH\r\n", "refused target"),
    ("GET http://a?b=/x HTTP/1.1\r\nH\r\n", "refused target"),
    ("GET http:///x HTTP/1.1\r\nH\r\n", "refused target"),
    // Methods, targets, versions.
    ("BREW / HTTP/1.1\r\nH\r\n", "refused method"),
    ("get / HTTP/1.1\r\nH\r\n", "refused method"),
    ("CONNECT h:1 HTTP/1.1\r\nH\r\n", "refused method"),
    ("GET x HTTP/1.1\r\nH\r\n", "refused target"),
    ("GET * HTTP/1.1\r\nH\r\n", "refused target"),
    ("GET ftp://h/x HTTP/1.1\r\nH\r\n", "refused target"),
    ("GET http:///x HTTP/1.1\r\nH\r\n", "refused target"),
    ("GET /#x HTTP/1.1\r\nH\r\n", "refused target"),
    ("GET / HTTP/2.0\r\nH\r\n", "refused version"),
    ("GET / HTTP/1.2\r\nH\r\n", "refused version"),
    (
        "GET / HTTP/1.1\r\nHExpect: magic\r\n\r\n",
        "refused expectation",
    ),
];

/// Expands the shorthands of a case: `H` at a line's start is a Host line, `C` a chunked head.
pub(crate) fn spelled(case: &str) -> Vec<u8> {
    case.replace("\r\nC", "\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        .replace(
            "\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nontent",
            "\r\nContent",
        )
        .replace("\r\nHost", "\r\n\x02")
        .replace("\r\nH", "\r\nHost: h\r\n")
        .replace("\r\n\x02", "\r\nHost")
        .into_bytes()
}

#[test]
fn framing_cases() {
    for (case, want) in CASES {
        assert_eq!(&outcome(&spelled(case)), want, "{case:?}");
    }
}

#[test]
fn sizes_are_bounded_before_and_after_the_line_ends() {
    let check = |bytes: Vec<u8>, want: &str| assert_eq!(outcome(&bytes), want);
    let line = |length: usize| format!("GET /{}", "a".repeat(length));
    check(line(8 << 10).into_bytes(), "refused request_line");
    check(
        format!("{} HTTP/1.1\r\nHost: h\r\n\r\n", line(8 << 10)).into_bytes(),
        "refused request_line",
    );
    check(
        format!("{} HTTP/1.1\r\nHost: h\r\n\r\n", line(8000)).into_bytes(),
        "1 ok",
    );
    let head = "GET / HTTP/1.1\r\nHost: h\r\n";
    check(
        format!("{head}X: {}", "a".repeat(33 << 10)).into_bytes(),
        "refused head_size",
    );
    check(
        format!("{head}X: {}\r\n\r\n", "a".repeat(32 << 10)).into_bytes(),
        "refused head_size",
    );
    check(
        format!("{head}X: {}\r\n\r\n", "a".repeat(32_000)).into_bytes(),
        "1 ok",
    );
    check(
        format!("{head}{}\r\n", "X: y\r\n".repeat(99)).into_bytes(),
        "1 ok",
    );
    check(
        format!("{head}{}\r\n", "X: y\r\n".repeat(100)).into_bytes(),
        "refused head_fields",
    );
    check(
        format!("{head}{}", "X: y\r\n".repeat(2000)).into_bytes(),
        "refused head_fields",
    );
}

#[test]
fn heads_are_read_right() {
    let bytes = b"POST /a%20b?c=d HTTP/1.1\r\nHost: h\r\nX-One:  v w \r\nConnection: a, Close\r\n\
                  Expect: 100-Continue\r\nContent-Length: 7\r\n\r\n";
    let head = parse_head(bytes, &CAPS).expect("a good head");
    assert_eq!(&bytes[head.target.clone()], b"/a%20b?c=d");
    assert_eq!(
        (head.method, head.http11, head.keep_alive),
        (Method::POST, true, false)
    );
    assert_eq!(
        (head.framing, head.expects_continue),
        (Framing::Length(7), true)
    );
    assert_eq!(head.fields[1].name(bytes), b"X-One");
    assert_eq!(head.fields[1].value(bytes), b"v w");
}

/// A well-formed request with a body in one of the framings.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let body = prop::collection::vec(any::<u8>(), 0..300);
    let header = ("[A-Za-z][A-Za-z0-9-]{0,10}", "[ -~]{0,20}");
    let headers = prop::collection::vec(header, 0..6);
    (body, headers, any::<bool>(), 1..40_usize).prop_map(|(body, headers, chunked, size)| {
        let mut bytes = b"POST /p?q=1 HTTP/1.1\r\nHost: h\r\n".to_vec();
        for (name, value) in headers {
            bytes.extend_from_slice(format!("X-{name}: {value}\r\n").as_bytes());
        }
        if chunked {
            bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            for chunk in body.chunks(size) {
                bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        } else {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
            bytes.extend_from_slice(&body);
        }
        bytes
    })
}

/// Bytes of a connection: good requests, table cases, or anything.
fn traffic() -> impl Strategy<Value = Vec<u8>> {
    let case = (0..CASES.len()).prop_map(|index| spelled(CASES[index].0));
    let noise = prop::collection::vec(any::<u8>(), 0..60);
    let part = prop_oneof![6 => request(), 2 => case, 1 => noise];
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.concat())
}

fn pieces<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// For every cutting of the bytes, the same requests are parsed, with the same refusal at the
    /// end.
    #[test]
    fn pieces_do_not_matter(
        bytes in traffic(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let whole = parse(&[&bytes]);
        prop_assert_eq!(&parse(&pieces(&bytes, &cuts)), &whole);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(&parse(&single), &whole);
    }

    /// Every well-formed request is consumed as a whole: no byte is left for a second one.
    #[test]
    fn good_requests_are_taken_whole(bytes in request()) {
        let parsed = parse(&[&bytes]);
        prop_assert_eq!(parsed.refusal, None);
        prop_assert!(parsed.finished);
        prop_assert_eq!(parsed.messages.len(), 1);
    }
}
