//! Background verification of the log: soon after start, then every `audit.scrub_interval`. Of archived segments the leaf hashes are
//! verified; their leaves are read by `ron audit verify`. Between verifications segments that are old enough are archived.

use std::time::Duration;

use ron_files::Dir;
use ron_kernel::ThreadCtx;
use ron_service::log_host::KeyView;
use ron_service::log_host::archive::LogArchive;
use ron_tlog::append::archived_files;

use super::health::{AuditHealth, Fault};
use super::verify::verify_present;
use crate::settings::{InForce, pause_while};

/// Delay of the first verification, so that it does not compete with the start.
const FIRST_AFTER: Duration = Duration::from_secs(2);

/// Pause before a log that could not be read is read again.
const UNREAD_AGAIN: Duration = Duration::from_secs(30);

/// What the scrubber needs.
pub struct Scrub {
    /// Directory of the log.
    pub dir: Dir,
    pub keys: KeyView,
    pub settings: InForce,
    /// Set to failed by a finding.
    pub health: AuditHealth,
}

impl Scrub {
    pub fn run(&self, ctx: &ThreadCtx, mut archive: Option<LogArchive>) {
        let interval = || self.settings.with(|settings| settings.keys.scrub_interval);
        let (mut most, mut is_verified) = (FIRST_AFTER, false);
        let archive = &mut archive;
        while !pause_while(&ctx.shutdown, || {
            self.archive(ctx, archive.as_mut(), is_verified);
            interval().min(most)
        }) {
            is_verified = self.once(ctx);
            most = if is_verified {
                Duration::MAX
            } else {
                UNREAD_AGAIN
            };
        }
    }

    /// Archives a segment when one is due. Before the log is verified, archived segments are only looked for.
    fn archive(&self, ctx: &ThreadCtx, archive: Option<&mut LogArchive>, is_verified: bool) {
        if let Some(archive) = archive.filter(|archive| is_verified || !archive.is_checked()) {
            let after = archive.after();
            self.settings
                .with(|settings| after.change(&settings.keys.archive));
            archive.step(&ctx.shutdown);
        }
    }

    /// Verifies once; a shutdown ends it early without a finding. False when the log could not be read, for want of
    /// descriptors or because the disk is gone: that is no evidence of tampering.
    pub fn once(&self, ctx: &ThreadCtx) -> bool {
        let stop = || ctx.shutdown.is_set();
        // Twice: a transient read error must not be reported as tampering, which closes the log until a restart.
        for last in [false, true] {
            // Loaded for each attempt: the log's key may be rotated in between.
            let keys = self.keys.chain();
            match verify_present(&**self.dir.disk(), self.dir.path(), keys.keys(), &stop) {
                Ok(report) => {
                    tracing::info!(event = "audit_verified", leaves = report.size);
                    return true;
                }
                Err(_) if stop() => return true,
                Err(error) if !self.readable() => {
                    tracing::warn!(event = "audit_unread", %error);
                    return false;
                }
                Err(error) if last => self.health.fail(
                    Fault::Tampering,
                    &format!("the audit log does not verify: {error}"),
                ),
                Err(_) => {}
            }
        }
        true
    }

    /// Whether files can be listed and opened at all, also those of the archive.
    fn readable(&self) -> bool {
        let archived = archived_files(&**self.dir.disk(), self.dir.path());
        let openable = |name: &String| self.dir.open_read(name).is_ok();
        self.dir
            .list()
            .is_ok_and(|names| names.iter().all(openable))
            && archived.is_ok()
    }
}
