//! Connects the audit log with its witnesses: cosignatures go to the checkpoint thread, and a witness that remembers another
//! history of this log stops all writes.

use std::sync::Arc;

use ron_kernel::Sender;
use ron_service::log_host::asker::{Asker, Witnessed};
use ron_tlog::note::NoteSignature;

use super::checkpoint::Wake;
use super::health::{AuditHealth, Fault};
use super::proofs::ProofJob;

/// The thread that requests cosignatures.
pub type WitnessThread = Asker<WitnessedAudit>;

/// That thread's access to the audit log.
pub struct WitnessedAudit {
    /// To the thread that stores checkpoints.
    pub store: Sender<Wake>,
    /// Wake-ups of the thread that sends proofs.
    pub proofs: Sender<ProofJob>,
    /// Set to failed by a witness that remembers another history.
    pub health: AuditHealth,
}

impl Witnessed for WitnessedAudit {
    fn is_ok(&self) -> bool {
        self.health.is_ok()
    }

    fn betrayed(&self, why: &str) {
        self.health.fail(Fault::Tampering, why);
    }

    fn store(&self, text: &Arc<str>, lines: Vec<NoteSignature>) -> bool {
        let wake = Wake::Cosigned(Arc::clone(text), lines);
        self.store.try_send(wake).is_ok()
    }

    fn shown(&self) {
        let _ = self.proofs.try_send(ProofJob::Check); // full: the thread is awake and will read the newest state
    }
}
