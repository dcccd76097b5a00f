//! The secret half of a key version, local or in a device, behind one interface for signers.

use std::sync::Arc;

use ron_crypto::hash::hmac;
use ron_crypto::secret::SecretBytes;
use ron_kernel::Deadline;
use ron_proto::kms::{Bytes, Scheme, Signature};
use ron_proto::values::Alg;

use super::{BackendId, Device, Handle, Wrapping};
use crate::keys::envelope::{self, Nonce};
use crate::keys::{DeviceInput, Input, PublicKey, SecretKey, UseNumbers, aead_of, mac_of, shown};
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
    /// Allocator of use numbers, for a cipher whose nonces the device takes from this service.
    use_numbers: Option<Arc<UseNumbers>>,
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

    /// The allocator of its use numbers, for a cipher whose nonces this service makes.
    pub fn use_numbers(&self) -> Option<&UseNumbers> {
        match self {
            Self::Local(key) => key.symmetric().map(|key| &key.use_numbers),
            Self::Device(key) => key.use_numbers.as_deref(),
        }
    }

    /// The MAC of a message, by a key that makes MACs. Blocks as [`Custody::sign`] does.
    pub fn mac(&self, message: &[u8], deadline: Deadline) -> Result<Vec<u8>, Refusal> {
        match self {
            Self::Local(SecretKey::Symmetric(alg, key)) => {
                mac_of(*alg).map(|by| hmac(by, key.key.expose(), message).as_bytes().to_vec())
            }
            Self::Device(key) if key.alg.is_mac() => {
                let input = DeviceInput {
                    bytes: message.to_vec(),
                    scheme: None,
                };
                Some(key.device.sign(key.alg, &key.handle, &input, deadline)?)
            }
            _ => None,
        }
        .ok_or_else(|| Refusal::new(Cause::Internal, "the key makes no MACs"))
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
    /// The key of a device with this handle.
    pub fn new(device: Arc<dyn Device>, handle: Handle, public: PublicKey) -> Self {
        let alg = public.alg();
        let counts = aead_of(alg).is_some() && device.capabilities().takes_nonces;
        Self {
            device,
            handle,
            alg,
            public,
            use_numbers: counts.then(Arc::default),
        }
    }

    /// Wraps bytes inside the device, with a nonce if the key has use numbers. The nonce precedes what the device returns.
    pub fn wrap(
        &self,
        nonce: Option<Nonce>,
        aad: &[u8],
        plaintext: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>, Refusal> {
        let how = self.how(nonce, aad);
        let wrapped = self.device.wrap(&self.handle, &how, plaintext, deadline)?;
        Ok(match nonce {
            Some(nonce) => [&nonce[..], &wrapped].concat(),
            None => wrapped,
        })
    }

    fn how(&self, nonce: Option<Nonce>, aad: &[u8]) -> Wrapping {
        Wrapping {
            alg: self.alg,
            nonce,
            aad: aad.to_vec(),
        }
    }

    /// Unwraps what [`DeviceKey::wrap`] made.
    pub fn unwrap(
        &self,
        aad: &[u8],
        wrapped: &[u8],
        deadline: Deadline,
    ) -> Result<SecretBytes, Refusal> {
        let (nonce, wrapped) = if self.use_numbers.is_some() {
            let parts = wrapped.split_first_chunk();
            let (nonce, wrapped) = parts.ok_or_else(envelope::refused)?;
            (Some(*nonce), wrapped)
        } else {
            (None, wrapped)
        };
        let how = self.how(nonce, aad);
        let secret = self.device.unwrap(&self.handle, &how, wrapped, deadline)?;
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
