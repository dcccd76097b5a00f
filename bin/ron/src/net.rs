//! The client of every subcommand, whom it trusts, and who it is.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Set once at the start: `--insecure-loopback`.
static INSECURE: AtomicBool = AtomicBool::new(false);
/// Set once at the start: `--peer-uid`.
static PEERS: OnceLock<Vec<u32>> = OnceLock::new();

/// From now on service tokens and client secrets are also sent over plain TCP on loopback, and sockets that are given
/// by hand may belong to these users.
pub fn allow(insecure_loopback: bool, peer_uids: Vec<u32>) {
    INSECURE.store(insecure_loopback, Ordering::Relaxed);
    let _ = PEERS.set(peer_uids); // set once: the command line is read once
}

/// Whether secrets may go over plain TCP on loopback.
pub fn insecure_loopback() -> bool {
    INSECURE.load(Ordering::Relaxed)
}

/// How long a command asks a service again that is busy or not ready.
const PATIENCE: Duration = Duration::from_secs(5);

/// A client for http, https and Unix sockets of this user, or of those that `--peer-uid` names.
pub fn client() -> Arc<HttpClient> {
    client_of(PEERS.get().cloned().unwrap_or_default())
}

/// The same for Unix sockets of these users.
pub fn client_of(peer_uids: Vec<u32>) -> Arc<HttpClient> {
    Arc::new(HttpClient::new(ClientConfig {
        tls: TRUSTED.get().cloned(),
        patience: PATIENCE,
        peer_uids,
        insecure_loopback: insecure_loopback(),
        ..ClientConfig::default()
    }))
}
