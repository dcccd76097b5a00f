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

/// The TLS of the API's addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServedTls {
    /// Of `bind_addr`, if enabled.
    pub api: Option<Arc<ServerTls>>,
    /// Of `mtls.bind_addr`, if there is one.
    mtls: Option<Arc<ServerTls>>,
}

/// The server's TLS, if enabled. Clients are asked for a certificate at the address that is meant
/// for that, and at the only one if there is no other.
pub(super) fn server_tls(settings: &ChassisSettings) -> Result<ServedTls, StartError> {
    let Some(identity) = identity(settings).filter(|_| settings.tls_enabled) else {
        return Ok(ServedTls::default());
    };
    let load = |client_ca: Option<PathBuf>| {
        let identity = identity.clone();
        ServerTls::load(ServerTlsFiles {
            identity,
            client_ca,
        })
        .map_err(|error| {
            StartError::io(
                format!("TLS cannot be served: {error}"),
                "check tls.cert_path, tls.key_path and tls.client_ca_path",
            )
        })
    };
    let asked = settings.tls_client_ca.clone();
    if settings.mtls_addr.is_none() {
        let api = Some(load(asked)?);
        return Ok(ServedTls { api, mtls: None });
    }
    Ok(ServedTls {
        api: Some(load(None)?),
        mtls: Some(load(asked)?),
    })
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
/// it, and that for clients with certificates; then the Unix sockets, the one for services first.
pub(super) fn listen(
    settings: &ChassisSettings,
    net: &SharedNet,
    (tcp, mtls): (SharedListener, Option<SharedListener>),
    tls: ServedTls,
) -> Result<Listen, StartError> {
    let mut listen = if settings.uds_only {
        drop(tcp);
        Listen::on(net.clone())
    } else {
        Listen::on(net.clone()).tcp(tcp, tls.api)
    };
    if let (Some(socket), Some(tls)) = (mtls, tls.mtls) {
        listen = listen.tcp(socket, Some(tls));
    }
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
        let served = [&self.tls.api, &self.tls.mtls];
        let served: Vec<&ServerTls> = served.into_iter().filter_map(Option::as_deref).collect();
        reload_tls(&served, self.peers.tls.as_ref()).map_err(|error| error.to_string())?;
        self.ready.certificates().show();
        Ok(())
    }
}
