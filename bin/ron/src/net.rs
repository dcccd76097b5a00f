//! The client of every subcommand, whom it trusts, and who it is.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ron_http::{ClientConfig, ClientTls, ClientTlsFiles, HttpClient, TlsIdentity};

/// Set once at the start; without it, https URLs are refused.
static TRUSTED: OnceLock<ClientTls> = OnceLock::new();

/// From now on https services are called, and must show a certificate from an authority in this PEM file. Where they ask
/// for ours, it is this one.
pub fn trust(ca: PathBuf, own: Option<(PathBuf, PathBuf)>) -> Result<(), String> {
    let identity = own.map(|(cert, key)| TlsIdentity { cert, key });
    let tls = ClientTls::load(ClientTlsFiles { ca, identity }).map_err(|error| {
        format!("{error}; --ca takes a PEM file of authorities, --client-cert and --client-key those of a certificate")
    })?;
    let _ = TRUSTED.set(tls); // set once: there is one --ca
    Ok(())
}

/// How long a command asks a service again that is busy or not ready.
const PATIENCE: Duration = Duration::from_secs(5);

/// A client for http, https and Unix sockets.
pub fn client() -> Arc<HttpClient> {
    Arc::new(HttpClient::new(ClientConfig {
        tls: TRUSTED.get().cloned(),
        patience: PATIENCE,
        ..ClientConfig::default()
    }))
}
