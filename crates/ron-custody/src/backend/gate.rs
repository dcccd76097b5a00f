//! The gate in front of signatures: whether keys may sign without a recent attestation of their device, and what their
//! signatures state about it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ron_proto::kms::{KeyBackend, SignAttestation};
use ron_proto::values::Timestamp;

use super::Attestation;
use crate::{Cause, Refusal};

/// One flag per backend; set by the refresher thread, read by signers.
#[derive(Debug, Default)]
pub struct AttestGate {
    required: AtomicBool,
    fresh: [AtomicBool; KeyBackend::ALL.len()],
    /// Time of the last attestation, in Unix milliseconds; 0 for never.
    confirmed_ms: [AtomicU64; KeyBackend::ALL.len()],
}

impl AttestGate {
    /// With `required`, the gate is closed while the device does not attest; otherwise it is open.
    pub fn require(&self, required: bool) {
        self.required.store(required, Ordering::SeqCst);
    }

    /// Records whether the last attestation succeeded.
    pub fn set(&self, backend: KeyBackend, fresh: bool) {
        self.fresh[backend as usize].store(fresh, Ordering::SeqCst);
    }

    /// The device attested one of its keys at this time, in Unix milliseconds.
    pub fn confirm(&self, backend: KeyBackend, now_ms: u64) {
        self.confirmed_ms[backend as usize].store(now_ms, Ordering::SeqCst);
    }

    /// The attestation that a signature of this backend's keys states; `None` if the backend does not attest, or has not
    /// yet.
    pub fn confirmed(&self, backend: KeyBackend, class: Attestation) -> Option<SignAttestation> {
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

    /// Refuses when a key of this backend may not sign.
    pub fn check(&self, backend: KeyBackend, class: Attestation) -> Result<(), Refusal> {
        if !self.required.load(Ordering::SeqCst) {
            return Ok(());
        }
        if class == Attestation::None {
            return Err(Refusal::new(
                Cause::AttestationMissing,
                "attest.require = required: keys of the local store cannot be attested",
            ));
        }
        if self.fresh[backend as usize].load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(Refusal {
            retry_after_s: 5,
            ..Refusal::new(
                Cause::AttestationMissing,
                "attest.require = required, and the last attestation of the device failed or is missing",
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
        let (tpm, class) = (KeyBackend::Tpm, Attestation::TpmCertify);
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
            gate.confirmed(KeyBackend::Pkcs11, Attestation::Statement),
            None
        );
        assert_eq!(gate.confirmed(tpm, Attestation::None), None);
    }
}
