//! The unit of fair sharing: the other end of a connection, as far as it can be distinguished from
//! others of the same host or network.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ron_proto::caveat::IpBlock;

use crate::head::{Headers, Transport};

/// A peer to which connections, long polls and failed authentications are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    V4(Ipv4Addr),
    /// The /64 network of an IPv6 address: a host may use any address in it.
    V6(u64),
    /// A user of this host, on a Unix socket.
    User(u32),
}

impl Peer {
    /// The other end of a connection.
    pub fn of(addr: SocketAddr, transport: Transport) -> Self {
        match transport {
            Transport::Unix { uid } | Transport::ClientSocket { uid } => Self::User(uid),
            Transport::Tcp | Transport::Tls => Self::at(addr.ip()),
        }
    }

    fn at(addr: IpAddr) -> Self {
        match addr.to_canonical() {
            IpAddr::V4(addr) => Self::V4(addr),
            IpAddr::V6(addr) => Self::V6((u128::from(addr) >> 64) as u64),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(addr) => write!(out, "{addr}"),
            Self::V6(network) => {
                write!(out, "{}/64", Ipv6Addr::from(u128::from(*network) << 64))
            }
            Self::User(uid) => write!(out, "uid {uid}"),
        }
    }
}

/// The proxies whose `X-Forwarded-For` is trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies(Vec<IpBlock>);

impl Proxies {
    /// Trusts proxies at these addresses.
    pub fn at(blocks: Vec<IpBlock>) -> Self {
        Self(blocks)
    }

    /// True for a connection that carries the requests of many clients. A Unix socket has no
    /// address and is never one.
    pub(crate) fn is_proxy(&self, addr: SocketAddr, transport: Transport) -> bool {
        transport.uid().is_none() && self.holds(addr.ip())
    }

    /// True for the address of a proxy.
    pub fn holds(&self, addr: IpAddr) -> bool {
        self.0.iter().any(|block| block.contains(addr))
    }

    /// The sender of a request: the other end, or the client that a proxy names.
    pub fn client(&self, addr: SocketAddr, transport: Transport, headers: &Headers) -> Peer {
        let direct = Peer::of(addr, transport);
        if self.0.is_empty() || !self.is_proxy(addr, transport) {
            return direct;
        }
        self.named(headers).map_or(direct, Peer::at)
    }

    /// The client that the headers of a proxy name. Each proxy appends the address it was called from, so the last address that is
    /// not a trusted proxy is the client; the entries before it were written by the client and prove nothing. `None` when an entry
    /// up to there is no address, or all are proxies.
    pub fn named(&self, headers: &Headers) -> Option<IpAddr> {
        let fields: Vec<&str> = headers
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case("x-forwarded-for"))
            .flat_map(|(_, value)| value.split(','))
            .collect();
        for text in fields.into_iter().rev() {
            let addr = text.trim().parse().ok()?;
            if !self.holds(addr) {
                return Some(addr);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_an_address_a_network_or_a_user() {
        let check = |addr: &str, transport, want: &str| {
            let peer = Peer::of(addr.parse().unwrap(), transport);
            assert_eq!(peer.to_string(), want);
        };
        check("10.1.2.3:4", Transport::Tcp, "10.1.2.3");
        check("[::ffff:10.1.2.3]:4", Transport::Tls, "10.1.2.3");
        check(
            "[2001:db8:1:2:3:4:5:6]:7",
            Transport::Tcp,
            "2001:db8:1:2::/64",
        );
        check("0.0.0.0:0", Transport::Unix { uid: 7 }, "uid 7");
    }

    #[test]
    fn only_a_listed_proxy_names_the_client_and_only_the_last_name_counts() {
        let proxies = Proxies::at(vec!["10.0.0.0/24".parse().unwrap()]);
        let check = |from: &str, pairs: &[(&str, &str)], want: &str| {
            let headers = Headers::from_pairs(pairs);
            let peer = proxies.client(from.parse().unwrap(), Transport::Tcp, &headers);
            assert_eq!(peer.to_string(), want, "{from} {pairs:?}");
        };
        let forwarded = "X-Forwarded-For";
        check("192.0.2.1:1", &[(forwarded, "198.51.100.7")], "192.0.2.1");
        check("10.0.0.9:1", &[(forwarded, "198.51.100.7")], "198.51.100.7");
        check("10.0.0.9:1", &[(forwarded, "1.1.1.1, 2.2.2.2")], "2.2.2.2");
        check("10.0.0.9:1", &[(forwarded, "2.2.2.2, 10.0.0.8")], "2.2.2.2");
        check(
            "10.0.0.9:1",
            &[(forwarded, "1.1.1.1"), (forwarded, "2.2.2.2")],
            "2.2.2.2",
        );
        check("10.0.0.9:1", &[(forwarded, "unknown")], "10.0.0.9");
        check("10.0.0.9:1", &[], "10.0.0.9");
    }
}
