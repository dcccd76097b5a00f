//! The cases whose framing is sound or irrelevant: hosts, fields, targets, request lines, sizes,
//! bodies.

use super::{After, Table, framed, line, lines};
use crate::sound::{BODY, GET, POST};

pub(super) fn hosts(table: &mut Table) {
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
pub(super) fn fields(table: &mut Table) {
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

pub(super) fn targets(table: &mut Table) {
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

pub(super) fn request_lines(table: &mut Table) {
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

pub(super) fn sizes(table: &mut Table) {
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

/// Bodies with sound framing that the route cannot read.
pub(super) fn bodies(table: &mut Table) {
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
    let deep = "[".repeat(30_000);
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
        ("thirty thousand brackets", &deep),
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
