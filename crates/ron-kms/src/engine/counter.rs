//! The counter of a TPM as an anchor: a data directory that was restored to a state from before the last start does
//! not state the number that the TPM has.
//!
//! ```text
//!  start: TPM says n, the store says n (or n + 1: the last start ended between the two steps below)
//!         store := n + 1, durable, under its MAC        then        TPM := n + 1
//! ```
//!
//! A rollback within one run of the service is found by the other anchors: the copies of the checkpoint, and
//! witnesses.

use ron_proto::kms::KeyBackend;
use std::time::Duration;

use ron_custody::backend::Backends;
use ron_custody::backend::DeviceSettings;
use ron_custody::store::KeyStore;
use ron_kernel::Deadline;

use super::distrust::Distrust;
use crate::audit::health::Fault;

/// Maximum wait for one answer of the TPM.
const WAIT: Duration = Duration::from_secs(3);

fn distrust(fault: Fault, why: String) -> Distrust {
    Distrust { fault, why }
}

/// Compares the store's number with the TPM's and advances both. Does nothing where no counter is
/// configured and the store has never used one.
pub fn compare(
    devices: &DeviceSettings,
    backends: &Backends,
    store: &mut KeyStore,
) -> Result<(), Distrust> {
    let tpm = devices.tpm.as_ref();
    let wanted = tpm.is_some_and(|tpm| tpm.counter_index.is_some());
    let stated = store.tpm_counter();
    if !wanted {
        return match stated {
            None => Ok(()),
            Some(_) => Err(distrust(
                Fault::Failure,
                "this store counts its starts in a TPM, but tpm.counter_index is not set".into(),
            )),
        };
    }
    let tpm = backends.holder(&KeyBackend::Tpm.into());
    let ask = |advance| {
        tpm.counter(advance, Deadline::within(WAIT)).map_err(|e| {
            let why = format!("the TPM's counter cannot be read: {e}; restart the service when the TPM is available");
            distrust(Fault::Failure, why)
        })
    };
    let found = ask(false)?;
    match stated {
        None => {}
        Some(stated) if stated == found || stated.checked_sub(1) == Some(found) => {}
        Some(stated) if stated < found => {
            return Err(distrust(
                Fault::Tampering,
                format!(
                    "the data directory was rolled back to an earlier start: it states {stated}, the TPM has counted {found}"
                ),
            ));
        }
        Some(stated) => {
            return Err(distrust(
                Fault::Tampering,
                format!(
                    "the TPM was replaced or cleared: it has counted {found}, the store states {stated}"
                ),
            ));
        }
    }
    let failed = |e| distrust(Fault::Failure, format!("the key store: {e}"));
    // The store first: after a crash between the two steps the store is one ahead, which the next start accepts. The
    // other order would leave the store behind, as a rollback does.
    store.set_tpm_counter(found + 1).map_err(failed)?;
    let now = ask(true)?;
    if now != found + 1 {
        return Err(distrust(
            Fault::Failure,
            format!(
                "another program advances the TPM's counter: it is {now}, expected {}",
                found + 1
            ),
        ));
    }
    Ok(())
}
