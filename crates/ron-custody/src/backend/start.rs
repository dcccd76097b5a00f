//! Starts the configured devices.

use ron_proto::kms::KeyBackend;
use std::sync::Arc;

use ron_http::HttpClient;
use ron_kernel::SharedRandom;
use ron_proto::values::Alg;

use super::pkcs11::{Token, tokens};
use super::pooled::PooledDevice;
use super::remote::{Api, Remote};
use super::session_pool::{DeviceHandles, SessionPool, SessionPoolParts};
use super::settings::DeviceSettings;
use super::{Attestation, Backends, Capabilities, Device};
use crate::topology::{PKCS11, PKCS11_KEEPER, PKCS11_QUEUE, REMOTE, REMOTE_KEEPER, REMOTE_QUEUE};

/// Starts the devices of these settings, beside the `local` backend. An unavailable device is not an error: its keys verify,
/// and its keeper keeps probing it.
pub fn start(
    local: KeyBackend,
    settings: &DeviceSettings,
    handles: &DeviceHandles,
    random: &SharedRandom,
    http: &Arc<HttpClient>,
) -> Backends {
    let mut devices = pkcs11(settings, handles, random);
    devices.extend(tpm(settings, handles, random));
    devices.extend(remote(settings, handles, random, http));
    let backends = Backends::new(local, devices, handles.clock.clone());
    backends.gate().require(settings.attest_required);
    backends
}

fn remote(
    settings: &DeviceSettings,
    handles: &DeviceHandles,
    random: &SharedRandom,
    http: &Arc<HttpClient>,
) -> Option<Arc<dyn Device>> {
    let wanted = settings.remote.clone()?;
    let capabilities = Capabilities {
        algs: match wanted.api {
            Api::Ron => vec![Alg::Aes256Gcm, Alg::Aes256Kwp],
            Api::VaultTransit => vec![Alg::Aes256Gcm],
        },
        attestation: Attestation::Statement,
        takes_nonces: false,
        destroys: wanted.api == Api::Ron,
    };
    let parts = SessionPoolParts {
        threads: &REMOTE,
        queue: &REMOTE_QUEUE,
        keeper: &REMOTE_KEEPER,
        id: KeyBackend::Remote.into(),
        sessions: wanted.sessions,
        probe_every: settings.probe_every,
    };
    let remote = Remote::new(http.clone(), wanted);
    Some(Arc::new(PooledDevice {
        pool: SessionPool::start(parts, handles.clone(), move || remote.connect()),
        capabilities,
        random: random.clone(),
    }))
}

fn pkcs11(
    settings: &DeviceSettings,
    handles: &DeviceHandles,
    random: &SharedRandom,
) -> Vec<Arc<dyn Device>> {
    let device = |token: Arc<Token>| -> Arc<dyn Device> {
        let parts = SessionPoolParts {
            threads: &PKCS11,
            queue: &PKCS11_QUEUE,
            keeper: &PKCS11_KEEPER,
            id: token.settings().id(),
            sessions: token.settings().sessions,
            probe_every: settings.probe_every,
        };
        Arc::new(PooledDevice {
            pool: SessionPool::start(parts, handles.clone(), move || token.connect()),
            capabilities: Capabilities {
                algs: [&super::pkcs11_sign::ALGS[..], &super::pkcs11_secret::ALGS].concat(),
                attestation: Attestation::Statement,
                takes_nonces: true,
                destroys: true,
            },
            random: random.clone(),
        })
    };
    tokens(&settings.pkcs11).into_iter().map(device).collect()
}

#[cfg(feature = "tpm")]
fn tpm(
    settings: &DeviceSettings,
    handles: &DeviceHandles,
    random: &SharedRandom,
) -> Option<Arc<dyn Device>> {
    use crate::topology::{TPM, TPM_KEEPER, TPM_QUEUE};

    let wanted = settings.tpm.clone()?;
    let parts = SessionPoolParts {
        threads: &TPM,
        queue: &TPM_QUEUE,
        keeper: &TPM_KEEPER,
        id: KeyBackend::Tpm.into(),
        sessions: 1,
        probe_every: settings.probe_every,
    };
    Some(Arc::new(PooledDevice {
        pool: SessionPool::start(parts, handles.clone(), move || wanted.connect()),
        capabilities: Capabilities {
            algs: vec![Alg::EcdsaP256],
            attestation: Attestation::TpmCertify,
            takes_nonces: false,
            destroys: true,
        },
        random: random.clone(),
    }))
}

#[cfg(not(feature = "tpm"))]
fn tpm(_: &DeviceSettings, _: &DeviceHandles, _: &SharedRandom) -> Option<Arc<dyn Device>> {
    None
}
