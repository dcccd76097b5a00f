//! The HTTP client of every subcommand: its trusted authorities and its own identity; and pauses between
//! calls.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ron_http::{ClientConfig, ClientTls, ClientTlsFiles, HttpClient, TlsIdentity};
use ron_kernel::{Deadline, Shutdown};

/// Set once at the start; without it, https URLs are refused.
static TRUSTED: OnceLock<ClientTls> = OnceLock::new();

/// Enables https: services must present a certificate of an authority in this PEM file. Services
/// that request a client certificate get `own`.
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

/// Sets whether service tokens and client secrets may also be sent over plain TCP on loopback, and
/// which users' sockets may be named by hand.
pub fn allow(insecure_loopback: bool, peer_uids: Vec<u32>) {
    INSECURE.store(insecure_loopback, Ordering::Relaxed);
    let _ = PEERS.set(peer_uids); // set once: the command line is read once
}

/// True if secrets may be sent over plain TCP on loopback.
pub fn insecure_loopback() -> bool {
    INSECURE.load(Ordering::Relaxed)
}

/// How long a command retries a service that is busy or not ready.
const PATIENCE: Duration = Duration::from_secs(5);

/// A client for http, https and Unix sockets of this user, or of the users that `--peer-uid` names.
pub fn client() -> Arc<HttpClient> {
    client_of(PEERS.get().cloned().unwrap_or_default())
}

/// The same for Unix sockets of these users.
pub fn client_of(peer_uids: Vec<u32>) -> Arc<HttpClient> {
    Arc::new(HttpClient::new(ClientConfig {
        peer_uids,
        ..config()
    }))
}

/// What every client of the command line has, but for the users of sockets.
pub fn config() -> ClientConfig {
    ClientConfig {
        tls: TRUSTED.get().cloned(),
        patience: PATIENCE,
        insecure_loopback: insecure_loopback(),
        ..ClientConfig::default()
    }
}

/// A short pause that only the end of the process can interrupt.
pub fn pause(time: Duration) {
    let (_keep, never) = Shutdown::pair();
    never.wait(Deadline::within(time));
}
