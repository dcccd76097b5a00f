//! The jobs between the store thread and the threads that wait for devices.

use ron_custody::Refusal;
use ron_custody::backend::{DeviceKey, Handle};
use ron_custody::store::{MadeKey, Order};
use ron_proto::kms::{AdoptKey, CreateKey};
use ron_proto::values::Kid;

use super::key_request::KeyRequest;
use super::{CallContext, Purposes, SignJob};

/// Work for the threads that wait for a device.
pub enum DeviceJob {
    /// A signature, an envelope operation or an attestation.
    Use(Box<SignJob>),
    /// Make a key for a change that waits for it; also a local one that takes long.
    Make(Order, Box<DeferredChange>),
    /// Destroy all versions of a key.
    Destroy(Kid, Vec<Handle>),
    /// Destroy a key that no change uses; nobody waits.
    Discard(DeviceKey),
}

/// A change that waits until its key is made.
pub struct DeferredChange {
    pub call: CallContext,
    pub what: DeferredKind,
}

pub enum DeferredKind {
    /// `POST /keys`.
    Create(Box<CreateKey>, Purposes),
    /// `POST /keys/adopt`.
    Adopt(Box<AdoptKey>),
    /// A change of a key.
    Change(KeyRequest),
    Due,
}

/// The answer to an [`Order`], with the change that waits for it.
pub struct KeyMadeJob {
    pub order: Order,
    /// The key, or why the device made none.
    pub made: Result<MadeKey, Refusal>,
    pub waiting: DeferredChange,
}
