//! The one module of a process, and what a fork does to it.
//!
//! A child has a copy of its parent's memory, in which threads that the child does not have may hold locks or be in the middle of
//! a change. So the child touches nothing of it: it sees by its process id that it has not called `C_Initialize`.

use std::sync::{Arc, LazyLock};

use cryptoki_sys::{CKR_CRYPTOKI_ALREADY_INITIALIZED, CKR_CRYPTOKI_NOT_INITIALIZED};
use ron_kernel::Snapshot;

use crate::module::Module;
use crate::rv::Rv;

/// The module, and the process that initialised it.
type Slot = Option<(u32, Arc<Module>)>;

// Readers and writers of a snapshot never wait for each other, so a fork at any moment leaves none that waits for ever.
static CURRENT: LazyLock<Snapshot<Slot>> = LazyLock::new(Snapshot::default);

/// The module of this process.
pub fn current() -> Result<Arc<Module>, Rv> {
    let own = std::process::id();
    CURRENT.with(|slot| match slot {
        Some((process, module)) if *process == own => Ok(module.clone()),
        _ => Err(Rv(CKR_CRYPTOKI_NOT_INITIALIZED)),
    })
}

/// `CKR_CRYPTOKI_ALREADY_INITIALIZED` in a process that has done so.
pub fn start(module: Module) -> Result<(), Rv> {
    let own = std::process::id();
    let module = Arc::new(module);
    CURRENT
        .try_update(|slot| match slot {
            Some((process, _)) if *process == own => Err(Rv(CKR_CRYPTOKI_ALREADY_INITIALIZED)),
            Some((_, inherited)) => {
                // One count more than there are owners: the parent's module is never dropped here.
                std::mem::forget(inherited.clone());
                Ok(Some((own, module.clone())))
            }
            None => Ok(Some((own, module.clone()))),
        })
        .map(drop)
}

/// Calls of other threads that are running keep their module until they end.
pub fn end() -> Result<(), Rv> {
    let own = std::process::id();
    CURRENT
        .try_update(|slot| match slot {
            Some((process, _)) if *process == own => Ok(None),
            _ => Err(Rv(CKR_CRYPTOKI_NOT_INITIALIZED)),
        })
        .map(drop)
}
