//! The request as a handler receives it: head, parameters, body, and typed accessors.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use ron_kernel::Deadline;
use ron_proto::{IdemKey, Problem};
use serde::de::DeserializeOwned;

use crate::auth::Principal;
use crate::memory::Held;
use crate::parse::Field;
use crate::spool::Upload;

/// The methods this server implements; all others get 501.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, clippy::upper_case_acronyms)]
pub enum Method {
    GET,
    HEAD,
    POST,
    PUT,
    PATCH,
    DELETE,
    OPTIONS,
    /// Not in the registry of HTTP methods: Vault clients list with it.
    LIST,
}

impl Method {
    /// The method of that name, which is case-sensitive.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "GET" => Self::GET,
            "HEAD" => Self::HEAD,
            "POST" => Self::POST,
            "PUT" => Self::PUT,
            "PATCH" => Self::PATCH,
            "DELETE" => Self::DELETE,
            "OPTIONS" => Self::OPTIONS,
            "LIST" => Self::LIST,
            _ => return None,
        })
    }

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GET => "GET",
            Self::HEAD => "HEAD",
            Self::POST => "POST",
            Self::PUT => "PUT",
            Self::PATCH => "PATCH",
            Self::DELETE => "DELETE",
            Self::OPTIONS => "OPTIONS",
            Self::LIST => "LIST",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// The header fields of a request, in order, names in any case. Never `Debug`-printed with
/// values: they hold credentials.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers {
    head: Vec<u8>,
    fields: Vec<Field>,
}

impl Headers {
    pub(crate) fn new(head: Vec<u8>, fields: Vec<Field>) -> Self {
        Self { head, fields }
    }

    /// For tests of handlers and authorizers: headers from pairs.
    pub fn from_pairs(pairs: &[(&str, &str)]) -> Self {
        let mut headers = Self::default();
        for (name, value) in pairs {
            let start = headers.head.len() as u32;
            headers.head.extend_from_slice(name.as_bytes());
            headers.head.extend_from_slice(value.as_bytes());
            headers.fields.push(Field {
                name: start,
                name_len: name.len() as u32,
                value: start + name.len() as u32,
                value_len: value.len() as u32,
            });
        }
        headers
    }

    /// The first value under the name, if it is text.
    pub fn get(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.raw(name)?).ok()
    }

    /// True when the head has a field of this name, whatever its value.
    pub fn contains(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    /// Number of fields of this name.
    pub fn count(&self, name: &str) -> usize {
        self.matching(name).count()
    }

    /// Names and values that are text, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().filter_map(|field| {
            let name = std::str::from_utf8(field.name(&self.head)).ok()?;
            Some((name, std::str::from_utf8(field.value(&self.head)).ok()?))
        })
    }

    pub(crate) fn raw(&self, name: &str) -> Option<&[u8]> {
        self.matching(name)
            .next()
            .map(|field| field.value(&self.head))
    }

    fn matching<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Field> {
        self.fields.iter().filter(move |field| {
            field.name_len as usize == name.len()
                && field.name(&self.head).eq_ignore_ascii_case(name.as_bytes())
        })
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Headers({} fields)", self.fields.len())
    }
}

/// A certificate issued by an authority that the listener trusts, whose private key the client has
/// proved to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCert {
    /// SHA-256 of the certificate, 64 lower-case hex digits.
    pub sha256: String,
    /// The DNS names it was issued for, in its own order.
    pub dns_names: Vec<String>,
}

/// The transport of a request. Authorizers decide by it which credentials they accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Tls,
    /// A Unix socket for services and operators; the peer's user id.
    Unix {
        /// As the kernel reports it (`SO_PEERCRED`).
        uid: u32,
    },
    /// A Unix socket for local programs: the user id is known, but grants nothing.
    ClientSocket {
        /// As the kernel reports it (`SO_PEERCRED`).
        uid: u32,
    },
}

impl Transport {
    /// The user id that the peer's process ran as when it connected, on Unix sockets.
    pub const fn uid(self) -> Option<u32> {
        match self {
            Self::Unix { uid } | Self::ClientSocket { uid } => Some(uid),
            Self::Tcp | Self::Tls => None,
        }
    }
}

/// A request before its body is read; authorizers decide on it.
#[derive(Clone, Debug)]
pub struct RequestHead {
    pub method: Method,
    /// The path as sent, percent-encoded, without the query.
    pub path: String,
    /// The pattern of the route.
    pub route: &'static str,
    pub headers: Headers,
    pub peer: SocketAddr,
    pub transport: Transport,
    /// The client's certificate, where a TLS listener asks for one.
    pub client_cert: Option<Arc<ClientCert>>,
    /// The request's id, for logs.
    pub request_id: String,
    /// The W3C trace context, passed through.
    pub traceparent: Option<String>,
}

impl RequestHead {
    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)
    }

    /// True when the other end has a loopback address of this host.
    pub fn is_from_loopback(&self) -> bool {
        self.peer.ip().to_canonical().is_loopback()
    }

    /// The bearer token of `Authorization`; `None` when the header is missing, repeated or of
    /// another scheme.
    pub fn bearer(&self) -> Option<&str> {
        // With two credentials, the accepted one would depend on the reader.
        if self.headers.count("authorization") != 1 {
            return None;
        }
        let (scheme, token) = self.headers.get("authorization")?.split_once(' ')?;
        let token = token.trim_matches(' ');
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
    }
}

/// A complete request of an authorised caller.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    /// The path as sent, percent-encoded, without the query.
    pub path: String,
    /// Path parameters by name, percent-decoded.
    pub params: Vec<(&'static str, String)>,
    /// Query parameters in order, decoded.
    pub query: Vec<(String, String)>,
    pub headers: Headers,
    /// The body, decompressed, at most the route's cap; empty on routes that stream to disk.
    pub body: Vec<u8>,
    /// The body's share of the process's memory for requests; given back with the request.
    pub memory: Held,
    /// The body on routes that stream to disk.
    pub upload: Option<Upload>,
    pub principal: Principal,
    /// The request's id, for logs and for the calls that it causes.
    pub request_id: String,
    /// The W3C trace context, to be passed on.
    pub traceparent: Option<String>,
    /// When the front answers 504; work after it is in vain.
    pub deadline: Deadline,
    pub peer: SocketAddr,
    pub transport: Transport,
    /// The client's certificate, where a TLS listener asks for one.
    pub client_cert: Option<Arc<ClientCert>>,
    /// The pattern of the route.
    pub route: &'static str,
}

impl Request {
    /// A path parameter of the route. Panics when the route has none of this name: a programming
    /// error that the first test shows.
    pub fn param(&self, name: &str) -> &str {
        let found = self.params.iter().find(|(key, _)| *key == name);
        found.map_or_else(
            || panic!("route {} has no parameter {name}", self.route),
            |(_, v)| v,
        )
    }

    /// A query parameter that may appear once; 400 when it appears more often.
    pub fn query_one(&self, name: &str) -> Result<Option<&str>, Problem> {
        let mut values = self.query.iter().filter(|(key, _)| key == name);
        let first = values.next();
        if values.next().is_some() {
            return Err(Problem::bad_request(format!(
                "the query parameter {name} may appear only once"
            )));
        }
        Ok(first.map(|(_, value)| value.as_str()))
    }

    /// A query parameter that may appear once, parsed; 400 with the parser's message otherwise.
    pub fn query_as<T>(&self, name: &str) -> Result<Option<T>, Problem>
    where
        T: std::str::FromStr<Err: fmt::Display>,
    {
        let Some(text) = self.query_one(name)? else {
            return Ok(None);
        };
        let parsed = text.parse().map_err(|error| {
            Problem::bad_request(format!("the query parameter {name} is not valid: {error}"))
        })?;
        Ok(Some(parsed))
    }

    /// 400 when the query has a name that is not in the list: a misspelt filter must not be
    /// silently ignored.
    pub fn query_only(&self, names: &[&str]) -> Result<(), Problem> {
        if self
            .query
            .iter()
            .all(|(key, _)| names.contains(&key.as_str()))
        {
            return Ok(());
        }
        let known = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        Err(Problem::bad_request(format!(
            "unknown query parameter; known here: {known}"
        )))
    }

    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)
    }

    /// The body as JSON: 415 unless it is declared so, 400 for duplicate or unknown members,
    /// nesting beyond 32 and wrong types.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        if !self
            .header("content-type")
            .is_some_and(|value| is_media_type(value, JSON))
        {
            return Err(not_json());
        }
        Ok(ron_proto::strict::from_slice(&self.body)?)
    }

    /// How long the caller is ready to wait for an event: `wait=S` in the query or
    /// `Prefer: wait=S`, whole seconds, at most 30.
    pub fn prefer_wait(&self) -> Option<Duration> {
        let query = self
            .query
            .iter()
            .find(|(key, _)| key == "wait")
            .map(|(_, v)| v.as_str());
        wait_of(query, self.header("prefer"))
    }

    /// The `Idempotency-Key` header, bare or as a quoted string (the form of structured fields):
    /// both are the same key. 400 when it is missing, repeated or malformed.
    pub fn idempotency_key(&self) -> Result<IdemKey, Problem> {
        self.idempotency_key_opt()?
            .ok_or_else(|| Problem::bad_request("the Idempotency-Key header is required"))
    }

    /// The `Idempotency-Key` header if it was sent; 400 when it is repeated or malformed.
    pub fn idempotency_key_opt(&self) -> Result<Option<IdemKey>, Problem> {
        match self.headers.count("idempotency-key") {
            0 => Ok(None),
            1 => {
                let text = self.header("idempotency-key").unwrap_or("");
                let key = unquoted(text).parse::<IdemKey>().map_err(|error| {
                    Problem::bad_request(format!("the Idempotency-Key header: {error}"))
                })?;
                Ok(Some(key))
            }
            _ => Err(Problem::bad_request(
                "several Idempotency-Key headers were sent",
            )),
        }
    }
}

/// The content of a quoted string; any other text unchanged. A key has neither quotes nor
/// backslashes, so nothing needs unescaping, and the rest of a badly quoted key does not parse.
fn unquoted(text: &str) -> &str {
    text.strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap_or(text)
}

/// The only content type accepted for JSON bodies.
pub(crate) const JSON: &str = "application/json";

pub(crate) fn not_json() -> Problem {
    Problem::unsupported_media_type("send the body as Content-Type: application/json")
}

/// True when a content type is `wanted`, parameters aside.
pub(crate) fn is_media_type(value: &str, wanted: &str) -> bool {
    let essence = value.split(';').next().unwrap_or("").trim();
    essence.eq_ignore_ascii_case(wanted)
}

/// Maximum wait in seconds; a longer one is shortened.
const WAIT_MAX_S: u64 = 30;

/// The wait requested by a query value or a `Prefer` header; the query wins.
pub(crate) fn wait_of(query: Option<&str>, prefer: Option<&str>) -> Option<Duration> {
    let asked = query.or_else(|| {
        prefer?.split([',', ';']).find_map(|item| {
            let (name, value) = item.split_once('=')?;
            name.trim()
                .eq_ignore_ascii_case("wait")
                .then_some(value.trim())
        })
    })?;
    let seconds: u64 = asked.trim_end_matches('s').parse().ok()?;
    Some(Duration::from_secs(seconds.min(WAIT_MAX_S)))
}

/// Decodes `%XX`; `None` when an escape is broken, the result is not UTF-8, or it holds a control
/// character. With `form`, a plus sign is a space.
pub(crate) fn percent_decode(text: &str, form: bool) -> Option<Cow<'_, str>> {
    let plus = form && text.contains('+');
    if !plus && !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    // The library would leave a broken escape as it is.
    let is_whole = |rest: &str| {
        let digits = rest.as_bytes().first_chunk::<2>();
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(is_whole) {
        return None;
    }
    let spaced = if plus {
        Cow::Owned(text.replace('+', " "))
    } else {
        Cow::Borrowed(text)
    };
    let text = percent_decode_str(&spaced).decode_utf8().ok()?;
    // A decoded control character could split a log line.
    (!text.chars().any(char::is_control)).then(|| Cow::Owned(text.into_owned()))
}

/// Maximum number of pairs in a query.
const QUERY_PAIRS_MAX: usize = 64;

/// Splits and decodes a query; `None` when it is malformed or has too many pairs.
pub(crate) fn parse_query(query: &str) -> Option<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    for item in query.split('&').filter(|item| !item.is_empty()) {
        if pairs.len() == QUERY_PAIRS_MAX {
            return None;
        }
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        let name = percent_decode(name, true)?.into_owned();
        pairs.push((name, percent_decode(value, true)?.into_owned()));
    }
    Some(pairs)
}

/// The fields of an `application/x-www-form-urlencoded` text, decoded, in order; `None` when it is
/// malformed or has more than 64 of them.
pub fn form_fields(text: &str) -> Option<Vec<(String, String)>> {
    parse_query(text)
}

/// One form-encoded value, decoded; `None` when it is malformed.
pub fn form_decode(text: &str) -> Option<String> {
    percent_decode(text, true).map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_decoding_takes_only_whole_escapes_of_printable_text() {
        let check = |text: &str, form: bool, want: Option<&str>| {
            assert_eq!(percent_decode(text, form).as_deref(), want, "{text}");
        };
        check("plain", false, Some("plain"));
        check("a%2Fb%3ac", false, Some("a/b:c"));
        check("a+b", false, Some("a+b"));
        check("a+b", true, Some("a b"));
        check("%c3%a9", false, Some("é"));
        check("%", false, None);
        check("%4", false, None);
        check("%zz", false, None);
        check("%+1", false, None);
        check("%ff", false, None);
        check("%00", false, None);
        check("%0d%0a", false, None);
    }

    #[test]
    fn queries_keep_order_and_are_bounded() {
        let pairs = parse_query("b=1&a=x%26y&&c").expect("well formed");
        let shown: Vec<_> = pairs
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        assert_eq!(shown, [("b", "1"), ("a", "x&y"), ("c", "")]);
        assert_eq!(parse_query("a=%"), None);
        assert_eq!(parse_query(&"a=1&".repeat(QUERY_PAIRS_MAX + 1)), None);
    }

    #[test]
    fn a_quoted_key_equals_the_bare_key() {
        let key = |text: &str| {
            unquoted(text)
                .parse::<IdemKey>()
                .ok()
                .map(|k| k.to_string())
        };
        for good in ["abc-1", "\"abc-1\""] {
            assert_eq!(key(good).as_deref(), Some("abc-1"), "{good}");
        }
        for bad in [
            "\"",
            "\"\"",
            "\"abc",
            "abc\"",
            "\"\"abc\"\"",
            "\"a\\bc\"",
            "\"abc\";p=1",
            "\"a b\"",
            "'abc'",
            "\"abc\" ",
        ] {
            assert_eq!(key(bad), None, "{bad}");
        }
        let longest = "a".repeat(64);
        assert_eq!(key(&format!("\"{longest}\"")), Some(longest.clone()));
        assert_eq!(key(&format!("\"{longest}a\"")), None);
    }

    #[test]
    fn waits_are_read_from_query_and_prefer_and_capped() {
        let check = |query, prefer, want: Option<u64>| {
            assert_eq!(wait_of(query, prefer), want.map(Duration::from_secs));
        };
        check(None, None, None);
        check(Some("7"), None, Some(7));
        check(Some("99"), None, Some(30));
        check(Some("x"), Some("wait=3"), None);
        check(None, Some("respond-async, wait=12"), Some(12));
        check(None, Some("handling=strict"), None);
    }

    #[test]
    fn a_bearer_token_must_be_alone() {
        let head = |pairs: &[(&str, &str)]| RequestHead {
            method: Method::GET,
            path: "/".into(),
            route: "/",
            headers: Headers::from_pairs(pairs),
            peer: ([127, 0, 0, 1], 1).into(),
            transport: Transport::Tcp,
            client_cert: None,
            request_id: "r".into(),
            traceparent: None,
        };
        let check = |pairs: &[(&str, &str)], want| assert_eq!(head(pairs).bearer(), want);
        check(&[("Authorization", "Bearer abc")], Some("abc"));
        check(&[("authorization", "bearer  abc")], Some("abc"));
        check(&[("authorization", "Basic abc")], None);
        check(&[("authorization", "Bearer ")], None);
        check(
            &[("authorization", "Bearer a"), ("Authorization", "Bearer b")],
            None,
        );
        check(&[], None);
    }
}
