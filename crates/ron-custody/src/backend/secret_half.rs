//! The secret half of a key version, opened when it is first used.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::{BackendId, Custody, Device};
use crate::Refusal;

/// Opens the sealed record of a version.
type Open = dyn Fn() -> Result<Custody, Refusal> + Send + Sync;

/// The secret half of a version. Sealed until its first use, and open from then on.
pub struct SecretHalf {
    /// The device that holds the key, for a key in a device.
    device: Option<Arc<dyn Device>>,
    open: Option<Box<Open>>,
    opened: OnceLock<Result<Custody, Refusal>>,
}

impl fmt::Debug for SecretHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHalf([secret])")
    }
}

impl SecretHalf {
    /// A secret that is open already.
    pub fn opened(custody: Custody) -> Self {
        let device = match &custody {
            Custody::Local(_) => None,
            Custody::Device(key) => Some(key.device.clone()),
        };
        Self {
            device,
            open: None,
            opened: OnceLock::from(Ok(custody)),
        }
    }

    /// A secret of `device`, or a local one, that `open` opens.
    pub fn sealed(
        device: Option<Arc<dyn Device>>,
        open: impl Fn() -> Result<Custody, Refusal> + Send + Sync + 'static,
    ) -> Self {
        Self {
            device,
            open: Some(Box::new(open)),
            opened: OnceLock::new(),
        }
    }

    /// The device that holds the key, if one does. Opens nothing.
    pub fn device(&self) -> Option<&dyn Device> {
        self.device.as_deref()
    }

    /// The backend of that device.
    pub fn held_by(&self) -> Option<&BackendId> {
        self.device().map(Device::id)
    }

    /// The key or the device's handle. The first call opens the record.
    pub fn open(&self) -> Result<&Custody, Refusal> {
        let open = || (self.open.as_ref().expect("sealed, or opened"))();
        self.opened.get_or_init(open).as_ref().map_err(Clone::clone)
    }
}
