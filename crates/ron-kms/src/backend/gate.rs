//! Whether keys may sign although nobody has attested lately where they are.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Attestation, BackendKind};
use crate::error::{Refusal, Why};

/// One mark for each backend; shared by the refresher, which sets it, and by signers.
#[derive(Debug, Default)]
pub struct AttestGate {
    required: bool,
    fresh: [AtomicBool; BackendKind::ALL.len()],
}

impl AttestGate {
    /// A gate that is closed until evidence comes, when it is `required`; else always open.
    pub fn new(required: bool) -> Self {
        Self {
            required,
            fresh: Default::default(),
        }
    }

    /// Evidence has come, or has not.
    pub fn set(&self, backend: BackendKind, fresh: bool) {
        self.fresh[backend as usize].store(fresh, Ordering::SeqCst);
    }

    /// Whether a key of this backend may sign.
    pub fn check(&self, backend: BackendKind, class: Attestation) -> Result<(), Refusal> {
        if !self.required {
            return Ok(());
        }
        if class == Attestation::None {
            return Err(Refusal::new(
                Why::AttestationMissing,
                "attest_require = required: keys of the service's own store cannot be attested",
            ));
        }
        if self.fresh[backend as usize].load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(Refusal {
            retry_after_s: 5,
            ..Refusal::new(
                Why::AttestationMissing,
                "attest_require = required, and the device has not attested its keys lately",
            )
        })
    }
}
