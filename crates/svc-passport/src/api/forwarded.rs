//! What a gateway says of the request that it forwards: `X-Forwarded-Method`, `-Uri` and `-For`, as Traefik and Caddy send them, and
//! nginx where its configuration does.
//!
//! **Invariant:** a header counts only from a listed gateway, and only where it has one meaning. Anybody can send these headers, and a
//! path that two programs may read differently would let a token pass where its `route` does not lead.

use std::net::IpAddr;

use ron_http::{Headers, Proxies, Request, Transport};
use ron_service::config::Uid;

/// The gateways whose headers count. Each of them replaces what its own caller has sent under these names.
#[derive(Clone, Debug, Default)]
pub struct Gateways {
    /// Where they call from over TCP.
    pub proxies: Proxies,
    /// User ids under which they call through Unix sockets.
    pub uids: Vec<Uid>,
}

/// A request as its gateway describes it; `None` for what is not known for certain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarded<'r> {
    pub method: Option<&'r str>,
    /// The path as the caller has sent it to the gateway, without the query.
    pub path: Option<&'r str>,
    /// The address from which the gateway was called.
    pub caller: Option<IpAddr>,
}

impl Gateways {
    pub fn forwarded<'r>(&self, req: &'r Request) -> Forwarded<'r> {
        self.read(req.peer.ip(), req.transport, &req.headers)
    }

    fn read<'r>(&self, peer: IpAddr, transport: Transport, headers: &'r Headers) -> Forwarded<'r> {
        let listed = match transport.uid() {
            Some(uid) => self.uids.iter().any(|one| one.0 == uid),
            None => self.proxies.holds(peer),
        };
        if !listed {
            return Forwarded::default();
        }
        Forwarded {
            method: one(headers, "x-forwarded-method").filter(|text| is_method(text)),
            path: one(headers, "x-forwarded-uri").and_then(plain_path),
            caller: self.proxies.named(headers).map(|addr| addr.to_canonical()),
        }
    }
}

/// The value of a header that was sent once.
fn one<'r>(headers: &'r Headers, name: &str) -> Option<&'r str> {
    (headers.count(name) == 1)
        .then(|| headers.get(name))
        .flatten()
}

fn is_method(text: &str) -> bool {
    !text.is_empty() && text.len() <= 16 && text.bytes().all(|b| b.is_ascii_uppercase())
}

/// The path of a URI, if the service behind the gateway cannot take it for another one: no empty or dot segments, no backslash and no
/// encoded character, `%2e%2e%2f` among them. No `#` either: a request line has none, and programs differ in whether a path ends there.
fn plain_path(uri: &str) -> Option<&str> {
    let path = uri.split('?').next()?;
    let segments = path.strip_prefix('/')?;
    let odd = |b: u8| !b.is_ascii_graphic() || b"\\%;#".contains(&b);
    let dots = |segment: &str| matches!(segment, "." | "..");
    let plain = !path.contains("//") && !path.bytes().any(odd) && !segments.split('/').any(dots);
    plain.then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateways() -> Gateways {
        Gateways {
            proxies: Proxies::at(vec!["10.0.0.0/24".parse().unwrap()]),
            uids: vec![Uid(33)],
        }
    }

    const SENT: [(&str, &str); 3] = [
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Uri", "/orders/7?a=/../b"),
        ("X-Forwarded-For", "1.1.1.1, 192.0.2.7, 10.0.0.9"),
    ];

    fn headers(sent: &[(&str, &str)]) -> Headers {
        Headers::from_pairs(sent)
    }

    #[test]
    fn only_a_listed_gateway_describes_a_request() {
        let sent = headers(&SENT);
        let check = |peer: &str, transport, counts: bool| {
            let got = gateways().read(peer.parse().unwrap(), transport, &sent);
            let want = Forwarded {
                method: Some("GET"),
                path: Some("/orders/7"),
                caller: Some("192.0.2.7".parse().unwrap()),
            };
            assert_eq!(
                got,
                if counts { want } else { Forwarded::default() },
                "{peer}"
            );
        };
        check("10.0.0.1", Transport::Tcp, true);
        check("10.0.0.1", Transport::Tls, true);
        check("10.0.1.1", Transport::Tcp, false);
        check("127.0.0.1", Transport::Tcp, false);
        check("0.0.0.0", Transport::ClientSocket { uid: 33 }, true);
        check("10.0.0.1", Transport::ClientSocket { uid: 34 }, false);
    }

    #[test]
    fn what_has_two_meanings_is_not_known() {
        let read = |sent: &[(&str, &str)]| {
            let headers = headers(sent);
            let got = gateways().read("10.0.0.1".parse().unwrap(), Transport::Tcp, &headers);
            (
                got.method.is_some(),
                got.path.map(str::to_owned),
                got.caller.is_some(),
            )
        };
        let none = (false, None, false);
        assert_eq!(read(&[]), none);
        assert_eq!(read(&[&SENT[..2], &SENT[..2]].concat()), none, "twice");
        for method in ["", "get", "GET POST", "G\u{e9}T"] {
            assert_eq!(read(&[("X-Forwarded-Method", method)]), none, "{method}");
        }
        for uri in [
            "",
            "orders",
            "http://a/orders",
            "/orders/../admin",
            "/orders/./x",
            "/orders/..",
            "//orders",
            "/orders//x",
            "/orders/%2e%2e/admin",
            "/orders%2Fx",
            "/orders\\..\\admin",
            "/orders;x=1/..",
            "/orders x",
            "/orders#",
            "/orders#/../../admin",
            "/orders/x#?a",
        ] {
            assert_eq!(read(&[("X-Forwarded-Uri", uri)]), none, "{uri}");
        }
        for uri in ["/", "/orders/", "/a.b/..c"] {
            let (_, path, _) = read(&[("X-Forwarded-Uri", uri)]);
            assert_eq!(path.as_deref(), Some(uri));
        }
        for callers in [
            "",
            "unknown",
            "192.0.2.7, unknown",
            "10.0.0.3",
            "192.0.2.7:80",
        ] {
            assert_eq!(read(&[("X-Forwarded-For", callers)]), none, "{callers}");
        }
    }
}
