//! Whether keys may sign although nobody has attested lately where they are, and what their
//! signatures say of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ron_proto::kms::SignAttestation;
use ron_proto::values::Timestamp;

use super::{Attestation, BackendKind};
use crate::error::{Refusal, Why};

/// One mark for each backend; shared by the refresher, which sets it, and by signers.
#[derive(Debug, Default)]
pub struct AttestGate {
    required: bool,
    fresh: [AtomicBool; BackendKind::ALL.len()],
    /// When evidence last came, in Unix milliseconds; 0 for never.
    confirmed_ms: [AtomicU64; BackendKind::ALL.len()],
}

impl AttestGate {
    /// A gate that is closed until evidence comes, when it is `required`; else always open.
    pub fn new(required: bool) -> Self {
        Self {
            required,
            fresh: Default::default(),
            confirmed_ms: Default::default(),
        }
    }

    /// Evidence has come, or has not.
    pub fn set(&self, backend: BackendKind, fresh: bool) {
        self.fresh[backend as usize].store(fresh, Ordering::SeqCst);
    }

    /// The device attested one of its keys at this time, in Unix milliseconds.
    pub fn confirm(&self, backend: BackendKind, now_ms: u64) {
        self.confirmed_ms[backend as usize].store(now_ms, Ordering::SeqCst);
    }

    /// What a signature of this backend's keys says; `None` where nobody attests, or nobody has yet.
    pub fn confirmed(&self, backend: BackendKind, class: Attestation) -> Option<SignAttestation> {
        if class == Attestation::None {
            return None;
        }
        match self.confirmed_ms[backend as usize].load(Ordering::SeqCst) {
            0 => None,
            at => Some(SignAttestation {
                class: class.as_str().to_owned(),
                confirmed: Timestamp(at),
            }),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_says_when_its_device_last_attested() {
        let gate = AttestGate::default();
        let (tpm, class) = (BackendKind::Tpm, Attestation::TpmCertify);
        assert_eq!(gate.confirmed(tpm, class), None, "not yet");
        gate.confirm(tpm, 5);
        gate.set(tpm, true);
        gate.confirm(tpm, 7);
        let said = gate.confirmed(tpm, class).expect("it has");
        assert_eq!(
            (said.class.as_str(), said.confirmed),
            ("tpm2-certify", Timestamp(7))
        );
        gate.set(tpm, false);
        assert_eq!(
            gate.confirmed(tpm, class),
            Some(said),
            "an age, not a promise"
        );
        assert_eq!(
            gate.confirmed(BackendKind::Pkcs11, Attestation::Statement),
            None
        );
        assert_eq!(gate.confirmed(tpm, Attestation::None), None);
    }
}
