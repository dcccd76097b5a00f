//! Transports of the API and of calls to other services: TCP, TLS, Unix sockets, as configured.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use ron_http::{
    ClientConfig, ClientTls, ClientTlsFiles, HttpClient, Listen, ServerTls, ServerTlsFiles,
    TlsIdentity, UnixEndpoint, UnixError, reload_tls,
};

use super::Shared;
use crate::config::Config;
use crate::error::StartError;

/// The files of `tls.cert_path` and `tls.key_path`, if both are set.
fn identity(config: &Config) -> Option<TlsIdentity> {
    let path = |key: &str| config.path_opt(key).map(PathBuf::from);
    Some(TlsIdentity {
        cert: path("tls.cert_path")?,
        key: path("tls.key_path")?,
    })
}

/// The server's TLS, if enabled.
pub(super) fn server_tls(config: &Config) -> Result<Option<Arc<ServerTls>>, StartError> {
    let Some(identity) = identity(config).filter(|_| config.bool("tls.enabled")) else {
        return Ok(None);
    };
    let files = ServerTlsFiles {
        identity,
        client_ca: config.path_opt("tls.client_ca_path").map(PathBuf::from),
    };
    let loaded = ServerTls::load(files).map_err(|error| {
        StartError::io(
            format!("TLS cannot be served: {error}"),
            "check tls.cert_path, tls.key_path and tls.client_ca_path",
        )
    })?;
    Ok(Some(loaded))
}

/// How the service calls other services; the base of all its clients.
pub fn client_config(config: &Config) -> Result<ClientConfig, StartError> {
    Ok(ClientConfig {
        user_agent: format!("{}/{}", config.service(), env!("CARGO_PKG_VERSION")),
        tls: client_tls(config)?,
        peer_uids: uids(config, "peer_uids"),
        insecure_loopback: config.bool("insecure_loopback"),
        ..ClientConfig::default()
    })
}

/// The client for calls to other services.
pub(super) fn client(peers: ClientConfig) -> HttpClient {
    HttpClient::new(ClientConfig {
        max_idle_per_host: 32,
        ..peers
    })
}

/// The TLS settings for https peers, if configured: the trusted authorities, and the service's own
/// certificate.
fn client_tls(config: &Config) -> Result<Option<ClientTls>, StartError> {
    let Some(ca) = config.path_opt("tls.peer_ca_path") else {
        return Ok(None);
    };
    let files = ClientTlsFiles {
        ca: ca.to_owned(),
        identity: identity(config),
    };
    let loaded = ClientTls::load(files).map_err(|error| {
        StartError::io(
            format!("https peers cannot be called: {error}"),
            "check tls.peer_ca_path, tls.cert_path and tls.key_path",
        )
    })?;
    Ok(Some(loaded))
}

/// The sockets of the API: the TCP listener (with TLS if enabled), unless the Unix socket replaces
/// it; then the Unix sockets, the one for services first.
pub(super) fn listen(
    config: &Config,
    tcp: TcpListener,
    tls: Option<Arc<ServerTls>>,
) -> Result<Listen, StartError> {
    let listen = if config.bool("uds_only") {
        drop(tcp);
        Listen::default()
    } else {
        Listen::default().tcp(tcp, tls)
    };
    let listen = with_unix(config, listen, "uds_path")?;
    let Some(path) = config.path_opt("client_uds_path") else {
        return Ok(listen);
    };
    let endpoint = UnixEndpoint::bind_for_clients(path, &uids(config, "client_allow_uids"));
    Ok(listen.unix(endpoint.map_err(|error| refused(&error, "client_uds_path"))?))
}

/// The sockets of the health port.
pub(super) fn listen_ops(config: &Config, tcp: TcpListener) -> Result<Listen, StartError> {
    with_unix(config, Listen::from(tcp), "health_uds_path")
}

/// Adds the Unix socket for services and operators that `key` names, if it is set.
fn with_unix(config: &Config, listen: Listen, key: &str) -> Result<Listen, StartError> {
    let Some(path) = config.path_opt(key) else {
        return Ok(listen);
    };
    let endpoint = UnixEndpoint::bind(path, &uids(config, "uds_allow_uids"));
    Ok(listen.unix(endpoint.map_err(|error| refused(&error, key))?))
}

fn refused(error: &UnixError, key: &str) -> StartError {
    let hint = format!("or set {key} to a path in a directory of its own");
    StartError::io(error.to_string(), hint)
}

/// A list of user ids as numbers; validation has refused anything else.
fn uids(config: &Config, key: &str) -> Vec<u32> {
    let list = config.list(key);
    list.iter().filter_map(|text| text.parse().ok()).collect()
}

impl Shared {
    /// Rereads the certificates, so that new connections, from callers and to peers, use renewed
    /// ones.
    pub(super) fn reload_certificates(&self) -> Result<(), String> {
        reload_tls(self.tls.as_deref(), self.peers.tls.as_ref())
            .map_err(|error| error.to_string())?;
        self.certificates.show();
        Ok(())
    }
}
