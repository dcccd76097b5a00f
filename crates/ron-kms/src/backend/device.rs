//! What a device that holds keys must do, and how it says that it did not.

use ron_crypto::secret::SecretBytes;
use ron_kernel::Deadline;
use ron_proto::values::Alg;

use super::{Attestation, BackendKind, Capabilities};
use crate::error::{Refusal, Why};
use crate::keys::{PublicKey, envelope};

/// Longest handle: a TPM's wrapped blob is the largest.
pub const HANDLE_BYTES_MAX: usize = 2048;

/// What a device calls a key: an object's id in a token, a blob that only this TPM can open.
/// Useless without the device; sealed all the same, so that it cannot be exchanged for another.
#[derive(Clone, PartialEq, Eq)]
pub struct Handle(pub Vec<u8>);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({} bytes)", self.0.len())
    }
}

/// A key that a device has made.
#[derive(Debug)]
pub struct Made {
    /// What the device calls it.
    pub handle: Handle,
    /// Its public half.
    pub public: PublicKey,
}

/// What a TPM says about a key: all as the TPM wrote it.
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

/// Why a device did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// It cannot be reached, or refuses our login; nothing was done.
    #[error("backend `{backend}` is away: {why}")]
    Away {
        /// Which.
        backend: &'static str,
        /// In words, without secrets.
        why: String,
    },
    /// Too many calls wait for it; nothing was done.
    #[error("too many calls wait for the device")]
    Busy {
        /// Seconds, from its drain rate.
        retry_after_s: u32,
    },
    /// It was not reached before the deadline; nothing was done.
    #[error("the deadline passed before the device was asked")]
    Expired,
    /// It has not answered by the deadline; the outcome is unknown.
    #[error("the device has not answered by the deadline")]
    Hung,
    /// What was to be unwrapped does not open.
    #[error("the ciphertext does not open")]
    Mismatch,
    /// It does not do this.
    #[error("the device does not do this: {0}")]
    Unsupported(String),
    /// It answered that it could not.
    #[error("the device refused: {0}")]
    Refused(String),
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        let detail = error.to_string();
        match error {
            DeviceError::Away { .. } => Self::new(
                Why::StoreUnavailable,
                format!("{detail}. Verification still works; see /readyz"),
            ),
            DeviceError::Busy { retry_after_s } => Self::busy(retry_after_s),
            DeviceError::Expired => Self::new(Why::DeadlineExceeded, detail),
            DeviceError::Hung => Self::new(
                Why::DeadlineExceeded,
                format!("{detail}; what it may have made nobody gets"),
            ),
            DeviceError::Mismatch => envelope::refused(),
            DeviceError::Unsupported(_) => Self::new(Why::Unsupported, detail),
            DeviceError::Refused(_) => Self::new(Why::Internal, detail),
        }
    }
}

/// Whether a device is there.
pub trait Presence {
    /// Why it is away, or `None` while it answers.
    fn away(&self) -> Option<String>;

    /// Unix milliseconds of its last answer.
    fn seen_ms(&self) -> u64;

    /// How many calls it does at the same time.
    fn sessions(&self) -> usize;

    /// A configuration was loaded: ask it again, also after a refused login.
    fn nudge(&self);
}

/// A device that holds keys. Its methods wait, at most until the deadline and 50 ms, so only
/// threads that may wait call them.
pub trait Device: Send + Sync {
    /// Which backend it is.
    fn kind(&self) -> BackendKind;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Whether it is there; devices behind a line leave that to their line.
    fn presence(&self) -> &dyn Presence;

    /// Makes a key that cannot leave the device. `name` is what people will see in the device.
    fn make(&self, alg: Alg, name: &str, deadline: Deadline) -> Result<Made, DeviceError>;

    /// Whether [`Device::destroy`] does anything.
    fn destroys(&self) -> bool {
        false
    }

    /// Destroys a key inside the device. One that is not there any more is success.
    fn destroy(&self, _: Alg, _: &Handle, _: Deadline) -> Result<(), DeviceError> {
        let why = "it destroys no keys from here";
        Err(DeviceError::Unsupported(why.into()))
    }

    /// The raw signature of `message`: Ed25519 64 bytes, P-256 over its SHA-256 as `r || s`.
    fn sign(
        &self,
        alg: Alg,
        handle: &Handle,
        message: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>, DeviceError>;

    /// Wraps bytes under a key that wraps; whatever comes out, [`Device::unwrap`] takes.
    fn wrap(
        &self,
        _alg: Alg,
        _handle: &Handle,
        _aad: &[u8],
        _plaintext: &[u8],
        _deadline: Deadline,
    ) -> Result<Vec<u8>, DeviceError> {
        Err(DeviceError::Unsupported("wrapping".into()))
    }

    /// What [`Device::wrap`] was given.
    fn unwrap(
        &self,
        _alg: Alg,
        _handle: &Handle,
        _aad: &[u8],
        _wrapped: &[u8],
        _deadline: Deadline,
    ) -> Result<SecretBytes, DeviceError> {
        Err(DeviceError::Unsupported("unwrapping".into()))
    }

    /// A number of the device that only grows; by one before it is read when it is to `advance`.
    fn counter(&self, _advance: bool, _deadline: Deadline) -> Result<u64, DeviceError> {
        Err(DeviceError::Unsupported("counting".into()))
    }

    /// A blob from which this device alone gives `secret` back.
    fn seal(&self, _secret: &SecretBytes, _deadline: Deadline) -> Result<Vec<u8>, DeviceError> {
        Err(DeviceError::Unsupported("sealing".into()))
    }

    /// What [`Device::seal`] was given.
    fn unseal(&self, _blob: &[u8], _deadline: Deadline) -> Result<SecretBytes, DeviceError> {
        Err(DeviceError::Unsupported("sealing".into()))
    }

    /// What the device itself says about a key, over `nonce`; `None` from one that says nothing.
    fn attest(
        &self,
        _handle: &Handle,
        _nonce: [u8; 32],
        _deadline: Deadline,
    ) -> Result<Option<TpmEvidence>, DeviceError> {
        Ok(None)
    }
}

/// Stands for a device that held keys once and is not configured any more.
#[derive(Debug)]
pub struct Absent {
    kind: BackendKind,
    since_ms: u64,
}

impl Absent {
    /// The device of this kind, which is not there since `since_ms` (Unix milliseconds).
    pub fn new(kind: BackendKind, since_ms: u64) -> Self {
        Self { kind, since_ms }
    }

    fn error(&self) -> DeviceError {
        DeviceError::Away {
            backend: self.kind.as_str(),
            why: "it is not configured any more".into(),
        }
    }
}

impl Presence for Absent {
    fn away(&self) -> Option<String> {
        Some(self.error().to_string())
    }

    fn seen_ms(&self) -> u64 {
        self.since_ms
    }

    fn sessions(&self) -> usize {
        1
    }

    fn nudge(&self) {}
}

impl Device for Absent {
    fn kind(&self) -> BackendKind {
        self.kind
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            algs: Vec::new(),
            attestation: Attestation::None,
        }
    }

    fn presence(&self) -> &dyn Presence {
        self
    }

    fn make(&self, _: Alg, _: &str, _: Deadline) -> Result<Made, DeviceError> {
        Err(self.error())
    }

    fn sign(&self, _: Alg, _: &Handle, _: &[u8], _: Deadline) -> Result<Vec<u8>, DeviceError> {
        Err(self.error())
    }

    fn wrap(
        &self,
        _: Alg,
        _: &Handle,
        _: &[u8],
        _: &[u8],
        _: Deadline,
    ) -> Result<Vec<u8>, DeviceError> {
        Err(self.error())
    }

    fn unwrap(
        &self,
        _: Alg,
        _: &Handle,
        _: &[u8],
        _: &[u8],
        _: Deadline,
    ) -> Result<SecretBytes, DeviceError> {
        Err(self.error())
    }

    fn counter(&self, _: bool, _: Deadline) -> Result<u64, DeviceError> {
        Err(self.error())
    }

    fn destroys(&self) -> bool {
        true // in principle: whoever configures it again has its keys destroyed
    }

    fn destroy(&self, _: Alg, _: &Handle, _: Deadline) -> Result<(), DeviceError> {
        Err(self.error())
    }
}
