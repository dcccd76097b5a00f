//! The gate in front of signatures: whether keys may sign without a recent attestation of their device, and what their
//! signatures state about it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ron_proto::kms::SignAttestation;
use ron_proto::values::Timestamp;

use super::{Attestation, BackendId};
use crate::{Cause, Refusal};

/// Whether devices attest; set by the refresher thread, read by signers.
#[derive(Debug, Default)]
pub struct AttestGate {
    required: AtomicBool,
    devices: Vec<Attested>,
}

/// What is known of one device.
#[derive(Debug)]
struct Attested {
    id: BackendId,
    fresh: AtomicBool,
    /// Time of the last attestation, in Unix milliseconds; 0 for never.
    confirmed_ms: AtomicU64,
}

impl AttestGate {
    /// The gate of these devices, none of which has attested yet.
    pub fn new(devices: impl IntoIterator<Item = BackendId>) -> Self {
        let unknown = |id| Attested {
            id,
            fresh: AtomicBool::new(false),
            confirmed_ms: AtomicU64::new(0),
        };
        Self {
            required: AtomicBool::new(false),
            devices: devices.into_iter().map(unknown).collect(),
        }
    }

    fn of(&self, backend: &BackendId) -> Option<&Attested> {
        self.devices.iter().find(|device| device.id == *backend)
    }

    /// With `required`, the gate is closed while the device does not attest; otherwise it is open.
    pub fn require(&self, required: bool) {
        self.required.store(required, Ordering::SeqCst);
    }

    /// Records whether the last attestation succeeded.
    pub fn set(&self, backend: &BackendId, fresh: bool) {
        if let Some(device) = self.of(backend) {
            device.fresh.store(fresh, Ordering::SeqCst);
        }
    }

    /// The device attested one of its keys at this time, in Unix milliseconds.
    pub fn confirm(&self, backend: &BackendId, now_ms: u64) {
        if let Some(device) = self.of(backend) {
            device.confirmed_ms.store(now_ms, Ordering::SeqCst);
        }
    }

    /// The attestation that a signature of this backend's keys states; `None` if the backend does not attest, or has not
    /// yet.
    pub fn confirmed(&self, backend: &BackendId, class: Attestation) -> Option<SignAttestation> {
        if class == Attestation::None {
            return None;
        }
        match self.of(backend)?.confirmed_ms.load(Ordering::SeqCst) {
            0 => None,
            at => Some(SignAttestation {
                class: class.as_str().to_owned(),
                confirmed: Timestamp(at),
            }),
        }
    }

    /// Refuses when a key of this backend may not sign.
    pub fn check(&self, backend: &BackendId, class: Attestation) -> Result<(), Refusal> {
        if !self.required.load(Ordering::SeqCst) {
            return Ok(());
        }
        if class == Attestation::None {
            return Err(Refusal::new(
                Cause::AttestationMissing,
                "attest.require = required: keys of the local store cannot be attested",
            ));
        }
        let device = self.of(backend);
        if device.is_some_and(|device| device.fresh.load(Ordering::SeqCst)) {
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
    use ron_proto::kms::KeyBackend;

    use super::*;

    #[test]
    fn a_signature_says_when_its_device_last_attested() {
        let (tpm, token) = (BackendId::from(KeyBackend::Tpm), named("a"));
        let gate = AttestGate::new([tpm.clone(), token.clone()]);
        let class = Attestation::TpmCertify;
        assert_eq!(gate.confirmed(&tpm, class), None, "not yet");
        gate.confirm(&tpm, 5);
        gate.set(&tpm, true);
        gate.confirm(&tpm, 7);
        let said = gate.confirmed(&tpm, class).expect("it has");
        assert_eq!(
            (said.class.as_str(), said.confirmed),
            ("tpm2-certify", Timestamp(7))
        );
        gate.set(&tpm, false);
        assert_eq!(
            gate.confirmed(&tpm, class),
            Some(said),
            "an age, not a promise"
        );
        assert_eq!(gate.confirmed(&token, Attestation::Statement), None);
        assert_eq!(gate.confirmed(&tpm, Attestation::None), None);
    }

    #[test]
    fn each_token_opens_the_gate_for_its_own_keys() {
        let (a, b) = (named("a"), named("b"));
        let gate = AttestGate::new([a.clone(), b.clone()]);
        gate.require(true);
        gate.set(&a, true);
        let open = |id: &BackendId| gate.check(id, Attestation::Statement).is_ok();
        let unnamed = BackendId::from(KeyBackend::Pkcs11);
        assert_eq!([&a, &b, &unnamed].map(open), [true, false, false]);
    }

    fn named(token: &str) -> BackendId {
        BackendId {
            kind: KeyBackend::Pkcs11,
            token: Some(token.parse().expect("a name")),
        }
    }
}
