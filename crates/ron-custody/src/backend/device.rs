//! The interface of devices that hold keys, and their errors.

use ron_crypto::secret::SecretBytes;
use ron_kernel::time::{Duration, Instant};
use ron_kernel::{Deadline, SharedClock};
use ron_proto::kms::{Bytes, TokenObject, TpmEvidenceDoc};
use ron_proto::values::Alg;

use super::{Attestation, BackendId, Capabilities};
use crate::keys::envelope::{self, Nonce};
use crate::keys::{DeviceInput, PublicKey};
use crate::{Cause, Refusal};

/// A device's identifier of a key: an object's id in a token, or a blob that only this TPM can load. Useless without
/// the device; sealed nevertheless, so that it cannot be exchanged for another key's handle.
#[derive(Clone, PartialEq, Eq)]
pub struct Handle(pub Vec<u8>);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({} bytes)", self.0.len())
    }
}

/// A key that a device has made.
#[derive(Debug)]
pub struct NewKey {
    /// What the device calls it.
    pub handle: Handle,
    pub public: PublicKey,
}

/// How bytes are wrapped, beside the key; the same values unwrap them.
#[derive(Clone, Debug)]
pub struct Wrapping {
    pub alg: Alg,
    /// The nonce, for a device that takes nonces ([`Capabilities::takes_nonces`]) and a cipher that needs one.
    pub nonce: Option<Nonce>,
    pub aad: Vec<u8>,
}

/// A TPM's evidence for a key, in the TPM's own encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TpmEvidence {
    /// The attestation key, as an uncompressed point.
    pub attestation_key: Vec<u8>,
    /// `TPMT_PUBLIC` of the key.
    pub key_public: Vec<u8>,
    /// `TPMS_ATTEST` of the certificate over the key.
    pub certify: Vec<u8>,
    /// `TPMT_SIGNATURE` over it.
    pub certify_signature: Vec<u8>,
    /// `TPMS_ATTEST` of the quote of the platform registers.
    pub quote: Vec<u8>,
    /// `TPMT_SIGNATURE` over it.
    pub quote_signature: Vec<u8>,
}

impl From<TpmEvidence> for TpmEvidenceDoc {
    fn from(evidence: TpmEvidence) -> Self {
        Self {
            attestation_key: Bytes(evidence.attestation_key),
            key_public: Bytes(evidence.key_public),
            certify: Bytes(evidence.certify),
            certify_signature: Bytes(evidence.certify_signature),
            quote: Bytes(evidence.quote),
            quote_signature: Bytes(evidence.quote_signature),
        }
    }
}

/// Why a call to a device failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device cannot be reached or refuses the login; nothing was done.
    #[error("backend `{backend}` is unavailable: {why}")]
    Unavailable {
        backend: String,
        /// The reason, without secrets.
        why: String,
    },
    /// Too many calls wait for it; nothing was done.
    #[error("too many calls wait for the device")]
    Busy {
        /// Seconds to wait before a retry, from the queue's drain rate.
        retry_after_s: u32,
    },
    /// The deadline passed before the call began; nothing was done.
    #[error("the deadline passed before the device was called")]
    Expired,
    /// The device has not answered by the deadline; the outcome is unknown.
    #[error("the device has not answered by the deadline")]
    Hung,
    /// The ciphertext to unwrap does not decrypt.
    #[error("the ciphertext does not open")]
    Mismatch,
    /// The device does not support the operation.
    #[error("the device does not support this: {0}")]
    Unsupported(String),
    /// The device answers, and no longer has the key.
    #[error("the device no longer has this key ({0})")]
    KeyMissing(String),
    /// The device answered with an error.
    #[error("the device refused: {0}")]
    Refused(String),
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        let detail = error.to_string();
        match error {
            DeviceError::Unavailable { .. } => Self::new(
                Cause::StoreUnavailable,
                format!("{detail}. Verification still works; see /readyz"),
            ),
            DeviceError::Busy { retry_after_s } => Self::busy(retry_after_s),
            DeviceError::Expired => Self::new(Cause::DeadlineExceeded, detail),
            DeviceError::Hung => Self::new(
                Cause::DeadlineExceeded,
                format!("{detail}; a result that it may still produce is discarded"),
            ),
            DeviceError::Mismatch => envelope::refused(),
            DeviceError::KeyMissing(_) => Self::new(
                Cause::KeyMissing,
                format!(
                    "{detail}: it was deleted with other tools. The version verifies, and does nothing else; a rotation makes \
                     a new version"
                ),
            ),
            DeviceError::Unsupported(_) => Self::new(Cause::Unsupported, detail),
            DeviceError::Refused(_) => Self::new(Cause::Internal, detail),
        }
    }
}

/// The availability of a device.
pub trait Presence {
    /// Why the device is unavailable; `None` while it answers.
    fn unavailable(&self) -> Option<String>;

    /// Time since its last answer; from the start of the service when it has not answered yet.
    fn silent_for(&self) -> Duration;

    /// Maximum calls at the same time.
    fn sessions(&self) -> usize;

    /// Probes the device soon, also after a refused login, and then at this interval; called after a reload of the
    /// configuration.
    fn adopt(&self, probe_every: Duration);
}

/// A device that holds keys. Its methods block, at most until 50 ms after the deadline, so only threads that may block
/// call them. The default methods are those of a device that is no longer configured.
pub trait Device: Send + Sync {
    fn id(&self) -> &BackendId;

    fn capabilities(&self) -> Capabilities;

    fn presence(&self) -> &dyn Presence;

    /// Makes a key that cannot leave the device. `name` is the label that the device's tools show.
    fn make(&self, _alg: Alg, _name: &str, _: Deadline) -> Result<NewKey, DeviceError> {
        Err(not_configured(self.id()))
    }

    /// Finds a key that is in the device already, and tests it; nothing in the device changes.
    fn adopt(&self, _: Alg, _: &TokenObject, _: Deadline) -> Result<NewKey, DeviceError> {
        Err(not_configured(self.id()))
    }

    /// Destroys a key inside the device. A key that is already gone is a success.
    fn destroy(&self, _: &Handle, _: Deadline) -> Result<(), DeviceError> {
        Err(not_configured(self.id()))
    }

    /// The raw signature of what [`PublicKey::for_device`] made; ECDSA as `r || s`. The MAC of the input's bytes, for a key that
    /// makes MACs.
    fn sign(
        &self,
        _alg: Alg,
        _handle: &Handle,
        _input: &DeviceInput,
        _: Deadline,
    ) -> Result<Vec<u8>, DeviceError> {
        Err(not_configured(self.id()))
    }

    /// Wraps bytes under a wrapping key. The format is the device's own; [`Device::unwrap`] reads it.
    fn wrap(
        &self,
        _handle: &Handle,
        _how: &Wrapping,
        _plaintext: &[u8],
        _: Deadline,
    ) -> Result<Vec<u8>, DeviceError> {
        Err(not_configured(self.id()))
    }

    /// Recovers the bytes that [`Device::wrap`] was given.
    fn unwrap(
        &self,
        _handle: &Handle,
        _how: &Wrapping,
        _wrapped: &[u8],
        _: Deadline,
    ) -> Result<SecretBytes, DeviceError> {
        Err(not_configured(self.id()))
    }

    /// Reads the device's monotonic counter, after incrementing it if `advance` is set.
    fn counter(&self, _advance: bool, _: Deadline) -> Result<u64, DeviceError> {
        Err(not_configured(self.id()))
    }

    /// Seals `secret` into a blob that only this device can unseal.
    fn seal(&self, _secret: &SecretBytes, _: Deadline) -> Result<Vec<u8>, DeviceError> {
        Err(not_configured(self.id()))
    }

    /// Recovers the secret that [`Device::seal`] was given.
    fn unseal(&self, _blob: &[u8], _: Deadline) -> Result<SecretBytes, DeviceError> {
        Err(not_configured(self.id()))
    }

    /// The device's own evidence for a key, bound to `nonce`; `None` from a device that cannot attest.
    fn attest(
        &self,
        _: &Handle,
        _nonce: [u8; 32],
        _: Deadline,
    ) -> Result<Option<TpmEvidence>, DeviceError> {
        Ok(None)
    }
}

fn not_configured(id: &BackendId) -> DeviceError {
    DeviceError::Unavailable {
        backend: id.to_string(),
        why: "it is no longer configured".into(),
    }
}

/// Stands in for a device that holds keys but is no longer configured.
#[derive(Debug)]
pub struct Absent {
    pub id: BackendId,
    pub clock: SharedClock,
    /// When the service started.
    pub since: Instant,
}

impl Presence for Absent {
    fn unavailable(&self) -> Option<String> {
        Some(not_configured(&self.id).to_string())
    }

    fn silent_for(&self) -> Duration {
        self.clock.now().saturating_duration_since(self.since)
    }

    fn sessions(&self) -> usize {
        1
    }

    fn adopt(&self, _: Duration) {}
}

impl Device for Absent {
    fn id(&self) -> &BackendId {
        &self.id
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            algs: Vec::new(),
            attestation: Attestation::None,
            takes_nonces: false,
            // Once it is configured again, the pending destruction is carried out.
            destroys: true,
        }
    }

    fn presence(&self) -> &dyn Presence {
        self
    }
}
