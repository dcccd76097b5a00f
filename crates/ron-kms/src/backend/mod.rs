//! Where keys live: in our own store (file, memory), or inside a device that does not give them
//! away. A key is made in one backend and stays there with all its versions.
//!
//! ```text
//!  Custody::Local ── SecretKey in locked memory, sealed at rest          file, memory
//!  Custody::Held ─── Handle (sealed too, so that it cannot be swapped)
//!                       └─> Device: make, sign, wrap; answers within its deadline or says why not
//! ```
//!
//! **Invariants.** A backend says what it can do; asking for more is `unsupported`, never a try in
//! another backend. A device that is away refuses at once. Public keys are kept in the store, so
//! verification needs no device.

pub mod custody;
pub mod device;
pub mod gate;
pub mod line;
pub mod local;
#[cfg(feature = "pkcs11")]
pub mod pkcs11;
#[cfg(feature = "pkcs11")]
mod pkcs11_wrap;
pub mod probe;
pub mod remote;
pub mod settings;
pub mod start;
#[cfg(feature = "tpm")]
pub mod tpm;
#[cfg(feature = "tpm")]
mod tpm_counter;

use std::fmt;
use std::sync::Arc;

use ron_proto::values::Alg;

use crate::error::{Refusal, Why};

pub use custody::{Custody, Held};
pub use device::{Device, DeviceError, Handle, Made, Presence, TpmEvidence};

/// Which backend holds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackendKind {
    /// Sealed records in SQLite.
    File,
    /// Nothing on disk.
    Memory,
    /// A PKCS#11 token.
    Pkcs11,
    /// A TPM 2.0.
    Tpm,
    /// Another key service.
    Remote,
}

impl BackendKind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::File,
        Self::Memory,
        Self::Pkcs11,
        Self::Tpm,
        Self::Remote,
    ];

    /// Its name in documents and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Memory => "memory",
            Self::Pkcs11 => "pkcs11",
            Self::Tpm => "tpm",
            Self::Remote => "remote",
        }
    }

    /// The backend of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Whether private keys of it are in our own memory while they are used.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::File | Self::Memory)
    }
}

/// What a backend can do; constant while it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Algorithms for which it makes keys, and so what it does with them.
    pub algs: Vec<Alg>,
    /// What it can say about a key's making; the attestation class of key documents.
    pub attestation: Attestation,
}

impl Capabilities {
    /// Whether keys of `alg` can be made.
    pub fn makes(&self, alg: Alg) -> bool {
        self.algs.contains(&alg)
    }
}

/// What a backend can prove of where a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attestation {
    /// Nothing that the key store itself would not have to be believed for.
    None,
    /// A statement of this service, signed with the key of its audit log.
    Statement,
    /// A certificate of the TPM over the key, and a quote of its platform registers.
    TpmCertify,
}

impl Attestation {
    /// The class in key documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Statement => "statement",
            Self::TpmCertify => "tpm2-certify",
        }
    }
}

/// The configured backends: one of our own and any number of devices. Clones share them.
#[derive(Clone)]
pub struct Backends {
    local: BackendKind,
    devices: Arc<[Arc<dyn Device>]>,
    started_ms: u64,
    gate: Arc<gate::AttestGate>,
}

impl Backends {
    /// The local backend and the devices beside it, at `started_ms` (Unix milliseconds).
    pub fn new(local: BackendKind, devices: Vec<Arc<dyn Device>>, started_ms: u64) -> Self {
        Self {
            local,
            devices: devices.into(),
            started_ms,
            gate: Arc::default(),
        }
    }

    /// The same, with keys that sign only while it is attested where they are.
    pub fn attest_required(self, required: bool) -> Self {
        Self {
            gate: Arc::new(gate::AttestGate::new(required)),
            ..self
        }
    }

    /// Whether keys may sign.
    pub fn gate(&self) -> &Arc<gate::AttestGate> {
        &self.gate
    }

    /// The backend of keys that are made without naming one.
    pub fn local(&self) -> BackendKind {
        self.local
    }

    /// The devices.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// The device of this kind, if it is configured.
    pub fn device(&self, kind: BackendKind) -> Option<&Arc<dyn Device>> {
        self.devices.iter().find(|device| device.kind() == kind)
    }

    /// A configuration was loaded: every device is asked again.
    pub fn nudge(&self) {
        for device in self.devices.iter() {
            device.presence().nudge();
        }
    }

    /// The device that holds a key; one that is always away when it is no longer configured, so
    /// that the key still verifies.
    pub fn holder(&self, kind: BackendKind) -> Arc<dyn Device> {
        self.device(kind)
            .cloned()
            .unwrap_or_else(|| Arc::new(device::Absent::new(kind, self.started_ms)))
    }

    /// What the backend can do; `None` when it is not configured.
    pub fn capabilities(&self, kind: BackendKind) -> Option<Capabilities> {
        if kind == self.local {
            return Some(local::capabilities());
        }
        self.device(kind).map(|device| device.capabilities())
    }

    /// Whether `kind` is configured and makes keys of `alg`.
    pub fn check(&self, kind: BackendKind, alg: Alg) -> Result<(), Refusal> {
        let refuse = |detail: String| Err(Refusal::new(Why::Unsupported, detail));
        match self.capabilities(kind) {
            None => refuse(format!(
                "backend `{}` is not configured here",
                kind.as_str()
            )),
            Some(can) if !can.makes(alg) => refuse(format!(
                "backend `{}` makes no keys of {alg}",
                kind.as_str()
            )),
            Some(_) => Ok(()),
        }
    }

    /// The attestation class of keys of this backend.
    pub fn attestation(&self, kind: BackendKind) -> Attestation {
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
