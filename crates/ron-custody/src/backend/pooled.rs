//! A device over a pool of sessions: every call is run by a session's thread, on copies of its arguments, because a call that
//! hangs outlives its caller.

use ron_crypto::secret::SecretBytes;
use ron_kernel::{Deadline, SharedRandom};
use ron_proto::kms::{KeyBackend, TokenObject};
use ron_proto::values::Alg;

use super::session_pool::{Session, SessionPool};
use super::{
    Attestation, BackendId, Capabilities, Device, DeviceError, Handle, NewKey, Presence,
    TpmEvidence, Wrapping,
};
use crate::keys::DeviceInput;

pub struct PooledDevice<S: Session> {
    pub pool: SessionPool<S>,
    pub capabilities: Capabilities,
    /// Makes the ids of new keys.
    pub random: SharedRandom,
}

impl<S: Session> Device for PooledDevice<S> {
    fn id(&self) -> &BackendId {
        self.pool.id()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn presence(&self) -> &dyn Presence {
        &self.pool
    }

    fn make(&self, alg: Alg, name: &str, deadline: Deadline) -> Result<NewKey, DeviceError> {
        let mut id = [0; 16];
        self.random.fill(&mut id);
        let name = name.to_owned();
        let make = move |session: &mut S| session.make(alg, id, &name, deadline);
        self.pool.run("make", deadline, make)
    }

    fn adopt(
        &self,
        alg: Alg,
        object: &TokenObject,
        deadline: Deadline,
    ) -> Result<NewKey, DeviceError> {
        let object = object.clone();
        let adopt = move |session: &mut S| session.adopt(alg, &object);
        self.pool.run("adopt", deadline, adopt)
    }

    fn destroy(&self, handle: &Handle, deadline: Deadline) -> Result<(), DeviceError> {
        // A TPM keeps nothing of a key between calls: the blob, which the store erases, is its only copy. So the TPM is not
        // called and may be unavailable.
        if S::KIND == KeyBackend::Tpm {
            return Ok(());
        }
        let handle = handle.clone();
        let destroy = move |session: &mut S| session.destroy(&handle, deadline);
        self.pool.run("destroy", deadline, destroy)
    }

    fn sign(
        &self,
        alg: Alg,
        handle: &Handle,
        input: &DeviceInput,
        deadline: Deadline,
    ) -> Result<Vec<u8>, DeviceError> {
        let (handle, input) = (handle.clone(), input.clone());
        let sign = move |session: &mut S| session.sign(alg, &handle, &input);
        self.pool.run("sign", deadline, sign)
    }

    fn wrap(
        &self,
        handle: &Handle,
        how: &Wrapping,
        plaintext: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>, DeviceError> {
        let (handle, how) = (handle.clone(), how.clone());
        let plaintext = SecretBytes::from_slice(plaintext);
        let wrap = move |session: &mut S| session.wrap(&handle, &how, plaintext.expose(), deadline);
        self.pool.run("wrap", deadline, wrap)
    }

    fn unwrap(
        &self,
        handle: &Handle,
        how: &Wrapping,
        wrapped: &[u8],
        deadline: Deadline,
    ) -> Result<SecretBytes, DeviceError> {
        let (handle, how, wrapped) = (handle.clone(), how.clone(), wrapped.to_vec());
        let unwrap = move |session: &mut S| session.unwrap(&handle, &how, &wrapped, deadline);
        self.pool.run("unwrap", deadline, unwrap)
    }

    fn counter(&self, advance: bool, deadline: Deadline) -> Result<u64, DeviceError> {
        let count = move |session: &mut S| session.counter(advance);
        self.pool.run("counter", deadline, count)
    }

    fn seal(&self, secret: &SecretBytes, deadline: Deadline) -> Result<Vec<u8>, DeviceError> {
        let secret = SecretBytes::from_slice(secret.expose());
        let seal = move |session: &mut S| session.seal(&secret);
        self.pool.run("seal", deadline, seal)
    }

    fn unseal(&self, blob: &[u8], deadline: Deadline) -> Result<SecretBytes, DeviceError> {
        let blob = blob.to_vec();
        let unseal = move |session: &mut S| session.unseal(&blob);
        self.pool.run("unseal", deadline, unseal)
    }

    fn attest(
        &self,
        handle: &Handle,
        nonce: [u8; 32],
        deadline: Deadline,
    ) -> Result<Option<TpmEvidence>, DeviceError> {
        if self.capabilities.attestation != Attestation::TpmCertify {
            return Ok(None);
        }
        let handle = handle.clone();
        let attest = move |session: &mut S| session.attest(&handle, nonce);
        self.pool.run("attest", deadline, attest).map(Some)
    }
}
