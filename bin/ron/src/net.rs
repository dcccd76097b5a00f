//! The client of every subcommand, and whom it trusts.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use ron_http::{ClientConfig, ClientTls, HttpClient};

/// Set once at the start; without it, https URLs are refused.
static TRUSTED: OnceLock<ClientTls> = OnceLock::new();

/// From now on https services are called, and must show a certificate from an authority in this PEM file.
pub fn trust(ca: &Path) -> Result<(), String> {
    let tls = ClientTls::load(ca, None)
        .map_err(|error| format!("--ca: {error}; it takes a PEM file of authorities"))?;
    let _ = TRUSTED.set(tls); // set once: there is one --ca
    Ok(())
}

/// A client for http, https and Unix sockets.
pub fn client() -> Arc<HttpClient> {
    Arc::new(HttpClient::new(ClientConfig {
        tls: TRUSTED.get().cloned(),
        ..ClientConfig::default()
    }))
}
