//! The base URLs by which clients reach a service: the `htu` of a DPoP proof is compared with them,
//! and published documents carry them. They come from the configuration and the sockets, never from
//! a request.

use std::net::{SocketAddr, TcpListener};

use crate::config::Config;
use crate::error::StartError;

/// The base URLs of the API, the one to publish first: `public_url` if configured, else the address
/// of the listener.
pub(super) fn of_api(config: &Config, api: &TcpListener) -> Result<Vec<String>, StartError> {
    let configured = config.list("public_url").iter();
    let mut bases: Vec<String> = configured
        .map(|url| url.trim_end_matches('/').to_owned())
        .collect();
    if bases.is_empty() {
        let tls = config.bool("tls.enabled");
        let api = api
            .local_addr()
            .map_err(|e| StartError::failed(format!("the API's listener has no address: {e}")))?;
        bases = listening(if tls { "https" } else { "http" }, api);
    }
    Ok(bases)
}

/// The base URLs of the health port, which speaks plain HTTP.
pub(super) fn of_health(health: SocketAddr) -> Vec<String> {
    listening("http", health)
}

/// An address as clients write it: by number, and on loopback also as `localhost`.
fn listening(scheme: &str, addr: SocketAddr) -> Vec<String> {
    let mut bases = vec![format!("{scheme}://{addr}")];
    if addr.ip().is_loopback() {
        bases.push(format!("{scheme}://localhost:{}", addr.port()));
    }
    bases
}

/// Whether a text can be the base of the service's URLs.
pub(crate) fn is_base_url(url: &str) -> bool {
    let schemes = ["http://", "https://"];
    let Some(rest) = schemes.iter().find_map(|scheme| url.strip_prefix(scheme)) else {
        return false;
    };
    let odd = |b: u8| !b.is_ascii_graphic() || b"@?#\\\"<>".contains(&b);
    !rest.is_empty() && !rest.starts_with(['/', ':']) && !rest.bytes().any(odd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_reached_by_number_and_on_loopback_by_name() {
        let of = |addr: &str| listening("http", addr.parse().unwrap());
        assert_eq!(
            of("127.0.0.1:7470"),
            ["http://127.0.0.1:7470", "http://localhost:7470"]
        );
        assert_eq!(
            of("[::1]:7470"),
            ["http://[::1]:7470", "http://localhost:7470"]
        );
        assert_eq!(of("10.0.0.7:7470"), ["http://10.0.0.7:7470"]);
    }

    #[test]
    fn a_base_has_a_scheme_a_host_and_nothing_after_its_path() {
        for good in [
            "https://a.example",
            "http://[::1]:7470",
            "https://a.example/wallet/",
        ] {
            assert!(is_base_url(good), "{good}");
        }
        for bad in [
            "",
            "a.example",
            "ftp://a",
            "https://",
            "https:///x",
            "http://:80",
            "https://u@a",
            "https://a?x",
            "https://a#x",
            "https://a b",
        ] {
            assert!(!is_base_url(bad), "{bad}");
        }
    }
}
