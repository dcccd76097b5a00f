//! How every service is started: settings, data directory, authorizer and its reload are set up
//! here, once; the service adds what it is about.

use std::sync::Arc;

use ron_auth::{AuthConfig, RonAuthorizer};
use ron_files::Dir;
use ron_kernel::Topology;

use crate::chassis::{Chassis, Parts, Running};
use crate::config::{Config, ConfigProblem, ServiceSettings, Table};
use crate::datadir::DataDir;
use crate::error::StartError;
use crate::topology::ChassisThreads;

/// A service, as the chassis sees it.
pub trait Service {
    type Settings: ServiceSettings;
    /// All configuration keys; the table's name is the service's name.
    const TABLE: &'static Table;
    /// All threads, queues and locks.
    const TOPOLOGY: &'static Topology;
    /// Caveats of [`ron_auth::caveats::BODY_KEYS`] that the service checks itself once it has read
    /// the body.
    const ENFORCED_CAVEATS: &'static [&'static str] = &[];
    /// Whether a start without `data_dir` is refused, unless `amnesia` is on.
    const NEEDS_DATA_DIR: bool = true;

    /// Starts the service's threads and ends with [`Chassis::serve`]. Touches no signal, logger,
    /// environment variable or exit of the process.
    fn start(boot: Boot<Self::Settings>) -> Result<Running, StartError>;
}

/// What a service is started with.
pub struct Boot<S> {
    pub settings: S,
    pub chassis: Chassis,
    /// The authorizer of both ports, unless the service replaces [`Chassis::authorizer`].
    pub auth: Arc<RonAuthorizer>,
    /// The locked data directory; `None` in amnesia mode. Its calls are watched as `files`; what has a watch of its
    /// own uses [`Chassis::disk`]. It is unlocked after the last thread has ended and all drain hooks have run.
    pub data_dir: Option<Dir>,
}

/// What a start refuses as configuration before it opens a file, a socket or a device of the service.
/// `check-config` and the doctor call this too, so that they refuse what the start would refuse.
pub fn check<S: Service>(config: &Config) -> Result<S::Settings, Vec<ConfigProblem>> {
    let settings = S::Settings::from_config(config)?;
    if S::NEEDS_DATA_DIR {
        DataDir::check(config)?;
    }
    Ok(settings)
}

/// Starts a service on the sockets of `parts`. Returns once its ports answer.
pub fn start<S: Service>(config: Config, parts: Parts) -> Result<Running, StartError> {
    // In a constant, so that a service whose table lacks one of these rows does not compile.
    let threads = const { ChassisThreads::of(S::TOPOLOGY) };
    config.check_writers()?;
    let settings = check::<S>(&config)?;
    let data = if S::NEEDS_DATA_DIR || config.chassis().data_dir.is_some() {
        DataDir::open(&config, parts.disk.clone())?
    } else {
        None
    };
    let mut chassis = Chassis::new(S::TOPOLOGY, threads, &config, &parts, data)?;
    let data_dir = chassis.files.clone();
    let mut auth = AuthConfig::clone(config.auth());
    auth.enforced_caveats = S::ENFORCED_CAVEATS
        .iter()
        .map(|&key| key.to_owned())
        .collect();
    let auth = RonAuthorizer::new(
        auth,
        &chassis.registry,
        chassis.clock.clone(),
        chassis.peers.clone(),
        data_dir.clone(),
    )
    // A record of the issuer's notes that cannot be used stays so: a service manager must not restart for it.
    .map_err(StartError::config_text)?;
    auth.on_state(chassis.ready.hook("passports"));
    chassis.authorize_with(auth.clone());
    // First, so that the hooks of the service see settings that have been accepted.
    chassis.on_reload(|_: S::Settings| Ok(()));
    let started = S::start(Boot {
        settings,
        chassis,
        auth,
        data_dir,
    });
    started.map_err(|error| match error {
        // What the start was waiting for is no fault of a service that is to stop.
        StartError::Failed(why) if parts.stop.1.is_set() => StartError::Stopped(why),
        error => error,
    })
}

/// A service as an entry of a list of services.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub table: &'static Table,
    pub topology: &'static Topology,
    /// [`start`] for this service.
    pub start: fn(Config, Parts) -> Result<Running, StartError>,
    /// [`check`] for this service.
    pub check: fn(&Config) -> Result<(), Vec<ConfigProblem>>,
}

impl Descriptor {
    pub const fn of<S: Service>() -> Self {
        Self {
            table: S::TABLE,
            topology: S::TOPOLOGY,
            start: start::<S>,
            check: |config| check::<S>(config).map(drop),
        }
    }

    /// The name of the service and of its binary, such as `ron-kms`.
    pub const fn name(&self) -> &'static str {
        self.table.service
    }
}

#[cfg(test)]
#[path = "boot_tests.rs"]
mod tests;
