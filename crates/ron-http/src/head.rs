//! The head of a request: method, header fields, transport, and what an authorizer decides on.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::trace::Trace;

/// Where a header field is in the head's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Start of the name.
    pub name: u32,
    /// Length of the name.
    pub name_len: u32,
    /// Start of the value.
    pub value: u32,
    /// Length of the value.
    pub value_len: u32,
}

impl Field {
    pub fn name<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        &head[self.name as usize..(self.name + self.name_len) as usize]
    }

    /// The value's bytes, without the white space around them.
    pub fn value<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        &head[self.value as usize..(self.value + self.value_len) as usize]
    }
}

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
    /// The request's id and trace context.
    pub trace: Trace,
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
