//! The parts that a process gives to a service: time, randomness, sockets, a disk, engines, metrics. The service
//! touches nothing else of the process.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ron_files::{OsDisk, SharedDisk};
use ron_kernel::net::{Address, SharedListener};
use ron_kernel::{
    GuardedClock, Net as _, OsNet, OsRandom, Registry, SharedClock, SharedNet, SharedRandom,
    Shutdown, ShutdownTrigger,
};

use super::Inherited;
use crate::config::{ChassisSettings, Config};
use crate::error::StartError;
use crate::records::{Postgres, SharedEngines};

/// What [`crate::start`] takes of the process, beside the configuration.
pub struct Parts {
    pub clock: SharedClock,
    pub random: SharedRandom,
    /// Of the sockets below, and of all further sockets of the service.
    pub net: SharedNet,
    /// Holds the data directory.
    pub disk: SharedDisk,
    /// The engines of logs that several nodes share.
    pub engines: SharedEngines,
    /// Number of cores that the service's threads may use.
    pub cores: usize,
    /// One per service, also when six services share a process.
    pub registry: Registry,
    /// Bound listener of the API; closed unused with `uds_only`.
    pub api: SharedListener,
    /// Bound listener of the API for clients with certificates, if `mtls.bind_addr` is set.
    pub mtls: Option<SharedListener>,
    /// Bound listener of health and metrics.
    pub health: SharedListener,
    /// Name of this instance in status and logs.
    pub instance: String,
    /// Fired when the service is to stop, also before it has started.
    pub stop: (ShutdownTrigger, Shutdown),
}

/// Default of `clock.max_gap`.
const GAP_MAX: Duration = Duration::from_hours(30 * 24);

impl Parts {
    /// The usual parts: system clock and randomness, both configured addresses bound. A
    /// port in use is an error with a hint.
    pub fn bind(config: &Config) -> Result<Self, StartError> {
        Self::bind_beside(config, Inherited::default())
    }

    /// Like [`Parts::bind`], when the service manager holds sockets for the service: sockets with
    /// the configured addresses are used, any other is an error.
    pub fn bind_beside(config: &Config, mut inherited: Inherited) -> Result<Self, StartError> {
        let settings = config.chassis();
        let mut listener =
            |key: &str, addr: SocketAddr| inherited.take(addr).map_or_else(|| bind(key, addr), Ok);
        let health = listener(ChassisSettings::health_addr, settings.health_addr)?;
        let mtls = settings.mtls_addr;
        let mtls = mtls.map(|addr| listener(ChassisSettings::mtls_addr, addr));
        let mtls = mtls.transpose()?;
        let at = settings.health_addr;
        let health_wanted = match settings.mtls_addr {
            Some(addr) => format!("health_addr {at} and mtls.bind_addr {addr}"),
            None => format!("health_addr {at}"),
        };
        // With `uds_only` the address must not be reachable: any free one is bound, and closed
        // unused by `serve`.
        let (api, wanted) = if settings.uds_only {
            let unused = bind(ChassisSettings::bind_addr, ([127, 0, 0, 1], 0).into())?;
            (unused, health_wanted)
        } else {
            let addr = settings.bind_addr;
            let both = format!("bind_addr {addr} and {health_wanted}");
            (listener(ChassisSettings::bind_addr, addr)?, both)
        };
        inherited.none_left(&wanted)?;
        let instance = api
            .local_addr()
            .map_or_else(|| config.service().to_owned(), |addr| addr.to_string());
        Ok(Self {
            clock: GuardedClock::shared(settings.clock_gap_max),
            random: OsRandom::shared(),
            net: OsNet::shared(),
            disk: Arc::new(OsDisk),
            engines: Arc::new(Postgres),
            cores: ron_kernel::cores(),
            registry: Registry::new(config.service()),
            api,
            mtls,
            health,
            instance,
            stop: Shutdown::pair(),
        })
    }

    /// Like [`Parts::bind`], on two free loopback ports, for tests and embedding.
    pub fn ephemeral(service: &'static str) -> Result<Self, StartError> {
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let api = bind(ChassisSettings::bind_addr, any)?;
        let instance = api
            .local_addr()
            .map_or_else(|| service.to_owned(), |addr| addr.to_string());
        Ok(Self {
            clock: GuardedClock::shared(GAP_MAX),
            random: OsRandom::shared(),
            net: OsNet::shared(),
            disk: Arc::new(OsDisk),
            engines: Arc::new(Postgres),
            cores: ron_kernel::cores(),
            registry: Registry::new(service),
            api,
            mtls: None,
            health: bind(ChassisSettings::health_addr, any)?,
            instance,
            stop: Shutdown::pair(),
        })
    }
}

fn bind(key: &str, addr: SocketAddr) -> Result<SharedListener, StartError> {
    OsNet.bind(&Address::Tcp(addr)).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => format!(
                "another process listens there, find it with: ss -ltnp 'sport = :{}'; or set {key} to another port",
                addr.port()
            ),
            ErrorKind::AddrNotAvailable => format!("this host has no such address; set {key} to one that it has"),
            ErrorKind::PermissionDenied => format!("ports below 1024 need a privilege; set {key} to a higher port"),
            _ => format!("check {key}"),
        };
        let what = match error.kind() {
            ErrorKind::AddrInUse => "is in use".to_owned(),
            _ => format!("cannot be used: {error}"),
        };
        StartError::io(format!("{key} {addr} {what}"), hint)
    })
}
