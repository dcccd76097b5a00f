//! Has every device attest one of its keys, every `attest.refresh_every`. With `attest.require = "required"`, the
//! keys of a device that fails do not sign until it attests again.

use std::sync::Arc;
use std::time::Duration;

use ron_custody::backend::{Attestation, Custody, Device, DeviceKey};
use ron_kernel::{Deadline, ThreadCtx};
use ron_service::ReadyBoard;

use super::Kms;
use crate::attest::tpm_format;
use crate::settings::pause_while;

/// Maximum time for a device to attest.
pub const ATTEST_WAIT: Duration = Duration::from_secs(3);
/// Pause after a failure, and while a device has no key.
const SOON: Duration = Duration::from_secs(5);
const CAUSE: &str = "attestation";

pub struct Refresher {
    pub kms: Arc<Kms>,
    /// Where a device that fails to attest is reported.
    pub ready: ReadyBoard,
}

impl Refresher {
    pub fn run(&self, ctx: &ThreadCtx) {
        loop {
            let most = if self.attest_all() {
                Duration::MAX
            } else {
                SOON
            };
            let every = || {
                self.kms
                    .settings
                    .with(|settings| settings.devices.attest_every)
            };
            if pause_while(&ctx.shutdown, || every().min(most)) {
                return;
            }
        }
    }

    /// Has every device attest once; true when all did. A device without a key has nothing to attest, and its gate stays
    /// closed: the first key that is made there must not sign before its evidence.
    pub fn attest_all(&self) -> bool {
        let mut all = true;
        let mut failed = Vec::new();
        for device in self.kms.backends.devices() {
            let attested = self.attest_one(&**device);
            let result = match &attested {
                Some(Ok(())) => "ok",
                Some(Err(_)) => "failed",
                None => "no_key",
            };
            let counted = &self.kms.metrics.attest;
            counted.with_label_values(&[result]).inc();
            let fresh = matches!(attested, Some(Ok(())));
            let gate = self.kms.backends.gate();
            if fresh {
                // Before the gate opens: signatures made after that state this time.
                gate.confirm(device.id(), self.kms.clock.unix_ms());
            }
            gate.set(device.id(), fresh);
            if let Some(Err(why)) = attested {
                failed.push(format!("{}: {why}", device.id()));
            }
            all &= fresh;
        }
        if failed.is_empty() {
            self.ready.clear(CAUSE);
        } else {
            self.ready.degrade(CAUSE, failed.join("; "));
        }
        all
    }

    /// Has the device attest one of its keys; `None` when it has none.
    fn attest_one(&self, device: &dyn Device) -> Option<Result<(), String>> {
        let index = self.kms.index.load();
        let mut keys = index.keys.values();
        let key = keys.find(|key| key.held_by() == Some(device.id()))?;
        let held = match key.secret.as_ref()?.open() {
            Ok(Custody::Device(held)) => held,
            Ok(Custody::Local(_)) => return None,
            Err(refusal) => return Some(Err(refusal.detail)),
        };
        let mut nonce = [0_u8; 32];
        self.kms.random.fill(&mut nonce);
        Some(check_evidence(device, held, nonce))
    }
}

/// Checks the device's evidence. A device that cannot certify keys only has to be available.
fn check_evidence(device: &dyn Device, held: &DeviceKey, nonce: [u8; 32]) -> Result<(), String> {
    let deadline = Deadline::within(ATTEST_WAIT);
    let evidence = device
        .attest(&held.handle, nonce, deadline)
        .map_err(|e| e.to_string())?;
    let certifies = device.capabilities().attestation == Attestation::TpmCertify;
    match evidence {
        None if certifies => Err("it gives no evidence".into()),
        None => device.presence().unavailable().map_or(Ok(()), Err),
        Some(evidence) => {
            let bad = |e: tpm_format::BadTpm| e.to_string();
            let attest = tpm_format::attest(&evidence.certify).map_err(bad)?;
            let public = tpm_format::public(&evidence.key_public).map_err(bad)?;
            if attest.extra != nonce || public.point != held.public.raw() {
                return Err("its evidence is for another key or another nonce".into());
            }
            Ok(())
        }
    }
}
