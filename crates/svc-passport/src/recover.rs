//! An issuer that was restored from a backup: `ron restore`. Revocations since the backup are lost with the state before, so that
//! no passport that was issued so far is accepted any more.

use std::sync::Arc;

use ron_auth::revocation_log;
use ron_kernel::{SharedClock, SharedRandom};
use ron_proto::passport::Revoked;
use ron_service::DataDir;
use ron_service::log_host::note_key;

use crate::migrate::IssuerService;
use crate::revoke::Draft;

/// How far the epoch rises: the issuer may have raised it itself since the backup, once for each order of an operator.
const EPOCHS: u64 = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Leaves of the revocation log, as the backup has it.
    pub leaves: u64,
    /// The epoch in which tokens are issued from now on; those of earlier ones are refused.
    pub epoch: u64,
}

/// Ends all passports of an issuer that does not run, with a revocation that gives this reason.
pub fn end_passports(
    issuer: &IssuerService,
    reason: &str,
    random: &SharedRandom,
    clock: &SharedClock,
) -> Result<Ended, String> {
    let home = issuer.data();
    let _lock = DataDir::at(home.clone()).map_err(|e| e.to_string())?;
    let origin = revocation_log::origin(issuer.name());
    let signer = note_key::load_or_make(home, &origin, &**random, false)?;
    let (mut register, view) = issuer.register(Arc::new(signer), random)?;
    let epoch = view.epoch() + EPOCHS;
    let drafts = [Draft {
        revoked: &Revoked::Epoch { epoch },
        reason,
        actor: "ron restore",
    }];
    let recorded = register.record(&drafts, clock.unix_ms(), view.after());
    recorded.map_err(|e| e.to_string())?;
    Ok(Ended {
        leaves: view.after(),
        epoch,
    })
}
