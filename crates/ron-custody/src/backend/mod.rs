//! Backends: keys are held in the local store (file, memory) or inside a device that does not reveal them. A key is
//! made in one backend and stays there with all its versions.
//!
//! ```text
//!  Custody::Local ── SecretKey in locked memory, sealed at rest          file, memory
//!  Custody::Device ─── Handle (sealed too, so that it cannot be exchanged)
//!                       └─> Device: make, sign, wrap; returns a result or an error by its deadline
//! ```
//!
//! **Invariants.** A backend declares its capabilities; a request beyond them is `unsupported` and never falls back to
//! another backend. An unavailable device refuses at once. Public keys are kept in the store, so verification needs
//! no device.

mod custody;
mod device;
mod gate;
mod metrics;
mod pkcs11;
mod pkcs11_adopt;
mod pkcs11_sign;
mod pkcs11_wrap;
mod pooled;
mod probe;
mod remote;
mod secret_half;
mod session_pool;
mod settings;
mod start;
#[cfg(feature = "tpm")]
mod tpm;
#[cfg(feature = "tpm")]
mod tpm_counter;

use std::fmt;
use std::sync::Arc;

use ron_kernel::SharedClock;
use ron_kernel::time::Instant;
use ron_proto::kms::KeyBackend;
use ron_proto::values::Alg;

use crate::{Cause, Refusal};

pub use custody::{Custody, DeviceKey};
pub use device::{Device, DeviceError, Handle, NewKey, Presence, TpmEvidence};
pub use gate::AttestGate;
pub use metrics::DeviceMetrics;
pub use probe::probe_devices;
pub use secret_half::SecretHalf;
pub use session_pool::DeviceHandles;
pub use settings::{DeviceKeys, DeviceSettings};
pub use start::start;

/// What a backend can do; constant while it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Algorithms of the keys that it makes.
    pub algs: Vec<Alg>,
    /// The attestation class of its keys.
    pub attestation: Attestation,
    /// Whether [`Device::destroy`] does anything.
    pub destroys: bool,
}

/// What a backend can prove about where a key is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attestation {
    /// Nothing beyond the key store's own word.
    None,
    /// A statement of this service, signed with the key of its audit log.
    Statement,
    /// A statement too, about a key that somebody else has made in the device: it may have been elsewhere.
    Adopted,
    /// A certificate of the TPM over the key, and a quote of its platform registers.
    TpmCertify,
}

impl Attestation {
    /// The class in key documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Statement => "statement",
            Self::Adopted => "adopted",
            Self::TpmCertify => "tpm2-certify",
        }
    }
}

/// The configured backends: one local backend and the devices. Clones share them.
#[derive(Clone)]
pub struct Backends {
    local: KeyBackend,
    devices: Arc<[Arc<dyn Device>]>,
    clock: SharedClock,
    started: Instant,
    gate: Arc<AttestGate>,
}

impl Backends {
    /// The local backend and the devices beside it.
    pub fn new(local: KeyBackend, devices: Vec<Arc<dyn Device>>, clock: SharedClock) -> Self {
        Self {
            local,
            devices: devices.into(),
            started: clock.now(),
            clock,
            gate: Arc::default(),
        }
    }

    /// The gate that signatures pass.
    pub fn gate(&self) -> &Arc<AttestGate> {
        &self.gate
    }

    /// The backend of keys whose request names none.
    pub fn local(&self) -> KeyBackend {
        self.local
    }

    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// The device of this kind, if it is configured.
    pub fn device(&self, kind: KeyBackend) -> Option<&Arc<dyn Device>> {
        self.devices.iter().find(|device| device.kind() == kind)
    }

    /// Takes what a reloaded configuration may change, and has every device probed soon.
    pub fn adopt(&self, settings: &DeviceSettings) {
        self.gate.require(settings.attest_required);
        for device in self.devices.iter() {
            device.presence().adopt(settings.probe_every);
        }
    }

    /// The device that holds a key. For a device that is no longer configured, a stand-in that is always unavailable, so
    /// that its keys still verify.
    pub fn holder(&self, kind: KeyBackend) -> Arc<dyn Device> {
        self.device(kind).cloned().unwrap_or_else(|| {
            Arc::new(device::Absent {
                kind,
                clock: self.clock.clone(),
                since: self.started,
            })
        })
    }

    /// The capabilities of a backend; `None` when it is not configured.
    pub fn capabilities(&self, kind: KeyBackend) -> Option<Capabilities> {
        if kind == self.local {
            return Some(Capabilities {
                algs: Alg::ALL.to_vec(),
                attestation: Attestation::None,
                destroys: true,
            });
        }
        self.device(kind).map(|device| device.capabilities())
    }

    /// Checks that `kind` is configured and makes keys of `alg`.
    pub fn check(&self, kind: KeyBackend, alg: Alg) -> Result<(), Refusal> {
        let refuse = |detail: String| Err(Refusal::new(Cause::Unsupported, detail));
        match self.capabilities(kind) {
            None => refuse(format!(
                "backend `{}` is not configured here",
                kind.as_str()
            )),
            Some(can) if !can.algs.contains(&alg) => refuse(format!(
                "backend `{}` makes no keys of {alg}",
                kind.as_str()
            )),
            Some(_) => Ok(()),
        }
    }

    /// The attestation class of keys of this backend.
    pub fn attestation(&self, kind: KeyBackend) -> Attestation {
        self.capabilities(kind)
            .map_or(Attestation::None, |can| can.attestation)
    }
}

impl fmt::Debug for Backends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.devices.iter().map(|d| d.kind().as_str());
        f.debug_list()
            .entry(&self.local.as_str())
            .entries(names)
            .finish()
    }
}
