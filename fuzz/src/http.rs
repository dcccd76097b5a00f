//! The reference for request heads and bodies (RFC 9112, and the stricter rules of this server).

use crate::host::is_host;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub method: String,
    /// Path and query.
    pub target: String,
    pub http11: bool,
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    pub keep_alive: bool,
    pub expects_continue: bool,
    pub body: Vec<u8>,
}

/// How a stream of requests ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// After a whole request.
    Clean,
    /// In the middle of a head.
    InHead,
    /// In the middle of a body.
    InBody,
    Refused,
}

/// The maximum sizes.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    pub request_line: usize,
    pub block: usize,
    pub fields: usize,
    pub body: usize,
}

enum Framing {
    Length(u64),
    Chunked,
}

/// The result of reading a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The body, and the number of input bytes it took.
    Done(Vec<u8>, usize),
    More,
    Refused,
}

/// All requests of a stream, and how it ends.
pub fn stream(mut bytes: &[u8], caps: &Caps) -> (Vec<Message>, End) {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        if bytes.starts_with(b"\r\n") {
            return (messages, End::Refused);
        }
        let Some(length) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else {
            return (messages, End::InHead);
        };
        let Some((mut message, framing)) = head(&bytes[..length], caps) else {
            return (messages, End::Refused);
        };
        bytes = &bytes[length + 4..];
        let read = match framing {
            Framing::Length(length) if length > caps.body as u64 => Read::Refused,
            Framing::Length(length) => match bytes.get(..length as usize) {
                Some(body) => Read::Done(body.to_vec(), body.len()),
                None => Read::More,
            },
            Framing::Chunked => chunked(bytes, caps.body),
        };
        match read {
            Read::Done(body, used) => {
                message.body = body;
                bytes = &bytes[used..];
                messages.push(message);
            }
            Read::More => return (messages, End::InBody),
            Read::Refused => return (messages, End::Refused),
        }
    }
    (messages, End::Clean)
}

/// A head without its last two line ends.
fn head(bytes: &[u8], caps: &Caps) -> Option<(Message, Framing)> {
    let text: String = bytes.iter().map(|b| char::from(*b)).collect(); // one char per byte
    let mut lines = text.split("\r\n");
    let first = lines.next()?;
    let lines: Vec<&str> = lines.collect();
    let size: usize = lines.iter().map(|l| l.chars().count() + 2).sum();
    if text.contains('\0') || first.chars().count() > caps.request_line {
        return None;
    }
    if size > caps.block || lines.len() > caps.fields {
        return None;
    }
    let all = std::iter::once(&first).chain(&lines);
    if all.into_iter().any(|line| line.contains(['\r', '\n'])) {
        return None;
    }
    let (method, target, http11) = request_line(first)?;
    let fields: Vec<(String, String)> = lines.iter().map(|l| field(l)).collect::<Option<_>>()?;
    let (framing, expects_continue) = framing(&fields, http11)?;
    let close = fields.iter().any(|(name, value)| {
        name == "connection"
            && value
                .split(',')
                .any(|v| v.trim_matches([' ', '\t']) == "close")
    });
    let raw = |line: &&str| {
        let (name, value) = line.split_once(':').expect("checked");
        let bytes = |s: &str| s.chars().map(|c| c as u8).collect::<Vec<u8>>();
        (bytes(name), bytes(value.trim_matches([' ', '\t'])))
    };
    let message = Message {
        method,
        target,
        http11,
        fields: lines.iter().map(raw).collect(),
        keep_alive: http11 && !close,
        expects_continue: http11 && expects_continue,
        body: Vec::new(),
    };
    Some((message, framing))
}

fn request_line(line: &str) -> Option<(String, String, bool)> {
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else {
        return None;
    };
    let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let http11 = match version {
        "HTTP/1.1" => true,
        "HTTP/1.0" => false,
        _ => return None,
    };
    let printable = target.chars().all(|c| c.is_ascii_graphic() && c != '#');
    if !methods.contains(&method) || !printable {
        return None;
    }
    let target = if target.starts_with('/') || (target == "*" && method == "OPTIONS") {
        target
    } else {
        let lower = target.to_ascii_lowercase();
        let scheme = ["http://", "https://"]
            .into_iter()
            .find(|scheme| lower.starts_with(scheme))?;
        let rest = &target[scheme.len()..];
        let slash = rest.find('/')?;
        if !is_host(&rest.as_bytes()[..slash]) {
            return None;
        }
        &rest[slash..]
    };
    Some((method.to_owned(), target.to_owned(), http11))
}

/// Name in lower case, and value in lower case without white space around it.
fn field(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(':')?;
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let good = |c: char| c == '\t' || (c >= ' ' && c != '\x7f');
    if name.is_empty() || !name.chars().all(token) || !value.chars().all(good) {
        return None;
    }
    let value = value.trim_matches([' ', '\t']);
    Some((name.to_ascii_lowercase(), value.to_ascii_lowercase()))
}

fn framing(fields: &[(String, String)], http11: bool) -> Option<(Framing, bool)> {
    let values = |name: &str| -> Vec<&str> {
        let found = fields.iter().filter(|(n, _)| n == name);
        found.map(|(_, v)| v.as_str()).collect()
    };
    match values("host")[..] {
        [] if http11 => return None,
        [] => {}
        [host] if is_host(host.as_bytes()) => {}
        _ => return None,
    }
    let expect = values("expect");
    if expect.iter().any(|v| *v != "100-continue") {
        return None;
    }
    let framing = match (
        &values("content-length")[..],
        &values("transfer-encoding")[..],
    ) {
        ([], []) => Framing::Length(0),
        ([length], []) if !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit()) => {
            Framing::Length(length.parse().ok()?)
        }
        ([], ["chunked"]) if http11 => Framing::Chunked,
        _ => return None,
    };
    Some((framing, !expect.is_empty()))
}

/// A chunked body at the front of the input.
pub fn chunked(bytes: &[u8], cap: usize) -> Read {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        let digits = bytes[at..].iter().take_while(|b| b.is_ascii_hexdigit());
        let digits = digits.count();
        if digits > 8 {
            return Read::Refused;
        }
        let Some(after) = bytes.get(at + digits) else {
            return Read::More;
        };
        if digits == 0 {
            return Read::Refused;
        }
        let text = std::str::from_utf8(&bytes[at..at + digits]).expect("hex digits");
        let size = usize::from_str_radix(text, 16).expect("at most eight digits");
        at += digits;
        if *after == b';' {
            at += 1;
            let good = |b: &&u8| **b == b'\t' || (**b >= 0x20 && **b != 0x7f);
            let length = bytes[at..].iter().take_while(good).count();
            if length > 256 {
                return Read::Refused;
            }
            at += length;
        }
        match literal(bytes, at, b"\r\n") {
            Read::Done(..) => at += 2,
            other => return other,
        }
        if size == 0 {
            return match trailers(bytes, at) {
                Read::Done(_, end) => Read::Done(body, end),
                other => other,
            };
        }
        if size > cap - body.len() {
            return Read::Refused;
        }
        let Some(data) = bytes.get(at..at + size) else {
            return Read::More;
        };
        body.extend_from_slice(data);
        at += size;
        match literal(bytes, at, b"\r\n") {
            Read::Done(..) => at += 2,
            other => return other,
        }
    }
}

/// Trailer fields up to their empty line; their content is ignored.
fn trailers(bytes: &[u8], mut at: usize) -> Read {
    loop {
        match literal(bytes, at, b"\r\n") {
            Read::Done(..) => return Read::Done(Vec::new(), at + 2),
            Read::More => return Read::More,
            Read::Refused => {}
        }
        let token = |b: &&u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(*b);
        let name = bytes[at..].iter().take_while(token).count();
        match bytes.get(at + name) {
            None => return Read::More,
            Some(b':') if name > 0 => at += name + 1,
            Some(_) => return Read::Refused,
        }
        let good = |b: &&u8| **b == b'\t' || (**b >= 0x20 && **b != 0x7f);
        at += bytes[at..].iter().take_while(good).count();
        match literal(bytes, at, b"\r\n") {
            Read::Done(..) => at += 2,
            other => return other,
        }
    }
}

/// True if these bytes are there, or could still arrive.
fn literal(bytes: &[u8], at: usize, wanted: &[u8]) -> Read {
    let here = &bytes[at..];
    let shared = here.len().min(wanted.len());
    if here[..shared] != wanted[..shared] {
        Read::Refused
    } else if shared < wanted.len() {
        Read::More
    } else {
        Read::Done(Vec::new(), wanted.len())
    }
}
