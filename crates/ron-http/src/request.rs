//! The request as a handler receives it: head, parameters, body, and typed accessors.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use ron_kernel::Deadline;
use ron_proto::values::is_control;
use ron_proto::{IdemKey, Problem};
use serde::de::DeserializeOwned;

use crate::auth::Principal;
use crate::head::{ClientCert, Headers, Method, Transport};
use crate::limits::WAIT_MAX_S;
use crate::memory::HeldBytes;
use crate::spool::Upload;
use crate::trace::Trace;

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
    pub memory: HeldBytes,
    /// The body on routes that stream to disk.
    pub upload: Option<Upload>,
    pub principal: Principal,
    /// The request's id and trace context, for logs and for the calls that it causes.
    pub trace: Trace,
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
        let found = self.param_if_any(name);
        found.unwrap_or_else(|| panic!("route {} has no parameter {name}", self.route))
    }

    /// A path parameter that only some of a handler's routes have.
    pub fn param_if_any(&self, name: &str) -> Option<&str> {
        let found = self.params.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.as_str())
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

    /// A query parameter that must appear once, parsed; 400 otherwise.
    pub fn query_required<T>(&self, name: &str) -> Result<T, Problem>
    where
        T: std::str::FromStr<Err: fmt::Display>,
    {
        self.query_as(name)?
            .ok_or_else(|| Problem::bad_request(format!("the query parameter {name} is missing")))
    }

    /// A query parameter that may appear several times, each parsed.
    pub fn query_many<T>(&self, name: &str) -> Result<Vec<T>, Problem>
    where
        T: std::str::FromStr<Err: fmt::Display>,
    {
        let values = self.query.iter().filter(|(key, _)| key == name);
        let parsed = values.map(|(_, text)| text.parse());
        parsed.collect::<Result<_, _>>().map_err(|error| {
            Problem::bad_request(format!("the query parameter {name} is not valid: {error}"))
        })
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

    /// How long the caller is ready to wait for an event: `wait=S` in the query or else
    /// `Prefer: wait=S`; 400 unless it is a number of whole seconds up to [`WAIT_MAX_S`].
    pub fn wait(&self) -> Result<Option<Duration>, Problem> {
        wait_of(self.query_one("wait")?, self.header("prefer"))
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

/// The wait requested by a query value or a `Prefer` header; the query wins.
pub(crate) fn wait_of(
    query: Option<&str>,
    prefer: Option<&str>,
) -> Result<Option<Duration>, Problem> {
    let in_prefer = || {
        prefer?.split([',', ';']).find_map(|item| {
            let (name, value) = item.split_once('=')?;
            name.trim()
                .eq_ignore_ascii_case("wait")
                .then_some(value.trim())
        })
    };
    let Some(asked) = query.or_else(in_prefer) else {
        return Ok(None);
    };
    // Not shortened: a caller that sets its own deadline by the wait would take the early answer for the end of it.
    let seconds = asked.parse().ok().filter(|&s: &u64| s <= WAIT_MAX_S);
    let seconds = seconds.ok_or_else(|| {
        Problem::bad_request(format!(
            "wait is a number of whole seconds, at most {WAIT_MAX_S}"
        ))
    })?;
    Ok(Some(Duration::from_secs(seconds)))
}

/// Decodes `%XX`; `None` when an escape is broken, the result is not UTF-8, or it holds a control
/// character, escaped or not. With `form`, a plus sign is a space.
pub(crate) fn percent_decode(text: &str, form: bool) -> Option<Cow<'_, str>> {
    let plus = form && text.contains('+');
    if !plus && !text.contains('%') {
        return (!text.chars().any(is_control)).then_some(Cow::Borrowed(text));
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
    // A control character could split a log line, or show another name than was sent.
    (!text.chars().any(is_control)).then(|| Cow::Owned(text.into_owned()))
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
    use crate::head::RequestHead;

    #[test]
    fn percent_decoding_takes_only_whole_escapes_of_printable_text() {
        let check = |text: &str, form: bool, want: Option<&str>| {
            assert_eq!(percent_decode(text, form).as_deref(), want, "{text}");
        };
        check("a\u{1}b", true, None);
        check("a\u{202e}b", false, None);
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
        check("%E2%80%AE", false, None);
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
    fn waits_are_read_from_query_and_prefer_and_bounded() {
        let check = |query: Option<&str>, prefer: Option<&str>, want: Result<Option<u64>, ()>| {
            let got = wait_of(query, prefer).map_err(|refusal| {
                assert_eq!(refusal.status, 400);
                assert!(refusal.detail.contains("at most 30"), "{}", refusal.detail);
            });
            let want = want.map(|s| s.map(Duration::from_secs));
            assert_eq!(got, want, "{query:?} {prefer:?}");
        };
        check(None, None, Ok(None));
        check(None, Some("handling=strict"), Ok(None));
        check(Some("0"), None, Ok(Some(0)));
        check(Some("7"), Some("wait=99"), Ok(Some(7)));
        check(Some("30"), None, Ok(Some(30)));
        check(None, Some("respond-async, Wait = 12"), Ok(Some(12)));
        for bad in ["31", "99999999999999999999", "x", "7s", "-1", "1.5", ""] {
            check(Some(bad), Some("wait=3"), Err(()));
            check(None, Some(&format!("respond-async, wait={bad}")), Err(()));
        }
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
            trace: Trace::new("r").unwrap(),
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
