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
mod id;
mod metrics;
mod pkcs11;
mod pkcs11_adopt;
mod pkcs11_module;
mod pkcs11_secret;
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
use ron_proto::values::{Alg, TokenName};

use crate::{Cause, Refusal};

pub use custody::{Custody, DeviceKey};
pub use device::{Device, DeviceError, Handle, NewKey, Presence, TpmEvidence, Wrapping};
pub use gate::AttestGate;
pub use id::BackendId;
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
    /// Whether its ciphers take their nonces from this service. Otherwise they make their own.
    pub takes_nonces: bool,
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
            gate: Arc::new(AttestGate::new(devices.iter().map(|d| d.id().clone()))),
            devices: devices.into(),
            started: clock.now(),
            clock,
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

    /// This device, if it is configured.
    pub fn device(&self, id: &BackendId) -> Option<&Arc<dyn Device>> {
        self.devices.iter().find(|device| device.id() == id)
    }

    /// The backend that a request for a new key names. Without the name of a token it is the token that has no name, or the
    /// only one. [`Backends::check`] refuses a backend that is not configured.
    pub fn named(&self, kind: KeyBackend, token: Option<&TokenName>) -> Result<BackendId, Refusal> {
        let id = BackendId {
            kind,
            token: token.cloned(),
        };
        if kind != KeyBackend::Pkcs11 {
            return match token {
                None => Ok(id),
                Some(_) => Err(Refusal::new(
                    Cause::BadRequest,
                    "`token` names a PKCS#11 token: set `backend` to `pkcs11`, or leave `token` out",
                )),
            };
        }
        let ids = self.devices.iter().map(|device| device.id());
        let tokens: Vec<&BackendId> = ids.filter(|id| id.kind == kind).collect();
        if tokens.is_empty() || tokens.contains(&&id) {
            return Ok(id);
        }
        if let (None, [only]) = (token, &tokens[..]) {
            return Ok((*only).clone());
        }
        let names = tokens.iter().filter_map(|id| id.token.as_ref());
        let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
        let unnamed = tokens.iter().any(|id| id.token.is_none());
        let choice = match (names.is_empty(), unnamed) {
            (true, _) => "leave `token` out".to_owned(),
            (false, true) => format!("set `token` to {}, or leave it out", names.join(" or ")),
            (false, false) => format!("set `token` to {}", names.join(" or ")),
        };
        let what = match token {
            Some(name) => format!("no token `{name}` is configured here"),
            None => "several tokens are configured here".to_owned(),
        };
        Err(Refusal::new(
            Cause::Unsupported,
            format!("{what}: {choice}"),
        ))
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
    pub fn holder(&self, id: &BackendId) -> Arc<dyn Device> {
        self.device(id).cloned().unwrap_or_else(|| {
            Arc::new(device::Absent {
                id: id.clone(),
                clock: self.clock.clone(),
                since: self.started,
            })
        })
    }

    /// The capabilities of a backend; `None` when it is not configured.
    pub fn capabilities(&self, id: &BackendId) -> Option<Capabilities> {
        if id.kind == self.local {
            return Some(Capabilities {
                algs: Alg::ALL.to_vec(),
                attestation: Attestation::None,
                takes_nonces: false,
                destroys: true,
            });
        }
        self.device(id).map(|device| device.capabilities())
    }

    /// Checks that this backend is configured and makes keys of `alg`.
    pub fn check(&self, id: &BackendId, alg: Alg) -> Result<(), Refusal> {
        let refuse = |detail: String| Err(Refusal::new(Cause::Unsupported, detail));
        match self.capabilities(id) {
            None => refuse(format!("backend `{id}` is not configured here")),
            Some(can) if !can.algs.contains(&alg) => {
                refuse(format!("backend `{id}` makes no keys of {alg}"))
            }
            Some(_) => Ok(()),
        }
    }

    /// The attestation class of keys of this backend.
    pub fn attestation(&self, id: &BackendId) -> Attestation {
        self.capabilities(id)
            .map_or(Attestation::None, |can| can.attestation)
    }
}

impl fmt::Debug for Backends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.devices.iter().map(|d| d.id().to_string());
        f.debug_list()
            .entry(&self.local.as_str())
            .entries(names)
            .finish()
    }
}
