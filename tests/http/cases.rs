//! The table of hostile requests: the bytes, the correct statuses, and whether the connection may
//! stay open afterwards.
//!
//! Every request would be answered 200 if its hostile part were overlooked: the routes are public,
//! the bodies are good JSON. Where a lenient reader would end the request early, a second request
//! to [`SMUGGLED`] follows, which must never be answered.

mod heads;

use crate::sound::{self, BODY, GET, POST};

/// The path of the request that an attacker hides.
pub const SMUGGLED: &str = "/v1/smuggled";

/// The required state of the connection afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Closed after the refusal: the end of the request is in doubt.
    Closed,
    /// It serves the next request: the framing was sound.
    Open,
    /// Either, as long as no bytes are misread.
    Either,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub bytes: Vec<u8>,
    /// Sound requests before the hostile one, each to be answered 200.
    pub sound: usize,
    pub statuses: &'static [u16],
    pub after: After,
}

fn smuggled() -> String {
    format!("GET {SMUGGLED} HTTP/1.1\r\nHost: t\r\n\r\n")
}

/// A POST with these header lines and this rest.
fn framed(lines: &str, rest: &str) -> Vec<u8> {
    let head = format!("POST {POST} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json");
    format!("{head}\r\n{lines}\r\n\r\n{rest}").into_bytes()
}

/// A chunked POST with this rest.
fn chunked(rest: &str) -> Vec<u8> {
    framed("Transfer-Encoding: chunked", rest)
}

/// The good body as one chunk, with the size written in this way.
fn sized(size: &str) -> Vec<u8> {
    chunked(&format!("{size}\r\n{BODY}\r\n0\r\n\r\n"))
}

/// A GET with these lines after the request line, with or without `Host`.
fn lines(lines: &str) -> Vec<u8> {
    format!("GET {GET} HTTP/1.1\r\n{lines}\r\n").into_bytes()
}

/// A GET with this request line.
fn line(line: &str) -> Vec<u8> {
    format!("{line}\r\nHost: t\r\n\r\n").into_bytes()
}

#[derive(Default)]
struct Table(Vec<Case>);

impl Table {
    fn add(
        &mut self,
        name: impl Into<String>,
        bytes: Vec<u8>,
        statuses: &'static [u16],
        after: After,
    ) {
        self.0.push(Case {
            name: name.into(),
            bytes,
            sound: 0,
            statuses,
            after,
        });
    }

    fn closed(&mut self, name: impl Into<String>, statuses: &'static [u16], bytes: Vec<u8>) {
        self.add(name, bytes, statuses, After::Closed);
    }

    fn open(&mut self, name: impl Into<String>, statuses: &'static [u16], bytes: Vec<u8>) {
        self.add(name, bytes, statuses, After::Open);
    }
}

pub fn table() -> Vec<Case> {
    let mut table = Table::default();
    length_and_coding(&mut table);
    codings(&mut table);
    lengths(&mut table);
    chunks(&mut table);
    line_ends(&mut table);
    heads::hosts(&mut table);
    heads::fields(&mut table);
    heads::targets(&mut table);
    heads::request_lines(&mut table);
    heads::sizes(&mut table);
    heads::bodies(&mut table);
    pipelined(&mut table);
    table.0
}

/// Both ways to state where the body ends, in every order and spelling.
fn length_and_coding(table: &mut Table) {
    let early = format!("0\r\n\r\n{}", smuggled());
    let length = early.len();
    let whole = BODY.len();
    let chunk = format!("{whole:x}\r\n{BODY}\r\n0\r\n\r\n");
    let coding = "Transfer-Encoding: chunked";
    for (name, header, rest) in [
        (
            "CL.TE",
            format!("Content-Length: {length}\r\n{coding}"),
            &early,
        ),
        ("TE.CL", format!("{coding}\r\nContent-Length: 4"), &chunk),
        ("CL.0.TE", format!("Content-Length: 0\r\n{coding}"), &chunk),
        (
            "CL.TE, odd case",
            format!("content-LENGTH: {length}\r\ntRaNsFeR-eNcOdInG: CHUNKED"),
            &early,
        ),
        (
            "CL with an empty coding",
            format!("Content-Length: {length}\r\nTransfer-Encoding:"),
            &early,
        ),
        (
            "CL with coding identity",
            format!("Content-Length: {length}\r\nTransfer-Encoding: identity"),
            &early,
        ),
        (
            "CL with an unknown coding",
            format!("Content-Length: {length}\r\nTransfer-Encoding: xchunked"),
            &early,
        ),
        (
            "CL twice and a coding",
            format!("Content-Length: {length}\r\n{coding}\r\nContent-Length: {length}"),
            &early,
        ),
    ] {
        table.closed(name, &[400], framed(&header, rest));
    }
    for (name, spelling) in [
        (
            "a space before the colon of the coding",
            "Transfer-Encoding : chunked",
        ),
        (
            "a tab before the colon of the coding",
            "Transfer-Encoding\t: chunked",
        ),
        (
            "a fold before the coding",
            "X: y\r\n Transfer-Encoding: chunked",
        ),
        (
            "the coding on a folded line",
            "Transfer-Encoding:\r\n chunked",
        ),
        (
            "a vertical tab before chunked",
            "Transfer-Encoding: \x0bchunked",
        ),
        (
            "a form feed behind chunked",
            "Transfer-Encoding: chunked\x0c",
        ),
        ("a NUL behind chunked", "Transfer-Encoding: chunked\0"),
        (
            "the coding behind a bare CR",
            "X: y\rTransfer-Encoding: chunked",
        ),
        (
            "the coding behind a bare LF",
            "X: y\nTransfer-Encoding: chunked",
        ),
        (
            "a NUL in the name of the coding",
            "Transfer\0-Encoding: chunked",
        ),
    ] {
        let header = format!("Content-Length: {length}\r\n{spelling}");
        table.closed(name, &[400], framed(&header, &early));
    }
}

/// Transfer codings other than the supported one.
fn codings(table: &mut Table) {
    let whole = BODY.len();
    let chunk = format!("{whole:x}\r\n{BODY}\r\n0\r\n\r\n");
    for coding in [
        "xchunked",
        "chunked, chunked",
        "chunked, identity",
        "identity, chunked",
        "gzip, chunked",
        "identity",
        "\"chunked\"",
        "chunked;q=1",
        ", chunked",
        "chunked,",
        "",
    ] {
        let bytes = framed(&format!("Transfer-Encoding: {coding}"), &chunk);
        table.closed(format!("coding {coding:?}"), &[400, 501], bytes);
    }
    for second in ["chunked", "identity", ""] {
        let header = format!("Transfer-Encoding: chunked\r\nTransfer-Encoding: {second}");
        table.closed(
            format!("coding twice, then {second:?}"),
            &[400],
            framed(&header, &chunk),
        );
    }
    let old = chunked(&chunk);
    let old = String::from_utf8(old)
        .expect("text")
        .replace("HTTP/1.1", "HTTP/1.0");
    table.closed("chunked in HTTP/1.0", &[400], old.into_bytes());
}

/// Lengths that two readers could see differently.
fn lengths(table: &mut Table) {
    for (length, statuses) in [
        ("+13", &[400][..]),
        ("-13", &[400]),
        ("-0", &[400]),
        ("0xd", &[400]),
        ("13 13", &[400]),
        ("13, 13", &[400]),
        ("13,", &[400]),
        ("13x", &[400]),
        ("13;", &[400]),
        ("13.0", &[400]),
        ("1e1", &[400]),
        ("1_3", &[400]),
        ("\"13\"", &[400]),
        ("", &[400]),
        ("13\x0b", &[400]),
        ("\u{ff11}\u{ff13}", &[400]),
        ("18446744073709551616", &[400]),
        ("18446744073709551629", &[400]), // 13 modulo 2^64
        ("4294967309000000000000000000000013", &[400]),
        ("18446744073709551615", &[413]),
        ("9223372036854775808", &[413]),
        ("4294967309", &[413]), // 13 modulo 2^32
    ] {
        let bytes = framed(&format!("Content-Length: {length}"), BODY);
        table.closed(format!("length {length:?}"), statuses, bytes);
    }
    for (name, header) in [
        (
            "length twice, the same",
            "Content-Length: 13\r\nContent-Length: 13",
        ),
        (
            "length twice, another",
            "Content-Length: 13\r\nContent-Length: 0",
        ),
        (
            "length twice, odd case",
            "Content-Length: 13\r\nCONTENT-LENGTH: 14",
        ),
        (
            "a space before the colon of the length",
            "Content-Length : 13",
        ),
        ("a length on a folded line", "Content-Length:\r\n 13"),
        ("a length continued by a fold", "Content-Length: 1\r\n 3"),
        ("a length without a colon", "Content-Length 13"),
    ] {
        table.closed(name, &[400], framed(header, BODY));
    }
}

/// Chunked bodies that break their grammar.
fn chunks(table: &mut Table) {
    for size in [
        "zz", "+d", "-d", " d", "d ", "\td", "0xd", "d;a\rb", "d;a\0b", "d\r", "d,", "", ";a=b",
        "d\x0b", "\u{ff44}",
    ] {
        table.closed(format!("chunk size {size:?}"), &[400], sized(size));
    }
    for size in [
        "ffffffffffffffff",
        "10000000000000000d", // 13 modulo 2^64
        "10000000d",          // 13 modulo 2^32
        "ffffffff",
        "7fffffff",
        "100001", // one byte above the cap
        "00000000000000000000d",
    ] {
        table.closed(format!("chunk size {size:?}"), &[400, 413], sized(size));
    }
    let long = format!("d;{}", "a".repeat(8 << 10));
    table.closed("a chunk extension of 8 KiB", &[400, 413], sized(&long));
    for (name, rest) in [
        ("no CRLF behind the chunk", format!("d\r\n{BODY}0\r\n\r\n")),
        (
            "LF alone behind the size",
            format!("d\n{BODY}\r\n0\r\n\r\n"),
        ),
        (
            "LF alone behind the chunk",
            format!("d\r\n{BODY}\n0\r\n\r\n"),
        ),
        (
            "CR alone behind the size",
            format!("d\r{BODY}\r\n0\r\n\r\n"),
        ),
        (
            "a chunk longer than its size",
            format!("c\r\n{BODY}\r\n0\r\n\r\n"),
        ),
        (
            "a chunk shorter than its size",
            format!("e\r\n{BODY}\r\n0\r\n\r\n"),
        ),
        ("LF alone at the end", format!("d\r\n{BODY}\r\n0\r\n\n")),
        (
            "LF alone behind the last size",
            format!("d\r\n{BODY}\r\n0\n\r\n"),
        ),
        ("CR CR at the end", format!("d\r\n{BODY}\r\n0\r\n\r\r")),
        (
            "a trailer without a name",
            format!("d\r\n{BODY}\r\n0\r\n: y\r\n\r\n"),
        ),
        (
            "a trailer without a colon",
            format!("d\r\n{BODY}\r\n0\r\nX\r\n\r\n"),
        ),
        (
            "a space in the name of a trailer",
            format!("d\r\n{BODY}\r\n0\r\nX Y: z\r\n\r\n"),
        ),
        (
            "a folded trailer",
            format!("d\r\n{BODY}\r\n0\r\n X: y\r\n\r\n"),
        ),
        (
            "a NUL in a trailer",
            format!("d\r\n{BODY}\r\n0\r\nX: a\0b\r\n\r\n"),
        ),
        (
            "a request in place of the trailer",
            format!("d\r\n{BODY}\r\n0\r\n{}", smuggled()),
        ),
    ] {
        table.closed(name, &[400], chunked(&rest));
    }
}

/// Ends of lines, folds and NULs in a head.
fn line_ends(table: &mut Table) {
    let text = |s: &str| s.as_bytes().to_vec();
    for (name, bytes) in [
        (
            "LF for every CRLF",
            text(&format!("GET {GET} HTTP/1.1\nHost: t\n\n")),
        ),
        (
            "LF behind the request line",
            text(&format!("GET {GET} HTTP/1.1\nHost: t\r\n\r\n")),
        ),
        ("LF behind a header line", lines("Host: t\nX: y\r\n")),
        (
            "LF for the empty line",
            text(&format!("GET {GET} HTTP/1.1\r\nHost: t\r\n\n")),
        ),
        ("CR behind a header line", lines("Host: t\rX: y\r\n")),
        ("CR CR LF", lines("Host: t\r\r\n")),
        ("CR in a value", lines("Host: t\r\nX: a\rb\r\n")),
        ("CR in the target", line(&format!("GET {GET}\r HTTP/1.1"))),
        ("LF in the target", line(&format!("GET {GET}\n HTTP/1.1"))),
        ("NUL in the target", line(&format!("GET {GET}\0 HTTP/1.1"))),
        ("NUL in a name", lines("Host: t\r\nX\0Y: z\r\n")),
        ("NUL in a value", lines("Host: t\r\nX: a\0b\r\n")),
        (
            "NUL before the request",
            text(&format!("\0GET {GET} HTTP/1.1\r\nHost: t\r\n\r\n")),
        ),
        ("a fold by a space", lines("Host: t\r\nX: a\r\n b\r\n")),
        ("a fold by a tab", lines("Host: t\r\nX: a\r\n\tb\r\n")),
        (
            "a fold right behind the request line",
            lines(" X: a\r\nHost: t\r\n"),
        ),
        (
            "a fold of white space alone",
            lines("Host: t\r\n \r\nX: y\r\n"),
        ),
    ] {
        table.closed(name, &[400], bytes);
    }
}

/// A hostile request after sound ones on one connection.
fn pipelined(table: &mut Table) {
    let poison = framed(
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "0\r\n\r\n",
    );
    let mut add = |name: &str, sound: usize, parts: &[&[u8]]| {
        table.0.push(Case {
            name: name.to_owned(),
            bytes: parts.concat(),
            sound,
            statuses: &[400, 501],
            after: After::Closed,
        });
    };
    let (get, post) = (sound::get("sound"), sound::post());
    let chunk = format!("d\r\n{BODY}\r\n0\r\n\r\n");
    let chunked = chunked(&chunk);
    add("GET, then both framings", 1, &[&get, &poison]);
    add("POST, then both framings", 1, &[&post, &poison]);
    add("chunked POST, then both framings", 1, &[&chunked, &poison]);
    add(
        "three requests, then both framings",
        3,
        &[&get, &post, &get, &poison],
    );
    add("POST with a byte too many", 1, &[&post, b"X", &get]);
    add(
        "POST with an empty line too many",
        1,
        &[&post, b"\r\n", &get],
    );
    add(
        "chunked POST with a byte too many",
        1,
        &[&chunked, b"0", &get],
    );
    add("GET, then a NUL", 1, &[&get, b"\0"]);
    add("GET, then a bare LF", 1, &[&get, b"\n", &get]);
    add(
        "GET, then binary",
        1,
        &[&get, b"\x80\x81\x82 / HTTP/1.1\r\n\r\n"],
    );
    add("GET, then no Host", 1, &[&get, b"GET / HTTP/1.1\r\n\r\n"]);
}
