//! The base URLs by which clients reach a service: the `htu` of a DPoP proof is compared with them,
//! and published documents carry them. They come from the configuration and the sockets, never from
//! a request.

use std::net::SocketAddr;

use ron_kernel::net::ListeningSocket;

use crate::config::{BaseUrl, ChassisSettings};
use crate::error::StartError;

/// The base URLs of the API, the one to publish first: `public_url` if configured, else the address
/// of the listener.
pub(super) fn of_api(
    settings: &ChassisSettings,
    api: &dyn ListeningSocket,
) -> Result<Vec<String>, StartError> {
    Ok(settings.base_urls(address(api)?))
}

/// Those of the address for clients with certificates; none if there is no such address.
pub(super) fn of_mtls(
    settings: &ChassisSettings,
    mtls: Option<&dyn ListeningSocket>,
) -> Result<Vec<String>, StartError> {
    let Some(socket) = mtls else {
        return Ok(Vec::new());
    };
    Ok(of(&settings.mtls_urls, "https", address(socket)?))
}

impl ChassisSettings {
    /// The base URLs of the API at this address, the one to publish first.
    pub fn base_urls(&self, api: SocketAddr) -> Vec<String> {
        let scheme = if self.tls_enabled { "https" } else { "http" };
        of(&self.public_urls, scheme, api)
    }
}

fn address(socket: &dyn ListeningSocket) -> Result<SocketAddr, StartError> {
    let addr = socket.local_addr();
    addr.ok_or_else(|| StartError::failed("the API's listener has no address"))
}

fn of(configured: &[BaseUrl], scheme: &str, addr: SocketAddr) -> Vec<String> {
    if configured.is_empty() {
        return listening(scheme, addr);
    }
    configured.iter().map(|BaseUrl(url)| url.clone()).collect()
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
}
