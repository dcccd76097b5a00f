//! Starts the configured devices.

use std::sync::Arc;

use ron_crypto::rand::Random;
use ron_http::HttpClient;

use super::remote::{Remote, RemoteDevice};
use super::session_pool::{DeviceHandles, SessionPool, SessionPoolParts};
use super::settings::DeviceSettings;
use super::{BackendKind, Backends, Device};
use crate::topology::{REMOTE, REMOTE_KEEPER, REMOTE_QUEUE};

/// Starts the devices of these settings, beside the `local` backend. An unavailable device is not an error: its keys verify, and its keeper keeps
/// probing it.
pub fn start(
    local: BackendKind,
    settings: &DeviceSettings,
    handles: &DeviceHandles,
    random: &Arc<dyn Random>,
    http: &Arc<HttpClient>,
) -> Backends {
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    devices.extend(pkcs11(settings, handles, random));
    devices.extend(tpm(settings, handles));
    devices.extend(remote(settings, handles, http));
    Backends::new(local, devices, handles.clock.unix_ms()).attest_required(settings.attest_required)
}

fn remote(
    settings: &DeviceSettings,
    handles: &DeviceHandles,
    http: &Arc<HttpClient>,
) -> Option<Arc<dyn Device>> {
    let wanted = settings.remote.clone()?;
    let (api, sessions) = (wanted.api, wanted.sessions);
    let remote = Remote::new(http.clone(), wanted);
    let parts = SessionPoolParts {
        kind: BackendKind::Remote,
        threads: &REMOTE,
        queue: &REMOTE_QUEUE,
        keeper: &REMOTE_KEEPER,
        sessions,
        probe_every: settings.probe_every,
        cause: "remote",
        ops: super::remote::OPS,
    };
    let pool = SessionPool::start(parts, handles.clone(), move || remote.connect());
    Some(Arc::new(RemoteDevice::new(pool, api)))
}

#[cfg(feature = "pkcs11")]
fn pkcs11(
    settings: &DeviceSettings,
    handles: &DeviceHandles,
    random: &Arc<dyn Random>,
) -> Option<Arc<dyn Device>> {
    use super::pkcs11::{Driver, Pkcs11Device, Token};
    use crate::topology::{PKCS11, PKCS11_KEEPER, PKCS11_QUEUE};

    let wanted = settings.pkcs11.as_ref()?;
    let driver = Driver::new(Token {
        module: wanted.module.clone(),
        label: wanted.token.clone(),
        pin: wanted.pin.clone(),
    });
    let parts = SessionPoolParts {
        kind: BackendKind::Pkcs11,
        threads: &PKCS11,
        queue: &PKCS11_QUEUE,
        keeper: &PKCS11_KEEPER,
        sessions: wanted.sessions,
        probe_every: settings.probe_every,
        cause: "pkcs11",
        ops: super::pkcs11::OPS,
    };
    let pool = SessionPool::start(parts, handles.clone(), move || driver.connect());
    Some(Arc::new(Pkcs11Device::new(pool, random.clone())))
}

#[cfg(not(feature = "pkcs11"))]
fn pkcs11(_: &DeviceSettings, _: &DeviceHandles, _: &Arc<dyn Random>) -> Option<Arc<dyn Device>> {
    None
}

#[cfg(feature = "tpm")]
fn tpm(settings: &DeviceSettings, handles: &DeviceHandles) -> Option<Arc<dyn Device>> {
    use super::tpm::{TpmAt, TpmDevice};
    use crate::topology::{TPM, TPM_KEEPER, TPM_QUEUE};

    let wanted = settings.tpm.as_ref()?;
    let at = TpmAt {
        tcti: wanted.tcti.clone(),
        owner_auth: wanted.owner_auth.clone(),
    };
    let parts = SessionPoolParts {
        kind: BackendKind::Tpm,
        threads: &TPM,
        queue: &TPM_QUEUE,
        keeper: &TPM_KEEPER,
        sessions: 1,
        probe_every: settings.probe_every,
        cause: "tpm",
        ops: super::tpm::OPS,
    };
    let pool = SessionPool::start(parts, handles.clone(), move || at.connect());
    Some(TpmDevice::new(pool, wanted.counter_index))
}

#[cfg(not(feature = "tpm"))]
fn tpm(_: &DeviceSettings, _: &DeviceHandles) -> Option<Arc<dyn Device>> {
    None
}
