//! Background verification of the whole log: soon after start, then every `audit.scrub_interval`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ron_kernel::{Deadline, ThreadCtx};
use ron_tlog::append::Disk;

use super::health::{AuditHealth, Fault};
use super::verify::verify_on;

/// How long the first verification waits, so that it does not compete with the start.
const FIRST_AFTER: Duration = Duration::from_secs(2);

/// What the scrubber needs.
pub struct Scrub {
    /// Disk of the log.
    pub disk: Arc<dyn Disk>,
    /// Directory of the log.
    pub dir: PathBuf,
    /// Its verifier key line.
    pub vkey: String,
    /// Pause between two verifications.
    pub interval: Duration,
    /// Turned to "no" by a finding.
    pub health: AuditHealth,
}

impl Scrub {
    /// Runs until shutdown.
    pub fn run(&self, ctx: &ThreadCtx) {
        let mut pause = FIRST_AFTER.min(self.interval);
        while !ctx.shutdown.wait(Deadline::within(pause)) {
            pause = self.interval;
            self.once(ctx);
        }
    }

    /// Verifies once; a shutdown ends it early without a finding.
    pub fn once(&self, ctx: &ThreadCtx) {
        let stop = || ctx.shutdown.is_set();
        match verify_on(&*self.disk, &self.dir, &self.vkey, &stop, &mut |_, _| ()) {
            Ok(report) => tracing::info!(event = "audit_verified", leaves = report.size),
            Err(_) if stop() => {}
            Err(error) => {
                self.health.fail(
                    Fault::Tampering,
                    &format!("the audit log does not verify: {error}"),
                );
            }
        }
    }
}
