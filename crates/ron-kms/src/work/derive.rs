//! What is derived from a key, from which of its versions, and what for. A derived secret never leaves: it is wrapped under
//! another key, or makes a MAC.

use ron_crypto::SecretBytes;
use ron_custody::backend::Custody;
use ron_custody::index::{Key, Version};
use ron_custody::keys::derive::{Inputs, derive};
use ron_custody::{Cause, Refusal};
use ron_proto::kms::Bytes;

use super::task_key::TaskKey;

/// What is derived, and what for.
#[derive(Clone)]
pub struct Derivation {
    /// The other party's public key.
    pub peer_public: Option<Bytes>,
    pub salt: Option<Bytes>,
    pub info: Bytes,
    /// Length of the secret.
    pub bytes: usize,
    pub output: Derived,
}

/// What is done with a derived secret.
#[derive(Clone)]
pub enum Derived {
    /// Wrap it under the head of this key; the task's `aad` is bound to it.
    Wrap(TaskKey),
    /// Make a MAC of this message with it.
    Hmac(Bytes),
}

impl Derivation {
    /// The inputs, as the key takes them.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            peer: self.peer_public.as_ref().map(Bytes::as_slice),
            salt: self.salt.as_ref().map_or(&[], Bytes::as_slice),
            info: self.info.as_slice(),
            bytes: self.bytes,
        }
    }

    /// The secret that is derived from the head of the key, or from the version that is named, and the version's number.
    pub fn secret(&self, key: &Key, wanted: Option<u32>) -> Result<(u32, SecretBytes), Refusal> {
        let (version, secret) = deriving(key, wanted)?;
        let derived = derive(key.kid.alg, secret.local()?, self.inputs())?;
        Ok((version.number, derived))
    }

    /// The key that wraps the secret, if it is wrapped.
    pub const fn wrapping_key(&self) -> Option<&TaskKey> {
        match &self.output {
            Derived::Wrap(key) => Some(key),
            Derived::Hmac(_) => None,
        }
    }

    /// The same, to look an alias up.
    pub const fn wrapping_key_mut(&mut self) -> Option<&mut TaskKey> {
        match &mut self.output {
            Derived::Wrap(key) => Some(key),
            Derived::Hmac(_) => None,
        }
    }
}

/// The version that derives, and its secret half. The head derives while the key is active; a version that is named does as
/// long as it would unwrap, so that what was derived before is derived again after a rotation.
fn deriving(key: &Key, wanted: Option<u32>) -> Result<(&Version, &Custody), Refusal> {
    let Some(number) = wanted else {
        return Ok((key.head(), key.active_secret()?));
    };
    let version = key.version(number).filter(|_| number <= key.head);
    let version = version.ok_or_else(|| {
        Refusal::new(Cause::NotFound, "the key has no such version").with_head(key.head)
    })?;
    if number < key.min_verify {
        let least = key.min_verify;
        let detail = format!("version {number} no longer derives; the minimum is {least}");
        return Err(Refusal::new(Cause::BadRequest, detail));
    }
    if version.damaged {
        return Err(Refusal::quarantined(&key.kid, number));
    }
    let secret = key.secrets.get(&number).ok_or_else(|| {
        let gone = "the secret of this version is destroyed";
        Refusal::new(Cause::KeyNotActive, gone).with_head(key.head)
    })?;
    Ok((version, secret.open()?))
}
