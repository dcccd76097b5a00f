//! Transports of the API and of calls to other services: TCP, TLS, Unix sockets, as configured.

use std::path::PathBuf;
use std::sync::Arc;

use ron_http::{
    ClientConfig, ClientTls, ClientTlsFiles, HttpClient, Listen, ServerTls, ServerTlsFiles,
    TlsIdentity, UnixEndpoint, UnixError, reload_tls,
};
use ron_kernel::SharedNet;
use ron_kernel::net::SharedListener;

use super::Shared;
use crate::config::{ChassisSettings, Config, Uid};
use crate::error::StartError;

/// The files of `tls.cert_path` and `tls.key_path`, if both are set.
fn identity(settings: &ChassisSettings) -> Option<TlsIdentity> {
    Some(TlsIdentity {
        cert: settings.tls_cert.clone()?,
        key: settings.tls_key.clone()?,
    })
}

/// The server's TLS, if enabled.
pub(super) fn server_tls(settings: &ChassisSettings) -> Result<Option<Arc<ServerTls>>, StartError> {
    let Some(identity) = identity(settings).filter(|_| settings.tls_enabled) else {
        return Ok(None);
    };
    let files = ServerTlsFiles {
        identity,
        client_ca: settings.tls_client_ca.clone(),
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
    let settings = config.chassis();
    Ok(ClientConfig {
        user_agent: format!("{}/{}", config.service(), env!("CARGO_PKG_VERSION")),
        tls: client_tls(settings)?,
        peer_uids: uids(&settings.peer_uids),
        insecure_loopback: settings.insecure_loopback,
        ..ClientConfig::default()
    })
}

/// The client for calls to other services.
pub(super) fn client(peers: ClientConfig) -> HttpClient {
    HttpClient::new(ClientConfig {
        max_idle_per_host: 32,
        // A page of 500 events of the ledger has up to 5.5 MB, when each has the longest texts and budgets.
        max_response_bytes: 8 << 20,
        ..peers
    })
}

/// The TLS settings for https peers, if configured: the trusted authorities, and the service's own
/// certificate.
fn client_tls(settings: &ChassisSettings) -> Result<Option<ClientTls>, StartError> {
    let Some(ca) = settings.tls_peer_ca.clone() else {
        return Ok(None);
    };
    let files = ClientTlsFiles {
        ca,
        identity: identity(settings),
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
    settings: &ChassisSettings,
    net: &SharedNet,
    tcp: SharedListener,
    tls: Option<Arc<ServerTls>>,
) -> Result<Listen, StartError> {
    let listen = if settings.uds_only {
        drop(tcp);
        Listen::on(net.clone())
    } else {
        Listen::on(net.clone()).tcp(tcp, tls)
    };
    let socket = (&settings.uds_path, ChassisSettings::uds_path);
    let listen = with_unix(settings, net, listen, socket)?;
    let Some(path) = &settings.client_uds_path else {
        return Ok(listen);
    };
    let endpoint = UnixEndpoint::bind_for_clients(&**net, path, &uids(&settings.client_allow_uids));
    Ok(listen.unix(endpoint.map_err(|error| refused(&error, ChassisSettings::client_uds_path))?))
}

/// The sockets of the health port.
pub(super) fn listen_ops(
    settings: &ChassisSettings,
    net: &SharedNet,
    tcp: SharedListener,
) -> Result<Listen, StartError> {
    let socket = (&settings.health_uds_path, ChassisSettings::health_uds_path);
    with_unix(
        settings,
        net,
        Listen::on(net.clone()).tcp(tcp, None),
        socket,
    )
}

/// Adds a Unix socket for services and operators, given as its path and key, if it is set.
fn with_unix(
    settings: &ChassisSettings,
    net: &SharedNet,
    listen: Listen,
    (path, key): (&Option<PathBuf>, &str),
) -> Result<Listen, StartError> {
    let Some(path) = path else {
        return Ok(listen);
    };
    let endpoint = UnixEndpoint::bind(&**net, path, &uids(&settings.uds_allow_uids));
    Ok(listen.unix(endpoint.map_err(|error| refused(&error, key))?))
}

fn refused(error: &UnixError, key: &str) -> StartError {
    let hint = format!("or set {key} to a path in a directory of its own");
    StartError::io(error.to_string(), hint)
}

fn uids(list: &[Uid]) -> Vec<u32> {
    list.iter().map(|Uid(uid)| *uid).collect()
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
