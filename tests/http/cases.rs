//! The table of hostile requests: what is sent, which statuses are right, and whether the
//! connection may live on afterwards.
//!
//! Every request would be answered 200 if its hostile part were overlooked: the routes are public,
//! the bodies are good JSON. Where a lenient reader would end the request early, what follows is a
//! second request to [`SMUGGLED`], which nobody may ever answer.

/// A public route that takes JSON.
pub const POST: &str = "/v1/passport/verify";
/// A public route that reads, and that nobody else calls meanwhile.
pub const GET: &str = "/.well-known/oauth-authorization-server";
/// What an attacker hides.
pub const SMUGGLED: &str = "/v1/smuggled";
/// A body that is answered 200.
pub const BODY: &str = r#"{"token":"x"}"#;

/// What must become of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Closed after the refusal: where the request ends is in doubt.
    Closed,
    /// It serves the next request: the framing was sound.
    Open,
    /// Either, as long as it is clean.
    Either,
}

/// One hostile connection.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub bytes: Vec<u8>,
    /// Sound requests before the hostile one, each to be answered 200.
    pub sound: usize,
    pub statuses: &'static [u16],
    pub after: After,
}

/// A sound GET with an id that its answer repeats.
pub fn get(id: &str) -> Vec<u8> {
    format!("GET {GET} HTTP/1.1\r\nHost: t\r\nX-Request-Id: {id}\r\n\r\n").into_bytes()
}

/// A sound POST.
pub fn post() -> Vec<u8> {
    let length = BODY.len();
    framed(&format!("Content-Length: {length}"), BODY)
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

/// The good body as one chunk, the size written this way.
fn sized(size: &str) -> Vec<u8> {
    chunked(&format!("{size}\r\n{BODY}\r\n0\r\n\r\n"))
}

/// A GET with these lines behind the request line, `Host` among them or not.
fn lines(lines: &str) -> Vec<u8> {
    format!("GET {GET} HTTP/1.1\r\n{lines}\r\n").into_bytes()
}

/// A GET by this request line.
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

/// The whole table.
pub fn table() -> Vec<Case> {
    let mut table = Table::default();
    length_and_coding(&mut table);
    codings(&mut table);
    lengths(&mut table);
    chunks(&mut table);
    line_ends(&mut table);
    hosts(&mut table);
    fields(&mut table);
    targets(&mut table);
    request_lines(&mut table);
    sizes(&mut table);
    bodies(&mut table);
    pipelined(&mut table);
    table.0
}

/// Both ways to say where the body ends, in every order and spelling.
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

/// Transfer codings that are not the one that is understood.
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
            "a trailer",
            format!("d\r\n{BODY}\r\n0\r\nX-Trailer: y\r\n\r\n"),
        ),
        (
            "a trailer that would change the framing",
            format!("d\r\n{BODY}\r\n0\r\nContent-Length: 50\r\n\r\n"),
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

fn hosts(table: &mut Table) {
    table.closed("no Host", &[400], lines(""));
    table.closed(
        "Host twice, the same",
        &[400],
        lines("Host: t\r\nHost: t\r\n"),
    );
    table.closed(
        "Host twice, another",
        &[400],
        lines("Host: t\r\nhost: evil\r\n"),
    );
    for host in [
        "",
        "a b",
        "a/b",
        "a?b",
        "a#b",
        "user@t",
        "a,b",
        "a\\b",
        "<t>",
        "t:port",
        "t:-1",
        "t:1:2",
        "t:99999999",
        "[::1",
        "::1",
        "[::1]x",
        "[zz]",
        "]",
        ":80",
        "\u{e4}",
        "%zz",
        "a\"b",
    ] {
        let bytes = lines(&format!("Host: {host}\r\n"));
        table.closed(format!("Host {host:?}"), &[400], bytes);
    }
    let long = "h".repeat(300);
    table.closed(
        "Host of 300 bytes",
        &[400],
        lines(&format!("Host: {long}\r\n")),
    );
    for authority in [
        "",
        "a b",
        "user:pw@t",
        "t:port",
        "[::1",
        "a,b",
        "t?a=",
        "t#",
    ] {
        let target = format!("GET http://{authority}{GET} HTTP/1.1");
        table.closed(
            format!("authority {authority:?}"),
            &[400, 505],
            line(&target),
        );
    }
}

/// Names and values of header fields.
fn fields(table: &mut Table) {
    for bad in [
        "X Y: z",
        "X : z",
        "X\t: z",
        ": z",
        "X(: z",
        "X): z",
        "X\"Y: z",
        "X,Y: z",
        "X/Y: z",
        "X;Y: z",
        "X=Y: z",
        "X@Y: z",
        "X[Y: z",
        "X{Y: z",
        "X\x7fY: z",
        "X\x01Y: z",
        "X\u{e9}: z",
        "Xyz",
        "X: a\x01b",
        "X: a\x08b",
        "X: a\x0bb",
        "X: a\x1bb",
        "X: a\x7fb",
    ] {
        let bytes = lines(&format!("Host: t\r\n{bad}\r\n"));
        table.closed(format!("field {bad:?}"), &[400], bytes);
    }
    for expect in ["200-ok", "100-continue, x", "", "100"] {
        let length = BODY.len();
        let bytes = framed(
            &format!("Expect: {expect}\r\nContent-Length: {length}"),
            BODY,
        );
        table.closed(format!("Expect {expect:?}"), &[400, 417], bytes);
    }
    for ms in ["abc", "-1", "1.5", "", "99999999999999999999"] {
        let bytes = lines(&format!("Host: t\r\nX-Request-Deadline-Ms: {ms}\r\n"));
        table.open(format!("deadline {ms:?}"), &[400], bytes);
    }
}

fn targets(table: &mut Table) {
    for target in [
        "*",
        "t:443",
        "v1/passport/verify",
        "?",
        "http:/x",
        "http:///x",
        "http://t",
        "ftp://t/x",
        "file:///etc/passwd",
        "javascript:x",
        "/x#fragment",
        "/\u{e4}",
        "/\x7f",
        "/\x01",
        "\\x",
    ] {
        let bytes = line(&format!("GET {target} HTTP/1.1"));
        table.closed(format!("target {target:?}"), &[400], bytes);
    }
    for target in [
        "//",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/.well-known/../.well-known/oauth-authorization-server",
        "//.well-known/oauth-authorization-server",
        "/.well-known//oauth-authorization-server",
        "/.well-known/oauth-authorization-server/",
        "/.well-known%2foauth-authorization-server",
        "/.well-known/oauth-authorization-server%00",
        "/.well-known/oauth-authorization-server;x=y",
        "/.WELL-KNOWN/oauth-authorization-server",
        "/%zz",
        "/%",
        "/.well-known/oauth-authorization-server?a=%zz",
        "/.well-known/oauth-authorization-server?a=%ff",
    ] {
        let bytes = line(&format!("GET {target} HTTP/1.1"));
        table.open(format!("target {target:?}"), &[400, 404], bytes);
    }
}

fn request_lines(table: &mut Table) {
    for first in [
        format!("GET  {GET} HTTP/1.1"),
        format!("GET {GET}  HTTP/1.1"),
        format!("GET\t{GET} HTTP/1.1"),
        format!(" GET {GET} HTTP/1.1"),
        format!("\r\nGET {GET} HTTP/1.1"),
        format!("GET {GET} HTTP/1.1 "),
        format!("GET {GET} HTTP/1.1 x"),
        format!("GET {GET}"),
        format!("GET {GET} "),
        "GET HTTP/1.1".to_owned(),
        "GET".to_owned(),
        format!("GET{GET} HTTP/1.1"),
        format!("GE T {GET} HTTP/1.1"),
        format!("G(T {GET} HTTP/1.1"),
        format!("{GET} HTTP/1.1"),
        format!("\u{feff}GET {GET} HTTP/1.1"),
    ] {
        let name = format!("request line {first:?}");
        table.closed(name, &[400, 501, 505], line(&first));
    }
    for version in [
        "HTTP/2.0",
        "HTTP/1.2",
        "HTTP/1.10",
        "HTTP/01.1",
        "HTTP/0.9",
        "HTTP/11",
        "HTTP/1",
        "HTTP/1.",
        "HTTP/1.x",
        "http/1.1",
        "HTTPS/1.1",
        "ICAP/1.0",
        "HTTP 1.1",
        "HTTP/-1.1",
    ] {
        let bytes = line(&format!("GET {GET} {version}"));
        table.closed(format!("version {version:?}"), &[400, 505], bytes);
    }
    for method in ["get", "Get", "BREW", "TRACE", "PRI", "G"] {
        let bytes = line(&format!("{method} {GET} HTTP/1.1"));
        table.closed(format!("method {method:?}"), &[400, 501], bytes);
    }
    table.closed("CONNECT", &[400, 501], line("CONNECT t:443 HTTP/1.1"));
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    table.closed("the preface of HTTP/2", &[400, 501, 505], preface);
    let hello = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00".to_vec();
    table.closed("a TLS greeting on a plain port", &[400], hello);
    for method in ["DELETE", "PUT", "PATCH", "POST"] {
        let bytes = line(&format!("{method} {GET} HTTP/1.1"));
        table.open(format!("{method} where only GET is"), &[405], bytes);
    }
}

fn sizes(table: &mut Table) {
    let long = "a".repeat(9 << 10);
    table.closed(
        "a target of 9 KiB",
        &[414],
        line(&format!("GET /{long} HTTP/1.1")),
    );
    let wide = format!("Host: t\r\nX: {}\r\n", "a".repeat(40 << 10));
    table.closed("a value of 40 KiB", &[431], lines(&wide));
    let name = format!("Host: t\r\n{}: y\r\n", "a".repeat(40 << 10));
    table.closed("a name of 40 KiB", &[431], lines(&name));
    let many = format!("Host: t\r\n{}", "X: y\r\n".repeat(150));
    table.closed("150 fields", &[431], lines(&many));
    let body = format!(r#"{{"token":"{}"}}"#, "x".repeat(2 << 20));
    let length = body.len();
    let bytes = framed(&format!("Content-Length: {length}"), &body);
    table.closed("a body of 2 MiB", &[413], bytes);
}

/// Bodies with sound framing that are not what the route reads.
fn bodies(table: &mut Table) {
    let typed = |content_type: &str, more: &str, body: &str| {
        let length = body.len();
        let head = format!("POST {POST} HTTP/1.1\r\nHost: t\r\n");
        format!("{head}{content_type}{more}Content-Length: {length}\r\n\r\n{body}").into_bytes()
    };
    for content_type in [
        "",
        "Content-Type:\r\n",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: application/jsonx\r\n",
        "Content-Type: application\r\n",
        "Content-Type: text/plain, application/json\r\n",
    ] {
        let name = format!("{content_type:?}");
        table.open(name, &[400, 415], typed(content_type, "", BODY));
    }
    let json = "Content-Type: application/json\r\n";
    for coding in [
        "gzip",
        "deflate",
        "br",
        "zstd",
        "gzip, gzip",
        "x",
        "gzip;q=1",
    ] {
        let more = format!("Content-Encoding: {coding}\r\n");
        table.add(
            format!("content coding {coding:?} over plain text"),
            typed(json, &more, BODY),
            &[400, 415],
            After::Either,
        );
    }
    let deep = "[".repeat(100_000);
    for (name, body) in [
        ("an empty body", ""),
        ("half a body", "{\"token\":"),
        ("a name twice", r#"{"token":"x","token":"y"}"#),
        ("an unknown name", r#"{"token":"x","colour":"red"}"#),
        ("another type", r#"{"token":7}"#),
        ("a comment", "{\"token\":\"x\"} // why"),
        ("two values", "{\"token\":\"x\"}{\"token\":\"x\"}"),
        ("a byte order mark", "\u{feff}{\"token\":\"x\"}"),
        ("a control character in a string", "{\"token\":\"a\nb\"}"),
        ("half a surrogate pair", r#"{"token":"\ud800"}"#),
        ("single quotes", "{'token':'x'}"),
        ("a hundred thousand brackets", &deep),
    ] {
        table.open(format!("JSON: {name}"), &[400], typed(json, "", body));
    }
    let mut latin = typed(json, "", "{\"token\":\"??\"}");
    for byte in latin.iter_mut().rev().take(6) {
        if *byte == b'?' {
            *byte = 0xff;
        }
    }
    table.open("JSON: bytes that are not UTF-8", &[400], latin);
}

/// Poison behind sound requests on one connection.
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
    let (get, post) = (get("sound"), post());
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
