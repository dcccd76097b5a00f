//! The secret half of a key version, local or in a device, behind one interface for signers.

use std::sync::Arc;

use ron_crypto::secret::SecretBytes;
use ron_kernel::Deadline;
use ron_proto::kms::{Bytes, Scheme, Signature};
use ron_proto::values::Alg;

use super::{BackendId, Device, Handle};
use crate::keys::{Input, PublicKey, SecretKey, shown};
use crate::{Cause, Refusal};

/// The secret half of a key version.
#[derive(Debug)]
pub enum Custody {
    /// In this process's memory, sealed at rest.
    Local(SecretKey),
    Device(DeviceKey),
}

/// A key version inside a device.
#[derive(Clone)]
pub struct DeviceKey {
    pub device: Arc<dyn Device>,
    /// The device's identifier of the key.
    pub handle: Handle,
    pub alg: Alg,
    /// Its public half; every signature is verified with it before it leaves.
    pub public: PublicKey,
}

impl std::fmt::Debug for DeviceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceKey({})", self.device.id())
    }
}

impl Custody {
    /// The local key; a refusal for a key that a device holds.
    pub fn local(&self) -> Result<&SecretKey, Refusal> {
        match self {
            Self::Local(key) => Ok(key),
            Self::Device(key) => Err(Refusal::new(
                Cause::Unsupported,
                format!(
                    "the key is held by backend `{}`, which does not support this operation",
                    key.device.id()
                ),
            )),
        }
    }

    /// The device that holds it, if one does.
    pub fn held_by(&self) -> Option<&BackendId> {
        match self {
            Self::Local(_) => None,
            Self::Device(key) => Some(key.device.id()),
        }
    }

    /// The device that holds it, if one does.
    pub fn device(&self) -> Option<&dyn Device> {
        match self {
            Self::Local(_) => None,
            Self::Device(key) => Some(&*key.device),
        }
    }

    /// Signs, once with each algorithm of the key; `scheme` as in [`SecretKey::sign`]. Blocks until the deadline at most, and
    /// only for a device's key; such keys must be used on threads that may block.
    pub fn sign(
        &self,
        input: Input<'_>,
        scheme: Option<Scheme>,
        deadline: Deadline,
    ) -> Result<Vec<Signature>, Refusal> {
        match self {
            Self::Local(key) => Ok(key.sign(input, scheme)),
            Self::Device(key) => key.sign(input, scheme, deadline),
        }
    }
}

impl DeviceKey {
    /// Wraps bytes inside the device.
    pub fn wrap(
        &self,
        aad: &[u8],
        plaintext: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>, Refusal> {
        let wrapped = self.device.wrap(&self.handle, aad, plaintext, deadline)?;
        Ok(wrapped)
    }

    /// Unwraps what [`DeviceKey::wrap`] made.
    pub fn unwrap(
        &self,
        aad: &[u8],
        wrapped: &[u8],
        deadline: Deadline,
    ) -> Result<SecretBytes, Refusal> {
        let secret = self.device.unwrap(&self.handle, aad, wrapped, deadline)?;
        Ok(secret)
    }

    fn sign(
        &self,
        input: Input<'_>,
        scheme: Option<Scheme>,
        deadline: Deadline,
    ) -> Result<Vec<Signature>, Refusal> {
        let given = self.public.for_device(input, scheme);
        let signature = self.device.sign(self.alg, &self.handle, &given, deadline)?;
        // The device may have used another key, or computed a wrong signature.
        if !self.public.verify(input, scheme, &signature) {
            tracing::error!(
                event = "device_signature_wrong",
                backend = %self.device.id()
            );
            return Err(Refusal::new(
                Cause::Internal,
                "the device's signature does not verify with the key's public half",
            ));
        }
        Ok(vec![Signature {
            alg: self.alg,
            scheme: shown(self.alg, scheme),
            signature: Bytes(signature),
        }])
    }
}
